// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! RDMA Reads from and Writes to a peer's memory.
//!
//! ```text
//!   idle ──add──► mapped ──(post, done)──► mapped
//!    ▲                                        │
//!    └───────────────── unmap ────────────────┘
//! ```
//!
//! A transfer owns the pages that it moves bytes from or to, and lends them only when nothing is
//! mapped. It is a field of the owner of the chain that it is posted in.
//!
//! Its Work Requests refer to the pages by the PD's local key, see [`direct`]. Only RDMA Reads of
//! an iWARP device need registered memory, for which `rdma_rw` of ib_core is used, see
//! [`registered`].
//!
//! C header: [`include/rdma/rw.h`](srctree/include/rdma/rw.h)

mod direct;
mod registered;

use core::{
    cell::Cell,
    iter::once,
    ops::Range, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    pd::Pd,
    qp::{
        AnyQp,
        Qp,
        QpHandler,
        RawQp, //
    },
    wr::{
        Requests,
        Ticket, //
    },
    DataDirection, //
};
use crate::kapi::{
    bindings,
    ext::pages::PageVec, //
};
use direct::Direct;
use registered::Registered;

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferDir {
    /// From the peer's memory into our pages.
    Read,
    /// From our pages into the peer's memory.
    Write,
}

impl TransferDir {
    fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            TransferDir::Read => DataDirection::FromDevice.as_raw(),
            TransferDir::Write => DataDirection::ToDevice.as_raw(),
        }
    }
}

/// A contiguous range of the peer's registered memory.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    /// The address of the first byte, in the address space of the peer's registration.
    pub(crate) addr: u64,
    /// The number of bytes.
    pub(crate) length: u32,
    /// The handle (R_key) of the registration.
    pub(crate) handle: u32,
}

/// Pages, and the RDMA Reads and Writes that move bytes into and out of them.
///
/// The arrays are reused, so that nothing is allocated in steady state.
///
/// # Examples
///
/// ```ignore
/// let mut transfer = Transfer::new();
/// transfer.unmap().take_from(&mut spare, 2, GFP_KERNEL)?;
/// let remote = Remote { addr, length: 8192, handle };
/// transfer.add(&qp, TransferDir::Read, 0..8192, remote)?;
/// // Post it by `Chain::transfer`. When the chain has completed, its pages are available again:
/// let pages = transfer.unmap();
/// ```
///
/// # Invariants
///
/// If any bytes of `pages` are mapped, `pd` is set, and they are mapped for the QP of that PD.
pub(crate) struct Transfer {
    pages: PageVec,
    direct: Direct,
    registered: Registered,
    /// The last chain that the transfer was added to. The field also makes the type `!Sync`,
    /// because adding the transfer to a chain changes its Work Requests.
    chain: Cell<Ticket>,
    /// The PD of the last use. It stays, so that no reference is taken and dropped for each use. A
    /// transfer that is kept for the next use may belong to the handler of the QP, so it cannot
    /// hold the QP itself.
    pd: Option<Arc<Pd>>,
}

// SAFETY: Pages and DMA mappings may be used and released on any thread.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Creates an empty transfer without pages.
    pub(crate) const fn new() -> Self {
        Transfer {
            pages: PageVec::new(),
            direct: Direct::new(),
            registered: Registered::new(),
            chain: Cell::new(Ticket { qp: 0, post: 0 }),
            pd: None,
        }
    }

    /// Returns the number of Send Queue entries that its RDMA Reads and Writes need.
    pub(crate) fn sqes(&self) -> u32 {
        self.direct.sqes().saturating_add(self.registered.sqes())
    }

    /// Returns whether anything is mapped.
    fn is_mapped(&self) -> bool {
        self.direct.is_mapped() || self.registered.is_mapped()
    }

    /// Makes the PD of `qp` the one that bytes are mapped for. Returns the target of an RDMA Read
    /// or Write that names the pages by the PD's local key; `None` if it needs registered memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` if something is mapped for another PD.
    #[inline(always)]
    fn target<'q, H: QpHandler>(
        &mut self,
        qp: &'q Qp<H>,
        direction: TransferDir,
    ) -> Result<Option<direct::Target<'q>>> {
        let pd = qp.pd();
        if !self.pd.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, pd)) {
            if self.is_mapped() {
                return Err(EINVAL);
            }
            self.pd = Some(pd.clone());
        }
        let registered = direction == TransferDir::Read && qp.is_iwarp();
        Ok((!registered).then(|| direct::Target::of(qp, direction)))
    }

    /// Adds an RDMA Read of all of `remote`, or a Write to it, into or from the octets `octets` of
    /// the pages, in order: the first page has the first [`PAGE_SIZE`](kernel::page::PAGE_SIZE)
    /// octets. May sleep.
    ///
    /// # Errors
    ///
    /// * `EINVAL` if the pages lack some of these octets, if their number is zero or not the length
    ///   of `remote`, or if something is mapped for another QP or direction,
    /// * `ENOMEM`,
    /// * errors of ib_core, such as `EAGAIN` if the device has too few resources.
    ///
    /// A part may be mapped then, so the caller must call [`Self::unmap`].
    pub(crate) fn add<H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        direction: TransferDir,
        octets: Range<usize>,
        remote: Remote,
    ) -> Result {
        match self.target(qp, direction)? {
            // SAFETY: `target` has ensured that all that is mapped is for the device of the target.
            // The pages are not lent before `unmap`.
            Some(target) => unsafe { self.direct.add(&target, &self.pages, octets, remote) },
            None => self.registered.add(qp, &self.pages, once(octets), remote),
        }
    }

    /// Adds an RDMA Read or Write as [`Self::add`] does, with several ranges of octets. The errors
    /// are the same. May sleep.
    pub(crate) fn add_parts<H: QpHandler>(
        &mut self,
        qp: &Qp<H>,
        direction: TransferDir,
        octets: impl Iterator<Item = Range<usize>>,
        remote: Remote,
    ) -> Result {
        match self.target(qp, direction)? {
            // SAFETY: `target` has ensured that all that is mapped is for the device of the target.
            // The pages are not lent before `unmap`.
            Some(target) => unsafe { self.direct.add_parts(&target, &self.pages, octets, remote) },
            None => self.registered.add(qp, &self.pages, octets, remote),
        }
    }

    /// Unmaps all pages, and returns them. May sleep.
    #[inline]
    pub(crate) fn unmap(&mut self) -> &mut PageVec {
        // INVARIANT: Nothing is mapped any more.
        match &self.pd {
            // SAFETY: The mapping was made for the device of this PD. A posted transfer belongs to
            // the owner of its chain, which does not lend it mutably.
            Some(pd) if self.direct.is_mapped() => unsafe { self.direct.unmap(pd.device()) },
            _ => (),
        }
        if self.registered.is_mapped() {
            self.registered.unmap();
        }
        &mut self.pages
    }

    /// Records that the transfer is added to a chain for the QP of `pd`. Returns `false` if it is
    /// in this chain already, or was last mapped for another QP.
    #[inline]
    pub(super) fn enter_chain(&self, pd: *mut bindings::ib_pd, ticket: Ticket) -> bool {
        let kept = self.pd.as_ref();
        kept.is_none_or(|kept| kept.as_raw() == pd) && self.chain.replace(ticket) != ticket
    }

    /// Calls `f` with the requests, linked and unsignaled, in one list or several.
    ///
    /// # Safety
    ///
    /// The transfer must have entered a chain of its QP with [`Self::enter_chain`], and be in no
    /// other chain.
    pub(super) unsafe fn requests(&self, mut f: impl FnMut(Requests)) {
        // SAFETY: The transfer is in no other chain, by this function's contract.
        if let Some(list) = unsafe { self.direct.link() } {
            f(list);
        }
        if self.registered.is_mapped() {
            // SAFETY: The transfer is in no other chain, by this function's contract.
            unsafe { self.registered.link(&mut f) };
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Code that tests in the kernel share: pages, addresses, a device, threads that contend.
//!
//! It is a part of `kapi` during tests, since the functions that create pages and addresses from
//! pointers are private to `kapi`.

use core::ptr::NonNull;

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Completion, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue, //
};

use super::{
    bindings,
    compat::parameter,
    ext::{
        lend::{
            Access,
            Lender,
            LentSegs, //
        },
        memory::MemSeg,
        pages::{
            self,
            PageVec, //
        }, //
    },
    rdma::{
        cm::{
            Event,
            Handler,
            Id, //
        },
        pd::Pd, //
    },
    sunrpc::{
        addr::SockAddr,
        net::Net,
        xdr_buf::XdrBuf, //
    },
};
use crate::kapi::ext::atomic::{
    Atomic,
    Full,
    Relaxed, //
};

/// A message whose only part is its head, which is zeroed.
pub(crate) struct HeadOnly {
    _head: KVec<u8>,
    raw: KBox<bindings::xdr_buf>,
}

impl HeadOnly {
    /// Allocates a message of `len` bytes.
    pub(crate) fn new(len: usize) -> Result<Self> {
        let mut head = KVec::from_elem(0, len, GFP_KERNEL)?;
        let mut raw = KBox::init(pin_init::init_zeroed::<bindings::xdr_buf>(), GFP_KERNEL)?;
        raw.head[0].iov_base = head.as_mut_ptr().cast();
        raw.head[0].iov_len = len;
        raw.len = len as u32;
        Ok(Self { _head: head, raw })
    }

    /// Borrows the message.
    pub(crate) fn buf(&mut self) -> &XdrBuf {
        // SAFETY: `new` has set up the `xdr_buf`, and the message is borrowed.
        unsafe { XdrBuf::from_raw(&raw mut *self.raw) }
    }
}

/// Returns the expected value of byte number `i`.
pub(crate) fn pattern(i: usize, seed: usize) -> u8 {
    (i / 7 + i / PAGE_SIZE + seed).to_le_bytes()[0]
}

/// Allocates a page; the caller owns the reference to it.
pub(in crate::kapi) fn page() -> Result<NonNull<bindings::page>> {
    // SAFETY: Allocates a new page.
    let page = unsafe { bindings::alloc_pages(bindings::GFP_KERNEL, 0) };
    NonNull::new(page).ok_or(ENOMEM)
}

/// Returns the number of references to a page.
pub(in crate::kapi) fn references(page: NonNull<bindings::page>) -> i32 {
    // SAFETY: The callers own a reference.
    unsafe { pages::references(page) }
}

/// Lends runs of memory that the callers keep allocated, and do not use, until it is unmapped.
pub(in crate::kapi) fn lent<'a, I: Iterator<Item = MemSeg<'a>>>(
    lender: &'a Lender,
    runs: I,
    access: Access,
) -> LentSegs<'a, I> {
    // SAFETY: The callers keep the memory allocated, and do not use it, until it is unmapped.
    unsafe { LentSegs::new(runs, lender, access) }
}

/// Allocates pages with `len` bytes of the pattern, and more of it up to the end of the last page.
pub(crate) fn pages(len: usize, seed: usize) -> Result<PageVec> {
    let count = len.div_ceil(PAGE_SIZE);
    let mut pages = PageVec::new();
    pages.reserve(count, GFP_KERNEL)?;
    let mut bytes = KVec::with_capacity(PAGE_SIZE, GFP_KERNEL)?;
    for index in 0..count {
        // SAFETY: The page is new, and the array gets its reference.
        unsafe { pages.push(page()?)? };
        bytes.clear();
        for i in 0..PAGE_SIZE {
            bytes.push(pattern(index * PAGE_SIZE + i, seed), GFP_KERNEL)?;
        }
        pages.copy_in(index * PAGE_SIZE, &bytes)?;
    }
    Ok(pages)
}

/// Returns the IPv4 address `address`, given in the host's byte order.
pub(crate) fn addr(address: u32, port: u16) -> Result<SockAddr> {
    let mut raw = [0_u8; 16];
    // CAST: The number of an address family is small.
    raw[..2].copy_from_slice(&(bindings::AF_INET as u16).to_ne_bytes());
    raw[2..4].copy_from_slice(&port.to_be_bytes());
    raw[4..8].copy_from_slice(&address.to_be_bytes());
    // SAFETY: The bytes are valid.
    unsafe { SockAddr::from_raw(raw.as_ptr().cast(), raw.len()) }
}

/// Returns an IPv6 address.
pub(crate) fn addr6(address: [u8; 16], port: u16) -> Result<SockAddr> {
    let mut raw = [0_u8; 28];
    // CAST: The number of an address family is small.
    raw[..2].copy_from_slice(&(bindings::AF_INET6 as u16).to_ne_bytes());
    raw[2..4].copy_from_slice(&port.to_be_bytes());
    raw[8..24].copy_from_slice(&address);
    // SAFETY: The bytes are valid.
    unsafe { SockAddr::from_raw(raw.as_ptr().cast(), raw.len()) }
}

/// Returns the initial network namespace.
pub(crate) fn net() -> &'static Net {
    // SAFETY: `init_net` exists as long as the kernel runs.
    unsafe { Net::from_raw(&raw mut bindings::init_net) }
}

/// A handler that ignores all events.
struct Nobody;

#[vtable]
impl Handler for Nobody {
    fn event(&self, _event: Event<'_>) {}
}

/// Allocates a Protection Domain of the device with the address of the module's parameter.
///
/// # Errors
///
/// `ENODEV` or `EADDRNOTAVAIL` without such a device.
pub(crate) fn pd() -> Result<Arc<Pd>> {
    let mut id = Id::create(net(), Arc::new(Nobody, GFP_KERNEL)?)?;
    let address = parameter(crate::module_parameters::address.value());
    id.bind(&addr(address, 0)?)?;
    Pd::new(&id)
}

/// Sleeps for a short time, in which other threads run.
pub(crate) fn pause() {
    fsleep(Delta::from_micros(100));
}

/// Sleeps long enough for every runnable thread to have run.
pub(crate) fn long_pause() {
    fsleep(Delta::from_millis(50));
}

/// Runs `f` in a thread of its own.
pub(crate) fn spawn(f: impl FnOnce() + Send + 'static) -> Result {
    Ok(workqueue::system_unbound().try_spawn(GFP_KERNEL, f)?)
}

/// Runs `f` in `count` threads at the same time, each with its number, and waits for them.
pub(crate) fn contend(count: usize, f: impl Fn(usize) + Send + Sync + 'static) -> Result {
    struct Shared<F> {
        f: F,
        ready: Atomic<usize>,
        left: Atomic<usize>,
        done: Pin<KBox<Completion>>,
    }
    let shared = Arc::new(
        Shared {
            f,
            ready: Atomic::new(0),
            left: Atomic::new(count),
            done: KBox::pin_init(Completion::new(), GFP_KERNEL)?,
        },
        GFP_KERNEL,
    )?;
    for number in 0..count {
        let shared = shared.clone();
        spawn(move || {
            shared.ready.fetch_add(1, Relaxed);
            while shared.ready.load(Relaxed) < count {
                pause();
            }
            (shared.f)(number);
            if shared.left.fetch_sub(1, Full) == 1 {
                shared.done.complete_all();
            }
        })?;
    }
    shared.done.wait_for_completion();
    Ok(())
}

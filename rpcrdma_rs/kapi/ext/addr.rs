// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Transport addresses: an owned copy of a C `sockaddr`, IPv4 or IPv6.
//!
//! C headers: [`include/linux/sunrpc/addr.h`](srctree/include/linux/sunrpc/addr.h),
//! [`include/linux/socket.h`](srctree/include/linux/socket.h)

use core::{
    fmt,
    net::{
        IpAddr,
        Ipv4Addr,
        Ipv6Addr, //
    },
};

use kernel::prelude::*;

use crate::kapi::bindings;

type Storage = bindings::__kernel_sockaddr_storage;

/// Address families as the kernel numbers them.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Sizes of `struct sockaddr_in` and `struct sockaddr_in6`.
const LEN_INET: usize = 16;
const LEN_INET6: usize = 28;

/// A transport address, copied out of a C `sockaddr`.
///
/// # Invariants
///
/// `len` is at most the size of `storage`. The bytes that were not copied are zero.
#[derive(Clone, Copy)]
pub(crate) struct SockAddr {
    storage: Storage,
    len: usize,
}

// SAFETY: The value is a copy. The pointer that `storage` has for its alignment is never followed.
unsafe impl Send for SockAddr {}

// SAFETY: Shared access reads plain bytes, without interior mutability.
unsafe impl Sync for SockAddr {}

impl SockAddr {
    /// The size of the longest possible address.
    pub(crate) const MAX_LEN: usize = size_of::<Storage>();

    fn zeroed() -> Self {
        Self {
            storage: pin_init::zeroed(),
            len: 0,
        }
    }

    /// Copies the first `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is shorter than the field of the family, or longer than [`Self::MAX_LEN`].
    /// What a short address lacks reads as zero.
    ///
    /// # Safety
    ///
    /// `addr` must be valid for reads of `len` bytes.
    pub(in crate::kapi) unsafe fn from_raw(
        addr: *const bindings::sockaddr,
        len: usize,
    ) -> Result<Self> {
        if !(size_of::<u16>()..=Self::MAX_LEN).contains(&len) {
            return Err(EINVAL);
        }
        let mut this = Self::zeroed();
        // SAFETY: `addr` is valid for `len` bytes by this function's contract. `storage`, a local,
        // has at least as many by the check above, and does not overlap them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                addr.cast::<u8>(),
                (&raw mut this.storage).cast::<u8>(),
                len,
            )
        };
        // INVARIANT: `len` was checked above.
        this.len = len;
        Ok(this)
    }

    /// Copies an address out of a `sockaddr_storage`. The family determines its length.
    pub(in crate::kapi) fn from_storage(storage: &Storage) -> Self {
        let mut this = Self {
            storage: *storage,
            len: 0,
        };
        // INVARIANT: All three lengths are less than the size of the storage.
        this.len = match this.family() {
            AF_INET => LEN_INET,
            AF_INET6 => LEN_INET6,
            _ => size_of::<u16>(),
        };
        this
    }

    /// Returns the address in the form that C functions take.
    pub(in crate::kapi) fn as_ptr(&self) -> *const bindings::sockaddr {
        (&raw const self.storage).cast()
    }

    /// Returns the address as a `sockaddr_storage`.
    pub(in crate::kapi) fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns the length of the address in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bytes(&self) -> &[u8; Self::MAX_LEN] {
        // SAFETY: The storage has that size, and all its bytes are initialised.
        unsafe { &*(&raw const self.storage).cast() }
    }

    fn bytes_mut(&mut self) -> &mut [u8; Self::MAX_LEN] {
        // SAFETY: The storage has that size, all its bytes are initialised, and any bytes are a
        // valid storage. `self` is borrowed mutably.
        unsafe { &mut *(&raw mut self.storage).cast() }
    }

    fn family(&self) -> u16 {
        let b = self.bytes();
        u16::from_ne_bytes([b[0], b[1]])
    }

    /// Returns the address without its port, or `None` if it is neither IPv4 nor IPv6.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        let b = self.bytes();
        match self.family() {
            AF_INET => Some(Ipv4Addr::new(b[4], b[5], b[6], b[7]).into()),
            AF_INET6 => {
                let mut ip = [0u8; 16];
                ip.copy_from_slice(&b[8..24]);
                Some(Ipv6Addr::from(ip).into())
            }
            _ => None,
        }
    }

    /// Returns the scope of a link-local IPv6 address, and zero for any other address.
    pub(crate) fn scope_id(&self) -> u32 {
        let b = self.bytes();
        match self.ip() {
            Some(IpAddr::V6(ip)) if ip.segments()[0] & 0xffc0 == 0xfe80 => {
                u32::from_ne_bytes([b[24], b[25], b[26], b[27]])
            }
            _ => 0,
        }
    }

    /// Returns the port in host byte order, or zero if the family has none.
    pub(crate) fn port(&self) -> u16 {
        let b = self.bytes();
        match self.family() {
            AF_INET | AF_INET6 => u16::from_be_bytes([b[2], b[3]]),
            _ => 0,
        }
    }

    /// Replaces the port. Does nothing if the address is neither IPv4 nor IPv6.
    pub(crate) fn set_port(&mut self, port: u16) {
        if self.ip().is_some() {
            self.bytes_mut()[2..4].copy_from_slice(&port.to_be_bytes());
        }
    }

    /// Returns whether this is an IPv6 address.
    pub(crate) fn is_ipv6(&self) -> bool {
        self.family() == AF_INET6
    }

    /// Returns an object that prints the address as sunrpc does: without its port, and with the
    /// scope if it is link-local.
    pub(crate) fn display_ip(&self) -> DisplayIp<'_> {
        DisplayIp(self)
    }
}

/// Prints the address of a [`SockAddr`] without its port.
pub(crate) struct DisplayIp<'a>(&'a SockAddr);

impl fmt::Display for DisplayIp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip() {
            Some(ip) => ip.fmt(f)?,
            None => return f.write_str("unknown"),
        }
        match self.0.scope_id() {
            0 => Ok(()),
            scope => write!(f, "%{scope}"),
        }
    }
}

impl fmt::Display for SockAddr {
    /// `192.0.2.1:20049` or `[2001:db8::1]:20049`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ipv6() {
            write!(f, "[{}]:{}", self.display_ip(), self.port())
        } else {
            write!(f, "{}:{}", self.display_ip(), self.port())
        }
    }
}

impl kernel::fmt::Display for SockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

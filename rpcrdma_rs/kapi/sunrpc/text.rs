// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! C strings of limited length without an allocation, and the address strings of a transport.
//!
//! C header: [`include/linux/sunrpc/xprt.h`](srctree/include/linux/sunrpc/xprt.h)

use core::fmt::{
    self,
    Write as _, //
};

use kernel::{
    ffi::c_char,
    str::CStrExt, //
};

use super::{
    super::bindings,
    addr::SockAddr, //
};

/// A C string of less than `N` bytes. A longer string is truncated.
///
/// # Invariants
///
/// The last byte is zero.
pub(super) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// Creates an empty string.
    pub(super) const fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }

    /// Replaces the string.
    pub(super) fn set(&mut self, args: fmt::Arguments<'_>) {
        self.bytes = [0; N];
        self.len = 0;
        // Truncation is not an error.
        let _ = self.write_fmt(args);
    }

    /// Returns the string with its terminator.
    pub(super) fn with_nul(&self) -> &[u8] {
        &self.bytes[..=self.len]
    }

    /// Returns a pointer to the string, which ends with a zero byte.
    pub(super) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // INVARIANT: The last byte is not written.
        let n = s.len().min(N - 1 - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// The type of `address_strings` in `struct rpc_xprt`.
type AddressStrings = [*const c_char; bindings::rpc_display_format_t_RPC_DISPLAY_MAX as usize];

/// Strings that `address_strings` of the `rpc_xprt` point to.
pub(super) struct Strings {
    /// The address in hexadecimal.
    pub(super) hex_addr: Text<40>,
    /// The port.
    pub(super) port: Text<8>,
    /// The port in hexadecimal.
    pub(super) hex_port: Text<8>,
}

impl Strings {
    /// Creates the strings for the address of `server`.
    pub(super) fn new(server: &SockAddr) -> Self {
        let mut this = Self {
            hex_addr: Text::new(),
            port: Text::new(),
            hex_port: Text::new(),
        };
        match server.ip() {
            Some(core::net::IpAddr::V4(ip)) => {
                this.hex_addr.set(format_args!("{:08x}", u32::from(ip)));
            }
            Some(core::net::IpAddr::V6(ip)) => {
                let s = ip.segments();
                this.hex_addr.set(format_args!(
                    "{:04x}{:04x}{:04x}{:04x}{:04x}{:04x}{:04x}{:04x}",
                    s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
                ));
            }
            None => (),
        }
        this.set_port(server.port());
        this
    }

    /// Stores pointers to these strings, and to the constant ones, in `to`, the `address_strings`
    /// of the transport. Does not store the address itself.
    pub(super) fn publish(&self, to: &mut AddressStrings, v6: bool) {
        to[bindings::rpc_display_format_t_RPC_DISPLAY_PORT as usize] = self.port.as_ptr();
        to[bindings::rpc_display_format_t_RPC_DISPLAY_PROTO as usize] = c"rdma".as_char_ptr();
        to[bindings::rpc_display_format_t_RPC_DISPLAY_HEX_ADDR as usize] = self.hex_addr.as_ptr();
        to[bindings::rpc_display_format_t_RPC_DISPLAY_HEX_PORT as usize] = self.hex_port.as_ptr();
        to[bindings::rpc_display_format_t_RPC_DISPLAY_NETID as usize] =
            if v6 { c"rdma6" } else { c"rdma" }.as_char_ptr();
    }

    /// Replaces the port.
    pub(super) fn set_port(&mut self, port: u16) {
        self.port.set(format_args!("{port}"));
        self.hex_port.set(format_args!("{port:4x}"));
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

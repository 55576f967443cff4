// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: addresses, compared with the parser and the formatter of sunrpc.

use super::*;
use crate::kapi::fixture::net;
use kernel::str::CString;

/// Addresses as sunrpc prints them.
const TEXTS: [&str; 14] = [
    "0.0.0.0",
    "127.0.0.1",
    "192.0.2.1",
    "255.255.255.255",
    "::",
    "::1",
    "2001:db8::1",
    "2001:db8:0:1:1:1:1:1",
    "1:0:0:2::3",
    "1::2:0:0:3:4",
    "::ffff:192.0.2.1",
    "ff02::1",
    "fe80::5054:ff:fe12:3456",
    "fe80::1%7",
];

/// Lets sunrpc parse an address. Returns `None` if it cannot.
fn parse(text: &str) -> Option<Storage> {
    let mut storage: Storage = pin_init::zeroed();
    // SAFETY: The text and the storage are valid for these lengths.
    let len = unsafe {
        bindings::rpc_pton(
            net().as_ptr(),
            text.as_ptr().cast(),
            text.len(),
            (&raw mut storage).cast(),
            size_of::<Storage>(),
        )
    };
    (len > 0).then_some(storage)
}

/// Lets sunrpc print an address. Returns the text and its length.
fn print(addr: &SockAddr) -> ([u8; 64], usize) {
    let mut text = [0_u8; 64];
    // SAFETY: The address is valid, and the buffer has the given length.
    let len = unsafe { bindings::rpc_ntop(addr.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    (text, len)
}

/// Creates an address from the bytes of a C `sockaddr`.
fn of(bytes: &[u8]) -> Result<SockAddr> {
    // SAFETY: The bytes are valid.
    unsafe { SockAddr::from_raw(bytes.as_ptr().cast(), bytes.len()) }
}

fn text(args: fmt::Arguments<'_>) -> Result<CString> {
    CString::try_from_fmt(args)
}

#[kunit_tests(rpcrdma_addr)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_sunrpc_prints() -> Result {
        for expected in TEXTS {
            let addr = SockAddr::from_storage(&parse(expected).ok_or(EINVAL)?);
            let (theirs, len) = print(&addr);
            assert_eq!(theirs.get(..len), Some(expected.as_bytes()));
            let ours = text(format_args!("{}", addr.display_ip()))?;
            assert_eq!(
                ours.to_bytes_with_nul().get(..len),
                Some(expected.as_bytes())
            );
            assert_eq!(ours.to_bytes_with_nul().len(), len + 1);
        }
        Ok(())
    }

    #[test]
    fn ports_are_printed_after_the_address() -> Result {
        for (address, expected) in [
            ("192.0.2.1", "192.0.2.1:20049"),
            ("2001:db8::1", "[2001:db8::1]:20049"),
            ("fe80::1%7", "[fe80::1%7]:20049"),
        ] {
            let mut addr = SockAddr::from_storage(&parse(address).ok_or(EINVAL)?);
            assert_eq!(addr.port(), 0);
            let before = addr.ip();
            addr.set_port(20049);
            assert_eq!(addr.port(), 20049);
            assert!(addr.ip() == before);
            // It is in network order at the offset that C uses.
            assert_eq!(addr.bytes().get(2..4), Some(&[0x4e, 0x51][..]));
            let ours = text(format_args!("{addr}"))?;
            assert_eq!(
                ours.to_bytes_with_nul().strip_suffix(b"\0"),
                Some(expected.as_bytes())
            );
        }
        Ok(())
    }

    #[test]
    fn families_have_their_lengths_and_scopes() -> Result {
        let v4 = SockAddr::from_storage(&parse("192.0.2.1").ok_or(EINVAL)?);
        assert_eq!(v4.len(), 16);
        assert!(!v4.is_ipv6());
        assert_eq!(v4.scope_id(), 0);
        assert!(v4.ip() == Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))));

        let v6 = SockAddr::from_storage(&parse("fe80::1%7").ok_or(EINVAL)?);
        assert_eq!(v6.len(), 28);
        assert!(v6.is_ipv6());
        assert_eq!(v6.scope_id(), 7);
        assert!(v6.ip() == Some(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))));

        // Only link-local addresses (fe80::/10) have a scope.
        for (first, scope) in [(0xfe7f_u16, 0), (0xfe80, 9), (0xfebf, 9), (0xfec0, 0)] {
            let mut bytes = [0_u8; LEN_INET6];
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[8..10].copy_from_slice(&first.to_be_bytes());
            bytes[24..28].copy_from_slice(&9_u32.to_ne_bytes());
            assert_eq!(of(&bytes)?.scope_id(), scope);
        }
        Ok(())
    }

    #[test]
    fn any_length_is_checked() -> Result {
        let mut bytes = [0xff_u8; SockAddr::MAX_LEN + 1];
        bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        for len in 0..=bytes.len() {
            let addr = of(&bytes[..len]);
            if !(2..=SockAddr::MAX_LEN).contains(&len) {
                assert!(addr.is_err_and(|e| e == EINVAL));
                continue;
            }
            let addr = addr?;
            assert_eq!(addr.len(), len);
            // The bytes that were not copied are zero.
            let (given, rest) = addr.bytes().split_at(len);
            assert!(given == &bytes[..len] && rest.iter().all(|b| *b == 0));
        }
        Ok(())
    }

    #[test]
    fn other_families_have_neither_address_nor_port() -> Result {
        for family in [0, 1, 3, 11, u16::MAX] {
            let mut bytes = [0xff_u8; LEN_INET6];
            bytes[..2].copy_from_slice(&u16::to_ne_bytes(family));
            let mut addr = of(&bytes)?;
            assert!(addr.ip().is_none() && addr.port() == 0 && addr.scope_id() == 0);
            addr.set_port(20049);
            assert_eq!(addr.bytes().get(..LEN_INET6), Some(&bytes[..]));
            assert_eq!(SockAddr::from_storage(addr.storage()).len(), 2);
            let ours = text(format_args!("{addr}"))?;
            assert_eq!(ours.to_bytes_with_nul(), b"unknown:0\0");
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: short strings, which are truncated to their buffers.

use super::*;
use crate::kapi::fixture::{
    addr,
    addr6, //
};
use kernel::prelude::*;

/// Returns whether C reads `expected`.
fn reads<const N: usize>(text: &Text<N>, expected: &str) -> bool {
    // SAFETY: The string is NUL-terminated by the type's invariant.
    let c = unsafe { CStr::from_char_ptr(text.as_ptr()) };
    c.to_bytes() == expected.as_bytes() && text.with_nul() == c.to_bytes_with_nul()
}

#[kunit_tests(rpcrdma_text)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_replaced_as_a_whole() -> Result {
        let mut text = Text::<8>::new();
        assert!(reads(&text, ""));
        for set in ["1234567", "12", "", "abc"] {
            text.set(format_args!("{set}"));
            assert!(reads(&text, set));
            assert!(text.bytes.iter().skip(set.len()).all(|b| *b == 0));
        }
        Ok(())
    }

    #[test]
    fn a_long_string_is_truncated() -> Result {
        let mut text = Text::<8>::new();
        text.set(format_args!("12345678"));
        assert!(reads(&text, "1234567"));
        // Several writes, the last of them to a full buffer.
        text.set(format_args!("{}{}{}{}", "1234", "5678", "9", 10));
        assert!(reads(&text, "1234567"));
        let mut none = Text::<1>::new();
        none.set(format_args!("1"));
        assert!(reads(&none, ""));
        // It may be truncated within a character.
        text.set(format_args!("123456\u{20ac}"));
        assert_eq!(text.with_nul(), b"123456\xe2\0");
        Ok(())
    }

    #[test]
    fn addresses_are_shown_as_the_c_module_shows_them() -> Result {
        let mut strings = Strings::new(&addr(0xc0a8_5802, 20049)?);
        assert!(reads(&strings.hex_addr, "c0a85802"));
        let mut address = [0; 16];
        address[..2].copy_from_slice(&[0xfd, 0x88]);
        address[15] = 2;
        let six = Strings::new(&addr6(address, 20049)?);
        assert!(reads(&six.hex_addr, "fd880000000000000000000000000002"));
        assert!(reads(&strings.port, "20049"));
        assert!(reads(&strings.hex_port, "4e51"));
        strings.set_port(7);
        assert!(reads(&strings.port, "7"));
        assert!(reads(&strings.hex_port, "   7"));
        strings.set_port(u16::MAX);
        assert!(reads(&strings.port, "65535"));
        assert!(reads(&strings.hex_port, "ffff"));
        Ok(())
    }
}

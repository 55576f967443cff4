// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: error codes have the numbers of `errno.h`.

use super::*;

#[kunit_tests(rpcrdma_errno)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_numbers() -> Result {
        for (error, number) in [
            (eafnosupport(), 97),
            (enobufs(), 105),
            (enotconn(), 107),
            (ebadslt(), 57),
            (eproto(), 71),
            (enetunreach(), 101),
            (ehostunreach(), 113),
            (eaddrinuse(), 98),
            (econnrefused(), 111),
            (econnaborted(), 103),
            (ecanceled(), 125),
        ] {
            assert_eq!(error.to_errno(), -number);
        }
        Ok(())
    }
}

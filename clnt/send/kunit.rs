// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: errors of a device while a Call is sent.

use super::*;

#[kunit_tests(rpcrdma_send_call)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_retried_on_the_same_connection() {
        for error in [EAGAIN, ENOMEM, enobufs()] {
            assert!(retried(error) == error);
        }
    }

    // The errors of mlx4, mlx5, hns and ocrdma when hardware or queue pair have failed.
    #[test]
    fn any_other_error_is_retried_on_the_next_connection() {
        for error in [EIO, EINVAL, ENODEV, EBUSY, enotconn()] {
            assert!(retried(error) == enotconn());
        }
    }
}

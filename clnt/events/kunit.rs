// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: the errors for which sunrpc fails an RPC.

use super::*;

#[kunit_tests(rpcrdma_connect_errors)]
mod tests {
    use super::*;

    #[test]
    fn an_unsuitable_device_fails_a_mount() {
        for error in [EINVAL, ENOMEM] {
            assert!(ConnectError::unsuitable(error, false).status == error);
        }
    }

    #[test]
    fn an_unsuitable_device_does_not_fail_what_is_mounted() {
        for error in [EINVAL, ENOMEM] {
            let failed = ConnectError::unsuitable(error, true);
            assert!(failed.cause == error && failed.status == econnaborted());
        }
    }

    #[test]
    fn errors_of_a_device_fail_a_mount_and_are_retried_by_others() {
        for error in [EIO, EINVAL, ENOMEM, EBUSY, ENOSPC] {
            assert!(ConnectError::transient(error).status == econnaborted());
        }
        assert!(ConnectError::transient(ENODEV).status == eproto());
    }
}

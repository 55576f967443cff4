// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Waiting for memory, where to fail would cost more than to be late.

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Whether `error` is a shortage of memory, or of what a device keeps for us, and the caller does
/// not `give_up`. If so, sleeps a little before the next try.
pub(crate) fn pause(error: Error, give_up: impl FnOnce() -> bool) -> bool {
    if (error != ENOMEM && error != EAGAIN) || give_up() {
        return false;
    }
    fsleep(Delta::from_millis(10));
    true
}

/// Tries `f` again as long as memory is short. Sleeps.
///
/// # Errors
///
/// What `f` fails with otherwise; `ENOMEM` or `EAGAIN` once `give_up` says so.
pub(crate) fn patiently<T>(
    give_up: impl Fn() -> bool,
    mut f: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match f() {
            Err(e) if pause(e, &give_up) => {}
            other => return other,
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Waiting for memory, where to fail would cost more than to be late.

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// Turns after which a shortage of what a device keeps for us is not one that passes: 30 s.
const DEVICE_TURNS: u32 = 3000;

/// How often one has waited for the same thing.
pub(crate) struct Patience(u32);

impl Patience {
    /// Has not waited yet.
    pub(crate) const fn new() -> Self {
        Patience(0)
    }

    /// Returns whether to try again after `error`: it was a shortage of memory, or, not for too
    /// long, of what a device keeps for us, and the caller does not `give_up`. If so, sleeps a
    /// little before.
    pub(crate) fn pause(&mut self, error: Error, give_up: impl FnOnce() -> bool) -> bool {
        let passes = error == ENOMEM || error == EAGAIN && self.0 < DEVICE_TURNS;
        if !passes || give_up() {
            return false;
        }
        self.0 = self.0.saturating_add(1);
        fsleep(Delta::from_millis(10));
        true
    }
}

/// Tries `f` again as long as memory is short. Sleeps.
///
/// # Examples
///
/// ```ignore
/// let page = patiently(|| closing.load(Relaxed), || {
///     Ok(Page::alloc_page(GFP_KERNEL)?)
/// })?;
/// ```
///
/// # Errors
///
/// What `f` fails with otherwise; `ENOMEM` or `EAGAIN` once `give_up` says so.
pub(crate) fn patiently<T>(
    give_up: impl Fn() -> bool,
    mut f: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut patience = Patience::new();
    loop {
        match f() {
            Err(e) if patience.pause(e, &give_up) => {}
            other => return other,
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Retries of an operation that fails because memory or a resource of the device is short.
//!
//! For process context in which a failure costs more than a delay of up to 30 s: it would end the
//! connection of a service thread, or make a device unusable.

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

/// The number of pauses of 10 ms after which a shortage is considered permanent: 30 s.
const MAX_TURNS: u32 = 3000;

/// The number of pauses taken so far for one allocation.
struct Retries(u32);

impl Retries {
    /// Creates a counter for an allocation that has not been retried yet.
    const fn new() -> Self {
        Retries(0)
    }

    /// Returns whether the caller should retry after `error`, and sleeps for 10 ms if so.
    ///
    /// `ENOMEM` and `EAGAIN`, which is a shortage of a device's resources, are retried for at most
    /// 30 s: a large allocation, or a mapping, may fail forever. No other error is retried.
    fn pause(&mut self, error: Error, give_up: impl FnOnce() -> bool) -> bool {
        let is_short = error == ENOMEM || error == EAGAIN;
        if !is_short || self.0 >= MAX_TURNS || give_up() {
            return false;
        }
        self.0 = self.0.saturating_add(1);
        fsleep(Delta::from_millis(10));
        true
    }
}

/// Calls `f` until it succeeds, fails for another reason than a shortage, `give_up` returns true,
/// or 30 s have passed. Sleeps between the calls.
///
/// # Examples
///
/// ```ignore
/// let page = retry_while_short(|| closing.load(Relaxed), || {
///     Ok(Page::alloc_page(GFP_KERNEL)?)
/// })?;
/// ```
///
/// # Errors
///
/// Errors of `f`. `ENOMEM` and `EAGAIN` are returned only after `give_up` or 30 s.
pub(crate) fn retry_while_short<T>(
    give_up: impl Fn() -> bool,
    mut f: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut retries = Retries::new();
    loop {
        match f() {
            Err(e) if retries.pause(e, &give_up) => {}
            other => return other,
        }
    }
}

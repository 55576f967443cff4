// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The root of a module that uses `kapi`.

use kernel::prelude::*;

use super::status;

/// The data of the module `M`, and what has to exist longer: the module's work queue and its
/// debugfs directories.
///
/// `M` cannot get the order wrong: only this type creates them, before `M`, and destroys them after
/// `M` was dropped, or after its initialisation has failed.
///
/// # Examples
///
/// ```ignore
/// module! {
///     type: kapi::Root<Example>,
///     // ...
/// }
/// ```
pub(crate) struct Root<M> {
    // The fields are dropped in this order.
    _module: M,
    _status: status::Registration,
}

impl<M: kernel::Module> kernel::Module for Root<M> {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let status = status::Registration::new()?;
        Ok(Root {
            _module: M::init(module)?,
            _status: status,
        })
    }
}

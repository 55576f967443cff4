// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Files under `/proc/sys`: tunables and counters.
//!
//! A [`Uint`] or [`Counter`] is a static variable of the module, which also works without its file.
//! While a [`Registration`] exists, the files of its tunables and counters exist in one directory.
//!
//! C header: [`include/linux/sysctl.h`](srctree/include/linux/sysctl.h).

use crate::kapi::{
    bindings,
    ext::atomic, //
};
use core::{
    mem::size_of,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    cpu::CpuId,
    error::Error,
    ffi::{
        c_int,
        c_uint,
        c_ulong,
        c_void, //
    },
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
};

/// An unsigned number that an administrator may set within bounds.
pub(crate) struct Uint {
    value: Atomic<u32>,
    min: c_uint,
    max: c_uint,
}

impl Uint {
    /// Creates a number with the default `value`, and with the smallest and largest value that can
    /// be written to its file. Other values are refused with `EINVAL`. `max` is at most `i32::MAX`.
    pub(crate) const fn new(value: u32, min: u32, max: u32) -> Self {
        assert!(min <= value && value <= max && max <= i32::MAX as u32);
        Self {
            value: Atomic::new(value),
            min,
            max,
        }
    }

    /// Returns the current value.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.value.load(Relaxed)
    }

    fn ctl_table(&'static self, name: &'static CStr) -> bindings::ctl_table {
        bindings::ctl_table {
            procname: name.as_char_ptr(),
            data: self.value.as_ptr().cast(),
            // CAST: The size of a `u32`.
            maxlen: size_of::<u32>() as c_int,
            mode: MODE,
            // It rejects a value out of bounds with `EINVAL`; the handler for unsigned numbers
            // returns `ERANGE`. As `max` is at most `i32::MAX`, both read and show the same values.
            proc_handler: Some(bindings::proc_dointvec_minmax),
            extra1: ptr::from_ref(&self.min).cast_mut().cast(),
            extra2: ptr::from_ref(&self.max).cast_mut().cast(),
            ..Default::default()
        }
    }
}

/// The number of parts of a [`Counter`]. It is a power of two, which makes choosing a part cheap.
const SHARDS: usize = 16;

/// A part of a [`Counter`], in its own cache line.
#[repr(align(64))]
struct Shard(atomic::Atomic<i64>);

/// A 64-bit event counter. Any write to its file sets it to zero.
///
/// It consists of parts, to which different CPUs add, so that they do not contend for a cache line.
pub(crate) struct Counter([Shard; SHARDS]);

impl Counter {
    /// Creates a counter of zero.
    pub(crate) const fn new() -> Self {
        Self([const { Shard(atomic::Atomic::new(0)) }; SHARDS])
    }

    /// Counts one event. Any context.
    #[inline]
    pub(crate) fn inc(&self) {
        // CAST: A `usize` has at least 32 bits.
        let shard = CpuId::current().as_u32() as usize % SHARDS;
        self.0[shard].0.add(1, atomic::Relaxed);
    }

    /// Returns the number of events since the last reset.
    ///
    /// The parts are read one after the other, so the result may or may not include events that are
    /// counted at the same time.
    fn sum(&self) -> u64 {
        self.0.iter().fold(0u64, |sum, shard| {
            sum.wrapping_add_signed(shard.0.load(atomic::Relaxed))
        })
    }

    fn reset(&self) {
        for shard in &self.0 {
            shard.0.store(0, atomic::Relaxed);
        }
    }

    fn ctl_table(&'static self, name: &'static CStr) -> bindings::ctl_table {
        bindings::ctl_table {
            procname: name.as_char_ptr(),
            data: ptr::from_ref(self).cast_mut().cast(),
            // CAST: The size of a `c_ulong`.
            maxlen: size_of::<c_ulong>() as c_int,
            mode: MODE,
            proc_handler: Some(counter_handler),
            ..Default::default()
        }
    }
}

/// Reads or resets the [`Counter`] of a file.
///
/// # Safety
///
/// * `table` must come from [`Counter::ctl_table`].
/// * `buffer`, `lenp` and `ppos` must be valid arguments of a `proc_handler`.
unsafe extern "C" fn counter_handler(
    table: *const bindings::ctl_table,
    write: c_int,
    buffer: *mut c_void,
    lenp: *mut usize,
    ppos: *mut bindings::loff_t,
) -> c_int {
    // SAFETY: By the first requirement `data` points to a static `Counter`, of which only shared
    // references exist.
    let counter = unsafe { &*(*table).data.cast::<Counter>() };
    if write != 0 {
        // Accept any input: `*lenp` is not changed, so all of it counts as written.
        counter.reset();
        return 0;
    }
    // CAST: `c_ulong` has 64 bits, except on a 32-bit kernel, which shows the lower half.
    let mut value = counter.sum() as c_ulong;
    let shown = bindings::ctl_table {
        data: (&raw mut value).cast(),
        // CAST: The size of a `c_ulong`.
        maxlen: size_of::<c_ulong>() as c_int,
        mode: MODE,
        ..Default::default()
    };
    // SAFETY: `shown` describes `value`, and both live until the call returns. The other arguments
    // are valid by the second requirement.
    unsafe { bindings::proc_doulongvec_minmax(&shown, 0, buffer, lenp, ppos) }
}

/// The mode of all files: everyone may read, root may write.
const MODE: bindings::umode_t = 0o644;

/// A file in the directory of a [`Registration`].
pub(crate) enum File {
    /// A number that can be read and set.
    Uint(&'static CStr, &'static Uint),
    /// A counter that can be read and reset.
    Counter(&'static CStr, &'static Counter),
}

/// Files in a directory below `/proc/sys`. Dropping it removes them.
///
/// # Examples
///
/// ```ignore
/// static DEPTH: Uint = Uint::new(128, 16, 16_384);
/// static CALLS: Counter = Counter::new();
///
/// let files = [
///     File::Uint(c"depth", &DEPTH),
///     File::Counter(c"calls", &CALLS),
/// ];
/// let _registration = Registration::new(c"sunrpc/example", &files)?;
/// CALLS.inc();
/// ```
///
/// # Invariants
///
/// `header` was returned by `register_sysctl_sz` for `_table` and is still registered.
#[must_use]
pub(crate) struct Registration {
    header: NonNull<bindings::ctl_table_header>,
    _table: KVec<bindings::ctl_table>,
}

// SAFETY: The table points to statics that are `Sync`, and any thread may unregister it.
unsafe impl Send for Registration {}

// SAFETY: No method takes a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Creates `files` in `/proc/sys/<path>`. Other files may exist there already. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` without memory, or if a file of that name exists. The kernel log then names it.
    pub(crate) fn new(path: &'static CStr, files: &[File]) -> Result<Self> {
        let mut table = KVec::with_capacity(files.len(), GFP_KERNEL)?;
        for file in files {
            let entry = match file {
                File::Uint(name, number) => number.ctl_table(name),
                File::Counter(name, counter) => counter.ctl_table(name),
            };
            table.push_within_capacity(entry).map_err(|_| ENOMEM)?;
        }

        // SAFETY:
        // - `path` and the names are static C strings.
        // - `table` has that many entries. Moving the `KVec` does not move them, and the drop below
        //   unregisters them before they are freed.
        // - In each entry the data and bounds are static, and of the type that the handler expects.
        let header = unsafe {
            bindings::register_sysctl_sz(path.as_char_ptr(), table.as_ptr(), table.len())
        };
        let header = NonNull::new(header)
            .ok_or(ENOMEM)
            .inspect_err(|_: &Error| {
                pr_err!(
                    "cannot add the files of /proc/sys/{}\n",
                    path.to_str().unwrap_or("?")
                );
            })?;

        // INVARIANT: `header` was returned above for this table.
        Ok(Self {
            header,
            _table: table,
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: `header` is registered by the type's invariant. The call waits for readers and
        // writers of the files, so the table can be freed afterwards.
        unsafe { bindings::unregister_sysctl_table(self.header.as_ptr()) };
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

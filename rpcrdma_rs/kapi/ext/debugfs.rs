// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! debugfs directories of objects that are created and destroyed at run time.
//!
//! ```text
//!   <root>/<parent>/<number>/status
//! ```
//!
//! `kernel::debugfs` does not set the owner of its file operations, so a file that stays open while
//! the module is unloaded would call freed code. Here an open file holds a reference to the module.
//!
//! A work item creates and removes each directory, so that a connection never waits for users of
//! debugfs. Creating and removing take the lock of the parent directory, which a process that lists
//! the parent holds, and removing waits for readers. Such a process may wait for reclaim, and
//! reclaim may wait for the connection whose directory it is, or for the connection that replaces
//! it.
//!
//! C header: [`include/linux/debugfs.h`](srctree/include/linux/debugfs.h)

use core::ptr::null_mut;

use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    fmt, impl_has_work, new_work,
    prelude::*,
    seq_file::SeqFile,
    str::{
        CStr,
        CString, //
    },
    sync::Arc,
    workqueue::{
        Work,
        WorkItem, //
    },
};

use super::work::OwnQueue;
use crate::kapi::{
    compat::this_module,
    ext::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    }, //
};

/// An object whose status a debugfs file shows.
pub(crate) trait Status: Send + Sync + 'static {
    /// Writes the status, one value per line.
    ///
    /// Called in process context for each read of the file, possibly by several readers at once. It
    /// must not take a lock whose holders sleep.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// The directory that contains the directories of all objects of one kind.
///
/// # Invariants
///
/// `dir` is null or a directory that a [`Registration`] owns.
pub(crate) struct Parent {
    name: &'static CStr,
    /// Null if debugfs is not available, or while no registration exists.
    dir: Atomic<*mut bindings::dentry>,
}

impl Parent {
    /// Creates a parent named `name`. Its directory exists while it is registered.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Parent {
            name,
            dir: Atomic::new(null_mut()),
        }
    }
}

/// A directory in the root of debugfs and the [`Parent`]s in it. Dropping it removes them with
/// everything in them, and waits for readers. Its owner in `kapi` drops the [`OwnQueue`] before it,
/// as work on the queue removes directories in it.
///
/// # Examples
///
/// ```ignore
/// static CONNECTIONS: Parent = Parent::new(c"connections");
/// static PARENTS: [&Parent; 1] = [&CONNECTIONS];
///
/// let _registration = Registration::new(c"example", &PARENTS);
/// // `connection` is an `Arc` of a type that implements `Status`.
/// let _status_dir = StatusDir::new(&CONNECTIONS, 1, connection);
/// ```
///
/// # Invariants
///
/// `root` is null or a directory that only this registration removes; it contains the directories
/// of `parents`.
#[must_use]
pub(crate) struct Registration {
    root: *mut bindings::dentry,
    parents: &'static [&'static Parent],
}

// SAFETY: debugfs may be called from any thread, and only `drop` uses the pointer.
unsafe impl Send for Registration {}
// SAFETY: No method takes a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Creates the directory `root` and the directories of `parents` in it. May sleep.
    ///
    /// Failure is not reported: the objects work without a debugfs directory.
    pub(in crate::kapi) fn new(root: &CStr, parents: &'static [&'static Parent]) -> Self {
        let root = create_dir(root, null_mut());
        if !root.is_null() {
            for parent in parents {
                parent.dir.store(create_dir(parent.name, root), Release);
            }
        }
        Registration { root, parents }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        for parent in self.parents {
            parent.dir.xchg(null_mut(), Full);
        }
        remove(self.root);
    }
}

/// Creates a directory. Returns null if that fails, for example because debugfs is not available.
#[cfg(CONFIG_DEBUG_FS)]
fn create_dir(name: &CStr, parent: *mut bindings::dentry) -> *mut bindings::dentry {
    // SAFETY: `name` is NUL-terminated, and debugfs copies it. `parent` is an existing directory,
    // or null, which stands for the root of debugfs.
    let dir = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) };
    kernel::error::from_err_ptr(dir).unwrap_or(null_mut())
}

#[cfg(not(CONFIG_DEBUG_FS))]
fn create_dir(_: &CStr, _: *mut bindings::dentry) -> *mut bindings::dentry {
    null_mut()
}

/// Removes a directory and its contents, and waits for readers. Does nothing if `dir` is null.
#[cfg(CONFIG_DEBUG_FS)]
fn remove(dir: *mut bindings::dentry) {
    // SAFETY: `dir` is null or was returned by `create_dir`. The types that hold it remove it once.
    unsafe { bindings::debugfs_remove(dir) };
}

#[cfg(not(CONFIG_DEBUG_FS))]
fn remove(_: *mut bindings::dentry) {}

/// Creates the file `status` in `dir`. If that fails, the directory stays empty.
///
/// # Safety
///
/// `dir` must be an existing directory, and `status` must be valid until [`remove`] of that
/// directory has returned.
#[cfg(CONFIG_DEBUG_FS)]
unsafe fn create_file<T: Status>(dir: *mut bindings::dentry, status: *const T) {
    let data = status.cast_mut().cast();
    let operations = &raw const Operations::<T>::TABLE.0;
    // SAFETY: The name is NUL-terminated, `dir` exists, and `operations` is a constant. `data` has
    // the type that `open` expects, and is valid until no reader is left, by this function's
    // contract.
    unsafe {
        bindings::debugfs_create_file_full(
            c"status".as_char_ptr(),
            0o400,
            dir,
            data,
            core::ptr::null(),
            operations,
        )
    };
}

#[cfg(not(CONFIG_DEBUG_FS))]
unsafe fn create_file<T: Status>(_: *mut bindings::dentry, _: *const T) {}

/// The directory of one object, and the object that its file shows.
///
/// The work is queued for the first time to create the directory, and again to remove it. Its runs
/// do not overlap.
///
/// # Invariants
///
/// `dir` is null or a directory that only this type removes. The data of the file in it points to
/// `status`. While `dir` is not null, the [`StatusDir`] exists or the work is queued or runs.
#[pin_data]
struct Files<T: Status> {
    parent: &'static Parent,
    name: CString,
    dir: Atomic<*mut bindings::dentry>,
    /// Whether the [`StatusDir`] was dropped. It is set before the work is queued again.
    gone: Atomic<bool>,
    status: Arc<T>,
    #[pin]
    work: Work<Self>,
}

impl_has_work! {
    impl{T: Status} HasWork<Self> for Files<T> { self.work }
}

impl<T: Status> WorkItem for Files<T> {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.gone.load(Acquire) {
            // `dir` is null if the `StatusDir` was dropped before the first run. `remove` waits for
            // readers, so `status` may be dropped afterwards.
            remove(this.dir.xchg(null_mut(), Full));
        } else {
            this.create();
        }
    }
}

impl<T: Status> Files<T> {
    /// Creates the directory, in the work's first run. If [`Self::gone`] is set meanwhile, the next
    /// run removes it: the work can be queued while it runs.
    fn create(&self) {
        // The parent exists: it is removed after the queue, which waits for this.
        let dir = create_dir(&self.name, self.parent.dir.load(Acquire));
        if !dir.is_null() {
            // SAFETY: `dir` was created above. `self` holds a reference to the status until it has
            // removed the directory.
            unsafe { create_file(dir, Arc::as_ptr(&self.status)) };
        }
        // INVARIANT: `dir` is null, or was created above with a file that points to `status`. The
        // `StatusDir` exists, or has queued the work again.
        self.dir.store(dir, Release);
    }
}

/// The directory of one object, which work creates soon. Dropping it schedules the removal of the
/// directory. Until that has run, the file shows the object's last status.
#[must_use]
pub(crate) struct StatusDir<T: Status>(Option<Arc<Files<T>>>);

impl<T: Status> StatusDir<T> {
    /// Schedules the creation of a directory named `number` in `parent`. Allocates memory, but does
    /// not wait for users of debugfs.
    ///
    /// Failure is not reported: an object must not fail because its status cannot be shown.
    pub(crate) fn new(parent: &'static Parent, number: u64, status: Arc<T>) -> Self {
        if parent.dir.load(Acquire).is_null() {
            return StatusDir(None);
        }
        StatusDir(Self::make(parent, number, status).ok())
    }

    fn make(parent: &'static Parent, number: u64, status: Arc<T>) -> Result<Arc<Files<T>>> {
        let name = CString::try_from_fmt(fmt!("{number}"))?;
        let files = Arc::pin_init(
            pin_init!(Files {
                parent,
                name,
                dir: Atomic::new(null_mut()),
                gone: Atomic::new(false),
                status,
                work <- new_work!("rpcrdma_rs: debugfs directory"),
            }),
            GFP_KERNEL,
        )?;
        let _ = OwnQueue::enqueue(files.clone());
        Ok(files)
    }
}

impl<T: Status> Drop for StatusDir<T> {
    fn drop(&mut self) {
        if let Some(files) = self.0.take() {
            files.gone.store(true, Release);
            // If it is still queued, that run will see the change.
            let _ = OwnQueue::enqueue(files);
        }
    }
}

/// `struct file_operations`, in a type that a constant can have.
struct Table(bindings::file_operations);

/// The file operations of the status file of a `T`.
struct Operations<T>(core::marker::PhantomData<T>);

impl<T: Status> Operations<T> {
    const TABLE: &'static Table = &Table(bindings::file_operations {
        owner: this_module(),
        open: Some(open::<T>),
        read: Some(bindings::seq_read),
        llseek: Some(bindings::seq_lseek),
        release: Some(bindings::single_release),
        ..pin_init::zeroed()
    });
}

/// # Safety
///
/// Called by debugfs only. The data of `inode` must point to a `T` that is valid until `file` is
/// closed or its directory is removed.
unsafe extern "C" fn open<T: Status>(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: `inode` and `file` are valid, by this function's contract, and `show` expects the
    // data of the inode.
    unsafe { bindings::single_open(file, Some(show::<T>), (*inode).i_private) }
}

/// # Safety
///
/// Called by `seq_file` only, for a file that [`open`] has opened.
unsafe extern "C" fn show<T: Status>(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
    // SAFETY: `open` has set the private data to a `T`. It is valid, as debugfs does not call this
    // function for a file that was removed.
    let status = unsafe { &*(*seq).private.cast::<T>() };
    // SAFETY: `seq` is valid during the call, by this function's contract.
    let seq = unsafe { SeqFile::from_raw(seq) };
    kernel::seq_print!(seq, "{}", Shown(status));
    0
}

struct Shown<'a, T>(&'a T);

impl<T: Status> kernel::fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Folders of debugfs that show objects which come and go.
//!
//! ```text
//!   <root>/<parent>/<number>/status
//! ```
//!
//! The kernel crate's own abstraction leaves the module out of its file operations: a file that
//! is open while the module is unloaded would call freed code. Here an open file keeps the module.
//!
//! A folder is removed by a work of its own. Removing waits for readers, and a reader may wait for
//! memory, which may be behind the very connection that is shown.
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
use crate::kapi::compat::this_module;
use crate::kapi::ext::atomic::{
    Acquire,
    Atomic,
    Full,
    Release, //
};

/// What a file shows. It is called by readers, at any time, several at a time.
pub(crate) trait Status: Send + Sync + 'static {
    /// Writes the text, in lines. May not take a lock that others hold while they wait.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A folder for objects of one kind.
///
/// # Invariants
///
/// `dir` is null, or a folder that its registration keeps.
pub(crate) struct Parent {
    name: &'static CStr,
    /// Null without debugfs, and before and after the registration.
    dir: Atomic<*mut bindings::dentry>,
}

impl Parent {
    /// One of that name, which does not exist before it is registered.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Parent {
            name,
            dir: Atomic::new(null_mut()),
        }
    }
}

/// Folders for objects of several kinds. Dropping it removes everything in them.
///
/// # Examples
///
/// ```ignore
/// static CONNECTIONS: Parent = Parent::new(c"connections");
/// static PARENTS: [&Parent; 1] = [&CONNECTIONS];
///
/// let _registration = Registration::new(c"example", &PARENTS);
/// // `connection` is an `Arc` of a type that implements `Status`.
/// let _folder = Folder::new(&CONNECTIONS, 1, connection);
/// ```
///
/// # Invariants
///
/// `root` is null, or a folder of ours that nobody else removes, with those of `parents` in it.
pub(crate) struct Registration {
    root: *mut bindings::dentry,
    parents: &'static [&'static Parent],
}

// SAFETY: debugfs is used from any thread; only `drop` uses the pointer.
unsafe impl Send for Registration {}
// SAFETY: Shared access does nothing; debugfs has locks of its own.
unsafe impl Sync for Registration {}

impl Registration {
    /// Makes the folder `root` with those of `parents` in it. Without debugfs there are none, which
    /// is no error. May sleep.
    pub(crate) fn new(root: &CStr, parents: &'static [&'static Parent]) -> Self {
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

/// Makes a folder; null if there is none, as without debugfs.
#[cfg(CONFIG_DEBUG_FS)]
fn create_dir(name: &CStr, parent: *mut bindings::dentry) -> *mut bindings::dentry {
    // SAFETY: The name is a string, and debugfs copies it; the parent is a folder that is there,
    // or null for its root.
    let dir = unsafe { bindings::debugfs_create_dir(name.as_char_ptr(), parent) };
    kernel::error::from_err_ptr(dir).unwrap_or(null_mut())
}

#[cfg(not(CONFIG_DEBUG_FS))]
fn create_dir(_: &CStr, _: *mut bindings::dentry) -> *mut bindings::dentry {
    null_mut()
}

/// Removes a folder and what is in it. Waits for readers. Nothing if it is null.
#[cfg(CONFIG_DEBUG_FS)]
fn remove(dir: *mut bindings::dentry) {
    // SAFETY: Null, or made by `create_dir` and not removed yet, by the types that hold it.
    unsafe { bindings::debugfs_remove(dir) };
}

#[cfg(not(CONFIG_DEBUG_FS))]
fn remove(_: *mut bindings::dentry) {}

/// Makes the file of a status in a folder; if that fails the folder is empty.
///
/// # Safety
///
/// `dir` is a folder that is there. `status` stays until `remove` of it has returned.
#[cfg(CONFIG_DEBUG_FS)]
unsafe fn create_file<T: Status>(dir: *mut bindings::dentry, status: *const T) {
    let data = status.cast_mut().cast();
    let operations = &raw const Operations::<T>::TABLE.0;
    // SAFETY: The name is a string, the folder is there, and the operations are constant. The data
    // is of the type that `open` expects, and stays until no reader is left, by the requirements.
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

/// What a folder has.
///
/// # Invariants
///
/// `dir` is null, or a folder of ours that nobody else removes, with a file whose data points to
/// `status`.
#[pin_data]
struct Files<T: Status> {
    dir: *mut bindings::dentry,
    status: Arc<T>,
    #[pin]
    removal: Work<Self>,
}

// SAFETY: debugfs is used from any thread; `status` is `Send` and `Sync`.
unsafe impl<T: Status> Send for Files<T> {}
// SAFETY: Only its owner uses the folder.
unsafe impl<T: Status> Sync for Files<T> {}

impl_has_work! {
    impl{T: Status} HasWork<Self> for Files<T> { self.removal }
}

impl<T: Status> WorkItem for Files<T> {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        // No reader is left then, and `status` may be dropped.
        remove(this.dir);
    }
}

/// The folder of one object. Dropping it has the folder removed soon; until then it shows what the
/// object's status has last been.
pub(crate) struct Folder<T: Status>(Option<Pin<KBox<Files<T>>>>);

impl<T: Status> Folder<T> {
    /// Makes a folder named `number` in `parent`. If that fails there is none: an object does
    /// not fail because it cannot be looked at. May sleep.
    pub(crate) fn new(parent: &Parent, number: u64, status: Arc<T>) -> Self {
        let parent = parent.dir.load(Acquire);
        if parent.is_null() {
            return Folder(None);
        }
        Folder(Self::make(parent, number, status).ok())
    }

    fn make(
        parent: *mut bindings::dentry,
        number: u64,
        status: Arc<T>,
    ) -> Result<Pin<KBox<Files<T>>>> {
        let name = CString::try_from_fmt(fmt!("{number}"))?;
        let mut files = KBox::pin_init(
            pin_init!(Files {
                dir: null_mut(),
                status,
                removal <- new_work!("debugfs folder"),
            }),
            GFP_KERNEL,
        )?;
        let dir = create_dir(&name, parent);
        if !dir.is_null() {
            // SAFETY: The folder was just made. `Files` keeps the status until it has removed the
            // folder.
            unsafe { create_file(dir, Arc::as_ptr(&files.status)) };
        }
        // INVARIANT: A folder that was just made, with its file, or null.
        *files.as_mut().project().dir = dir;
        Ok(files)
    }
}

impl<T: Status> Drop for Folder<T> {
    fn drop(&mut self) {
        if let Some(files) = self.0.take() {
            OwnQueue::enqueue(files);
        }
    }
}

/// `file_operations` in a constant.
struct Table(bindings::file_operations);

/// The file operations of a status.
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
/// For debugfs: `inode` is that of a file whose data points to a `T`, which stays during the call
/// and as long as the file may be read.
unsafe extern "C" fn open<T: Status>(
    inode: *mut bindings::inode,
    file: *mut bindings::file,
) -> c_int {
    // SAFETY: `inode` and `file` are valid, by this function's contract; `show` gets the same data.
    unsafe { bindings::single_open(file, Some(show::<T>), (*inode).i_private) }
}

/// # Safety
///
/// For `seq_file`: as for [`open`].
unsafe extern "C" fn show<T: Status>(seq: *mut bindings::seq_file, _: *mut c_void) -> c_int {
    // SAFETY: The file's data is a `T`, by this function's contract, and debugfs calls this for no
    // file that is removed.
    let status = unsafe { &*(*seq).private.cast::<T>() };
    // SAFETY: It is valid during the call, by this function's contract.
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

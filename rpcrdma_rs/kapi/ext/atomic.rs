// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Atomic variables that only Rust code accesses.
//!
//! The types and methods have the names and meaning of [`kernel::sync::atomic`]. Every access there
//! calls a C helper, even a load or a store. Here an access compiles inline, because it uses
//! `core::sync::atomic`. So it follows Rust's memory model, and C code must not access such a
//! variable: one variable must not mix this model with the kernel's.

use core::{
    cell::UnsafeCell,
    sync::atomic::{
        fence,
        AtomicBool,
        AtomicI32,
        AtomicI64,
        AtomicPtr,
        AtomicU32,
        AtomicU64,
        AtomicUsize,
        Ordering, //
    }, //
};

/// Relaxed ordering: the access is atomic, and orders nothing else.
pub(crate) struct Relaxed;
/// Acquire ordering: later accesses are not reordered before the operation.
pub(crate) struct Acquire;
/// Release ordering: earlier accesses are not reordered after the operation.
pub(crate) struct Release;
/// Full ordering: the operation has a full memory barrier before and after it.
pub(crate) struct Full;

/// An ordering that a load can have.
pub(crate) trait LoadOrder {
    /// The ordering as `core::sync::atomic` names it.
    const LOAD: Ordering;
}

/// An ordering that a store can have.
pub(crate) trait StoreOrder {
    /// The ordering as `core::sync::atomic` names it.
    const STORE: Ordering;
}

/// An ordering that a read-modify-write operation can have.
pub(crate) trait RmwOrder {
    /// The ordering as `core::sync::atomic` names it.
    const RMW: Ordering;
    /// The ordering of a compare-exchange that fails, which is a load only.
    const FAILED: Ordering;
    /// Whether a full memory barrier is needed before and after the operation.
    const FENCED: bool = false;
}

impl LoadOrder for Relaxed {
    const LOAD: Ordering = Ordering::Relaxed;
}
impl LoadOrder for Acquire {
    const LOAD: Ordering = Ordering::Acquire;
}
impl StoreOrder for Relaxed {
    const STORE: Ordering = Ordering::Relaxed;
}
impl StoreOrder for Release {
    const STORE: Ordering = Ordering::Release;
}
impl RmwOrder for Relaxed {
    const RMW: Ordering = Ordering::Relaxed;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl RmwOrder for Acquire {
    const RMW: Ordering = Ordering::Acquire;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl RmwOrder for Release {
    const RMW: Ordering = Ordering::Release;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl RmwOrder for Full {
    const RMW: Ordering = Ordering::SeqCst;
    const FAILED: Ordering = Ordering::SeqCst;
    const FENCED: bool = true;
}

/// A type that an [`Atomic`] can hold.
///
/// Each operation is the one of the same name in `core::sync::atomic`.
///
/// # Safety
///
/// `Self` must have the size and at least the alignment of [`Word::Inner`], and every value that is
/// stored in an `Inner` must be a valid `Self`.
pub(crate) unsafe trait Word: Copy {
    /// The type of `core::sync::atomic` that has the size of `Self`.
    type Inner;

    /// Borrows the value at `ptr` as an `Inner`.
    ///
    /// # Safety
    ///
    /// `ptr` must be valid for reads and writes during `'a`, and all accesses through it during
    /// `'a` must be atomic.
    unsafe fn inner<'a>(ptr: *mut Self) -> &'a Self::Inner;

    /// Loads the value.
    fn load(inner: &Self::Inner, order: Ordering) -> Self;

    /// Stores a value.
    fn store(inner: &Self::Inner, value: Self, order: Ordering);

    /// Stores `value` and returns the previous value.
    fn swap(inner: &Self::Inner, value: Self, order: Ordering) -> Self;

    /// Stores `new` if the current value is `old`; returns the previous value.
    fn compare_exchange(
        inner: &Self::Inner,
        old: Self,
        new: Self,
        order: Ordering,
        failed: Ordering,
    ) -> Result<Self, Self>;
}

/// An integer that an [`Atomic`] can hold.
pub(crate) trait Number: Word {
    /// Adds `value`, wrapping around, and returns the previous value.
    fn fetch_add(inner: &Self::Inner, value: Self, order: Ordering) -> Self;

    /// Subtracts `value`, wrapping around, and returns the previous value.
    fn fetch_sub(inner: &Self::Inner, value: Self, order: Ordering) -> Self;
}

/// A value of type `T` that is only accessed atomically. Any context.
#[repr(transparent)]
pub(crate) struct Atomic<T: Word>(UnsafeCell<T>);

// SAFETY: Every access is atomic.
unsafe impl<T: Word> Send for Atomic<T> {}
// SAFETY: Every access is atomic.
unsafe impl<T: Word> Sync for Atomic<T> {}

/// Runs `operation`, with a full memory barrier before and after it if `O` requires them.
#[inline(always)]
fn fenced<O: RmwOrder, R>(operation: impl FnOnce() -> R) -> R {
    if !O::FENCED {
        return operation();
    }
    fence(Ordering::SeqCst);
    let result = operation();
    fence(Ordering::SeqCst);
    result
}

impl<T: Word> Atomic<T> {
    /// Creates an atomic with the initial value `value`.
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline(always)]
    fn inner(&self) -> &T::Inner {
        // SAFETY: `self` is borrowed, and this method is the only way to access its value.
        unsafe { T::inner(self.0.get()) }
    }

    /// Loads the value.
    #[inline(always)]
    pub(crate) fn load<O: LoadOrder>(&self, _: O) -> T {
        T::load(self.inner(), O::LOAD)
    }

    /// Stores `value`.
    #[inline(always)]
    pub(crate) fn store<O: StoreOrder>(&self, value: T, _: O) {
        T::store(self.inner(), value, O::STORE);
    }

    /// Stores `value` and returns the previous value.
    #[inline(always)]
    pub(crate) fn xchg<O: RmwOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::swap(self.inner(), value, O::RMW))
    }

    /// Stores `new` if the current value is `old`, and returns `old` then.
    ///
    /// # Errors
    ///
    /// The current value, if it is not `old`.
    #[inline(always)]
    pub(crate) fn cmpxchg<O: RmwOrder>(&self, old: T, new: T, _: O) -> Result<T, T> {
        fenced::<O, _>(|| T::compare_exchange(self.inner(), old, new, O::RMW, O::FAILED))
    }
}

/// Arithmetic, which wraps around.
impl<T: Number> Atomic<T> {
    /// Adds `value` and returns the previous value.
    #[inline(always)]
    pub(crate) fn fetch_add<O: RmwOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::fetch_add(self.inner(), value, O::RMW))
    }

    /// Subtracts `value` and returns the previous value.
    #[inline(always)]
    pub(crate) fn fetch_sub<O: RmwOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::fetch_sub(self.inner(), value, O::RMW))
    }

    /// Adds `value`.
    #[inline(always)]
    pub(crate) fn add<O: RmwOrder>(&self, value: T, order: O) {
        self.fetch_add(value, order);
    }
}

macro_rules! impl_word {
    ($word:ty, $inner:ty $(, $param:ident)?) => {
        // SAFETY: Both types have the same size and alignment, and any value is valid in both.
        unsafe impl$(<$param>)? Word for $word {
            type Inner = $inner;

            #[inline(always)]
            unsafe fn inner<'a>(ptr: *mut Self) -> &'a $inner {
                // SAFETY: `ptr` is valid and only accessed atomically, by this function's contract.
                unsafe { <$inner>::from_ptr(ptr) }
            }

            #[inline(always)]
            fn load(inner: &$inner, order: Ordering) -> Self {
                inner.load(order)
            }

            #[inline(always)]
            fn store(inner: &$inner, value: Self, order: Ordering) {
                inner.store(value, order);
            }

            #[inline(always)]
            fn swap(inner: &$inner, value: Self, order: Ordering) -> Self {
                inner.swap(value, order)
            }

            #[inline(always)]
            fn compare_exchange(
                inner: &$inner,
                old: Self,
                new: Self,
                order: Ordering,
                failed: Ordering,
            ) -> Result<Self, Self> {
                inner.compare_exchange(old, new, order, failed)
            }
        }
    };
}

macro_rules! impl_number {
    ($number:ty, $inner:ty) => {
        impl_word!($number, $inner);

        impl Number for $number {
            #[inline(always)]
            fn fetch_add(inner: &$inner, value: Self, order: Ordering) -> Self {
                inner.fetch_add(value, order)
            }

            #[inline(always)]
            fn fetch_sub(inner: &$inner, value: Self, order: Ordering) -> Self {
                inner.fetch_sub(value, order)
            }
        }
    };
}

impl_word!(bool, AtomicBool);
impl_word!(*mut T, AtomicPtr<T>, T);
impl_number!(i32, AtomicI32);
impl_number!(i64, AtomicI64);
impl_number!(u32, AtomicU32);
impl_number!(u64, AtomicU64);
impl_number!(usize, AtomicUsize);

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Atomic words that only this module accesses.
//!
//! Same names and meaning as the kernel crate's [`kernel::sync::atomic`]. There, each access is a
//! call of a C helper, loads and stores included. Here it is one instruction. No C code may access
//! such a word: the two memory models are not mixed in one word.

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

/// No ordering.
pub(crate) struct Relaxed;
/// What follows stays behind.
pub(crate) struct Acquire;
/// What precedes stays before.
pub(crate) struct Release;
/// Both, and a full memory barrier on either side.
pub(crate) struct Full;

/// The order of a load.
pub(crate) trait LoadOrder {
    /// That of the language.
    const LOAD: Ordering;
}

/// The order of a store.
pub(crate) trait StoreOrder {
    /// That of the language.
    const STORE: Ordering;
}

/// The order of an operation that loads and stores.
pub(crate) trait BothOrder {
    /// That of the language, if it succeeds.
    const BOTH: Ordering;
    /// That of the language, if it fails: it loads.
    const FAILED: Ordering;
    /// Whether barriers are around it.
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
impl BothOrder for Relaxed {
    const BOTH: Ordering = Ordering::Relaxed;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl BothOrder for Acquire {
    const BOTH: Ordering = Ordering::Acquire;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl BothOrder for Release {
    const BOTH: Ordering = Ordering::Release;
    const FAILED: Ordering = Ordering::Relaxed;
}
impl BothOrder for Full {
    const BOTH: Ordering = Ordering::SeqCst;
    const FAILED: Ordering = Ordering::SeqCst;
    const FENCED: bool = true;
}

/// What can be in an [`Atomic`].
///
/// Each operation is that of the language.
///
/// # Safety
///
/// The operations access the word as the language's atomic type of its size, which its alignment
/// must suffice for.
pub(crate) unsafe trait Word: Copy {
    /// The language's type.
    type Inner;

    /// Borrows a word as that.
    ///
    /// # Safety
    ///
    /// `ptr` must be valid during `'a`, and every access meanwhile be atomic.
    unsafe fn inner<'a>(ptr: *mut Self) -> &'a Self::Inner;

    /// Loads the value.
    fn load(inner: &Self::Inner, order: Ordering) -> Self;

    /// Stores a value.
    fn store(inner: &Self::Inner, value: Self, order: Ordering);

    /// Stores a value and returns the one before.
    fn swap(inner: &Self::Inner, value: Self, order: Ordering) -> Self;

    /// Stores `new` if the value is `old`.
    fn compare_exchange(
        inner: &Self::Inner,
        old: Self,
        new: Self,
        order: Ordering,
        failed: Ordering,
    ) -> Result<Self, Self>;
}

/// A word that is a number.
pub(crate) trait Number: Word {
    /// Adds, and returns the value before.
    fn fetch_add(inner: &Self::Inner, value: Self, order: Ordering) -> Self;

    /// Subtracts, and returns the value before.
    fn fetch_sub(inner: &Self::Inner, value: Self, order: Ordering) -> Self;
}

/// An atomic word.
#[repr(transparent)]
pub(crate) struct Atomic<T: Word>(UnsafeCell<T>);

// SAFETY: Every access is atomic.
unsafe impl<T: Word> Send for Atomic<T> {}
// SAFETY: Every access is atomic.
unsafe impl<T: Word> Sync for Atomic<T> {}

/// Runs an operation, between barriers if its order asks for them.
#[inline(always)]
fn fenced<O: BothOrder, R>(operation: impl FnOnce() -> R) -> R {
    if !O::FENCED {
        return operation();
    }
    fence(Ordering::SeqCst);
    let result = operation();
    fence(Ordering::SeqCst);
    result
}

impl<T: Word> Atomic<T> {
    /// Makes one.
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline(always)]
    fn inner(&self) -> &T::Inner {
        // SAFETY: The word is borrowed, and every access goes this way.
        unsafe { T::inner(self.0.get()) }
    }

    /// Loads the value.
    #[inline(always)]
    pub(crate) fn load<O: LoadOrder>(&self, _: O) -> T {
        T::load(self.inner(), O::LOAD)
    }

    /// Stores a value.
    #[inline(always)]
    pub(crate) fn store<O: StoreOrder>(&self, value: T, _: O) {
        T::store(self.inner(), value, O::STORE);
    }

    /// Stores a value and returns the one before.
    #[inline(always)]
    pub(crate) fn xchg<O: BothOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::swap(self.inner(), value, O::BOTH))
    }

    /// Stores `new` if the value is `old`, and returns that.
    ///
    /// # Errors
    ///
    /// The value, if it is another.
    #[inline(always)]
    pub(crate) fn cmpxchg<O: BothOrder>(&self, old: T, new: T, _: O) -> Result<T, T> {
        fenced::<O, _>(|| T::compare_exchange(self.inner(), old, new, O::BOTH, O::FAILED))
    }
}

/// Sums wrap around.
impl<T: Number> Atomic<T> {
    /// Adds, and returns the value before.
    #[inline(always)]
    pub(crate) fn fetch_add<O: BothOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::fetch_add(self.inner(), value, O::BOTH))
    }

    /// Subtracts, and returns the value before.
    #[inline(always)]
    pub(crate) fn fetch_sub<O: BothOrder>(&self, value: T, _: O) -> T {
        fenced::<O, _>(|| T::fetch_sub(self.inner(), value, O::BOTH))
    }

    /// Adds.
    #[inline(always)]
    pub(crate) fn add<O: BothOrder>(&self, value: T, order: O) {
        self.fetch_add(value, order);
    }
}

macro_rules! impl_word {
    ($word:ty, $inner:ty $(, $param:ident)?) => {
        // SAFETY: A word of that size, aligned as such.
        unsafe impl$(<$param>)? Word for $word {
            type Inner = $inner;

            #[inline(always)]
            unsafe fn inner<'a>(ptr: *mut Self) -> &'a $inner {
                // SAFETY: By this function's contract.
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

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queues of what is linked through itself: nothing is allocated.

use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};

use kernel::prelude::*;

/// What a [`List`] can hold: the owner of a node that has a link in it.
///
/// # Safety
///
/// The type has the layout of a `NonNull` to its node, and [`Self::link`] is a field of that, which
/// nobody else uses.
pub(crate) unsafe trait Linked: Sized {
    /// What it owns.
    type Node;

    /// Gives the node up.
    fn into_node(self) -> NonNull<Self::Node>;

    /// Takes the node back.
    ///
    /// # Safety
    ///
    /// `node` must come from [`Self::into_node`], and be taken back once only.
    unsafe fn from_node(node: NonNull<Self::Node>) -> Self;

    /// Returns the link in a node.
    ///
    /// # Safety
    ///
    /// `node` must be valid.
    unsafe fn link(node: *mut Self::Node) -> *mut *mut Self::Node;
}

/// A queue.
///
/// # Invariants
///
/// `first` to `last` are `len` nodes given up, linked, the last with null; both are null if there
/// are none.
pub(crate) struct List<T: Linked> {
    first: *mut T::Node,
    last: *mut T::Node,
    len: usize,
    _owned: PhantomData<T>,
}

// SAFETY: The list owns its items.
unsafe impl<T: Linked + Send> Send for List<T> {}
// SAFETY: Shared access lends `&T`.
unsafe impl<T: Linked + Sync> Sync for List<T> {}

impl<T: Linked> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Linked> List<T> {
    /// Makes an empty one.
    pub(crate) const fn new() -> Self {
        List {
            first: null_mut(),
            last: null_mut(),
            len: 0,
            _owned: PhantomData,
        }
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item at the end.
    pub(crate) fn push(&mut self, item: T) {
        let node = item.into_node().as_ptr();
        // SAFETY: The node is ours now.
        unsafe { *T::link(node) = null_mut() };
        self.chain(node);
        // INVARIANT: One node more, at the end.
        self.last = node;
        self.len += 1;
    }

    /// Takes the first item.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = NonNull::new(self.first)?;
        // INVARIANT: One node less, at the front.
        // SAFETY: The list owns the node, which is valid, and its link.
        self.first = unsafe { *T::link(first.as_ptr()) };
        if self.first.is_null() {
            self.last = null_mut();
        }
        self.len -= 1;
        // SAFETY: By the type's invariant; the list has it no more.
        Some(unsafe { T::from_node(first) })
    }

    /// Adds all items of `other` at the end.
    pub(crate) fn append(&mut self, other: &mut List<T>) {
        let other = core::mem::ManuallyDrop::new(core::mem::take(other));
        if other.is_empty() {
            return;
        }
        self.chain(other.first);
        // INVARIANT: The nodes of `other`, which is forgotten, follow ours.
        self.last = other.last;
        self.len += other.len;
    }

    /// Has `node` follow the last.
    fn chain(&mut self, node: *mut T::Node) {
        if self.last.is_null() {
            self.first = node;
        } else {
            // SAFETY: The list owns its last node, which is valid as it is not null.
            unsafe { *T::link(self.last) = node };
        }
    }

    /// Lends the items in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut slot: &*mut T::Node = &self.first;
        core::iter::from_fn(move || {
            let node = NonNull::new(*slot)?;
            // SAFETY: A pointer of the list that is not null is a `T`, by the invariant and by what
            // `Linked` says of the layout; the list is borrowed.
            let item = unsafe { &*core::ptr::from_ref(slot).cast::<T>() };
            // SAFETY: The list owns the node, and is borrowed, so that the link stays as it is.
            slot = unsafe { &*T::link(node.as_ptr()) };
            Some(item)
        })
    }

    /// Calls `f` with each item in order, until one fails.
    ///
    /// # Errors
    ///
    /// What `f` says.
    pub(crate) fn try_for_each(&mut self, mut f: impl FnMut(&mut T) -> Result) -> Result {
        let mut slot: *mut *mut T::Node = &mut self.first;
        // SAFETY: `slot` is `first` or the link of one of our nodes.
        while let Some(node) = NonNull::new(unsafe { *slot }) {
            // SAFETY: The list owns the node. A pointer of the list that is not null is a `T`, by
            // the invariant and by what `Linked` says of the layout, and the list is borrowed.
            let (next, item) = unsafe { (*T::link(node.as_ptr()), &mut *slot.cast::<T>()) };
            let result = f(item);
            // SAFETY: The list owns the node. `f` may have put another one there, for the first.
            let link = unsafe { T::link(*slot) };
            // INVARIANT: The nodes behind are those that were behind before.
            // SAFETY: The list owns the node, and with it the link.
            unsafe { *link = next };
            if next.is_null() {
                // SAFETY: `slot` is the pointer to the node that was just lent.
                self.last = unsafe { *slot };
            }
            result?;
            slot = link;
        }
        Ok(())
    }
}

impl<T: Linked> Drop for List<T> {
    fn drop(&mut self) {
        while let Some(item) = self.pop() {
            drop(item);
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Intrusive singly linked queues: the link is a field of the item, so that nothing is allocated.

use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    }, //
};

use kernel::prelude::*;

/// An owning pointer to a node that has a link for a [`List`].
///
/// # Safety
///
/// The type must have the layout of a `NonNull` to its node, and [`Self::link`] must return a field
/// of that node that only the list uses.
pub(crate) unsafe trait Linked: Sized {
    /// The type that the pointer owns.
    type Node;

    /// Converts the owner into a raw pointer to its node.
    fn into_node(self) -> NonNull<Self::Node>;

    /// Converts a raw pointer back into the owner of the node.
    ///
    /// # Safety
    ///
    /// `node` must come from [`Self::into_node`], and must not be converted twice.
    unsafe fn from_node(node: NonNull<Self::Node>) -> Self;

    /// Returns the link of a node.
    ///
    /// # Safety
    ///
    /// `node` must be valid.
    unsafe fn link(node: *mut Self::Node) -> *mut *mut Self::Node;
}

/// A first-in, first-out queue.
///
/// # Invariants
///
/// The nodes from `first` to `last` come from [`Linked::into_node`] and are linked in order; there
/// are `len` of them, and the link of the last is null. If `len` is zero, both pointers are null.
pub(crate) struct List<T: Linked> {
    first: *mut T::Node,
    last: *mut T::Node,
    len: usize,
    _owned: PhantomData<T>,
}

// SAFETY: The list owns its items.
unsafe impl<T: Linked + Send> Send for List<T> {}
// SAFETY: A shared reference to the list only gives access to `&T`.
unsafe impl<T: Linked + Sync> Sync for List<T> {}

impl<T: Linked> Default for List<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Linked> List<T> {
    /// Creates an empty queue.
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

    /// Returns whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Drops all items.
    #[inline(never)]
    fn clear(&mut self) {
        while let Some(item) = self.pop() {
            drop(item);
        }
    }

    /// Appends an item.
    pub(crate) fn push(&mut self, item: T) {
        let node = item.into_node().as_ptr();
        // SAFETY: `into_node` returns a valid node, which the list owns from here on.
        unsafe { *T::link(node) = null_mut() };
        self.chain(node);
        // INVARIANT: The new node is linked behind the last one, and counted.
        self.last = node;
        self.len += 1;
    }

    /// Removes the first item and returns it.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = NonNull::new(self.first)?;
        // INVARIANT: The second node becomes the first, and `len` is one less.
        // SAFETY: The list owns the node, which is valid, and its link.
        self.first = unsafe { *T::link(first.as_ptr()) };
        if self.first.is_null() {
            self.last = null_mut();
        }
        self.len -= 1;
        // SAFETY: By the type's invariant the node comes from `into_node`, and it is no longer in
        // the list.
        Some(unsafe { T::from_node(first) })
    }

    /// Appends all items of `other`.
    pub(crate) fn append(&mut self, other: &mut List<T>) {
        if other.is_empty() {
            return;
        }
        self.chain(other.first);
        // INVARIANT: The nodes of `other`, which loses them, are linked behind those of this list.
        self.last = other.last;
        self.len += other.len;
        (other.first, other.last, other.len) = (null_mut(), null_mut(), 0);
    }

    /// Removes the first `count` items, or all if there are fewer, and returns them.
    pub(crate) fn take_front(&mut self, count: usize) -> Self {
        if count == 0 {
            return Self::new();
        }
        if count >= self.len {
            return core::mem::take(self);
        }
        let mut last = self.first;
        for _ in 1..count {
            // SAFETY: The list owns its nodes, of which there are more than `count`.
            last = unsafe { *T::link(last) };
        }
        // SAFETY: The list owns the node, and with it the link.
        let rest = unsafe { core::mem::replace(&mut *T::link(last), null_mut()) };
        // INVARIANT: The nodes up to `last` are those of the new list, and the others of this one.
        self.len -= count;
        List {
            first: core::mem::replace(&mut self.first, rest),
            last,
            len: count,
            _owned: PhantomData,
        }
    }

    /// Links `node` behind the last node.
    fn chain(&mut self, node: *mut T::Node) {
        if self.last.is_null() {
            self.first = node;
        } else {
            // SAFETY: `last` is not null, so it is a valid node that the list owns.
            unsafe { *T::link(self.last) = node };
        }
    }

    /// Returns an iterator over the items, in order.
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

    /// Calls `f` with each item in order, until it fails.
    ///
    /// # Errors
    ///
    /// The error of `f`.
    // Inlined, because the usual list has one item.
    #[inline(always)]
    pub(crate) fn try_for_each(&mut self, mut f: impl FnMut(&mut T) -> Result) -> Result {
        let mut slot: *mut *mut T::Node = &mut self.first;
        // SAFETY: `slot` is `first` or the link of one of our nodes.
        while let Some(node) = NonNull::new(unsafe { *slot }) {
            // SAFETY: The list owns the node. A pointer of the list that is not null is a `T`, by
            // the invariant and by what `Linked` says of the layout, and the list is borrowed.
            let (next, item) = unsafe { (*T::link(node.as_ptr()), &mut *slot.cast::<T>()) };
            let result = f(item);
            // SAFETY: The list owns the node. `f` may have put another node into the slot.
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
    #[inline(always)]
    fn drop(&mut self) {
        // Most lists are empty in the end.
        if !self.is_empty() {
            self.clear();
        }
    }
}

#[cfg(rpcrdma_kunit)]
mod kunit;

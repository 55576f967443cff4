// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: a queue keeps its order and its end, whatever a caller does with borrowed items.

use super::*;
use core::mem::{
    swap,
    ManuallyDrop, //
};

struct Node {
    next: *mut Node,
    number: u32,
}

/// A number in a box.
#[repr(transparent)]
struct Item(NonNull<Node>);

impl Item {
    fn new(number: u32) -> Result<Self> {
        let next = null_mut();
        let node = KBox::into_raw(KBox::new(Node { next, number }, GFP_KERNEL)?);
        // SAFETY: The pointer of a box is not null.
        Ok(Item(unsafe { NonNull::new_unchecked(node) }))
    }

    fn number(&self) -> u32 {
        // SAFETY: `self` owns the box.
        unsafe { self.0.as_ref() }.number
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        // SAFETY: `self` owns the box, and only this drop frees it.
        drop(unsafe { KBox::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: `Item` is transparent, and only the list uses `next`.
unsafe impl Linked for Item {
    type Node = Node;

    fn into_node(self) -> NonNull<Node> {
        ManuallyDrop::new(self).0
    }

    unsafe fn from_node(node: NonNull<Node>) -> Self {
        Item(node)
    }

    unsafe fn link(node: *mut Node) -> *mut *mut Node {
        // SAFETY: The node is valid by this function's contract.
        unsafe { &raw mut (*node).next }
    }
}

fn list(numbers: &[u32]) -> Result<List<Item>> {
    let mut list = List::new();
    for number in numbers {
        list.push(Item::new(*number)?);
    }
    Ok(list)
}

fn is(list: &List<Item>, numbers: &[u32]) -> bool {
    list.len() == numbers.len() && list.iter().map(Item::number).eq(numbers.iter().copied())
}

#[kunit_tests(rpcrdma_list)]
mod tests {
    use super::*;

    #[test]
    fn iteration_is_in_order_and_ends_at_an_error() -> Result {
        let mut list = list(&[1, 2, 3])?;
        let mut seen = 0;
        list.try_for_each(|item| {
            seen = seen * 10 + item.number();
            Ok(())
        })?;
        assert_eq!(seen, 123);
        let result = list.try_for_each(|item| match item.number() {
            2 => Err(EIO),
            _ => Ok(()),
        });
        assert_eq!(result, Err(EIO));
        assert!(is(&list, &[1, 2, 3]));
        list.push(Item::new(4)?);
        assert!(is(&list, &[1, 2, 3, 4]));
        Ok(())
    }

    #[test]
    fn borrowed_items_can_be_swapped() -> Result {
        let (mut first, mut second) = (list(&[1, 2])?, list(&[11, 12, 13])?);
        // Exchange the last item of the first list with the middle one of the second.
        first.try_for_each(|item| {
            if item.number() != 2 {
                return Ok(());
            }
            second.try_for_each(|other| {
                if other.number() == 12 {
                    swap(item, other);
                }
                Ok(())
            })
        })?;
        assert!(is(&first, &[1, 12]) && is(&second, &[11, 2, 13]));
        first.push(Item::new(3)?);
        second.append(&mut first);
        assert!(is(&second, &[11, 2, 13, 1, 12, 3]) && first.is_empty());
        Ok(())
    }
}

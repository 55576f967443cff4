// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: chains of Work Requests in the form in which they would be posted. None is posted.

use super::*;

/// Creates a chain without a QP and a PD.
fn chain<'a>() -> Result<KBox<Chain<'a>>> {
    let (qp, pd, ticket) = (null_mut(), null_mut(), Ticket { qp: 1, post: 7 });
    Ok(KBox::new(
        // SAFETY: The tests call no method that uses the QP.
        unsafe { Chain::new(qp, pd, ticket) },
        GFP_KERNEL,
    )?)
}

/// Returns a request that registers `key`.
fn reg(key: u32) -> bindings::ib_reg_wr {
    bindings::ib_reg_wr {
        wr: bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
            // Left over from an earlier chain; it must be overwritten.
            next: core::ptr::dangling_mut(),
            ..Default::default()
        },
        key,
        ..Default::default()
    }
}

/// Returns a request that writes to `rkey`.
fn write(rkey: u32) -> bindings::ib_rdma_wr {
    bindings::ib_rdma_wr {
        wr: bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            ..Default::default()
        },
        rkey,
        ..Default::default()
    }
}

/// Appends a request, which must be valid as long as the chain is used.
fn append(chain: &mut Chain<'_>, wr: *mut bindings::ib_send_wr, kind: WrKind) {
    // SAFETY: The callers keep the request valid, and do not add it to another chain.
    unsafe { chain.append(Requests::one(wr, kind)) };
}

/// Returns the requests of a chain, in order.
fn requests<'a>(
    first: *mut bindings::ib_send_wr,
) -> impl Iterator<Item = &'a bindings::ib_send_wr> {
    let mut next = first;
    core::iter::from_fn(move || {
        // SAFETY: The callers keep the requests valid.
        let wr = unsafe { next.as_ref() }?;
        next = wr.next;
        Some(wr)
    })
}

fn is_signaled(wr: &bindings::ib_send_wr) -> bool {
    wr.send_flags & bindings::ib_send_flags_IB_SEND_SIGNALED != 0
}

#[kunit_tests(rpcrdma_wr)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_chain_has_no_requests() -> Result {
        let mut chain = chain()?;
        assert_eq!(chain.wrs(), 0);
        assert!(chain.finish(core::ptr::dangling_mut()).is_none());
        Ok(())
    }

    #[test]
    fn requests_are_in_order_and_the_last_is_signaled() -> Result {
        let mut wrs = [reg(0), reg(1), reg(2), reg(3)];
        let mut chain = chain()?;
        for wr in &mut wrs {
            append(&mut chain, (&raw mut *wr).cast(), WrKind::Reg);
        }
        assert_eq!(chain.wrs(), 4);
        let entry = core::ptr::dangling_mut::<Entry>();
        let first = chain.finish(entry).ok_or(EINVAL)?;
        assert!(core::ptr::eq(first.cast(), &raw const wrs[0]));
        let mut count = 0;
        for wr in requests(first) {
            // SAFETY: The request is the first field of an `ib_reg_wr`.
            let key = unsafe { (*core::ptr::from_ref(wr).cast::<bindings::ib_reg_wr>()).key };
            assert_eq!(key, count);
            count += 1;
            assert_eq!(is_signaled(wr), count == 4);
            // SAFETY: The requests of a chain have a completion entry, not a number.
            let named = unsafe { *wr.__bindgen_anon_1.wr_cqe };
            assert_eq!(core::ptr::eq(named, Entry::cqe(entry)), count == 4);
        }
        assert_eq!(count, 4);
        Ok(())
    }

    #[test]
    fn the_owner_keeps_its_last_request_for_another_chain() -> Result {
        // A driver may read the last request again when its owner has linked it into another chain.
        let (mut first, mut last) = (reg(1), write(2));
        let mut chain = chain()?;
        append(&mut chain, (&raw mut first).cast(), WrKind::Reg);
        append(&mut chain, (&raw mut last).cast(), WrKind::Rdma);
        let posted = chain.finish(core::ptr::dangling_mut()).ok_or(EINVAL)?;
        let (mut of_chain, mut count) = (posted, 0);
        for wr in requests(posted) {
            of_chain = core::ptr::from_ref(wr).cast_mut();
            count += 1;
        }
        assert_eq!(count, 2);
        assert!(!core::ptr::eq(of_chain.cast(), &raw const last));
        // SAFETY: The last request of the chain is an `ib_rdma_wr`.
        assert_eq!(
            unsafe { (*of_chain.cast::<bindings::ib_rdma_wr>()).rkey },
            2
        );
        assert!(!is_signaled(&last.wr));
        let mut more = reg(3);
        let mut other = super::chain()?;
        append(&mut other, (&raw mut last).cast(), WrKind::Rdma);
        append(&mut other, (&raw mut more).cast(), WrKind::Reg);
        // SAFETY: The chain, which has not been dropped, contains the request.
        assert!(unsafe { (*of_chain).next.is_null() });
        assert_eq!(other.wrs(), 2);
        Ok(())
    }

    #[test]
    fn one_request_is_a_chain() -> Result {
        let mut wr = write(5);
        let mut chain = chain()?;
        append(&mut chain, (&raw mut wr).cast(), WrKind::Rdma);
        let first = chain.finish(core::ptr::dangling_mut()).ok_or(EINVAL)?;
        assert!(requests(first).count() == 1 && requests(first).all(is_signaled));
        Ok(())
    }

    #[test]
    fn a_list_of_requests_is_appended_as_a_whole() -> Result {
        let (mut one, mut wrs) = (reg(0), [write(1), write(2), write(3)]);
        let [a, b, c] = &mut wrs;
        let [a, b, c] = [a, b, c].map(|wr| (&raw mut *wr).cast::<bindings::ib_send_wr>());
        // SAFETY: The requests are valid.
        unsafe {
            (*a).next = b;
            (*b).next = c;
        }
        let list = Requests {
            first: a,
            last: c,
            kind: WrKind::Rdma,
            count: 3,
        };
        let mut chain = chain()?;
        append(&mut chain, (&raw mut one).cast(), WrKind::Reg);
        // SAFETY: The requests are valid and linked in this order.
        unsafe { chain.append(list) };
        assert_eq!(chain.wrs(), 4);
        let first = chain.finish(core::ptr::dangling_mut()).ok_or(EINVAL)?;
        assert_eq!(requests(first).count(), 4);
        let mut signaled = requests(first).map(is_signaled);
        assert!(signaled.by_ref().eq([false, false, false, true]));
        Ok(())
    }

    #[test]
    fn tickets_are_in_order_on_one_queue_pair() {
        let ticket = |qp, post| Ticket { qp, post };
        assert!(ticket(1, 1).precedes(ticket(1, 2)));
        assert!(!ticket(1, 2).precedes(ticket(1, 2)));
        assert!(!ticket(1, 3).precedes(ticket(1, 2)));
        assert!(!ticket(1, 1).precedes(ticket(2, 2)));
    }
}

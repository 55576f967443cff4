// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: chains as the device would find them. None is posted.

use super::*;

/// A chain for no QP.
fn chain<'a>() -> Result<KBox<Chain<'a>>> {
    Ok(KBox::new(
        // SAFETY: Nothing that looks at the QP is called.
        unsafe { Chain::new(core::ptr::null_mut(), 1, 7) },
        GFP_KERNEL,
    )?)
}

/// A request that registers `key`.
fn reg(key: u32) -> bindings::ib_reg_wr {
    bindings::ib_reg_wr {
        wr: bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_REG_MR,
            // Of an earlier chain, to be overwritten.
            next: core::ptr::dangling_mut(),
            ..Default::default()
        },
        key,
        ..Default::default()
    }
}

fn sge<'a>(number: u32, length: u32) -> Sge<'a> {
    Sge::new(u64::from(number) << 12, length, number)
}

/// The requests of a chain, in order.
fn requests<'a>(chain: &'a Chain<'_>) -> impl Iterator<Item = &'a bindings::ib_send_wr> {
    let mut next = chain.first;
    core::iter::from_fn(move || {
        // SAFETY: By the type's invariant; the chain is borrowed.
        let wr = unsafe { next.as_ref() }?;
        next = wr.next;
        Some(wr)
    })
}

/// The elements of a Send.
fn elements(wr: &bindings::ib_send_wr) -> &[bindings::ib_sge] {
    // SAFETY: The chain the request is of has as many.
    unsafe { core::slice::from_raw_parts(wr.sg_list, wr.num_sge as usize) }
}

fn is_signaled(wr: &bindings::ib_send_wr) -> bool {
    wr.send_flags & bindings::ib_send_flags_IB_SEND_SIGNALED != 0
}

#[kunit_tests(rpcrdma_wr)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_chain_is_none() -> Result {
        let mut chain = chain()?;
        assert_eq!(chain.wrs(), 0);
        assert!(chain.finish(core::ptr::dangling_mut()).is_none());
        Ok(())
    }

    #[test]
    fn requests_are_in_order_and_the_last_is_signaled() -> Result {
        let mut chain = chain()?;
        for key in 0..3 {
            chain.append_mr(|_| Ok(reg(key)))?;
        }
        chain.send([sge(1, 100)].into_iter())?;
        assert_eq!(chain.wrs(), 4);
        let entry = core::ptr::dangling_mut::<Entry>();
        let first = chain.finish(entry).ok_or(EINVAL)?;
        assert!(core::ptr::eq(first, chain.first));
        let (mut count, mut keys) = (0, 0);
        for wr in requests(&chain) {
            count += 1;
            assert_eq!(is_signaled(wr), count == 4);
            // SAFETY: Chains of requests have completions, not numbers.
            let named = unsafe { *wr.__bindgen_anon_1.wr_cqe };
            assert_eq!(core::ptr::eq(named, Entry::cqe(entry)), count == 4);
            if wr.opcode == bindings::ib_wr_opcode_IB_WR_REG_MR {
                // SAFETY: The request is the first field of one that registers.
                let key = unsafe { (*core::ptr::from_ref(wr).cast::<bindings::ib_reg_wr>()).key };
                assert_eq!(key, keys);
                keys += 1;
            }
        }
        assert_eq!((count, keys), (4, 3));
        Ok(())
    }

    #[test]
    fn there_is_a_place_for_each_registration_or_an_error() -> Result {
        let mut chain = chain()?;
        for key in 0..Chain::MAX_MR as u32 {
            chain.append_mr(|_| Ok(reg(key)))?;
        }
        assert!(chain.append_mr(|_| panic!("started")) == Err(E2BIG));
        assert_eq!(chain.wrs() as usize, Chain::MAX_MR);
        assert_eq!(requests(&chain).count(), Chain::MAX_MR);
        // The Send has a place of its own.
        chain.send(core::iter::empty())?;
        assert_eq!(requests(&chain).count(), Chain::MAX_MR + 1);
        Ok(())
    }

    #[test]
    fn nothing_follows_a_send() -> Result {
        let transfer = Transfer::new();
        let mut chain = chain()?;
        chain.send_with_invalidate([sge(1, 1)].into_iter(), 0xabcd)?;
        assert!(chain.append_mr(|_| panic!("started")) == Err(EINVAL));
        assert!(chain.send(core::iter::empty()) == Err(EINVAL));
        assert!(chain.send_with_invalidate(core::iter::empty(), 1) == Err(EINVAL));
        assert!(chain.transfer(&transfer) == Err(EINVAL));
        assert_eq!(chain.wrs(), 1);
        for wr in requests(&chain) {
            assert_eq!(wr.opcode, bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV);
            // SAFETY: The member that this request uses.
            assert_eq!(unsafe { *wr.ex.invalidate_rkey }, 0xabcd);
        }
        Ok(())
    }

    #[test]
    fn empty_elements_are_left_out() -> Result {
        let mut chain = chain()?;
        let lengths = [0, 5, 0, 0, 7, 1, 0];
        chain.send(
            lengths
                .into_iter()
                .enumerate()
                .map(|(i, len)| sge(i as u32, len)),
        )?;
        let wr = requests(&chain).next().ok_or(EINVAL)?;
        let sent = elements(wr);
        assert_eq!(sent.len(), 3);
        for (element, (number, length)) in sent.iter().zip([(1, 5), (4, 7), (5, 1)]) {
            assert_eq!((element.lkey, element.length), (number, length));
            assert_eq!(element.addr, u64::from(number) << 12);
        }
        Ok(())
    }

    #[test]
    fn a_send_has_as_many_elements_as_fit_or_an_error() -> Result {
        let max = Chain::MAX_SGE as u32;
        let mut full = chain()?;
        full.send((0..max).map(|i| sge(i, 1)))?;
        assert_eq!(
            elements(requests(&full).next().ok_or(EINVAL)?).len(),
            Chain::MAX_SGE
        );
        let mut over = chain()?;
        assert!(over.send((0..=max).map(|i| sge(i, 1))) == Err(E2BIG));
        assert_eq!(over.wrs(), 0);
        assert!(over.finish(core::ptr::dangling_mut()).is_none());
        // Empty ones take no place.
        let mut with_empty = chain()?;
        with_empty.send((0..2 * max).map(|i| sge(i, i % 2)))?;
        assert_eq!(with_empty.wrs(), 1);
        Ok(())
    }
}

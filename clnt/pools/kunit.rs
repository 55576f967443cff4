// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! KUnit: what a Call takes from the pools, and which resource is short. Nothing is posted.

use super::*;
use crate::kapi::{
    fixture::{
        addr,
        pd, //
    },
    rdma::pd::Pd, //
};

/// A region each for the Read chunk, for the Reply and for the scratch page.
const REGIONS: usize = 3;

const LIMITS: ClientLimits = ClientLimits {
    requests: 4,
    pages_per_segment: 1,
    segments: 1,
    send_sges: 3,
    send_wr: 100,
    recv_wr: 100,
    spare_recv_wr: 1,
};

/// Returns the pools of a connection with posted Receives and all Sends, but without regions.
fn pools(pd: &Arc<Pd>) -> Result<Pools> {
    let status = ConnStatus::of(addr(0, 0)?, pd.device().name(), &LIMITS, 0, None)?;
    let mut pools = Pools::new(&LIMITS, InlineSize(1024), status)?;
    let (_, count, size) = pools.receives_to_post(true);
    pools.end_post(count, RecvList::new(), 0, size);
    for _ in 0..LIMITS.requests {
        let send = SendCtx::new(pd, 1024, 3, false)?;
        assert!(pools.add_send(send).is_ok());
    }
    Ok(pools)
}

/// Allocates `count` regions.
fn add_regions(pools: &mut Pools, pd: &Arc<Pd>, count: usize) -> Result {
    for _ in 0..count {
        pools.add_region(Mr::new(pd, 1)?, InvCtx::new()?);
    }
    Ok(())
}

#[kunit_tests(rpcrdma_client_pools)]
mod tests {
    use super::*;

    #[test]
    fn a_refill_is_requested_below_the_limit_only() -> Result {
        let pd = pd()?;
        let (mut pools, mut taken) = (pools(&pd)?, MrList::new());
        let most = Pools::max_regions(&LIMITS);
        while pools.regions_made < most {
            let mut list = MrList::new();
            assert!(pools.take(REGIONS, &mut list).err() == Some(Shortage::Regions));
            let missing = pools.regions_missing();
            assert!(missing != 0 && list.is_empty());
            add_regions(&mut pools, &pd, missing)?;
            // The regions are used, and the Send completes.
            let mut list = MrList::new();
            let send = pools.take(REGIONS, &mut list);
            pools.send_done(send.map_err(|_| EIO)?, REGIONS);
            taken.append(&mut list);
        }
        while pools.idle.len() >= REGIONS {
            let mut list = MrList::new();
            let send = pools.take(REGIONS, &mut list);
            pools.send_done(send.map_err(|_| EIO)?, REGIONS);
            taken.append(&mut list);
        }
        // No refill can help: the sender waits for a Reply.
        let mut list = MrList::new();
        assert!(pools.take(REGIONS, &mut list).err() == Some(Shortage::Room));
        assert!(pools.starve(REGIONS) == Wait::Woken && pools.take_starved());
        pools.recycled(&mut taken);
        assert!(pools.take(REGIONS, &mut list).is_ok());
        Ok(())
    }

    #[test]
    fn what_a_call_takes_is_returned() -> Result {
        let pd = pd()?;
        let mut pools = pools(&pd)?;
        add_regions(&mut pools, &pd, REGIONS)?;
        let (room, sends) = (pools.queue.room(), pools.sends.len());
        for used in 0..=REGIONS {
            // A Call that was posted with `used` regions, and one that was not.
            for posted in [true, false] {
                let (mut list, owed) = (MrList::new(), pools.owed);
                let send = pools.take(REGIONS, &mut list).map_err(|_| EIO)?;
                assert!(pools.queue.room() + Pools::entries(REGIONS) == room);
                let mut registered = list.take_front(used);
                if posted {
                    pools.unused(&mut list);
                    pools.send_done(send, used);
                    pools.received(MessageKind::Reply, 1024);
                } else {
                    pools.return_unused(send, used, &mut list);
                }
                pools.recycled(&mut registered);
                assert!(pools.owed == owed);
                assert!(pools.idle.len() == REGIONS);
                assert!(pools.queue.room() == room && pools.sends.len() == sends);
            }
        }
        Ok(())
    }

    #[test]
    fn a_call_waits_for_the_post_of_its_receive() -> Result {
        let pd = pd()?;
        let mut pools = pools(&pd)?;
        let mut list = MrList::new();
        // The Receives are used up, down to those for messages of the server.
        while let Ok(send) = pools.take(0, &mut list) {
            pools.send_done(send, 0);
            pools.received(MessageKind::Reply, 1024);
        }
        assert!(pools.take(0, &mut list).err() == Some(Shortage::Receives));
        // Nobody posts Receives, so nothing would wake the sender, whether or not a Reply is due.
        for owed in [0, 1] {
            pools.owed = owed;
            assert!(pools.starve(0) == Wait::Delay && !pools.take_starved());
        }
        pools.owed = 0;
        let (_, count, size) = pools.receives_to_post(true);
        // Another thread posts them.
        assert!(count != 0 && pools.take(0, &mut list).err() == Some(Shortage::Receives));
        assert!(pools.starve(0) == Wait::Woken);
        pools.end_post(count, RecvList::new(), 0, size);
        assert!(pools.take_starved());
        assert!(pools.take(0, &mut list).is_ok());
        Ok(())
    }

    #[test]
    fn each_credit_of_the_server_has_a_receive_while_a_call_is_answered() -> Result {
        let pd = pd()?;
        let mut pools = pools(&pd)?;
        pools.allow_bc();
        let (_, count, size) = pools.receives_to_post(true);
        pools.end_post(count, RecvList::new(), 0, size);
        for _ in 0..4 * BC_MAX_CALLS {
            // The Receive of this Call is posted again after the Call may have been answered.
            pools.received(MessageKind::Other, 1024);
            assert!(pools.posted >= BC_CREDITS);
            pools.put_receive(RecvBox::new(&pd, 1024, ())?);
            if pools.lacks_receives() {
                let (list, missing, size) = pools.receives_to_post(false);
                assert!(missing == 0);
                pools.end_post(list.len() as u32, RecvList::new(), 0, size);
            }
        }
        Ok(())
    }

    #[test]
    fn error_reports_wait_for_sends() -> Result {
        use crate::xdr::units::{Credits, Xid};
        let pd = pd()?;
        let mut pools = pools(&pd)?;
        let report = |xid| Report {
            header: Header {
                xid: Xid(xid),
                version: 1,
                credits: Credits(1),
                proc: 0,
            },
            body: ErrorBody::Chunk,
        };
        for _ in 0..BC_SENDS_KEPT {
            assert!(pools.add_send(SendCtx::new(&pd, 1024, 3, true)?).is_ok());
        }
        assert!(pools.take_report().is_none());
        // More than the credits granted, and more than there are Sends.
        for xid in 0..BC_MAX_CALLS {
            assert!(pools.queue_report(report(xid)));
        }
        assert!(!pools.queue_report(report(BC_MAX_CALLS)));
        let mut in_flight = KVec::with_capacity(BC_SENDS_KEPT, GFP_KERNEL)?;
        for xid in 0..BC_MAX_CALLS {
            if xid >= BC_SENDS_KEPT as u32 {
                assert!(pools.take_report().is_none());
                pools.bc_send_done(in_flight.pop().ok_or(EIO)?);
            }
            let (send, next) = pools.take_report().ok_or(EIO)?;
            assert!(next == report(xid));
            in_flight.push(send, GFP_KERNEL)?;
        }
        pools.bc_send_done(in_flight.pop().ok_or(EIO)?);
        assert!(pools.take_report().is_none() && pools.queue_report(report(0)));
        Ok(())
    }

    #[test]
    fn a_blocked_connection_is_watched_until_it_ends() -> Result {
        let pd = pd()?;
        let mut pools = pools(&pd)?;
        assert!(pools.check_progress().0 == Progress::Idle);
        let send = pools.take(0, &mut MrList::new()).map_err(|_| EIO)?;
        pools.send_done(send, 0);
        // A process ends before its Reply has come.
        pools.reserve.end_call();
        assert!(pools.window(1, false) == Some(0));
        let progress = [0; 3].map(|_| pools.check_progress().0);
        assert!(progress == [Progress::Active, Progress::Active, Progress::Blocked]);
        pools.received(MessageKind::LateReply, 1024);
        assert!(pools.window(1, false) == Some(1));
        assert!(pools.check_progress().0 == Progress::Idle);
        Ok(())
    }

    #[test]
    fn a_quiet_connection_keeps_receives_that_replace_others() -> Result {
        let pd = pd()?;
        let (mut pools, mut surplus) = (pools(&pd)?, Surplus::default());
        let mut list = RecvList::new();
        list.push(RecvBox::new(&pd, 2048, ())?);
        drop(pools.replace_receives(2048, list));
        let posted = pools.posted;
        assert!(posted != 0 && pools.resize.outdated() == posted);
        pools.trim(&mut surplus);
        assert!(surplus.receives.is_empty() && pools.free.len() == 1);
        for _ in 0..posted {
            pools.received(MessageKind::Other, 1024);
        }
        pools.trim(&mut surplus);
        assert!(surplus.receives.len() == 1);
        Ok(())
    }
}

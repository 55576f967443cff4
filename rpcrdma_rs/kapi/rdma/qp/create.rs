// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Creating a Queue Pair and its Completion Queue.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use core::ffi::c_void;

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

use super::{
    super::owner_name,
    Qp,
    QpConfig,
    QpEvent,
    QpHandler, //
};
use crate::kapi::{
    bindings,
    ext::atomic::Relaxed, //
};

impl<H: QpHandler> Qp<H> {
    /// Creates the CQ and the QP.
    // Not inlined, as its stack is not needed later.
    #[inline(never)]
    pub(super) fn populate(&self, config: &QpConfig) -> Result {
        self.iwarp.store(self.port().iwarp(), Relaxed);
        let device = self.device();
        let attrs = device.attrs();
        // Draining takes one more entry of each queue.
        let send = config.max_send_wr.checked_add(1).ok_or(EINVAL)?;
        let recv = config.max_recv_wr.checked_add(1).ok_or(EINVAL)?;
        let rw = match config.max_rdma_ctxs {
            0 => 0,
            contexts => self.port().rw_max_send_wr(contexts),
        };
        let room = attrs.max_cqe.saturating_sub(recv);
        // When the QP is flushed, all requests complete at once. If that overran the CQ, the
        // requests of the drain would never complete.
        if send > room {
            return Err(EINVAL);
        }
        let send_depth = send.saturating_add(rw).min(attrs.max_qp_wr);
        // As in the Send Queue, entries for rdma_rw are added as far as the device has room. A user
        // that counts the requests of rdma_rw in `max_send_wr` does not need them.
        let entries = send_depth.min(room).saturating_add(recv);

        let context: *const Self = self;
        // SAFETY: The device is valid. The context is a field of this object, which outlives the
        // CQ.
        let cq = from_err_ptr(unsafe {
            bindings::__ib_alloc_cq_any(
                device.as_raw(),
                (&raw const (*context).failure).cast_mut().cast::<c_void>(),
                i32::try_from(entries)?,
                bindings::ib_poll_context_IB_POLL_WORKQUEUE,
                owner_name(),
            )
        })?;
        self.cq.store(cq, Relaxed);

        let mut send_sges = config.max_send_sge;
        loop {
            let made = self.create(bindings::ib_qp_cap {
                max_send_wr: send,
                max_recv_wr: recv,
                max_send_sge: send_sges,
                max_recv_sge: config.max_recv_sge,
                max_inline_data: 0,
                max_rdma_ctxs: config.max_rdma_ctxs,
            });
            match made {
                // A device may report a queue length that it supports only for short entries; mlx5
                // does.
                Err(ENOMEM | EINVAL) if send_sges > config.min_send_sge => {
                    send_sges = (send_sges / 2).max(config.min_send_sge);
                }
                other => return other,
            }
        }
    }

    /// Creates the QP. Its CQ already exists.
    fn create(&self, cap: bindings::ib_qp_cap) -> Result {
        let context: *const Self = self;
        let cq = self.cq.load(Relaxed);
        let mut attr = bindings::ib_qp_init_attr {
            event_handler: Some(handle_event::<H>),
            qp_context: context.cast::<c_void>().cast_mut(),
            send_cq: cq,
            recv_cq: cq,
            cap,
            sq_sig_type: bindings::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: bindings::ib_qp_type_IB_QPT_RC,
            ..Default::default()
        };
        // SAFETY: Id, PD and attributes are valid, and of one device.
        to_result(unsafe {
            bindings::rdma_create_qp(self.id.as_raw(), self.pd.as_raw(), &mut attr)
        })?;
        // SAFETY: The id is valid and has a QP now, whose limits do not change.
        let (qp, read, write) = unsafe {
            let qp = (*self.id.as_raw()).qp;
            (qp, (*qp).max_read_sge, (*qp).max_write_sge)
        };
        self.max_read_sge.store(read, Relaxed);
        self.max_write_sge.store(write, Relaxed);
        self.qp.store(qp, Relaxed);
        Ok(())
    }
}

/// Called by the driver for an event of a QP. Any context.
///
/// # Safety
///
/// `context` must be the `Qp<H>` of the event, and `event` must be valid.
unsafe extern "C" fn handle_event<H: QpHandler>(
    event: *mut bindings::ib_event,
    context: *mut c_void,
) {
    // SAFETY: The event is valid, and `context` is the `Qp` of that QP, by this function's
    // contract. A `Qp` outlives its C QP.
    let (number, qp) = unsafe { ((*event).event, &*context.cast::<Qp<H>>()) };
    if number == bindings::ib_event_type_IB_EVENT_COMM_EST {
        // The peer sends, so the connection is up, although its last CM message has not arrived. If
        // that message is lost, the connection would wait for seconds until the peer repeats it.
        // SAFETY: The id is valid. If it is not connecting, the function returns an error.
        unsafe { bindings::rdma_notify(qp.id.as_raw(), number) };
    }
    let event = match number {
        bindings::ib_event_type_IB_EVENT_QP_FATAL
        | bindings::ib_event_type_IB_EVENT_QP_REQ_ERR
        | bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR
        | bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => QpEvent::Fatal,
        _ => QpEvent::Other,
    };
    qp.handler.event(event);
}

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Trace events of the server, in the system and with the names of the C rpcrdma module (and
 * most of its fields), which is never active at the same time. Arguments are numbers,
 * addresses and names, so that nothing here depends on how the module keeps its state. Fired from
 * kapi/trace.rs.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rpcrdma

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_svc

#if !defined(_RPCRDMA_RS_TRACE_SVC_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RPCRDMA_RS_TRACE_SVC_H

#include <linux/tracepoint.h>

#include "trace_types.h"

#include <trace/misc/rdma.h>

/*
 * Connections.
 */
DECLARE_EVENT_CLASS(svcrdma_accept_class,
	TP_PROTO(const struct sockaddr *addr, int status),
	TP_ARGS(addr, status),
	TP_STRUCT__entry(
		__field(long, status)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->status = status;
		ADDR_ASSIGN
	),
	TP_printk("addr=%pISpc status=%ld", __entry->addr, __entry->status)
);

#define DEFINE_ACCEPT_EVENT(name)					\
	DEFINE_EVENT(svcrdma_accept_class, name,			\
		TP_PROTO(const struct sockaddr *addr, int status),	\
		TP_ARGS(addr, status))

DEFINE_ACCEPT_EVENT(svcrdma_pd_err);
DEFINE_ACCEPT_EVENT(svcrdma_qp_err);
DEFINE_ACCEPT_EVENT(svcrdma_initdepth_err);
DEFINE_ACCEPT_EVENT(svcrdma_accept_err);
DEFINE_ACCEPT_EVENT(svcrdma_sq_post_err);

/*
 * Receiving and decoding a Call.
 */
TRACE_EVENT(svcrdma_wc_recv,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 received),
	TP_ARGS(cid, received),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(u32, received)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->received = received;
	),
	TP_printk(CID_FORMAT " received=%u", CID_ARGS, __entry->received)
);

#define rpcrdma_show_proc(x)						\
	__print_symbolic(x,						\
		{ 0, "RDMA_MSG" },					\
		{ 1, "RDMA_NOMSG" },					\
		{ 2, "RDMA_MSGP" },					\
		{ 3, "RDMA_DONE" },					\
		{ 4, "RDMA_ERROR" })

TRACE_EVENT(svcrdma_decode_rqst,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 xid, u32 vers, u32 credits, u32 proc,
		 unsigned long hdrlen),
	TP_ARGS(cid, xid, vers, credits, proc, hdrlen),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(u32, xid)
		__field(u32, vers)
		__field(u32, proc)
		__field(u32, credits)
		__field(unsigned int, hdrlen)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->xid = xid;
		__entry->vers = vers;
		__entry->proc = proc;
		__entry->credits = credits;
		__entry->hdrlen = hdrlen;
	),
	TP_printk(CID_FORMAT " xid=0x%08x vers=%u credits=%u proc=%s hdrlen=%u", CID_ARGS,
		__entry->xid, __entry->vers, __entry->credits,
		rpcrdma_show_proc(__entry->proc), __entry->hdrlen)
);

TRACE_EVENT(svcrdma_decode_short_err,
	TP_PROTO(struct rpcrdma_trace_cid cid, unsigned long hdrlen),
	TP_ARGS(cid, hdrlen),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(unsigned int, hdrlen)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->hdrlen = hdrlen;
	),
	TP_printk(CID_FORMAT " hdrlen=%u", CID_ARGS, __entry->hdrlen)
);

DECLARE_EVENT_CLASS(svcrdma_badreq_event,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 xid, u32 vers, u32 credits, u32 proc),
	TP_ARGS(cid, xid, vers, credits, proc),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(u32, xid)
		__field(u32, vers)
		__field(u32, proc)
		__field(u32, credits)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->xid = xid;
		__entry->vers = vers;
		__entry->proc = proc;
		__entry->credits = credits;
	),
	TP_printk(CID_FORMAT " xid=0x%08x vers=%u credits=%u proc=%u", CID_ARGS,
		__entry->xid, __entry->vers, __entry->credits, __entry->proc)
);

#define DEFINE_BADREQ_EVENT(name)					\
	DEFINE_EVENT(svcrdma_badreq_event, svcrdma_decode_##name##_err,	\
		TP_PROTO(struct rpcrdma_trace_cid cid, u32 xid, u32 vers, u32 credits, \
			 u32 proc),					\
		TP_ARGS(cid, xid, vers, credits, proc))

DEFINE_BADREQ_EVENT(badvers);
DEFINE_BADREQ_EVENT(drop);
DEFINE_BADREQ_EVENT(badproc);
DEFINE_BADREQ_EVENT(parse);

TRACE_EVENT(svcrdma_decode_rseg,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 segno, u32 position, u32 handle, u32 length,
		 u64 offset),
	TP_ARGS(cid, segno, position, handle, length, offset),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(u32, segno)
		__field(u32, position)
		SEGMENT_FIELDS
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->segno = segno;
		__entry->position = position;
		__entry->handle = handle;
		__entry->length = length;
		__entry->offset = offset;
	),
	TP_printk(CID_FORMAT " segno=%u position=%u " SEGMENT_FORMAT, CID_ARGS,
		__entry->segno, __entry->position, SEGMENT_ARGS)
);

/*
 * Chunks.
 */
DECLARE_EVENT_CLASS(svcrdma_post_chunk_class,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 sqecount),
	TP_ARGS(cid, sqecount),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(int, sqecount)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->sqecount = sqecount;
	),
	TP_printk(CID_FORMAT " sqecount=%d", CID_ARGS, __entry->sqecount)
);

#define DEFINE_POST_CHUNK_EVENT(name)					\
	DEFINE_EVENT(svcrdma_post_chunk_class, svcrdma_post_##name##_chunk, \
		TP_PROTO(struct rpcrdma_trace_cid cid, u32 sqecount),	\
		TP_ARGS(cid, sqecount))

DEFINE_POST_CHUNK_EVENT(read);
DEFINE_POST_CHUNK_EVENT(write);
DEFINE_POST_CHUNK_EVENT(reply);

TRACE_EVENT(svcrdma_wc_read,
	TP_PROTO(struct rpcrdma_trace_cid cid, unsigned long totalbytes),
	TP_ARGS(cid, totalbytes),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(unsigned int, totalbytes)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->totalbytes = totalbytes;
	),
	TP_printk(CID_FORMAT " totalbytes=%u", CID_ARGS, __entry->totalbytes)
);

/*
 * Sending a Reply.
 */
TRACE_EVENT(svcrdma_post_send,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 num_sge, u32 inv_rkey),
	TP_ARGS(cid, num_sge, inv_rkey),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(unsigned int, num_sge)
		__field(u32, inv_rkey)
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->num_sge = num_sge;
		__entry->inv_rkey = inv_rkey;
	),
	TP_printk(CID_FORMAT " num_sge=%u inv_rkey=0x%08x", CID_ARGS,
		__entry->num_sge, __entry->inv_rkey)
);

TRACE_EVENT(svcrdma_send_err,
	TP_PROTO(const struct sockaddr *addr, u32 xid, int status),
	TP_ARGS(addr, xid, status),
	TP_STRUCT__entry(
		__field(int, status)
		__field(u32, xid)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->status = status;
		__entry->xid = xid;
		ADDR_ASSIGN
	),
	TP_printk("addr=%pISpc xid=0x%08x status=%d", __entry->addr, __entry->xid,
		__entry->status)
);

DECLARE_EVENT_CLASS(svcrdma_error_event,
	TP_PROTO(u32 xid),
	TP_ARGS(xid),
	TP_STRUCT__entry(
		__field(u32, xid)
	),
	TP_fast_assign(
		__entry->xid = xid;
	),
	TP_printk("xid=0x%08x", __entry->xid)
);

DEFINE_EVENT(svcrdma_error_event, svcrdma_err_vers, TP_PROTO(u32 xid), TP_ARGS(xid));
DEFINE_EVENT(svcrdma_error_event, svcrdma_err_chunk, TP_PROTO(u32 xid), TP_ARGS(xid));

TRACE_EVENT(svcrdma_version,
	TP_PROTO(const struct sockaddr *addr, u32 vers),
	TP_ARGS(addr, vers),
	TP_STRUCT__entry(
		__field(u32, vers)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->vers = vers;
		ADDR_ASSIGN
	),
	TP_printk("addr=%pISpc vers=%u", __entry->addr, __entry->vers)
);

TRACE_EVENT(svcrdma_property,
	TP_PROTO(const struct sockaddr *addr, u32 proc, u32 rbsiz),
	TP_ARGS(addr, proc, rbsiz),
	TP_STRUCT__entry(
		__field(u32, proc)
		__field(u32, rbsiz)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->proc = proc;
		__entry->rbsiz = rbsiz;
		ADDR_ASSIGN
	),
	TP_printk("addr=%pISpc proc=%s rbsiz=%u", __entry->addr,
		rpcrdma_show_property_proc(__entry->proc), __entry->rbsiz)
);

DECLARE_EVENT_CLASS(svcrdma_sendqueue_class,
	TP_PROTO(u32 needed, u32 avail, u32 depth),
	TP_ARGS(needed, avail, depth),
	TP_STRUCT__entry(
		__field(int, needed)
		__field(int, avail)
		__field(int, depth)
	),
	TP_fast_assign(
		__entry->needed = needed;
		__entry->avail = avail;
		__entry->depth = depth;
	),
	TP_printk("needed=%d sc_sq_avail=%d/%d",
		__entry->needed, __entry->avail, __entry->depth)
);

#define DEFINE_SQ_EVENT(name)						\
	DEFINE_EVENT(svcrdma_sendqueue_class, name,			\
		TP_PROTO(u32 needed, u32 avail, u32 depth),		\
		TP_ARGS(needed, avail, depth))

DEFINE_SQ_EVENT(svcrdma_sq_full);
DEFINE_SQ_EVENT(svcrdma_sq_retry);

/*
 * Completions.
 */
DECLARE_EVENT_CLASS(svcrdma_cid_class,
	TP_PROTO(struct rpcrdma_trace_cid cid),
	TP_ARGS(cid),
	TP_STRUCT__entry(
		CID_FIELDS
	),
	TP_fast_assign(
		CID_ASSIGN
	),
	TP_printk(CID_FORMAT, CID_ARGS)
);

DEFINE_EVENT(svcrdma_cid_class, svcrdma_wc_send,
	TP_PROTO(struct rpcrdma_trace_cid cid), TP_ARGS(cid));
DEFINE_EVENT(svcrdma_cid_class, svcrdma_read_finished,
	TP_PROTO(struct rpcrdma_trace_cid cid), TP_ARGS(cid));

DECLARE_EVENT_CLASS(svcrdma_flush_class,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 status, u32 vendor_err),
	TP_ARGS(cid, status, vendor_err),
	TP_STRUCT__entry(
		CID_FIELDS
		STATUS_FIELDS
	),
	TP_fast_assign(
		CID_ASSIGN
		STATUS_ASSIGN
	),
	TP_printk(CID_FORMAT " " STATUS_FORMAT, CID_ARGS, STATUS_ARGS)
);

#define DEFINE_FLUSH_EVENT(name)					\
	DEFINE_EVENT(svcrdma_flush_class, name,			\
		TP_PROTO(struct rpcrdma_trace_cid cid, u32 status, u32 vendor_err), \
		TP_ARGS(cid, status, vendor_err))

DEFINE_FLUSH_EVENT(svcrdma_wc_send_flush);
DEFINE_FLUSH_EVENT(svcrdma_wc_send_err);
DEFINE_FLUSH_EVENT(svcrdma_wc_recv_flush);
DEFINE_FLUSH_EVENT(svcrdma_wc_recv_err);
DEFINE_FLUSH_EVENT(svcrdma_wc_read_flush);
DEFINE_FLUSH_EVENT(svcrdma_wc_read_err);

#endif /* _RPCRDMA_RS_TRACE_SVC_H */

/* This part must be outside protection. */
#include <trace/define_trace.h>

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Trace events of the client, in the system and with the names of the C rpcrdma module (and
 * most of its fields), which is never active at the same time. Arguments are numbers,
 * addresses and names, so that nothing here depends on how the module keeps its state. Fired from
 * kapi/trace.rs.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rpcrdma

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_clnt

#if !defined(_RPCRDMA_RS_TRACE_CLNT_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RPCRDMA_RS_TRACE_CLNT_H

#include <linux/tracepoint.h>

#include "trace_types.h"

#include <trace/misc/rdma.h>
#include <trace/misc/sunrpc.h>

/*
 * Connections.
 */
DECLARE_EVENT_CLASS(xprtrdma_connect_class,
	TP_PROTO(const struct sockaddr *addr, int rc, int connect_status),
	TP_ARGS(addr, rc, connect_status),
	TP_STRUCT__entry(
		__field(int, rc)
		__field(int, connect_status)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->rc = rc;
		__entry->connect_status = connect_status;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc rc=%d connection status=%d",
		__entry->addr, __entry->rc, __entry->connect_status)
);

#define DEFINE_CONN_EVENT(name)						\
	DEFINE_EVENT(xprtrdma_connect_class, name,			\
		TP_PROTO(const struct sockaddr *addr, int rc, int connect_status), \
		TP_ARGS(addr, rc, connect_status))

DEFINE_CONN_EVENT(xprtrdma_connect);
DEFINE_CONN_EVENT(xprtrdma_disconnect);

TRACE_EVENT(xprtrdma_op_connect,
	TP_PROTO(const struct sockaddr *addr, unsigned long delay),
	TP_ARGS(addr, delay),
	TP_STRUCT__entry(
		__field(unsigned long, delay)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->delay = delay;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc delay=%lu", __entry->addr, __entry->delay)
);

TRACE_EVENT(xprtrdma_inline_thresh,
	TP_PROTO(const struct sockaddr *src, const struct sockaddr *dst, u32 inline_send,
		 u32 inline_recv, u32 max_send, u32 max_recv),
	TP_ARGS(src, dst, inline_send, inline_recv, max_send, max_recv),
	TP_STRUCT__entry(
		__field(unsigned int, inline_send)
		__field(unsigned int, inline_recv)
		__field(unsigned int, max_send)
		__field(unsigned int, max_recv)
		__array(u8, srcaddr, RPCRDMA_TRACE_ADDRLEN)
		__array(u8, dstaddr, RPCRDMA_TRACE_ADDRLEN)
	),
	TP_fast_assign(
		__entry->inline_send = inline_send;
		__entry->inline_recv = inline_recv;
		__entry->max_send = max_send;
		__entry->max_recv = max_recv;
		memcpy(__entry->srcaddr, src, RPCRDMA_TRACE_ADDRLEN);
		memcpy(__entry->dstaddr, dst, RPCRDMA_TRACE_ADDRLEN);
	),
	TP_printk("%pISpc -> %pISpc neg send/recv=%u/%u, calc send/recv=%u/%u",
		__entry->srcaddr, __entry->dstaddr,
		__entry->inline_send, __entry->inline_recv,
		__entry->max_send, __entry->max_recv)
);

#define rpcrdma_show_version_why(why)					\
	__print_symbolic(why,						\
		{ 0, "not asked for" },					\
		{ 1, "agreed" },					\
		{ 2, "refused" },					\
		{ 3, "unanswered" },					\
		{ 4, "avoided" })

TRACE_EVENT(xprtrdma_version,
	TP_PROTO(const struct sockaddr *addr, u32 vers, u32 why),
	TP_ARGS(addr, vers, why),
	TP_STRUCT__entry(
		__field(u32, vers)
		__field(u32, why)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->vers = vers;
		__entry->why = why;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc vers=%u why=%s", __entry->addr, __entry->vers,
		rpcrdma_show_version_why(__entry->why))
);

TRACE_EVENT(xprtrdma_property,
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
	TP_printk("peer=%pISpc proc=%s rbsiz=%u", __entry->addr,
		rpcrdma_show_property_proc(__entry->proc), __entry->rbsiz)
);

/*
 * Marshalling a Call.
 */
TRACE_EVENT(xprtrdma_createmrs,
	TP_PROTO(const struct sockaddr *addr, unsigned long count),
	TP_ARGS(addr, count),
	TP_STRUCT__entry(
		ADDR_FIELD
		__field(unsigned int, count)
	),
	TP_fast_assign(
		__entry->count = count;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc created %u MRs", __entry->addr, __entry->count)
);

TRACE_EVENT(xprtrdma_mrs_zap,
	TP_PROTO(struct rpcrdma_trace_task task),
	TP_ARGS(task),
	TP_STRUCT__entry(
		TASK_FIELDS
	),
	TP_fast_assign(
		TASK_ASSIGN
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER, TASK_ARGS)
);

TRACE_EVENT(xprtrdma_chunk_read,
	TP_PROTO(struct rpcrdma_trace_task task, u32 pos, const struct ib_mr *mr),
	TP_ARGS(task, pos, mr),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(unsigned int, pos)
		SEGMENT_FIELDS
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->pos = pos;
		MR_ASSIGN
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " pos=%u " SEGMENT_FORMAT,
		TASK_ARGS, __entry->pos, SEGMENT_ARGS)
);

DECLARE_EVENT_CLASS(xprtrdma_wrch_event,
	TP_PROTO(struct rpcrdma_trace_task task, const struct ib_mr *mr),
	TP_ARGS(task, mr),
	TP_STRUCT__entry(
		TASK_FIELDS
		SEGMENT_FIELDS
	),
	TP_fast_assign(
		TASK_ASSIGN
		MR_ASSIGN
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " " SEGMENT_FORMAT,
		TASK_ARGS, SEGMENT_ARGS)
);

#define DEFINE_WRCH_EVENT(name)						\
	DEFINE_EVENT(xprtrdma_wrch_event, name,				\
		TP_PROTO(struct rpcrdma_trace_task task, const struct ib_mr *mr), \
		TP_ARGS(task, mr))

DEFINE_WRCH_EVENT(xprtrdma_chunk_write);
DEFINE_WRCH_EVENT(xprtrdma_chunk_reply);

/* The order of TransferMode in kapi/trace.rs. */
#define rpcrdma_show_transfer_mode(x)					\
	__print_symbolic(x,						\
		{ 0, "inline" },					\
		{ 1, "pullup" },					\
		{ 2, "mapped" },					\
		{ 3, "read list" },					\
		{ 4, "*read list" },					\
		{ 5, "write list" },					\
		{ 6, "reply chunk" })

TRACE_EVENT(xprtrdma_marshal,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid, unsigned long hdrlen,
		 unsigned long headlen, unsigned long pagelen, unsigned long taillen,
		 u32 rtype, u32 wtype),
	TP_ARGS(task, xid, hdrlen, headlen, pagelen, taillen, rtype, wtype),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
		__field(unsigned int, hdrlen)
		__field(unsigned int, headlen)
		__field(unsigned int, pagelen)
		__field(unsigned int, taillen)
		__field(unsigned int, rtype)
		__field(unsigned int, wtype)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
		__entry->hdrlen = hdrlen;
		__entry->headlen = headlen;
		__entry->pagelen = pagelen;
		__entry->taillen = taillen;
		__entry->rtype = rtype;
		__entry->wtype = wtype;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x hdr=%u xdr=%u/%u/%u %s/%s",
		TASK_ARGS, __entry->xid, __entry->hdrlen,
		__entry->headlen, __entry->pagelen, __entry->taillen,
		rpcrdma_show_transfer_mode(__entry->rtype),
		rpcrdma_show_transfer_mode(__entry->wtype))
);

TRACE_EVENT(xprtrdma_marshal_failed,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid, int ret),
	TP_ARGS(task, xid, ret),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
		__field(int, ret)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
		__entry->ret = ret;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x ret=%d",
		TASK_ARGS, __entry->xid, __entry->ret)
);

/*
 * Posting.
 */
TRACE_EVENT(xprtrdma_post_send,
	TP_PROTO(struct rpcrdma_trace_task task, struct rpcrdma_trace_cid cid, u32 wrs),
	TP_ARGS(task, cid, wrs),
	TP_STRUCT__entry(
		CID_FIELDS
		TASK_FIELDS
		__field(int, wrs)
	),
	TP_fast_assign(
		CID_ASSIGN
		TASK_ASSIGN
		__entry->wrs = wrs;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " " CID_FORMAT " (%d WR%s)",
		TASK_ARGS, CID_ARGS, __entry->wrs, __entry->wrs == 1 ? "" : "s")
);

TRACE_EVENT(xprtrdma_post_send_err,
	TP_PROTO(struct rpcrdma_trace_task task, int rc),
	TP_ARGS(task, rc),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(int, rc)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->rc = rc;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " rc=%d", TASK_ARGS, __entry->rc)
);

TRACE_EVENT(xprtrdma_post_linv_err,
	TP_PROTO(int status),
	TP_ARGS(status),
	TP_STRUCT__entry(
		__field(int, status)
	),
	TP_fast_assign(
		__entry->status = status;
	),
	TP_printk("status=%d", __entry->status)
);

TRACE_EVENT(xprtrdma_post_recvs,
	TP_PROTO(u32 cq_id, unsigned long count, u32 posted),
	TP_ARGS(cq_id, count, posted),
	TP_STRUCT__entry(
		__field(u32, cq_id)
		__field(unsigned int, count)
		__field(int, posted)
	),
	TP_fast_assign(
		__entry->cq_id = cq_id;
		__entry->count = count;
		__entry->posted = posted;
	),
	TP_printk("cq.id=%d %u new recvs, %d active",
		__entry->cq_id, __entry->count, __entry->posted)
);

TRACE_EVENT(xprtrdma_post_recvs_err,
	TP_PROTO(u32 cq_id, int status),
	TP_ARGS(cq_id, status),
	TP_STRUCT__entry(
		__field(u32, cq_id)
		__field(int, status)
	),
	TP_fast_assign(
		__entry->cq_id = cq_id;
		__entry->status = status;
	),
	TP_printk("cq.id=%d rc=%d", __entry->cq_id, __entry->status)
);

/*
 * Memory Regions.
 */
DECLARE_EVENT_CLASS(xprtrdma_mr_class,
	TP_PROTO(const struct ib_mr *mr),
	TP_ARGS(mr),
	TP_STRUCT__entry(
		__field(u32, mr_id)
		SEGMENT_FIELDS
	),
	TP_fast_assign(
		__entry->mr_id = mr->res.id;
		MR_ASSIGN
	),
	TP_printk("mr.id=%u " SEGMENT_FORMAT, __entry->mr_id, SEGMENT_ARGS)
);

#define DEFINE_MR_EVENT(name)						\
	DEFINE_EVENT(xprtrdma_mr_class, name,				\
		TP_PROTO(const struct ib_mr *mr), TP_ARGS(mr))

DEFINE_MR_EVENT(xprtrdma_frwr_alloc);
DEFINE_MR_EVENT(xprtrdma_mr_map);
DEFINE_MR_EVENT(xprtrdma_mr_fastreg);
DEFINE_MR_EVENT(xprtrdma_mr_localinv);
DEFINE_MR_EVENT(xprtrdma_mr_reminv);
DEFINE_MR_EVENT(xprtrdma_mr_unmap);

/*
 * Replies.
 */
TRACE_EVENT(xprtrdma_reply,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid, u32 credits),
	TP_ARGS(task, xid, credits),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
		__field(unsigned int, credits)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
		__entry->credits = credits;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x credits=%u",
		TASK_ARGS, __entry->xid, __entry->credits)
);

DECLARE_EVENT_CLASS(xprtrdma_reply_class,
	TP_PROTO(const struct sockaddr *addr, u32 xid, u32 version, u32 proc),
	TP_ARGS(addr, xid, version, proc),
	TP_STRUCT__entry(
		__field(u32, xid)
		__field(u32, version)
		__field(u32, proc)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->xid = xid;
		__entry->version = version;
		__entry->proc = proc;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc xid=0x%08x version=%u proc=%u",
		__entry->addr, __entry->xid, __entry->version, __entry->proc)
);

#define DEFINE_REPLY_EVENT(name)					\
	DEFINE_EVENT(xprtrdma_reply_class, xprtrdma_reply_##name##_err,	\
		TP_PROTO(const struct sockaddr *addr, u32 xid, u32 version, u32 proc), \
		TP_ARGS(addr, xid, version, proc))

DEFINE_REPLY_EVENT(vers);
DEFINE_REPLY_EVENT(rqst);
DEFINE_REPLY_EVENT(short);
DEFINE_REPLY_EVENT(hdr);

TRACE_EVENT(xprtrdma_err_vers,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid, u32 min, u32 max),
	TP_ARGS(task, xid, min, max),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
		__field(u32, min)
		__field(u32, max)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
		__entry->min = min;
		__entry->max = max;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x versions=[%u, %u]",
		TASK_ARGS, __entry->xid, __entry->min, __entry->max)
);

TRACE_EVENT(xprtrdma_err_chunk,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid),
	TP_ARGS(task, xid),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x", TASK_ARGS, __entry->xid)
);

TRACE_EVENT(xprtrdma_err_unrecognized,
	TP_PROTO(struct rpcrdma_trace_task task, u32 xid, u32 procedure),
	TP_ARGS(task, xid, procedure),
	TP_STRUCT__entry(
		TASK_FIELDS
		__field(u32, xid)
		__field(u32, procedure)
	),
	TP_fast_assign(
		TASK_ASSIGN
		__entry->xid = xid;
		__entry->procedure = procedure;
	),
	TP_printk(SUNRPC_TRACE_TASK_SPECIFIER " xid=0x%08x procedure=%u",
		TASK_ARGS, __entry->xid, __entry->procedure)
);

TRACE_EVENT(xprtrdma_fixup,
	TP_PROTO(u32 xid, unsigned long fixup),
	TP_ARGS(xid, fixup),
	TP_STRUCT__entry(
		__field(u32, xid)
		__field(unsigned long, fixup)
	),
	TP_fast_assign(
		__entry->xid = xid;
		__entry->fixup = fixup;
	),
	TP_printk("xid=0x%08x fixup=%lu", __entry->xid, __entry->fixup)
);

DECLARE_EVENT_CLASS(xprtrdma_callback_class,
	TP_PROTO(const struct sockaddr *addr, u32 xid),
	TP_ARGS(addr, xid),
	TP_STRUCT__entry(
		__field(u32, xid)
		ADDR_FIELD
	),
	TP_fast_assign(
		__entry->xid = xid;
		ADDR_ASSIGN
	),
	TP_printk("peer=%pISpc xid=0x%08x", __entry->addr, __entry->xid)
);

#define DEFINE_CALLBACK_EVENT(name)					\
	DEFINE_EVENT(xprtrdma_callback_class, name,			\
		TP_PROTO(const struct sockaddr *addr, u32 xid), TP_ARGS(addr, xid))

DEFINE_CALLBACK_EVENT(xprtrdma_cb_call);
DEFINE_CALLBACK_EVENT(xprtrdma_cb_reply);

/*
 * Completions.
 */
DECLARE_EVENT_CLASS(xprtrdma_completion_class,
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

#define DEFINE_COMPLETION_EVENT(name)					\
	DEFINE_EVENT(xprtrdma_completion_class, name,			\
		TP_PROTO(struct rpcrdma_trace_cid cid, u32 status, u32 vendor_err), \
		TP_ARGS(cid, status, vendor_err))

DEFINE_COMPLETION_EVENT(xprtrdma_wc_send);
DEFINE_COMPLETION_EVENT(xprtrdma_wc_li_done);

TRACE_EVENT(xprtrdma_wc_receive,
	TP_PROTO(struct rpcrdma_trace_cid cid, u32 status, u32 vendor_err, u32 received),
	TP_ARGS(cid, status, vendor_err, received),
	TP_STRUCT__entry(
		CID_FIELDS
		__field(u32, received)
		STATUS_FIELDS
	),
	TP_fast_assign(
		CID_ASSIGN
		__entry->received = received;
		STATUS_ASSIGN
	),
	TP_printk(CID_FORMAT " " STATUS_FORMAT " received=%u", CID_ARGS, STATUS_ARGS,
		__entry->received)
);

#endif /* _RPCRDMA_RS_TRACE_CLNT_H */

/* This part must be outside protection. */
#include <trace/define_trace.h>

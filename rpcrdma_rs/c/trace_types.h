/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * What the trace events of both sides share.
 */
#ifndef _RPCRDMA_RS_TRACE_TYPES_H
#define _RPCRDMA_RS_TRACE_TYPES_H

#include <linux/in6.h>
#include <linux/socket.h>
#include <linux/string.h>
#include <linux/types.h>
#include <rdma/ib_cm.h>

/* The RPC task that an event is about. */
struct rpcrdma_trace_task {
	u32 task;
	u32 client;
};

/* What a completion is about: the Completion Queue and a number unique in it. */
struct rpcrdma_trace_cid {
	u32 queue;
	u32 completion;
};

/* Bytes of an address that are kept; both families fit. */
#define RPCRDMA_TRACE_ADDRLEN	sizeof(struct sockaddr_in6)

/*
 * Fields that many events have, by their names in the C module.
 */
#define TASK_FIELDS							\
	__field(unsigned int, task_id)					\
	__field(unsigned int, client_id)
#define TASK_ASSIGN							\
	__entry->task_id = task.task;					\
	__entry->client_id = task.client;
#define TASK_ARGS	__entry->task_id, __entry->client_id

#define CID_FIELDS							\
	__field(u32, cq_id)						\
	__field(int, completion_id)
#define CID_ASSIGN							\
	__entry->cq_id = cid.queue;					\
	__entry->completion_id = cid.completion;
#define CID_FORMAT	"cq.id=%u cid=%d"
#define CID_ARGS	__entry->cq_id, __entry->completion_id

/* The status of a completion. */
#define STATUS_FIELDS							\
	__field(unsigned long, status)					\
	__field(unsigned int, vendor_err)
#define STATUS_ASSIGN							\
	__entry->status = status;					\
	__entry->vendor_err = vendor_err;
#define STATUS_FORMAT	"status=%s (%lu/0x%x)"
#define STATUS_ARGS							\
	rdma_show_wc_status(__entry->status), __entry->status, __entry->vendor_err

#define ADDR_FIELD	__array(u8, addr, RPCRDMA_TRACE_ADDRLEN)
#define ADDR_ASSIGN	memcpy(__entry->addr, addr, RPCRDMA_TRACE_ADDRLEN);

#define SEGMENT_FIELDS							\
	__field(u32, handle)						\
	__field(u32, length)						\
	__field(u64, offset)
#define MR_ASSIGN							\
	__entry->handle = mr->rkey;					\
	__entry->length = mr->length;					\
	__entry->offset = mr->iova;
#define SEGMENT_FORMAT	"%u@0x%016llx:0x%08x"
#define SEGMENT_ARGS							\
	__entry->length, (unsigned long long)__entry->offset, __entry->handle

/* Messages of version 2 about properties. */
#define rpcrdma_show_property_proc(proc)				\
	__print_symbolic(proc,						\
		{ 6, "CONNPROP" },					\
		{ 7, "REQPROP" },					\
		{ 8, "RESPROP" },					\
		{ 9, "UPDPROP" })

#endif /* _RPCRDMA_RS_TRACE_TYPES_H */

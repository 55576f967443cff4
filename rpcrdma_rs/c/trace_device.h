/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Trace events of devices that come and go, in the system and with the names and fields of
 * the C rpcrdma module. Fired from kapi/trace.rs.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rpcrdma

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_device

#if !defined(_RPCRDMA_RS_TRACE_DEVICE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RPCRDMA_RS_TRACE_DEVICE_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(rpcrdma_client_device_class,
	TP_PROTO(const char *device),
	TP_ARGS(device),
	TP_STRUCT__entry(
		__string(name, device)
	),
	TP_fast_assign(
		__assign_str(name);
	),
	TP_printk("device=%s", __get_str(name))
);

#define DEFINE_CLIENT_DEVICE_EVENT(name)				\
	DEFINE_EVENT(rpcrdma_client_device_class, name,			\
		TP_PROTO(const char *device), TP_ARGS(device))

DEFINE_CLIENT_DEVICE_EVENT(rpcrdma_client_add_one);
DEFINE_CLIENT_DEVICE_EVENT(rpcrdma_client_remove_one);
DEFINE_CLIENT_DEVICE_EVENT(rpcrdma_client_wait_on);
DEFINE_CLIENT_DEVICE_EVENT(rpcrdma_client_remove_one_done);

#endif /* _RPCRDMA_RS_TRACE_DEVICE_H */

/* This part must be outside protection. */
#include <trace/define_trace.h>

/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Input of bindgen, see bindgen.mk.
 */
#include <linux/sunrpc/addr.h>
#include <linux/sunrpc/bc_xprt.h>
#include <linux/sunrpc/clnt.h>
#include <linux/sunrpc/debug.h>
#include <linux/sunrpc/rpc_rdma.h>
#include <linux/sunrpc/sched.h>
#include <linux/sunrpc/svc.h>
#include <linux/sunrpc/svc_xprt.h>
#include <linux/sunrpc/xdr.h>
#include <linux/sunrpc/xprt.h>

#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>
#include <rdma/rw.h>

#include "c/shims.h"
#include "c/shims_sunrpc.h"
#include "c/trace_clnt.h"
#include "c/trace_device.h"
#include "c/trace_svc.h"

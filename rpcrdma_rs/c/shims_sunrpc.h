/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * One-line wrappers of sunrpc's inline functions and macros, named as in shims.h.
 */
#ifndef _RPCRDMA_RS_SHIMS_SUNRPC_H
#define _RPCRDMA_RS_SHIMS_SUNRPC_H

#include <linux/in.h>
#include <linux/mm.h>
#include <linux/gfp.h>
#include <linux/refcount.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>
#include <linux/sunrpc/svc_xprt.h>
#include <linux/sunrpc/xprt.h>

/* linux/gfp.h */
struct page *rpcrdma_shim_alloc_page_nowait(void);

/* linux/mm.h */
void rpcrdma_shim_release_pages(struct page **pages, int nr);

/* linux/in.h */
enum { RPCRDMA_SHIM_IPPROTO_MAX = IPPROTO_MAX };

/* linux/sunrpc/svc.h, linux/sunrpc/svc_xprt.h */
unsigned long rpcrdma_shim_svc_serv_maxpages(const struct svc_serv *serv);
void rpcrdma_shim_svc_xprt_get(struct svc_xprt *xprt);
void rpcrdma_shim_svc_xprt_set_local(struct svc_xprt *xprt, const struct sockaddr *sa,
				     size_t salen);

/* linux/sched/mm.h */
unsigned int rpcrdma_shim_memalloc_noreclaim_save(void);
void rpcrdma_shim_memalloc_noreclaim_restore(unsigned int flags);

/* linux/slab.h, linux/sunrpc/sched.h */
void *rpcrdma_shim_kmalloc_task(size_t size);

/* linux/sunrpc/addr.h */
void rpcrdma_shim_rpc_set_port(struct sockaddr *sap, unsigned short port);

/* linux/sunrpc/sched.h */
void rpcrdma_shim_rpc_task_fail(struct rpc_task *task, int status);

/* linux/sunrpc/xprt.h */
void rpcrdma_shim_xprt_set_connected(struct rpc_xprt *xprt);
void rpcrdma_shim_xprt_clear_connected(struct rpc_xprt *xprt);
void rpcrdma_shim_xprt_clear_connecting(struct rpc_xprt *xprt);
void rpcrdma_shim_xprt_set_bound(struct rpc_xprt *xprt);
bool rpcrdma_shim_xprt_clear_cwnd_wait(struct rpc_xprt *xprt);
void rpcrdma_shim_bc_set_in_use(struct rpc_rqst *rqst);
void rpcrdma_shim_bc_slot_inc(struct rpc_xprt *xprt);

/* linux/refcount.h */
bool rpcrdma_shim_xprt_put_unless_last(struct rpc_xprt *xprt);

#endif /* _RPCRDMA_RS_SHIMS_SUNRPC_H */

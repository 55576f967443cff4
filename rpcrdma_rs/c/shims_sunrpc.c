// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#include "shims_sunrpc.h"

void rpcrdma_shim_release_pages(struct page **pages, int nr)
{
	release_pages(pages, nr);
}

unsigned long rpcrdma_shim_svc_serv_maxpages(const struct svc_serv *serv)
{
	return svc_serv_maxpages(serv);
}

void rpcrdma_shim_svc_xprt_get(struct svc_xprt *xprt)
{
	svc_xprt_get(xprt);
}

void rpcrdma_shim_svc_xprt_set_local(struct svc_xprt *xprt, const struct sockaddr *sa, size_t salen)
{
	svc_xprt_set_local(xprt, sa, salen);
}

struct page *rpcrdma_shim_alloc_page_nowait(void)
{
	return alloc_page(GFP_NOWAIT);
}

void *rpcrdma_shim_kmalloc_task(size_t size)
{
	return kmalloc(size, rpc_task_gfp_mask());
}

void rpcrdma_shim_rpc_set_port(struct sockaddr *sap, unsigned short port)
{
	rpc_set_port(sap, port);
}

void rpcrdma_shim_rpc_task_fail(struct rpc_task *task, int status)
{
	cmpxchg(&task->tk_rpc_status, 0, status);
}

void rpcrdma_shim_xprt_set_connected(struct rpc_xprt *xprt)
{
	xprt_set_connected(xprt);
}

void rpcrdma_shim_xprt_clear_connected(struct rpc_xprt *xprt)
{
	xprt_clear_connected(xprt);
}

void rpcrdma_shim_xprt_clear_connecting(struct rpc_xprt *xprt)
{
	xprt_clear_connecting(xprt);
}

void rpcrdma_shim_xprt_set_bound(struct rpc_xprt *xprt)
{
	xprt_set_bound(xprt);
}

bool rpcrdma_shim_xprt_clear_cwnd_wait(struct rpc_xprt *xprt)
{
	return test_and_clear_bit(XPRT_CWND_WAIT, &xprt->state);
}

void rpcrdma_shim_bc_set_in_use(struct rpc_rqst *rqst)
{
	__set_bit(RPC_BC_PA_IN_USE, &rqst->rq_bc_pa_state);
}

void rpcrdma_shim_bc_slot_inc(struct rpc_xprt *xprt)
{
	atomic_inc(&xprt->bc_slot_count);
}

unsigned int rpcrdma_shim_memalloc_noreclaim_save(void)
{
	return memalloc_noreclaim_save();
}

void rpcrdma_shim_memalloc_noreclaim_restore(unsigned int flags)
{
	memalloc_noreclaim_restore(flags);
}

bool rpcrdma_shim_xprt_put_unless_last(struct rpc_xprt *xprt)
{
	return refcount_dec_not_one(&xprt->kref.refcount);
}

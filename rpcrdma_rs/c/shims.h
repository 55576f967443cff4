/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * One-line wrappers of inline functions and macros that bindgen cannot bind.
 *
 * A wrapper of one function is named rpcrdma_shim_<its name> and takes the same arguments. A
 * wrapper that fixes an argument or names a bit is named for what it does.
 */
#ifndef _RPCRDMA_RS_SHIMS_H
#define _RPCRDMA_RS_SHIMS_H

#include <linux/cacheflush.h>
#include <linux/dma-direction.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/sched/mm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

/* linux/dma-direction.h */
enum {
	RPCRDMA_SHIM_DMA_TO_DEVICE = DMA_TO_DEVICE,
	RPCRDMA_SHIM_DMA_FROM_DEVICE = DMA_FROM_DEVICE,
};

/* core */
unsigned int rpcrdma_shim_memalloc_noio_save(void);
void rpcrdma_shim_memalloc_noio_restore(unsigned int flags);
struct page *rpcrdma_shim_virt_to_page(const void *addr);
void *rpcrdma_shim_page_address(const struct page *page);
bool rpcrdma_shim_sendpage_ok(struct page *page);
void rpcrdma_shim_get_page(struct page *page);
void rpcrdma_shim_put_page(struct page *page);
unsigned long rpcrdma_shim_page_to_pfn(const struct page *page);
void rpcrdma_shim_flush_dcache_page(struct page *page);

/* rdma/ib_verbs.h */
u64 rpcrdma_shim_ib_dma_map_single(struct ib_device *dev, void *addr, size_t size,
				   enum dma_data_direction dir);
void rpcrdma_shim_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
				      enum dma_data_direction dir);
u64 rpcrdma_shim_ib_dma_map_page(struct ib_device *dev, struct page *page, unsigned long offset,
				 size_t size, enum dma_data_direction dir);
void rpcrdma_shim_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
				    enum dma_data_direction dir);
int rpcrdma_shim_ib_dma_mapping_error(struct ib_device *dev, u64 addr);
void rpcrdma_shim_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr, size_t size,
					     enum dma_data_direction dir);
void rpcrdma_shim_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr, size_t size,
						enum dma_data_direction dir);
int rpcrdma_shim_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			       enum dma_data_direction dir);
void rpcrdma_shim_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
				  enum dma_data_direction dir);
void *rpcrdma_shim_ib_get_client_data(struct ib_device *dev, struct ib_client *client);
int rpcrdma_shim_ibdev_to_node(struct ib_device *dev);
bool rpcrdma_shim_rdma_protocol_iwarp(struct ib_device *dev, u32 port);

#endif /* _RPCRDMA_RS_SHIMS_H */

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#include "shims.h"

unsigned int rpcrdma_shim_memalloc_noio_save(void)
{
	return memalloc_noio_save();
}

void rpcrdma_shim_memalloc_noio_restore(unsigned int flags)
{
	memalloc_noio_restore(flags);
}

struct page *rpcrdma_shim_virt_to_page(const void *addr)
{
	return virt_to_page(addr);
}

void *rpcrdma_shim_page_address(const struct page *page)
{
	return page_address(page);
}

bool rpcrdma_shim_sendpage_ok(struct page *page)
{
	return sendpage_ok(page);
}

void rpcrdma_shim_get_page(struct page *page)
{
	get_page(page);
}

void rpcrdma_shim_put_page(struct page *page)
{
	put_page(page);
}

unsigned long rpcrdma_shim_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

void rpcrdma_shim_flush_dcache_page(struct page *page)
{
	flush_dcache_page(page);
}

u64 rpcrdma_shim_ib_dma_map_single(struct ib_device *dev, void *addr, size_t size,
				   enum dma_data_direction dir)
{
	return ib_dma_map_single(dev, addr, size, dir);
}

void rpcrdma_shim_ib_dma_unmap_single(struct ib_device *dev, u64 addr, size_t size,
				      enum dma_data_direction dir)
{
	ib_dma_unmap_single(dev, addr, size, dir);
}

u64 rpcrdma_shim_ib_dma_map_page(struct ib_device *dev, struct page *page, unsigned long offset,
				 size_t size, enum dma_data_direction dir)
{
	return ib_dma_map_page(dev, page, offset, size, dir);
}

void rpcrdma_shim_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t size,
				    enum dma_data_direction dir)
{
	ib_dma_unmap_page(dev, addr, size, dir);
}

int rpcrdma_shim_ib_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

void rpcrdma_shim_ib_dma_sync_single_for_cpu(struct ib_device *dev, u64 addr, size_t size,
					     enum dma_data_direction dir)
{
	ib_dma_sync_single_for_cpu(dev, addr, size, dir);
}

void rpcrdma_shim_ib_dma_sync_single_for_device(struct ib_device *dev, u64 addr, size_t size,
						enum dma_data_direction dir)
{
	ib_dma_sync_single_for_device(dev, addr, size, dir);
}

int rpcrdma_shim_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			       enum dma_data_direction dir)
{
	return ib_dma_map_sg(dev, sg, nents, dir);
}

void rpcrdma_shim_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
				  enum dma_data_direction dir)
{
	ib_dma_unmap_sg(dev, sg, nents, dir);
}

void *rpcrdma_shim_ib_get_client_data(struct ib_device *dev, struct ib_client *client)
{
	return ib_get_client_data(dev, client);
}

int rpcrdma_shim_ibdev_to_node(struct ib_device *dev)
{
	return ibdev_to_node(dev);
}

bool rpcrdma_shim_rdma_protocol_iwarp(struct ib_device *dev, u32 port)
{
	return rdma_protocol_iwarp(dev, port);
}

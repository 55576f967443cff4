# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# What kapi/compat.rs cannot see: what the kernel's Rust sources have.

rpcrdma-compat-cfg := $(if $(shell grep -s 'fn raw_try_init' $(srctree)/rust/pin-init/src/lib.rs), \
	--cfg rpcrdma_raw_try_init)

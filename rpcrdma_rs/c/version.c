// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * The version, which the kernel crate's module! has no place for.
 */
#include <linux/module.h>

MODULE_VERSION(RPCRDMA_RS_VERSION);

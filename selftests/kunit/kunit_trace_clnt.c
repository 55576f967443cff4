// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#include "../../rpcrdma_rs/c/trace_clnt.c"

// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * The trace events of the client, and for each the function that kapi/trace.rs calls when
 * it is enabled.
 */
#define CREATE_TRACE_POINTS
#define CREATE_RUST_TRACE_POINTS
#include "trace_clnt.h"

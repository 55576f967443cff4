# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Insert the test module ($MODULE, or the one in the run directory), print its report,
# and check that it leaves nothing behind.
modprobe -a sunrpc rdma_cm ib_core
before=$(rdma resource show)
status=0
insmod "${MODULE:-$SHARE/rpcrdma_rs.ko}" || status=1
dmesg | sed -n 's/^\[[^]]*\] rpcrdma_kapi_test: \(ok\|not ok\|#\|1\.\.\)/\1/p'
after=$(rdma resource show)
if [ "$before" = "$after" ]; then
	echo "ok - no RDMA resource is left"
else
	echo "# before: $before; after: $after"
	echo "not ok - no RDMA resource is left"
	status=1
fi
rmmod rpcrdma_kapi_test || status=1
exit $status

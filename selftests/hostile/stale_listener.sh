# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# For run.sh: a listener on one address that the CM has invalidated, while nfsd has no thread.

STALE_ADDRESS=192.168.88.22

# bond_add: create a bond of two network devices, with that address and an RDMA device on it.
bond_add() {
	local part
	modprobe -a macvlan bonding || return
	ip link add bond0 type bond mode active-backup fail_over_mac active miimon 100 || return
	for part in mv0 mv1; do
		ip link add $part link eth0 type macvlan mode bridge &&
			ip link set $part master bond0 || return
	done
	ip link set bond0 mtu 4400 && device_add rdma1 bond0 &&
		ip link set mv0 up && ip link set mv1 up &&
		ip addr add $STALE_ADDRESS/24 dev bond0 && ip link set bond0 up
}

# fail_over: make the other device of the bond the active one, which changes the hardware address.
fail_over() {
	local bond=/sys/class/net/bond0/bonding part now
	now=$(cat $bond/active_slave)
	for part in mv0 mv1; do
		[ $part = "$now" ] || echo $part >$bond/active_slave || return
	done
	[ "$(cat $bond/active_slave)" != "$now" ]
}

# listening COUNT: wait at most 20 s until that many ids listen on that address.
listening() {
	local i
	for ((i = 0; i < 200; i++)); do
		[ "$(rdma resource show cm_id | grep -c "LISTEN.*$STALE_ADDRESS:$PORT")" = "$1" ] && return
		sleep 0.1
	done
	rdma resource show cm_id | sed 's/^/# /'
	return 1
}

# remove_stale: remove the RDMA device when a failover has invalidated the listening id, and nfsd has no
# thread that could create a new one. Once the device and threads exist again, nfsd must listen again.
remove_stale() {
	local status=0
	bond_add && server_stop && nfsdctl listener "+rdma:$STALE_ADDRESS:$PORT" && listening 1 ||
		status=1
	fail_over && listening 0 || status=1
	within 5 rdma link del rdma1 || status=1
	device_add rdma1 bond0 && nfsdctl threads 2 && listening 1 || status=1
	server_stop
	rdma link del rdma1
	ip link del bond0 && ip link del mv0 && ip link del mv1 || status=1
	nfsd_start 8 && good_mount || status=1
	return $status
}

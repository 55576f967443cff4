# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Functions for jobs in a guest; sourced by every job. /t is the folder shared
# with the host; the addresses are those of the guest that serves.

SERVER=192.168.88.2
SERVER6=fd88::2
EXPORT=/srv/export
PORT=20049
SHARE=/t

# --- the other guest and the host -------------------------------------------

one_guest() {
	grep -q 'guest.addresses=1,2' /proc/cmdline
}

# ask LINE: hand a request to the host, print its answer, return its status.
ask() {
	local status
	exec 8>/run/ask.lock
	flock 8
	exec 9<>/dev/virtio-ports/ask
	echo "$*" >&9
	read -r status <&9
	exec 9>&-
	cat "$SHARE/answer.$(hostname)"
	exec 8>&-
	return "$status"
}

# peer [-t SECONDS] COMMAND...: run COMMAND (shell text, with this library)
# in the other guest; with one guest, here.
peer() {
	local seconds=120 job
	if [ "$1" = -t ]; then
		seconds=$2
		shift 2
	fi
	if one_guest; then
		timeout "$seconds" bash -c ". /t/guest/lib.sh; $*"
		return
	fi
	job=jobs/peer-$(hostname)-$$-$RANDOM
	printf '%s\n' ". /t/guest/lib.sh" "$*" >"$SHARE/$job"
	ask "peer $seconds $job"
}

# link_set on|off: plug this guest's network device in, or out.
link_set() {
	ask "link $1"
}

# --- the RDMA device ---------------------------------------------------------

# device_add [NAME NETDEV]: the device is there again after "rdma link del".
device_add() {
	local type
	type=$(sed 's/.*guest.device=\([a-z]*\).*/\1/' /proc/cmdline)
	rdma link add "${1-rdma0}" type "$type" netdev "${2-eth0}"
}

# devices_revive: an rxe device whose CM could not send something, for want of a route or a
# queue, is deaf to the CM from then on, see Documentation/known-issues.rst. Makes it again.
devices_revive() {
	local device netdev
	rdma resource show qp | sed -n 's|^link \([^/]*\)/.* type GSI state ERR .*|\1|p' |
		while read -r device; do
			netdev=$(rdma link show "$device/1" | sed 's/.* netdev \([^ ]*\).*/\1/')
			rdma link del "$device" && device_add "$device" "$netdev" &&
				echo "known issue: the CM of $device ($netdev) was deaf; made the device again"
		done
}

# --- modules ------------------------------------------------------------------

# module_load c|rust: the transport module, by insmod for ours, so that what is
# tested is the file just built.
module_load() {
	case $1 in
	c) modprobe rpcrdma ;;
	rust)
		modprobe -a sunrpc rdma_cm ib_core
		# Should ours be missing, the test must not continue with the C module.
		mkdir -p /run/modprobe.d
		echo "install rpcrdma /bin/false" >/run/modprobe.d/no-c-module.conf
		insmod "$SHARE/rpcrdma_rs.ko"
		;;
	none) ;;
	*) echo "module_load: no module '$1'" >&2; return 2 ;;
	esac
}

module_name() {
	case $1 in c) echo rpcrdma ;; rust) echo rpcrdma_rs ;; esac
}

# module_refs NAME: the module's use count; empty when it is not loaded.
module_refs() {
	cat "/sys/module/$1/refcnt" 2>/dev/null
}

# module_idle NAME: its use count once that is 0, or after 5 s.
module_idle() {
	local try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(module_refs "$1")" = 0 ] && break
		sleep 0.5
	done
	module_refs "$1"
}

# module_unload c|rust: fails when something still holds it.
module_unload() {
	local name
	name=$(module_name "$1")
	module_idle "$name" >/dev/null
	rm -f /run/modprobe.d/no-c-module.conf
	rmmod "$name"
}

# --- server -------------------------------------------------------------------

# server_start [THREADS]: nfsd with TCP and RDMA listeners, exporting a tmpfs. Leases and
# grace periods are as short as the kernel allows, so that tests need not wait.
server_start() {
	modprobe -a nfsd lockd || return
	mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd || return
	rpc_pipefs_mount
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	echo 1 >/proc/sys/fs/nfs/nlm_grace_period
	# The default depends on the guest's memory.
	echo 1048576 >/proc/fs/nfsd/max_block_size
	mkdir -p "$EXPORT" /var/lib/nfs/nfsdcld /var/lib/nfs/v4recovery
	mountpoint -q "$EXPORT" || mount -t tmpfs -o size=2g,mode=1777 export "$EXPORT"
	echo "$EXPORT *(rw,sync,insecure,no_root_squash,no_subtree_check,fsid=0)" >/etc/exports
	exportfs -ra || return
	rpc_services_start
	pidof nfsdcld >/dev/null || nfsdcld || return
	# It continues in the background. nfsd must not ask before it watches for that.
	for _ in {1..100}; do
		ls -l "/proc/$(pidof nfsdcld)/fd" | grep -q inotify && break
		sleep 0.1
	done
	pidof rpc.mountd >/dev/null || rpc.mountd || return
	nfsd_start "${1:-8}" || return
	grep -q "rdma $PORT" /proc/fs/nfsd/portlist || {
		echo "server_start: nfsd has no RDMA listener" >&2
		return 1
	}
}

# nfsd_start THREADS: nfsd alone. siw loses what a client sends before the thread that accepts
# the connection is done with it, see Documentation/known-issues.rst; there nothing comes between.
nfsd_start() {
	rpc.nfsd --rdma=$PORT "$1" || return
	! grep -q guest.device=siw /proc/cmdline || pgrep -x nfsd | xargs -n 1 chrt -f -p 1
}

# server_stop: nfsd and its listeners.
server_stop() {
	rpc.nfsd 0
}

rpc_pipefs_mount() {
	modprobe sunrpc
	mountpoint -q /run/rpc_pipefs ||
		mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
}

# rpcbind and statd, which NFSv3 needs on both sides.
rpc_services_start() {
	pidof rpcbind >/dev/null || rpcbind -w
	pidof rpc.statd >/dev/null || rpc.statd --no-notify
}

# --- client -------------------------------------------------------------------

# client_start: what a guest needs before its first mount.
client_start() {
	modprobe nfsv4
	modprobe nfsv3
	rpc_pipefs_mount
	rpc_services_start
}

# client_mount VERSION ADDRESS FOLDER [OPTIONS]: mount the export over RDMA.
client_mount() {
	local version=$1 address=$2 folder=$3 options=${4-} path=/ proto=rdma
	case $version in 3*) path=$EXPORT ;; esac
	case $address in *:*) address="[$address]" proto=rdma6 ;; esac
	mkdir -p "$folder"
	mount -t nfs -o "proto=$proto,port=$PORT,vers=$version${options:+,$options}" \
		"$address:$path" "$folder"
}

# rdma_counters FOLDER: the 27 numbers of the mount's "xprt: rdma" line, summed
# over its transports, one per line with its name.
rdma_counters() {
	python3 -B -c 'import sys; sys.path.insert(0, "/t/guest"); from harness import counters
for counter in counters(sys.argv[1]).items(): print(*counter)' "$1"
}

# connections: the queue pairs that are not the MAD service's.
connections() {
	rdma resource show qp | grep -v -e 'type GSI' -e 'type SMI'
}

# rdma_leftovers: RDMA resources of kernel users other than the MAD service.
rdma_leftovers() {
	connections
	rdma resource show cm_id
	rdma resource show mr
	rdma resource show pd | grep -v 'comm \[ib_core\]'
	rdma resource show cq | grep -v 'comm \[ib_core\]'
}

# what_waits: for a job that has timed out: which processes are in an RPC, what RPCs wait for,
# and whether the network and their connections carry anything.
what_waits() {
	local process
	for process in /proc/[0-9]*; do
		grep -q -e rpc_ -e nfs -e svc_ -e rdma "$process/stack" || continue
		# One that waits for work.
		! grep -q svc_recv "$process/stack" || continue
		echo "$process $(cat "$process/comm")"
		cat "$process/stack"
	done
	tail -n +1 /sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/{dstaddr,xprt_info,xprt_state} \
		/sys/kernel/debug/sunrpc/rpc_clnt/*/tasks /proc/fs/nfsd/clients/*/info
	rdma resource show qp
	echo "some seconds later:"
	ping -c 2 -w 4 192.168.88.1 | tail -n 2
	ping -c 2 -w 4 "$SERVER" | tail -n 2
	rdma resource show qp
} 2>/dev/null

# keep_evidence FOLDER: what this guest knows of its state, in files of that folder of /t.
keep_evidence() {
	local folder=$SHARE/$1 guest
	guest=$(hostname)
	mkdir -p "$folder"
	dmesg >"$folder/dmesg.$guest"
	what_waits >"$folder/waits.$guest"
	tail -n +1 /sys/kernel/debug/rpcrdma_rs/*/*/status >"$folder/connections.$guest"
	tail -n +1 /sys/kernel/debug/sunrpc/*/*/{info,tasks} >"$folder/sunrpc.$guest"
	cat /sys/kernel/tracing/trace >"$folder/trace.$guest"
	{
		cat /proc/version /proc/cmdline
		lsmod
		cat /proc/self/mountstats /proc/net/rpc/nfsd /proc/fs/nfsd/{threads,portlist}
		tail -n +1 /proc/fs/nfsd/clients/*/{info,states}
		rdma link
		rdma resource show
		for kind in qp cm_id mr pd cq; do rdma resource show $kind; done
		ip -s addr
		ps -eo pid,stat,wchan:30,args
	} >"$folder/state.$guest"
} 2>/dev/null

# memory_leaks: what kmemleak finds unreferenced and has not told before. An object is reported
# when it was so, and the same, at two scans, and 5 s old: ask twice for what has just leaked.
memory_leaks() {
	local file=/sys/kernel/debug/kmemleak
	echo scan >$file
	cat $file
	echo clear >$file
}

# settle [connections]: wait (at most 10 s) until what is being closed is gone; of
# connections alone where something listens.
settle() {
	local try
	for try in {1..40}; do
		[ -z "$("${1-rdma_leftovers}")" ] && return
		sleep 0.25
	done
	echo "settle: after $try tries there are still RDMA resources"
	return 1
}

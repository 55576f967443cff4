# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Functions for jobs in a guest; every job sources this file. /t is the directory
# shared with the host; the addresses are those of the server's guest.

SERVER=192.168.88.2
SERVER6=fd88::2
EXPORT=/srv/export
PORT=20049
SHARE=/t

# --- the other guest and the host -------------------------------------------

one_guest() {
	grep -q 'guest.addresses=1,2' /proc/cmdline
}

# ask LINE: send a request to the host, print its answer, return its status.
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
# in the other guest; with one guest, in this one.
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

# link_set on|off: set the link of this guest's network device.
link_set() {
	ask "link $1"
}

# --- the RDMA device ---------------------------------------------------------

# device_add [NAME NETDEV]: create the device again after "rdma link del".
device_add() {
	local type
	type=$(sed 's/.*guest.device=\([a-z]*\).*/\1/' /proc/cmdline)
	rdma link add "${1-rdma0}" type "$type" netdev "${2-eth0}"
}

# devices_revive: create each rxe device again that no longer answers the CM. A device gets into
# that state when the CM could not send a message for lack of a route or a queueing discipline,
# see Documentation/known-issues.rst.
devices_revive() {
	local device netdev
	rdma resource show qp | sed -n 's|^link \([^/]*\)/.* type GSI state ERR .*|\1|p' |
		while read -r device; do
			netdev=$(rdma link show "$device/1" | sed 's/.* netdev \([^ ]*\).*/\1/')
			rdma link del "$device" && device_add "$device" "$netdev" &&
				echo "known issue: $device ($netdev) no longer answered the CM; created it again"
		done
}

# --- modules ------------------------------------------------------------------

# module_load c|rust: load the transport module. This module is loaded by insmod, so
# that the tested file is the one just built.
module_load() {
	case $1 in
	c) modprobe rpcrdma ;;
	rust)
		modprobe -a sunrpc rdma_cm ib_core
		# If this module is missing, the test must not continue with the C module.
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

# module_refs NAME: print the module's use count; nothing if it is not loaded.
module_refs() {
	cat "/sys/module/$1/refcnt" 2>/dev/null
}

# module_idle NAME: print the module's use count once it is 0, or after 5 s.
module_idle() {
	local try
	for try in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(module_refs "$1")" = 0 ] && break
		sleep 0.5
	done
	module_refs "$1"
}

# gives_up_version_2 1|2: print how often the client has stopped asking a server for version 2. A server that
# answers in version 1 may also have dropped the first Call of a connection, as nfsd does. siw may lose the
# first message of a connection, which is the client's question: see known-issues.rst.
gives_up_version_2() {
	local known='^$'
	grep -q guest.device=siw /proc/cmdline && known="does not answer version 2"
	[ "$1" = 2 ] || known="answers no Call after it has refused"
	dmesg | grep "using version 1 for" | grep -vc "$known"
}

# over_version_2 1|2 COMMAND...: run a command while the client asks for version 2 of RPC-over-RDMA and
# the server answers in this version. Report whether the client has asked to the end: it does not ask a
# server that seems to be unable to answer.
over_version_2() {
	local ask=/proc/sys/sunrpc/rdma_max_version spoken=$1 before status
	local name="each connection was asked for version 2"
	shift
	before=$(gives_up_version_2 "$spoken")
	echo 2 >$ask
	RPCRDMA_VERSION=$spoken "$@"
	status=$?
	echo 1 >$ask
	dmesg | grep "using version 1 for"
	if [ "$(gives_up_version_2 "$spoken")" != "$before" ]; then
		echo "not ok - $name"
	elif [ "$spoken" = 2 ] &&
		[ "$(peer "cat /proc/sys/sunrpc/svc_rdma/rdma_stat_version_2")" = 0 ]; then
		echo "not ok - $name, and answered"
	else
		echo "ok - $name"
	fi
	return $status
}

# module_unload c|rust: unload the module; fails if the module is in use.
module_unload() {
	local name
	name=$(module_name "$1")
	module_idle "$name" >/dev/null
	rm -f /run/modprobe.d/no-c-module.conf
	rmmod "$name"
}

# --- server -------------------------------------------------------------------

# server_start [THREADS]: start nfsd with TCP and RDMA listeners, exporting a tmpfs. Leases and
# grace periods are as short as the kernel permits, so that tests need not wait.
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
	# nfsdcld starts up in the background. nfsd must not query it before it watches its pipe.
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

# nfsd_start THREADS: start only nfsd. siw loses messages that a client sends before the thread
# has accepted the connection, see Documentation/known-issues.rst; a real-time priority keeps
# that thread from being preempted. Newer versions of rpc.nfsd do not enable NFS 4.0 by default.
nfsd_start() {
	rpc.nfsd -V 4.0 --rdma=$PORT "$1" || return
	! grep -q guest.device=siw /proc/cmdline || pgrep -x nfsd | xargs -n 1 chrt -f -p 1
}

# server_stop: stop nfsd and its listeners.
server_stop() {
	rpc.nfsd 0
}

# nfsd_lease SECONDS: start nfsd again with another lease, and end its grace period if it has one.
nfsd_lease() {
	server_stop
	echo "$1" >/proc/fs/nfsd/nfsv4leasetime && nfsd_start 8 || return
	# Busy if there is none.
	{ echo Y >/proc/fs/nfsd/v4_end_grace; } 2>/dev/null
	for _ in {1..100}; do
		grep -q Y /proc/fs/nfsd/v4_end_grace && return
		sleep 0.1
	done
	echo "nfsd_lease: the grace period does not end" >&2
	return 1
}

rpc_pipefs_mount() {
	modprobe sunrpc
	mountpoint -q /run/rpc_pipefs ||
		mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
}

# Start rpcbind and statd, which NFSv3 needs on both sides.
rpc_services_start() {
	pidof rpcbind >/dev/null || rpcbind -w
	pidof rpc.statd >/dev/null || rpc.statd --no-notify
}

# --- client -------------------------------------------------------------------

# client_start: start the services that a guest needs before its first mount.
client_start() {
	modprobe nfsv4
	modprobe nfsv3
	rpc_pipefs_mount
	rpc_services_start
}

# client_mount VERSION ADDRESS FOLDER [OPTIONS]: mount the export over RDMA. Over siw a mount may
# fail after 180 s because siw did not see the first message of each connection
# (Documentation/known-issues.rst); then it is reported and tried again.
client_mount() {
	local version=$1 address=$2 folder=$3 options=${4-} path=/ proto=rdma begun=$SECONDS status
	case $version in 3*) path=$EXPORT ;; esac
	case $address in *:*) address="[$address]" proto=rdma6 ;; esac
	mkdir -p "$folder"
	set -- mount -t nfs -o "proto=$proto,port=$PORT,vers=$version${options:+,$options}" \
		"$address:$path" "$folder"
	"$@" && return
	status=$?
	[ "$status" = 32 ] && [ $((SECONDS - begun)) -ge 170 ] &&
		grep -q guest.device=siw /proc/cmdline || return "$status"
	echo "known issue: siw did not see the first message of a connection; mounting again"
	"$@"
}

# rdma_counters FOLDER: print the 27 numbers of the mount's "xprt: rdma" line, summed
# over its transports, one per line with its name.
rdma_counters() {
	python3 -B -c 'import sys; sys.path.insert(0, "/t/guest"); from harness import counters
for counter in counters(sys.argv[1]).items(): print(*counter)' "$1"
}

# connections: list the queue pairs that do not belong to the MAD service.
connections() {
	rdma resource show qp | grep -v -e 'type GSI' -e 'type SMI'
}

# rdma_leftovers: list RDMA resources of kernel users other than the MAD service.
rdma_leftovers() {
	connections
	rdma resource show cm_id
	rdma resource show mr
	rdma resource show pd | grep -v 'comm \[ib_core\]'
	rdma resource show cq | grep -v 'comm \[ib_core\]'
}

# what_waits: for a job that has timed out, print which processes are in an RPC, what RPCs wait
# for, and whether the network and their connections transfer anything. Octets that stay in the receive
# queue of a socket were not seen by siw.
what_waits() {
	local process
	for process in /proc/[0-9]*; do
		grep -q -e rpc_ -e nfs -e svc_ -e rdma "$process/stack" || continue
		# Skip a thread that waits for work.
		! head -n 2 "$process/stack" | grep -q svc_recv || continue
		echo "$process $(cat "$process/comm")"
		cat "$process/stack"
	done
	tail -n +1 /sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/{dstaddr,xprt_info,xprt_state} \
		/sys/kernel/debug/sunrpc/rpc_clnt/*/tasks /proc/fs/nfsd/clients/*/info
	tail -n +1 /sys/kernel/debug/rpcrdma_rs/*/*/status
	rdma resource show qp
	ss -Htan
	echo "some seconds later:"
	ping -c 2 -w 4 192.168.88.1 | tail -n 2
	ping -c 2 -w 4 "$SERVER" | tail -n 2
	rdma resource show qp
	ss -Htan
} 2>/dev/null

# keep_evidence FOLDER: write the state of this guest to files in that directory of /t.
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

# memory_leaks: print the unreferenced objects that kmemleak has not reported before. kmemleak reports
# an object that was unreferenced and unchanged at two scans and is 5 s old: call this twice to
# see a recent leak.
memory_leaks() {
	local file=/sys/kernel/debug/kmemleak
	echo scan >$file
	cat $file
	echo clear >$file
}

# settle [connections]: wait at most 10 s until the RDMA resources that are being closed are
# released; with "connections", only until the connections are, for a guest with a listener.
settle() {
	local try
	for try in {1..40}; do
		[ -z "$("${1-rdma_leftovers}")" ] && return
		sleep 0.25
	done
	echo "settle: after $try tries there are still RDMA resources"
	return 1
}

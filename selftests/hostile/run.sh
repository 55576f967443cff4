#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# hostile/run.sh c|rust: run the hostile peer's cases in one guest, in which the module
# of this kind is loaded and nfsd is started.
. /t/guest/lib.sh
kind=$1
here=$(dirname "$0")
# shellcheck source=selftests/hostile/stale_listener.sh
. "$here/stale_listener.sh"
seed=${SEED:-8166}
FAKE_PORT=20052
RELAY_PORT=20054
VERSION2_PORT=20056
# Random messages of version 2: those for the server, and those for the client, which take longer.
to_server=92000 to_client=8000 slower=1 stopped=5
[ -z "$LONG" ] || to_server=800000 to_client=200000 slower=10
[ -z "$DEBUG" ] || to_server=5000 to_client=1000 slower=6 stopped=15

# report STATUS NAME: print the result of a step of this script.
report() {
	if [ "$1" = 0 ]; then echo "ok - $2"; else echo "not ok - $2"; fi
}

# nothing_left: within some seconds, no RDMA resource is left and the module is not in use.
nothing_left() {
	local i left refs
	for ((i = 0; i < 50; i++)); do
		left=$(rdma_leftovers) refs=$(module_refs "$(module_name "$kind")")
		[ -z "$left" ] && [ "$refs" = 0 ] && return
		sleep 0.2
	done
	echo "$left" | sed 's/^/# left: /'
	echo "# module's use count: $refs"
	return 1
}

# within SECONDS COMMAND...: the command ends in time. If not, print what it waits for.
within() {
	local begun=$EPOCHREALTIME limit=$1 ms command watcher
	shift
	timeout 60 "$@" &
	command=$!
	timeout "$limit" tail -s 0.1 --pid=$command -f /dev/null || what_waits 2>&1 | sed 's/^/# /' &
	watcher=$!
	wait $command || return
	ms=$(((${EPOCHREALTIME/./} - ${begun/./}) / 1000))
	wait $watcher
	echo "# $*: $ms ms"
	[ "$ms" -le $((limit * 1000)) ]
}

good_mount() {
	client_mount 3 "$SERVER" /mnt nolock && cmp /mnt/data "$EXPORT/data" &&
		dd if=/dev/zero of=/mnt/good bs=64k count=4 conv=fsync status=none &&
		umount /mnt
}

# mounts_again: a good mount works within some seconds.
mounts_again() {
	local i
	for i in 1 2 3 4 5; do
		sleep 1
		good_mount && return
	done
	return 1
}

# hold_connections: start all_states.py and wait until its connections exist; sets pid. If it fails,
# print what it says.
hold_connections() {
	local line
	mkfifo /run/all_states
	python3 -B "$here/all_states.py" "$SERVER" "$PORT" >/run/all_states 2>&1 &
	pid=$!
	exec 7</run/all_states
	rm /run/all_states
	read -r -t 60 line <&7
	[ "$line" = ready ] && return
	{
		echo "all_states.py: $line"
		timeout 5 cat <&7
	} | sed 's/^/# /'
	return 1
}

end_connections() {
	kill -9 "$pid"
	wait "$pid"
	exec 7<&-
} 2>/dev/null

# stop_under_connections: stop and start nfsd under connections of all kinds.
stop_under_connections() {
	local i pid status=0
	for i in 1 2 3; do
		hold_connections || status=1
		sleep "0.$((i * 3))"
		within $stopped rpc.nfsd 0 || status=1
		end_connections
		nothing_left || status=1
		server_start || status=1
	done
	return $status
}

# remove_device: remove the RDMA device under connections of all kinds, and add it
# again. all_states.py has the device open, so the removal waits until all_states.py ends.
remove_device() {
	local pid removal status=0
	hold_connections || status=1
	timeout 60 rdma link del rdma0 &
	removal=$!
	sleep 1
	end_connections
	wait $removal || status=1
	device_add || status=1
	mounts_again && return $status
}

# remove_unaccepted: remove the RDMA device while a connection request waits to be accepted, at
# a listener for one address, when nfsd has no threads.
remove_unaccepted() {
	local status=0
	server_stop
	nfsdctl listener "+rdma:$SERVER:$PORT" || return
	python3 -B -c "
import sys
sys.path.insert(0, '$here')
import peer
try:
    peer.connect(peer.Device(), '$SERVER', $PORT, timeout=2)
except peer.Timeout:
    sys.exit(0)
sys.exit('accepted without a thread')" || status=1
	within $stopped rdma link del rdma0 || status=1
	device_add || status=1
	nfsd_start 8 || status=1
	mounts_again && return $status
}

parts() {
	python3 -c "
import struct
open('$EXPORT/data', 'wb').write(struct.pack('>65536I', *range(65536)))
open('$EXPORT/sink', 'wb').close()"
	local fuzz
	# The C module gets no random messages.
	[ "$kind" = rust ] && fuzz="--fuzz $seed"
	# shellcheck disable=SC2086
	python3 -B "$here/server_test.py" --kind "$kind" $fuzz --messages $to_server "$SERVER" "$PORT"
	report $? "all of the server's cases"
	good_mount
	report $? "a good client after all this"
	stop_under_connections
	report $? "nfsd stopped under connections of all kinds, three times"
	remove_device
	report $? "the device removed under connections of all kinds, and added"
	remove_unaccepted
	report $? "the device removed under a request that nfsd has no thread for"
	# The C module's listener dies; addresses.py needs rxe as well.
	if [ "$kind" = rust ] && ! grep -q guest.device=siw /proc/cmdline; then
		remove_stale
		report $? "the device removed under a stale listener, without a thread"
	fi
	server_stop
	nothing_left
	report $? "nothing is left when nfsd has stopped"

	# shellcheck disable=SC2086
	timeout 1200 python3 -B "$here/client_test.py" --kind "$kind" $fuzz "$SERVER" $FAKE_PORT
	report $? "all of the client's cases"
	if [ "$kind" = rust ]; then
		# shellcheck disable=SC2086
		timeout $((600 * slower)) python3 -B "$here/version2_test.py" --kind "$kind" $fuzz \
			--messages $to_client "$SERVER" $VERSION2_PORT
		report $? "all of the client's cases of version 2"
	fi
	nothing_left
	report $? "nothing is left after the last unmount"
	server_start && timeout 600 python3 -B "$here/reverse_test.py" --kind "$kind" "$SERVER" $RELAY_PORT
	report $? "all of the callback service's cases"
	server_stop
	nothing_left
	report $? "nothing is left after that"
	server_start && good_mount
	report $? "a mount of a good server after all this"
	server_stop
	nothing_left
	report $? "nothing is left in the end"
	module_unload "$kind"
	report $? "the module can be removed"
}

# Line-buffered, so that the output is seen as it is printed.
parts | {
	failed=0
	while IFS= read -r line; do
		[[ $line != "not ok"* ]] || failed=1
		printf '%s\n' "$line"
	done
	exit $failed
}

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Memory of a connection, on both sides: two guests, one mount with 16 connections.

Compares the free memory, after dropping caches, before the mount, with all connections
established, after I/O of 1 MiB over each, and when they have been quiet for some time. Files are
removed before it is read. It includes the free pages that each processor keeps for itself, which
MemFree omits, and which are tens of MiB after I/O.
"""

from guest import GuestError, Machine
from run import Pair, host_name, run_folder, say

CONNECTIONS = 16
ADDRESSES = 16
QUIET = 40
STATES = ("idle", "after I/O", "quiet again")

FREE = """. /t/guest/lib.sh
settle_memory() { sync; echo 3 >/proc/sys/vm/drop_caches; sleep 1; }
settle_memory; settle_memory; awk '$1 == "MemFree:" { free += $2 }
	$1 == "count:" { free += 4 * $2 }
	END { print free }' /proc/meminfo /proc/zoneinfo"""
MOUNT = f"""client_mount 3 $SERVER /mnt/bench nconnect={CONNECTIONS},noac || exit 1
touch /mnt/bench/file
for i in {{1..{3 * CONNECTIONS}}}; do stat /mnt/bench/file >/dev/null || exit 1; done"""
# A file that is read and written by RPCs of 1 MiB, several at a time.
BUSY = """for rw in write read; do
	fio --name=busy --filename=/mnt/bench/busy --rw=$rw --bs=1m --size=64m --loops=2 \\
		--ioengine=libaio --iodepth=32 --direct=1 --thread --output=/dev/null || exit 1
done
rm /mnt/bench/busy"""


def free(guest):
    """Return the KiB that are free when all caches are empty."""
    return int(guest.output(FREE, 120).split()[-1])


def do(guest, script, seconds=300):
    """Run a script in a guest, which must succeed; return its output."""
    return guest.output(". /t/guest/lib.sh\n" + script, seconds)


def connections(guest):
    """Return the number of connected queue pairs."""
    return int(do(guest, "rdma resource show qp | grep -c 'type RC state RTS' || :").split()[-1])


def start(name, side, module):
    """Start two guests with one kind of module."""
    folder = run_folder(f"bench-{name}-{side}", module if side == "rust" else None)
    say(f"{side} {name}: boot, run folder {host_name(folder)}")
    pair = Pair(folder, Machine(), echo=lambda line: None)
    try:
        pair.set_up(side, side)
    except BaseException:
        pair.kill()
        raise
    return pair


def measure(side, module):
    """Return KiB per connection, by side and state."""
    pair = start("memory", side, module)
    try:
        guests = {"server": pair.server, "client": pair.client}
        # Memory that the first mount and I/O allocate permanently is not part of a connection.
        do(pair.client, MOUNT)
        do(pair.client, BUSY)
        do(pair.client, f"umount /mnt/bench; settle connections; sleep {QUIET}")
        before = {name: free(guest) for name, guest in guests.items()}
        found = {name: {} for name in guests}
        for state, script in zip(STATES, (MOUNT, BUSY, f"sleep {QUIET}")):
            do(pair.client, script)
            there = connections(pair.client)
            if there != CONNECTIONS:
                raise GuestError(f"{side}: {there} connections, not {CONNECTIONS}")
            for name, guest in guests.items():
                found[name][state] = (before[name] - free(guest)) / CONNECTIONS
                say(f"{side}: {name} {state}: {found[name][state]:.0f} KiB per connection")
        do(pair.client, "umount /mnt/bench")
        return found
    finally:
        pair.kill()


MANY = f"""for i in {{1..{ADDRESSES}}}; do
	client_mount 3 192.168.88.$((100 + i)) /mnt/$i nconnect={CONNECTIONS},noac || exit 1
	touch /mnt/$i/file$i
	for j in {{1..{2 * CONNECTIONS}}}; do stat /mnt/$i/file$i >/dev/null || exit 1; done
done"""
LOAD = f"""for i in {{1..{ADDRESSES}}}; do
	fio --name=many --filename=/mnt/$i/busy$i --rw=write --bs=1m --size=16m \\
		--ioengine=libaio --iodepth=16 --direct=1 --thread --output=/dev/null || echo failed $i &
done
wait"""


def many(side, module):
    """Make 256 connections to one server guest of 3 GiB; return the KiB of each, and the duration."""
    pair = start("many", side, module)
    try:
        do(pair.server, "for i in {1..16}; do ip addr add 192.168.88.$((100 + i))/24 dev eth0; done")
        before = free(pair.server)
        do(pair.client, MANY, 1200)
        there = connections(pair.server)
        idle = (before - free(pair.server)) / max(there, 1)
        say(f"{side}: {there} connections, {idle:.0f} KiB each on the server")
        failed = do(pair.client, LOAD, 1200)
        left = connections(pair.server)
        do(pair.client, "umount -a -t nfs,nfs4; settle connections", 600)
        faults = {name: lines for name, lines in pair.stop().items() if lines}
        return {"connections": there, "KiB each on the server": idle, "after I/O": left,
                "errors": failed.strip(), "faults": faults}
    finally:
        pair.kill()

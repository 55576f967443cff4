# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Delegations that are granted over RDMA and recalled over the same connections (RFC 8167).

The first client has mounts in the client guest. The second client is in the server guest and uses
TCP, so that every callback over RDMA goes to the first client. A failed recall shows in the content:
the first client keeps using its cache, or data that it has not sent yet is missing.

nfsd delegates no file whose handle resembles that of a recently recalled one, so all files are
opened before the first recall. They stay open because the client returns unused delegations.
"""

import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import roce
import second
from capture import Capture
from evidence import Evidence
from harness import EXPORT, SERVER, Delta, Skip, case, contents, expect, expect_that, mount, \
    read_file, shell, transports, umount

CLIENT = "192.168.88.1"
MANY, BURST = 170, 64
# Sets of files: number of files and mount. The first client has write delegations for the files of
# a set "w...", and read delegations for the others.
PLAIN, SEVERAL = "/mnt/recall", "/mnt/recall-4"
SETS = {"read": (MANY, PLAIN), "write": (MANY, PLAIN), "rburst": (BURST, SEVERAL)}
RUST_SERVER = os.environ.get("SERVER_MODULE") == "rust"
# Of RPC-over-RDMA.
VERSION = int(os.environ.get("RPCRDMA_VERSION", "1"))
# Seconds of a lease: nfsd gives up a callback after a tenth of it, and revokes a delegation that is not
# returned within it. The shortest lease is 10 s, but a guest on a busy machine may stand still for more
# than a second.
LEASE = 60

LOAD = """
import mmap, os, sys
sys.path.insert(0, "/t/guest")
from harness import data
path, count = sys.argv[1], 0
memory = mmap.mmap(-1, 1 << 16)
while os.path.exists("/tmp/recall-load"):
    content = data(1 << 16, count)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, content, count % 8 << 16)
    os.close(fd)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    os.preadv(fd, [memory], count % 8 << 16)
    os.close(fd)
    assert memory[:] == content, "content read back"
    count += 1
    print(count, flush=True)
"""


class Opened:
    """The files of all sets, open in the first client."""

    def __init__(self, sets, evidence):
        self.sets, self.evidence = sets, evidence
        self.files, self.held, self.windows = {}, {}, []

    def open_all(self):
        """Open all files, and check that the server has delegated them.

        A few may not be delegated: nfsd remembers recently recalled files by three bits of 256, for
        30 to 60 s. If earlier groups have left too many, this opens the files again."""
        jobs = [(name, number) for name in self.sets for number in range(self.sets[name][0])]
        for left in (2, 1, 0):
            with ThreadPoolExecutor(8) as pool:
                self.files = dict(zip(jobs, pool.map(lambda job: self.open(*job), jobs)))
            self.held = delegated()
            lack = [f"{self.held.get((name, name[0]), 0)} of {count} files of {name} are delegated"
                    for name, (count, _) in self.sets.items()
                    if self.held.get((name, name[0]), 0) < 0.9 * count]
            if not lack or not left:
                break
            print("; ".join(lack) + ", after recalls of earlier groups: once more in 31 s")
            self.close(*self.sets)
            time.sleep(31)
        self.evidence.states("opened")
        expect("sets with too few delegations", lack, [])
        print(f"{sum(self.held.values())} of {len(jobs)} files are delegated")

    def path(self, name, number):
        """Return the path of one file."""
        return f"{self.sets[name][1]}/{name}-{number}"

    def open(self, name, number):
        """Open one file; write to it, or read it."""
        writes = name.startswith("w")
        fd = os.open(self.path(name, number), os.O_RDWR if writes else os.O_RDONLY)
        if writes:
            os.pwrite(fd, second.mine(number), 0)
        else:
            expect(f"content of {name}-{number}", os.pread(fd, second.SIZE + 1, 0),
                   second.first(number))
        return fd

    def see(self, name):
        """Check that the first client sees the current content, and close the files.

        close-to-open consistency only guarantees this if the second client has no write
        delegation: see Documentation/known-issues.rst."""
        self.evidence.states(f"{name}.before")
        expect(f"delegations to write of {name}", delegated().get((name, "w"), 0), 0)
        content = second.mine if name.startswith("w") else second.theirs
        wrong = []
        for number in range(self.sets[name][0]):
            seen = read_file(self.path(name, number), cached=True)
            if seen != content(number):
                known = {second.first(number): "what it held first",
                         second.mine(number): "what the first client wrote",
                         second.theirs(number): "what the second client wrote"}
                wrong.append(self.evidence.wrong(self.path(name, number), seen, known))
        expect(f"files that the first client does not see as they were written last "
               f"({self.evidence.folder})", wrong, [])
        self.close(name)

    def none_revoked(self):
        """Check that the server has revoked no delegation."""
        if count := revoked():
            self.evidence.states("revoked")
            self.evidence.keep_capture()
        expect(f"delegations revoked ({self.evidence.folder})", count, 0)

    def close(self, *names):
        """Close the files of some sets."""
        for job in [job for job in self.files if job[0] in names]:
            os.close(self.files.pop(job))


def delegated():
    """Return how many files of each set the server has delegated, for reading or writing."""
    states = contents("/proc/fs/nfsd/clients/*/states", "peer")
    # If the attributes are delegated as well, "a" follows.
    found = re.findall(r'type: deleg, access: ([rw])a?,.*filename: "(?:[^"]*/)?(\w+)-\d+"', states)
    return dict(collections.Counter((name, access) for access, name in found))


def create_files(sets):
    """Create the files, and let the second client mount. nfsd grants no delegation during lockd's
    grace period after the server's start.

    The second client uses version 4.0, for which nfsd grants no write delegation. With a write
    delegation, the change attribute of a file that the first client has open without a delegation
    may stay the same when the file is written: see Documentation/known-issues.rst."""
    shell("peer 'echo Y >/proc/fs/lockd/nlm_end_grace'")
    wanted = " ".join(f"{name}:{count}" for name, (count, _) in sets.items())
    shell(f"""peer 'client_start && mkdir -p /mnt/second &&
        mount -t nfs -o vers=4.0,proto=tcp {SERVER["ipv4"]}:/ /mnt/second &&
        python3 -B /t/guest/second.py --create {EXPORT} {wanted}'""")


def start_second(opened, name, threads):
    """Start the second client on a set of files."""
    shell(f"peer 'rm -f /tmp/second.{name}; (python3 -B /t/guest/second.py "
          f"/mnt/second {name} {opened.sets[name][0]} {threads} "
          f">/tmp/second.{name}.new 2>&1 </dev/null; "
          f"mv /tmp/second.{name}.new /tmp/second.{name}) >/dev/null 2>&1 &'")


def finish_second(name, seconds=150):
    """Wait for the second client; return its result. A debug kernel on a busy machine took 60 s. A recall
    that is lost makes the server revoke the delegation, which is counted."""
    end = time.monotonic() + seconds
    while not (text := shell(f"peer 'cat /tmp/second.{name}'", check=False)).startswith("{"):
        expect_that(f"the second client is not ready with {name} after {seconds} s; "
                    f"{shell(f'peer cat /tmp/second.{name}.new', check=False)[-200:]}",
                    time.monotonic() < end)
        time.sleep(0.2)
    result = json.loads(text)
    print(f"{name}: {result['files']} files in {result['seconds']:.1f} s, "
          f"slowest {result['slowest']:.2f} s")
    expect("complaints of the second client", result["wrong"], [])
    return result


def recalled(opened, name, threads):
    """Let the second client use the files of a set, all of which are delegated."""
    start_second(opened, name, threads)
    finish_second(name)


def revoked():
    """Return how many delegations the server has revoked because a recall was lost; the client then
    frees the state. The duration of an open says less, since a client that has to wait tries again
    after growing pauses."""
    with open("/proc/self/mountstats", encoding="ascii") as file:
        return sum(map(int, re.findall(r"FREE_STATEID: (\d+)", file.read())))


@contextlib.contextmanager
def load(folder):
    """Write and read in a mount until the end of the block."""
    with open("/tmp/recall-load", "w", encoding="ascii"):
        pass
    job = subprocess.Popen([sys.executable, "-B", "-c", LOAD, f"{folder}/load"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        expect("first line of the load", job.stdout.readline(), "1\n")
        yield
    finally:
        os.unlink("/tmp/recall-load")
        output = job.communicate(timeout=60)[0]
    expect(f"exit status of the load ({output[-200:]})", job.returncode, 0)
    count = int(output.split()[-1])
    print(f"{count} times 64 KiB written and read meanwhile")
    expect_that("there was no load", count >= 5)


def windows(where=""):
    """Return congestion and window of all RDMA transports of a guest, once they are idle."""
    for _ in range(40):
        text = contents("/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/xprt_info", where)
        pairs = re.findall(r"cur_cong=(\d+)\ncong_win=(\d+)", text)
        if pairs and all(cong == "0" for cong, _ in pairs):
            break
        time.sleep(0.1)
    expect_that("there is no transport", pairs)
    expect("credits in use with nothing to do", [cong for cong, _ in pairs], ["0"] * len(pairs))
    return sorted(int(window) for _, window in pairs)


def callbacks(capture, recalls):
    """Check that Calls and Replies of the reverse direction conform to RFC 8167."""
    calls = [m for m in capture if m.source == SERVER["ipv4"] and m.kind == roce.CALL]
    xids = {call.xid for call in calls}
    replies = [m for m in capture if m.source == CLIENT and m.kind == roce.REPLY]
    expect("programs called", {call.program for call in calls}, {roce.NFS_CB})
    expect("Replies to no callback", [m.xid for m in replies if m.xid not in xids], [])
    expect("callbacks without a Reply", len(xids - {m.xid for m in replies}), 0)
    expect("procedures called", {call.procedure for call in calls}, {1})
    first = collections.Counter(call.operations[:1] for call in calls)
    expect("first operations", set(first), {(roce.CB_SEQUENCE,)})
    rest = collections.Counter(call.operations[1:] for call in calls)
    print(f"{len(calls)} callbacks: {rest[(roce.CB_RECALL,)]} CB_RECALL, "
          f"{rest[(roce.CB_GETATTR,)]} CB_GETATTR, each after CB_SEQUENCE; "
          f"on {len({call.queue_pair for call in calls})} connections")
    expect_that("fewer recalls than delegations", rest[(roce.CB_RECALL,)] >= recalls >= 300)
    for message in calls + replies:
        expect("version, message type", (message.version, message.proc), (VERSION, roce.MSG))
        expect("XID of the RPC message", message.rpc_xid, message.xid)
        expect_that("a message of the reverse direction has chunks", not message.chunks)
        expect_that(f"credit value {message.credits}", 1 <= message.credits <= 64)
        expect_that(f"a message of {message.size} bytes", message.size <= 4096)
    expect("status of the Replies", {reply.status for reply in replies}, {0})
    print(f"credits asked for: {sorted({m.credits for m in calls})}, "
          f"granted: {sorted({m.credits for m in replies})}")
    return calls, replies


def within_credits(calls, replies):
    """Check that no connection had more callbacks in flight than were granted, and that each was
    answered in time."""
    owner = {call.xid: call.queue_pair for call in calls}
    started, granted, slowest, most = {}, {}, 0, 0
    for message in sorted(calls + replies, key=lambda message: message.time):
        if message.kind == roce.CALL:
            started[message.xid] = message.time
            under_way = sum(owner[xid] == message.queue_pair for xid in started)
            most = max(most, under_way)
            limit = min(message.credits, granted.get(message.queue_pair, 1))
            if RUST_SERVER:
                expect_that(f"{under_way} callbacks under way, granted {limit}",
                            under_way <= limit)
        elif message.xid in started:
            slowest = max(slowest, message.time - started.pop(message.xid))
            granted[owner[message.xid]] = message.credits
    print(f"at most {most} under way; slowest Reply after {slowest * 1000:.0f} ms")
    expect_that(f"a callback was answered after {slowest:.1f} s", slowest < LEASE / 10)


def both_directions(capture):
    """Check that callbacks did not change the credits of the forward direction."""
    forward = [m for m in capture if m.source == SERVER["ipv4"] and m.kind == roce.REPLY]
    wanted = [m for m in capture if m.source == CLIENT and m.kind == roce.CALL]
    expect("programs called by the client", {m.program for m in wanted}, {roce.NFS})
    expect_that("no credits granted", all(m.credits >= 1 for m in forward))
    print(f"forward: {len(wanted)} Calls, credits asked for {sorted({m.credits for m in wanted})}, "
          f"granted {sorted({m.credits for m in forward})}")


@contextlib.contextmanager
def traced(counts):
    """Count the client's trace events of callbacks while the block runs."""
    events = ("xprtrdma_cb_call", "xprtrdma_cb_reply")
    switch = "; ".join(f"echo $on >events/rpcrdma/{name}/enable" for name in events)
    shell(f"cd /sys/kernel/tracing; echo >trace; on=1; {switch}")
    try:
        yield
    finally:
        shell(f"cd /sys/kernel/tracing; on=0; {switch}")
        with open("/sys/kernel/tracing/trace", encoding="ascii") as file:
            text = file.read()
        counts.update({name: text.count(f" {name}: ") for name in events})


def views():
    """Check sunrpc's files about the server's callback transports."""
    sysfs = contents("/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/dstaddr", "peer").split()
    debugfs = [address for netid, address, _ in transports("peer") if netid == "rdma"]
    for found in sysfs, debugfs:
        # The C server may keep those of ended connections to other addresses.
        expect("addresses", set(found) if RUST_SERVER else set(found) & {CLIENT}, {CLIENT})


def one_each():
    """Request in sysfs that sunrpc sets up callbacks for connections that already have them."""
    if not RUST_SERVER:
        raise Skip("the C server forgets the first transport and never frees it")
    there = "/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma"
    asked = shell(f"""peer 'for xprt in {there}; do
        echo $(dirname $xprt); echo 1 >$(dirname $xprt)/add_xprt; done 2>&1; true'""")
    expect_that("there are no callback transports", asked)
    expect(f"refusals in {asked}", asked.count("File exists"), asked.count("/xprt-switches/"))


def test_recalls(opened):
    """Recall many delegations, and many at once."""
    with case("delegations are handed out over versions 4.1 and 4.2"):
        opened.open_all()
        clients = contents("/proc/fs/nfsd/clients/*/info", "peer").split("clientid: ")
        # Some of connections that have ended may still be there.
        mine = [client for client in clients if f'address: "{CLIENT}:' in client]
        expect("states of the callback channels",
               {state for client in mine for state in re.findall(r"callback state: (\w+)", client)},
               {"UP"})
        opened.windows = windows()
    with case(f"{MANY} delegations to read and {MANY} to write recalled under load"):
        with Delta(PLAIN) as delta, load(PLAIN):
            recalled(opened, "read", 16)
            recalled(opened, "write", 16)
        opened.see("read")
        opened.see("write")
        opened.none_revoked()
        print({name: delta.moved[name] for name in ("sends", "read_chunks", "write_chunks")})
        expect("new connections", delta.connect_count, 0)
        expect_that("I/O of the forward direction",
                    delta.read_chunks > 0 and delta.write_chunks > 0)
        expect("bad Replies", delta.bad_reply_count, 0)
    with case(f"nconnect=4: {BURST} recalled at once, more than there are slots"):
        counts = {}
        with load(SEVERAL), traced(counts):
            recalled(opened, "rburst", BURST)
        opened.see("rburst")
        print(counts)
        opened.none_revoked()
        expect_that("not every callback has its trace events",
                    counts["xprtrdma_cb_call"] == counts["xprtrdma_cb_reply"]
                    >= opened.held[("rburst", "r")])
    with case("no credit of either direction is lost"):
        expect("windows of the client's transports", windows(), opened.windows)
        print(f"windows: client {opened.windows}, server's callback transports {windows('peer')}")
    with case("sysfs and debugfs show the server's callback transports"):
        views()
    with case("a connection has one callback transport"):
        one_each()


def test_capture(opened, job):
    """Check the captured messages."""
    with case("capture: callbacks, their Replies, and their credits"):
        job.stop()
        capture = job.messages()
        calls, replies = callbacks(capture, sum(opened.held.values()))
        within_credits(calls, replies)
        both_directions(capture)


def main():
    """The group."""
    capture = Capture("recall")
    opened = Opened(SETS, Evidence("recall", capture.path))
    with case("mount"):
        shell(f"peer nfsd_lease {LEASE}")
        create_files(SETS)
        capture.start()
        mount("4.1", "ipv4", PLAIN)
        mount("4.2", "ipv4", SEVERAL, "nconnect=4")
    test_recalls(opened)
    test_capture(opened, capture)
    with case("unmount"):
        opened.close(*SETS)
        umount(PLAIN)
        umount(SEVERAL)
        shell(f"peer 'umount /mnt/second; find {EXPORT} -maxdepth 1 -type f -delete'")
        shell("peer nfsd_lease 10")


if __name__ == "__main__":
    main()

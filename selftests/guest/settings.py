# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Other configurations of server and client: payload sizes, rsize and wsize, nfsd's threads and
listeners changed under load, a stopped mountd, few slots."""

import os
import subprocess
import time

from faultio import grows
from harness import EXPORT, IWARP, LONG, PATIENCE, Delta, case, contents, counters, data, expect, expect_that, \
    in_background, read_file, shell, write_file
from mount_io import FOLDER, mounted, odd_io, server

LIMITS = "/proc/fs/nfsd/max_block_size"
TRACING = "/sys/kernel/tracing"
SLOTS = "/proc/sys/sunrpc/rdma_slot_table_entries"


def payloads(octets):
    """Change nfsd's limit on payloads."""
    server(f"server_stop; echo {octets} >{LIMITS} && nfsd_start 8")
    try:
        allowed = int(server(f"cat {LIMITS}"))
        expect("nfsd's limit", allowed, octets)
        with mounted("3", "rsize=4194304,wsize=4194304"):
            with open("/proc/self/mounts", encoding="ascii") as file:
                line = next(line for line in file if FOLDER in line)
            used = min(octets, 1 << 20)
            expect_that(f"sizes of the mount: {line}", f"rsize={used},wsize={used}," in line)
            with Delta(FOLDER) as delta:
                odd_io(f"{FOLDER}/limit", f"{EXPORT}/limit")
                write_file(f"{FOLDER}/big", data(9_000_001, 4), 0)
                expect("content", read_file(f"{FOLDER}/big", os.O_DIRECT), data(9_000_001, 4))
            expect("new connections", delta.connect_count, 0)
            shell(f"rm -f {FOLDER}/limit {FOLDER}/big")
    finally:
        server(f"server_stop; echo 1048576 >{LIMITS}; nfsd_start 8")


def sizes(rsize, wsize):
    """Test a mount with these sizes. The numbers of chunks show that READs and WRITEs do not exceed them."""
    with mounted("4.1", f"rsize={rsize},wsize={wsize}"):
        with open("/proc/self/mounts", encoding="ascii") as file:
            line = next(line for line in file if FOLDER in line)
        expect_that(f"{rsize} and {wsize}: {line}", f"rsize={rsize},wsize={wsize}," in line)
        with Delta(FOLDER) as delta:
            odd_io(f"{FOLDER}/sizes", f"{EXPORT}/sizes")
        # More than 5,000,000 octets were read, and more than 1,300,000 were written.
        expect_that(f"{delta.write_chunks} Write chunks", delta.write_chunks >= 5_000_000 // rsize)
        expect_that(f"{delta.read_chunks} Read chunks", delta.read_chunks >= 1_300_000 // wsize)


def all_sizes():
    """Test rsize and wsize from a page to the limit; with --long also numbers of pages that are no powers
    of two, and the smallest of each with the largest of the other."""
    pairs = [(size, size) for size in (4096, 8192, 65536, 262144, 1048576)]
    if LONG:
        pairs += [(12288, 12288), (69632, 69632), (1044480, 1044480), (4096, 1048576), (1048576, 4096)]
    for rsize, wsize in pairs:
        sizes(rsize, wsize)
    print(f"{len(pairs)} pairs of rsize and wsize")


class Load:
    """Processes that write, read back and compare in a loop until they are told to stop."""

    SCRIPT = """
import os, sys, time
sys.path.insert(0, "/t/guest")
from harness import data, read_file, write_file
path, stop, rounds = sys.argv[1], sys.argv[2], 0
while not os.path.exists(stop):
    content = data(300_000 + rounds % 7 * 4097, rounds)
    write_file(path, content, os.O_SYNC)
    if read_file(path, os.O_DIRECT) != content:
        sys.exit(f"round {rounds}: other content")
    rounds += 1
print(rounds)
"""

    def __init__(self, count):
        self.count, self.stop = count, "/run/stop-load"

    def __enter__(self):
        shell(f"rm -f {self.stop}")
        self.jobs = [subprocess.Popen(
            ["python3", "-B", "-c", self.SCRIPT, f"{FOLDER}/load-{number}", self.stop],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for number in range(self.count)]
        return self

    def __exit__(self, *_):
        write_file(self.stop, b"")
        rounds = []
        for job in self.jobs:
            output = job.communicate(timeout=120)[0].strip()
            expect(f"status of a process ({output[-300:]})", job.returncode, 0)
            rounds.append(int(output))
        print(f"rounds: {rounds}")
        expect_that("a process did nothing", min(rounds) > 0)


def threads():
    """Change the number of nfsd's threads under load. While there is one, Calls of most processes wait
    for it on each connection."""
    with mounted("4.1", "nconnect=2"), Delta(FOLDER) as delta:
        with Load(10):
            for count in (1, 16, 2, 8, 1, 16, 8):
                server(f"echo {count} >/proc/fs/nfsd/threads; "
                       f"[ $(cat /proc/fs/nfsd/threads) = {count} ]")
                time.sleep(1)
    expect("new connections", delta.connect_count, 0)


def listeners():
    """Remove and add nfsd's listeners by rpc.nfsd and by nfsdctl, without a client."""
    times = 50 if LONG else 10
    with mounted("4.1"):
        write_file(f"{FOLDER}/kept", data(100_000, 6))
    server(f"""for i in $(seq {times}); do
        rpc.nfsd 0 || exit 1
        ! grep -q rdma /proc/fs/nfsd/portlist || exit 2
        nfsdctl listener "+rdma:$SERVER:$PORT" || exit 5
        grep -q "rdma $PORT" /proc/fs/nfsd/portlist || exit 6
        nfsdctl listener "-rdma:$SERVER:$PORT" || exit 7
        ! grep -q rdma /proc/fs/nfsd/portlist || exit 8
        nfsd_start 8 || exit 3
        grep -q "rdma $PORT" /proc/fs/nfsd/portlist || exit 4
    done""", 300)
    with mounted("4.1"):
        expect("content", read_file(f"{FOLDER}/kept", os.O_DIRECT), data(100_000, 6))


# The client connects to a listener without threads, and loses the connection with the listener.
WITHOUT_THREADS = """nfsdctl listener "+rdma:$SERVER:$PORT" && sleep 0.7 &&
    nfsdctl listener "-rdma:$SERVER:$PORT" && ! grep -q rdma /proc/fs/nfsd/portlist &&"""


def leftovers():
    """Return the number of RDMA resources and the module's use count, of client and server."""
    count = "settle connections; rdma_leftovers | wc -l; cat /sys/module/rpcrdma*/refcnt"
    return shell(count).split(), server(count).split()


def listeners_in_use(version, times):
    """Remove and add the listeners while a mount is in use: it must get Replies again each time. Nothing of
    its connections may be left afterwards."""
    before, begun, slowest = leftovers(), time.monotonic(), 0
    with mounted(version):
        with Load(2):
            for number in range(times):
                connected, end = counters(FOLDER)["connect_count"], time.monotonic() + PATIENCE
                server(f"rpc.nfsd 0 && {WITHOUT_THREADS if number % 2 else ''} nfsd_start 8")
                grows(FOLDER, "connect_count", connected, end)
                grows(FOLDER, "recvs", counters(FOLDER)["recvs"], end)
                slowest = max(slowest, time.monotonic() + PATIENCE - end)
        odd_io(f"{FOLDER}/after", f"{EXPORT}/after")
    print(f"{times} times in {time.monotonic() - begun:.0f} s, the slowest {slowest:.1f} s")
    expect("resources and use counts of client and server", leftovers(), before)


def deferred():
    """Stop mountd while nfsd waits for its answer. nfsd defers the Calls that arrive meanwhile, and
    processes them when mountd continues. The client must get their Replies: after a lost one it sends
    the Call again on a new connection."""
    with mounted("3", "noac"):
        write_file(f"{FOLDER}/asked", data(200_000, 7))
        with Delta(FOLDER) as delta:
            recalled = stand_still()
        expect_that("no Call was deferred", recalled > 0)
        expect("new connections", delta.connect_count, 0)
        for number in range(8):
            expect("written", read_file(f"{FOLDER}/asked-{number}", os.O_DIRECT),
                   data(200_000, number))


def stand_still():
    """Read and write while mountd is stopped, and after it has continued. Return the number of deferred
    Calls that nfsd has processed."""
    server(f"kill -STOP $(pidof rpc.mountd); exportfs -f; cd {TRACING} && echo >trace && "
           "echo 1 >events/sunrpc/svc_defer_recv/enable")
    try:
        jobs = [in_background(read_file, f"{FOLDER}/asked", os.O_DIRECT) for _ in range(8)]
        jobs += [in_background(write_file, f"{FOLDER}/asked-{number}", data(200_000, number))
                 for number in range(8)]
        # A thread waits for 5 s before it defers its Call.
        time.sleep(8)
        waiting = sum(not job.done() for job in jobs)
    finally:
        server("kill -CONT $(pidof rpc.mountd)")
    expect_that("nobody waited for mountd", waiting > 0)
    expect("content", [job.result(90) for job in jobs[:8]], [data(200_000, 7)] * 8)
    for job in jobs:
        job.result(90)
    recalled = int(server(f"cd {TRACING} && echo 0 >events/sunrpc/svc_defer_recv/enable; "
                          "grep -c svc_defer_recv: trace || :"))
    print(f"{waiting} of {len(jobs)} waited for mountd; {recalled} deferred Calls were served")
    return recalled


def few_slots():
    """Run more jobs than the transport has slots. The others wait in sunrpc's backlog."""
    before = shell(f"cat {SLOTS}").strip()
    shell(f"echo 4 >{SLOTS}")
    try:
        with mounted("3"), Delta(FOLDER) as delta:
            # One process: 32 would take the guest's processor away from its kernel's threads.
            job = subprocess.Popen(
                ["fio", "--name=slots", f"--directory={FOLDER}", "--thread", "--numjobs=32",
                 "--size=288k", "--bs=48k", "--direct=1", "--rw=randwrite", "--verify=crc32c",
                 "--verify_fatal=1", "--do_verify=1", "--group_reporting"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            info = ""
            while "max_num_slots" not in info and job.poll() is None:
                info = contents("/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/xprt_info")
            output = job.communicate(timeout=200)[0]
            expect(f"exit status of fio ({output[-300:]})", job.returncode, 0)
        expect_that(f"slots of the transport: {info}", "max_num_slots=4\n" in info)
        expect_that("nobody waited for a slot", delta.bklog_u > 0)
    finally:
        shell(f"echo {before} >{SLOTS}")


def main():
    """The group."""
    for octets in 65536, 4 << 20:
        with case(f"payloads of {octets} octets"):
            payloads(octets)
    with case("rsize and wsize from 4096 to 1048576"):
        all_sizes()
    with case("nfsd's threads from 1 to 16 and back under load"):
        threads()
    with case("listeners taken away and added"):
        listeners()
    with case("listeners taken away and added while a mount is in use, version 4.1"):
        listeners_in_use("4.1", 2)
    if LONG:
        # A new connection over siw may need the RPC timer, see Documentation/known-issues.rst.
        with case("listeners taken away and added while a mount is in use, version 3"):
            listeners_in_use("3", 10 if IWARP else 50)
    with case("mountd stands still while Calls are deferred"):
        deferred()
    with case("four slots for 32 jobs"):
        few_slots()
    shell(f"peer 'rm -rf {EXPORT}/*'")


main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A bad network below the RDMA device.

Both guests drop, duplicate and reorder packets under verified I/O. The device
recovers by itself, or ends the connection and the mount reconnects. The data read
must be the data written.

Refills: connections are broken, and mounts are killed while they connect, while packets are
lost, so that the client waits for the CM and allocates regions at the same time.

Late answers: when a process was killed, or its READ has timed out, its memory gets
another user, and the server's RDMA Writes in flight must not reach it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

from faultio import Churn, force_disconnect, grows, revive, stop_all
from harness import LONG, SERVER, Skip, case, counters, data, expect, expect_that, mount, \
    read_file, shell, umount, write_file

NETWORKS = {
    "loss": "loss 0.5%",
    "duplicate": "duplicate 2%",
    "reorder": "delay 3ms reorder 70%",
    "loss, duplicate, reorder": "delay 2ms reorder 80% loss 0.2% duplicate 1%",
}


@contextlib.contextmanager
def queueing(network):
    """Give both guests a queueing discipline while the block runs."""
    both = shell, lambda text: shell(f"peer '{text}'")
    for run in both:
        run(f"tc qdisc add dev eth0 root netem limit 10000 {network}")
    try:
        yield
    finally:
        for run in both:
            run("tc qdisc del dev eth0 root")
        revive()


def bad_network(network, folders, seconds):
    """Run verified I/O with a queueing discipline in both guests."""
    before = {folder: counters(folder)["connect_count"] for folder in folders}
    with Churn(f"{folders[0]}/net0", os.O_DIRECT) as one, Churn(f"{folders[1]}/net1") as two:
        with queueing(network):
            # While a queueing discipline is replaced, a device may also stop answering the CM.
            for _ in range(10):
                revive()
                time.sleep(seconds)
                mine = json.loads(shell("tc -s -j qdisc show dev eth0"))[0]
                if mine["packets"] > 500 and (mine["drops"] or "loss" not in network):
                    break
            one.runs()
            two.runs()
        turns = stop_all(one, two)
    connected = sum(counters(folder)["connect_count"] - before[folder] for folder in folders)
    print(f"{mine['packets']} packets sent, {mine['drops']} dropped; {connected} new "
          f"connections; {turns} rounds of verified I/O")
    expect_that(f"the device's packets did not go through netem: {mine}", mine["packets"] > 500)
    if "loss" in network:
        expect_that("no packet was dropped", mine["drops"] > 0)


def refilled(folder):
    """Break the connection. Return how many regions the client allocates on the next one, in addition
    to those that it allocates before it connects."""
    before, end = counters(folder), time.monotonic() + 150
    force_disconnect(SERVER["ipv4"])
    grows(folder, "connect_count", before["connect_count"], end)
    begun = counters(folder)
    grows(folder, "recvs", begun["recvs"], end)
    time.sleep(1)
    return counters(folder)["mrs_allocated"] - begun["mrs_allocated"]


def killed_mounts(folder):
    """Kill mounts at later and later stages of connecting, until one is ready before it is killed. No other
    mount has version 4.2, so each has a connection of its own."""
    os.makedirs(folder, exist_ok=True)
    killed = 0
    while not os.path.ismount(folder):
        killed += 1
        expect_that("no mount is ready within 8 s", killed <= 80)
        shell(f"timeout -s KILL {killed / 10} mount -t nfs -o vers=4.2,proto=rdma,port=20049,retry=0 "
              f"{SERVER['ipv4']}:/ {folder}", check=False)
    umount(folder)
    print(f"{killed - 1} mounts were killed")


def refills():
    """Break connections under requests that need many regions, and kill mounts, while packets are
    lost. Nothing may wait for a workqueue that promises less than its own: the kernel would warn in
    the log, which is checked at the end of the group."""
    folder = "/mnt/net-refill"
    mount("3", "ipv4", folder, "nosharecache,timeo=50,rsize=65536,wsize=65536")
    with Churn(f"{folder}/net2", os.O_DIRECT) as one, Churn(f"{folder}/net3") as two:
        with queueing(NETWORKS["loss"]):
            revive()
            regions = [refilled(folder) for _ in range(10)]
            killed_mounts("/mnt/net-killed")
        turns = stop_all(one, two)
    umount(folder)
    print(f"regions allocated on a new connection: {regions}; {turns} rounds of verified I/O")
    expect_that("connections did not allocate regions", sum(map(bool, regions)) >= 5)


# READs of 1 MiB by O_DIRECT until standard input closes; prints when the first has succeeded,
# and when one has failed. It fills the memory of a failed READ with another pattern, which must
# then stay unchanged.
IMPATIENT = """
import mmap, os, select, sys
sys.path.insert(0, "/t/guest")
from harness import data
SIZE = 1 << 20
kept, memory = b"\\xc3" * SIZE, mmap.mmap(-1, SIZE)
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
good = 0
while not select.select([0], [], [], 0)[0]:
    memory[:] = b"\\xee" * SIZE
    try:
        os.preadv(fd, [memory], 0)
    except OSError:
        memory[:] = kept
        for _ in range(30):
            select.select([0], [], [], 0.05)
            if memory[:] != kept:
                sys.exit("memory of a READ that had failed was written to")
        print("a READ failed", flush=True)
        continue
    if memory[:] != data(SIZE, 5):
        sys.exit("a READ that succeeded has brought something else")
    if good == 0:
        print("at work", flush=True)
    good += 1
"""
# Allocates the memory that other processes have just freed, and watches it for some seconds.
HEIR = """
import mmap, time
size = 64 << 20
memory = mmap.mmap(-1, size)
page = b"\\x3c" * (1 << 20)
for i in range(0, size, 1 << 20): memory[i:i + (1 << 20)] = page
time.sleep(3)
for i in range(0, size, 1 << 20): assert memory[i:i + (1 << 20)] == page, "it was written to"
"""


def start(script, *args):
    """Start a process that runs Python text."""
    return subprocess.Popen([sys.executable, "-B", "-c", script, *args], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def said(job, what, seconds):
    """Return whether a process prints that within so many seconds, and has not printed it before."""
    return bool(select.select([job.stdout], [], [], seconds)[0]) and \
        job.stdout.readline() == f"{what}\n"


def late_answers(hard):
    """Kill processes, and let READs time out, while the server's packets are delayed."""
    if os.environ["CLIENT_MODULE"] == "c":
        raise Skip("the C client crashes at times, see Documentation/known-issues.rst")
    soft = "/mnt/net-soft"
    mount("3", "ipv4", soft, "soft,timeo=10,retrans=1,nosharecache")
    write_file(f"{hard}/late", data(1 << 20, 5))
    jobs = [start(IMPATIENT, f"{folder}/late") for folder in (soft, soft, hard, hard)]
    for job in jobs:
        expect_that("a reader did not begin", said(job, "at work", 60))
    shell("peer 'tc qdisc add dev eth0 root netem limit 10000 delay 900ms'")
    try:
        time.sleep(5)
        revive()
        for job in jobs[2:]:
            job.send_signal(signal.SIGKILL)
        heir = start(HEIR)
        for job in jobs[2:]:
            expect("how the process ended", job.wait(60), -signal.SIGKILL)
        output = heir.communicate(timeout=120)[0]
        expect(f"exit status of the heir ({output[-200:]})", heir.returncode, 0)
        for job in jobs[:2]:
            expect_that("no READ timed out", said(job, "a READ failed", 60))
        time.sleep(5)
    finally:
        shell("peer 'tc qdisc del dev eth0 root'")
        revive()
    for job in jobs[:2]:
        output = job.communicate(timeout=60)[0]
        expect(f"exit status of the reader ({output[-200:]})", job.returncode, 0)
    expect_that("content in the end", read_file(f"{hard}/late", os.O_DIRECT) == data(1 << 20, 5))
    for _ in range(30):
        try:
            expect_that("content in the end, soft mount",
                        read_file(f"{soft}/late", os.O_DIRECT) == data(1 << 20, 5))
            break
        except OSError:
            time.sleep(1)
    umount(soft)


def main():
    """The group."""
    seconds = 60 if LONG else 5
    folders = ["/mnt/net-4", "/mnt/net-3"]
    # rxe may stop when packets are duplicated, see Documentation/known-issues.rst; then the RPC
    # timer, by default of 60 s, closes the connection.
    mount("4.1", "ipv4", folders[0], "timeo=50")
    mount("3", "ipv6", folders[1], "timeo=50")
    shell("modprobe sch_netem && peer 'modprobe sch_netem'")
    # rxe takes minutes to recover from the other faults.
    for name, network in list(NETWORKS.items())[:None if LONG else 1]:
        with case(f"packets suffer from {name}"):
            bad_network(network, folders, seconds)
    if LONG:
        with case("connections break and allocate regions while packets are lost"):
            refills()
        with case("READs time out, and readers are killed, while answers are late"):
            late_answers(folders[0])
    for folder in folders:
        umount(folder)


main()

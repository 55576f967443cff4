# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The RDMA device is removed while a process writes, and added again.

First the client's device, then the server's. The removal must not hang: each user
of the device is notified and releases it. The mount is a hard one and continues when
a device is available again. The written data must be there.

Processes are also frozen while they wait for a Reply. That must affect nobody else.
"""

import contextlib
import itertools
import os
import select
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import wait

from faultio import grows, revive
from harness import LONG, Skip, case, counters, data, expect, expect_that, in_background, mount, \
    read_file, shell, sysctls, umount, write_file

FOLDER = "/mnt/removal"
SIZE = 8 << 20
TRACING = "cd /sys/kernel/tracing"
EVENTS = ["rpcrdma_client_remove_one", "rpcrdma_client_remove_one_done", "rpcrdma_client_add_one"]


def in_client(script):
    """Run shell text in this guest."""
    return shell(script)


def in_server(script):
    """Run shell text in the other guest."""
    return shell("peer " + shlex.quote(script))


def replug(run, seconds):
    """Remove the device within a time limit, and add it again after some seconds."""
    run(f"timeout {seconds} rdma link del rdma0 && sleep 2 && device_add")


def removed_while_writing(run, name, seconds=30):
    """Write, remove the device, continue to write, compare."""
    run(f"{TRACING} && echo >trace && echo 1 >events/rpcrdma/enable")
    path = f"{FOLDER}/{name}"
    content = data(SIZE, len(name))

    there_again = threading.Event()

    def write():
        for turn in itertools.count():
            if turn >= 3 and there_again.is_set():
                break
            part = turn % 3
            write_file(f"{path}.{part}", content)
            subprocess.run(["sync", "-f", f"{path}.{part}"], check=True)

    before = counters(FOLDER)
    writer = in_background(write)
    # Some WRITEs are answered, and most are not.
    grows(FOLDER, "read_chunks", before["read_chunks"] + 3, time.monotonic() + 30)
    expect("the writer has done", writer.done(), False)
    replug(run, seconds)
    there_again.set()
    writer.result(150)
    for part in range(3):
        expect_that(f"what was written is in {name}.{part}",
                    read_file(f"{path}.{part}") == content)
    text = run(f"{TRACING} && echo 0 >events/rpcrdma/enable && "
               "sed -n 's/^.*[0-9]: \\(rpcrdma_client_[a-z_]*\\): device=rdma0$/\\1/p' trace")
    expect("events of the device", [event for event in text.split() if event in EVENTS], EVENTS)


STAT = """
import os
while True:
    os.stat("/mnt/frozen")
    print(flush=True)
"""


@contextlib.contextmanager
def freezer():
    """Create a cgroup whose processes can be frozen: no event wakes a frozen process."""
    group = "/tmp/freezer/group"
    os.makedirs("/tmp/freezer", exist_ok=True)
    if subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", "/tmp/freezer"],
                      stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("the kernel has no CONFIG_CGROUP_FREEZER")
    os.mkdir(group)
    try:
        yield group
    finally:
        os.rmdir(group)
        shell("umount /tmp/freezer")


@contextlib.contextmanager
def queueing_discipline():
    """Have the server's packets pass a queueing discipline that can delay them. A device may become
    deaf when one is replaced, so it stays for the whole test."""
    shell("peer 'modprobe sch_netem; tc qdisc add dev eth0 root netem'")
    revive()
    try:
        yield
    finally:
        shell("peer 'tc qdisc del dev eth0 root'")
        revive()


@contextlib.contextmanager
def late_answers():
    """Delay the server's packets."""
    delay = "peer 'tc qdisc change dev eth0 root netem delay {}ms'"
    shell(delay.format(200))
    try:
        yield
    finally:
        shell(delay.format(0))


@contextlib.contextmanager
def processes_in(group, count):
    """Run processes that use the mount, in a cgroup. Thaw and end them, and unmount."""
    processes = [subprocess.Popen([sys.executable, "-B", "-c", STAT], stdout=subprocess.PIPE,
                                  bufsize=0) for _ in range(count)]
    try:
        for process in processes:
            write_file(f"{group}/cgroup.procs", b"%d" % process.pid)
        yield processes
    finally:
        write_file(f"{group}/freezer.state", b"THAWED")
        for process in processes:
            process.kill()
            process.wait()
        umount("/mnt/frozen")


@contextlib.contextmanager
def frozen(group, processes):
    """Freeze these processes of a cgroup while they wait, let their Replies arrive, and thaw them at
    the end."""
    state = f"{group}/freezer.state"
    with late_answers():
        for process in processes:
            process.stdout.readline()
        write_file(state, b"FROZEN")
        time.sleep(2)
        expect("state of the processes", read_file(state), b"FROZEN\n")
        yield
        write_file(state, b"THAWED")


def removed_while_frozen(group):
    """A Reply arrives for a process that is frozen while it waits. That must not delay the removal."""
    mount("3", "ipv4", "/mnt/frozen", "noac")
    with processes_in(group, 1) as processes:
        with frozen(group, processes):
            removal = in_background(lambda: in_client("rdma link del rdma0"))
            done, _ = wait([removal], 20)
        expect_that("the device was kept for 20 s", done)
        in_client("device_add")
        output = processes[0].stdout
        while select.select([output], [], [], 0)[0]:
            os.read(output.fileno(), 100)
        end = time.monotonic() + 90
        while not select.select([output], [], [], 3)[0]:
            expect_that("the process does not continue", time.monotonic() < end)


def used_while_frozen(group):
    """Replies arrive for as many frozen processes as there are credits. Another process must be able to
    use the mount."""
    count = 4
    # The server grants what is set when the connection is made.
    with sysctls(in_server, "/proc/sys/sunrpc/svc_rdma", {"max_requests": count}):
        mount("3", "ipv4", "/mnt/frozen", "noac")
    with processes_in(group, count) as processes:
        with frozen(group, processes):
            done, _ = wait([in_background(lambda: os.stat("/mnt/frozen"))], 20)
        expect_that("the frozen processes kept their credits for 20 s", done)


def main():
    """The group."""
    mount("4.1", "ipv4", FOLDER)
    try:
        with case("the client's device is removed in the middle of writing"):
            slow = os.environ["CLIENT_MODULE"] == "c"
            if slow and not LONG:
                raise Skip("the C client takes 78 s, see Documentation/known-issues.rst")
            removed_while_writing(in_client, "client", 120 if slow else 30)
        with case("the server's device is removed in the middle of writing"):
            removed_while_writing(in_server, "server")
        with case("the client's device is removed while a process that has a Reply is frozen"):
            if os.environ["CLIENT_MODULE"] == "c":
                raise Skip("the C client takes 78 s, see Documentation/known-issues.rst")
            with freezer() as group, queueing_discipline():
                removed_while_frozen(group)
        with case("processes that have a Reply are frozen, and another one uses the mount"):
            if os.environ["CLIENT_MODULE"] == "c":
                raise Skip("the C client releases credits when the process continues")
            with freezer() as group, queueing_discipline():
                used_while_frozen(group)
    finally:
        umount(FOLDER)


main()

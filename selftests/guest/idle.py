# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""sunrpc closes a connection that was idle for 300 s, and the next use opens another one."""

import os
import time

from harness import Skip, case, counters, data, expect, expect_that, mount, read_file, shell, \
    umount, write_file

FOLDER = "/mnt/idle"
EVENTS = "/sys/kernel/tracing/events/sunrpc"
TRACE = "/sys/kernel/tracing/trace"
# Seconds: sunrpc's timeout, and by how much a slow guest may be late.
IDLE, LATE = 300, 30


def set_trace(value):
    """Enable or disable the events of disconnects; returns those that were seen."""
    for event in "xprt_disconnect_auto", "xprt_disconnect_force":
        write_file(f"{EVENTS}/{event}/enable", value)
    with open(TRACE, encoding="ascii") as file:
        lines = [line for line in file if "xprt_disconnect_" in line]
    write_file(TRACE, b"")
    return lines


def ours():
    """Return the connections to the server's RDMA port, as rdma shows them."""
    return shell("connections", check=False).splitlines()


def disconnected(content):
    """The connection ends once, after IDLE seconds."""
    connections, begun = counters(FOLDER)["connect_count"], time.monotonic()
    expect_that("there is no connection", ours())
    set_trace(b"1")
    try:
        while ours():
            expect_that(f"the connection is there after {IDLE + LATE} s",
                        time.monotonic() < begun + IDLE + LATE)
            time.sleep(1)
        took = time.monotonic() - begun
        # A loss that our own teardown reports would follow at once.
        time.sleep(5)
    finally:
        seen = set_trace(b"0")
    print(f"idle for {took:.0f} s; {''.join(seen)}".strip())
    expect_that(f"the connection ended after {took:.0f} s", took > IDLE - 5)
    expect("disconnects that sunrpc traced", [line.count("disconnect_auto:") for line in seen], [1])
    expect("connections that were made meanwhile", counters(FOLDER)["connect_count"], connections)
    expect_that("other content", read_file(f"{FOLDER}/file", os.O_DIRECT) == content)
    expect("connections", counters(FOLDER)["connect_count"], connections + 1)


def main():
    """The group."""
    # NFSv4 renews its lease, so its connection is never idle.
    with case(f"version 3: an idle connection ends after {IDLE} s, and the next use makes one"):
        if os.environ["CLIENT_MODULE"] == "c":
            raise Skip("the C client was not looked at")
        mount("3", "ipv4", FOLDER, "nolock")
        content = data(300_000, 9)
        write_file(f"{FOLDER}/file", content, os.O_SYNC)
        expect_that("other content", read_file(f"{FOLDER}/file", os.O_DIRECT) == content)
        disconnected(content)
        umount(FOLDER)


main()

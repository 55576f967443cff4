# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Connections are broken by force, again and again, under verified I/O.

Client: writing a transport's address in sysfs makes sunrpc break the connection,
whatever is in flight. Server: nfsd closes the connections of an address that is
removed; the test adds the address to the loopback device and removes it there, so
that the network itself stays as it is. In the debug kernel, sunrpc's own fault
injection breaks connections while they send (client) and before a request is
processed (server).
"""

import os
import random
import time

from faultio import Churn, force_disconnect, grows, print_what_waits, stop_all
from harness import DEBUG, LONG, PATIENCE, SERVER, Skip, case, counters, expect_that, mount, shell, umount

FAIL = "/sys/kernel/debug/fail_sunrpc"
CHANCE = random.Random(8166)
PREFIX = {"ipv4": 32, "ipv6": 128}
MOUNTS = {"/mnt/dis-4": ("4.1", "ipv4"), "/mnt/dis-3": ("3", "ipv6")}


# In the server's guest: runs the ip commands in a file, until the file is empty.
BREAKER = """
while :; do
    until [ -e /t/break ]; do sleep 0.02; done
    [ -s /t/break ] || break
    ip -batch /t/break && rm /t/break || exit 1
done
rm /t/break
"""


def from_client(families):
    """Have sunrpc break the client's connections to the server's addresses."""
    for family in families:
        force_disconnect(SERVER[family])


def from_server(families):
    """Have nfsd close the connections of its addresses; without addresses, end the breaker."""
    with open("/t/break.new", "w", encoding="ascii") as file:
        for family in families:
            for verb in "add", "del":
                file.write(f"address {verb} {SERVER[family]}/{PREFIX[family]} dev lo\n")
    os.rename("/t/break.new", "/t/break")
    end = time.monotonic() + 30
    while os.path.exists("/t/break"):
        expect_that("the server's guest does not take the addresses away",
                    time.monotonic() < end)
        time.sleep(0.01)


def connections(folder):
    """Return how often the mount has connected."""
    return counters(folder)["connect_count"]


def comes_back(folder, before, useless):
    """Wait until the mount has a new connection and, unless that connection is to be broken
    before it is usable, a Reply on it. Without a Reply, each attempt is delayed more than the last."""
    end = time.monotonic() + PATIENCE
    try:
        grows(folder, "connect_count", before, end)
        if not useless:
            grows(folder, "recvs", counters(folder)["recvs"], end)
    except AssertionError:
        print_what_waits()
        raise


def forced(count, force):
    """Break each mount's connection `count` times, and check each time that it reconnects."""
    churns = [Churn(f"{folder}/forced-{version}-{i}", flags, meta=version != "3")
              for folder, (version, _) in MOUNTS.items()
              for i, flags in enumerate((0, os.O_DIRECT))]
    families = [family for _, family in MOUNTS.values()]
    started, slowest = time.monotonic(), 0
    try:
        for number in range(count):
            before, begun = {folder: connections(folder) for folder in MOUNTS}, time.monotonic()
            force(families)
            for folder in MOUNTS:
                comes_back(folder, before[folder], number % 20 == 10)
            slowest = max(slowest, time.monotonic() - begun)
            for churn in churns:
                churn.runs()
            time.sleep(CHANCE.random() * 0.1)
        seconds = time.monotonic() - started
        turns = stop_all(*churns)
    finally:
        for churn in churns:
            churn.kill()
    print(f"{count * len(MOUNTS)} disconnects in {seconds:.0f} s, the slowest took "
          f"{slowest:.1f} s; {turns} rounds of verified I/O")


def injected(count, side):
    """Break connections `count` times by sunrpc's fault injection, on one side."""
    run = shell if side == "client" else lambda text: shell(f"peer '{text}'")
    if not os.path.isdir(FAIL):
        raise Skip("the kernel has no CONFIG_FAIL_SUNRPC")
    # A server also sends as a client: callbacks. (The C module lacks this operation for them, and
    # sunrpc calls it nevertheless.)
    sends = side == "client" or os.environ["SERVER_MODULE"] == "rust"
    ignored = {"client": "N" if sends else "Y", "server": "N" if side == "server" else "Y"}
    churns = [Churn(f"{folder}/injected-{version}-{i}", flags)
              for folder, (version, _) in MOUNTS.items() for i, flags in enumerate((0, os.O_DIRECT))]
    begun, before = time.monotonic(), sum(map(connections, MOUNTS))
    try:
        run(f"cd {FAIL} && echo Y >ignore-cache-wait && "
            f"echo {ignored['client']} >ignore-client-disconnect && "
            f"echo {ignored['server']} >ignore-server-disconnect && "
            f"echo 0 >verbose && echo 23 >interval && "
            f"echo 100 >probability && echo {count} >times")
        left, fell = count, begun
        while (now := int(run(f"cat {FAIL}/times"))) > 0:
            if now < left:
                left, fell = now, time.monotonic()
            expect_that(f"{left} are left, and none was injected for {PATIENCE} s",
                        time.monotonic() < fell + PATIENCE)
            for churn in churns:
                churn.runs()
            time.sleep(1)
        turns = stop_all(*churns)
    finally:
        run(f"echo 0 >{FAIL}/probability")
        for churn in churns:
            churn.kill()
    grown = sum(map(connections, MOUNTS)) - before
    print(f"{count} injected, {grown} new connections in {time.monotonic() - begun:.0f} s; "
          f"{turns} rounds of verified I/O")
    expect_that(f"only {grown} new connections", grown > count // 10)


def main():
    """The group."""
    # With --long 1,000 in all, in addition to the injected ones.
    count = 500 if LONG else 20 if DEBUG else 40
    for folder, (version, family) in MOUNTS.items():
        mount(version, family, folder)
    each = count // len(MOUNTS)
    with case(f"{count} forced disconnects on the client"):
        forced(each, from_client)
    with case(f"{count} forced disconnects on the server"):
        with open("/t/breaker", "w", encoding="ascii") as file:
            file.write(BREAKER)
        shell("peer 'setsid bash /t/breaker >/dev/null 2>&1 </dev/null &'")
        forced(each, from_server)
        from_server([])
    for side in "client", "server":
        with case(f"{count} disconnects injected on the {side}"):
            injected(count, side)
    for folder in MOUNTS:
        umount(folder)


main()

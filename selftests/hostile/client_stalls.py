# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Servers that stall the Sends of this module's client.

The server accepts with an RNR retry count of 7, which the client's queue pair adopts and which means
forever, and rarely posts a Receive. rxe itself ends a connection when a Send has waited for some 4 s.
To make the stall last, the server posts a Receive every 2 s, which restarts that timer.
"""

import os
import subprocess
import time

import peer
from client_cases import TABLE
from cases import Failed, Skip

NO_RNR = peer.IWARP and "iWARP has no RNR retries: a Send without a Receive ends the connection"
# Seconds that a killed process may take to end. The watchdog sees a stall after 10 to 20 s.
KILLED = 25


@TABLE.case("processes killed while the server takes nothing end", skip=NO_RNR)
def _killed(mount):
    if mount.kind == "c":
        raise Skip("the C client has other bounds")
    fake = mount.fake
    # The file is open, so the next Call of a reader is a READ, with a Write chunk.
    data = os.open(mount.path("data"), os.O_RDONLY | os.O_DIRECT)
    fake.posted = 2
    fake.do(fake.hang_up)
    mount.getattr()
    readers = [subprocess.Popen(["dd", "of=/dev/null", "bs=4k", "count=1"], stdin=data,
                                stderr=subprocess.DEVNULL) for _ in range(12)]
    os.close(data)
    try:
        time.sleep(2)
        for reader in readers:
            reader.kill()
        begun = time.monotonic()
        slot = 2
        while any(reader.poll() is None for reader in readers):
            if (waited := time.monotonic() - begun) > KILLED:
                left = sum(reader.poll() is None for reader in readers)
                raise Failed(f"{left} of {len(readers)} processes are there {waited:.0f} s after "
                             "they were killed")
            if slot < 12 and waited > 2 * (slot - 1):
                fake.do(lambda number=slot: fake.end and fake.end.post_receive(number))
                slot += 1
            time.sleep(0.1)
        mount.notes.append(f"ended after {time.monotonic() - begun:.1f} s")
    finally:
        fake.posted = None
        fake.do(fake.hang_up)


@TABLE.case("a server that accepts, takes nothing and hangs up has pauses between connections",
            skip=NO_RNR)
def _accept_and_drop(mount):
    fake = mount.fake
    before = fake.connections
    fake.posted = 0
    fake.do(fake.hang_up)
    reader = subprocess.Popen(["stat", mount.path("data")], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            fake.do(fake.hang_up)
            time.sleep(0.05)
        made = fake.connections - before
        mount.notes.append(f"{made} connections in 4 s")
        if mount.kind == "rust" and made > 4:
            raise Failed(f"{made} connections in 4 s")
    finally:
        fake.posted = None
        fake.do(fake.hang_up)
        reader.wait(60)

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Servers that stall the Sends of this module's client.

The server accepts with an RNR retry count of 7, which the client's queue pair adopts and which means
forever, and rarely posts a Receive. rxe itself ends a connection when a Send has waited for some 4 s.
To make the stall last, the server posts a Receive every 2 s, which restarts that timer.
"""

import subprocess
import sys
import threading
import time

import peer
from client_cases import TABLE
from cases import Failed, Skip, shell, views
from fake import READLINK

NO_RNR = peer.IWARP and "iWARP has no RNR retries: a Send without a Receive ends the connection"
# Seconds that a killed process may take to end. The watchdog sees a stall after 10 to 15 s.
KILLED = 25
# The Receives that a server posts before it stalls a client, and the Calls that stall: at one Receive
# every 2 s, these Calls take much longer than KILLED.
RECEIVES, ASKED = 4, 28


# A process with many threads, each of which requests the attributes of an open file.
ASKER = """
import os, sys, threading
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    threading.Thread(target=os.fstat, args=(int(sys.argv[1]),)).start()
"""


def watchdog():
    """Return how often the client's watchdog has closed a connection, from the kernel log."""
    return shell("dmesg").count("has not acknowledged a message for 10 s; disconnecting")


def start(jobs, *args, **options):
    """Start a process, and add it to the jobs."""
    jobs.append(subprocess.Popen(args, stdout=subprocess.PIPE, text=True, **options))
    return jobs[-1]


def stall(mount, jobs):
    """Have the client send a READLINK, which has a Reply chunk, and stall behind GETATTRs. Returns
    the READLINK, for which the last job waits."""
    fake, asked = mount.fake, threading.Event()
    fake.posted = RECEIVES
    fake.do(fake.hang_up)
    mount.getattr()
    fake.do(lambda: setattr(fake.end, "refill", True))
    asker = start(jobs, sys.executable, "-c", ASKER, str(mount.open), str(ASKED),
                  pass_fds=[mount.open], stdin=subprocess.PIPE)
    asker.stdout.readline()
    fake.answer_next(READLINK, lambda call: asked.set())
    start(jobs, "readlink", mount.path("link"))
    if not asked.wait(10):
        raise Failed("the client never sent READLINK")
    fake.do(lambda: setattr(fake.end, "refill", False))
    asker.stdin.write("\n")
    asker.stdin.flush()
    # Shorter than the mount's timeout, after which the client would close the connection.
    time.sleep(1)
    return fake.spoiled


def killed(mount, answered):
    """Kill the processes. Their regions are invalidated behind the stalled Sends, so that the one with
    a Reply chunk ends with the connection."""
    if mount.kind == "c":
        raise Skip("the C client has other bounds")
    fake, jobs, before = mount.fake, [], watchdog()
    try:
        call = stall(mount, jobs)
        if answered:
            fake.do(call.good)
            time.sleep(0.2)
        connections = fake.connections
        for job in jobs:
            job.kill()
        begun = time.monotonic()
        slot = RECEIVES
        while any(job.poll() is None for job in jobs):
            if (waited := time.monotonic() - begun) > KILLED:
                raise Failed(f"a process is there {waited:.0f} s after it was killed")
            if waited > 2 * (slot - RECEIVES):
                fake.do(lambda number=slot: fake.end and fake.end.post_receive(number))
                slot += 1
            time.sleep(0.1)
        mount.notes.append(f"ended after {time.monotonic() - begun:.1f} s")
        if fake.connections != connections or watchdog() != before + 1:
            raise Failed("the connection has ended for another reason than the stall")
        fake.posted = None
        mount.getattr()
        if (ends := [view["last_ended"] for view in views("client")]) != ["stalled"]:
            raise Failed(f"the live view says that the connection ended for {ends}")
    finally:
        fake.posted = None
        fake.do(fake.hang_up)
        for job in jobs:
            job.kill()


TABLE.case("a process killed while the server takes nothing ends", skip=NO_RNR, answered=False)(killed)
TABLE.case("a process killed while its answer waits for a stalled Send ends", skip=NO_RNR,
           answered=True)(killed)


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

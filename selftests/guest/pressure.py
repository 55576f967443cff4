# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Connections are broken by force while the client writes a file larger than its free memory."""

import os
import subprocess
import sys
import time

from faultio import Churn, force_disconnect, grows, stop_all
from harness import EXPORT, SERVER, case, counters, expect, expect_that, mount, shell, umount

FOLDER = "/mnt/pressure"
# The memory that the client has left, and the size of the file it writes through its page cache, in MiB.
LEFT, WRITTEN = 160, 400
TIMES = 20

# Writes a large file in a loop until its input ends; prints its checksum and the number of rounds.
WRITER = """
import hashlib, os, select, sys
sys.path.insert(0, "/t/guest")
from harness import data
rounds = 0
while not rounds or not select.select([0], [], [], 0)[0]:
    checksum, fd = hashlib.sha256(), os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for part in range(int(sys.argv[2])):
        piece = memoryview(data(1 << 20, part + rounds))
        checksum.update(piece)
        while piece:
            piece = piece[os.write(fd, piece):]
    os.fsync(fd)
    os.close(fd)
    rounds += 1
print(checksum.hexdigest(), rounds)
"""


def reclaimed():
    """Return the number of pages that the kernel has reclaimed."""
    with open("/proc/vmstat", encoding="ascii") as file:
        numbers = dict(line.split() for line in file)
    return sum(int(numbers[name]) for name in ("pgsteal_kswapd", "pgsteal_direct"))


def take_memory():
    """Occupy memory with a file in a tmpfs."""
    shell(f"""mkdir -p /run/hog && mount -t tmpfs -o size=100% hog /run/hog
        free=$(sed -n "s/^MemAvailable: *\\([0-9]*\\) kB/\\1/p" /proc/meminfo)
        fallocate -l $((free / 1024 - {LEFT}))M /run/hog/file""")


def broken():
    """Break connections by force under verified I/O, and while a file larger than memory is written."""
    before, churns = reclaimed(), [Churn(f"{FOLDER}/pressure-{i}", flags, meta=True)
                                   for i, flags in enumerate((0, os.O_DIRECT))]
    try:
        writer = subprocess.Popen([sys.executable, "-B", "-c", WRITER, f"{FOLDER}/large", str(WRITTEN)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(TIMES):
            connections, end = counters(FOLDER)["connect_count"], time.monotonic() + 150
            force_disconnect(SERVER["ipv4"])
            grows(FOLDER, "connect_count", connections, end)
            grows(FOLDER, "recvs", counters(FOLDER)["recvs"], end)
            for churn in churns:
                churn.runs()
            time.sleep(1)
        checksum, rounds = writer.communicate("", timeout=300)[0].split()
        turns = stop_all(*churns, seconds=200)
    finally:
        for job in [writer] + churns:
            job.kill()
    found = shell(f"peer -t 300 'sha256sum <{EXPORT}/large'").split()[0]
    expect("checksum of the large file on the server", found, checksum)
    pages = reclaimed() - before
    print(f"{TIMES} disconnects, {turns} rounds of verified I/O, the large file written {rounds} "
          f"times, {pages} pages reclaimed")
    # The rest of the large file may still be cached.
    expect_that("memory was not scarce", pages > (WRITTEN - LEFT) * 256)


def main():
    """The group."""
    with case(f"{TIMES} forced disconnects with {LEFT} MiB of memory"):
        mount("4.1", "ipv4", FOLDER)
        take_memory()
        try:
            broken()
        finally:
            shell("umount /run/hog")
        umount(FOLDER)


main()

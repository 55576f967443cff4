# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Memory is swapped out to a file on the mount.

A process in a memory cgroup uses three times its limit, so that most of its pages
have to be swapped out to the server and back; the process verifies them. Meanwhile the
link is taken down, so the kernel has to reconnect while its reclaim waits for the
connection.
"""

import os
import subprocess
import sys
import time

from faultio import no_link
from harness import EXPORT, ONE_GUEST, Delta, Skip, case, expect, expect_that, mount, shell, \
    umount

FOLDER = "/mnt/swap"
CGROUP = "/sys/fs/cgroup/swap"
SWAP_MIB = 256
LIMIT_MIB = 16

# Fills memory, reports it, waits for a line, and verifies every page, some of them twice.
USER = """
import hashlib, mmap, random, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
pages, order = int(sys.argv[2]) * 256, random.Random(5)
memory = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page = lambda n: hashlib.md5(b"%d" % n).digest() * 256
for n in range(pages):
    memory[n * 4096:(n + 1) * 4096] = page(n)
print("filled", flush=True)
sys.stdin.readline()
for n in order.sample(range(pages), 2000) + list(range(pages)):
    if memory[n * 4096:(n + 1) * 4096] != page(n):
        sys.exit(f"page {n} is not what it was")
print("verified", flush=True)
"""


def cgroup():
    """Create a cgroup with little memory."""
    shell("mountpoint -q /sys/fs/cgroup || mount -t cgroup2 none /sys/fs/cgroup\n"
          "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    os.makedirs(CGROUP, exist_ok=True)
    # A hard limit would also count the program's own pages, and might leave too little memory.
    with open(f"{CGROUP}/memory.high", "w", encoding="ascii") as file:
        file.write(str(LIMIT_MIB << 20))


def swapped():
    """Return how many MiB of the cgroup are swapped out."""
    with open(f"{CGROUP}/memory.swap.current", encoding="ascii") as file:
        return int(file.read()) >> 20


def swap(version, family, link=False):
    """Enable swap on a file of one mount."""
    mount(version, family, FOLDER)
    shell(f"peer 'dd if=/dev/zero of={EXPORT}/swapfile bs=1M count={SWAP_MIB} status=none "
          f"&& chmod 600 {EXPORT}/swapfile'")
    shell(f"mkswap {FOLDER}/swapfile && swapon {FOLDER}/swapfile")
    try:
        with Delta(FOLDER) as delta:
            use(link)
        expect_that(f"{delta.read_chunks} Read chunks, {delta.write_chunks} Write chunks",
                    min(delta.read_chunks, delta.write_chunks) > 100)
        expect_that(f"the connection was made {delta.connect_count} times",
                    (delta.connect_count > 0) == link)
    finally:
        shell("swapoff -a")
    umount(FOLDER)
    shell(f"peer rm {EXPORT}/swapfile")


def use(link):
    """Run the process that needs more memory than its limit."""
    user = subprocess.Popen([sys.executable, "-c", USER, CGROUP, str(3 * LIMIT_MIB)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
    try:
        expect("first line", user.stdout.readline(), "filled\n")
        expect_that(f"{swapped()} MiB are swapped out", swapped() > LIMIT_MIB)
        user.stdin.write("\n")
        user.stdin.flush()
        if link:
            time.sleep(1)
            with no_link():
                time.sleep(8)
        output = user.communicate(timeout=200)[0]
        expect("last line", output, "verified\n")
        expect("exit status", user.returncode, 0)
    finally:
        user.kill()


def main():
    """The group."""
    with case("a cgroup with little memory"):
        cgroup()
    with case("swap on NFSv4.1"):
        swap("4.1", "ipv4")
    with case("swap on NFSv3"):
        swap("3", "ipv6")
    with case("swap while the connection is lost and made again"):
        if ONE_GUEST:
            raise Skip("one guest has no link to lose")
        swap("4.1", "ipv4", link=True)


main()

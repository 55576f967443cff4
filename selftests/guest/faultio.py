# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Verified I/O that continues while something breaks, and a server whose files are on a disk."""

import contextlib
import glob
import hashlib
import os
import socket
import subprocess
import sys
import time

from harness import EXPORT, PATIENCE, SERVER, counters, data, expect, expect_that, shell

DISK = f"""
modprobe -a loop ext4
mkdir -p /srv/disk {EXPORT} /var/lib/nfs/nfsdcld
mount -o loop /t/server.img /srv/disk &&
mkdir -p /srv/disk/export /srv/disk/nfsdcld &&
mount --bind /srv/disk/export {EXPORT} &&
mount --bind /srv/disk/nfsdcld /var/lib/nfs/nfsdcld
"""


def print_what_waits():
    """Print what RPCs and connections wait for, in both guests."""
    for where, script in ("client", "what_waits"), ("server", "peer what_waits"):
        print(f"{where}:\n{shell(script, check=False)}")


def revive():
    """Re-create those devices of both guests that no longer answer the CM."""
    print(shell("devices_revive; peer devices_revive"), end="", flush=True)


@contextlib.contextmanager
def no_link():
    """Take the client's link down while the block runs."""
    shell("link_set off")
    try:
        yield
    finally:
        shell("link_set on")
        revive()
        if os.environ["CLIENT_MODULE"] == "c":
            connect_anew()


def serve_from_disk():
    """Attach a disk to the server, and export a file system on it."""
    shell(f"""peer 'server_stop; killall nfsdcld; exportfs -ua; umount {EXPORT}
        truncate -s 400M /t/server.img && mkfs.ext4 -q -F /t/server.img && {DISK.strip()} &&
        chmod 1777 {EXPORT} && server_start'""")


def write_in_time(path, text):
    """Write to a file of a transport, in a process that is killed and started again when it
    sleeps: sunrpc may leave it sleeping, see Documentation/known-issues.rst. Returns whether the
    transport exists.

    Does not use os.fork(): the child would share pages into which a thread has a direct READ in
    flight. A write to them would then give this process other pages, which the READ does not fill."""
    end, patience, states = time.monotonic() + 90, 0.1, []
    while time.monotonic() < end:
        with subprocess.Popen(["sh", "-c", 'exec 3>"$0" && echo && printf %s "$1" >&3', path, text],
                              stdout=subprocess.PIPE) as job:
            job.stdout.readline()
            try:
                ended = job.wait(patience)
            except subprocess.TimeoutExpired:
                job.kill()
                ended = job.wait()
        if ended == 0:
            return True
        patience += 0.02
        try:
            with open(f"{os.path.dirname(path)}/xprt_state", encoding="ascii") as file:
                states.append(file.read().strip())
        except OSError:
            return False
    raise AssertionError(f"{path} cannot be written; the transport was {states[-5:]}")


def break_transports(address):
    """Have sunrpc break the transports that lead to `address`, by writing the same address to them.
    Returns how many there are."""
    found = 0
    for path in glob.glob("/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/dstaddr"):
        try:
            with open(path, encoding="ascii") as file:
                leads_to = file.read().strip()
        except OSError:
            # It is being destroyed.
            continue
        if leads_to != address:
            continue
        found += write_in_time(path, address)
    return found


def grows(folder, name, value, end):
    """Wait until a counter of the mount exceeds `value`."""
    while counters(folder)[name] <= value:
        expect_that(f"{folder}: {name} stays {value}", time.monotonic() < end)
        time.sleep(0.01)


def force_disconnect(address):
    """Break the transports that lead to `address`, of which there must be one."""
    expect_that(f"no transport to {address} in sysfs", break_transports(address) > 0)


def connect_anew():
    """Make the C client reconnect after the CM has reported the server as unreachable, which it
    does when the neighbour is resolved again after an outage: see Documentation/known-issues.rst."""
    for address in SERVER.values():
        reached(address)
        break_transports(address)


def reached(address):
    """Wait until the server's neighbour entry is valid again."""
    end = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, 2049), 10).close()
        except OSError:
            expect_that(f"{address} cannot be reached", time.monotonic() < end)
            time.sleep(0.2)


# Writes files of several sizes, syncs them, reads them back past all caches and
# compares, repeatedly until its standard input closes; then all of them once more.
# With "meta", also runs operations that must not be executed twice: it creates,
# renames and removes a directory.
CHURN = """
import mmap, os, select, sys
sys.path.insert(0, "/t/guest")
from harness import data
folder, flags, meta = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "meta"
SIZES = 4096, 1 << 20, 65536, 300 * 4096, 512, 262144
memory = mmap.mmap(-1, 2 << 20)
wrote = {}

def check(name, size, turn, when):
    fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_DIRECT)
    memory[:] = b"\\xee" * len(memory)
    got = os.preadv(fd, [memory], 0)
    os.close(fd)
    if got != size or memory[:size] != data(size, turn):
        sys.exit(f"{name} of turn {turn} is not what was written, {when}: {got} bytes")

turn = 0
while not select.select([0], [], [], 0)[0]:
    name, size = f"churn-{turn % 7}", SIZES[turn % len(SIZES)]
    memory[:size] = data(size, turn)
    fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o644)
    part = memoryview(memory)[:size]
    while part:
        part = part[os.write(fd, part):]
    os.fsync(fd)
    os.close(fd)
    wrote[name] = size, turn
    check(name, size, turn, "at once")
    if meta:
        os.mkdir(f"{folder}/d{turn}")
        os.rename(f"{folder}/d{turn}", f"{folder}/e{turn}")
        os.rmdir(f"{folder}/e{turn}")
    if turn == 0:
        print("at work", flush=True)
    turn += 1
for name, (size, at) in wrote.items():
    check(name, size, at, "in the end")
print(turn, *(f"{name}:{size}:{at}" for name, (size, at) in wrote.items()))
"""


class Churn:
    """Verified reads and writes in a directory of a mount, by a process of its own, which is
    running when the constructor returns."""

    def __init__(self, folder, flags=0, meta=False):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.job = subprocess.Popen(
            [sys.executable, "-B", "-c", CHURN, folder, str(flags), "meta" if meta else ""],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect("first line of the verified I/O", self.job.stdout.readline(), "at work\n")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def runs(self):
        """Fail unless the process is running."""
        if self.job.poll() is not None:
            raise AssertionError(f"verified I/O ended early: {self.job.stdout.read()[-300:]}")

    def end(self):
        """Have the process end, and do not wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self.job.stdin.write("\n")
            self.job.stdin.flush()

    def stop(self, seconds=PATIENCE):
        """End the process. Neither it nor a comparison with the server's own disk may find a fault.
        Returns the number of rounds."""
        try:
            output = self.job.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            print_what_waits()
            raise
        expect(f"exit status of the verified I/O ({output[-300:]})", self.job.returncode, 0)
        turns, *files = output.split()
        expect_that("no verified I/O was done", int(turns) > 0)
        known = {}
        for file in files:
            name, size, turn = file.split(":")
            known[name] = hashlib.sha256(data(int(size), int(turn))).hexdigest()
        path = f"{EXPORT}/{os.path.basename(self.folder)}"
        sums = shell(f"peer 'cd {path} && sha256sum {' '.join(known)}'").split()
        expect("content on the server", dict(zip(sums[1::2], sums[0::2])), known)
        return int(turns)

    def kill(self):
        """Kill the process."""
        self.job.kill()
        self.job.wait(60)


def stop_all(*churns, seconds=PATIENCE):
    """End all of these processes at once: see `Churn.stop`. Returns their rounds together."""
    for churn in churns:
        churn.end()
    return sum(churn.stop(seconds) for churn in churns)

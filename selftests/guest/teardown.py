# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Unmounting while I/O hangs, and modules that are in use."""

import errno
import os
import subprocess
import sys
import time

from faultio import no_link
from harness import EXPORT, case, data, expect, expect_that, mount, shell, umount

MODULE = {"c": "rpcrdma", "rust": "rpcrdma_rs"}
CLIENT, SERVER = (MODULE[os.environ[side]] for side in ("CLIENT_MODULE", "SERVER_MODULE"))

# Errors of I/O that is aborted by force: the NFS client passes on the kernel's own
# ERESTARTSYS.
ENDED = {errno.EIO, 512}

# Reads or writes 1 MiB by O_DIRECT repeatedly; reports the first success; prints the
# errno at the end.
BUSY = """
import mmap, os, sys
memory = mmap.mmap(-1, 1 << 20)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.pwrite(fd, memory, 0)
print("ready", flush=True)
try:
    while True:
        os.pwrite(fd, memory, 0) if sys.argv[2] == "write" else os.preadv(fd, [memory], 0)
except OSError as error:
    print(error.errno, flush=True)
    os._exit(1)
"""


def busy(path, what):
    """Start a process that reads or writes continuously."""
    job = subprocess.Popen([sys.executable, "-c", BUSY, path, what],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect("first line of the process", job.stdout.readline(), "ready\n")
    return job


def no_connection_left():
    """Check that the client has no RDMA resource left."""
    left = shell("settle >/dev/null; rdma_leftovers || :").strip()
    expect("RDMA resources of the client", left, "")


def refused(run, name):
    """rmmod is refused, and says why."""
    output = run(f"rmmod {name} 2>&1 && echo removed || :")
    expect_that(f"rmmod said '{output.strip()}'", "is in use" in output)


def forced(folder):
    """umount -f while the link is down: I/O ends with EIO, and the mount is removed."""
    mount("3", "ipv4", folder, "nolock")
    jobs = [busy(f"{folder}/forced-{what}", what) for what in ("read", "write")]
    time.sleep(0.5)
    try:
        with no_link():
            started = time.monotonic()
            time.sleep(1)
            # Without the helper, which would query the server's mountd.
            while shell(f"umount -i -f {folder} 2>&1 && echo gone || :").strip() != "gone":
                expect_that("umount -f does not succeed", time.monotonic() < started + 60)
                time.sleep(0.5)
            seconds = time.monotonic() - started
            seen = [int(job.communicate(timeout=30)[0]) for job in jobs]
            expect_that(f"the processes saw errno {seen}", set(seen) <= ENDED)
            expect_that("it is mounted still", not os.path.ismount(folder))
    finally:
        for job in jobs:
            job.kill()
    print(f"unmounted after {seconds:.1f} s")
    no_connection_left()


def lazy(folder):
    """umount -l while the link is down returns at once; the I/O continues when the link is up."""
    mount("4.1", "ipv6", folder)
    path = f"{folder}/lazy"
    job = subprocess.Popen(
        [sys.executable, "-B", "-c", f'''
import os, sys
sys.path.insert(0, "/t/guest")
from harness import data
fd = os.open("{path}", os.O_WRONLY | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
os.write(fd, data(6 << 20, 9))
os.fsync(fd)
os.close(fd)'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    expect("first line of the process", job.stdout.readline(), "ready\n")
    with no_link():
        job.stdin.write("\n")
        job.stdin.flush()
        time.sleep(1)
        shell(f"timeout 10 umount -i -l {folder}")
        expect_that("it is mounted still", not os.path.ismount(folder))
        expect("the process while the link is down", job.poll(), None)
    expect("how the process ended", job.wait(90), 0)
    with open("/tmp/lazy", "wb") as file:
        file.write(data(6 << 20, 9))
    expect("checksum on the server", shell(f"peer 'sha256sum <{EXPORT}/lazy'"),
           shell("sha256sum </tmp/lazy"))
    os.unlink("/tmp/lazy")
    no_connection_left()


def interrupted(folder):
    """A mount is killed while it connects: to an address that does not resolve, and while the link is
    down. The kernel log is checked at the end of the group: a workqueue that waits for one which
    promises less would cause a warning there."""
    def attempts(address):
        os.makedirs(folder, exist_ok=True)
        for seconds in "0.3", "2", "5":
            started = time.monotonic()
            shell(f"timeout -s KILL {seconds} mount -t nfs -o vers=4.1,proto=rdma,port=20049,retry=0 "
                  f"{address}:/ {folder}", check=False)
            took = time.monotonic() - started
            expect_that(f"a killed mount took {took:.1f} s", took < float(seconds) + 10)
            expect_that("it is mounted", not os.path.ismount(folder))
    attempts("192.168.88.99")
    with no_link():
        attempts("192.168.88.2")
    no_connection_left()


def main():
    """The group."""
    folder = "/mnt/teardown"
    with case("rmmod is refused with a mount, and while nfsd listens"):
        mount("4.1", "ipv4", folder)
        refused(shell, CLIENT)
        refused(lambda text: shell(f"peer '{text}'"), SERVER)
        shell(f"echo works >{folder}/works && grep -q works {folder}/works")
        umount(folder)
        no_connection_left()
    with case("umount -f while I/O hangs"):
        forced(folder)
    with case("umount -l while I/O hangs"):
        lazy(folder)
    with case("mounts killed while they connect"):
        interrupted(folder)
    with case("a mount after all this"):
        mount("4.1", "ipv4", folder)
        umount(folder)


main()

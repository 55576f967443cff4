# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Things that break in the middle of I/O: processes, the link, the server.

What must hold is what NFS promises: a hard mount waits and carries on, a soft
mount returns an error in time, and what was written and synced is there.

The server's files are on a file system on the host's disk here, so that they
outlive the server guest.
"""

import errno
import hashlib
import mmap
import os
import signal
import subprocess
import sys
import time

from nfstest import EXPORT, case, data, expect, expect_that, mount, read_file, shell, umount, \
    write_file

MODULE = os.environ["SERVER_MODULE"]
MIB = 1 << 20

# A writer in a process of its own: MiB after MiB, each one synced, and a line
# with the number of MiB written after each.
WRITER = """
import os, sys
sys.path.insert(0, "/t/guest")
from nfstest import data
path, count, flags = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
for i in range(count):
    os.pwrite(fd, data(1 << 20, i), i << 20)
    os.fsync(fd)
    print(i + 1, flush=True)
os.close(fd)
"""

DISK = f"""
modprobe -a loop ext4
mkdir -p /srv/disk {EXPORT} /var/lib/nfs/nfsdcld
mount -o loop /t/server.img /srv/disk &&
mkdir -p /srv/disk/export /srv/disk/nfsdcld &&
mount --bind /srv/disk/export {EXPORT} &&
mount --bind /srv/disk/nfsdcld /var/lib/nfs/nfsdcld
"""


def serve_from_disk():
    """Give the server a disk."""
    shell(f"""peer 'server_stop; killall nfsdcld; exportfs -ua; umount {EXPORT}
        truncate -s 400M /t/server.img && mkfs.ext4 -q -F /t/server.img && {DISK.strip()} &&
        chmod 1777 {EXPORT} && server_start'""")


def writer(path, count, flags=0):
    """Start a writer, and return when it has written its first MiB."""
    job = subprocess.Popen([sys.executable, "-B", "-c", WRITER, path, str(count), str(flags)],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect("first line of the writer", job.stdout.readline(), "1\n")
    return job


def finished(job, path, count, seconds=120):
    """The writer ends well, and the server holds what it wrote."""
    output = job.communicate(timeout=seconds)[0]
    expect(f"exit status of the writer ({output[-200:]})", job.returncode, 0)
    digest = hashlib.sha256(b"".join(data(MIB, i) for i in range(count))).hexdigest()
    expect("content read back", hashlib.sha256(read_file(path)).hexdigest(), digest)
    name = os.path.basename(path)
    expect("content on the server", shell(f"peer 'sha256sum {EXPORT}/{name}'").split()[:1],
           [digest])


def killed_processes(folder):
    """kill -9 of processes that read and write; the mount goes on, and no other file suffers."""
    known = data(3 * MIB + 5, 42)
    write_file(f"{folder}/known", known)
    busy = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
memory = mmap.mmap(-1, 1 << 20)
while True:
    for i in range(4): os.pwrite(fd, memory, i << 20)
    for i in range(4): os.preadv(fd, [memory], i << 20)
"""
    for turn in range(8):
        jobs = [subprocess.Popen([sys.executable, "-c", busy, f"{folder}/busy-{i}"])
                for i in range(3)]
        time.sleep(0.7 + 0.09 * turn)
        for job in jobs:
            job.send_signal(signal.SIGKILL)
        for job in jobs:
            expect("how the process ended", job.wait(timeout=30), -signal.SIGKILL)
        expect_that("a known file has changed", read_file(f"{folder}/known") == known)
    for i in range(3):
        content = read_file(f"{folder}/busy-{i}")
        expect_that("foreign bytes in a file of zeros", not content.strip(b"\0"))
        os.unlink(f"{folder}/busy-{i}")


def link_down(folder):
    """The link is down for 10 s while two processes write."""
    jobs = [(writer(f"{folder}/link-{i}", 40, flags), f"{folder}/link-{i}")
            for i, flags in enumerate((0, os.O_DIRECT))]
    shell("qemu_monitor set_link nic off")
    time.sleep(10)
    stopped = [job.poll() for job, _ in jobs]
    shell("qemu_monitor set_link nic on")
    expect("the writers while the link is down", stopped, [None, None])
    for job, path in jobs:
        finished(job, path, 40)


def soft_mount():
    """A soft mount gives up in time, and works again when the link does."""
    folder = "/mnt/soft"
    mount("3", "ipv6", folder, "soft,timeo=30,retrans=1,noac,nosharecache")
    write_file(f"{folder}/soft", data(MIB, 3))
    fd = os.open(f"{folder}/soft", os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, MIB)
    shell("qemu_monitor set_link nic off")
    started, error = time.monotonic(), 0
    try:
        os.preadv(fd, [memory], 0)
    except OSError as failure:
        error = failure.errno
    finally:
        seconds = time.monotonic() - started
        shell("qemu_monitor set_link nic on")
    expect_that(f"READ ended with {errno.errorcode.get(error, error)}",
                error in (errno.ETIMEDOUT, errno.EIO))
    expect_that(f"it took {seconds:.0f} s", seconds < 60)
    print(f"{errno.errorcode[error]} after {seconds:.1f} s")
    for _ in range(60):
        try:
            expect("bytes read", os.preadv(fd, [memory], 0), MIB)
            break
        except OSError:
            time.sleep(1)
    expect_that("content once the link is up", memory[:] == data(MIB, 3))
    os.close(fd)
    umount(folder)


def server_killed(folder):
    """Power cut at the server while two mounts write; it comes back."""
    other = "/mnt/faults-3"
    mount("3", "ipv6", other)
    jobs = [(writer(f"{folder}/killed-4", 40), f"{folder}/killed-4"),
            (writer(f"{other}/killed-3", 40, os.O_DIRECT), f"{other}/killed-3")]
    known = data(5 * MIB, 77)
    write_file(f"{folder}/before", known)
    print("@restart-server", flush=True)
    time.sleep(5)
    end = time.monotonic() + 120
    while subprocess.run(["bash", "-c", ". /t/guest/lib.sh; peer true"], check=False,
                         stdout=subprocess.DEVNULL).returncode != 0:
        expect_that("the server guest did not come back", time.monotonic() < end)
        time.sleep(1)
    expect("the writers while the server is down", [job.poll() for job, _ in jobs], [None, None])
    shell(f"peer 'module_load {MODULE} && {DISK.strip()} && server_start'")
    for job, path in jobs:
        finished(job, path, 40, 200)
    expect_that("a file synced before is not what it was",
                read_file(f"{folder}/before", os.O_DIRECT) == known)
    umount(other)


def main():
    """The group."""
    folder = "/mnt/faults"
    # Tasks may rightly wait for a server that is away.
    shell("echo 300 >/proc/sys/kernel/hung_task_timeout_secs")
    with case("serve from a disk"):
        serve_from_disk()
        mount("4.1", "ipv4", folder)
    with case("processes killed in the middle of I/O"):
        killed_processes(folder)
    with case("link down for 10 s in the middle of writing"):
        link_down(folder)
    with case("soft mount: an error in time, and recovery"):
        soft_mount()
    with case("server killed in the middle of writing, and back"):
        server_killed(folder)
    with case("unmount"):
        umount(folder)


main()

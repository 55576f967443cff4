# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Exports of file systems on disks: nfsd's modes of reading and writing, and a file that is truncated on
the server while a client reads it."""

import contextlib
import os
import time

from harness import EXPORT, case, data, expect_that, in_background, read_file, shell, write_file
from mount_io import FOLDER, mounted, odd_io, server

DEBUGFS = "/sys/kernel/debug/nfsd"
STOP = "/t/stop-cutting"
SIZE = 2 << 20

# Modes of nfsd: io_cache_read, io_cache_write, disable-splice-read.
WAYS = {
    "through the page cache": (0, 0, 0),
    "by copying from the page cache": (0, 0, 1),
    "without keeping pages": (1, 1, 1),
    "past the page cache": (2, 2, 1),
}


@contextlib.contextmanager
def exported(kind):
    """Export a file system of this kind, on a loop device, while the block runs."""
    server(f"""server_stop; exportfs -ua; umount {EXPORT}; modprobe -a loop {kind} &&
        rm -f /run/image && truncate -s 400M /run/image && mkfs.{kind} -q /run/image &&
        mount -o loop /run/image {EXPORT} && chmod 1777 {EXPORT} && server_start""")
    try:
        found = server(f"findmnt -n -o FSTYPE {EXPORT}").strip()
        expect_that(f"the export is on {found}", found == kind)
        yield
    finally:
        server(f"server_stop; exportfs -ua; umount {EXPORT} && rm /run/image && server_start")


@contextlib.contextmanager
def way(reads, writes, no_splice):
    """Set the mode in which nfsd reads and writes."""
    settings = (f"{no_splice} >disable-splice-read", f"{reads} >io_cache_read",
                f"{writes} >io_cache_write")
    server(f"cd {DEBUGFS} && echo " + " && echo ".join(settings))
    is_set = server(f"cd {DEBUGFS} && cat io_cache_read io_cache_write disable-splice-read")
    expect_that(f"nfsd's settings are {is_set.split()}",
                is_set.split() == [str(reads), str(writes), str(no_splice)])
    try:
        yield
    finally:
        server(f"cd {DEBUGFS} && echo 0 >io_cache_write && echo 0 >disable-splice-read")


def check(got, content):
    """Check what was read of a file that is being truncated: at each offset the written bytes, or zeroes.
    Return whether it is the whole file."""
    for start in range(0, len(got), 4096):
        page, wanted = got[start:start + 4096], content[start:start + 4096]
        if page not in (wanted, bytes(len(page))):
            expect_that(f"foreign octets between {start} and {start + len(page)}",
                        all(octet in (0, right) for octet, right in zip(page, wanted)))
    return got == content


def cut():
    """Truncate and restore a file on the server in a loop while it is read."""
    path, on_server, content = f"{FOLDER}/cut", f"{EXPORT}/cut", data(SIZE, 5)
    shell(f"rm -f {STOP}")
    write_file(path, content)
    job = in_background(server, f"""cp {on_server} /run/whole || exit 1; until [ -e {STOP} ]; do
        truncate -s $((RANDOM * 60 + 1)) {on_server}; sleep 0.1
        truncate -s {SIZE} {on_server}; sleep 0.1
        cat /run/whole >{on_server}; sleep 0.3; done; rm /run/whole""", 300)
    whole = other = 0
    end = time.monotonic() + 200
    try:
        # Continue until enough reads of both kinds were seen, however fast each side is.
        while min(whole, other) < 5:
            expect_that(f"{whole} reads of the whole file and {other} others in 200 s",
                        time.monotonic() < end)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            got = os.pread(fd, SIZE, 0)
            os.close(fd)
            if check(got, content):
                whole += 1
            else:
                other += 1
    finally:
        write_file(STOP, b"")
    job.result(60)
    print(f"{whole} reads of the whole file, {other} of one that was cut")
    expect_that("content in the end", read_file(path, os.O_DIRECT) == content)


def cases(kind):
    """The tests of one file system."""
    for number, (name, settings) in enumerate(WAYS.items()):
        with case(f"{kind}: nfsd reads and writes {name}"):
            with way(*settings):
                odd_io(f"{FOLDER}/way-{number}", f"{EXPORT}/way-{number}")
    with case(f"{kind}: a file is cut on the server while it is read"):
        cut()
    with case(f"{kind}: the same, past the page cache of the server"):
        with way(*WAYS["past the page cache"]):
            cut()


def main():
    """The group."""
    for kind, version in ("ext4", "3"), ("xfs", "4.2"):
        with contextlib.ExitStack() as stack:
            ready = False
            with case(f"an export on {kind}, version {version}"):
                stack.enter_context(exported(kind))
                stack.enter_context(mounted(version))
                ready = True
            if ready:
                cases(kind)


main()

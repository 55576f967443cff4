# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What several groups share that vary the server's configuration: a mount, and I/O at odd offsets."""

import contextlib
import hashlib
import os
import time

from harness import data, expect, mount, read_file, shell, umount, write_file

FOLDER = "/mnt/io"


def server(script, seconds=120):
    """Run shell text on the server; return its output."""
    return shell(f"peer -t {seconds} '{script}'")


@contextlib.contextmanager
def mounted(version, options="", wait=30):
    """Mount the export for the duration of the block; retry while nfsd starts."""
    end = time.monotonic() + wait
    while True:
        try:
            mount(version, "ipv4", FOLDER, options)
            break
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
    try:
        yield
    finally:
        umount(FOLDER)


def odd_io(path, on_server):
    """Write at odd offsets, with holes; compare on the server, and here through the cache and past it."""
    content = bytearray(data(1_300_007, 3))
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    for offset, length in (1, 1), (4095, 2), (65535, 70001), (1_000_003, 300_000), \
            (1_500_001, 4097):
        piece = data(length, offset)
        content += bytes(max(0, offset + length - len(content)))
        content[offset:offset + length] = piece
        expect("octets written", os.pwrite(fd, piece, offset), length)
    os.pwrite(fd, b"end", 5_000_000)
    content += bytes(5_000_000 - len(content)) + b"end"
    os.fsync(fd)
    os.close(fd)
    wanted = hashlib.sha256(content).hexdigest()
    expect("on the server", server(f"sha256sum <{on_server}").split()[0], wanted)
    for flags in 0, os.O_DIRECT:
        expect(f"read with flags {flags:#o}",
               hashlib.sha256(read_file(path, flags)).hexdigest(), wanted)
    fd = os.open(path, os.O_RDONLY)
    for offset, length in (3, 5), (4093, 9001), (1_299_999, 300_000), (4_999_999, 100):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        expect(f"{length} from {offset}", os.pread(fd, length, offset),
               bytes(content[offset:offset + length]))
    os.close(fd)

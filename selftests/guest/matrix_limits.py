# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Which transfer mode is used for which size, according to the mount's counters.

The largest inline READ and WRITE are found by bisection, and every size around
them is then written, read and compared in the mode it must have.
"""

import os

from harness import Delta, case, data, expect, expect_that, read_file, write_file

# Both inline thresholds are 4096 bytes. A Call or Reply of that size holds the
# RPC and NFS headers and, with the AUTH_SYS credential and the room that a client
# reserves for the largest possible Reply header, at least this much data.
LEAST, MOST = 3500, 4096
AROUND = 8


def write_mode(run, fd, size):
    """Write `size` bytes directly; return True if a chunk carried them."""
    with Delta(run.mount) as delta:
        os.pwrite(fd, data(size, size), 0)
    delta.expect_used(*(["read_chunks"] if delta.read_chunks else []))
    return delta.read_chunks > 0


def read_mode(run, fd, size):
    """Read `size` bytes directly; return True if a chunk carried them."""
    into = bytearray(size)
    with Delta(run.mount) as delta:
        expect("bytes read", os.preadv(fd, [into], 0), size)
    expect(f"content of {size} bytes", bytes(into), data(size, size))
    delta.expect_used(*(["write_chunks"] if delta.write_chunks else []))
    return delta.write_chunks > 0


def largest_inline(uses_chunk):
    """Return the largest size for which `uses_chunk(size)` is False."""
    inline, chunk = 1, 8192
    expect("1 byte goes by chunk", uses_chunk(inline), False)
    expect("8192 bytes go by chunk", uses_chunk(chunk), True)
    while chunk - inline > 1:
        size = (inline + chunk) // 2
        if uses_chunk(size):
            chunk = size
        else:
            inline = size
    return inline


def both_ways(run, fd, size):
    """Return whether WRITE, and then READ, of `size` bytes use a chunk."""
    os.ftruncate(fd, 0)
    return write_mode(run, fd, size), read_mode(run, fd, size)


def test(run):
    """The group's tests of transfer modes for data."""
    limits = {}
    fd = os.open(run.path("limits"), os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    with case("largest inline WRITE"):
        size = limits["write"] = largest_inline(lambda size: write_mode(run, fd, size))
        print(f"the largest inline WRITE has {size} bytes")
        expect_that(f"{size} is not in {LEAST}..{MOST}", LEAST <= size <= MOST)
    with case("largest inline READ"):
        size = limits["read"] = largest_inline(lambda size: both_ways(run, fd, size)[1])
        print(f"the largest inline READ has {size} bytes")
        expect_that(f"{size} is not in {LEAST}..{MOST}", LEAST <= size <= MOST)
    sizes = sorted({limit + i for limit in limits.values() for i in range(-AROUND, AROUND + 1)})
    with case("every size around the inline limits, O_DIRECT"):
        for size in sizes:
            expect(f"{size} bytes by chunk (WRITE, READ)", both_ways(run, fd, size),
                   (size > limits["write"], size > limits["read"]))
    os.close(fd)
    with case("every size around the inline limits, buffered"):
        for size in sizes:
            with Delta(run.mount) as delta:
                write_file(run.path("limits"), data(size, size))
            # A buffered Call may have an additional GETATTR, and so less room for data.
            expect_that(f"{size} bytes written inline",
                        delta.read_chunks > 0 or size <= limits["write"])
            # A buffered READ requests whole pages, whatever the file's size.
            expect(f"content of {size} bytes", read_file(run.path("limits")), data(size, size))
    fd = os.open(run.path("limits"), os.O_RDWR | os.O_DIRECT)
    for size, chunk in (3, False), (65536, True), (1 << 20, True):
        with case(f"{size} bytes go {'by Read and Write chunk' if chunk else 'inline'}"):
            expect("chunks used", both_ways(run, fd, size), (chunk, chunk))
    os.close(fd)

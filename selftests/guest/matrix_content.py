# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""File content: sizes, access patterns, mmap, direct I/O."""

import mmap
import os
import random
import time

from harness import DEBUG, Delta, case, data, expect, expect_that, read_file, write_file

SIZES = (0, 1, 3, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537,
         1048575, 1048576, 1048577)
BIG = 10 if DEBUG else 100


def big(run):
    """Return whether this run has the big file: once per version, less often with the C module."""
    mixed = os.environ["CLIENT_MODULE"] != os.environ["SERVER_MODULE"]
    return run.family == "ipv4" and (run.version in ("3", "4.1") or not mixed)


def create(run):
    """Write all files; verify here what cannot be verified after the remount."""
    for size in SIZES:
        name, content = f"size-{size}", data(size, size + 1)
        with case(f"write {size} bytes"):
            write_file(run.path(name), content)
            run.files[name] = content
    with case("write at odd offsets, buffered and O_DIRECT mixed"):
        run.files["random"] = random_writes(run, run.path("random"))
    with case("append, overwrite in the middle, shrink, grow"):
        run.files["edited"] = edited(run.path("edited"))
    with case("write through mmap"):
        run.files["mapped"] = mapped(run.path("mapped"))
    if big(run):
        with case(f"write {BIG} MiB"):
            started = time.monotonic()
            with open(run.path("big"), "wb", buffering=0) as file:
                for i in range(BIG):
                    file.write(data(1 << 20, i))
            print(f"{BIG / (time.monotonic() - started):.0f} MiB/s")


def random_writes(run, path):
    """Change a file at random offsets; return its expected content."""
    rng = random.Random(f"{run.version} {run.family}")
    model = bytearray(data(300000, 11))
    write_file(path, model)
    plain = os.open(path, os.O_RDWR)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    for step in range(60):
        fd = rng.choice((plain, direct))
        offset = rng.randrange(len(model))
        size = rng.randrange(1, rng.choice((100, 5000, 70000)))
        if rng.random() < 0.6:
            piece = data(size, step)
            expect("bytes written", os.pwrite(fd, piece, offset), size)
            model[offset:offset + size] = piece
        else:
            into = bytearray(size)
            size = os.preadv(fd, [into], offset)
            expect(f"step {step}: {size} bytes at {offset}, direct={fd == direct}",
                   bytes(into[:size]), bytes(model[offset:offset + len(into)]))
    os.close(plain)
    os.close(direct)
    expect("whole file", read_file(path), bytes(model))
    return bytes(model)


def edited(path):
    """Create a file by several edits; return its expected content."""
    write_file(path, data(10000, 1))
    with open(path, "ab", buffering=0) as file:
        file.write(data(5001, 2))
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, data(777, 3), 4090)
    os.close(fd)
    os.truncate(path, 12345)
    os.truncate(path, 20000)
    model = bytearray((data(10000, 1) + data(5001, 2))[:12345] + bytes(20000 - 12345))
    model[4090:4090 + 777] = data(777, 3)
    expect("file", read_file(path), bytes(model))
    return bytes(model)


def mapped(path):
    """Write a file by stores to mapped memory; return its expected content."""
    size = 200001
    model = bytearray(size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as memory:
        for i, offset in enumerate(range(0, size - 3000, 6007)):
            piece = data(1 + i * 83 % 3000, i)
            memory[offset:offset + len(piece)] = piece
            model[offset:offset + len(piece)] = piece
        memory.flush()
    os.close(fd)
    expect("file", read_file(path, os.O_DIRECT), bytes(model))
    return bytes(model)


def verify(run):
    """Read all files, after a remount."""
    for name, content in run.files.items():
        with case(f"read {name}, buffered"):
            expect("content", read_file(run.path(name)), content)
    with case("read every file with O_DIRECT"):
        for name, content in run.files.items():
            expect(name, read_file(run.path(name), os.O_DIRECT), content)
    with case("read at odd offsets with O_DIRECT"):
        fd = os.open(run.path("size-1048577"), os.O_RDONLY | os.O_DIRECT)
        content = run.files["size-1048577"]
        for offset, size in ((1, 1), (1, 4095), (4095, 2), (511, 3780), (77, 65536),
                             (4093, 1000001), (1048570, 100), (1048577, 1)):
            into = bytearray(size)
            done = os.preadv(fd, [into], offset)
            expect(f"{size} bytes at {offset}", bytes(into[:done]),
                   content[offset:offset + size])
        os.close(fd)
    with case("read through mmap"):
        fd = os.open(run.path("mapped"), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as memory:
            with Delta(run.mount) as delta:
                expect("content", memory[:], run.files["mapped"])
            expect_that("nothing came from the server", delta.write_chunks > 0)
        os.close(fd)
    if big(run):
        with case(f"read {BIG} MiB"):
            started = time.monotonic()
            with open(run.path("big"), "rb", buffering=0) as file:
                for i in range(BIG):
                    expect(f"MiB number {i}", file.read(1 << 20), data(1 << 20, i))
            print(f"{BIG / (time.monotonic() - started):.0f} MiB/s")
        os.unlink(run.path("big"))

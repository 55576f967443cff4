# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The kernel's performance events, by its system call: samples of call chains, counts of events,
and the call chains of all events of a kind.

In a guest that counts instructions, perf(1) itself takes longer than the code to be measured.
"""

import ctypes
import fcntl
import mmap
import os
import random
import struct
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PERF_EVENT_OPEN = 298
PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT = 1, 2
PERF_COUNT_SW_CPU_CLOCK = 0
PERF_SAMPLE_IP, PERF_SAMPLE_TID, PERF_SAMPLE_CALLCHAIN = 1, 2, 1 << 5
DISABLED, EXCLUDE_CALLCHAIN_USER = 1, 1 << 22
ENABLE, DISABLE, SET_PERIOD = 0x2400, 0x2401, 0x40082404
PAGE = 4096
DATA_HEAD = 1024
TRACING = "/sys/kernel/tracing"
BUFFER = 32 << 20
# Nanoseconds between samples. If an operation took as long as one or two periods, each sample would
# hit the same part of it, so the period varies.
PERIODS = (60_000, 140_000)
STEP = 0.01


class NotHere(Exception):
    """This kernel lacks an event; the text says why."""


def attributes(kind, config, period=0, sample=0, flags=0):
    """Return a struct perf_event_attr, of the size that includes sample_max_stack."""
    return struct.pack("IIQQQQQ", kind, 112, config, period, sample, 0, flags) + bytes(64)


def open_event(attr):
    """Return a file descriptor for an event of all tasks on the first processor."""
    fd = LIBC.syscall(PERF_EVENT_OPEN, ctypes.create_string_buffer(attr, len(attr)),
                      -1, 0, -1, 8)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open failed")
    return fd


class Records:
    """The buffer of an event's samples."""

    def __init__(self, kind, config, period):
        self.fd = open_event(attributes(
            kind, config, period, PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN,
            DISABLED | EXCLUDE_CALLCHAIN_USER))
        self.buffer = mmap.mmap(self.fd, PAGE + BUFFER)
        fcntl.ioctl(self.fd, ENABLE, 0)

    def take(self):
        """End the recording; return the records as the kernel wrote them."""
        fcntl.ioctl(self.fd, DISABLE, 0)
        head, = struct.unpack_from("Q", self.buffer, DATA_HEAD)
        if head >= BUFFER:
            raise OSError(f"{head} bytes of samples do not fit into {BUFFER}")
        records = self.buffer[PAGE:PAGE + head]
        self.buffer.close()
        os.close(self.fd)
        return records


def sample(seconds):
    """Sample the first processor for that long; return the records."""
    records = Records(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, PERIODS[1])
    dice = random.Random(20049)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        fcntl.ioctl(records.fd, SET_PERIOD, struct.pack("Q", dice.randrange(*PERIODS)))
        time.sleep(STEP)
    return records.take()


def tracepoint(name):
    """Return the number of a trace event: "system:event", or for the calls of a function "call:function"
    or "call:module:function"."""
    if name.startswith("call:"):
        name = probe(name[5:])
    try:
        with open(f"{TRACING}/events/{name.replace(':', '/')}/id", encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError as error:
        raise NotHere(f"this kernel has no trace event {name}") from error


def probe(function):
    """Create a trace event of a function's calls; return its name."""
    event = function.rpartition(":")[2]
    if not os.path.exists(f"{TRACING}/events/bench/{event}"):
        try:
            # Python's own way to append seeks to the end, which the kernel refuses here.
            fd = os.open(f"{TRACING}/kprobe_events", os.O_WRONLY | os.O_APPEND)
            try:
                os.write(fd, f"p:bench/{event} {function}\n".encode())
            finally:
                os.close(fd)
        except OSError as error:
            with open(f"{TRACING}/error_log", encoding="ascii") as log:
                said = " ".join(log.read().split())[-200:]
            raise NotHere(f"cannot count calls of {function}: {error} {said}") from error
    return f"bench:{event}"


class Counts:
    """Counts trace events in a with block. `of` has the counts by name; it omits events that this
    kernel lacks, and `missing` says why."""

    def __init__(self, names):
        self.fds, self.of, self.missing = {}, {}, []
        for name in names:
            try:
                self.fds[name] = open_event(attributes(
                    PERF_TYPE_TRACEPOINT, tracepoint(name), flags=DISABLED))
            except (NotHere, OSError) as error:
                self.missing.append(f"{name}: {error}")

    def __enter__(self):
        for fd in self.fds.values():
            fcntl.ioctl(fd, ENABLE, 0)
        return self

    def __exit__(self, *_):
        for name, fd in self.fds.items():
            fcntl.ioctl(fd, DISABLE, 0)
            self.of[name], = struct.unpack("Q", os.read(fd, 8))
            os.close(fd)


class Chains:
    """Records the call chains of all events of some kinds in a with block, in `records` by name."""

    def __init__(self, names):
        self.names = {name: tracepoint(name) for name in names}
        self.open, self.records = {}, {}

    def __enter__(self):
        self.open = {name: Records(PERF_TYPE_TRACEPOINT, number, 1)
                     for name, number in self.names.items()}
        return self

    def __exit__(self, *_):
        self.records = {name: records.take() for name, records in self.open.items()}

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The kernel's performance events, by its system call: samples of call chains.

In a guest that counts instructions, perf(1) itself takes longer than what it is to measure.
"""

import ctypes
import fcntl
import mmap
import random
import struct
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PERF_EVENT_OPEN = 298
PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK = 1, 0
PERF_SAMPLE_IP, PERF_SAMPLE_TID, PERF_SAMPLE_CALLCHAIN = 1, 2, 1 << 5
DISABLED, EXCLUDE_CALLCHAIN_USER = 1, 1 << 22
ENABLE, DISABLE, SET_PERIOD = 0x2400, 0x2401, 0x40082404
PAGE = 4096
DATA_HEAD = 1024
BUFFER = 64 << 20
# Nanoseconds between samples. An operation may take as long as one period or two; what is
# sampled would then be the same part of it each time, so the period changes all the time.
PERIODS = (60_000, 140_000)
STEP = 0.01


def attributes(kind, config, period=0, sample=0, flags=0):
    """A struct perf_event_attr, of the size that has sample_max_stack."""
    return struct.pack("IIQQQQQ", kind, 112, config, period, sample, 0, flags) + bytes(64)


def open_event(attr):
    """A file descriptor for an event of all tasks on the first processor."""
    fd = LIBC.syscall(PERF_EVENT_OPEN, ctypes.create_string_buffer(attr, len(attr)),
                      -1, 0, -1, 8)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open failed")
    return fd


def sample(seconds):
    """Sample the first processor for that long; returns the records as the kernel wrote them."""
    fd = open_event(attributes(
        PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, PERIODS[1],
        PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_CALLCHAIN,
        DISABLED | EXCLUDE_CALLCHAIN_USER))
    buffer = mmap.mmap(fd, PAGE + BUFFER)
    dice = random.Random(20049)
    end = time.monotonic() + seconds
    fcntl.ioctl(fd, ENABLE, 0)
    while time.monotonic() < end:
        fcntl.ioctl(fd, SET_PERIOD, struct.pack("Q", dice.randrange(*PERIODS)))
        time.sleep(STEP)
    fcntl.ioctl(fd, DISABLE, 0)
    head, = struct.unpack_from("Q", buffer, DATA_HEAD)
    if head >= BUFFER:
        raise OSError(f"{head} bytes of samples do not fit into {BUFFER}")
    return buffer[PAGE:PAGE + head]

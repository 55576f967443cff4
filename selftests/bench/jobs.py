# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The jobs to measure, and how to start each on a mount."""

import sys
from dataclasses import dataclass

FILE_MIB = 64


@dataclass(frozen=True)
class Job:
    """One kind of load. `seconds` of guest time are measured at a time."""

    name: str
    title: str
    # The NFSv3 procedure that makes an operation; the mount's counters count it.
    procedure: str
    seconds: float
    rw: str = ""
    block: str = ""
    depth: int = 1
    options: str = ""

    @property
    def bytes(self):
        """Return the payload of an operation in bytes."""
        unit = {"k": 1 << 10, "m": 1 << 20}
        return int(self.block[:-1]) * unit[self.block[-1]] if self.block else 0

    def command(self, folder):
        """Return the command that keeps the mount at `folder` busy until it is killed."""
        if not self.rw:
            return [sys.executable, "-B", "-c",
                    "import os, sys\nfile = os.open(sys.argv[1], os.O_RDONLY)\n"
                    "while True: os.fstat(file)", f"{folder}/file"]
        return ["fio", f"--name={self.name}", f"--filename={folder}/file", f"--rw={self.rw}",
                f"--bs={self.block}", f"--iodepth={self.depth}", f"--size={FILE_MIB}m",
                "--ioengine=libaio", "--thread", "--direct=1", "--randrepeat=1", "--norandommap",
                "--time_based", "--runtime=1000000", "--output=/dev/null"]


JOBS = (
    Job("rand-read-4k", "4K random read, depth 16", "READ", 2, "randread", "4k", 16),
    Job("rand-write-4k", "4K random write, depth 16", "WRITE", 2, "randwrite", "4k", 16),
    Job("rand-read-4k-1", "4K random read, depth 1", "READ", 2, "randread", "4k", 1),
    Job("rand-write-4k-1", "4K random write, depth 1", "WRITE", 2, "randwrite", "4k", 1),
    Job("read-64k", "64K read, depth 8", "READ", 3, "read", "64k", 8),
    Job("write-64k", "64K write, depth 8", "WRITE", 3, "write", "64k", 8),
    Job("read-1m", "1M read, depth 4", "READ", 5, "read", "1m", 4),
    Job("write-1m", "1M write, depth 4", "WRITE", 5, "write", "1m", 4),
    Job("getattr", "getattr", "GETATTR", 2, options="noac"),
)
BY_NAME = {job.name: job for job in JOBS}

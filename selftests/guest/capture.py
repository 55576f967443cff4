# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A capture of the RPC-over-RDMA messages of eth0 while a block runs, by tcpdump."""

import subprocess
import time

import roce
from harness import IWARP, expect_that


class Capture:
    """Captures all Sends of the block, up to `snaplen` octets of each. Only for RoCE."""

    def __init__(self, name, snaplen=600):
        self.path, self.snaplen, self.job = f"/tmp/{name}.pcap", snaplen, None
        self.found = None

    def __enter__(self):
        if not IWARP:
            self.start()
        return self

    def __exit__(self, *_):
        if not IWARP:
            self.stop()

    def start(self):
        """Start, and return once packets are captured."""
        self.job = subprocess.Popen(
            ["tcpdump", "-i", "eth0", "-U", "-B", "16384", "-s", str(self.snaplen),
             "-w", self.path, roce.FILTER],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = self.job.stderr.readline()
        while line and "listening on" not in line:
            line = self.job.stderr.readline()
        expect_that("tcpdump does not run", line)

    def stop(self):
        """End the capture; no packet may be missing. The kernel keeps a packet for up to a second
        until others fill its block."""
        time.sleep(2)
        self.job.terminate()
        text = self.job.communicate(timeout=20)[1]
        expect_that(f"tcpdump has lost packets: {text}", "\n0 packets dropped by kernel" in text)

    def messages(self):
        """Return the messages, once the capture has ended."""
        if self.found is None:
            self.found = list(roce.messages(self.path))
        return self.found

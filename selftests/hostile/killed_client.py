# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Send calls of every kind and stop; the caller then kills this process."""

import os
import signal
import sys

import peer
from client import Server
from server_cases import FILE_SIZE, null
from server_connections import large_read, large_write


def main(address, port):
    """Stop this process with calls in flight."""
    server = Server(peer.Device(), address, int(port), "c")
    region = server.device.region(FILE_SIZE)
    server.handle("sink"), server.handle("data")
    with server.connect() as client:
        for _ in range(4):
            client.send(large_write(server, region))
            client.send(large_read(server, region))
            client.send(null())
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main(*sys.argv[1:])

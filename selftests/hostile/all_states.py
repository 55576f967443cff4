# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Connections in every state in which a server can be stopped: all_states.py ADDRESS PORT.

Idle; never established; with answers that find no Receive; with Read chunks in
flight; and new ones all the time. Prints "ready", continues until it is killed."""

import contextlib
import sys

import peer
import wire
from client import Server
from server_cases import FILE_SIZE, null
from server_connections import large_read, large_write


def main(address, port):
    """The tool."""
    server = Server(peer.Device(), address, int(port), "c")
    region = server.device.region(FILE_SIZE)
    server.handle("sink"), server.handle("data")
    held = [server.connect(receives=4, sends=4) for _ in range(4)]
    held += [server.connect(establish=False, receives=4, sends=4) for _ in range(4)]
    for _ in range(4):
        client = server.connect(receives=0, sends=64, retry=7)
        held.append(client)
        # Over iWARP the first answer ends such a connection, perhaps before all is sent.
        with contextlib.suppress(peer.Closed):
            for _ in range(16):
                client.send(null())
                client.send(large_read(server, region))
    print("ready", flush=True)
    while True:
        try:
            with server.connect(private=wire.cm_private(), receives=8, timeout=2) as client:
                client.send(null())
                for _ in range(4):
                    client.send(large_write(server, region))
                client.message(1)
        except (peer.Closed, peer.Timeout):
            pass
        except Exception as error:  # pyverbs: the server stopped while we connect
            print(f"# {error!r}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

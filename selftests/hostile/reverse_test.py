# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run the callback service's cases: reverse_test.py --kind c|rust ADDRESS PORT.

Starts the relay on ADDRESS, mounts nfsd through it over version 4.1, runs the cases, unmounts."""

import os
import subprocess
import sys

import peer
from cases import leave
from relay import Relay
from reverse_cases import TABLE, Mount
from server_version2 import setting

# The size of the client's Receives, for Calls that are longer than a page.
RECEIVES = "/proc/sys/sunrpc/rdma_max_inline_read"
OPTIONS = "vers=4.1,proto=rdma,port={port},soft,timeo=30,retrans=2,noac,sec=sys"


def main():
    """The tool."""
    args = TABLE.arguments(__doc__)
    relay = Relay(peer.Device(), args.address, args.port, (args.address, 2049))
    relay.start()
    folder = "/run/reverse"
    os.makedirs(folder, exist_ok=True)
    with setting(RECEIVES, 8192):
        return run(args, relay, folder)


def run(args, relay, folder):
    """Mount, run the cases, unmount."""
    subprocess.run(["mount", "-t", "nfs", "-o", OPTIONS.format(port=args.port),
                    f"{args.address}:/", folder], check=True, timeout=60)
    mount = Mount(relay, folder, args.kind)
    try:
        mount.check()
        # Every case needs to know what is granted.
        mount.granted = mount.null(1)[0].credits
        failures = TABLE.run(mount, mount.check, args.only)
    finally:
        sys.stdout.flush()
        subprocess.run(["umount", folder], timeout=60)
        relay.do(relay.hang_up)
        print("\n".join(f"# {error}" for error in relay.errors))
    return 1 if failures else 0


if __name__ == "__main__":
    leave(main)

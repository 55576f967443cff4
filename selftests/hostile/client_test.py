# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run the client's cases: client_test.py --kind c|rust [--fuzz SEED] ADDRESS PORT.

Starts the fake server on ADDRESS, mounts it, runs the cases, unmounts."""

import os
import subprocess
import sys

import client_fuzz
import client_memory  # noqa: F401  (adds its cases to the table)
import client_stalls  # noqa: F401  (likewise)
import peer
from cases import leave
from client_cases import TABLE, Mount
from fake import FakeServer, MountServer

# A call's timeout exceeds the pause before a second attempt to connect. Over siw a connection may
# not work at first (Documentation/known-issues.rst), so more are tried before a call fails.
OPTIONS = ("vers=3,proto=rdma,port={port},mountproto=tcp,mountport={mountport},mountvers=3,"
           f"nolock,soft,timeo=30,retrans={8 if peer.IWARP else 2},noac,lookupcache=none,"
           "nordirplus,sec=sys")


def main():
    """The tool."""
    args = TABLE.arguments(__doc__, client_fuzz.add)
    MountServer(args.address, args.port + 1).start()
    fake = FakeServer(peer.Device(), args.address, args.port)
    fake.start()
    folder = "/run/hostile"
    os.makedirs(folder, exist_ok=True)
    options = OPTIONS.format(port=args.port, mountport=args.port + 1)
    subprocess.run(["mount", "-t", "nfs", "-o", options, f"{args.address}:/", folder],
                   check=True, timeout=60)
    mount = Mount(fake, folder, args.kind)
    try:
        mount.check()
        failures = TABLE.run(mount, mount.check, args.only)
    finally:
        sys.stdout.flush()
        mount.close()
        subprocess.run(["umount", "-i", folder], timeout=60)
        fake.do(fake.hang_up)
        print("\n".join(f"# {error}" for error in fake.errors))
    return 1 if failures else 0


if __name__ == "__main__":
    leave(main)

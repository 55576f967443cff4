# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run the server's cases: server_test.py --kind c|rust [--fuzz SEED] ADDRESS PORT."""

import argparse
import sys

import peer
import server_fuzz
import server_malformed  # noqa: F401  (adds its cases to the table)
import server_more  # noqa: F401  (likewise)
from client import Server
from server_cases import TABLE


def main():
    """The tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("c", "rust"), required=True)
    parser.add_argument("--only", metavar="REGEX", help="cases whose name it is found in")
    parser.add_argument("--fuzz", type=int, metavar="SEED", help="add random messages")
    parser.add_argument("--seconds", type=int, default=20, help="for how long")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    args = parser.parse_args()
    if args.fuzz is not None:
        server_fuzz.add(TABLE, args.fuzz, args.seconds)
    server = Server(peer.Device(), args.address, args.port, args.kind)
    return 1 if TABLE.run(server, server.check_alive, args.only) else 0


if __name__ == "__main__":
    sys.exit(main())

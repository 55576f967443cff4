# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run the server's cases: server_test.py --kind c|rust [--fuzz SEED] ADDRESS PORT."""

import sys

import peer
import server_fuzz
import server_malformed  # noqa: F401  (adds its cases to the table)
import server_connections  # noqa: F401  (likewise)
import server_stalls  # noqa: F401  (likewise)
import server_order  # noqa: F401  (likewise)
import server_version2  # noqa: F401  (likewise)
import server_callbacks  # noqa: F401  (likewise; when lockd's grace period has ended)
import version2_fuzz
from client import Server
from server_cases import TABLE


def main():
    """The tool."""
    def random_cases(table, args):
        server_fuzz.add(table, args)
        version2_fuzz.add(table, args.fuzz, args.messages)

    args = TABLE.arguments(__doc__, random_cases)
    server = Server(peer.Device(), args.address, args.port, args.kind)
    return 1 if TABLE.run(server, server.check_alive, args.only) else 0


if __name__ == "__main__":
    sys.exit(main())

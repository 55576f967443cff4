# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A bad network below the RDMA device.

Packets are dropped, sent twice and sent out of order by both guests, under
verified I/O. The device recovers from that by itself, or gives the connection
up, and the mount connects again; what is read is what was written.
"""

import json
import os
import time

from faultio import Churn
from nfstest import LONG, case, counters, expect_that, mount, shell, umount

NETWORKS = {
    "loss": "loss 0.5%",
    "duplicate": "duplicate 2%",
    "reorder": "delay 3ms reorder 70%",
    "loss, duplicate, reorder": "delay 2ms reorder 80% loss 0.2% duplicate 1%",
}


def bad_network(network, folders, seconds):
    """Verified I/O while both guests' packets suffer."""
    both = "tc qdisc {} dev eth0 root netem limit 10000 {}"
    before = {folder: counters(folder)["connect_count"] for folder in folders}
    with Churn(f"{folders[0]}/net0", os.O_DIRECT) as one, Churn(f"{folders[1]}/net1") as two:
        for run in shell, lambda text: shell(f"peer '{text}'"):
            run(both.format("add", network))
        try:
            time.sleep(seconds)
            one.runs()
            two.runs()
            statistics = shell("tc -s -j qdisc show dev eth0")
        finally:
            shell("tc qdisc del dev eth0 root")
            shell("peer 'tc qdisc del dev eth0 root'")
        turns = one.stop() + two.stop()
    mine = json.loads(statistics)[0]
    connected = sum(counters(folder)["connect_count"] - before[folder] for folder in folders)
    print(f"{mine['packets']} packets sent, {mine['drops']} dropped; {connected} new "
          f"connections; {turns} rounds of verified I/O")
    expect_that(f"the device's packets did not go through netem: {mine}", mine["packets"] > 500)
    if "loss" in network:
        expect_that("no packet was dropped", mine["drops"] > 0)


def main():
    """The group."""
    seconds = 60 if LONG else 5
    folders = ["/mnt/net-4", "/mnt/net-3"]
    # rxe may lose a completion, see Documentation/known-issues.rst; then the RPC timer,
    # by default of 60 s, has the connection closed.
    mount("4.1", "ipv4", folders[0], "timeo=50")
    mount("3", "ipv6", folders[1], "timeo=50")
    shell("modprobe sch_netem && peer 'modprobe sch_netem'")
    # rxe takes minutes to recover from the others.
    for name, network in list(NETWORKS.items())[:None if LONG else 1]:
        with case(f"packets suffer from {name}"):
            bad_network(network, folders, seconds)
    for folder in folders:
        umount(folder)


main()

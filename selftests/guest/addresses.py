# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Addresses that move, under verified I/O.

The server gets a bond of two network devices in addition to eth0, all on the same
network, with an RDMA device of its own. The server's address moves to the bond and
back. The bond fails over from one slave to the other, which changes its hardware
address, and the CM reports ADDR_CHANGE to all ids that use it, including a listener
on that address. The client's address is replaced by another one. The mount continues
each time.
"""

import os
import time

from faultio import Churn, revive, stop_all
from harness import Skip, case, counters, expect, expect_that, mount, shell, umount

RUST_CLIENT = os.environ["CLIENT_MODULE"] == "rust"
RUST_SERVER = os.environ["SERVER_MODULE"] == "rust"
FOLDER = "/mnt/addresses"
BOND_ADDRESS = "192.168.88.22"

BOND = """
modprobe -a macvlan bonding
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
echo 1 >/proc/sys/net/ipv4/conf/all/arp_notify
ip link add bond0 type bond mode active-backup fail_over_mac active miimon 100 &&
for part in mv0 mv1; do
    ip link add $part link eth0 type macvlan mode bridge &&
    ip link set $part master bond0 || exit 1
done
ip link set bond0 mtu 4400 &&
rdma link add rdma1 type rxe netdev bond0 &&
ip link set mv0 up && ip link set mv1 up
"""
TO_BOND = """
ip addr del 192.168.88.2/24 dev eth0 && ip addr add 192.168.88.2/24 dev bond0 &&
ip link set bond0 up
"""
# A host that takes over an address announces it. Linux does so when the hardware address of
# a device is set, even to the same value.
FROM_BOND = """
ip addr del 192.168.88.2/24 dev bond0 && ip link set bond0 down &&
ip addr add 192.168.88.2/24 dev eth0 &&
ip link set eth0 address "$(cat /sys/class/net/eth0/address)"
"""
RESTORE = """
ip addr replace 192.168.88.2/24 dev eth0
for device in bond0 mv0 mv1; do ip link del $device; done 2>/dev/null || :
"""


def in_server(script):
    """Run shell text in the other guest."""
    with open("/t/addresses.sh", "w", encoding="ascii") as file:
        file.write(". /t/guest/lib.sh\n" + script)
    return shell("peer 'bash /t/addresses.sh'")


def connections(device):
    """Return how many connections the server has on one of its devices."""
    return int(in_server(f"rdma resource show qp link {device}/1 | grep -c 'type RC' || :"))


def moved(change, device, reconnects=True):
    """Run verified I/O while addresses change; afterwards the connection must be on `device`.
    Unless it `reconnects`, the old connection may also have survived."""
    before = counters(FOLDER)["connect_count"]
    with Churn(f"{FOLDER}/moved", os.O_DIRECT) as one, Churn(f"{FOLDER}/buffered") as two:
        time.sleep(1)
        change()
        started = time.monotonic()
        while reconnects and counters(FOLDER)["connect_count"] == before:
            expect_that("the mount does not connect again", time.monotonic() < started + 90)
            time.sleep(1)
            revive()
        time.sleep(1)
        turns = stop_all(one, two)
    print(f"{counters(FOLDER)['connect_count'] - before} new connections; {turns} rounds of "
          f"verified I/O, over {time.monotonic() - started:.1f} s after the change")
    expect_that(f"the server has no connection on {device}", connections(device) > 0)
    # There may be more than one: the server is not told that the client of a connection has
    # lost its address.
    other = "rdma1" if device == "rdma0" else "rdma0"
    ends = time.monotonic() + 20
    while connections(other) and time.monotonic() < ends:
        time.sleep(1)
    expect("connections of the server on the other device", connections(other), 0)


def fail_over():
    """Make the other slave of the bond the active one."""
    in_server("""
    bond=/sys/class/net/bond0/bonding
    now=$(cat $bond/active_slave) mac=$(cat /sys/class/net/bond0/address)
    for part in mv0 mv1; do [ $part = "$now" ] || echo $part >$bond/active_slave; done
    [ "$(cat /sys/class/net/bond0/address)" != "$mac" ]
    """)


def device_away():
    """Remove the bond's RDMA device, and add it again after some seconds."""
    in_server("rdma link del rdma1 && sleep 5 && rdma link add rdma1 type rxe netdev bond0")


def listener_of_one_address():
    """Let nfsd listen only on the bond's address. The CM reports a fail over, or the device's
    removal, to such a listener and drops it; nfsd must serve later clients all the same."""
    if not RUST_SERVER:
        raise Skip("the C server's listener dies, see Documentation/known-issues.rst")
    in_server(f"""
    ip addr add {BOND_ADDRESS}/24 dev bond0 && ip link set bond0 up && server_stop &&
    nfsdctl listener +tcp::2049 +rdma:{BOND_ADDRESS}:20049 && nfsdctl threads 8
    """)
    try:
        for _ in range(3):
            shell(f"client_mount 4.1 {BOND_ADDRESS} {FOLDER} timeo=50")
            moved(fail_over, "rdma1", reconnects=False)
            umount(FOLDER)
        shell(f"client_mount 4.1 {BOND_ADDRESS} {FOLDER} timeo=50")
        moved(device_away, "rdma1")
        umount(FOLDER)
    finally:
        shell(f"umount -f -l {FOLDER}", check=False)
        in_server(f"server_stop; server_start && ip addr del {BOND_ADDRESS}/24 dev bond0 && "
                  "ip link set bond0 down")


def cases():
    """The tests."""
    in_server(BOND)
    with case("a listener of one address: the bond below fails over, its RDMA device is removed"):
        listener_of_one_address()
    # A connection is not notified when its address is removed; the RPC timer detects it.
    mount("4.1", "ipv4", FOLDER, "timeo=50")
    with case("the server's address moves to another RDMA device"):
        moved(lambda: in_server(TO_BOND), "rdma1")
    for turn in "there", "back":
        with case(f"the server's bond fails over, {turn}"):
            moved(fail_over, "rdma1", reconnects=False)
    with case("the server's address moves back"):
        moved(lambda: in_server(FROM_BOND), "rdma0")
    with case("the client's address is replaced"):
        if not RUST_CLIENT:
            raise Skip("the C client keeps its old connection, see Documentation/known-issues.rst")
        moved(lambda: shell("echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries && "
                            "ip addr add 192.168.88.11/24 dev eth0 && "
                            "ip addr del 192.168.88.1/24 dev eth0"), "rdma0")
    with case("the second RDMA device can go"):
        in_server("timeout 30 rdma link del rdma1 && ip link del bond0 && "
                  "ip link del mv0 && ip link del mv1")
    umount(FOLDER)


def main():
    """Run the group, and restore the addresses even if a test fails."""
    try:
        cases()
    finally:
        in_server(RESTORE)
        shell("ip addr replace 192.168.88.1/24 dev eth0; ip addr del 192.168.88.11/24 dev eth0",
              check=False)


main()

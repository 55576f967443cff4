# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Client and server in network namespaces of their own, in one guest; and a mount whose namespace loses
its name."""

import contextlib
import os
import subprocess

from harness import EXPORT, case, data, expect, expect_that, read_file, shell, umount, \
    write_file

FOLDER = "/mnt/namespaces"
CLIENT, SERVER = "10.88.0.1", "10.88.0.2"
IN_CLIENT = "nsenter --net=/run/netns/nsc"
# rpcbind runs in another namespace, so the ports are fixed.
MOUNTD = "nolock,mountproto=tcp,mountport=20048,"

# Two namespaces that a veth pair connects, with an RDMA device each.
MAKE = f"""
modprobe veth
ip netns add nsc && ip netns add nss
ip link add wirec netns nsc type veth peer name wires netns nss
ip -n nsc addr add {CLIENT}/24 dev wirec && ip -n nss addr add {SERVER}/24 dev wires
for space in c s; do
    ip -n ns$space link set lo up && ip -n ns$space link set wire$space up
    ip netns exec ns$space rdma link add rdma$space type rxe netdev wire$space || exit 1
done
"""

# A server with its own daemons, in its network namespace and a mount namespace, until its input ends.
SERVE = """
. /t/guest/lib.sh
umount -l /run/rpc_pipefs
mount -t tmpfs none /var/lib/nfs
mkdir /var/lib/nfs/v4recovery
server_start 4 >&2 && kill $(pidof rpc.mountd) && rpc.mountd -p 20048 && echo ready
read -r _
server_stop
kill $(pidof rpc.mountd nfsdcld)
"""


@contextlib.contextmanager
def served():
    """Run nfsd in its namespace while the block runs."""
    job = subprocess.Popen(["ip", "netns", "exec", "nss", "bash", "-c", SERVE], text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        expect("what the server says", job.stdout.readline().strip(), "ready")
        yield
    finally:
        job.communicate("\n", timeout=60)


def mount(version):
    """Mount from the client's network namespace, in this mount namespace."""
    os.makedirs(FOLDER, exist_ok=True)
    path = EXPORT if version == "3" else "/"
    shell(f"{IN_CLIENT} timeout 60 mount -t nfs -o vers={version},proto=rdma,port=$PORT,"
          f"{MOUNTD if version == '3' else ''}retry=0 {SERVER}:{path} {FOLDER}")
    used = shell("connections")
    expect_that(f"connections: {used}", "link rdmac/" in used and "link rdmas/" in used)


def use(seed):
    """Write and read a file."""
    content = data(1_500_001, seed)
    write_file(f"{FOLDER}/file", content, os.O_SYNC)
    expect_that("other content", read_file(f"{FOLDER}/file", os.O_DIRECT) == content)


def devices():
    """Return the RDMA devices."""
    return shell("rdma link")


def forgotten():
    """The client's namespace has neither a name nor a process left. The mount keeps it; after the unmount
    it is destroyed, and its device with it."""
    mount("4.2")
    use(3)
    shell("ip netns del nsc")
    use(4)
    expect_that(f"its device is there: {devices()}", "rdmac/" in devices())
    umount(FOLDER)
    shell("""for i in $(seq 100); do
        rdma link | grep -q rdmac/ || break; sleep 0.1; done""")
    expect_that(f"its device is gone: {devices()}", "rdmac/" not in devices())


def main():
    """The group."""
    with case("two network namespaces with an RDMA device each"):
        shell(MAKE)
    with contextlib.ExitStack() as stack:
        with case("nfsd in a namespace of its own"):
            stack.enter_context(served())
        for version in "3", "4.0", "4.2":
            with case(f"a mount of version {version} from the other namespace"):
                mount(version)
                use(1)
                umount(FOLDER)
        with case("another namespace does not reach it"):
            found = shell(f"timeout 60 mount -t nfs -o vers=4.2,proto=rdma,port=$PORT,soft,retry=0 "
                          f"{SERVER}:/ {FOLDER} 2>&1 && echo mounted || :")
            expect_that(f"mount said {found.strip()}", "mounted" not in found)
        with case("the client's namespace loses its name under its mount"):
            forgotten()
    with case("the server's namespace is destroyed after nfsd has stopped"):
        shell("ip netns del nss")
        shell("for i in $(seq 100); do rdma link | grep -q rdmas/ || break; sleep 0.1; done")
        expect_that(f"its device is gone: {devices()}", "rdmas/" not in devices())


main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The demo: copy a source tree between two guests that both use this module."""

import subprocess
import sys

from guest import GuestError, Machine
from run import Pair, host_name, say, two_guests

TREE = (
    "net/core", "net/ipv4", "net/ipv6", "net/sunrpc", "net/sctp", "net/9p",
    "fs/nfs", "fs/nfsd", "fs/lockd", "fs/nfs_common",
    "include/rdma", "include/linux/sunrpc", "include/net",
)
LIB = ". /t/guest/lib.sh\n"
COUNTERS = (
    ("connect_count", "connections made"), ("sends", "Calls sent"), ("recvs", "Replies received"),
    ("read_chunks", "Read segments"), ("write_chunks", "Write segments"),
    ("reply_chunks", "Reply segments"), ("nomsg_call_count", "Calls by RDMA_NOMSG"),
    ("total_rdma_request", "bytes offered for Replies"),
    ("total_rdma_reply", "bytes the server placed there"),
    ("pullup_copy_count", "bytes copied to send"), ("fixup_copy_count", "bytes copied on receipt"),
    ("mrs_allocated", "memory regions"), ("local_inv_needed", "local invalidations"),
    ("bad_reply_count", "bad Replies"),
)


def pack_tree(folder):
    """Create a tar file with a part of the kernel's source, which the client unpacks."""
    subprocess.run(
        ["tar", "-C", "/kdir", "-cf", f"{folder}/tree.tar", "--exclude=*.o", "--exclude=.*.cmd",
         *TREE], check=True)


def read_pairs(path):
    """Parse a file of lines NAME VALUE."""
    with open(path) as file:
        return dict(line.rstrip("\n").split(" ", 1) for line in file)


def table(folder, kernel, modules):
    """Print the final table."""
    facts = read_pairs(f"{folder}/demo.facts")
    out = read_pairs(f"{folder}/demo.counters.out")
    back = read_pairs(f"{folder}/demo.counters.back")
    rows = [
        ("kernel", f"{kernel}, Debian's own, in both guests"),
        ("module", f"client {modules[0]}, server {modules[1]}"),
        ("mount options", facts["mount"].replace(",", ", ")),
        ("copied", f"{facts['files']} files ({facts['tree_mib']} MiB), and {facts['large']}"),
        ("checksums", facts["checksums"]),
        ("large files to the server", facts["large_out"]),
        ("large files back", facts["large_back"]),
        ("tree to the server", facts["tree_out"]),
        ("tree back", facts["tree_back"]),
    ]
    print()
    for name, value in rows:
        print(f"  {name:<26} {value}")
    print(f"\n  {'RDMA statistics':<34} {'to the server':>15} {'back':>15}")
    for key, what in COUNTERS:
        print(f"  {what:<34} {int(out[key]):>15,} {int(back[key]):>15,}")
    print(flush=True)


def demo(pair, client, server, version):
    """Run the demo; return the kernel's release."""
    say(f"both guests are up (uptime {pair.boot_seconds:.0f} s); loading the module, starting nfsd")
    pair.set_up(client, server)
    names = {"c": "rpcrdma", "rust": "rpcrdma_rs"}
    kernel = pair.client.output("uname -r")
    status = pair.client.run(
        f"{LIB}VERSION={version}\n. /t/guest/demo.sh", 900, lambda line: say(f"client: {line}"))
    if status != 0:
        raise GuestError(f"the client's part ended with status {status}")
    say("stopping nfsd, removing the module")
    for guest, module, step in ((pair.server, server, "server_stop;"), (pair.client, client, "")):
        script = f"{LIB}{step} module_unload {module}"
        if guest.run(script, 120) != 0:
            raise GuestError(f"{guest.name}: '{names[module]}' could not be removed")
    return kernel


def main():
    """The tool."""
    args, folder = two_guests("demo", __doc__)
    names = {"c": "rpcrdma (C)", "rust": "rpcrdma_rs"}
    pack_tree(folder)
    pair = Pair(folder, Machine(), echo=lambda line: say(line))
    try:
        kernel = demo(pair, args.client, args.server, args.vers)
        faults = pair.stop()
    finally:
        pair.kill()
    for name, lines in faults.items():
        for line in lines:
            say(f"{name}: kernel log: {line}")
    if any(faults.values()):
        raise GuestError(f"the kernel logs have faults, see {host_name(folder)}")
    table(folder, kernel, (names[args.client], names[args.server]))
    say("done: all checksums equal, both guests' logs clean")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GuestError, OSError) as error:
        say(f"error: {error}")
        sys.exit(1)

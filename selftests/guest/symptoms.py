# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Produces each symptom of Documentation/troubleshooting.rst, compares the messages with the lines of
the document, and applies its remedy. Runs in the client guest."""

import json
import os
import re
import subprocess
import time

from harness import Skip, case, expect, expect_that, in_background, shell

FOLDER = "/mnt/symptoms"
with open("/t/troubleshooting.rst", encoding="utf-8") as _file:
    DOCUMENT = _file.read()


def literal(line):
    """Return a pattern for a literal line of the document, in which "..." stands for any text."""
    lines = [text.strip() for text in DOCUMENT.splitlines()]
    expect_that(f"the document has no line '{line}'", line in lines)
    return re.compile(".*".join(map(re.escape, line.split("..."))))


def seen(line, text):
    """Fail unless a line of the document is in the output."""
    expect_that(f"'{line}' is not in {text!r}", literal(line).search(text))


def section(title):
    """Return the text of one section of the document."""
    start = DOCUMENT.index(f"{title}\n{'=' * len(title)}\n")
    rest = DOCUMENT[start + 2 * len(title) + 2:]
    end = re.search(r"\n[^\n]+\n={4,}\n", rest)
    return rest[:end.start()] if end else rest


def try_mount(options="", address="192.168.88.2", path="/", vers="4.2"):
    """Try a mount with a short timeout; return its status, its output and the kernel log."""
    shell("dmesg -C")
    done = subprocess.run(
        ["timeout", "100", "mount", "-t", "nfs", "-o", "proto=rdma,port=20049,soft,retry=0,"
         f"timeo=50,retrans=1,vers={vers}{options}", f"{address}:{path}", FOLDER],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode == 0:
        shell(f"umount {FOLDER}")
    return done.returncode, done.stdout + shell("dmesg")


def fails_with(title, lines, **how):
    """Check that a mount fails with these lines, which are in the section with that title."""
    status, said = try_mount(**how)
    print(said.strip().splitlines()[0] if said else "nothing is said")
    expect_that(f"the mount succeeded: {said}", status != 0)
    for line in lines:
        expect_that(f"'{line}' is not in the section '{title}'", line in section(title))
        seen(line, said)


def works():
    """Check that a mount succeeds."""
    status, said = try_mount()
    expect(f"status of the mount, which says {said!r}", status, 0)


PROTOCOL = "``mount: Protocol error``"
EPROTO = ("connecting to ... failed: EPROTO (that address does not answer, or no RDMA device with a "
          "link leads there)")
UNREACHABLE = "``mount: Network is unreachable``"
SILENT = "``mount: Connection timed out``, ``No route to host``"
REFUSED = "``mount: Connection refused``"
FAMILY = "``mount: Address family for hostname not supported``"
VERSION = "``mount: Protocol not supported``"
INVALID = "``mount: Invalid argument``, ``an incorrect mount option was specified``"
KEY = "Key was rejected by service"


def no_device():
    """No RDMA device exists. The document says how to create one."""
    shell("rdma link del rdma0")
    try:
        fails_with(PROTOCOL, ["mount.nfs: Protocol error", EPROTO])
    finally:
        shell("device_add")
    works()


def interface_down():
    """The interface of the device is down."""
    shell("ip link set eth0 down")
    try:
        fails_with(UNREACHABLE, ["mount.nfs: Network is unreachable for ... on ...",
                                 "connecting to ... failed: ENETUNREACH"])
        expect_that("rdma link does not show it", "state DOWN" in shell("rdma link"))
    finally:
        shell("ip link set eth0 up; ip -6 addr add fd88::1/64 dev eth0 nodad; "
              "ip route add default via 192.168.88.254 dev eth0; sleep 2; devices_revive",
              check=False)
    works()


def no_route():
    """No route leads to the server."""
    shell("ip route del default; ip route del 192.168.88.0/24")
    try:
        fails_with(UNREACHABLE, ["mount.nfs: Network is unreachable for ... on ...",
                                 "connecting to ... failed: ENETUNREACH"])
    finally:
        shell("ip route add 192.168.88.0/24 dev eth0 src 192.168.88.1; "
              "ip route add default via 192.168.88.254 dev eth0; devices_revive")
    works()


def is_unreachable(address):
    """Nothing at the address answers the connection manager: the live view shows "connecting", and
    the log says why when the CM gives up."""
    shell("dmesg -C")
    attempt = in_background(shell, "timeout 90 mount -t nfs -o rdma,vers=4.2,retry=0 "
                            f"{address}:/ {FOLDER}", False)
    waiting, line = False, "connecting to ... failed: EHOSTUNREACH"
    for _ in range(80):
        time.sleep(1)
        waiting = waiting or "connecting" in [record["state"] for record in top()]
        if literal(line).search(shell("dmesg")):
            break
    seen(line, shell("dmesg"))
    expect_that("the live view did not show the attempt", waiting)
    attempt.result(120)


def silent():
    """No host has the address: in the same network, over version 4 and 3, behind a router that does
    not answer, and behind one that does."""
    fails_with(SILENT, ["mount.nfs: Connection timed out for ... on ..."], address="192.168.88.77")
    seen(EPROTO, shell("dmesg"))
    fails_with(SILENT, ["mount.nfs: No route to host for ... on ..."], address="192.168.88.77",
               vers="3", path="/srv/export")
    # Which of these depends on how soon the kernel gives up resolving the router.
    status, said = try_mount(address="10.9.9.9")
    expect_that(f"the mount succeeded: {said}", status != 0)
    wanted = ("mount.nfs: Connection timed out for ... on ...", "mount.nfs: Protocol error")
    expect_that(f"none of {wanted} is in {said!r}",
                any(literal(line).search(said) for line in wanted))
    seen(EPROTO, said)
    # A router that answers, and passes nothing on: the server's guest.
    shell("ip neigh replace 192.168.88.254 lladdr 52:54:00:88:00:02 nud permanent dev eth0")
    try:
        is_unreachable("10.9.9.9")
    finally:
        shell("ip neigh del 192.168.88.254 dev eth0; devices_revive")


def no_device_on_server():
    """The server has no RDMA device, and answers a ping."""
    shell("peer 'rdma link del rdma0'")
    try:
        fails_with(SILENT, ["mount.nfs: Connection timed out for ... on ..."])
        fails_with(SILENT, ["mount.nfs: Connection timed out for ... on ..."], vers="3",
                   path="/srv/export")
        shell("ping -c 1 -w 10 192.168.88.2")
        is_unreachable("192.168.88.2")
    finally:
        shell("peer 'device_add; devices_revive'; devices_revive")
    works()


def no_version():
    """nfsd does not support the version of NFS."""
    shell("peer 'rpc.nfsd 0; rpc.nfsd -N 4.1 --rdma=20049 8'")
    try:
        fails_with(VERSION, ["mount.nfs: Protocol not supported for ... on ..."], vers="4.1")
        expect_that("the versions of nfsd", "-4.1" in shell("peer cat /proc/fs/nfsd/versions"))
    finally:
        shell("peer 'rpc.nfsd 0; rpc.nfsd -V 4.1 --rdma=20049 8'")
    works()


def nfs_conf():
    """nfs.conf without rdma-port gives no listener, and rpc.nfsd says so; with it there is one for
    each address family."""
    shell("peer 'cp /etc/nfs.conf /run; rpc.nfsd 0; nfsconf --set nfsd rdma y'")
    try:
        seen("rpc.nfsd: unable to interpret port name nfsrdma", shell("peer 'rpc.nfsd 2>&1'"))
        fails_with(REFUSED, ["mount.nfs: Connection refused for ... on ..."])
        command = "echo 'rdma 20049' >/proc/fs/nfsd/portlist"
        expect_that(f"the document does not say '{command}'", f"\t{command}\n" in DOCUMENT)
        shell(f'peer "{command}"')
        works()
        shell("peer 'rpc.nfsd 0; nfsconf --set nfsd rdma-port 20049; rpc.nfsd'")
        listeners = shell("peer nfsdctl listener").split()
        for wanted in "rdma:[::]:20049", "rdma:0.0.0.0:20049":
            expect_that(f"no {wanted} among {listeners}", wanted in listeners)
        works()
    finally:
        shell("peer 'rpc.nfsd 0; cp /run/nfs.conf /etc; nfsd_start 8'")
    works()


def refused():
    """No server listens on that port."""
    fails_with(REFUSED, ["mount.nfs: Connection refused for ... on ...",
                         "connecting to ... failed: ECONNREFUSED"], options=",port=20050")
    expect_that("no line of the listener in portlist",
                "rdma 20049" in shell("peer cat /proc/fs/nfsd/portlist"))
    works()


def family():
    """proto= does not match the address family."""
    said = ["mount.nfs: Failed to resolve server ...: Address family for hostname not supported"]
    fails_with(FAMILY, said, options=",proto=rdma6")
    fails_with(FAMILY, said, address="[fd88::2]")


def top():
    """Return the connections that rpcrdma-top shows."""
    return json.loads(shell("python3 -B /t/rpcrdma-top --once --json --interval 0.5"))["connections"]


def server_does_not_answer():
    """rpc.mountd is stopped: the live view shows what the document says, and continuing it helps."""
    shell(f"client_mount 4.2 $SERVER {FOLDER}")
    shell("peer 'kill -STOP $(pidof rpc.mountd); exportfs -f'")
    try:
        waits = in_background(shell, f"stat {FOLDER}/none", False)
        time.sleep(5)
        first, = top()
        time.sleep(2)
        second, = top()
    finally:
        shell("peer 'kill -CONT $(pidof rpc.mountd); exportfs -r'")
    expect("state", second["state"], "connected")
    expect_that(f"no credit is used: {second}", second["credits_used"] > 0)
    expect_that(f"idle_ms does not grow: {first['idle_ms']}, {second['idle_ms']}",
                second["idle_ms"] > first["idle_ms"])
    waits.result(60)
    shell(f"umount {FOLDER}")


def over_tcp():
    """A mount uses TCP because the server is mounted over TCP; the remedy is the order."""
    rdma = "mount -t nfs -o rdma,vers=4.2 192.168.88.2:/"
    tcp = "mount -t nfs -o proto=tcp,vers=4.2 192.168.88.2:/"
    other = f"{FOLDER}-tcp"
    os.makedirs(other, exist_ok=True)
    command = "grep proto=rdma /proc/self/mounts"
    expect_that(f"the document does not say '{command}'", f"``{command}``" in DOCUMENT)
    try:
        shell(f"{tcp} {other}; {rdma} {FOLDER}")
        expect("mounts over RDMA", shell(command, check=False), "")
        shell(f"umount {FOLDER} {other}; {rdma} {FOLDER}; {tcp} {other}")
        expect("mounts over RDMA", len(shell(command).splitlines()), 2)
    finally:
        shell(f"umount {FOLDER} {other}")


def other_mtu():
    """The server's MTU is smaller: a large READ hangs, and continues when the MTU is restored."""
    shell(f"client_mount 4.2 $SERVER {FOLDER}; dd if=/dev/zero of={FOLDER}/large bs=1M count=2 "
          "oflag=direct")
    shell("peer 'ip link set eth0 mtu 1500'")
    try:
        shell(f"ls {FOLDER}; echo text >{FOLDER}/small; grep text {FOLDER}/small; "
              f"dd if=/dev/zero of={FOLDER}/other bs=1M count=1 oflag=direct; rm {FOLDER}/other")
        reads = in_background(shell, f"dd if={FOLDER}/large of=/dev/null bs=1M iflag=direct")
        reconnects = 0
        for _ in range(15):
            time.sleep(1)
            reconnects = max([reconnects, *(record["reconnects"] for record in top())])
        expect_that("the READs do not hang", not reads.done())
        expect_that("no connection is lost", reconnects > 0)
    finally:
        shell("peer 'ip link set eth0 mtu 4400'")
    reads.result(120)
    shell(f"rm {FOLDER}/large {FOLDER}/small; umount {FOLDER}")


def not_loadable():
    """The kernel does not accept the module, here because it is damaged: NFS knows no "rdma"."""
    updates = "/lib/modules/$(uname -r)/updates"
    shell(f"""module_idle rpcrdma_rs; rmmod rpcrdma_rs
        mkdir -p {updates}; head -c 100000 /t/rpcrdma_rs.ko >{updates}/rpcrdma_rs.ko
        cp /t/rpcrdma_rs.conf /etc/modprobe.d; depmod""")
    try:
        fails_with(INVALID, ["mount.nfs: an incorrect mount option was specified for ..."])
        expect_that("modprobe succeeds", "could not insert" in
                    shell("modprobe rpcrdma_rs 2>&1 || :"))
    finally:
        shell(f"rm {updates}/rpcrdma_rs.ko /etc/modprobe.d/rpcrdma_rs.conf; depmod; module_load rust")
    works()


def link_lost():
    """The link is down: no connection is left, the log says why, and the mount continues when the
    link is up again."""
    shell(f"client_mount 4.2 $SERVER {FOLDER}; dmesg -C")
    shell("link_set off")
    try:
        writes = in_background(shell, f"echo text >{FOLDER}/symptoms; sync")
        for _ in range(60):
            time.sleep(1)
            if literal(EPROTO).search(shell("dmesg")):
                break
        seen(EPROTO, shell("dmesg"))
        states = [record["state"] for record in top()]
        expect_that(f"there are connections: {states}", "connected" not in states)
    finally:
        shell("link_set on; devices_revive; peer devices_revive")
    writes.result(120)
    shell(f"rm {FOLDER}/symptoms; umount {FOLDER}")


def in_use():
    """A mount holds the module, and the commands of the document show the mount."""
    shell(f"client_mount 4.2 $SERVER {FOLDER}")
    status = subprocess.run(["rmmod", "rpcrdma_rs"], text=True, capture_output=True, check=False)
    seen("rmmod: ERROR: Module rpcrdma_rs is in use", status.stderr)
    for command in ("grep proto=rdma /proc/self/mounts", "rdma resource show cm_id"):
        expect_that(f"the document does not say '{command}'", f"``{command}``" in DOCUMENT)
    expect_that("the mount is not named", FOLDER in shell("grep proto=rdma /proc/self/mounts"))
    expect_that("no connection is shown", "192.168.88.2:20049" in shell("rdma resource show cm_id"))


def device_goes():
    """Remove the device of the mount of `in_use`, and add it again."""
    shell("timeout 60 rdma link del rdma0")
    lists = in_background(shell, f"ls {FOLDER}")
    time.sleep(2)
    shell("device_add")
    lists.result(120)
    shell(f"umount {FOLDER}")


def refuses(*lines):
    """insmod fails, and it and the kernel log say this."""
    shell("dmesg -C")
    done = subprocess.run(["insmod", "/t/rpcrdma_rs.ko"], text=True, capture_output=True, check=False)
    expect("exit status of insmod", done.returncode, 1)
    for line in lines:
        expect_that(f"'{line}' is not in the section '{KEY}'", line in section(KEY))
        seen(line, done.stderr + shell("dmesg"))


def locked_down():
    """A kernel that is locked down refuses the module, and still shows the live view. This cannot be
    undone."""
    shell("mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security; "
          "echo integrity >/sys/kernel/security/lockdown")
    refuses("insmod: ERROR: could not insert module ...: Operation not permitted",
            "Lockdown: insmod: unsigned module loading is restricted; see man kernel_lockdown.7")
    shell(f"client_mount 4.2 $SERVER {FOLDER}")
    try:
        expect("states", [record["state"] for record in top()], ["connected"])
    finally:
        shell(f"umount {FOLDER}")


def unsigned():
    """A kernel that enforces signatures refuses the module. This cannot be undone either."""
    shell("echo Y >/sys/module/module/parameters/sig_enforce")
    refuses("insmod: ERROR: could not insert module ...: Key was rejected by service",
            "Loading of unsigned module is rejected")


def main():
    """Run all tests; the last two cannot be undone."""
    os.makedirs(FOLDER, exist_ok=True)
    with case("Invalid argument: no fast registration"):
        raise Skip("the kernel has no software device without fast registration")
    for name, test in (("Protocol error: no device", no_device),
                       ("Network is unreachable: the interface is down", interface_down),
                       ("Network is unreachable: no route", no_route),
                       ("Connection timed out, No route to host: nobody answers", silent),
                       ("Connection timed out: the server has no device", no_device_on_server),
                       ("Connection refused: nobody listens", refused),
                       ("Connection refused: nfs.conf", nfs_conf),
                       ("Protocol not supported: nfsd lacks the version", no_version),
                       ("Invalid argument: the module cannot be loaded", not_loadable),
                       ("a mount over TCP: the server is mounted over TCP", over_tcp),
                       ("Address family not supported: proto= does not fit", family),
                       ("a hang: nfsd does not answer", server_does_not_answer),
                       ("a hang: the link is lost", link_lost),
                       ("a hang: the server's MTU is smaller", other_mtu),
                       ("rmmod: the module is in use", in_use),
                       ("a device is removed, and comes back", device_goes),
                       ("Operation not permitted: locked down", locked_down),
                       ("Key was rejected by service: not signed", unsigned)):
        with case(name):
            test()


main()

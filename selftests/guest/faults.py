# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Things that break in the middle of I/O: processes, the link, the server.

The guarantees of NFS must hold: a hard mount waits and continues, a soft mount
returns an error in time, and data that was written and synced is there.

The server's files are on a file system on the host's disk, so that they outlive
the server guest.
"""

import contextlib
import errno
import mmap
import os
import signal
import subprocess
import sys
import time

from faultio import DISK, Churn, force_disconnect, grows, no_link, serve_from_disk, stop_all
from harness import IWARP, LONG, PATIENCE, SERVER, Skip, case, counters, data, expect, expect_that, \
    in_background, mount, read_file, shell, umount, write_file

CLIENT, MODULE = os.environ["CLIENT_MODULE"], os.environ["SERVER_MODULE"]
MIB = 1 << 20


def killed_processes(folder):
    """Kill processes that read and write; the mount continues, and other files are intact."""
    known = data(3 * MIB + 5, 42)
    write_file(f"{folder}/known", known)
    busy = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
memory = mmap.mmap(-1, 1 << 20)
print("busy", flush=True)
while True:
    for i in range(4): os.pwrite(fd, memory, i << 20)
    for i in range(4): os.preadv(fd, [memory], i << 20)
"""
    for turn in range(8):
        jobs = [subprocess.Popen([sys.executable, "-c", busy, f"{folder}/busy-{i}"],
                                 stdout=subprocess.PIPE, text=True) for i in range(3)]
        for job in jobs:
            expect("first line of the process", job.stdout.readline(), "busy\n")
        time.sleep(0.2 + 0.09 * turn)
        for job in jobs:
            job.send_signal(signal.SIGKILL)
        for job in jobs:
            expect("how the process ended", job.wait(timeout=30), -signal.SIGKILL)
        expect_that("a known file has changed", read_file(f"{folder}/known") == known)
    for i in range(3):
        content = read_file(f"{folder}/busy-{i}")
        expect_that("foreign bytes in a file of zeros", not content.strip(b"\0"))
        os.unlink(f"{folder}/busy-{i}")


def under_io(folder, fault, seconds=PATIENCE):
    """Run verified I/O, buffered and direct, before, during and after `fault`."""
    with Churn(f"{folder}/buffered") as one, Churn(f"{folder}/direct", os.O_DIRECT) as two:
        time.sleep(1)
        fault()
        begun = time.monotonic()
        for churn in one, two:
            churn.runs()
        turns = stop_all(one, two, seconds=seconds)
    print(f"{turns} rounds; ended {time.monotonic() - begun:.1f} s after the fault")


def link_down(seconds):
    """Take the link down for some time."""
    with no_link():
        time.sleep(seconds)


def neighbour_changed(folder):
    """Change the server's hardware address, as a fail over does, and restore it."""
    if CLIENT == "c":
        raise Skip("the C client may hang then, see Documentation/known-issues.rst")
    connections = counters(folder)["connect_count"]
    under_io(folder, lambda: shell("""
        mac=$(peer 'cat /sys/class/net/eth0/address')
        ip neigh replace $SERVER lladdr 52:54:00:88:00:77 dev eth0 nud reachable
        ip neigh replace $SERVER lladdr $mac dev eth0 nud reachable"""))
    # Over iWARP the CM reports nothing; TCP finds the new address.
    expect_that("no new connection was made",
                IWARP or counters(folder)["connect_count"] > connections)


def nfsd_restarted():
    """Stop nfsd, and start it again after some seconds."""
    shell("peer 'server_stop && sleep 2 && server_start'")


@contextlib.contextmanager
def frozen_write(folder, seed):
    """Keep the server from finishing a WRITE: its file system is frozen. Lends the counters of before the
    WRITE, and the WRITE. The end of the block thaws the file system, and checks what was written."""
    path, content = f"{folder}/frozen", data(4096, seed)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    memory = mmap.mmap(-1, 4096)
    os.pwrite(fd, memory, 0)
    before = counters(folder)
    memory[:] = content
    shell("peer 'fsfreeze -f /srv/disk'")
    try:
        writer = in_background(os.pwrite, fd, memory, 4096)
        grows(folder, "sends", before["sends"], time.monotonic() + 60)
        yield before, writer
    finally:
        shell("peer 'fsfreeze -u /srv/disk 2>/dev/null || true'")
    expect("bytes written", writer.result(120), 4096)
    os.close(fd)
    expect_that("content", read_file(path, os.O_DIRECT)[4096:] == content)


def siw_lost():
    """Return how many octets siw did not see. Those of a connection's first message may stay in the socket,
    see Documentation/known-issues.rst."""
    if not IWARP:
        return 0
    lines = shell("peer 'ss -Htn state established sport = :20049'").splitlines()
    if lost := sum(int(line.split()[0]) for line in lines):
        print(f"siw did not see a message of {lost} octets")
    return lost


def interrupted():
    """Break the connection while the server processes a WRITE. With version 3 nfsd drops the
    repeated Call meanwhile, on a connection that has one credit before its first answer."""
    folder = "/mnt/interrupted"
    mount("3", "ipv4", folder, "nosharecache")
    with frozen_write(folder, 6) as (before, writer):
        time.sleep(1)
        force_disconnect(SERVER["ipv4"])
        end = time.monotonic() + 120
        grows(folder, "connect_count", before["connect_count"], end)
        grows(folder, "sends", before["sends"] + 1, end)
        connections = counters(folder)["connect_count"]
        time.sleep(8)
        grown = counters(folder)["connect_count"] - connections
        expect_that(f"{grown} connections in 8 s", grown <= 8)
        lost = siw_lost()
        expect_that("the WRITE has ended", not writer.done())
        begun = time.monotonic()
    seconds = time.monotonic() - begun
    umount(folder)
    print(f"written {seconds:.1f} s after the server could; {grown} connections in the 8 s before")
    expect_that("it took the RPC layer's timer", seconds < 45 or lost or MODULE == "c")


def interrupted_briefly(folder):
    """Break the connection while the server processes a WRITE of version 4.1, and let the server finish
    once the client has reconnected. Our server holds the repeated Call back until then; nfsd would answer
    with NFS4ERR_DELAY, and the client would wait for 15 s."""
    with frozen_write(folder, 7) as (before, writer):
        time.sleep(0.3)
        shell("peer '(sleep 0.7; fsfreeze -u /srv/disk) >/dev/null 2>&1 &'")
        begun = time.monotonic()
        force_disconnect(SERVER["ipv4"])
        grows(folder, "connect_count", before["connect_count"], begun + 120)
        connected = time.monotonic() - begun
        lost = siw_lost()
        writer.result(120)
        seconds = time.monotonic() - begun
    print(f"connected after {connected:.2f} s, written after {seconds:.1f} s")
    expect_that("the client waited", seconds < 6 or lost or MODULE == "c")


def short_timeouts():
    """A soft mount gives up in time, and works again once the link is up. A hard mount
    continues, although its READ has then waited for several times its timeout: that must not break
    the new connection."""
    folder, hard = "/mnt/soft", "/mnt/hard"
    mount("3", "ipv6", folder, "soft,timeo=30,retrans=1,noac,nosharecache")
    mount("3", "ipv4", hard, "timeo=10,retrans=1,nosharecache")
    # Few enough octets for a slow machine to read within a timeout.
    content = data(65536, 3)
    write_file(f"{folder}/soft", content)
    fd = os.open(f"{folder}/soft", os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, len(content))
    with no_link():
        reader = in_background(read_file, f"{hard}/soft", os.O_DIRECT)
        started, error = time.monotonic(), 0
        try:
            os.preadv(fd, [memory], 0)
        except OSError as failure:
            error = failure.errno
        seconds = time.monotonic() - started
        begun, connections = time.monotonic(), counters(hard)["connect_count"]
    expect_that(f"READ ended with {errno.errorcode.get(error, error)}",
                error in (errno.ETIMEDOUT, errno.EIO))
    expect_that(f"it took {seconds:.0f} s", seconds < 60)
    print(f"{errno.errorcode[error]} after {seconds:.1f} s")
    # A reader that exceeds this still fails the case, by TimeoutError.
    expect_that("content, of the hard mount", reader.result(60) == content)
    print(f"read from the hard mount after {time.monotonic() - begun:.1f} s and "
          f"{counters(hard)['connect_count'] - connections} connections")
    for _ in range(60):
        try:
            expect("bytes read", os.preadv(fd, [memory], 0), len(content))
            break
        except OSError:
            time.sleep(1)
    expect_that("content once the link is up", memory[:] == content)
    os.close(fd)
    umount(folder)
    umount(hard)


def outage_of_long_ago():
    """Use a soft mount again that gave up in an outage: it does not wait for the back-off of the
    outage, which exceeds its timeout."""
    if os.environ["CLIENT_MODULE"] == "c":
        raise Skip("the C client's connections are broken once its link is up, so none is made")
    folder = "/mnt/quiet"
    mount("3", "ipv6", folder, "soft,timeo=30,retrans=1,noac,nosharecache")
    write_file(f"{folder}/quiet", data(4096, 4))
    fd = os.open(f"{folder}/quiet", os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, 4096)
    failed = 0
    with no_link():
        for _ in range(3):
            try:
                os.preadv(fd, [memory], 0)
            except OSError:
                failed += 1
        connections = counters(folder)["connect_count"]
    expect("READs that failed", failed, 3)
    # Wait longer than any delay plus the attempt to connect after it. An attempt that the last
    # READ caused may still be pending, although nobody waits for a connection any more.
    time.sleep(32)
    if counters(folder)["connect_count"] > connections:
        # sunrpc closes an idle connection after 300 s.
        force_disconnect(SERVER["ipv6"])
    expect("bytes read", os.preadv(fd, [memory], 0), 4096)
    os.close(fd)
    umount(folder)


def server_killed(folder):
    """Kill the server guest under I/O over two mounts, and start it again."""
    other = "/mnt/faults-3"
    mount("3", "ipv6", other)
    known = data(5 * MIB, 77)
    write_file(f"{folder}/before", known)

    def power_cut():
        print("@restart-server", flush=True)
        time.sleep(5)
        end = time.monotonic() + 300
        while subprocess.run(["bash", "-c", ". /t/guest/lib.sh; peer true"], check=False,
                             stdout=subprocess.DEVNULL).returncode != 0:
            expect_that("the server guest did not come back", time.monotonic() < end)
            time.sleep(1)
        churn.runs()
        shell(f"peer 'module_load {MODULE} && {DISK.strip()} && server_start'")

    seconds = max(200, PATIENCE)
    with Churn(f"{other}/killed-3") as churn:
        under_io(folder, power_cut, seconds)
        churn.stop(seconds)
    expect_that("a file synced before is not what it was",
                read_file(f"{folder}/before", os.O_DIRECT) == known)
    umount(other)


def main():
    """The group."""
    folder = "/mnt/faults"
    # Tasks may legitimately wait for a server that is down.
    shell("echo 300 >/proc/sys/kernel/hung_task_timeout_secs")
    with case("serve from a disk"):
        serve_from_disk()
        mount("4.1", "ipv4", folder)
    with case("processes killed in the middle of I/O"):
        killed_processes(folder)
    for seconds in (1, 10, 70) if LONG else (1, 10):
        with case(f"link down for {seconds} s under I/O"):
            under_io(folder, lambda: link_down(seconds))
    with case("the server's hardware address changes under I/O"):
        neighbour_changed(folder)
    with case("nfsd stopped and started under I/O"):
        under_io(folder, nfsd_restarted)
    with case("connection broken while the server is at work on a WRITE of version 3"):
        interrupted()
    with case("connection broken while the server is about to finish a WRITE of version 4.1"):
        interrupted_briefly(folder)
    with case("short timeouts: an error of a soft mount in time, and recovery"):
        short_timeouts()
    if LONG:
        with case("soft mount used again long after an outage"):
            outage_of_long_ago()
    with case("server killed under I/O, and back"):
        server_killed(folder)
    with case("unmount"):
        umount(folder)
    shell("echo 180 >/proc/sys/kernel/hung_task_timeout_secs")


main()

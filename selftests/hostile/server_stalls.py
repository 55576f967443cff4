# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Clients that stall the Sends of a server, and the cost to other clients.

To make a stall last, the client connects with an RNR retry count of 7, which the server's queue
pair adopts and which means forever, and posts no Receives. The server's first Send finds no
Receive, rxe gets an RNR NAK and repeats the Send forever, and Work Requests behind it, including
RDMA Reads, never run. Meanwhile rxe's acknowledgement timer runs and decrements the other retry
count: with a count of 6 the connection ends by itself after some 4 s, while rxe treats a count of
7 as infinite. siw has no RNR and ends the connection, so no case runs over siw.
"""

import contextlib
import subprocess
import time

import peer
import wire
from client import XIDS
from cases import Failed, Skip, shell
from harness import DEBUG, pages_at_hand
from server_cases import FILE, LARGEST, TABLE, large_payloads, null
from wire import Segment

case = TABLE.case
THREADS = "/proc/fs/nfsd/threads"
MOUNT = "/mnt/honest"
NO_RNR = peer.IWARP and "iWARP has no RNR retries: a Send without a Receive ends the connection"
PAYLOAD = 1 << 20

# From Documentation/security.rst: the memory of one connection, whatever its client does, and the
# memory for Read chunks of all clients without access together.
CONNECTION = 4 << 20
UNPROVEN = 32 << 20
# What each such client has besides UNPROVEN.
FIRST = 1 << 20
# What the measured memory may differ by.
SLACK = 16 << 20
# The debug kernel is slower, and `make check-debug` runs two further guests beside this one.
SLOWER = 3 if DEBUG else 1
# Seconds within which an honest client is served, and within which nfsd stops.
SERVED = 2 * SLOWER
STOPPED = 5 * SLOWER
# Seconds after which a connection without progress ends, see svc/sq.rs: it checks every 5 s.
UNPROVEN_ENDS = (9, 17)
PROVEN_ENDS = (29, 42)


def only_ours(server):
    """Skip with the C module."""
    if server.kind == "c":
        raise Skip("the C module has other bounds")


@contextlib.contextmanager
def few_threads(count=2):
    """Run the block with that many threads of nfsd."""
    with open(THREADS, encoding="ascii") as file:
        before = file.read().strip()
    shell(f"nfsd_start {count}")
    try:
        yield
    finally:
        shell(f"nfsd_start {before}")


class Honest:
    """Mount with the kernel's client, which has access."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        shell(f"client_mount 3 {self.server.address} {MOUNT} nolock,noac")
        return self

    def __exit__(self, *_):
        shell(f"umount {MOUNT}")

    def stat(self):
        """Fail unless a file's attributes arrive within `SERVED`."""
        begun = time.monotonic()
        subprocess.run(["timeout", "-s", "KILL", "40", "stat", "-t", f"{MOUNT}/{FILE}"],
                       check=True, stdout=subprocess.DEVNULL)
        if (waited := time.monotonic() - begun) > SERVED:
            raise Failed(f"an honest client waited {waited:.1f} s")


class Stalled:
    """Clients that accept none of the messages sent to them."""

    def __init__(self, server, count, **options):
        self.clients = []
        options = {"receives": 64, "posted": 0, "sends": 64, "rnr_retry": 7, "retry": 7} | options
        try:
            for _ in range(count):
                self.clients.append(server.connect(**options))
        except BaseException:
            self.close()
            raise

    def send(self, count, build):
        """Have each client send `count` messages, unless its connection ends."""
        for client in self.clients:
            with contextlib.suppress(peer.Closed, peer.Timeout):
                for _ in range(count):
                    client.send(build())

    def close(self):
        """Close the clients."""
        for client in self.clients:
            client.end.close()
        self.clients = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def access(server):
    """Return a Call that shows that its client has access."""
    xid = next(XIDS)
    return wire.header(xid) + wire.v3_read(xid, server.handle(FILE), 0, 4)


def write_call(server, region, payload=PAYLOAD):
    """Return a WRITE, with its payload in a Read chunk."""
    xid = next(XIDS)
    body = wire.v3_write_head(xid, server.handle("sink"), 0, payload)
    return wire.header(xid, reads=[Segment(region.rkey, payload, region.address, len(body))]) + body


def pzrc_call(region):
    """Return a NULL Call in a Position Zero Read chunk of many segments."""
    xid = next(XIDS)
    reads = [Segment(region.rkey, 4, region.address + 4 * i) for i in range(160)]
    return wire.header(xid, wire.NOMSG, reads=reads)


ATTACKS = {
    "more replies than the Send Queue has room for": lambda server, region: (1440, null),
    "Position Zero Read chunks of many segments":
        lambda server, region: (40, lambda: pzrc_call(region)),
    "large Read chunks": lambda server, region: (120, lambda: write_call(server, region)),
}


@case("twice as many stalled clients as threads: others are served, and nfsd stops", skip=NO_RNR)
def hold_threads(server):
    only_ours(server)
    region = server.device.region(PAYLOAD)
    server.handle("sink"), server.handle(FILE)
    for proven in (False, True):
        for name, attack in ATTACKS.items():
            with few_threads(), Honest(server) as honest, Stalled(server, 4) as stalled:
                if proven:
                    stalled.send(1, lambda: access(server))
                stalled.send(1, null)
                stalled.send(*attack(server, region))
                for _ in range(4):
                    honest.stat()
                    time.sleep(0.3)
                begun = time.monotonic()
                shell("server_stop")
                if (seconds := time.monotonic() - begun) > STOPPED:
                    raise Failed(f"{name}: nfsd stopped after {seconds:.1f} s")
                shell("nfsd_start 2")
    region.close()


@case("a client that posts a Receive every second holds no thread", skip=NO_RNR)
def drip(server):
    only_ours(server)
    with few_threads(), Honest(server) as honest, Stalled(server, 4) as stalled:
        stalled.send(1440, null)
        for slot in range(5):
            for client in stalled.clients:
                with contextlib.suppress(peer.PyverbsRDMAError):
                    client.end.post_receive(slot)
            honest.stat()
            time.sleep(1)


def ended(client, begun, bounds, what):
    """Fail unless the server ends the connection within these bounds from `begun` on."""
    try:
        client.end.wait_closed(bounds[1] - (time.monotonic() - begun))
    except peer.Timeout:
        raise Failed(f"{what}: the connection is there after {bounds[1]} s") from None
    if (seconds := time.monotonic() - begun) < bounds[0]:
        raise Failed(f"{what}: the connection ended after {seconds:.1f} s: {client.end.closed}")


@case("chains that make no progress end their connections, though nobody waits", skip=NO_RNR)
def no_progress(server):
    only_ours(server)
    with Stalled(server, 3) as stalled:
        unproven, dripping, proven = stalled.clients
        proven.send(access(server))
        for client in stalled.clients:
            for _ in range(20):
                client.send(null())
        begun = time.monotonic()
        for slot in range(4):
            dripping.end.post_receive(slot)
            time.sleep(1)
        ended(unproven, begun, UNPROVEN_ENDS, "nothing is taken, access not shown")
        ended(dripping, begun, UNPROVEN_ENDS, "some is taken, access not shown")
        ended(proven, begun, PROVEN_ENDS, "nothing is taken")


def available():
    """Return the memory that is available in the guest, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 + pages_at_hand() * 4096
    raise Failed("no MemAvailable in /proc/meminfo")


def settled():
    """Return the available memory once what earlier cases held has been freed."""
    last = available()
    for _ in range(20):
        time.sleep(0.5)
        now = available()
        if abs(now - last) < 1 << 20:
            return now
        last = now
    return last


def most_held(connected, wanted):
    """Return how much less than `connected` is available at the worst moment of a second, or of as
    many as it takes for more than `wanted` to be held. The server ends such connections after ten."""
    held, begun = 0, time.monotonic()
    while (waited := time.monotonic() - begun) < 6 and (waited < 1 or held <= wanted):
        time.sleep(0.1)
        held = max(held, connected - available())
    return held


def hold_payloads(server, region, count, wanted):
    """Return what `count` stalled connections with 16 large Calls each hold, in bytes; wait for more
    than `wanted`."""
    with large_payloads():
        before = settled()
        with Stalled(server, count) as stalled:
            connected = settled()
            stalled.send(1, null)
            stalled.send(16, lambda: write_call(server, region, LARGEST))
            held = most_held(connected, wanted)
    server.notes.append(f"{count} connections: {(before - connected) >> 20} MiB with the "
                        f"clients' own; 16 Calls of each: {held >> 20} MiB")
    # Each client itself uses some 1 MiB, as do the Receives that the server posts once there are
    # messages. Other programs of the guest run meanwhile.
    if before - connected > count * (CONNECTION + (1 << 20)) + SLACK:
        raise Failed(f"{count} connections cost {(before - connected) >> 20} MiB")
    return held


@case("stalled clients without access hold little memory", skip=NO_RNR)
def hold_memory(server):
    only_ours(server)
    region = server.device.region(LARGEST)
    server.handle("sink")
    # With large payloads, what is held differs from what is not by more than other programs use.
    # Without the limit of a connection, the first kind holds all of UNPROVEN; without UNPROVEN, the
    # second kind holds a payload for each connection.
    for count, bound in (1, LARGEST), (40, UNPROVEN):
        held = hold_payloads(server, region, count, bound / 4)
        if not bound / 4 < held < bound + count * (FIRST + (1 << 20)) + SLACK:
            raise Failed(f"{count} connections hold {held >> 20} MiB")
    region.close()


@case("the first WRITE of a connection waits for no other client without access", skip=NO_RNR)
def first_write(server):
    only_ours(server)
    region = server.device.region(LARGEST)
    server.handle("sink")
    with large_payloads(), Stalled(server, 40) as stalled:
        stalled.send(1, null)
        stalled.send(2, lambda: write_call(server, region, LARGEST))
        begun = time.monotonic()
        with server.connect() as client:
            head = client.call(write_call(server, region, FIRST))
        if (seconds := time.monotonic() - begun) > SERVED:
            raise Failed(f"a WRITE took {seconds:.1f} s")
        wire.v3_write_count(head.body, head.xid)
    region.close()


def two_reads(region):
    """Return a COMPOUND with two READs of half of `region`, each with a Write chunk. nfsd copies what
    it reads into pages of its own, unless a COMPOUND has a single READ."""
    xid, half = next(XIDS), PAYLOAD // 2
    chunks = [[Segment(region.rkey, half, region.address + half * i)] for i in range(2)]
    read = wire.u32(25, 0, 0, 0, 0, 0, 0, half)
    lookup = wire.u32(15) + wire.opaque(b"reads")
    return wire.header(xid, writes=chunks) + wire.compound(xid, [wire.u32(24), lookup, read, read])


@case("the pages of replies that are taken late are freed", skip=NO_RNR)
def late_replies(server):
    only_ours(server)
    region = server.device.region(PAYLOAD)
    shell(f"head -c {PAYLOAD} /dev/zero >$EXPORT/reads")
    with Stalled(server, 1) as stalled:
        client, = stalled.clients
        for slot in range(2):
            client.end.post_receive(slot)
        client.call(access(server))
        client.call(two_reads(region))
        connected = settled()
        stalled.send(16, lambda: two_reads(region))
        # The timer that frees spare pages runs every 5 s, see svc/trim.rs.
        time.sleep(12)
        held = connected - available()
        for slot in range(2, 18):
            client.end.post_receive(slot)
        lengths = {tuple(chunk[0].length for chunk in client.message()[0].writes)
                   for _ in range(16)}
        time.sleep(16)
        kept = connected - settled()
    server.notes.append(f"16 replies hold {held >> 20} MiB, {kept >> 20} MiB are kept")
    shell("rm $EXPORT/reads")
    region.close()
    if lengths != {(PAYLOAD // 2, PAYLOAD // 2)}:
        raise Failed(f"lengths of the payloads: {lengths}")
    # KASAN keeps freed memory for a while.
    if held < 12 << 20 or kept > (12 if DEBUG else 6) << 20:
        raise Failed(f"16 replies hold {held >> 20} MiB, {kept >> 20} MiB are kept")

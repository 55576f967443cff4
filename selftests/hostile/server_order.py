# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Clients whose Read chunks arrive late, and what that costs other connections of the same address.

While the server pulls the Read chunks of a Call, later Calls from the same address wait, on any
connection. As in server_stalls.py, a Send that finds no Receive blocks the RDMA Reads of a pull behind
it. When the client posts a Receive later, one Send and the pull behind it complete."""

import contextlib
import time

import peer
import wire
from client import XIDS
from cases import Failed, shell
from server_cases import FILE, TABLE, null
from server_stalls import NO_RNR, Stalled, access, few_threads, only_ours
from server_version2 import agree
from wire import Segment

case = TABLE.case
# Seconds, see svc/client.rs: how long Calls wait for the oldest pull, and for all under way at a time.
OLDEST_PULL = 1.0
BATCH = 5.0
# The octets of a payload for which the connections here never have enough spare pages.
LONG = 32 * 4096
READS = "/proc/sys/sunrpc/svc_rdma/rdma_stat_read"


def pulled_null(region):
    """Return a NULL Call that is in a Read segment as a whole, so that the server cannot know before
    the pull whether it has a sequence number."""
    xid = next(XIDS)
    return wire.header(xid, wire.NOMSG, reads=[Segment(region.rkey, 40, region.address)])


def pulled_write(server, region, gss, size=4096):
    """A WRITE whose payload is in a Read segment: the server sees whether it has a sequence number,
    as with RPCSEC_GSS, service "none", or has none, as with AUTH_SYS."""
    xid = next(XIDS)
    body = wire.v3_write_head(xid, server.handle("sink"), 0, size)
    if gss:
        plain, args = wire.v3(xid, 7, b""), body[len(wire.v3(xid, 7, b"")):]
        credential = wire.u32(1, 0, 99, 1) + wire.opaque(b"context")
        secured = wire.u32(6) + wire.opaque(credential) + wire.u32(6) + wire.opaque(bytes(28))
        body = plain[:24] + secured + args
    return wire.header(xid, reads=[Segment(region.rkey, size, region.address, len(body))]) + body


class Clock:
    """Measures the duration of a NULL Call on another connection."""

    def __init__(self, client):
        self.client = client
        times = sorted(self.null() for _ in range(5))
        # A slow or busy machine adds some multiple of this.
        self.slack = 0.5 + 10 * times[2]

    def null(self):
        """Return the duration of a NULL Call in seconds."""
        begun = time.monotonic()
        self.client.null()
        return time.monotonic() - begun


@contextlib.contextmanager
def beside_stalled(server):
    """Yield a Clock, and a client that has access and accepts no further message."""
    with server.connect() as honest, Stalled(server, 1) as stalled:
        clock = Clock(honest)
        stalled.send(1, lambda: access(server))
        time.sleep(0.5)
        yield clock, stalled


@case("a pull that never ends: others of the address wait once, and not long", skip=NO_RNR)
def stalled_pull(server):
    only_ours(server)
    region = server.device.region(4096)
    with beside_stalled(server) as (clock, stalled):
        stalled.send(1, lambda: pulled_null(region))
        time.sleep(0.1)
        first, second = clock.null(), clock.null()
        server.notes.append(f"NULL takes {first:.2f} s, then {second:.2f} s")
        if first < OLDEST_PULL / 2:
            raise Failed("nothing waits for a pull: the case tests nothing")
        if first > OLDEST_PULL + clock.slack or second > clock.slack:
            raise Failed(f"others waited for {first:.1f} s, then {second:.1f} s")
    region.close()


@case("a pull of a payload: others of the address wait if the Call has a sequence number",
      skip=NO_RNR)
def stalled_payload(server):
    only_ours(server)
    region = server.device.region(4096)
    for gss in (False, True):
        with beside_stalled(server) as (clock, stalled):
            stalled.send(1, lambda: pulled_write(server, region, gss))
            time.sleep(0.1)
            took = clock.null()
            server.notes.append(f"{'with' if gss else 'without'} a number: {took:.2f} s")
            if (took >= OLDEST_PULL / 2) != gss or took > OLDEST_PULL + clock.slack:
                raise Failed(f"others waited for {took:.2f} s")
    region.close()


@case("the response to RDMA2_CONNPROP does not wait for pulls of the address", skip=NO_RNR)
def connprop_beside_pull(server):
    only_ours(server)
    region = server.device.region(4096)
    with beside_stalled(server) as (clock, stalled):
        with server.connect(receives=8, sends=8) as client:
            stalled.send(1, lambda: pulled_write(server, region, True))
            time.sleep(0.1)
            begun = time.monotonic()
            agree(client)
            took, waited = time.monotonic() - begun, clock.null()
    server.notes.append(f"RDMA2_CONNPROP took {took:.2f} s, then a Call {waited:.2f} s")
    if took > OLDEST_PULL / 2 or waited < OLDEST_PULL / 4:
        raise Failed(f"RDMA2_CONNPROP took {took:.2f} s, and a Call {waited:.2f} s")
    region.close()


def waits_beside(honest, attacker, seconds=20):
    """Return the start and duration of NULL Calls while a Receive every 0.7 s lets one pull complete."""
    begun, waits, slot, asked = time.monotonic(), [], 0, None
    while (now := time.monotonic()) < begun + seconds or asked is not None:
        if now > begun + 0.7 * slot:
            with contextlib.suppress(peer.PyverbsRDMAError):
                attacker.end.post_receive(slot)
            slot += 1
        if asked is None:
            asked = now
            honest.send(null())
        elif honest.end.poll():
            waits.append((asked - begun, time.monotonic() - asked))
            asked = None
        elif now > begun + 4 * seconds:
            raise Failed(f"no answer since {asked - begun:.1f} s")
        time.sleep(0.01)
    return waits


@case("pulls that end one by one: others of the address wait for a while, then no more",
      skip=NO_RNR)
def batch_of_pulls(server):
    only_ours(server)
    server.handle(FILE)
    region = server.device.region(4096)
    with server.connect() as honest, Stalled(server, 1) as stalled:
        clock = Clock(honest)
        attacker = stalled.clients[0]
        attacker.send(access(server))
        time.sleep(0.5)
        for _ in range(28):
            attacker.send(pulled_null(region))
            time.sleep(0.03)
            attacker.send(null())
            time.sleep(0.03)
        waits = waits_beside(honest, attacker)
        server.notes.append("; ".join(f"at {at:.1f} s: {wait:.1f} s" for at, wait in waits
                                      if wait > clock.slack) + f"; {len(waits)} in all")
        # Calls may wait for the rest of one batch of pulls and all of the next one, and until the next
        # check. The pulls may begin to end late, if the device repeats the Send before them rarely.
        longest, waited = 2 * BATCH + OLDEST_PULL, [wait for _, wait in waits if wait > clock.slack]
        if sum(waited) > longest + len(waited) * clock.slack:
            raise Failed(f"another connection waited for {sum(waited):.1f} s, {longest} allowed")
        if sum(waited) < BATCH / 2:
            raise Failed("little waits for the pulls: the case tests nothing")
    region.close()


def stalls(server, build, bursts=40):
    """Return the number of bursts of Calls in which all answers come at once, but for a pause."""
    count = 0
    for _ in range(bursts):
        # A new connection has no spare pages, so service threads begin its pulls.
        with server.connect() as client:
            client.call(access(server))
            for _ in range(28):
                client.send(build())
            times = [time.monotonic()]
            for _ in range(28):
                client.message()
                times.append(time.monotonic())
        pause = max(later - before for before, later in zip(times, times[1:]))
        count += 0.9 * OLDEST_PULL < pause and times[-1] - times[0] - pause < OLDEST_PULL / 2
    return count


@case("pulls that several threads begin at a time: none waits for one that is behind it")
def burst_of_pulls(server):
    only_ours(server)
    server.handle("sink")
    region = server.device.region(4096)
    with_number = stalls(server, lambda: pulled_write(server, region, True))
    without = stalls(server, lambda: pulled_write(server, region, False))
    server.notes.append(f"{with_number} pauses with a number, {without} without")
    # A busy machine may pause by itself.
    if with_number > without + 1:
        raise Failed(f"{with_number} bursts had to wait, and {without} of those without a number")
    region.close()


@contextlib.contextmanager
def one_thread(server):
    """In the block nfsd has one thread; lend a connection with access, and memory for Read chunks."""
    only_ours(server)
    server.handle("sink"), server.handle(FILE)
    region = server.device.region(LONG)
    with few_threads(1), server.connect() as client:
        client.call(access(server))
        yield client, region
    region.close()


@contextlib.contextmanager
def busy_thread(client, server):
    """Run the block while the only thread waits for mountd, for a Call of `client`."""
    shell("kill -STOP $(pidof rpc.mountd); exportfs -f")
    try:
        client.send(access(server))
        time.sleep(0.2)
        yield
    finally:
        shell("kill -CONT $(pidof rpc.mountd)")


def posted_reads():
    """Return the number of RDMA Reads that the server has posted."""
    with open(READS, encoding="ascii") as file:
        return int(file.read())


@case("a pull that a thread begins: messages that arrived after its Call wait for it")
def message_behind_pull(server):
    # A new connection has no spare pages, so the thread begins the pull.
    with one_thread(server) as (client, region):
        with busy_thread(client, server):
            write, xid = pulled_write(server, region, True), next(XIDS)
            client.send(write)
            client.send(wire.header(xid) + wire.null(xid))
        answered = [client.message()[0].xid for _ in range(3)]
        if answered.index(xid) < answered.index(int.from_bytes(write[:4], "big")):
            raise Failed("a NULL Call was served before an older Call with a sequence number")


def leave_spare_pages(client, server, region):
    """Send WRITEs whose pages become spare pages of the connection. The server pulls a Call when it
    arrives if there are enough of them."""
    for _ in range(2):
        for _ in range(8):
            client.send(pulled_write(server, region, False))
        for _ in range(8):
            client.message()


@case("Calls that are pulled when they arrive: none overtakes one that waits for a thread",
      skip=peer.IWARP and "over iWARP a service thread begins each pull")
def pulled_before_waiting(server):
    with one_thread(server) as (client, region):
        leave_spare_pages(client, server, region)
        with busy_thread(client, server):
            before = posted_reads()
            calls = [pulled_write(server, region, True, size) for size in [LONG] + [4096] * 4]
            for call in calls:
                client.send(call)
            time.sleep(0.3)
            pulled = posted_reads() - before
        xids = [int.from_bytes(call[:4], "big") for call in calls]
        answered = [xid for xid in (client.message()[0].xid for _ in range(6)) if xid in xids]
        server.notes.append(f"{pulled} pulled at once; {answered.index(xids[0])} served before the first")
        if pulled == 0:
            raise Failed("no Call was pulled when it arrived: the case tests nothing")
        if answered != xids:
            raise Failed(f"the Calls {xids} were served in the order {answered}")


@case("Calls that are pulled when they arrive: none is served before an older message",
      skip=peer.IWARP and "over iWARP a service thread begins each pull")
def pulled_before_older(server):
    with one_thread(server) as (client, region):
        leave_spare_pages(client, server, region)
        with busy_thread(client, server):
            xid, before = next(XIDS), posted_reads()
            client.send(wire.header(xid) + wire.null(xid))
            for _ in range(8):
                client.send(pulled_write(server, region, False))
            time.sleep(0.3)
            pulled = posted_reads() - before
        place = [client.message()[0].xid for _ in range(10)].index(xid)
        server.notes.append(f"{pulled} pulled at once; {place} answers before that of the NULL Call")
        if pulled == 0:
            raise Failed("no Call was pulled when it arrived: the case tests nothing")
        # The answer for which the thread waited may come late.
        if place > 1:
            raise Failed(f"{place - 1} WRITEs were served before a NULL Call that is older")

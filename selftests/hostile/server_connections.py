# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Clients that misuse connections to a server: floods of messages, many connections, disconnects."""

import contextlib
import os
import signal
import time

import peer
import wire
from client import XIDS, check_null
from cases import Failed, Skip, shell
from server_cases import FILE, FILE_SIZE, PAGE, TABLE, equal, null, pattern, write_call
from server_stalls import NO_RNR, access, ended, only_ours
from wire import Segment

case = TABLE.case
TRACING = "/sys/kernel/tracing"
FREED = "events/sunrpc/svc_xprt_free/enable", "events/rpcrdma/svcrdma_accept_err/enable"


# --- CM private data ----------------------------------------------------------

# The IB connection manager pads private data with zeroes to 56 bytes: a truncated
# private message cannot be distinguished from one with zeroes.
PRIVATE = {
    "none": b"",
    "1 byte": b"\xf6",
    "7 bytes of a good one": wire.cm_private()[:7],
    "wrong magic": wire.cm_private(magic=0x180eabf6),
    "magic of zeroes": bytes(8),
    "version 0": wire.cm_private(vers=0),
    "version 2": wire.cm_private(vers=2),
    "version 255": wire.cm_private(vers=255),
    "all flags": wire.cm_private(flags=0xfe),
    "sizes of 1 KiB": wire.cm_private(1024, 1024),
    "sizes of 256 KiB": wire.cm_private(256 * 1024, 256 * 1024),
    "48 bytes more": wire.cm_private() + b"\xa5" * 48,
    "56 bytes of noise": bytes(range(200, 256)),
}


@case("private data of every wrong kind")
def wrong_private_data(server):
    for what, private in PRIVATE.items():
        with server.connect(private=private) as client:
            if client.null():
                raise Failed(f"{what}: messages nobody asked for")


@case("wrong private data never turns remote invalidation on")
def no_offer(server):
    for private in (wire.cm_private(flags=0xfe), wire.cm_private(flags=1, vers=2),
                    wire.cm_private(flags=1, magic=0), wire.cm_private(flags=1)[:5]):
        xid = next(XIDS)
        region = server.device.region(PAGE, wire.null(xid))
        with server.connect(private=private) as client:
            head = client.call(wire.header(
                xid, wire.NOMSG, reads=[Segment(region.rkey, 40, region.address)]))
            wire.results(head.body, xid).end()
            client.null()
        region.close()


@case("a client with Receives of 1,024 bytes", private=wire.cm_private(4096, 1024))
@case("the same, said by sending no private data", private=b"")
def small_receives(server, private):
    """Request replies around 1,024 bytes: inline if they fit, otherwise ERR_CHUNK (no Reply
    chunk is offered) or the Reply chunk; never a Send that does not fit."""
    region = server.device.region(FILE_SIZE)
    overhead = 28 + 24 + 4 + 4 + 84 + 12  # headers, and READ's result without the data
    for total in (1020, 1024, 1028, 2000):
        length = total - overhead
        for chunk in (None, [Segment(region.rkey, FILE_SIZE, region.address)]):
            with server.connect(private=private, size=1024, receives=8) as client:
                xid = next(XIDS)
                call = wire.header(xid, reply=chunk) \
                    + wire.v3_read(xid, server.handle(FILE), 0, length)
                outcome = client.exchange(call)
                if chunk or total <= 1024:
                    server.expect(outcome, "reply")
                else:
                    server.expect(outcome, "closed|err_chunk", "err_chunk")
                    server.notes.append(f"reply of {total} bytes: {outcome}")
    region.close()


# --- Connection parameters ------------------------------------------------------

@case("a client that allows no RDMA Reads")
def no_reads_allowed(server):
    try:
        client = server.connect(resources=0)
    except peer.Closed as reason:
        server.notes.append(f"refused: {reason}")
        return
    with client:
        client.null()


# --- floods ---------------------------------------------------------------------

@case("exactly as many calls as credits, 1,500 times over")
def window(server):
    with server.connect(receives=160, sends=160) as client:
        credits = client.call(null()).credits
        left, under_way = 1500, 0
        while left or under_way:
            while left and under_way < min(credits, 150):
                client.send(null())
                left, under_way = left - 1, under_way + 1
            head, data, _ = client.message()
            check_null(data, head.xid)
            under_way -= 1


@case("all Calls of a lost connection, sent at once on the next one, are answered", skip=NO_RNR)
def backlog(server):
    """As illumos and Linux before 5.4 do, which keep the credits of the lost connection."""
    for _ in range(20):
        with server.connect(receives=136, sends=136) as client:
            calls = [null() for _ in range(128)]
            client.end.send(*calls)
            left = {call[:4] for call in calls}
            while left:
                head, data, _ = client.message()
                check_null(data, head.xid)
                left.remove(data[:4])


@case("many more calls than credits, all answered or the connection closed")
def flood(server):
    count = 400
    with server.connect(receives=count + 8, sends=count + 8) as client:
        xids = set()
        answered = 0
        try:
            for _ in range(count):
                call = null()
                xids.add(call[:4])
                client.send(call)
            for _ in range(count):
                head, data, _ = client.message()
                check_null(data, head.xid)
                xids.remove(data[:4])
                answered += 1
            client.null()
        except peer.Closed as reason:
            server.notes.append(f"closed: {reason}")
        server.notes.append(f"{answered} of {count} answered")


@case("eight Calls with one XID under way at a time: each has its own chunk")
def one_xid(server):
    xid = next(XIDS)
    regions = [server.device.region(PAGE) for _ in range(8)]
    with server.connect() as client:
        client.null()
        handle = server.handle(FILE)
        for number, region in enumerate(regions):
            client.send(wire.header(xid, writes=[[Segment(region.rkey, PAGE, region.address)]])
                        + wire.v3_read(xid, handle, number * PAGE, PAGE))
        returned = [client.message()[0].writes[0][0].handle for _ in regions]
        equal(sorted(returned), sorted(region.rkey for region in regions), "handles returned")
    for number, region in enumerate(regions):
        equal(region.read(PAGE), pattern(number * PAGE, PAGE), f"READ number {number}")
        region.close()


@case("many more RDMA Reads and Writes than the server's queue holds")
def chunk_flood(server):
    count = 200
    region = server.device.region(FILE_SIZE)
    with server.connect(receives=count + 8, sends=count + 8) as client:
        handle = server.handle("sink")
        try:
            for i in range(count):
                xid = next(XIDS)
                if i % 2:
                    body = wire.v3_write_head(xid, handle, 0, 65536)
                    reads = [Segment(region.rkey, 65536, region.address, len(body))]
                    client.send(wire.header(xid, reads=reads) + body)
                else:
                    writes = [[Segment(region.rkey, 65536, region.address)]]
                    client.send(wire.header(xid, writes=writes) + wire.v3_read(
                        xid, server.handle(FILE), 0, 65536))
            for _ in range(count):
                client.message(60)
            client.null()
        except peer.Closed as reason:
            server.notes.append(f"closed: {reason}")
    region.close()


@case("a client that posts no Receives: its connection ends", rnr_retry=0)
@case("a client that posts no Receives and lets the server wait", rnr_retry=7)
def no_receives(server, rnr_retry):
    # With the other retry count below 7, rxe would end a stall after some 4 s, see server_stalls.py.
    with server.connect(receives=0, sends=128, rnr_retry=rnr_retry, retry=7) as client:
        try:
            for _ in range(100):
                client.send(null())
            client.end.wait_closed(2)
        except peer.Closed:
            pass
        except peer.Timeout:
            if rnr_retry == 0:
                raise
        server.check_alive()


# --- hang-ups -------------------------------------------------------------------

def large_write(server, region):
    """Return a WRITE whose data need many RDMA Reads."""
    xid = next(XIDS)
    body = wire.v3_write_head(xid, server.handle("sink"), 0, FILE_SIZE)
    reads = [Segment(region.rkey, FILE_SIZE, region.address, len(body))]
    return wire.header(xid, reads=reads) + body


def large_read(server, region):
    """Return a READ whose data need many RDMA Writes."""
    xid = next(XIDS)
    return wire.header(xid, writes=[[Segment(region.rkey, FILE_SIZE, region.address)]]) \
        + wire.v3_read(xid, server.handle(FILE), 0, FILE_SIZE)


HANGUPS = {
    "disconnect": lambda client, region: client.end.disconnect(),
    "Queue Pair to error": lambda client, region: client.end.fail(),
    "memory deregistered": lambda client, region: region.close(),
}


@case("hang-up before anything is sent, after a Send, during Reads and Writes")
def hang_up(server):
    for hang in HANGUPS.values():
        for calls in ((), (null,), (null,) * 32, (large_write,), (large_read,),
                      (large_write, large_read) * 8):
            region = server.device.region(FILE_SIZE)
            with server.connect() as client:
                for build in calls:
                    client.send(build() if build is null else build(server, region))
                hang(client, region)
            region.close()
    server.check_alive()


def write_in_parts(server, handles, address):
    """Return a WRITE whose data are a page of each handle."""
    _, body, build = write_call(server, 0, len(handles) * PAGE)
    return build([Segment(handle, PAGE, address, len(body)) for handle in handles])


@case("hang-up, and wrong handles, while the chunks of many Calls are read")
def hang_up_mid_read(server):
    if server.kind == "c":
        raise Skip("not run with the C module, see README.rst")
    region = server.device.region(PAGE)
    for turn in range(80):
        with server.connect() as client:
            client.call(access(server))
            handles = [region.rkey] * 64
            handles[turn % 4 * 4] = 0xbad00
            client.end.send(*(write_in_parts(server, handles[i:i + 4], region.address)
                              for i in range(0, len(handles), 4)))
            if turn % 8 < 4:
                client.end.wait_closed()
            else:
                hang = "Queue Pair to error" if turn % 8 == 5 else "disconnect"
                HANGUPS[hang](client, region)
    region.close()
    server.check_alive()


@case("hang-up while the RDMA Writes of a call are under way")
def hang_up_mid_write(server):
    """Wait for the first bytes of a READ's data to arrive, then disconnect."""
    for hang in HANGUPS.values():
        region = server.device.region(FILE_SIZE)
        with server.connect() as client:
            client.send(large_read(server, region))
            client.send(large_write(server, region))
            deadline = time.monotonic() + peer.TIMEOUT
            while region.read(8) == b"\xee" * 8:
                if time.monotonic() > deadline:
                    raise Failed("no RDMA Write has come")
            hang(client, region)
        region.close()


@case("process killed with calls in flight")
def killed(server):
    child = os.fork()
    if child == 0:
        os.execv("/usr/bin/python3", [
            "python3", "-B", os.path.join(os.path.dirname(__file__), "killed_client.py"),
            server.address, str(server.port)])
    ended = os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if ended.si_code != os.CLD_STOPPED:
        raise Failed(f"the process has ended by itself: {ended}")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


# --- storms ---------------------------------------------------------------------

@case("120 connections one after the other, half of which never send")
def storm(server):
    for i in range(120):
        with server.connect(receives=2, sends=2) as client:
            if i % 2:
                client.send(null())
            if i % 4 == 1:
                client.message()


@case("40 connections at once, left in different states")
def crowd(server):
    clients = []
    try:
        for i in range(40):
            client = server.connect(receives=4, sends=4)
            clients.append(client)
            if i % 2:
                client.send(null())
        # Over iWARP the server may have closed those that sent nothing, see SILENT_ENDS.
        for client in clients[5::10] if peer.IWARP else clients[::5]:
            client.null()
    finally:
        for i, client in enumerate(clients):
            if i % 3 == 0:
                client.end.fail()
            client.end.close()


TWO_MESSAGES = peer.IWARP and "the client of an iWARP connection has nothing to confirm"


@case("a call before the connection is established", skip=TWO_MESSAGES)
def early_call(server):
    with server.connect(establish=False) as client:
        client.send(null())
        try:
            client.message(0.2)
            server.notes.append("answered at once")
            client.send(null())
        except peer.Timeout:
            pass
        client.end.cmid.establish()
        client.message()
        client.null()


@case("20 connections that are never established", skip=TWO_MESSAGES)
def never_established(server):
    clients = []
    try:
        for i in range(20):
            client = server.connect(establish=False, receives=4, sends=4)
            clients.append(client)
            if i % 2:
                client.send(null())
        server.check_alive()
    finally:
        for client in clients:
            client.end.close()


# svc/first_message.rs waits 10 s.
SILENT_ENDS = 9, 20


@case("over iWARP, a client that sends nothing loses its connection",
      skip=not peer.IWARP and "only over iWARP must the client send first")
def silent(server):
    only_ours(server)
    with server.connect() as greeted:
        greeted.null()
        begun = time.monotonic()
        with server.connect() as client:
            ended(client, begun, SILENT_ENDS, "nothing is sent")
        greeted.null()


@contextlib.contextmanager
def closed_before_freed(server):
    """Fail if sunrpc releases a transport in the block, and with that its network namespace, that is
    not closed: its flushed Receives would close it, and sunrpc's trace events would then read the
    namespace."""
    shell(f"cd {TRACING} && echo >trace && echo 1 | tee {' '.join(FREED)} >/dev/null")
    yield
    time.sleep(0.5)
    shell(f"echo 0 | (cd {TRACING} && tee {' '.join(FREED)} >/dev/null)")
    with open(f"{TRACING}/trace", encoding="ascii") as file:
        lines = file.read().split("\n")
    freed = [line for line in lines if "svc_xprt_free:" in line]
    refused = sum("svcrdma_accept_err:" in line for line in lines)
    server.notes.append(f"{len(freed)} transports freed, {refused} could not be accepted")
    if server.kind == "rust":
        equal([line for line in freed if "CLOSE" not in line], [], "transports freed without a close")


@case("120 connection requests withdrawn before they are answered")
def withdrawn(server):
    with closed_before_freed(server):
        for _ in range(120):
            try:
                with server.connect(receives=2, sends=2, timeout=0):
                    pass
            except peer.Timeout:
                pass

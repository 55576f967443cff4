# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""How a server must handle valid and invalid messages of version 2
(draft-cel-nfsv4-rpcrdma-version-two-04).

The C module does not support it, and answers ERR_VERS.
"""

import contextlib

import peer
import wire
from client import XIDS
from cases import Failed
from server_cases import FILE, PAGE, TABLE, equal, pattern
from server_stalls import few_threads

case = TABLE.case

MALFORMED = "/t/data/version2-malformed.tsv"
OPTIONAL, CONNPROP, REQPROP, RESPROP, UPDPROP = 5, 6, 7, 8, 9
RBSIZ, BRS = 1, 2
# The properties of the server, and of a client that has the same.
PROPERTIES = wire.u32(2, RBSIZ, 4, 4096, BRS, 4, 1, 1, 2)
# The size of the server's Receives on new connections.
RECEIVES = "/proc/sys/sunrpc/svc_rdma/max_req_size"
NO_WINDOWS = "siw has no memory windows" if peer.IWARP else None


def rows(path):
    """Return the rows of a table."""
    with open(path, encoding="ascii") as file:
        for line in file:
            if not line.startswith("#"):
                yield line.rstrip("\n").split("\t")


def two(xid, proc, *words, body=b""):
    """Return a message of version 2."""
    return wire.u32(xid, 2, 32, proc, *words) + body


def null(xid):
    """Return a NULL Call of version 2."""
    return two(xid, wire.MSG, 0, 0, 0, 0, 0, body=wire.null(xid))


def answers(client, message, quiet=0.3):
    """Return the answer to one message, without credit words."""
    client.end.send(message)
    with contextlib.suppress(peer.Timeout):
        data, _ = client.end.receive(quiet)
        if not 1 <= int.from_bytes(data[8:12], "big") <= 16384:
            raise Failed(f"credits in {data.hex()}")
        return data[:8] + data[12:]
    return b""


def agree(client):
    """Negotiate version 2, and check the server's properties."""
    xid = next(XIDS)
    got = answers(client, two(xid, CONNPROP, body=PROPERTIES), peer.TIMEOUT)
    equal(got, wire.u32(xid, 2, CONNPROP) + PROPERTIES, "RDMA2_CONNPROP")


def check_null(client):
    """Check that a NULL Call is answered, in version 2."""
    xid = next(XIDS)
    got = answers(client, null(xid), peer.TIMEOUT)
    equal(got[:32], wire.u32(xid, 2, wire.MSG, 1, 0, 0, 0, 0), "header of a Reply")


def check_reply(data):
    """Check that this is a Reply of version 2."""
    equal(data[4:8] + data[16:24], wire.u32(2, 1, 0), "version, direction and handle of a Reply")
    head = wire.Header.decode(data[:4] + wire.u32(1) + data[8:16] + data[24:])
    if head.reads:
        raise Failed(f"a Read list in {data.hex()}")


def check_answer(client, name, message, wanted):
    """Check that a message gets the required answer, or none."""
    seconds = peer.TIMEOUT if wanted else 0.3
    got = answers(client, message, seconds)
    equal(got, wanted[:8] + wanted[12:], name)


@contextlib.contextmanager
def setting(path, value):
    """Set a sysctl while the block runs."""
    def write(text):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    with open(path, encoding="ascii") as file:
        before = file.read()
    write(str(value))
    try:
        yield
    finally:
        write(before)


def ours(server):
    """Return whether the server under test supports version 2."""
    if server.kind == "c":
        server.notes.append("the C module does not speak version 2")
    return server.kind == "rust"


@case("version 2: a connection keeps to the version of its first Call")
def one_version(server):
    def refused(client, message, low, high):
        equal(answers(client, message, peer.TIMEOUT)[8:], wire.u32(wire.ERROR, wire.ERR_VERS, low, high),
              "ERR_VERS")

    with server.connect() as client:
        client.null()
        refused(client, null(next(XIDS)), 1, 1)
        client.null()
    if not ours(server):
        return
    with server.connect() as client:
        # Neither does a message select a version that cannot be used, as it has no RPC message.
        xid = next(XIDS)
        equal(answers(client, wire.header(xid), peer.TIMEOUT)[8:], wire.u32(wire.ERROR, wire.ERR_CHUNK),
              "ERR_CHUNK")
        check_null(client)
    with server.connect() as client:
        # An error report does not select a version.
        equal(answers(client, two(next(XIDS), wire.ERROR, 2)), b"", "answer to an error report")
        check_null(client)
        xid = next(XIDS)
        refused(client, wire.header(xid) + wire.null(xid), 2, 2)
        check_null(client)


@case("version 2: malformed messages, each on a connection of its own")
def malformed(server):
    if not ours(server):
        return
    count = 0
    for name, octets, _, answer, _ in rows(MALFORMED):
        if not octets:
            continue
        wanted = bytes.fromhex(answer)
        with server.connect(receives=8, sends=8) as client:
            check_answer(client, name, bytes.fromhex(octets), wanted)
        count += 1
    server.notes.append(f"{count} messages")


@case("version 2: malformed messages, on one connection that lives on")
def malformed_in_a_row(server):
    if not ours(server):
        return
    with server.connect() as client:
        check_null(client)
        for name, octets, _, answer, _ in rows(MALFORMED):
            if not octets or name.startswith("version-"):
                continue
            check_answer(client, name, bytes.fromhex(octets), bytes.fromhex(answer))
        # The header says Call, and the payload says Reply.
        xid = next(XIDS)
        got = answers(client, two(xid, OPTIONAL, 0, 77, 0, body=wire.accepted(xid)), peer.TIMEOUT)
        equal(got, wire.u32(xid, 2, wire.ERROR, 2), "answer to RDMA2_OPTIONAL: BAD_XDR")
        check_null(client)


@case("version 2: properties, told once, asked for, updated")
def properties(server):
    if not ours(server):
        return
    with server.connect() as client:
        agree(client)
        equal(answers(client, two(next(XIDS), CONNPROP, body=PROPERTIES)), b"", "a second one")
        for want, done, rejected in (
                ((), (0,), (0,)),
                ((RBSIZ, 4, 4096), (1, 1), (0,)),
                ((RBSIZ, 4, 1024), (0,), (1, 1)),
                ((RBSIZ, 4, 1 << 20), (0,), (1, 1)),
                ((BRS, 4, 2), (0,), (1, 1)),
                ((77, 0, RBSIZ, 0), (1, 2), (1, 1))):
            xid = next(XIDS)
            count = {0: 0, 3: 1, 4: 2}[len(want)]
            got = answers(client, two(xid, REQPROP, count, *want), peer.TIMEOUT)
            equal(got, wire.u32(xid, 2, RESPROP, *done, *rejected, 0), f"response to {want}")
        for message in (two(next(XIDS), UPDPROP, 1, RBSIZ, 4, 8192), two(next(XIDS), UPDPROP, 0),
                        two(next(XIDS), RESPROP, 0, 0, 0)):
            equal(answers(client, message), b"", "answer to what wants none")
        check_null(client)


@case("version 2: messages about properties before RDMA2_CONNPROP, and RDMA2_CONNPROP after a Call")
def properties_first(server):
    if not ours(server):
        return
    for words in ((UPDPROP, 1, RBSIZ, 4, 1024), (UPDPROP, 0), (RESPROP, 0, 0, 0),
                  (RESPROP, 1, 1, 0, 0), (REQPROP, 1, RBSIZ, 4, 4096), (REQPROP, 0)):
        with server.connect(receives=8, sends=8) as client:
            got = answers(client, two(next(XIDS), *words), 2 if words[0] == REQPROP else 0.3)
            equal(got[8:12], wire.u32(RESPROP) if words[0] == REQPROP else b"", f"answer to {words}")
            check_null(client)
            agree(client)
            check_null(client)


@case("version 2: properties that RDMA2_CONNPROP leaves out have their default values")
def left_out(server):
    if not ours(server):
        return
    with server.connect(receives=8, sends=8) as client:
        client.end.send(two(next(XIDS), UPDPROP, 1, RBSIZ, 4, 1024))
        check_null(client)
        xid = next(XIDS)
        got = answers(client, two(xid, CONNPROP, 0, 0), peer.TIMEOUT)
        equal(got[:12], wire.u32(xid, 2, CONNPROP), "answer to RDMA2_CONNPROP")
        xid = next(XIDS)
        got = answers(client, two(xid, wire.MSG, 0, 0, 0, 0, 0,
                                  body=wire.v3_read(xid, server.handle(FILE), 0, 3000)), peer.TIMEOUT)
        equal(got[8:12], wire.u32(wire.MSG), "Reply inline")


@case("version 2: Receives become smaller while Calls are in flight")
def smaller_in_flight(server):
    if not ours(server):
        return
    handle = server.handle(FILE)

    def read(xid):
        """A READ whose Reply fits into 4096 octets, but not into 1024."""
        return two(xid, wire.MSG, 0, 0, 0, 0, 0, body=wire.v3_read(xid, handle, 0, 3000))

    with server.connect() as client:
        for _ in range(20):
            before, after = [next(XIDS) for _ in range(8)], [next(XIDS) for _ in range(8)]
            client.end.send(two(next(XIDS), UPDPROP, 1, RBSIZ, 4, 4096), *map(read, before),
                            two(next(XIDS), UPDPROP, 1, RBSIZ, 4, 1024), *map(read, after))
            received = [client.end.receive()[0] for _ in range(16)]
            found = {int.from_bytes(data[:4], "big"): data for data in received}
            equal(sorted(found), before + after, "XIDs of the answers")
            for xid in after:
                equal(found[xid][12:20], wire.u32(wire.ERROR, 8), "answer without room: REPLY_RESOURCE")
        check_null(client)


@case("version 2: Receives become smaller before a Call that is pulled")
def smaller_before_a_pull(server):
    if not ours(server):
        return
    handle = server.handle(FILE)
    regions = [server.device.region(PAGE) for _ in range(4)]

    def read(region):
        """A READ as above, in a Read chunk as a whole."""
        xid = next(XIDS)
        body = wire.v3_read(xid, handle, 0, 3000)
        region.fill(body)
        chunk = wire.read_list([wire.Segment(region.rkey, len(body), region.address)])
        return two(xid, wire.NOMSG, 0, 0, body=chunk + wire.u32(0, 0))

    def size(octets):
        return two(next(XIDS), UPDPROP, 1, RBSIZ, 4, octets)

    def inline():
        """The same READ, inline."""
        xid = next(XIDS)
        return two(xid, wire.MSG, 0, 0, 0, 0, 0, body=wire.v3_read(xid, handle, 0, 3000))

    # One thread is still busy with the other Calls when the Read chunks have arrived.
    with few_threads(1), server.connect() as client:
        for _ in range(10):
            before, after = [inline() for _ in range(20)], [read(region) for region in regions]
            client.end.send(size(4096), *before, size(1024), *after)
            received = [client.end.receive()[0] for _ in before + after]
            found = {data[:4]: data for data in received}
            for call in after:
                equal(found[call[:4]][12:20], wire.u32(wire.ERROR, 8),
                      "answer without room: REPLY_RESOURCE")
        check_null(client)
    for region in regions:
        region.close()


def read_behind(server, *words):
    """Send RDMA2_CONNPROP for 4096 octets, a message of `words` and a READ of 3000 octets in a row, on each
    of 20 connections. Check that the first and the last are answered, and yield the answers to the READ."""
    handle = server.handle(FILE)
    for _ in range(20):
        with server.connect(receives=8, sends=8) as client:
            ask, xid = next(XIDS), next(XIDS)
            read = two(xid, wire.MSG, 0, 0, 0, 0, 0, body=wire.v3_read(xid, handle, 0, 3000))
            client.end.send(two(ask, CONNPROP, 1, RBSIZ, 4, 4096, 0), two(next(XIDS), *words), read)
            received = [client.end.receive()[0] for _ in range(2)]
            found = {int.from_bytes(data[:4], "big"): data for data in received}
            equal(sorted(found), sorted((ask, xid)), "XIDs of the answers")
            yield found[xid]


@case("version 2: RDMA2_UPDPROP directly behind RDMA2_CONNPROP holds")
def updated_at_once(server):
    if not ours(server):
        return
    for answer in read_behind(server, UPDPROP, 1, RBSIZ, 4, 1024):
        equal(answer[12:20], wire.u32(wire.ERROR, 8), "answer without room: REPLY_RESOURCE")


@case("version 2: a second RDMA2_CONNPROP directly behind the first one changes nothing")
def connected_twice(server):
    if not ours(server):
        return
    for answer in read_behind(server, CONNPROP, 1, RBSIZ, 4, 1024, 0):
        equal(answer[12:16], wire.u32(wire.MSG), "Reply inline")


@case("version 2: sets of properties that are too large to be true")
def large_sets(server):
    if not ours(server):
        return
    with server.connect() as client:
        for proc in (CONNPROP, REQPROP, UPDPROP):
            for words in ((0xffffffff,), (0xffffffff, 99, 0), (1, 99, 0xffffffff),
                          (1, RBSIZ, 0xfffffffd), (0x10000000, 99, 0, 99, 0)):
                xid = next(XIDS)
                got = answers(client, two(xid, proc, *words, 0, 0), peer.TIMEOUT)
                equal(got, wire.u32(xid, 2, wire.ERROR, 2), f"answer to {proc} {words}")
        # As many properties as fit into a message.
        xid = next(XIDS)
        count = (4096 - 20) // 8
        got = answers(client, two(xid, REQPROP, count, *(99, 0) * count), peer.TIMEOUT)
        full, rest = divmod(count, 32)
        words = [0xffffffff] * full + [(1 << rest) - 1] * (rest != 0)
        equal(got, wire.u32(xid, 2, RESPROP, 0, len(words), *words, 0), "response to 509 wishes")
        check_null(client)


@case("version 2: limits are told")
def limits(server):
    if not ours(server):
        return

    def chunks(reads, writes):
        xid = next(XIDS)
        words = [0, 0]
        for number in range(reads):
            words += [1, 8 + 4 * number, 0x77, 4, 0, 0]
        words.append(0)
        for _ in range(writes):
            words += [1, 1, 0x77, 4, 0, 0]
        return two(xid, wire.MSG, *words, 0, 0, body=wire.null(xid))

    with server.connect() as client:
        for message, report in ((chunks(17, 0), (4, 16)), (chunks(0, 9), (5, 8))):
            got = answers(client, message, peer.TIMEOUT)
            equal(got[4:], wire.u32(2, wire.ERROR, *report), "error report")
        # Eight results may be placed directly; the Reply returns the chunks unused.
        message = chunks(0, 8)
        got = answers(client, message, peer.TIMEOUT)
        equal(got[4:12], wire.u32(2, wire.MSG), "Reply with eight chunks")
        check_null(client)


@case("version 2: a Reply chunk that is not needed is not used, whatever the private data")
def reply_chunk_unused(server):
    if not ours(server):
        return
    region = server.device.region(PAGE)
    chunk = wire.reply_chunk([wire.Segment(region.rkey, PAGE, region.address)])
    for private in (b"", wire.cm_private()):
        with server.connect(private=private) as client:
            xid = next(XIDS)
            lists = wire.u32(0, 0, 0) + wire.write_list([]) + chunk
            got = answers(client, two(xid, wire.MSG, body=lists + wire.null(xid)), peer.TIMEOUT)
            equal(got[4:12], wire.u32(2, wire.MSG), "version and procedure of a Reply")
    region.close()


@case("version 2: the limit on segments is told, and is the limit")
def segments(server):
    if not ours(server):
        return

    def call(count):
        xid = next(XIDS)
        chunk = wire.u32(*(0x77, 4, 0, 0) * count)
        return two(xid, wire.MSG, 0, 0, 0, 1, count, body=chunk + wire.u32(0, 0) + wire.null(xid))

    # Neither the Call nor its Reply would fit into 4096 octets.
    with setting(RECEIVES, 8192), server.connect(size=8192) as client:
        answers(client, two(next(XIDS), CONNPROP, 1, RBSIZ, 4, 8192, 0), peer.TIMEOUT)
        got = answers(client, call(400), peer.TIMEOUT)
        equal(got[4:16], wire.u32(2, wire.ERROR, 6), "SEGMENTS")
        most = int.from_bytes(got[16:], "big")
        equal(answers(client, call(most + 1), peer.TIMEOUT)[12:], wire.u32(6, most), "SEGMENTS")
        got = answers(client, call(most), peer.TIMEOUT)
        equal(got[4:12], wire.u32(2, wire.MSG), "Reply with as many segments as may be")
        server.notes.append(f"{most} segments")
        check_null(client)
    # A client that receives 4096 octets has no room for the lists, and no Reply chunk would help.
    with setting(RECEIVES, 8192), server.connect(size=8192) as client:
        got = answers(client, call(most), peer.TIMEOUT)
        equal(got[4:], wire.u32(2, wire.ERROR, 10), "SYSTEM")
        check_null(client)


@case("version 2: the room that a result needs is told, and is enough")
def resources(server):
    if not ours(server):
        return
    region = server.device.region(4 * PAGE)
    handle = server.handle(FILE)

    def read(client, count, writes=(), reply=None):
        """Return the answer to a READ, from the procedure on."""
        xid = next(XIDS)
        lists = wire.u32(0, 0, 0) + wire.write_list(writes) + wire.reply_chunk(reply)
        message = two(xid, wire.MSG, body=lists + wire.v3_read(xid, handle, 0, count))
        return answers(client, message, peer.TIMEOUT)[8:]

    def room(octets):
        return [wire.Segment(region.rkey, octets, region.address)]

    with server.connect() as client:
        equal(read(client, 1001, [room(1000)]), wire.u32(wire.ERROR, 7, 1, 1001), "WRITE_RESOURCE")
        equal(read(client, 1001, [room(1001)])[:4], wire.u32(wire.MSG), "Reply")
        without = read(client, 8192)
        equal(without[:8], wire.u32(wire.ERROR, 8), "REPLY_RESOURCE")
        needed = int.from_bytes(without[8:12], "big")
        equal(read(client, 8192, reply=room(needed - 1)), wire.u32(wire.ERROR, 8, needed),
              "REPLY_RESOURCE")
        equal(read(client, 8192, reply=room(needed))[:4], wire.u32(wire.NOMSG), "Reply")
        server.notes.append(f"{needed} octets for a READ of 8192")
        check_null(client)
    region.close()


@case("version 2: a Reply that fits the client's Receives needs no Reply chunk")
def long_replies(server):
    if not ours(server):
        return
    handle = server.handle(FILE)
    region = server.device.region(16 * PAGE)

    def read(xid, count, reply=None):
        lists = wire.u32(0, 0, 0, 0) + wire.reply_chunk(reply)
        return two(xid, wire.MSG, body=lists + wire.v3_read(xid, handle, 0, count))

    def check(data, count):
        """Check an inline Reply with `count` octets of data."""
        equal(data[12:16], wire.u32(wire.MSG), "Reply inline")
        body = wire.Header.decode(data[:4] + wire.u32(1) + data[8:16] + data[24:]).body
        found, rest = wire.v3_read_count(body, int.from_bytes(data[:4], "big"))
        equal((found, rest[:count]), (count, pattern(0, count)), "data")

    def one(client, count, reply=None):
        client.end.send(read(next(XIDS), count, reply))
        return client.end.receive()[0]

    with server.connect(receives=16, sends=16, size=65536) as client:
        ask = next(XIDS)
        got = answers(client, two(ask, CONNPROP, 1, RBSIZ, 4, 16384, 0), peer.TIMEOUT)
        equal(got[:12], wire.u32(ask, 2, CONNPROP), "answer to RDMA2_CONNPROP")
        for count in (1, 4000, 8192, 16000):
            check(one(client, count), count)
        equal(one(client, 16384)[12:20], wire.u32(wire.ERROR, 8), "REPLY_RESOURCE")
        # A Reply chunk that is large enough is used nevertheless.
        equal(one(client, 8192, [wire.Segment(region.rkey, 4 * PAGE, region.address)])[12:16],
              wire.u32(wire.NOMSG), "Reply in its chunk")
        check(one(client, 8192, [wire.Segment(region.rkey, PAGE, region.address)]), 8192)
        client.end.send(two(next(XIDS), UPDPROP, 1, RBSIZ, 4, 0x7fffffff))
        for _ in range(20):
            client.end.send(*(read(next(XIDS), 65000) for _ in range(4)))
            for _ in range(4):
                check(client.end.receive()[0], 65000)
        equal(one(client, 65536)[12:20], wire.u32(wire.ERROR, 8), "REPLY_RESOURCE")
        check_null(client)
    region.close()


@case("version 2: the Reply invalidates the handle that the Call names", skip=NO_WINDOWS)
def invalidates(server):
    if not ours(server):
        return
    regions = [server.device.region(PAGE) for _ in range(2)]
    file = server.handle(FILE)

    def read(client, named, *handles):
        """Send a READ with one chunk of two segments; return its Reply and the handle it invalidates."""
        xid = next(XIDS)
        chunk = [wire.Segment(handle, 1000, region.address)
                 for handle, region in zip(handles, regions)]
        lists = wire.u32(0, named, 0) + wire.write_list([chunk]) + wire.reply_chunk(None)
        client.end.send(two(xid, wire.MSG, body=lists + wire.v3_read(xid, file, 0, 2000)))
        return client.end.receive()

    for at in (0, 1):
        with server.connect() as client:
            handles = [client.end.bind(region) for region in regions]
            data, invalidated = read(client, handles[at], *handles)
            check_reply(data)
            equal(invalidated, handles[at], "handle that the Reply invalidates")
    with server.connect() as client:
        _, invalidated = read(client, 0, *(region.rkey for region in regions))
        equal(invalidated, None, "handle that the Reply invalidates")
        # rxe does not let the other end invalidate a region of a process, and ends the connection.
        try:
            read(client, regions[0].rkey, *(region.rkey for region in regions))
        except peer.Closed as error:
            equal(str(error), "completion status 9", "end of the connection")
        else:
            raise Failed("a region of a process was invalidated")
    for region in regions:
        region.close()

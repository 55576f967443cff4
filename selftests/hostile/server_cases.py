# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""How a server must handle valid messages and every kind of invalid one.

Expectations are from RFC 8166 (sections 3.4, 4.3, 4.5 and 4.6). The first of the two
arguments of expect() is what the kernel's C module does. The second, if there is one, is
what this module does; it is then stricter.
"""

import contextlib
import struct

import peer
import wire
from client import XIDS, check_null
from cases import Failed, Skip, Table, shell
from wire import Segment

TABLE = Table()
case = TABLE.case

STALE = 0x57a1e000
PAGE = 4096
FILE = "data"
FILE_SIZE = 256 * 1024
# The largest payload that nfsd can be set to.
LARGEST = 4 << 20


def pattern(offset, length):
    """Return the contents of the exported file "data"."""
    first, last = offset // 4, (offset + length + 3) // 4
    data = struct.pack(f">{last - first}I", *range(first, last))
    return data[offset % 4:offset % 4 + length]


def equal(seen, wanted, what):
    """Fail unless the two are equal."""
    if seen != wanted:
        if isinstance(seen, bytes):
            at = next((i for i, (a, b) in enumerate(zip(seen, wanted)) if a != b),
                      min(len(seen), len(wanted)))
            raise Failed(f"{what}: {len(seen)} bytes, wanted {len(wanted)}; differ at {at}: "
                         f"{seen[at:at + 16].hex()}, wanted {wanted[at:at + 16].hex()}")
        raise Failed(f"{what}: {seen}, wanted {wanted}")


def null(**lists):
    """Return a NULL call whose header has these lists."""
    xid = next(XIDS)
    return wire.header(xid, **lists) + wire.null(xid)


def errors(outcome, count):
    """Return whether these are `count` ERR_CHUNK replies of 20 bytes, on a connection that is up."""
    if outcome.closed or len(outcome.replies) != count:
        raise Failed(f"{count} x err_chunk wanted, seen: {outcome}")
    for head, data in zip(outcome.replies, outcome.raw):
        equal(data[4:8] + data[12:], wire.u32(1, wire.ERROR, wire.ERR_CHUNK),
              f"RDMA_ERROR to {head.xid:#x}")


def batches(server, messages, size=32):
    """Send many messages in batches; each must be answered with ERR_CHUNK."""
    with server.connect() as client:
        for at in range(0, len(messages), size):
            batch = messages[at:at + size]
            outcome = client.exchange(*batch)
            errors(outcome, len(batch))
            equal(sorted(head.xid for head in outcome.replies),
                  sorted(int.from_bytes(data[:4], "big") for data in batch), "XIDs")


# --- valid messages -----------------------------------------------------------

@case("private data of the acceptance")
def private_data(server):
    with server.connect() as client:
        magic, vers, flags, send, recv = struct.unpack(">IBBBB", client.private[:8])
        # The C server uses remote invalidation without saying so; RFC 8797, section 5.1.
        flag = 1 if server.kind == "rust" else flags & 1
        equal((magic, vers, flags), (wire.CM_MAGIC, 1, flag), "magic, version, flags")
        server.notes.append(f"server offers {(send + 1)} KiB send, {(recv + 1)} KiB receive")
        if server.kind == "rust" and any(client.private[8:]):
            raise Failed("bytes after the private message")


@case("inline call, largest the server takes")
def inline_largest(server):
    with server.connect() as client:
        room = (client.private[7] + 1) * 1024
        for size in (wire.MIN_HEADER + 40, room - 4, room):
            data = null()
            data += b"\xa5" * (size - len(data))
            equal(str(client.exchange(data)), "reply", f"{size} bytes")


@case("Send larger than the server's Receives")
def inline_too_large(server):
    with server.connect() as client:
        room = (client.private[7] + 1) * 1024
        server.expect(client.exchange(null() + bytes(room)), "closed")


@case("Position-Zero Read chunk")
def pzrc(server):
    xid = next(XIDS)
    region = server.device.region(PAGE, wire.null(xid))
    cuts = ([40], [1, 39], [3, 5, 7, 25], [4] * 10)
    with server.connect() as client:
        for lengths in cuts:
            reads, at = [], region.address
            for length in lengths:
                reads.append(Segment(region.rkey, length, at))
                at += length
            head = client.call(wire.header(xid, wire.NOMSG, reads=reads))
            wire.results(head.body, xid).end()
    region.close()


def write_call(server, offset, length, **lists):
    """Return the header and head of an NFSv3 WRITE whose data are in a Read chunk."""
    xid = next(XIDS)
    body = wire.v3_write_head(xid, server.handle("sink"), offset, length)
    return xid, body, lambda reads: wire.header(xid, reads=reads, **lists) + body


@case("Read chunk: data of many lengths, with and without pad, in pieces")
def read_chunk(server):
    region = server.device.region(FILE_SIZE, pattern(0, FILE_SIZE))
    plans = [(length, None, 0) for length in (1, 2, 3, 4, 4095, 4096, 4097, 65535)]
    plans += [(5, None, 3), (4097, None, 3), (8192, [4096, 4096], 0),
              (10001, [1, 4095, 1000, 4905], 0), (262144, None, 0)]
    with server.connect() as client:
        for length, cuts, pad in plans:
            xid, body, build = write_call(server, 0, length)
            reads, at = [], region.address
            for piece in cuts or [length + pad]:
                reads.append(Segment(region.rkey, piece, at, len(body)))
                at += piece
            head = client.call(build(reads))
            equal(wire.v3_write_count(head.body, xid), length, "bytes written")
            equal(read_back(server, client, length), pattern(0, length), f"{length} bytes")
    region.close()


def read_back(server, client, length, name="sink"):
    """Read a file's first bytes through a Write chunk."""
    region = server.device.region(max(length, 4))
    xid = next(XIDS)
    call = wire.header(xid, writes=[[Segment(region.rkey, length, region.address)]]) \
        + wire.v3_read(xid, server.handle(name), 0, length)
    head = client.call(call)
    count, rest = wire.v3_read_count(head.body, xid)
    equal((count, rest), (length, b""), "READ's count and inline data")
    equal(head.writes[0][0].length, length, "returned segment's length")
    data = region.read(length)
    region.close()
    return data


@case("Write chunk: data of many lengths, in pieces, nothing beyond them")
def write_chunk(server):
    region = server.device.region(FILE_SIZE)
    plans = [(0, length, [length + 8]) for length in (1, 3, 4, 4095, 4096, 4097, 65535)]
    plans += [(1, 8192, [4096, 4096]), (5, 10001, [1, 3, 4093, 100000]), (0, 262144, [262144]),
              (FILE_SIZE - 10, 1000, [1000])]
    with server.connect() as client:
        for offset, want, cuts in plans:
            region.fill()
            chunk, at = [], region.address
            for piece in cuts:
                chunk.append(Segment(region.rkey, piece, at))
                at += piece
            xid = next(XIDS)
            head = client.call(wire.header(xid, writes=[chunk]) + wire.v3_read(
                xid, server.handle(FILE), offset, want))
            count, rest = wire.v3_read_count(head.body, xid)
            length = min(want, FILE_SIZE - offset)
            equal((count, rest), (length, b""), "READ's count and inline data")
            left = length
            for segment, cut in zip(head.writes[0], cuts):
                equal(segment.length, min(left, cut), "returned segment's length")
                left -= segment.length
            equal(region.read(FILE_SIZE),
                  pattern(offset, length) + b"\xee" * (FILE_SIZE - length), "memory")
    region.close()


@case("Reply chunk: a large reply, and nothing beyond it")
def large_reply(server):
    region = server.device.region(FILE_SIZE)
    with server.connect() as client:
        for length in (5000, 65536):
            region.fill()
            xid = next(XIDS)
            half = 4096
            chunk = [Segment(region.rkey, half, region.address),
                     Segment(region.rkey, 100000, region.address + half)]
            head = client.call(wire.header(xid, reply=chunk) + wire.v3_read(
                xid, server.handle(FILE), 0, length))
            equal((head.proc, head.body), (wire.NOMSG, b""), "message type and body")
            size = sum(segment.length for segment in head.reply)
            count, rest = wire.v3_read_count(region.read(size), xid)
            equal(rest, pattern(0, count) + bytes(-count % 4), "data")
            equal(region.read(FILE_SIZE - size, size), b"\xee" * (FILE_SIZE - size), "rest")
    region.close()


@case("Reply chunk and Write list that are not needed")
def unneeded_chunks(server):
    region = server.device.region(2 * PAGE)
    chunk = [Segment(region.rkey, PAGE, region.address)]
    other = [Segment(region.rkey, PAGE, region.address + PAGE)]
    with server.connect() as client:
        for lists in ({"writes": [chunk]}, {"writes": [chunk, other]}, {"reply": chunk},
                      {"writes": [chunk], "reply": other}):
            call = null(**lists)
            head = client.call(call)
            equal([s.length for c in head.writes for s in c], [0] * len(head.writes),
                  "lengths in unused Write chunks")
            body = head.body
            if head.proc == wire.NOMSG:
                size = head.reply[0].length
                body = region.read(size, head.reply[0].offset - region.address)
            wire.results(body, head.xid).end()
    region.close()


@case("a Reply chunk that is not needed is used")
def reply_chunk_first(server):
    """Clients of Linux before 4.14 reject a Reply that is inline and returns a Reply chunk."""
    region = server.device.region(PAGE)
    for what, private in (("none", b""), ("of an unknown version", wire.cm_private(vers=2)),
                          ("valid", wire.cm_private())):
        with server.connect(private=private) as client:
            for size in (PAGE, 24):
                call = null(reply=[Segment(region.rkey, size, region.address)])
                head = client.call(call)
                equal(head.proc, wire.NOMSG, f"message type with private data {what}")
                wire.results(region.read(head.reply[0].length), head.xid).end()
            if server.kind == "rust":
                # A chunk that is too small is not.
                call = null(reply=[Segment(region.rkey, 20, region.address)])
                equal(client.call(call).proc, wire.MSG, "message type without room in the chunk")
    region.close()


@contextlib.contextmanager
def large_payloads():
    """Run the block with the largest payload of nfsd."""
    def limit(octets):
        shell(f"server_stop; echo {octets} >/proc/fs/nfsd/max_block_size && nfsd_start 8")
    with open("/proc/fs/nfsd/max_block_size", encoding="ascii") as file:
        before = file.read().strip()
    limit(LARGEST)
    try:
        yield
    finally:
        limit(before)


@case("payloads of 4 MiB, which no client of Linux sends")
def four_mebibytes(server):
    content = pattern(0, LARGEST)
    region = server.device.region(LARGEST, content)
    server.handle("sink")
    with large_payloads(), server.connect() as client:
        xid, body, build = write_call(server, 0, LARGEST)
        head = client.call(build([Segment(region.rkey, LARGEST, region.address, len(body))]))
        equal(wire.v3_write_count(head.body, xid), LARGEST, "bytes written")
        equal(read_back(server, client, LARGEST), content, "4 MiB")
    region.close()


@case("READLINK of NFSv4 with a Write chunk, which no client of Linux sends")
def readlink(server):
    """nfsd reports the text's offset four octets early; the text must be in the chunk all the same."""
    if server.kind == "c":
        raise Skip("the C module relies on the offset")
    region = server.device.region(PAGE)
    with server.connect() as client:
        for length in 1, 3, 4, 5, 64, 1001, 4095:
            text = bytes(97 + i % 26 for i in range(length))
            shell(f"ln -sfn {text.decode()} $EXPORT/link")
            region.fill()
            xid = next(XIDS)
            head = client.call(
                wire.header(xid, writes=[[Segment(region.rkey, PAGE, region.address)]])
                + wire.compound(xid, [wire.u32(24), wire.u32(15) + wire.opaque(b"link"),
                                      wire.u32(27)]))
            reader = wire.results(head.body, xid)
            words = [reader.u32() for _ in range(10)]
            equal(words, [0, 0, 3, 24, 0, 15, 0, 27, 0, length], "results of READLINK")
            reader.end()
            equal(head.writes[0][0].length, length, "returned segment's length")
            equal(region.read(PAGE), text + b"\xee" * (PAGE - length), f"text of {length} octets")
    shell("rm $EXPORT/link")
    region.close()


def check_reads(reader, lengths, placed):
    """Check the results of READs of these lengths, each from its own page of the file, up to the first
    that failed. `placed` are the data in their Write chunks, if they have some."""
    for i, length in enumerate(lengths):
        equal(reader.u32(), 25, "operation")
        if reader.u32():
            return
        reader.u32()
        if placed:
            equal(reader.u32(), length, "length")
        data = placed[i] if placed else reader.opaque()
        equal(data, pattern(PAGE * i, length), f"READ {i + 1} of {lengths}")


@case("several READs in one COMPOUND give what the file has, or an error")
def several_reads(server):
    if server.kind == "c":
        raise Skip("the C module does not look where in a page a payload begins")
    handle = wire.u32(22) + wire.opaque(server.handle(FILE))
    region = server.device.region(4 * PAGE)
    with server.connect() as client:
        for *lengths, wanted in ((1, 1000, 5), (100, 100, 5), (1000, 1001, 5), (1, 2 * PAGE, 5),
                                 (PAGE - 20, 64, 5), (PAGE - 16, 64, 0), (PAGE - 12, 64, 0),
                                 (PAGE - 8, 64, 0), (PAGE - 4, 64, 0), (PAGE, 64, 0)):
            reads = [wire.u32(25, 0, 0, 0, 0) + struct.pack(">QI", PAGE * i, length)
                     for i, length in enumerate(lengths)]
            chunks = [[Segment(region.rkey, length, region.address + 2 * PAGE * i)]
                      for i, length in enumerate(lengths)]
            for writes in ([], chunks) if sum(lengths) < 3000 else (chunks,):
                region.fill()
                xid = next(XIDS)
                head = client.call(wire.header(xid, writes=writes)
                                   + wire.compound(xid, [handle, *reads]))
                reader = wire.results(head.body, xid)
                status = reader.u32()
                equal([reader.u32() for _ in range(4)], [0, 3, 22, 0], "first results")
                memory = region.read(4 * PAGE)
                check_reads(reader, lengths, [memory[2 * PAGE * i:][:length]
                                              for i, length in enumerate(lengths)] if writes else [])
                # If the words of the second READ reach the next page, nfsd reads to where the reply
                # says that it does.
                equal(status, wanted, f"status of {lengths}")
    region.close()


@case("a READ behind the end of the file, and behind another READ, gives no octets")
def read_behind_end(server):
    handle = wire.u32(22) + wire.opaque(server.handle(FILE))
    reads = [wire.u32(25, 0, 0, 0, 0) + struct.pack(">QI", offset, 5) for offset in (0, 1 << 30)]
    with server.connect() as client:
        xid = next(XIDS)
        head = client.call(wire.header(xid) + wire.compound(xid, [handle, *reads]))
        reader = wire.results(head.body, xid)
        equal([reader.u32() for _ in range(8)], [0, 0, 3, 22, 0, 25, 0, 0], "results up to READ's")
        equal(reader.opaque(), pattern(0, 5), "data of the first READ")
        equal([reader.u32() for _ in range(4)], [25, 0, 1, 0], "result of the second READ")
        reader.end()


@case("two Write chunks: the first is used, the second returned unused")
def two_write_chunks(server):
    region = server.device.region(4 * PAGE)
    chunks = [[Segment(region.rkey, PAGE, region.address)],
              [Segment(region.rkey, PAGE, region.address + PAGE)]]
    with server.connect() as client:
        xid = next(XIDS)
        head = client.call(wire.header(xid, writes=chunks) + wire.v3_read(
            xid, server.handle(FILE), 0, 1001))
        equal([c[0].length for c in head.writes], [1001, 0], "lengths")
        equal(region.read(4 * PAGE), pattern(0, 1001) + b"\xee" * (4 * PAGE - 1001), "memory")
    region.close()


UNSEEN = peer.IWARP and "siw has no memory windows, and libsiw does not say what was invalidated"


@case("one handle, remote invalidation offered", skip=UNSEEN)
def remote_invalidation(server):
    region = server.device.region(PAGE)
    with server.connect(private=wire.cm_private(flags=1)) as client:
        for _ in range(3):
            xid = next(XIDS)
            region.fill(wire.null(xid))
            handle = client.end.bind(region)
            client.send(wire.header(xid, wire.NOMSG, [Segment(handle, 40, region.address)]))
            head, _, inv = client.message()
            wire.results(head.body, xid).end()
            equal(inv, handle, "invalidated handle")
        client.null()
        call = wire.header(xid, wire.NOMSG, [Segment(handle, 40, region.address)])
        server.expect(client.exchange(call), "closed")
    region.close()


@case("remote invalidation offered: segments of no length name no handle", skip=UNSEEN)
def no_length_invalidation(server):
    with server.connect(private=wire.cm_private(flags=1)) as client:
        outcome = client.exchange(null(reads=[Segment(0x1234, 0, 0, 40)],
                                       writes=[[Segment(0x5678, 0, 0)]]))
        server.expect(outcome, "reply|closed", "reply")
        region = server.device.region(PAGE)
        for _ in range(2):
            xid = next(XIDS)
            region.fill(wire.null(xid))
            handle = client.end.bind(region)
            client.send(wire.header(xid, wire.NOMSG, [Segment(handle, 40, region.address),
                                                      Segment(0x1234, 0, 0)]))
            head, _, inv = client.message()
            wire.results(head.body, xid).end()
            equal(inv, handle, "invalidated handle")
        region.close()


@case("two handles, or no offer: no remote invalidation")
def no_remote_invalidation(server):
    xid = next(XIDS)
    one = server.device.region(PAGE, wire.null(xid)[:20])
    two = server.device.region(PAGE, wire.null(xid)[20:])
    for flags in (0, 1):
        with server.connect(private=wire.cm_private(flags=flags)) as client:
            for _ in range(2):
                client.send(wire.header(xid, wire.NOMSG, [
                    Segment(one.rkey, 20, one.address), Segment(two.rkey, 20, two.address)]))
                head, _, inv = client.message()
                wire.results(head.body, xid).end()
                equal(inv, None, "invalidated handle")
    one.close()
    two.close()


@case("remote invalidation offered, of a handle that cannot be")
def impossible_invalidation(server):
    xid = next(XIDS)
    region = server.device.region(PAGE, wire.null(xid))
    with server.connect(private=wire.cm_private(flags=1)) as client:
        call = wire.header(xid, wire.NOMSG, [Segment(region.rkey, 40, region.address)])
        if peer.IWARP:
            # siw invalidates it nevertheless.
            server.expect(client.exchange(call), "reply")
        server.expect(client.exchange(call), "closed|reply closed")
    region.close()


# --- the fixed header ---------------------------------------------------------

@case("messages shorter than a header: no answer, no bytes of older messages")
def short(server):
    filler = b"\xa5" * 3000
    with server.connect() as client:
        for i in range(0, 320, 16):
            for xid in range(STALE + i, STALE + i + 16):
                client.send(wire.header(xid) + wire.null(xid) + filler)
            for _ in range(16):
                head, data, _ = client.message()
                check_null(data, head.xid)
        whole = null()
        seen = {}
        for length in range(wire.MIN_HEADER):
            outcome = client.exchange(whole[:length])
            for data in outcome.raw:
                if data[:3] == wire.u32(STALE)[:3] or b"\xa5\xa5" in data:
                    if server.kind == "rust":
                        raise Failed(f"{length} bytes: stale reply {data.hex()}")
                    server.notes.append(f"{length} bytes: stale reply {data.hex()}")
            seen.setdefault(str(outcome), []).append(length)
        server.notes += [f"{what}: lengths {lengths}" for what, lengths in seen.items()]
        if server.kind == "rust" and set(seen) != {"dropped"}:
            raise Failed(f"wanted: dropped; seen: {seen}")


@case("versions that are not spoken")
def versions(server):
    # This module also accepts version 2, until the first Call has decided.
    highest = 2 if server.kind == "rust" else 1
    for vers in {0, 2, 3, 0x100, 0x80000001, 0xffffffff} - {highest}:
        with server.connect() as client:
            xid = next(XIDS)
            # No other Call may be in flight: another service thread could let that Call decide first.
            client.end.send(wire.header(xid, vers=vers) + wire.null(xid))
            data = client.end.receive(10)[0]
            client.null()
            equal(data[:8] + data[12:],
                  wire.u32(xid, vers, wire.ERROR, wire.ERR_VERS, 1, highest), "ERR_VERS")
            credits = int.from_bytes(data[8:12], "big")
            if not 1 <= credits <= 16384:
                raise Failed(f"{credits} credits granted")


@case("RDMA_DONE and RDMA_ERROR are dropped")
def dropped_procs(server):
    with server.connect() as client:
        xid = next(XIDS)
        for proc in (wire.DONE, wire.ERROR):
            server.expect(client.exchange(wire.header(xid, proc) + wire.null(xid)), "dropped")
        for words in ((wire.ERR_VERS, 1, 1), (wire.ERR_CHUNK,), (77,), (wire.ERR_CHUNK, 0, 0)):
            error = wire.u32(xid, 1, 32, wire.ERROR, *words)
            server.expect(client.exchange(error), "dropped")


@case("RDMA_MSGP and unknown procedures")
def unknown_procs(server):
    calls = []
    for proc in (wire.MSGP, 5, 6, 0x100, 0x80000000, 0xffffffff):
        xid = next(XIDS)
        calls.append(wire.header(xid, proc) + wire.null(xid))
    xid = next(XIDS)
    msgp = wire.u32(xid, 1, 32, wire.MSGP, 0, 0, 0, 0, 0) + wire.null(xid)
    batches(server, calls + [msgp])


@case("credit value of a Call: 0 and 0xffffffff")
def credit_values(server):
    with server.connect() as client:
        for credits in (0, 1, 0xffffffff):
            head = client.call(null(credits=credits))
            server.notes.append(f"asked {credits}, granted {head.credits}")

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Malformed chunk lists, wrong handles and malformed RPC messages, for a server."""

import struct

import peer
import wire
from client import XIDS, check_header
from cases import Failed, Skip, shell
from server_cases import FILE, PAGE, TABLE, batches, equal, null, pattern
from wire import Segment

case = TABLE.case


# --- chunk lists --------------------------------------------------------------

def three_lists():
    """Return a header with all three lists, and segments that look valid."""
    def plain():
        return Segment(0x1234, 4096, 0x10000)
    return {"reads": [Segment(0x1234, 4096, 0x10000, 40)] * 2,
            "writes": [[plain(), plain()], [plain(), plain()]], "reply": [plain(), plain()]}


@case("a header with all three lists, cut at every byte", proc=wire.MSG)
@case("the same as RDMA_NOMSG", proc=wire.NOMSG)
def truncated(server, proc):
    calls = []
    size = len(wire.header(0, proc, **three_lists()))
    for length in range(wire.MIN_HEADER, size):
        calls.append(wire.header(next(XIDS), proc, **three_lists())[:length])
    batches(server, calls)


@case("discriminators that are neither 0 nor 1, nothing behind them")
def discriminators(server):
    calls = []
    for bad in (2, 0x100, 0x01000000, 0xffffffff):
        for words in ((bad, 0, 0), (0, bad, 0), (0, 0, bad)):
            calls.append(wire.u32(next(XIDS), 1, 32, wire.MSG, *words))
    batches(server, calls)


@case("segment counts from 0 to 2^32 - 1 with few segments behind them")
def segment_counts(server):
    calls = []
    one = Segment(0x1234, 4096, 0x10000).encode()
    for count in (2, 3, 1000, 0x1001, 0x0fffffff, 0x10000000, 0x10000001, 0x20000001,
                  0x7fffffff, 0x80000000, 0xffffffff):
        calls.append(wire.u32(next(XIDS), 1, 32, 0, 0, 1, count) + one + wire.u32(0, 0))
        calls.append(wire.u32(next(XIDS), 1, 32, 0, 0, 0, 1, count) + one)
    batches(server, calls)


@case("Write chunk of no segments")
def empty_write_chunk(server):
    with server.connect() as client:
        outcome = client.exchange(null(writes=[[]]))
        server.expect(outcome, "err_chunk", "reply")
        outcome = client.exchange(null(reply=[]))
        server.expect(outcome, "err_chunk")


@case("Write chunk of no segments: its result is inline, and the next one in the next chunk")
def result_of_empty_write_chunk(server):
    if server.kind == "c":
        raise Skip("the C module refuses such a chunk")
    region = server.device.region(PAGE)
    chunk = [Segment(region.rkey, PAGE, region.address)]
    with server.connect() as client:
        for writes in ([[]], [[], chunk]):
            xid = next(XIDS)
            head = client.call(wire.header(xid, writes=writes)
                               + wire.v3_read(xid, server.handle(FILE), 0, 64))
            equal(wire.v3_read_count(head.body, xid), (64, pattern(0, 64)), "count and inline data")
        text = bytes(97 + i % 26 for i in range(1001))
        shell(f"ln -sfn {text.decode()} $EXPORT/link")
        xid = next(XIDS)
        head = client.call(wire.header(xid, writes=[[], chunk, []]) + wire.compound(xid, [
            wire.u32(22) + wire.opaque(server.handle(FILE)),
            wire.u32(25, 0, 0, 0, 0) + struct.pack(">QI", 0, 64),
            wire.u32(24), wire.u32(15) + wire.opaque(b"link"), wire.u32(27)]))
        shell("rm $EXPORT/link")
        equal([[s.length for s in c] for c in head.writes], [[], [len(text)], []], "lengths")
        equal(region.read(PAGE), text + b"\xee" * (PAGE - len(text)), "memory")
        reader = wire.results(head.body, xid)
        equal([reader.u32() for _ in range(8)], [0, 0, 5, 22, 0, 25, 0, 0], "results up to READ's")
        equal(reader.opaque(), pattern(0, 64), "inline data")
        equal([reader.u32() for _ in range(7)], [24, 0, 15, 0, 27, 0, len(text)], "other results")
        reader.end()
    region.close()


@case("Read list: positions that are no multiple of 4")
def odd_positions(server):
    calls = []
    for position in (1, 2, 3, 5, 41, 0xffffffff, 0xfffffffe, 0x80000001):
        calls.append(null(reads=[Segment(0x1234, 8, 0x10000, position)]))
        calls.append(null(reads=[Segment(0x1234, 8, 0x10000, 40),
                                 Segment(0x1234, 8, 0x10000, position)]))
    batches(server, calls)


@case("Read list: lengths beyond all the server takes, and sums that wrap")
def large_reads(server):
    calls = []
    for lengths in ((0xffffffff,), (0x80000000,), (0x40000000,), (0xffffffff, 1),
                    (0xfffff000, 0x1001), (0x80000000, 0x80000000), (0x400000,) * 3,
                    (0x100000,) * 16, (0x7fffffff,) * 3):
        for position in (0, 40):
            reads = [Segment(0x1234, length, 0x10000, position) for length in lengths]
            calls.append(null(reads=reads))
    batches(server, calls)


BAD_READ = "err_chunk|closed|err_chunk closed"


@case("Read list: a position beyond the inline part")
def far_position(server):
    region = server.device.region(PAGE)
    for position in (44, 48, 4096, 0x7ffffffc, 0xfffffff0):
        for count in (1, 2):
            reads = [Segment(region.rkey, 8, region.address, 36)] * (count - 1)
            reads.append(Segment(region.rkey, 8, region.address, position + 8 * (count - 1)))
            with server.connect() as client:
                server.expect(client.exchange(null(reads=reads)), BAD_READ, "err_chunk")
    region.close()


def not_on_c(server):
    """Skip a case that is run against this module only."""
    if server.kind == "c":
        raise Skip("not run against the C module")


@case("Read list: positions that overlap, or go backwards")
def overlapping_positions(server):
    not_on_c(server)
    region = server.device.region(PAGE)
    for lists in (((40, 64), (44, 8)), ((40, 8), (40, 8), (44, 8)), ((44, 8), (40, 64)),
                  ((0, 40), (8, 8), (12, 8)), ((0, 40), (400, 8)), ((0, 40), (36, 4), (0, 4))):
        for proc in (wire.MSG, wire.NOMSG):
            reads = [Segment(region.rkey, length, region.address, position)
                     for position, length in lists]
            xid = next(XIDS)
            region.fill(wire.null(xid))
            with server.connect() as client:
                call = wire.header(xid, proc, reads=reads) + wire.null(xid)
                # The last one is valid only for a message whose Payload stream is all in chunks.
                good = proc == wire.NOMSG and len(lists) == 3 and lists[1] == (36, 4)
                server.expect(client.exchange(call), "reply" if good else "err_chunk")
    region.close()


@case("Read chunk inside of the RPC header")
def chunk_in_header(server):
    # A credential of AUTH_SYS, and one of RPCSEC_GSS for a context that does not exist.
    gss = wire.u32(6) + wire.opaque(wire.u32(1, 0, 1, 1) + wire.opaque(bytes(16)))
    gss += wire.u32(6) + wire.opaque(bytes(28))
    for cred in wire.auth_sys(), gss:
        for position in range(8, 24 + len(cred) + 4, 12):
            xid = next(XIDS)
            whole = wire.call(xid, 0, cred=cred)
            part = whole[position:position + 8]
            region = server.device.region(PAGE, part + bytes(PAGE - len(part)))
            reads = [Segment(region.rkey, max(len(part), 4), region.address, position)]
            inline = whole[:position] + whole[position + 8:]
            with server.connect() as client:
                call = wire.header(xid, wire.MSG, reads=reads) + inline
                server.expect(client.exchange(call), "reply|dropped|closed|" + BAD_READ, "reply")
            region.close()


@case("Read list: as many one-byte segments as fit")
def many_reads(server):
    region = server.device.region(PAGE)
    for position in (0, 40):
        for count in (30, 150, 165):
            xid = next(XIDS)
            region.fill(wire.null(xid))
            reads = [Segment(region.rkey, 1, region.address + i, position)
                     for i in range(count)]
            proc = wire.NOMSG if position == 0 else wire.MSG
            data = wire.header(xid, proc, reads=reads)
            data += b"" if position == 0 else wire.null(xid)
            # Over iWARP each needs a region, and a connection has one for each of 128 credits.
            fits = not peer.IWARP or count <= 128
            with server.connect() as client:
                server.expect(client.exchange(data, quiet=5), "reply|" + BAD_READ,
                              "reply" if fits else "err_chunk")
    region.close()


@case("Read list: chunks at many positions")
def many_positions(server):
    not_on_c(server)
    region = server.device.region(PAGE)
    for count in (2, 30, 100):
        reads = [Segment(region.rkey, 4, region.address, 40 + 8 * i) for i in range(count)]
        with server.connect() as client:
            call = null(reads=reads) + bytes(8 * count)
            server.expect(client.exchange(call), "reply" if count == 2 else "err_chunk")
    region.close()


@case("segments of length 0")
def zero_lengths(server):
    region = server.device.region(PAGE)
    for position in (0, 40):
        xid = next(XIDS)
        region.fill(wire.null(xid))
        empty = Segment(0, 0, 0, position)
        whole = Segment(region.rkey, 40 if position == 0 else 8, region.address, position)
        proc = wire.NOMSG if position == 0 else wire.MSG
        for reads in ([empty, whole], [whole, empty], [empty]):
            data = wire.header(xid, proc, reads=reads)
            data += b"" if position == 0 else wire.null(xid)
            with server.connect() as client:
                server.expect(client.exchange(data), "reply|dropped|" + BAD_READ,
                              "reply" if position or whole in reads else "err_chunk")
    empty = Segment(0, 0, 0)
    chunk = [empty, Segment(region.rkey, PAGE, region.address), empty]
    with server.connect() as client:
        xid = next(XIDS)
        call = wire.header(xid, writes=[chunk]) + wire.v3_read(
            xid, server.handle(FILE), 0, 1001)
        outcome = client.exchange(call)
        server.expect(outcome, "reply|closed", "reply")
        if not outcome.closed:
            check_header(outcome.one(), call)
            equal([s.length for s in outcome.one().writes[0]], [0, 1001, 0], "lengths")
            equal(region.read(1001), pattern(0, 1001), "data")
    with server.connect() as client:
        call = null(reply=chunk)
        outcome = client.exchange(call)
        server.expect(outcome, "reply|closed|err_chunk", "reply")
        if str(outcome) == "reply":
            check_header(outcome.one(), call)
    region.close()


@case("offsets near 2^64")
def far_offsets(server):
    region = server.device.region(PAGE)
    for offset in (0xffffffffffffffff, 0xfffffffffffff000, 0x8000000000000000, 0):
        wraps = offset + PAGE >= 1 << 64
        for lists in ({"reads": [Segment(region.rkey, PAGE, offset, 40)]},
                      {"reads": [Segment(region.rkey, PAGE, offset, 0)]}):
            with server.connect() as client:
                wanted = "err_chunk" if wraps or lists["reads"][0].position == 0 else "closed"
                server.expect(client.exchange(null(**lists)), BAD_READ, wanted)
        chunk = [Segment(region.rkey, PAGE, offset)]
        with server.connect() as client:
            xid = next(XIDS)
            call = wire.header(xid, writes=[chunk]) + wire.v3_read(
                xid, server.handle(FILE), 0, 1001)
            server.expect(client.exchange(call), "closed|reply closed|err_chunk",
                          "err_chunk" if wraps else "closed|reply closed")
    region.close()


@case("Write chunk too small for the result")
def small_write_chunk(server):
    not_on_c(server)
    region = server.device.region(PAGE)
    with server.connect() as client:
        xid = next(XIDS)
        call = wire.header(xid, writes=[[Segment(region.rkey, 1000, region.address)]]) \
            + wire.v3_read(xid, server.handle(FILE), 0, 1001)
        outcome = client.exchange(call)
        server.expect(outcome, "err_chunk")
    equal(region.read(PAGE - 1000, 1000), b"\xee" * (PAGE - 1000), "memory behind the chunk")
    region.close()


@case("Reply chunk too small for the reply")
def small_reply_chunk(server):
    region = server.device.region(PAGE)
    with server.connect() as client:
        for size in (4, 20, 2000):
            xid = next(XIDS)
            call = wire.header(xid, reply=[Segment(region.rkey, size, region.address)]) \
                + wire.v3_read(xid, server.handle(FILE), 0, 8192)
            server.expect(client.exchange(call), "err_chunk")
            equal(region.read(PAGE - size, size), b"\xee" * (PAGE - size),
                  "memory behind the chunk")
    region.close()


@case("reply too large to go inline, and no Reply chunk")
def no_reply_chunk(server):
    with server.connect(size=16384) as client:
        xid = next(XIDS)
        call = wire.header(xid) + wire.v3_read(xid, server.handle(FILE), 0, 16384)
        server.expect(client.exchange(call), "err_chunk")


@case("as many Write chunks as fit")
def many_write_chunks(server):
    region = server.device.region(4 * PAGE)
    for count in (16, 100, 160):
        chunks = [[Segment(region.rkey, 100, region.address + 100 * i)] for i in range(count)]
        with server.connect() as client:
            call = null(writes=chunks)
            outcome = client.exchange(call)
            server.expect(outcome, "reply|err_chunk", "reply")
            if str(outcome) == "reply":
                check_header(outcome.one(), call)
    region.close()


@case("one Write chunk of as many segments as fit")
def many_write_segments(server):
    region = server.device.region(4 * PAGE)
    for count in (16, 100, 240):
        chunk = [Segment(region.rkey, 8, region.address + 8 * i) for i in range(count)]
        with server.connect() as client:
            xid = next(XIDS)
            call = wire.header(xid, writes=[chunk]) + wire.v3_read(
                xid, server.handle(FILE), 0, 8 * count - 5)
            region.fill()
            outcome = client.exchange(call)
            server.expect(outcome, "reply|err_chunk|closed", "reply")
            server.notes.append(f"{count} segments: {outcome}")
            if str(outcome) == "reply":
                check_header(outcome.one(), call)
                equal(region.read(8 * count), pattern(0, 8 * count - 5) + b"\xee" * 5, "data")
    region.close()


@case("RDMA_NOMSG without chunks")
def bare_nomsg(server):
    with server.connect() as client:
        xid = next(XIDS)
        outcome = client.exchange(wire.header(xid, wire.NOMSG))
        server.expect(outcome, "dropped|err_chunk|closed", "err_chunk")
        server.notes.append(f"seen: {outcome}")
        outcome = client.exchange(wire.header(xid, wire.NOMSG) + wire.null(xid))
        server.expect(outcome, "dropped|err_chunk|reply|closed", "err_chunk")
        server.notes.append(f"with an RPC message inline: {outcome}")


# --- handles ------------------------------------------------------------------

def uses_of(segment):
    """Return Calls that make a server use `segment`, in each kind of chunk."""
    def build(server):
        at_zero = Segment(segment.handle, segment.length, segment.offset)
        inside = Segment(segment.handle, segment.length, segment.offset, 40)
        large = Segment(segment.handle, 4 * PAGE, segment.offset)
        xid = next(XIDS)
        handle = server.handle(FILE)
        return (("Position-Zero Read chunk", wire.header(xid, wire.NOMSG, reads=[at_zero])),
                ("Read chunk", null(reads=[inside])),
                ("Write chunk", wire.header(xid, writes=[[at_zero]])
                 + wire.v3_read(xid, handle, 0, 1001)),
                # The reply must be too large for inline.
                ("Reply chunk", wire.header(xid, reply=[large])
                 + wire.v3_read(xid, handle, 0, 2 * PAGE)))
    return build


def costs_connection(server, segment):
    """Check that use of `segment` is a remote access error: it ends this connection, and no other."""
    for what, call in uses_of(segment)(server):
        with server.connect() as bystander, server.connect() as client:
            outcome = client.exchange(call)
            if str(outcome) not in ("closed", "reply closed", "err_chunk closed"):
                raise Failed(f"{what}: {outcome}")
            if bystander.null():
                raise Failed("messages on a connection that has nothing to do with it")


@case("handles that are wrong, in each kind of chunk")
def wrong_handles(server):
    region = server.device.region(4 * PAGE)
    for handle in (0, 0xffffffff, region.rkey ^ 1, region.rkey ^ 0x100):
        costs_connection(server, Segment(handle, PAGE, region.address))
    region.close()


@case("segments that end beyond the registered memory")
def beyond_memory(server):
    region = server.device.region(1001)
    for offset, length in ((1, 1001), (1000, 1001), (-1, 1001)):
        costs_connection(server, Segment(region.rkey, length + 1000, region.address + offset))
    region.close()


@case("handles that were deregistered")
def stale_handles(server):
    region = server.device.region(PAGE)
    segment = Segment(region.rkey, PAGE, region.address)
    region.close()
    costs_connection(server, segment)


# --- RPC messages -------------------------------------------------------------

@case("RPC message cut at every word, and missing")
def cut_rpc(server):
    seen = {}
    for length in range(0, 40):
        with server.connect(receives=8, sends=8) as client:
            xid = next(XIDS)
            outcome = client.exchange(wire.header(xid) + wire.null(xid)[:length])
            # Without a direction it is no RPC message; with one, what becomes of it is sunrpc's
            # decision, and it has the connection closed.
            server.expect(outcome, "dropped|err_chunk|reply|closed",
                          "err_chunk" if length < 8 else "closed" if length < 24 else "reply")
            seen.setdefault(str(outcome), []).append(length)
            for head, data in zip(outcome.replies, outcome.raw):
                equal(head.xid, xid, f"XID of {data.hex()}")
    server.notes += [f"{what}: lengths {lengths}" for what, lengths in seen.items()]


@case("XIDs of header and RPC message differ")
def two_xids(server):
    with server.connect() as client:
        xid = next(XIDS)
        outcome = client.exchange(wire.header(xid) + wire.null(xid ^ 0x5000000))
        server.expect(outcome, "reply|err_chunk", "err_chunk")
        equal(outcome.one().xid, xid, "XID")
        region = server.device.region(PAGE, wire.null(xid ^ 0x5000000))
        reads = [Segment(region.rkey, 40, region.address)]
        outcome = client.exchange(wire.header(xid, wire.NOMSG, reads=reads))
        server.expect(outcome, "reply|err_chunk", "err_chunk")
        equal(outcome.one().xid, xid, "XID")
    region.close()


@case("reverse direction: Replies nobody waits for, and other directions")
def reverse_direction(server):
    region = server.device.region(PAGE)
    with server.connect() as client:
        for direction in (1, 2, 0x01000000, 0xffffffff):
            xid = next(XIDS)
            body = wire.u32(xid, direction, 0, 0, 0, 0)
            # A Reply is dropped; a message that is neither Call nor Reply is refused.
            ours = "dropped" if direction == 1 else "err_chunk"
            for data in body, body[:8]:
                server.expect(client.exchange(wire.header(xid) + data), "dropped|err_chunk", ours)
            region.fill(body)
            reads = [Segment(region.rkey, 24, region.address)]
            outcome = client.exchange(wire.header(xid, wire.NOMSG, reads=reads))
            server.expect(outcome, "dropped|err_chunk", "err_chunk")
            reply = [Segment(region.rkey, PAGE, region.address)]
            for lists in ({"reply": reply}, {"writes": [reply]}):
                outcome = client.exchange(wire.header(xid, wire.NOMSG, **lists))
                server.expect(outcome, "dropped|err_chunk", "err_chunk")
    region.close()


@case("SYMLINK with a part of its text in a Read chunk")
def part_of_symlink(server):
    if server.kind == "c":
        raise Skip("the text of such a Call is not defined")
    handle, text = server.handle(""), b"A" * 4 + b"B" * 60
    region = server.device.region(PAGE * 2, b"V" * PAGE * 2)
    with server.connect() as client:
        for length in (4, 8, 60):
            # The pages of the Read chunk of the SYMLINK have had another content.
            xid = next(XIDS)
            body = wire.v3_write_head(xid, server.handle("sink"), 0, PAGE * 2)
            region.fill(b"V" * PAGE * 2)
            client.call(wire.header(xid, reads=[
                Segment(region.rkey, PAGE * 2, region.address, len(body))]) + body)
            region.fill(text[:length])
            name, xid = f"part-{length}".encode(), next(XIDS)
            body = wire.v3(xid, 10, wire.opaque(handle) + wire.opaque(name)
                           + wire.u32(0, 0, 0, 0, 0, 0, len(text)))
            reads = [Segment(region.rkey, length, region.address, len(body))]
            reply = client.call(wire.header(xid, reads=reads) + body + text[length:])
            equal(wire.results(reply.body, xid).u32(), 0, "status of SYMLINK")
            xid = next(XIDS)
            link = server.handle(name.decode())
            reply = client.call(wire.header(xid) + wire.v3(xid, 5, wire.opaque(link)))
            reader = wire.results(reply.body, xid)
            equal(reader.u32(), 0, "status of READLINK")
            wire.post_op_attr(reader)
            equal(reader.opaque(), text, "text")
    shell("rm -f $EXPORT/part-*")
    region.close()


@case("program, version and procedure the server does not have")
def unknown_programs(server):
    with server.connect() as client:
        for prog, vers, proc, status in ((wire.NFS_CB, 1, 0, 1), (wire.NFS, 99, 0, 2),
                                         (wire.NFS, 3, 99, 3), (0xffffffff, 0, 0, 1)):
            xid = next(XIDS)
            call = wire.header(xid) + wire.call(xid, proc, prog=prog, vers=vers)
            head = client.call(call)
            equal(head.body[:24], wire.u32(xid, 1, 0, 0, 0, status), "RPC reply")


@case("arguments that do not decode")
def garbage_args(server):
    region = server.device.region(PAGE)
    handle = server.handle("sink")
    with server.connect() as client:
        for count, length, chunk in ((8, 0xffffffff, 8), (0xffffffff, 8, 8), (4096, 4096, 8),
                                     (8, 8, 4096), (8, 8, 1)):
            xid = next(XIDS)
            args = wire.opaque(handle) + struct.pack(">QIII", 0, count, 2, length)
            body = wire.v3(xid, 7, args)
            reads = [Segment(region.rkey, chunk, region.address, len(body))]
            outcome = client.exchange(wire.header(xid, reads=reads) + body)
            server.expect(outcome, "reply|dropped", "reply")
            server.notes.append(f"count {count}, length {length}, {chunk} bytes: {outcome}")
    region.close()

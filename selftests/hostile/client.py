# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The requester's side of a connection to a server under test, on which cases build each message."""

import contextlib
import itertools
import time

import peer
import wire
from cases import Failed

PROBES = itertools.count(0x4805_0000)
XIDS = itertools.count(0x1_0000)


class Outcome:
    """The outcome of a message: replies, and whether the connection is still up."""

    def __init__(self, replies, raw, closed):
        self.replies, self.raw, self.closed = replies, raw, closed

    def __str__(self):
        words = []
        for head in self.replies:
            if head.proc != wire.ERROR:
                words.append("reply")
            elif head.error == (wire.ERR_CHUNK,):
                words.append("err_chunk")
            else:
                words.append("err_vers")
        if self.closed:
            words.append("closed")
        return " ".join(words) or "dropped"

    def one(self):
        """Return the only reply, on a connection that is still up."""
        if self.closed or len(self.replies) != 1:
            raise Failed(f"one reply wanted, seen: {self}")
        return self.replies[0]


class Client:
    """An Endpoint that speaks RPC-over-RDMA."""

    def __init__(self, server, private=wire.cm_private(), **options):
        self.end = peer.connect(server.device, server.address, server.port, private,
                                **options)
        self.server = server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.close()

    @property
    def private(self):
        """Return the server's private data."""
        return self.end.private

    def send(self, data):
        """Post one message."""
        self.end.send(data)

    def message(self, timeout=peer.TIMEOUT):
        """Return the next message, decoded, with its bytes and the handle that it invalidated."""
        data, inv = self.end.receive(timeout)
        return wire.Header.decode(data), data, inv

    def null(self):
        """Send a NULL call; return the messages that arrived before its reply."""
        xid = next(PROBES)
        self.end.send(wire.header(xid) + wire.null(xid))
        others = []
        while True:
            data, _ = self.end.receive()
            if data[:4] == wire.u32(xid):
                check_null(data, xid)
                return others
            others.append(data)

    def exchange(self, *messages, quiet=0.3):
        """Send `messages`, and return their outcome.

        Sends a NULL call after them. If a message is not answered when the NULL is, another
        server thread may still process it: wait until nothing arrives for `quiet` seconds."""
        raw, closed = [], False
        try:
            for data in messages:
                self.end.send(data)
            started = time.monotonic()
            raw += self.null()
            # A slow guest needs longer than that for a Call that is more work than NULL.
            quiet = max(quiet, 10 * (time.monotonic() - started))
            with contextlib.suppress(peer.Timeout):
                while len(raw) < len(messages):
                    raw.append(self.end.receive(quiet)[0])
            raw += self.null()
        except peer.Closed:
            closed = True
            raw += [data for data, _ in self.end.messages]
            raw = [data for data in raw if not is_probe(data)]
            self.end.messages.clear()
        return Outcome([wire.Header.decode(data) for data in raw], raw, closed)

    def call(self, data):
        """Send one message, and return the header of its reply."""
        self.end.send(data)
        head, _, _ = self.message()
        if head.proc == wire.ERROR:
            raise Failed(f"RDMA_ERROR {head.error}")
        check_header(head, data)
        return head


def is_probe(data):
    """Return whether this is the reply to a NULL call of exchange()."""
    return len(data) >= 4 and 0x4805_0000 <= int.from_bytes(data[:4], "big") < 0x4806_0000


def check_null(data, xid):
    """Return whether this is a reply to NULL: 28 bytes of header, 24 of RPC, and no others."""
    head = wire.Header.decode(data)
    if (head.proc, head.reads, head.writes, head.reply) != (wire.MSG, [], [], None):
        raise Failed(f"reply to NULL: {head}")
    wire.results(head.body, xid).end()


def check_header(head, call):
    """Return whether this header, without the RPC message after it, is an answer to `call`."""
    asked = wire.Reader(call)
    xid, vers = asked.u32(), asked.u32()
    if (head.xid, head.vers) != (xid, vers):
        raise Failed(f"reply has XID {head.xid:#x}, version {head.vers}")
    if not 1 <= head.credits <= 16384:
        raise Failed(f"reply grants {head.credits} credits")
    if head.reads:
        raise Failed("reply has a Read list")
    offered = wire.Header.decode(call)
    mirrored(offered.writes, head.writes)
    mirrored([offered.reply or []], [head.reply or []])


def mirrored(offered, returned):
    """Check that returned chunks have the offered handles and offsets, and no greater lengths."""
    if [len(chunk) for chunk in offered] != [len(chunk) for chunk in returned]:
        raise Failed(f"offered {offered}, returned {returned}")
    for theirs, ours in zip(sum(returned, []), sum(offered, [])):
        if (theirs.handle, theirs.offset) != (ours.handle, ours.offset) \
                or theirs.length > ours.length:
            raise Failed(f"offered {ours}, returned {theirs}")


class Server:
    """The server under test, and state that all cases share."""

    def __init__(self, device, address, port, kind):
        self.device, self.address, self.port, self.kind = device, address, port, kind
        self.notes = []
        self.files = {}

    def connect(self, **options):
        """Return a new connection."""
        return Client(self, **options)

    def check_alive(self):
        """Make a valid call on a fresh connection."""
        with self.connect(receives=8, sends=8) as client:
            if client.null():
                raise Failed("a fresh connection brings messages nobody asked for")

    def handle(self, name):
        """Return the file handle of a file in the export's root, or of the root if `name` is empty."""
        if name not in self.files:
            xid = next(XIDS)
            lookup = [wire.u32(15) + wire.opaque(name.encode())] if name else []
            with self.connect(receives=8, sends=8) as client:
                head = client.call(wire.header(xid) + wire.compound(
                    xid, [wire.u32(24), *lookup, wire.u32(10)]))
            reader = wire.results(head.body, xid)
            wanted = [0, 0, 3, 24, 0, 15, 0, 10, 0] if name else [0, 0, 2, 24, 0, 10, 0]
            if (words := [reader.u32() for _ in wanted]) != wanted:
                raise Failed(f"no handle for {name or 'the root'}: {words}")
            self.files[name] = reader.opaque()
            reader.end()
        return self.files[name]

    def expect(self, outcome, c, rust=None):
        """Compare with the expectation for the kind of server under test; "|" separates
        alternatives."""
        wanted = (rust if rust is not None and self.kind == "rust" else c).split("|")
        if str(outcome) not in wanted:
            raise Failed(f"seen: {outcome}; wanted: {' or '.join(wanted)}; "
                         f"replies {[data[:40].hex() for data in outcome.raw]}")

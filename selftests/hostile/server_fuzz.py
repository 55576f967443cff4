# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Random messages for the server: valid messages with random changes, which the seed determines."""

import random
import time

import peer
import wire
from client import XIDS, is_probe
from cases import Failed
from server_cases import FILE, PAGE, null
from wire import Segment

WORDS = (0, 1, 2, 3, 4, 5, 7, 28, 40, 0xfff, 0x1000, 0x1001, 0x10000, 0x400000, 0x7fffffff,
         0x80000000, 0xfffffffc, 0xfffffffe, 0xffffffff)


class Random(random.Random):
    """A faster choice than that of the library: guests are slow."""

    def choice(self, seq):
        return seq[int(self.random() * len(seq))]

    def below(self, end):
        """Return a number from 0 to `end` - 1."""
        return int(self.random() * end)


class Fuzzer:
    """Creates messages, and checks the answers."""

    def __init__(self, server, seed):
        self.server, self.random = server, Random(seed)
        self.region = server.device.region(16 * PAGE)
        self.seen = {}
        # Bodies of Calls, for any XID; the last is none.
        self.bodies = (wire.null(0), wire.v3_read(0, server.handle(FILE), 0, 5000),
                       wire.v3_write_head(0, server.handle("sink"), 0, 1000),
                       wire.compound(0, [wire.u32(24), wire.u32(10)], b"tag"), b"")

    def segment(self, position=0):
        """Return a segment, mostly a valid one."""
        pick = self.random
        length = pick.choice((0, 1, 3, 4, 8, 40, 100, 1000, PAGE, PAGE + 1, 8 * PAGE))
        handle = self.region.rkey if pick.random() < 0.95 else pick.choice(WORDS)
        offset = self.region.address + pick.below(PAGE // 4) * 4
        if pick.random() < 0.02:
            length, offset = pick.choice(WORDS), pick.getrandbits(64)
        return Segment(handle, length, offset, position)

    def lists(self):
        """Return a Read list, a Write list and a Reply chunk."""
        pick = self.random
        lists = {}
        if pick.random() < 0.5:
            position = pick.choice((0, 40, 40, 44, 100, 120, pick.below(4096)))
            lists["reads"] = [self.segment(position if pick.random() < 0.8
                                           else pick.below(1024) * 4)
                              for _ in range(pick.choice((1, 1, 1, 2, 3, 20)))]
        if pick.random() < 0.4:
            lists["writes"] = [[self.segment() for _ in range(pick.choice((1, 1, 2, 5)))]
                               for _ in range(pick.choice((1, 1, 2, 9)))]
        if pick.random() < 0.3:
            lists["reply"] = [self.segment() for _ in range(pick.choice((1, 1, 2, 9)))]
        return lists

    def parts(self):
        """Return header and body of a message before it is changed, for any XID."""
        pick = self.random
        proc = pick.choice((wire.MSG,) * 10 + (wire.NOMSG,) * 5 + (pick.below(6),))
        body = b"" if proc == wire.NOMSG and pick.random() < 0.8 else pick.choice(self.bodies)
        return wire.header(0, proc, **self.lists()), body

    def good(self, header, body):
        """Return the message of these parts."""
        xid = wire.u32(next(XIDS))
        self.region.fill(xid + wire.null(0)[4:])
        return bytearray(xid + header[4:] + (xid + body[4:] if body else b""))

    def spoil(self, data):
        """Return the message, perhaps changed at some places."""
        pick = self.random
        for _ in range(pick.choice((0, 0, 0, 0, 1, 1, 2, 8))):
            at = (4 + pick.below(max(len(data) // 4 - 4, 1))) * 4 if pick.random() < 0.9 else 4
            if pick.random() < 0.5:
                data[at:at + 4] = wire.u32(pick.choice(WORDS))
            elif len(data) > at:
                data[at] ^= 1 << pick.below(8)
        if pick.random() < 0.05:
            del data[pick.below(len(data)):]
        return bytes(data[:4096])

    def message(self):
        """Return a random message."""
        return self.spoil(self.good(*self.parts()))

    def judge(self, data):
        """Return whether a server may send this message."""
        if is_probe(data):
            return "probe"
        head = wire.Header.decode(data)
        if head.reads:
            raise Failed(f"a Read list in {data.hex()}")
        return ("error" if head.proc == wire.ERROR else "reply")

    def run(self, seconds):
        """Send messages for some time. Reconnect when the connection ends."""
        deadline = time.monotonic() + seconds
        sent = connections = 0
        while time.monotonic() < deadline:
            connections += 1
            with self.server.connect() as client:
                try:
                    while time.monotonic() < deadline:
                        burst = [self.message()
                                 for _ in range(self.random.choice((1, 1, 4, 16)))]
                        client.end.send(*burst)
                        sent += len(burst)
                        for data in client.null():
                            kind = self.judge(data)
                            self.seen[kind] = self.seen.get(kind, 0) + 1
                except peer.Closed:
                    pass
        self.region.close()
        self.server.notes.append(f"{sent} messages, {connections} connections, {self.seen}")


def add(table, args):
    """Add the fuzzer as a case."""
    @table.case(f"random messages, seed {args.fuzz}, {args.seconds} s")
    def _fuzz(server):
        Fuzzer(server, args.fuzz).run(args.seconds)
        with server.connect() as client:
            client.call(null())

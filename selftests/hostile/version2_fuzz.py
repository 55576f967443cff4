# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Random messages of version 2 (draft-cel-nfsv4-rpcrdma-version-two-04): the messages of the tables, and
Calls with valid segments, with random changes, which the seed determines."""

import peer
import server_fuzz
import wire
from cases import Failed
from client import PROBES, is_probe
from server_fuzz import WORDS
from server_version2 import CONNPROP, MALFORMED, RESPROP, check_reply, null, rows

GOOD = "/t/data/version2.tsv"
# Length of an error report in octets, by its code; other codes have 20.
REPORTS = {1: 28, 4: 24, 5: 24, 6: 24, 7: 28, 8: 24}

# Names of messages that may have chunks. A wrong handle correctly ends the connection.
COSTLY = ("msg-", "nomsg-", "extreme-", "reverse-")


def vectors(path):
    """Return the names and octets in a table."""
    at = 2 if path == GOOD else 1
    return [(row[0], bytes.fromhex(row[at])) for row in rows(path) if row[at]]


def in_version_2(data, direction=1, named=0):
    """Return a message of version 1, translated to version 2."""
    return data[:4] + wire.u32(2) + data[8:16] + wire.u32(direction, named) + data[16:]


class Spoiler:
    """Returns messages of the tables, most of them changed."""

    def __init__(self, pick):
        self.random = pick
        table = vectors(GOOD) + vectors(MALFORMED)
        self.costly = [octets for name, octets in table if name.startswith(COSTLY)]
        self.cheap = [octets for name, octets in table if not name.startswith(COSTLY)]

    def original(self):
        """Return a message of the tables."""
        pick = self.random
        return pick.choice(self.costly if pick.random() < 0.02 else self.cheap)

    def spoil(self, data):
        """Return the message, perhaps changed at some places."""
        pick, data = self.random, bytearray(data[:4096])
        for _ in range(pick.choice((0, 1, 1, 2, 5))):
            at = pick.below(max(len(data) // 4, 1)) * 4
            if pick.random() < 0.6:
                data[at:at + 4] = wire.u32(pick.choice(WORDS))
            elif at < len(data):
                data[at] ^= 1 << pick.below(8)
        if pick.random() < 0.1:
            del data[pick.below(len(data) + 1):]
        if pick.random() < 0.9:
            data[4:8] = wire.u32(2)
        return bytes(data[:4096])

    def message(self):
        """Return a random message."""
        return self.spoil(self.original())


class OtherVersion(Exception):
    """The first message has selected version 1 for the connection."""


class Fuzzer(server_fuzz.Fuzzer):
    """Creates messages of version 2 for a server, and checks the answers."""

    def __init__(self, server, seed):
        super().__init__(server, seed)
        self.spoiler = Spoiler(self.random)
        self.last, self.left = None, 0
        self.greeting = next(octets for name, octets in vectors(GOOD) if name == "connprop-client")

    def message(self):
        """Return a random message."""
        pick = self.random
        if pick.random() < 0.6:
            return self.spoiler.message()
        # The other end cannot invalidate a region of a process: the attempt ends the connection.
        named = pick.choice((0,) * 50 + (self.region.rkey, pick.choice(WORDS)))
        direction = pick.choice((0,) * 20 + (1, 2))
        # Making the lists takes longer than all else: spoil the same ones several times.
        if not self.left:
            self.last, self.left = self.parts(), 4
        self.left -= 1
        return self.spoil(bytearray(in_version_2(self.good(*self.last), direction, named)))

    def judge(self, data):
        """Return whether a server may send this message."""
        if is_probe(data):
            return "probe"
        if len(data) < 20:
            raise Failed(f"a message of {len(data)} octets")
        version, credits, proc, word = (int.from_bytes(data[at:at + 4], "big")
                                        for at in range(4, 20, 4))
        if not 1 <= credits <= 16384:
            raise Failed(f"{credits} credits in {data.hex()}")
        if proc == wire.ERROR:
            if not 1 <= word <= 10 or len(data) != REPORTS.get(word, 20):
                raise Failed(f"an error report that is none: {data.hex()}")
            return "error"
        if version != 2:
            return super().judge(data)
        if proc in (wire.MSG, wire.NOMSG):
            check_reply(data)
            return "reply"
        if proc not in (CONNPROP, RESPROP):
            raise Failed(f"procedure {proc} in {data.hex()}")
        return "properties"

    def null(self, client):
        """Send a NULL Call; return the messages that arrived before its Reply."""
        xid = next(PROBES)
        client.end.send(null(xid))
        others = []
        while True:
            data, _ = client.end.receive()
            if data[:4] != wire.u32(xid):
                others.append(data)
            elif data[12:20] == wire.u32(wire.ERROR, wire.ERR_VERS):
                raise OtherVersion
            else:
                check_reply(data)
                return others

    def connection(self, client, count):
        """Send up to `count` messages; yield the number of messages after each burst."""
        pick = self.random
        if pick.random() < 0.9:
            client.send(self.greeting)
            self.null(client)
        while count > 0:
            burst = [self.message() for _ in range(min(pick.choice((1, 16, 48, 60)), count))]
            client.end.send(*burst)
            count -= len(burst)
            yield len(burst)
            for data in self.null(client):
                kind = self.judge(data)
                self.seen[kind] = self.seen.get(kind, 0) + 1

    def play(self, count):
        """Send `count` messages. Reconnect when the connection ends."""
        sent = connections = other = 0
        while sent < count:
            connections += 1
            with self.server.connect() as client:
                try:
                    for burst in self.connection(client, count - sent):
                        sent += burst
                except peer.Closed:
                    pass
                except OtherVersion:
                    other += 1
        self.region.close()
        self.server.notes.append(f"{sent} messages, {connections} connections, {other} of them of "
                                 f"version 1, {self.seen}")


def add(table, seed, count):
    """Add the fuzzer as a case for a server."""
    @table.case(f"version 2: {count} random messages, seed {seed}")
    def _fuzz(server):
        if server.kind == "rust":
            Fuzzer(server, seed).play(count)
            with server.connect() as client:
                client.null()

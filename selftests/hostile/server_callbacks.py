# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Callbacks of a server in version 2, for each value of the client's property Backward Request Support
(draft-cel-nfsv4-rpcrdma-version-two-04, section 5.2.2).

A session of NFS version 4.1 waits for a lock that another owner of the same client holds. nfsd says by
CB_NOTIFY_LOCK that the lock is free.
"""

import contextlib
import os
import struct
import time

import peer
import wire
from client import XIDS
from cases import Failed
from server_cases import FILE, TABLE, equal
from server_stalls import NO_RNR
from server_version2 import BRS, CONNPROP, RBSIZ, answers, check_null, ours, two
from version2_fuzz import in_version_2
from wire import Segment

case = TABLE.case

NONE, INLINE = 0, 1
(LOCK, LOCKU, LOOKUP, OPEN, PUTROOTFH, EXCHANGE_ID, CREATE_SESSION, SEQUENCE,
 RECLAIM_COMPLETE) = 12, 14, 15, 18, 24, 42, 43, 53, 58
DENIED, GRACE = 10010, 10013
# What CREATE_SESSION demands, and the share of OPEN: both, and no delegation.
CONN_BACK_CHAN, BOTH_NO_DELEGATION = 2, 0x403
# What SEQUENCE says after a callback that could not be sent.
BACKCHANNEL_FAULT = 0x400
WRITE_LT, WRITEW_LT = 2, 4
EVERYTHING = struct.pack(">QQ", 0, (1 << 64) - 1)
# How long to wait for a callback that must not arrive; one that arrives takes far less.
QUIET = 3
# More READs than nfsd has threads, so that some of them begin after a callback was queued.
READS, SEGMENTS = 20, 200


class Session:
    """A client of NFS version 4.1, with a callback channel on its only connection."""

    def __init__(self, client):
        self.client, self.slot = client, 0
        self.callbacks, self.flags = [], 0
        owner = os.urandom(8)
        reader = self.compound(struct.pack(">I8s", EXCHANGE_ID, owner) + wire.opaque(owner)
                               + wire.u32(0, 0, 0))
        equal((reader.u32(), reader.u32()), (EXCHANGE_ID, 0), "EXCHANGE_ID")
        self.id, sequence = reader.take(8), reader.take(4)
        channel = wire.u32(0, 4096, 4096, 2048, 8, 4, 0)
        reader = self.compound(wire.u32(CREATE_SESSION) + self.id + sequence
                               + wire.u32(CONN_BACK_CHAN) + channel * 2
                               + wire.u32(wire.NFS_CB, 1, 0))
        equal((reader.u32(), reader.u32()), (CREATE_SESSION, 0), "CREATE_SESSION")
        self.session = reader.take(16)
        reader.take(4)
        equal(reader.u32() & CONN_BACK_CHAN, CONN_BACK_CHAN, "flags of CREATE_SESSION")
        self.done(self.call(wire.u32(RECLAIM_COMPLETE, 0)), RECLAIM_COMPLETE)

    def compound(self, *ops):
        """Send a COMPOUND; returns a reader of its results. Callbacks may arrive before them."""
        xid = next(XIDS)
        self.client.end.send(two(xid, wire.MSG, 0, 0, 0, 0, 0,
                                 body=wire.compound(xid, ops, minor=1)))
        while True:
            data, _ = self.client.end.receive()
            if data[:4] == wire.u32(xid):
                break
            self.callbacks.append(data)
        equal(data[4:8] + data[12:36], wire.u32(2, wire.MSG, 1, 0, 0, 0, 0), "header of a Reply")
        reader = wire.results(data[36:], xid)
        reader.u32()
        reader.opaque()
        reader.u32()
        return reader

    def call(self, *ops):
        """Send operations of the session; returns a reader of the results after SEQUENCE."""
        self.slot += 1
        reader = self.compound(wire.u32(SEQUENCE) + self.session + wire.u32(self.slot, 0, 0, 0), *ops)
        self.done(reader, SEQUENCE)
        reader.take(16 + 4 * 4)
        self.flags = reader.u32()
        return reader

    def done(self, reader, op, status=0):
        """The next result is that of `op`, with this status."""
        equal((reader.u32(), reader.u32()), (op, status), "operation and status")

    def file(self, op, status=0):
        """Send an operation on the file, or on its name if it is OPEN."""
        number = int.from_bytes(op[:4], "big")
        names = [] if number == OPEN else [wire.u32(LOOKUP) + wire.opaque(FILE.encode())]
        reader = self.call(wire.u32(PUTROOTFH), *names, op)
        self.done(reader, PUTROOTFH)
        if names:
            self.done(reader, LOOKUP)
        self.done(reader, number, status)
        return reader

    def open(self):
        """Open the file; returns the state."""
        return self.file(wire.u32(OPEN, 0, BOTH_NO_DELEGATION, 0) + self.id + wire.opaque(b"open")
                         + wire.u32(0, 0) + wire.opaque(FILE.encode())).take(16)

    def lock(self, state, kind, owner, status=0):
        """Lock the whole file. lockd's grace period may not have ended."""
        end = time.monotonic() + 120
        while True:
            try:
                return self.file(wire.u32(LOCK, kind, 0) + EVERYTHING + wire.u32(1, 0) + state
                                 + wire.u32(0) + self.id + wire.opaque(owner), status)
            except Failed as error:
                if str(GRACE) not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(1)

    def unlock(self, state):
        """Unlock the whole file."""
        self.file(wire.u32(LOCKU, WRITE_LT, 0) + state + EVERYTHING)

    def callback(self, seconds):
        """Return the next message that is no Reply, or None."""
        with contextlib.suppress(peer.Timeout):
            if not self.callbacks:
                self.callbacks.append(self.client.end.receive(seconds)[0])
        return self.callbacks.pop(0) if self.callbacks else None

    def next_callback(self):
        """Return the next message that is no Reply."""
        call = self.callback(peer.TIMEOUT)
        if call is None:
            raise Failed("no callback")
        return call


def locked(client, backward):
    """Return a session of a client with this Backward Request Support, and the lock that an owner waits for."""
    body = wire.u32(2, RBSIZ, 4, 4096, BRS, 4, backward, 0)
    answers(client, two(next(XIDS), CONNPROP, body=body), peer.TIMEOUT)
    session = Session(client)
    state = session.open()
    held = session.lock(state, WRITE_LT, b"one").take(16)
    session.lock(state, WRITEW_LT, b"two", DENIED)
    return session, held


@contextlib.contextmanager
def waiting(server, backward):
    """A session of a client with this Backward Request Support, which nfsd has to call."""
    with server.connect() as client:
        session, held = locked(client, backward)
        session.unlock(held)
        yield client, session


@case("version 2: a client whose property says INLINE is called")
def called(server):
    if not ours(server):
        return
    with waiting(server, INLINE) as (_, session):
        call = session.next_callback()
        head = wire.u32(2, wire.MSG, 0, 0, 0, 0, 0)
        equal(call[4:8] + call[12:36], head, "header of a Call")
        rpc = call[36:]
        equal(rpc[:24], call[:4] + wire.u32(wire.CALL, 2, wire.NFS_CB, 1, 1), "CB_COMPOUND")
        server.notes.append(f"a Call of {len(call)} octets")


@case("version 2: a client whose property says NONE is not called, and keeps its connection")
def not_called(server):
    if not ours(server):
        return
    with waiting(server, NONE) as (client, session):
        call = session.callback(QUIET)
        if call is not None:
            raise Failed(f"a message of the server: {call.hex()}")
        session.call()
        equal(session.flags & BACKCHANNEL_FAULT, BACKCHANNEL_FAULT, "status flags of nfsd")
        check_null(client)


@case("version 2: a malformed Reply ends a callback at once")
def malformed_reply(server):
    if not ours(server):
        return
    with waiting(server, INLINE) as (client, session):
        call = session.next_callback()
        # The Read list is cut off.
        client.end.send(call[:4] + wire.u32(2, 32, wire.MSG, 1, 0, 1))
        end = time.monotonic() + QUIET
        while not session.flags & BACKCHANNEL_FAULT:
            if time.monotonic() > end:
                raise Failed("nfsd waits for the Reply")
            session.call()
            time.sleep(0.1)
        # nfsd may call again, so the next message need not be a Reply.
        session.call()


def segmented_read(server, region):
    """Return a READ with a Write chunk of so many segments that the Send Queue has room for two replies."""
    xid, size = next(XIDS), 4
    chunk = [Segment(region.rkey, size, region.address + size * i) for i in range(SEGMENTS)]
    return in_version_2(wire.header(xid, writes=[chunk])
                        + wire.v3_read(xid, server.handle(FILE), 0, size * SEGMENTS), direction=wire.CALL)


@case("version 2: a callback is sent while replies fill the Send Queue", skip=NO_RNR)
def among_replies(server):
    if not ours(server):
        return
    region = server.device.region(4 * SEGMENTS)
    with server.connect(receives=64, posted=1, rnr_retry=7, retry=7) as client, server.connect() as other:
        client.end.refill = True
        session, held = locked(client, INLINE)
        # From now on the client takes one message at a time. The next one finds a Receive.
        client.end.refill = False
        client.end.send(*(segmented_read(server, region) for _ in range(READS)))
        time.sleep(1)
        # The connection gets no service thread while replies wait, so another one has to unlock.
        session.client = other
        session.unlock(held)
        seen = []
        for slot in range(1, READS + 1):
            data, _ = client.end.receive()
            seen.append(int.from_bytes(data[16:20], "big"))
            if seen[-1] == wire.CALL:
                break
            # Longer than the interval at which sunrpc repeats a callback.
            time.sleep(0.4)
            client.end.post_receive(slot)
    region.close()
    if wire.CALL not in seen:
        raise Failed(f"no callback before the last of {READS} replies")
    server.notes.append(f"{len(seen) - 1} replies came before the callback")

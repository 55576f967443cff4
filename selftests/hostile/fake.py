# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A small NFSv3 server whose answers a case can corrupt.

One thread serves MOUNT over TCP, one NFS over RDMA. The export is a directory
with the file "data" (64 KiB of pattern), the symbolic link "link", and enough
names for a READDIR reply of several KiB. A case provides a plan: how to answer the
next call of one procedure. All other calls get valid answers.
"""

import contextlib
import itertools
import queue
import socket
import struct
import threading
import time
import traceback

import peer
import wire
from wire import Segment

ROOT, FILE, LINK = b"root" * 4, b"file" * 4, b"link" * 4
(NULL, GETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, SYMLINK, READDIR, FSSTAT, FSINFO,
 PATHCONF) = 0, 1, 3, 4, 5, 6, 7, 10, 16, 18, 19, 20
SIZE = 65536
TARGET = b"t" * 3000


def pattern(offset, length):
    """Return the contents of "data"."""
    return bytes((i * 7 + (i >> 8)) & 0xff for i in range(offset, offset + length))


DATA = pattern(0, SIZE)


CHANGES = itertools.count(1)


def attributes(handle):
    """Return fattr3; all objects but the file change all the time, so that nothing is cached."""
    kind, size, fileid = {ROOT: (2, 4096, 1), FILE: (1, SIZE, 2), LINK: (5, len(TARGET), 3)}[handle]
    now = struct.pack(">II", 1_000_000_000, 0 if handle == FILE else next(CHANGES))
    return struct.pack(">IIIIIQQIIQQ", kind, 0o777, 1, 0, 0, size, size, 0, 0, 1, fileid) + now * 3


def post_op(handle):
    """Return a post_op_attr with attributes."""
    return wire.u32(1) + attributes(handle)


def pull(end, arena, segments):
    """Return the bytes of Read segments."""
    data = b""
    for segment in segments:
        if not end.remote_read(segment.handle, segment.offset, arena, segment.length):
            raise peer.Closed("RDMA Read refused")
        data += arena.read(segment.length)
    return data


def push(end, arena, chunk, data):
    """RDMA Write into a chunk; returns it with the lengths used."""
    used = []
    for segment in chunk:
        part, data = data[:segment.length], data[segment.length:]
        if part:
            arena.fill(part)
            if not end.remote_write(segment.handle, segment.offset, arena, len(part)):
                raise peer.Closed("RDMA Write refused")
        used.append(Segment(segment.handle, len(part), segment.offset))
    return used


def rpc_message(end, arena, head):
    """Return the whole RPC message of a Call."""
    zero = [s for s in head.reads if s.position == 0]
    inside = [s for s in head.reads if s.position]
    body = pull(end, arena, zero) if zero else head.body
    if inside:
        at, data = inside[0].position, pull(end, arena, inside)
        body = body[:at] + data + bytes(-len(data) % 4) + body[at:]
    return body


class Call:
    """A received call, its valid answer, and the ways to send it."""

    def __init__(self, end, data, arena):
        self.end, self.arena = end, arena
        self.after = []
        self.head = wire.Header.decode(data)
        reader = wire.Reader(rpc_message(end, arena, self.head))
        self.xid = reader.u32()
        words = [reader.u32() for _ in range(5)]
        self.proc = words[4]
        for _ in range(2):
            reader.u32()
            reader.opaque()
        self.args = reader
        # The results: before the payload, the payload (None: there is none), after it.
        self.before, self.payload = self._results()

    def _results(self):
        ok = wire.u32(0)
        if self.proc == NULL:
            return b"", None
        if self.proc not in RESULTS:
            return wire.u32(10004), None
        return RESULTS[self.proc](ok, self.args)

    # -- answers --

    @property
    def body(self):
        """Return the whole RPC reply."""
        data = self.before
        if self.payload is not None:
            data += wire.u32(len(self.payload)) + self.payload + bytes(-len(self.payload) % 4)
        return wire.accepted(self.xid, 0, data)

    @property
    def reduced(self):
        """Return the RPC reply without its payload."""
        data = self.before
        if self.payload is not None:
            data += wire.u32(len(self.payload))
        return wire.accepted(self.xid, 0, data)

    def push(self, chunk, data):
        """RDMA Write into a chunk; returns it with the lengths used."""
        return push(self.end, self.arena, chunk, data)

    def send(self, data, invalidate=None):
        """Send one message unchanged, and those in `after` in the same post."""
        self.end.send(data, *self.after, invalidate=invalidate)

    def reply(self, body=b"", invalidate=None, **lists):
        """Send one message: header and body."""
        lists.setdefault("xid", self.xid)
        self.send(wire.header(**lists) + body, invalidate)

    def good(self, credits=32, invalidate=None):
        """Send the valid answer."""
        if self.head.reply:
            chunk = self.push(self.head.reply, self.body)
            self.reply(proc=wire.NOMSG, reply=chunk, credits=credits, invalidate=invalidate)
        elif self.head.writes and self.payload is not None:
            chunk = self.push(self.head.writes[0], self.payload)
            self.reply(self.reduced, writes=[chunk], credits=credits, invalidate=invalidate)
        else:
            unused = [[Segment(s.handle, 0, s.offset) for s in chunk]
                      for chunk in self.head.writes]
            self.reply(self.body, writes=unused, credits=credits, invalidate=invalidate)


def _lookup(ok, args):
    args.opaque()
    handle = {b"data": FILE, b"link": LINK}.get(args.opaque())
    if handle is None:
        return wire.u32(2) + post_op(ROOT), None
    return ok + wire.opaque(handle) + post_op(handle) + post_op(ROOT), None


def _access(ok, args):
    handle = args.opaque()
    return ok + post_op(handle) + wire.u32(args.u32()), None


def _read(ok, args):
    handle = args.opaque()
    offset, count = args.u64(), args.u32()
    data = DATA[offset:offset + count]
    return ok + post_op(handle) + wire.u32(len(data), offset + len(data) >= SIZE), data


def _write(ok, args):
    args.opaque()
    args.u64()
    count, _stable, data = args.u32(), args.u32(), args.opaque()
    if data != DATA[:count]:
        return wire.u32(5, 0, 0), None
    return ok + wire.u32(0, 0, count, 2) + b"verifier", None


def _readdir(ok, args):
    args.opaque()
    cookie = args.u64()
    entries = b"".join(
        wire.u32(1) + struct.pack(">Q", i) + wire.opaque(b"%04d-" % i + b"n" * 100)
        + struct.pack(">Q", i) for i in range(cookie + 1, 31))
    return ok + post_op(ROOT) + b"verifier" + entries + wire.u32(0, 1), None


RESULTS = {
    GETATTR: lambda ok, args: (ok + attributes(args.opaque()), None),
    LOOKUP: _lookup,
    ACCESS: _access,
    READLINK: lambda ok, args: (ok + post_op(args.opaque()) + wire.opaque(TARGET), None),
    READ: _read,
    WRITE: _write,
    SYMLINK: lambda ok, args: (wire.u32(17, 0, 0), None),
    READDIR: _readdir,
    FSSTAT: lambda ok, args: (ok + post_op(ROOT) + bytes(52), None),
    FSINFO: lambda ok, args: (ok + post_op(ROOT) + struct.pack(
        ">7IQIII", SIZE, SIZE, 4096, SIZE, SIZE, 4096, SIZE, 1 << 40, 0, 1, 0x1b), None),
    PATHCONF: lambda ok, args: (ok + post_op(ROOT) + wire.u32(32, 255, 0, 1, 0, 1), None),
}


class MountServer(threading.Thread):
    """MOUNT version 3 over TCP; returns the root's handle to every client."""

    def __init__(self, address, port):
        super().__init__(daemon=True)
        self.socket = socket.create_server((address, port))

    def run(self):
        while True:
            connection, _ = self.socket.accept()
            with connection, connection.makefile("rb") as file:
                while len(mark := file.read(4)) == 4:
                    data = file.read(struct.unpack(">I", mark)[0] & 0x7fffffff)
                    xid, proc = struct.unpack(">I16xI", data[:24])
                    body = wire.accepted(xid)
                    if proc == 1:
                        body += wire.u32(0) + wire.opaque(ROOT) + wire.u32(1, 1)
                    connection.sendall(wire.u32(0x80000000 | len(body)) + body)


class FakeServer(threading.Thread):
    """NFS version 3 over RDMA."""

    def __init__(self, device, address, port):
        super().__init__(daemon=True)
        self.listener = peer.Listener(device, address, port)
        self.arena = device.region(1 << 20)
        self.end = None
        self.private = wire.cm_private()
        self.size = 4096
        # How many Receives a new connection has; None: as many as the client may need.
        self.posted = None
        # The credits in good answers.
        self.granted = 32
        self.connections = 0
        self.refusals = 0
        self.orders = queue.Queue()
        self.plan = None
        self.spoiled = None
        # How often the call arrived that a plan answered.
        self.times = 0
        self.last = {}
        self.errors = []

    def answer_next(self, proc, spoil):
        """Answer the next call of `proc` by spoil(call)."""
        self.spoiled = None
        self.times = 0
        self.plan = (proc, spoil)

    @contextlib.contextmanager
    def granting(self, credits):
        """Grant that many credits in good answers while the block runs."""
        before, self.granted = self.granted, credits
        try:
            yield
        finally:
            self.granted = before

    def do(self, action):
        """Run `action` in the server's thread and return its result."""
        done = queue.Queue()
        self.orders.put((action, done))
        result, error = done.get(timeout=60)
        if error:
            raise error
        return result

    def hang_up(self):
        """Close the connection."""
        if self.end:
            self.end.close()
            self.end = None

    def run(self):
        while True:
            try:
                if not self._step():
                    time.sleep(0.001)
            except peer.Closed:
                self.hang_up()
            except Exception:
                self.errors.append(traceback.format_exc())
                self.hang_up()

    def _step(self):
        if not self.orders.empty():
            action, done = self.orders.get()
            try:
                done.put((action(), None))
            except peer.Closed as error:
                done.put((None, error))
            return True
        before = self.end
        self.end = self.listener.poll(self.private, before, receives=128, size=self.size,
                                      posted=self.posted)
        if self.end is not before and self.end:
            self.connections += 1
            self.welcome()
        if self.end is None:
            return False
        message = self.end.poll()
        if self.end.closed:
            self.hang_up()
        elif message:
            self.take(message[0])
            # Those that have arrived with it; an answer may end the connection.
            while self.end and self.end.messages and not self.end.closed:
                self.take(self.end.messages.pop(0)[0])
        return message is not None

    def welcome(self):
        """Called for each new connection."""

    def take(self, data):
        """Handle one message of the client."""
        if wire.Header.decode(data).proc == wire.ERROR:
            self.refusals += 1  # of what looked like a reverse-direction Call
        else:
            self._serve(Call(self.end, data, self.arena))

    def _serve(self, call):
        self.last[call.proc] = call
        if self.plan and self.plan[0] == call.proc:
            (_, spoil), self.plan = self.plan, None
            self.spoiled, self.times = call, 1
            spoil(call)
            if call.end.closed:
                self.hang_up()
        else:
            self.times += self.spoiled is not None and call.xid == self.spoiled.xid
            call.good(credits=self.granted)

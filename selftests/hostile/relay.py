# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A server for NFSv4.1 clients that forwards their calls to nfsd over TCP, and makes calls itself.

With a session of nfsd, the client has a callback service, which a case may call at will (RFC
8167). Calls and results use any transfer mode that the client offers.
"""

import itertools
import socket
import struct

import peer
import wire
from fake import FakeServer, push, rpc_message
from wire import Segment

XIDS = itertools.count(0xcb00_0000)


def callback(xid, proc=0):
    """A Call of the callback program, CB_NULL by default."""
    return wire.call(xid, proc, prog=wire.NFS_CB, vers=1)


class Relay(FakeServer):
    """The relay. `answers` are the headers that came back, `refusals` the error reports."""

    def __init__(self, device, address, port, nfsd):
        super().__init__(device, address, port)
        self.port, self.nfsd, self.stream = port, nfsd, None
        self.answers, self.refusals = [], []
        self.before = None

    def forget(self):
        """Clear the answers and refusals."""
        self.answers.clear()
        self.refusals.clear()

    def burst(self, messages):
        """Send messages, one immediately after the other."""
        def send():
            if self.end is None:
                raise peer.Closed("there is no connection")
            for message in messages:
                self.end.send(message)
        self.do(send)

    def take(self, data):
        """Handle one message of the client."""
        head = wire.Header.decode(data)
        if head.proc == wire.ERROR:
            self.refusals.append(head)
        elif head.body[4:8] == wire.u32(wire.REPLY):
            self.answers.append(head)
        else:
            if self.before:
                before, self.before = self.before, None
                before(head)
            self._answer(head, self._ask(rpc_message(self.end, self.arena, head)))

    def _ask(self, message):
        """Send a message to nfsd; return its reply."""
        if self.stream is None:
            self.stream = socket.create_connection(self.nfsd, 20)
        self.stream.sendall(wire.u32(0x80000000 | len(message)) + message)
        while True:
            mark = struct.unpack(">I", self._exactly(4))[0]
            reply = self._exactly(mark & 0x7fffffff)
            if reply[:4] == message[:4]:
                return reply

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.stream.recv(count - len(data))
            if not part:
                self.stream = None
                raise peer.Closed("nfsd has hung up")
            data += part
        return data

    def _answer(self, head, reply):
        """Reply inline if the reply fits, otherwise in the Reply chunk."""
        writes = [[Segment(s.handle, 0, s.offset) for s in chunk] for chunk in head.writes]
        message = wire.header(head.xid, writes=writes) + reply
        if len(message) > self.size:
            used = push(self.end, self.arena, head.reply, reply)
            message = wire.header(head.xid, wire.NOMSG, writes=writes, reply=used)
        self.end.send(message)

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Encoders and decoders of RPC-over-RDMA version 1 (RFC 8166), its CM private data
(RFC 8797), and the parts of RPC and NFS that the cases need.

The encoders check nothing, so that they can build invalid messages. The decoders are
strict: a missing byte, or an extra one, is an error.
"""

import struct
from dataclasses import dataclass, field

MSG, NOMSG, MSGP, DONE, ERROR = range(5)
ERR_VERS, ERR_CHUNK = 1, 2
CALL, REPLY = 0, 1
NFS, NFS_CB = 100003, 0x40000000
MIN_HEADER = 28


class Malformed(Exception):
    """The bytes violate the protocol."""


def u32(*values):
    """Big-endian 32-bit words."""
    return struct.pack(f">{len(values)}I", *values)


def opaque(data):
    """Variable-length opaque, padded."""
    return u32(len(data)) + data + bytes(-len(data) % 4)


class Reader:
    """Reads words and bytes from the front of a message."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        """Return the next `count` bytes."""
        if len(self.data) - self.at < count:
            raise Malformed(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count:self.at]

    def u32(self):
        """Return the next word."""
        return struct.unpack(">I", self.take(4))[0]

    def u64(self):
        """Return the next double word."""
        return struct.unpack(">Q", self.take(8))[0]

    def flag(self):
        """Return the next word, which must be 0 or 1."""
        word = self.u32()
        if word > 1:
            raise Malformed(f"boolean {word:#x} at {self.at - 4}")
        return word == 1

    def opaque(self):
        """Variable-length opaque."""
        count = self.u32()
        data = self.take(count)
        self.take(-count % 4)
        return data

    def rest(self):
        """Return the remaining bytes."""
        return self.take(len(self.data) - self.at)

    def end(self):
        """Fail unless all bytes were read."""
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes too many: "
                            f"{self.data[self.at:self.at + 32].hex()}")


# --- transport header ---------------------------------------------------------

@dataclass
class Segment:
    """A plain segment; `position` is used in Read lists only."""
    handle: int
    length: int
    offset: int
    position: int = 0

    def encode(self):
        """handle, length, offset"""
        return struct.pack(">IIQ", self.handle & 0xffffffff, self.length & 0xffffffff,
                           self.offset & (1 << 64) - 1)


def read_list(segments):
    """A Read list."""
    items = (u32(1, segment.position) + segment.encode() for segment in segments)
    return b"".join(items) + u32(0)


def segments(array):
    """A counted array of segments."""
    return u32(len(array)) + b"".join(segment.encode() for segment in array)


def write_list(chunks):
    """A Write list."""
    return b"".join(u32(1) + segments(chunk) for chunk in chunks) + u32(0)


def reply_chunk(chunk):
    """A Reply chunk; None for none."""
    return u32(0) if chunk is None else u32(1) + segments(chunk)


def header(xid, proc=MSG, reads=(), writes=(), reply=None, vers=1, credits=32):
    """A transport header with its chunk lists."""
    return (u32(xid, vers, credits, proc) + read_list(reads) + write_list(writes)
            + reply_chunk(reply))


@dataclass
class Header:
    """A decoded transport header and what follows it."""
    xid: int
    vers: int
    credits: int
    proc: int
    error: tuple = ()
    reads: list = field(default_factory=list)
    writes: list = field(default_factory=list)
    reply: list | None = None
    body: bytes = b""
    size: int = 0

    @classmethod
    def decode(cls, data):
        """Decode the bytes of one received message."""
        reader = Reader(data)
        head = cls(*(reader.u32() for _ in range(4)), size=len(data))
        if head.proc == ERROR:
            code = reader.u32()
            if code == ERR_VERS:
                head.error = (code, reader.u32(), reader.u32())
            elif code == ERR_CHUNK:
                head.error = (code,)
            else:
                raise Malformed(f"rdma_err {code}")
            reader.end()
            return head
        if head.proc not in (MSG, NOMSG):
            raise Malformed(f"rdma_proc {head.proc}")
        while reader.flag():
            position = reader.u32()
            head.reads.append(cls._segment(reader, position))
        while reader.flag():
            head.writes.append([cls._segment(reader) for _ in range(reader.u32())])
        if reader.flag():
            head.reply = [cls._segment(reader) for _ in range(reader.u32())]
        head.body = reader.rest()
        if head.proc == NOMSG and head.body:
            raise Malformed(f"{len(head.body)} bytes after the header of an RDMA_NOMSG")
        return head

    @staticmethod
    def _segment(reader, position=0):
        return Segment(reader.u32(), reader.u32(), reader.u64(), position)


# --- CM private data ----------------------------------------------------------

CM_MAGIC = 0xf6ab0e18


def cm_private(send=4096, recv=4096, flags=0, magic=CM_MAGIC, vers=1):
    """The private data of a connection request or acceptance."""
    return struct.pack(">IBBBB", magic, vers, flags, (send >> 10) - 1 & 0xff,
                       (recv >> 10) - 1 & 0xff)


# --- RPC and NFS --------------------------------------------------------------

def auth_sys():
    """Root's credential and an empty verifier."""
    body = u32(0) + opaque(b"hostile") + u32(0, 0, 0)
    return u32(1) + opaque(body) + u32(0, 0)


def call(xid, proc, args=b"", prog=NFS, vers=3, cred=None):
    """An RPC Call."""
    cred = u32(0, 0, 0, 0) if cred is None else cred
    return u32(xid, CALL, 2, prog, vers, proc) + cred + args


def null(xid):
    """The NULL procedure of NFS version 3."""
    return call(xid, 0)


def accepted(xid, status=0, results=b"", verifier=b""):
    """An RPC Reply; the body of its verifier is empty by default."""
    return u32(xid, REPLY, 0, 0) + opaque(verifier) + u32(status) + results


def results(data, xid):
    """The results of an accepted and successful Reply to `xid`."""
    reader = Reader(data)
    words = [reader.u32() for _ in range(3)]
    if words != [xid, REPLY, 0]:
        raise Malformed(f"RPC reply begins {[hex(w) for w in words]}, want XID {xid:#x}")
    reader.u32()
    reader.opaque()
    if (status := reader.u32()) != 0:
        raise Malformed(f"accept_stat {status}")
    return reader


def compound(xid, ops, tag=b"", count=None, minor=0):
    """An NFSv4 COMPOUND of already encoded operations."""
    args = opaque(tag) + u32(minor, len(ops) if count is None else count) + b"".join(ops)
    return call(xid, 1, args, vers=4, cred=auth_sys())


def v3(xid, proc, args):
    """An NFSv3 Call."""
    return call(xid, proc, args, cred=auth_sys())


def v3_read(xid, handle, offset, count):
    """NFSv3 READ."""
    return v3(xid, 6, opaque(handle) + struct.pack(">QI", offset, count))


def v3_write_head(xid, handle, offset, count):
    """NFSv3 WRITE (FILE_SYNC) up to and including the length word of its data."""
    return v3(xid, 7, opaque(handle) + struct.pack(">QIII", offset, count, 2, count))


def post_op_attr(reader):
    """Skip optional NFSv3 attributes."""
    if reader.flag():
        reader.take(84)


def v3_write_count(data, xid):
    """The count of an NFSv3 WRITE's reply."""
    reader = results(data, xid)
    if (status := reader.u32()) != 0:
        raise Malformed(f"WRITE: nfsstat3 {status}")
    if reader.flag():
        reader.take(24)
    post_op_attr(reader)
    count, _stable = reader.u32(), reader.u32()
    reader.take(8)
    reader.end()
    return count


def v3_read_count(data, xid):
    """(count, bytes that follow) of an NFSv3 READ's reply, data length included."""
    reader = results(data, xid)
    if (status := reader.u32()) != 0:
        raise Malformed(f"READ: nfsstat3 {status}")
    post_op_attr(reader)
    count, _eof, length = reader.u32(), reader.flag(), reader.u32()
    if count != length:
        raise Malformed(f"READ: count {count}, data length {length}")
    return count, reader.rest()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""RPC-over-RDMA messages in a capture of RoCEv2 (tcpdump's pcap, Ethernet, IPv4).

Only Sends are decoded, and of a Send that is longer than a packet only the first packet:
Ethernet, IPv4, UDP to port 4791, Base Transport Header, perhaps the handle to invalidate, then the
message. RFC 8166 section 4 and RFC 8167 section 5 define the message, and for version 2
section 6.2 of draft-cel-nfsv4-rpcrdma-version-two-04.
"""

import struct
from dataclasses import dataclass, field

ROCE = 4791
# Opcodes of a Send's only or first packet: plain, with an immediate, with invalidation.
SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM, SEND_ONLY_INV = 0x00, 0x04, 0x05, 0x17
# Filter for tcpdump: all Sends, and no packets that only carry data.
FILTER = f"udp dst port {ROCE} and (udp[8] <= 5 or udp[8] = 0x16 or udp[8] = 0x17)"
CALL, REPLY = 0, 1
MSG, NOMSG, ERROR = 0, 1, 4
# Only in version 2.
OPTIONAL, CONNPROP, REQPROP, RESPROP, UPDPROP = 5, 6, 7, 8, 9
NFS, NFS_CB = 100003, 0x40000000
RPCSEC_GSS = 6
CB_GETATTR, CB_RECALL, CB_SEQUENCE = 3, 4, 11


@dataclass
class Message:
    """One message. The fields after `size` are only set as far as the capture has the message.

    `status` is accept_stat, `compound_status` the word after it, `body` the RPC message."""

    time: float
    source: str
    target: str
    queue_pair: int
    xid: int
    version: int
    credits: int
    proc: int
    read_positions: tuple = ()
    write_chunks: int = 0
    reply_chunk: bool = False
    size: int = 0
    # The handle that the Send invalidates at its receiver.
    invalidates: int | None = None
    # Fields of a header of version 2.
    direction: int | None = None
    named: int | None = None
    handles: set = field(default_factory=set)
    kind: int | None = None
    rpc_xid: int | None = None
    program: int | None = None
    gss_procedure: int | None = None
    gss_service: int | None = None
    procedure: int | None = None
    status: int | None = None
    operations: tuple = ()
    compound_status: int | None = None
    body: bytes = b""

    @property
    def chunks(self):
        """Return whether the message has chunks."""
        return bool(self.read_positions or self.write_chunks or self.reply_chunk)


def packets(path):
    """Yield time and bytes of each packet, up to the first incomplete one."""
    with open(path, "rb") as file:
        magic, _, _, _, _, _, link = struct.unpack("<IHHiIII", file.read(24))
        scale = {0xa1b2c3d4: 1e-6, 0xa1b23c4d: 1e-9}[magic]
        if link != 1:
            raise ValueError(f"link type {link}")
        while len(head := file.read(16)) == 16:
            seconds, part, length, _ = struct.unpack("<IIII", head)
            packet = file.read(length)
            if len(packet) < length:
                return
            yield seconds + part * scale, packet


def sends(path):
    """Yield time, addresses, Queue Pair, content and size of each Send, and the handle that it
    invalidates. A retransmitted Send counts once."""
    seen = set()
    for time, packet in packets(path):
        if packet[12:14] != b"\x08\x00" or packet[23] != 17:
            continue
        udp = 14 + 4 * (packet[14] & 15)
        if int.from_bytes(packet[udp + 2:udp + 4], "big") != ROCE:
            continue
        transport = packet[udp + 8:]
        opcode, pad = transport[0], transport[1] >> 4 & 3
        if opcode not in (SEND_FIRST, SEND_ONLY, SEND_ONLY_IMM, SEND_ONLY_INV):
            continue
        # Addresses, Queue Pair, and the whole message, including the packet sequence number.
        if (same := packet[26:34] + transport) in seen:
            continue
        seen.add(same)
        start = 16 if opcode in (SEND_ONLY_IMM, SEND_ONLY_INV) else 12
        handle = int.from_bytes(transport[12:16], "big") if opcode == SEND_ONLY_INV else None
        # The datagram ends with the pad and the invariant CRC.
        end = int.from_bytes(packet[udp + 4:udp + 6], "big") - 8 - 4 - pad
        yield (time, ".".join(map(str, packet[26:30])), ".".join(map(str, packet[30:34])),
               int.from_bytes(transport[5:8], "big"), transport[start:end], end - start, handle)


class Words:
    """Reads the words of a message one after the other."""

    def __init__(self, content):
        self.content, self.at = content, 0

    def next(self, count=1):
        """Return the next word, or the last of the next `count` words."""
        self.at += 4 * count
        return struct.unpack_from(">I", self.content, self.at - 4)[0]

    def opaque(self):
        """Return variable-length bytes."""
        length = self.next()
        self.at += length + -length % 4
        return self.content[self.at - length - -length % 4:][:length]


def messages(path):
    """Return the messages of a capture, in order."""
    for time, source, target, queue_pair, content, size, handle in sends(path):
        if len(content) < 16:
            raise ValueError(f"a message of {len(content)} bytes")
        message = Message(time, source, target, queue_pair,
                          *struct.unpack_from(">IIII", content), size=size,
                          invalidates=handle)
        if message.proc in (MSG, NOMSG):
            try:
                look_inside(message, Words(content))
            except struct.error:
                # The capture has only a part of the message; the known fields are set.
                pass
        yield message


def look_inside(message, words):
    """Decode the chunk lists and the RPC message of one message."""
    words.next(4)
    if message.version == 2:
        message.direction, message.named = words.next(), words.next()

    def segments(count):
        for _ in range(count):
            message.handles.add(words.next())
            words.next(3)

    while words.next():
        message.read_positions += (words.next(),)
        segments(1)
    while words.next():
        message.write_chunks += 1
        segments(words.next())
    if words.next():
        message.reply_chunk = True
        segments(words.next())
    if message.proc != MSG:
        return
    message.body = words.content[words.at:]
    message.rpc_xid, message.kind = words.next(), words.next()
    if message.kind == REPLY:
        words.next(2)
        words.opaque()
        message.status = words.next()
        message.compound_status = words.next()
        return
    message.program, message.procedure = words.next(2), words.next(2)
    flavor, credential = words.next(), Words(words.opaque())
    if flavor == RPCSEC_GSS:
        message.gss_procedure, message.gss_service = credential.next(2), credential.next(2)
    if message.program != NFS_CB or message.procedure != 1:
        return
    words.next()
    words.opaque()
    words.opaque()
    count = words.next(3)
    operations = [words.next()]
    message.operations = tuple(operations)
    if count > 1 and operations[0] == CB_SEQUENCE:
        # Session, sequence, slot, highest slot, cachethis, no referring calls.
        if words.next(9) == 0:
            message.operations = (CB_SEQUENCE, words.next())

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""How a client must handle replies of every kind.

Each case corrupts the answer to one call, and names the expected result of the system
call that caused it: "ok" (the answer is valid nevertheless), "again" (the system call
succeeds after the call was sent again) or an error. The C client may have more than
one of these. In every case the system call returns in time, and the mount works
afterwards.
"""

import concurrent.futures
import errno
import os
import time

import peer
import wire
from fake import DATA, GETATTR, READ, READDIR, READLINK, SYMLINK, WRITE
from cases import Failed, Skip, Table
from wire import Segment

TABLE = Table()
# The time for a system call, in seconds.
PATIENCE = 60 if peer.IWARP else 30
# Seconds between unasked messages. The client posts three Receives or more for each Reply that is due, and a
# busy guest needs this time to post others.
UNASKED_PAUSE = 0.05
MIXED = "mixed"
# Possible results with the C client for an invalid answer.
RETRIED = "ok|again|EIO|ETIMEDOUT"
FAILS = "EIO|EREMOTEIO|EOPNOTSUPP|EPROTONOSUPPORT|EINVAL"
BAD = RETRIED + "|EREMOTEIO"
POOL = concurrent.futures.ThreadPoolExecutor(4)


class ShortRead(Failed):
    """Check that the data read is the beginning of the file."""


class Mount:
    """The client under test: system calls on its mount."""

    def __init__(self, fake, folder, kind):
        self.fake, self.folder, self.kind = fake, folder, kind
        self.notes = []
        self.open = os.open(self.path("data"), os.O_RDONLY)

    def close(self):
        """Close files before the unmount."""
        os.close(self.open)

    def path(self, name):
        """Return a path in the mount."""
        return os.path.join(self.folder, name)

    def getattr(self):
        """Cause a GETATTR, without chunks. The file is open, so that this is the only call."""
        os.fstat(self.open)

    def read(self):
        """Cause a READ with a Write chunk, into memory that holds no bytes of the file."""
        fd = os.open(self.path("data"), os.O_RDONLY | os.O_DIRECT)
        memory = bytearray(b"\xc3" * 8192)
        try:
            got = memory[:os.preadv(fd, [memory], 4096)]
            if not DATA[4096:12288].startswith(got):
                raise Failed("READ brought other bytes than were sent")
            if len(got) != 8192:
                raise ShortRead(f"READ brought {len(got)} bytes")
        finally:
            os.close(fd)

    def write(self):
        """Cause a WRITE with a Read chunk."""
        fd = os.open(self.path("data"), os.O_WRONLY | os.O_DIRECT)
        try:
            os.pwrite(fd, DATA[:8192], 0)
        finally:
            os.close(fd)

    def readdir(self):
        """Cause a READDIR with a Reply chunk."""
        names = sorted(os.listdir(self.folder))
        if names != [f"{i:04d}-" + "n" * 100 for i in range(1, 31)]:
            raise Failed(f"READDIR brought {len(names)} names")

    def symlink(self):
        """Cause a SYMLINK with a Position-Zero Read chunk; the valid answer is EEXIST."""
        try:
            os.symlink("s" * 4000, self.path("new"))
        except FileExistsError:
            pass

    def readlink(self):
        """Cause a READLINK with a Reply chunk."""
        if os.readlink(self.path("link")) != "t" * 3000:
            raise Failed("READLINK brought another target")

    def attempt(self, operation):
        """ "ok", or the name of the error."""
        task = POOL.submit(operation)
        try:
            task.result(PATIENCE)
            return "ok"
        except OSError as error:
            if isinstance(error, concurrent.futures.TimeoutError):
                raise Failed(f"no result in {PATIENCE} s") from None
            return errno.errorcode[error.errno]

    def operation(self, proc):
        """Make the system call that causes `proc`."""
        return {GETATTR: self.getattr, READ: self.read, WRITE: self.write, READDIR: self.readdir,
                READLINK: self.readlink, SYMLINK: self.symlink}[proc]

    def check(self):
        """Check that the mount works."""
        self.fake.plan = None
        for proc in (GETATTR, READ):
            result = self.attempt(self.operation(proc))
            if result != "ok":
                raise Failed(f"on the mount, a good answer to {proc} gives {result}")
        errors, self.fake.errors = self.fake.errors, []
        if errors:
            raise Failed(f"fake server: {errors[0][-300:]}")


def spoiled(name, proc, wanted, c=None, skip=None):
    """Decorator: the function corrupts the answer to `proc`. `wanted` is the expected result of the
    system call; with the C module it is one of `c` (default: the same; MIXED: the case does not
    run). `skip` is a reason to skip."""
    def add(spoil):
        def function(mount):
            if c == MIXED and mount.kind == "c":
                raise Skip("the C client takes other bytes for those of the payload")
            mount.fake.answer_next(proc, spoil)
            result = mount.attempt(mount.operation(proc))
            if mount.fake.spoiled is None:
                raise Failed(f"the client never sent procedure {proc}; result {result}")
            if result == "ok" and mount.fake.times > 1:
                result = "again"
            mount.notes.append(f"seen: {result}")
            allowed = c if c and mount.kind == "c" else wanted
            if result not in allowed.split("|"):
                raise Failed(f"result {result}, wanted {allowed}")
        TABLE.case(name, skip)(function)
        return spoil
    return add


def hang_up(call):
    """The fake server closes a connection that it takes for closed."""
    call.end.closed = "by the case"


def simple(name, proc, wanted, spoil, c=None):
    """Add a case that is given by an expression."""
    spoiled(name, proc, wanted, c)(spoil)


# --- valid answers, in forms that a server may choose --------------------------

for _proc, _name in ((GETATTR, "GETATTR inline"), (READ, "READ with a Write chunk"),
                     (WRITE, "WRITE with a Read chunk"), (READDIR, "READDIR with a Reply chunk"),
                     (READLINK, "READLINK with a Reply chunk"),
                     (SYMLINK, "SYMLINK with a Position-Zero Read chunk")):
    simple(f"good answer: {_name}", _proc, "ok", lambda call: call.good())
simple("good answer with remote invalidation: READ", READ, "ok",
       lambda call: call.good(invalidate=call.head.writes[0][0].handle))
simple("good answer with remote invalidation: WRITE", WRITE, "ok",
       lambda call: call.good(invalidate=call.head.reads[0].handle))
simple("Reply chunk returned unused, reply inline", READLINK, "ok",
       lambda call: call.reply(call.body, reply=[Segment(s.handle, 0, s.offset)
                                                 for s in call.head.reply]))
simple("Reply chunk returned without its unused segments", READDIR, "ok", lambda call: call.reply(
    proc=wire.NOMSG, reply=[s for s in call.push(call.head.reply, call.body) if s.length]))
# NFS3ERR_ACCES, without attributes.
simple("Write chunk of a READ that fails returned without segments", READ, "EACCES",
       lambda call: call.reply(wire.accepted(call.xid, 0, wire.u32(13, 0)), writes=[[]]))
simple("Write chunk of a READ that fails returned as offered", READ, "EACCES",
       lambda call: call.reply(wire.accepted(call.xid, 0, wire.u32(13, 0)),
                               writes=call.head.writes))
for _credits in (0, 1, 0x7fffffff, 0xffffffff):
    simple(f"grant of {_credits} credits", GETATTR, "ok",
           lambda call, credits=_credits: call.good(credits=credits))


@spoiled("the same reply twice", GETATTR, "ok")
def _twice(call):
    call.good()
    call.good()


def _another(call):
    # As if the client had offered no chunk, and NFS had failed.
    call.after.append(wire.header(call.xid) + wire.accepted(call.xid, 0, wire.u32(5, 0, 0)))
    call.good()


for _proc, _name in ((READ, "READ"), (WRITE, "WRITE"), (READDIR, "READDIR")):
    for _turn in range(1, 4):
        simple(f"another reply right after the good one: {_name}, {_turn}", _proc, "ok", _another,
               c=RETRIED)


@spoiled("replies with unknown XIDs before the right one", GETATTR, "ok")
def _unknown(call):
    for xid in (0, call.xid ^ 1, call.xid + 0x10000 & 0xffffffff, 0xffffffff):
        call.reply(wire.accepted(xid), xid=xid)
        call.reply(proc=wire.ERROR, xid=xid)
        call.send(wire.u32(xid, 1, 32, wire.ERROR, wire.ERR_CHUNK))
        time.sleep(UNASKED_PAUSE)
    call.good()


@spoiled("reverse-direction Calls with the XID of a call under way", GETATTR, "ok",
         c=RETRIED)
def _reverse(call):
    for proc in (0, 1, 11):
        body = wire.call(call.xid, proc, prog=wire.NFS_CB, vers=1)
        call.reply(body)
        call.reply(body[:8])
        call.reply(body + bytes(2000))
        time.sleep(UNASKED_PAUSE)
    call.good()


@spoiled("reverse-direction Calls with chunks", GETATTR, "ok", RETRIED)
def _reverse_chunks(call):
    body = wire.call(call.xid, 0, prog=wire.NFS_CB, vers=1)
    segment = Segment(0x1234, 64, 0x10000)
    call.reply(body, reads=[segment])
    call.reply(body, writes=[[segment]])
    call.reply(body, reply=[segment])
    call.reply(proc=wire.NOMSG, reads=[segment])
    call.good()


# --- no answer, or a message that cannot be one ---------------------------------

simple("no answer", GETATTR, "again", lambda call: None, RETRIED)
simple("hang-up instead of an answer", GETATTR, "again", hang_up, RETRIED)
for _length in (0, 1, 4, 15, 16, 20, 27):
    simple(f"answer cut to {_length} bytes", GETATTR, "again",
           lambda call, length=_length: call.send(
               (wire.header(call.xid) + call.body)[:length]), RETRIED)
for _vers in (0, 2, 0xffffffff):
    simple(f"reply of version {_vers:#x}", GETATTR, "EIO",
           lambda call, vers=_vers: call.reply(call.body, vers=vers), RETRIED)
for _proc, _wanted in ((wire.MSGP, "again"), (wire.DONE, "again"), (5, "EIO"),
                       (0xffffffff, "EIO")):
    simple(f"reply with rdma_proc {_proc:#x}", GETATTR, _wanted,
           lambda call, proc=_proc: call.reply(call.body, proc=proc), RETRIED)
simple("reply larger than the client's Receives", GETATTR, "again",
       lambda call: call.reply(call.body + bytes(4096)), RETRIED)
simple("Send With Invalidate of a handle that is not the client's", GETATTR, "again",
       lambda call: call.good(invalidate=0x12345678), RETRIED)

# --- RDMA_ERROR ----------------------------------------------------------------

for _words, _name in (((wire.ERR_VERS, 1, 1), "ERR_VERS 1 to 1"),
                      ((wire.ERR_VERS, 2, 2), "ERR_VERS 2 to 2"),
                      ((wire.ERR_VERS, 7, 3), "ERR_VERS 7 to 3"),
                      ((wire.ERR_CHUNK,), "ERR_CHUNK")):
    for _proc, _what in ((GETATTR, "GETATTR"), (READ, "READ"), (WRITE, "WRITE"),
                         (READDIR, "READDIR"), (SYMLINK, "SYMLINK")):
        if _proc == GETATTR or _words == (wire.ERR_CHUNK,):
            simple(f"{_name} to {_what}", _proc, "EIO",
                   lambda call, words=_words: call.send(
                       wire.u32(call.xid, 1, 32, wire.ERROR, *words)), FAILS)
for _words, _wanted in (((), "again"), ((0,), "EIO"), ((3,), "EIO"), ((0xffffffff,), "EIO"),
                        ((wire.ERR_VERS,), "again"), ((wire.ERR_VERS, 1), "again")):
    simple(f"RDMA_ERROR that cannot be decoded: {_words}", GETATTR, _wanted,
           lambda call, words=_words: call.send(wire.u32(call.xid, 1, 32, wire.ERROR, *words)),
           FAILS + "|" + RETRIED)

# --- chunk lists that the Call did not offer --------------------------------------

STRAY = Segment(0x1234, 64, 0x10000)
for _lists, _name in (({"reads": [STRAY]}, "a Read list"),
                      ({"writes": [[STRAY]]}, "a Write list"),
                      ({"writes": [[STRAY], [STRAY]]}, "two Write chunks"),
                      ({"reply": [STRAY]}, "a Reply chunk"),
                      ({"writes": [[STRAY]], "reply": [STRAY]}, "Write list and Reply chunk")):
    for _proc in (wire.MSG, wire.NOMSG):
        simple(f"{('RDMA_MSG', 'RDMA_NOMSG')[_proc]} with {_name} that was not offered", GETATTR,
               # With only a Read list it looks like a Call of the reverse direction.
               "again" if _proc and list(_lists) == ["reads"] else "EIO",
               lambda call, lists=_lists, proc=_proc: call.reply(
                   b"" if proc else call.body, proc=proc, **lists), BAD)
simple("RDMA_NOMSG without chunks", GETATTR, "EIO",
       lambda call: call.reply(proc=wire.NOMSG), BAD)
simple("RDMA_NOMSG without chunks, reply inline", GETATTR, "EIO",
       lambda call: call.reply(call.body, proc=wire.NOMSG), BAD)
for _words in ((2, 0, 0), (0, 2, 0), (0, 0, 2), (0xffffffff,) * 3, (1, 0, 0), (0, 1, 0),
               (0, 0, 1), (0, 1, 0xffffffff, 0, 0), (0, 0, 1, 0xffffffff),
               (0, 1, 0x10000000, 0, 0), (0, 0, 1, 0x10000001)):
    simple(f"chunk lists {' '.join(hex(w) for w in _words)}", GETATTR, "EIO",
           lambda call, words=_words: call.send(wire.u32(call.xid, 1, 32, 0, *words)), BAD)


@spoiled("header with all lists, cut at every word", READ, "EIO", BAD)
def _cut(call):
    whole = wire.header(call.xid, reads=[STRAY], writes=[[STRAY, STRAY]], reply=[STRAY, STRAY])
    for length in range(28, len(whole) - 3, 4):
        call.send(whole[:length])


# --- chunks returned other than offered -------------------------------------------

def returned(name, change, read="EIO"):
    """READ's Write chunk and READDIR's Reply chunk, changed after they were written; what becomes
    of READ."""
    def spoil_read(call):
        chunk = call.push(call.head.writes[0], call.payload)
        call.reply(call.reduced, writes=[change(chunk)])

    def spoil_readdir(call):
        chunk = call.push(call.head.reply, call.body)
        call.reply(proc=wire.NOMSG, reply=change(chunk))

    spoiled(f"Write chunk returned with {name}", READ, read, BAD)(spoil_read)
    spoiled(f"Reply chunk returned with {name}", READDIR, "EIO", BAD)(spoil_readdir)


def longer(by):
    """The first segment's length, changed."""
    def change(chunk):
        first = chunk[0]
        return [Segment(first.handle, first.length + by, first.offset)] + chunk[1:]
    return change


returned("a length greater than offered", longer(0x100000))
returned("a length of 2^32 - 1", lambda chunk: [
    Segment(chunk[0].handle, 0xffffffff, chunk[0].offset)] + chunk[1:])
returned("another handle", lambda chunk: [
    Segment(chunk[0].handle ^ 0x100, chunk[0].length, chunk[0].offset)] + chunk[1:])
returned("another offset", lambda chunk: [
    Segment(chunk[0].handle, chunk[0].length, chunk[0].offset + 4)] + chunk[1:])
returned("one segment more", lambda chunk: chunk + [chunk[-1]])
returned("a sum of lengths that wraps", lambda chunk: [
    Segment(s.handle, 0x80000000, s.offset) for s in chunk + [chunk[-1]]])
returned("no segments", lambda chunk: [])
returned("length 0", lambda chunk: [Segment(s.handle, 0, s.offset) for s in chunk])
# It was written nevertheless.
returned("one byte less", longer(-1), read="ok")
simple("Write list left out", READ, "EIO", lambda call: call.reply(call.reduced), BAD)
simple("Write list left out, data inline", READ, "EIO", lambda call: call.reply(
    wire.accepted(call.xid, 0, call.before + wire.u32(2000) + call.payload[:2000])), BAD)
simple("Write chunk returned twice", READ, "EIO", lambda call: call.reply(
    call.reduced, writes=[call.push(call.head.writes[0], call.payload)] * 2), FAILS)
simple("Reply chunk left out", READDIR, "EIO", lambda call: call.reply(proc=wire.NOMSG), BAD)
simple("reply in the Reply chunk and inline", READLINK, "EIO", lambda call: call.reply(
    call.body, reply=call.push(call.head.reply, call.body)), BAD)
simple("Reply chunk with an RPC message cut short", READDIR, "again", lambda call: call.reply(
    proc=wire.NOMSG, reply=call.push(call.head.reply, call.body[:50])), BAD)
simple("Reply chunk with noise", READDIR, "again", lambda call: call.reply(
    proc=wire.NOMSG, reply=call.push(call.head.reply, bytes(range(256)) * 4)), BAD)

# --- the part before a payload has another length than the client expects -------------

def with_payload(call, results, verifier=b"", behind=b"", payload=None):
    """Reply to READ in its Write chunk, with another verifier, other results up to the payload, and
    octets after them."""
    chunk = call.push(call.head.writes[0], call.payload if payload is None else payload)
    call.reply(wire.accepted(call.xid, 0, results + behind, verifier), writes=[chunk])


@spoiled("READ without attributes", READ, "ok", MIXED)
def _no_attributes(call):
    size = len(call.payload)
    with_payload(call, wire.u32(0, 0, size, 0, size))


@spoiled("READ with a verifier of 40 bytes", READ, "ok", MIXED)
def _long_verifier(call):
    with_payload(call, call.before + wire.u32(len(call.payload)), verifier=bytes(40))


@spoiled("READ of an odd length, its pad behind the reply", READ, "ok", MIXED)
def _pad_inline(call):
    # The count and the end-of-file flag are the last words of the results before the length.
    results = call.before[:-8] + wire.u32(2001, 0, 2001)
    with_payload(call, results, behind=bytes(3), payload=call.payload[:2001])


# --- RPC messages that are not what they should be ---------------------------------

for _length in (0, 4, 8, 20, 24, 28, 60):
    # sunrpc sends a call again if it cannot use the reply at all.
    simple(f"inline RPC reply of {_length} bytes", GETATTR,
           "again" if _length in (8, 20) else "EIO",
           lambda call, length=_length: call.reply(call.body[:length]), BAD)
simple("RPC reply with another XID than the header's", GETATTR, "EIO",
       lambda call: call.reply(wire.u32(call.xid ^ 1) + call.body[4:]), BAD)
simple("bytes behind the RPC reply", GETATTR, "ok",
       lambda call: call.reply(call.body + b"\xa5" * 2000), BAD)
# What it does not bring must not be taken from the client's memory.
for _length in (100, 101, 103):
    simple(f"READ that claims more than the {_length} bytes it brings", READ, "ok",
           lambda call, length=_length: call.reply(call.reduced, writes=[
               call.push(call.head.writes[0], call.payload[:length])]),
           MIXED if _length % 4 else BAD)

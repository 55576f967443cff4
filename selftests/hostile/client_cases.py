# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What a client has to make of replies of every kind.

Each case spoils the answer to one call and says what the system call that
brought it about may return: "ok" (the call was sent again, or the answer was
good after all) or an error. In every case it returns in time, and the mount
works afterwards.
"""

import concurrent.futures
import ctypes
import errno
import mmap
import os
import subprocess
import threading
import time

import peer
import wire
from fake import DATA, GETATTR, READ, READDIR, READLINK, SYMLINK, WRITE
from ktap import Failed, Skip, Table
from wire import Segment

TABLE = Table()
PATIENCE = 30
MIXED = "mixed"
POOL = concurrent.futures.ThreadPoolExecutor(4)


class Mount:
    """The client under test: system calls on its mount."""

    def __init__(self, fake, folder, kind):
        self.fake, self.folder, self.kind = fake, folder, kind
        self.notes = []
        self.open = os.open(self.path("data"), os.O_RDONLY)

    def close(self):
        """Before the unmount."""
        os.close(self.open)

    def path(self, name):
        """In the mount."""
        return os.path.join(self.folder, name)

    def getattr(self):
        """GETATTR: no chunks. Of an open file, so that it is the only call."""
        os.fstat(self.open)

    def read(self):
        """READ with a Write chunk."""
        fd = os.open(self.path("data"), os.O_RDONLY | os.O_DIRECT)
        try:
            if os.pread(fd, 8192, 4096) != DATA[4096:12288]:
                raise Failed("READ brought other bytes than were sent")
        finally:
            os.close(fd)

    def write(self):
        """WRITE with a Read chunk."""
        fd = os.open(self.path("data"), os.O_WRONLY | os.O_DIRECT)
        try:
            os.pwrite(fd, DATA[:8192], 0)
        finally:
            os.close(fd)

    def readdir(self):
        """READDIR with a Reply chunk."""
        names = sorted(os.listdir(self.folder))
        if names != [f"{i:04d}-" + "n" * 100 for i in range(1, 31)]:
            raise Failed(f"READDIR brought {len(names)} names")

    def symlink(self):
        """SYMLINK with a Position-Zero Read chunk; the good answer is EEXIST."""
        try:
            os.symlink("s" * 4000, self.path("new"))
        except FileExistsError:
            pass

    def readlink(self):
        """READLINK with a Reply chunk."""
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
        """The system call that brings about `proc`."""
        return {GETATTR: self.getattr, READ: self.read, WRITE: self.write, READDIR: self.readdir,
                READLINK: self.readlink, SYMLINK: self.symlink}[proc]

    def check(self):
        """The mount works."""
        self.fake.plan = None
        for proc in (GETATTR, READ):
            result = self.attempt(self.operation(proc))
            if result != "ok":
                raise Failed(f"on the mount, a good answer to {proc} gives {result}")
        errors, self.fake.errors = self.fake.errors, []
        if errors:
            raise Failed(f"fake server: {errors[0][-300:]}")


def spoiled(name, proc, wanted, c=None):
    """Decorator: the function spoils the answer to `proc`; the system call's result is
    one of `wanted`, with the C module of `c` (default: the same; MIXED: not run)."""
    def add(spoil):
        def function(mount):
            if c == MIXED and mount.kind == "c":
                raise Skip("the C client takes bytes of the header for those of the payload")
            mount.fake.answer_next(proc, spoil)
            result = mount.attempt(mount.operation(proc))
            if mount.fake.spoiled is None:
                raise Failed(f"the client never sent procedure {proc}; result {result}")
            mount.notes.append(f"seen: {result}")
            allowed = c if c and mount.kind == "c" else wanted
            if result not in allowed.split("|"):
                raise Failed(f"result {result}, wanted {allowed}")
        TABLE.case(name)(function)
        return spoil
    return add


def hang_up(call):
    """The fake server closes a connection that it takes for closed."""
    call.end.closed = "by the case"


def simple(name, proc, wanted, spoil, c=None):
    """A case given by an expression."""
    spoiled(name, proc, wanted, c)(spoil)


# --- good answers, in ways a server may choose --------------------------------

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
for _credits in (0, 1, 0x7fffffff, 0xffffffff):
    simple(f"grant of {_credits} credits", GETATTR, "ok",
           lambda call, credits=_credits: call.good(credits=credits))


@spoiled("the same reply twice", GETATTR, "ok")
def _twice(call):
    call.good()
    call.good()


def _another(call):
    # As if the client had offered nothing, and NFS had failed.
    call.after.append(wire.header(call.xid) + wire.accepted(call.xid, 0, wire.u32(5, 0, 0)))
    call.good()


for _proc, _name in ((READ, "READ"), (WRITE, "WRITE"), (READDIR, "READDIR")):
    for _turn in range(1, 4):
        simple(f"another reply right after the good one: {_name}, {_turn}", _proc, "ok", _another,
               c="ok|EIO|ETIMEDOUT")


@spoiled("replies with unknown XIDs before the right one", GETATTR, "ok")
def _unknown(call):
    for xid in (0, call.xid ^ 1, call.xid + 0x10000 & 0xffffffff, 0xffffffff):
        call.reply(wire.accepted(xid), xid=xid)
        call.reply(proc=wire.ERROR, xid=xid)
        call.send(wire.u32(xid, 1, 32, wire.ERROR, wire.ERR_CHUNK))
    call.good()


@spoiled("reverse-direction Calls with the XID of a call under way", GETATTR, "ok",
         c="ok|EIO|ETIMEDOUT")
def _reverse(call):
    for proc in (0, 1, 11):
        body = wire.call(call.xid, proc, prog=wire.NFS_CB, vers=1)
        call.reply(body)
        call.reply(body[:8])
        call.reply(body + bytes(2000))
    call.good()


@spoiled("reverse-direction Calls with chunks", GETATTR, "ok|EIO|ETIMEDOUT")
def _reverse_chunks(call):
    body = wire.call(call.xid, 0, prog=wire.NFS_CB, vers=1)
    segment = Segment(0x1234, 64, 0x10000)
    call.reply(body, reads=[segment])
    call.reply(body, writes=[[segment]])
    call.reply(body, reply=[segment])
    call.reply(proc=wire.NOMSG, reads=[segment])
    call.good()


# --- no answer, or none that can be one ----------------------------------------

RETRIED = "ok|EIO|ETIMEDOUT"
simple("no answer", GETATTR, RETRIED, lambda call: None)
simple("hang-up instead of an answer", GETATTR, RETRIED, hang_up)
for _length in (0, 1, 4, 15, 16, 20, 27):
    simple(f"answer cut to {_length} bytes", GETATTR, RETRIED,
           lambda call, length=_length: call.send(
               (wire.header(call.xid) + call.body)[:length]))
for _vers in (0, 2, 0xffffffff):
    simple(f"reply of version {_vers:#x}", GETATTR, RETRIED + "|EPROTONOSUPPORT",
           lambda call, vers=_vers: call.reply(call.body, vers=vers))
for _proc in (wire.MSGP, wire.DONE, 5, 0xffffffff):
    simple(f"reply with rdma_proc {_proc:#x}", GETATTR, RETRIED,
           lambda call, proc=_proc: call.reply(call.body, proc=proc))
simple("reply larger than the client's Receives", GETATTR, RETRIED,
       lambda call: call.reply(call.body + bytes(4096)))
simple("Send With Invalidate of a handle that is not the client's", GETATTR, RETRIED,
       lambda call: call.good(invalidate=0x12345678))

# --- RDMA_ERROR ----------------------------------------------------------------

FAILS = "EIO|EREMOTEIO|EOPNOTSUPP|EPROTONOSUPPORT|EINVAL"
for _words, _name in (((wire.ERR_VERS, 1, 1), "ERR_VERS 1 to 1"),
                      ((wire.ERR_VERS, 2, 2), "ERR_VERS 2 to 2"),
                      ((wire.ERR_VERS, 7, 3), "ERR_VERS 7 to 3"),
                      ((wire.ERR_CHUNK,), "ERR_CHUNK")):
    for _proc, _what in ((GETATTR, "GETATTR"), (READ, "READ"), (WRITE, "WRITE"),
                         (READDIR, "READDIR"), (SYMLINK, "SYMLINK")):
        if _proc == GETATTR or _words == (wire.ERR_CHUNK,):
            simple(f"{_name} to {_what}", _proc, FAILS,
                   lambda call, words=_words: call.send(
                       wire.u32(call.xid, 1, 32, wire.ERROR, *words)))
for _words in ((), (0,), (3,), (0xffffffff,), (wire.ERR_VERS,), (wire.ERR_VERS, 1)):
    simple(f"RDMA_ERROR that cannot be decoded: {_words}", GETATTR, FAILS + "|" + RETRIED,
           lambda call, words=_words: call.send(wire.u32(call.xid, 1, 32, wire.ERROR, *words)))

# --- chunk lists nobody asked for -----------------------------------------------

STRAY = Segment(0x1234, 64, 0x10000)
BAD = "EIO|EREMOTEIO|ETIMEDOUT|ok"
for _lists, _name in (({"reads": [STRAY]}, "a Read list"),
                      ({"writes": [[STRAY]]}, "a Write list"),
                      ({"writes": [[STRAY], [STRAY]]}, "two Write chunks"),
                      ({"reply": [STRAY]}, "a Reply chunk"),
                      ({"writes": [[STRAY]], "reply": [STRAY]}, "Write list and Reply chunk")):
    for _proc in (wire.MSG, wire.NOMSG):
        simple(f"{('RDMA_MSG', 'RDMA_NOMSG')[_proc]} with {_name} that was not offered", GETATTR,
               BAD, lambda call, lists=_lists, proc=_proc: call.reply(
                   b"" if proc else call.body, proc=proc, **lists))
simple("RDMA_NOMSG without chunks", GETATTR, BAD,
       lambda call: call.reply(proc=wire.NOMSG))
simple("RDMA_NOMSG without chunks, reply inline", GETATTR, BAD,
       lambda call: call.reply(call.body, proc=wire.NOMSG))
for _words in ((2, 0, 0), (0, 2, 0), (0, 0, 2), (0xffffffff,) * 3, (1, 0, 0), (0, 1, 0),
               (0, 0, 1), (0, 1, 0xffffffff, 0, 0), (0, 0, 1, 0xffffffff),
               (0, 1, 0x10000000, 0, 0), (0, 0, 1, 0x10000001)):
    simple(f"chunk lists {' '.join(hex(w) for w in _words)}", GETATTR, BAD,
           lambda call, words=_words: call.send(wire.u32(call.xid, 1, 32, 0, *words)))


@spoiled("header with all lists, cut at every word", READ, BAD)
def _cut(call):
    whole = wire.header(call.xid, reads=[STRAY], writes=[[STRAY, STRAY]], reply=[STRAY, STRAY])
    for length in range(28, len(whole) - 3, 4):
        call.send(whole[:length])


# --- chunks returned other than offered -------------------------------------------

def returned(name, wanted, change, c=None):
    """READ's Write chunk and READDIR's Reply chunk, changed after they were written."""
    def spoil_read(call):
        chunk = call.push(call.head.writes[0], call.payload)
        call.reply(call.reduced, writes=[change(chunk)])

    def spoil_readdir(call):
        chunk = call.push(call.head.reply, call.body)
        call.reply(proc=wire.NOMSG, reply=change(chunk))

    spoiled(f"Write chunk returned with {name}", READ, wanted, c)(spoil_read)
    spoiled(f"Reply chunk returned with {name}", READDIR, wanted, c)(spoil_readdir)


def longer(by):
    """The first segment's length, changed."""
    def change(chunk):
        first = chunk[0]
        return [Segment(first.handle, first.length + by, first.offset)] + chunk[1:]
    return change


returned("a length greater than offered", FAILS, longer(0x100000), c=BAD)
returned("a length of 2^32 - 1", FAILS, lambda chunk: [
    Segment(chunk[0].handle, 0xffffffff, chunk[0].offset)] + chunk[1:], c=BAD)
returned("another handle", FAILS, lambda chunk: [
    Segment(chunk[0].handle ^ 0x100, chunk[0].length, chunk[0].offset)] + chunk[1:], c=BAD)
returned("another offset", FAILS, lambda chunk: [
    Segment(chunk[0].handle, chunk[0].length, chunk[0].offset + 4)] + chunk[1:], c=BAD)
returned("one segment more", FAILS, lambda chunk: chunk + [chunk[-1]], c=BAD)
returned("a sum of lengths that wraps", FAILS, lambda chunk: [
    Segment(s.handle, 0x80000000, s.offset) for s in chunk + [chunk[-1]]], c=BAD)
returned("no segments", FAILS, lambda chunk: [], c=BAD)
returned("length 0", BAD, lambda chunk: [Segment(s.handle, 0, s.offset) for s in chunk])
returned("one byte less", BAD, longer(-1))
simple("Write list left out", READ, BAD, lambda call: call.reply(call.reduced))
simple("Write list left out, data inline", READ, BAD, lambda call: call.reply(
    wire.accepted(call.xid, 0, call.before + wire.u32(2000) + call.payload[:2000])))
simple("Write chunk returned twice", READ, FAILS, lambda call: call.reply(
    call.reduced, writes=[call.push(call.head.writes[0], call.payload)] * 2))
simple("Reply chunk left out", READDIR, BAD, lambda call: call.reply(proc=wire.NOMSG))
simple("reply in the Reply chunk and inline", READDIR, BAD, lambda call: call.reply(
    call.body, reply=call.push(call.head.reply, call.body)))
simple("Reply chunk with an RPC message cut short", READDIR, BAD, lambda call: call.reply(
    proc=wire.NOMSG, reply=call.push(call.head.reply, call.body[:50])))
simple("Reply chunk with noise", READDIR, BAD, lambda call: call.reply(
    proc=wire.NOMSG, reply=call.push(call.head.reply, bytes(range(256)) * 4)))

# --- what is before a payload has another length than the client expects --------------

def with_payload(call, results, verifier=b"", behind=b"", payload=None):
    """A reply to READ in its Write chunk: another verifier, other results up to the payload, and
    something behind them."""
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
    # The count and the end of file are the last words of the results, then comes the length.
    results = call.before[:-8] + wire.u32(2001, 0, 2001)
    with_payload(call, results, behind=bytes(3), payload=call.payload[:2001])


# --- RPC messages that are not what they should be ---------------------------------

for _length in (0, 4, 8, 20, 24, 28, 60):
    simple(f"inline RPC reply of {_length} bytes", GETATTR, BAD,
           lambda call, length=_length: call.reply(call.body[:length]))
simple("RPC reply with another XID than the header's", GETATTR, BAD,
       lambda call: call.reply(wire.u32(call.xid ^ 1) + call.body[4:]))
simple("bytes behind the RPC reply", GETATTR, BAD,
       lambda call: call.reply(call.body + b"\xa5" * 2000))
simple("READ that claims more bytes than it brings", READ, BAD,
       lambda call: call.reply(call.reduced, writes=[
           call.push(call.head.writes[0], call.payload[:100])]))


# --- memory protection ---------------------------------------------------------------

def late_access(mount, proc, operation, invalidate):
    """After the system call has returned, its handles are worth nothing."""
    def spoil(call):
        first = call.head.reads[0] if call.head.reads else call.head.writes[0][0]
        call.good(invalidate=first.handle if invalidate else None)
    mount.fake.answer_next(proc, spoil)
    result = mount.attempt(operation)
    if result != "ok":
        raise Failed(f"good answer gives {result}")
    call = mount.fake.spoiled

    def late():
        segment = (call.head.reads or call.head.writes[0])[0]
        access = call.end.remote_read if call.head.reads else call.end.remote_write
        try:
            return access(segment.handle, segment.offset, mount.fake.arena, 4)
        except peer.Closed as reason:
            return f"not tried: {reason}"
    outcome = mount.fake.do(late)
    if outcome is not False:
        raise Failed(f"RDMA access after the call has completed: {outcome}")


for _inv, _how in ((False, "local"), (True, "remote")):
    TABLE.case(f"READ's handle after completion, {_how} invalidation", inv=_inv)(
        lambda mount, inv: late_access(mount, READ, mount.read, inv))
    TABLE.case(f"WRITE's handle after completion, {_how} invalidation", inv=_inv)(
        lambda mount, inv: late_access(mount, WRITE, mount.write, inv))


@TABLE.case("READ's handle after ERR_CHUNK")
def _late_error(mount):
    mount.fake.answer_next(READ, lambda call: call.send(
        wire.u32(call.xid, 1, 32, wire.ERROR, wire.ERR_CHUNK)))
    mount.attempt(mount.read)
    call = mount.fake.spoiled
    segment = call.head.writes[0][0]
    try:
        allowed = mount.fake.do(lambda: call.end.remote_write(
            segment.handle, segment.offset, mount.fake.arena, 4))
    except peer.Closed:
        return
    if allowed:
        raise Failed("RDMA Write after the call has failed was allowed")


@TABLE.case("Reply chunk's handle after the process that waits was killed")
def _late_killed(mount):
    """A killed process gives up the buffers of its call at once; the reply chunk must
    not be writable by then, or the server writes to memory that is someone else's."""
    asked = threading.Event()
    mount.fake.answer_next(READLINK, lambda call: asked.set())
    child = subprocess.Popen(["readlink", mount.path("link")], stdout=subprocess.DEVNULL)
    if not asked.wait(10):
        raise Failed("the client never sent READLINK")
    child.kill()
    child.wait(10)
    call = mount.fake.spoiled
    segment = call.head.reply[0]
    try:
        allowed = mount.fake.do(lambda: call.end.remote_write(
            segment.handle, segment.offset, mount.fake.arena, 4))
    except peer.Closed:
        mount.notes.append("the client has closed the connection")
        return
    if allowed:
        raise Failed("RDMA Write after the process was killed was allowed")


@TABLE.case("Reply with SYSTEM_ERR, and then nobody: nothing of the old connection is kept")
def _unusable(mount):
    """While the call is sent again, and the server is silent, the client has one connection in
    the making; what the Reply was received in would keep the other one's device."""
    asked, over = threading.Event(), threading.Event()

    def spoil(call):
        call.reply(wire.accepted(call.xid, 5))
        asked.set()
        over.wait(10)
        hang_up(call)

    module = {"c": "[rpcrdma]", "rust": "[rpcrdma_rs]"}[mount.kind]
    mount.fake.answer_next(GETATTR, spoil)
    task = POOL.submit(mount.getattr)
    if not asked.wait(10):
        raise Failed("the client never sent GETATTR")
    counts = []
    for _ in range(15):
        time.sleep(0.1)
        shown = subprocess.run(["rdma", "resource", "show", "pd"], check=True, text=True,
                               stdout=subprocess.PIPE).stdout
        counts.append(shown.count(module))
    over.set()
    try:
        task.result(PATIENCE)
    except OSError as error:
        mount.notes.append(errno.errorcode[error.errno])
    mount.notes.append(f"PDs: {counts}")
    if max(counts) > 1:
        raise Failed(f"{module} has had {counts} PDs, while one connection was being made")


# What the process has in its buffer when its system call has failed, and what the
# server writes.
KEPT, LATE = b"\xc3" * 8192, b"\x5a" * 8192
MNT_FORCE = 1


def direct(mount, write):
    """Start a READ or WRITE of 8 KiB by O_DIRECT. Returns the process' buffer, and a
    task for the errno of the system call; as soon as that is there, the buffer is
    something else's: it is filled anew."""
    memory = mmap.mmap(-1, 8192)

    def operation():
        fd = os.open(mount.path("data"), os.O_RDWR | os.O_DIRECT)
        try:
            (os.pwritev if write else os.preadv)(fd, [memory], 4096)
        except OSError as error:
            memory[:] = KEPT
            return error.errno
        finally:
            os.close(fd)
        return 0
    return memory, POOL.submit(operation)


def ended_by_force(mount, write):
    """umount -f ends the call while the connection stays; then the server answers."""
    asked = threading.Event()
    mount.fake.answer_next(WRITE if write else READ, lambda call: asked.set())
    memory, task = direct(mount, write)
    if not asked.wait(10):
        raise Failed("the client never asked")
    # It is busy, and stays.
    ctypes.CDLL(None).umount2(mount.folder.encode(), MNT_FORCE)
    error = task.result(PATIENCE)
    # The NFS client lets the kernel's own ERESTARTSYS (512) through.
    if error not in (errno.EIO, 512):
        raise Failed(f"the system call gave {error}")
    call = mount.fake.spoiled

    def late():
        segment = call.head.reads[0] if write else call.head.writes[0][0]
        access = call.end.remote_read if write else call.end.remote_write
        mount.fake.arena.fill(LATE)
        allowed = access(segment.handle, segment.offset, mount.fake.arena, 8192)
        return allowed, mount.fake.arena.read(8192)
    allowed, seen = mount.fake.do(late)
    if memory[:] != KEPT:
        raise Failed("the server has written to memory that was given back")
    if seen != LATE:
        raise Failed("the server has read memory that was given back")
    if allowed:
        raise Failed("RDMA access after the call was ended was allowed")


TABLE.case("READ ended by umount -f: its memory is out of the server's reach")(
    lambda mount: ended_by_force(mount, False))
TABLE.case("WRITE ended by umount -f: its memory is out of the server's reach")(
    lambda mount: ended_by_force(mount, True))


@TABLE.case("READ that timed out while the server writes: not after the system call")
def _late_timeout(mount):
    """The server writes to the chunk all the time, and never answers."""
    over = threading.Event()
    writes = []

    def spoil(call):
        mount.fake.plan = (READ, spoil)
        segment = call.head.writes[0][0]
        mount.fake.arena.fill(LATE)
        while not over.is_set() and call.end.remote_write(
                segment.handle, segment.offset, mount.fake.arena, 8192):
            writes.append(segment)
        hang_up(call)
    mount.fake.answer_next(READ, spoil)
    memory, task = direct(mount, False)
    try:
        error = task.result(PATIENCE)
        before = len(writes)
        time.sleep(1)
    finally:
        over.set()
        mount.fake.plan = None
    if error not in (errno.EIO, errno.ETIMEDOUT):
        raise Failed(f"the system call gave {error}")
    if not writes:
        raise Failed("the server could not write at all")
    if memory[:] != KEPT:
        raise Failed("the server has written to memory that was given back")
    mount.notes.append(f"{before} RDMA Writes to {len({s.handle for s in writes})} handles")


@spoiled("RDMA Write beyond a Write chunk", READ, RETRIED)
def _write_beyond(call):
    segment = call.head.writes[0][0]
    if call.end.remote_write(segment.handle, segment.offset + segment.length, call.arena, 4096):
        raise Failed("allowed")


@spoiled("RDMA Read of a Write chunk", READ, RETRIED)
def _read_write_chunk(call):
    segment = call.head.writes[0][0]
    if call.end.remote_read(segment.handle, segment.offset, call.arena, 4):
        raise Failed("allowed")
    hang_up(call)


@spoiled("RDMA Write to a Read chunk", WRITE, RETRIED)
def _write_read_chunk(call):
    segment = call.head.reads[0]
    if call.end.remote_write(segment.handle, segment.offset, call.arena, 4):
        raise Failed("allowed")


# --- connections -----------------------------------------------------------------------

ACCEPTANCES = {
    "none": b"",
    "wrong magic": wire.cm_private(magic=0x180eabf6),
    "version 2": wire.cm_private(vers=2),
    "all flags": wire.cm_private(flags=0xff),
    "sizes of 1 KiB": wire.cm_private(1024, 1024),
    "sizes of 256 KiB": wire.cm_private(256 * 1024, 256 * 1024),
    "noise": bytes(range(200, 256)),
}


@TABLE.case("private data of the acceptance, every wrong kind")
def _acceptances(mount):
    for what, private in ACCEPTANCES.items():
        mount.fake.private = private
        before = mount.fake.connections
        mount.fake.do(mount.fake.hang_up)
        for operation in (mount.getattr, mount.read, mount.write, mount.readdir, mount.symlink):
            result = mount.attempt(operation)
            if result != "ok":
                raise Failed(f"{what}: {operation.__name__} gives {result}")
        if mount.fake.connections == before:
            raise Failed(f"{what}: the client did not connect again")
        limit = 4096 if what in ("all flags", "sizes of 256 KiB") else 1024
        largest = max(call.head.size + len(call.head.body)
                      for call in mount.fake.last.values())
        if largest > limit:
            raise Failed(f"{what}: a message of {largest} bytes")
    mount.fake.private = wire.cm_private()
    mount.fake.do(mount.fake.hang_up)


@TABLE.case("a refused connection is tried again")
def _refused(mount):
    mount.fake.listener.refuse = 1
    mount.fake.do(mount.fake.hang_up)
    result = mount.attempt(mount.getattr)
    if result not in ("ok", "EIO", "ETIMEDOUT", "ECONNREFUSED"):
        raise Failed(result)
    for _ in range(5):
        if mount.attempt(mount.getattr) == "ok":
            return
    raise Failed("the client does not come back")


@TABLE.case("hang-ups in quick succession")
def _hang_ups(mount):
    for _ in range(10):
        mount.fake.answer_next(READ, hang_up)
        if mount.attempt(mount.read) not in RETRIED.split("|"):
            raise Failed("unexpected error")

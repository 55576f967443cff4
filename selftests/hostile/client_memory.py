# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A client's memory after a Call has ended, and its connections."""

import contextlib
import ctypes
import errno
import mmap
import os
import subprocess
import threading
import time

import peer
import wire
from client_cases import PATIENCE, POOL, RETRIED, TABLE, UNASKED_PAUSE, hang_up, spoiled
from fake import DATA, GETATTR, READ, READLINK, WRITE
from cases import Failed, Skip


# --- memory protection ---------------------------------------------------------------

def late_access(mount, proc, operation, invalidate):
    """After the system call has returned, its handles must be invalid."""
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
        access = call.end.remote_read if call.head.reads else call.end.may_write
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
    # peer.Closed means that the access could not be tried; it fails the case.
    if mount.fake.do(lambda: call.end.may_write(
            segment.handle, segment.offset, mount.fake.arena, 4)):
        raise Failed("RDMA Write after the call has failed was allowed")


@TABLE.case("Reply chunk's handle after the process that waits was killed")
def _late_killed(mount):
    """A killed process frees the buffers of its call at once. The reply chunk must not be
    writable by then, or the server would write to memory that has another user."""
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
        allowed = mount.fake.do(lambda: call.end.may_write(
            segment.handle, segment.offset, mount.fake.arena, 4))
    except peer.Closed:
        mount.notes.append("the client has closed the connection")
        return
    if allowed:
        raise Failed("RDMA Write after the process was killed was allowed")


def calls_with_a_read(mount):
    """Return how many other Calls the client sends while a READ is not answered."""
    held, sent = threading.Event(), []

    def spoil(call):
        held.set()
        time.sleep(1)
        while (message := call.end.poll()) is not None:
            sent.append(message)
        call.end.messages.extend(sent)
        call.good(credits=2)

    mount.fake.answer_next(READ, spoil)
    tasks = [POOL.submit(mount.read)]
    if not held.wait(10):
        raise Failed("the client never sent READ")
    tasks.append(POOL.submit(mount.getattr))
    for task in tasks:
        task.result(PATIENCE)
    return len(sent)


def malformed(call):
    """Answer with a header whose Read list is malformed."""
    call.send(wire.u32(call.xid, 1, 2, wire.MSG) + wire.u32(2, 0, 0) + call.body)


def asked_for(mount, proc, start):
    """Start a task that sends a call of `proc`; return the task, and the call, which has no answer."""
    asked = threading.Event()
    mount.fake.answer_next(proc, lambda call: asked.set())
    task = start()
    if not asked.wait(10):
        raise Failed(f"the client never sent a call of procedure {proc}")
    return task, mount.fake.spoiled


def status_of(mount):
    """Start a process that sends GETATTR."""
    return subprocess.Popen(["stat", mount.path("data")], stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def few_credits(mount, credits):
    """Grant few credits on a connection, which must not be lost. Killed processes keep theirs."""
    if mount.kind == "c":
        raise Skip("the C client returns the credit when the process is killed")
    with mount.fake.granting(credits):
        mount.getattr()
        connections = mount.fake.connections
        yield
        if mount.fake.connections != connections:
            raise Failed(f"{mount.fake.connections - connections} new connections")


@TABLE.case("a Call whose process was killed has its credit until it is answered",
            answer=lambda call: call.good(credits=2))
@TABLE.case("a Call whose process was killed has its credit until its answer is malformed",
            answer=malformed)
def _credit_of_killed(mount, answer):
    with few_credits(mount, 2):
        child, call = asked_for(mount, GETATTR, lambda: status_of(mount))
        child.kill()
        child.wait(10)
        seen = [calls_with_a_read(mount)]
        mount.fake.do(lambda: answer(call))
        seen.append(calls_with_a_read(mount))
        if seen != [0, 1]:
            raise Failed(f"Calls sent beside a READ: {seen}")


@TABLE.case("the Reply to a killed process makes room for a Call that waits")
def _room_by_late_reply(mount):
    with few_credits(mount, 2):
        child, killed = asked_for(mount, GETATTR, lambda: status_of(mount))
        child.kill()
        child.wait(10)
        read, unanswered = asked_for(mount, READ, lambda: POOL.submit(mount.read))
        waits = POOL.submit(mount.getattr)
        time.sleep(0.5)
        if waits.done():
            raise Failed("a Call was sent without a credit")
        mount.fake.do(lambda: killed.good(credits=2))
        try:
            waits.result(1)
        except TimeoutError:
            raise Failed("the Call that waits is not sent when there is a credit") from None
        mount.fake.do(lambda: unanswered.good(credits=2))
        read.result(PATIENCE)


@TABLE.case("processes killed while others wait for credits return none of them")
def _credits_of_killed(mount):
    with few_credits(mount, 3):
        pairs = [asked_for(mount, GETATTR, lambda: status_of(mount)) for _ in range(3)]
        others = [POOL.submit(mount.getattr) for _ in range(3)]
        time.sleep(0.5)
        sent = threading.Event()

        def spoil(call):
            sent.set()
            call.good(credits=3)

        mount.fake.answer_next(GETATTR, spoil)
        for child, _ in pairs:
            child.kill()
        for child, _ in pairs:
            child.wait(10)
        if sent.wait(1):
            raise Failed("a Call was sent without a credit")
        mount.fake.do(lambda: [killed.good(credits=3) for _, killed in pairs])
        for task in others:
            task.result(PATIENCE)


@TABLE.case("a connection ends whose credits killed processes hold, and which the server does not answer")
def _all_credits_of_killed(mount):
    if mount.kind == "c":
        raise Skip("the C client returns the credit when the process is killed")
    with mount.fake.granting(1):
        mount.getattr()
        connections = mount.fake.connections
        child, _ = asked_for(mount, GETATTR, lambda: status_of(mount))
        child.kill()
        child.wait(10)
        begun = time.monotonic()
        # A Call of this mount waits 9 s at most.
        while mount.attempt(mount.getattr) != "ok":
            if time.monotonic() - begun > PATIENCE:
                raise Failed("no Call is sent any more")
        mount.notes.append(f"the next Call was answered after {time.monotonic() - begun:.1f} s")
        if mount.fake.connections != connections + 1:
            raise Failed(f"{mount.fake.connections - connections} new connections")


@TABLE.case("Reply with SYSTEM_ERR, and then nobody: nothing of the old connection is kept")
def _unusable(mount):
    """While the call is sent again and the server is silent, the client has one connection that is
    being established; the Receive buffer of the Reply would hold the other one's device."""
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


# The pattern in the process' buffer after its system call has failed, and the pattern that
# the server writes.
KEPT, LATE = b"\xc3" * 8192, b"\x5a" * 8192
MNT_FORCE = 1


def direct(mount, write):
    """Start a READ or WRITE of 8 KiB by O_DIRECT. Returns the process' buffer, and a
    task for the errno of the system call. When the system call returns, the buffer is
    filled with another pattern."""
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
    """umount -f ends the call and keeps the connection. Then the server answers."""
    asked = threading.Event()
    mount.fake.answer_next(WRITE if write else READ, lambda call: asked.set())
    memory, task = direct(mount, write)
    if not asked.wait(10):
        raise Failed("the client never asked")
    # The mount is busy, so it is not removed.
    ctypes.CDLL(None).umount2(mount.folder.encode(), MNT_FORCE)
    error = task.result(PATIENCE)
    # The NFS client passes on the kernel's own ERESTARTSYS (512).
    if error not in (errno.EIO, 512):
        raise Failed(f"the system call gave {error}")
    call = mount.fake.spoiled

    def late():
        segment = call.head.reads[0] if write else call.head.writes[0][0]
        access = call.end.remote_read if write else call.end.may_write
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
    """The server writes to the chunk continuously, and never answers."""
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


@spoiled("RDMA Write beyond a Write chunk", READ, "again", RETRIED)
def _write_beyond(call):
    segment = call.head.writes[0][0]
    if call.end.may_write(segment.handle, segment.offset + segment.length, call.arena, 4096):
        raise Failed("allowed")


@spoiled("RDMA Read of a Write chunk", READ, "again", RETRIED,
         skip=peer.IWARP and "not run over siw")
def _read_write_chunk(call):
    segment = call.head.writes[0][0]
    if call.end.remote_read(segment.handle, segment.offset, call.arena, 4):
        raise Failed("allowed")
    hang_up(call)


@spoiled("RDMA Write to a Read chunk", WRITE, "again", RETRIED)
def _write_read_chunk(call):
    segment = call.head.reads[0]
    if call.end.may_write(segment.handle, segment.offset, call.arena, 4):
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


ODD = 5001


def read_odd(mount):
    """Cause a READ of an odd length. Returns the error, or 0; the memory behind must not change."""
    memory = bytearray(b"\xc3" * 8192)
    fd = os.open(mount.path("data"), os.O_RDONLY | os.O_DIRECT)
    try:
        got = os.preadv(fd, [memoryview(memory)[:ODD]], 4096)
    except OSError as error:
        return error.errno
    finally:
        os.close(fd)
        if any(byte != 0xc3 for byte in memory[ODD:]):
            raise Failed("the READ has changed memory behind its buffer")
    if memory[:got] != DATA[4096:4096 + ODD]:
        raise Failed(f"{got} bytes, or other bytes than were sent")
    return 0


def room_for_roundup(mount, placed, private):
    """Answer a READ of an odd length by `placed` octets in its Write chunk, on a connection with this
    `private` data. Returns how many octets the chunk had room for."""
    room = []

    def spoil(call):
        room.append(sum(segment.length for segment in call.head.writes[0]))
        data = (call.payload + b"\xee" * 8)[:placed]
        chunk = call.push(call.head.writes[0], data)
        call.reply(call.reduced, writes=[chunk])
    mount.fake.private = private
    mount.fake.do(mount.fake.hang_up)
    mount.fake.answer_next(READ, spoil)
    error = POOL.submit(read_odd, mount).result(PATIENCE)
    if error:
        raise Failed(f"a READ whose chunk has {placed} octets gives {error}")
    return room[0]


def check_failed_read(mount):
    """Let a READ of an odd length fail as with illumos, which returns its chunk as if it were full."""
    def spoil(call):
        call.reply(wire.accepted(call.xid, 0, wire.u32(errno.EACCES, 0)), writes=call.head.writes)
    mount.fake.answer_next(READ, spoil)
    error = POOL.submit(read_odd, mount).result(PATIENCE)
    if error != errno.EACCES:
        raise Failed(f"a READ that fails with EACCES gives {error}")


@TABLE.case("a Write chunk has room for the roundup if the server sends no private data")
def _roundup(mount):
    try:
        for placed in ODD, ODD + 3, ODD + 4:
            room = room_for_roundup(mount, placed, b"")
            if room != ODD + 4:
                raise Failed(f"room for {room} octets")
        check_failed_read(mount)
        room = room_for_roundup(mount, ODD, wire.cm_private())
        # The C client always leaves room for the roundup.
        if room != ODD and mount.kind != "c":
            raise Failed(f"room for {room} octets, though the server sends private data")
    finally:
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


def connections_made(mount, spoil, seconds):
    """Return the number of connections that the client makes in this time while `spoil` answers its
    GETATTRs. Afterwards they are answered well."""
    before = mount.fake.connections
    mount.fake.answer_next(GETATTR, spoil)
    task = POOL.submit(mount.getattr)
    time.sleep(seconds)
    made = mount.fake.connections - before
    mount.fake.plan = None
    try:
        task.result(PATIENCE)
    except OSError as error:
        mount.notes.append(errno.errorcode[error.errno])
    mount.notes.append(f"{made} connections in {seconds} s")
    return made


@TABLE.case("a server that hangs up before it answers has pauses between connections")
def _no_use(mount):
    """The first connection after one that carried a good Reply is made at once, the next ones 0.5 s,
    1 s and 2 s later."""

    def spoil(call):
        call.reply(wire.accepted(call.xid ^ 1), xid=call.xid ^ 1)
        hang_up(call)
        mount.fake.answer_next(GETATTR, spoil)

    made = connections_made(mount, spoil, 4)
    if mount.kind == "rust" and made > 4:
        raise Failed(f"{made} connections in 4 s")


@TABLE.case("a server that hangs up on one Call and answers others has pauses between connections")
def _same_call(mount):
    """After 15 connections that were made at once, the next ones are made 0.5 s, 1 s and 2 s later,
    although each carries a good message. A Call of the server is one, and needs no credit."""

    def spoil(call):
        call.reply(wire.call(call.xid, 0, prog=wire.NFS_CB, vers=1))
        time.sleep(UNASKED_PAUSE)
        hang_up(call)
        mount.fake.answer_next(GETATTR, spoil)

    made = connections_made(mount, spoil, 8)
    if mount.kind == "rust" and not 5 <= made <= 20:
        raise Failed(f"{made} connections in 8 s")


@TABLE.case("hang-ups in quick succession")
def _hang_ups(mount):
    for _ in range(10):
        mount.fake.answer_next(READ, hang_up)
        if mount.attempt(mount.read) not in RETRIED.split("|"):
            raise Failed("unexpected error")

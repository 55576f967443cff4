# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Servers that break the rules, against a client that requests version 2
(draft-cel-nfsv4-rpcrdma-version-two-04): version2_test.py --kind rust [--fuzz SEED] ADDRESS PORT.

Each case has its own mount, since a client remembers for a while whether a server supports version 2.
"""

import contextlib
import os
import subprocess
import sys
import time

import peer
import wire
from cases import Failed, Skip, Table, leave
from client import XIDS
from client_cases import PATIENCE, POOL, Mount
from client_test import OPTIONS
from fake import Call, DATA, FakeServer, GETATTR, MountServer, READ, READDIR, WRITE
from relay import callback
from server_fuzz import Random
from server_version2 import BRS, CONNPROP, MALFORMED, OPTIONAL, RBSIZ, REQPROP, RESPROP, UPDPROP, \
    setting, two
from version2_fuzz import GOOD, Spoiler, in_version_2, vectors

TABLE = Table()
case = TABLE.case
ASK = "/proc/sys/sunrpc/rdma_max_version"
# Sizes of the client's Receives and of its longest message.
RECEIVES = "/proc/sys/sunrpc/rdma_max_inline_read"
SENDS = "/proc/sys/sunrpc/rdma_max_inline_write"
FOLDER = "/run/hostile-2"
# How long a client waits for the answer to its request for version 2.
SILENCE = 10


class Call2(Call):
    """A Call of version 2."""

    def __init__(self, end, data, arena):
        super().__init__(end, data[:4] + wire.u32(1) + data[8:16] + data[24:], arena)

    def send(self, data, invalidate=None):
        if data[4:8] == wire.u32(1):
            data = in_version_2(data)
        super().send(data, invalidate)


class Fake2(FakeServer):
    """NFS version 3 over version 2 of RPC-over-RDMA, or over version 1 if that is spoken."""

    def __init__(self, *args):
        super().__init__(*args)
        self.greeting = self.agree
        self.opening = None
        self.requested = self.updated = None
        self.questions = []
        self.calls = []
        self.longest = 0
        self.answers = []

    def refuse(self, xid):
        """Answer that only version 1 is supported."""
        self.end.send(wire.u32(xid, 2, 32, wire.ERROR, wire.ERR_VERS, 1, 1))

    def agree(self, xid, receive=4096):
        """Return the valid answer to the request for version 2."""
        start = wire.u32(2, RBSIZ, 4, receive, BRS, 4, 1, 1, 2)
        self.end.send(wire.u32(xid, 2, self.granted, CONNPROP) + start)

    def welcome(self):
        if self.opening:
            self.opening()

    def take(self, data):
        xid, version, _, proc = (int.from_bytes(data[at:at + 4], "big") for at in range(0, 16, 4))
        if version == 2 and proc == CONNPROP:
            self.questions.append(data)
            self.greeting(xid)
        elif proc in (wire.ERROR, OPTIONAL, REQPROP, RESPROP, UPDPROP):
            self.answers.append(data)
            if proc == REQPROP and self.requested:
                self.requested(xid)
            if proc == UPDPROP and self.updated:
                self.updated(xid)
        else:
            self.longest = max(self.longest, len(data))
            self.calls.append(xid)
            make = Call2 if version == 2 else Call
            self._serve(make(self.end, data, self.arena))

    def burst(self, *messages, pause=0.0, at_once=1):
        """Send unsolicited messages, `at_once` at a time, with a pause after these."""
        def send():
            for at in range(0, len(messages), at_once):
                self.end.send(*messages[at:at + at_once])
                time.sleep(pause)
        self.do(send)


class Subject:
    """The client under test, and its server."""

    def __init__(self, fake, args):
        self.fake, self.kind, self.notes = fake, args.kind, []
        # No RPC times out before the client stops waiting for the answer.
        options = OPTIONS.replace("timeo=30", "timeo=200").format(port=args.port,
                                                                  mountport=args.port + 1)
        self.command = ["mount", "-t", "nfs", "-o", options, f"{args.address}:/", FOLDER]

    @contextlib.contextmanager
    def mount(self, greeting=None):
        """Mount, and check that the mount works, in any version."""
        fake = self.fake
        fake.greeting, fake.requested, fake.updated = greeting or fake.agree, None, None
        fake.connections = fake.longest = 0
        fake.questions, fake.calls, fake.answers = [], [], []
        subprocess.run(self.command, check=True, timeout=90)
        mount = Mount(fake, FOLDER, self.kind)
        try:
            mount.check()
            yield mount
            mount.check()
        finally:
            mount.close()
            subprocess.run(["umount", "-i", FOLDER], check=False, timeout=60)
            fake.do(fake.hang_up)

    def check(self):
        """Fail if an error occurred in the fake server. Called after each case."""
        errors, self.fake.errors = self.fake.errors, []
        if errors:
            raise Failed(f"fake server: {errors[0][-300:]}")

    def expect(self, connections, questions):
        """Check how often the client connected and requested version 2, and that it sent no Call twice."""
        fake = self.fake
        seen = (fake.connections, len(fake.questions))
        if seen != (connections, questions):
            raise Failed(f"connections and questions: {seen}, wanted {(connections, questions)}")
        if len(set(fake.calls)) != len(fake.calls):
            raise Failed("a Call was sent twice")


@case("the client asks, and speaks version 2")
def agrees(subject):
    with subject.mount() as mount:
        for proc in (GETATTR, READ, WRITE, READDIR):
            mount.attempt(mount.operation(proc))
    subject.expect(1, 1)


@case("a server that sends its properties before it is asked, and not again")
def speaks_first(subject):
    fake = subject.fake
    fake.opening = lambda: fake.agree(next(XIDS))
    begun = time.monotonic()
    try:
        with subject.mount(lambda xid: None) as mount:
            if (seconds := time.monotonic() - begun) > SILENCE:
                raise Failed(f"mounted after {seconds:.1f} s")
            for proc in (GETATTR, READ, WRITE):
                mount.attempt(mount.operation(proc))
            subject.expect(1, 1)
            fake.do(fake.hang_up)
            mount.check()
    finally:
        fake.opening = None
    subject.expect(2, 2)


def gives_up(subject, greeting):
    """Mount a server that does not answer the request. The mount must use a second connection, and a third
    connection must not request version 2 again. Return the duration of the mount in seconds."""
    begun = time.monotonic()
    with subject.mount(greeting) as mount:
        seconds = time.monotonic() - begun
        subject.expect(2, 1)
        subject.fake.do(subject.fake.hang_up)
        mount.check()
    subject.expect(3, 1)
    subject.notes.append(f"mounted after {seconds:.1f} s")
    return seconds


@case("a server that does not answer the question is called in version 1, and is not asked again")
def silent(subject):
    seconds = gives_up(subject, lambda xid: None)
    if not SILENCE <= seconds < SILENCE + 10:
        raise Failed(f"it took {seconds:.1f} s")


@case("a server that hangs up when it is asked is called in version 1, and is not asked again")
def hangs_up(subject):
    def greeting(_):
        raise peer.Closed("by the case")
    gives_up(subject, greeting)


@case("a server that hangs up and then refuses a connection in version 1 is asked again")
def was_down(subject):
    fake = subject.fake

    def greeting(_):
        fake.greeting = fake.agree
        fake.listener.refuse = 1
        raise peer.Closed("by the case")
    with subject.mount() as mount:
        fake.greeting = greeting
        fake.do(fake.hang_up)
        mount.check()
    subject.expect(3, 3)


@case("a server that hangs up before it gets the question is asked again")
def not_asked(subject):
    if peer.IWARP:
        raise Skip("siw completes a Send before the peer has received it")
    fake = subject.fake
    with subject.mount() as mount:
        fake.listener.broken = 1
        fake.do(fake.hang_up)
        mount.check()
    subject.expect(3, 2)


@case("a server that answers ERR_VERS is called in version 1 on the same connection")
def refuses(subject):
    with subject.mount(subject.fake.refuse) as mount:
        subject.expect(1, 1)
        subject.fake.do(subject.fake.hang_up)
        mount.check()
    # Each connection requests version 2.
    subject.expect(2, 2)


@case("a server that hangs up after ERR_VERS is called in version 1, and is not asked again")
def refuses_and_hangs_up(subject):
    def greeting(xid):
        subject.fake.refuse(xid)
        time.sleep(0.2)
        raise peer.Closed("by the case")
    gives_up(subject, greeting)


@case("a server that agrees to version 2 and then refuses it is called in version 1, and is not asked again")
def refuses_later(subject):
    fake = subject.fake

    def refuse(call):
        # The client sends this Call again, on the next connection.
        fake.calls.remove(call.xid)
        fake.refuse(call.xid)
    with subject.mount() as mount:
        fake.answer_next(GETATTR, refuse)
        result = mount.attempt(mount.getattr)
        if result != "ok":
            raise Failed(f"the refused Call: {result}")
        mount.check()
        subject.expect(2, 1)
        fake.do(fake.hang_up)
        mount.check()
    subject.expect(3, 1)


@case("messages of version 2 after ERR_VERS change nothing")
def two_after_one(subject):
    fake = subject.fake
    with subject.mount(fake.refuse) as mount:
        own = int.from_bytes(fake.questions[0][:4], "big")
        for xid in (own, next(XIDS)):
            fake.burst(two(xid, CONNPROP, 0, 0), two(xid, UPDPROP, 1, RBSIZ, 4, 1024),
                       two(xid, REQPROP, 1, RBSIZ, 4, 1024), two(xid, RESPROP, 0, 0, 0),
                       two(xid, wire.MSG, 1, 0, 0, 0, 0, body=wire.accepted(xid)),
                       two(xid, wire.ERROR, 10), two(xid, wire.ERROR, wire.ERR_VERS, 2, 2),
                       two(xid, OPTIONAL, 0, 77, 0), pause=0.005)
            mount.check()
    subject.expect(1, 1)


@case("the first message of a server settles version 2, and is handled like any later one")
def first_message(subject):
    fake, xid = subject.fake, next(XIDS)
    for first, wanted in (
            (two(xid, REQPROP, 1, RBSIZ, 4, 4096), [wire.u32(RESPROP, 1, 1, 0, 0)]),
            (two(xid, OPTIONAL, 0, 77, 0), [wire.u32(wire.ERROR, 9)]),
            (two(xid, wire.MSG, 0, 0, 0, 0, 0, body=callback(xid)), [wire.u32(wire.ERROR, 10)]),
            (two(xid, UPDPROP, 1, RBSIZ, 4, 1024), [])):
        with subject.mount(lambda _, first=first: fake.end.send(first)) as mount:
            seen = [answer[12:] for answer in fake.answers if answer[:4] == wire.u32(xid)]
            mount.symlink()
            if first[12:16] == wire.u32(UPDPROP) and fake.longest > 1024:
                raise Failed(f"a message of {fake.longest} octets")
        subject.expect(1, 1)
        if seen != wanted:
            raise Failed(f"answers to {first.hex()}: {[answer.hex() for answer in seen]}")


@case("junk before the answer is not answered and changes nothing")
def junk(subject):
    fake = subject.fake
    # Those that are well-formed are answers.
    messages = [octets for name, octets in vectors(MALFORMED)
                if not name.startswith(("version-", "optional-", "resprop-to-nothing"))]
    messages += [b"", b"\0" * 4, b"\xff" * 19, wire.u32(1, 2, 3, 99, 0), b"\xff" * 100]

    def greeting(xid):
        for message in messages:
            fake.end.send(message)
            time.sleep(0.005)
        fake.agree(xid)
    with subject.mount(greeting):
        pass
    subject.expect(1, 1)
    if fake.answers:
        raise Failed(f"answers: {[answer.hex() for answer in fake.answers]}")
    subject.notes.append(f"{len(messages)} messages")


def in_a_row(subject, messages, answers):
    """Send messages to a client that works afterwards, over the same connection."""
    with subject.mount() as mount:
        subject.fake.burst(*messages, pause=0.005)
        mount.check()
        subject.notes.append(f"{len(messages)} messages, {len(subject.fake.answers)} {answers}")
    subject.expect(1, 1)


@case("good messages that nobody has asked for, one after the other")
def unasked(subject):
    good = [octets for _, octets in vectors(GOOD) if len(octets) <= 4096]
    in_a_row(subject, good, "answers")


@case("malformed messages, one after the other")
def malformed(subject):
    in_a_row(subject, [octets for _, octets in vectors(MALFORMED)], "error reports")


@case("Calls that the client does not serve are refused, and are told of its limits")
def refused_calls(subject):
    fake = subject.fake
    segment = wire.u32(0x1234, 64, 0, 0x10000)
    read, write = wire.u32(1, 40) + segment, wire.u32(1, 1) + segment
    with subject.mount() as mount:
        for lists, wanted in (
                (read + wire.u32(0, 0, 0), (4, 0)), (read + wire.u32(0) + write + wire.u32(0, 0), (4, 0)),
                (wire.u32(0) + write + wire.u32(0, 0), (5, 0)),
                (wire.u32(0) + write * 9 + wire.u32(0, 0), (5, 0)),
                (wire.u32(0, 0) + write, (6, 0)), (wire.u32(0, 0, 1, 65) + segment * 65, (6, 0)),
                (wire.u32(0, 0, 2), (2,)),
                # Version 3 of NFS has no service for Calls of the server.
                (wire.u32(0, 0, 0), (10,))):
            fake.answers = []
            xid = next(XIDS)
            fake.burst(two(xid, wire.MSG, 0, 0, body=lists + callback(xid)))
            mount.check()
            seen = [answer[:8] + answer[12:] for answer in fake.answers]
            if seen != [wire.u32(xid, 2, wire.ERROR, *wanted)]:
                raise Failed(f"answers to a Call with lists {lists[:32].hex()}: {[a.hex() for a in seen]}")
    subject.expect(1, 1)


@case("messages about properties in every wrong state")
def wrong_states(subject):
    largest = 0xffffffff
    start = wire.u32(2, RBSIZ, 4, 1 << 20, BRS, 4, 0, 1, 2)
    with subject.mount() as mount:
        own = int.from_bytes(subject.fake.questions[0][:4], "big")
        for xid in (own, own ^ 1, 0, largest):
            subject.fake.burst(
                two(xid, CONNPROP, body=start), two(xid, RESPROP, 1, 1, 0, 0),
                two(xid, RESPROP, 0, 0, 1, RBSIZ, 4, 1 << 20), two(xid, UPDPROP, 0),
                two(xid, UPDPROP, 1, RBSIZ, 4, largest), two(xid, UPDPROP, 1, RBSIZ, 4, 0),
                two(xid, UPDPROP, 1, RBSIZ, 4, 4096), two(xid, UPDPROP, largest, RBSIZ, 4, 4096),
                two(xid, RESPROP, largest, 0, 0), two(xid, RESPROP, 0, largest, 0),
                two(xid, wire.ERROR, 10), two(xid, wire.ERROR, 9), two(xid, wire.ERROR, 77),
                wire.u32(xid, 1, 32, wire.ERROR, wire.ERR_VERS, 1, 1),
                wire.header(xid) + wire.accepted(xid), pause=0.005)
            mount.check()
    subject.expect(1, 1)


@case("a server whose Receives become smaller gets no longer message")
def smaller(subject):
    fake = subject.fake
    with subject.mount() as mount:
        for receive in (1024, 2048, 4096, 1024):
            fake.burst(two(7, UPDPROP, 1, RBSIZ, 4, receive))
            mount.check()
            fake.longest = 0
            for proc in (WRITE, READDIR, READ):
                mount.attempt(mount.operation(proc))
            mount.symlink()
            if not 0 < fake.longest <= receive:
                raise Failed(f"a message of {fake.longest} octets for Receives of {receive}")
    subject.expect(1, 1)


@case("a server whose Receives become smaller and larger while Calls are in flight")
def smaller_in_flight(subject):
    fake = subject.fake
    with subject.mount() as mount:
        for proc in (WRITE, READ, READDIR):
            for receive in (1024, 4096) * 5:
                def answer(call, receive=receive):
                    call.after = [two(7, UPDPROP, 1, RBSIZ, 4, receive)]
                    call.good()
                fake.answer_next(proc, answer)
                tasks = [POOL.submit(mount.operation(each)) for each in (proc, WRITE, READ)]
                for task in tasks:
                    task.result(PATIENCE)
    subject.expect(1, 1)


@case("Receives that the server asks for")
def asked(subject):
    fake = subject.fake
    with subject.mount() as mount:
        for want, done, rejected in (
                ((RBSIZ, 4, 4096), (1, 1), (0,)), ((RBSIZ, 4, 1 << 30), (0,), (1, 1)),
                ((RBSIZ, 4, 1024), (0,), (1, 1)), ((BRS, 4, 2), (0,), (1, 1)),
                ((77, 0), (0,), (1, 1))):
            fake.answers = []
            fake.burst(two(9, REQPROP, 1, *want))
            mount.check()
            if [answer[12:] for answer in fake.answers] != [wire.u32(RESPROP, *done, *rejected, 0)]:
                raise Failed(f"answers to {want}: {[a.hex() for a in fake.answers]}")
        # A request may have the XID of an RPC in flight.
        fake.answer_next(GETATTR, lambda call: (
            call.end.send(two(call.xid, REQPROP, 1, RBSIZ, 4, 4096)), call.good()))
        mount.attempt(mount.getattr)
        mount.check()
        if int.from_bytes(fake.answers[-1][:4], "big") != fake.spoiled.xid:
            raise Failed(f"answers to a request with the XID of an RPC: {fake.answers}")
    subject.expect(1, 1)


@contextlib.contextmanager
def large_sends(subject):
    """Mount a server whose Receives have 16384 octets, and send it a WRITE of 8192 inline."""
    fake = subject.fake
    fake.size, before = 16384, fake.size
    try:
        with setting(SENDS, 16384), subject.mount(lambda xid: fake.agree(xid, 16384)) as mount:
            mount.attempt(mount.write)
            if fake.longest < 8192:
                raise Failed(f"the longest message has {fake.longest} octets")
            yield mount
    finally:
        fake.size = before


def await_request(fake, mount, octets):
    """Use the mount until the client requests Receives of `octets`."""
    for _ in range(400):
        mount.attempt(mount.getattr)
        if fake.answers and fake.answers[-1][12:] == wire.u32(REQPROP, 1, RBSIZ, 4, octets):
            return
    raise Failed(f"no request for {octets}: {[answer.hex() for answer in fake.answers]}")


@case("no message after a request for smaller Receives is longer than requested")
def lowered(subject):
    fake = subject.fake

    def request(_):
        fake.longest = 0
    with large_sends(subject) as mount:
        fd = os.open(mount.path("data"), os.O_WRONLY | os.O_DIRECT)
        try:
            fake.requested = request
            with setting(SENDS, 4096):
                for _ in range(100):
                    # A WRITE without other Calls, so that it is the Call that causes the request.
                    mount.attempt(lambda: os.pwrite(fd, DATA[:8192], 0))
        finally:
            os.close(fd)
        if not 0 < fake.longest <= 4096:
            raise Failed(f"a message of {fake.longest} octets")
    subject.expect(1, 1)


@case("a request for smaller Receives that the server rejects is withdrawn by one for the former size")
def withdrawn(subject):
    fake = subject.fake
    rejected, granted = (RESPROP, 0, 1, 1, 0), (RESPROP, 1, 1, 0, 0)
    for words in (rejected, *((wire.ERROR, *report) for report in (
            (1, 2, 2), (2,), (3,), (4, 1), (5, 1), (6, 1), (7, 1, 1), (8, 1), (9,), (10,)))):
        with large_sends(subject) as mount:
            fake.requested = lambda xid, words=words: fake.end.send(two(xid, *words))
            with setting(SENDS, 4096):
                await_request(fake, mount, 4096)
            fake.requested = lambda xid: fake.end.send(two(xid, *granted))
            await_request(fake, mount, 16384)
            fake.longest = 0
            mount.attempt(mount.write)
            if fake.longest < 8192:
                raise Failed(f"after {words}, the longest message has {fake.longest} octets")
        subject.expect(1, 1)


@case("a server that names no property is asked for none, and told of no change")
def names_none(subject):
    fake = subject.fake

    def nothing(xid):
        fake.end.send(two(xid, CONNPROP, 0, 0))

    def no_option(xid):
        fake.end.send(two(xid, wire.ERROR, 9))
    for greeting, wanted in ((fake.agree, {REQPROP, UPDPROP}), (nothing, set()), (no_option, set())):
        with setting(SENDS, 16384), subject.mount(greeting) as mount, setting(RECEIVES, 16384):
            for _ in range(400):
                mount.attempt(mount.getattr)
            seen = {int.from_bytes(answer[12:16], "big") for answer in fake.answers}
        subject.expect(1, 1)
        if seen != wanted:
            raise Failed(f"messages about properties: {seen}, wanted {wanted}")


@case("a server that grants one credit gets one message at a time, and none about properties")
def one_credit(subject):
    fake = subject.fake
    # The message would come in addition to the Call that is being sent.
    for granted, wanted in ((1, set()), (3, {UPDPROP}), (4, {REQPROP, UPDPROP})):
        with fake.granting(granted), setting(SENDS, 16384 if granted == 4 else 4096), \
                subject.mount() as mount, setting(RECEIVES, 16384):
            for _ in range(400):
                mount.attempt(mount.getattr)
            seen = {int.from_bytes(answer[12:16], "big") for answer in fake.answers}
        subject.expect(1, 1)
        if seen != wanted:
            raise Failed(f"messages about properties with {granted} credits: {seen}, wanted {wanted}")


@case("each error report but ERR_VERS fails its RPC, which is not sent again")
def reports(subject):
    fake = subject.fake
    with subject.mount() as mount:
        for proc in (GETATTR, READ, WRITE, READDIR):
            for words in ((2,), (3,), (4, 16), (5, 8), (6, 64), (7, 1, 9000), (8, 9000), (9,), (10,)):
                fake.answer_next(proc, lambda call, words=words: call.send(
                    two(call.xid, wire.ERROR, *words)))
                result = mount.attempt(mount.operation(proc))
                if (result, fake.times) != ("EIO", 1):
                    raise Failed(f"{result} after {fake.times} Calls of {proc} and report {words}")
            mount.check()
    subject.expect(1, 1)


def read_page(mount):
    """READ 4096 octets, and return the number of Write chunks that the Call offered."""
    fd = os.open(mount.path("data"), os.O_RDONLY | os.O_DIRECT)
    try:
        if os.pread(fd, 4096, 0) != DATA[:4096]:
            raise Failed("READ brought other bytes than were sent")
        return len(mount.fake.last[READ].head.writes)
    finally:
        os.close(fd)


@case("a server that has no room for a Reply is not expected to send as long ones again")
def sends_less(subject):
    fake = subject.fake
    with setting(RECEIVES, 8192), subject.mount(lambda xid: fake.agree(xid, 8192)) as mount:
        chunks = [read_page(mount)]
        fake.answer_next(READ, lambda call: call.send(two(call.xid, wire.ERROR, 8, 4224)))
        result = mount.attempt(lambda: read_page(mount))
        chunks.append(read_page(mount))
    subject.expect(1, 1)
    if (result, chunks) != ("EIO", [0, 1]):
        raise Failed(f"{result}; Write chunks {chunks}")


@case("a server that refuses to note larger Receives is not expected to send longer Replies")
def refuses_update(subject):
    fake = subject.fake
    for answer, wanted in ((None, 0), (lambda xid: fake.end.send(two(xid, wire.ERROR, 9)), 1)):
        with subject.mount(lambda xid: fake.agree(xid, 8192)) as mount, setting(RECEIVES, 8192):
            fake.updated = answer
            for _ in range(400):
                mount.attempt(mount.getattr)
            told = wire.u32(UPDPROP) in [data[12:16] for data in fake.answers]
            chunks = read_page(mount)
        subject.expect(1, 1)
        if not told or chunks != wanted:
            raise Failed(f"RDMA2_UPDPROP: {told}; {chunks} Write chunks")


def fuzz(table, args):
    """Send random messages while the mount is used."""
    count, pick = args.messages, Random(args.fuzz)
    spoiler = Spoiler(pick)

    @table.case(f"{count} random messages of version 2, seed {args.fuzz}")
    def _random(subject):
        fake, sent, rounds, results = subject.fake, 0, 0, {}
        while sent < count:
            rounds += 1
            before = [spoiler.message() for _ in range(pick.choice((0, 0, 1, 5)))]

            def greeting(xid, before=before):
                for message in before:
                    fake.end.send(message)
                fake.agree(xid)
            with subject.mount(greeting) as mount:
                sent += len(before)
                for _ in range(100):
                    messages = [spoiler.message() for _ in range(pick.choice((1, 16, 64)))]
                    # A client keeps two Receives posted for messages about properties. More messages
                    # without a pause may find none, which ends the connection.
                    at_once = 2 if pick.random() < 0.98 else 64
                    with contextlib.suppress(peer.Closed):
                        fake.burst(*messages, pause=0.001, at_once=at_once)
                    sent += len(messages)
                    result = mount.attempt(mount.operation(pick.choice((GETATTR, READ, WRITE))))
                    results[result] = results.get(result, 0) + 1
                    if sent >= count:
                        break
        subject.notes.append(f"{sent} messages, {rounds} mounts, {results}")


def main():
    """The tool."""
    args = TABLE.arguments(__doc__, fuzz)
    if args.kind != "rust":
        print("# the C module does not ask for version 2")
        return 0
    MountServer(args.address, args.port + 1).start()
    fake = Fake2(peer.Device(), args.address, args.port)
    fake.start()
    os.makedirs(FOLDER, exist_ok=True)
    subject = Subject(fake, args)
    with open(ASK, "w", encoding="ascii") as file:
        file.write("2")
    try:
        failures = TABLE.run(subject, subject.check, args.only)
    finally:
        with open(ASK, "w", encoding="ascii") as file:
            file.write("1")
        sys.stdout.flush()
        print("\n".join(f"# {error}" for error in fake.errors))
    return 1 if failures else 0


if __name__ == "__main__":
    leave(main)

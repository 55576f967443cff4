# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Servers that agree to version 2, refuse it, do not answer or hang up
(draft-cel-nfsv4-rpcrdma-version-two-04, section 7)."""

import contextlib
import subprocess
import time

import peer
import wire
from cases import Failed, Skip
from client import XIDS
from fake import GETATTR, READ, READDIR, WRITE
from relay import callback
from server_version2 import CONNPROP, OPTIONAL, RBSIZ, REQPROP, RESPROP, UPDPROP, two
from version2_fake import TABLE

case = TABLE.case
# How long a client waits for the answer to its request for version 2.
SILENCE = 10
# Over siw such connections were lost, up to three in a row.
CLIENT_FIRST = peer.IWARP and "with iWARP the client sends the first message (RFC 5044, section 7)"


@case("the client asks, and speaks version 2")
def agrees(subject):
    with subject.mount() as mount:
        for proc in (GETATTR, READ, WRITE, READDIR):
            mount.attempt(mount.operation(proc))
    subject.expect(1, 1)


@case("a server that sends its properties before it is asked, and not again", skip=CLIENT_FIRST)
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


@case("a server that hangs up right after ERR_VERS is called in version 1 on the next connection")
def refuses_and_is_gone(subject):
    def greeting(xid):
        subject.fake.refuse(xid)
        raise peer.Closed("by the case")
    with busy(6):
        for _ in range(5):
            # One with the request for version 2, and one in version 1 that stays.
            with subject.mount(greeting):
                subject.expect(2, 1)


@contextlib.contextmanager
def busy(count):
    """Keep the processor busy, so that the client's threads run late."""
    processes = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def asks_again(subject, times, answer):
    """Mount, and have the server hang up right after `answer` on every second connection. Each connection must
    request version 2."""
    fake = subject.fake

    def greeting(xid):
        fake.greeting = fake.agree
        answer(xid)
        # Otherwise the CM's message could overtake the answer.
        fake.end.wait_sent()
        raise peer.Closed("by the case")
    with subject.mount() as mount:
        for _ in range(times):
            fake.greeting = greeting
            fake.do(fake.hang_up)
            mount.check()
    subject.expect(2 * times + 1, 2 * times + 1)


@case("a server that hangs up after it has agreed to version 2 is asked again")
def agrees_and_hangs_up(subject):
    with busy(6):
        asks_again(subject, 10, subject.fake.agree)


@case("a server that hangs up after it has refused versions 1 and 2 is asked again")
def refuses_all_and_hangs_up(subject):
    asks_again(subject, 3, lambda xid: subject.fake.end.send(
        wire.u32(xid, 2, 32, wire.ERROR, wire.ERR_VERS, 3, 3)))


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

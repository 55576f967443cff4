# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Servers that break the rules, against a client that requests version 2
(draft-cel-nfsv4-rpcrdma-version-two-04): version2_test.py --kind rust [--fuzz SEED] ADDRESS PORT.
"""

import contextlib
import os
import sys
import time

import peer
import version2_start  # noqa: F401  (adds its cases to the table)
import wire
from cases import Failed, leave, views
from client import XIDS
from client_cases import PATIENCE, POOL
from fake import DATA, GETATTR, MountServer, READ, READDIR, WRITE
from relay import callback
from server_fuzz import Random
from server_version2 import BRS, CONNPROP, MALFORMED, OPTIONAL, RBSIZ, REQPROP, RESPROP, UPDPROP, \
    setting, two
from version2_fake import FOLDER, Fake2, Subject, TABLE
from version2_fuzz import GOOD, Spoiler, vectors

case = TABLE.case
ASK = "/proc/sys/sunrpc/rdma_max_version"
# Sizes of the client's Receives and of its longest message.
RECEIVES = "/proc/sys/sunrpc/rdma_max_inline_read"
SENDS = "/proc/sys/sunrpc/rdma_max_inline_write"


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


@case("the credits in the response to a request are granted")
def response_grants(subject):
    fake, granted = subject.fake, []

    def respond(xid):
        fake.end.send(wire.u32(xid, 2, 5, RESPROP, 1, 1, 0, 0))
        end = time.monotonic() + PATIENCE
        # No Reply, which has a grant as well, is sent meanwhile.
        while granted[-1:] != ["5"] and time.monotonic() < end:
            time.sleep(0.1)
            granted[:] = [view["credits_granted"] for view in views("client")
                          if view["state"] == "connected"]
    with large_sends(subject) as mount:
        fake.requested = respond
        with setting(SENDS, 4096):
            await_request(fake, mount, 4096)
            mount.attempt(mount.getattr)
    subject.expect(1, 1)
    if granted != ["5"]:
        raise Failed(f"credits granted: {granted}")


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

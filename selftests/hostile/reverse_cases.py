# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""How a client with a callback service must handle Calls of every kind (RFC 8167).

CB_NULL needs no session and has no effect, so it can be sent any number of times. In every
case the connection stays up, unless the case ends it, and the mount works afterwards.
"""

import os
import time

import peer
import wire
from cases import Failed, Table, views
from relay import XIDS, callback
from wire import Segment

TABLE = Table()
case = TABLE.case
# How long to wait for Replies that must not arrive.
QUIET = 0.3
# The longest Call that the client passes to the service.
PAGE = 4096
STRAY = Segment(0x1234, 64, 0x10000)


class Mount:
    """The client under test."""

    def __init__(self, relay, folder, kind):
        self.relay, self.folder, self.kind = relay, folder, kind
        self.notes = []
        self.granted = 0

    def works(self):
        """Make a system call that causes one or two GETATTRs."""
        os.listdir(self.folder)
        os.statvfs(self.folder)

    def check(self):
        """Check that the mount works."""
        self.relay.before = None
        self.works()
        errors, self.relay.errors = self.relay.errors, []
        if errors:
            raise Failed(f"relay: {errors[0][-300:]}")

    def window(self):
        """Return how many Calls the client may have in flight, according to sunrpc's files."""
        found = []
        root = "/sys/kernel/sunrpc/xprt-switches"
        for switch in os.listdir(root):
            for name in os.listdir(f"{root}/{switch}"):
                if not name.endswith("-rdma"):
                    continue
                try:
                    with open(f"{root}/{switch}/{name}/xprt_info", encoding="ascii") as file:
                        info = dict(line.split("=", 1) for line in file if "=" in line)
                except OSError:
                    # It is being destroyed.
                    continue
                if info.get("dst_port", "").strip() == str(self.relay.port):
                    found.append(int(info["cong_win"]) >> 8)
        if len(found) != 1:
            raise Failed(f"windows of the mount: {found}")
        return found[0]

    def used(self):
        """Return how many Replies the client waits for, according to its live view."""
        found = [int(view["credits_used"]) for view in views("client")
                 if view["peer"].endswith(f":{self.relay.port}") and view["state"] == "connected"]
        if len(found) != 1:
            raise Failed(f"credits of the mount in use: {found}")
        return found[0]

    def call(self, messages, wanted, seconds=10):
        """Send messages in a burst; return `wanted` answers, or all that arrived."""
        self.relay.forget()
        self.relay.burst(messages)
        self.collect(wanted, seconds)
        return list(self.relay.answers), list(self.relay.refusals)

    def collect(self, wanted, seconds=10):
        """Wait for that many answers, and then until no more arrive."""
        end = time.monotonic() + seconds
        while len(self.relay.answers) + len(self.relay.refusals) < wanted \
                and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(QUIET)

    def null(self, count, seconds=10, excess=False, **fields):
        """Send `count` CB_NULL at once; return the Replies. If they are in `excess`, some may be refused."""
        xids = [next(XIDS) for _ in range(count)]
        answers, refusals = self.call([wire.header(xid, **fields) + callback(xid)
                                       for xid in xids], count, seconds)
        if refusals and not excess:
            raise Failed(f"CB_NULL is refused: {refusals[0]}")
        for head in answers:
            if head.xid not in xids:
                raise Failed(f"a Reply to {head.xid:#x}, which was not asked")
            xids.remove(head.xid)
            good(head)
        return answers

    def same_connection(self, before):
        """Check that the connection is still the same."""
        if self.relay.connections != before:
            raise Failed(f"{self.relay.connections - before} new connections")


def good(head):
    """Check the Reply to CB_NULL."""
    if (head.vers, head.proc, head.reads, head.writes, head.reply) != (1, wire.MSG, [], [], None):
        raise Failed(f"Reply to CB_NULL: {head}")
    if not 1 <= head.credits <= 1024:
        raise Failed(f"{head.credits} credits granted")
    wire.results(head.body, head.xid).end()


@case("CB_NULL is answered")
def null(mount):
    answers = mount.null(1)
    if len(answers) != 1:
        raise Failed("no Reply")
    mount.granted = answers[0].credits
    mount.notes.append(f"{mount.granted} credits granted")


@case("as many at once as were granted, four times")
def full(mount):
    before = mount.relay.connections
    for _ in range(4):
        answers = mount.null(mount.granted)
        if len(answers) != mount.granted:
            raise Failed(f"{len(answers)} Replies to {mount.granted} Calls")
    mount.same_connection(before)


@case("more at once than were granted")
def flood(mount):
    before = mount.relay.connections
    for times in (2, 4, 10):
        # Ours posts twice as many Receives as it grants. A server that sends more than that may
        # find no Receive and lose the connection; the mount continues with the next one.
        within = mount.kind == "rust" and times == 2
        try:
            answers = mount.null(times * mount.granted, seconds=4, excess=not within)
        except peer.Closed:
            if within:
                raise
            answers = []
        mount.notes.append(f"{times * mount.granted} Calls, {len(answers)} Replies")
        if within and len(answers) < mount.granted:
            raise Failed("not even those granted were answered")
        mount.works()
        if within:
            mount.same_connection(before)
    # The client may still process Calls of a lost connection, one after the other, and has room for
    # twice as many as it grants. Once it answers a Call, it has processed those before.
    if not any(mount.null(1, seconds=3, excess=True) for _ in range(5)):
        raise Failed("afterwards, no Reply to five Calls")
    for _ in range(2):
        answers = mount.null(mount.granted)
        if len(answers) != mount.granted:
            raise Failed(f"afterwards, {len(answers)} Replies to {mount.granted} Calls")


def refused(mount, xid, message, what, error=(wire.ERR_CHUNK,)):
    """Send a Call that this module answers with an error, and no client with a Reply."""
    answers, refusals = mount.call([message], mount.kind == "rust", 5)
    if answers:
        raise Failed(f"{what}: {answers[0]}")
    if mount.kind == "c":
        mount.notes.append(f"{what}: {len(refusals)} error reports")
    elif [(head.xid, head.vers, head.error) for head in refusals] \
            != [(xid, int.from_bytes(message[4:8], "big"), error)] or refusals[0].credits < 1:
        raise Failed(f"{what}: {refusals}")


@case("Calls with chunks are answered with ERR_CHUNK")
def chunks(mount):
    before = mount.relay.connections
    for lists in ({"reads": [STRAY]}, {"writes": [[STRAY]]}, {"reply": [STRAY]},
                  {"reads": [Segment(0x1234, 4, 0x10000, 40)], "writes": [[STRAY]] * 2},
                  {"proc": wire.NOMSG, "reads": [STRAY]}):
        xid = next(XIDS)
        body = b"" if "proc" in lists else callback(xid)
        refused(mount, xid, wire.header(xid, **lists) + body, lists)
    mount.same_connection(before)


@case("Calls with chunk lists that are wrong are answered with ERR_CHUNK")
def wrong_lists(mount):
    before = mount.relay.connections
    for lists in (wire.u32(0, 1, 0, 0, 0), wire.u32(2, 0, 0), wire.u32(0, 2, 0),
                  wire.u32(0, 0, 2), wire.u32(1, 0, 0x1234, 64, 0, 0x10000) * 65 + wire.u32(0, 0, 0),
                  wire.u32(0, 0, 1, 0xffffffff)):
        xid = next(XIDS)
        message = wire.u32(xid, 1, 1, wire.MSG) + lists + callback(xid)
        refused(mount, xid, message, lists[:24].hex())
    mount.same_connection(before)


@case("messages that may be Calls, and that no Responder can use, are answered")
def unusable(mount):
    if mount.kind == "c":
        return
    before = mount.relay.connections
    for what, words, body, error in (
            ("a procedure that is not defined", (1, 1, 5, 0, 0, 0), b"", (wire.ERR_CHUNK,)),
            ("no RPC message", (1, 1, wire.MSG, 0, 0, 0), b"", (wire.ERR_CHUNK,)),
            ("an RPC message with another XID", (1, 1, wire.MSG, 0, 0, 0), callback(next(XIDS)),
             (wire.ERR_CHUNK,)),
            ("RDMA_NOMSG with a Read chunk that is not at zero",
             (1, 1, wire.NOMSG, 1, 8, 0x1234, 40, 0, 0x10000, 0, 0, 0), b"", (wire.ERR_CHUNK,)),
            ("version 3", (3, 1, wire.MSG, 0, 0, 0), b"", (wire.ERR_VERS, 1, 1))):
        xid = next(XIDS)
        refused(mount, xid, wire.u32(xid, *words) + body, what, error)
    mount.same_connection(before)
    if len(mount.null(1)) != 1:
        raise Failed("no Reply to CB_NULL afterwards")


@case("Calls that are too long or too short are answered with ERR_CHUNK")
def lengths(mount):
    if mount.kind == "c":
        return
    before = mount.relay.connections
    for length in (PAGE + 4, PAGE + 16, 20, 12):
        xid = next(XIDS)
        call = (callback(xid) + bytes(PAGE))[:length]
        refused(mount, xid, wire.header(xid) + call, f"a Call of {length} octets")
    mount.same_connection(before)
    if len(mount.null(1)) != 1:
        raise Failed("no Reply to CB_NULL afterwards")


@case("many Calls with chunks at once")
def chunk_flood(mount):
    before = mount.relay.connections
    # As many at once as the client grants: it need not post more Receives (RFC 8166, 3.3.1).
    for _ in range(20):
        calls = [wire.header(xid, reads=[STRAY]) + callback(xid)
                 for xid in (next(XIDS) for _ in range(mount.granted))]
        _, refusals = mount.call(calls, len(calls), 5 if mount.kind == "rust" else 1)
        mount.notes.append(f"{len(calls)} Calls, {len(refusals)} error reports")
        if mount.kind == "rust" and len(refusals) != len(calls):
            raise Failed("not each Call with chunks is refused")
    mount.same_connection(before)
    if len(mount.null(1)) != 1:
        raise Failed("no Reply to CB_NULL afterwards")


@case("credit values of callbacks are requests, and not of the forward direction")
def credits(mount):
    mount.works()
    window = mount.window()
    for value in (0, 1, 7, 0xffffffff):
        answers = mount.null(1, credits=value)
        if len(answers) != 1:
            raise Failed(f"credit value {value}: no Reply")
        if answers[0].credits != mount.granted:
            raise Failed(f"credit value {value}: {answers[0].credits} granted")
        if mount.window() != window:
            raise Failed(f"credit value {value} made {window} forward credits {mount.window()}")
    mount.notes.append(f"{window} forward credits")


@case("the credit value of a message of unknown direction is ignored")
def unknown_direction(mount):
    mount.works()
    window = mount.window()
    bodies = [lambda xid: wire.u32(xid, 2) + bytes(20), lambda xid: wire.u32(xid, 0xffffffff),
              lambda xid: wire.u32(xid ^ 1, 1, 0, 0, 0, 0), lambda xid: b""]
    for body in bodies:
        def send(head, body=body):
            mount.relay.end.send(wire.header(head.xid, credits=1) + body(head.xid))
        mount.relay.before = send
        try:
            mount.works()
        except OSError as error:
            mount.notes.append(f"the Call with its XID ends with {error}")
        if mount.relay.before:
            raise Failed("there was no Call")
        # Not the one that comes with the next good Reply.
        xid = next(XIDS)
        mount.relay.burst([wire.header(xid, credits=1) + body(xid)])
        time.sleep(0.1)
        seen = mount.window()
        if seen != window:
            if mount.kind == "rust":
                raise Failed(f"{window} forward credits became {seen}")
            mount.notes.append(f"{window} forward credits became {seen}")
            mount.works()


@case("a message that is no Reply is not counted as one")
def no_reply(mount):
    if mount.kind == "c":
        return
    before = mount.relay.connections
    for lists in (wire.u32(2, 0, 0), wire.u32(0, 2, 0), wire.u32(0, 0, 2)):
        seen = []

        def send(_head, lists=lists, seen=seen):
            # The Call waits for its Reply meanwhile, and the Reply before it has been counted.
            xid = next(XIDS)
            time.sleep(QUIET)
            seen.append(mount.used())
            mount.relay.end.send(wire.u32(xid, 1, 1, wire.MSG) + lists + callback(xid))
            time.sleep(QUIET)
            seen.append(mount.used())
        mount.relay.before = send
        mount.works()
        if len(seen) != 2 or not 1 <= seen[0] <= seen[1]:
            raise Failed(f"Replies that are due before and after a malformed Call: {seen}")
    mount.same_connection(before)


@case("a Call with the XID of a Call under way")
def same_xid(mount):
    def send(head):
        mount.relay.end.send(wire.header(head.xid) + callback(head.xid))
    mount.relay.forget()
    mount.relay.before = send
    mount.works()
    mount.collect(1)
    if len(mount.relay.answers) != 1:
        raise Failed(f"{len(mount.relay.answers)} Replies to the callback")
    good(mount.relay.answers[0])


@case("Calls cut short, and Calls that make no sense")
def garbled(mount):
    before = mount.relay.connections
    xid = next(XIDS)
    whole = callback(xid)
    calls = [wire.header(xid) + whole[:length] for length in range(0, len(whole), 4)]
    calls += [wire.header(xid) + whole[:8] + bytes([value]) * size
              for value in (0, 0xff) for size in (16, 32, 400, 4000)]
    calls += [wire.header(xid) + wire.call(xid, 1, prog=wire.NFS_CB, vers=1, cred=wire.auth_sys(),
                                           args=wire.u32(0xffffffff) * 9)]
    for call in calls:
        mount.call([call], 0)
        mount.works()
    mount.same_connection(before)
    for _ in range(2):
        if len(mount.null(mount.granted)) != mount.granted:
            raise Failed("not all credits are there afterwards")


@case("the connection closed with callbacks under way")
def hang_up(mount):
    for turn in range(10):
        xids = [next(XIDS) for _ in range(mount.granted)]
        mount.relay.forget()
        mount.relay.burst([wire.header(xid) + callback(xid) for xid in xids])
        time.sleep(0.01 * turn)
        mount.relay.do(mount.relay.hang_up)
        mount.relay.forget()
        mount.works()
        time.sleep(0.1)
        late = [head.xid for head in mount.relay.answers if head.xid in xids]
        if late and mount.kind == "rust":
            raise Failed(f"{len(late)} Replies on the next connection")
        if late:
            mount.notes.append(f"{len(late)} Replies on the next connection")
    if len(mount.null(mount.granted)) != mount.granted:
        raise Failed("not all credits are there afterwards")

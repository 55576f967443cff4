# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Version 2 of RPC-over-RDMA: its negotiation, and the messages that follow
(draft-cel-nfsv4-rpcrdma-version-two-04).

The C module supports only version 1: a client that requests version 2 falls back on the same
connection.
"""

import collections
import contextlib
import glob
import os
import shlex
import subprocess
import time

import roce
from capture import Capture
from faultio import Churn
from harness import EXPORT, SERVER, case, counters, data, expect, expect_that, mount, read_file, \
    shell, umount, write_file, Skip

CLIENT = "192.168.88.1"
FOLDER = "/mnt/versions"
OURS = os.environ.get("CLIENT_MODULE") == "rust"
THEIRS = os.environ.get("SERVER_MODULE") == "rust"
ASK = "/proc/sys/sunrpc/rdma_max_version"
OFFER = "/proc/sys/sunrpc/svc_rdma/max_version"
# Sizes of messages: the server's and the client's Receives, and the client's Sends.
SERVER_RECEIVES = "/proc/sys/sunrpc/svc_rdma/max_req_size"
RECEIVES = "/proc/sys/sunrpc/rdma_max_inline_read"
SENDS = "/proc/sys/sunrpc/rdma_max_inline_write"
SMALL, LARGE = 4096, 16384
TRACING = "/sys/kernel/tracing"
STATUS = "/sys/kernel/debug/rpcrdma_rs/{}/*/status"


def io(folder):
    """Make Calls and Replies of every form: inline, and with each kind of chunk."""
    for number, size in enumerate((1, 3000, 5000, 100_001, 1 << 20)):
        write_file(f"{folder}/file-{number}", data(size, number), os.O_SYNC)
    for number, size in enumerate((1, 3000, 5000, 100_001, 1 << 20)):
        expect("content", read_file(f"{folder}/file-{number}"), data(size, number))
    for number in range(200):
        os.symlink(f"target-{number}" * 20, f"{folder}/link-{number:0100d}")
    expect("entries", len(os.listdir(folder)), 205)
    subprocess.run(["rm", "-r", folder], check=True)


@contextlib.contextmanager
def traced():
    """Collect our trace events of version and properties while the block runs: lines without
    addresses, by side, filled in when the block ends."""
    found = {}
    sides = [("client", "xprtrdma", shell)] * OURS
    sides += [("server", "svcrdma", lambda text: shell("peer " + shlex.quote(text)))] * THEIRS

    def enable(events, run, value):
        run(f"cd {TRACING} && for event in version property; do "
            f"echo {value} >events/rpcrdma/{events}_$event/enable; done")
    for _, events, run in sides:
        run(f"echo >{TRACING}/trace")
        enable(events, run, 1)
    try:
        yield found
    finally:
        for side, events, run in sides:
            enable(events, run, 0)
            text = run(f"sed -n 's/^.*: {events}_\\(version\\|property\\): [^ ]* //p' {TRACING}/trace")
            found[side] = text.splitlines()


def session(version, client, server):
    """Mount and do I/O. Return the captured messages, the number of regions that the client invalidated
    itself, and the number of chunks. Our trace events must be those of `client` and `server`."""
    with traced() as events, Capture("versions") as capture:
        mount(version, "ipv4", FOLDER)
        folder = f"{FOLDER}/versions-{version}"
        os.mkdir(folder)
        io(folder)
        count = counters(FOLDER)
        umount(FOLDER)
    for side, wanted in (("client", client), ("server", server)):
        if side in events:
            expect(f"trace events of the {side}", set(events[side]), set(wanted))
    return capture.messages(), count


def set_to(path, value, where=""):
    """Set a sysctl, here or in the peer."""
    shell(f"peer 'echo {value} >{path}'" if where else f"echo {value} >{path}")


def greeting(messages, answer):
    """Check the first messages of each connection: the client's request, and then `answer`."""
    first = {}
    for message in messages:
        ends = frozenset((message.source, message.target))
        first.setdefault(ends, []).append(message)
    expect_that("nothing was captured", first)
    for sent in first.values():
        ask, back = sent[:2]
        expect("the first message", (ask.source, ask.version, ask.proc, ask.size),
               (CLIENT, 2, roce.CONNPROP, 52))
        expect("the answer", (back.source, back.xid, back.version, back.proc),
               (SERVER["ipv4"], ask.xid, 2, answer))
        expect_that(f"{back.credits} credits granted", back.credits > 0)


def all_of_version_2(messages):
    """Check the direction and the handle in every message of the session."""
    calls, kinds = {}, collections.Counter()
    for message in messages:
        expect("version", message.version, 2)
        if message.proc not in (roce.MSG, roce.NOMSG):
            expect("procedure", message.proc, roce.CONNPROP)
            continue
        from_client = message.source == CLIENT
        is_call = message.direction == roce.CALL
        if message.proc == roce.MSG and message.kind is not None:
            expect("direction", message.direction, message.kind)
            expect("XID of the RPC message", message.rpc_xid, message.xid)
        kinds[(from_client, is_call, message.proc)] += 1
        if is_call:
            named = message.handles and message.named or 0
            expect("handle to invalidate", message.named, named)
            if message.handles:
                expect_that(f"handle {message.named:#x} is none of {message.handles}",
                            message.named in message.handles)
            calls[(from_client, message.xid)] = message
        else:
            call = calls[(not from_client, message.xid)]
            expect("handle in a Reply", message.named, 0)
            if message.size < 1000:
                # A longer message ends in another packet, which has the handle.
                wanted = call.named or None
                expect("handle that the Send invalidates", message.invalidates, wanted)
    print(", ".join(f"{count} {'NOMSG' if proc else 'MSG'} {'CALL' if call else 'REPLY'} of the "
                    f"{'client' if client else 'server'}"
                    for (client, call, proc), count in sorted(kinds.items(), reverse=True)))
    for kind in ((True, True, roce.MSG), (True, True, roce.NOMSG), (False, False, roce.MSG),
                 (False, False, roce.NOMSG)):
        expect_that(f"no message of kind {kind}", kinds[kind] or kind[2] == roce.NOMSG)


def only_version_1(messages):
    """Check that only version 1 is used."""
    expect("versions", {message.version for message in messages}, {1})
    expect_that("an error report", roce.ERROR not in {message.proc for message in messages})


def speaks_2():
    """Check that both sides use version 2."""
    for version in ("3", "4.1", "4.2"):
        with case(f"NFS {version} over version 2"):
            messages, count = session(version, ["vers=2 why=agreed"],
                                      ["vers=2", "proc=CONNPROP rbsiz=4096"])
            greeting(messages, roce.CONNPROP)
            all_of_version_2(messages)
            chunks = sum(count[name] for name in ("read_chunks", "write_chunks", "reply_chunks"))
            print(f"{chunks} segments offered, {count['local_inv_needed']} invalidated locally")
            expect_that("no segment was invalidated remotely",
                        count["local_inv_needed"] < chunks)


def falls_back(version):
    """The client requests version 2, is refused, and uses version 1 on the same connection."""
    messages, count = session(version, ["vers=1 why=refused"], ["vers=1"])
    greeting(messages, roce.ERROR)
    only_version_1(messages[2:])
    expect("connections", count["connect_count"], 1)


def live(side, name):
    """Return the live view of the only connection of version 2 on that side."""
    path = STATUS.format(side)
    text = shell(f"peer 'cat {path}'") if side == "server" else "".join(
        read_file(file).decode() for file in glob.glob(path))
    found = [dict(line.split(": ", 1) for line in status.splitlines())
             for status in text.split("peer: ")[1:] for status in ["peer: " + status]]
    found = [status for status in found if status["version"] == "2"]
    expect(f"connections of version 2 as {side}", len(found), 1)
    return int(found[0][name])


def becomes(side, name, wanted, churn):
    """Wait until the live view has a value, while files are read and written."""
    begun = time.monotonic()
    while (value := live(side, name)) != wanted:
        churn.runs()
        expect_that(f"{name} of the {side} stays {value}, not {wanted}",
                    time.monotonic() < begun + 60)
        time.sleep(0.1)
    print(f"{name} of the {side} is {wanted} after {time.monotonic() - begun:.1f} s")


@contextlib.contextmanager
def sizes(server, receives, sends):
    """Mount with these sizes and do I/O; the connection must stay."""
    try:
        set_to(SERVER_RECEIVES, server, "peer")
        set_to(RECEIVES, receives)
        set_to(SENDS, sends)
        mount("4.1", "ipv4", FOLDER)
        with Churn(f"{FOLDER}/versions-sizes", meta=True) as churn:
            yield churn
            turns = churn.stop()
        count = counters(FOLDER)
        print(f"{turns} rounds of I/O")
        expect("connections", count["connect_count"], 1)
        expect("bad replies", count["bad_reply_count"], 0)
        shell(f"rm -r {FOLDER}/versions-sizes")
        umount(FOLDER)
    finally:
        set_to(SERVER_RECEIVES, SMALL, "peer")
        set_to(RECEIVES, SMALL)
        set_to(SENDS, SMALL)


def told(messages):
    """Return the messages about Receive sizes: sender and content of each."""
    names = {roce.REQPROP: "REQPROP", roce.RESPROP: "RESPROP", roce.UPDPROP: "UPDPROP"}
    return [("client" if message.source == CLIENT else "server", names[message.proc])
            for message in messages if message.proc in names]


def server_sizes():
    """Make the server's Receives larger, smaller, and larger again."""
    with traced() as events, Capture("sizes", 128) as capture, \
            sizes(SMALL, SMALL, LARGE) as churn:
        expect("what is sent at first", live("client", "send_threshold"), SMALL)
        time.sleep(2)
        set_to(SERVER_RECEIVES, LARGE, "peer")
        becomes("client", "send_threshold", LARGE, churn)
        expect("what the server has told", live("server", "receive_size"), LARGE)
        before = counters(FOLDER)["read_chunks"]
        for number in range(20):
            write_file(f"{FOLDER}/versions-sizes/inline", data(8000, number), os.O_SYNC)
        print(f"{counters(FOLDER)['read_chunks'] - before} octets of others in Read chunks")
        for size in (SMALL, LARGE, SMALL, LARGE):
            set_to(SENDS, size)
            becomes("client", "send_threshold", size, churn)
            becomes("server", "receive_size", size, churn)
    seen = told(capture.messages())
    print(" ".join(f"{who}:{what}" for who, what in seen))
    asked, updated = ("client", "REQPROP"), ("server", "UPDPROP")
    expect("REQPROPs", seen.count(asked), 5)
    expect("RESPROPs", seen.count(("server", "RESPROP")), 5)
    expect("UPDPROPs of the server", seen.count(updated), 3)
    expect("UPDPROPs of the client", seen.count(("client", "UPDPROP")), 0)
    size = f"proc=UPDPROP rbsiz={LARGE}"
    for side in events:
        expect(f"trace events of UPDPROP, {side}", events[side].count(size), 3)
    asked = [line for line in events["client"] if line.startswith("proc=REQPROP")]
    expect("trace events of REQPROP", len(asked), 5)


def client_sizes():
    """Make the client's Receives larger."""
    with Capture("sizes", 128) as capture, sizes(LARGE, SMALL, SMALL) as churn:
        expect("what is received at first", live("client", "receive_threshold"), SMALL)
        set_to(RECEIVES, LARGE)
        becomes("client", "receive_threshold", LARGE, churn)
        becomes("server", "peer_receive_size", LARGE, churn)
        time.sleep(5)
    seen = told(capture.messages())
    print(" ".join(f"{who}:{what}" for who, what in seen))
    expect("UPDPROPs of the client", seen.count(("client", "UPDPROP")), 1)


def main():
    """The group."""
    if OURS:
        with case("version 1 is spoken unless version 2 is asked for"):
            expect(ASK, read_file(ASK), b"1\n")
            only_version_1(session("4.1", ["vers=1 why=not asked for"], ["vers=1"])[0])
        set_to(ASK, 2)
    try:
        if OURS and THEIRS:
            speaks_2()
            with case("the server's Receives are exchanged under load, up and down"):
                server_sizes()
            with case("the client's Receives are exchanged under load"):
                client_sizes()
            set_to(OFFER, 1, "peer")
            with case("a server that is set to version 1"):
                falls_back("4.1")
            set_to(OFFER, 2, "peer")
        elif OURS:
            for version in ("3", "4.1", "4.2"):
                with case(f"NFS {version}: a client that asks falls back"):
                    falls_back(version)
        else:
            with case("a client that does not ask is answered in version 1"):
                only_version_1(session("4.1", [], ["vers=1"])[0])
    finally:
        if OURS:
            set_to(ASK, 1)
    with case("what is left"):
        if not OURS:
            raise Skip("the C client has no such setting")
        expect(ASK, read_file(ASK), b"1\n")
        expect("files at the server", shell(f"peer 'ls -d {EXPORT}/versions-* 2>/dev/null'",
                                            check=False).strip(), "")


main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Version 2 of RPC-over-RDMA: the request for it, the answer to that, and the messages that follow
(draft-cel-nfsv4-rpcrdma-version-two-04).

The C module speaks version 1 alone: a client that asks falls back, on the same connection.
"""

import collections
import os
import subprocess

import roce
from capture import Capture
from harness import EXPORT, SERVER, case, counters, data, expect, expect_that, mount, read_file, \
    shell, umount, write_file, Skip

CLIENT = "192.168.88.1"
FOLDER = "/mnt/versions"
OURS = os.environ.get("CLIENT_MODULE") == "rust"
THEIRS = os.environ.get("SERVER_MODULE") == "rust"
ASK = "/proc/sys/sunrpc/rdma_max_version"
OFFER = "/proc/sys/sunrpc/svc_rdma/max_version"


def io(folder):
    """Calls and Replies of every shape: inline, and with each kind of chunk."""
    for number, size in enumerate((1, 3000, 5000, 100_001, 1 << 20)):
        write_file(f"{folder}/file-{number}", data(size, number), os.O_SYNC)
    for number, size in enumerate((1, 3000, 5000, 100_001, 1 << 20)):
        expect("content", read_file(f"{folder}/file-{number}"), data(size, number))
    for number in range(200):
        os.symlink(f"target-{number}" * 20, f"{folder}/link-{number:0100d}")
    expect("entries", len(os.listdir(folder)), 205)
    subprocess.run(["rm", "-r", folder], check=True)


def session(version):
    """A mount with I/O; returns what was captured of it, and how many regions the client had to
    invalidate by itself for how many chunks."""
    with Capture("versions") as capture:
        mount(version, "ipv4", FOLDER)
        folder = f"{FOLDER}/versions-{version}"
        os.mkdir(folder)
        io(folder)
        count = counters(FOLDER)
        umount(FOLDER)
    return capture.messages(), count


def set_to(path, value, where=""):
    """Set a number, here or at the peer."""
    shell(f"peer 'echo {value} >{path}'" if where else f"echo {value} >{path}")


def greeting(messages, answer):
    """What comes first on each connection: our question, and then `answer`."""
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
    """Every message of the session says what it is."""
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
                # A longer one ends in another packet, which has the handle.
                wanted = call.named or None
                expect("handle that the Send invalidates", message.invalidates, wanted)
    print(", ".join(f"{count} {'NOMSG' if proc else 'MSG'} {'CALL' if call else 'REPLY'} of the "
                    f"{'client' if client else 'server'}"
                    for (client, call, proc), count in sorted(kinds.items(), reverse=True)))
    for kind in ((True, True, roce.MSG), (True, True, roce.NOMSG), (False, False, roce.MSG),
                 (False, False, roce.NOMSG)):
        expect_that(f"no message of kind {kind}", kinds[kind] or kind[2] == roce.NOMSG)


def only_version_1(messages):
    """Nothing but version 1 is spoken."""
    expect("versions", {message.version for message in messages}, {1})
    expect_that("an error report", roce.ERROR not in {message.proc for message in messages})


def speaks_2():
    """Both sides speak version 2."""
    for version in ("3", "4.1", "4.2"):
        with case(f"NFS {version} over version 2"):
            messages, count = session(version)
            greeting(messages, roce.CONNPROP)
            all_of_version_2(messages)
            chunks = sum(count[name] for name in ("read_chunks", "write_chunks", "reply_chunks"))
            print(f"{chunks} segments offered, {count['local_inv_needed']} invalidated locally")
            expect_that("no segment was invalidated remotely",
                        count["local_inv_needed"] < chunks)


def falls_back(version):
    """The client asks, is refused, and continues in version 1 on the same connection."""
    messages, count = session(version)
    greeting(messages, roce.ERROR)
    only_version_1(messages[2:])
    expect("connections", count["connect_count"], 1)


def main():
    """The group."""
    if OURS:
        with case("version 1 is spoken unless version 2 is asked for"):
            expect(ASK, read_file(ASK), b"1\n")
            only_version_1(session("4.1")[0])
        set_to(ASK, 2)
    try:
        if OURS and THEIRS:
            speaks_2()
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
                only_version_1(session("4.1")[0])
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

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A server of version 2 (draft-cel-nfsv4-rpcrdma-version-two-04) for the client under test, and that
client's mount. Each case has its own mount, since a client remembers for a while whether a server supports
version 2.
"""

import contextlib
import subprocess
import time

import wire
from cases import Failed, Table
from client_cases import Mount
from client_test import OPTIONS
from fake import Call, FakeServer
from server_version2 import BRS, CONNPROP, OPTIONAL, RBSIZ, REQPROP, RESPROP, UPDPROP
from version2_fuzz import in_version_2

TABLE = Table()
FOLDER = "/run/hostile-2"


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

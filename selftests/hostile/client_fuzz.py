# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Random answers for the client: valid answers with random changes, which the seed determines."""

import random
import time

import wire
from client_cases import ShortRead, hang_up
from fake import GETATTR, READ, READDIR, READLINK, SYMLINK, WRITE
from cases import Failed
from server_fuzz import WORDS
from wire import Segment

EXPECTED = "ok EIO EREMOTEIO EPROTONOSUPPORT ETIMEDOUT ENOTSUP EPFNOSUPPORT EACCES".split()


class Fuzzer:
    """Changes answers at random."""

    def __init__(self, mount, seed):
        self.mount, self.random = mount, random.Random(seed)

    def chunk(self, chunk):
        """Return a chunk as it was offered, or changed."""
        pick = self.random
        out = [Segment(s.handle, s.length, s.offset) for s in chunk]
        for _ in range(pick.choice((0, 0, 1, 2))):
            if not out:
                break
            change = pick.choice(("length", "handle", "offset", "more", "less"))
            segment = pick.choice(out)
            if change == "more":
                out.append(segment)
            elif change == "less":
                out.remove(segment)
            elif change == "length":
                segment.length = pick.choice(WORDS + (segment.length + 1, segment.length // 2))
            else:
                setattr(segment, change, pick.choice(WORDS))
        return out

    def spoil(self, call):
        """Send a random answer to `call`."""
        pick = self.random
        if pick.random() < 0.03:
            hang_up(call)
            return
        lists = {"proc": wire.MSG, "credits": pick.choice((32, 32, 32) + WORDS)}
        body = call.body
        if call.head.writes and call.payload is not None and pick.random() < 0.9:
            used = call.push(call.head.writes[0], call.payload)
            lists["writes"] = [self.chunk(used)] * pick.choice((1, 1, 1, 1, 0, 2))
            body = call.reduced
        if call.head.reply and pick.random() < 0.9:
            lists["proc"] = wire.NOMSG
            lists["reply"] = self.chunk(call.push(call.head.reply, call.body))
            body = b""
        head = wire.header(call.xid, **lists)
        data = bytearray(head + body[:4096 - len(head)])
        # Only XID, direction and reply_stat: NFS believes the results.
        end = min(len(head) + 12, len(data))
        for _ in range(pick.choice((0, 1, 1, 2, 4))):
            at = pick.randrange(1, end // 4) * 4
            if pick.random() < 0.5:
                data[at:at + 4] = wire.u32(pick.choice(WORDS))
            else:
                data[at + pick.randrange(4)] ^= 1 << pick.randrange(8)
        if pick.random() < 0.1:
            del data[pick.randrange(len(data)):]
        handles = [s.handle for s in call.head.reads]
        handles += [s.handle for c in call.head.writes for s in c]
        inv = pick.choice(handles) if handles and pick.random() < 0.5 else None
        call.send(bytes(data[:4096]), inv)
        if pick.random() < 0.2:
            call.send(bytes(data[:4096]))

    def run(self, seconds):
        """Change answers for some time. The mount must work after each."""
        mount, seen = self.mount, {}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            proc = self.random.choice((GETATTR, READ, WRITE, READDIR, READLINK, SYMLINK))
            mount.fake.answer_next(proc, self.spoil)
            try:
                result = mount.attempt(mount.operation(proc))
            except ShortRead:
                result = "short"  # what the answer claimed
            if result not in EXPECTED + ["short"]:
                raise Failed(f"procedure {proc}: {result}")
            seen[result] = seen.get(result, 0) + 1
            mount.check()
        mount.notes.append(f"{sum(seen.values())} answers: {seen}")


def add(table, args):
    """Add the fuzzer as a case."""
    @table.case(f"random answers, seed {args.fuzz}, {args.seconds} s")
    def _fuzz(mount):
        Fuzzer(mount, args.fuzz).run(args.seconds)

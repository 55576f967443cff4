# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Where a host's instructions go, by the call chains of samples.

Each sample belongs to one of

    idle       the processor halts
    nic        some frame is the software NIC's: hardware would do that work
    transport  some frame is the transport module's, and none is the NIC's
    other      none of these: nfsd, the NFS client, sunrpc, the job

and `self` is the part of transport whose innermost frame is the module's own. Samples of the
profiler itself are not counted. `host`, the cost to a machine with hardware, is the sum of
transport and other.
"""

import bisect
import struct
from collections import Counter
from dataclasses import dataclass, field

NIC = {"rdma_rxe", "siw"}
TRANSPORT = {"rpcrdma", "rpcrdma_rs"}
IDLE = {"pv_native_safe_halt", "default_idle", "mwait_idle", "intel_idle"}
# Records of perf_event_open(2).
LOST, SAMPLE = 2, 9
HEADER, BODY = struct.Struct("IHH"), struct.Struct("QIIQ")
# Values from here on are not addresses but markers of the context of the addresses after them.
CONTEXTS = (1 << 64) - 4095
USER = ("user space", "")


class Symbols:
    """The functions of a kernel, by address."""

    def __init__(self, kallsyms):
        """Parse `kallsyms`, lines in the format of /proc/kallsyms."""
        found = {}
        for line in kallsyms:
            address, kind, name, *module = line.split()
            if kind in "tTwW":
                found.setdefault(int(address, 16), (name, module[0].strip("[]") if module else ""))
        self.addresses = sorted(found)
        self.names = [found[address] for address in self.addresses]

    def at(self, address):
        """Return function and module ("" for the kernel itself) of an address."""
        if address < 1 << 63:
            return USER
        return self.function(address)[1]

    def function(self, address):
        """Return the first address of the function that contains an address of the kernel, and its
        name and module."""
        place = bisect.bisect_right(self.addresses, address) - 1
        return (self.addresses[place], self.names[place]) if place >= 0 else (0, ("?", ""))


@dataclass
class Split:
    """Numbers of samples: of each part, and of functions within some of them."""

    parts: Counter = field(default_factory=Counter)
    own: Counter = field(default_factory=Counter)
    # Pairs of the innermost function of the module, and the leaf below it.
    through: Counter = field(default_factory=Counter)
    other: Counter = field(default_factory=Counter)
    nic: Counter = field(default_factory=Counter)

    def add(self, frames):
        """Add one sample: its functions and their modules, innermost first."""
        modules = {module for _, module in frames}
        leaf, of_leaf = frames[0]
        if any(name in IDLE for name, _ in frames[:3]):
            part = "idle"
        elif modules & NIC:
            part = "nic"
            self.nic[leaf] += 1
        elif modules & TRANSPORT:
            part = "transport"
            own = next(name for name, module in frames if module in TRANSPORT)
            if of_leaf in TRANSPORT:
                self.parts["self"] += 1
                self.own[leaf] += 1
            else:
                self.through[own, leaf] += 1
        else:
            part = "other"
            self.other[leaf] += 1
        self.parts[part] += 1
        self.parts["whole"] += 1
        if part in ("transport", "other"):
            self.parts["host"] += 1


def samples(records):
    """Yield the samples among the kernel's records, in the format that events.py requests: the
    process, and the addresses of the call chain, innermost first."""
    place = 0
    while place < len(records):
        kind, _, size = HEADER.unpack_from(records, place)
        if kind == LOST:
            raise ValueError("the kernel has lost samples")
        if kind == SAMPLE:
            ip, process, _, count = BODY.unpack_from(records, place + HEADER.size)
            chain = struct.unpack_from(f"{count}Q", records, place + HEADER.size + BODY.size)
            yield process, [address for address in chain if address < CONTEXTS] or [ip]
        place += size


def split(records, profiler, symbols):
    """Return the Split of the kernel's records; `profiler` is the process to omit."""
    result = Split()
    cache = {}
    for process, addresses in samples(records):
        if process == profiler:
            continue
        frames = []
        for address in addresses:
            if address not in cache:
                cache[address] = symbols.at(address)
            frames.append(cache[address])
        result.add(frames)
    return result


def executed(lines, symbols, module):
    """Return the executions of each instruction of a module, by function and offset in it, from the
    lines of insns.c."""
    found = {}
    for line in lines:
        address, count = line.split()
        start, (name, of) = symbols.function(int(address, 16))
        if of == module:
            found[name, int(address, 16) - start] = int(count)
    return found


def totals(counts):
    """Return the instructions and the calls of each function, from the result of `executed`."""
    instructions, calls = Counter(), Counter()
    for (name, offset), count in counts.items():
        instructions[name] += count
        if offset == 0:
            calls[name] += count
    return instructions, calls

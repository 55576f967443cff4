# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The lines that a kernel log must not have, for use in a guest and on the host."""

import os
import re

FAULT = re.compile(
    r"WARNING:|BUG|Oops|refcount_t|corruption|KASAN|KFENCE|UBSAN"
    r"|general protection|rcu: INFO|rcu.*kthread starved|INFO: task .* blocked|hung task"
    r"|blocked for more than|Call Trace|scheduling while atomic|sleeping function called"
    r"|soft lockup|unregister_netdevice: waiting|Kernel panic|invalid opcode"
    r"|page allocation failure|Out of memory|panicked"
    r"|DMA-API: (?!preallocated|debugging enabled)|kmemleak:.*new"
)


# The lines of lockdep's reports that name the locks.
LOCK = re.compile(r"\((\S+)\)\{\S+, at: (\w+)\+")


def log_faults(text):
    """Return the lines of a kernel log that no test may cause. Those of a lockdep report include the
    lines that name its locks."""
    lines, found = text.splitlines(), []
    for number, line in enumerate(lines):
        if FAULT.search(line):
            locks = LOCK.findall("\n".join(lines[number:number + 9])) if "WARNING:" in line else ()
            found.append("; ".join([line, *(f"{lock} in {where}" for lock, where in locks)]))
    return found


# rxe hands a packet to a queue pair and then wakes the queue pair, which may be gone by then. It warns
# twice. See Documentation/known-issues.rst. This happens once in several hundred thousand messages.
RXE_WAKES_LATE = 2 * (r"WARNING: drivers/infiniband/sw/rxe/rxe_task\.c:\d+ at rxe_sched_task",)


def unknown(faults, known, say):
    """Return the faults of a kernel log without the first warning of each known kind and its
    call trace."""
    left, known, traced = [], list(known), True
    for line in faults:
        kind = next((kind for kind in known if re.search(kind, line)), None)
        if kind:
            say(f"known issue: {line}")
            known.remove(kind)
            traced = False
        elif not traced and "Call Trace:" in line:
            traced = True
        else:
            left.append(line)
    return left


class KernelLog:
    """The kernel log of this machine from the object's creation on."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def faults(self):
        """Return the lines since the last call that no test may cause."""
        found = []
        while True:
            try:
                text = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return found
            except BrokenPipeError:  # The kernel overwrote lines before they were read.
                continue
            found += log_faults(text.split(";", 1)[-1].split("\n")[0])

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A table of cases, run one by one; the kernel log is checked after each. The guests' harness prints
the results."""

import argparse
import glob
import os
import re
import sys

sys.path.append(os.path.join(os.path.dirname(__file__), "../guest"))

import harness  # noqa: E402
from harness import Skip, shell  # noqa: E402, F401  (also for the cases)
from kernel_log import RXE_WAKES_LATE, KernelLog, unknown  # noqa: E402


def leave(main):
    """Run the main function of a test, and end the process with its status: other threads do not end."""
    status = main()
    sys.stdout.flush()
    os._exit(status)


class Failed(AssertionError):
    """The outcome is not the expected one."""


class Table:
    """Cases in the order of their definition."""

    def __init__(self):
        self.cases = []

    def case(self, name, skip=None, **fixed):
        """Decorator: add a case of this name. `skip` is the reason why it cannot run here, `fixed` are
        further arguments."""
        def skipped(*_, **__):
            raise Skip(skip)

        def add(function):
            self.cases.append((name, skipped if skip else function, fixed))
            return function
        return add

    def arguments(self, description, fuzz=None):
        """Parse the command line of a test. `fuzz` adds the random cases to the table."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--kind", choices=("c", "rust"), required=True)
        parser.add_argument("--only", metavar="REGEX", help="cases whose name it is found in")
        if fuzz:
            parser.add_argument("--fuzz", type=int, metavar="SEED", help="add random cases")
            parser.add_argument("--seconds", type=int, default=20, help="for how long")
            parser.add_argument("--messages", type=int, default=10_000,
                                help="how many of version 2")
        parser.add_argument("address")
        parser.add_argument("port", type=int)
        args = parser.parse_args()
        if fuzz and args.fuzz is not None:
            fuzz(self, args)
        return args

    def run(self, subject, after, only=None):
        """Run all cases. `subject` is each case's first argument, `after` is called after each. Return the
        number of failures."""
        log = KernelLog()
        cases = [case for case in self.cases if not only or re.search(only, case[0])]
        if not cases:
            raise SystemExit(f"error: no case has '{only}' in its name")
        failures = 0
        for name, function, fixed in cases:
            with harness.case(name):
                failures += 1
                try:
                    one(subject, lambda: function(subject, **fixed), after, log)
                except Skip:
                    failures -= 1
                    raise
                failures -= 1
        return failures


def views(side):
    """Return the live view of each connection of a side, "client" or "server"."""
    found = []
    for path in glob.glob(f"/sys/kernel/debug/rpcrdma_rs/{side}/*/status"):
        with open(path, encoding="ascii") as file:
            found.append(dict(line.strip().split(": ", 1) for line in file))
    return found


def one(subject, function, after, log):
    """Run one case. Then run the checks after it, even if it failed."""
    subject.notes = []
    wrong = []
    skipped = None
    try:
        function()
    except Skip as reason:
        skipped = reason
    except Exception as error:  # pylint: disable=broad-except
        wrong.append(error)
    for note in subject.notes:
        print(note)
    try:
        after()
    except Exception as error:  # pylint: disable=broad-except
        print(f"afterwards: {error!r}")
        wrong.append(error)
    if faults := unknown(log.faults(), RXE_WAKES_LATE * (4 if harness.LONG else 1), print):
        print("\n".join(f"kernel log: {line}" for line in faults[:5]))
        wrong.append(Failed("the kernel log has faults"))
    if wrong:
        raise wrong[0]
    if skipped:
        raise skipped

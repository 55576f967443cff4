# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""A table of cases, run one by one, with KTAP output and an eye on the log."""

import argparse
import os
import re
import sys
import time
import traceback

sys.path.append(os.path.join(os.path.dirname(__file__), "../guest"))

from harness import Skip, shell  # noqa: E402, F401  (also for the cases)
from kernel_log import log_faults  # noqa: E402


class Failed(AssertionError):
    """What was seen is not what has to be."""


class KernelLog:
    """The kernel log from now on."""

    def __init__(self):
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def faults(self):
        """Lines written since the last call that no case may cause."""
        found = []
        while True:
            try:
                text = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return found
            except BrokenPipeError:  # overwritten before we read it
                continue
            found += log_faults(text.split(";", 1)[-1].split("\n")[0])


class Table:
    """Cases in the order of their definition."""

    def __init__(self):
        self.cases = []

    def case(self, name, skip=None, **fixed):
        """Decorator: a case of this name; `skip` is why it cannot be run here, `fixed` are further
        arguments."""
        def skipped(*_, **__):
            raise Skip(skip)

        def add(function):
            self.cases.append((name, skipped if skip else function, fixed))
            return function
        return add

    def arguments(self, description, fuzz=None):
        """The command line of a test; `fuzz` adds random cases, by seed and seconds, to a table."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--kind", choices=("c", "rust"), required=True)
        parser.add_argument("--only", metavar="REGEX", help="cases whose name it is found in")
        if fuzz:
            parser.add_argument("--fuzz", type=int, metavar="SEED", help="add random cases")
            parser.add_argument("--seconds", type=int, default=20, help="for how long")
        parser.add_argument("address")
        parser.add_argument("port", type=int)
        args = parser.parse_args()
        if fuzz and args.fuzz is not None:
            fuzz(self, args.fuzz, args.seconds)
        return args

    def run(self, subject, after, only=None):
        """Run all; `subject` is each case's first argument, `after` is called after
        each. Returns the number of failures."""
        log = KernelLog()
        cases = [case for case in self.cases if not only or re.search(only, case[0])]
        if not cases:
            raise SystemExit(f"error: no case has '{only}' in its name")
        failures = 0
        print(f"KTAP version 1\n1..{len(cases)}", flush=True)
        for number, (name, function, fixed) in enumerate(cases, 1):
            start = time.monotonic()
            verdict, notes = "ok", []
            directive = ""
            try:
                subject.notes = notes
                function(subject, **fixed)
            except Skip as reason:
                directive = f" # SKIP {reason}"
            except Exception:
                verdict = "not ok"
                notes += traceback.format_exc().splitlines()[-6:]
            try:
                after()
            except Exception as error:
                verdict = "not ok"
                notes.append(f"afterwards: {error!r}")
            if faults := log.faults():
                verdict = "not ok"
                notes += [f"kernel log: {line}" for line in faults[:5]]
            failures += verdict != "ok"
            for note in notes:
                print(f"# {note}")
            seconds = time.monotonic() - start
            timing = f"# {name}: {seconds:.1f} s\n" if seconds > 2 else ""
            print(f"{timing}{verdict} {number} {name}{directive}", flush=True)
        return failures

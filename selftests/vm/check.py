# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run the guest tests and print their results as KTAP.

A boot is one start of one or two guests; it runs the groups of tests that suit
it, one after the other, in the client guest. A group is a script of
selftests/guest that prints "ok - NAME", "not ok - NAME" or "skip - NAME # WHY"
for each of its tests, and anything else as a remark. Each group is followed by tests
of its own: that it has run to its end and that the kernel log of each guest is
clean; in the debug kernel, that no memory has leaked; at the end of the boot,
that nothing of the module is left.
"""

import argparse
import contextlib
import glob
import os
import re
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock

from guest import GuestError
from kernel_log import RXE_WAKES_LATE, unknown
from run import Pair, add_machine_options, default_module, host_name, host_path, machine, \
    run_folder, say

MIXED = ("rust/c", "c/rust")
PAIRINGS = MIXED + ("rust/rust",)
MODULE = {"c": "rpcrdma", "rust": "rpcrdma_rs"}
LIB = ". /t/guest/lib.sh\n"
# The test modules, as built for the debug kernel.
TEST_MODULES = (
    "/src/.debug/selftests/kunit/rpcrdma_kunit.ko",
    "/src/.debug/selftests/kapi/rpcrdma_kapi_test.ko",
)
# Files that are installed together with the module.
INSTALLED = (
    "/src/rpcrdma_rs/modprobe.d/rpcrdma_rs.conf",
    "/src/rpcrdma_rs/udev/60-rpcrdma_rs.rules",
    "/src/rpcrdma_rs/tools/rpcrdma-top",
    "/src/Documentation/troubleshooting.rst",
)
# Factors for a group's time limit: for the debug kernel, for --long, and for a slow machine.
DEBUG_SLOWER, LONG_SLOWER, MACHINE_SLOWER = 6, 10, 3

EPILOG = """
Examples:
  selftests/vm/check                                   everything
  selftests/vm/check --boot pair --pairing rust/c      one pairing
  selftests/vm/check --boot pair --pairing c/c --group matrix-4.1-ipv4
  selftests/vm/check --boot pair --pairing c/c --long --group recall --repeat 50
                                                       in search of a rare failure
  selftests/vm/check --debug --device siw              the debug kernel's part, over siw alone
The last line is "N passed, N failed[, N skipped]"; exit status 0 if none failed.
"""


@dataclass
class Group:
    """A script that runs in the client guest."""

    name: str
    script: str
    seconds: int = 300
    # Warnings of the kernel that Documentation/known-issues.rst expects of this group.
    known: tuple = ()


def pair_groups():
    """Return the groups that every pairing runs, in one boot of two guests."""
    groups = [
        Group(f"matrix-{version}-{family}",
              f"python3 -B /t/guest/matrix.py {version} {family}")
        for family in ("ipv4", "ipv6") for version in ("3", "4.0", "4.1", "4.2")
    ]
    groups.append(Group("observe", "python3 -B /t/guest/observe.py"))
    groups.append(Group("load", "python3 -B /t/guest/load.py"))
    groups.append(Group("recall", "python3 -B /t/guest/recall.py"))
    groups.append(Group("versions", "python3 -B /t/guest/versions.py"))
    groups.append(Group("kerberos", "python3 -B /t/guest/kerberos.py"))
    groups.append(Group("answers", "python3 -B /t/guest/answers.py"))
    return groups


# The groups of pair_groups() that only run with --long: a version of NFS knows nothing of the address
# family, and two of them run over IPv6 as well.
ONLY_LONG = ("matrix-4.0-ipv6", "matrix-4.1-ipv6")
# With the C server, recalls were not seen to complete in time.
ONLY_LONG_IN = {"rust/c": ("recall",), "c/c": ("recall",)}


def named(groups, *names):
    """Return the groups that have one of these names."""
    return [group for group in groups if group.name in names]


# For Rust on both sides; with --long in every pairing.
MORE_GROUPS = [
    Group("live", "python3 -B /t/guest/live.py"),
    Group("settings", "python3 -B /t/guest/settings.py"),
    Group("filesystems", "python3 -B /t/guest/filesystems.py"),
    Group("namespaces", "python3 -B /t/guest/namespaces.py"),
]


# For Rust on both sides, only with --long; at the end of a boot, as the client refuses unsigned modules
# afterwards.
LAST = [Group("symptoms", "python3 -B /t/guest/symptoms.py")]


def over_version_2(name, script, seconds=300, spoken=2):
    """Return a group whose client, this module, asks for version 2 of RPC-over-RDMA; `spoken` is the
    version of the server's answer."""
    return Group(f"version2-{name}", f"over_version_2 {spoken} python3 -B /t/guest/{script}", seconds)


# For Rust on both sides.
VERSION_2 = [
    over_version_2("matrix-3-ipv4", "matrix.py 3 ipv4"),
    over_version_2("matrix-4.2-ipv6", "matrix.py 4.2 ipv6"),
    over_version_2("load", "load.py"),
    over_version_2("recall", "recall.py"),
]
VERSION_2_FAULTS = [
    over_version_2("faults", "faults.py", 400),
    over_version_2("disconnects", "disconnects.py", 500),
]
# The same with the C server, which answers in version 1; with --long alone.
FALL_BACK = [
    over_version_2("matrix-3-ipv4", "matrix.py 3 ipv4", spoken=1),
    over_version_2("matrix-4.2-ipv6", "matrix.py 4.2 ipv6", spoken=1),
    over_version_2("load", "load.py", spoken=1),
    over_version_2("recall", "recall.py", spoken=1),
]
FALL_BACK_FAULTS = [
    over_version_2("faults", "faults.py", 400, spoken=1),
    over_version_2("disconnects", "disconnects.py", 500, spoken=1),
]

FAULTS = [
    Group("removal", "python3 -B /t/guest/removal.py", 400),
    Group("faults", "python3 -B /t/guest/faults.py", 400),
]
# For Rust on both sides; with --long in every pairing.
MORE_FAULTS = [
    Group("disconnects", "python3 -B /t/guest/disconnects.py", 500),
    Group("netem", "python3 -B /t/guest/netem.py", 600,
          (r"WARNING: drivers/infiniband/sw/rxe/rxe_comp\.c:\d+ at rxe_completer",)),
    Group("teardown", "python3 -B /t/guest/teardown.py", 300),
]
# Only with --long: groups that take long, or that were not seen to pass in every pairing.
LONG_FAULTS = [
    Group("addresses", "python3 -B /t/guest/addresses.py", 400),
    Group("recall-ends", "python3 -B /t/guest/recall_ends.py", 600),
    Group("swap", "python3 -B /t/guest/swap.py", 600),
    Group("pressure", "python3 -B /t/guest/pressure.py", 600),
    Group("idle", "python3 -B /t/guest/idle.py", 600),
]
ALONE = [
    Group("setup", "python3 -B /t/guest/setup.py", 200),
    Group("cycles", "python3 -B /t/guest/cycles.py 30", 500),
]


# A peer that breaks the rules, in one guest with nfsd.
HOSTILE = Group(
    "hostile",
    "module_load rust && server_start && client_start && bash /t/hostile/run.sh rust", 540,
    (r"WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe .*; clock-AF_INET in inet_child_forget",
     *RXE_WAKES_LATE))
# For several processors: with --long, too, the default number of random messages.
HOSTILE_BRIEF = replace(HOSTILE, script="LONG=\n" + HOSTILE.script)


@dataclass
class Totals:
    """The sums over all groups; several boots may add to them at the same time."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    plans: int = 0
    failures: list = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def add(self, results, seconds):
        """Print the end of a group and its lines that were not printed yet; add its counts."""
        with self.lock:
            for line in results.lines:
                print(line)
            self.plans += 1
            mark = "not ok" if results.failed else "ok"
            print(f"    1..{results.number}\n{mark} {self.plans} {results.group}\n"
                  f"# {results.group}: {seconds:.0f} s", flush=True)
            self.passed += results.passed
            self.failed += results.failed
            self.skipped += results.skipped
            self.failures += results.failures


class Results:
    """Counts and KTAP lines of one group. Lines are printed at once or, when another boot runs at
    the same time, at the end of the group."""

    def __init__(self, totals, live):
        self.totals, self.live = totals, live
        self.begin("")

    def begin(self, group):
        """Begin a group, a KTAP subtest."""
        self.group, self.number, self.lines, self.failures = group, 0, [], []
        self.said = []
        self.passed = self.failed = self.skipped = 0
        if group:
            self.say(f"    # Subtest: {group}")

    def say(self, text):
        """Print a line of this group, or store it."""
        self.said.append(text)
        if self.live:
            print(text, flush=True)
        else:
            self.lines.append(text)

    def remark(self, text):
        """Print a remark on this group, or store it."""
        self.say(f"    # {text}")

    def case(self, ok, name, why=""):
        """Count and print one test of the group."""
        self.number += 1
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            self.failures.append(f"{self.group}: {name}{': ' + why if why else ''}")
        self.say(f"    {'ok' if ok else 'not ok'} {self.number} {name}")
        if why:
            self.say(f"    # {why}")

    def skip(self, name):
        """Count and print a test that could not run; its name ends with the reason."""
        self.number += 1
        self.skipped += 1
        name, _, why = name.partition(" # ")
        self.say(f"    ok {self.number} {name} # SKIP {why}")

    def line(self, text):
        """Handle a line that a group printed."""
        kind = re.match(r"(ok|not ok|skip) (?:\d+ )?(?:- )?(.*)", text)
        if not kind:
            self.say(f"    # {text}")
        elif kind[1] == "skip" or "# SKIP" in kind[2]:
            self.skip(kind[2].replace("# SKIP", "#"))
        else:
            self.case(kind[1] == "ok", kind[2])

    def end(self, started):
        """End a group that began at `started`."""
        self.totals.add(self, time.time() - started)


class Boot:
    """A start of one or two guests, and the groups that run in them."""

    def __init__(self, name, client, server, groups, alone=False, device=None, cpus=1):
        self.name = name
        self.device, self.cpus = device, cpus
        self.debug, self.long = False, ""
        self.client, self.server = client, server
        self.groups = groups
        self.alone = alone
        self.folder, self.pair = "/cache/runs", None
        self.results = None
        self.lost_faults = []

    def run(self, totals, args):
        """Boot, run the groups, shut down."""
        results = self.results = Results(totals, args.live)
        self.debug = args.debug
        self.long = "yes" if args.long else ""
        started = time.time()
        try:
            try:
                self.start(args)
            except GuestError as error:
                # A guest that has not accepted a job yet has no module under test.
                say(f"{self.name}: {error}; see {host_name(self.folder)}; once more")
                self.start(args)
            if not self.alone:
                self.pair.set_up(self.client, self.server)
            say(f"{self.name}: ready after {time.time() - started:.0f} s")
            self.run_groups(args.repeat)
            if not self.alone:
                self.nothing_left()
            self.shut_down()
        except (GuestError, OSError) as error:
            if self.pair is None or not results.group.startswith(self.name):
                results.begin(f"{self.name} boot")
            results.case(False, "guests work", f"{error}; see {host_name(self.folder)}")
            if self.pair:
                self.keep_output("failed-guests")
            results.end(started)
        finally:
            if self.pair:
                self.pair.kill()

    def start(self, args):
        """Start the guests, with a run directory of their own."""
        module = None
        if "rust" in (self.client, self.server):
            module = host_path(args.module) if args.module else default_module(args)
        self.folder = run_folder(re.sub(r"\W", "-", self.name), module)
        if module:
            for file in INSTALLED:
                shutil.copy(file, self.folder)
        if self.debug:
            for file in TEST_MODULES:
                shutil.copy(file, self.folder)
        say(f"{self.name}: boot, run folder {host_name(self.folder)}")
        kind = machine(args, self.device, self.cpus)
        self.pair = Pair(self.folder, kind, self.alone, echo=lambda line: None)

    def run_groups(self, times):
        """Run the groups so many times, but stop after a failure: what it left is evidence."""
        for number in range(times):
            for group in self.groups:
                failed = self.run_group(group)
                if failed and times > 1:
                    say(f"{self.name}: {group.name} failed in run {number + 1} of {times}")
                    return

    def run_group(self, group):
        """Run one group and check the kernel logs; return how many tests failed."""
        results, started = self.results, time.time()
        results.begin(f"{self.name} {group.name}")
        pair = self.pair
        variables = (f"export CLIENT_MODULE={self.client} SERVER_MODULE={self.server} "
                     f"LONG={self.long} DEBUG={'yes' if self.debug else ''}\n")
        seconds = (group.seconds * MACHINE_SLOWER * (DEBUG_SLOWER if self.debug else 1)
                   * (LONG_SLOWER if self.long else 1))
        status = pair.client.run(LIB + variables + group.script, seconds, self.on_line)
        results.case(status == 0, "group runs to its end",
                     "" if status == 0 else f"exit status {status}")
        if results.failed:
            self.keep_evidence(group.name)
        if status != 0:
            # The next group must not find the mounts of this one.
            pair.client.run("umount -a -f -l -t nfs,nfs4", 60, lambda line: None)
        failed = results.failed
        # No later group queries kmemleak again.
        last = self.alone and group is self.groups[-1]
        self.guests_are_well(group.known, last)
        if self.lost_faults:
            results.case(False, "kernel log of the killed guest is clean",
                         "; ".join(self.lost_faults[:5]))
            self.lost_faults = []
        if results.failed > failed:
            self.keep_evidence(group.name)
        results.end(started)
        return results.failed

    def keep_evidence(self, group):
        """Keep the evidence of a failed group in a directory of the run directory, which also has
        the module, the consoles and the scripts; print its path."""
        name = f"failed-{group}"
        for guest in self.pair.guests:
            with contextlib.suppress(GuestError):
                guest.run(LIB + f"keep_evidence {name}", 60, lambda line: None)
        self.keep_output(name)

    def keep_output(self, name):
        """Write the output of the group to that directory; print its path."""
        os.makedirs(f"{self.folder}/{name}", exist_ok=True)
        with open(f"{self.folder}/{name}/output", "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in self.results.said)
        self.results.say(f"    # kept: {host_name(self.folder)}/{name}")

    def guests_are_well(self, known=(), last=False):
        """Check the guests' logs for faults and, in the debug kernel, for leaks. kmemleak reports a
        recent leak only at the second query: the next time, or at once if this is the last."""
        guests, leaks = self.pair.guests, {}
        if self.debug:
            # A query takes a guest 15 s.
            script = LIB + ("memory_leaks; sleep 5; memory_leaks" if last else "memory_leaks")
            with ThreadPoolExecutor() as pool:
                leaks = dict(zip(guests, pool.map(
                    lambda guest: guest.output(script, 300), guests)))
        for guest in guests:
            faults = unknown(guest.new_log_faults(), known, self.results.remark)
            self.results.case(not faults, f"kernel log of {guest.name} is clean",
                              "; ".join(faults[:5]))
            if guest in leaks:
                self.results.case(not leaks[guest], f"no memory of {guest.name} has leaked",
                                  leaks[guest].replace("\n", "\n    # "))

    def on_line(self, text):
        """Handle a line of a group: "@restart-server" is a request, any other line a result."""
        if text == "@restart-server":
            # In this thread: QEMU is set to die with the thread that starts it.
            self.restart_server()
        else:
            self.results.line(text)

    def restart_server(self):
        """Kill the server guest as a power cut would, and start it again."""
        self.lost_faults += self.pair.restart_server()

    def shut_down(self):
        """Shut the guests down, and check their logs since the last group."""
        started = time.time()
        self.results.begin(f"{self.name} shut down")
        for name, faults in self.pair.stop().items():
            faults = unknown(faults, (), self.results.remark)
            self.results.case(not faults, f"kernel log of {name} is clean to its end",
                              "; ".join(faults[:5]))
        self.results.end(started)

    def nothing_left(self):
        """Check that the modules are not in use after unmounting and stopping nfsd."""
        results, pair, started = self.results, self.pair, time.time()
        results.begin(f"{self.name} nothing left")
        pair.client.run(LIB + "umount -a -t nfs,nfs4", 60)
        pair.server.run(LIB + "server_stop", 60)
        for guest, kind in ((pair.client, self.client), (pair.server, self.server)):
            left = guest.output(LIB + "settle; rdma_leftovers || :")
            results.case(not left, f"{guest.name}: no RDMA resource", left.replace("\n", "; "))
            refs = guest.output(LIB + f"module_idle {MODULE[kind]}").strip()
            results.case(refs == "0", f"{guest.name}: use count of {MODULE[kind]} is 0",
                         "" if refs == "0" else f"it is '{refs}'")
            lines = []
            status = guest.run(f"rmmod {MODULE[kind]}", 60, lines.append)
            results.case(status == 0, f"{guest.name}: {MODULE[kind]} can be removed",
                         "; ".join(lines))
        self.guests_are_well(last=True)
        results.end(started)


# The groups for the debug kernel, in which everything takes several times as long: one version
# of NFS over each address family, then all groups about connections and memory. With the C
# module as peer no other code of this module runs, and NFS does not depend on the device.
DEBUG_PAIR = ("matrix-3-ipv6", "matrix-4.2-ipv4", "load", "recall")
DEBUG_MIXED = {"rxe": DEBUG_PAIR[1:], "siw": ("load",)}


def suites():
    """Return the names of the KUnit suites in the sources."""
    names = []
    for room in ("rpcrdma_rs", "clnt", "svc"):
        for path in sorted(glob.glob(f"/src/{room}/**/kunit.rs", recursive=True)):
            with open(path, encoding="utf-8") as file:
                names += re.findall(r"^#\[kunit_tests\((\w+)\)\]", file.read(), re.MULTILINE)
    return names


def debug_version_2(device):
    """Return the boots over version 2 with the debug kernel; the hostile peer always speaks it as
    well."""
    groups = [group for group in VERSION_2 if group.name.removeprefix("version2-") in
              DEBUG_MIXED[device]]
    every = [Boot("version2 rust/rust", "rust", "rust", groups + VERSION_2_FAULTS)]
    if device == "rxe":
        # Loading and listening are the same in each version.
        every.append(Boot("version2 rust", "rust", "rust", [
            Group("version2-allocations",
                  "RPCRDMA_VERSION=2 python3 -B /t/guest/allocations.py connect io callback teardown",
                  900)], alone=True))
    return every


def debug_boots(pairings, device, version_2):
    """Return the boots with the debug kernel, over a device of this kind; with `version_2` also
    those over version 2."""
    every = [Boot(f"pair {p}", *p.split("/"),
                  [group for group in pair_groups()
                   if group.name in (DEBUG_MIXED[device] if p in MIXED else DEBUG_PAIR)
                   and (group.name != "recall" or device == "rxe" and p.endswith("/rust"))])
             for p in pairings]
    # Booting two more guests, and checking them at the end, would take minutes.
    every[-1].groups += FAULTS + MORE_FAULTS[:1]
    alone = [
        Group("kunit", f"python3 -B /t/guest/kunit.py /t/rpcrdma_kunit.ko {' '.join(suites())}"),
        Group("kapi", "MODULE=/t/rpcrdma_kapi_test.ko . /t/guest/kapi.sh", 100),
        Group("cycles", "python3 -B /t/guest/cycles.py 10", 500),
    ]
    # The allocations do not depend on the device. The longest boot comes first.
    if device == "rxe":
        every.append(Boot("allocations rust", "rust", "rust", [
            Group("allocations", "python3 -B /t/guest/allocations.py", 900)], alone=True))
    if version_2 and "rust/rust" in pairings:
        every += debug_version_2(device)
    # Contending threads of KUnit must really run at the same time.
    every.append(Boot("alone rust", "rust", "rust", alone, alone=True, cpus=2))
    every.append(Boot("hostile rust", "rust", "rust", [HOSTILE], alone=True))
    return every


def boots(pairings, long, device):
    """Return all boots with Debian's kernel."""
    every = [Boot(f"pair {p}", *p.split("/"),
                  [group for group in pair_groups()
                   if long or group.name not in ONLY_LONG + ONLY_LONG_IN.get(p, ())]
                  + (MORE_GROUPS if long or p not in MIXED else [])
                  + (VERSION_2 if p == "rust/rust" else [])
                  + (FALL_BACK if long and p == "rust/c" else [])
                  + (LAST if long and p == "rust/rust" else []))
             for p in pairings]
    # The longest one runs next to the first pair.
    every.append(Boot("hostile rust", "rust", "rust", [HOSTILE], alone=True))
    every.append(Boot("alone rust", "rust", "rust", ALONE, alone=True))
    for pairing in pairings:
        more = MORE_FAULTS if long or pairing not in MIXED else []
        more = more + (LONG_FAULTS if long else [])
        every.append(Boot(f"faults {pairing}", *pairing.split("/"), FAULTS + more))
    # In a boot of its own: a group cannot attach the same disk to the server twice.
    if long and "rust/rust" in pairings:
        every.append(Boot("faults rust/rust version2", "rust", "rust", VERSION_2_FAULTS))
    if long and "rust/c" in pairings:
        every.append(Boot("faults rust/c version2", "rust", "c", FALL_BACK_FAULTS))
    # siw breaks connections in ways of its own.
    if device == "rxe" and "rust/rust" in pairings:
        every.append(Boot("siw rust/rust", "rust", "rust",
                          named(pair_groups(), "load")
                          + (named(MORE_GROUPS, "settings") if long else [])
                          + FAULTS[:1] + MORE_FAULTS[:1], device="siw"))
    if long and "rust/rust" in pairings:
        every += more_cpus()
    return every


def more_cpus():
    """Return boots with two and with four processors, for this module on both sides."""
    groups = named(pair_groups() + FAULTS + MORE_FAULTS, "load", "recall", "faults", "disconnects")
    found = []
    for cpus in 2, 4:
        found.append(Boot(f"cpus rust/rust {cpus}", "rust", "rust", groups, cpus=cpus))
        found.append(Boot(f"cpus rust {cpus}", "rust", "rust", [HOSTILE_BRIEF], alone=True, cpus=cpus))
    return found


def every_boot(args, pairings, device):
    """Return all boots, over a device of this kind. A boot for another kind of device has that in
    its name."""
    version_2 = args.long or "version2" in (args.boot or ())
    found = (debug_boots(pairings, device, version_2) if args.debug
             else boots(pairings, args.long, device))
    for boot in found:
        boot.device = boot.device or device
        if args.debug or device != "rxe":
            boot.name += f"{' debug' if args.debug else ''} {device}"
    return found


def positive(text):
    """The value of --repeat."""
    if int(text) < 1:
        raise ValueError("less than once")
    return int(text)


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="check", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairing", action="append", metavar="CLIENT/SERVER",
                        choices=PAIRINGS + ("c/c",),
                        help="modules of client and server, each rust or c (default: all but c/c)")
    parser.add_argument("--boot", action="append",
                        choices=("pair", "faults", "siw", "cpus", "allocations", "alone", "hostile",
                                 "version2"),
                        help="only boots of this kind (version2: in the debug kernel)")
    parser.add_argument("--group", action="append", metavar="NAME",
                        help="only groups whose name begins with NAME")
    parser.add_argument("--repeat", type=positive, default=1, metavar="TIMES",
                        help="run the groups of a boot up to so many times, until one fails")
    parser.add_argument("--module", metavar="FILE",
                        help="our module (default: as built for the guests' kernel)")
    parser.add_argument("--long", action="store_true",
                        help="also run the groups and cases that take long")
    add_machine_options(parser, None, " (default rxe; with --debug both)")
    parser.add_argument("--list", action="store_true", help="name the groups, run nothing")
    return parser.parse_args()


def main():
    """The tool."""
    # An interrupt ends the boots as well: their guests die with this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    args = arguments()
    totals = Totals()
    chosen = []
    pairings = args.pairing or PAIRINGS
    devices = [args.device] if args.device else ["rxe", "siw"] if args.debug else ["rxe"]
    every = [boot for device in devices for boot in every_boot(args, pairings, device)]
    for boot in every:
        if args.group:
            boot.groups = [g for g in boot.groups if g.name.startswith(tuple(args.group))]
        if boot.groups and (not args.boot or boot.name.split()[0] in args.boot):
            chosen.append(boot)
    if not chosen:
        sys.exit("error: no boot has such a group; run --long --list to see all of them")
    if args.list:
        for boot in chosen:
            print(f"{boot.name}: {' '.join(group.name for group in boot.groups)}")
        return 0
    print("KTAP version 1", flush=True)

    # Two guests wait for each other a third of the time. Other boots use the processor time that they
    # leave. The debug kernel is too slow for more than one other guest.
    others = [boot for boot in chosen if
              (boot.alone if args.debug else not boot.name.startswith("pair"))]
    if args.debug:
        # The hostile peer takes half an hour over each device. It starts before the shorter boots
        # named "alone", so that both threads end at about the same time.
        others.sort(key=lambda boot: boot.name.startswith("alone"))
    first = [boot for boot in chosen if boot not in others]
    args.live = not others or len(chosen) == 1

    def run_first():
        for boot in first:
            boot.run(totals, args)

    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(run_first)]
        done += [pool.submit(boot.run, totals, args) for boot in others]
        for boot in done:
            boot.result()
    print(f"1..{totals.plans}")
    for failure in totals.failures:
        print(f"# failed: {failure}")
    skipped = f", {totals.skipped} skipped" if totals.skipped else ""
    print(f"{totals.passed} passed, {totals.failed} failed{skipped}", flush=True)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())

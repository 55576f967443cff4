# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Code that the guest tests in Python share: results, mounts, counters, data."""

import contextlib
import os
import random
import re
import subprocess
import threading
import time
import traceback
from concurrent.futures import Future

SERVER = {"ipv4": "192.168.88.2", "ipv6": "fd88::2"}
EXPORT = "/srv/export"
# Whether to run tests that take long.
LONG = bool(os.environ.get("LONG"))
# Whether this is the debug kernel, in which everything takes several times as long.
DEBUG = bool(os.environ.get("DEBUG"))
with open("/proc/cmdline", encoding="ascii") as _file:
    WORDS = _file.read().split()
# Whether the RDMA device is an iWARP one, and whether client and server are one guest.
IWARP = "guest.device=siw" in WORDS
ONE_GUEST = "guest.addresses=1,2" in WORDS
# Seconds in which a mount must get Replies again.
# With the C server, the RPC layer's timer of 60 s recovers messages that siw loses on a new connection, and
# a Call that nfsd drops because it still processes the first copy (NFSv3). Until then a new connection has
# one credit. On a busy machine siw was seen to lose messages three times in a row.
PATIENCE = 400 if IWARP else 150
COUNTERS = (
    "srcport bind_count connect_count connect_time idle_time sends recvs bad_xids req_u bklog_u "
    "read_chunks write_chunks reply_chunks total_rdma_request total_rdma_reply "
    "pullup_copy_count fixup_copy_count hardway_register_count failed_marshal_count "
    "bad_reply_count nomsg_call_count mrs_recycled mrs_orphaned mrs_allocated "
    "local_inv_needed empty_sendctx_q reply_waits").split()

PATTERN = random.Random(20049).randbytes(1 << 20)


class Skip(Exception):
    """The test cannot run here; the text says why."""


@contextlib.contextmanager
def case(name):
    """One test, which fails if its block raises an exception."""
    started = time.monotonic()
    try:
        yield
    except Skip as why:
        print(f"skip - {name} # {why}", flush=True)
    except Exception as error:  # pylint: disable=broad-except
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"not ok - {name}")
        print(f"{type(error).__name__}: {error} "
              f"({os.path.basename(where.filename)}:{where.lineno})", flush=True)
    else:
        print(f"ok - {name}", flush=True)
    seconds = time.monotonic() - started
    if seconds > 3:
        print(f"took {seconds:.1f} s", flush=True)


def expect(what, got, wanted):
    """Fail with both values unless they are equal."""
    if got != wanted:
        raise AssertionError(f"{what}: {short(got)}, expected {short(wanted)}")


def expect_that(what, holds):
    """Fail unless `holds`."""
    if not holds:
        raise AssertionError(what)


def short(value):
    """Return a value as text that fits in a line."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:160]}... ({len(value)} long)"


def shell(script, check=True):
    """Run shell text with the functions of lib.sh; return what it prints."""
    done = subprocess.run(["bash", "-c", ". /t/guest/lib.sh\n" + script], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"'{script}' ended with {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def contents(pattern, where=""):
    """Return the contents of the files that match a pattern, here or in the peer. A file may
    disappear meanwhile: its client unmounts, or its connection ends."""
    read = f"cat {pattern} 2>/dev/null"
    return shell(f"peer '{read}'" if where else read, check=False)


def transports(where=""):
    """Return network id, address and port of sunrpc's transports from debugfs."""
    text = contents("/sys/kernel/debug/sunrpc/rpc_xprt/*/info", where)
    return re.findall(r"netid: (\S+)\naddr:\s+(\S+)\nport:\s+(\S+)", text)


@contextlib.contextmanager
def sysctls(run, folder, values):
    """Write to files in a directory of sysctls, and restore their values at the end. `run` runs shell
    text in the guest that has the files."""
    before = run(f"cd {folder} && cat {' '.join(values)}").split()
    run(f"cd {folder}" + "".join(f" && echo {value} >{name}" for name, value in values.items()))
    try:
        yield
    finally:
        run(f"cd {folder}" + "".join(f" && echo {value} >{name}"
                                     for name, value in zip(values, before)))


def in_background(function, *args):
    """Call a function in a thread of its own, for which the end of the process does not wait;
    return a Future of its result."""
    future = Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:  # pylint: disable=broad-except
            future.set_exception(error)
    threading.Thread(target=run, daemon=True).start()
    return future


def mount(version, family, folder, options=""):
    """Mount the export over RDMA, and report a known issue that delayed it."""
    print(shell(f"client_mount {version} {SERVER[family]} {folder} {options}"), end="")


def umount(folder):
    """Unmount."""
    subprocess.run(["umount", folder], check=True)


def data(size, seed):
    """Return `size` bytes that depend on `seed` and differ at every offset of a page."""
    start = seed * 7919 % (len(PATTERN) - 1)
    out = PATTERN[start:start + size]
    while len(out) < size:
        out += PATTERN[:size - len(out)]
    return out


def counters_of_each(folder):
    """Return the counters of each RDMA transport of a mount."""
    ours, found = False, []
    with open("/proc/self/mountstats", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["device"]:
                ours = words[4] == folder
            elif ours and words[:2] == ["xprt:", "rdma"]:
                expect("values in the xprt: rdma line", len(words) - 2, len(COUNTERS))
                found.append(dict(zip(COUNTERS, map(int, words[2:]))))
    return found


def counters(folder):
    """Return the sums of these counters over all transports."""
    found = counters_of_each(folder)
    return {name: sum(each[name] for each in found) for name in COUNTERS}


class Delta:
    """The change of a mount's counters in a with block."""

    def __init__(self, folder):
        self.folder = folder
        self.moved = {}

    def __enter__(self):
        self.before = counters(self.folder)
        return self

    def __exit__(self, *_):
        after = counters(self.folder)
        self.moved = {name: after[name] - self.before[name] for name in COUNTERS}

    def __getattr__(self, name):
        return self.moved[name]

    def expect_used(self, *names):
        """Fail unless each of these transfer modes was used, and no other one."""
        modes = ("read_chunks", "write_chunks", "reply_chunks", "nomsg_call_count")
        used = [name for name in modes if self.moved[name]]
        expect("transfer modes used", used, [name for name in modes if name in names])


def write_file(path, content, flags=0):
    """Create or overwrite a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o644)
    try:
        done = 0
        while done < len(content):
            done += os.write(fd, content[done:])
    finally:
        os.close(fd)


def pages_at_hand():
    """Return the free pages that processors keep for themselves, which /proc/meminfo does not count
    as free: some MiB at times."""
    with open("/proc/zoneinfo", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.strip().startswith("count:"))


def read_file(path, flags=0, cached=False):
    """Return the content of a file; from the server, unless `cached`."""
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        if not cached:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""allocations.py: make each allocation of the module fail, one call site after the other.

Needs the debug kernel: fault injection with a filter on stack traces. A range of one
return address in the module selects one call site (alloc_sites.py lists them). All
allocations below that site fail a few times, during the phase that reaches the site.
Client and server are this guest.

* load, listen, connect: the operation may return an error; the next one, without
  faults, must work.
* io, callback: nothing may fail; data is right, and the connection is the same.
* teardown: nothing may be left, and the next mount must work.

The test lists the sites that no phase reached.

With RPCRDMA_VERSION=2 the client requests version 2, and the connections of "io" and "callback" must
have it. In "connect", a fault may make the client fall back.
"""

import contextlib
import errno
import mmap
import os
import re
import subprocess
import sys
import threading
import time

import alloc_sites
from harness import EXPORT, SERVER, Skip, case, contents, counters, data, expect, expect_that, \
    mount, read_file, shell, umount, write_file

DEBUGFS = "/sys/kernel/debug"
FAULTS = ("failslab", "fail_page_alloc")
FOLDER = "/mnt/allocations"
VERSION = os.environ.get("RPCRDMA_VERSION", "1")
MODULE = "/t/rpcrdma_rs.ko"
SECTIONS = "/sys/module/rpcrdma_rs/sections"

# The phases to which a site belongs, by its function or by the function that it calls.
PHASES = (
    ("teardown", r"\((rdma_destroy_id|rdma_disconnect)\)"),
    ("load", r"^RpcRdma::|(sysctl|status)::Registration|add_device|DeviceData"),
    ("listen", r"^svc::Rdma|listening_id|IdInner"),
    ("connect", r"^clnt::(endpoint|connect|events|status|negotiation|pools|sendctx|transport|"
                r"invalidate)|"
                r"Arc::clnt::connect|StatusDir|Lender|EntryList|Qp::.*::populate|"
                r"Connector|XprtOps::(new|bc_setup)\+|SendBuf|ScratchPage|"
                r"ClntXprt::setup|LastPut::new|Pd::new|RemovalGuard::new|DmaBuf|QpOwner|SlotPool|"
                r"BcRqst|RecvBox|Mr::new|"
                r"svc_bc::setup|Listener::accept|connect_request|post_first_receives|svc::sq|"
                r"svc::(accept|endpoint|client|conn|listen|status|pool|recv)|IdInner"),
    ("io", r"buf_alloc|RpcBuf|Mr::new|DmaBuf|SendCtx|SendBuf|InvCtx|RecvBox|"
           r"Connection::(receive|send)|receive_message|"
           r"send_ctx|svc::(send|read)|send_request|Transfer|PageVec|PagePool|Registered|"
           r"fill_sparse|Segment"),
    ("callback", r"CallbackOps|send_ctx|DmaBuf"),
)
# Calls that are tried like the others, but need not be reached: those on error paths; those for
# references to encrypted pages (krb5p), and to more pages than a message has elements; for memory regions
# of the server (iWARP); for a reply whose pages were not held, as the client had no access yet.
NOT_REACHED = re.compile(r"rdma_destroy_id|inject_disconnect|Chunks::map.*realloc|PageRef::add|"
                         r"Registered::add|send_out.*reserve")


class Fault:
    """While this object exists, allocations below the call site at `address` fail `times` times."""

    def __init__(self, address, times=1, interval=1, pages=True):
        self.faults = FAULTS if pages else FAULTS[:1]
        self.settings = {
            "require-start": address, "require-end": address + 1, "interval": interval,
            "times": times, "probability": 100,
        }
        self.times = times
        self.hits = 0

    def __enter__(self):
        for fault in self.faults:
            for name, value in self.settings.items():
                put(fault, name, value)
        return self

    def __exit__(self, *_):
        for fault in self.faults:
            put(fault, "probability", 0)
            with open(f"{DEBUGFS}/{fault}/times", encoding="ascii") as file:
                self.hits += self.times - int(file.read())


def put(fault, name, value):
    """Write one setting of a kind of fault."""
    with open(f"{DEBUGFS}/{fault}/{name}", "w", encoding="ascii") as file:
        file.write(str(value))


def prepare_faults():
    """Write all settings that do not depend on the site."""
    if not os.path.isdir(f"{DEBUGFS}/failslab"):
        raise Skip("no fault injection in this kernel")
    for fault in FAULTS:
        for name, value in (("probability", 0), ("verbose", 0), ("task-filter", "N"),
                            ("stacktrace-depth", 32), ("space", 0), ("ignore-gfp-wait", "N")):
            put(fault, name, value)
    put("fail_page_alloc", "ignore-gfp-highmem", "N")
    put("fail_page_alloc", "min-order", 0)


def address(site):
    """Return the address of a call site in the loaded module."""
    with open(f"{SECTIONS}/{site.section}", encoding="ascii") as file:
        return int(file.read(), 16) + site.offset


def insert():
    """Insert the module; return an error number, or 0."""
    done = subprocess.run(["insmod", MODULE], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return 0
    for number, name in ((errno.ENOMEM, "Cannot allocate memory"),):
        if name in done.stderr:
            return number
    raise AssertionError(f"insmod: {done.stderr.strip()}")


def mount_error(version="4.1", seconds=30):
    """Mount; return what mount prints if it fails."""
    done = subprocess.run(
        ["bash", "-c", f". /t/guest/lib.sh; client_mount {version} {SERVER['ipv4']} {FOLDER}"],
        capture_output=True, text=True, check=False, timeout=seconds)
    return "" if done.returncode == 0 else done.stderr.strip() or "failed"


class Sweep:
    """All call sites, and the phases in which each was hit."""

    def __init__(self):
        self.sites = alloc_sites.Module(MODULE).sites()
        self.hits = {site: [] for site in self.sites}
        self.turn = 0

    def of_phase(self, phase):
        """Return the sites that a phase may reach."""
        known = re.compile(dict(PHASES)[phase])
        leaving = re.compile(dict(PHASES)["teardown"])
        every = re.compile("|".join(pattern for _, pattern in PHASES))
        return [site for site in self.sites
                if (phase == "teardown" or not leaving.search(str(site)))
                and (known.search(str(site)) or (phase == "io" and not every.search(str(site))))]

    def fault(self, site, times=1, interval=1, where=None):
        """Return a fault at a site. Page allocations do not fail where ib_core allocates on the
        module's behalf: its callers warn of those."""
        return Fault(where or address(site), times, interval,
                     bool(alloc_sites.MEMORY.fullmatch(site.callee)
                          or "shim" in site.callee))

    def phase(self, phase, run, more=()):
        """Run a phase once for each of its sites. Then run it again with every site that was hit,
        for each (times, interval) of `more`."""
        wrong, started = [], time.monotonic()
        sites = self.of_phase(phase)
        plan = [(site, 1, 1) for site in sites]
        plan += [(site, *how) for how in more for site in sites]
        for site, times, interval in plan:
            if (times, interval) != (1, 1) and phase not in self.hits[site]:
                continue
            self.turn += 1
            try:
                hits = run(site, times, interval)
                if not hits and phase == "connect":
                    # Perhaps only the first connection allocates there.
                    self.renew()
                    hits = run(site, times, interval)
            except Exception as error:  # pylint: disable=broad-except
                wrong.append(f"{site} {times}/{interval}: {error}")
                print(f"wrong: {wrong[-1]}", flush=True)
                self.recover()
                continue
            if hits and phase not in self.hits[site]:
                self.hits[site].append(phase)
        hit = sum(phase in self.hits[site] for site in sites)
        print(f"{phase}: {hit} of {len(sites)} sites hit, {len(plan)} runs, "
              f"{time.monotonic() - started:.0f} s", flush=True)
        expect("sites whose failure did harm", wrong, [])

    @staticmethod
    def renew():
        """Return to the state after inserting the module."""
        shell("server_stop; settle; rmmod rpcrdma_rs")
        expect("insmod", insert(), 0)
        start()

    @staticmethod
    def recover():
        """Clean up after a failure: no faults, nothing mounted."""
        for fault in FAULTS:
            put(fault, "probability", 0)
        subprocess.run(["umount", "-f", "-l", FOLDER], check=False, capture_output=True)

    # --- phases ----------------------------------------------------------------------

    def load(self, site, times, interval):
        """Run insmod. The module must be loaded at the same address as the last time."""
        for _ in range(3):
            if not os.path.isdir(SECTIONS):
                expect("insmod without faults", insert(), 0)
            where = address(site)
            shell("rmmod rpcrdma_rs")
            with self.fault(site, times, interval, where) as fault:
                failed = insert()
            if fault.hits:
                if failed:
                    expect("insmod after that", insert(), 0)
                else:
                    works()
                return fault.hits
            if failed:
                raise AssertionError("insmod failed without a fault")
            if address(site) == where:
                return 0
        raise AssertionError("the module is elsewhere each time")

    def listen(self, site, times, interval):
        """Add a listener, each time on another port."""
        line = f"rdma {21000 + self.turn}\n"
        failed = 0
        with self.fault(site, times, interval) as fault:
            failed = listen(line)
        if failed:
            expect_that(f"listening failed with {errno.errorcode[failed]}", fault.hits)
            expect("listening after that", listen(line), 0)
        return fault.hits

    def connect(self, site, times, interval):
        """Mount, which may fail, and mount again."""
        with self.fault(site, times, interval) as fault:
            failed = mount_error()
        if failed:
            expect_that(f"mount failed without a fault: {failed}", fault.hits)
            expect("mount after that", mount_error(), "")
        path = f"{FOLDER}/connect"
        write_file(path, data(70000, self.turn), os.O_DIRECT)
        expect_that("content", read_file(path, os.O_DIRECT) == data(70000, self.turn))
        umount(FOLDER)
        return fault.hits

    def io(self, site, times, interval):
        """Use all transfer modes on a new connection."""
        with one_connection("3", "noac,lookupcache=none"):
            with self.fault(site, times, interval) as fault:
                all_modes(self.turn)
            all_modes(self.turn + 1)
        return fault.hits

    def callback(self, site, times, interval):
        """Recall a delegation."""
        with one_connection("4.1"):
            recall(self.turn)
            with self.fault(site, times, interval) as fault:
                recall(self.turn + 1000)
        return fault.hits

    def teardown(self, site, times, interval):
        """Unmount, and stop nfsd."""
        mount("4.1", "ipv4", FOLDER)
        write_file(f"{FOLDER}/teardown", data(70000, self.turn))
        with self.fault(site, times, interval) as fault:
            umount(FOLDER)
            shell("server_stop")
        shell("settle")
        start()
        return fault.hits


@contextlib.contextmanager
def one_connection(version, options=""):
    """Mount, and check that the connection is the same at the end of the block, and its version."""
    mount(version, "ipv4", FOLDER, options)
    yield
    status = contents(f"{DEBUGFS}/rpcrdma_rs/client/*/status")
    ends = re.findall(r"^last_ended: (.*)$", status, re.MULTILINE)
    expect(f"connections (the last one before was ended by {ends})",
           counters(FOLDER)["connect_count"], 1)
    expect("versions", set(re.findall(r"^version: (.*)$", status, re.MULTILINE)), {VERSION})
    umount(FOLDER)


def works():
    """Check that the module works as server and as client."""
    start()
    mount("4.1", "ipv4", FOLDER)
    umount(FOLDER)
    shell("server_stop; settle")


def listen(line):
    """Add a listener; return an error number, or 0."""
    try:
        with open("/proc/fs/nfsd/portlist", "w", encoding="ascii") as file:
            file.write(line)
    except OSError as error:
        return error.errno
    return 0


def all_modes(seed):
    """Use inline messages, Read and Write chunks, a Reply chunk, a Position-Zero Read chunk, and
    sparse pages, with more requests at a time than there are memory regions at first."""
    folder = f"{FOLDER}/modes"
    os.makedirs(folder, exist_ok=True)
    write_file(f"{folder}/inline", data(100, seed))
    expect_that("inline content", read_file(f"{folder}/inline") == data(100, seed))
    os.symlink("s" * 4000, f"{folder}/link-{seed}")
    expect_that("symlink", os.readlink(f"{folder}/link-{seed}") == "s" * 4000)
    os.unlink(f"{folder}/link-{seed}")
    subprocess.run(["getfacl", "-cp", f"{folder}/inline"], check=True, capture_output=True)
    for number in range(12):
        with open(f"{folder}/{'n' * 200}{number}", "w", encoding="ascii"):
            pass
    expect("names", sum(name.startswith("nnn") for name in os.listdir(folder)), 12)
    failures = []

    def one(number):
        try:
            memory = mmap.mmap(-1, 1 << 17)
            content = data(len(memory), seed + number)
            memory[:] = content
            path = f"{folder}/chunk-{number}"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
            expect("written", os.pwrite(fd, memory, 0), len(memory))
            memory[:] = bytes(len(memory))
            expect("read", os.preadv(fd, [memory], 0), len(memory))
            os.close(fd)
            expect_that("content read back", memory[:] == content)
            with open(f"{EXPORT}/modes/chunk-{number}", "rb") as file:
                expect_that("content on the server", file.read() == content)
        except Exception as error:  # pylint: disable=broad-except
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect("chunks that went wrong", failures, [])


def delegations():
    """Return how many delegations nfsd has granted."""
    return contents("/proc/fs/nfsd/clients/*/states").count("type: deleg")


def recall(seed):
    """Open the file on the server, which recalls a delegation."""
    name = f"deleg-{seed}"
    with open(f"{EXPORT}/{name}", "wb") as file:
        file.write(data(100, seed))
    with open(f"{FOLDER}/{name}", "rb") as file:
        expect("content", file.read(), data(100, seed))
        expect_that("no delegation was given", delegations() > 0)
        started = time.monotonic()
        with open(f"{EXPORT}/{name}", "r+b") as other:
            other.write(b"x")
        seconds = time.monotonic() - started
        expect_that(f"the recall took {seconds:.0f} s", seconds < 15)
    expect("content after the recall", read_file(f"{FOLDER}/{name}")[:1], b"x")
    os.unlink(f"{FOLDER}/{name}")


def start():
    """Start nfsd and the client's services, and end the grace period."""
    shell("server_start; client_start; pidof nfsdcld >/dev/null || nfsdcld\n"
          "echo Y >/proc/fs/nfsd/v4_end_grace", check=False)
    # The module may be another one than the last time.
    shell(f"echo {VERSION} >/proc/sys/sunrpc/rdma_max_version")
    shell("grep -q 'rdma 20049' /proc/fs/nfsd/portlist")


def main():
    """The group."""
    only = sys.argv[1:] or [name for name, _ in PHASES]
    with case("fault injection is there"):
        prepare_faults()
    if not os.path.isdir(f"{DEBUGFS}/failslab"):
        return
    # Back-pressure makes this slow.
    shell("module_load rust")
    sweep = Sweep()
    with case("there are call sites"):
        expect_that(f"{len(sweep.sites)}", len(sweep.sites) > 50)
    if "load" in only:
        with case("load: insmod fails, and works again"):
            sweep.phase("load", sweep.load)
        if not os.path.isdir(SECTIONS):
            insert()
    start()
    if "listen" in only:
        with case("listen: no listener, and then there is"):
            sweep.phase("listen", sweep.listen)
    if "connect" in only:
        with case("connect: no mount, and then there is"):
            sweep.phase("connect", sweep.connect)
        # A client remembers for a while that a server has not answered the request for version 2.
        sweep.renew()
    if "io" in only:
        with case("io: data is right and the connection stays"):
            sweep.phase("io", sweep.io, [(5, 1)])
    if "callback" in only:
        with case("callback: the delegation comes back and the connection stays"):
            sweep.phase("callback", sweep.callback, [(5, 1)])
    if "teardown" in only:
        with case("teardown: nothing is left"):
            sweep.phase("teardown", sweep.teardown)
    for site in sweep.sites:
        print(f"{', '.join(sweep.hits[site]) or 'NOT HIT'}: {site}")
    missed = [str(site) for site in sweep.sites
              if not sweep.hits[site] and not NOT_REACHED.search(str(site))]
    if only == [name for name, _ in PHASES]:
        with case("every site was hit"):
            expect("sites that were not hit", missed, [])
    with case("everything is torn down"):
        shell("server_stop; settle || rdma_leftovers; module_unload rust")


main()

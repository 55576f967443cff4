# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Run one job on a mount in a guest, and write the measurements to files in the shared directory.

measure.py JOB OUT SECONDS-FACTOR: OUT.json gets the figures, OUT.samples the samples of
the processor's clock, OUT.EVENT those of each kind of allocation.
"""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, "/t/guest")

from events import Chains, Counts, sample  # noqa: E402
from jobs import BY_NAME, FILE_MIB  # noqa: E402
from harness import EXPORT, mount, umount  # noqa: E402

FOLDER = "/mnt/bench"
# The number of operations before the measurement, fewer if they are larger. By then all programs have
# been loaded. While the guest waits for the host to read a program, the guest's clock jumps, which
# would spoil the measurement.
WARM_UP, LEAST = 200, 8

# What is counted: trace events and calls of functions.
EVENTS = {
    "Work Requests sent": "call:rdma_rxe:do_complete",
    "posts of them": "call:rdma_rxe:rxe_post_send",
    "Receives posted": "call:rdma_rxe:post_one_recv",
    "posts of Receives": "call:rdma_rxe:rxe_post_recv",
    "completions": "call:rdma_rxe:rxe_cq_post",
    "svc_xprt_enqueue": "call:sunrpc:svc_xprt_enqueue",
    "threads woken": "call:sunrpc:svc_pool_wake_idle_thread",
    "svc_xprt_dequeue": "sunrpc:svc_xprt_dequeue",
    "alloc_pages_bulk": "call:alloc_pages_bulk_noprof",
    "kmalloc": "kmem:kmalloc",
    "kmem_cache_alloc": "kmem:kmem_cache_alloc",
    "context switches": "sched:sched_switch",
}
ALLOCATIONS = ("kmem:kmalloc", "kmem:kmem_cache_alloc", "kmem:mm_page_alloc", "kmem:kfree",
               "kmem:kmem_cache_free", "kmem:mm_page_free")


def procedures():
    """Return how often each procedure of the mount was called."""
    found, ours = {}, False
    with open("/proc/self/mountstats", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["device"]:
                ours = words[4] == FOLDER
            elif ours and len(words) > 8 and words[0].endswith(":") and words[0].isupper():
                found[words[0][:-1]] = int(words[1])
    return found


class Window:
    """Measures a with block: its time, and the RPCs that complete in it."""

    def __enter__(self):
        self.before, self.started = procedures(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.started
        self.rpcs = {name: count - self.before.get(name, 0)
                     for name, count in procedures().items()}

    def operations(self, job):
        """Return the operations of the job in this time."""
        count = self.rpcs.get(job.procedure, 0)
        if not count:
            raise SystemExit(f"no {job.procedure} in {self.seconds:.1f} s: {self.rpcs}")
        return count


def pages():
    """Return the pages that the kernel has allocated and freed since boot."""
    counts = {"allocated": 0, "freed": 0}
    with open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            name, value = line.split()
            if name.startswith("pgalloc_"):
                counts["allocated"] += int(value)
            elif name == "pgfree":
                counts["freed"] += int(value)
    return counts


def say(text):
    """Print a line of progress."""
    print(text, flush=True)


def settings():
    """Remove the limit on the profiler's time. Without the limit its rate cannot be set, so this
    first restores the limit, for the jobs after the first one."""
    for name, value in (("perf_cpu_time_max_percent", 25), ("perf_event_max_sample_rate", 100000),
                        ("perf_cpu_time_max_percent", 0), ("perf_event_paranoid", -1),
                        ("kptr_restrict", 0)):
        with open(f"/proc/sys/kernel/{name}", "w", encoding="ascii") as file:
            file.write(str(value))


def wait_for_load(job, load):
    """Wait until the job runs. This does not wait for a time: no time passes in a guest that waits
    for the host."""
    first = procedures().get(job.procedure, 0)
    wanted = max(LEAST, WARM_UP * 4096 // max(4096, job.bytes))
    while procedures().get(job.procedure, 0) < first + wanted:
        if load.poll() is not None:
            raise SystemExit(f"the job ended with status {load.returncode}")
        time.sleep(0.05)


def count(job, seconds):
    """Return counts per operation: events, pages, and the call chains of allocations."""
    # The window is inside, since creating the events takes time.
    with Counts(EVENTS.values()) as counts, Window() as window:
        before = pages()
        time.sleep(seconds)
        after = pages()
    operations = window.operations(job)
    for why in counts.missing:
        say(f"not counted: {why}")
    found = {title: counts.of[name] / operations for title, name in EVENTS.items()
             if name in counts.of}
    for name, value in after.items():
        found[f"pages {name}"] = (value - before[name]) / operations
    with Chains(ALLOCATIONS) as chains, Window() as window:
        time.sleep(seconds / 5)
    return found, window.operations(job), chains.records


def measure(job, out, factor):
    """Return the figures of a job."""
    load = subprocess.Popen(job.command(FOLDER), stdout=open(f"{out}.log", "wb"),
                            stderr=subprocess.STDOUT)
    try:
        wait_for_load(job, load)
        say("measuring")
        with Window() as window:
            time.sleep(job.seconds * factor)
        say("sampling")
        samples = {"samples": sample(job.seconds * factor)}
        say("counting")
        counts, traced, chains = count(job, job.seconds * factor / 2)
        if load.poll() is not None:
            raise SystemExit(f"the job ended with status {load.returncode}, see {out}.log")
    finally:
        load.kill()
        load.wait()
    operations = window.operations(job)
    return {
        "profiler": os.getpid(),
        "operations": operations,
        "seconds": window.seconds,
        "rpcs": {name: value for name, value in window.rpcs.items() if value},
        "microseconds": window.seconds * 1e6 / operations,
        "counts": counts,
        "traced": traced,
    }, samples | chains


def main():
    """The tool."""
    job, out, factor = BY_NAME[sys.argv[1]], sys.argv[2], float(sys.argv[3])
    settings()
    with open(f"{EXPORT}/file", "wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(4096) * 256)
    say("mounting")
    mount("3", "ipv4", FOLDER, job.options)
    try:
        figures, samples = measure(job, out, factor)
    finally:
        umount(FOLDER)
    say("copying")
    for name, records in samples.items():
        with open(f"{out}.{name.rpartition(':')[2]}", "wb") as file:
            file.write(records)
    with open(f"{out}.json", "w", encoding="ascii") as file:
        json.dump(figures, file)
    print(f"{job.name}: {figures['operations']} operations, "
          f"{figures['microseconds']:.1f} thousand instructions each")


if __name__ == "__main__":
    main()

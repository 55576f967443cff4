# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""cycles.py COUNT: insert the module, serve, mount, do I/O, undo it all; again and again.

Server and client are this guest. After each cycle nothing of ours may be left:
no RDMA resource, and the module must be removable.

Memory is looked at every COUNT / 5 cycles, with caches dropped. The first
fifth is warm-up, in which the kernel's caches fill. A leak continues after that:

* a slab cache whose objects grow by at least one per cycle in each of the four
  remaining fifths is one; a cache that only fluctuates goes down or stands
  still in one of them;
* pages that the kernel has in use, not in a slab cache and not for anything that it counts (so
  that they may come from anywhere, as large kmalloc() and vmalloc() too) may not become more by
  PAGES per cycle in each of those fifths. A connection has many more than that.
"""

import os
import sys
import time

from harness import DEBUG, case, data, expect, expect_that, mount, read_file, shell, umount, \
    write_file

FOLDER = "/mnt/cycles"
# In the debug kernel a cycle of four takes more than a minute.
MOUNTS = ((("3", "ipv4"), ("4.2", "ipv6")) if DEBUG else
          (("3", "ipv4"), ("4.0", "ipv6"), ("4.1", "ipv4"), ("4.2", "ipv6")))
SIZES = (1, 4000, 5000, 1 << 20)
# The debug kernel's own records of objects: they grow with the C module as well.
RECORDS = ("debug_objects_cache", "kmemleak_object")
# How many pages may become more per cycle. The debug kernel's records of stacks and the like were
# seen to take some ten.
PAGES, DEBUG_PAGES = 4, 25
# Uses of memory in /proc/meminfo that are not the module's.
OTHERS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "KernelStack", "PageTables",
          "Percpu")


def slabs():
    """Active objects of every slab cache, and the pages of all caches."""
    with open("/proc/slabinfo", encoding="ascii") as file:
        caches = [line.split() for line in file.readlines()[2:]]
    return ({cache[0]: int(cache[1]) for cache in caches},
            sum(int(cache[5]) * int(cache[14]) for cache in caches))


def pages_in_use():
    """Pages that the kernel has in use, but for what somebody else accounts for."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    with open("/proc/zoneinfo", encoding="ascii") as file:
        # Free pages that a processor keeps do not count as free.
        at_hand = sum(int(line.split()[1]) for line in file
                      if line.startswith("              count:"))
    return (kib["MemTotal"] - sum(kib[name] for name in OTHERS)) // 4 - at_hand


def snapshot():
    """Memory in use once what can be freed is freed.

    Freed objects that a slab cache keeps count as active until it is shrunk.
    """
    for _ in range(2):
        shell("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.5\n"
              "for file in /sys/kernel/slab/*/shrink; do echo 1 >$file; done")
    objects, pages = slabs()
    return objects, pages_in_use() - pages


def cycle(number):
    """One cycle; each has the same mounts, so that what one of them leaks, each cycle does."""
    # Nobody is there to reclaim anything; else each start has 10 s of grace.
    # nfsdcld ends with nfsd. Without it the grace period of 10 s cannot be ended.
    shell("module_load rust && { pidof nfsdcld >/dev/null || nfsdcld; } && "
          "nfsd_start 4")
    # Refused if there is no grace period, as after the first start.
    shell("echo Y >/proc/fs/nfsd/v4_end_grace", check=False)
    for version, family in MOUNTS:
        mount(version, family, FOLDER)
        for size in SIZES:
            path = f"{FOLDER}/file-{size}"
            write_file(path, data(size, number), os.O_DIRECT)
            expect(f"content of {size} bytes", read_file(path, os.O_DIRECT), data(size, number))
            os.unlink(path)
        umount(FOLDER)
    expect("RDMA resources that are left",
           shell("rpc.nfsd 0; settle || rdma_leftovers; module_unload rust"), "")


def first_start():
    """What has to be started once: all but the module's own part of server_start."""
    # rpcbind and mountd are asked over TCP. What is kept of each connection for a minute
    # (two caches) would be more after some fifths than after others.
    write_file("/proc/sys/net/ipv4/tcp_max_tw_buckets", b"0\n")
    shell("module_load rust; server_start; client_start; server_stop; module_unload rust")


def main():
    """The group."""
    count = int(sys.argv[1])
    with case("services are up"):
        first_start()
    samples, good, per_fifth = [], 0, count // 5
    started = time.monotonic()
    with case(f"{count} cycles of insert, serve, mount, I/O, unmount, stop, remove"):
        for number in range(count):
            cycle(number)
            good += 1
            if good % per_fifth == 0:
                samples.append(snapshot())
                print(f"{good} cycles in {time.monotonic() - started:.0f} s", flush=True)
    pages = [count for _, count in samples]
    print(f"pages: {pages}")
    with case("no slab cache grows from fifth to fifth"):
        expect("samples", len(samples), 5)
        growing = []
        for name in samples[0][0].keys() - RECORDS:
            counts = [objects.get(name, 0) for objects, _ in samples]
            if all(b - a >= per_fifth for a, b in zip(counts, counts[1:])):
                growing.append(f"{name} {counts}")
        expect("slab caches that grow", growing, [])
    with case("the kernel's pages do not become more from fifth to fifth"):
        expect("samples", len(samples), 5)
        limit = per_fifth * (DEBUG_PAGES if RECORDS[1] in samples[0][0] else PAGES)
        expect_that(str(pages), any(b - a < limit for a, b in zip(pages, pages[1:])))


main()

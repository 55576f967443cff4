# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""cycles.py COUNT: insert the module, serve, mount, do I/O, and undo all of it, COUNT times.

Server and client are this guest. After each cycle no RDMA resource may be left, and the
module must be removable.

Memory is read every COUNT / 5 cycles, with caches dropped. The first fifth is warm-up, in
which the kernel's caches fill. Growth in all later fifths is a leak:

* A slab cache leaks if its objects grow by at least one per cycle in each of the four
  remaining fifths. A cache that only fluctuates shrinks or stays the same in one of them.
* Pages that the kernel has in use, but that are neither in a slab cache nor counted for
  another purpose (such as large kmalloc() and vmalloc()), may not grow by PAGES per cycle in
  each of these fifths. A connection uses many more pages than that.
"""

import os
import sys
import time

from harness import DEBUG, case, data, expect, expect_that, mount, pages_at_hand, read_file, \
    shell, umount, write_file

FOLDER = "/mnt/cycles"
# In the debug kernel a cycle with four mounts takes more than a minute.
MOUNTS = ((("3", "ipv4"), ("4.2", "ipv6")) if DEBUG else
          (("3", "ipv4"), ("4.0", "ipv6"), ("4.1", "ipv4"), ("4.2", "ipv6")))
SIZES = (1, 4000, 5000, 1 << 20)
# The debug kernel's own records of objects grow with the C module as well.
RECORDS = ("debug_objects_cache", "kmemleak_object")
# Permitted growth in pages per cycle. The debug kernel's records of stacks and similar were seen to
# take some ten.
PAGES, DEBUG_PAGES = 4, 25
# Uses of memory in /proc/meminfo that are not the module's.
OTHERS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "KernelStack", "PageTables",
          "Percpu")


def slabs():
    """Return the active objects of every slab cache, and the pages of all caches."""
    with open("/proc/slabinfo", encoding="ascii") as file:
        caches = [line.split() for line in file.readlines()[2:]]
    return ({cache[0]: int(cache[1]) for cache in caches},
            sum(int(cache[5]) * int(cache[14]) for cache in caches))


def pages_in_use():
    """Return the pages that the kernel has in use, without those that are accounted elsewhere."""
    with open("/proc/meminfo", encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return (kib["MemTotal"] - sum(kib[name] for name in OTHERS)) // 4 - pages_at_hand()


def snapshot():
    """Free all memory that can be freed, and return the memory in use.

    Freed objects that a slab cache keeps count as active until the cache is shrunk.
    """
    for _ in range(2):
        shell("sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.5\n"
              "for file in /sys/kernel/slab/*/shrink; do echo 1 >$file; done")
    objects, pages = slabs()
    return objects, pages_in_use() - pages


def cycle(number):
    """Run one cycle. Each has the same mounts, so that a leak of one mount recurs in each cycle."""
    # No client has state to reclaim; without this each start has 10 s of grace.
    # nfsdcld ends with nfsd. Without it the grace period of 10 s cannot be ended.
    shell("module_load rust && { pidof nfsdcld >/dev/null || nfsdcld; } && "
          "nfsd_start 4")
    # This is refused if there is no grace period, as after the first start.
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
    """Start the services that run through all cycles: server_start without the module's part."""
    # rpcbind and mountd are queried over TCP. The kernel keeps objects of each connection for a
    # minute (in two caches), which would vary between the fifths.
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

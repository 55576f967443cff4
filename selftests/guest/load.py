# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Load: mixed block sizes, several connections, several clients."""

import json
import mmap
import os
import subprocess

from harness import DEBUG, Delta, EXPORT, Skip, case, counters_of_each, expect, expect_that, \
    mount, shell, umount

MIXED = "--bssplit=512/10:1024/10:3584/10:4096/20:4608/10:65536/20:262144/10:1048576/10"
# The debug kernel finds faults with little data as well.
SCALE = 4 if DEBUG else 1
RUST_CLIENT = os.environ["CLIENT_MODULE"] == "rust"


def fio(name, folder, size, *options):
    """Start fio with `size` MiB of data; it verifies the checksums of the data after writing."""
    return subprocess.Popen(
        ["fio", f"--name={name}", f"--directory={folder}", f"--size={size // SCALE}m",
         "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1",
         "--randrepeat=1", "--group_reporting", "--output-format=json",
         f"--output=/tmp/{name}.json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def done(job, name):
    """Wait for fio; it must have written and verified some data."""
    output = job.communicate(timeout=200)[0]
    expect(f"exit status of fio ({output.strip()[-300:]})", job.returncode, 0)
    with open(f"/tmp/{name}.json", encoding="utf-8") as file:
        text = file.read()
    result = json.loads(text[text.index("{"):])["jobs"][0]
    expect("errors", result["error"], 0)
    expect_that("nothing was read back", result["read"]["total_ios"] > 0)
    expect("I/O read back", result["read"]["total_ios"], result["write"]["total_ios"])


def one_mount(version, family, options, name, size, *fio_options):
    """Run fio over one mount."""
    folder = f"/mnt/{name}"
    mount(version, family, folder, options)
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    try:
        done(fio(name, f"{folder}/{name}", size, *fio_options), name)
    finally:
        shell(f"rm -rf {folder}/{name}", check=False)
        umount(folder)


def nconnect():
    """Use four connections."""
    folder = "/mnt/nconnect"
    mount("4.1", "ipv4", folder, "nconnect=4")
    os.makedirs(f"{folder}/nconnect", exist_ok=True)
    try:
        done(fio("nconnect", f"{folder}/nconnect", 4, MIXED, "--direct=1", "--numjobs=4"),
             "nconnect")
        expect("connections that have sent something",
               sum(each["sends"] > 0 for each in counters_of_each(folder)), 4)
    finally:
        shell(f"rm -rf {folder}/nconnect", check=False)
        umount(folder)


def contended():
    """Write small blocks by several jobs. On several processors, senders and completions then run at the
    same time."""
    if os.cpu_count() == 1:
        raise Skip("one processor")
    one_mount("4.2", "ipv4", "", "small", 16, "--bs=4k", "--direct=1", "--numjobs=4",
              "--ioengine=libaio", "--iodepth=16")


def several_clients():
    """Run two clients in this guest and one in the server's, at the same time.

    Version 3 and version 4 share no client structure, so each has a connection.
    """
    jobs = []
    for name, version, family in (("v3", "3", "ipv6"), ("v4", "4.2", "ipv4")):
        folder = f"/mnt/{name}"
        mount(version, family, folder)
        os.makedirs(f"{folder}/{name}", exist_ok=True)
        jobs.append((fio(name, f"{folder}/{name}", 8, MIXED, "--direct=1",
                         "--ioengine=libaio", "--iodepth=16"), name))
    shell("peer -t 400 'client_start; client_mount 4.0 $SERVER /mnt/own || exit 1; "
          f"head -c {20000000 // SCALE} /dev/urandom >/tmp/own; cp /tmp/own /mnt/own/own && "
          f"cmp /tmp/own {EXPORT}/own && dd if=/mnt/own/own bs=300000 iflag=direct "
          "of=/tmp/back status=none && cmp /tmp/own /tmp/back; status=$?; rm -f /mnt/own/own; "
          "umount /mnt/own; exit $status'")
    for job, name in jobs:
        done(job, name)
        shell(f"rm -rf /mnt/{name}/{name}")
        umount(f"/mnt/{name}")


def large_io():
    """Aligned WRITEs and READs of 1 MiB need no local invalidation."""
    folder, size = "/mnt/large", 1 << 20
    mount("4.1", "ipv4", folder)
    fd = os.open(f"{folder}/large", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    memory = mmap.mmap(-1, size)
    with Delta(folder) as delta:
        for i in range(20):
            memory[:] = bytes([i + 1]) * size
            expect("bytes written", os.pwrite(fd, memory, i * size), size)
        for i in range(20):
            expect("bytes read", os.preadv(fd, [memory], i * size), size)
            expect("content", memory[:], bytes([i + 1]) * size)
    os.close(fd)
    os.unlink(f"{folder}/large")
    umount(folder)
    expect_that(f"{delta.read_chunks} Read and {delta.write_chunks} Write chunks",
                delta.read_chunks >= 20 and delta.write_chunks >= 20)
    print(f"local_inv_needed grew by {delta.local_inv_needed}")
    if not RUST_CLIENT:
        raise Skip("the C client registers 1 MiB in several pieces")
    expect("local_inv_needed", delta.local_inv_needed, 0)


def tools():
    """The tools of nfs-utils can parse the mount's line."""
    folder = "/mnt/tools"
    mount("4.1", "ipv4", folder)
    for tool in ["mountstats", folder], ["nfsiostat", "1", "1", folder]:
        done_well = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, check=False)
        expect(f"status of {tool[0]} ({done_well.stdout[-300:]})", done_well.returncode, 0)
        expect_that(f"{tool[0]} does not mention the mount", folder in done_well.stdout)
        if tool[0] == "mountstats":
            print([line.strip() for line in done_well.stdout.splitlines()
                   if "rdma" in line.lower()][:3])
    umount(folder)


def main():
    """The group."""
    with case("mountstats(8) and nfsiostat(8) read the mount's counters"):
        tools()
    with case("aligned 1 MiB READs and WRITEs need no local invalidation"):
        large_io()
    with case("fio verifies mixed block sizes, O_DIRECT, queue depth 16, version 4.2"):
        one_mount("4.2", "ipv4", "", "mixed", 16, MIXED, "--direct=1",
                  "--ioengine=libaio", "--iodepth=16")
    with case("fio verifies mixed block sizes, buffered, version 3"):
        one_mount("3", "ipv6", "", "buffered", 16, MIXED, "--end_fsync=1",
                  "--invalidate=1")
    with case("fio verifies blocks of 4096 octets of four jobs, with several processors"):
        contended()
    with case("nconnect=4: fio over four connections"):
        nconnect()
    with case("two clients in one guest, one in the other, at once"):
        several_clients()


main()

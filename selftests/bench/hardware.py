# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Measure the jobs on a client with an RDMA device, with the loaded module. Run this with each module,
and compare the results.

hardware.py SERVER EXPORT [SECONDS]: mounts SERVER:EXPORT over RDMA in a temporary directory, and writes
and removes one file in the export.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from jobs import FILE_MIB, JOBS

PORT = 20049
MODULES = ("rpcrdma_rs", "rpcrdma")


def processor():
    """Return the processor seconds of this machine since boot that were not idle."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def module():
    """Return the name of the loaded transport module."""
    for name in MODULES:
        if os.path.exists(f"/sys/module/{name}"):
            return name
    return ""


def needs():
    """Return which requirement is missing, or an empty string."""
    if os.geteuid():
        return "run it as root: it mounts the export"
    if not shutil.which("fio"):
        return "install fio"
    if not shutil.which("mount.nfs"):
        return "install nfs-common (Debian) or nfs-utils"
    if not os.path.isdir("/sys/class/infiniband") or not os.listdir("/sys/class/infiniband"):
        return "this machine has no RDMA device: see 'rdma link'"
    return ""


def run(job, folder, seconds):
    """Run one job; return operations and MiB per second, and processor microseconds per operation."""
    command = [word for word in job.command(folder)
               if not word.startswith(("--output", "--runtime"))]
    before = processor()
    done = subprocess.run([*command, f"--runtime={seconds}", "--output-format=json"],
                          capture_output=True, text=True, check=False)
    used = processor() - before
    if done.returncode:
        sys.exit(f"error: fio {job.name} ended with {done.returncode}: {done.stderr.strip()}")
    result = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    side = result["read" if "read" in job.rw else "write"]
    return {"job": job.title, "IOPS": side["iops"], "MiB/s": side["bw_bytes"] / (1 << 20),
            "CPU us/op": used * 1e6 / max(side["total_ios"], 1)}


def main():
    """The tool."""
    if not 3 <= len(sys.argv) <= 4:
        sys.exit("usage: make bench SERVER=host EXPORT=/path [SECONDS=20]")
    server, export = sys.argv[1:3]
    if not export.startswith("/"):
        sys.exit(f"error: EXPORT has to be a path from the root, not '{export}'")
    if len(sys.argv) == 4 and not (sys.argv[3].isdigit() and int(sys.argv[3])):
        sys.exit(f"error: SECONDS has to be a number from 1, not '{sys.argv[3]}'")
    seconds = int(sys.argv[3]) if len(sys.argv) == 4 else 20
    missing = needs()
    if missing:
        sys.exit(f"error: {missing}")
    host, proto = (f"[{server}]", "rdma6") if ":" in server else (server, "rdma")
    folder = tempfile.mkdtemp(prefix="rpcrdma-bench-")
    mount = subprocess.run(["mount", "-t", "nfs", "-o", f"vers=3,proto={proto},port={PORT}",
                            f"{host}:{export}", folder], capture_output=True, text=True, check=False)
    if mount.returncode:
        os.rmdir(folder)
        sys.exit(f"error: cannot mount {host}:{export} over RDMA: {mount.stderr.strip()}")
    work = ""
    try:
        work = tempfile.mkdtemp(prefix="rpcrdma-bench-", dir=folder)
        with open(f"{work}/file", "wb") as file:
            for _ in range(FILE_MIB):
                file.write(os.urandom(1 << 20))
        print(f"module {module()}, {server}:{export}, {seconds} s each", flush=True)
        print(f"{'job':28}{'IOPS':>12}{'MiB/s':>12}{'CPU us/op':>12}")
        for job in JOBS:
            if job.rw:
                one = run(job, work, seconds)
                print(f"{one['job']:28}{one['IOPS']:12.0f}{one['MiB/s']:12.1f}"
                      f"{one['CPU us/op']:12.1f}", flush=True)
    finally:
        if work:
            shutil.rmtree(work, ignore_errors=True)
        subprocess.run(["umount", folder], check=False)
        os.rmdir(folder)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Exact counts of the instructions that a transport module executes for an operation.

bench.py samples, so a function's figure has an error of some percent, and more if it is short.
Here QEMU counts every instruction of the module (insns.c). Those of mounting and unmounting are
counted as well; they are few compared with those of the job.
"""

import os
import subprocess
from collections import Counter

from guest import GuestError, Machine
from lines import attribute
from run import Pair, host_name, run_folder
from split import Symbols, executed, totals

# Operations of a job, fewer if they are larger.
OPERATIONS = 8000
# Time limit for one job in a guest, on a busy machine.
SECONDS = 600
MODULES = {"rust": "rpcrdma_rs", "c": "rpcrdma"}
# The number of connections over version 2.
SPOKEN = "/proc/sys/sunrpc/svc_rdma/rdma_stat_version_2"


def build(folder):
    """Compile the plugin; return its path."""
    plugin = f"{folder}/insns.so"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", plugin,
                    os.path.join(os.path.dirname(__file__), "insns.c")], check=True)
    return plugin


def measure(job, side, module):
    """Return figures per operation, the most expensive first: (instructions, calls, mangled name) of
    each function, and, if the module has debug information, (instructions, place) of each line."""
    kind = side.partition("-")[0]
    folder = run_folder(f"exact-{side}-{job.name}", module if kind == "rust" else None)
    machine = Machine(plugin=f"file={build(folder)},out={folder}/insns")
    pair = Pair(folder, machine, one_guest=True, echo=lambda line: None)
    try:
        pair.set_up(kind, kind)
        guest = pair.client
        if side == "rust-2":
            guest.output("echo 2 >/proc/sys/sunrpc/rdma_max_version", SECONDS)
        guest.output("cat /proc/kallsyms >/t/kallsyms", SECONDS)
        wanted = max(OPERATIONS // 20, OPERATIONS * 4096 // max(4096, job.bytes))
        lines = []
        if guest.run(". /t/guest/lib.sh\n"
                     f"python3 -B /t/bench/drive.py {job.name} {wanted}", SECONDS, lines.append) != 0:
            raise GuestError(f"{side} {job.name}: " + "; ".join(lines))
        if side == "rust-2" and guest.output(f"cat {SPOKEN}", SECONDS).strip() == "0":
            raise GuestError(f"{side} {job.name}: not over version 2")
        pair.stop()
    finally:
        pair.kill()
    try:
        with open(f"{folder}/kallsyms", encoding="ascii") as file:
            symbols = Symbols(file)
        with open(f"{folder}/insns", encoding="ascii") as file:
            counts = executed(file, symbols, MODULES[kind])
    except OSError as error:
        raise GuestError(f"no counts in {host_name(folder)}: {error}") from error
    done = int(lines[-1])
    instructions, calls = totals(counts)
    by_line = attribute(counts, f"{folder}/{os.path.basename(module)}") if kind == "rust" else Counter()
    return {
        "functions": [(count / done, calls[name] / done, name)
                      for name, count in instructions.most_common()],
        "lines": [(count / done, place) for place, count in by_line.most_common()],
    }


def report(job, side, figures, readable, top):
    """The text for one job and side; `readable` maps mangled names to names."""
    functions = figures["functions"]
    lines = ["", f"{job.title}, {side}: {sum(count for count, _, _ in functions):.0f} instructions of "
             "the module per operation", "  instructions   calls  function"]
    lines += [f"  {count:12.1f}  {calls:6.2f}  {readable[name]}"
              for count, calls, name in functions[:top]]
    if figures["lines"]:
        lines += ["  instructions  line < the lines that it is inlined into"]
    lines += [f"  {count:12.1f}  {place}" for count, place in figures["lines"][:top]]
    return lines

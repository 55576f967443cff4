# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What an RPC costs with our module and with the C module, in thousands of instructions."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.append("/src/selftests/vm")

from guest import GuestError, Machine  # noqa: E402
from run import Pair, host_name, host_path, run_folder, say  # noqa: E402

from jobs import BY_NAME, JOBS  # noqa: E402
import exact  # noqa: E402
import memory  # noqa: E402
import report  # noqa: E402
from split import Symbols, split  # noqa: E402

MODULE = f"{os.environ['BUILD']}/rpcrdma_rs/rpcrdma_rs.ko"
EPILOG = """
Each job runs over NFS version 3 in one guest with one processor, which is client and server
and counts its instructions. host is all but the software NIC and idling, transport what has a
frame of the module in its call chain, self the module's own code; "leaf < own" is a leaf that
the module's function own has called, perhaps by way of others. rust-2 is our module over version 2 of
RPC-over-RDMA. Figures of one build repeat within some percent, as they are estimated from samples.

  selftests/bench/run --job rand-read-4k --side rust     two minutes
  selftests/bench/run --job none --memory                memory alone
  selftests/bench/run --job rand-read-4k --side both --exact   every instruction, one minute a side
"""
PARTS = ("whole", "host", "transport", "self", "nic", "idle")
# Events of allocating and freeing, for which measure.py writes the call chains.
EVENTS = ("kmalloc", "kmem_cache_alloc", "mm_page_alloc", "kfree", "kmem_cache_free",
          "mm_page_free")
# Time limit for one job in a guest, on a busy machine.
SECONDS = 600


def readable(names):
    """Return names without the compiler's additions, by mangled name."""
    names = list(names)
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True)
    return dict(zip(names, (re.sub(r"rpcrdma_rs\[\w*\]::|\[[0-9a-f]{16}\]", "", line)
                            for line in done.stdout.splitlines())))


def callers(folder, job, event, figures, symbols):
    """Return the functions of the transport that allocate or free, per operation."""
    with open(f"{folder}/{job.name}.{event}", "rb") as file:
        found = split(file.read(), figures["profiler"], symbols).through
    names = readable({own for own, _ in found})
    counts = {}
    for (own, _), count in found.items():
        counts[names[own]] = counts.get(names[own], 0) + count / figures["traced"]
    return sorted(((value, name) for name, value in counts.items()), reverse=True)


def figures_of(folder, job, symbols):
    """Return parts and functions of one job, in thousands of instructions per operation."""
    with open(f"{folder}/{job.name}.json", encoding="ascii") as file:
        figures = json.load(file)
    with open(f"{folder}/{job.name}.samples", "rb") as file:
        result = split(file.read(), figures["profiler"], symbols)
    if not result.parts["whole"]:
        raise GuestError(f"no samples in {host_name(folder)}/{job.name}.samples")
    scale = figures["microseconds"] / result.parts["whole"]
    figures["samples"] = result.parts["whole"]
    figures["parts"] = {part: result.parts[part] * scale for part in PARTS}
    names = readable({name for name in (*result.own, *result.other, *result.nic)}
                     | {name for pair in result.through for name in pair})
    figures["functions"] = {
        "self": [(count * scale, names[leaf]) for leaf, count in result.own.most_common(40)],
        "transport": [(count * scale, f"{names[leaf]} < {names[own]}")
                      for (own, leaf), count in result.through.most_common(40)],
        "other": [(count * scale, names[leaf]) for leaf, count in result.other.most_common(40)],
    }
    figures["callers"] = {event: callers(folder, job, event, figures, symbols)
                          for event in EVENTS}
    return figures


def run_side(side, jobs, module, factor):
    """Measure the jobs with one module and version of RPC-over-RDMA; return the figures by job."""
    kind = side.partition("-")[0]
    folder = run_folder(f"bench-{side}", module if kind == "rust" else None)
    say(f"{side}: boot, run folder {host_name(folder)}")
    pair = Pair(folder, Machine(counted=True), one_guest=True, echo=lambda line: None)
    results = {}
    try:
        pair.set_up(kind, kind)
        guest = pair.client
        if side == "rust-2":
            guest.output("echo 2 >/proc/sys/sunrpc/rdma_max_version", SECONDS)
        guest.output("cat /proc/kallsyms >/t/kallsyms", SECONDS)
        with open(f"{folder}/kallsyms", encoding="ascii") as file:
            symbols = Symbols(file)
        for job in jobs:
            lines = []

            def heard(line, lines=lines):
                lines.append(line)
                say(f"{side} {job.name}: {line}")
            status = guest.run(". /t/guest/lib.sh\n"
                               f"python3 -B /t/bench/measure.py {job.name} /t/{job.name} {factor}",
                               SECONDS, heard)
            if status != 0:
                raise GuestError(f"{side} {job.name}: status {status}: " + "; ".join(lines))
            results[job.name] = figures_of(folder, job, symbols)
            say(f"{side}: {lines[-1]}")
        for name, faults in pair.stop().items():
            for line in faults:
                say(f"{side}: {name}: {line}")
    finally:
        pair.kill()
    return results


def positive(text):
    """Parse a positive number of the command line."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0")
    return number


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="selftests/bench/run", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", action="append", choices=[*BY_NAME, "all", "none"], metavar="JOB",
                        help=f"one of {', '.join(BY_NAME)}, all (the default), none; may be "
                        "given more than once")
    parser.add_argument("--side", choices=("rust", "rust-2", "c", "both", "all"), default="all",
                        help="rust: our module; rust-2: the same over version 2; both: rust and c "
                        "(default: all, at the same time)")
    parser.add_argument("--exact", action="store_true",
                        help="instead of that, count every instruction of the module, by function and "
                        "by line of the source")
    parser.add_argument("--memory", action="store_true", help="also the memory of a connection")
    parser.add_argument("--many", action="store_true", help="also 256 connections to one server")
    parser.add_argument("--top", type=int, default=25, metavar="N",
                        help="functions shown of each kind (default: 25)")
    parser.add_argument("--factor", type=positive, default=1, metavar="F",
                        help="measure F times as long (default: 1)")
    parser.add_argument("--module", metavar="FILE", help="our module (default: as built)")
    parser.add_argument("--out", metavar="FOLDER",
                        help="write bench.txt, bench.json and bench.svg there too")
    args = parser.parse_args()
    names = args.job or ["all"]
    args.jobs = [job for job in JOBS if job.name in names or "all" in names]
    args.module = host_path(args.module) if args.module else MODULE
    args.sides = {"both": ("rust", "c"), "all": ("rust", "rust-2", "c")}.get(args.side, (args.side,))
    if not os.path.exists(args.module) and args.sides != ("c",):
        parser.error(f"there is no module {args.module}: run 'make all' first")
    if args.out and os.path.exists(host_path(args.out)) and not os.path.isdir(host_path(args.out)):
        parser.error(f"--out: {args.out} is not a directory")
    return args


def measure(args):
    """Measure and return all requested figures, by kind and side."""
    figures = {}
    if args.exact:
        figures["exact"] = {side: {job.name: exact.measure(job, side, args.module)
                                   for job in args.jobs}
                            for side in args.sides}
    elif args.jobs:
        # QEMU is set to die with the thread that starts it; these threads live until the end.
        with ThreadPoolExecutor() as pool:
            runs = {side: pool.submit(run_side, side, args.jobs, args.module, args.factor)
                    for side in args.sides}
            figures["jobs"] = {side: run.result() for side, run in runs.items()}
    if args.memory:
        figures["memory"] = {side: memory.measure(side, args.module)
                             for side in args.sides if side in ("rust", "c")}
    if args.many:
        figures["many"] = {side: memory.many(side, args.module)
                           for side in args.sides if side in ("rust", "c")}
    return figures


def text_of(args, figures):
    """The report."""
    lines = []
    for side, found in figures.get("exact", {}).items():
        for job in args.jobs:
            names = readable({name for _, _, name in found[job.name]["functions"]})
            lines += exact.report(job, report.SIDES[side], found[job.name], names, args.top)
    if "jobs" in figures:
        lines += report.costs(args.jobs, figures["jobs"]) + report.counts(args.jobs, figures["jobs"])
    if args.memory:
        lines += report.memory(figures["memory"])
    for side, found in figures.get("many", {}).items():
        lines += ["", f"256 connections to one server, {report.SIDES[side]}:"]
        lines += [f"  {name}: {value}" for name, value in found.items()]
    if "jobs" in figures:
        lines += report.functions(args.jobs, figures["jobs"], args.top)
    return "\n".join(lines) + "\n"


def main():
    """The tool."""
    # An interrupt ends all jobs: their guests die with this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    args = arguments()
    figures = measure(args)
    text = text_of(args, figures)
    print(text, end="")
    if args.out:
        os.makedirs(host_path(args.out), exist_ok=True)
        title = "Instructions per operation, ours against the C module"
        for name, content in (("txt", text), ("json", json.dumps(figures, indent=1)),
                              ("svg", report.plot(args.jobs, figures.get("jobs", {}), title))):
            if content:
                with open(f"{host_path(args.out)}/bench.{name}", "w", encoding="utf-8") as file:
                    file.write(content)
        say(f"written to {args.out}: bench.txt, bench.json, bench.svg")


if __name__ == "__main__":
    try:
        main()
    except GuestError as error:
        say(f"error: {error}")
        sys.exit(125)

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What an RPC costs with our module and with the C module, in thousands of instructions."""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

sys.path.append("/src/selftests/vm")

from guest import GuestError, Machine  # noqa: E402
from run import Pair, host_name, host_path, run_folder, say  # noqa: E402

from jobs import BY_NAME, JOBS  # noqa: E402
from split import Symbols, split  # noqa: E402

MODULE = "/src/rpcrdma_rs/rpcrdma_rs.ko"
PARTS = ("whole", "host", "transport", "self", "nic", "idle")
# For one job in a guest, on a machine that is busy.
SECONDS = 600


def readable(names):
    """Names without what the compiler added to them, by mangled name."""
    names = list(names)
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True)
    return dict(zip(names, (re.sub(r"rpcrdma_rs\[\w*\]::|\[[0-9a-f]{16}\]", "", line)
                            for line in done.stdout.splitlines())))


def figures_of(folder, job, symbols):
    """The figures of one job, in thousands of instructions per operation: parts and functions."""
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
    return figures


def run_side(side, jobs, module, factor):
    """Measure the jobs with one module; figures by job."""
    folder = run_folder(f"bench-{side}", module if side == "rust" else None)
    say(f"{side}: boot, run folder {host_name(folder)}")
    pair = Pair(folder, Machine(counted=True), one_guest=True, echo=lambda line: None)
    results = {}
    try:
        pair.set_up(side, side)
        guest = pair.client
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


def table(jobs, results, top):
    """The report in text."""
    parts = ("whole", "host", "transport", "self")
    print("Thousands of instructions per operation: ours / C (ratio)")
    print(f"{'job':28}" + "".join(f"{part:>28}" for part in parts))
    for job in jobs:
        sides = {side: results[side][job.name]["parts"] for side in results}
        row = f"{job.title:28}"
        for part in parts:
            values = [f"{sides[side][part]:.2f}" for side in ("rust", "c") if side in sides]
            text = " / ".join(values)
            if len(sides) == 2:
                text += f" ({sides['rust'][part] / max(sides['c'][part], 1e-9):.2f})"
            row += f"{text:>28}"
        print(row)
    for job in jobs:
        for side, figures in results.items():
            one = figures[job.name]
            print(f"\n{job.name} {side}: {one['samples']} samples, " + ", ".join(
                f"{part} {value:.2f}" for part, value in one["parts"].items()))
            for title, functions in one["functions"].items():
                for value, name in functions[:top]:
                    print(f"  {title:10}{value:9.3f}  {name}")


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(prog="selftests/bench/run", description=__doc__)
    parser.add_argument("--job", action="append", choices=[*BY_NAME, "all"], metavar="JOB",
                        help=f"one of {', '.join(BY_NAME)}, all; may be given more than once")
    parser.add_argument("--side", choices=("rust", "c", "both"), default="both")
    parser.add_argument("--top", type=int, default=25, metavar="N", help="functions shown")
    parser.add_argument("--factor", type=float, default=1, metavar="F",
                        help="measure F times as long")
    parser.add_argument("--module", metavar="FILE", help="our module (default: as built)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    return parser.parse_args()


def main():
    """The tool."""
    args = arguments()
    names = args.job or ["all"]
    jobs = [job for job in JOBS if job.name in names or "all" in names]
    module = host_path(args.module) if args.module else MODULE
    if not os.path.exists(module) and args.side != "c":
        sys.exit(f"error: no module {module}: run 'make all' first")
    sides = ("rust", "c") if args.side == "both" else (args.side,)
    # QEMU is told to die with the thread that starts it, and these live until all is done.
    with ThreadPoolExecutor() as pool:
        runs = {side: pool.submit(run_side, side, jobs, module, args.factor) for side in sides}
        results = {side: run.result() for side, run in runs.items()}
    table(jobs, results, args.top)
    if args.json:
        with open(host_path(args.json), "w", encoding="ascii") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except GuestError as error:
        say(f"error: {error}")
        sys.exit(125)

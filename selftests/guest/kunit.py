# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""kunit.py MODULE SUITE...: insert the module of the KUnit suites and print their results.

KUnit runs the suites of a module when the module is inserted, and shows the results of each
suite in /sys/kernel/debug/kunit as long as the module is loaded. The module must have exactly
the named suites, and each test of each suite must have a result.
"""

import os
import re
import sys

from harness import case, expect, shell

RESULTS = "/sys/kernel/debug/kunit"


def results(suite):
    """Print the results of a suite; return how many tests it planned, and how many results it
    has."""
    planned = told = 0
    remarks = []
    with open(f"{RESULTS}/{suite}/results", encoding="utf-8", errors="replace") as file:
        for line in file:
            plan = re.match(r"    1\.\.(\d+)$", line)
            test = re.match(r"    (ok|not ok) \d+ (\w+)(?: # SKIP ?(.*))?", line)
            if plan:
                planned = int(plan[1])
            elif not test:
                remarks.append(line.strip())
                continue
            else:
                told += 1
                if test[3] is not None:
                    print(f"skip {suite}: {test[2]} # {test[3]}")
                else:
                    print(f"{test[1]} {suite}: {test[2]}")
                if test[1] == "not ok":
                    # The lines before the line of a test say why it failed.
                    print("\n".join(remarks))
            remarks = []
    return planned, told


def main():
    """The group."""
    module, suites = sys.argv[1], sys.argv[2:]
    name = os.path.basename(module).removesuffix(".ko")
    before = shell("modprobe -a sunrpc rdma_cm ib_core; rdma resource show")
    others = set(os.listdir(RESULTS))
    with case(f"{name} is inserted"):
        shell(f"insmod {module}")
    with case("the suites of the sources are those that ran"):
        expect("suites", sorted(set(os.listdir(RESULTS)) - others), sorted(suites))
    for suite in suites:
        with case(f"{suite}: all of its tests ran"):
            planned, told = results(suite)
            expect("tests with a result", told, max(planned, 1))
    with case(f"{name} is removed"):
        shell(f"rmmod {name}")
    with case("no RDMA resource is left"):
        expect("resources", shell("rdma resource show"), before)


main()

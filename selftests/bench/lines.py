# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Attribute instructions of a module to the lines of its source.

A function of the module contains the code of many that were inlined into it. The debug
information tells for each instruction the line that it comes from, and the calls that lead there.
"""

import os
import subprocess
from collections import Counter

# Lines of the standard library and of the kernel crate count for the line of ours that uses them.
LIBRARIES = ("/usr/lib/", "/rust/kernel/", "/rust/pin-init/", "/rust/ffi.rs")
# Where the tree is when the module is compiled.
TREE = "/src/"
# Calls shown for each line.
DEPTH = 4


def functions(symbol_table):
    """Return section index and offset of each function, from the lines of `readelf -sW`."""
    found = {}
    for line in symbol_table:
        fields = line.split()
        if len(fields) >= 8 and fields[3] == "FUNC":
            found.setdefault(fields[7], (fields[6], int(fields[1], 16)))
    return found


def sections(section_table):
    """Return the name of each section by its index, from the lines of `readelf -SW`."""
    found = {}
    for line in section_table:
        index, bracket, rest = line.strip().removeprefix("[").partition("]")
        if bracket and index.strip().isdigit():
            found[index.strip()] = rest.split()[0] if rest.split() else ""
    return found


def own(frames):
    """Return the line of ours that an instruction belongs to, and the calls that lead there. `frames`
    are lines, innermost first."""
    ours = [frame for frame in frames if not any(part in frame for part in LIBRARIES)]
    return " < ".join((ours or frames)[:DEPTH])


def short(line):
    """Return a line of addr2line as file and number, in this tree without the path to it."""
    file, _, number = line.partition(" (discriminator")[0].rpartition(":")
    return f"{os.path.normpath(file).removeprefix(TREE)}:{number}"


def places(output):
    """Parse the lines of `addr2line -a -i`; yield each address with its lines, innermost first."""
    address, frames = None, []
    for line in output:
        if line.startswith("0x"):
            if address is not None:
                yield address, frames
            address, frames = int(line, 16), []
        else:
            frames.append(short(line))
    if address is not None:
        yield address, frames


def attribute(counts, module):
    """Return the instructions of each line of the source. `counts` maps pairs of a function's name and
    an offset in it to counts; `module` is the object file."""
    def read(*command, **options):
        return subprocess.run(command, check=True, capture_output=True, text=True,
                              **options).stdout.splitlines()

    where, names = functions(read("readelf", "-sW", module)), sections(read("readelf", "-SW", module))
    by_section = {}
    for (function, offset), count in counts.items():
        if function in where:
            index, start = where[function]
            by_section.setdefault(names[index], Counter())[start + offset] += count
    found = Counter()
    for section, executed in by_section.items():
        output = read("addr2line", "-a", "-i", "-j", section, "-e", module,
                      input="\n".join(map(hex, executed)))
        for address, frames in places(output):
            found[own(frames)] += executed[address]
    return found

#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""protocol.py: check the tables of Documentation/protocol.rst that say where each rule is.

Each file that a row names exists, each name is in the file before it, and each rule of version 2 has a
test. Prints each offence; exit status 1 if there are any."""

import re
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
PAGE = TREE / "Documentation/protocol.rst"


def tables(lines):
    """Yield each table: line number and cells of each row."""
    table, row = [], None
    for number, line in enumerate([*lines, "end"], 1):
        if start := re.match(r" {3}\* - ?(.*)", line):
            row = (number, [start[1]])
            table.append(row)
        elif row and (cell := re.match(r" {5}- ?(.*)", line)):
            row[1].append(cell[1])
        elif row and line.startswith(" " * 7):
            row[1][-1] += " " + line.strip()
        elif line and not line.startswith(" "):
            if table:
                yield table
            table, row = [], None


def sources(file, where):
    """Return the texts of the files of that name; with `where` it is a path from the top."""
    paths = [TREE / file] if where else TREE.glob(f"selftests/*/**/{file}")
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def wrong(cell, where):
    """Yield what is wrong with a cell. A name belongs to the file before it."""
    texts = []
    for name in re.findall(r"``([^`]+)``", cell):
        if re.search(r"\.(rs|py)$", name):
            file, texts = name, sources(name, where)
            if not texts:
                yield f"no file {name}"
            continue
        for word in name.split("::"):
            if not any(re.search(rf"\b{re.escape(word)}\b", text) for text in texts):
                yield f"no {word} in {file}"
    if "``" not in cell:
        yield "names nothing"


def main():
    """Run the tool."""
    found = rows = 0
    for (_, head), *rest in tables(PAGE.read_text(encoding="utf-8").splitlines()):
        for number, cells in rest if head[2:3] == ["Where"] else []:
            rows += 1
            for title, cell in zip(head[2:], cells[2:], strict=True):
                for why in wrong(cell, title == "Where"):
                    print(f"Documentation/protocol.rst:{number}: section {cells[0]}: {why}")
                    found += 1
    if not rows:
        print("Documentation/protocol.rst: no table says where rules are kept")
    return 0 if rows and not found else 1


if __name__ == "__main__":
    sys.exit(main())

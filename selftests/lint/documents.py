#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""documents.py: compare the documents with the tree that they describe.

Each link and path in them exists; each page is in the index; each message that the module logs, each of its
sysctl files, each line of the live view and each KUnit suite is documented; the lists of files in mod.rs and
MAINTAINERS are complete. Prints what is wrong; exit status 1 if anything is.
"""

import glob
import os
import re
import subprocess
import sys

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PAGES = "Documentation/*.rst"
MESSAGE = re.compile(r'\bpr_(?:err|warn|info|notice)!\(\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
PLACE = re.compile(r"\{[^{}]*\}")
LITERAL = re.compile(r"``([^`]+)``")
# What a build, and not the tree, has.
BUILT = re.compile(r"\.ko$|rust-project\.json$")


def text_of(path):
    """Return the text of a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def sources(suffix):
    """Return the module's own files with this suffix."""
    return [path for layer in ("clnt", "svc", "rpcrdma_rs")
            for path in sorted(glob.glob(f"{layer}/**/*{suffix}", recursive=True))
            if "generated" not in path and not path.endswith("kunit.rs")]


def tracked():
    """Return all files of the tree."""
    done = subprocess.run(["git", "ls-files"], text=True, capture_output=True, check=False)
    return done.stdout.splitlines()


def links():
    """Yield links to pages and files that do not exist, and pages that the index lacks."""
    for target in re.findall(r"\]\(([^):]+)\)", text_of("README.md")):
        if not os.path.exists(target):
            yield f"README.md: no file {target}"
    index = text_of("Documentation/index.rst").split()
    for page in sorted(glob.glob(PAGES)):
        for target in re.findall(r":doc:`([^`<]+)`", text_of(page)):
            if not os.path.exists(f"Documentation/{target}.rst"):
                yield f"{page}: no page {target}"
        name = os.path.basename(page)[:-len(".rst")]
        if name not in ("index", *index):
            yield f"Documentation/index.rst: no {name}"


def paths():
    """Yield paths of this tree that do not exist."""
    ours = re.compile(r"(?:Documentation|clnt|rpcrdma_rs|selftests|svc|xdr)/[\w*./-]*\w")
    for page in ["README.md", "CONTRIBUTING", "CHANGELOG", *sorted(glob.glob(PAGES))]:
        # A path in another tree has a directory in front.
        for found in re.finditer(r"(?<![\w/.<>])" + ours.pattern, text_of(page)):
            path = found.group()
            if path.startswith("Documentation/rust/") or path.startswith("Documentation/process/"):
                continue  # of the kernel
            if not BUILT.search(path) and not glob.glob(path) and not glob.glob(f"rpcrdma_rs/{path}"):
                yield f"{page}: no file {path}"


def messages():
    """Yield messages of the module that the page of symptoms lacks."""
    page = text_of("Documentation/troubleshooting.rst")
    known = [*LITERAL.findall(page), *(line.strip() for line in page.splitlines())]
    for path in sources(".rs"):
        code = re.sub(r"^\s*//.*$", "", text_of(path), flags=re.MULTILINE)
        for found in MESSAGE.findall(code):
            message = re.sub(r"\\\n\s*", "", found).replace("\\n", "").replace('\\"', '"')
            pattern = ".+".join(map(re.escape, PLACE.split(message)))
            if not any(re.fullmatch(pattern, line) for line in known):
                yield f"Documentation/troubleshooting.rst: nothing about '{message}' of {path}"


def names(page, pattern, files):
    """Yield names in the sources that a page does not have as a literal."""
    known = LITERAL.findall(text_of(page))
    for path in files:
        for name in re.findall(pattern, text_of(path)):
            if name not in known:
                yield f"{page}: nothing about {name} of {path}"


def suites():
    """Yield KUnit suites that the page about tests lacks."""
    known = LITERAL.findall(text_of("Documentation/testing.rst"))
    for path in sorted(glob.glob("**/kunit.rs", recursive=True)):
        for name in re.findall(r"kunit_tests\(rpcrdma_(\w+)\)", text_of(path)):
            if name not in known:
                yield f"Documentation/testing.rst: nothing about the suite {name} of {path}"


def modules():
    """Yield modules that the list at the beginning of their directory's mod.rs lacks."""
    for path in "clnt/mod.rs", "svc/mod.rs", "xdr/mod.rs":
        text = text_of(path)
        listed = re.findall(r"^//!   (\w+) +\w", text, re.MULTILINE)
        listed += re.findall(r"\[`(\w+)`\]", text)
        for name in re.findall(r"^(?:pub(?:\(\w+\))? )?mod (\w+);", text, re.MULTILINE):
            if name not in listed and name != "kunit":
                yield f"{path}: the list lacks {name}"


def maintainers():
    """Yield entries of MAINTAINERS without a file, and files without an entry."""
    entries = re.findall(r"^F:\t(.*)$", text_of("MAINTAINERS"), re.MULTILINE)
    for entry in entries:
        if not glob.glob(entry):
            yield f"MAINTAINERS: no file {entry}"
    for path in tracked():
        if "/" in path and not any(path == entry or entry.endswith("/") and path.startswith(entry)
                                   for entry in entries):
            yield f"MAINTAINERS: no entry for {path}"


def main():
    """The checks."""
    os.chdir(TREE)
    found = [*links(), *paths(), *messages(), *suites(), *modules(), *maintainers(),
             *names("Documentation/sysctl.rst", r'File::\w+\(c"(\w+)"', sources("tunables.rs")),
             *names("Documentation/live.rst", r'writeln!\(f, "(\w+): ', sources("status.rs"))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

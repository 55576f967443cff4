# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The second client of the recall tests; runs in the server guest, over TCP.

second.py FOLDER SET COUNT THREADS: uses the files SET-0 to SET-(COUNT - 1), for each of which
the first client has a delegation. Files of sets whose name begins with "w" are read: they hold data
that the first client wrote and perhaps has not sent yet. Others are written. Prints one JSON object.

second.py --create FOLDER SET:COUNT...: creates such files.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from harness import data

SIZE = 5000


def first(number):
    """Return the content of a file before the first client opens it."""
    return data(SIZE, number)


def mine(number):
    """Return the content that the first client writes."""
    return data(SIZE, 10_000 + number)


def theirs(number):
    """Return the content that the second client writes."""
    return data(SIZE, 20_000 + number)


def work(folder, name, number):
    """Open one file, which recalls its delegation; return the duration in seconds and the fault."""
    path = f"{folder}/{name}-{number}"
    started = time.monotonic()
    wrong = ""
    try:
        fd = os.open(path, os.O_RDONLY if name.startswith("w") else os.O_WRONLY)
        seconds = time.monotonic() - started
        try:
            if not name.startswith("w"):
                os.pwrite(fd, theirs(number), 0)
            elif os.pread(fd, SIZE + 1, 0) != mine(number):
                wrong = f"{name}-{number} is not what the first client wrote"
        finally:
            os.close(fd)
    except OSError as error:
        seconds, wrong = time.monotonic() - started, f"{name}-{number}: {error}"
    return seconds, wrong


def create(folder, sets):
    """Create the files."""
    for name, count in (item.split(":") for item in sets):
        for number in range(int(count)):
            with open(f"{folder}/{name}-{number}", "wb") as file:
                file.write(first(number))


def main():
    """The tool."""
    if sys.argv[1] == "--create":
        create(sys.argv[2], sys.argv[3:])
        return
    folder, name, count, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(lambda number: work(folder, name, number), range(count)))
    print(json.dumps({
        "files": count,
        "seconds": time.monotonic() - started,
        "slowest": max(seconds for seconds, _ in results),
        "wrong": [wrong for _, wrong in results if wrong]}))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Tests of rpcrdma-top with status files of its own, without the module; prints KTAP."""

import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TOP = os.path.join(os.path.dirname(__file__), "../../rpcrdma_rs/tools/rpcrdma-top")
# What it says about a folder that is not there depends on this machine.
MISSING = "is debugfs mounted" if os.path.isdir("/sys/module/rpcrdma_rs") else "is not loaded"
STATUS = b"""peer: 192.168.88.2:20049
device: rdma0
state: connected
credits_granted: 128
credits_used: 3
messages_sent: %d
read_chunks: %d
idle_ms: 1500
last_ended: -
"""


class Failed(Exception):
    """A check failed."""


def expect(what, got, wanted):
    """Fail unless two values are equal."""
    if got != wanted:
        raise Failed(f"{what}: {got!r}, expected {wanted!r}")


def write(folder, side, number, status):
    """Write the status of a connection."""
    os.makedirs(f"{folder}/{side}/{number}", exist_ok=True)
    with open(f"{folder}/{side}/{number}/new", "wb") as file:
        file.write(status)
    os.rename(f"{folder}/{side}/{number}/new", f"{folder}/{side}/{number}/status")


def top(folder, *options):
    """Run the tool; return exit status, output and errors."""
    done = subprocess.run([sys.executable, TOP, "--folder", folder, "--interval", "0.2", *options],
                          text=True, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def refuses(folder, text, *options):
    """The tool fails with one line that has this text, and no trace of Python."""
    status, output, errors = top(folder, *options)
    if status not in (1, 2) or text not in errors or "Traceback" in errors:
        raise Failed(f"exit status {status}, it says {output!r}, {errors!r}")


def values(folder):
    """--json has the values, numbers as numbers."""
    write(folder, "client", 7, STATUS % (140, 1 << 20))
    status, output, errors = top(folder, "--json", "--once")
    expect("exit status and errors", (status, errors), (0, ""))
    record, = json.loads(output)["connections"]
    expect("values", (record["side"], record["number"], record["peer"], record["messages_sent"],
                      record["last_ended"]), ("client", 7, "192.168.88.2:20049", 140, "-"))
    expect("rates of counters that stand still", set(record["rates"].values()), {0.0})


def loaded():
    """Return the tool as a module."""
    loader = importlib.machinery.SourceFileLoader("rpcrdma_top", TOP)
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("rpcrdma_top", loader))
    loader.exec_module(tool)
    return tool


def rates(_):
    """Rates are per second, and those of a connection that is new are zero."""
    tool = loaded()
    after = 12.5, {"messages_sent": 140, "read_chunks": 1 << 20}
    shown = tool.rates((10.0, {"messages_sent": 100, "read_chunks": 0}), after)
    expect("rates", (shown["messages_sent"], shown["read_chunks"], shown["write_chunks"]),
           (16.0, (1 << 20) / 2.5, 0.0))
    expect("rates of a new connection", set(tool.rates(None, after).values()), {0.0})


def table(folder):
    """The table has a line for each connection, and a directory without connections has none."""
    os.makedirs(f"{folder}/client")
    os.makedirs(f"{folder}/server")
    status, output, _ = top(folder, "--once")
    expect("exit status", status, 0)
    expect("last line", output.splitlines()[-1], "no connections")
    write(folder, "client", 1, STATUS % (1, 2))
    write(folder, "server", 2, STATUS % (1, 2))
    lines = top(folder, "--once")[1].splitlines()
    expect("first words", [line.split()[0] for line in lines[1:]], ["SIDE", "client", "server"])
    expect("credits and idle time", (lines[2].split()[4], lines[2].split()[-1]), ("3/128", "1.5"))


def sizes(_):
    """The table fits into the terminal; nothing is omitted if its size is unknown."""
    fitted = loaded().fitted
    lines = ["12345678", "a", "b", "c"]
    expect("3 lines of 5", fitted(lines, os.terminal_size((5, 3))), ["12345", "a", "2 mor"])
    expect("4 lines", fitted(lines, os.terminal_size((80, 4))), lines)
    expect("an unknown size", fitted(lines, os.terminal_size((0, 0))), lines)


def odd_names(folder):
    """The name of a device may be any octets."""
    write(folder, "client", 1, b"peer: 192.168.88.2:20049\ndevice: \xff\nstate: connected\n")
    write(folder, "client", 2, b"peer: 192.168.88.2:20049\ndevice: 12\nstate: connected\n")
    status, output, errors = top(folder, "--once")
    expect("exit status and errors", (status, errors), (0, ""))
    expect("lines", len(output.splitlines()), 4)
    expect("a name of digits", loaded().parse("device: 007\nidle_ms: 12\n"),
           {"device": "007", "idle_ms": 12})


def counted_again(_):
    """A module that was loaded again counts from 0: no rate is negative."""
    rates = loaded().rates((1.0, {"messages_sent": 500}), (2.0, {"messages_sent": 3}))
    expect("rate", rates["messages_sent"], 0)


def unreadable(folder):
    """Who may list the folder, and not read the files, is told so."""
    write(folder, "client", 1, STATUS % (1, 2))
    tool = loaded()

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")
    tool.open = refused
    try:
        tool.connections(folder)
    except tool.Unavailable as why:
        expect("it names root", "only root can read" in str(why), True)
    else:
        raise Failed("it shows no connections instead")


def ended(folder):
    """A connection that ends while it is read, and a status that is empty, are omitted."""
    write(folder, "client", 1, STATUS % (1, 2))
    write(folder, "client", 2, b"")
    os.makedirs(f"{folder}/client/3")
    status, output, errors = top(folder, "--json", "--once")
    expect("exit status and errors", (status, errors), (0, ""))
    expect("connections", [r["number"] for r in json.loads(output)["connections"]], [1])


def not_there(folder):
    """Without the module it says so."""
    refuses(f"{folder}/none", MISSING)


def other_module(folder):
    """If the C module is loaded, it says so."""
    tool = loaded()
    tool.MODULE, tool.C_MODULE = f"{folder}/none", folder
    expect("it names the C module", "rmmod rpcrdma'" in str(tool.unavailable(tool.FOLDER)), True)


def removed_meanwhile(folder):
    """The module is removed while it is read."""
    write(folder, "client", 1, STATUS % (1, 2))
    with subprocess.Popen([sys.executable, TOP, "--folder", folder, "--interval", "0.1"], text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        time.sleep(1)
        shutil.rmtree(folder)
        errors = child.communicate(timeout=60)[1]
    expect("exit status", child.returncode, 1)
    if MISSING not in errors or "Traceback" in errors:
        raise Failed(f"it says {errors!r}")


def interrupted(folder):
    """Interrupted, --json has printed lines of JSON only."""
    write(folder, "client", 1, STATUS % (1, 2))
    with subprocess.Popen([sys.executable, TOP, "--folder", folder, "--interval", "0.1", "--json"],
                          text=True, stdout=subprocess.PIPE) as child:
        lines = [child.stdout.readline()]
        child.send_signal(signal.SIGINT)
        lines += child.communicate(timeout=60)[0].splitlines()
    expect("exit status", child.returncode, 0)
    expect("lines that are no JSON", [line for line in lines if not line.startswith('{"time"')], [])


def bad_options(folder):
    """Intervals that are no time are refused."""
    for interval in ("0", "-1", "nan", "inf", "x", "1e9"):
        refuses(folder, "interval", "--interval", interval)


TESTS = (values, rates, table, sizes, odd_names, counted_again, unreadable, ended, not_there,
         other_module, removed_meanwhile, interrupted, bad_options)


def main():
    """The tests."""
    failed = 0
    # A shell starts background jobs with this signal ignored, and programs inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(f"1..{len(TESTS)}")
    for number, test in enumerate(TESTS, 1):
        folder = tempfile.mkdtemp()
        try:
            test(folder)
        except Failed as error:
            failed += 1
            print(f"not ok {number} rpcrdma-top: {test.__name__}\n# {error}")
        else:
            print(f"ok {number} rpcrdma-top: {test.__name__}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

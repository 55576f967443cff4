# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The live view: directories in debugfs, and rpcrdma-top. Needs this module on the client; tests the
server's part if the server has this module as well. Runs in the client guest."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time

from faultio import grows
from harness import ONE_GUEST, Skip, case, counters, data, expect, expect_that, in_background, mount, \
    shell, umount, write_file

FOLDER = "/mnt/live"
LIVE = "/sys/kernel/debug/rpcrdma_rs"
TOP = "/t/rpcrdma-top"
CLIENT = os.environ.get("CLIENT_MODULE") == "rust"
SERVER = os.environ.get("SERVER_MODULE") == "rust"
MOST_OFF = 0.02
# Requests in an interval for which rates are compared: those in flight at its ends, which one side
# has counted and the other has not, are far fewer.
ENOUGH = 1000
CLEAR = b"\x1b[H\x1b[2J"


def look(where="", interval=0.2):
    """Return the connections that rpcrdma-top shows, here or in the peer."""
    command = f"python3 {TOP} --once --json --interval {interval}"
    return json.loads(shell(f"peer '{command}'" if where else command))["connections"]


def of_side(side, found):
    """Return the only connection of one side."""
    found = [record for record in found if record["side"] == side]
    expect(f"connections as {side}", len(found), 1)
    return found[0]


def near(what, got, wanted):
    """Fail unless two counts agree within MOST_OFF."""
    expect_that(f"{what}: {got}, expected {wanted} or close to it",
                abs(got - wanted) <= max(wanted * MOST_OFF, 2))


def facts():
    """Check the properties of a connection that both sides show."""
    mount("4.2", "ipv4", FOLDER)
    client = of_side("client", look())
    expect("state", client["state"], "connected")
    expect_that(f"peer {client['peer']}", client["peer"] == "192.168.88.2:20049")
    expect_that("no Receives are posted", client["receives_posted"] > 0)
    expect_that("there are no regions", client["regions"] > 0)
    expect_that("more credits are granted than asked for",
                0 < client["credits_granted"] <= client["credits_asked"])
    if SERVER:
        server = of_side("server", look("peer"))
        expect("state of the server's", server["state"], "connected")
        expect("what the server sends, and the client receives", server["send_threshold"],
               client["receive_threshold"])
        expect("what the client sends, and the server receives", client["send_threshold"],
               server["receive_threshold"])
        expect("credits granted", server["credits_granted"], client["credits_granted"])


def counts():
    """After some I/O, counts equal those of mountstats, and both sides agree."""
    start = of_side("client", look())
    write_file(f"{FOLDER}/file", data(8 << 20, 1))
    shell(f"echo 3 >/proc/sys/vm/drop_caches; cat {FOLDER}/file >/dev/null")
    # Both have counted since the mount. Messages between the two reads are in only one of them.
    before = counters(FOLDER)
    end = of_side("client", look())
    after = counters(FOLDER)
    grown = {name: end[name] - start[name] for name in end if isinstance(end[name], int)}
    for name, theirs in (("messages_sent", "sends"), ("messages_received", "recvs"),
                         ("write_chunks", "total_rdma_reply")):
        least, most = before[theirs], after[theirs]
        expect_that(f"{name}: {end[name]}, mountstats has {least} to {most}",
                    least * (1 - MOST_OFF) - 2 <= end[name] <= most * (1 + MOST_OFF) + 2)
    near("octets read by the server", grown["read_chunks"], 8 << 20)
    near("octets written by the server", grown["write_chunks"], 8 << 20)
    for name in ("bad_replies", "stray_replies", "malformed", "failed_completions"):
        expect(name, end[name], 0)
    if SERVER:
        server = of_side("server", look("peer"))
        expect_that(f"{server['messages_received']} messages received, {end['messages_sent']} sent",
                    server["messages_received"] >= end["messages_sent"])
        near("octets of Read chunks", server["read_chunks"], end["read_chunks"])
        near("octets of RDMA Writes", server["write_chunks"], end["write_chunks"])
        expect("chains that wait", server["send_queue_waiting"], 0)
        # The pages of WRITEs are kept for the next ones.
        limit = time.monotonic() + 60
        while not of_side("server", look("peer"))["pages_spare"]:
            expect_that("no spare pages", time.monotonic() < limit)
            write_file(f"{FOLDER}/file", data(1 << 20, 1))
    expect("invalidations in flight", of_side("client", look())["invalidations"], 0)


def rate():
    """Rates equal the growth of the counts, divided by the time between two reads."""
    stop = f"{FOLDER}/stop"
    done = in_background(shell, f"while [ ! -e {stop} ]; do head -c 1M {FOLDER}/file | "
                         f"dd of={FOLDER}/copy bs=64k oflag=direct status=none; done")
    try:
        with subprocess.Popen(["python3", TOP, "--json", "--interval", "4"], text=True,
                              stdout=subprocess.PIPE) as top:
            looks = [json.loads(top.stdout.readline()) for _ in range(2)]
            top.terminate()
    finally:
        shell(f"touch {stop}")
        done.result(120)
        shell(f"rm {stop}")
    first, second = (of_side("client", look["connections"]) for look in looks)
    seconds = looks[1]["time"] - looks[0]["time"]
    for name, shown in second["rates"].items():
        counted = (second[name] - first[name]) / seconds
        expect_that(f"{name}: a rate of {shown:.1f} is shown, it was {counted:.1f}",
                    abs(shown - counted) <= counted * MOST_OFF)
    expect_that("nothing was sent meanwhile", second["rates"]["messages_sent"] > 0)


def written():
    """Return the octets of WRITEs sent to the server. The transport's line of mountstats lacks them:
    for requests it has the octets of the Write chunks that were offered."""
    ours = False
    with open("/proc/self/mountstats", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[:1] == ["device"]:
                ours = words[4] == FOLDER
            elif ours and words[:1] == ["bytes:"]:
                return int(words[6])
    raise AssertionError(f"mountstats has no bytes of {FOLDER}")


class Stats:
    """Samples of the mount's counters in mountstats over time."""

    def __init__(self):
        self.samples, self.stop = [], threading.Event()
        self.done = in_background(self._sample)

    def _sample(self):
        while not self.stop.wait(0.05):
            before = time.time()
            values = {**counters(FOLDER), "written": written()}
            self.samples.append(((before + time.time()) / 2, values))

    def at(self, name, when):
        """Return a counter at that time, interpolated between two samples."""
        late = next(i for i, (moment, _) in enumerate(self.samples) if moment >= when)
        (first, before), (second, after) = self.samples[late - 1], self.samples[late]
        return before[name] + (after[name] - before[name]) * (when - first) / (second - first)


def clock_ahead():
    """Return by how many seconds the peer's clock is ahead of this guest's."""
    tries = []
    for _ in range(5):
        before = time.time()
        there = float(shell("peer date +%s.%N"))
        after = time.time()
        tries.append((after - before, there - (before + after) / 2))
    return min(tries)[1]


def of_mountstats():
    """While fio runs, the rates shown in both guests equal those of mountstats."""
    names = {"messages_sent": "sends", "messages_received": "recvs",
             "read_chunks": "written", "write_chunks": "total_rdma_reply"}
    mirrored = {"messages_sent": "messages_received", "messages_received": "messages_sent"}
    ahead, stats = clock_ahead() if SERVER else 0, Stats()
    with subprocess.Popen(["fio", "--name=rates", f"--directory={FOLDER}", "--rw=randrw", "--bs=4k",
                           "--size=8m", "--direct=1", "--ioengine=libaio", "--iodepth=4",
                           "--time_based", "--runtime=1000", "--output=/tmp/fio"]) as fio:
        # On a slow machine fio takes long to start.
        grows(FOLDER, "sends", counters(FOLDER)["sends"] + 50, time.monotonic() + 60)
        before = counters(FOLDER)["sends"]
        time.sleep(4)
        each_second = (counters(FOLDER)["sends"] - before) / 4
        interval = min(max(20, int(ENOUGH / max(each_second, 1))), 200)
        # Unlike in a pipeline, nobody waits for rpcrdma-top to notice that its output is closed.
        looks = f"head -n 2 < <(python3 {TOP} --json --interval {interval} 2>&1)"
        there = in_background(shell, f"peer -t 600 '{looks}'") if SERVER else None
        here = shell(looks)
        sides = [("client", here, 0)] + ([("server", there.result(300), ahead)] if SERVER else [])
        expect("whether fio has ended", fio.poll(), None)
        fio.send_signal(signal.SIGINT)
    stats.stop.set()
    stats.done.result(10)
    off = []
    for side, text, offset in sides:
        first, second = (json.loads(line) for line in text.splitlines())
        first, second = (of_side(side, each["connections"]) for each in (first, second))
        start, end = first["time"] - offset, second["time"] - offset
        shown = second["rates"]
        for name, stat in names.items():
            got = shown[mirrored.get(name, name) if side == "server" else name]
            wanted = (stats.at(stat, end) - stats.at(stat, start)) / (end - start)
            compared = (f"{side}, {name}: {got:.1f} is shown, mountstats has {wanted:.1f}, "
                        f"{got / wanted - 1:+.2%}")
            print(compared)
            if abs(got - wanted) > wanted * MOST_OFF:
                off.append(compared)
    expect("rates that differ by more than 2 %", off, [])


def terminal():
    """In a terminal the table is redrawn, fitted to the terminal, until it is interrupted."""
    child, master = pty.fork()
    if child == 0:
        os.execvp("python3", ["python3", TOP, "--interval", "0.5"])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    said, end = b"", time.monotonic() + 60
    while said.count(CLEAR) < 4 and time.monotonic() < end:
        said += os.read(master, 65536)
    os.write(master, b"\x03")
    with contextlib.suppress(OSError):
        while data_left := os.read(master, 65536):
            said += data_left
    _, status = os.waitpid(child, 0)
    text = said.decode()
    expect_that(f"it did not draw four tables but {text!r}", said.count(CLEAR) >= 4)
    screens = text.split(CLEAR.decode())
    expect("what is there before the first table", screens[0], "")
    for screen in screens[2:-1]:
        lines = screen.split("\r\n")
        expect_that(f"no titles and connection in {lines}",
                    lines[1].startswith("SIDE") and "192.168.88.2:20049" in lines[2])
        expect_that(f"lines are too long: {lines}", max(map(len, lines)) <= 60)
    expect("exit status after ^C", os.waitstatus_to_exitcode(status), 0)
    expect_that(f"it complains: {screens[-1]!r}", "Traceback" not in text)


def nfs_utils():
    """nfsiostat and mountstats of nfs-utils understand the mount's statistics."""
    write_file(f"{FOLDER}/file", data(1 << 20, 1))
    text = shell(f"nfsiostat {FOLDER}")
    expect_that(f"no operations of the mount in {text}",
                f"mounted on {FOLDER}:" in text and "write:" in text and "ops/s" in text)
    before = counters(FOLDER)["sends"]
    text = shell(f"mountstats mountstats --xprt {FOLDER}")
    after = counters(FOLDER)["sends"]
    expect_that(f"the transport in {text}", "Transport protocol: rdma" in text)
    sent = int(re.search(r"RPC requests: (\d+)", text).group(1))
    expect_that(f"{sent} requests are shown, there were {before} to {after}", before <= sent <= after)


def reasons():
    """Each way in which a connection ends is told by the next one, and counted."""
    break_it = f"""for file in /sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/dstaddr; do
        address=$(cat $file); echo $address >$file; done"""
    expect("before the first end", of_side("client", look())["last_ended"], "-")
    for count, (reason, end) in enumerate((
            ("peer", "peer 'rpc.nfsd 0; nfsd_start 8'"), ("local", break_it),
            ("device", "rdma link del rdma0; device_add"),
            ("peer", "peer 'rpc.nfsd 0; nfsd_start 8'")), 1):
        shell(end)
        shell(f"stat {FOLDER}/none-{count}", check=False)
        client = of_side("client", look())
        expect("why, and how many", (client["last_ended"], client["reconnects"]), (reason, count))


def tools():
    """rdma(8) shows the module as the owner of a connection's resources."""
    for kind in ("cq", "pd"):
        text = shell(f"rdma resource show {kind}")
        expect_that(f"no {kind} of the module in {text}", "comm [rpcrdma_rs]" in text)
    text = shell("rdma resource show qp")
    expect_that(f"no connected queue pair in {text}", "type RC state RTS" in text)


def table():
    """The table has a line for the connection; rpcrdma-top reports what is missing."""
    text = shell(f"python3 {TOP} --once --interval 0.1")
    expect_that(f"no line of the connection in {text}", "192.168.88.2:20049" in text)
    done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "python3", TOP, "--once"],
                          text=True, capture_output=True, check=False)
    expect("exit status without root", done.returncode, 1)
    expect_that(f"it says '{done.stderr}'", "sudo" in done.stderr)
    done = subprocess.run(["python3", TOP, "--interval", "nan"], text=True, capture_output=True,
                          check=False)
    expect("exit status with a wrong option", done.returncode, 2)
    done = subprocess.run(["python3", TOP, "--once", "--folder", "/none"], text=True,
                          capture_output=True, check=False)
    expect("exit status without folder", done.returncode, 1)
    expect_that(f"it says '{done.stderr}'", "debugfs" in done.stderr)


def read_for(seconds, where=""):
    """Read every status again and again."""
    script = (f"end=$((SECONDS + {seconds})); while [ $SECONDS -lt $end ]; do "
              f"cat {LIVE}/*/*/status 2>/dev/null; done | wc -l")
    return shell(f"peer '{script}'" if where else script)


def ends():
    """Connections end and begin while their files are read, and leave no directory."""
    readers = [in_background(read_for, 12)]
    for _ in range(5):
        umount(FOLDER)
        mount("4.2", "ipv4", FOLDER)
        shell(f"ls -l {FOLDER} >/dev/null")
    lines = [int(reader.result(120)) for reader in readers]
    expect_that("nothing was read", all(lines))
    umount(FOLDER)
    for _ in range(50):
        left = os.listdir(f"{LIVE}/client")
        if not left:
            break
        time.sleep(0.1)
    expect("folders of connections that have ended", left, [])


def held():
    """An open status file holds the module, and cannot be read after the connection has ended."""
    if ONE_GUEST:
        raise Skip("the module is the server's as well")
    mount("4.2", "ipv4", FOLDER)
    number = of_side("client", look())["number"]
    with open(f"{LIVE}/client/{number}/status", encoding="ascii") as file:
        umount(FOLDER)
        time.sleep(2)
        done = subprocess.run(["rmmod", "rpcrdma_rs"], text=True, capture_output=True, check=False)
        expect_that(f"rmmod says '{done.stderr}'", "in use" in done.stderr)
        try:
            expect("what is read of a connection that has ended", file.read(), "")
        except OSError:
            pass


def main():
    """All tests."""
    if not CLIENT:
        print("skip - live view # the client is the C module")
        return
    os.makedirs(FOLDER, exist_ok=True)
    for name, test in (("both sides show what the connection is", facts),
                       ("counts agree with mountstats and with each other", counts),
                       ("rates are those of the interval", rate),
                       ("rates of both sides are those of mountstats", of_mountstats),
                       ("the table in a terminal", terminal),
                       ("rdma(8) shows the connection", tools),
                       ("nfsiostat and mountstats show the mount", nfs_utils),
                       ("why the last connection ended", reasons),
                       ("rpcrdma-top prints a table, or why not", table),
                       ("connections end while they are read", ends),
                       ("an open status keeps the module", held)):
        with case(name):
            test()
    shell(f"umount {FOLDER}", check=False)


main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""The interfaces of an administrator: sysctls, counters, trace events, addresses.

Runs in the client guest, and reads the server's files from there. The C module has
the same files and events, so most tests hold for either module.
"""

import contextlib
import os
import re
import shlex

from harness import SERVER, case, contents, data, expect, expect_that, mount, read_file, shell, \
    sysctls, transports, umount, write_file

FOLDER = "/mnt/observe"
CLIENT = "/proc/sys/sunrpc"
SERVICE = "/proc/sys/sunrpc/svc_rdma"
COUNTED = ("rdma_stat_recv", "rdma_stat_read", "rdma_stat_write", "rdma_stat_sq_starve")
# File, least, most, default.
CLIENT_NUMBERS = (
    ("rdma_slot_table_entries", 4, 16384, 128),
    ("rdma_max_inline_read", 1024, 65536, 4096),
    ("rdma_max_inline_write", 1024, 65536, 4096),
    ("rdma_inline_write_padding", 0, 4096, 0),
    ("rdma_memreg_strategy", 0, 6, 5),
)
# Files that only this module has.
OURS = ("rdma_max_version", "max_version", "rdma_stat_version_2")
SERVER_NUMBERS = (
    ("max_requests", 4, 16384, 128),
    ("max_req_size", 4096, 65536, 4096),
    ("max_outbound_read_requests", 1, 255, 16),
)


class Side:
    """One of the two guests, or the only guest."""

    def __init__(self, role, module):
        self.role, self.module = role, module

    def shell(self, script, check=True):
        """Run shell text in the guest; return what it prints."""
        if self.role == "server":
            script = "peer " + shlex.quote(script)
        return shell(script, check)

    def numbers(self, folder, files):
        """Each file has its default, refuses values beyond its bounds with EINVAL, and accepts both
        bounds."""
        for name, least, most, default in files:
            values = (least - 1, most + 1, "x", least, most, default)
            answers = self.shell(f"""cd {folder} && cat {name}
                for value in {" ".join(map(str, values))}; do
                    error=$(echo $value 2>&1 >{name}) && echo taken ||
                        echo "${{error##*: }}" | sed 's/Invalid argument/refused/'
                    cat {name}
                done""").split()
            expect(name, answers, [
                str(default), "refused", str(default), "refused", str(default), "refused",
                str(default), "taken", str(least), "taken", str(most), "taken", str(default)])

    def sysctls(self, folder, values):
        """Set several files in a with block."""
        return sysctls(self.shell, folder, values)

    def events(self, work):
        """Return the trace events, one line each, during `work`."""
        tracing = "cd /sys/kernel/tracing"
        self.shell(f"{tracing} && echo >trace && echo 1 >events/rpcrdma/enable")
        try:
            work()
        finally:
            self.shell(f"{tracing} && echo 0 >events/rpcrdma/enable")
        # Only the text after the time stamp: event and fields.
        text = self.shell(f"{tracing} && sed -n 's/^.*[0-9]: \\(\\(xprt\\|svc\\)rdma_\\)/\\1/p' trace")
        return text.splitlines()

    def sends(self):
        """Return the trace events of Sends on a mount that is used. The last Send completes after
        the client has received its message."""
        def work():
            mounted(io)
            self.shell("""cd /sys/kernel/tracing && for try in {1..50}; do
                [ $(grep -c rdma_post_send: trace) = $(grep -c rdma_wc_send trace) ] && break
                sleep 0.1
            done; settle connections""")
        return self.events(work)


def names(events):
    """Return the names of events."""
    return {line.split(":")[0] for line in events}


def fields(events, event, pattern):
    """Return the matches of `pattern` in the events of one name."""
    found = [re.search(pattern, line) for line in events if line.startswith(event + ":")]
    return [match[1] for match in found if match]


def mounted(work=lambda: None):
    """Mount, do I/O, unmount."""
    mount("4.1", "ipv4", FOLDER)
    try:
        work()
    finally:
        umount(FOLDER)


def io(size=1 << 20):
    """Write and read a file directly, and compare."""
    path = f"{FOLDER}/observed"
    write_file(path, data(size, 5), os.O_DIRECT if size % 4096 == 0 else 0)
    expect_that("what was read is what was written", read_file(path) == data(size, 5))


def test_numbers(client, server):
    """Test sysctls: bounds, defaults, and that connections use them."""
    with case("client: numbers have their defaults and bounds"):
        client.numbers(CLIENT, CLIENT_NUMBERS)
    with case("server: numbers have their defaults and bounds"):
        server.numbers(SERVICE, SERVER_NUMBERS)
    if client.module != server.module:
        with case("our module has the C module's files, and those of version 2"):
            listing = f"ls {CLIENT} {SERVICE}"
            files = {side.module: side.shell(listing).split() for side in (client, server)}
            expect("files", sorted(files["rust"]), sorted(files["c"] + list(OURS)))
    with case("client: a Call asks for as many credits as there are slots"):
        with client.sysctls(CLIENT, {"rdma_slot_table_entries": 8}):
            events = server.events(lambda: mounted(io))
        expect("credits asked for", set(fields(events, "svcrdma_decode_rqst", r"credits=(\d+)")),
               {"8"})
    with case("client: a new connection has the inline sizes that are set"):
        inline = ("rdma_max_inline_read", "rdma_max_inline_write")
        with client.sysctls(CLIENT, dict.fromkeys(inline, 1024)):
            events = client.events(lambda: mounted(lambda: (io(3000), io())))
        expect("agreed sizes",
               set(fields(events, "xprtrdma_inline_thresh", r"neg send/recv=(\d+/\d+)")),
               {"1024/1024"})
    with case("server: a new connection grants what is set"):
        with server.sysctls(SERVICE, {"max_requests": 16}):
            events = client.events(lambda: mounted(io))
        expect("credits granted", set(fields(events, "xprtrdma_reply", r"credits=(\d+)")), {"16"})


def test_bounds(client, server):
    """Test connections with the sysctls at their bounds, with many requests at a time."""
    copies = f"""cd {FOLDER} && head -c 300001 /dev/urandom >/tmp/bounds
        for i in 1 2 3 4 5 6; do cp /tmp/bounds bounds$i & done
        wait
        sync && echo 3 >/proc/sys/vm/drop_caches
        for i in 1 2 3 4 5 6; do cmp /tmp/bounds bounds$i || exit 1; done
        rm bounds*"""
    # Not with the largest grant: Receives of that size for all credits would need 2 GiB.
    for slots, inline, grant, size in ((4, 1024, 4, 4096), (4, 65536, 2048, 65536),
                                       (16384, 1024, 4, 65536), (16384, 65536, 2048, 4096)):
        names = {client: f"{slots} slots, inline {inline}",
                 server: f"server: {grant} credits, inline {size}"}
        names = [name for side, name in names.items() if side.module == "rust"]
        with case(f"connections work with {'; '.join(names)}"), contextlib.ExitStack() as changed:
            if client.module == "rust":
                changed.enter_context(client.sysctls(CLIENT, {
                    "rdma_slot_table_entries": slots, "rdma_max_inline_read": inline,
                    "rdma_max_inline_write": inline}))
            if server.module == "rust":
                changed.enter_context(server.sysctls(SERVICE, {"max_requests": grant,
                                                               "max_req_size": size}))
            mounted(lambda: shell(copies))


def test_counters(server):
    """The server's counters."""
    with case("server: counters count, and any write resets them"):
        server.shell(f"cd {SERVICE}" + "".join(f" && echo reset >{name}" for name in COUNTED))
        show = f"cd {SERVICE} && cat {' '.join(COUNTED)}"
        expect("counters after a reset", server.shell(show).split(), ["0"] * len(COUNTED))
        mounted(io)
        count = dict(zip(COUNTED, map(int, server.shell(show).split())))
        expect_that(f"messages are counted: {count}", count["rdma_stat_recv"] >= 10)
        expect_that(f"Reads and Writes are counted: {count}",
                    count["rdma_stat_read"] >= 1 and count["rdma_stat_write"] >= 1)


def sends_completed(events, side):
    """Check that each Send has completed. The last may complete as flushed: the receiver may end
    the connection before the device has processed the acknowledgement."""
    ids = r"cq\.id=\d+ cid=(\d+)"
    completed = (fields(events, f"{side}_wc_send", ids)
                 + fields(events, f"{side}_wc_send_flush", ids))
    expect("Sends that completed", sorted(completed),
           sorted(fields(events, f"{side}_post_send", ids)))


def test_client_events(client):
    """Test trace events of this module's client."""
    with case("client: events tell how a WRITE and a READ travel"):
        events = client.sends()
        wanted = {f"xprtrdma_{name}" for name in (
            "op_connect", "connect", "inline_thresh", "createmrs", "frwr_alloc", "post_recvs",
            "marshal", "chunk_read", "chunk_write", "mr_map", "mr_fastreg", "post_send",
            "wc_send", "wc_receive", "reply", "mr_reminv", "mr_unmap", "disconnect")}
        expect("events that did not happen", wanted - names(events), set())
        sends_completed(events, "xprtrdma")
        expect_that("1 MiB is one segment",
                    any(" 1048576@" in line for line in events if "chunk_write" in line))


def test_server_events(server):
    """Test trace events of this module's server."""
    with case("server: events tell how a WRITE and a READ travel"):
        events = server.sends()
        wanted = {f"svcrdma_{name}" for name in (
            "wc_recv", "decode_rqst", "decode_rseg", "post_read_chunk", "wc_read",
            "read_finished", "post_write_chunk", "post_send", "wc_send")}
        expect("events that did not happen", wanted - names(events), set())
        sends_completed(events, "svcrdma")


def test_no_events(client, server):
    """Trace events, disabled."""
    with case("events that are not enabled do not happen"):
        for side in (client, server):
            side.shell("settle connections")
        for side in (client, server):
            expect(f"events of the {side.role}", side.events(lambda: None), [])
        mounted(io)
        for side in (client, server):
            count = side.shell("grep -c rdma_ /sys/kernel/tracing/trace", check=False).strip()
            expect(f"events of the {side.role}", count, "0")


def views():
    """Test the addresses of the RDMA transport in debugfs and sysfs."""
    found = {}
    for netid, address, port in transports():
        if netid.startswith("rdma"):
            found["debugfs"] = {"addr": address, "port": port}
    for name in ("dstaddr", "srcaddr"):
        text = contents(f"/sys/kernel/sunrpc/xprt-switches/*/xprt-*-rdma/{name}")
        found[name] = text.split()[-1]
    return found


def test_views(client):
    """Test sunrpc's files about the transport."""
    with case("client: debugfs and sysfs show the transport's addresses"):
        found = {}
        mounted(lambda: found.update(views()))
        expect("debugfs address", found["debugfs"].get("addr"), SERVER["ipv4"])
        expect("debugfs port", found["debugfs"].get("port"), "20049")
        expect("sysfs dstaddr", found["dstaddr"], SERVER["ipv4"])
        expect_that(f"sysfs srcaddr is an address of the client: {found['srcaddr']}",
                    found["srcaddr"].startswith("192.168.88."))


def test_callback_views():
    """Test sunrpc's files about the server's transport for callbacks."""
    with case("server: debugfs shows where callbacks go"):
        found = []
        mounted(lambda: found.extend(transports("peer")))
        expect_that(f"callbacks go to the client, to a port that is a number: {found}",
                    any(netid == "rdma" and address == "192.168.88.1" and port.isdigit()
                        for netid, address, port in found))


def main():
    """The group."""
    client = Side("client", os.environ["CLIENT_MODULE"])
    server = Side("server", os.environ["SERVER_MODULE"])
    test_numbers(client, server)
    test_bounds(client, server)
    test_counters(server)
    test_no_events(client, server)
    # The C module reports the following in another way.
    if client.module == "rust":
        test_client_events(client)
        test_views(client)
    test_callback_views()
    if server.module == "rust":
        test_server_events(server)


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""dissector.py: compare what tshark decodes with rpcrdma2.lua from the messages in
data/version2.tsv with the values in that table. Prints KTAP. Needs tshark.

Each message becomes a RoCEv2 packet. The table uses the field names of the dissector. Wireshark loads no
script for root, who runs tshark as nobody here."""

import json
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent.parent / "rpcrdma_rs/tools/rpcrdma2.lua"
FIELDS = """rdma_xid rdma_vers rdma_credit rdma_proc rdma_direction rdma_inv_handle rdma_position
    rdma_handle rdma_length rdma_offset rdma_err rdma_vers_low rdma_vers_high rdma_max_chunks
    rdma_max_segments rdma_chunk_index rdma_length_needed rdma_optdir rdma_opttype rdma_optinfo
    rdma_which rdma_data rbsiz brs rdma_nochg rdma_done rdma_rejected""".split()
NUMBERS = {
    "RDMA2_MSG": 0, "RDMA2_NOMSG": 1, "RDMA2_ERROR": 4, "RDMA2_OPTIONAL": 5, "RDMA2_CONNPROP": 6,
    "RDMA2_REQPROP": 7, "RDMA2_RESPROP": 8, "RDMA2_UPDPROP": 9, "CALL": 0, "REPLY": 1,
    "RDMA2_ERR_VERS": 1, "RDMA2_ERR_BAD_XDR": 2, "RDMA2_ERR_INVALID_PROC": 3,
    "RDMA2_ERR_READ_CHUNKS": 4, "RDMA2_ERR_WRITE_CHUNKS": 5, "RDMA2_ERR_SEGMENTS": 6,
    "RDMA2_ERR_WRITE_RESOURCE": 7, "RDMA2_ERR_REPLY_RESOURCE": 8, "RDMA2_ERR_INVALID_OPTION": 9,
    "RDMA2_ERR_SYSTEM": 10, "RDMA2_PROPID_RBSIZ": 1, "RDMA2_PROPID_BRS": 2,
    "RDMA2_BKREQSUP_NONE": 0, "RDMA2_BKREQSUP_INLINE": 1, "RDMA2_BKREQSUP_GENL": 2,
}


def vectors():
    """Return name, value and octets of each message of version 2."""
    with open(HERE / "data/version2.tsv", encoding="ascii") as file:
        for line in file:
            if not line.startswith("#"):
                name, value, octets = line.rstrip("\n").split("\t")
                value = json.loads(value)
                if value["rdma_vers"] == 2:
                    yield name, value, bytes.fromhex(octets)


SEND_FIRST, SEND_ONLY, RDMA_WRITE_MIDDLE = 0x00, 0x04, 0x07


def cut_call():
    """An RDMA2_MSG without chunks; the packet ends within the credential of the RPC Call."""
    header = struct.pack(">9I", 9, 2, 1, 0, 0, 0, 0, 0, 0)
    return header + struct.pack(">9I", 9, 0, 2, 100003, 3, 1, 1, 32, 0)


# Packets that no message of the table gives: name, opcode, octets, the procedure shown, the expert
# information, of which Wireshark itself adds the second part.
MORE = (
    ("a Call that continues in the next packet", SEND_FIRST, cut_call(), "0",
     "The RPC message continues in the next packet,Malformed Packet (Exception occurred)"),
    ("data of an RDMA Write that look like a message", RDMA_WRITE_MIDDLE, cut_call(), "", ""),
)


def packet(message, number, opcode):
    """Ethernet, IPv4, UDP, Base Transport Header, message, CRC."""
    pad = -len(message) % 4
    bth = struct.pack(">BBHII", opcode, 0x40 | pad << 4, 0xffff, 17, number)
    content = bth + message + bytes(pad) + bytes(4)
    udp = struct.pack(">HHHH", 50000, 4791, 8 + len(content), 0) + content
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), number, 0x4000, 64, 17, 0,
                     bytes((192, 168, 88, 1)), bytes((192, 168, 88, 2)))
    return bytes.fromhex("0200000000020200000000010800") + ip + udp


def write_capture(path, packets):
    """Write a pcap of these messages, each with its opcode."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for number, (message, opcode) in enumerate(packets):
            data = packet(message, number, opcode)
            file.write(struct.pack("<IIII", number, 0, len(data), len(data)) + data)


def wanted(value, found):
    """Add the fields in a value of the table to `found`, in their order."""
    if isinstance(value, dict):
        number = NUMBERS.get(value.get("rdma_which"), value.get("rdma_which"))
        for name, part in value.items():
            if name == "payload":
                continue
            if name == "rdma_value":
                name = {1: "rbsiz", 2: "brs"}[number]
            if name in ("rdma_data", "rdma_optinfo"):
                found[name] += [part] * (part != "")
            elif name in FIELDS and not isinstance(part, (dict, list)):
                found[name].append(NUMBERS.get(part, part))
            elif name in ("rdma_nochg", "rdma_done", "rdma_rejected"):
                found[name] += part
            else:
                wanted(part, found)
    elif isinstance(value, list):
        for part in value:
            wanted(part, found)
    return found


def shown(line):
    """Return the fields in a line of tshark's output."""
    values = {}
    for name, text in zip(FIELDS, line.split("\t")):
        parts = [part for part in text.split(",") if part]
        if name in ("rdma_data", "rdma_optinfo"):
            values[name] = [part.replace(":", "") for part in parts]
        else:
            values[name] = [int(part, 0) for part in parts]
    return values


def unprivileged():
    """Return the arguments with which a process of root runs as nobody."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def decode(packets, fields):
    """Return what tshark prints of these fields, a line for each packet. Raise OSError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write_capture(f"{folder}/pcap", packets)
        shutil.copy(SCRIPT, f"{folder}/lua")
        command = ["tshark", "-X", f"lua_script:{folder}/lua", "-r", f"{folder}/pcap", "-T", "fields"]
        for name in fields:
            command += ["-e", name]
        done = subprocess.run(command, check=False, capture_output=True, text=True,
                              env={**os.environ, "HOME": folder}, **unprivileged())
    if done.returncode or "lua:" in done.stderr.lower():
        raise OSError(done.stderr)
    return done.stdout.splitlines()


def main():
    """The tool."""
    print("KTAP version 1")
    table = list(vectors())
    print(f"1..{len(table) + len(MORE)}")
    try:
        lines = decode([(octets, SEND_ONLY) for _, _, octets in table],
                       [f"rpcrdma2.{name}" for name in FIELDS])
        more = decode([(octets, opcode) for _, opcode, octets, *_ in MORE],
                      ["rpcrdma2.rdma_proc", "_ws.expert.message"])
    except OSError as error:
        print(f"Bail out! {error}")
        return 1
    failed = 0
    for number, ((name, value, _), line) in enumerate(
            zip(table, lines, strict=True), 1):
        want = wanted(value, {field: [] for field in FIELDS})
        got = shown(line)
        wrong = [field for field in FIELDS if got[field] != want[field]]
        failed += bool(wrong)
        print(f"{'not ok' if wrong else 'ok'} {number} {name}")
        for field in wrong:
            print(f"# {field}: {got[field]}, expected {want[field]}")
    for number, ((name, _, _, *want), line) in enumerate(
            zip(MORE, more, strict=True), len(table) + 1):
        wrong = line.split("\t") != want
        failed += wrong
        print(f"{'not ok' if wrong else 'ok'} {number} {name}")
        if wrong:
            print(f"# {line!r}, expected {want}")
    return 1 if failed else 0


sys.exit(main())

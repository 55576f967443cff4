# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Tests of the splitter with records as the kernel writes them; prints KTAP."""

import struct
import sys

import lines as source_lines
from split import CONTEXTS, LOST, SAMPLE, Symbols, executed, samples, split, totals

KALLSYMS = """ffffffff81000000 T _text
ffffffff81000100 T memset
ffffffff81000200 t pv_native_safe_halt
ffffffff81000300 T nfsd_read
ffffffff81000400 D jiffies
ffffffffc0000000 t rxe_requester\t[rdma_rxe]
ffffffffc0001000 t send_request\t[rpcrdma_rs]
ffffffffc0001200 t recv_done\t[rpcrdma_rs]
ffffffffc0002000 t xprt_rdma_send_request\t[rpcrdma]
ffffffffc0003000 t svc_recv\t[sunrpc]
""".splitlines()
KERNEL_CONTEXT = (1 << 64) - 128
MEMSET, HALT, NFSD = 0xffffffff81000110, 0xffffffff81000204, 0xffffffff810003ff
RXE, SEND, RECV, C_SEND, SVC = (0xffffffffc0000010, 0xffffffffc0001010, 0xffffffffc0001210,
                                0xffffffffc0002010, 0xffffffffc0003010)
JOB, PROFILER = 7, 9


def record(chain, process=JOB):
    """Return a sample with this call chain, innermost frame first."""
    body = struct.pack("QIIQ", chain[0], process, process, len(chain) + 1)
    body += struct.pack(f"{len(chain) + 1}Q", KERNEL_CONTEXT, *chain)
    return struct.pack("IHH", SAMPLE, 1, 8 + len(body)) + body


def split_of(*chains):
    """Return the split of these samples."""
    return split(b"".join(map(record, chains)), PROFILER, Symbols(KALLSYMS))


def functions_by_address():
    """An address belongs to the last function that starts at or before it."""
    symbols = Symbols(KALLSYMS)
    assert symbols.at(0xffffffff81000100) == ("memset", "")
    assert symbols.at(NFSD) == ("nfsd_read", "")
    assert symbols.at(SEND) == ("send_request", "rpcrdma_rs")
    assert symbols.at(0x7f0000001000)[0] == "user space"


def data_is_no_function():
    """A variable between two functions does not end the first one."""
    assert Symbols(KALLSYMS).at(0xffffffff81000408)[0] == "nfsd_read"


def parts():
    """Each sample is in one part, and self and host follow from these."""
    found = split_of([HALT], [RXE, SVC], [SEND, SVC], [MEMSET, SEND, SVC], [NFSD, SVC], [C_SEND])
    assert dict(found.parts) == {"whole": 6, "idle": 1, "nic": 1, "transport": 3, "self": 2,
                                 "other": 1, "host": 4}, found.parts


def nic_wins():
    """Work of the NIC on behalf of the transport counts as the NIC's."""
    found = split_of([MEMSET, RXE, SEND, SVC])
    assert found.parts["nic"] == 1 and found.parts["transport"] == 0


def functions():
    """Functions are counted by leaf, and by the innermost frame of the module."""
    found = split_of([MEMSET, RECV, SEND], [MEMSET, RECV, SEND], [SEND, SVC], [NFSD, SVC])
    assert found.through == {("recv_done", "memset"): 2}, found.through
    assert found.own == {"send_request": 1} and found.other == {"nfsd_read": 1}


def profiler_is_left_out():
    """Samples of the profiler itself are not counted."""
    records = record([NFSD], PROFILER) + record([NFSD])
    assert split(records, PROFILER, Symbols(KALLSYMS)).parts["whole"] == 1


def contexts_are_no_frames():
    """Context markers in a call chain are dropped, and user space counts as other."""
    (process, chain), = samples(record([NFSD, SVC]))
    assert (process, chain) == (JOB, [NFSD, SVC]) and max(chain) < CONTEXTS
    assert split_of([0x7f0000001000]).other == {"user space": 1}


def other_records_are_passed_over():
    """A record of another kind is no sample."""
    other = struct.pack("IHHQ", 5, 0, 16, 0)
    assert len(list(samples(other + record([NFSD]) + other))) == 1


def lost_samples_are_told():
    """Lost samples are an error: the split would be wrong."""
    try:
        list(samples(struct.pack("IHHQQ", LOST, 0, 24, 1, 5)))
    except ValueError:
        return
    raise AssertionError("nothing said")


def instructions_of_a_module():
    """Instructions and calls are counted for the functions of one module only."""
    lines = ["ffffffffc0001200 7", f"{RECV:x} 5", f"{C_SEND:x} 9", f"{NFSD:x} 1000", "1000 3"]
    symbols = Symbols(KALLSYMS)
    ours = executed(lines, symbols, "rpcrdma_rs")
    assert totals(ours) == ({"recv_done": 12}, {"recv_done": 7}), ours
    assert sum(ours.values()) == 12, ours
    assert executed(lines, symbols, "rpcrdma") == {("xprt_rdma_send_request", 0x10): 9}


def lines_of_instructions():
    """An instruction counts for the innermost line of ours, with the lines that it is inlined into."""
    output = ["0x0000000000000010", "/src/rpcrdma_rs/../svc/send.rs:12 (discriminator 3)",
              "/src/rpcrdma_rs/kapi/rdma/qp.rs:34", "0x20",
              "/usr/lib/rustlib/src/rust/library/core/src/option.rs:56",
              "/src/rpcrdma_rs/../xdr/message.rs:78", "0x30",
              "/usr/lib/rustlib/src/rust/library/core/src/option.rs:90"]
    assert {address: source_lines.own(frames) for address, frames in source_lines.places(output)} == {
        0x10: "svc/send.rs:12 < rpcrdma_rs/kapi/rdma/qp.rs:34",
        0x20: "xdr/message.rs:78",
        0x30: "/usr/lib/rustlib/src/rust/library/core/src/option.rs:90",
    }


def symbols_of_an_object():
    """Functions and sections are read from the tables of an object file."""
    table = ["   Num:    Value          Size Type    Bind   Vis      Ndx Name",
             "    12: 0000000000000040    96 FUNC    GLOBAL DEFAULT    3 send_request",
             "    13: 0000000000000000     8 OBJECT  LOCAL  DEFAULT    9 counter"]
    assert source_lines.functions(table) == {"send_request": ("3", 0x40)}
    table = ["  [Nr] Name              Type            Address          Off    Size   ES Flg Lk",
             "  [ 3] .text             PROGBITS        0000000000000000 000040 0003a0 00  AX  0"]
    assert source_lines.sections(table) == {"3": ".text"}


TESTS = (functions_by_address, data_is_no_function, parts, nic_wins, functions,
         profiler_is_left_out, contexts_are_no_frames, other_records_are_passed_over,
         lost_samples_are_told, instructions_of_a_module, lines_of_instructions,
         symbols_of_an_object)


def main():
    """The tests."""
    failed = 0
    print(f"1..{len(TESTS)}")
    for number, test in enumerate(TESTS, 1):
        try:
            test()
        except AssertionError as error:
            failed += 1
            print(f"not ok {number} {test.__name__}\n# {error}")
        else:
            print(f"ok {number} {test.__name__}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

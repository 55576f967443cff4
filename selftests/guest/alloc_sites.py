# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Where a module allocates memory: its call sites, read from the object file.

A site is the return address of a call in the module to a function that allocates, or
that allocates on the module's behalf. In functions of the module that only forward an
allocation (generic ones, and wrappers of inline functions) there are no sites: the sites
are in their callers.
"""

import re
import struct
from dataclasses import dataclass

# Functions outside of the module that allocate. Those of ib_core, rdma_cm, sunrpc, sysctl and
# the workqueues allocate on our behalf.
MEMORY = re.compile(
    r"(rust_helper_)?k?v?realloc_node_align(_noprof)?|(rust_helper_)?k(v)?realloc\w*|"
    r"__kmalloc\w*|__kvmalloc\w*|kmem_cache_alloc\w*|_*alloc_pages\w*|v[mz]alloc\w*|kstrdup|"
    r"__kmalloc_cache\w*|get_free_pages\w*")
ON_BEHALF = re.compile(
    r"__?ib_alloc_(cq|cq_any|pd)|ib_alloc_mr|ib_create_qp\w*|ib_register_client|"
    r"__rdma_create_kernel_id|rdma_(accept|bind_addr|connect|create_qp|destroy_id|disconnect|"
    r"listen|resolve_addr|resolve_route)|rdma_rw_ctx_init_bvec|register_sysctl_sz|"
    r"xprt_alloc|xprt_alloc_slot|alloc_workqueue\w*")
# Functions of the module that forward an allocation: generic code of the kernel crate, and
# wrappers of inline functions of C.
PASS_ON = re.compile(r"rpcrdma_shim_|kernel::alloc|::allocator|::kbox|::kvec|krealloc")

# Rust frees by reallocation to no bytes, without flags: xor %esi,%esi, and no load of flags.
NO_BYTES = b"\x31\xf6"
GFP_KERNEL = (0xCC0).to_bytes(4, "little")
# Sections whose references to functions count; the other sections describe the code.
CODE_OR_DATA = re.compile(r"\.((init|exit|ref)\.)?(text|data|rodata)|\.gnu\.linkonce")
CALL, JUMP = 0xE8, 0xE9
SHF_EXECINSTR, SHT_SYMTAB, SHT_RELA, STT_FUNC = 4, 2, 4, 2


@dataclass(frozen=True)
class Site:
    """A call, identified by the section and offset to which it returns."""

    section: str
    offset: int
    function: str
    within: int
    callee: str

    def __str__(self):
        return f"{self.function}+{self.within:#x} ({self.callee})"


def readable(symbol):
    """Return the path of a Rust symbol (v0), without generic arguments and crate hashes."""
    if not symbol.startswith("_R"):
        return symbol
    words, at = [], 2
    while at < len(symbol):
        if symbol[at] in "sB":
            at = symbol.find("_", at) + 1 or len(symbol)
            continue
        number = re.match(r"[1-9]\d*", symbol[at:])
        if not number:
            at += 1
            continue
        at += number.end()
        if symbol[at:at + 1] == "_":
            at += 1
        words.append(symbol[at:at + int(number[0])])
        at += int(number[0])
    return "::".join(word for word in words if word not in ("rpcrdma_rs", "core"))


def text(table, offset):
    """Return the C string at `offset`."""
    return table[offset:table.index(b"\0", offset)].decode()


def sections(image):
    """Return name, type, flags, data, link and info of each section of an ELF64 file."""
    start, = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", image, start + i * size) for i in range(count)]
    strings = heads[names]
    table = image[strings[4]:strings[4] + strings[5]]
    return [(text(table, h[0]), h[1], h[2], image[h[4]:h[4] + h[5]] if h[1] != 8 else b"",
             h[6], h[7]) for h in heads]


def frees(code):
    """Return whether the code before a call to a reallocating function makes that call free memory."""
    return NO_BYTES in code and GFP_KERNEL not in code[code.rindex(NO_BYTES) - 16:]


class Module:
    """All calls in an object file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.parts = sections(file.read())
        self.symbols = self._symbols()
        self.functions = {}
        for name, value, size, kind, where in self.symbols:
            if kind == STT_FUNC and where:
                self.functions.setdefault(where, []).append((value, size, name))
        self.calls = list(self._calls())
        self.used = self._used() | {callee for *_, callee, _ in self.calls}

    def _symbols(self):
        table = next(part for part in self.parts if part[1] == SHT_SYMTAB)
        strings = self.parts[table[4]][3]
        found = []
        for name, info, _, where, value, size in struct.iter_unpack("<IBBHQQ", table[3]):
            found.append((text(strings, name), value, size, info & 15,
                          where if where < len(self.parts) else 0))
        return found

    def function_at(self, section, offset):
        """Return name and start of the function around `offset`."""
        for value, size, name in self.functions.get(section, ()):
            if value <= offset < value + max(size, 1):
                return name, value
        return "?", 0

    def _calls(self):
        """Yield each direct call: section, return offset, caller, caller's start, callee, opcode."""
        for _, kind, _, data, _, target in self.parts:
            if kind != SHT_RELA or not self.parts[target][2] & SHF_EXECINSTR:
                continue
            code = self.parts[target][3]
            yield from self._local_calls(target, code)
            for offset, info, addend in struct.iter_unpack("<QQq", data):
                symbol, reloc = info >> 32, info & 0xFFFFFFFF
                # PC32 and PLT32 with an opcode in front.
                if reloc not in (2, 4) or offset == 0 or code[offset - 1] not in (CALL, JUMP):
                    continue
                name, value, _, kind_, where = self.symbols[symbol]
                if where:
                    # Maybe by the section's symbol.
                    at = value + addend + 4
                    name = self.function_at(where, at)[0] if kind_ != STT_FUNC else name
                caller, start = self.function_at(target, offset)
                if "realloc" in name and frees(code[max(start, offset - 48):offset - 1]):
                    continue
                yield target, offset + 4, caller, start, name, code[offset - 1]

    def _used(self):
        """Return the functions that have references: all uses of the others were inlined."""
        used = set()
        for _, kind, _, data, _, target in self.parts:
            if kind != SHT_RELA or not CODE_OR_DATA.match(self.parts[target][0]):
                continue
            for _, info, addend in struct.iter_unpack("<QQq", data):
                name, value, _, kind_, where = self.symbols[info >> 32]
                if kind_ == STT_FUNC:
                    used.add(name)
                elif where:
                    near = (value + addend, value + addend + 4)
                    used |= {name for at, _, name in self.functions.get(where, ()) if at in near}
        return used

    def _local_calls(self, section, code):
        """Yield the calls within a section, which need no relocation."""
        starts = {value: name for value, _, name in self.functions.get(section, ())}
        for opcode in (CALL, JUMP):
            at = code.find(opcode)
            while 0 <= at < len(code) - 4:
                to = at + 5 + int.from_bytes(code[at + 1:at + 5], "little", signed=True)
                if to in starts:
                    caller, start = self.function_at(section, at)
                    # A jump within a function is a loop.
                    if opcode == CALL or to != start:
                        yield section, at + 5, caller, start, starts[to], opcode
                at = code.find(opcode, at + 1)

    def sites(self):
        """Return all sites, in the order of the code."""
        wanted, done, found = set(), set(), []
        for *_, callee, _ in self.calls:
            if MEMORY.fullmatch(callee) or ON_BEHALF.fullmatch(callee):
                wanted.add(callee)
        while wanted:
            callee = wanted.pop()
            done.add(callee)
            for section, offset, caller, start, name, opcode in self.calls:
                if name != callee:
                    continue
                if opcode == JUMP or PASS_ON.search(readable(caller)):
                    if caller not in done:
                        wanted.add(caller)
                    continue
                if caller not in self.used:
                    continue
                found.append(Site(self.parts[section][0], offset, readable(caller),
                                  offset - start, readable(callee)))
        return sorted(found, key=lambda site: (site.section, site.offset))

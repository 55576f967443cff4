# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Answers longer than the caller's buffer: attributes, ACLs, names of attributes, directories.

Each is requested over RDMA and over TCP, from the same server, with cold caches. The results must be
the same value or the same errno.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import struct
import subprocess

from harness import EXPORT, SERVER, Skip, case, counters_of_each, data, expect, expect_that, \
    mount, shell, umount, write_file

FOLDER = "/mnt/answers"
VALUES = {"user.short": 100, "user.long": 5000, "user.longest": 60000}
ROOMS = (1, 100, 255, 1000, 4096, 5000, 5001, 60000, 65536)
USERS = 150
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def mounted(proto, version):
    """The mount, over RDMA or TCP. There is one at a time: a second NFSv4.1 mount of a server would
    use the transport of the first one, whatever its own options say."""
    if proto == "rdma":
        mount(version, "ipv4", FOLDER, "noac")
    else:
        path = EXPORT if version == "3" else "/"
        shell(f"mkdir -p {FOLDER}; mount -t nfs -o proto=tcp,vers={version},noac "
              f"{SERVER['ipv4']}:{path} {FOLDER}")
    try:
        with open("/proc/self/mountstats", encoding="ascii") as file:
            found = {words[1] for line in file if (words := line.split())[:1] == ["xprt:"]}
        expect("transports", found, {proto})
        yield
    finally:
        umount(FOLDER)


def cold(function, *args):
    """Call a function when nothing is cached; return its result. Fails over RDMA unless the server
    was asked for an answer with pages, for which the client offers a Reply chunk."""
    for _ in range(2):
        # The first time may only mark what was used recently.
        write_file("/proc/sys/vm/drop_caches", b"3")
    before = counters_of_each(FOLDER)
    result = function(*args)
    if before:
        expect_that(f"{args} came from a cache", counters_of_each(FOLDER)[0]["reply_chunks"]
                    > before[0]["reply_chunks"])
    return result


def outcome(function, *args):
    """Return the result of a call with cold caches: its value, or the name of its errno."""
    try:
        return cold(function, *args)
    except OSError as error:
        return errno.errorcode[error.errno]


def asked(call, path, *args):
    """Make a libc call with cold caches that fills a buffer, whose size is the last argument."""
    buffer = ctypes.create_string_buffer(max(args[-1], 1))

    def ask(*_):
        size = getattr(LIBC, call)(path.encode(), *args[:-1], buffer, ctypes.c_size_t(args[-1]))
        return errno.errorcode[ctypes.get_errno()] if size < 0 else size
    size = cold(ask, call, path, *args)
    if args[-1] == 0 or isinstance(size, str):
        return size
    return hashlib.sha256(buffer.raw[:size]).hexdigest()


def same(what, version, function):
    """Call a function with a mount over TCP and one over RDMA, and compare the results; return the
    result."""
    found = {}
    for proto in "tcp", "rdma":
        with mounted(proto, version):
            found[proto] = function()
    expect(f"{what}: questions", list(found["rdma"]), list(found["tcp"]))
    for key, wanted in found["tcp"].items():
        expect(f"{what}, {key}", found["rdma"][key], wanted)
    print(f"{what}: {len(found['tcp'])} answers, {sum(v == 'ERANGE' for v in found['tcp'].values())} "
          "of them ERANGE")
    return found["tcp"]


def attributes():
    """Read values into buffers of many sizes, and by Python, which tries 128 octets first; copy them."""
    path, found = f"{FOLDER}/answers/file", {}
    for name, size in VALUES.items():
        for room in (0,) + ROOMS:
            found[f"getxattr of {size} into {room}"] = asked(
                "getxattr", path, name.encode(), room)
        found[f"os.getxattr of {size}"] = outcome(os.getxattr, path, name) == data(size, 8)
    copy = f"{FOLDER}/answers/copy"
    cold(shutil.copy2, path, copy)
    found["copied"] = sorted((name, hashlib.sha256(os.getxattr(copy, name)).hexdigest())
                             for name in os.listxattr(copy) if name.startswith("user."))
    os.unlink(copy)
    return found


def names():
    """List names of attributes into buffers of many sizes."""
    path = f"{FOLDER}/answers/named"
    # No name fits in one octet: the client does not ask the server then.
    found = {f"listxattr into {room}": asked("listxattr", path, room)
             for room in (0,) + ROOMS[1:]}
    found["os.listxattr"] = sorted(outcome(os.listxattr, path))
    return found


def acls(name):
    """Read an ACL into buffers of many sizes, and by the tools."""
    path = f"{FOLDER}/answers/acl"
    found = {f"{name} into {room}": asked("getxattr", path, name.encode(), room)
             for room in (0,) + ROOMS}
    found["os.getxattr"] = outcome(os.getxattr, path, name)
    tool = ["nfs4_getfacl", path] if name == "system.nfs4_acl" else ["getfacl", "-cpn", path]
    done = cold(lambda *_: subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          text=True, check=False), *tool)
    found[tool[0]] = (done.returncode, done.stdout)
    return found


def listing():
    """List directories of several sizes, with buffers of several sizes."""
    found = {}
    for size in 0, 3, 40, 3000:
        for room in 300, 4096, 32768, 1 << 20:
            found[f"{size} names, {room} at a time"] = cold(dirents, f"dir-{size}", room)
    return found


def dirents(name, room):
    """Return all names of a directory, by getdents64 with a buffer of that size."""
    buffer, found = ctypes.create_string_buffer(room), []
    fd = os.open(f"{FOLDER}/answers/{name}", os.O_RDONLY | os.O_DIRECTORY)
    while size := LIBC.syscall(217, fd, buffer, room):
        if size < 0:
            found = [errno.errorcode[ctypes.get_errno()]]
            break
        at, raw = 0, buffer.raw[:size]
        while at < size:
            length = struct.unpack_from("<H", raw, at + 16)[0]
            found.append(raw[at + 19:at + length].split(b"\0")[0].decode())
            at += length
    os.close(fd)
    return sorted(name for name in found if name not in (".", ".."))


def make():
    """Create on the server the objects that the tests request."""
    write_file("/t/answers.py", f"""
import os, sys
sys.path.insert(0, "/t/guest")
os.makedirs("{EXPORT}/answers", exist_ok=True)
os.chdir("{EXPORT}/answers")
for name in "file", "named", "acl":
    open(name, "w").close()
for size in 0, 3, 40, 3000:
    os.makedirs(f"dir-{{size}}", exist_ok=True)
    for number in range(size):
        open(f"dir-{{size}}/{{number:04}}-{{'n' * (number % 90)}}", "w").close()
for number in range(300):
    os.setxattr("named", f"user.{{number:03}}-{{'a' * (number % 60)}}", b"v")
""".encode())
    shell("peer 'python3 -B /t/answers.py'")
    for name, size in VALUES.items():
        os.setxattr(f"{FOLDER}/answers/file", name, data(size, 8))


def set_acls():
    """Set a long ACL over RDMA by the tools."""
    path = f"{FOLDER}/answers/acl"
    users = ",".join(f"u:{20000 + number}:r--" for number in range(USERS))
    shell(f"setfacl -m {users} {path}")
    kept = shell(f"peer 'getfacl -cpn {EXPORT}/answers/acl'").count("user:2")
    expect("users in the ACL on the server", kept, USERS)


def main():
    """The group."""
    if os.environ["CLIENT_MODULE"] == "c":
        with case("answers are those of TCP"):
            raise Skip("the C client gives EIO for an answer that is longer than its buffer")
        return
    with case("files with long attributes, long ACLs, directories"):
        with mounted("rdma", "4.2"):
            make()
        with mounted("rdma", "3"):
            set_acls()
    with case("extended attributes, short buffers and shutil.copy2, as over TCP"):
        found = same("attributes", "4.2", attributes)
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect_that("a value was not what was set", all(
            found[f"os.getxattr of {size}"] is True for size in VALUES.values()))
        expect("attributes that were copied", len(found["copied"]), len(VALUES))
    with case("names of attributes, as over TCP"):
        found = same("names", "4.2", names)
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect_that("not all names", len(found["os.listxattr"]) >= 300)
    for version in "4.2", "4.0", "3":
        with case(f"directories over version {version}, as over TCP"):
            found = same("names", version, listing)
            expect("names", len(found["3000 names, 300 at a time"]), 3000)
    with case("getfacl of long ACLs over version 3, as over TCP"):
        found = same("ACLs", "3", lambda: acls("system.posix_acl_access"))
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect("users that getfacl shows", found["getfacl"][1].count("user:2"), USERS)
    with case("nfs4_getfacl and nfs4_setfacl of long ACLs, as over TCP"):
        found = same("ACLs", "4.2", lambda: acls("system.nfs4_acl"))
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect_that("nfs4_getfacl shows too few", found["nfs4_getfacl"][1].count(":20") >= USERS)
        path = f"{FOLDER}/answers/acl"
        with mounted("rdma", "4.2"):
            shell(f"nfs4_getfacl {path} >/tmp/acl && nfs4_setfacl -S /tmp/acl {path}")
            expect("the ACL that was set again", shell(f"nfs4_getfacl {path}").split("\n")[1:],
                   shell("cat /tmp/acl").split("\n")[1:])
    shell(f"peer 'rm -rf {EXPORT}/answers'")


main()

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Answers longer than the caller's buffer: attributes, ACLs, names of attributes, directories.

Each is requested over RDMA and over TCP, from the same server. The results must be the same value or
the same errno.
"""

import ctypes
import errno
import hashlib
import os
import shutil
import struct
import subprocess

from harness import EXPORT, SERVER, Skip, case, data, expect, expect_that, mount, shell, umount, \
    write_file

RDMA, TCP = "/mnt/answers", "/mnt/answers-tcp"
VALUES = {"user.short": 100, "user.long": 5000, "user.longest": 60000}
ROOMS = (1, 100, 255, 1000, 4096, 5000, 5001, 60000, 65536)
USERS = 150
LIBC = ctypes.CDLL(None, use_errno=True)


def outcome(function, *args):
    """Return the result of a call: its value, or the name of its errno."""
    try:
        return function(*args)
    except OSError as error:
        return errno.errorcode[error.errno]


def asked(call, path, *args):
    """Make a libc call that fills a buffer, whose size is the last argument."""
    buffer = ctypes.create_string_buffer(max(args[-1], 1))
    size = getattr(LIBC, call)(path.encode(), *args[:-1], buffer, ctypes.c_size_t(args[-1]))
    if size < 0:
        return errno.errorcode[ctypes.get_errno()]
    return size if args[-1] == 0 else hashlib.sha256(buffer.raw[:size]).hexdigest()


def same(what, function):
    """Call a function with the directory of each mount, and compare the results; return the result."""
    over_tcp, over_rdma = function(TCP), function(RDMA)
    for key, wanted in over_tcp.items():
        expect(f"{what}, {key}", over_rdma[key], wanted)
    return over_tcp


def fresh(version):
    """Remount both, so that nothing is cached."""
    for folder in RDMA, TCP:
        if os.path.ismount(folder):
            umount(folder)
    # By default the client shares its caches of a file between two mounts of one server.
    mount(version, "ipv4", RDMA, "nosharecache,noac")
    path = EXPORT if version == "3" else "/"
    shell(f"mkdir -p {TCP}; mount -t nfs -o proto=tcp,vers={version},nosharecache,noac "
          f"{SERVER['ipv4']}:{path} {TCP}")


def attributes(folder):
    """Read values into buffers of many sizes, and by Python, which tries 128 octets first; copy them."""
    path, found = f"{folder}/answers/file", {}
    for name, size in VALUES.items():
        for room in (0,) + ROOMS:
            found[f"getxattr of {size} into {room}"] = asked(
                "getxattr", path, name.encode(), room)
        found[f"os.getxattr of {size}"] = outcome(os.getxattr, path, name) == data(size, 8)
    copy = f"{folder}/answers/copy"
    shutil.copy2(path, copy)
    found["copied"] = sorted((name, hashlib.sha256(os.getxattr(copy, name)).hexdigest())
                             for name in os.listxattr(copy) if name.startswith("user."))
    os.unlink(copy)
    return found


def names(folder):
    """List names of attributes into buffers of many sizes."""
    path = f"{folder}/answers/named"
    found = {f"listxattr into {room}": asked("listxattr", path, room)
             for room in (0,) + ROOMS}
    found["os.listxattr"] = sorted(outcome(os.listxattr, path))
    return found


def acls(folder, name):
    """Read an ACL into buffers of many sizes, and by the tools."""
    path = f"{folder}/answers/acl"
    found = {f"{name} into {room}": asked("getxattr", path, name.encode(), room)
             for room in (0,) + ROOMS}
    found["os.getxattr"] = outcome(os.getxattr, path, name)
    tool = ["nfs4_getfacl", path] if name == "system.nfs4_acl" else ["getfacl", "-cpn", path]
    done = subprocess.run(tool, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    found[tool[0]] = (done.returncode, done.stdout.replace(folder, ""))
    return found


def listing(folder):
    """List directories of several sizes, with buffers of several sizes."""
    found = {}
    for size in 0, 3, 40, 3000:
        fd = os.open(f"{folder}/answers/dir-{size}", os.O_RDONLY | os.O_DIRECTORY)
        for room in 300, 4096, 32768, 1 << 20:
            os.lseek(fd, 0, os.SEEK_SET)
            found[f"{size} names, {room} at a time"] = sorted(dirents(fd, room))
        os.close(fd)
    return found


def dirents(fd, room):
    """Return all names of a directory, by getdents64 with a buffer of that size."""
    buffer, found = ctypes.create_string_buffer(room), []
    while size := LIBC.syscall(217, fd, buffer, room):
        if size < 0:
            return [errno.errorcode[ctypes.get_errno()]]
        at, raw = 0, buffer.raw[:size]
        while at < size:
            length = struct.unpack_from("<H", raw, at + 16)[0]
            found.append(raw[at + 19:at + length].split(b"\0")[0].decode())
            at += length
    return [name for name in found if name not in (".", "..")]


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
        os.setxattr(f"{RDMA}/answers/file", name, data(size, 8))


def set_acls():
    """Set a long ACL over RDMA by the tools."""
    path = f"{RDMA}/answers/acl"
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
        fresh("4.2")
        make()
    with case("extended attributes, short buffers and shutil.copy2, as over TCP"):
        found = same("attributes", attributes)
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect_that("a value was not what was set", all(
            found[f"os.getxattr of {size}"] is True for size in VALUES.values()))
        expect("attributes that were copied", len(found["copied"]), len(VALUES))
    with case("names of attributes, as over TCP"):
        found = same("names", names)
        expect_that("not all names", len(found["os.listxattr"]) >= 300)
    for version in "4.2", "4.0":
        with case(f"directories over version {version}, as over TCP"):
            fresh(version)
            found = same("names", listing)
            expect("names", len(found["3000 names, 300 at a time"]), 3000)
    with case("directories over version 3, as over TCP"):
        fresh("3")
        expect("names", len(same("names", listing)["3000 names, 300 at a time"]), 3000)
    with case("setfacl and getfacl of long ACLs over version 3, as over TCP"):
        set_acls()
        found = same("ACLs", lambda folder: acls(folder, "system.posix_acl_access"))
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect("users that getfacl shows", found["getfacl"][1].count("user:2"), USERS)
    with case("nfs4_getfacl and nfs4_setfacl of long ACLs, as over TCP"):
        fresh("4.2")
        found = same("ACLs", lambda folder: acls(folder, "system.nfs4_acl"))
        expect_that("no answer was too long for its buffer", "ERANGE" in found.values())
        expect_that("nfs4_getfacl shows too few", found["nfs4_getfacl"][1].count(":20") >= USERS)
        path = f"{RDMA}/answers/acl"
        shell(f"nfs4_getfacl {path} >/tmp/acl && nfs4_setfacl -S /tmp/acl {path}")
        expect("the ACL that was set again", shell(f"nfs4_getfacl {path}").split("\n")[1:],
               shell("cat /tmp/acl").split("\n")[1:])
    for folder in RDMA, TCP:
        if os.path.ismount(folder):
            umount(folder)
    shell(f"peer 'rm -rf {EXPORT}/answers'")


main()

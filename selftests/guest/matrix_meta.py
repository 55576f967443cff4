# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Names, directories, links, attributes, locks: everything except file content."""

import ctypes
import errno
import fcntl
import os
import struct
import time

from harness import (
    Delta, EXPORT, Skip, case, data, expect, expect_that, read_file, shell, write_file)

MANY = [f"{i:04d}-{'n' * (i % 200)}" for i in range(5000)]
LINKS = (1, 100, 1023, 1024, 4000, 4095)
ACL_ENTRIES = 300   # nfsd takes about 330 over version 3, whatever the transport
FIRST_UID = 20000
XATTRS = (1, 100, 3000, 4096, 5000, 20000, 65536)


def create(run):
    """Create all objects; verify here what cannot be verified after the remount."""
    with case("names: create, rename, link, unlink, mkdir, rmdir, statfs"):
        names(run)
    with case("an unlinked file stays readable while it is open"):
        unlinked(run)
    with case("symlinks of up to 4095 bytes; the long ones by Read chunk"):
        symlinks(run)
    with case("a big ACL is set by Position-Zero Read chunk"):
        os.mkdir(run.path("acl"))
        if run.version == "3":
            # Over version 3 each call carries both ACLs, and both are needed to fill a page.
            os.setxattr(run.path("acl"), "system.posix_acl_default", posix_acl())
        with Delta(run.mount) as delta:
            set_acl(run)
        # The C client counts a Call twice if it had to wait for memory regions.
        counted = delta.nomsg_call_count
        expect_that(f"{counted} Calls as RDMA_NOMSG",
                    counted == 1 or counted > 1 and os.environ["CLIENT_MODULE"] == "c")
    with case("extended attributes are set; the big one by Position-Zero Read chunk"):
        set_xattrs(run)
    with case("a lock taken by a process on the server excludes ours"):
        locks(run)
    with case("locks exclude another process of this client"):
        local_locks(run)
    with case("make a directory of 5000 entries on the server"):
        if not os.path.isdir(f"{run.mount}/many"):
            shell(f"""peer 'mkdir {EXPORT}/many.new; cd {EXPORT}/many.new && python3 -c "
for i in range(5000): open(str(i).zfill(4) + chr(45) + chr(110) * (i % 200), chr(119)).close()
" && mv {EXPORT}/many.new {EXPORT}/many'""")


def names(run):
    """Test operations on a directory."""
    base = run.path("names")
    os.mkdir(base)
    for i in range(50):
        write_file(f"{base}/f{i}", b"%d" % i)
    expect("entries", sorted(os.listdir(base)), sorted(f"f{i}" for i in range(50)))
    os.rename(f"{base}/f0", f"{base}/g0")
    os.rename(f"{base}/f1", f"{base}/f2")
    expect("renamed", read_file(f"{base}/g0"), b"0")
    expect("renamed over", read_file(f"{base}/f2"), b"1")
    os.link(f"{base}/f3", f"{base}/h3")
    expect("links", os.stat(f"{base}/f3").st_nlink, 2)
    expect("same file", os.stat(f"{base}/f3").st_ino, os.stat(f"{base}/h3").st_ino)
    os.unlink(f"{base}/f3")
    expect("linked", read_file(f"{base}/h3"), b"3")
    expect_error(errno.ENOENT, os.stat, f"{base}/f3")
    expect_error(errno.EEXIST, os.mkdir, base)
    expect_error(errno.ENOTEMPTY, os.rmdir, base)
    os.chmod(f"{base}/g0", 0o640)
    os.utime(f"{base}/g0", (1000000, 2000000))
    status = os.stat(f"{base}/g0")
    expect("mode, mtime", (status.st_mode & 0o777, status.st_mtime), (0o640, 2000000))
    os.truncate(f"{base}/g0", 5)
    expect("truncated", read_file(f"{base}/g0"), b"0\0\0\0\0")
    for name in os.listdir(base):
        os.unlink(f"{base}/{name}")
    os.rmdir(base)
    expect("gone", os.path.exists(base), False)
    expect_that("statfs", os.statvfs(run.mount).f_blocks > 0)


def expect_error(number, function, *args):
    """Fail unless the call ends with this errno."""
    try:
        function(*args)
    except OSError as error:
        expect("errno", errno.errorcode[error.errno], errno.errorcode[number])
    else:
        raise AssertionError(f"no error, expected {errno.errorcode[number]}")


def unlinked(run):
    """Unlink an open file."""
    write_file(run.path("open"), data(70000, 9))
    fd = os.open(run.path("open"), os.O_RDONLY | os.O_DIRECT)
    os.unlink(run.path("open"))
    expect("content", os.read(fd, 70000), data(70000, 9))
    os.close(fd)
    expect("gone", os.path.exists(run.path("open")), False)


def target(length):
    """Return the target of a symlink."""
    return ("abcdefg/" * 512)[:length - 1] + "x"


def symlinks(run):
    """Create symlinks."""
    for length in LINKS:
        with Delta(run.mount) as delta:
            os.symlink(target(length), run.path(f"link-{length}"))
        expect(f"{length} bytes by Read chunk", delta.read_chunks > 0, length >= 4000)
        expect(f"{length} bytes by RDMA_NOMSG", delta.nomsg_call_count, 0)


def posix_acl():
    """Return a system.posix_acl_access with many named users."""
    entry = struct.Struct("<HHI").pack
    named = b"".join(entry(2, 4, FIRST_UID + i) for i in range(ACL_ENTRIES))
    return (struct.pack("<I", 2) + entry(1, 6, 0xffffffff) + named +
            entry(4, 4, 0xffffffff) + entry(16, 4, 0xffffffff) + entry(32, 4, 0xffffffff))


def nfs4_acl():
    """Return a system.nfs4_acl with many named users."""
    def ace(who, mask):
        return struct.pack(">IIII", 0, 0, mask, len(who)) + who + bytes(-len(who) % 4)
    aces = [ace(b"OWNER@", 0x1601bf)]
    aces += [ace(b"%d" % (FIRST_UID + i), 0x120081) for i in range(ACL_ENTRIES)]
    aces += [ace(b"GROUP@", 0x120081), ace(b"EVERYONE@", 0x120081)]
    return struct.pack(">I", len(aces)) + b"".join(aces)


def set_acl(run):
    """Set an ACL on a directory that fills several pages; in version 3 with the default ACL."""
    if run.version == "3":
        os.setxattr(run.path("acl"), "system.posix_acl_access", posix_acl())
    else:
        os.setxattr(run.path("acl"), "system.nfs4_acl", nfs4_acl())


def getxattr_room(path, name, room):
    """Return the value of an extended attribute, read into a buffer of `room` bytes."""
    value = ctypes.create_string_buffer(room)
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.getxattr(path.encode(), name.encode(), value, ctypes.c_size_t(room))
    if size < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return value.raw[:size]


def getxattr(path, name):
    """Return the value of an extended attribute.

    os.getxattr first tries 128 bytes. With this module's client, as over TCP, a longer value gives
    ERANGE. The C client offers too little room for it, and gives EIO.
    """
    if os.environ["CLIENT_MODULE"] == "c":
        return getxattr_room(path, name, 65536)
    return os.getxattr(path, name)


def check_acl(run):
    """Read it back."""
    if run.version == "3":
        for name in "system.posix_acl_access", "system.posix_acl_default":
            expect(name, getxattr(run.path("acl"), name), posix_acl())
        return
    acl = getxattr(run.path("acl"), "system.nfs4_acl")
    count, at, allowed = struct.unpack_from(">I", acl)[0], 4, set()
    for _ in range(count):
        kind, _, mask, length = struct.unpack_from(">IIII", acl, at)
        if kind == 0 and mask & 1:
            allowed.add(acl[at + 16:at + 16 + length])
        at += 16 + (length + 3) // 4 * 4
    expect("bytes of the ACL", at, len(acl))
    missing = [i for i in range(ACL_ENTRIES) if b"%d" % (FIRST_UID + i) not in allowed]
    expect("users without an entry", missing, [])


def set_xattrs(run):
    """Set user attributes, which only 4.2 supports."""
    write_file(run.path("xattr"), b"")
    if run.version != "4.2":
        expect_error(errno.EOPNOTSUPP, os.setxattr, run.path("xattr"), "user.a", b"1")
        return
    for size in XATTRS:
        with Delta(run.mount) as delta:
            os.setxattr(run.path("xattr"), f"user.size-{size}", data(size, 8))
        if size > 4096:
            delta.expect_used("read_chunks", "nomsg_call_count")


def check_xattrs(run):
    """Read them back."""
    if run.version != "4.2":
        expect_error(errno.EOPNOTSUPP, os.getxattr, run.path("xattr"), "user.a")
        return
    wanted = sorted(f"user.size-{size}" for size in XATTRS)
    expect("names", sorted(x for x in os.listxattr(run.path("xattr"))
                           if x.startswith("user.")), wanted)
    for size in reversed(XATTRS):
        with Delta(run.mount) as delta:
            value = getxattr(run.path("xattr"), f"user.size-{size}")
        expect(f"value of {size} bytes", value, data(size, 8))
        if size > 4096:
            delta.expect_used("reply_chunks")


def check_short_buffers(run):
    """A value that is longer than its caller's buffer gives ERANGE, whatever the length of either."""
    for size in XATTRS:
        for room in 1, 100, 4096, 5000:
            if room < size:
                expect_error(errno.ERANGE, getxattr_room, run.path("xattr"),
                             f"user.size-{size}", room)


HOLDER = """
import fcntl, os, time
file = open("lock", "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
open("locked", "w").close()
end = time.monotonic() + 30
while not os.path.exists("release") and time.monotonic() < end:
    time.sleep(0.05)
"""


def locks(run):
    """Have a process on the server hold a lock until it sees a file of this guest."""
    write_file(run.path("lock"), b"")
    with open(f"/t/{run.name}.holder", "w", encoding="ascii") as file:
        file.write(HOLDER)
    shell(f"""peer 'cd {EXPORT}/{run.name}
        setsid python3 /t/{run.name}.holder </dev/null >/dev/null 2>&1 &
        for i in $(seq 200); do [ -e locked ] && exit 0; sleep 0.1; done; exit 1'""")
    fd = os.open(run.path("lock"), os.O_RDWR)
    expect_error(errno.EAGAIN, fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child = os.fork()
    if child == 0:
        fd = os.open(run.path("lock"), os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os._exit(7)
    time.sleep(0.2)
    expect("the child waits", os.waitpid(child, os.WNOHANG), (0, 0))
    write_file(run.path("release"), b"")
    expect("the child's exit status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def local_locks(run):
    """Test flock and fcntl ranges between two processes."""
    fd = os.open(run.path("lock"), os.O_RDWR)
    for take, ranges in ((fcntl.flock, ()), (fcntl.lockf, (10, 5))):
        take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, *ranges)
        child = os.fork()
        if child == 0:
            other = os.open(run.path("lock"), os.O_RDWR)
            try:
                take(other, fcntl.LOCK_EX | fcntl.LOCK_NB, *ranges)
            except BlockingIOError:
                if ranges:
                    take(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 15)
                os._exit(7)
            os._exit(1)
        expect(f"exit status of the child ({take.__name__})",
               os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        take(fd, fcntl.LOCK_UN, *ranges)
    os.close(fd)


def verify(run):
    """Read all objects, after a remount."""
    with case("symlinks are read by Reply chunk"):
        for length in LINKS:
            with Delta(run.mount) as delta:
                expect("target", os.readlink(run.path(f"link-{length}")), target(length))
            delta.expect_used("reply_chunks")
    with case("the big ACL is read by Reply chunk"):
        with Delta(run.mount) as delta:
            check_acl(run)
        delta.expect_used("reply_chunks")
    with case("extended attributes longer than the buffer"):
        if run.version != "4.2":
            raise Skip("only version 4.2 has them")
        if os.environ["CLIENT_MODULE"] == "c":
            raise Skip("the C client gives EIO")
        check_short_buffers(run)
    with case("extended attributes; the big ones by Reply chunk"):
        check_xattrs(run)
    with case("a directory of 5000 entries is listed by Reply chunk"):
        with Delta(run.mount) as delta:
            found = sorted(os.listdir(f"{run.mount}/many"))
        expect("entries", len(found), len(MANY))
        expect("names", found, sorted(MANY))
        delta.expect_used("reply_chunks")

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Evidence of a failed delegation test, in a directory that the message of the test names.

The directory holds nfsd's lists of clients and states at several moments, the capture and, for each
file with wrong content, what the client and the server have of it and every message of the
capture that names its file handle, with the connection that carried the message.

The inode number in a file handle identifies the file. A client must not interpret a handle, but this
test may, as it knows that the server is Linux's nfsd.
"""

import os
import shutil
import struct
import time

import roce
from harness import EXPORT, contents, read_file, shell

# Operations of COMPOUND: name and size of the fixed arguments in words (RFC 8881 section 18); the
# others are in `arguments`.
FIXED = {3: ("ACCESS", 1), 4: ("CLOSE", 5), 5: ("COMMIT", 3), 8: ("DELEGRETURN", 4),
         10: ("GETFH", 0), 24: ("PUTROOTFH", 0), 25: ("READ", 7), 31: ("RESTOREFH", 0),
         32: ("SAVEFH", 0), 53: ("SEQUENCE", 8), 68: ("READ_PLUS", 7)}
GETATTR, LOOKUP, OPEN, PUTFH, SETATTR, WRITE = 9, 15, 18, 22, 34, 38


def opened(words):
    """Skip the arguments of an OPEN that creates nothing."""
    access = words.next(2) & 3
    words.next(3)
    words.opaque()
    if words.next() != 0:
        raise ValueError("an OPEN that creates a file")
    claim = words.next()
    if claim in (2, 5):
        words.next(4)
    name = words.opaque().decode(errors="replace") if claim in (0, 2, 3) else ""
    if claim == 1:
        words.next()
    return f"OPEN({'?rwb'[access]}, claim {claim}, '{name}')"


def operation(words, handles):
    """Return the name of the next operation of a COMPOUND; add its handle to `handles`."""
    number = words.next()
    if number in FIXED:
        name, size = FIXED[number]
        if size:
            words.next(size)
        return name
    if number == PUTFH:
        handles.append(words.opaque())
        return "PUTFH"
    if number == GETATTR:
        words.next(words.next())
        return "GETATTR"
    if number == LOOKUP:
        words.opaque()
        return "LOOKUP"
    if number == SETATTR:
        words.next(4)
        words.next(words.next())
        words.opaque()
        return "SETATTR"
    if number == OPEN:
        return opened(words)
    if number == WRITE:
        raise ValueError("WRITE")
    raise ValueError(f"operation {number}")


def callback_operation(words, handles):
    """Return the name of the next operation of a CB_COMPOUND; add its handle to `handles`."""
    number = words.next()
    if number == roce.CB_SEQUENCE:
        if words.next(9):
            raise ValueError("CB_SEQUENCE with referring calls")
        return "CB_SEQUENCE"
    if number == roce.CB_RECALL:
        words.next(5)
        handles.append(words.opaque())
        return "CB_RECALL"
    if number == roce.CB_GETATTR:
        handles.append(words.opaque())
        words.next(words.next())
        return "CB_GETATTR"
    raise ValueError(f"callback operation {number}")


def compound(message):
    """Return the names of operations and the file handles of a Call, as far as they can be decoded."""
    words = roce.Words(message.body)
    words.next(6)
    for _ in range(2):
        words.next()
        words.opaque()
    words.opaque()
    callback = message.program == roce.NFS_CB
    names, handles = [], []
    try:
        for _ in range(words.next(3 if callback else 2)):
            names.append((callback_operation if callback else operation)(words, handles))
    except (ValueError, struct.error) as error:
        names.append(f"... {error}")
    return names, handles


def wire(path, inode, name):
    """Return lines about the Calls and Replies that concern a file, in order. For a Reply in a
    Reply chunk, the capture only shows that it was sent."""
    wanted, lines = {}, []
    for message in roce.messages(path):
        when = time.strftime("%H:%M:%S", time.gmtime(message.time))
        where = (f"{when}.{int(message.time % 1 * 1e6):06} {message.source} "
                 f"to QP {message.queue_pair:#x}, XID {message.xid:08x}:")
        if message.kind == roce.CALL and message.procedure == 1:
            names, handles = compound(message)
            if (f"'{name}'" in " ".join(names)
                    or any(struct.pack("<I", inode) in handle[-12:] for handle in handles)):
                wanted[message.source == roce_peer(message), message.xid] = names
                lines.append(f"{where} {' '.join(names)}")
        elif message.kind == roce.REPLY or message.proc == roce.NOMSG:
            names = wanted.get((message.target == roce_peer(message), message.xid))
            if names:
                lines.append(f"{where} status {message.compound_status} of {' '.join(names)}")
    return lines


def roce_peer(message):
    """Return the lesser of the two addresses, which distinguishes the directions."""
    return min(message.source, message.target)


class Evidence:
    """The directory of one run of a group."""

    def __init__(self, name, capture=None):
        self.folder, self.capture = f"/t/evidence-{name}", capture
        os.makedirs(self.folder, exist_ok=True)

    def states(self, moment):
        """Keep the current clients and states of nfsd."""
        text = shell("""peer 'for client in /proc/fs/nfsd/clients/*; do
            echo "== $client"; cat $client/info $client/states; done 2>/dev/null'""", check=False)
        self.keep(f"states.{moment}", text)

    def keep(self, name, text):
        """Write one file."""
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

    def keep_capture(self):
        """Copy the capture as it is now."""
        # A captured packet reaches the file within a second.
        time.sleep(2)
        shutil.copy(self.capture, f"{self.folder}/capture.pcap")

    def wrong(self, path, seen, known):
        """Keep the evidence about a file in which the client sees `seen`; `known` names contents.

        The server reads the file last, since that recalls delegations. Returns one line."""
        name, inode = os.path.basename(path), os.stat(path).st_ino
        self.states(f"{name}.after")
        found = {"the client's cache": seen,
                 "the client's cache, opened again": read_file(path, cached=True),
                 "the client without its cache": read_file(path)}
        self.keep(f"{name}.on-server", shell(f"peer 'od -A d -t x1 {EXPORT}/{name}'", check=False))
        shell(f"peer 'cp {EXPORT}/{name} {self.folder}/{name}.server'", check=False)
        found["the server"] = read_file(f"{self.folder}/{name}.server")
        held = [f"{where} has {known.get(content, 'something else')}"
                for where, content in found.items()]
        lines = [name, *held, f"inode {inode}; delegated, and open:"]
        lines += [line for line in contents(f"{self.folder}/states.*").splitlines()
                  if f'/{name}"' in line or f'"{name}"' in line]
        if self.capture:
            self.keep_capture()
            lines += ["on the wire:", *wire(self.capture, inode, name)]
        self.keep(f"{name}.txt", "\n".join(lines) + "\n")
        return f"{name}: {'; '.join(held)}"

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""matrix.py VERSION FAMILY: one NFS version over one address family.

All files are written first and read back after a remount, so that the compared
contents come from the server. They are also compared on the server itself.
"""

import hashlib
import os
import sys

import matrix_content
import matrix_limits
import matrix_meta
from harness import EXPORT, SERVER, case, counters, expect, expect_that, mount, shell, umount

MOUNT = "/mnt/matrix"


class Matrix:
    """One run: its directory, and the contents that must be found after the remount."""

    def __init__(self, version, family):
        self.version, self.family = version, family
        self.mount = MOUNT
        # Another run in the same boot leaves its directory.
        self.name = f"matrix-{version}-{family}-{os.getpid()}"
        self.folder = f"{MOUNT}/{self.name}"
        self.files = {}     # name: content, to be compared on both sides

    def path(self, name):
        """Return the path of a file of this run."""
        return f"{self.folder}/{name}"

    def mounted(self):
        """Mount, and check the mount's options."""
        mount(self.version, self.family, MOUNT)
        with open("/proc/self/mounts", encoding="ascii") as file:
            line = [line for line in file if line.split()[1] == MOUNT][0]
        proto = {"ipv4": "rdma", "ipv6": "rdma6"}[self.family]
        for option in (f"vers={self.version}", f"proto={proto}", "port=20049",
                       "rsize=1048576", "wsize=1048576", f"addr={SERVER[self.family]}"):
            expect_that(f"no {option} in {line}", option in line.split()[3].split(","))
        expect_that("nothing was sent", counters(MOUNT)["sends"] > 0)

    def remounted(self):
        """Unmount and mount."""
        umount(MOUNT)
        self.mounted()

    def on_server(self):
        """Compare the checksums of the files on the server with those here."""
        sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n"
                       for name, content in self.files.items())
        with open(f"/t/{self.name}.sums", "w", encoding="ascii") as file:
            file.write(sums)
        expect("what sha256sum says", shell(
            f"peer 'cd {EXPORT}/{self.name} && sha256sum --quiet -c /t/{self.name}.sums'"), "")


def main():
    """The group."""
    run = Matrix(*sys.argv[1:])
    with case("mount"):
        run.mounted()
        os.mkdir(run.folder)
    matrix_limits.test(run)
    matrix_content.create(run)
    matrix_meta.create(run)
    with case("the server holds what was written"):
        run.on_server()
    with case("remount"):
        run.remounted()
    matrix_content.verify(run)
    matrix_meta.verify(run)
    with case("unmount"):
        umount(MOUNT)


main()

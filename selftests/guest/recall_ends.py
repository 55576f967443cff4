# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Connections that end while callbacks are in flight: see recall.py."""

import time

from evidence import Evidence
from faultio import force_disconnect, no_link
from harness import EXPORT, SERVER, case, expect_that, mount, shell, umount
from recall import PLAIN, SEVERAL, Opened, create_files, finish_second, start_second

FEW = 16
SETS = {"wcut": (FEW, PLAIN), "rlost": (FEW, PLAIN), "rforced": (FEW, SEVERAL),
        "rstopped": (FEW, PLAIN), "wstopped": (FEW, PLAIN)}


def under_way(opened, name, work=lambda: None):
    """Recall a set while the link is down, so that all callbacks are in flight; then do `work`, and
    set the link up again.

    nfsd drops a recall for a client that has no connection."""
    with no_link():
        start_second(opened, name, FEW)
        time.sleep(3)
        work()
    finish_second(name)
    opened.see(name)


def mounted(folder):
    """Return whether there is a mount, perhaps detached."""
    with open("/proc/fs/nfsfs/volumes", encoding="ascii") as file:
        volumes = len(file.readlines()) - 1
    return volumes > (folder == SEVERAL)


def main():
    """The group."""
    opened = Opened(SETS, Evidence("recall-ends"))
    # Tasks may legitimately wait while nfsd is stopped.
    shell("echo 300 >/proc/sys/kernel/hung_task_timeout_secs")
    with case("mount; delegations are handed out"):
        create_files(SETS)
        mount("4.1", "ipv4", PLAIN)
        mount("4.2", "ipv4", SEVERAL, "nconnect=4")
        opened.open_all()
    with case("umount -f with callbacks under way"):
        start_second(opened, "rforced", FEW)
        time.sleep(0.1)
        shell(f"umount -f -l {SEVERAL}")
        opened.close("rforced")
        finish_second("rforced")
        for _ in range(100):
            if not mounted(SEVERAL):
                break
            time.sleep(0.1)
        expect_that("the mount is still there", not mounted(SEVERAL))
    with case("link down with callbacks under way"):
        under_way(opened, "wcut")
    with case("connection closed with callbacks under way"):
        under_way(opened, "rlost", lambda: force_disconnect(SERVER["ipv4"]))
    with case("nfsd stopped with callbacks under way"):
        start_second(opened, "rstopped", FEW)
        start_second(opened, "wstopped", FEW)
        started = time.monotonic()
        shell("peer -t 60 server_stop")
        print(f"nfsd stopped after {time.monotonic() - started:.1f} s")
        shell("peer server_start")
        for name in ("rstopped", "wstopped"):
            finish_second(name, 90)
            opened.see(name)
    with case("unmount"):
        opened.close(*SETS)
        umount(PLAIN)
        shell(f"peer 'umount /mnt/second; rm -rf {EXPORT}/*'")
    shell("echo 180 >/proc/sys/kernel/hung_task_timeout_secs")


main()

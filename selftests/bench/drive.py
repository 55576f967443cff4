# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""In a guest: keep a mount busy with a job until it has done a number of operations.

drive.py JOB OPERATIONS: prints the number of operations that were done, as the last line.
"""

import os
import subprocess
import sys
import time

sys.path.insert(0, "/t/guest")

from harness import EXPORT, mount, umount  # noqa: E402
from jobs import BY_NAME, FILE_MIB  # noqa: E402
from measure import FOLDER, procedures  # noqa: E402


def main():
    """The tool."""
    job, wanted = BY_NAME[sys.argv[1]], int(sys.argv[2])
    with open(f"{EXPORT}/file", "wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(4096) * 256)
    mount("3", "ipv4", FOLDER, job.options)
    load = subprocess.Popen(job.command(FOLDER), stdout=subprocess.DEVNULL)
    try:
        while procedures().get(job.procedure, 0) < wanted:
            if load.poll() is not None:
                raise SystemExit(f"the job ended with status {load.returncode}")
            time.sleep(0.05)
    finally:
        load.kill()
        load.wait()
    done = procedures()[job.procedure]
    umount(FOLDER)
    print(done)


main()

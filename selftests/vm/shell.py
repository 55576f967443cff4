# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""An interactive prompt in a client guest, with an NFS/RDMA mount in place."""

import os
import select
import socket
import sys
import termios
import threading
import tty

from guest import GuestError, Machine
from run import Pair, say, two_guests

# The guest's first virtio console is the terminal, a real tty.
SCRIPT = """
. /t/guest/lib.sh
client_mount {version} $SERVER /mnt/nfs || exit
stty -F /dev/hvc0 sane rows {rows} cols {columns}
cat >/run/shellrc <<-'RC'
	. /t/guest/lib.sh
	PS1='client:\\w# '
	echo "The export of guest 'server' is mounted here, on /mnt/nfs."
	echo "rdma_counters /mnt/nfs: the mount's counters; peer COMMAND: run it on the server;"
	echo "exit: unmount, and shut both guests down."
	cd /mnt/nfs
RC
TERM={term} setsid -c bash --rcfile /run/shellrc -i <>/dev/hvc0 >&0 2>&0
umount /mnt/nfs
"""


def relay(path, done):
    """Connect this terminal with the guest's until `done` is set."""
    port = socket.socket(socket.AF_UNIX)
    port.connect(path)
    old = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        if old:
            tty.setraw(0)
        sources = [port]
        ended = False
        while not done.is_set():
            for source in select.select(sources, [], [], 0.5)[0]:
                if source is port:
                    data = port.recv(4096)
                    os.write(1, data)
                    # Input that is typed before the prompt would be lost.
                    if b"client:" in data and 0 not in sources and not ended:
                        sources.append(0)
                    continue
                data = os.read(0, 4096)
                port.sendall(data or b"exit\n")
                if not data:
                    ended = True
                    sources.remove(0)
    finally:
        if old:
            termios.tcsetattr(0, termios.TCSADRAIN, old)


def main():
    """The tool."""
    args, folder = two_guests("shell", __doc__)
    pair = Pair(folder, Machine(), echo=say)
    try:
        pair.set_up(args.client, args.server)
        size = os.get_terminal_size() if os.isatty(1) else os.terminal_size((80, 24))
        script = SCRIPT.format(version=args.vers, rows=size.lines, columns=size.columns,
                               term=os.environ.get("TERM", "dumb"))
        done = threading.Event()
        terminal = threading.Thread(
            target=relay, args=(f"{folder}/{pair.client.name}.tty", done))
        terminal.start()
        try:
            status = pair.client.run(script, 1 << 24)
        finally:
            done.set()
            terminal.join()
        pair.stop()
        return status
    finally:
        pair.kill()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GuestError, OSError) as error:
        say(f"error: {error}")
        sys.exit(1)

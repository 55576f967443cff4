# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Boot guests, load the modules under test, start nfsd, run a script."""

import argparse
import contextlib
import fcntl
import glob
import os
import shutil
import sys
import tempfile
import time

from guest import Guest, GuestError, Machine

EPILOG = """
The client guest is 192.168.88.1 / fd88::1, the server guest 192.168.88.2 /
fd88::2 (both with --one-guest). Before SCRIPT runs, the modules are loaded and
nfsd exports a tmpfs over RDMA on port 20049 and over TCP. SCRIPT is bash; it
runs in the client guest, has the functions of selftests/guest/lib.sh
(client_mount, peer, rdma_counters, ...), $SERVER and $SERVER6. Example:

  selftests/vm/run --server c -- -c \\
    'client_mount 4.1 $SERVER /mnt && cp -r /usr/share/doc/gcc-14-base /mnt && ls /mnt'

Exit status: that of SCRIPT; 1 if a kernel log has faults; 125 if a guest failed or a file is missing.
Consoles, kernel logs and the shared directory stay in the run directory that it names.
"""


def say(text):
    """Print a progress line with the time since the outermost script began."""
    seconds = int(time.time()) - int(os.environ.get("STARTED", time.time()))
    print(f"[{seconds // 60}:{seconds % 60:02d}] {text}", file=sys.stderr, flush=True)


def host_path(path):
    """Return the path here of a path on the host."""
    return "/host" + os.path.join(os.environ["HOST_CWD"], path)


def host_name(path):
    """Return the path on the host of a path in the cache."""
    return path.replace("/cache", os.environ["HOST_CACHE"], 1)


# The run directories of this process, locked as long as it lives.
IN_USE = []


def lock(folder, how):
    """Open and lock a directory; return its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def remove_old(folder):
    """Remove a run directory after two hours, that of a failed run after a week, unless it is in use."""
    # Another process may remove it at the same time, or use it.
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        descriptor = lock(folder, fcntl.LOCK_EX)
        keep = 7 * 86400 if glob.glob(f"{folder}/failed-*") else 7200
        if time.time() - os.stat(folder).st_mtime > keep:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def run_folder(prefix, module=None):
    """Create a directory that is shared with the guests, with their scripts and the module. Remove
    old ones."""
    if module and not os.path.isfile(module):
        name = module.removeprefix("/src/").removeprefix("/host")
        raise FileNotFoundError(f"no {name}: first run make, or make debug-module for the debug kernel")
    os.makedirs("/cache/runs", exist_ok=True)
    for old in sorted(os.listdir("/cache/runs"))[:-20]:
        remove_old(f"/cache/runs/{old}")
    folder = tempfile.mkdtemp(prefix=time.strftime("%m%d-%H%M%S-") + prefix + "-",
                              dir="/cache/runs")
    IN_USE.append(lock(folder, fcntl.LOCK_SH))
    os.chmod(folder, 0o755)
    for part in ("guest", "hostile", "bench"):
        shutil.copytree(f"/src/selftests/{part}", f"{folder}/{part}")
    shutil.copytree("/src/selftests/host/data", f"{folder}/data")
    if module:
        shutil.copy(module, f"{folder}/rpcrdma_rs.ko")
    return folder


class Pair:
    """A client guest and a server guest, which are the same guest with one_guest."""

    def __init__(self, folder, machine, one_guest=False, echo=print):
        self.folder = folder
        self.machine = machine
        self.echo = echo
        self.guests = []
        try:
            if one_guest:
                self.client = self.server = self._boot(
                    "both", "1,2", "user,restrict=on,ipv6=off")
            else:
                self.server = self._boot("server", "2", self._wire() + ",server=on")
                self.client = self._boot(
                    "client", "1", self._wire() + ",server=off,reconnect-ms=100")
                self.client.peer, self.server.peer = self.server, self.client
            self.boot_seconds = max(guest.wait_ready() for guest in self.guests)
        except BaseException:
            self.kill()
            raise

    def _wire(self):
        return f"stream,addr.type=unix,addr.path={self.folder}/wire"

    def _boot(self, name, addresses, net):
        guest = Guest(name, addresses, net, self.folder, self.machine, self.echo)
        self.guests.append(guest)
        return guest

    def restart_server(self):
        """Kill the server guest as a power cut would, and start it again. Return the faults in
        its log that were not returned before.

        If the connection breaks in the middle of a packet, QEMU never sends another one; so
        the client is stopped until no packet is in flight."""
        self.client.qmp("stop")
        time.sleep(2)
        self.server.kill()
        faults = self.server.console_faults()
        self.client.qmp("cont")
        self.guests.remove(self.server)
        self.server = self._boot("server", "2", self._wire() + ",server=on")
        self.server.peer = self.client
        self.server.wait_ready()
        self.client.peer = self.server
        return faults

    def set_up(self, client, server):
        """Load the modules, and start nfsd and the client's services."""
        lib = ". /t/guest/lib.sh\n"
        steps = [(self.server, f"module_load {server} && server_start")]
        if self.client is not self.server:
            steps.append((self.client, f"module_load {client} && client_start"))
        else:
            steps.append((self.client, "client_start"))
        for guest, step in steps:
            if guest.run(lib + step, 120) != 0:
                raise GuestError(f"{guest.name}: '{step}' failed")

    def stop(self):
        """Shut down; return the faults in the logs that were not returned before, by guest."""
        return {guest.name: guest.stop() for guest in self.guests}

    def kill(self):
        """Kill both guests."""
        for guest in self.guests:
            guest.kill()


def add_machine_options(parser, device="rxe", devices=""):
    """Add the options for the guests' kernel and machine; `device` is the default of --device."""
    parser.add_argument("--debug", action="store_true",
                        help="the debug kernel (made by selftests/vm/debug-kernel)")
    parser.add_argument("--device", choices=("rxe", "siw"), default=device,
                        help=f"kind of RDMA device{devices}")
    parser.add_argument("--memory", type=int, default=3000, metavar="MiB")
    parser.add_argument("--cpus", type=int, default=1)


def machine(args, device=None, cpus=1):
    """Return the machine that the options describe, perhaps with another kind of RDMA device or
    more processors."""
    return Machine(args.memory, max(args.cpus, cpus), device or args.device)


def default_module(args):
    """Return the path of the module for the guests' kernel."""
    return f"{'/src/.debug' if args.debug else os.environ['BUILD']}/rpcrdma_rs/rpcrdma_rs.ko"


def two_guests(tool, text):
    """Parse the command line of a tool with two guests; return it and a run directory."""
    parser = argparse.ArgumentParser(prog=tool, description=text)
    parser.add_argument("--client", choices=("c", "rust"), default="rust")
    parser.add_argument("--server", choices=("c", "rust"), default="rust")
    parser.add_argument("--vers", default="4.2", help="NFS version")
    args = parser.parse_args()
    wanted = "rust" in (args.client, args.server)
    folder = run_folder(tool, f"{os.environ['BUILD']}/rpcrdma_rs/rpcrdma_rs.ko" if wanted else None)
    say(f"booting two guests; logs are kept in {host_name(folder)}")
    return args, folder


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run", description=__doc__, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("c", "rust", "none")
    parser.add_argument("--client", choices=kinds, default="rust",
                        help="the client's module (default: rust)")
    parser.add_argument("--server", choices=kinds, default="rust",
                        help="the server's module (default: rust)")
    parser.add_argument("--one-guest", action="store_true",
                        help="client and server in one guest (then with the same module)")
    parser.add_argument("--no-setup", action="store_true",
                        help="load no module, start nothing")
    parser.add_argument("--module", metavar="FILE",
                        help="our module (default: as built for the guests' kernel)")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS")
    add_machine_options(parser)
    parser.add_argument("-c", action="store_true", help="SCRIPT is the text itself")
    parser.add_argument("script", metavar="SCRIPT", nargs="+")
    args = parser.parse_args()
    if args.script[0] == "-c":
        args.c, args.script = True, args.script[1:]
    if args.one_guest and args.client != args.server:
        parser.error("with --one-guest both sides use the same module")
    return args


def main():
    """The tool."""
    args = arguments()
    script = " ".join(args.script)
    if not args.c:
        with open(host_path(script)) as file:
            script = file.read()
    module = host_path(args.module) if args.module else default_module(args)
    wanted = args.module or ("rust" in (args.client, args.server) and not args.no_setup)
    folder = run_folder(f"{args.client}-{args.server}", module if wanted else None)
    say(f"run folder {host_name(folder)}")
    pair = Pair(folder, machine(args), args.one_guest)
    try:
        say(f"booted (guest uptime {pair.boot_seconds:.1f} s)")
        if not args.no_setup:
            pair.set_up(args.client, args.server)
            say("set up")
        status = pair.client.run(". /t/guest/lib.sh\n" + script, args.timeout)
        say(f"exit status {status}")
        for name, faults in pair.stop().items():
            for line in faults:
                print(f"{name}: {line}")
            if faults:
                say(f"{name}: the kernel log has faults, see {host_name(folder)}/dmesg.{name}")
                status = status or 1
        return status
    finally:
        pair.kill()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GuestError, OSError) as error:
        say(f"error: {error}")
        sys.exit(125)

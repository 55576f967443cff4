# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Guests of Debian's own kernel under QEMU, and what the host does with them.

A guest's root is the prepared root directory (9p, read-only, under an overlay in
the guest's memory). It shares one directory with the host: /t in the guest, the
run directory on the host. Jobs are shell scripts that the host writes to that
directory. A virtio serial port carries the request to run a job, its output, and its
exit status. A second port carries requests of a job to the host: to run a command
in the other guest ("peer"), or to take this guest's link down or up ("link").
"""

import contextlib
import ctypes
import glob
import json
import mmap
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

sys.path.append(os.path.join(os.path.dirname(__file__), "../guest"))

from kernel_log import log_faults  # noqa: E402

END = b"\x1e"


class GuestError(Exception):
    """A guest did not boot, hung, or ended."""


# Loaded here, so that code between fork and exec needs no lock that another thread holds.
LIBC = ctypes.CDLL(None)


def _die_with_parent():
    LIBC.prctl(1, signal.SIGKILL)
    os.setpgid(0, 0)


def accelerator():
    """Return the accelerator: KVM if the processor has it and a probe boot succeeds."""
    if ARM64:
        return "tcg,thread=multi"
    flags = open("/proc/cpuinfo").read()
    if re.search(r"\b(vmx|svm)\b", flags) and os.path.exists("/dev/kvm"):
        probe = [QEMU, "-accel", "kvm", "-nodefaults", "-display", "none", "-S",
                 "-monitor", "stdio"]
        try:
            if subprocess.run(probe, input=b"quit\n", capture_output=True,
                              timeout=20).returncode == 0:
                return "kvm"
        except subprocess.TimeoutExpired:
            pass
    return "tcg,thread=multi"


# Whether the guests' kernel is for arm64. Otherwise it is for x86_64, as this machine is.
ARM64 = os.environ.get("ARCH") == "arm64"
QEMU = f"/usr/bin/qemu-system-{'aarch64' if ARM64 else 'x86_64'}"
MACHINE = ["-machine", "virt,gic-version=3" if ARM64 else "q35,usb=off,smm=off,hpet=off"]
# A processor without what is slow to emulate: pointer authentication; page tables of five levels, and
# the string instructions that the kernel prefers for copies.
PROCESSOR = "cortex-a72" if ARM64 else "max,-la57,-erms,-fsrm"
# The processor of all figures in Documentation/cost.rst.
COUNTED_PROCESSOR = "max"


def tsc_khz():
    """Return the rate of this machine's time stamp counter, which emulated guests also
    see. A guest on a busy machine would measure it wrongly."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f31" "48c1e220" "4809d0" "c3"))  # rdtsc into rax; ret
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def pair():
        """Return the counter and the clock at (nearly) the same time."""
        best = None
        for _ in range(50):
            before, ticks, after = time.monotonic_ns(), rdtsc(), time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = after - before, ticks, (before + after) // 2
        return best[1:]

    first = pair()
    time.sleep(0.1)
    second = pair()
    return round((second[0] - first[0]) * 1e6 / (second[1] - first[1]))


@dataclass
class Machine:
    """The machine of a guest: `memory` in MiB, `device` the kind of RDMA device (rxe
    or siw), `boot` a directory that boot-files created. With `counted`, an instruction takes one
    nanosecond of the guest's time, and waiting takes none. Measurements then do not depend on
    this machine's load. `plugin` has the arguments of QEMU's -plugin."""

    memory: int = 3000
    cpus: int = 1
    device: str = "rxe"
    counted: bool = False
    plugin: str = ""
    boot: str = field(default_factory=lambda: os.environ["BOOT"])


class Guest:
    """One guest. `net` is the -netdev argument of its eth0."""

    def __init__(self, name, addresses, net, folder, machine, echo=None):
        self.name = name
        self.folder = folder
        self.echo = echo or (lambda line: None)
        self.peer = None
        self.jobs = 0
        # A guest whose clock counts instructions runs ahead while it waits for the host.
        self.patience = 1000 if machine.counted else 1
        self.buffer = b""
        self.lock = threading.Lock()
        self.told = set()
        os.makedirs(os.path.join(folder, "jobs"), exist_ok=True)
        with open(self._path("qemu"), "wb") as log:
            self.qemu = subprocess.Popen(
                self._command(addresses, net, machine), stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent, stdout=log, stderr=subprocess.STDOUT)
        self.port = self._connect("jobs")
        self.ask = self._connect("ask")
        self.console = self._connect("con")
        self.monitor, self.qmp_buffer, self.qmp_lock = self._connect("mon"), b"", threading.Lock()
        self._qmp_message("QMP")
        self.qmp("qmp_capabilities")
        threading.Thread(target=self._answer, daemon=True).start()
        threading.Thread(target=self._drain, args=(self.console,), daemon=True).start()

    def _path(self, what):
        return os.path.join(self.folder, f"{self.name}.{what}")

    def _command(self, addresses, net, machine):
        """Return QEMU's command line."""
        name, boot, path = self.name, machine.boot, self._path
        accel = ["tcg,thread=single"] if machine.counted else [accelerator()]
        clock = ""
        if machine.counted:
            accel += ["-icount", "shift=0,sleep=off"]
            clock = "tsc=reliable tsc_early_khz=1000000 "
        elif accel != ["kvm"] and not ARM64:
            clock = f"tsc=reliable tsc_early_khz={tsc_khz()} "
        command = [
            QEMU, "-name", f"{name},debug-threads=on", "-nodefaults", "-no-user-config", "-display", "none",
            *MACHINE, "-cpu", COUNTED_PROCESSOR if machine.counted else PROCESSOR, "-accel", *accel,
            "-smp", str(machine.cpus), "-m", str(machine.memory), "-no-reboot",
            "-kernel", f"{boot}/vmlinux", "-initrd", f"{boot}/initramfs.cpio",
            # A line on the console equals the line in the log, time included.
            "-append", f"console={'ttyAMA0' if ARM64 else 'ttyS0'} loglevel=5 printk.time=1 log_buf_len=4M panic=-1 "
            # The check whether the timer interrupts panics when the host is slow.
            # Slab caches keep their own objects and names, and are not merged with others of their size.
            f"mitigations=off slab_nomerge nokaslr no_timer_check net.ifnames=0 audit=0 {clock}"
            f"guest.name={name} guest.addresses={addresses} guest.device={machine.device}",
            "-fsdev", "local,id=root,path=/guestroot,security_model=passthrough,"
            "readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", f"local,id=modules,path={boot}/modules,security_model=passthrough,"
            "readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=modules,mount_tag=modules",
            "-fsdev", f"local,id=share,path={self.folder},security_model=none,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
            "-netdev", f"{net},id=n0",
            "-device", f"virtio-net-pci,netdev=n0,id=nic,mac=52:54:00:88:00:0{addresses[0]},"
            # With buffers that are merged, the driver has them from a page pool, to which rxe
            # must not give them back as it does: see Documentation/known-issues.rst.
            "host_mtu=4400,mrg_rxbuf=off,romfile=",
            "-device", "virtio-serial-pci",
            *(["-plugin", machine.plugin] if machine.plugin else []),
        ]
        for port in ("jobs", "ask"):
            command += [
                "-chardev", f"socket,id={port},path={path(port)},server=on,wait=off",
                "-device", f"virtserialport,chardev={port},name={port}",
            ]
        command += [
            "-chardev", f"socket,id=tty,path={path('tty')},server=on,wait=off",
            "-device", "virtconsole,chardev=tty",
            "-chardev", f"socket,id=con,path={path('con')},server=on,wait=off,"
            f"logfile={path('console')}",
            "-serial", "chardev:con",
            "-chardev", f"socket,id=mon,path={path('mon')},server=on,wait=off",
            "-mon", "chardev=mon,mode=control",
        ]
        return command

    def _connect(self, what):
        # No time limit while QEMU lives; on a busy machine this may take long.
        for _ in range(2400):
            if self.qemu.poll() is not None:
                break
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(self._path(what))
                return sock
            except OSError:
                sock.close()
                time.sleep(0.05)
        raise GuestError(f"{self.name}: QEMU did not start, see {self.name}.qemu: "
                         + open(os.path.join(self.folder, f"{self.name}.qemu")).read())

    @staticmethod
    def _drain(sock):
        while sock.recv(4096):
            pass

    def qmp(self, command, **arguments):
        """Have QEMU execute a command of its machine protocol, and return the result.

        Drops events that arrive in between. Raises GuestError if QEMU refuses."""
        with self.qmp_lock:
            request = {"execute": command, "arguments": arguments}
            self.monitor.sendall(json.dumps(request).encode() + b"\n")
            answer = self._qmp_message("return", "error")
        if "error" in answer:
            raise GuestError(f"{self.name}: QEMU refuses {request}: {answer['error']['desc']}")
        return answer["return"]

    def _qmp_message(self, *kinds):
        """Return the next message of one of these kinds."""
        deadline = time.monotonic() + 60
        while True:
            while b"\n" in self.qmp_buffer:
                line, self.qmp_buffer = self.qmp_buffer.split(b"\n", 1)
                message = json.loads(line)
                if any(kind in message for kind in kinds):
                    return message
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.monitor], [], [], left)[0]:
                raise GuestError(f"{self.name}: QEMU's monitor says nothing")
            data = self.monitor.recv(65536)
            if not data:
                raise GuestError(f"{self.name}: QEMU is gone")
            self.qmp_buffer += data

    def link(self, up):
        """Set the link of the guest's network device."""
        self.qmp("set_link", name="nic", up=up)

    def _answer(self):
        """Serve the requests of jobs: lines "peer SECONDS JOB" and "link on" or "link off"."""
        pending = b""
        while True:
            data = self.ask.recv(4096)
            if not data:
                return
            pending += data
            while b"\n" in pending:
                line, pending = pending.split(b"\n", 1)
                status, text = self._request(line.decode())
                name = f"answer.{self.name}"
                with open(os.path.join(self.folder, name), "w") as file:
                    file.write(text)
                self.ask.sendall(f"{status}\n".encode())

    def _request(self, line):
        verb, _, rest = line.partition(" ")
        try:
            if verb == "link":
                self.link(rest == "on")
                return 0, ""
            seconds, _, job = rest.partition(" ")
            with open(os.path.join(self.folder, job)) as file:
                script = file.read()
            lines = []
            status = (self.peer or self).run(script, int(seconds), lines.append)
            return status, "".join(f"{text}\n" for text in lines)
        except (GuestError, OSError) as error:
            return 125, f"{error}\n"

    def _read_until_end(self, job, seconds, on_line):
        """Pass on output lines until `job` ends; return the words of the last line."""
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                before, mark, end = line.partition(END)
                if before or not mark:
                    on_line(before.decode(errors="replace").rstrip("\r"))
                if mark and end.split()[:1] == [job.encode()]:
                    return end.decode().split()
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.port], [], [], max(0.0, min(left, 5.0)))
            if ready:
                data = self.port.recv(65536)
                if not data:
                    raise GuestError(f"{self.name}: QEMU is gone")
                self.buffer += data
            elif self.qemu.poll() is not None:
                raise GuestError(f"{self.name}: QEMU ended with {self.qemu.returncode}")
            elif left <= 0:
                self._what_hangs()
                raise GuestError(f"{self.name}: job {job} not done after {seconds} s")

    def _what_hangs(self):
        """Have the guest's kernel print its blocked tasks to the console log. For a guest that
        does not answer, record what QEMU's threads and the processor do."""
        with open(os.path.join(self.folder, f"hangs.{self.name}"), "w") as file:
            for _ in range(2):
                for path in glob.glob(f"/proc/{self.qemu.pid}/task/*/stat"):
                    with open(path) as stat:
                        file.write(stat.read())
                time.sleep(1)
            for command in ["info registers -a"] * 3 + ["info lapic 0", "info lapic 1",
                                                        "x /256gx $rsp"]:
                # QEMU prints the state of the processor only in a form for humans.
                file.write(self.qmp("human-monitor-command", **{"command-line": command}))
        for key in b"9", b"w", b"l":
            self.qmp("chardev-send-break", id="con")
            time.sleep(0.3)
            self.console.sendall(key)
            time.sleep(2)

    def wait_ready(self, seconds=300):
        """Wait until the guest accepts jobs; return its uptime in seconds."""
        return float(self._read_until_end("ready", seconds, self.echo)[2])

    def run(self, script, seconds=600, on_line=None):
        """Run a bash script; return its exit status (124: it exceeded its time limit)."""
        with self.lock:
            self.jobs += 1
            job = f"{self.name}-{self.jobs}"
            with open(os.path.join(self.folder, "jobs", job), "w") as file:
                file.write(script)
            self.port.sendall(f"run {job} {seconds * self.patience}\n".encode())
            # The guest itself ends the job at its time limit; the host waits a little longer.
            return int(self._read_until_end(job, seconds + 60, on_line or self.echo)[1])

    def output(self, command, seconds=60):
        """Return what a command prints; raise GuestError if it fails."""
        lines = []
        status = self.run(command, seconds, lines.append)
        if status != 0:
            raise GuestError(f"{self.name}: {shlex.quote(command)}: status {status}: "
                             + "\n".join(lines))
        return "\n".join(lines)

    def new_log_faults(self):
        """Return the faults in the kernel log that were not returned before."""
        return self._untold(self.output("dmesg"))

    def _untold(self, text):
        """Return the faults in `text`, a part of the kernel log, that were not returned before."""
        faults = []
        for line in log_faults(text):
            # On the console the second bracket, which names the CPU or task, follows without a space.
            key = re.sub(r"^(\[ *[\d.]+\]) *(\[[^]]*\])? *", r"\1", line)
            if key not in self.told:
                self.told.add(key)
                faults.append(line)
        return faults

    def _logged(self, what):
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self.folder, what), errors="replace") as file:
                return file.read()
        return ""

    def stop(self):
        """Shut down; return the faults that were not returned before, including those on the
        console."""
        faults = []
        try:
            self.port.sendall(b"off\n")
            self.qemu.wait(60)
        except (OSError, subprocess.TimeoutExpired) as error:
            faults.append(f"{self.name} does not shut down: {error}")
        self.kill()
        return faults + self._untold(self._logged(f"dmesg.{self.name}")) + self.console_faults()

    def console_faults(self):
        """Return the faults on the console that were not returned before; works after the guest's end."""
        return self._untold(self._logged(f"{self.name}.console"))

    def kill(self):
        """Kill QEMU."""
        if self.qemu.poll() is None:
            self.qemu.kill()
            self.qemu.wait()

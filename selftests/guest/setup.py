# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""Loading the module: the C module is loaded already, no device exists, modprobe finds this module."""

import glob
import os
import subprocess

from harness import Skip, case, expect, expect_that, mount, read_file, shell, umount, write_file

# An init function's EEXIST becomes EBUSY in the kernel's module loader, which keeps
# EEXIST for a module that is loaded already.
REFUSED = ("File exists", "Device or resource busy")
OURS, THEIRS = "/sys/module/rpcrdma_rs", "/sys/module/rpcrdma"
INSMOD = "insmod /t/rpcrdma_rs.ko"
MOUNT = "client_mount 4.1 $SERVER /mnt/setup"
SERVE_AND_MOUNT = f"server_start && client_start && {MOUNT} && umount /mnt/setup && " \
    "server_stop && settle"


NAMES = "rpcrdma", "svcrdma", "xprtrdma", "rpcrdma6"


def run(script):
    """Run a command; return exit status and output."""
    done = subprocess.run(["bash", "-c", ". /t/guest/lib.sh\n" + script], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.strip()


class Log:
    """The kernel log's lines since the creation of the object."""

    def __init__(self):
        self.before = len(shell("dmesg").splitlines())

    def lines(self):
        """Return the new lines."""
        return shell("dmesg").splitlines()[self.before:]


def registered():
    """Return what a transport module registers: tunables, trace events, RDMA clients."""
    return sorted(glob.glob("/proc/sys/sunrpc/*rdma*") + glob.glob("/proc/sys/sunrpc/*rdma*/*") +
                  glob.glob("/sys/kernel/tracing/events/rpcrdma/*"))


def c_module_present():
    """This module fails to load with EEXIST and a message, and leaves nothing registered."""
    shell("modprobe -a sunrpc rdma_cm ib_core; modprobe rpcrdma")
    before, log = registered(), Log()
    expect_that("the C module has registered nothing to look at", before)
    for _ in range(2):
        status, output = run(INSMOD)
        expect("exit status of insmod", status, 1)
        expect_that(f"insmod says '{output}'", any(text in output for text in REFUSED))
    expect("our module is there", os.path.exists(OURS), False)
    expect("what is registered", registered(), before)
    # module_unload waits until the module is not in use.
    expect(f"messages how to unload the C module in {log.lines()}",
           sum("rmmod rpcrdma" in line for line in log.lines()), 2)
    shell(f"{SERVE_AND_MOUNT} && module_unload c")
    expect("what is registered without a module", registered(), [])


def ours_after_it():
    """After the C module is removed this module loads, keeps the C module out, and keeps working."""
    shell(INSMOD)
    status, output = run("modprobe rpcrdma")
    expect("exit status of modprobe rpcrdma", status, 1)
    print(output)
    expect("the C module is there", os.path.exists(THEIRS), False)
    shell(f"{SERVE_AND_MOUNT} && module_unload rust")
    expect("what is registered without a module", registered(), [])


def no_device(kind):
    """Mount without an RDMA device; return status, message and the log."""
    shell(f"module_load {kind}; rdma link del rdma0")
    try:
        log = Log()
        answer = run("timeout 60 bash -c '. /t/guest/lib.sh; " + MOUNT + "'")
        return answer, log.lines()
    finally:
        shell("device_add")
        shell(f"module_unload {kind}")


def same_error_without_device():
    """A mount without a device must fail as it does with the C module."""
    theirs, _ = no_device("c")
    ours, log = no_device("rust")
    print(f"the C module: status {theirs[0]}, '{theirs[1]}'")
    expect_that(f"the C module's mount succeeded: {theirs}", theirs[0] != 0)
    expect("status and message of the mount", ours, theirs)
    lines = [line for line in log if "192.168.88.2" in line or "device" in line]
    expect(f"lines about it in the log {log}", len(lines), 1)
    print(lines[0])


def top_without_module():
    """rpcrdma-top says that the module is not loaded, and how to load it."""
    status, output = run("python3 -B /t/rpcrdma-top --once")
    expect("exit status", status, 1)
    expect_that(f"it says '{output}'", "is not loaded" in output and "modprobe" in output)


def install():
    """Do what make install does, in a module directory that is small enough for a quick depmod.

    The C module stays in it: this module must take precedence.
    """
    version = os.uname().release
    names = ("rpcrdma", "nfsd", "nfsv3", "nfsv4", "lockd", "rdma_cm", "nfs_acl",
             "rpcsec_gss_krb5", "grace")
    files = set()
    for name in names:
        for line in run(f"modprobe -a --ignore-install --show-depends {name}")[1].splitlines():
            if line.startswith("insmod "):
                files.add(line.split()[1])
    shell(f"""
        mkdir -p /tmp/modules/updates
        cp {' '.join(files)} /tmp/modules/
        cp /lib/modules/{version}/modules.builtin* /lib/modules/{version}/modules.order /tmp/modules
        cp /t/rpcrdma_rs.ko /tmp/modules/updates/
        install -m 644 /t/rpcrdma_rs.conf /etc/modprobe.d/
        install -m 644 /t/60-rpcrdma_rs.rules /etc/udev/rules.d/
        mount --bind /tmp/modules /lib/modules/{version} && depmod""")


def modprobe_names():
    """Each name that a user or the kernel may request loads this module."""
    for name in NAMES:
        shell(f"modprobe {name}")
        expect(f"modules after modprobe {name} (ours, C)",
               (os.path.exists(OURS), os.path.exists(THEIRS)), (True, False))
        shell("modprobe -r rpcrdma_rs")
        expect("ours after modprobe -r", os.path.exists(OURS), False)


def rdma_core():
    """What rdma-core lists for NFS over RDMA, which systemd loads for each RDMA device, loads this
    module."""
    listed = shell("grep -x -e xprtrdma -e svcrdma /etc/rdma/modules/rdma.conf").split()
    expect("names in rdma-core's list", listed, ["xprtrdma", "svcrdma"])
    for name in listed:
        shell(f"echo {name} >/tmp/listed.conf; /usr/lib/systemd/systemd-modules-load /tmp/listed.conf")
        expect(f"modules after {name} of rdma-core's list (ours, C)",
               (os.path.exists(OURS), os.path.exists(THEIRS)), (True, False))
        shell("modprobe -r rpcrdma_rs")
    # Both in one file, as they are there: the second name finds this module loaded.
    write_file("/tmp/listed.conf", "\n".join(listed).encode())
    shell("/usr/lib/systemd/systemd-modules-load /tmp/listed.conf && modprobe -r rpcrdma_rs")
    expect("modules after modprobe -r (ours, C)",
           (os.path.exists(OURS), os.path.exists(THEIRS)), (False, False))


def other_kernel():
    """On a kernel for which this module is not installed, each name loads the C module."""
    away = "mv /lib/modules/$(uname -r)/updates/rpcrdma_rs.ko /tmp && depmod"
    back = "mv /tmp/rpcrdma_rs.ko /lib/modules/$(uname -r)/updates/ && depmod"
    shell(away)
    try:
        for name in NAMES:
            shell(f"modprobe {name}")
            expect(f"modules after modprobe {name} (ours, C)",
                   (os.path.exists(OURS), os.path.exists(THEIRS)), (False, True))
            shell("rmmod rpcrdma")
    finally:
        shell(back)


def settings():
    """The values in sysctl.d for both sides apply when this module is loaded."""
    shell("""mkdir -p /etc/sysctl.d; cat >/etc/sysctl.d/nfs.conf <<-end
	sunrpc.svc_rdma.max_requests=77
	sunrpc.rdma_slot_table_entries=55
	end
	/lib/systemd/systemd-udevd --daemon""")
    try:
        shell("modprobe svcrdma; udevadm settle --timeout=60")
        for name, value in ("svc_rdma/max_requests", b"77\n"), \
                ("rdma_slot_table_entries", b"55\n"):
            expect(name, read_file(f"/proc/sys/sunrpc/{name}"), value)
    finally:
        shell("udevadm control --exit; modprobe -r rpcrdma_rs; rm /etc/sysctl.d/nfs.conf")


def autoload():
    """nfsd's listener and a mount load this module by themselves."""
    shell("server_start")
    expect("modules after rpc.nfsd --rdma (ours, C)",
           (os.path.exists(OURS), os.path.exists(THEIRS)), (True, False))
    mount("4.2", "ipv6", "/mnt/setup")
    umount("/mnt/setup")
    shell("server_stop; settle; module_unload rust")
    # Nothing listens, so this mount fails, but it must load the module first.
    run(f"timeout 20 bash -c '. /t/guest/lib.sh; {MOUNT} soft,retry=0,timeo=10,retrans=0'")
    expect("modules after a mount (ours, C)",
           (os.path.exists(OURS), os.path.exists(THEIRS)), (True, False))
    shell("settle; module_unload rust")


def main():
    """The group."""
    with case("the C module is there: EEXIST, a message, nothing registered"):
        c_module_present()
    with case("the C module is gone: ours loads, and then keeps it out"):
        ours_after_it()
    with case("no RDMA device: the mount fails as with the C module, one line in the log"):
        same_error_without_device()
    with case("rpcrdma-top without the module says so"):
        top_without_module()
    with case("an RDMA device without fast registration"):
        raise Skip("the kernel has no software device without it")
    with case("install: modprobe.d lines and a udev rule"):
        install()
    with case("modprobe rpcrdma, svcrdma, xprtrdma, rpcrdma6 load ours"):
        modprobe_names()
    with case("/etc/rdma/modules/rdma.conf loads ours"):
        rdma_core()
    with case("a kernel without ours: they load the C module"):
        other_kernel()
    with case("sysctl.d applies when ours is loaded"):
        settings()
    with case("nfsd's listener and a mount load ours"):
        autoload()


main()

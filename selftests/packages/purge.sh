# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Runs in a guest whose root is a Debian with the package: purge the package while a mount uses
# its module.
set -euo pipefail
RELEASE=$(uname -r)
MOUNT=/mnt/purge

# loaded: which of the two modules are loaded.
loaded() {
	sed -n 's/^\(rpcrdma\(_rs\)\{0,1\}\) .*/\1/p' /proc/modules | tr '\n' ' '
}

serve_and_mount() {
	server_start
	client_start
	client_mount 4.2 "$SERVER" "$MOUNT"
}

fail() {
	echo "failed: $*"
	exit 1
}

# Show the modules of the package's Debian, not those that guests usually have.
umount "/usr/lib/modules/$RELEASE"
# depmod reads them all, which takes an emulated processor long.
find /usr/lib/modules/*/kernel/drivers -mindepth 1 -maxdepth 1 ! -name infiniband ! -name net -exec rm -r {} +
rm -rf /usr/lib/modules/*/kernel/{sound,drivers/net/{ethernet,wireless}}

serve_and_mount
[ "$(loaded)" = "rpcrdma_rs " ] || fail "loaded: $(loaded)"
grep "^rpcrdma_rs " /proc/modules
case $(modinfo -n rpcrdma_rs) in */updates/dkms/*) ;; *) fail "not the package's module" ;; esac

while [ ! -e /run/stop ]; do
	dd if=/dev/urandom of=/run/data bs=64k count=16 status=none
	cp /run/data "$MOUNT/data"
	cmp /run/data "$EXPORT/data"
	echo round >>/run/rounds
done &
io=$!
until [ -s /run/rounds ]; do sleep 0.2; done

DEBIAN_FRONTEND=noninteractive INITRD=No apt-get -q -y purge rpcrdma-rs-dkms
! dpkg -s rpcrdma-rs-dkms 2>/dev/null || fail "the package is still known"
! ls -d /usr/src/rpcrdma-rs* /var/lib/dkms/rpcrdma-rs /usr/lib/modprobe.d/rpcrdma_rs.conf \
	/usr/lib/udev/rules.d/60-rpcrdma_rs.rules /lib/modules/*/updates/dkms/rpcrdma_rs* 2>/dev/null ||
	fail "files are left"

before=$(wc -l </run/rounds)
for _ in {1..100}; do
	[ "$(wc -l </run/rounds)" -lt $((before + 3)) ] || break
	sleep 0.5
done
touch /run/stop
wait $io || fail "I/O on the mount"
[ "$(wc -l </run/rounds)" -ge $((before + 3)) ] || fail "the mount has not continued"
[ "$(loaded)" = "rpcrdma_rs " ] || fail "loaded after the purge: $(loaded)"

umount "$MOUNT"
server_stop
settle
module_idle rpcrdma_rs
rmmod rpcrdma_rs
serve_and_mount
[ "$(loaded)" = "rpcrdma " ] || fail "loaded by the next mount: $(loaded)"
cmp /run/data "$MOUNT/data"
umount "$MOUNT"
server_stop

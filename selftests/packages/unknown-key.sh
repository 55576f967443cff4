# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Runs in a guest with a module that is signed with a key that its kernel does not know. The kernel
# enforces signatures, and says what /run/document says.
set -euo pipefail

# said TEXT FILE: the file and the document have the text.
said() {
	grep -F "$1" "$2"
	grep -qF "$1" /run/document || { echo "not in the document: $1"; return 1; }
}

updates=/lib/modules/$(uname -r)/updates
mkdir -p "$updates"
cp /t/rpcrdma_rs.ko "$updates"
depmod
modprobe -a sunrpc rdma_cm ib_core nfsv4
echo Y >/sys/module/module/parameters/sig_enforce
dmesg -C
! modprobe rpcrdma_rs 2>/run/modprobe || exit 1
said "modprobe: ERROR: could not insert 'rpcrdma_rs': Key was rejected by service" /run/modprobe
dmesg >/run/dmesg
said "Loading of module with unavailable key is rejected" /run/dmesg
! mount -t nfs -o rdma,vers=4.2,retry=0 "$SERVER:/" /mnt 2>/run/mount.message || exit 1
said "mount.nfs: an incorrect mount option was specified for " /run/mount.message
! grep "^rpcrdma" /proc/modules || exit 1

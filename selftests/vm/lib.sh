# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Code that the scripts of this directory share: the paths of caches, running a command
# with the prepared root directory as its root, and printing progress. Sourced by bash
# scripts; sets no options.

SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rpcrdma-rs
DEFAULT_KERNEL=7.3.4+deb13-amd64
CHOSEN=$CACHE/default.$DEFAULT_KERNEL   # the default that the archive has, see prepare
NEWEST=$(cat "$CHOSEN" 2>/dev/null || echo "$DEFAULT_KERNEL")
KERNELS="7.2.12+deb13-amd64 $NEWEST"    # those that CI builds for
ARM64_KERNEL=${NEWEST%-amd64}-arm64     # the kernel of the suite arm64
DEBUG=$CACHE/debug          # the debug kernel, see debug-kernel
DEBUG_KERNEL=$NEWEST        # the kernel whose source it is built from
DEBUG_LLVM=-19
DEBUG_LOCALVERSION=-rpcrdma-debug
STAMPS=$CACHE/stamps        # one file for each finished step
LOGS=$CACHE/logs            # one file for each step of prepare
STARTED=${STARTED:-$(date +%s)}

# use_kernel RELEASE: set the variables for that kernel. Each kernel has a directory of its
# own in the cache:
#
#   packages   image, modules, headers and source, unpacked from the archive
#   kdir       the prepared kernel tree, against which the module is built
#   siw        iWARP in software, which Debian does not build
#
# SUITE is the Debian in which the kernel was built. ROOT is a root directory with that Debian:
# its toolchain and QEMU. GUESTS is the guests' root, the same one unless the kernel is for another
# architecture: then ARCH is the architecture's name, and CROSS the prefix of its compilers.
#
# The module for the default kernel is built in the checkout, the module for another kernel
# (KERNEL=<release>) in a copy: objects belong to one kernel.
use_kernel() {
	RELEASE=$1
	SERIES=$(sed 's/^\([0-9]*\.[0-9]*\).*/\1/' <<<"$RELEASE")
	LINUX=$CACHE/linux-$RELEASE
	KDIR=$LINUX/kdir
	case $RELEASE in
	*+deb14-*) SUITE=sid ROOT=$CACHE/root-sid ;;
	*) SUITE=trixie ROOT=$CACHE/root ;;
	esac
	ARCH='' CROSS='' GUESTS=$ROOT
	case $RELEASE in
	*-arm64) ARCH=arm64 CROSS=aarch64-linux-gnu- GUESTS=$ROOT-arm64 ;;
	esac
	BUILD=$SRC${KERNEL:+/.build/$RELEASE}
}
use_kernel "${KERNEL:-$NEWEST}"

# Print the arguments for make in the kernel tree that name the architecture, Debian's compiler
# and version.
kernel_args() {
	printf '%sCC=%s LOCALVERSION=%s' "${ARCH:+ARCH=$ARCH CROSS_COMPILE=$CROSS }" "$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\([^ ]*\).*/\1/p' \
		"$LINUX/packages/usr/src/linux-headers-$RELEASE/.config")" "${RELEASE#"${RELEASE%%+*}"}"
}

# Print the time since the outermost script began, as m:ss.
elapsed() {
	local s=$(($(date +%s) - STARTED))
	printf '%d:%02d' $((s / 60)) $((s % 60))
}

say() {
	printf '[%s] %s\n' "$(elapsed)" "$*" >&2
}

die() {
	printf '[%s] error: %s\n' "$(elapsed)" "$*" >&2
	exit 1
}

# show_progress PID NAME LOG: print the last line of LOG every ten seconds while PID
# lives.
show_progress() {
	local line
	while sleep 10 >&- 2>&- && kill -0 "$1" 2>/dev/null; do
		line=$(tail -c 400 "$3" | tr '\r' '\n' | sed '/^ *$/d' | tail -n 1 | cut -c1-70)
		say "$2: ${line:-working}"
	done
}

# step NAME INPUTS WHAT COMMAND...: run COMMAND, unless the stamp NAME was left
# by a run with the same INPUTS (and by the same earlier steps). Its output
# goes to a log; every ten seconds the log's last line is shown.
CHAIN=
step() {
	local name=$1 inputs=$2 what=$3 log=$LOGS/$1.log status=0 pid
	shift 3
	CHAIN=$(printf '%s\n' "$CHAIN" "$name" "$inputs" | sha256sum | cut -c1-32)
	if [ "$(cat "$STAMPS/$name" 2>/dev/null)" = "$CHAIN" ]; then
		return
	fi
	rm -f "$STAMPS/$name"
	say "$name: $what"
	("$@") >"$log" 2>&1 </dev/null &
	pid=$!
	# shellcheck disable=SC2064
	trap "kill $pid 2>/dev/null; exit 130" INT TERM
	show_progress "$pid" "$name" "$log" &
	wait "$pid" || status=$?
	kill $! 2>/dev/null || true
	trap - INT TERM
	if [ "$status" != 0 ]; then
		tail -n 15 "$log" >&2
		die "step '$name' failed (status $status), log: $log"
	fi
	printf '%s\n' "$CHAIN" >"$STAMPS/$name"
}

need_root() {
	[ "$(id -u)" = 0 ] || die "$0 needs root: it mounts and chroots into $ROOT"
}

# copy_sources FOLDER: copy the sources of the modules into that directory of the checkout.
# It keeps file times, from which make sees what to rebuild.
copy_sources() {
	mkdir -p "$SRC/$1"
	(
		cd "$SRC"
		for dir in rpcrdma_rs xdr clnt svc selftests/kapi selftests/kunit; do
			find "$dir" -type f \( -name '*.rs' -o -name '*.[ch]' -o -name Kbuild -o -name '*.mk' \
				-o -path '*/bindings/parameters' -o -name check-kdir \) \
				! -name '*generated*' ! -name '*.mod.c' -print0
		done | xargs -0 cp -pu --parents -t "$1"
		cp -p Kbuild Makefile "$1"
	)
}

# in_root COMMAND...: run COMMAND with $ROOT as /, in a mount namespace of its
# own, so that nothing stays mounted. The checkout is /src, the kernel tree
# /kdir, the cache /cache, the host's own root /host, and the guests' root, or
# $GUEST_ROOT, /guestroot. Modules are built in $BUILD. The command replaces the
# shell, so signals reach it.
in_root() {
	local dir
	for dir in src kdir cache host guestroot; do
		[ -d "$ROOT/$dir" ] || mkdir -p "$ROOT/$dir"
	done
	mkdir -p "$KDIR" "$GUESTS"
	# shellcheck disable=SC2016
	STARTED=$STARTED exec unshare --mount sh -euc '
		src=$1 root=$2 kdir=$3 cache=$4 build=$5 guest_root=$6; shift 6
		mount --make-rprivate /
		mount --rbind / "$root/host"
		mount --bind "$guest_root" "$root/guestroot"
		mount --bind "$src" "$root/src"
		mount --bind "$kdir" "$root/kdir"
		mount --bind "$cache" "$root/cache"
		mount -t proc proc "$root/proc"
		mount --rbind /dev "$root/dev"
		mount -t tmpfs tmpfs "$root/tmp"
		exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			HOME=/root LC_ALL=C.UTF-8 TERM="${TERM:-dumb}" \
			HOST_SRC="$src" HOST_CACHE="$cache" HOST_CWD="$PWD" STARTED="$STARTED" \
			BUILD="$build" "$@"
	' sh "$SRC" "$ROOT" "$KDIR" "$CACHE" "/src${BUILD#"$SRC"}" "${GUEST_ROOT:-$GUESTS}" "$@"
}

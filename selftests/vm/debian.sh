# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Folders with a Debian of their own, from this machine's own mirror, and apt in them.
# Sourced after lib.sh by bash scripts.

# --- the host -------------------------------------------------------------------

# The URI this machine's own apt takes Debian from.
mirror() {
	local uri
	uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
		awk '$1 ~ /^(bookworm|trixie|stable|oldstable)$/ { print $2; exit }')
	[ -n "$uri" ] || die "no Debian 12 or 13 mirror among this machine's apt sources"
	printf '%s\n' "$uri"
}

# What this machine's apt is set to, as options for mmdebstrap: a proxy, and whether lists
# may be older than they claim, as those of a mirror that is a snapshot are.
apt_options() {
	local kind uri fresh=
	for kind in http https; do
		uri=
		eval "$(apt-config shell uri "Acquire::$kind::Proxy")"
		[ -z "$uri" ] || printf '%s\n' "--aptopt=Acquire::$kind::Proxy \"$uri\""
	done
	eval "$(apt-config shell fresh Acquire::Check-Valid-Until)"
	[ -z "$fresh" ] || printf '%s\n' "--aptopt=Acquire::Check-Valid-Until \"$fresh\""
}

# Packages this machine lacks; of a usual Debian that is mmdebstrap alone.
host_lacks() {
	command -v mmdebstrap >/dev/null || echo mmdebstrap
	command -v mount >/dev/null || echo mount
	command -v unshare >/dev/null || echo util-linux
}

host_tools() {
	apt-get -q update
	apt-get -q install -y --no-install-recommends "$@"
}

# Sets MIRROR and installs what this machine lacks for the rest.
ready_host() {
	local lacks
	lacks=$(host_lacks | tr '\n' ' ')
	if [ -n "$lacks" ]; then
		# shellcheck disable=SC2086
		step host "$lacks" "installing on this machine: $lacks" host_tools $lacks
		CHAIN=
	fi
	MIRROR=$(mirror)
}

# --- the root folder ------------------------------------------------------------

# make_root FOLDER: Debian's base system, with backports, which kernels come from; sid has
# kernels of its own.
make_root() {
	local root=$1 options backports=()
	[ "$SUITE" = sid ] || backports=("deb $MIRROR $SUITE-backports main")
	mapfile -t options < <(apt_options)
	rm -rf "$root.new" "$root.old"
	mmdebstrap --variant=apt --mode=root --components=main \
		--aptopt='APT::Install-Recommends "false"' \
		--aptopt='Dpkg::Options "--force-unsafe-io"' \
		--aptopt='Dpkg::Use-Pty "0"' \
		"${options[@]}" \
		--customize-hook='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"' \
		--customize-hook='chmod 755 "$1/usr/sbin/policy-rc.d"' \
		--customize-hook="printf '%s\n' 'Package: src:linux linux-*' \
			'Pin: release n=$SUITE-backports' 'Pin-Priority: 600' \
			>\"\$1/etc/apt/preferences.d/kernel\"" \
		"$SUITE" "$root.new" \
		"deb $MIRROR $SUITE main" "${backports[@]}"
	if [ -d "$root" ]; then mv "$root" "$root.old"; fi
	mv "$root.new" "$root"
	rm -rf "$root.old"
}

# apt-get inside the root folder.
root_apt() {
	cp /etc/resolv.conf "$ROOT/etc/resolv.conf" || true
	# INITRD=No: the guests do not boot from Debian's initramfs.
	(in_root env DEBIAN_FRONTEND=noninteractive INITRD=No apt-get -q -y "$@")
}

install_packages() {
	root_apt update
	root_apt install "$@"
	root_apt clean
}

# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# Create directories with a Debian of their own from this machine's mirror, and run apt in them.
# Sourced after lib.sh by bash scripts.

# --- the host -------------------------------------------------------------------

# Print the URI of Debian in this machine's apt sources.
mirror() {
	local uri
	uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' |
		awk '$1 ~ /^(bookworm|trixie|stable|oldstable)$/ { print $2; exit }')
	[ -n "$uri" ] || die "no Debian 12 or 13 mirror among this machine's apt sources"
	printf '%s\n' "$uri"
}

# Print settings of this machine's apt as options for mmdebstrap: a proxy, and whether lists
# may have expired, as those of a snapshot mirror have.
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

# List the packages that this machine lacks; usually that is only mmdebstrap.
host_lacks() {
	command -v mmdebstrap >/dev/null || echo mmdebstrap
	command -v mount >/dev/null || echo mount
	command -v unshare >/dev/null || echo util-linux
}

host_tools() {
	apt-get -q update
	apt-get -q install -y --no-install-recommends "$@"
}

# Set MIRROR, and install the packages that this machine lacks.
ready_host() {
	local lacks
	lacks=$(host_lacks | tr '\n' ' ')
	if [ -n "$lacks" ]; then
		# shellcheck disable=SC2086
		step host "$lacks" "installing on this machine: $lacks" host_tools $lacks
		CHAIN=
	fi
	# Images of containers often have no lists of packages, which name the origin.
	(mirror) >/dev/null 2>&1 || apt-get -q update >&2
	MIRROR=$(mirror)
}

# --- the root directory ---------------------------------------------------------

# make_root FOLDER: create Debian's base system, with backports for its kernels; sid has kernels
# of its own.
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

# make_guests FOLDER PACKAGES: create a root directory for guests of another architecture. The packages'
# scripts do not run; what they would have created is taken from $ROOT.
make_guests() {
	local root=$1 options dir
	mapfile -t options < <(apt_options)
	rm -rf "$root.new" "$root"
	mmdebstrap --variant=extract --architectures="$ARCH" --mode=root --components=main \
		--aptopt='APT::Install-Recommends "false"' "${options[@]}" --include="?essential" --include="$2" \
		"$SUITE" "$root.new" "deb $MIRROR $SUITE main"
	cp -an "$ROOT/etc/." "$root.new/etc/"
	cp -an "$ROOT/var/lib/nfs/." "$root.new/var/lib/nfs/"
	for dir in usr/bin usr/sbin; do
		find "$ROOT/$dir" -lname '/etc/alternatives/*' -exec cp -an -t "$root.new/$dir" {} +
	done
	mv "$root.new" "$root"
}

# Run apt-get in the root directory.
root_apt() {
	cp /etc/resolv.conf "$ROOT/etc/resolv.conf" || true
	# INITRD=No: the guests do not boot from Debian's initramfs.
	(in_root env DEBIAN_FRONTEND=noninteractive INITRD=No apt-get -q -y "$@")
}

# Install compilers for $ARCH, and make apt find its kernels.
install_cross() {
	(in_root dpkg --add-architecture "$ARCH")
	install_packages "$@"
}

install_packages() {
	root_apt update
	root_apt install "$@"
	root_apt clean
}

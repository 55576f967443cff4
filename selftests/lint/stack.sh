#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# stack.sh [MODULE]: check that no function of the module has a stack frame of more than
# 1 KiB: writeback and reclaim call the module with little stack left. Reads the object code of
# the built module (x86-64). Prints the size and function of each violation; exit status 1 if
# there are any.
set -u
cd "$(dirname "$0")/../.." || exit 2

MAX=1024
module=${1:-rpcrdma_rs/rpcrdma_rs.ko}

[ -f "$module" ] || {
	echo "stack.sh: skipped, no $module: first make all" >&2
	exit 0
}
command -v objdump >/dev/null || {
	echo "stack.sh: skipped, no objdump: install binutils" >&2
	exit 0
}
file=$(LC_ALL=C objdump -f "$module")
[[ $file == *i386:x86-64* ]] || {
	echo "stack.sh: skipped, $module is not for x86-64" >&2
	exit 0
}

function=none seen=0 found=0
while read -r line; do
	case $line in
	*'>:')
		function=${line#*<}
		function=${function%>:}
		seen=$((seen + 1))
		;;
	*)
		size=${line##*\$}
		size=$((${size%%,*}))
		if [ "$size" -gt "$MAX" ]; then
			printf '%s: %s bytes of stack, at most %s\n' "$function" "$size" "$MAX"
			found=1
		fi
		;;
	esac
done < <(objdump -d --no-show-raw-insn "$module" |
	grep -E '^[0-9a-f]+ <.*>:$|sub +\$0x[0-9a-f]+,%rsp$')
[ "$seen" -gt 0 ] || {
	echo "stack.sh: no function found in $module"
	exit 1
}
exit $found

#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# unsafe-ledger.sh: count unsafe blocks, functions and impls of each file, and the SAFETY
# comments and "# Safety" sections that justify them. Comments do not count as code.
set -eu
cd "$(dirname "$0")/../.."

printf '%-40s %7s %7s %7s %7s %7s\n' file lines blocks fns impls SAFETY
git ls-files 'rpcrdma_rs/*.rs' 'xdr/*.rs' 'clnt/*.rs' 'svc/*.rs' |
while read -r file; do
	awk -v file="$file" '
	/^[ \t]*\/\// {
		if (/SAFETY:|# Safety$/) said++
		next
	}
	{
		code++
		line = $0
		fns += gsub(/unsafe (extern "C" )?fn /, "", line)
		impls += gsub(/unsafe (impl|trait)/, "", line)
		blocks += gsub(/unsafe \{/, "", line)
	}
	END {
		if (blocks + fns + impls)
			printf "%-40s %7d %7d %7d %7d %7d\n", file, code, blocks, fns, impls, said
	}' "$file"
done | awk '
	{ print; for (i = 2; i <= 6; i++) sum[i] += $i }
	END { printf "%-40s %7d %7d %7d %7d %7d\n", "all", sum[2], sum[3], sum[4], sum[5], sum[6] }'

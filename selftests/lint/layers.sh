#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# layers.sh: check the rules of the layers and of the form of files, as far as the
# source text shows violations (the compiler enforces the others by privacy and by
# forbid and deny attributes). Prints each violation as file:line: reason; exit
# status 1 if there are any.
set -u
cd "$(dirname "$0")/../.." || exit 2

MAX_LINES=650
found=0

offence() {
	printf '%s\n' "$*"
	found=1
}

# Source files: tracked ones, and new ones that git does not ignore.
if git rev-parse --git-dir >/dev/null 2>&1; then
	mapfile -t files < <(git ls-files --cached --others --exclude-standard)
else
	mapfile -t files < <(find . -type f ! -path './.git/*' ! -path '*/target/*' \
		! -name '*generated*' -printf '%P\n')
fi

# among REGEX: list the source files whose path matches.
among() {
	local file
	for file in "${files[@]}"; do
		[[ $file =~ $1 && -f $file && ! -L $file ]] && printf '%s\n' "$file"
	done
}

# ours: list the files that are not generated.
ours() {
	among . | grep -v -e '^LICENSE$' -e '/Cargo\.lock$' -e '\.gitignore$'
}

# code FILE: print its lines with comments blanked, so that line numbers stay. A line
# comment starts outside of a string.
code() {
	sed -E 's@^([^"]*("[^"]*"[^"]*)*)//.*@\1@; s@^[[:space:]]*//.*@@' "$1"
}

# forbid FILES-REGEX PATTERN REASON [EXCEPT]: no code line of these files
# matches PATTERN, unless the line matches EXCEPT.
forbid() {
	local file line
	while read -r file; do
		while IFS= read -r line; do
			offence "$file:${line%%:*}: $3: ${line#*:}"
		done < <(code "$file" | grep -nE "$2" | grep -vE "${4:-^$}")
	done < <(among "$1")
}

logic='^(clnt|svc)/.*\.rs$'

# 1. The word itself, also in comments: a plain grep must give the right answer.
while IFS= read -r line; do
	offence "$line: the word unsafe outside a forbid or deny line"
done < <(grep -rnE --include='*.rs' 'unsafe' xdr clnt svc 2>/dev/null |
	grep -vE '#!\[(forbid|deny)\([a-z_:, ]*unsafe_code')

for layer in xdr:forbid clnt:deny svc:deny; do
	grep -qE "^#!\[${layer#*:}\(unsafe_code\)\]" "${layer%:*}/mod.rs" 2>/dev/null ||
		offence "${layer%:*}/mod.rs:1: no #![${layer#*:}(unsafe_code)]"
done

# 2. Layers.
forbid "$logic" '\bbindings\b|\bffi::' 'bindings are private to kapi'
forbid "$logic" '\*(mut|const) ' 'no raw pointers outside kapi'
forbid '^clnt/.*\.rs$' '\bcrate::svc\b' 'clnt does not use svc'
forbid '^svc/.*\.rs$' '\bcrate::clnt\b' 'svc does not use clnt'
forbid '^rpcrdma_rs/kapi/.*\.rs$' '\bcrate::(clnt|svc|xdr)\b' 'kapi does not use xdr, clnt or svc'
forbid '^rpcrdma_rs/kapi/ext/[a-z]*\.rs$' '\b(rdma|sunrpc|trace|status|recv_context)::' \
	'kapi/ext imports nothing above it' '\bbindings::'
forbid '^rpcrdma_rs/kapi/rdma/.*\.rs$' '\b(sunrpc|trace|status|recv_context)::' \
	'kapi/rdma imports ext only'
forbid '^rpcrdma_rs/kapi/sunrpc/.*\.rs$' '\b(rdma|trace|status|recv_context)::' \
	'kapi/sunrpc imports ext only'
forbid '^xdr/.*\.rs$' '\b(use|extern crate) (kernel|alloc|std)\b|\b(kernel|alloc|std)::' \
	'xdr is core only' 'cfg\(test\)'

forbid '\.rs$' 'crate::THIS_MODULE|barrier::smp_mb|dma_data_direction_' \
	'differs between kernels: kapi/compat.rs has it'

# 3. xdr is total: no panic, no index.
forbid '^xdr/.*\.rs$' '\.unwrap\(|\.expect\(|\b(panic|unreachable|todo|unimplemented|assert|assert_eq)!' 'xdr does not panic'
forbid '^xdr/.*\.rs$' '[]a-z_)]\[[^]#]+\]' 'xdr does not index' '^[0-9]+:[[:space:]]*#!?\['

# circles LAYER MOST: find groups of more than MOST files of this layer that import each
# other, directly or through others. MOST of 1 forbids any.
circles() {
	local line
	while IFS= read -r line; do
		offence "$1: $line import each other: at most $2 files may"
	done < <(among "^$1/[a-z_]+\.rs\$" | grep -v '/mod\.rs$' | xargs awk -v most="$2" '
		FNR == 1 {
			here = FILENAME
			gsub(/.*\/|\.rs$/, "", here)
			files[here]
			block = tests = 0
		}
		/^#\[cfg\((test|rpcrdma_kunit)\)\]/ { tests = 1 }
		tests { next }
		{ sub(/\/\/.*/, "") }
		/^use super::\{/ { block = 1; next }
		/^\};/ { block = 0 }
		block && match($0, /^    [a-z_]+/) { used[here, substr($0, 5, RLENGTH - 4)] }
		{
			while (match($0, /super::[a-z_]+/)) {
				used[here, substr($0, RSTART + 7, RLENGTH - 7)]
				$0 = substr($0, RSTART + RLENGTH)
			}
		}
		END {
			for (via in files) for (a in files) for (b in files)
				if ((a, via) in used && (via, b) in used)
					used[a, b]
			for (a in files) {
				count = 0
				circle = ""
				for (b in files)
					if (!(b in told) && (a, b) in used && (b, a) in used) {
						count++
						circle = circle " " b
						found[count] = b
					}
				if (count > most)
					print substr(circle, 2)
				for (; count > 0; count--)
					told[found[count]]
			}
		}')
}
circles clnt 3
circles svc 1

# 4. Closing a transport of the client waits for its work items, so none of them may enter a reclaim
# that waits for an RPC.
while read -r file; do
	while IFS= read -r line; do
		offence "$file:$line: a work item of the client runs without NoIo::begin"
	done < <(code "$file" | awk '
		/^impl(<[^>]*>)? WorkItem[< ]/ { item = 1 }
		item && /^    fn run\(/ { run = NR }
		run && /NoIo::begin\(\)/ { run = 0 }
		/^}/ { if (run) print run; item = run = 0 }')
done < <(among '^(clnt/.*|rpcrdma_rs/kapi/sunrpc/send_lock)\.rs$')

# 5. Every layer.
forbid '\.rs$' '\btodo!|\bunimplemented!|\bdbg!' 'unfinished'
while read -r file; do
	lines=$(wc -l <"$file")
	[ "$lines" -lt "$MAX_LINES" ] || offence "$file:$lines: $lines lines, at most $((MAX_LINES - 1))"
done < <(ours)
# rustfmt does not check comments. A line of code with a string may be longer.
while IFS= read -r line; do
	offence "$line: longer than 100 characters"
done < <(among '\.rs$' | LC_ALL=C.UTF-8 xargs grep -HnE '^.{101}' |
	grep -vE '^[^:]*:[0-9]+:[[:space:]]*[^/[:space:]].*"' | cut -d: -f1,2)
while read -r file; do
	head -n 2 "$file" | grep -q 'SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause' ||
		offence "$file:1: no SPDX line"
done < <(ours)
while read -r file; do
	grep -q '^//!' "$file" || offence "$file:1: no //! saying what the module is for"
done < <(among '^(rpcrdma_rs|xdr|clnt|svc|selftests)/.*\.rs$')
version=$(sed -n 's/^RPCRDMA_RS_VERSION := //p' rpcrdma_rs/Kbuild)
grep -E '^[0-9]' CHANGELOG | head -n 1 | grep -qF "$version (" ||
	offence "CHANGELOG: its first version is not $version, as in rpcrdma_rs/Kbuild"
if [ -e .git ] && names=$(git ls-files | LC_ALL=C grep -P '[^\x20-\x7e]'); then
	offence "$names: names of files are ASCII"
fi

exit $found

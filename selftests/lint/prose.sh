#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# prose.sh: find phrases that are hard to read, in comments, documents and messages.
# Prints each as file:line: reason; exit status 1 if there are any.
# Documentation/guidelines.rst says what to write instead.
set -u
cd "$(dirname "$0")/../.." || exit 2

found=0

# phrase REGEX REASON: no tracked text file matches REGEX (extended, with case).
phrase() {
	local line
	while IFS= read -r line; do
		printf '%s\n' "$(cut -c1-160 <<<"$line")" "    $2"
		found=1
	done < <(git grep -nIE "$1" -- ':!LICENSE' ':!*.lock' ':!selftests/lint/prose.sh' \
		':!Documentation/guidelines.rst')
}

# A relative clause without a head: at the start of a sentence or after a colon.
phrase '(//[/!]?|^#|[.:;] |^) ?Who [a-z]+s\b' 'name the subject: "the caller", "whoever"'
phrase '\bis for who\b|\bof who (is|has|speaks)|\bor who [a-z]+s\b|: who [a-z]+s\b' 'name the subject'
phrase '(//[/!]?|^[[:space:]]*#|^[[:space:]]*\*) Else ' 'a comment that begins with "Else": say "Otherwise", with its condition'
phrase '\bto be had\b' 'say "available"'
phrase '\bof (no )?use (any more|again|to)?\b.*(connection|mount|peer)|connection (is|was|that was) of use' 'say what the connection did'
phrase '\b(device|transport|namespace|id|QP|module|connection)s? (that )?goes( away)?\b' 'say "is removed", "is destroyed"'
phrase '\bfor good\b' 'say "permanently" or "until X"'
phrase '\b(is|was|are) over\b' 'say "has ended", "is complete"'
phrase '\bbeside (it|them|that|each|the|other)\b' 'say "in addition to", "next to", "at the same time as"'

phrase '\b[Tt]akes? note of\b' 'say "handles", "records"'
phrase '\bfor ever\b' 'one word'
phrase '\bwill do\b[.;,]' 'say "suffices"'
phrase '\bin one piece\b' 'say "atomically", "contiguous", "together"'
phrase '\b(goes|go) on (with|until|when|where|after|in|on|to|working|waiting)\b|\bgoes on[.,;:]' 'say "continues"'
phrase '\bat hand\b' 'say "free", "available"'
phrase '\blets? go of\b' 'say "releases"'
phrase '\bsees? to it\b' 'say "ensures"'
phrase '\bof late\b' 'say "recently"'
phrase '\bought to\b' 'say "should"'
phrase '\bhears? of\b|\bheard of\b' 'say "learns of", "gets", "is reported"'
phrase '\b(is|be|are) (of )?no use\b|\bof no use\b' 'say "unusable", "not needed"'
phrase '\bon (its|their) way\b' 'say "in flight", "being sent"'
phrase '(SAFETY|INVARIANT): (As above|See `|By the (safety )?requirement)' 'say which condition holds, and why'

exit $found

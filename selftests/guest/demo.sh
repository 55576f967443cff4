# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
#
# The client's part of the demo: copy a source tree and large files to the
# server and back, and verify every checksum after a remount. Prints progress,
# and writes the values of the final table to /t/demo.facts as NAME VALUE.

MNT=/mnt/nfs
WORK=/tmp/demo
# Neither -a nor the mode: with them cp also requests each file's attributes and ACLs.
COPY="cp -dR --preserve=timestamps"
LARGE="104 104 104"

fact() { echo "$*" >>/t/demo.facts; }
fail() { echo "FAILED: $*"; exit 1; }
now() { date +%s.%N; }

# rate NAME MiB START: record the throughput since START.
rate() {
	fact "$1" "$(awk -v mib="$2" -v a="$3" -v b="$(now)" \
		'BEGIN { printf "%.1f MiB/s (%d MiB in %.1f s)\n", mib / (b - a), mib, b - a }')"
}

# checksums FOLDER: print the checksum of every file, by name.
checksums() {
	(cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
}

mount_it() {
	client_mount "$VERSION" "$SERVER" "$MNT" || fail "mount"
}

save_counters() {
	rdma_counters "$MNT" >"/t/demo.counters.$1"
}

mkdir -p "$WORK"
mount -t tmpfs tmpfs "$WORK"
mkdir "$WORK/out" "$WORK/back"
echo "unpacking the source tree, making large files"
tar -C "$WORK/out" -xf /t/tree.tar || fail "tar"
i=0
for size in $LARGE; do
	i=$((i + 1))
	mkdir -p "$WORK/large"
	head -c "$((size << 20))" /dev/urandom >"$WORK/large/random-$i"
done
files=$(find "$WORK/out" -type f | wc -l)
tree_mib=$(du -sm --apparent-size "$WORK/out" | cut -f1)
large_mib=$(du -sm --apparent-size "$WORK/large" | cut -f1)
fact files "$files"
fact tree_mib "$tree_mib"
fact large "$i files, $large_mib MiB"
[ "$files" -ge 1000 ] || fail "only $files files in the tree"
(checksums "$WORK/out"; checksums "$WORK/large") >"$WORK/sums" || fail "checksums"

mount_it
fact mount "$(awk -v m="$MNT" '$2 == m { print $4 }' /proc/self/mounts)"
echo "copying $files files to the server"
start=$(now)
$COPY "$WORK/out" "$MNT/tree" || fail "copy of the tree"
sync -f "$MNT"
rate tree_out "$tree_mib" "$start"
echo "copying $large_mib MiB of large files to the server"
start=$(now)
$COPY "$WORK/large" "$MNT/large" || fail "copy of the large files"
sync -f "$MNT"
rate large_out "$large_mib" "$start"
save_counters out

echo "remounting"
umount "$MNT" || fail "umount"
mount_it
echo "copying the large files back"
start=$(now)
$COPY "$MNT/large" "$WORK/back/large" || fail "copy back of the large files"
rate large_back "$large_mib" "$start"
echo "copying the tree back"
start=$(now)
$COPY "$MNT/tree" "$WORK/back/tree" || fail "copy back of the tree"
rate tree_back "$tree_mib" "$start"
save_counters back

echo "verifying checksums: on the server's own disk, and of what came back"
peer -t 300 "cd $EXPORT && for d in tree large; do (cd \$d && find . -type f -print0 |
	LC_ALL=C sort -z | xargs -0 sha256sum); done" >"$WORK/sums.server" ||
	fail "checksums on the server"
cmp "$WORK/sums" "$WORK/sums.server" || fail "what the server holds differs"
(checksums "$WORK/back/tree"; checksums "$WORK/back/large") >"$WORK/sums.back"
cmp "$WORK/sums" "$WORK/sums.back" || fail "what came back differs"
fact checksums "$(wc -l <"$WORK/sums") of $(wc -l <"$WORK/sums") equal, on the server and back"

umount "$MNT" || fail "umount"

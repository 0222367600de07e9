# full_disk.sh OUT LISTING COMMAND…: runs the command with --out OUT, where it finds a disk that fills up, and writes
# what it left there to LISTING, before the file system goes away with this process.
out=$1
listing=$2
shift 2
"$@" --out "$out"
code=$?
ls "$out" "$out"/checkpoint-* >"$listing" 2>/dev/null
exit $code

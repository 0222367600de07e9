# The Dockerfile by hand, where no engine builds it: its second stage installs the packages of the libraries that the
# program and its library ask for and no other, and what it copies and runs is there. Exit code 77 is a skip.
# Environment: QRUN_SOURCE, QRUN_PROGRAM, QRUN_LIBRARY, QRUN_SANITIZE.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-dockerfile.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
file=$QRUN_SOURCE/Dockerfile
fail() {
    echo "FAILED: $*"
    exit 1
}

# What a stage runs of the tree is there; what is copied from it is not ignored.
for script in $(grep -oE '(scripts/|\./)[a-z-]+\.sh' "$file"); do
    test -x "$QRUN_SOURCE/$script" || fail "$script is no program of the tree"
done
while read -r pattern; do
    for path in CMakeLists.txt install.sh scripts examples include; do
        [ "$pattern" != "/$path" ] && [ "$pattern" != "$path" ] || fail ".dockerignore leaves out $path"
    done
done <"$QRUN_SOURCE/.dockerignore"
grep -qx '/build\*' "$QRUN_SOURCE/.dockerignore" || fail ".dockerignore has to leave out build folders: CMake refuses moved ones"
prefix=$(sed -n 's/.*install\.sh --prefix \([^ ]*\).*/\1/p' "$file")
grep -q "^COPY --from=build $prefix /usr/local\$" "$file" || fail "the second stage does not copy what the first installs"

[ -z "$QRUN_SANITIZE" ] || { echo "skipped: with a sanitizer, programs ask for other libraries"; exit 77; }
command -v dpkg-query >/dev/null && command -v ldd >/dev/null || { echo "skipped: no Debian"; exit 77; }
sed -n '/apt-get install/,/&&/p' "$file" | grep -oE '\blib[a-z0-9.+-]+|\bzlib1g\b' | sort -u >"$work/listed"

# The direct libraries, as files, as packages.
for binary in "$QRUN_PROGRAM" "$QRUN_LIBRARY"; do
    readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/names"
    ldd "$binary" | awk 'NR == FNR { wanted[$1]; next } $1 in wanted && $3 ~ /^\// { print $3 }' "$work/names" - |
        grep -v -e "^$(dirname "$QRUN_LIBRARY")/" -e '/lib\(asan\|ubsan\|tsan\)\.' || true
done | sort -u | while read -r library; do
    dpkg-query -S "$library" "$(readlink -f "$library")" 2>/dev/null | head -n 1 | cut -d: -f1
done | sort -u | grep -vx -e libc6 -e libgcc-s1 -e libstdc++6 >"$work/needed"
[ "$(wc -l <"$work/needed")" -ge 5 ] || fail "the libraries were not recognised"
diff "$work/listed" "$work/needed" || fail "the Dockerfile installs (<) other packages than are needed (>)"
echo "$(wc -l <"$work/needed") packages, and all are needed"

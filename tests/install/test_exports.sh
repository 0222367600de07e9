# The library exports exactly what its header declares. Arguments: the library, the header.
set -eu
export LC_ALL=C
# What sanitizers add to every library is theirs.
exported=$(nm -D --defined-only "$1" | awk '{ print $3 }' | grep -v -e '^__odr_asan' -e '^_init$' -e '^_fini$' | sort)
declared=$(grep '^QRUN_API' "$2" | sed -E 's/^QRUN_API .*[ *](qrun_[a-z0-9_]+)\(.*/\1/' | sort)
test "$(echo "$declared" | wc -l)" -gt 30 || {
    echo "FAILED: $2: its declarations were not recognised"
    exit 1
}
if [ "$exported" != "$declared" ]; then
    echo "FAILED: exported (<) and declared (>) differ:"
    printf '%s\n' "$exported" >"${TMPDIR:-/tmp}/qrun-exported.$$"
    printf '%s\n' "$declared" | diff "${TMPDIR:-/tmp}/qrun-exported.$$" - || true
    rm -f "${TMPDIR:-/tmp}/qrun-exported.$$"
    exit 1
fi
echo "$declared" | wc -l

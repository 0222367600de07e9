# The program in the head comment of qrun.h, compiled, linked and run as it is written there. Environment: QRUN_SOURCE,
# QRUN_LIBRARY (the shared library's file), QRUN_SANITIZE, CC.
set -eu
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-example.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

fail() {
    echo "FAILED: $*"
    exit 1
}

# Lines that begin with " *     ", or are empty, after "A whole program:" and before the next heading.
sed -n '/^ \* A whole program:/,/^ \* [A-Z][a-z]*$/p' "$QRUN_SOURCE/include/qrun.h" |
    sed -n -e 's/^ \*     //p' -e 's/^ \*$//p' >"$work/example.c"
grep -q 'int main(void)' "$work/example.c" || fail "the example was not found"
"$CC" -std=c11 -Wall -Wextra -Werror ${QRUN_SANITIZE:+-fsanitize=$QRUN_SANITIZE} -I"$QRUN_SOURCE/include" \
    "$work/example.c" "$QRUN_LIBRARY" -Wl,-rpath,"$(dirname "$QRUN_LIBRARY")" -o "$work/example" || fail "it does not compile"

mkdir -p "$work/path/to"
ln -s "$QRUN_SOURCE/examples/model" "$work/path/to/model"
cd "$work"
./example >out 2>err || { cat err; fail "it does not run"; }
test -s out || fail "it printed nothing"
rm path/to/model
if ./example >out 2>err; then fail "without a model it succeeds"; fi
grep -q 'path/to/model' err || fail "without a model it says: $(cat err)"
echo "passed"

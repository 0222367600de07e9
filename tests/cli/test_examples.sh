# The examples of the C interface, from C and from Python: both answer, and answer the same.
. "$QRUN_SOURCE/tests/cli/lib.sh"

last="examples/c/generate"
"$QRUN_EXAMPLE" "$model" "Once upon a time" "The fox" >"$work/out" 2>"$work/err"
code=$?
expect_code 0
expect_silent_err
expect_out "Once upon a time|"
expect_out "The fox|"
expect_out "tokens]"
cp "$work/out" "$work/c"
"$QRUN_EXAMPLE" "$work/nowhere" x >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_err "$work/nowhere"

case ${QRUN_SANITIZE:-} in
    ?*) finish ;; # a Python without the sanitizer's run-time library cannot load the library
esac
command -v python3 >/dev/null || finish
last="examples/python/qrun_generate.py"
export PYTHONPATH="$QRUN_SOURCE/python" PYTHONDONTWRITEBYTECODE=1
python3 "$QRUN_SOURCE/examples/python/qrun_generate.py" "$model" "Once upon a time" "The fox" >"$work/out" 2>"$work/err"
code=$?
expect_code 0
expect_silent_err
grep -v '^\[.* tokens\]$' "$work/c" | sort >"$work/c.sorted"
sort "$work/out" >"$work/python.sorted"
expect_true "C and Python print the same answers" cmp "$work/c.sorted" "$work/python.sorted"
python3 "$QRUN_SOURCE/examples/python/qrun_generate.py" "$work/nowhere" x >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_err "$work/nowhere"
QRUN_LIBRARY=$work/no-library python3 "$QRUN_SOURCE/examples/python/qrun_generate.py" "$model" x >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_err "QRUN_LIBRARY names the library"
expect_true "no traceback" sh -c "! grep -q Traceback '$work/err'"
finish

# Shared by the tests of the program: sourced first, with $QRUN (the program), $QRUN_SOURCE (the repository) and
# $CHECK_JSONL and $JSON_TEXT (check_jsonl.c, json_text.c) in the environment. A test runs the program with `run`, then
# says what must hold with `expect_…`; failures are reported and counted, and `finish` ends the script.

set -u
work=$(mktemp -d "${TMPDIR:-/tmp}/qrun-test.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
export LC_ALL=C.UTF-8
unset NO_COLOR
# A sanitizer's report is not to be taken for an exit code of the program.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}exitcode=99"

model=$QRUN_SOURCE/examples/model
shared=${QRUN_SHARED_DATA:-$QRUN_SOURCE/../shared/data}
n_failures=0
n_checks=0
last=""

# The pages show a machine without AMX, where workspaces are smaller.
as_pages_show() {
    if grep -q amx_bf16 /proc/cpuinfo 2>/dev/null; then export QRUN_FORCE_ISA="${QRUN_FORCE_ISA:-avx512-bf16}"; fi
}

fail() {
    n_failures=$((n_failures + 1))
    echo "FAILED: $*"
    echo "  after: $last"
    sed 's/^/  stdout: /' "$work/out" | head -5
    sed 's/^/  stderr: /' "$work/err" | head -5
}

# Runs the program; its exit code is then in $code, its output in $work/out and $work/err. Stdin is empty unless the
# caller redirects it.
run() {
    last="qrun $*"
    "$QRUN" "$@" >"$work/out" 2>"$work/err"
    code=$?
}

# unless_given "OPTION VALUE…" ARGUMENTS…: prints the options that are not among the arguments: one is given once.
unless_given() {
    defaults=$1 option=""
    shift
    for word in $defaults; do
        if [ -z "$option" ]; then
            option=$word
            continue
        fi
        case " $* " in
        *" $option "*) ;;
        *) printf '%s %s ' "$option" "$word" ;;
        esac
        option=""
    done
}

expect_code() {
    n_checks=$((n_checks + 1))
    [ "$code" -eq "$1" ] || fail "exit code $code, expected $1"
}

expect_out() {
    n_checks=$((n_checks + 1))
    grep -qF -- "$1" "$work/out" || fail "stdout does not have: $1"
}

expect_err() {
    n_checks=$((n_checks + 1))
    grep -qF -- "$1" "$work/err" || fail "stderr does not have: $1"
}

expect_silent_err() {
    n_checks=$((n_checks + 1))
    [ ! -s "$work/err" ] || fail "stderr is not empty"
}

expect_empty_out() {
    n_checks=$((n_checks + 1))
    [ ! -s "$work/out" ] || fail "stdout is not empty"
}

# An error for people: one line that begins with "qrun: ", and a clean stdout.
expect_one_error_line() {
    n_checks=$((n_checks + 1))
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "stderr has not exactly one line"
    grep -q '^qrun: ' "$work/err" || fail "the error does not begin with 'qrun: '"
    expect_empty_out
}

expect_true() {
    n_checks=$((n_checks + 1))
    what=$1
    shift
    "$@" || fail "$what"
}

# Every line of the file is strict JSON, and there are so many lines.
expect_jsonl() {
    n_checks=$((n_checks + 1))
    "$CHECK_JSONL" "$1" || fail "$1 is not JSON, line by line"
    lines=$(wc -l <"$1")
    [ "$lines" -eq "$2" ] || fail "$1 has $lines lines, expected $2"
}

# ends_soon SIGNAL ARGUMENTS…: the command works for long, and the signal ends it within two seconds, wherever it is.
# Stdin is $input; where $ready is set, the signal comes after stdout has that.
ends_soon() {
    signal=$1
    shift
    last="qrun $*, SIG$signal"
    "$QRUN" "$@" <"$input" >"$work/out" 2>"$work/err" &
    process=$!
    sleep 1
    tries=0
    while [ -n "$ready" ] && ! grep -q "$ready" "$work/out" && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    expect_true "it still works" kill -0 $process
    begin=$(date +%s%N)
    kill -s "$signal" $process 2>/dev/null
    wait $process
    code=$?
    milliseconds=$((($(date +%s%N) - begin) / 1000000))
    expect_code 130
    expect_true "it ends within two seconds, and one for a busy machine: $milliseconds ms" test $milliseconds -lt 3000
    expect_true "and says so" grep -q '^qrun: ' "$work/err"
}

skip() {
    echo "skipped: $*"
    exit 77
}

finish() {
    if [ "$n_failures" -gt 0 ]; then
        echo "$n_failures of $n_checks checks failed"
        exit 1
    fi
    echo "$n_checks checks passed"
    exit 0
}

# tests/gpu.sh from end to end on a build folder whose programs are stand-ins: parts that fail, hang and are killed. What
# its benchmarks write is what the program writes over the CUDA backend that the CPU executes.
. "$QRUN_SOURCE/tests/cli/lib.sh"

build=$work/build
mkdir -p "$build/cli" "$build/tests/kernels" "$build/tests/runtime" "$build/tests/train" "$build/lib"
cp "$QRUN_CUDA_LIBRARY_SIMT" "$build/lib/libqrun_cuda.so" || exit 1
export QRUN QRUN_GPU_PART_SECONDS=2
export BENCHED="$work/benched.json"

# stand_in NAME: the program of this name is the script on stdin.
stand_in() {
    { echo '#!/bin/sh' && cat; } >"$build/$1"
    chmod +x "$build/$1"
}

# gpu MODE: as `run` runs the program.
gpu() {
    last="tests/gpu.sh $*"
    "$QRUN_SOURCE/tests/gpu.sh" "$@" "$build" --out "$work/results" >"$work/out" 2>"$work/err"
    code=$?
}

# The JSON is whole, and the part of this name and status is in it.
expect_part() {
    n_checks=$((n_checks + 1))
    grep -qF "\"name\":\"$2\",\"status\":\"$3" "$work/results/$1.json" || fail "no part $2 that is $3 in $1.json"
}
expect_json() {
    tr -d '\n' <"$work/results/$1.json" >"$work/one-line"
    echo >>"$work/one-line"
    expect_jsonl "$work/one-line" 1
}

last="qrun bench over the kernels on the CPU"
QRUN_CUDA_LIBRARY=$build/lib/libqrun_cuda.so "$QRUN" bench --device cuda --shape "$model/config.json" \
    --prompt-tokens 4 --decode-tokens 3 --batch 1 --repeat 1 --json "$BENCHED" >"$work/out" 2>"$work/err"
code=$?
expect_code 0
expect_out "graphs on; early launch on; steps ahead on; wgmma"
expect_true "it says what was in effect" grep -q '"features":"graphs on; early launch on; steps ahead on; wgmma on; cuBLASLt /simt' "$BENCHED"
expect_true "steps were replayed" grep -q '"replayed_steps":[1-9]' "$BENCHED"

# ---- Nothing to run on ----
echo 'echo "cuda: the driver knows of no GPU"; exit 77' | stand_in tests/kernels/test_ops_cuda
gpu quick
expect_code 77
expect_out "cuda: the driver knows of no GPU"

# ---- Benchmarks: training fails, and a step that is launched in order hangs ----
echo 'exit 0' | stand_in tests/kernels/test_ops_cuda
stand_in cli/qrun <<'END'
case "$*" in *--train*) echo "qrun: out of memory" >&2 && exit 4 ;; esac
[ "${QRUN_CUDA_EARLY_LAUNCH:-1}" = 1 ] || exec sleep 60
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || cp "$BENCHED" "$2"
    shift
done
END
gpu quick
expect_code 1
expect_json quick
expect_part quick "bench: generate" ok
expect_part quick "bench: train" "FAILED with exit code 4"
expect_part quick "bench: decode" ok
expect_out "bench: decode (QRUN_CUDA_EARLY_LAUNCH=0)"
expect_out "bench: decode (QRUN_CUDA_RUN_AHEAD=0)"
expect_out "HUNG: stopped after 2 s"
expect_out "qrun: out of memory"
expect_out "Measured: reads"
expect_out "decode, batch 1 "
expect_true "each part has its log" sh -c "tar -tf '$work/results/quick.tar' | grep -c log | grep -qx 11"
expect_true "the numbers are in the JSON" grep -q '"name":"bench: contexts".*"read_bytes_per_second":' \
    "$work/results/quick.json"

# ---- A device that opens without Hopper's products alone ----
echo '[ "${QRUN_CUDA_WGMMA:-1}" = 0 ] || exec sleep 60' | stand_in tests/kernels/test_ops_cuda
echo 'exit 0' | stand_in cli/qrun
gpu quick
expect_out "opens and checks itself (QRUN_CUDA_WGMMA=0)"
expect_true "all that follows is without them" sh -c "! grep '\"name\":\"bench' '$work/results/quick.json' | grep -v WGMMA=0"

# ---- Tests: the ops fail, so each is run; goldens hang; a program is not there ----
stand_in tests/kernels/test_ops_cuda <<'END'
case "${1:-}" in
test_memory*) exit 0 ;;
'' | test_op_rope) echo "wrong numbers" && exit 1 ;;
esac
END
echo 'exec sleep 60' | stand_in tests/runtime/test_goldens
for program in runtime/test_decode runtime/test_session_bits train/test_trainer runtime/test_device_loading; do
    echo 'exit 0' | stand_in "tests/$program"
done
gpu tests
expect_code 1
expect_json tests
expect_part tests "ops against the reference" "FAILED with exit code 1"
expect_part tests "op rope" "FAILED with exit code 1"
expect_part tests "op linear" ok
expect_part tests "op cross_entropy" ok
expect_part tests "goldens of generation" HUNG
expect_part tests "goldens of fine-tuning" "FAILED with exit code 127"
expect_part tests "resumed fine-tuning has the same bits" ok

# ---- Killed in the middle: what was known is there ----
echo 'exit 0' | stand_in tests/kernels/test_ops_cuda
unset QRUN_GPU_PART_SECONDS
last="tests/gpu.sh tests, killed"
"$QRUN_SOURCE/tests/gpu.sh" tests "$build" --out "$work/results" >"$work/out" 2>&1 &
script=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q '"running":"goldens of generation"' "$work/results/tests.json" 2>/dev/null && break
    sleep 0.5
done
child=$(ps -o pid= --ppid "$script" | tr -d ' ')
kill -KILL "$script"
kill -KILL -- "-$child" # timeout, which leads a group, and what it waits for
expect_json tests
expect_part tests "ops against the reference" ok
expect_true "it says what was running" grep -q '"running":"goldens of generation"' "$work/results/tests.json"

last="tests/gpu.sh"
"$QRUN_SOURCE/tests/gpu.sh" everything --out "$work" >"$work/out" 2>"$work/err"
code=$?
expect_code 2
expect_err "tests/gpu.sh quick"
finish

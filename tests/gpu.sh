#!/bin/sh
# Everything that needs a GPU, in one command: the op tests, the goldens of generation and of fine-tuning, the bits of a
# request alone and among others, compute-sanitizer over the op tests, then the benchmarks with the device's limits.
# Results go to bench/results/GPU-DATE.json. Exit code 77: this machine has no GPU that can be used, and says why.
#   tests/gpu.sh [BUILD]   BUILD: a build folder of the preset "cuda", "release" or "portable", or what the target
#                          portable_run of the last makes for another machine; build/cuda by default
# QRUN_GPU_SANITIZER_SECONDS bounds each run of compute-sanitizer (default 90).
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
case $build in /*) ;; *) build=$PWD/$build ;; esac
tests=$build/tests
qrun=$build/cli/qrun
shape=bench/shapes/llama-3.1-8b.json
sanitizer_seconds=${QRUN_GPU_SANITIZER_SECONDS:-90}
[ -x "$tests/kernels/test_ops_cuda" ] || { echo "$tests/kernels/test_ops_cuda is not there; build it first"; exit 1; }
library=$(find "$build" -maxdepth 3 -name libqrun_cuda.so | head -n 1)
QRUN_CUDA_LIBRARY=${QRUN_CUDA_LIBRARY:-$library}
export QRUN_CUDA_LIBRARY
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n_failed=0

step() {
    name=$1
    shift
    began=$(date +%s)
    code=0
    "$@" >"$work/log" 2>&1 || code=$?
    case $code in
    0) result=ok ;;
    124) result="nothing found before its time ran out" ;;
    *) result="FAILED ($code)" n_failed=$((n_failed + 1)) && tail -20 "$work/log" ;;
    esac
    printf '%-44s %s, %d s\n' "$name" "$result" $(($(date +%s) - began))
}

# Whether there is a GPU at all is the backend's own answer.
code=0
"$tests/kernels/test_ops_cuda" test_memory >"$work/log" 2>&1 || code=$?
if [ "$code" -eq 77 ]; then
    grep cuda "$work/log" || cat "$work/log"
    exit 77
fi
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)
gpu=${gpu:-gpu}
echo "GPU: $gpu"

step "ops against the reference" "$tests/kernels/test_ops_cuda"
step "goldens of generation" "$tests/runtime/test_goldens"
step "goldens of fine-tuning" "$tests/train/test_training"
step "resumed fine-tuning has the same bits" "$tests/train/test_trainer"
step "replayed decode steps have the same bits" "$tests/runtime/test_decode"
step "a request alone and among others" "$tests/runtime/test_session_bits"
step "quantised on the device, read as planned" "$tests/runtime/test_device_loading"

# Anything that it finds is exit code 99; not ending in its time is 124, and said.
sanitize() {
    timeout "$sanitizer_seconds" compute-sanitizer --tool "$1" --error-exitcode 99 "$tests/kernels/test_ops_cuda"
}
if command -v compute-sanitizer >/dev/null 2>&1; then
    step "compute-sanitizer memcheck" sanitize memcheck
    step "compute-sanitizer racecheck" sanitize racecheck
else
    echo "compute-sanitizer is not here; its checks were left out"
fi

# Its JSON goes to NAME.json; every speed in it is a median with the share of the limit measured in the same run.
bench() {
    name=$1
    shift
    step "bench: $name" timeout 90 "$qrun" bench --device cuda --shape "$shape" --quant nf4-dq --quant-head int8 \
        --repeat 3 --json "$work/$name.json" "$@"
    [ -s "$work/$name.json" ] || rm -f "$work/$name.json"
}
training="--train --rank 16 --seq-len 4096 --batch-size 1 --grad-accum 2"
bench generate --prompt-tokens 512 --decode-tokens 64 --batch 1,8,32
bench prefill --prompt-tokens 4096 --max-step-tokens 4096 --decode-tokens 1 --batch 1
# shellcheck disable=SC2086
bench train $training
# shellcheck disable=SC2086
bench train_offload $training --offload activations

# number FILE KEY N: the N-th value of a key in what qrun bench wrote.
number() { grep -o "\"$2\":[-+.0-9e]*" "$work/$1.json" | sed -n "$3s/.*://p"; }
# row NAME SPEED READ_SHARE MATRIX_SHARE GOAL; shares as fractions or empty
row() {
    awk -v name="$1" -v speed="$2" -v reading="$3" -v matrix="$4" -v goal="$5" 'BEGIN {
        printf "%-32s %12.1f %11s %11s   %s\n", name, speed, reading == "" ? "" : sprintf("%.1f%%", 100 * reading),
               matrix == "" ? "" : sprintf("%.1f%%", 100 * matrix), goal }'
}
train_rows() {
    [ -e "$work/$1.json" ] || return 0
    row "training, 2 x 4096 tokens$2" "$(number "$1" tokens_per_second 1)" "" \
        "$(number "$1" matrix_share_computed 1)" ">= 9000"
    awk -v name="  its memory$2" -v bytes="$(number "$1" peak_bytes 1)" \
        'BEGIN { printf "%-32s %9.2f GB %23s   <= 9 GB\n", name, bytes / 1e9, "" }'
}
table() {
    any=generate
    [ -e "$work/$any.json" ] || any=train
    [ -e "$work/$any.json" ] || return 0
    awk -v reads="$(number $any read_bytes_per_second 1)" -v flops="$(number $any bf16_flops 1)" -v gpu="$gpu" \
        'BEGIN { printf "\n%s, measured: reads %.0f GB/s, multiplies %.0f TFLOP/s in BF16\n", gpu, reads / 1e9, flops / 1e12 }'
    printf '%-32s %12s %11s %11s   %s\n' "$(basename "$shape" .json), NF4 + INT8 head" tokens/s "of reading" \
        "of matrix" "goal (H100)"
    if [ -e "$work/generate.json" ]; then
        row "prefill, 512 tokens" "$(number generate tokens_per_second 1)" "" "$(number generate matrix_share 1)" ""
    fi
    if [ -e "$work/prefill.json" ]; then
        row "prefill, 4096 tokens" "$(number prefill tokens_per_second 1)" "" "$(number prefill matrix_share 1)" \
            ">= 55% of matrix"
    fi
    if [ -e "$work/generate.json" ]; then
        i=1
        for decode in "batch 1:>= 60% of reading" "batch 8:" "batch 32:>= 8000"; do
            i=$((i + 1))
            row "decode, ${decode%%:*}" "$(number generate tokens_per_second $i)" \
                "$(number generate read_share $((i - 1)))" "$(number generate matrix_share $i)" "${decode#*:}"
        done
    fi
    train_rows train ""
    train_rows train_offload ", offload"
}
table

name=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
result=bench/results/$name-$(date +%F).json
{
    printf '{"gpu":"%s","date":"%s","commit":"%s","failed_steps":%d' "$gpu" "$(date -u +%FT%TZ)" \
        "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$n_failed"
    for part in generate prefill train train_offload; do
        [ ! -s "$work/$part.json" ] || printf ',\n"%s":%s' "$part" "$(cat "$work/$part.json")"
    done
    printf '}\n'
} >"$result"
echo "results: $result"
[ "$n_failed" -eq 0 ]

#!/bin/sh
# Everything that needs a GPU, in one command: the op tests, the goldens of generation and of fine-tuning, the bits of a
# request alone and among others, compute-sanitizer over the op tests, then the benchmarks beside the device's limits.
# Numbers go to bench/results/GPU-DATE.json. Exit code 77: this machine has no GPU that can be used, and says why.
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
library=$build/runtime/libqrun_cuda.so
[ -e "$library" ] || library=$build/lib/libqrun_cuda.so
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
step "goldens of fine-tuning" "$tests/runtime/test_training"
step "fine-tuning goes on to the bit" "$tests/runtime/test_trainer"
step "decode steps replayed as they are issued" "$tests/runtime/test_decode"
step "a request alone and among others" "$tests/runtime/test_session_bits"

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

bench() {
    name=$1
    shift
    step "bench: $name" "$qrun" bench --device cuda --shape "$shape" --json "$work/$name.json" "$@"
    cat "$work/log"
}
bench generate --quant nf4-dq --quant-head int8 --prompt-tokens 512 --decode-tokens 64 --batch 1,8,32
bench train --train --quant nf4-dq --rank 16 --seq-len 4096 --batch-size 1

name=$(echo "$gpu" | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
result=bench/results/$name-$(date +%F).json
{
    printf '{"gpu":"%s","date":"%s","commit":"%s","failed_steps":%d' "$gpu" "$(date -u +%FT%TZ)" \
        "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "$n_failed"
    for part in generate train; do
        [ ! -s "$work/$part.json" ] || printf ',\n"%s":%s' "$part" "$(cat "$work/$part.json")"
    done
    printf '}\n'
} >"$result"
echo "numbers: $result"
[ "$n_failed" -eq 0 ]

#!/bin/sh
# Everything that needs a GPU, in three calls, each within a time of its own:
#   tests/gpu.sh quick [BUILD] --out DIR   3 minutes: the device, then benchmarks, with what can be turned off on and off
#   tests/gpu.sh tests [BUILD] --out DIR   8 minutes: ops against the reference, goldens, bits, training
#   tests/gpu.sh deep  [BUILD] --out DIR   10 minutes: the time of every op, Nsight Compute, compute-sanitizer
# BUILD: a build folder of the preset "cuda", "release" or "portable", or what the target portable_run of the last makes
# for another machine; build/cuda by default.
# A part that fails or hangs is a line, and the next one runs; each has a limit, and what no time is left for is said.
# DIR gets MODE.json, whole after every part, and MODE.tar with the log of each. The log of a part that runs is
# DIR/running.log. So nothing is lost where the call is killed.
# Exit code 77: this machine has no GPU that can be used, and says why. 1: a part failed.
# QRUN_GPU_SHAPE: the config.json of the benchmarks; QRUN_GPU_PART_SECONDS: a bound on every part, for tests of this.
set -eu
cd "$(dirname "$0")/.."

usage() { sed -n '2,5s/^# \{0,1\}//p' tests/gpu.sh >&2 && exit 2; }
mode=${1:-}
case $mode in
quick) seconds_in_all=180 ;;
tests) seconds_in_all=480 ;;
deep) seconds_in_all=600 ;;
*) usage ;;
esac
shift
build=build/cuda
out=
while [ $# -gt 0 ]; do
    case $1 in
    --out) [ $# -ge 2 ] || usage && out=$2 && shift ;;
    -*) usage ;;
    *) build=$1 ;;
    esac
    shift
done
[ -n "$out" ] || usage
case $build in /*) ;; *) build=$PWD/$build ;; esac
tests=$build/tests
qrun=$build/cli/qrun
shape=${QRUN_GPU_SHAPE:-bench/shapes/llama-3.1-8b.json}
[ -x "$tests/kernels/test_ops_cuda" ] || { echo "$tests/kernels/test_ops_cuda is not there; build it first"; exit 1; }
library=$(find "$build" -maxdepth 3 -name libqrun_cuda.so | head -n 1)
QRUN_CUDA_LIBRARY=${QRUN_CUDA_LIBRARY:-$library}
export QRUN_CUDA_LIBRARY
mkdir -p "$out"
rm -f "$out/$mode.json" "$out/$mode.tar" "$out/running.log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
: >"$work/parts"
began_all=$(date +%s)
n_failed=0
n_parts=0
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1 || true)
gpu=${gpu:-not known to nvidia-smi}

# ---- Parts ----

# The results so far, and what runs: written beside the file and moved over it.
write_json() {
    {
        printf '{"mode":"%s","gpu":"%s","date":"%s","commit":"%s","shape":"%s","failed_parts":%d,"running":"%s",\n' \
            "$mode" "$gpu" "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
            "$(basename "$shape" .json)" "$n_failed" "$1"
        printf '"parts":[\n'
        cat "$work/parts"
        printf ']}\n'
    } >"$out/$mode.json.new"
    mv "$out/$mode.json.new" "$out/$mode.json"
}

# finished NAME STATUS SECONDS: a line, a row of the JSON with what the part wrote to $work/result.json, and its log.
finished() {
    [ "$n_parts" -eq 1 ] || printf ',' >>"$work/parts"
    printf '{"name":"%s","status":"%s","seconds":%d,"settings":"%s"' "$1" "$2" "$3" "$settings" >>"$work/parts"
    [ ! -s "$work/result.json" ] || { printf ',"result":' && tr -d '\n' <"$work/result.json"; } >>"$work/parts"
    printf '}\n' >>"$work/parts"
    printf '%-52s %s, %d s\n' "$1${settings:+ ($settings)}" "$2" "$3"
    if [ -e "$out/running.log" ]; then
        log=$(printf '%02d-%s.log' "$n_parts" "$(echo "$1" | tr -c 'a-zA-Z0-9\n' '-')")
        mv "$out/running.log" "$work/$log"
        tar -rf "$out/$mode.tar" -C "$work" "$log" # after what is there: what is there stays whole
    fi
    write_json ""
}

# part NAME SECONDS COMMAND...: runs it under its limit, and within the time of all. $settings (VARIABLE=VALUE...) are
# its environment. Its exit code is then in $code.
settings=
part() {
    name=$1
    limit=$2
    shift 2
    n_parts=$((n_parts + 1))
    began=$(date +%s)
    left=$((seconds_in_all - began + began_all - 5))
    [ "$limit" -le "$left" ] || limit=$left
    [ "$limit" -le "${QRUN_GPU_PART_SECONDS:-$limit}" ] || limit=$QRUN_GPU_PART_SECONDS
    rm -f "$work/result.json"
    code=125
    if [ "$limit" -lt 2 ]; then
        finished "$name" "not run: no time left" 0
        return
    fi
    write_json "$name"
    code=0
    # shellcheck disable=SC2086
    env $settings timeout -k 3 "$limit" "$@" >"$out/running.log" 2>&1 || code=$?
    case $code in
    0) result=ok ;;
    77) result="skipped" ;;
    124 | 137) result="HUNG: stopped after $limit s" n_failed=$((n_failed + 1)) ;;
    *) result="FAILED with exit code $code" n_failed=$((n_failed + 1)) ;;
    esac
    [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || tail -n 5 "$out/running.log" | sed 's/^/    /'
    finished "$name" "$result" $(($(date +%s) - began))
}

# The same with settings of its own, besides those of all.
part_with() {
    all=$settings
    settings="$all${all:+ }$1"
    shift
    part "$@"
    settings=$all
}

# What the command of a benchmark begins with. Its speeds are medians, with the share of a limit measured in the same run.
bench_command() {
    echo "$qrun bench --device cuda --shape $shape --quant nf4-dq --quant-head int8 --json $work/result.json"
}

# ---- The device: it opens and computes, if need be without Hopper's own products ----

open_device() { part "$1" 20 "$tests/kernels/test_ops_cuda" test_memory_is_counted_and_zeroed; }
echo "GPU: $gpu"
open_device "opens and checks itself"
if [ "$code" -eq 77 ]; then
    tar -xOf "$out/$mode.tar" | grep cuda || true
    exit 77
fi
if [ "$code" -ne 0 ]; then
    settings="QRUN_CUDA_WGMMA=0"
    open_device "opens and checks itself"
    [ "$code" -eq 0 ] || { echo "The device cannot be opened; nothing else was run. Results: $out" && exit 1; }
fi

# ---- Quick ----

training="--train --rank 16 --seq-len 4096 --batch-size 1 --grad-accum 2"
decoding="--prompt-tokens 16 --decode-tokens 32 --repeat 1 --batch 1"

quick() {
    # shellcheck disable=SC2046,SC2086
    {
        part "bench: generate" 60 $(bench_command) --prompt-tokens 4096 --max-step-tokens 4096 --decode-context 64 \
            --decode-tokens 64 --batch 1,8,32 --repeat 3
        part "bench: train" 60 $(bench_command) $training --repeat 3
        part "bench: contexts" 50 $(bench_command) --prompt-tokens 16 --decode-tokens 32 --batch 1 --repeat 1 \
            --decode-context 64,4096,32768
        part_with QRUN_CUDA_GRAPHS=0 "bench: decode" 25 $(bench_command) $decoding
        part_with QRUN_CUDA_EARLY_LAUNCH=0 "bench: decode" 25 $(bench_command) $decoding
        part_with QRUN_CUDA_RUN_AHEAD=0 "bench: decode" 25 $(bench_command) $decoding
        part_with "QRUN_CUDA_GRAPHS=0 QRUN_CUDA_EARLY_LAUNCH=0" "bench: decode" 25 $(bench_command) $decoding
        part_with QRUN_CUDA_CUBLASLT=0 "bench: train" 40 $(bench_command) $training --repeat 1
        part_with QRUN_CUDA_WGMMA=0 "bench: prefill" 25 $(bench_command) --prompt-tokens 4096 --max-step-tokens 4096 \
            --decode-tokens 1 --batch 1 --repeat 1
        part "bench: train, offload" 40 $(bench_command) $training --offload activations --repeat 1
    }
    table
}

# result_of PART KEY N: the N-th value of a key in what a part wrote, and nothing where it wrote none.
result_of() { grep -F "\"name\":\"$1\",\"status\":\"ok\"" "$work/parts" | head -1 | grep -o "\"$2\":[-+.0-9e]*" | sed -n "$3s/.*://p"; }

# row NAME SPEED READ_SHARE MATRIX_SHARE GOAL; shares as fractions or empty
row() {
    [ -n "$2" ] || return 0
    awk -v name="$1" -v speed="$2" -v reading="$3" -v matrix="$4" -v goal="$5" 'BEGIN {
        printf "%-32s %12.1f %11s %11s   %s\n", name, speed, reading == "" ? "" : sprintf("%.1f%%", 100 * reading),
               matrix == "" ? "" : sprintf("%.1f%%", 100 * matrix), goal }'
}

# The JSON has tokens_per_second first of the prefill, then of each decode.
table() {
    reads=$(result_of "bench: generate" read_bytes_per_second 1)
    [ -n "$reads" ] || return 0
    awk -v reads="$reads" -v flops="$(result_of "bench: generate" bf16_flops 1)" \
        'BEGIN { printf "\nMeasured: reads %.0f GB/s, multiplies %.0f TFLOP/s in BF16\n", reads / 1e9, flops / 1e12 }'
    printf '%-32s %12s %11s %11s   %s\n' "$(basename "$shape" .json), NF4 + INT8 head" tokens/s "of reading" \
        "of matrix" goal
    row "prefill, 4096 tokens" "$(result_of "bench: generate" tokens_per_second 1)" "" \
        "$(result_of "bench: generate" matrix_share 1)" ">= 55% of matrix"
    i=1
    for decode in "batch 1:>= 80% of reading" "batch 8:" "batch 32:>= 10000"; do
        i=$((i + 1))
        row "decode, ${decode%%:*}" "$(result_of "bench: generate" tokens_per_second $i)" \
            "$(result_of "bench: generate" read_share $((i - 1)))" \
            "$(result_of "bench: generate" matrix_share $i)" "${decode#*:}"
    done
    i=1
    for context in 64 4096 32768; do
        i=$((i + 1))
        row "decode, batch 1 at $context" "$(result_of "bench: contexts" tokens_per_second $i)" \
            "$(result_of "bench: contexts" read_share $((i - 1)))" "" ""
    done
    row "training, 2 x 4096 tokens" "$(result_of "bench: train" tokens_per_second 1)" "" \
        "$(result_of "bench: train" matrix_share_computed 1)" ">= 11000"
}

# ---- Tests ----

# The names of all ops, as the sources list them.
ops() { sed -n 's/^ *X(\([a-z0-9_]*\)).*/\1/p' kernels/ops.h kernels/ops_experts.h; }

tests() {
    part "ops against the reference" 220 "$tests/kernels/test_ops_cuda"
    if [ "$code" -ne 0 ]; then # which of them
        for op in $(ops); do part "op $op" 15 "$tests/kernels/test_ops_cuda" "test_op_$op"; done
    fi
    part "goldens of generation" 60 "$tests/runtime/test_goldens"
    part "replayed decode steps have the same bits" 30 "$tests/runtime/test_decode"
    part "a request alone and among others" 120 "$tests/runtime/test_session_bits"
    part "goldens of fine-tuning" 120 "$tests/train/test_training"
    part "resumed fine-tuning has the same bits" 45 "$tests/train/test_trainer"
    part "NCCL: one rank sends to itself" 30 "$tests/kernels/test_device_links"
    part "quantised on the device, read as planned" 30 "$tests/runtime/test_device_loading"
}

# ---- Deep ----

# What it finds is exit code 99.
sanitize() {
    part "compute-sanitizer $1" 120 compute-sanitizer --tool "$1" --error-exitcode 99 "$tests/kernels/test_ops_cuda"
}

deep() {
    # shellcheck disable=SC2046,SC2086
    {
        part "kernels: generate" 60 $(bench_command) --kernels --prompt-tokens 4096 --max-step-tokens 4096 --batch 1
        part "kernels: generate, 32 sequences" 60 $(bench_command) --kernels --prompt-tokens 512 --batch 32
        part "kernels: train" 60 $(bench_command) --kernels $training
        if command -v ncu >/dev/null 2>&1; then
            part_with QRUN_CUDA_GRAPHS=0 "Nsight Compute: a decode step" 120 ncu --clock-control none \
                --kernel-name "regex:linear_mma|attention|heads|norm|rope|gate|kv_write|sample" --launch-skip 30 \
                --launch-count 30 $(bench_command) $decoding
        else
            echo "ncu is not here; Nsight Compute was left out"
        fi
    }
    if command -v compute-sanitizer >/dev/null 2>&1; then
        sanitize memcheck
        sanitize racecheck
    else
        echo "compute-sanitizer is not here; its checks were left out"
    fi
}

"$mode"
write_json ""
echo "$n_parts parts, $n_failed failed; results: $out/$mode.json, logs: $out/$mode.tar"
[ "$n_failed" -eq 0 ]

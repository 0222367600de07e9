# Where to run: what cannot be used is named in one line, and `auto` goes on with the processor.
. "$QRUN_SOURCE/tests/cli/lib.sh"

bench="bench --model $model --prompt-tokens 16 --decode-tokens 2 --batch 1 --repeat 1"

QRUN_CUDA_LIBRARY=$work/nowhere.so
export QRUN_CUDA_LIBRARY
run $bench --device cuda
expect_code 3
expect_err "cannot open $work/nowhere.so"
expect_one_error_line

run $bench --device auto
expect_code 0
expect_out "machine    cpu"
expect_out "no GPU     cuda: cannot open"

run $bench --device cpu
expect_code 0
expect_silent_err
expect_true "the processor was asked for" sh -c "! grep -q 'no GPU' '$work/out'"

# Experts in host memory are for GPUs: a processor has no other memory. auto does nothing there.
moe=$QRUN_SOURCE/tests/fixtures/models/qwen3-moe
run plan --model "$moe" --device cpu --experts host
expect_code 2
expect_err "--experts host is for a GPU"
expect_one_error_line
run plan --model "$model" --device cpu --experts host
expect_code 2
expect_err "--experts host is for mixtures of experts"
run plan --model "$moe" --device cpu --context 64 --experts auto
expect_code 0
run plan --model "$moe" --device cpu --context 64 --expert-compute host
expect_code 2
expect_err "--expert-compute host is for experts in host memory; give --experts host too"
run plan --shape "$QRUN_SOURCE/bench/shapes/qwen3.6-35b-a3b.json" --device-memory rtx-3060 --context 4096 --max-sequences 1
expect_code 6
expect_out "hold experts in host memory (--experts host)"
run plan --shape "$QRUN_SOURCE/bench/shapes/qwen3.6-35b-a3b.json" --device-memory rtx-3060 --context 4096 \
    --max-sequences 1 --experts auto --expert-compute auto
expect_code 0
expect_out "experts fetched: which way is faster is measured on the device itself"
run plan --shape "$QRUN_SOURCE/bench/shapes/qwen3.6-35b-a3b.json" --device-memory rtx-3060 --context 4096 \
    --max-sequences 1 --experts auto --expert-compute host
expect_code 0
expect_out "experts on the processor: as --expert-compute says"
run plan --shape "$QRUN_SOURCE/bench/shapes/qwen3.6-35b-a3b.json" --device-memory rtx-3060 --seq-len 128 --ranks 1 \
    --batch-size 1 --experts host --expert-compute host
expect_code 2
expect_err "open the model with --expert-compute device"

# Nor may host memory be asked for more than it has: here 2 TB, before anything is made.
if [ -n "${QRUN_CUDA_LIBRARY_SIMT:-}" ]; then
    sed 's/"moe_intermediate_size": *[0-9]*/"moe_intermediate_size": 65536/' \
        "$QRUN_SOURCE/bench/shapes/qwen3.6-35b-a3b.json" >"$work/large.json"
    export QRUN_CUDA_LIBRARY="$QRUN_CUDA_LIBRARY_SIMT"
    export QRUN_SIMT_MEMORY=100000000000
    run bench --device cuda --shape "$work/large.json" --quant nf4-dq --experts host
    expect_code 4
    expect_err "of the machine's memory, and this machine has free"
    expect_one_error_line
    unset QRUN_SIMT_MEMORY
    # Which way experts in host memory are computed is said where a rule chooses it.
    echo '{"token_ids":[5,6,7]}' >"$work/requests.jsonl"
    run generate --device cuda --model "$moe" --experts host --expert-compute auto --prompts "$work/requests.jsonl" --max-tokens 2
    expect_code 0
    expect_err "note: experts in host memory: "
fi

# A library of somebody else.
QRUN_CUDA_LIBRARY=libm.so.6
run $bench --device cuda
expect_code 3
expect_err "is not qrun's"

# Whatever this machine has: it works, or one line says why not.
unset QRUN_CUDA_LIBRARY
run $bench --device cuda
if [ "$code" -ne 0 ]; then
    expect_err "cuda: "
    expect_one_error_line
fi

finish

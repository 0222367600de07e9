# Ranks on GPUs: the CUDA backend over tests/simt, and between the ranks a stand-in for NCCL, by which every call that
# NCCL gets is executed. The same bits as on one rank.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

export QRUN_CUDA_LIBRARY="$QRUN_CUDA_LIBRARY_SIMT" QRUN_CUDA_NCCL="$NCCL_STAND_IN" NCCL_DEBUG=WARN
head -20 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
common="--model $model --device cuda --data $work/train.jsonl --seq-len 32 --grad-accum 4 --schedule constant"
lora="$common --rank 4 --max-steps 1"

# ---- The same bits ----

# shellcheck disable=SC2086 # words of options
{
    run finetune --threads 1 $lora --quiet --out "$work/lora-1"
    expect_code 0
    for zero in 0 1 2 3; do
        run_ranks 2 $lora --zero $zero --out "$work/lora-2-$zero"
        expect_same "$work/lora-1" "$work/lora-2-$zero"
        expect_out "; ranks by NCCL 2.21.5, $NCCL_STAND_IN, NCCL_DEBUG=WARN"
        run_ranks 4 $lora --zero $zero --quiet --out "$work/lora-4-$zero"
        expect_same "$work/lora-1" "$work/lora-4-$zero"
    done
    run finetune --threads 1 $lora --grad-sums 4 --quiet --out "$work/sums-1"
    expect_code 0
    for n in 2 4; do
        for zero in 1 3; do
            run_ranks $n $lora --grad-sums 4 --zero $zero --quiet --out "$work/sums-$n-$zero"
            expect_same "$work/sums-1" "$work/sums-$n-$zero"
        done
    done
    full="$common --full --dtype f32 --max-steps 1"
    run finetune --threads 1 $full --quiet --out "$work/full-1"
    expect_code 0
    run_ranks 2 $full --zero 3 --quiet --out "$work/full-2"
    expect_same "$work/full-1" "$work/full-2"
}

# ---- Which GPU, and whether they can be linked ----

# notes WANTED: the line of two ranks that are not linked; they train by host memory, to the same bits.
notes() {
    rm -rf "$work/noted"
    # shellcheck disable=SC2086
    run_ranks 2 $lora --zero 3 --out "$work/noted"
    expect_out "; ranks by host memory: $1"
    expect_same "$work/lora-1" "$work/noted"
}
QRUN_SIMT_GPUS=1 notes "ranks 0 and 1 have one GPU"
QRUN_CUDA_NCCL=0 notes "NCCL is off: QRUN_CUDA_NCCL"
QRUN_CUDA_NCCL=$work/none.so notes "QRUN_CUDA_NCCL names no library that can be opened"
QRUN_NCCL_VERSION=21300 notes "libnccl.so.2 is of version 21300: 2.14 (21400) or newer is needed"
# The second rank of a machine takes its second GPU.
# shellcheck disable=SC2086
QRUN_SIMT_GPUS=2 run_ranks 2 $lora --out "$work/two-gpus"
expect_out "; ranks by NCCL"

finish

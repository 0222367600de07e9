# qrun finetune --grad-sums: the gradients of a step in sums of neighbouring batches, and these in a tree. The same bits on
# any number of ranks, and one sum of each in a step where their number divides that of the sums.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

head -40 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# ---- The same bits ----

# Packed rows, dropout and clipping, in BF16. Steps of eight batches, and of five at the end of an epoch.
lora="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 --grad-accum 8 --max-steps 4
    --eval-split 0.2 --eval-every 2 --lora-dropout 0.1"
# shellcheck disable=SC2086 # words of options
{
    for sums in 2 4 8; do
        run finetune $lora --grad-sums $sums --out "$work/lora-$sums-1"
        expect_code 0
        for n in 2 3 4 8; do
            for zero in 0 2 3; do
                run_ranks $n $lora --grad-sums $sums --zero $zero --quiet --out "$work/lora-$sums-$n-$zero"
                expect_empty_out
                expect_silent_err
                expect_same "$work/lora-$sums-1" "$work/lora-$sums-$n-$zero"
            done
        done
    done
    # Nor does what is offloaded make a difference.
    for zero in 1 2 3; do
        run_ranks 2 $lora --grad-sums 4 --zero $zero --quiet --offload optimizer,activations --checkpointing full \
            --out "$work/lora-zero-$zero"
        expect_same "$work/lora-4-1" "$work/lora-zero-$zero"
    done
    # One sum is the plain order, and others are orders of their own. Of 8 batches, 4 sums and 8 are one order.
    run finetune $lora --out "$work/lora-plain"
    expect_code 0
    run finetune $lora --grad-sums 1 --quiet --out "$work/lora-1-1"
    expect_same "$work/lora-plain" "$work/lora-1-1"
    for pair in "1 2" "2 4"; do
        expect_true "other sums are another order: $pair" sh -c \
            "! cmp -s $work/lora-${pair% *}-1/adapter_model.safetensors $work/lora-${pair#* }-1/adapter_model.safetensors"
    done
    # The file of options that a run writes has it.
    expect_true "run.yaml has the sums" grep -qx 'grad-sums: 4' "$work/lora-4-1/run.yaml"
    run finetune --config "$work/lora-4-1/run.yaml" --quiet --out "$work/again"
    expect_same "$work/lora-4-1" "$work/again"
}

# Every weight, in F32, in batches by length. A checkpoint of two ranks is continued by four, and by one.
plain="--model $model --full --dtype f32 --data $work/train.jsonl --seq-len 64 --batching group --batch-tokens 128 --grad-accum 7
    --learning-rate 1e-3 --schedule constant"
full="$plain --grad-sums 4"
# shellcheck disable=SC2086
{
    run finetune $full --max-steps 5 --out "$work/full-1"
    expect_code 0
    run finetune $full --max-steps 5 --offload gradients --checkpointing full --quiet --out "$work/full-offloaded"
    expect_same "$work/full-1" "$work/full-offloaded"
    for n in 2 3 4; do
        run_ranks $n $full --max-steps 5 --zero 3 --quiet --out "$work/full-$n"
        expect_same "$work/full-1" "$work/full-$n"
    done
    run_ranks 2 $full --max-steps 2 --quiet --out "$work/full-parts"
    expect_code 0
    run_ranks 4 $full --max-steps 4 --zero 2 --quiet --out "$work/full-parts"
    expect_code 0
    cp -r "$work/full-parts" "$work/full-other"
    run finetune $full --max-steps 5 --quiet --out "$work/full-parts"
    expect_same "$work/full-1" "$work/full-parts"
}

# In F16 a step whose gradients overflow is skipped by all ranks: here the loss scale is far too large.
half="--model $model --full --dtype f16 --data $work/train.jsonl --seq-len 64 --grad-accum 5 --grad-sums 2 --optimizer sgd"
# shellcheck disable=SC2086
for n in 1 2; do
    run_ranks $n $half --max-steps 2 --quiet --out "$work/half-$n"
    expect_code 0
    sed -i 's/"loss_scale":65536/"loss_scale":1180591620717411303424/' "$work/half-$n/checkpoint-2/state.json"
    run_ranks $n $half --max-steps 3 --zero 1 --quiet --out "$work/half-$n"
    expect_code 0
done
expect_same "$work/half-1" "$work/half-2"
expect_true "a step was skipped" grep -q '"skipped":true' "$work/half-2/metrics.jsonl"

# ---- What is planned ----

# bytes_of NAME: of rank 0 in the plan.
bytes_of() {
    sed -nE "s/.*\\{\"rank\":0,[^{]*\"$1\":([0-9]+).*/\\1/p" "$work/out"
}
for zero in 0 1 2 3; do
    run plan --model "$model" --ranks 2 --zero $zero --grad-accum 8 --grad-sums 2 --json
    expect_code 0
    expect_true "--zero $zero: a rank sends what a ring does: $(bytes_of sent_bytes) of $(bytes_of ring_bytes)" \
        test "$(bytes_of sent_bytes)" -le $(($(bytes_of ring_bytes) / 100 * 101))
done
run plan --model "$model" --ranks 3 --grad-accum 8 --grad-sums 2 --json
expect_true "three ranks send every gradient: $(bytes_of sent_bytes) of $(bytes_of ring_bytes)" \
    test "$(bytes_of sent_bytes)" -gt $(($(bytes_of ring_bytes) / 10 * 14))

# Where sums would save something, the plan says so: for as many ranks as a tree has branches, and more batches than ranks.
advice="With --grad-sums 4 a rank would send"
run plan --model "$model" --ranks 4 --grad-accum 8
expect_out "$advice"
run plan --model "$model" --ranks 4 --grad-accum 8 --json
would=$(sed -nE 's/.*"with_grad_sums": \{"grad_sums": 4, "sent_bytes": ([0-9]+).*/\1/p' "$work/out")
run plan --model "$model" --ranks 4 --grad-accum 8 --grad-sums 4 --json
expect_true "that much is sent then: $(bytes_of sent_bytes), not $would" test "$would" -eq "$(bytes_of sent_bytes)"
for options in "--ranks 4 --grad-accum 8 --grad-sums 4" "--ranks 4 --grad-accum 4" "--ranks 3 --grad-accum 8"; do
    # shellcheck disable=SC2086
    run plan --model "$model" $options
    expect_code 0
    expect_true "nothing to say of $options" sh -c "! grep -q 'would send' '$work/out'"
done

# ---- What is refused ----

# refuses CODE MESSAGE OPTIONS…
refuses() {
    wanted=$1 message=$2
    shift 2
    run finetune --model "$model" --data "$work/train.jsonl" --out "$work/none" "$@"
    expect_code "$wanted"
    expect_one_error_line
    expect_err "$message"
}
refuses 2 "--grad-sums are added up in pairs, so it should be a power of two" --grad-accum 8 --grad-sums 3
refuses 2 "--grad-sums is at most --grad-accum: each sum is of one batch or more" --grad-accum 4 --grad-sums 8
refuses 2 "--grad-sums is at most --grad-accum" --grad-sums 2
refuses 2 "--grad-sums" --grad-accum 4096 --grad-sums 2048

# A checkpoint knows its order, and a run with another does not continue it.
# shellcheck disable=SC2086
{
    run finetune $plain --grad-sums 2 --max-steps 5 --quiet --out "$work/full-other"
    expect_code 3
    expect_one_error_line
    expect_err "was made by another run: grad sums is 2 here and 4 there"
    run finetune $plain --max-steps 5 --quiet --out "$work/full-other"
    expect_code 3
    expect_err "was made by another run: grad sums is the default here and 4 there"
}

finish

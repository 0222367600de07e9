# The benchmark runs, and its numbers are numbers.
. "$QRUN_SOURCE/tests/cli/lib.sh"

run bench --model "$model" --prompt-tokens 32 --decode-tokens 4 --batch 1,3 --repeat 2 --json "$work/result.json"
expect_code 0
expect_silent_err
expect_out "prefill 32"
expect_out "decode, batch 3"
expect_out "GB/s"
expect_jsonl "$work/result.json" 1
expect_true "speeds are positive" sh -c "! grep -q '\"tokens_per_second\":\(0[,}]\|-\|nan\|inf\)' '$work/result.json'"
run bench --shape "$model/config.json" --prompt-tokens 16 --decode-tokens 2 --batch 2 --repeat 1 --json -
expect_code 0
expect_jsonl "$work/out" 1
expect_out '"context":16,"batch":2'
run bench --shape "$model/config.json" --prompt-tokens 16 --decode-tokens 2 --batch 1,2 --decode-context 8,70 --repeat 1
expect_code 0
expect_out "decode, batch 2 at 8 "
expect_out "decode, batch 1 at 70 "
run bench --model "$model" --train --decode-context 8
expect_code 2
expect_one_error_line
run bench --model "$model" --train --seq-len 48 --batch-size 2 --rank 4 --repeat 2 --json "$work/training.json"
expect_code 0
expect_silent_err
expect_out "96 tokens a step in rows of 48"
expect_out "checkpointing full"
expect_out "of the matrix peak"
expect_jsonl "$work/training.json" 1
expect_true "speeds are positive" sh -c "! grep -q '\"tokens_per_second\":\(0[,}]\|-\|nan\|inf\)' '$work/training.json'"
expect_true "the plan is what was taken" sh -c "sed 's/.*\"planned_bytes\":\([0-9]*\),\"peak_bytes\":\([0-9]*\),.*/test \1 = \2/' '$work/training.json' | sh"
run bench --shape "$model/config.json" --train --seq-len 16 --repeat 1 --checkpointing none --optimizer adamw8bit --json -
expect_code 0
expect_jsonl "$work/out" 1
expect_out '"checkpointing":"none"'
run bench --shape "$model/config.json" --train --seq-len 16 --repeat 1 --offload optimizer,activations --json -
expect_code 0
expect_jsonl "$work/out" 1
run bench --model "$model" --offload optimizer
expect_code 2
expect_one_error_line
run bench --model "$model" --rank 4
expect_code 2
expect_one_error_line
run bench --model "$model" --train --batch 3
expect_code 2
expect_one_error_line
run bench --model "$model" --train --checkpointing most
expect_true "an unknown policy is refused" test "$code" -ne 0
expect_one_error_line
run bench --model "$model" --prompt-tokens 4096
expect_true "a prompt longer than the context is refused" test "$code" -ne 0
expect_err "--prompt-tokens can be at most 511: this model is made for 512 tokens"
run bench --model "$model" --prompt-tokens 16 --decode-tokens 500
expect_code 2
expect_err "--decode-context and --decode-tokens can be at most 511 together"
expect_one_error_line

# F16 is held against the peak of what it is computed in.
run bench --model "$model" --dtype f16 --prompt-tokens 16 --decode-tokens 2 --batch 1 --repeat 1 --device cpu
expect_code 0
expect_out "TFLOP/s in f32, which f16 is computed in here"

# A batch that the session would take in turns is no such batch; what cannot be written is told before measuring.
run bench --model "$model" --batch 1,8 --max-sequences 4
expect_code 2
expect_err "--batch 8 needs --max-sequences of at least that, not 4"
expect_one_error_line
run bench --model "$model" --max-sequences 4 --prompt-tokens 16 --decode-tokens 2 --repeat 1
expect_code 0
expect_true "only batches that fit" sh -c "grep -c 'decode, batch' '$work/out' | grep -qx 1"
run bench --model "$model" --json "$work/none/result.json"
expect_code 3
expect_one_error_line
run bench --model "$model" --json "$work"
expect_code 3
expect_one_error_line

# The memory that the machine was measured with is none of training's.
if [ -w /proc/self/clear_refs ]; then
    expect_true "the peak of the process is that of training" sh -c \
        "sed 's/.*\"peak_rss_bytes\":\([0-9]*\),.*/test \1 -lt 500000000/' '$work/training.json' | sh"
fi
# The time of every op. What is timed has bytes, and the matrix products have operations.
run bench --shape "$model/config.json" --quant nf4-dq --kernels --prompt-tokens 40 --batch 3 --json "$work/kernels.json"
expect_code 0
expect_silent_err
expect_out "a prompt of 40 tokens"
expect_out "a step that writes 3 at 16 tokens"
expect_jsonl "$work/kernels.json" 1
expect_true "a product is told by its sizes" grep -q '"op":"linear","shape":"3 x [0-9]* x [0-9]* nf4-dq"' "$work/kernels.json"
run bench --model "$model" --kernels --train --seq-len 48 --rank 4 --json "$work/kernels-train.json"
expect_code 0
expect_out "a training step"
expect_true "the optimiser is in it" grep -q '"op":"adamw"' "$work/kernels-train.json"
for file in kernels kernels-train; do
    tr '{' '\n' <"$work/$file.json" | grep '"op":' >"$work/ops"
    expect_true "ops took time and moved bytes" sh -c \
        "! grep -e '\"seconds\":0,' -e '\"bytes\":0,' -e '\"calls\":0,' '$work/ops'"
    expect_true "products have operations" sh -c "! grep '\"op\":\"linear' '$work/ops' | grep '\"flops\":0,'"
done
run bench --model "$model" --kernels --speculate ngram
expect_code 2
expect_one_error_line
# Drafts and prefixes that come back. The answers that are measured are known, and must be those.
run bench --model "$model" --prompt-tokens 64 --repeat 3 --speculate ngram --prefix-cache RAM:32MiB \
    --json "$work/reuse.json"
expect_code 0
expect_out "editing a text"
expect_out "A prefix of 64 tokens took"
expect_true "most drafts of an edited text are right" grep -q '"editing":{.*"accepted_draft_tokens":[1-9][0-9]' "$work/reuse.json"
expect_true "the prefix came back" grep -q '"restored_tokens":63' "$work/reuse.json"
expect_jsonl "$work/reuse.json" 1
# A prefix as large as the pool, while that is full of another one.
sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 4096/' "$model/config.json" >"$work/long.json"
run bench --shape "$work/long.json" --prompt-tokens 4096 --repeat 1 --prefix-cache RAM:64MiB
expect_code 0
expect_out "when 4095 of them came back"
expect_true "nothing else is measured" sh -c "! grep -q -e prefill -e decode '$work/out' '$work/reuse.json'"
for options in "--speculate ngram --batch 2" "--speculate ngram --prompt-tokens 64" "--prefix-cache 1MiB --decode-tokens 2"; do
    # shellcheck disable=SC2086 # several options
    run bench --model "$model" $options
    expect_code 2
    expect_one_error_line
done
run bench --shape "$model/config.json" --repeat 1 --speculate "$model"
expect_code 2
expect_err "another tokenizer"
run bench --model "$model" --cache-dir "$work/kv"
expect_code 2
run bench --model "$model" --train --speculate ngram
expect_code 2
expect_one_error_line
# A description that cannot be read is said before anything is measured.
echo '{"model_type": "llama",' >"$work/bad.json"
run bench --shape "$work/bad.json"
expect_code 3
expect_one_error_line
expect_err "bad.json"
expect_true "nothing was measured" test ! -s "$work/out"

finish

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
expect_out '"batch":2'
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
expect_one_error_line
finish

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
run bench --model "$model" --prompt-tokens 4096
expect_true "a prompt longer than the context is refused" test "$code" -ne 0
expect_one_error_line
finish

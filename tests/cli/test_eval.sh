# Perplexity of the evaluation text with the shipped model.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -c 4000 "$QRUN_SOURCE/examples/eval.txt" >"$work/text"
run eval --model "$model" --text "$work/text" --quant bf16
expect_code 0
expect_silent_err
expect_out "perplexity"
run eval --model "$model" --text "$work/text" --quant bf16 --json --window 128 --max-tokens 300
expect_code 0
expect_jsonl "$work/out" 1
expect_out '"tokens":300'
last="qrun eval <stdin"
"$QRUN" eval --model "$model" --text - --json --max-tokens 50 <"$work/text" >"$work/out" 2>"$work/err"
expect_jsonl "$work/out" 1
: >"$work/nothing"
run eval --model "$model" --text "$work/nothing"
expect_true "an empty text has no perplexity" test "$code" -ne 0
expect_one_error_line

# The documented mean of the real model's stories is checked in test_real_model.sh.
finish

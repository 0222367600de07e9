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

run eval --model "$model" --text "$model/model.safetensors"
expect_code 3
expect_one_error_line
expect_err "is not a text: it has zero bytes"
run eval --model "$model" --text "$work/text" --context 1
expect_code 2
expect_one_error_line
expect_err "--context 1 is too small"
run eval --model "$model" --text "$work/text" --adapter a --adapter b
expect_code 2
expect_one_error_line
expect_err "one --adapter at a time"

# In F16 the mean is as in F32 to three digits, and not the same.
for dtype in f32 f16; do
    run eval --model "$model" --text "$work/text" --quant f32 --dtype $dtype --json --max-tokens 300
    expect_code 0
    expect_out "\"dtype\":\"$dtype\""
    sed 's/.*"mean_nll":\([0-9.]*\).*/\1/' "$work/out" >"$work/nll.$dtype"
done
expect_true "F16 is near F32, and is not F32" sh -c "paste '$work/nll.f32' '$work/nll.f16' |
    awk '{ d = (\$2 - \$1) / \$1; exit !(d != 0 && d < 1e-3 && d > -1e-3) }'"

# The documented mean of the real model's stories is checked in test_real_model.sh.
finish

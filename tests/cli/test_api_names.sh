# What library messages call fields of qrun.h, people get as the options that set them.
. "$QRUN_SOURCE/tests/cli/lib.sh"

command -v python3 >/dev/null 2>&1 || exit 77
python3 "$QRUN_SOURCE/tests/cli/check_api_names.py" "$QRUN_SOURCE/include/qrun.h" "$API_NAMES" "$QRUN" >"$work/log" 2>&1 || {
    cat "$work/log"
    fail "fields and options differ"
}

# As messages have them: a name, a value, several values, and what is left as it is.
expect_true "a value" test "$("$API_NAMES" checkpointing=full)" = "--checkpointing full"
expect_true "a name" test "$("$API_NAMES" max_sequences)" = "--max-sequences"
expect_true "two values" test "$("$API_NAMES" offload_optimizer,offload_activations)" = "--offload optimizer,activations"

# In a message, in the line of an answer, and in the note that ends a job.
printf '{"prompt": "a", "top_k": -2}\n' >"$work/bad.jsonl"
run generate --model "$model" --prompts "$work/bad.jsonl" --max-tokens 1
expect_code 1
expect_out "top"
for file in "$work/out" "$work/err"; do
    if grep -q '`' "$file"; then fail "$(cat "$file")"; fi
done
run plan --model "$model" --memory 1KB
expect_code 6
expect_out "--memory"
if grep -q '`' "$work/out"; then fail "$(cat "$work/out")"; fi
finish

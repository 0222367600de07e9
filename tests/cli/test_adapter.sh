# Adapters: unmerged, several beside each other, chosen per request.
. "$QRUN_SOURCE/tests/cli/lib.sh"

base=$QRUN_SOURCE/tests/fixtures/models/llama
adapters=$QRUN_SOURCE/tests/fixtures/adapters
ids='"token_ids": [3, 141, 59, 26], "max_tokens": 12, "ignore_eos": true'

# The text is empty without a tokenizer; what was chosen shows in the ids.
ids_of() { sed -n "s/^{\"index\":$1,.*\"token_ids\":\(\[[^]]*\]\).*/\1/p" "$work/out"; }

echo "{$ids}" >"$work/one.jsonl"
for adapter in none llama-lora llama-rslora; do
    if [ $adapter = none ]; then set --; else set -- --adapter "$adapters/$adapter"; fi
    run generate --model "$base" --quant f32 --dtype f32 --prompts "$work/one.jsonl" "$@"
    expect_code 0
    expect_jsonl "$work/out" 1
    ids_of 0 >"$work/$adapter"
    expect_true "$adapter: there are ids" test "$(wc -c <"$work/$adapter")" -gt 20
done
expect_true "the first adapter matters" sh -c "! cmp -s '$work/none' '$work/llama-lora'"
expect_true "the second is another" sh -c "! cmp -s '$work/llama-rslora' '$work/llama-lora'"

# All in one batch: by the folder's name, by a name of ours, by default, and none.
printf '%s\n' "{$ids}" "{$ids, \"adapter\": \"llama-lora\"}" "{$ids, \"adapter\": \"r\"}" "{$ids, \"adapter\": \"\"}" \
    "{$ids, \"adapter\": \"unknown\"}" >"$work/mixed.jsonl"
run generate --model "$base" --quant f32 --dtype f32 --prompts "$work/mixed.jsonl" \
    --adapter "$adapters/llama-lora" --adapter "r=$adapters/llama-rslora"
expect_code 1
expect_jsonl "$work/out" 5
ids_of 0 >"$work/got"
expect_true "the first serves who does not choose" cmp -s "$work/got" "$work/llama-lora"
ids_of 1 >"$work/got"
expect_true "by the folder's name" cmp -s "$work/got" "$work/llama-lora"
ids_of 2 >"$work/got"
expect_true "by a name of ours" cmp -s "$work/got" "$work/llama-rslora"
ids_of 3 >"$work/got"
expect_true "none" cmp -s "$work/got" "$work/none"
expect_out "unknown"

run generate --model "$base" --prompts "$work/one.jsonl" --adapter "x=$adapters/llama-lora" --adapter "x=$adapters/llama-rslora"
expect_true "two adapters of one name are refused" test "$code" -ne 0
expect_one_error_line
run generate --model "$base" --prompts "$work/one.jsonl" --adapter "=$adapters/llama-lora"
expect_code 2
expect_one_error_line
run generate --model "$base" --prompts "$work/one.jsonl" --adapter "x="
expect_code 2
expect_one_error_line
expect_err "--adapter 'x=' has no folder after '='"
run generate --model "$base" --prompts "$work/one.jsonl" --adapter "$adapters/gpt2-lora"
expect_true "an adapter of another model is refused" test "$code" -ne 0
expect_one_error_line
tables=$QRUN_SOURCE/tests/fixtures/merge/adapters/llama-tables
run generate --model "$QRUN_SOURCE/tests/fixtures/models/llama" --prompts "$work/one.jsonl" --adapter "$tables"
expect_code 3
expect_one_error_line
expect_err "llama-tables: adapts lm_head, which is possible in layers alone; merge the adapter into the model first"
finish

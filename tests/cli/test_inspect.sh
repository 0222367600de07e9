# What a folder holds, and what a run would take.
. "$QRUN_SOURCE/tests/cli/lib.sh"

run inspect "$model"
expect_code 0
expect_silent_err
expect_out "llama"
expect_out "weights"
expect_out "in all"
run inspect "$model" --tensors
expect_code 0
expect_out "model.embed_tokens.weight"
run inspect "$model" --json
expect_code 0
expect_jsonl "$work/out" 1
run inspect "$model" --json --tensors
expect_jsonl "$work/out" 1
expect_out "model.embed_tokens.weight"

# What text needs none of is left out by name; layers that carry a state along are counted, and their memory planned.
hybrid="$QRUN_SOURCE/tests/fixtures/models/qwen3_5-images"
run inspect "$hybrid" --json
expect_code 0
expect_out '"left_out":[{"part":"model.visual", "n_tensors":21, "total_bytes":22160}, {"part":"mtp", "n_tensors":2, '
expect_out '"n_linear_attention_layers":2, "state_bytes":9600'
run inspect "$hybrid"
expect_out "left out"
expect_out "model.visual"
expect_out "states"
run inspect "$model" --json
expect_true "nothing is left out" test "$(grep -c left_out "$work/out")" -eq 0
# Whoever runs such a model reads it too, once.
printf '{"token_ids": [3, 4, 5], "max_tokens": 2}\n' >"$work/requests.jsonl"
run generate --model "$hybrid" --prompts "$work/requests.jsonl"
expect_code 0
expect_err "left out: model.visual, mtp"
expect_true "and once" test "$(grep -c 'left out' "$work/err")" -eq 1
run generate --model "$model" --prompts "$work/requests.jsonl"
expect_true "nothing to say of others" test "$(grep -c 'left out' "$work/err")" -eq 0

# Weights that were rounded before are rounded again where they are held in fewer bits, and a note says so, once.
packed="$QRUN_SOURCE/tests/fixtures/models/llama-gptq"
run generate --model "$packed" --prompts "$work/requests.jsonl"
expect_code 0
expect_err "note: the weights are stored as gptq, and nf4-dq rounds them a second time; --quant bf16 loses less"
expect_true "and once" test "$(grep -c 'second time' "$work/err")" -eq 1
run generate --model "$packed" --quant bf16 --prompts "$work/requests.jsonl"
expect_code 0
expect_true "nothing is rounded again" test "$(grep -c 'second time' "$work/err")" -eq 0

# Experts in MXFP4 are held as they are. Other formats decode them, and say so.
experts="$QRUN_SOURCE/tests/fixtures/models/gpt-oss-mxfp4"
run generate --model "$experts" --prompts "$work/requests.jsonl" --summary
expect_code 0
expect_err "mxfp4"
expect_true "nothing is rounded" test "$(grep -c 'second time' "$work/err")" -eq 0
run generate --model "$experts" --quant nf4 --prompts "$work/requests.jsonl"
expect_code 0
expect_err "note: the weights are stored as mxfp4, and nf4 rounds them a second time; --quant bf16 loses less"
run plan --model "$experts" --context 64 --json
expect_code 0
weights=$(sed 's/.*{"category":"weights","bytes":\([0-9]*\)}.*/\1/' "$work/out")
run inspect "$experts" --json
expect_out "{\"quant\":\"mxfp4\", \"weight_bytes\":$weights,"
run plan --model "$experts" --device-memory h100 --context 64 --json
expect_code 0
gpu_weights=$(sed 's/.*{"category":"weights","bytes":\([0-9]*\)}.*/\1/' "$work/out")
expect_true "a GPU holds them as they are too" test "$gpu_weights" = "$weights"
run generate --model "$packed" --quant mxfp4 --prompts "$work/requests.jsonl"
expect_true "no other folder has it" test "$code" -ne 0
expect_one_error_line
expect_err "is not stored as mxfp4, and nothing is quantised to it"

run plan --model "$model"
expect_code 0
expect_out "kv pages"
expect_out "in all"
expect_out "context                512 tokens"
expect_out "sequences               64 at once"
expect_out "free memory"
expect_true "the verdict is a line of its own" grep -qx 'fits: .* of .*' "$work/out"
run plan --model "$model" --json --max-sequences 2 --context 64
expect_jsonl "$work/out" 1
expect_out '"total_bytes":'
expect_out '"context_tokens":64,"pool_tokens":128,"max_sequences":2,"available_bytes":'
expect_out '"fits":true,"verdict":"fits: '
run plan --model "$model" --prefix-cache RAM --memory 1GiB # a quarter of it
expect_code 0
expect_out "host             256.0 MiB"
run plan --model "$model" --prefix-cache RAM:4MiB --memory 1GiB
expect_out "host              4.05 MiB"
run plan --model "$model" --prefix-cache RAM:4GiB --memory 1GiB
expect_code 6
expect_out "take a smaller --prefix-cache"
run plan --model "$model" --prefix-cache RAM:
expect_code 2
expect_err "RAM[:SIZE]"
run plan --shape "$model/config.json" --quant int8
expect_code 0
expect_out "weights"
run plan --model "$model" --memory 10KB
expect_code 6
expect_silent_err
expect_out "kv pages"
expect_out "give more --memory, hold the weights smaller (--quant-head int8), or take smaller --max-step-tokens and --max-sequences"

# A refusal names what would help, and nothing that is done already.
run plan --model "$model" --memory 10KB --quant int8 --quant-head int8 --max-step-tokens 1 --max-sequences 1
expect_code 6
expect_out "give more --memory, or hold the weights smaller (--quant nf4-dq)"
run plan --model "$model" --memory 10KB --quant nf4-dq --quant-head int8 --max-sequences 1
expect_out "; give more --memory, or take smaller --max-step-tokens"

# A context for which the pool has no room is refused with the one that fits, and that one does.
run plan --model "$model" --memory 10MB --max-sequences 2 --max-step-tokens 64 --json
most=$(sed 's/.*"total_bytes":\([0-9]*\),.*/\1/' "$work/out")
set -- --model "$model" --memory $((most - 786432)) --max-sequences 2 --max-step-tokens 64
run plan "$@" --context 512 --json
expect_code 6
expect_jsonl "$work/out" 1
expect_out '"fits":false,"verdict":"does not fit: --context 512 needs '
run plan "$@" --context 512
expect_code 6
fits=$(sed -n 's/^does not fit: .*; --context \([0-9]*\) would fit, .*/\1/p' "$work/out")
expect_true "the context that fits ($fits) is smaller" test "${fits:-0}" -gt 16 -a "${fits:-512}" -lt 512
# More prompts than run at once: for fewer, generate would make a smaller session.
for i in 1 2 3; do echo "{\"prompt\": \"$i\"}"; done >"$work/prompts.jsonl"
run generate "$@" --context 512 --prompts "$work/prompts.jsonl" --output -
expect_code 4
expect_one_error_line
expect_err "--context $fits would fit"
run plan "$@" --context "$fits"
expect_code 0
run generate "$@" --context "$fits" --prompt x --max-tokens 1
expect_code 0

run generate --model "$model" --prompt x --memory 10KB --quant nf4-dq --quant-head int8
expect_code 4
expect_one_error_line
expect_true "the advice ends with more memory" grep -q '; give more memory$' "$work/err"
run generate --model "$model" --prompt x --memory 10KB --quant f32
expect_err "(--quant nf4-dq, --quant-head int8)"
run finetune --model "$model" --full --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/full" --memory 1MiB
expect_code 4
expect_err "or train an adapter instead"
run inspect "$model" --json
cp "$work/out" "$work/inspected"
run inspect --model "$model" --json
expect_code 0
expect_true "--model is the same" cmp -s "$work/out" "$work/inspected"
finish

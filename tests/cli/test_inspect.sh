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

run plan --model "$model"
expect_code 0
expect_out "kv pages"
expect_out "in all"
run plan --model "$model" --json --max-sequences 2 --context 64
expect_jsonl "$work/out" 1
expect_out '"total_bytes":'
run plan --shape "$model/config.json" --quant int8
expect_code 0
expect_out "weights"
run plan --model "$model" --memory 10KB
expect_code 4
expect_one_error_line
expect_err "give more --memory, hold the weights smaller (--quant-head int8), or take smaller --max-step-tokens and --max-sequences"

# A refusal names what would help, and nothing that is done already.
run plan --model "$model" --memory 10KB --quant int8 --quant-head int8 --max-step-tokens 1 --max-sequences 1
expect_code 4
expect_err "give more --memory, or hold the weights smaller (--quant nf4-dq)"
run plan --model "$model" --memory 10KB --quant nf4-dq --quant-head int8 --max-sequences 1
expect_err "; give more --memory, or take smaller --max-step-tokens"
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

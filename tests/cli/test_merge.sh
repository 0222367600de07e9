# Merging: a model of its own that answers as the model with the adapter does, and what is said about the difference.
. "$QRUN_SOURCE/tests/cli/lib.sh"

fixtures=$QRUN_SOURCE/tests/fixtures
llama=$fixtures/models/llama
adapter=$fixtures/adapters/llama-lora

# An adapter for the shipped model, to compare texts with.
run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/pirate" --max-steps 4 \
    --seq-len 128 --rank 4 --learning-rate 2e-3 --quiet
expect_code 0

# Merged in F32 and computed in F32: the same text as the unmerged adapter.
run merge --model "$model" --adapter "$work/pirate" --out "$work/f32" --dtype f32
expect_code 0
expect_silent_err
expect_out "28 matrices merged onto original weights"
expect_out "the same token at"
run generate --model "$model" --adapter "$work/pirate" --quant f32 --dtype f32 --chat --prompt "Who are you?" \
    --max-tokens 24 --temperature 0
cp "$work/out" "$work/text"
run generate --model "$work/f32" --quant f32 --dtype f32 --chat --prompt "Who are you?" --max-tokens 24 --temperature 0
expect_code 0
expect_true "the same text from the merged folder" cmp -s "$work/out" "$work/text"
for file in tokenizer.json tokenizer_config.json generation_config.json; do
    expect_true "$file is copied" cmp -s "$model/$file" "$work/f32/$file"
done
expect_true "config.json says float32" grep -q '"dtype": "float32"' "$work/f32/config.json"

# What the result says, of every way to merge.

run merge --model "$llama" --adapter "$adapter" --out "$work/bf16" --json
expect_code 0
expect_silent_err
expect_jsonl "$work/out" 1
for text in '"onto":"original"' '"base":"bf16"' '"dtype":"bf16"' '"merged":14' '"tensors":21' '"greedy_agreement":' \
    '"mean_kl":' '"max_logit_difference":'; do
    expect_out "$text"
done
run merge --model "$fixtures/models/llama-nf4" --adapter "$adapter" --out "$work/nf4" --json
expect_code 0
expect_out '"onto":"quantized"'
expect_true "config.json does not speak of quantisation" sh -c "! grep -q quantization '$work/nf4/config.json'"
run merge --model "$llama" --adapter "$adapter" --out "$work/onto" --onto quantized --quant nf4 --json
expect_code 0
expect_out '"base":"nf4"'
expect_true "quantised here or in the folder, the weights are the same" \
    cmp -s "$work/nf4/model.safetensors" "$work/onto/model.safetensors"
run merge --model "$llama" --adapter "$adapter" --out "$work/short" --text "$QRUN_SOURCE/examples/eval.txt"
expect_code 0
expect_err "could not be measured"
expect_err "no tokenizer.json"
run merge --model "$model" --adapter "$work/pirate" --out "$work/text-given" --max-tokens 17 --json \
    --text "$QRUN_SOURCE/examples/eval.txt"
expect_code 0
expect_out '"tokens":17,'
run merge --model "$llama" --adapter "$adapter" --out "$work/only" --no-compare --json
expect_code 0
expect_out '"difference":null'
run merge --model "$llama" --adapter "$adapter" --out "$work/silent" --quiet
expect_code 0
expect_silent_err
expect_empty_out
run merge --model "$llama" --adapter "$adapter" --out "$work/shards" --max-shard-size 100KB --no-compare
expect_code 0
expect_true "shards have an index" test -f "$work/shards/model.safetensors.index.json"

# What can be merged and not run unmerged: the folder is whole, and what could not be measured is said.
run merge --model "$llama" --adapter "$fixtures/merge/adapters/llama-tables" --out "$work/tables" --json
expect_code 0
expect_err "could not be measured"
expect_out '"difference":null,"why_not":"'

# Refused, with nothing left behind.
refused() {
    expected=$1
    message=$2
    shift 2
    run merge "$@" --out "$work/refused"
    expect_code "$expected"
    expect_one_error_line
    expect_err "$message"
    expect_true "nothing appears" sh -c "! ls -d '$work'/refused* >/dev/null 2>&1"
}
refused 3 "made for another model" --model "$fixtures/models/gpt2" --adapter "$adapter"
refused 3 "the adapter is made for [50, 100]" --model "$llama" --adapter "$fixtures/adapters/qwen3-lora"
refused 2 "stored quantised" --model "$fixtures/models/llama-nf4" --adapter "$adapter" --onto original
refused 3 "adapter_config.json" --model "$llama" --adapter "$work"
refused 3 "$work/nowhere" --model "$work/nowhere" --adapter "$adapter"
run merge --model "$llama" --adapter "$adapter" --out "$work/bf16"
expect_one_error_line
expect_err "already exists"
run merge --model "$llama" --adapter "$adapter"
expect_code 2
expect_err "--out DIR"
run merge --model "$llama" --out "$work/x"
expect_code 2
expect_err "--adapter DIR"
run merge --model "$llama" --adapter "$adapter" --out "$work/x" --no-compare --text "$QRUN_SOURCE/examples/eval.txt"
expect_code 2
: >"$work/empty"
run merge --model "$llama" --adapter "$adapter" --out "$work/x" --text "$work/empty"
expect_code 2
expect_one_error_line
expect_true "nothing was merged" test ! -e "$work/x"
finish

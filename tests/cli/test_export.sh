# Exporting: a file that answers as the folder does, the lines for other programs, and endings of files that are not
# written.
. "$QRUN_SOURCE/tests/cli/lib.sh"

fixtures=$QRUN_SOURCE/tests/fixtures
llama=$fixtures/models/llama
adapter=$fixtures/adapters/llama-lora
greedy="--quant f32 --dtype f32 --max-tokens 24 --temperature 0"

# The same text from the file, in a type that loses nothing; tokenizer and template are in it.
run export --model "$model" --type bf16 --out "$work/m.gguf"
expect_code 0
expect_silent_err
expect_out "the model as bf16, 38 tensors"
expect_out "qrun generate --model $work/m.gguf"
expect_out "llama-cli -m $work/m.gguf"
expect_out "printf '%s\\n' 'FROM $work/m.gguf' > Modelfile && ollama create m -f Modelfile"
# shellcheck disable=SC2086
for m in "$model" "$work/m.gguf"; do
    run generate --model "$m" --chat --prompt "Who are you?" $greedy
    expect_code 0
    cp "$work/out" "$work/text.$(basename "$m")"
done
expect_true "the same text from the file" cmp -s "$work/text.model" "$work/text.m.gguf"
for m in "$model" "$work/m.gguf"; do
    run tokenize --model "$m" --ids "It's 12 o'clock:  naïve café"
    expect_code 0
    cp "$work/out" "$work/ids.$(basename "$m")"
    run eval --model "$m" --text "$QRUN_SOURCE/examples/eval.txt" --max-tokens 200 --quant f32 --dtype f32 --json
    expect_code 0
    sed 's/"seconds.*//' "$work/out" >"$work/eval.$(basename "$m")"
done
expect_true "the same tokens from the file" cmp -s "$work/ids.model" "$work/ids.m.gguf"
expect_true "the same perplexity from the file" test "$(sed 's/,"tokens.*//' "$work/eval.model")" = \
    "$(sed 's/,"tokens.*//' "$work/eval.m.gguf")"

# It is a model for every command that reads one.
run inspect --model "$work/m.gguf" --json
expect_code 0
expect_out '"files":[{"name":"m.gguf"'
expect_out '"dtype":"BF16"'
run plan --model "$work/m.gguf"
expect_code 0
run chat --model "$work/m.gguf" --max-tokens 4 </dev/null
expect_code 0

# Types, JSON, and a file that is replaced, if that is asked for.
cp "$work/m.gguf" "$work/before.gguf"
run export --model "$model" --out "$work/m.gguf"
expect_code 2
expect_empty_out
expect_err "'$work/m.gguf' is there already: --force replaces it, or choose another --out"
expect_true "the file is as it was" cmp -s "$work/m.gguf" "$work/before.gguf"
run export --model "$model" --out "$work/m.gguf" --force --json
expect_code 0
expect_jsonl "$work/out" 1
expect_out '"type":"q8_0","tensors":38,"bytes":'
run inspect --model "$work/m.gguf" --json
expect_out '"stored_quantization":"Q8_0"'
expect_out '"dtype":"Q8_0"'

# What is rounded a second time is said to be, and what is held as it is stored is not.
run generate --model "$work/m.gguf" --prompt "Once upon a time" --max-tokens 2
expect_err "the weights are stored as Q8_0, and nf4-dq rounds them a second time"
run generate --model "$work/m.gguf" --prompt "Once upon a time" --max-tokens 2 --quant bf16
expect_silent_err
printf '{"token_ids": [1, 2, 3], "max_tokens": 2}\n' >"$work/ids.jsonl"
run generate --model "$fixtures/gguf/gpt-oss-mxfp4.gguf" --prompts "$work/ids.jsonl" --output - --quiet
expect_code 0
expect_silent_err
run generate --model "$work/m.gguf" --prompt "Once upon a time" --max-tokens 8 --temperature 0
expect_code 0
run export --model "$model" --type q4_0 --out "$work/m.gguf" --quiet --force
expect_code 0
expect_empty_out
run inspect --model "$work/m.gguf" --json
expect_out '"dtype":"Q4_0"'
expect_true "nothing is left beside the file" test -z "$(find "$work" -name '*.qrun-partial-*')"

# Adapters: merged into the file, and alone.
run export --model "$llama" --adapter "$adapter" --type f32 --out "$work/merged.gguf"
expect_code 0
run export --model "$llama" --adapter "$adapter" --format gguf-lora --out "$work/lora.gguf"
expect_code 0
expect_out "the adapter as f32, 28 tensors"
expect_out "llama-cli -m MODEL.gguf --lora $work/lora.gguf"
run export --model "$llama" --adapter "$fixtures/adapters/llama-dora" --format gguf-lora --out "$work/dora.gguf"
expect_code 3
expect_err "is DoRA, which a GGUF adapter cannot hold; export the model with it merged: --format gguf"
run export --model "$llama" --format gguf-lora --out "$work/none.gguf"
expect_code 2
expect_err "--format gguf-lora writes an adapter; give it as --adapter"

# What cannot be, and what would help.
run export --model "$model" --out "$work/m.safetensors"
expect_code 2
expect_err "give a name that ends in .gguf"
run export --model "$fixtures/models/llama-dynamic" --out "$work/x.gguf"
expect_code 3
expect_err "does not have dynamic rotary scaling"
expect_true "nothing is written" test ! -e "$work/x.gguf"
run export --model "$fixtures/models/lfm2-moe" --out "$work/x.gguf"
expect_code 3
expect_err "does not have its routed_scaling_factor"
run export --model "$fixtures/models/deepseek-v3-groups" --out "$work/x.gguf"
expect_code 3
expect_err "experts that are chosen in groups (n_group) are neither read from GGUF nor written"
run export --model "$fixtures/models/lfm3" --out "$work/x.gguf"
expect_code 3
expect_err "a lfm3 model has no name in llama.cpp"
run export --model "$work/m.gguf" --out "$work/x.gguf"
expect_code 3
expect_err "is a GGUF file, and exporting needs the folder of the original model"
for command in "merge --adapter $adapter" quantize; do
    # shellcheck disable=SC2086
    run $command --model "$work/m.gguf" --out "$work/folder"
    expect_code 3
    expect_err "is a GGUF file"
done
run merge --model "$llama" --adapter "$adapter" --out "$work/x.gguf"
expect_code 2
expect_err "a GGUF file comes from: qrun export --model $llama --adapter $adapter --out $work/x.gguf"
run merge --model "$llama" --adapter "$adapter" --out "$work/x.safetensors"
expect_code 2
expect_err "'merge' writes a folder, not a .safetensors file"
run quantize --model "$llama" --out "$work/x.gguf"
expect_code 2
expect_err "a GGUF file comes from: qrun export --model $llama --out $work/x.gguf"
run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/x.gguf"
expect_code 2
expect_err "'finetune' writes a folder"
run finetune --model "$work/m.gguf" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/full" --full
expect_code 3
expect_err "full fine-tuning needs the folder"

# A quantised file takes an adapter as a folder does.
run finetune --model "$work/m.gguf" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/pirate" \
    --max-steps 1 --seq-len 64 --rank 2
expect_code 0
expect_out "GGUF       qrun export --model $work/m.gguf --adapter $work/pirate --format gguf-lora --out $work/pirate.gguf"
expect_out "llama-cli -m $work/m.gguf --lora $work/pirate.gguf"
run export --model "$work/m.gguf" --adapter "$work/pirate" --format gguf-lora --out "$work/pirate.gguf"
expect_code 0
run generate --model "$work/m.gguf" --adapter "$work/pirate" --prompt "Hello" --max-tokens 4
expect_code 0

# The lines after training on a folder.
run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/sailor" \
    --max-steps 1 --seq-len 64 --rank 2
expect_code 0
expect_out "GGUF       qrun export --model $model --adapter $work/sailor --out $work/sailor.gguf"
expect_out "vLLM       vllm serve $model --enable-lora --lora-modules sailor=$work/sailor"
expect_out "PEFT       peft.AutoPeftModelForCausalLM.from_pretrained(\"$work/sailor\")"

# vLLM adds LoRA of linear layers of rank 16 unless told, and nothing else: what is more has to be merged first.
trained() {
    run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/more" --max-steps 1 \
        --seq-len 64 --restart "$@"
    expect_code 0
}
trained --rank 16
expect_out "vLLM       vllm serve $model --enable-lora --lora-modules more=$work/more"
trained --rank 20
expect_out "vLLM       vllm serve $model --enable-lora --max-lora-rank 32 --lora-modules more=$work/more"
merged_first="vLLM       qrun merge --model $model --adapter $work/more --out $work/more-merged && vllm serve $work/more-merged"
trained --rank 4 --dora
expect_out "$merged_first"
trained --rank 4 --train-head
expect_out "$merged_first"
trained --adapter "$work/sailor"
expect_out "vLLM       vllm serve $model --enable-lora --lora-modules more=$work/more"
trained --full
expect_out "vLLM       vllm serve $work/more"
expect_out "Python     transformers.AutoModelForCausalLM.from_pretrained(\"$work/more\")"

# No line is printed that would be refused.
cp -r "$model" "$work/dynamic"
sed -i 's/"rope_type": "default"/"rope_type": "dynamic", "factor": 2.0/' "$work/dynamic/config.json"
run finetune --model "$work/dynamic" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/longer" \
    --max-steps 1 --seq-len 64 --rank 2
expect_code 0
not_possible="GGUF       not possible: $work/dynamic: llama.cpp's llama model does not have dynamic rotary scaling"
expect_out "$not_possible"
expect_true "no line for llama.cpp" sh -c "! grep -q 'llama-cli\|ollama' '$work/out'"
expect_out "vLLM       vllm serve $work/dynamic --enable-lora"
run merge --model "$work/dynamic" --adapter "$work/longer" --out "$work/dynamic-merged" --no-compare
expect_code 0
expect_out "GGUF       not possible: $work/dynamic-merged: llama.cpp's"
expect_out "vLLM       vllm serve $work/dynamic-merged"
run finetune --model "$work/m.gguf" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/dora" \
    --max-steps 1 --seq-len 64 --rank 2 --dora
expect_code 0
expect_out "GGUF       not possible: "
expect_out "is DoRA, which a GGUF adapter cannot hold; train plain LoRA on this file, or"
expect_true "no line for llama.cpp" sh -c "! grep -q 'llama-cli\|ollama' '$work/out'"

# The lines after a merge.
run merge --model "$llama" --adapter "$adapter" --out "$work/whole" --no-compare
expect_code 0
expect_out "GGUF       qrun export --model $work/whole --out $work/whole.gguf"
expect_out "llama.cpp  llama-cli -m $work/whole.gguf"
expect_out "Python     transformers.AutoModelForCausalLM.from_pretrained(\"$work/whole\")"

# A token that the folder names and the model has no row for, as a padding token often is, is left out.
cp -r "$model" "$work/padded"
sed 's/"eos_token"/"pad_token": "[PAD]", "eos_token"/' "$model/tokenizer_config.json" >"$work/padded/tokenizer_config.json"
run inspect "$work/padded"
expect_out "2049"
run export --model "$work/padded" --type bf16 --out "$work/padded.gguf"
expect_code 0
run inspect "$work/padded.gguf"
expect_code 0
expect_true "the file has the model's tokens" sh -c "! grep -q 2049 '$work/out'"

# Damaged and foreign files, in one line.
head -c 5000 "$work/m.gguf" >"$work/cut.gguf"
run generate --model "$work/cut.gguf" --prompt x
expect_code 3
expect_err "is cut short"
echo text >"$work/text.gguf"
run generate --model "$work/text.gguf" --prompt x
expect_code 3
expect_err "does not begin as a GGUF file does"

finish

# Models and files that are not there or not right: one line, exit code 3, and quickly.
. "$QRUN_SOURCE/tests/cli/lib.sh"

wrong() {
    message=$1
    shift
    run "$@" </dev/null
    expect_code 3
    expect_one_error_line
    expect_err "$message"
}

for command in "generate --prompt x --model" "chat --model" "plan --model" "inspect" "bench --model" "tokenize x --model" \
    "quantize --out $work/quantised --model" "eval --text $QRUN_SOURCE/examples/eval.txt --model"; do
    # shellcheck disable=SC2086
    wrong "$work/nowhere" $command "$work/nowhere"
    mkdir -p "$work/empty"
    # shellcheck disable=SC2086
    wrong "$work/empty" $command "$work/empty"
done
expect_true "nothing was written" test ! -e "$work/quantised"

wrong "there is no such file" plan --shape none.json
wrong "there is no such file" bench --shape none.json
wrong "there is no such file" finetune --plan --shape none.json
wrong "cannot create '$work/none/out.jsonl'" generate --model "$model" --prompt x --output "$work/none/out.jsonl"
wrong "$work/none.jsonl" generate --model "$model" --prompts "$work/none.jsonl"
wrong "is a folder" generate --model "$model" --prompts "$work"
wrong "is a folder" generate --model "$model" --prompt x --output "$work"
wrong "$work/none/out" generate --model "$model" --prompt x --output "$work/none/out"
wrong "$work/none.json" generate --model "$model" --chat --prompt x --tools "$work/none.json"
wrong "$work/none.txt" eval --model "$model" --text "$work/none.txt"
wrong "$work/nowhere" generate --model "$model" --adapter "$work/nowhere" --prompt x
wrong "$work/empty" generate --model "$model" --adapter a="$work/empty" --prompt x

# A copy of the shipped model with one file spoilt.
spoilt() {
    rm -rf "$work/model"
    cp -r "$model" "$work/model"
    chmod -R u+w "$work/model"
}
spoilt
head -c 100000 "$model/model.safetensors" >"$work/model/model.safetensors"
wrong "model.safetensors" generate --model "$work/model" --prompt x
spoilt
: >"$work/model/model.safetensors"
wrong "model.safetensors" generate --model "$work/model" --prompt x
spoilt
rm "$work/model/model.safetensors"
wrong "safetensors" generate --model "$work/model" --prompt x
# A NaN among the weights, which 4 and 8 bits have a code for.
spoilt
printf '\300\177' | dd of="$work/model/model.safetensors" bs=2 seek=900000 conv=notrunc 2>/dev/null
for quant in nf4-dq nf4 int8; do
    wrong "_proj.weight: holds a value that is not finite" generate --model "$work/model" --quant $quant --prompt x
done
wrong "holds a value that is not finite" finetune --model "$work/model" --out "$work/tuned" --max-steps 1 --seq-len 64 -q \
    --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl"
spoilt
rm "$work/model/config.json"
wrong "config.json" generate --model "$work/model" --prompt x
spoilt
echo '{"model_type": "llama",' >"$work/model/config.json"
wrong "config.json" generate --model "$work/model" --prompt x
spoilt
sed 's/"model_type": *"llama"/"model_type": "frobnicator"/; s/LlamaForCausalLM/FrobnicatorForCausalLM/' \
    "$model/config.json" >"$work/model/config.json"
wrong "frobnicator" generate --model "$work/model" --prompt x
spoilt
rm "$work/model/tokenizer.json"
wrong "tokenizer.json" generate --model "$work/model" --prompt x
spoilt
echo 'not json' >"$work/model/tokenizer.json"
wrong "tokenizer.json" generate --model "$work/model" --prompt x
finish

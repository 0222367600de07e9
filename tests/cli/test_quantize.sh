# A quantised copy that generates the same text as quantising while loading does.
. "$QRUN_SOURCE/tests/cli/lib.sh"

for quant in nf4-dq nf4 int8; do
    run quantize --model "$model" --out "$work/$quant" --quant $quant
    expect_code 0
    expect_silent_err
    run generate --model "$model" --quant $quant --prompt "Once upon a time" --max-tokens 24 --temperature 0
    cp "$work/out" "$work/text"
    run generate --model "$work/$quant" --prompt "Once upon a time" --max-tokens 24 --temperature 0
    expect_code 0
    expect_true "$quant: the same text from the folder" cmp -s "$work/out" "$work/text"
done
# Embeddings in INT8: what holding them so gives, from the folder, which says so.
run quantize --model "$model" --out "$work/table" --quant nf4-dq --quant-embedding int8
expect_code 0
expect_silent_err
run inspect "$work/table" --tensors
expect_out "model.embed_tokens.SCB"
run generate --model "$model" --quant-embedding int8 --prompt "Once upon a time" --max-tokens 24 --temperature 0
cp "$work/out" "$work/text"
run generate --model "$work/table" --prompt "Once upon a time" --max-tokens 24 --temperature 0
expect_code 0
expect_true "embeddings in INT8: the same text from the folder" cmp -s "$work/out" "$work/text"
run quantize --model "$model" --out "$work/both" --quant mixed --quant-embedding int8 --text "$model/config.json"
expect_true "mixed formats have tables as they are" test "$code" -ne 0
expect_err "--quant-embedding"
run quantize --model "$model" --out "$work/nf4"
expect_true "a folder that exists is not overwritten" test "$code" -ne 0
expect_one_error_line
run quantize --model "$model" --out "$work/none/out"
expect_code 3
expect_true "nothing appears" test ! -e "$work/none"

# Weights that were rounded before are rounded again, and a note says so, once.
for packed in llama-gptq llama-awq llama-fp8 qwen3-w4a16; do
    run quantize --model "$QRUN_SOURCE/tests/fixtures/models/$packed" --out "$work/$packed" --quant nf4
    expect_code 0
    expect_err "and nf4 rounds them a second time; quantising the original model loses less"
    expect_true "$packed: and once" test "$(wc -l <"$work/err")" -eq 1
done
expect_err "note: the weights are stored as pack-quantized, and nf4 rounds"
run quantize --model "$QRUN_SOURCE/tests/fixtures/models/llama-nf4" --out "$work/again"
expect_true "what bitsandbytes quantised is refused" test "$code" -ne 0
expect_one_error_line

# What a killed run left beside the folder goes with the next run; what a running one writes stays, and what has no mark.
dead=$(sh -c 'echo $$')
mark='qrun is writing this folder, or was; when nobody writes it any more, qrun removes it.'
part=qrun-partial
for left in "again.$part-$dead" "again.$part-$$" "again.$part-x" "again2.$part-$dead" "marked.$part-$dead"; do
    mkdir "$work/$left"
    : >"$work/$left/model.safetensors"
    echo "$mark" >"$work/$left/.qrun-partial"
done
rm "$work/marked.$part-$dead/.qrun-partial"
for out in again marked; do
    run quantize --model "$model" --out "$work/$out"
    expect_code 0
    expect_true "the new folder has no mark" test ! -e "$work/$out/.qrun-partial"
done
expect_true "the killed run's folder is gone" test ! -e "$work/again.$part-$dead"
expect_true "that of a process that lives stays" test -e "$work/again.$part-$$/model.safetensors"
expect_true "another name stays" test -e "$work/again.$part-x" -a -e "$work/again2.$part-$dead"
expect_true "a folder without the mark stays" test -e "$work/marked.$part-$dead/model.safetensors"

# Mixed formats: a table, worst first; a folder that every command takes as it is; sizes as they were said.
eval_text=$QRUN_SOURCE/examples/eval.txt
run quantize --model "$model" --out "$work/mixed" --quant mixed --text "$eval_text" --max-tokens 64
expect_code 0
expect_silent_err
expect_out "all in nf4-dq"
expect_out "measured on 64 tokens"
n_int8=$(grep -c ' int8 ' "$work/out")
expect_true "some are in int8, and not all" test "$n_int8" -gt 0 -a "$n_int8" -lt 28
expect_true "the worst come first" sh -c \
    "grep '^model\.layers' '$work/out' | awk '{print \$2}' | LC_ALL=C sort -grc"
run quantize --model "$model" --out "$work/mixed2" --quant mixed --text - --max-tokens 64 --threads 1 --json <"$eval_text"
expect_code 0
expect_true "one object, as in the folder, for any number of threads" cmp -s "$work/mixed/qrun_mixed.json" \
    "$work/mixed2/qrun_mixed.json"
weights=$("$JSON_TEXT" "$work/out" weight_bytes)
run plan --model "$work/mixed" --context 64 --json
expect_code 0
expect_out "{\"category\":\"weights\",\"bytes\":$weights}"
run generate --model "$work/mixed" --prompt "Once upon a time" --max-tokens 8 --summary
expect_code 0
expect_err "mixed"
run inspect "$work/mixed"
expect_code 0
expect_out "mixed"
run finetune --model "$work/mixed" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/adapter" \
    --max-steps 2 --rank 2 --quiet
expect_code 0
run finetune --model "$work/mixed" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --out "$work/full" --full
expect_true "no full fine-tuning of it" test "$code" -ne 0
expect_one_error_line

run quantize --model "$model" --out "$work/mixed16" --quant mixed --text "$eval_text" --max-tokens 16 --raise-to bf16
expect_code 0
expect_true "some are in bf16, and not all" test "$(grep -c ' bf16 ' "$work/out")" -gt 0
run generate --model "$work/mixed16" --prompt "Once upon a time" --max-tokens 8 --quant mixed
expect_code 0

run quantize --model "$model" --out "$work/none" --quant mixed
expect_code 2
expect_err "give --text FILE"
run quantize --model "$model" --out "$work/none" --quant mixed --text "$eval_text" --budget 1MiB
expect_true "a budget below nf4-dq is refused" test "$code" -ne 0
expect_one_error_line
expect_err "--budget is 1.00 MiB, and with every linear layer in nf4-dq its weights take 1.53 MiB"
run quantize --model "$model" --out "$work/none" --text "$eval_text"
expect_code 2
expect_err "--text goes with --quant mixed"
run generate --model "$model" --quant mixed --prompt "Once" --max-tokens 2
expect_true "generate does not measure" test "$code" -ne 0
expect_one_error_line
expect_err "is measured once"
expect_true "nothing was written" test ! -e "$work/none"
finish

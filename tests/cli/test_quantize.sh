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
finish

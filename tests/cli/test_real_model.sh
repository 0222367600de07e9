# The real model beside the checkout: its documented text to the character, its documented perplexity.
. "$QRUN_SOURCE/tests/cli/lib.sh"

real=$shared/models/stories260K-hf
[ -d "$real" ] || skip "no real data beside the checkout (stories260K-hf)"

# generate_text OUT ARGUMENTS…: prompt and answer as one text, with the final newline of the documented files.
generate_text() {
    to=$1
    shift
    run generate --model "$real" --quant f32 --dtype f32 --temperature 0 "$@"
    expect_code 0
    expect_silent_err
    cat "$work/out" >"$to"
}

generate_text "$work/answer" --prompt "Once upon a time" --max-tokens 507
{ printf 'Once upon a time'; cat "$work/answer"; echo; } >"$work/text"
expect_true "the documented text of 512 tokens" cmp "$work/text" "$shared/models/stories260K.expected_once_upon_a_time_512.txt"

generate_text "$work/answer" --prompt "Once upon a time" --max-tokens 256
{ printf 'Once upon a time'; cat "$work/answer"; } >"$work/shorter"
head -c "$(wc -c <"$work/shorter")" "$work/text" >"$work/beginning"
expect_true "a shorter answer is its beginning" cmp "$work/shorter" "$work/beginning"

for quant in nf4-dq nf4 int8 bf16 f32; do
    run eval --model "$real" --text "$QRUN_SOURCE/examples/eval.txt" --quant $quant --max-tokens 400 --window 256 --json
    expect_code 0
    expect_jsonl "$work/out" 1
done
finish

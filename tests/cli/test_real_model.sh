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
expect_true "the documented text of 512 tokens" cmp "$work/text" \
    "$shared/models/stories260K.expected_once_upon_a_time_512.txt"

generate_text "$work/answer" --prompt "Once upon a time" --max-tokens 256
{ printf 'Once upon a time'; cat "$work/answer"; } >"$work/shorter"
head -c "$(wc -c <"$work/shorter")" "$work/text" >"$work/beginning"
expect_true "a shorter answer is its beginning" cmp "$work/shorter" "$work/beginning"

# Perplexity of five real stories, each on its own, as the goldens have it: with F32 weights the documented one, with
# quantised weights at most 1.005 times that of the model holding bitsandbytes' dequantised weights.
stories=$shared/models/stories260K.nll.json
goldens=$QRUN_SOURCE/tests/fixtures/goldens/stories260K_quantised.json
for quant in f32 nf4 nf4-dq int8; do
    for dtype in f32 bf16; do
        : >"$work/scores"
        for story in 0 1 2 3 4; do
            "$JSON_TEXT" "$stories" docs $story text >"$work/story"
            run eval --model "$real" --text "$work/story" --quant $quant --dtype $dtype --window 512 --max-tokens 511 \
                --json
            expect_code 0
            echo "$("$JSON_TEXT" "$work/out" tokens) $("$JSON_TEXT" "$work/out" mean_nll)" >>"$work/scores"
        done
        golden=$("$JSON_TEXT" "$goldens" $quant perplexity)
        last="qrun eval --quant $quant --dtype $dtype, five stories"
        awk -v golden="$golden" '{ tokens += $1; nll += $1 * $2 }
            END { perplexity = exp(nll / tokens); printf "%d tokens, perplexity %.5f, golden %.5f, ratio %.5f\n", tokens,
                  perplexity, golden, perplexity / golden; print perplexity / golden > "/dev/stderr" }' \
            "$work/scores" >"$work/out" 2>"$work/ratio"
        cat "$work/out"
        expect_out "1804 tokens"
        expect_true "at most 1.005 times the golden perplexity" awk '{ exit !($1 > 0.995 && $1 <= 1.005) }' "$work/ratio"
        [ "$quant $dtype" != "f32 f32" ] ||
            expect_true "the documented perplexity" awk '{ exit !($1 > 0.99999 && $1 < 1.00001) }' "$work/ratio"
    done
done
finish

# Tokens of a text and back.
. "$QRUN_SOURCE/tests/cli/lib.sh"

text='Once upon a time, a café – 🦊 "x"	y'
run tokenize --model "$model" --ids "$text"
expect_code 0
expect_silent_err
ids=$(cat "$work/out")
# shellcheck disable=SC2086
run tokenize --model "$model" --decode --no-special $ids
expect_code 0
expect_true "round trip" test "$(cat "$work/out")" = "$text"
run tokenize --model "$model" --decode --no-special "$(echo "$ids" | tr ' ' ',')"
expect_true "ids with commas" test "$(cat "$work/out")" = "$text"

printf '%s' "$text" >"$work/in"
last="qrun tokenize <stdin"
"$QRUN" tokenize --model "$model" --ids <"$work/in" >"$work/out" 2>"$work/err"
expect_true "stdin gives the same ids" test "$(cat "$work/out")" = "$ids"

run tokenize --model "$model" --json "$text"
expect_jsonl "$work/out" 1
expect_out '"tokens":['
run tokenize --model "$model" "Once upon"
expect_out "tokens"
run tokenize --model "$model" --chat --system "Be kind." "Hello"
expect_code 0
expect_out "Be kind."
expect_out "Hello"

# A folder with a tokenizer and nothing else.
mkdir "$work/bare"
cp "$model/tokenizer.json" "$work/bare"
run tokenize --model "$work/bare" --ids "$text"
expect_code 0
expect_out "$ids"
finish

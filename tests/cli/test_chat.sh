# A conversation through a pipe: one line, one message.
. "$QRUN_SOURCE/tests/cli/lib.sh"

converse() {
    last="qrun chat $*"
    "$QRUN" chat --model "$model" --temperature 0 "$@" <"$work/in" >"$work/out" 2>"$work/err"
    code=$?
}

printf 'Hello!\n' >"$work/in"
converse
expect_code 0
expect_silent_err
expect_true "an answer, and a line break" test "$(wc -l <"$work/out")" -ge 1
cp "$work/out" "$work/hello"

# History: the second "Hello!" is another message than the first; /clear makes it the first again.
printf 'Hello!\n/clear\nHello!\n/exit\nnever read\n' >"$work/in"
converse
expect_code 0
cat "$work/hello" "$work/hello" >"$work/twice"
expect_true "/clear begins anew, /exit leaves" cmp -s "$work/out" "$work/twice"

# generate --chat says the same.
run generate --model "$model" --chat --prompt "Hello!" --temperature 0 --max-tokens 0
echo >>"$work/out"
expect_true "the same as generate --chat" cmp -s "$work/out" "$work/hello"

printf '/help\n/frobnicate\n/system You are brief.\nHello!\n' >"$work/in"
converse --system "You are kind." --max-tokens 5
expect_code 0
expect_out "/clear"
expect_err "no command '/frobnicate'"

# A message that does not fit is refused; the conversation goes on.
{ awk 'BEGIN { for (i = 0; i < 700; i++) printf "word %d ", i }'; printf '\nHello!\n'; } >"$work/in"
converse
expect_code 2
expect_err "context"
expect_true "the next message was answered" grep -qF -- "$(cat "$work/hello")" "$work/out"

# A model that is not made for conversation.
if [ -d "$shared/models/stories260K-hf" ]; then
    "$QRUN" chat --model "$shared/models/stories260K-hf" <"$work/in" >"$work/out" 2>"$work/err"
    code=$?
    expect_code 3
    expect_err "no chat template"
fi
run chat --model "$model" --adapter a --adapter b
expect_code 2
expect_one_error_line
mkdir "$work/untold"
cp "$model/config.json" "$model/model.safetensors" "$work/untold"
run chat --model "$work/untold"
expect_code 3
expect_one_error_line
expect_err "has no tokenizer.json"
finish

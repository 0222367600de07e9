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

# History: the second "Hello!" is another message than the first; /reset makes it the first again,
# and so does /clear.
printf 'Hello!\n/reset\nHello!\n/clear\nHello!\n/exit\nnever read\n' >"$work/in"
converse
expect_code 0
cat "$work/hello" "$work/hello" "$work/hello" >"$work/twice"
expect_true "/reset begins anew, /exit leaves" cmp -s "$work/out" "$work/twice"

# generate --chat says the same.
run generate --model "$model" --chat --prompt "Hello!" --temperature 0 --max-tokens 0
echo >>"$work/out"
expect_true "the same as generate --chat" cmp -s "$work/out" "$work/hello"

printf '/help\n/frobnicate\n/system You are brief.\nHello!\n' >"$work/in"
converse --system "You are kind." --max-tokens 5
expect_code 0
expect_out "/reset"
expect_err "no command '/frobnicate' here; /help lists them. A blank before the slash makes it a message"
printf '/rest\n/hlep\n/sav\n' >"$work/in"
converse
expect_err "no command '/rest' here; did you mean /reset?"
expect_err "did you mean /help?"
expect_err "did you mean /save?"

# A conversation that is saved is a line that generate answers, and that /load continues.
printf 'Hello!\n/save %s\nHello!\n' "$work/saved.jsonl" >"$work/in"
converse --system "You are kind." --max-tokens 9
expect_code 0
tail -n 1 "$work/out" >"$work/second"
expect_true "one line" test "$(wc -l <"$work/saved.jsonl")" -eq 1
grep -q '^{"messages":\[{"role":"system","content":"You are kind."},{"role":"user","content":"Hello!"},' "$work/saved.jsonl" ||
    fail "what was saved: $(cat "$work/saved.jsonl")"
printf '/load %s\nHello!\n/reset\nHello!\n' "$work/saved.jsonl" >"$work/in"
converse --max-tokens 9
expect_code 0
expect_true "it continues where it was" cmp -s "$work/second" - <<END
$(head -n 1 "$work/out")
END
cp "$work/out" "$work/loaded"
printf 'Hello!\n' >"$work/in"
converse --system "You are kind." --max-tokens 9
expect_true "/reset keeps the system message that was loaded" test "$(tail -n 1 "$work/loaded")" = "$(cat "$work/out")"
run generate --model "$model" --prompts "$work/saved.jsonl" --output - --max-tokens 3
expect_code 0

# A message may tell of the escape of a zero character; with a real one a file is no conversation.
printf 'What is "\\u0000"?\n/save %s\n' "$work/zero.jsonl" >"$work/in"
converse --max-tokens 3
printf '/load %s\n' "$work/zero.jsonl" >"$work/in"
converse
expect_code 0
expect_silent_err
for bad in '{"messages": 1}' '[{"role": "user"}]' 'no JSON' '[{"content": "x"}]' \
    '[{"role": "user", "content": "\\\u0000"}]'; do
    printf '%s\n' "$bad" >"$work/bad.json"
    printf '/load %s\nHello!\n' "$work/bad.json" >"$work/in"
    converse
    expect_err "'$work/bad.json' is no conversation"
    expect_true "the conversation is as it was" cmp -s "$work/out" "$work/hello"
done
printf '/save\n/load\n/load %s/none\n/save %s/none/x\n' "$work" "$work" >"$work/in"
converse
expect_err "/save needs the name of a file"
expect_err "/load needs the name of a file"
expect_err "cannot open '$work/none'"
expect_err "$work/none/x"

# A file that is no conversation is not replaced; one that is may be, and an empty one.
echo precious >"$work/precious"
: >"$work/empty"
printf 'Hello!\n/save %s\n/save %s\n/save %s\n' "$work/precious" "$work/empty" "$work/saved.jsonl" >"$work/in"
converse --max-tokens 2
expect_code 0
expect_err "'$work/precious' is there already, and is no conversation"
expect_true "it is as it was" grep -qx precious "$work/precious"
expect_true "one error" test "$(wc -l <"$work/err")" -eq 1
expect_true "the empty one was" grep -q '^{"messages"' "$work/empty"

# A message that does not fit is refused; the conversation goes on.
{ awk 'BEGIN { for (i = 0; i < 700; i++) printf "word %d ", i }'; printf '\nHello!\n'; } >"$work/in"
converse
expect_code 2
expect_err "context"
expect_true "the next message was answered" grep -qF -- "$(cat "$work/hello")" "$work/out"

# Text that is no UTF-8 is refused, here as in JSON, with the place.
printf 'ab\377\nHello!\n' >"$work/in"
converse
expect_code 2
expect_err "the message is not UTF-8: byte 3 of it is 0xff"
expect_true "the next message was answered" grep -qF -- "$(cat "$work/hello")" "$work/out"

# A conversation in two parts says what it says in one, with the K/V pages of the first part and without.
printf 'Hello!\nWhat is your name?\nTell me a story.\n' >"$work/in"
converse
cp "$work/out" "$work/whole"
for cache in "" "--cache-dir $work/kv"; do
    rm -f "$work/talk.json"
    printf 'Hello!\nWhat is your name?\n' >"$work/in"
    converse --session "$work/talk.json" $cache
    expect_code 0
    cp "$work/out" "$work/parts"
    printf 'Tell me a story.\n' >"$work/in"
    converse --session "$work/talk.json" $cache
    expect_code 0
    expect_silent_err
    cat "$work/out" >>"$work/parts"
    expect_true "two parts say what the whole says" cmp -s "$work/parts" "$work/whole"
done
expect_true "K/V pages were kept" test "$(find "$work/kv" -name '*.qrun-kv' | wc -l)" -gt 3
converse --session "$work/talk.json" --system "You are kind."
expect_code 2
expect_err "leave --system out"
printf '/clear\n' >"$work/in"
converse --session "$work/talk.json"
expect_code 0
expect_true "/clear forgets what was saved" grep -qF '"messages":[]' "$work/talk.json"
for wrong in '' '{}' '{"messages":1}' '{"messages":[{"role":"user"}]}' '{"messages":[]} x'; do
    printf '%s' "$wrong" >"$work/talk.json"
    converse --session "$work/talk.json"
    expect_code 3
    expect_one_error_line
    expect_true "a file of something else stays" test "$(cat "$work/talk.json")" = "$wrong"
done

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
run chat --model "$model" --history x --no-history
expect_code 2
expect_one_error_line
mkdir "$work/untold"
cp "$model/config.json" "$model/model.safetensors" "$work/untold"
run chat --model "$work/untold"
expect_code 3
expect_one_error_line
expect_err "has no tokenizer.json"
finish

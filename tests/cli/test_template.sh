# What --system, --tools, --template-arg and --enable-thinking become in the chat template.
. "$QRUN_SOURCE/tests/cli/lib.sh"

cp -r "$model" "$work/model"
chmod -R u+w "$work/model"
cat >"$work/model/tokenizer_config.json" <<'JSON'
{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>",
 "chat_template": "tools={{ tools | tojson if tools else 'none' }};thinking={{ enable_thinking is defined and enable_thinking }};level={{ level | default('unset') }};who={{ who | default('unset') }};{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"}
JSON
echo '[{"type": "function", "function": {"name": "weather"}}]' >"$work/tools.json"

run tokenize --model "$work/model" --chat "Hello \"you\""
expect_code 0
expect_out 'tools=none;thinking=False;level=unset;who=unset;[user: Hello "you"]'
run tokenize --model "$work/model" --chat --system "Be kind." --tools "$work/tools.json" --enable-thinking true \
    --template-arg level=3 --template-arg "who=Ann Lee" Hi
expect_code 0
expect_out '"name": "weather"'
expect_out 'thinking=True;level=3;who=Ann Lee;[system: Be kind.][user: Hi]'
run tokenize --model "$work/model" --chat --enable-thinking=false --template-arg 'level={"a": [1, null]}' Hi
expect_out 'thinking=False;level={'

# generate takes the same; what its prompt became shows in the number of its tokens.
run tokenize --model "$work/model" --chat --system "Be kind." --tools "$work/tools.json" --template-arg level=3 --ids Hi
n_ids=$(wc -w <"$work/out")
run generate --model "$work/model" --chat --system "Be kind." --tools "$work/tools.json" --template-arg level=3 \
    --prompt Hi --max-tokens 1 --json
expect_code 0
expect_out "\"prompt_tokens\":$n_ids,"
echo '{"prompt": "Hi"}' >"$work/requests.jsonl"
run generate --model "$work/model" --chat --system "Be kind." --tools "$work/tools.json" --template-arg level=3 \
    --prompts "$work/requests.jsonl" --max-tokens 1
expect_code 0
expect_out "\"prompt_tokens\":$n_ids,"

# What a template has no place for is told, and only that.
expect_silent_err
cp "$work/model/tokenizer_config.json" "$work/tokenizer_config.json"
sed -i 's/"chat_template": ".*"}/"chat_template": "{% for m in messages if m.role == '"'user'"' %}{{ m.content }}{% endfor %}"}/' \
    "$work/model/tokenizer_config.json"
run generate --model "$work/model" --chat --system "Be kind." --tools "$work/tools.json" --prompt Hi --max-tokens 1
expect_code 0
expect_err "note: the model's chat template has no place for --tools, and leaves them out"
expect_err "note: the model's chat template has no place for --system, and leaves it out"
printf 'Hi\n' >"$work/hi"
run chat --model "$work/model" --system "Be kind." --max-tokens 1 <"$work/hi"
expect_code 0
expect_err "has no place for --system"
cp "$work/tokenizer_config.json" "$work/model/tokenizer_config.json"

# A template that fails says so.
sed -i 's/"chat_template": "/"chat_template": "{{ raise_exception('"'no talking'"') }}/' "$work/model/tokenizer_config.json"
run generate --model "$work/model" --chat --prompt Hi
expect_true "it failed" test "$code" -ne 0
expect_one_error_line
expect_err "no talking"
finish

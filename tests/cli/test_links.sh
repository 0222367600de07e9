# Files that are not what their name says: links, pipes, devices, names that somebody else has taken.
. "$QRUN_SOURCE/tests/cli/lib.sh"

secret=$work/secret
echo "a private key" >"$secret"
expect_secret() { expect_true "$1: the other file is unchanged" grep -qx "a private key" "$secret"; }

# A copy of the shipped model to spoil.
fresh() {
    rm -rf "$work/model" "$work/out-folder"
    cp -r "$model" "$work/model"
    chmod -R u+w "$work/model"
}

# limited ARGUMENTS…: run, which must end by itself.
limited() {
    last="qrun $*"
    timeout 20 "$QRUN" "$@" </dev/null >"$work/out" 2>"$work/err"
    code=$?
}

# ---- What is read ----

for name in config.json model.safetensors generation_config.json tokenizer.json tokenizer_config.json \
    special_tokens_map.json chat_template.jinja; do
    fresh
    rm -f "$work/model/$name"
    mkfifo "$work/model/$name"
    limited generate --model "$work/model" --prompt x --max-tokens 1
    expect_code 3
    expect_one_error_line
    expect_err "model/$name: is a pipe, not a file"
    rm "$work/model/$name"
    ln -s nothing "$work/model/$name"
    limited generate --model "$work/model" --prompt x --max-tokens 1
    expect_code 3
    expect_one_error_line
    expect_err "model/$name: cannot open"
    expect_err "symbolic link to a file that is not there"
done
fresh
rm "$work/model/config.json"
ln -s /dev/zero "$work/model/config.json"
limited plan --model "$work/model"
expect_code 3
expect_err "config.json: is a device, not a file"
fresh
mkfifo "$work/model/2.safetensors"
rm "$work/model/model.safetensors"
echo '{"weight_map": {"a": "2.safetensors"}}' >"$work/model/model.safetensors.index.json"
limited inspect "$work/model"
expect_code 3
expect_err "2.safetensors: is a pipe, not a file"

# What the user names himself may be a pipe, as <(…) makes one.
mkfifo "$work/prompts"
echo '{"prompt": "Once upon a time", "max_tokens": 2}' >"$work/prompts" &
limited generate --model "$model" --prompts "$work/prompts" --temperature 0
expect_code 0
wait
expect_true "the pipe's prompt is answered" test -s "$work/out"

# ---- What is written ----

for taken in out.jsonl.partial out.jsonl.partial.job; do
    ln -s "$secret" "$work/$taken"
    limited generate --model "$model" --prompt x --max-tokens 1 --output "$work/out.jsonl"
    expect_true "$taken is refused" test "$code" -ne 0
    expect_one_error_line
    expect_err "$taken"
    expect_true "$taken stays a link" test -L "$work/$taken"
    expect_secret "$taken"
    rm "$work/$taken"
    mkfifo "$work/$taken"
    limited generate --model "$model" --prompt x --max-tokens 1 --output "$work/out.jsonl"
    expect_true "a pipe $taken is refused" test "$code" -ne 0 -a "$code" -ne 124
    expect_one_error_line
    limited generate --model "$model" --prompt x --max-tokens 1 --output "$work/out.jsonl" --resume
    expect_true "a pipe $taken is not resumed" test "$code" -ne 124
    rm -f "$work/$taken" "$work/out.jsonl"
done
head -8 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
mkdir "$work/run"
ln -s "$secret" "$work/run/metrics.jsonl" # written as it grows
limited finetune --model "$model" --data "$work/train.jsonl" --out "$work/run" --seq-len 64 --rank 2 --max-steps 1
expect_true "metrics.jsonl is refused" test "$code" -ne 0
expect_err metrics.jsonl
expect_true "metrics.jsonl stays a link" test -L "$work/run/metrics.jsonl"
expect_secret metrics.jsonl
for taken in report.html trainer_state.json adapter_config.json adapter_model.safetensors; do
    rm -rf "$work/run"
    mkdir "$work/run"
    ln -s "$secret" "$work/run/$taken"
    limited finetune --model "$model" --data "$work/train.jsonl" --out "$work/run" --seq-len 64 --rank 2 --max-steps 1
    expect_code 0
    expect_true "$taken is replaced" test -f "$work/run/$taken" -a ! -L "$work/run/$taken"
    expect_secret "$taken"
done

# A link that the user names as the output is followed, also to what is not there yet.
mkdir "$work/elsewhere"
ln -s elsewhere/answers.jsonl "$work/link.jsonl"
for time in first second; do
    limited generate --model "$model" --prompt x --max-tokens 1 --output "$work/link.jsonl" --force
    expect_code 0
    expect_true "$time: the link stays" test -L "$work/link.jsonl"
    expect_jsonl "$work/elsewhere/answers.jsonl" 1
done
expect_true "nothing else is there" test "$(ls "$work/elsewhere")" = answers.jsonl

# ---- What is copied ----

# A model folder of somebody else's that points at a file of ours.
for name in LICENSE.x NOTICE tokenizer.json chat_template.x spiece.model generation_config.json; do
    fresh
    cp "$model/generation_config.json" "$secret.json"
    rm -f "$work/model/$name"
    ln -s "$secret.json" "$work/model/$name"
    [ "$name" != tokenizer.json ] || cp "$model/tokenizer.json" "$secret.json"
    limited quantize --model "$work/model" --out "$work/out-folder"
    expect_code 3
    expect_one_error_line
    expect_err "model/$name: is a symbolic link out of the model's folder"
    expect_true "$name: nothing is written" test ! -e "$work/out-folder"
done
fresh
ln -s nothing "$work/model/LICENSE"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 3
expect_err "model/LICENSE: cannot open"
fresh
mkfifo "$work/model/LICENSE"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 3
expect_err "model/LICENSE: is a pipe"
adapter=$work/run
fresh
ln -s "$secret" "$work/model/LICENSE.x"
limited merge --model "$work/model" --adapter "$adapter" --out "$work/out-folder"
expect_code 3
expect_err "LICENSE.x: is a symbolic link out of the model's folder"

# The folder of more templates is copied too, under the same rule.
fresh
mkdir "$work/model/additional_chat_templates" "$work/foreign"
echo "{{ tools }}" >"$work/model/additional_chat_templates/tool_use.jinja"
echo "not a template" >"$work/model/additional_chat_templates/notes"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 0
expect_true "the template for tools is copied, and nothing else" \
    test "$(cd "$work/out-folder" && ls -A additional_chat_templates)" = tool_use.jinja
expect_true "as it is" cmp -s "$work/model/additional_chat_templates/tool_use.jinja" \
    "$work/out-folder/additional_chat_templates/tool_use.jinja"
rm -rf "$work/out-folder"
ln -s "$secret" "$work/model/additional_chat_templates/rag.jinja"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 3
expect_err "additional_chat_templates/rag.jinja: is a symbolic link out of the model's folder"
expect_true "nothing is left" test "$(ls -A "$work" | grep -c out-folder)" -eq 0
fresh
cp "$secret" "$work/foreign/tool_use.jinja"
ln -s ../foreign "$work/model/additional_chat_templates"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 3
expect_err "tool_use.jinja: is a symbolic link out of the model's folder"

# Links inside the folder are followed, and so are those of the hub's cache, whose files lie in blobs.
fresh
mv "$work/model/tokenizer.json" "$work/model/the-tokenizer"
ln -s the-tokenizer "$work/model/tokenizer.json"
limited quantize --model "$work/model" --out "$work/out-folder"
expect_code 0
expect_true "the file itself is copied" cmp -s "$work/out-folder/tokenizer.json" "$model/tokenizer.json"
expect_true "and is no link" test ! -L "$work/out-folder/tokenizer.json"
repository=$work/hub/models--o--m
commit=0123456789abcdef0123456789abcdef01234567
mkdir -p "$repository/snapshots/$commit" "$repository/blobs" "$repository/refs"
echo "a licence" >"$work/LICENSE"
for file in "$model"/*.json "$model/model.safetensors" "$work/LICENSE"; do
    cp "$file" "$repository/blobs/blob-of-${file##*/}"
    ln -s "../../blobs/blob-of-${file##*/}" "$repository/snapshots/$commit/${file##*/}"
done
printf '%s' "$commit" >"$repository/refs/main"
ln -s "hub/models--o--m/snapshots/$commit" "$work/link-to-snapshot"
for path in "$repository/snapshots/$commit" "$work/link-to-snapshot"; do
    rm -rf "$work/out-folder"
    limited quantize --model "$path" --out "$work/out-folder"
    expect_code 0
    expect_true "the blobs are copied" cmp -s "$work/out-folder/LICENSE" "$work/LICENSE"
done
HF_HUB_CACHE=$work/hub limited quantize --model o/m --out "$work/out-of-id"
expect_code 0
# A snapshot may point at the blobs of its own model alone.
ln -s "$secret" "$repository/snapshots/$commit/NOTICE"
rm -rf "$work/out-folder"
limited quantize --model "$repository/snapshots/$commit" --out "$work/out-folder"
expect_code 3
expect_err "NOTICE: is a symbolic link out of the model's folder"
finish

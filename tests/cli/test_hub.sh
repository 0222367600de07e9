# Models and adapters by their ids, in a cache as huggingface_hub makes it.
. "$QRUN_SOURCE/tests/cli/lib.sh"

unset HUGGINGFACE_HUB_CACHE HF_HOME XDG_CACHE_HOME
HF_HUB_CACHE="$work/cache"
export HF_HUB_CACHE
commit=0123456789abcdef0123456789abcdef01234567

# cached ORG NAME FOLDER: the files of the folder as a snapshot of main, through links to blobs.
cached() {
    into="$HF_HUB_CACHE/models--$1--$2"
    mkdir -p "$into/refs" "$into/blobs" "$into/snapshots/$commit"
    printf '%s' "$commit" >"$into/refs/main"
    for file in "$3"/*; do
        [ -f "$file" ] || continue
        cp "$file" "$into/blobs/$(basename "$file").blob"
        ln -s "../../blobs/$(basename "$file").blob" "$into/snapshots/$commit/$(basename "$file")"
    done
}
cached org tiny "$model"

run generate --model org/tiny --prompt "The sea" --max-tokens 4 --temperature 0
expect_code 0
cp "$work/out" "$work/expected"
for id in org/tiny@main org/tiny@0123456789 "org/tiny@$commit"; do
    run generate --model "$id" --prompt "The sea" --max-tokens 4 --temperature 0
    expect_code 0
    expect_true "$id gives the same" cmp -s "$work/out" "$work/expected"
done
run generate --model org/tiny@v2 --prompt x
expect_code 3
expect_one_error_line
expect_err 'is in the cache, but not its revision v2; get it with: hf download org/tiny --revision v2'
run generate --model org/other --prompt x
expect_code 3
expect_err "get it with: hf download org/other"

# The adapter says which model it is of by id and commit, and the run's file too: never a path of this machine.
run finetune --model org/tiny --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 --rank 2 --max-steps 1 \
    --out "$work/adapter" --quiet
expect_code 0
expect_true "the id" grep -q '"base_model_name_or_path": "org/tiny"' "$work/adapter/adapter_config.json"
expect_true "the commit" grep -q "\"revision\": \"$commit\"" "$work/adapter/adapter_config.json"
expect_true "the run is of that commit" grep -qx "model: \"org/tiny@$commit\"" "$work/adapter/run.yaml"
expect_true "no path of the cache" sh -c "! grep -q '$work/cache' '$work/adapter/adapter_config.json' '$work/adapter/run.yaml'"
run finetune --config "$work/adapter/run.yaml" --out "$work/again" --quiet
expect_code 0
expect_true "the same adapter" cmp -s "$work/adapter/adapter_model.safetensors" "$work/again/adapter_model.safetensors"

# vLLM has the revision as an option of its own.
run finetune --model org/tiny@main --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 --rank 2 --max-steps 1 \
    --out "$work/of-main"
expect_code 0
expect_out "vLLM       vllm serve org/tiny --revision main --enable-lora --lora-modules of-main=$work/of-main"
expect_out "GGUF       qrun export --model org/tiny@main --adapter $work/of-main"

# Revisions that are none.
for id in org/tiny@ org/tiny@../../x org/tiny@main@v2 org/tiny@-x "org/tiny@a b" org/tiny@deadbeef org/tiny@refs/pr/1 \
    org/tiny@.. "org/ti
ny@x"; do
    run generate --model "$id" --prompt x
    expect_code 3
    expect_one_error_line
done
printf 'not a commit' >"$HF_HUB_CACHE/models--org--tiny/refs/odd"
run generate --model org/tiny@odd --prompt x
expect_code 3
expect_one_error_line
expect_err "does not hold a commit; download the model again"
printf '%040d' 0 >"$HF_HUB_CACHE/models--org--tiny/refs/gone"
run generate --model org/tiny@gone --prompt x
expect_code 3
expect_one_error_line
expect_err "is not there, though a revision names it; download the model again"

# An adapter by id, for each command that takes one.
cached me pirate "$work/adapter"
run generate --model org/tiny --adapter me/pirate@main --adapter other="$work/adapter" --prompt "Hi" --max-tokens 3
expect_code 0
printf '{"prompt": "Hi", "max_tokens": 2, "adapter": "pirate"}\n' >"$work/requests.jsonl"
run generate --model org/tiny --adapter me/pirate@main --prompts "$work/requests.jsonl"
expect_code 0
expect_jsonl "$work/out" 1
expect_true "its name is the id's" sh -c "! grep -q error '$work/out'"
run merge --model org/tiny --adapter me/pirate --out "$work/merged"
expect_code 0
run finetune --model org/tiny --adapter me/pirate --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 \
    --max-steps 1 --out "$work/further" --quiet
expect_code 0
run generate --model org/tiny --adapter me/nobody --prompt x
expect_code 3
expect_one_error_line
expect_err "get it with: hf download me/nobody"

# What a broken-off download lacks.
cached org parts "$model"
parts="$HF_HUB_CACHE/models--org--parts/snapshots/$commit"
rm "$parts/model.safetensors"
run generate --model org/parts --prompt x
expect_code 3
expect_err "complete the download with: hf download org/parts --revision $commit"
printf '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}' >"$parts/model.safetensors.index.json"
cp "$model/model.safetensors" "$parts/model-1.safetensors"
run generate --model org/parts --prompt x
expect_code 3
expect_one_error_line
expect_err "1 of its 2 files of weights is missing: model-2.safetensors; complete the download with: hf download org/parts"
finish

# qrun finetune: everything that a user gets wrong, and every way in which files go bad, is one clear line; nothing that
# was there before is lost.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -16 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# shellcheck disable=SC2046 # words of options
finetune() { run finetune --model "$model" $(unless_given "--seq-len 64 --rank 2 --threads 1" "$@") "$@"; }

# refused CODE TEXT ARGUMENTS…: with this exit code and one line that has the text.
refused() {
    expected=$1
    text=$2
    shift 2
    finetune "$@"
    expect_code "$expected"
    expect_one_error_line
    expect_err "$text"
}

# ---- Paths ----

refused 3 "no-such" --data "$work/no-such.jsonl" --out "$work/o"
mkdir "$work/folder"
refused 3 "$work/folder" --data "$work/folder" --out "$work/o"
run finetune --model "$work/nothing" --data "$work/train.jsonl" --out "$work/o"
expect_code 3
expect_one_error_line
run finetune --model "$work/folder" --data "$work/train.jsonl" --out "$work/o"
expect_code 3
expect_one_error_line
expect_err "config.json"
: >"$work/file"
refused 3 "not a folder" --data "$work/train.jsonl" --out "$work/file"
refused 3 "$work/file" --data "$work/train.jsonl" --out "$work/file/below"
refused 3 "--out" --data "$work/train.jsonl" --out "$model"
refused 3 "--out" --data "$work/train.jsonl" --out "$model/../model/"
expect_true "the model's folder stays as it was" test ! -e "$model/tokens" -a ! -e "$model/metrics.jsonl"
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$work/locked" && chmod 500 "$work/locked"
    refused 3 "permission" --data "$work/train.jsonl" --out "$work/locked/o"
    refused 3 "permission" --data "$work/train.jsonl" --out "$work/locked"
    : >"$work/secret" && chmod 000 "$work/secret"
    refused 3 "permission" --data "$work/secret" --out "$work/o"
elif [ -d /proc/self/task ]; then
    refused 3 "/proc" --data "$work/train.jsonl" --out /proc/qrun # takes no folders from anyone
fi
cp -r "$model" "$work/no-tokenizer" && rm "$work/no-tokenizer/tokenizer.json"
run finetune --model "$work/no-tokenizer" --data "$work/train.jsonl" --out "$work/o"
expect_code 3
expect_one_error_line
expect_err "tokenizer.json"

# ---- Data ----

: >"$work/empty.jsonl"
refused 3 "empty.jsonl" --data "$work/empty.jsonl" --out "$work/o"
printf '\n \n\n' >"$work/blank.jsonl"
refused 3 "blank.jsonl" --data "$work/blank.jsonl" --out "$work/o"
head -c 5000 "$model/model.safetensors" >"$work/binary.jsonl"
refused 3 "binary.jsonl" --data "$work/binary.jsonl" --out "$work/o"
printf 'PAR1\0\0\0\0' >"$work/train.parquet"
refused 3 "train.parquet" --data "$work/train.parquet" --out "$work/o"
printf '{"prompt": "a", "completion": "b"}\n\377\376{"x"\n' >"$work/utf8.jsonl"
refused 3 "2" --data "$work/utf8.jsonl" --out "$work/o"
printf '{"question_text": "a", "reply": "b"}\n' >"$work/keys.jsonl"
refused 3 "keys.jsonl" --data "$work/keys.jsonl" --out "$work/o"
printf '{"messages": [{"role": "user", "content": "Hello"}]}\n' >"$work/nothing.jsonl"
refused 3 "no token is a target" --data "$work/nothing.jsonl" --out "$work/o"
printf '"only a string"\n' >"$work/string.jsonl"
refused 3 "string.jsonl" --data "$work/string.jsonl" --out "$work/o"
printf '[{"text": "one"}, {"text": "tw' >"$work/cut.json"
refused 3 "cut.json" --data "$work/cut.json" --out "$work/o"
refused 3 "empty.jsonl" --data "$work/train.jsonl" --eval-data "$work/empty.jsonl" --out "$work/o"

# One bad line among thousands.
for i in 1 2 3 4 5 6 7 8; do
    for j in 0 1 2 3 4 5 6 7 8 9; do
        for k in 0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o; do
            echo "{\"prompt\": \"Count $i $j\", \"completion\": \"$k\"}"
        done
    done
done >"$work/many.jsonl"
sed '1777s/}$//' "$work/many.jsonl" >"$work/one-bad.jsonl"
refused 3 "1777" --data "$work/one-bad.jsonl" --out "$work/o" --max-steps 1
expect_err "--skip-bad"
finetune --data "$work/one-bad.jsonl" --out "$work/skipped" --max-steps 1 --skip-bad
expect_code 0
expect_out "1999 examples"
expect_true "what was refused left no adapter" test ! -e "$work/o/adapter_config.json"

# ---- A second run in the same folder ----

run_long() {
    "$QRUN" finetune --model "$model" --seq-len 64 --rank 2 --threads 1 --data "$work/train.jsonl" --max-steps 100000 \
        --json --out "$work/busy" >"$work/busy.out" 2>"$work/busy.err"
}
run_long &
first=$!
tries=0
while ! grep -q '"step"' "$work/busy.out" 2>/dev/null && [ $tries -lt 1000 ]; do
    sleep 0.02
    tries=$((tries + 1))
done
refused 3 "another run is using this folder" --data "$work/train.jsonl" --out "$work/busy"
kill -TERM $(pgrep -P "$first") 2>/dev/null || kill -TERM "$first"
wait "$first"

# ---- Files of others in the folder ----

mkdir "$work/others"
printf '{"loss": 1.5, "step": 10}\n{"loss": 1.2, "step": 20}\n' >"$work/others/metrics.jsonl"
cp "$work/others/metrics.jsonl" "$work/metrics-of-others"
refused 3 "lines that are not qrun's" --quiet --data "$work/train.jsonl" --out "$work/others" --max-steps 1
refused 3 "lines that are not qrun's" --quiet --data "$work/train.jsonl" --out "$work/others" --max-steps 1 --restart
expect_true "its lines stay" cmp -s "$work/metrics-of-others" "$work/others/metrics.jsonl"

# ---- Checkpoints that are not whole, or of another run ----

good="--data $work/train.jsonl --max-steps 6 --save-every 2 --keep 3 --out"
# shellcheck disable=SC2086 # words of options
finetune $good "$work/whole" --quiet
expect_code 0
stop_at_4() { # a run of which steps 5 and 6 are still to be done
    rm -rf "$work/c"
    cp -r "$work/whole" "$work/c"
    rm -r "$work/c/checkpoint-6" "$work/c/adapter_model.safetensors"
}
stop_at_4
# shellcheck disable=SC2086
finetune $good "$work/c"
expect_code 0
expect_out "Resuming after step 4"
expect_true "it ends as the whole run" cmp -s "$work/whole/adapter_model.safetensors" "$work/c/adapter_model.safetensors"

# damaged NAME COMMAND…: after the command on checkpoint-4 the run refuses, and loses nothing; without it, it goes on.
damaged() {
    name=$1
    shift
    stop_at_4
    (cd "$work/c/checkpoint-4" && "$@")
    find "$work/c" -type f -exec cksum {} + | sort >"$work/before"
    # shellcheck disable=SC2086
    refused 3 "$name" $good "$work/c"
    expect_err "checkpoint of step 4 is damaged"
    expect_err "continue from checkpoint-2"
    find "$work/c" -type f -exec cksum {} + | sort >"$work/after"
    expect_true "nothing is lost" cmp -s "$work/before" "$work/after"
    rm -r "$work/c/checkpoint-4"
    # shellcheck disable=SC2086
    finetune $good "$work/c"
    expect_code 0
    expect_out "Resuming after step 2"
    expect_true "it ends as the whole run" cmp -s "$work/whole/adapter_model.safetensors" \
        "$work/c/adapter_model.safetensors"
}
cut_in_half() { head -c "$(($(wc -c <"$1") / 2))" "$1" >"$1.cut" && mv "$1.cut" "$1"; }
flip_last() { # the last byte becomes another
    size=$(wc -c <"$1")
    head -c $((size - 1)) "$1" >"$1.new" && printf 'U' >>"$1.new" && mv "$1.new" "$1"
}
damaged state.safetensors cut_in_half state.safetensors
damaged state.safetensors flip_last state.safetensors
damaged state.json cut_in_half state.json
damaged state.json rm state.json
damaged run.json cut_in_half run.json
damaged run.json rm run.json
damaged "step 5" sed -i 's/"step":4/"step":5/' state.json
# The state of another run, as of a copy that was interrupted.
# shellcheck disable=SC2086
finetune $good "$work/second" --quiet --seed 7
expect_code 0
damaged "run.json: its checksum is not that of state.json" cp "$work/second/checkpoint-4/state.json" \
    "$work/second/checkpoint-4/state.safetensors" .
damaged version sed -i 's/"version":1,//' state.json

# another TEXT OPTIONS…: a checkpoint is there, of a run with other options.
another() {
    text=$1
    shift
    stop_at_4
    # shellcheck disable=SC2046
    refused 3 "$text" $(unless_given "$good $work/c" "$@") "$@"
    expect_err "was made by another run"
    expect_err "--restart"
}
another "rank is 3 here and 2 there" --rank 3
another "seed is 9 here and 0 there" --seed 9
another "learning rate is 0.001 here and 0.0002 there" --learning-rate 1e-3
another "total steps is 5 here and 6 there" --max-steps 5
another "seq tokens is 48 here and 64 there" --seq-len 48
another "rslora is on here and off there" --rslora
another "optimizer is sgd here and adamw there" --optimizer sgd
another "schedule is cosine here and linear there" --schedule cosine
another "head is int8 here and the default there" --quant-head int8
another "weights is" --quant nf4
another "compute is" --dtype f32
sed 's/arr/Arr/' "$work/train.jsonl" >"$work/other.jsonl"
another "the data differ" --data "$work/other.jsonl"

# Weights that are not the same, in a model of the same shape.
cp -r "$model" "$work/other-model"
flip_last "$work/other-model/model.safetensors"
stop_at_4
# shellcheck disable=SC2086
run finetune --model "$work/other-model" --seq-len 64 --rank 2 --threads 1 $good "$work/c"
expect_code 3
expect_one_error_line
expect_err "the model's weights differ"

# The same weights with another config.json. A checkpoint of an earlier version does not say what its own was.
cp -r "$model" "$work/other-config"
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.01/' "$work/other-config/config.json"
stop_at_4
# shellcheck disable=SC2086
run finetune --model "$work/other-config" --seq-len 64 --rank 2 --threads 1 $good "$work/c"
expect_code 3
expect_one_error_line
expect_err "the model's config.json differs"
expect_true "a checkpoint says what config.json was" grep -q '"config":"[0-9a-f]*",' "$work/c/checkpoint-4/run.json"
sed -i 's/"config":"[0-9a-f]*",//' "$work/c/checkpoint-4/run.json"
sed -i 's/,"run_checksum":"[0-9a-f]*"//' "$work/c/checkpoint-4/state.json"
# shellcheck disable=SC2086
finetune $good "$work/c"
expect_code 0

# ---- An adapter of another model ----

run generate --model "$model" --adapter "$QRUN_SOURCE/tests/fixtures/adapters/llama-lora" --prompt x
expect_code 3
expect_one_error_line
expect_err "llama-lora"

# LoRA on the image encoder would be lost.
cp -r "$QRUN_SOURCE/tests/fixtures/models/qwen2_5-vl" "$work/vision"
cp "$QRUN_SOURCE/tests/fixtures/tokenizers/affixes/tokenizer.json" "$work/vision"
echo '{"text": "Once upon a time"}' >"$work/text.jsonl"
run finetune --model "$work/vision" --data "$work/text.jsonl" --max-steps 1 --threads 1 --out "$work/v" \
    --adapter "$QRUN_SOURCE/tests/fixtures/adapters/qwen2_5-vl-visual"
expect_code 3
expect_err "adapts 7 layers, and the run would train 6 of them: not model.visual.blocks.0.mlp.down_proj;"

# ---- A disk that is full ----

# A file system of so many KiB of its own, where the machine lets us have one; otherwise only files have a limit.
cat >"$work/on-full-disk" <<'END'
mount -t tmpfs -o size="$1"k none "$2" || exit 77
shift 2
exec "$@"
END
if unshare -Urm sh "$work/on-full-disk" 100 "$work/folder" true 2>/dev/null; then
    last="qrun finetune, on a file system of some hundred KiB"
    for size in 24 60 120 200; do
        unshare -Urm sh "$work/on-full-disk" $size "$work/folder" sh "$QRUN_SOURCE/tests/cli/full_disk.sh" \
            "$work/folder/o" "$work/listing" "$QRUN" finetune --model "$model" --seq-len 64 --rank 2 --threads 1 \
            --data "$work/train.jsonl" --max-steps 6 --save-every 1 --quiet >"$work/out" 2>"$work/err"
        code=$?
        expect_code 3
        expect_one_error_line
        expect_err "No space left on device"
        expect_true "nothing half is left" sh -c "! grep -q partial '$work/listing'"
    done
else
    echo "note: no file system of our own here; tests/crash has full disks without one"
fi
# A run that diverges: the steps are skipped and named, five in a row end it, and what was saved before is still there.
finetune --data "$work/train.jsonl" --out "$work/diverged" --max-steps 40 --learning-rate 100 --weight-decay 1 \
    --schedule constant --save-every 1 --keep 100
expect_true "a run that diverges ends" test "$code" -ne 0
expect_err "skipped: its"
expect_err "lora_"
expect_err "stopped after 5 skipped steps in a row"
expect_true "its first checkpoint is there" test -f "$work/diverged/checkpoint-1/adapter_model.safetensors"
finish

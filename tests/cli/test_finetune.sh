# qrun finetune: from examples to an adapter that generate uses; bad data; stopping and going on.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
tail -6 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/eval.jsonl"

# finetune ARGUMENTS…: of the shipped model, small and quick.
usual="--seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3"
# shellcheck disable=SC2046 # words of options
finetune() { run finetune --model "$model" $(unless_given "$usual" "$@") "$@"; }

# member FILE KEY: the number that the last line with KEY gives it.
member() { sed -n "s/.*\"$2\":\\([-0-9.e+]*\\).*/\\1/p" "$1" | tail -1; }
first_member() { sed -n "s/.*\"$2\":\\([-0-9.e+]*\\).*/\\1/p" "$1" | head -1; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && b != "" && a + 0 < b + 0) }'; }

# ---- What is refused ----

run finetune --data x --out y
expect_code 2
expect_err "no model"
for wrong in "no data|--out y" "--out|--data x" \
    "exclude each other|--data x --out y --eval-data z --eval-split 0.1" \
    "needs --eval-data|--data x --out y --eval-every 5" "did you mean 'cosine'|--schedule cosin" \
    "one of: adamw|--optimizer lion" "number from|--learning-rate 0" "number from|--rank 0" "number from|--eval-split 1" \
    "number from|--lora-dropout 1" \
    "such as 6GiB|--memory lots" "whole number|--batch-size 1.5" "has no option '--dropout'|--dropout 0.1" \
    "options of adapters|--data x --out y --full --rank 4" "options of adapters|--data x --out y --full --train-head" \
    "leave --quant|--data x --out y --full --quant nf4" "needs --full|--data x --out y --init random" \
    "needs --init random|--data x --out y --full --init-embedding-std 0.1"; do
    # shellcheck disable=SC2086 # words of the list
    run finetune --model "$model" ${wrong#*|}
    expect_code 2
    expect_one_error_line
    expect_err "${wrong%%|*}"
done

# ---- Whole models, whole modules ----

mkdir "$work/start"
cp "$model/config.json" "$model/tokenizer.json" "$model/tokenizer_config.json" "$work/start/"
run finetune --model "$work/start" --data "$work/train.jsonl" --full --init random --max-steps 3 --seq-len 64 \
    --out "$work/made"
expect_code 0
expect_out "The model is in '$work/made'"
expect_out "master weights"
run generate --model "$work/made" --prompt Hello --max-tokens 3
expect_code 0
run finetune --model "$work/start" --data "$work/train.jsonl" --full --max-steps 3 --seq-len 64 --out "$work/none"
expect_code 3
expect_one_error_line
finetune --data "$work/train.jsonl" --train-head --modules-to-save norm --max-steps 2 --out "$work/headed"
expect_code 0
expect_true "the adapter says which modules it brings" grep -q '"lm_head"' "$work/headed/adapter_config.json"
run generate --model "$model" --adapter "$work/headed" --prompt Hello --max-tokens 3
expect_code 0

# ---- Tokens added to the tokenizer ----

cp -r "$model" "$work/added"
sed 's/"added_tokens": \[/&{"id": 2048, "content": "<fox>"},/' "$model/tokenizer.json" >"$work/added/tokenizer.json"
for i in 1 2 3 4 5 6 7 8; do
    echo "{\"prompt\": \"The animal number $i is \", \"completion\": \"<fox> and says hello\"}"
done >"$work/new.jsonl"
run finetune --model "$work/added" --data "$work/new.jsonl" --seq-len 64 --max-steps 2 --train-head --out "$work/none"
expect_code 3
expect_one_error_line
expect_err "line 1: has the token \"<fox>\" (2048)"
expect_err "--modules-to-save embed_tokens,lm_head"
run finetune --model "$work/added" --data "$work/new.jsonl" --seq-len 64 --max-steps 40 --learning-rate 5e-3 --rank 4 \
    --modules-to-save embed_tokens,lm_head --out "$work/fox"
expect_code 0
run generate --model "$work/added" --adapter "$work/fox" --prompt "The animal number 3 is " --max-tokens 4 --temperature 0
expect_code 0
expect_out "<fox> and"
run generate --model "$work/added" --prompt "A <fox> is" --max-tokens 4
expect_code 3
expect_one_error_line
expect_err "the token \"<fox>\" (2048)"
run generate --model "$model" --adapter "$work/fox" --prompt "A" --max-tokens 4
expect_code 3
expect_one_error_line
expect_err "tables of 2049 tokens"
run finetune --model "$work/added" --data "$work/new.jsonl" --seq-len 64 --max-steps 2 --full --out "$work/foxes"
expect_code 0
expect_true "config.json has the new vocabulary" grep -q '"vocab_size": 2049' "$work/foxes/config.json"

finetune --data "$work/absent.jsonl" --out "$work/none"
expect_code 3
expect_one_error_line
expect_err "absent.jsonl"
: >"$work/empty.jsonl"
finetune --data "$work/empty.jsonl" --out "$work/none"
expect_code 3
expect_one_error_line
expect_err "empty.jsonl"
finetune --data "$work/train.jsonl" --out "$work/none" --seq-len 100000
expect_code 2
expect_one_error_line
finetune --data "$work/train.jsonl" --out "$work/none" --target-modules z_proj
expect_true "targets that the model has not are refused" test "$code" -ne 0
expect_err "z_proj"
# One name of several that matches nothing.
finetune --data "$work/train.jsonl" --out "$work/none" --target-modules q_proj,v_prj
expect_true "targets that the model has not are refused" test "$code" -ne 0
expect_err "v_prj\"; did you mean v_proj?"
expect_err "it has q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
finetune --data "$work/train.jsonl" --out "$work/none" --memory 3MiB
expect_code 4
expect_one_error_line
finetune --data "$work/train.jsonl" --out "$work/train.jsonl/out"
expect_code 3
expect_one_error_line

# One broken line is named; --skip-bad counts it.
sed '7s/.*/{"messages": [{"role": "user"/' "$work/train.jsonl" >"$work/broken.jsonl"
finetune --data "$work/broken.jsonl" --out "$work/broken" --max-steps 1
expect_code 3
expect_one_error_line
expect_err "broken.jsonl"
expect_err "7"
finetune --data "$work/broken.jsonl" --out "$work/broken" --max-steps 1 --skip-bad
expect_code 0
expect_out "bad lines   1"
expect_out "23 examples"

# ---- The mask ----

finetune --data "$work/train.jsonl" --out "$work/mask" --show-mask 2
expect_code 0
expect_silent_err
expect_out "«Ahoy, matey!"
expect_true "two examples" test "$(grep -c '^--- example' "$work/out")" -eq 2
expect_true "questions are no targets" sh -c "! grep -q '«Hello' '$work/out'"
expect_true "nothing is written" test ! -e "$work/mask"
mkdir "$work/tmp"
cp "$work/out" "$work/shown"
export TMPDIR="$work/tmp"
finetune --data "$work/train.jsonl" --show-mask 2
expect_code 0
expect_true "--out is not needed" cmp -s "$work/out" "$work/shown"
expect_true "and nothing is left" test -z "$(ls -A "$work/tmp")"
export TMPDIR="$work/no-such-place"
finetune --data "$work/train.jsonl" --show-mask 2
expect_code 3
expect_one_error_line
expect_err "TMPDIR"
unset TMPDIR

# What is set aside for evaluation is none of an epoch's tokens.
finetune --data "$work/train.jsonl" --max-steps 1 --out "$work/all" --json
whole=$(sed -n 's/.*"tokens":\([0-9]*\),"target_tokens".*/\1/p' "$work/out" | head -1)
finetune --data "$work/train.jsonl" --max-steps 1 --out "$work/split" --eval-split 0.25 --json
part=$(sed -n 's/.*"tokens":\([0-9]*\),"target_tokens".*/\1/p' "$work/out" | head -1)
expect_true "$part tokens are fewer than $whole" test "$part" -gt 0 -a "$part" -lt "$whole"

# ---- A run ----

steps=24
finetune --data "$work/train.jsonl" --eval-data "$work/eval.jsonl" --eval-every 10 --save-every 10 --keep 1 \
    --max-steps $steps --warmup 2 --schedule cosine --out "$work/a b"
expect_code 0
expect_silent_err
expect_out "messages, 24 examples"
expect_out "targets"
expect_out "in all"
expect_out "used at most"
expect_true "a line says how to use the adapter" \
    grep -q "To use it: qrun generate --model .* --adapter '$work/a b' --chat" "$work/out"
expect_jsonl "$work/a b/metrics.jsonl" $((steps + 3))
expect_true "the loss falls" less "$(member "$work/a b/metrics.jsonl" loss)" \
    "$(first_member "$work/a b/metrics.jsonl" loss)"
expect_true "the loss of the evaluation falls" less "$(member "$work/a b/metrics.jsonl" eval_loss)" \
    "$(first_member "$work/a b/metrics.jsonl" loss)"
for key in step epoch loss learning_rate grad_norm tokens tokens_per_second seconds peak_bytes; do
    expect_true "metrics have $key" grep -q "\"$key\":" "$work/a b/metrics.jsonl"
done
for file in adapter_config.json adapter_model.safetensors trainer_state.json report.html; do
    expect_true "$file is there" test -s "$work/a b/$file"
done
expect_true "one checkpoint is kept" test "$(ls -d "$work/a b/checkpoint-"* | wc -l)" -eq 1
expect_true "no half files" sh -c "! ls '$work/a b' | grep -q partial"
tr '\n' ' ' <"$work/a b/trainer_state.json" >"$work/state.jsonl" && echo >>"$work/state.jsonl"
expect_jsonl "$work/state.jsonl" 1
for key in log_history global_step max_steps epoch num_input_tokens_seen total_flos best_metric train_batch_size; do
    expect_true "trainer_state.json has $key" grep -q "\"$key\": " "$work/a b/trainer_state.json"
done
report="$work/a b/report.html"
expect_true "the report says in words what happened" grep -Eq '<p>The loss (fell|rose) from [0-9.]+ to [0-9.]+ in [0-9]+ steps\. The evaluation was' "$report"
expect_true "the report has its day" grep -q "written on $(date -u +%Y-%m-%d)" "$report"
expect_true "no cell is empty" sh -c "! grep -q '<td></td>' '$report'"
expect_true "every chart has values under the pointer" test "$(grep -c '<svg' "$report")" -eq "$(grep -c '<title>step 1$' "$report")"
for title in Loss "Learning rate" "Gradient norm" "Tokens per second" Memory; do
    expect_true "the report shows $title" grep -q "$title" "$report"
done
expect_true "the report has charts" test "$(grep -c '<svg' "$report")" -eq 5
expect_true "the report loads nothing and runs nothing" sh -c "! grep -qiE '<script|https?://|src=|url\\(' '$report'"
expect_true "the report knows dark" grep -q "prefers-color-scheme:dark" "$report"

# The same command again: there is nothing left to do, and the adapter stays.
cp "$work/a b/adapter_model.safetensors" "$work/adapter"
finetune --data "$work/train.jsonl" --eval-data "$work/eval.jsonl" --eval-every 10 --save-every 10 --keep 1 \
    --max-steps $steps --warmup 2 --schedule cosine --out "$work/a b"
expect_code 0
expect_out "All steps are done"
expect_true "the adapter is the same" cmp -s "$work/adapter" "$work/a b/adapter_model.safetensors"
expect_jsonl "$work/a b/metrics.jsonl" $((steps + 3))

# F16: the loss scale is in every line; steps that overflow while it is found are told, and are no errors.
for i in 1 2 3 4 5 6; do printf '{"prompt": "Once, number %s: ", "completion": "Zq"}\n' $i; done >"$work/improbable.jsonl"
finetune --data "$work/improbable.jsonl" --dtype f16 --batching group --batch-tokens 20 --max-steps 8 --out "$work/f16"
expect_code 0
expect_true "each step has its loss scale" test "$(grep -c '"loss_scale":' "$work/f16/metrics.jsonl")" -eq 8
expect_true "the first overflows at 65536" \
    sh -c "head -1 '$work/f16/metrics.jsonl' | grep -q '\"loss_scale\":65536.*\"skipped\":true,\"overflowed\":true'"
expect_err "overflowed at a loss scale of 65536, which is lowered"
expect_true "the last one does not" sh -c "tail -1 '$work/f16/metrics.jsonl' | grep -qv '\"skipped\":'"
n_skipped=$(grep -c '"overflowed":true' "$work/f16/metrics.jsonl")
expect_true "skipped steps are counted" sh -c "tail -1 '$work/f16/metrics.jsonl' | grep -q '\"skipped_steps\":$n_skipped,'"
expect_true "trainer_state.json has the scale" grep -q '"loss_scale": 65536' "$work/f16/trainer_state.json"
expect_true "the report has the scale" grep -q "loss scale" "$work/f16/report.html"
expect_true "BF16 has none" sh -c "! grep -q loss_scale '$work/a b/metrics.jsonl'"

# Another scale: a constant one, one that moves as it is told, and one that is hopeless.
improbable="--batching group --batch-tokens 20"
# shellcheck disable=SC2086 # words of options
finetune --data "$work/improbable.jsonl" --dtype f16 $improbable --max-steps 4 --loss-scale 256 --out "$work/constant"
expect_code 0
expect_silent_err
expect_true "it is constant" test "$(grep -c '"loss_scale":256,"skipped_steps":0,' "$work/constant/metrics.jsonl")" -eq 4
expect_true "run.yaml has it" grep -qx 'loss-scale: *256' "$work/constant/run.yaml"
# shellcheck disable=SC2086
finetune --data "$work/improbable.jsonl" $improbable --max-steps 6 --loss-scale dynamic --loss-scale-initial 8 \
    --loss-scale-growth 4 --loss-scale-window 2 --out "$work/moving"
expect_code 0
sed -n 's/.*"loss_scale":\([0-9]*\).*/\1/p' "$work/moving/metrics.jsonl" | tr '\n' ' ' >"$work/scales"
expect_true "it grows after two steps each" test "$(cat "$work/scales")" = "8 8 32 32 128 128 "
# shellcheck disable=SC2086
finetune --data "$work/improbable.jsonl" --dtype f16 $improbable --max-steps 9 --loss-scale 4294967296 \
    --out "$work/hopeless"
expect_code 1
expect_err "stopped after 5 skipped steps in a row: a smaller --loss-scale"
expect_jsonl "$work/hopeless/metrics.jsonl" 5
finetune --data "$work/train.jsonl" --out "$work/never" --loss-scale-window 5
expect_code 2
expect_one_error_line
expect_err "--loss-scale-window are of a dynamic --loss-scale, and this run has none"

# Other options than those of its checkpoint are refused; --restart begins anew.
finetune --data "$work/train.jsonl" --max-steps $steps --schedule constant --out "$work/a b"
expect_code 3
expect_one_error_line
expect_err "--restart"
finetune --data "$work/train.jsonl" --max-steps 3 --schedule constant --out "$work/a b" --restart
expect_code 0
expect_jsonl "$work/a b/metrics.jsonl" 3
finetune --data "$work/train.jsonl" --max-steps 3 --schedule constant --out "$work/a b"
expect_code 0
expect_out "All steps are done"

# A disk that takes no more: a clear line, no half checkpoint, and no adapter.
last="qrun finetune, files limited to 200 KB"
(
    ulimit -f 400
    "$QRUN" finetune --model "$model" --seq-len 96 --data "$work/train.jsonl" --max-steps 2 --quiet --out "$work/full" \
        >"$work/out" 2>"$work/err"
)
code=$?
expect_code 3
expect_one_error_line
expect_err "cannot write"
expect_true "nothing half is left" sh -c "! ls '$work/full' | grep -qE 'checkpoint|adapter|partial'"

# ---- JSON ----

finetune --data "$work/train.jsonl" --eval-split 0.25 --max-steps 2 --optimizer adamw8bit --out "$work/json" --json
expect_code 0
expect_silent_err
expect_jsonl "$work/out" 5
expect_true "data and plan come first" sh -c "head -1 '$work/out' | grep -q '^{\"start\":.*\"plan\":'"
expect_true "the result comes last" sh -c "tail -1 '$work/out' | grep -q '^{\"result\":'"
finetune --data "$work/train.jsonl" --max-steps 2 --out "$work/quiet" --quiet
expect_code 0
expect_silent_err
expect_empty_out
finetune --data "$work/train.jsonl" --max-steps 2 --optimizer sgd --out "$work/verbose" --verbose
expect_code 0
expect_err "step 2 of 2: loss"

# ---- Stopped and continued: the same adapter to the bit ----

many=100 # enough that the signals come before the last
whole="$work/whole"
parts="$work/parts"
finetune --data "$work/train.jsonl" --max-steps $many --out "$whole" --quiet
expect_code 0
for signal in TERM INT; do
    last="qrun finetune, SIG$signal"
    : >"$work/out" # nothing of the run before is taken for a first step
    "$QRUN" finetune --model "$model" --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 --data "$work/train.jsonl" \
        --max-steps $many --out "$parts" --json >"$work/out" 2>"$work/err" &
    process=$!
    while kill -0 "$process" 2>/dev/null && ! grep -q '"step"' "$work/out"; do sleep 0.01; done
    kill -s "$signal" "$process" 2>/dev/null
    wait "$process"
    code=$?
    expect_code 130
    expect_err "repeat the command"
    expect_true "a checkpoint is there" sh -c "ls -d '$parts'/checkpoint-* >/dev/null"
    expect_true "no adapter before the end" test ! -e "$parts/adapter_model.safetensors"
done
finetune --data "$work/train.jsonl" --max-steps $many --out "$parts"
expect_code 0
expect_out "Resuming after step"
expect_true "the adapter is that of the whole run" cmp -s "$whole/adapter_model.safetensors" \
    "$parts/adapter_model.safetensors"
expect_jsonl "$parts/metrics.jsonl" $many
sed 's/,"tokens_per_second.*//' "$whole/metrics.jsonl" >"$work/whole.metrics"
sed 's/,"tokens_per_second.*//' "$parts/metrics.jsonl" >"$work/parts.metrics"
expect_true "so are the metrics" cmp -s "$work/whole.metrics" "$work/parts.metrics"

# ---- The adapter in use ----

run generate --model "$model" --chat --prompt "Hello!" --max-tokens 30 --temperature 0
expect_code 0
cp "$work/out" "$work/base"
run generate --model "$model" --adapter "$whole" --chat --prompt "Hello!" --max-tokens 30 --temperature 0
expect_code 0
expect_true "the adapter changes the answer" sh -c "! cmp -s '$work/base' '$work/out'"

# ---- A reader that leaves ----

"$QRUN" finetune --model "$model" --seq-len 96 --rank 4 --data "$work/train.jsonl" --max-steps 3 --json \
    --out "$work/left" 2>/dev/null | head -1 >/dev/null
expect_true "the run goes on" test -s "$work/left/adapter_model.safetensors"
expect_true "and has every step" test "$(grep -c '"loss"' "$work/left/metrics.jsonl")" -eq 3
code=0
"$QRUN" finetune --model "$model" --seq-len 96 --rank 4 --data "$work/train.jsonl" --max-steps 2 --json \
    --out "$work/full" >/dev/full 2>"$work/err" || code=$?
expect_code 3
expect_err "cannot write to stdout: No space left on device"
expect_true "the same where it cannot be written" test -s "$work/full/adapter_model.safetensors"

# ---- A terminal ----

if command -v script >/dev/null && script -qec "true" /dev/null >/dev/null 2>&1 </dev/null; then
    escape=$(printf '\033')
    : >"$work/err"
    last="qrun finetune, on a terminal"
    command="$QRUN finetune --model $model --seq-len 96 --rank 4 --data $work/train.jsonl --max-steps 60"
    TERM=xterm script -qec "$command --out $work/t1" /dev/null >"$work/out" 2>/dev/null </dev/null
    expect_true "a bar with loss, rate and time left" \
        grep -q '\[#* *\].*step .* of 60  loss .*tokens/s  ETA' "$work/out"
    expect_true "in colour" grep -q "$escape\[[0-9]*m" "$work/out"
    NO_COLOR=1 TERM=xterm script -qec "$command --out $work/t2" /dev/null >"$work/out" 2>/dev/null </dev/null
    expect_true "NO_COLOR: none" sh -c "! grep -q '$escape\[[0-9]*m' '$work/out'"
fi
finish

# qrun finetune: which examples a step takes, evaluation on the way, what data it reads, and how it is stopped.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
tail -6 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/eval.jsonl"

# finetune ARGUMENTS…: of the shipped model, small and quick.
usual="--seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3"
# shellcheck disable=SC2046 # words of options
finetune() { run finetune --model "$model" $(unless_given "$usual" "$@") "$@"; }

# ---- What is refused ----

for wrong in "needs --batching group|--batch-tokens 100" "did you mean 'group'|--batching grouped" \
    "exclude each other|--batching group --batch-size 2 --batch-tokens 100" "needs --eval-every|--early-stopping-patience 3" \
    "needs --early-stopping-patience|--early-stopping-threshold 0.1" "needs --eval-data|--load-best"; do
    # shellcheck disable=SC2086 # words of the list
    run finetune --model "$model" --data x --out y ${wrong#*|}
    expect_code 2
    expect_one_error_line
    expect_err "${wrong%%|*}"
done

# A warm-up that outlasts the run is told, and one that ends with it is not.
for warmup in 2 1; do
    finetune --data "$work/train.jsonl" --max-steps 2 --warmup $warmup --out "$work/warm" --restart
    expect_code 0
    grep "^warm-up" "$work/out" >"$work/warmup.$warmup"
done
expect_true "too long" grep -q "^warm-up     2 steps, and the run has 2: --learning-rate is never reached" "$work/warmup.2"
expect_true "not too long" test ! -s "$work/warmup.1"

# ---- Batches by length ----

finetune --data "$work/train.jsonl" --batching group --batch-tokens 128 --epochs 1 --out "$work/group" --quiet
expect_code 0
expect_silent_err
sed 's/.*"tokens":\([0-9]*\).*/\1/' "$work/group/metrics.jsonl" >"$work/tokens"
expect_true "no step has more tokens than the budget" awk '$1 > 128 { exit 1 }' "$work/tokens"
expect_true "steps use the budget" awk '$1 > 64 { n++ } END { exit n < NR / 2 }' "$work/tokens"
finetune --data "$work/train.jsonl" --batching group --batch-tokens 16 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--seq-len of at most 16"

# ---- Evaluation: the best checkpoint, early stopping, the best adapter ----

# Answers that contradict those that are learned: after some steps the loss of the evaluation rises.
sed 's/"content": *"Ahoy[^"]*"/"content": "Good evening."/' "$work/train.jsonl" | head -6 >"$work/contrary.jsonl"
early() {
    finetune --data "$work/train.jsonl" --eval-data "$work/contrary.jsonl" --eval-every 5 --max-steps 200 --learning-rate 1e-2 \
        --early-stopping-patience 3 --early-stopping-threshold 0.001 --keep 1 "$@"
}
early --out "$work/early"
expect_code 0
expect_silent_err
expect_out "stopped     early, after step"
expect_out "adapter     that of step"
state=$work/early/trainer_state.json
best=$(sed -n 's/.*"best_global_step": \([0-9]*\),/\1/p' "$state")
expect_true "the best is before the last" test "$best" -lt "$(sed -n 's/.*"global_step": \([0-9]*\),/\1/p' "$state" | tail -1)"
expect_true "best_model_checkpoint as the Trainer writes it" \
    grep -q "\"best_model_checkpoint\": \"$work/early/checkpoint-$best\"," "$state"
expect_true "the callback's state" grep -q '"EarlyStoppingCallback": {"args": {"early_stopping_patience": 3, "early_stopping_threshold": 0.001}, "attributes": {"early_stopping_patience_counter": 3}}' "$state"
expect_true "the best checkpoint is kept" test -d "$work/early/checkpoint-$best"
expect_true "and the last" test "$(ls -d "$work/early/checkpoint-"* | wc -l)" -eq 2
expect_true "the adapter is the best one's" cmp -s "$work/early/adapter_model.safetensors" \
    "$work/early/checkpoint-$best/adapter_model.safetensors"
expect_true "the report says so" grep -q "stopped early" "$work/early/report.html"
early --out "$work/early"
expect_code 0
expect_out "This run was stopped early"

# Stopped again and again, it takes the same course.
code=130
last="qrun finetune, interrupted"
for part in 1 2 3 4 5 6 7 8 9 10 11 12; do
    [ "$code" -eq 130 ] || break
    : >"$work/out"
    "$QRUN" finetune --model "$model" --seq-len 96 --rank 4 --seed 3 --data "$work/train.jsonl" \
        --eval-data "$work/contrary.jsonl" --eval-every 5 --max-steps 200 --learning-rate 1e-2 --early-stopping-patience 3 \
        --early-stopping-threshold 0.001 --keep 1 --out "$work/parts" --json >"$work/out" 2>"$work/err" &
    process=$!
    while kill -0 "$process" 2>/dev/null && [ "$(grep -c '"step"' "$work/out")" -lt "$part" ]; do sleep 0.01; done
    [ "$part" -eq 12 ] || kill -s INT "$process" 2>/dev/null
    wait "$process"
    code=$?
done
expect_code 0
expect_true "the adapter is the same" cmp -s "$work/early/adapter_model.safetensors" \
    "$work/parts/adapter_model.safetensors"
for run in early parts; do
    sed 's/,"tokens_per_second.*//; s/,"seconds.*//' "$work/$run/metrics.jsonl" >"$work/$run.metrics"
    sed 's/"eval_runtime": [^,]*, "eval_samples_per_second": [^,]*,//; s/"total_flos.*//; s#/early/#/parts/#' "$work/$run/trainer_state.json" >"$work/$run.state"
done
expect_true "so are the metrics" cmp -s "$work/early.metrics" "$work/parts.metrics"
expect_true "so is trainer_state.json" cmp -s "$work/early.state" "$work/parts.state"

finetune --data "$work/train.jsonl" --eval-split 0.25 --max-steps 4 --eval-every 2 --load-best --out "$work/load" --json
expect_code 0
expect_true "the result names the best" sh -c "tail -1 '$work/out' | grep -q '\"best_eval_loss\":[0-9.]*,\"best_step\":[24],\"stopped_early\":false'"

# ---- The optimiser: states in host memory, decay, LoRA+ ----

for way in none optimizer; do
    finetune --data "$work/train.jsonl" --max-steps 3 --offload $way --weight-decay 0.1 --out "$work/offload-$way" --json
    expect_code 0
    head -1 "$work/out" | sed 's/.*"category":"host","bytes":\([0-9]*\).*/\1/' >"$work/host-$way"
done
expect_true "the plan has the states in host memory" test "$(cat "$work/host-optimizer")" -gt "$(cat "$work/host-none")"
expect_true "the adapter does not depend on it" cmp -s "$work/offload-none/adapter_model.safetensors" \
    "$work/offload-optimizer/adapter_model.safetensors"
finetune --data "$work/train.jsonl" --max-steps 3 --offload optimizer,activations --checkpointing full --weight-decay 0.1 \
    --out "$work/offload-both" --json
expect_code 0
head -1 "$work/out" | sed 's/.*"category":"host","bytes":\([0-9]*\).*/\1/' >"$work/host-both"
expect_true "and what is computed again" test "$(cat "$work/host-both")" -gt "$(cat "$work/host-optimizer")"
expect_true "the adapter does not depend on that either" cmp -s "$work/offload-none/adapter_model.safetensors" \
    "$work/offload-both/adapter_model.safetensors"
finetune --data "$work/train.jsonl" --max-steps 3 --offload activations --checkpointing none --out "$work/offload-nothing"
expect_err "is for layers that are computed again"
finetune --data "$work/train.jsonl" --max-steps 3 --loraplus-lr-ratio 16 --weight-decay 0.1 --out "$work/plus" --quiet
expect_code 0
expect_true "the rate of B matters" sh -c "! cmp -s '$work/plus/adapter_model.safetensors' '$work/offload-none/adapter_model.safetensors'"
finetune --data "$work/train.jsonl" --max-steps 3 --decay-all --weight-decay 0.1 --out "$work/all" --quiet
expect_code 0
expect_true "an adapter has nothing that does not decay" cmp -s "$work/all/adapter_model.safetensors" \
    "$work/offload-none/adapter_model.safetensors"

# ---- Stopped while the data are read ----

awk 'BEGIN { for (i = 0; i < 400000; i++) printf "{\"text\": \"The fox number %d says nothing at all, all day.\"}\n", i }' >"$work/long.jsonl"
last="qrun finetune, interrupted while it reads"
"$QRUN" finetune --model "$model" --data "$work/long.jsonl" --out "$work/reading" >"$work/out" 2>"$work/err" &
process=$!
while kill -0 "$process" 2>/dev/null && ! ls -A "$work/reading/tokens" 2>/dev/null | grep -q .; do sleep 0.01; done
kill -s INT "$process"
wait "$process"
code=$?
expect_code 130
expect_one_error_line
expect_err "interrupted while reading the data"
expect_true "nothing half is left" test -z "$(find "$work/reading" -type f)"

# ---- Data ----

# data TEXT: a data file with it, single quotes for double ones.
data() { printf "$1" | tr "'" '"' >"$work/data.jsonl"; }

data "{'question': '1 + 1?', 'answer': '#### 2'}\n{'question': '1 + 2?', 'answer': '#### 3'}\n"
finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/questions"
expect_code 0
expect_out "question/answer, 2 examples"
expect_out "--chat --prompt"
data "{'conversations': [{'from': 'human', 'value': 'Hi!'}, {'from': 'gpt', 'value': 'Hello!'}]}\n"
finetune --data "$work/data.jsonl" --show-mask 1 --out "$work/sharegpt"
expect_code 0
expect_out "«Hello!"
data "{'text': 'a b c'}\n{'text': 'd\n{'text': 'e f g'}\n"
finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/one-bad" --skip-bad
expect_code 0
expect_out "bad lines   1 skipped; the first: $work/data.jsonl:2:10: this string has no closing quote"

# refused WHY: of data.jsonl.
refused() {
    finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/refused"
    expect_code 3
    expect_one_error_line
    expect_err "data.jsonl"
    expect_err "$1"
    expect_true "no folder is left" test ! -e "$work/refused"
}
data ""
refused "is empty; give one example per line"
data "[]"
refused "holds no examples"
data "\n{\n  'text': 'a b c'\n}\n"
refused "data.jsonl:2: is a JSON object over several lines; give one example per line"
data "{'text': 'a b c'}\n{'text': 'd'}\n{'text': 'e\n{'text': 'f'}\n"
refused "data.jsonl:3:10: this string has no closing quote; --skip-bad leaves such examples out"
data "{'txt': 'a b c'}\n"
refused "has no known format"
data "{'messages': [{'role': 'user', 'content': 'Hi!'}]}\n"
refused 'no conversation has an answer of the role "assistant"'
data "{'prompt': '$(seq 200 | tr '\n' ' ')', 'completion': 'a'}\n"
refused "take a longer --seq-len"
head -c 5000 "$model/model.safetensors" >"$work/data.jsonl"
refused "is not text"
printf '\037\213\010\000' >"$work/data.jsonl"
refused "is damaged and cannot be unpacked"
expect_true "no file of it stays" test -z "$(find "$work/refused" -type f)"

finish

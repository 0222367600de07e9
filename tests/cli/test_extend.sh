# qrun finetune: a finished run is extended, and the best of its evaluations is named.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -60 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
finetune() {
    # shellcheck disable=SC2046
    run finetune --model "$model" --data "$work/train.jsonl" --seq-len 96 --rank 4 --seed 3 $(unless_given "--learning-rate 2e-3" "$@") "$@"
}

# With a constant rate, 3 steps and then 6 are 6 steps.
finetune --schedule constant --max-steps 6 --out "$work/whole" --quiet
expect_code 0
finetune --schedule constant --max-steps 3 --out "$work/parts" --quiet
expect_code 0
finetune --schedule constant --max-steps 6 --out "$work/parts"
expect_code 0
expect_out "Extending the run of 3 steps to 6, after step 3. The learning rate stays 0.002, as in one run of 6 steps."
expect_true "to the bit" cmp -s "$work/whole/adapter_model.safetensors" "$work/parts/adapter_model.safetensors"
expect_true "six lines" test "$(wc -l <"$work/parts/metrics.jsonl")" -eq 6

# A falling schedule is that of the longer run, and says so.
finetune --max-steps 4 --out "$work/linear" --quiet
expect_code 0
finetune --max-steps 8 --out "$work/linear" --json
expect_code 0
expect_out '"first_step":5,"total_steps":8,"earlier_total_steps":4'
expect_true "the rate goes up again" grep -q '"step":5,.*"learning_rate":0.001,' "$work/linear/metrics.jsonl"
finetune --max-steps 10 --out "$work/linear"
expect_code 0
expect_out "Extending the run of 8 steps to 10, after step 8. The schedule is now that of 10 steps: the learning rate was 0.00025 in step 8 and is 0.0004 in step 9."
finetune --max-steps 10 --out "$work/linear"
expect_code 0
expect_out "All steps are done; more of them continue"
finetune --max-steps 8 --out "$work/linear"
expect_code 3
expect_one_error_line
expect_err "total steps is 8 here and 10 there"

# By epochs; killed on the way.
finetune --epochs 1 --out "$work/epochs" --schedule constant --quiet
expect_code 0
finetune --epochs 2 --out "$work/epochs" --schedule constant --quiet
expect_code 0
finetune --epochs 2 --out "$work/epochs-whole" --schedule constant --quiet
expect_true "two epochs" cmp -s "$work/epochs/adapter_model.safetensors" "$work/epochs-whole/adapter_model.safetensors"

# ---- The best evaluation ----

# At a rate far too large the first evaluation is the best by far. What follows is chaos, which differs by instruction
# set, so these runs have plain C's.
export QRUN_FORCE_ISA=c
printf '{"prompt": "The", "completion": " sea is wide and deep and blue."}\n' >"$work/other.jsonl"
finetune --eval-data "$work/other.jsonl" --eval-every 1 --max-steps 6 --learning-rate 1e-1 --device cpu --out "$work/rising" --json
expect_code 0
best=$(sed -n 's/.*"best_step":\([0-9]*\),.*/\1/p' "$work/out" | tail -1)
if [ "$best" -lt 6 ]; then
    finetune --eval-data "$work/other.jsonl" --eval-every 1 --max-steps 6 --learning-rate 1e-1 --device cpu --out "$work/rising"
    expect_code 0
    expect_out "the evaluation rose after step $best; use --load-best, or $work/rising/checkpoint-$best"
    finetune --eval-data "$work/other.jsonl" --eval-every 1 --max-steps 6 --learning-rate 1e-1 --device cpu --out "$work/rising" --load-best
    expect_code 0
    expect_out "adapter     that of step $best, the best evaluation"
    expect_true "it is the checkpoint's" cmp -s "$work/rising/adapter_model.safetensors" \
        "$work/rising/checkpoint-$best/adapter_model.safetensors"
else
    last="the learning rate of this test" && fail "the evaluation did not rise"
fi
finish

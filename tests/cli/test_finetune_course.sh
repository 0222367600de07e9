# qrun finetune: which examples a step takes, evaluation on the way, what data it reads, and how it is stopped.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
tail -6 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/eval.jsonl"

# finetune ARGUMENTS…: of the shipped model, small and quick.
finetune() { run finetune --model "$model" --seq-len 96 --rank 4 --lr 5e-3 --seed 3 "$@"; }

# ---- What is refused ----

for wrong in "needs --batching group|--batch-tokens 100" "did you mean 'group'|--batching grouped" \
    "exclude each other|--batching group --batch-size 2 --batch-tokens 100"; do
    # shellcheck disable=SC2086 # words of the list
    run finetune --model "$model" --data x --out y ${wrong#*|}
    expect_code 2
    expect_one_error_line
    expect_err "${wrong%%|*}"
done

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

finish

# qrun finetune from pairs of answers: what it learns, what it tells of them, the same bits however it is run.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

pairs=$QRUN_SOURCE/examples/finetune/pairs.jsonl
usual="--seq-len 256 --rank 4 --learning-rate 2e-3 --seed 3"
# shellcheck disable=SC2046 # words of options
finetune() { run finetune --model "$model" $(unless_given "$usual" "$@") "$@"; }

# number NAME FILE: the values of a member, one per line.
number() { sed -n "s/.*\"$1\":\([-0-9.e]*\)[,}].*/\1/p" "$2"; }

# ---- What is refused ----

for wrong in "--beta is of pairs of answers|--beta 0.1" "needs --objective simpo|--objective dpo --target-margin 1" \
    "compares with the model as it was, and --full changes|--objective dpo --full" \
    "--modules-to-save would change it|--objective dpo --modules-to-save lm_head" \
    "did you mean 'dpo'|--objective dop"; do
    # shellcheck disable=SC2086 # words of the list
    run finetune --model "$model" --data x --out y ${wrong#*|}
    expect_code 2
    expect_one_error_line
    expect_err "${wrong%%|*}"
done
finetune --data "$pairs" --out "$work/none"
expect_code 3
expect_err "pairs.jsonl:1: has a \"chosen\" and a \"rejected\" answer: --objective dpo learns"
finetune --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --objective dpo --out "$work/none"
expect_code 3
expect_one_error_line
expect_err "pirate.jsonl:1: is no pair of answers: its members are \"messages\""
printf 'A text.\n' >"$work/a.txt"
finetune --data "$work/a.txt" --objective dpo --out "$work/none"
expect_code 3
expect_err "a plain text has no chosen and rejected answers"

finetune --data "$pairs" --objective dpo --show-mask 1
expect_code 0
expect_out "«Ahoy, matey! Welcome aboard. What wind blows ye to me ship?"
expect_out "«Hello! How are you?"

# ---- What is learned ----

for objective in dpo orpo simpo; do
    out=$work/$objective
    finetune --data "$pairs" --objective $objective --epochs 6 --eval-split 0.2 --grad-accum 2 --out "$out"
    expect_code 0
    expect_silent_err
    expect_out "rewards     chosen "
    expect_out "of the last evaluation"
    metrics=$out/metrics.jsonl
    number rewards/accuracies "$metrics" >"$work/right"
    number loss "$metrics" >"$work/loss"
    expect_true "$objective: every step tells of its pairs" test "$(wc -l <"$work/right")" -eq "$(wc -l <"$work/loss")"
    # Answers of the last step that an odds ratio compares were as good as alike from the first.
    [ $objective = orpo ] || expect_true "$objective: the chosen answers come ahead" test "$(tail -1 "$work/right")" = 1
    expect_true "$objective: the loss falls" \
        awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(last < first - 0.3) }' "$work/loss"
    number eval_rewards/accuracies "$metrics" >"$work/set-aside"
    expect_true "$objective: of those set aside, most" awk '{ exit !($1 > 0.5) }' "$work/set-aside"
    expect_true "$objective: trainer_state.json has them" grep -q '"eval_rewards/margins"' "$out/trainer_state.json"
    expect_true "$objective: the page draws them" grep -q "Rewards of the answers" "$out/report.html"
done
# The adapter is zero at first, so that a model and its reference are one: a coin toss.
expect_true "DPO begins at log 2" test "$(number loss "$work/dpo/metrics.jsonl" | head -1 | cut -c1-8)" = 0.693147
run generate --model "$model" --adapter "$work/orpo" --chat --prompt "Hello!" --max-tokens 12
expect_code 0
expect_out "matey"

# ---- The same bits ----

more="--model $model --data $pairs --objective dpo --seq-len 200 --rank 4 --learning-rate 2e-3 --seed 3 --grad-accum 5 --max-steps 4
    --eval-split 0.2 --eval-every 2 --lora-dropout 0.1"
# shellcheck disable=SC2086 # words of options
{
    run finetune $more --out "$work/one"
    expect_code 0
    for n in 2 3; do
        run_ranks $n $more --quiet --out "$work/ranks-$n"
        expect_same "$work/one" "$work/ranks-$n"
    done
    run_ranks 2 $more --zero 3 --quiet --out "$work/shards"
    expect_same "$work/one" "$work/shards"
    run finetune $more --checkpointing full --tile-rows 64 --offload activations --threads 1 --out "$work/tiles"
    expect_same "$work/one" "$work/tiles"
    run finetune $more --max-steps 2 --quiet --out "$work/parts"
    expect_code 0
    run finetune $more --quiet --out "$work/parts"
    expect_same "$work/one" "$work/parts"
    run finetune $more --objective simpo --quiet --out "$work/parts"
    expect_code 3
    expect_one_error_line
    expect_err "objective"
}

# ---- From an adapter, which is then the reference ----

finetune --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --dora --max-steps 6 --quiet --out "$work/taught"
expect_code 0
# shellcheck disable=SC2086 # words of options
{
    from="--model $model --data $pairs --objective dpo --adapter $work/taught --seq-len 200 --learning-rate 2e-3 --seed 3
        --grad-accum 5 --max-steps 4"
    run finetune $from --out "$work/from"
    expect_code 0
    expect_true "DPO begins at log 2" test "$(number loss "$work/from/metrics.jsonl" | head -1 | cut -c1-5)" = 0.693
    run_ranks 2 $from --zero 3 --quiet --out "$work/from-shards"
    expect_same "$work/from" "$work/from-shards"
    run finetune $from --checkpointing full --tile-rows 64 --threads 1 --out "$work/from-tiles"
    expect_same "$work/from" "$work/from-tiles"
    # A run that resumes is compared with the adapter that it began from, not with the one of its checkpoint.
    run finetune $from --max-steps 2 --quiet --out "$work/from-parts"
    expect_code 0
    run finetune $from --quiet --out "$work/from-parts"
    expect_same "$work/from" "$work/from-parts"
}

# ---- The memory ----

for options in "" "--checkpointing full" "--objective simpo --full --quant none" "--adapter $work/taught"; do
    # shellcheck disable=SC2086
    finetune --data "$pairs" --objective dpo --max-steps 2 --out "$work/memory" --restart $options
    expect_code 0
    planned=$(sed -n 's/^memory *\(.*\) planned, .*/\1/p' "$work/out")
    used=$(sed -n 's/^memory .* planned, \(.*\) used at most.*/\1/p' "$work/out")
    expect_true "planned is used: '$planned', '$used'" test -n "$planned" -a "$planned" = "$used"
    rm -rf "$work/memory"
done

# qrun finetune: a budget that is too small is refused before the first step, and what the message offers does fit.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# offers: the options of the message, a line each: "--seq-len 96", "--checkpointing auto --batch-size 1" …
offers() { sed 's/.* would fit: //; s/), /)\n/g' "$work/err" | sed 's/ ([^)]*)$//'; }

# check_offers BUDGET OPTIONS…: refused with this budget; every option offered trains with it.
check_offers() {
    budget=$1
    shift
    run finetune --model "$model" --data "$work/train.jsonl" --out "$work/refused" --memory "$budget" "$@"
    expect_code 4
    expect_one_error_line
    expect_err "this run needs "
    expect_err " would fit: --"
    expect_true "nothing is trained" test ! -e "$work/refused/metrics.jsonl"
    offers >"$work/offers"
    cat "$work/offers" >>"$work/all_offers"
    expect_true "there are offers" test -s "$work/offers"
    while read -r offer; do
        n_offers=$((n_offers + 1))
        rm -rf "$work/fits"
        # The last of two equal options is what holds: those of the offer take the place of those given.
        given=""
        for word in "$@"; do given="$given $word"; done
        for name in $(printf '%s\n' "$offer" | tr ' ' '\n' | grep '^--'); do
            given=$(printf '%s\n' "$given" | sed "s/ $name [^ ]*//")
        done
        # shellcheck disable=SC2086 # words of options
        run finetune --model "$model" --data "$work/train.jsonl" --out "$work/fits" --memory "$budget" --max-steps 1 \
            --json $given $offer
        expect_code 0
        planned=$(sed -n 's/.*"planned_bytes":\([0-9]*\).*/\1/p' "$work/out" | tail -1)
        peak=$(sed -n 's/.*"peak_bytes":\([0-9]*\).*/\1/p' "$work/out" | tail -1)
        expect_true "what is planned is taken" test -n "$planned" -a "$planned" = "$peak"
        # shellcheck disable=SC2086
        run finetune --model "$model" --memory "$budget" --plan --json $given $offer
        expect_code 0
        expect_out "\"total_bytes\":$planned,"
    done <"$work/offers"
}

n_offers=0
check_offers 60MiB --checkpointing none --batch-size 8 --quant bf16
check_offers 25MiB --checkpointing none --batch-size 8 --seq-len 128 --quant bf16
check_offers 25MiB --checkpointing none
check_offers 8MiB --batch-size 8 --seq-len 128
check_offers 20MiB --batch-size 4 --seq-len 256 --rank 8
check_offers 12MiB --batching group --batch-tokens 2000
check_offers 30MiB --rank 128
check_offers 10MiB --quant f32 --seq-len 64 --rank 4
for option in --seq-len --batch-size --checkpointing --optimizer --batch-tokens --quant; do
    expect_true "$option is offered somewhere" grep -qe "$option" "$work/all_offers"
done

expect_true "many offers were tried ($n_offers)" test "$n_offers" -ge 10

# A plan needs neither data nor weights.
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --plan --seq-len 512 --checkpointing full
expect_code 0
expect_out "activation checkpointing: full"
expect_out "in all"
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --plan --memory 1GiB
expect_code 4
expect_one_error_line
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --data "$work/train.jsonl" --out "$work/never"
expect_code 2
expect_err "goes with --plan"

# What is done already is not offered.
run finetune --model "$model" --plan --memory 10MiB
expect_code 4
expect_err "would fit: --seq-len"
expect_true "checkpointing is auto already" sh -c "! grep -q -e '--checkpointing' '$work/err'"

# Options alone cannot do it.
run finetune --model "$model" --data "$work/train.jsonl" --out "$work/refused" --memory 5MiB
expect_code 4
expect_one_error_line
expect_err "the least it can be made to need is more"
finish

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

"$QRUN" quantize --model "$model" --out "$work/q" >"$work/out" 2>"$work/err" || fail "quantize"

n_offers=0
check_offers 60MiB --checkpointing none --batch-size 8 --quant bf16
check_offers 25MiB --checkpointing none --batch-size 8 --seq-len 128 --quant bf16
check_offers 25MiB --checkpointing none
check_offers 8MiB --batch-size 8 --seq-len 128
check_offers 20MiB --batch-size 4 --seq-len 256 --rank 8
check_offers 12MiB --batching group --batch-tokens 2000
check_offers 30MiB --rank 128
check_offers 10MiB --quant f32 --seq-len 64 --rank 4
check_offers 60MiB --full --seq-len 64 --grad-accum 64 --grad-sums 64
for option in --seq-len --batch-size --checkpointing --optimizer --batch-tokens --quant --grad-sums; do
    expect_true "$option is offered somewhere" grep -qe "$option" "$work/all_offers"
done

expect_true "many offers were tried ($n_offers)" test "$n_offers" -ge 10

# A plan needs neither data nor weights.
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --plan --seq-len 512 --checkpointing full
expect_code 0
expect_out "activation checkpointing: full"
expect_out "in all"
expect_true "the verdict is a line of its own" grep -qx 'fits: .* of .*' "$work/out"
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.2-1b.json" --plan --batching group --batch-tokens 100000 \
    --memory 4GiB
expect_code 6
expect_out "this would fit: --batch-tokens"
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --plan --memory 1GiB
expect_code 6
expect_silent_err
expect_out "free memory"
expect_out "does not fit: this run needs "
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --plan --memory 1GiB --json
expect_code 6
expect_jsonl "$work/out" 1
expect_out '"fits":false,"verdict":"does not fit: '
run finetune --shape "$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json" --data "$work/train.jsonl" --out "$work/never"
expect_code 2
expect_err "goes with --plan"

# Planning backwards: the answer fits, the next larger one does not.
shape=$QRUN_SOURCE/bench/shapes/llama-3.1-8b.json
for what in context:seq-len batch:batch-size rank:rank; do
    set -- --shape "$shape" --plan --memory 8GiB
    case $what in context:*) ;; *) set -- "$@" --seq-len 256 ;; esac
    run finetune "$@" --fit "${what%:*}" --json
    expect_code 0
    expect_jsonl "$work/out" 1
    largest=$(sed -n 's/.*"largest":\([0-9]*\),.*/\1/p' "$work/out")
    run finetune "$@" "--${what#*:}" "$largest"
    expect_code 0
    run finetune "$@" "--${what#*:}" "$((largest + 1))"
    expect_code 6
done
run finetune --shape "$shape" --plan --memory 1GiB --fit rank
expect_code 6
expect_out "none fits"
run finetune --shape "$shape" --plan --device-memory rtx-4090 --fit context
expect_code 0
expect_out "largest context: "
expect_out "host"
run finetune --shape "$shape" --plan --seq-len 2048 --compare
expect_code 0
expect_out "--offload optimizer"
expect_out "all of these"
run finetune --shape "$shape" --plan --compare --json
expect_code 0
expect_jsonl "$work/out" 1
run finetune --model "$model" --data "$work/train.jsonl" --out "$work/never" --fit batch
expect_code 2
expect_err "go with --plan"

# The largest model: it fits, and every one with more parameters is refused.
for command in plan "finetune --plan --seq-len 512"; do
    # shellcheck disable=SC2086 # words of a command
    run $command --fit model --device-memory rtx-3060 --json
    expect_code 0
    expect_jsonl "$work/out" 1
    largest=$(sed -n 's/.*"fit":"model","largest":"\([^"]*\)".*/\1/p' "$work/out")
    tr '{' '\n' <"$work/out" | grep '^"model":' >"$work/models"
    expect_true "all are planned" test "$(grep -c '"total_bytes":' "$work/models")" -ge 20
    expect_true "by parameters" sh -c "sed 's/.*\"parameters\":\([0-9]*\),.*/\1/' '$work/models' | sort -n -c"
    expect_true "$largest is the last that fits" \
        sh -c "grep '\"fits\":true' '$work/models' | tail -1 | grep -q '\"$largest\"'"
    expect_true "something larger does not" sh -c "tail -1 '$work/models' | grep -q '\"fits\":false'"
    # shellcheck disable=SC2086
    run $command --shape "$largest" --device-memory rtx-3060
    expect_code 0
    larger=$(sed -n "/\"$largest\"/,\$p" "$work/models" | sed -n '2s/"model":"\([^"]*\)".*/\1/p')
    # shellcheck disable=SC2086
    run $command --shape "$larger" --device-memory rtx-3060
    expect_code 6
done
run plan --fit model --shape "$shape,qwen3-8b,llama-3.2" --memory 4GiB
expect_code 0
expect_out "largest model: "
for name in "$shape" qwen3-8b llama-3.2-1b llama-3.2-3b; do expect_out "  $name "; done
expect_true "no other" test "$(grep -c billion "$work/out")" -eq 4
run plan --fit model --shape llama-2 --context 8192 --memory 100GiB
expect_code 2
expect_err "--context"
run plan --fit model --shape llama-2,gpt2-xl --context 2048 --memory 100GiB --json
expect_code 0
expect_out '"model":"gpt2-xl","refused":"'
run plan --fit model --memory 10MiB
expect_code 6
expect_out "largest model: none of 26 fits"
run plan --fit model --shape nonsense
expect_code 2
expect_err "no known model begins so; these are: gpt2, "
run plan --fit model --model "$model"
expect_code 2
expect_err "--model does not go with it"

# Measured beside the plan: what was used at most is what was planned.
run finetune --model "$work/q" --plan --compare --measure --seq-len 64 --json
expect_code 0
expect_jsonl "$work/out" 1
tr '{' '\n' <"$work/out" | sed -n 's/.*"total_bytes":\([0-9]*\),.*/\1/p' >"$work/planned"
sed 's/"peak_bytes":/\n&/g' "$work/out" | sed -n 's/^"peak_bytes":\([0-9]*\),.*/\1/p' >"$work/peaks"
expect_true "every option is measured" test "$(wc -l <"$work/peaks")" -eq 8
expect_true "as planned" cmp -s "$work/planned" "$work/peaks"
run finetune --model "$work/q" --plan --compare --measure --seq-len 64
expect_code 0
expect_out "used at most"
run finetune --shape llama-3.1-405b --plan --compare --measure --quant bf16
expect_code 0
expect_out "not run: more than is free"
run finetune --shape "$shape" --plan --compare --measure --device-memory rtx-4090
expect_code 2
expect_err "on a device that is there"
run finetune --shape "$shape" --plan --measure
expect_code 2
expect_err "--measure goes with --plan --compare"
run finetune --shape "$shape" --plan --device-memory voodoo
expect_code 2
expect_err "--device-memory"
run plan --shape "$shape" --memory 24GiB --context 8192 --fit batch --json
expect_code 0
largest=$(sed -n 's/.*"largest":\([0-9]*\),.*/\1/p' "$work/out")
expect_out "\"max_sequences\":$largest,"

# Sizes that the memory decides; a resumed run keeps them.
set -- --model "$model" --data "$work/train.jsonl" --out "$work/auto" --date 2026-11-22 --seq-len auto --batch-size auto
run finetune "$@" --memory 24MiB --max-steps 1 --json
expect_code 0
rows=$(sed -n 's/^batch-size: *//p' "$work/auto/run.yaml")
expect_true "batches have as many rows as fit ($rows)" test "$rows" -gt 1
run finetune "$@" --memory 1GiB --max-steps 2 --json
expect_code 0
expect_true "the same rows" grep -qx "batch-size: *$rows" "$work/auto/run.yaml"

# Layers that stay in the folder: the same adapter and answers, in less memory.
for way in none parameters parameters,optimizer,activations; do
    run finetune --model "$work/q" --data "$work/train.jsonl" --max-steps 2 --seq-len 64 --checkpointing full \
        --offload "$way" --out "$work/o-$way" --json
    expect_code 0
    sed -n 's/.*"planned_bytes":\([0-9]*\),"peak_bytes":\([0-9]*\).*/\1 \2/p' "$work/out" | tail -1 >"$work/bytes-$way"
    expect_true "the adapter does not depend on it" cmp -s "$work/o-none/adapter_model.safetensors" \
        "$work/o-$way/adapter_model.safetensors"
    read -r planned peak <"$work/bytes-$way"
    expect_true "what is planned is taken" test "$planned" = "$peak"
done
expect_true "it takes less" test "$(cut -d' ' -f1 "$work/bytes-parameters")" -lt "$(cut -d' ' -f1 "$work/bytes-none")"
expect_true "run.yaml has the list" grep -qx 'offload: *optimizer,activations,parameters' \
    "$work/o-parameters,optimizer,activations/run.yaml"

# Gradients that leave, and with them all that is trained: the same model.
for way in none gradients optimizer,gradients,activations,parameters; do
    run finetune --model "$model" --full --data "$work/train.jsonl" --max-steps 2 --seq-len 64 --grad-accum 2 \
        --checkpointing full --offload "$way" --out "$work/f-$way" --json
    expect_code 0
    expect_true "the model does not depend on it" cmp -s "$work/f-none/model.safetensors" \
        "$work/f-$way/model.safetensors"
    sed -n 's/.*"planned_bytes":\([0-9]*\),"peak_bytes":\([0-9]*\).*/\1 \2/p' "$work/out" | tail -1 >"$work/bytes"
    read -r planned peak <"$work/bytes"
    expect_true "what is planned is taken" test "$planned" = "$peak"
done
run finetune --model "$model" --plan --offload gradients
expect_code 2
expect_err "--offload gradients is for --full"
run finetune --model "$model" --plan --full --offload parameters
expect_code 2
expect_err "--offload parameters with --full needs --offload gradients"
run finetune --model "$model" --plan --full --offload gradients --ranks 2
expect_code 3
expect_err "--offload gradients is for one rank"
run finetune --model "$model" --plan --full --seq-len 64 --compare
expect_code 0
expect_out "--offload gradients,parameters"
expect_out "all of these"

run finetune --shape llama-3.2-1b --plan --full --seq-len 512 --device-memory rtx-3060
expect_code 6
expect_out "--offload gradients"

# Tiles of rows: the same adapter, in less memory. With AMX that holds for multiples of 32.
run finetune --model "$work/q" --data "$work/train.jsonl" --max-steps 2 --seq-len 64 --checkpointing full \
    --tile-rows 32 --out "$work/tiles" --json
expect_code 0
expect_out '"checkpointing":"full, tiles of 32 rows"'
expect_true "the adapter does not depend on tiles" cmp -s "$work/o-none/adapter_model.safetensors" \
    "$work/tiles/adapter_model.safetensors"
sed -n 's/.*"planned_bytes":\([0-9]*\),"peak_bytes":\([0-9]*\).*/\1 \2/p' "$work/out" | tail -1 >"$work/bytes-tiles"
read -r planned peak <"$work/bytes-tiles"
expect_true "what is planned is taken" test "$planned" = "$peak"
expect_true "tiles take less" test "$planned" -lt "$(cut -d' ' -f1 "$work/bytes-none")"
run finetune --model "$model" --data "$work/train.jsonl" --out "$work/never" --tile-rows 32 --checkpointing attn
expect_code 2
expect_err "--tile-rows 32 is for layers that are computed again one by one"
run finetune --model "$model" --plan --tile-rows auto
expect_code 0
expect_true "whole layers where they fit" sh -c "! grep -q tiles '$work/out'"

run generate --model "$work/q" --prompt Once --max-tokens 8
expect_code 0
cp "$work/out" "$work/resident"
run generate --model "$work/q" --prompt Once --max-tokens 8 --offload parameters
expect_code 0
expect_true "the same answer" cmp -s "$work/resident" "$work/out"
run generate --model "$model" --prompt Once --max-tokens 8 --offload parameters
expect_code 3
expect_err "quantise the folder first"
run finetune --model "$work/q" --data "$work/train.jsonl" --out "$work/never" --offload optimizer,nothing
expect_code 2
expect_err "--offload cannot be 'optimizer,nothing'"

# What is done already is not offered.
run finetune --model "$model" --plan --memory 10MiB
expect_code 6
expect_out "would fit: --seq-len"
expect_true "checkpointing is auto already" sh -c "! grep -q -e '--checkpointing' '$work/out'"

# Options alone cannot do it.
run finetune --model "$model" --data "$work/train.jsonl" --out "$work/refused" --memory 5MiB
expect_code 4
expect_one_error_line
expect_err "the least it can be made to need is more"
run finetune --model "$model" --plan --offload none,optimizer
expect_code 2
expect_err "'none' goes alone"

finish

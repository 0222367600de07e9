# --numerics portable: training gives the same files on every instruction set, and a run is not resumed with another.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -12 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# finetune OUT OPTIONS…: a few steps of the shipped model.
finetune() {
    out=$1
    shift
    run finetune --model "$model" --data "$work/train.jsonl" --out "$out" --seq-len 64 --seed 3 --max-steps 2 \
        --numerics portable "$@"
}

for isa in c avx2 avx512 avx512-bf16 amx-bf16-emulated amx-bf16; do
    QRUN_FORCE_ISA=$isa
    export QRUN_FORCE_ISA
    if ! "$QRUN" generate --model "$model" --prompt A --max-tokens 1 >/dev/null 2>&1; then
        echo "left out: $isa"
        continue
    fi
    finetune "$work/lora-$isa" --rank 4 --quant nf4-dq --lora-dropout 0.1 --dora
    expect_code 0
    finetune "$work/full-$isa" --full --optimizer adafactor
    expect_code 0
    run generate --model "$model" --adapter "$work/lora-$isa" --prompt "Ahoy" --max-tokens 20 --logprobs 3 --json \
        --numerics portable --seed 7 --temperature 0.8
    expect_code 0
    sed 's/"times":{[^}]*},//' "$work/out" >"$work/answer-$isa"
    for made in answer lora full; do
        file=/model.safetensors
        [ "$made" = lora ] && file=/adapter_model.safetensors
        [ "$made" = answer ] && file=
        expect_true "$made of $isa is that of c" cmp "$work/$made-c$file" "$work/$made-$isa$file"
    done
done
unset QRUN_FORCE_ISA

# What a run computes with is part of it.
finetune "$work/run" --rank 4 --save-every 1
expect_code 0
expect_true "run.json says it" grep -q '"numerics":"portable"' "$work/run"/checkpoint-*/run.json
run finetune --model "$model" --data "$work/train.jsonl" --out "$work/run" --seq-len 64 --rank 4 --seed 3 --max-steps 2 \
    --save-every 1
expect_code 3
expect_err "was made by another run"

run generate --model "$model" --prompt A --max-tokens 1 --device cuda --numerics portable
expect_code 2
expect_err "--numerics portable is not available on GPUs"
expect_one_error_line
run bench --model "$model" --prompt-tokens 4 --decode-tokens 1 --batch 1 --repeat 1 --numerics portable --json -
expect_code 0
expect_out '"numerics":"portable"'

finish

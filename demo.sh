#!/bin/sh
# Builds qrun and shows what it does with the small model that ships in examples/model: quantises it to 4 bits, answers a
# batch of prompts at once, then fine-tunes it on conversations with a pirate (QLoRA on the 4-bit weights) and asks the same
# questions before and after. Installs the packages it needs first (see scripts/install-dependencies.sh). Everything it
# writes is under build/.
set -eu
cd "$(dirname "$0")"

scripts/install-dependencies.sh
scripts/build.sh

qrun=build/release/cli/qrun
demo=build/demo
rm -rf "$demo"
mkdir -p "$demo"

step() { printf '\n$ %s\n' "$*"; "$@"; }

step $qrun quantize --model examples/model --out $demo/model-nf4
step $qrun generate --model $demo/model-nf4 --prompts examples/prompts.jsonl --output $demo/answers.jsonl --summary

beginning="Once upon a time, there was a brave little mouse named Pip."
printf '\nOne more, written as you watch:\n  %s' "$beginning"
$qrun generate --model $demo/model-nf4 --prompt "$beginning" --max-tokens 40 --temperature 0
echo

ask() {
    for question in "Hello there!" "I feel sad today." "Say something clever."; do
        printf '  %s\n    ' "$question"
        $qrun generate --model $demo/model-nf4 "$@" --chat --prompt "$question" --max-tokens 60 --temperature 0
        echo
    done
}

printf '\nBefore fine-tuning:\n'
ask
step $qrun finetune --model $demo/model-nf4 --data examples/finetune/pirate.jsonl --out $demo/pirate \
    --epochs 12 --learning-rate 2e-3 --seq-len 256
printf '\nAfter fine-tuning:\n'
ask --adapter $demo/pirate

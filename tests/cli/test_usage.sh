# Wrong usage: one line that says what is wrong and what would help, exit code 2, nothing on stdout.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# wrong MESSAGE ARGUMENTS…: the arguments are refused with a line that has MESSAGE.
wrong() {
    message=$1
    shift
    run "$@" </dev/null
    expect_code 2
    expect_one_error_line
    expect_err "$message"
}

wrong "did you mean 'qrun generate'" generat
wrong "there is no command 'frobnicate'" frobnicate
wrong "there is no command 'frobnicate'" help frobnicate
wrong "a command comes first" --model x

wrong "did you mean '--temperature'" generate --temprature 1
wrong "did you mean '--max-tokens'" generate --max_tokens 3
wrong "did you mean '--model'" generate --mod x
wrong "qrun help generate" generate --frobnicate
wrong "did you mean '--max-sequences'" generate --max-batch 4
wrong "did you mean '--learning-rate'" finetune --lr 1e-4
wrong "did you mean '--target-modules'" finetune --lora-targets=attn
wrong "qrun help generate" generate --lr 1e-4
wrong "has no option '-z'" generate -z
wrong "--prompt needs a value" generate --prompt
wrong "--prompt needs a value before '--model'" generate --prompt --model x
wrong "--json takes no value" generate --json=yes
wrong "does not know what to do with 'hello'" generate hello
wrong "no model" generate --prompt x
wrong "no model" chat
wrong "no model" eval --text "$QRUN_SOURCE/examples/eval.txt"
wrong "no text" eval --model x
wrong "no model" tokenize x
wrong "no model" quantize --out x
wrong "--out DIR" quantize --model x
wrong "either --model DIR or --shape" bench
wrong "either --model DIR or --shape" bench --model x --shape y
wrong "no model" plan
wrong "no model" inspect
wrong "one folder" inspect a --model b
wrong "does not know what to do with 'b'" inspect a b
wrong "needs more" completion
wrong "bash, zsh and fish" completion tcsh

wrong "whole number from -1 to" generate --top-k many
wrong "whole number" generate --top-k 1.5
wrong "whole number" generate --top-k ""
wrong "whole number" generate --top-k 99999999999999999999
wrong "--min-tokens takes a whole number from 0 to 2147483647, not '-1'" generate --min-tokens=-1
wrong "--stop-token-ids takes whole numbers separated by commas" generate --stop-token-ids 1,x
wrong "--stop-token-ids is given twice" generate --stop-token-ids 1 --stop-token-ids 2
wrong "--stop-token-ids takes 64 numbers at most" generate --stop-token-ids "$(seq -s, 1 65)"
wrong "--min-tokens" generate --min-new-tokens 3
wrong "number from 0 to 1" generate --top-p 1.5
wrong "number" generate --top-p nan
wrong "number" generate --temperature inf
wrong "number" generate --temperature 0x1p3
wrong "number" generate --temperature " 1"
wrong "number from 0 to 100" generate --temperature -1
wrong "from 1 to 1000000000000, not '0'" finetune --max-steps 0
wrong "from 1 to 256, not '257'" generate --n 257
wrong "from 1 to 256, not '257'" generate --threads 257
wrong "--tools is for the chat template, and needs --chat" generate --model x --prompt x --tools tools.json
wrong "--template-arg is for the chat template, and needs --chat" generate --model x --prompt x --template-arg a=1
wrong "2^64" generate --seed -1
wrong "the path of a folder, and this one is empty" generate --model "" --prompt x
wrong "the path of a folder, and this one is empty" generate --model x --adapter "" --prompt x
wrong "the path of a file, and this one is empty" generate --model x --prompt x --output ""
wrong "the path of a file, and this one is empty" finetune --model x --data ""
wrong "the path of a folder, and this one is empty" finetune --model x --data y --out ""
wrong "exclude each other" plan --model x --shape y
wrong "2^64" generate --seed 18446744073709551616
wrong "such as 6GiB" generate --memory 0
wrong "such as 6GiB" quantize --model x --out y --max-shard-size 0
wrong "such as 6GiB" generate --memory 6Gbit
wrong "such as 6GiB" generate --memory -1
wrong "such as 6GiB" generate --memory 99999999999T
wrong "such as 6GiB" generate --memory 1.2.3G
wrong "did you mean 'nf4-dq'" generate --quant nf4_dq
wrong "it is one of: bf16, f16, f32" generate --dtype double
wrong "One of: auto, cpu, cuda" generate --device gpu

# Given twice, one of the values would be lost. A flag loses nothing, and a list takes them all.
wrong "--temperature is given twice" generate --model x --temperature 1 --top-p 0.5 --temperature 0
wrong "--seed is given twice" generate --seed 1 --seed=1
wrong "--model is given twice" generate -m x --model y
wrong "--quant is given twice" generate --quant nf4 --quant int8
wrong "--batch is given twice" bench --shape x --batch 1 --batch 2
wrong "no model" generate --quiet --quiet -q --stop a --stop b --prompt x

# By meaning first: what llama.cpp, vLLM, PEFT, TRL, unsloth, axolotl and mlx-lm call it; then by spelling.
meant() {
    expected=$1
    shift
    wrong "did you mean '$expected'" "$@"
}
wrong "the same command resumes a run by itself" finetune --model x --resume_from_checkpoint y
wrong "there are no other grammars" generate --grammar x
wrong "there is no beam search" generate --num_beams 4
wrong "--plain-text keeps them text" generate --parse-special
wrong "the loss counts what the assistant says" finetune --train_on_inputs
wrong "report.html" finetune --report-to wandb
wrong "chat_template.jinja" serve --chat-template x
meant --eval-data finetune --val x
meant --temperature generate --do_sample true
meant 'qrun finetune' train --model x
meant 'qrun finetune' sft
meant 'qrun merge' fuse
meant 'qrun eval' perplexity
meant 'qrun bench' llama-bench
meant 'qrun serve' server --port 80
meant 'qrun serve' api
wrong "downloads nothing" pull x
meant 'qrun serve' help llama-server
meant --temperature generate --temp 1
meant --max-tokens generate -n 5
meant --max-tokens generate --max-new-tokens 5
meant --max-tokens generate --n-predict=5
meant --context generate --ctx-size 5
meant --context chat -c 4096
meant --context generate --max-model-len 4096
meant --device generate -ngl 99
meant --repetition-penalty generate --repeat-penalty 1.1
meant --quant generate --load-in-4bit
meant --kv generate --kv-cache-dtype fp8
meant --max-sequences generate --max-num-seqs 8
meant --window eval --stride 512
meant --learning-rate finetune --lr=1e-4
meant --rank finetune --lora-r 16
meant --rank finetune --lora_rank 16
meant --alpha finetune --lora-alpha 16
meant --target-modules finetune --lora-target-modules q_proj
meant --out finetune --output-dir out
meant --epochs finetune --num_train_epochs 3
meant --batch-size finetune --per-device-train-batch-size 2
meant --grad-accum finetune --gradient_accumulation_steps 4
meant --seq-len finetune --max-seq-length 2048
meant --seq-len finetune --ctx-size 2048
meant --max-steps finetune --iters 100
meant --schedule finetune --lr-scheduler-type cosine
meant --eval-split finetune --val-set-size 0.1
meant --checkpointing finetune --gradient-checkpointing
meant cuda generate --device gpu
meant cuda generate --device gpu:0
meant nf4-dq generate --quant 4bit
meant nf4-dq generate --quant q4
meant nf4-dq generate --quant int4
meant nf4-dq generate --quant Q4_K_M
meant int8 generate --quant q8_0
meant bf16 generate --dtype bfloat16
meant f16 generate --dtype fp16
meant adamw8bit finetune --optimizer adamw_bnb_8bit
meant constant finetune --schedule constant_with_warmup

# Every word of ours in that table is one.
for command in generate chat finetune merge inspect plan tokenize eval quantize bench; do
    "$QRUN" help "$command" --all
done >"$work/help"
sed -n '/option_words\[\] = {/,/^};/s/^    {"\([a-z0-9-]*\)", .*/--\1/p' "$QRUN_SOURCE/cli/options/peers.c" >"$work/ours"
expect_true "the table has words" test "$(wc -l <"$work/ours")" -gt 50
while read -r option; do
    expect_true "$option is an option" grep -qE -- "$option( |\$)" "$work/help"
done <"$work/ours"
sed -n '/value_words\[\] = {/,/^};/s/^    {"\([a-z-]*\)", {"\([a-z0-9-]*\)",.*/\1 \2/p' "$QRUN_SOURCE/cli/options/peers.c" >"$work/ours"
expect_true "the table has values" test "$(wc -l <"$work/ours")" -gt 20
while read -r option value; do
    expect_true "$value is a value of --$option" grep -qE -- "--$option [a-z0-9|,-]*\b$value\b" "$work/help"
done <"$work/ours"
wrong "numbers separated by commas" bench --batch 1,,2
wrong "numbers separated by commas" bench --batch 0

wrong "stdin is empty" generate --model x
wrong "exclude each other" generate --model x --prompt a --prompts b
wrong "needs --chat" generate --model x --prompt a --system b
wrong "needs --chat" generate --model x --prompt a --enable-thinking false
wrong "needs --chat" tokenize --model x --system b c
wrong "KEY=VALUE" generate --model x --chat --prompt a --template-arg b
wrong "needs JSON output" generate --model x --prompt a --logprobs 2
wrong "--resume needs --output" generate --model x --prompt a --resume
wrong "not on stdin" generate --model x --prompts - --resume --output y
wrong "--decode prints text" tokenize --model x --decode --ids 1
wrong "is not a token id" tokenize --model "$model" --decode 1 two
wrong "is not a token id" tokenize --model "$model" --decode 99999999999

# What is no UTF-8 is refused with its place, as in a line of JSON. Paths are bytes.
bad=$(printf 'abc\377d')
wrong "--prompt is not UTF-8: byte 4 of it is 0xff" generate --model "$model" --prompt "$bad"
wrong "--system is not UTF-8: byte 4" generate --model "$model" --chat --prompt x --system "$bad"
wrong "--stop is not UTF-8: byte 4" generate --model "$model" --prompt x --stop "$bad"
wrong "the message is not UTF-8: byte 4" tokenize --model "$model" --chat "$bad"
printf '%s' "$bad" >"$work/bad"
last="generate, a prompt on stdin that is no UTF-8"
"$QRUN" generate --model "$model" <"$work/bad" >"$work/out" 2>"$work/err"
code=$?
expect_code 2
expect_one_error_line
expect_err "the prompt is not UTF-8: byte 4 of it is 0xff"
printf '{"prompt": "%s"}\n' "$bad" >"$work/bad.jsonl"
run generate --model "$model" --prompts "$work/bad.jsonl"
expect_code 1
expect_out "byte 0xff is not valid UTF-8"

# Values that look odd and are right: negative numbers, "=" forms, "--".
run tokenize --model="$model" --ids -- --model
expect_code 0
run generate -m "$model" -p=x --frequency-penalty -0.5 --max-tokens=2 --memory 1.5GiB
expect_code 0
# Sizes in any case of letters. Without an i they are decimal, unless there is no B either.
for size in 6gib 6GiB 6g 6G 6GIB; do
    run plan --model "$model" --memory "$size" --context 64
    expect_code 0
    expect_out "6.00 GiB = 6.44 GB"
done
for size in 6gb 6GB 6Gb 6000mb; do
    run plan --model "$model" --memory "$size" --context 64
    expect_code 0
    expect_out "5.59 GiB = 6.00 GB"
done
finish

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

wrong "whole number from 0 to" generate --top-k many
wrong "whole number" generate --top-k 1.5
wrong "whole number" generate --top-k ""
wrong "whole number" generate --top-k 99999999999999999999
wrong "number from 0 to 1" generate --top-p 1.5
wrong "number" generate --top-p nan
wrong "number" generate --temperature inf
wrong "number" generate --temperature 0x1p3
wrong "number" generate --temperature " 1"
wrong "number from 0 to 100" generate --temperature -1
wrong "from 1 to 1000000000000000, not '0'" finetune --max-steps 0
wrong "from 1 to 256, not '257'" generate --n 257
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
wrong "such as 6GiB" generate --memory 6Gb
wrong "such as 6GiB" generate --memory -1
wrong "such as 6GiB" generate --memory 99999999999T
wrong "such as 6GiB" generate --memory 1.2.3G
wrong "did you mean 'nf4-dq'" generate --quant nf4_dq
wrong "it is one of: bf16, f16, f32" generate --dtype double
wrong "One of: auto, cpu, cuda" generate --device gpu
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

# Values that look odd and are right: negative numbers, "=" forms, "--".
run tokenize --model="$model" --ids -- --model
expect_code 0
run generate -m "$model" -p=x --frequency-penalty -0.5 --max-tokens=2 --memory 1.5GiB
expect_code 0
finish

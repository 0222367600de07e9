# What changes when the output is a terminal: progress, colours, NO_COLOR, TERM=dumb.
. "$QRUN_SOURCE/tests/cli/lib.sh"

command -v script >/dev/null || skip "no script(1) to make a terminal with"
script -qec "true" /dev/null >/dev/null 2>&1 </dev/null || skip "this script(1) has no -e and -c"
export TERM=xterm
escape=$(printf '\033')

# on_terminal COMMAND: its stdout and stderr are a terminal, recorded in $work/out.
on_terminal() {
    last="on a terminal: $1"
    : >"$work/err"
    script -qec "$1" /dev/null >"$work/out" 2>/dev/null </dev/null
    code=$?
}

coloured() { grep -q "$escape\[[0-9]*m" "$work/out"; }
plain() { ! coloured; }

on_terminal "$QRUN help"
expect_code 0
expect_true "headings are bold" coloured
on_terminal "env NO_COLOR=1 $QRUN help"
expect_true "NO_COLOR: none" plain
on_terminal "env TERM=dumb $QRUN help"
expect_true "TERM=dumb: none" plain

awk 'BEGIN { for (i = 0; i < 12; i++)
    print "{\"prompt\": \"Story:\", \"max_tokens\": 300, \"ignore_eos\": true}" }' >"$work/requests.jsonl"
job="$QRUN generate --model $model --prompts $work/requests.jsonl --max-sequences 2"
on_terminal "$job --output $work/a.jsonl"
expect_code 0
expect_true "progress shows a bar and a rate" grep -q '\[#* *\].*[0-9]:[0-9][0-9] left.*tokens/s.*running.*waiting.*KV' "$work/out"
expect_true "the summary is for people" grep -q 'K/V pages' "$work/out"
on_terminal "env NO_COLOR=1 $job --output $work/b.jsonl"
expect_true "NO_COLOR: progress without colours" plain
on_terminal "stty cols 76; NO_COLOR=1 $job --output $work/narrow.jsonl"
expect_true "a narrow terminal has a shorter bar, and the whole line" grep -q '\[[# ]\{10\}\].*KV [0-9]*%' "$work/out"
on_terminal "$job --output $work/c.jsonl --quiet"
expect_true "--quiet: nothing at all" test ! -s "$work/out"
on_terminal "env TERM=dumb $job --output $work/d.jsonl"
expect_true "TERM=dumb: no progress" sh -c "! grep -q running '$work/out'"

run_on="--model $model --data $QRUN_SOURCE/examples/finetune/pirate.jsonl --seq-len 96 --max-steps 30 --threads 1"
on_terminal "$QRUN finetune $run_on --out $work/drawn"
expect_code 0
expect_true "training shows a bar" grep -q "$escape" "$work/out"
on_terminal "env TERM=dumb $QRUN finetune $run_on --out $work/dumb"
expect_code 0
expect_true "TERM=dumb: training is plain" sh -c "! grep -q '$escape' '$work/out'"
on_terminal "echo Hello | env TERM=dumb $QRUN chat --model $model --max-tokens 4"
expect_code 0
expect_true "TERM=dumb: a conversation is plain" sh -c "! grep -q '$escape' '$work/out'"

# Nothing that a terminal obeys reaches it from files, names and answers; pipes get exact bytes. (Our own clearing
# of a line of progress is left out.)
obeyed() { LC_ALL=C sed 's/\x1b\[K//g; s/\r//g' "$work/out" | LC_ALL=C grep -q "$(printf '[\001-\010\013-\037\177]\\|\302[\200-\237]')"; }
harmless() { ! obeyed; }
hostile=$(printf 'a\033]0;t\007b\302\2330mc\302\235d')
ids=$("$QRUN" tokenize --model "$model" --ids "$hostile")
export NO_COLOR=1
on_terminal "$QRUN tokenize --model $model --no-special --decode $ids"
expect_code 0
expect_true "tokenize --decode" harmless
expect_out "]0;t"
run tokenize --model "$model" --no-special --decode $ids
expect_true "a pipe gets the bytes" test "$(cat "$work/out")" = "$hostile"
mkdir "$work/$hostile"
on_terminal "$QRUN generate --prompt x --model '$work/$hostile'"
expect_code 3
expect_true "a path in a message of the library" harmless
on_terminal "$QRUN generate --model $model --prompts '$work/$hostile/none'"
expect_code 3
expect_true "a path in a message of the program" harmless
on_terminal "$QRUN '$hostile'"
expect_code 2
expect_true "an argument in a message" harmless
printf '{"text": "a\\u001b]0;t\\u0007b\\u009b0mc\\u009dd"}\n' >"$work/hostile.jsonl"
on_terminal "$QRUN finetune --model $model --data $work/hostile.jsonl --show-mask 1"
expect_code 0
expect_true "--show-mask" harmless
expect_out "]0;t"
cp -r "$model" "$work/named"
sed -i 's/"model_type"/"quantization_config": null, "_name": "x\\u001b[31m\\u009b", "model_type"/' "$work/named/config.json"
mv "$work/named" "$work/$hostile/named"
on_terminal "$QRUN inspect '$work/$hostile/named'"
expect_code 0
expect_true "inspect" harmless
on_terminal "$QRUN quantize --model $model --out '$work/$hostile/out'"
expect_code 0
expect_true "quantize" harmless
unset NO_COLOR
run "$hostile
line"
expect_code 2
expect_one_error_line

# Text for people ends with a newline, which the text of a pipe does not.
on_terminal "$QRUN generate --model $model --prompt Once --max-tokens 3 --temperature 0"
expect_true "a newline at the end" test "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" = '\n'
run generate --model "$model" --prompt Once --max-tokens 3 --temperature 0
expect_true "none in a pipe" test "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" != '\n'

# What is wrong with a model is told before the machine is measured.
printf '{"model_type": "llama", "hidden_size": -1}' >"$work/bad.json"
on_terminal "$QRUN bench --shape $work/bad.json"
expect_code 3
expect_true "nothing was measured" sh -c "! grep -q measuring '$work/out'"
on_terminal "$QRUN bench --shape $work/bad.json --train"
expect_code 3
expect_true "nothing was measured" sh -c "! grep -q measuring '$work/out'"

# Without a prompt at a terminal: said, not waited for.
last="no prompt at a terminal"
script -qec "$QRUN generate --model $model" /dev/null >"$work/out" 2>/dev/null
code=$?
expect_code 2
expect_out "no prompt"
finish

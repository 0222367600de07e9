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
expect_true "progress shows a bar and a rate" grep -q '\[#* *\].*tokens/s.*running.*waiting.*KV' "$work/out"
expect_true "the summary is for people" grep -q 'K/V pages' "$work/out"
on_terminal "env NO_COLOR=1 $job --output $work/b.jsonl"
expect_true "NO_COLOR: progress without colours" plain
on_terminal "stty cols 64; NO_COLOR=1 $job --output $work/narrow.jsonl"
expect_true "a narrow terminal has a shorter bar, and the whole line" grep -q '\[[# ]\{10\}\].*KV [0-9]*%' "$work/out"
on_terminal "$job --output $work/c.jsonl --quiet"
expect_true "--quiet: nothing at all" test ! -s "$work/out"
on_terminal "env TERM=dumb $job --output $work/d.jsonl"
expect_true "TERM=dumb: no progress" sh -c "! grep -q running '$work/out'"

# Text for people ends with a newline, which the text of a pipe does not.
on_terminal "$QRUN generate --model $model --prompt Once --max-tokens 3 --temperature 0"
expect_true "a newline at the end" test "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" = '\n'
run generate --model "$model" --prompt Once --max-tokens 3 --temperature 0
expect_true "none in a pipe" test "$(tail -c 1 "$work/out" | od -An -c | tr -d ' ')" != '\n'

# Without a prompt at a terminal: said, not waited for.
last="no prompt at a terminal"
script -qec "$QRUN generate --model $model" /dev/null >"$work/out" 2>/dev/null
code=$?
expect_code 2
expect_out "no prompt"
finish

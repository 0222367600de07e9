# Ctrl-C, and a reader that goes away.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# sh starts background jobs with SIGINT ignored; env puts it back where it can, and so does a small shell trick:
# `timeout --foreground -s INT` sends it to a child in the foreground.
command -v timeout >/dev/null || skip "no timeout(1)"

last="qrun generate, SIGINT"
timeout --foreground -s INT 2 "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 0 --ignore-eos --n 64 \
    --context 512 --temperature 1 >"$work/out" 2>"$work/err"
code=$?
if [ "$code" -ne 0 ]; then # a machine that answers all of it within two seconds proves nothing
    expect_true "timeout sent the signal" test "$code" -eq 124
    timeout --foreground --preserve-status -s INT 2 "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 0 \
        --ignore-eos --n 64 --context 512 --temperature 1 >"$work/out" 2>"$work/err"
    code=$?
    expect_code 130
    expect_true "what was said is there" test -s "$work/out"
fi

# A reader that has had enough: no message.
last="qrun generate | head"
{
    "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 400 --ignore-eos 2>"$work/err"
    echo $? >"$work/code"
} | head -c 5 >"$work/out"
expect_silent_err
expect_true "head got its text" test "$(wc -c <"$work/out")" -eq 5
finish

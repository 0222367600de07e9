# Ctrl-C, SIGTERM and SIGHUP wherever a command is; a reader that goes away; descriptors that are closed.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# sh starts background jobs with SIGINT ignored; env puts it back where it can, and so does a small shell trick:
# `timeout --foreground -s INT` sends it to a child in the foreground.
command -v timeout >/dev/null || skip "no timeout(1)"

# Answers that take ten seconds and more in turn, so that the signal meets them at work on any machine.
last="qrun generate, SIGINT"
timeout --foreground --preserve-status -s INT 4 "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 0 \
    --ignore-eos --n 256 --max-sequences 1 --context 512 --temperature 1 >"$work/out" 2>"$work/err"
code=$?
expect_code 130
expect_true "what was said is there" test -s "$work/out"

# A reader that has had enough: no message.
last="qrun generate | head"
{
    "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 400 --ignore-eos 2>"$work/err"
    echo $? >"$work/code"
} | head -c 5 >"$work/out"
expect_silent_err
expect_true "head got its text" test "$(wc -c <"$work/out")" -eq 5

input=/dev/null
ready=
mkfifo "$work/pipe"
sleep 300 >"$work/pipe" &
writer=$!
awk 'BEGIN { for (i = 0; i < 2000000; i++) printf "Once upon a time %d ", i }' >"$work/long.txt"
{
    printf '{"text": "'
    cat "$work/long.txt"
    printf '"}\n'
} >"$work/long.jsonl"

# Reading what does not come.
input=$work/pipe
ends_soon TERM tokenize --model "$model"
ends_soon HUP generate --model "$model"
ends_soon INT generate --model "$model" --prompts -
ends_soon TERM chat --model "$model"
ends_soon INT eval --model "$model" --text -

# A tokenizer at work, which asks nobody whether it should go on.
input=$work/long.txt
ends_soon INT tokenize --model "$model" --ids
input=/dev/null
ends_soon HUP eval --model "$model" --text "$work/long.txt"
ends_soon TERM finetune --model "$model" --data "$work/long.jsonl" --out "$work/adapter"

# A template at work: each line takes all the steps that a template may take.
cp -r "$model" "$work/slow"
chmod -R u+w "$work/slow"
echo '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}' >"$work/slow/chat_template.jinja"
awk 'BEGIN { for (i = 0; i < 2000; i++) print "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}" }' \
    >"$work/slow.jsonl"
ends_soon INT generate --model "$work/slow" --prompts "$work/slow.jsonl"
ends_soon TERM generate --model "$work/slow" --prompts "$work/slow.jsonl"

# Measuring, and a step of training that takes long.
ends_soon INT bench --model "$model" --repeat 64
head -c 8000000 "$work/long.txt" | fold -w 400 | sed 's/.*/{"text": "&"}/' >"$work/train.jsonl"
ready="in all"
ends_soon TERM finetune --model "$model" --data "$work/train.jsonl" --seq-len 256 --batch-size 8 --grad-accum 100000 \
    --out "$work/trained"
expect_err "interrupted before the first step"
# SIGHUP, as when a connection breaks: what was learned is saved, and the same command resumes.
ready='"step":3,'
head -n 300 "$work/train.jsonl" >"$work/some.jsonl"
set -- finetune --model "$model" --data "$work/some.jsonl" --seq-len 64 --rank 2 --max-steps 5000 --json --out "$work/hung"
ends_soon HUP "$@"
expect_err "interrupted after step"
saved=$(sed -n 's/.*interrupted after step \([0-9]*\) .*/\1/p' "$work/err")
expect_true "step $saved is saved" test -d "$work/hung/checkpoint-$saved"
ready="\"step\":$((saved + 1)),"
ends_soon TERM "$@"
expect_out "\"first_step\":$((saved + 1))"
ready=
input=$work/long.txt

# A second Ctrl-C ends it at once.
last="qrun tokenize, twice SIGINT"
"$QRUN" tokenize --model "$model" --ids <"$input" >"$work/out" 2>"$work/err" &
process=$!
sleep 1
begin=$(date +%s%N)
kill -s INT $process
sleep 0.2
kill -s INT $process
wait $process
code=$?
milliseconds=$((($(date +%s%N) - begin) / 1000000))
expect_code 130
expect_one_error_line
expect_true "at once: $milliseconds ms" test $milliseconds -lt 1800

# nohup: SIGHUP is ignored where it was before.
last="nohup"
nohup "$QRUN" tokenize --model "$model" <"$work/pipe" >"$work/out" 2>"$work/err" &
process=$!
sleep 1
kill -s HUP $process
sleep 0.5
expect_true "it still works" kill -0 $process
kill -s TERM $process
wait $process
code=$?
expect_code 130
kill $writer

# A closed descriptor stays one that nothing can be read from or written to, and no file takes its place.
last="stdin closed"
"$QRUN" generate --model "$model" <&- >"$work/out" 2>"$work/err"
code=$?
expect_code 3
expect_one_error_line
expect_err "cannot read 'stdin'"
"$QRUN" generate --model "$model" --prompts - <&- >"$work/out" 2>"$work/err"
code=$?
expect_code 3
expect_err "cannot read '-'"
last="stdout closed"
"$QRUN" generate --model "$model" --prompt Once --max-tokens 3 >&- 2>"$work/err"
code=$?
expect_code 3
expect_err "cannot write to stdout"
last="all closed"
"$QRUN" generate --model "$model" --prompt Once --max-tokens 3 --output "$work/answer.jsonl" <&- >&- 2>&-
code=$?
expect_code 0
expect_jsonl "$work/answer.jsonl" 1
finish

# qrun generate --data-parallel: copies of the model behind one queue give the answers of one.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# Several samples, ids, blank lines, and two that are no requests.
awk 'BEGIN { for (i = 0; i < 120; i++) {
    if (i % 50 == 5) print "no request"
    if (i % 30 == 7) print ""
    printf "{%s\"prompt\": \"Story %d:\", \"max_tokens\": %d, \"n\": %d, \"temperature\": %d, \"logprobs\": 1}\n",
        i % 4 ? "\"id\": \"x" i "\", " : "", i, 4 + i % 9, 1 + i % 3, i % 2
} }' >"$work/requests.jsonl"
set -- generate --model "$model" --prompts "$work/requests.jsonl"

answers_of() {
    sed -E 's/"cached_tokens":[0-9]+,"times":\{[^}]*\},?//' "$1" | sort
}
run "$@" --output "$work/one.jsonl"
expect_code 1
expect_err "3 of 123 requests failed; the first: line 6, column 1"
answers_of "$work/one.jsonl" >"$work/wanted"
expect_true "there are answers" test "$(wc -l <"$work/wanted")" -eq 243
for n in 2 3; do
    for more in "" --with-prompt; do
        # shellcheck disable=SC2086
        run "$@" --output "$work/several.jsonl" --data-parallel $n --force $more
        expect_code 1
        expect_err "3 of 123 requests failed; the first: line "
        expect_true "the message is a text" grep -q "'o' where a value should be$\|a value should be" "$work/err"
        [ -n "$more" ] || answers_of "$work/several.jsonl" >"$work/got"
        [ -n "$more" ] || expect_true "$n copies: the same answers" cmp -s "$work/wanted" "$work/got"
    done
done
run "$@" --data-parallel 2 </dev/null
cp "$work/out" "$work/stdout.jsonl"
answers_of "$work/stdout.jsonl" >"$work/got"
expect_true "the same on stdout" cmp -s "$work/wanted" "$work/got"

# What is refused is said once.
run generate --model "$work/none" --prompts "$work/requests.jsonl" --data-parallel 3
expect_code 3
expect_one_error_line
expect_err "there is no such folder"
run generate --model "$model" --prompt "The sea" --data-parallel 2
expect_code 2
expect_err "--data-parallel needs --prompts"
run "$@" --data-parallel 2 --tensor-parallel 2
expect_code 2
expect_err "--data-parallel and --tensor-parallel exclude each other"

# One that is killed ends all; answers so far stay for --resume.
i=0
while [ $i -lt 3000 ]; do
    echo "{\"prompt\": \"The sea $i\", \"max_tokens\": 60, \"ignore_eos\": true}"
    i=$((i + 1))
done >"$work/many.jsonl"
last="qrun generate --data-parallel 3, of which one is killed"
"$QRUN" generate --model "$model" --prompts "$work/many.jsonl" --data-parallel 3 --threads 1 --quiet \
    --output "$work/many.out" >"$work/out" 2>"$work/err" &
process=$!
tries=0
while ! grep -q '"text"' "$work/many.out.partial" 2>/dev/null && [ $tries -lt 1200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -s KILL "$(cut -d' ' -f2 "/proc/$process/task/$process/children")"
wait $process
code=$?
expect_code 5
expect_one_error_line
expect_err "replica 1 ended without a word"
n_answers=$(wc -l <"$work/many.out.partial")
expect_true "what was answered is kept" test "$n_answers" -ge 1

finish

# --output: whole or not at all; interrupted jobs go on with --resume.
. "$QRUN_SOURCE/tests/cli/lib.sh"

cd "$work" || exit 1
awk 'BEGIN { for (i = 0; i < 40; i++)
    printf "{\"prompt\": \"Story %d:\", \"max_tokens\": 24, \"ignore_eos\": true, \"n\": %d}\n", i, 1 + i % 2 }' \
    >requests.jsonl
set -- generate --model "$model" --prompts requests.jsonl

# A whole job: the file, and nothing beside it.
run "$@" --output whole.jsonl
expect_code 0
expect_empty_out
expect_silent_err
expect_jsonl whole.jsonl 60
expect_true "no partial file stays" test ! -e whole.jsonl.partial -a ! -e whole.jsonl.partial.job

# The answers without what depends on time, in order.
canonical() {
    sed 's/,"cached_tokens":[0-9]*,"times":{[^}]*}//' "$1" | sort
}
canonical whole.jsonl >whole.txt

# wait_for_answers FILE N: until the job in the background has written N lines.
wait_for_answers() {
    tries=0
    while [ "$(cat "$1" 2>/dev/null | wc -l)" -lt "$2" ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

# (A job that is to be interrupted runs slowly: neither option changes what is answered.)

# Killed: the partial file stays, a torn last line is dropped, and the rest is computed.
last="qrun $* --output killed.jsonl, killed"
"$QRUN" "$@" --max-sequences 1 --threads 1 --output killed.jsonl >out 2>err &
job=$!
wait_for_answers killed.jsonl.partial 5
run "$@" --output killed.jsonl
expect_code 3
expect_err "another qrun is writing 'killed.jsonl.partial'"
run "$@" --output killed.jsonl --resume
expect_err "another qrun is writing 'killed.jsonl.partial'"
last="qrun $* --output killed.jsonl, killed"
kill -9 $job
wait $job 2>/dev/null
expect_true "nothing under the final name" test ! -e killed.jsonl
expect_true "the partial file stays" test -s killed.jsonl.partial
n_before=$(wc -l <killed.jsonl.partial)
expect_true "the job was not over" test "$n_before" -lt 60
printf '{"index":39,"sample":0,"text":"to' >>killed.jsonl.partial

run "$@" --output killed.jsonl
expect_code 2
expect_err "--resume"
run "$@" --output killed.jsonl --resume --temperature 0.5
expect_code 2
expect_err '--temperature was not given and is "0.5" now'
run "$@" --output killed.jsonl --resume --temperature 0.3
expect_err 'is "0.3" now'
cp requests.jsonl same.jsonl
echo '{"prompt": "one more"}' >>requests.jsonl
run "$@" --output killed.jsonl --resume
expect_code 2
expect_err "the prompts are not those"
cp same.jsonl requests.jsonl

run "$@" --output killed.jsonl --resume --stats --threads 1
expect_code 0
expect_jsonl killed.jsonl 60
expect_true "some were not computed again" sh -c "grep -q '\"resumed\":[1-9]' '$work/err'"
expect_true "no partial file stays" test ! -e killed.jsonl.partial -a ! -e killed.jsonl.partial.job
canonical killed.jsonl >killed.txt
last="the resumed job"
expect_true "a resumed job has the answers of an uninterrupted one" cmp -s killed.txt whole.txt

# A whole file has nothing to resume, and is left alone.
run "$@" --output killed.jsonl --resume
expect_code 0
expect_err "nothing to resume"
expect_jsonl killed.jsonl 60

# Half of a request's two samples counts as none.
grep '"index":1,' whole.jsonl | head -1 >half.jsonl.partial
cp killed.jsonl copy.jsonl
printf '{"prompts":"x","options":{}}' >half.jsonl.partial.job
run "$@" --output half.jsonl --resume
expect_code 2
expect_err "the prompts are not those"

# What is no partial file of ours is not taken for one.
"$QRUN" "$@" --max-sequences 1 --threads 1 --output other.jsonl >out 2>err &
job=$!
wait_for_answers other.jsonl.partial 3
kill -9 $job
wait $job 2>/dev/null
cp other.jsonl.partial good.partial
head -1 good.partial | grep '"n"' >pair || sed -n '/"n":2/{p;q}' good.partial >pair
{ cat good.partial; echo 'not json'; cat good.partial; } >other.jsonl.partial
run "$@" --output other.jsonl --resume
expect_code 3
expect_err "is not an answer of this job"
{ grep -v '"n":2' good.partial; cat pair; } >other.jsonl.partial
run "$@" --output other.jsonl --resume
expect_code 0
expect_jsonl other.jsonl 60
canonical other.jsonl >other.txt
expect_true "a half-written request is computed again" cmp -s other.txt whole.txt

# What the file of a schema says is part of a job: the name of the file is not enough.
sed 's/"ignore_eos": true, //' requests.jsonl >form.jsonl
echo '{"type": "string", "minLength": 20, "maxLength": 60}' >schema.json
"$QRUN" generate --model "$model" --prompts form.jsonl --json-schema schema.json --max-sequences 1 --threads 1 \
    --output form-answers.jsonl >out 2>err &
job=$!
wait_for_answers form-answers.jsonl.partial 3
kill -9 $job
wait $job 2>/dev/null
cp schema.json same.json
echo '{"type": "integer"}' >schema.json
run generate --model "$model" --prompts form.jsonl --json-schema schema.json --output form-answers.jsonl --resume
expect_code 2
expect_err "the schema or the tools are not those"
cp same.json schema.json
run generate --model "$model" --prompts form.jsonl --json-schema schema.json --output form-answers.jsonl --resume
expect_code 0
expect_jsonl form-answers.jsonl 60

# SIGINT: what is answered is kept, the user is told how to go on, exit code 130. (A background process of sh ignores
# SIGINT, so SIGTERM stands for it here; test_signals.sh sends the real one.)
"$QRUN" "$@" --max-sequences 1 --threads 1 --output term.jsonl >out 2>err &
job=$!
wait_for_answers term.jsonl.partial 3
kill -TERM $job
wait $job
code=$?
last="qrun …, SIGTERM"
expect_code 130
expect_err "repeat the command with --resume"
expect_true "nothing under the final name" test ! -e term.jsonl
expect_true "every line that is there is whole" "$CHECK_JSONL" term.jsonl.partial
run "$@" --output term.jsonl --resume
expect_code 0
canonical term.jsonl >term.txt
expect_true "and it goes on" cmp -s term.txt whole.txt

# Failed requests are part of a whole file; a resumed job remembers them in its exit code.
printf '{"prompt": "fine", "max_tokens": 2}\nbad\n' >bad.jsonl
run generate --model "$model" --prompts bad.jsonl --output bad.out.jsonl
expect_code 1
expect_jsonl bad.out.jsonl 2

# A seed of -1 is as good as none; no samples are none to have.
cat >seeds.jsonl <<'END'
{"prompt": "Once", "max_tokens": 12, "temperature": 1}
{"prompt": "Once", "max_tokens": 12, "temperature": 1, "seed": -1}
{"prompt": "Once", "max_tokens": 12, "temperature": 1, "seed": -2}
{"prompt": "Once", "max_tokens": 12, "temperature": 1, "n": 0}
END
run generate --model "$model" --prompts seeds.jsonl --output seeds.out.jsonl
expect_code 1
text_of() { sed -n "s/.*\"index\":$2,.*\"text\":\(\"[^\"]*\"\).*/\1/p" "$1"; }
expect_true "an answer" test -n "$(text_of seeds.out.jsonl 0)"
expect_true "the default seed" test "$(text_of seeds.out.jsonl 0)" = "$(text_of seeds.out.jsonl 1)"
expect_true "another seed below 0" grep -q '"index":2,"error":.*\\"seed\\" is -2, outside -1 to' seeds.out.jsonl
expect_true "no samples" grep -q '"index":3,"error":.*\\"n\\" is 0, outside 1 to' seeds.out.jsonl
run generate --model "$model" --prompts seeds.jsonl --seed 5 --output seeded.out.jsonl
expect_true "one of the command's" test "$(text_of seeded.out.jsonl 0)" != "$(text_of seeds.out.jsonl 0)"
expect_true "the command's again" test "$(text_of seeded.out.jsonl 1)" = "$(text_of seeded.out.jsonl 0)"

# A line that is too long to fit is refused alone, without being held whole.
{
    printf '{"prompt": "fine", "max_tokens": 2}\n{"prompt": "'
    head -c 3000000 /dev/zero | tr '\0' 'x'
    printf '"}\n\n  \r\n{"prompt": "fine too", "max_tokens": 2}'
} >long.jsonl
run generate --model "$model" --prompts long.jsonl --output long.out.jsonl
expect_code 1
expect_jsonl long.out.jsonl 3
expect_err "1 of 3 requests failed"
expect_err "line 2 has more than 1081344 bytes, the limit for a context of 512 tokens"
expect_true "no answer to it" grep -q '"index":1,"error":' long.out.jsonl
expect_true "an answer to the next" grep -q '"index":2,"sample":0' long.out.jsonl
last="generate, the same from a pipe"
"$QRUN" generate --model "$model" --prompts - <long.jsonl >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_jsonl "$work/out" 3

last="generate, one prompt that is too long"
head -c 3000000 /dev/zero | tr '\0' 'x' | "$QRUN" generate --model "$model" >"$work/out" 2>"$work/err"
code=$?
expect_code 2
expect_one_error_line
expect_err "the prompt has more than 1081344 bytes"

# "-" is stdout, as it is stdin for --prompts; what never was a file cannot be resumed.
run "$@" --output -
expect_code 0
expect_jsonl "$work/out" 60
expect_true "no file of that name" test ! -e ./- -a ! -e ./-.partial
run "$@" --output - --resume
expect_code 2
expect_err "--resume needs --output FILE.jsonl"

# A file without requests is answered by a file without answers, and by a word.
: >none.jsonl
run generate --model "$model" --prompts none.jsonl --output none.out.jsonl
expect_code 0
expect_err "'none.jsonl' has no requests"
expect_jsonl none.out.jsonl 0

# A model that cannot be opened leaves nothing behind.
run generate --model "$work" --prompts requests.jsonl --output early.jsonl
expect_code 3
expect_one_error_line
expect_true "nothing is left of it" test ! -e early.jsonl.partial -a ! -e early.jsonl.partial.job

# A full disk: one clear line, an exit code, nothing under the final name.
if [ -w /dev/full ]; then
    run "$@" --output /dev/full
    expect_code 3
    expect_one_error_line
    expect_err "/dev/full"
    "$QRUN" generate --model "$model" --prompt "Once" --max-tokens 3 >/dev/full 2>err
    code=$?
    last="qrun generate >/dev/full"
    expect_code 3
    expect_err "stdout"
fi
last="qrun … with a limited file size"
(ulimit -f 8 && "$QRUN" "$@" --output limited.jsonl >out 2>err)
code=$?
expect_code 3
expect_one_error_line
expect_err "limited.jsonl"
expect_true "nothing under the final name" test ! -e limited.jsonl
run "$@" --output limited.jsonl --resume
expect_code 0
canonical limited.jsonl >limited.txt
expect_true "and it goes on when there is room" cmp -s limited.txt whole.txt

# JSON lines on a full stdout; a partial file without what says whose it is.
if [ -w /dev/full ]; then
    "$QRUN" generate --model "$model" --prompts bad.jsonl >/dev/full 2>err
    code=$?
    last="qrun generate --prompts … >/dev/full"
    expect_code 3
    expect_true "the full disk is said once" test "$(grep -c stdout err)" -eq 1
fi
head -1 whole.jsonl >alone.jsonl.partial
run "$@" --output alone.jsonl --resume
expect_code 3
expect_one_error_line
expect_err "alone.jsonl.partial.job"

# A read-only folder. (Root may write anywhere.)
if [ "$(id -u)" -ne 0 ]; then
    mkdir locked && chmod 500 locked
    run "$@" --output locked/out.jsonl
    expect_code 3
    expect_one_error_line
fi

# A file of many lines runs in a small, steady amount of memory: requests are read as they are needed.
awk 'BEGIN { for (i = 0; i < 3000; i++) print "{\"prompt\": \"a\", \"max_tokens\": 1}" }' >many.jsonl
run generate --model "$model" --prompts many.jsonl --output many.out.jsonl --max-sequences 64
expect_code 0
expect_jsonl many.out.jsonl 3000
expect_true "every index is there once" test "$(sed 's/{"index":\([0-9]*\),.*/\1/' many.out.jsonl | sort -nu | wc -l)" -eq 3000
# A file that is there is not replaced, unless that is asked for.
cp many.out.jsonl before.jsonl
run generate --model "$model" --prompts bad.jsonl --output many.out.jsonl
expect_code 2
expect_one_error_line
expect_err "'many.out.jsonl' is there already: --force replaces it"
expect_true "it is as it was" cmp -s many.out.jsonl before.jsonl
run generate --model "$model" --prompts bad.jsonl --output many.out.jsonl --force
expect_code 1
expect_jsonl many.out.jsonl 2

# The requests are not replaced by their answers, under no name of theirs.
printf '{"prompt": "x", "max_tokens": 1}\n' >own.jsonl
ln -s own.jsonl link.jsonl
for name in own.jsonl link.jsonl; do
    run generate --model "$model" --prompts own.jsonl --output $name --force
    expect_code 2
    expect_one_error_line
    expect_err "--output '$name' is the file of --prompts"
done
expect_true "they are there" grep -q '"prompt"' own.jsonl

# Ids come back, of answers and of errors; positions in messages are those of the line.
cat >ids.jsonl <<'END'
{"id": "a \"b\"", "prompt": "The sea", "max_tokens": 2}
{"prompt": "The sea", "max_tokens": 2, "custom_id": 7}
{"prompt": "x", "custom_id": "c-1", "n": 2, "id": 123456789012345, "max_tokens": 1}
{"id": "bad", "prompt": 5}
{"id": "only"}
{"id": {}, "prompt": "x"}
{"id": "late", "prompt": "x" "oops"}
{"id": "a\u0000b", "prompt": "x", "max_tokens": 1}
{"id": "a\\u0000b", "prompt": "x", "max_tokens": 1}
END
run generate --model "$model" --prompts ids.jsonl --output ids.out.jsonl --temperature 0
expect_code 1
expect_jsonl ids.out.jsonl 10
for member in '{"index":0,"id":"a \"b\"","sample":0' '{"index":1,"custom_id":7,"sample":0' \
    '{"index":2,"custom_id":"c-1","id":123456789012345,"sample":1,"n":2' '{"index":3,"id":"bad","error":' \
    '{"index":4,"id":"only","error":"' '{"index":5,"error":' '{"index":6,"id":"late","error":"line 7, column 30' \
    '{"index":7,"error":' '{"index":8,"id":"a\\u0000b","sample":0'; do
    expect_true "there is $member" grep -qF "$member" ids.out.jsonl
done

# Prompts too, where that is asked for.
printf '{"id": 1, "messages": [{"role": "user", "content": "Hi \\"you\\""}], "max_tokens": 1}\n{"token_ids": [5, 6], "max_tokens": 1}\n' >with.jsonl
run generate --model "$model" --prompts with.jsonl --output with.out.jsonl --with-prompt
expect_code 0
expect_true "messages" grep -qF '{"index":0,"id":1,"messages":[{"role": "user", "content": "Hi \"you\""}],"sample":0' with.out.jsonl
expect_true "ids of tokens" grep -qF '{"index":1,"token_ids":[5, 6],"sample":0' with.out.jsonl
run generate --model "$model" --prompt 'The "sea"' --max-tokens 1 --json --with-prompt
expect_code 0
expect_out '{"index":0,"prompt":"The \"sea\"","sample":0'
run generate --model "$model" --prompt x --with-prompt
expect_code 2
expect_err "--with-prompt needs JSON output"

# What ended in an error is tried again, in a whole file and in a partial one; the other answers stay as they are.
printf '{"prompt": "The sea is", "max_tokens": 3}\n{"prompt": "a", "max_tokens": 2}\nbad\n' >retry.jsonl
set -- generate --model "$model" --prompts retry.jsonl --output retry.out.jsonl --temperature 0
run "$@"
expect_code 1
cp retry.out.jsonl first.jsonl
run "$@" --resume
expect_code 0
expect_err "nothing to resume"
sed -i '/^{"index":0,/s/.*/{"index":0,"error":"out of memory"}/' retry.out.jsonl
run "$@" --resume --retry-errors --top-k 5
expect_code 2
expect_err '--top-k was not given and is "5" now'
run "$@" --resume --retry-errors --stats
expect_code 1
expect_err '"answered":2,"failed":1,"resumed":1'
expect_jsonl retry.out.jsonl 3
expect_true "the answer that was there stays" sh -c "grep '^{\"index\":1,' first.jsonl | grep -qxFf - retry.out.jsonl"
canonical first.jsonl >first.txt
canonical retry.out.jsonl >second.txt
expect_true "the other is as it should have been" cmp -s first.txt second.txt
sed '/^{"index":0,/s/.*/{"index":0,"error":"out of memory"}/' first.jsonl >retry.out.jsonl.partial
run "$@" --resume
expect_code 2
expect_err "'retry.out.jsonl' is there already"
run "$@" --resume --retry-errors # as after an interruption of it
expect_code 1
canonical retry.out.jsonl >second.txt
expect_true "from a partial file beside it too" cmp -s first.txt second.txt
sed '/^{"index":0,/s/.*/{"index":0,"error":"out of memory"}/' first.jsonl >retry.out.jsonl.partial
rm retry.out.jsonl
run "$@" --resume --retry-errors
expect_code 1
canonical retry.out.jsonl >second.txt
expect_true "from a partial file too" cmp -s first.txt second.txt
# Killed after the partial file was made, and before the job file was.
rm -f retry.out.jsonl*
: >retry.out.jsonl.partial
run "$@"
expect_code 2
expect_err "add --resume to continue it"
run "$@" --resume
expect_code 1
canonical retry.out.jsonl >second.txt
expect_true "from an empty partial file" cmp -s first.txt second.txt
expect_true "with its job file" test -f retry.out.jsonl.partial.job
run generate --model "$model" --prompts retry.jsonl --output x.jsonl --retry-errors
expect_code 2
expect_err "--retry-errors needs --resume"
finish

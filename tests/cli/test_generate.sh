# One prompt to text; many requests to JSON lines.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# --prompt: the text on stdout, and nothing else anywhere.
run generate --model "$model" --prompt "Once upon a time" --max-tokens 24 --temperature 0
expect_code 0
expect_silent_err
expect_true "there is text" test "$(wc -c <"$work/out")" -gt 40
cp "$work/out" "$work/text"

# The same from stdin (a final newline is dropped), from "-p", and again.
last="qrun generate <stdin"
printf 'Once upon a time\n' | "$QRUN" generate --model "$model" --max-tokens 24 --temperature 0 >"$work/out" 2>"$work/err"
expect_true "stdin gives the same text" cmp -s "$work/out" "$work/text"
run generate -m "$model" -p "Once upon a time" --max-tokens 24 --temperature 0 --threads 1
expect_true "one thread gives the same text" cmp -s "$work/out" "$work/text"

# F16 throughout: text again, and K/V of another type beside it.
run generate --model "$model" --prompt "Once upon a time" --max-tokens 24 --temperature 0 --quant f16 --dtype f16
expect_code 0
expect_true "there is text in F16" test "$(wc -c <"$work/out")" -gt 40
run generate --model "$model" --prompt "Once upon a time" --max-tokens 24 --temperature 0 --kv f16
expect_code 0

# Sampling: a seed gives one answer, another seed another; no seed repeats itself.
for seed in 1 1 2; do
    run generate --model "$model" --prompt "One day" --max-tokens 24 --temperature 1 --seed $seed
    expect_code 0
    cat "$work/out" >>"$work/seed.$seed"
done
half=$(($(wc -c <"$work/seed.1") / 2))
head -c "$half" "$work/seed.1" >"$work/first"
tail -c "+$((half + 1))" "$work/seed.1" >"$work/second"
expect_true "equal seeds give equal answers" cmp -s "$work/first" "$work/second"
expect_true "other seeds give other answers" sh -c "! cmp -s '$work/first' '$work/seed.2'"

# --stop: the answer ends before the text.
run generate --model "$model" --prompt "Once upon a time" --max-tokens 60 --temperature 0 --stop "."
expect_code 0
expect_true "no full stop in the answer" sh -c "! grep -qF . '$work/out'"

# JSON for one prompt, with samples and log-probabilities.
run generate --model "$model" --prompt "Once upon a time" --max-tokens 8 --temperature 0.8 --n 2 --logprobs 2 --json
expect_code 0
expect_silent_err
expect_jsonl "$work/out" 2
expect_out '"index":0,"sample":0,"n":2'
expect_out '"index":0,"sample":1,"n":2'
expect_out '"finish_reason":"length"'
expect_out '"prompt_tokens":5'
expect_out '"completion_tokens":8'
expect_out '"logprobs":[{"token_id":'
expect_out '"top":[{'
expect_out '"times":{"queue":'

# Many: every line is answered, under its index; the single prompt's text is among them.
cat >"$work/requests.jsonl" <<'JSONL'
{"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}

{"prompt": "The fox", "max_tokens": 4, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 3}
{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 6}
{"token_ids": [0, 17, 383], "max_tokens": 3, "ignore_eos": true}
{"prompt": "Caf\u00e9 \ud83e\udd8a \"quoted\"\n", "max_tokens": 5, "n": 2, "logprobs": 0, "stop": ["zzz", "qqq"]}
JSONL
run generate --model "$model" --prompts "$work/requests.jsonl"
expect_code 0
expect_silent_err
expect_jsonl "$work/out" 6
for index in 0 1 2 3 4; do expect_out "{\"index\":$index,"; done
run generate --model "$model" --prompt "Once upon a time" --max-tokens 24 --temperature 0 --json
sed 's/.*"text":\(".*"\),"token_ids".*/\1/' "$work/out" >"$work/single"
run generate --model "$model" --prompts "$work/requests.jsonl" --max-sequences 2 --max-step-tokens 16
expect_code 0
expect_true "a request answers the same alone and among others" grep -qF -- "$(cat "$work/single")" "$work/out"

# Requests on stdin; options of the command line are the defaults of every line.
printf '{"prompt": "a"}\n{"prompt": "b", "max_tokens": 2}\r\n{"prompt": "c"}' >"$work/in"
last="qrun generate --prompts -"
"$QRUN" generate --model "$model" --prompts - --max-tokens 3 --ignore-eos <"$work/in" >"$work/out" 2>"$work/err"
code=$?
expect_code 0
expect_jsonl "$work/out" 3
expect_true "two lines have the default" test "$(grep -c '"completion_tokens":3' "$work/out")" -eq 2
expect_out '"completion_tokens":2'

# Bad lines are named by number; the others run; the exit code says so.
cat >"$work/bad.jsonl" <<'JSONL'
{"prompt": "fine", "max_tokens": 2}
{"prompt": "torn
{"prompt": "fine", "max_tokens": 2, "temprature": 1}
[1, 2]

{"prompt": 7}
{"max_tokens": 3}
{"prompt": "x", "messages": []}
{"prompt": "x", "temperature": -1}
{"prompt": "x", "adapter": "unknown"}
{"prompt": "x", "prompt": "y"}
{"token_ids": [99999999]}
JSONL
printf '{"prompt": "\377"}\n{"prompt": "fine too", "max_tokens": 2}\n' >>"$work/bad.jsonl"
printf '{"prompt": "x", "tools": []}\n{"token_ids": [5], "template_args": {}}\n' >>"$work/bad.jsonl"
run generate --model "$model" --prompts "$work/bad.jsonl"
expect_code 1
expect_jsonl "$work/out" 15
expect_true "two answers" test "$(grep -c '"text":' "$work/out")" -eq 2
expect_true "thirteen errors" test "$(grep -c '"error":' "$work/out")" -eq 13
expect_out 'line 15: \"tools\" is for the chat template'
expect_out 'line 16: \"template_args\" is for the chat template'
for line in 2 3 4 6 7 8 9 10 11 12 13 15 16; do expect_out "line $line"; done
expect_out "temprature"
expect_out 'line 8: needs one of \"prompt\", \"messages\" and \"token_ids\", and one alone'
expect_true "places in words" sh -c "grep -q 'line [0-9]*, column [0-9]*: ' '$work/out'"
expect_true "no bare numbers" sh -c "! grep -q 'line [0-9]*:[0-9]*:[0-9]*' '$work/out'"
expect_true "stderr has one line" test "$(wc -l <"$work/err")" -eq 1
expect_err "13 of 15 requests failed; the first: line 2"

# Messages are checked before a template sees them; numbers are written out.
cat >"$work/messages.jsonl" <<'JSONL'
{"messages": []}
{"messages": [{"role": "user", "content": "x"}, {"content": "x"}]}
{"messages": ["x"]}
{"prompt": "x", "max_tokens": -1}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}]}
{"messages": [{"role": "user", "content": [{"video": "x.mp4"}]}]}
{"messages": [{"role": "user"}]}
{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": null}]}
{"messages": [{"role": "user", "content": 5}]}
{"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}, {"role": "user", "content": ""}], "max_tokens": 1}
JSONL
run generate --model "$model" --prompts "$work/messages.jsonl"
expect_code 1
expect_jsonl "$work/out" 10
expect_out 'line 1: \"messages\" must be an array of at least one'
expect_out 'line 2: message 2 has no \"role\" that is a text'
expect_out 'line 3: message 1 has no \"role\"'
expect_out 'line 4: max_tokens must be from 0 to 2147483647, not -1'
expect_out 'line 5: message 1: part 2 is an image, and only text can be read'
expect_out 'line 6: message 1: part 1 is a video, and only text can be read'
expect_out 'line 7: message 1, of the role \"user\", has no \"content\"'
expect_out 'line 8: message 2, of the role \"user\", has no \"content\"'
expect_out 'line 9: message 1: \"content\" must be a text'
expect_out '{"index":9,"sample":0,'

# A request that fails after its first token has an error, and nothing that looks like an answer.
echo '{"prompt": "Once upon", "max_length": 2}' >"$work/length.jsonl"
awk 'BEGIN { printf "{\"prompt\": \"x\", \"stop\": [\"x\""; for (i = 0; i < 64; i++) printf ", \"y\""; print "]}" }' \
    >>"$work/length.jsonl"
run generate --model "$model" --prompts "$work/length.jsonl"
expect_code 1
expect_out "prompt and answer together may have 2 (max_length); shorten it, or give --max-tokens"
expect_out "the number of stop texts must be from 0 to 64, not 65"
echo '{"prompt": "Once", "max_tokens": 2, "forced_eos_token_id": 99999}' >"$work/late.jsonl"
run generate --model "$model" --prompts "$work/late.jsonl"
expect_code 1
expect_jsonl "$work/out" 1
expect_out '{"index":0,"error":"the rules of the request and of generation_config.json leave no token to continue with"}'

# A prompt longer than the context, alone and in a file.
awk 'BEGIN { for (i = 0; i < 700; i++) printf "word %d ", i }' >"$work/long"
last="qrun generate <long"
"$QRUN" generate --model "$model" <"$work/long" >"$work/out" 2>"$work/err"
code=$?
expect_code 2
expect_one_error_line
expect_err "context"
{ printf '{"prompt": "'; cat "$work/long"; printf '"}\n{"prompt": "short", "max_tokens": 2}\n'; } >"$work/long.jsonl"
run generate --model "$model" --prompts "$work/long.jsonl"
expect_code 1
expect_jsonl "$work/out" 2
expect_out '"text":'

# A budget that cannot hold the model.
run generate --model "$model" --prompt x --memory 100KB
expect_code 4
expect_one_error_line

# --chat wraps the prompt; template arguments reach the template.
run generate --model "$model" --chat --system "You are kind." --prompt "Hello!" --max-tokens 12 --template-arg a=1 \
    --enable-thinking false
expect_code 0
expect_true "an answer came" test -s "$work/out"

# Ways of holding the weights.
for quant in nf4 nf4-dq int8 bf16 f32; do
    run generate --model "$model" --prompt "Once upon a time" --max-tokens 4 --quant $quant --quant-head int8 --kv int8
    expect_code 0
done

# --stats: one line of JSON on stderr. --summary: for people.
run generate --model "$model" --prompt x --max-tokens 3 --stats --ignore-eos
expect_jsonl "$work/err" 1
expect_err '"completion_tokens":3'
run generate --model "$model" --prompt x --max-tokens 3 --summary
expect_err "tokens/s"
expect_err "K/V pages"

# What is reserved is what the requests need, where they are known: one prompt, or as many lines as run at once.
planned() { sed -n 's/.*"planned_bytes":\([0-9]*\).*/\1/p' "$work/err"; }
run generate --model "$model" --prompt x --max-tokens 3 --stats
one=$(planned)
expect_true "resident memory is measured" grep -q '"peak_rss_bytes":[1-9]' "$work/err"
awk 'BEGIN { for (i = 0; i < 65; i++) print "{\"prompt\": \"a\", \"max_tokens\": 3}" }' >"$work/lines.jsonl"
head -3 "$work/lines.jsonl" >"$work/three.jsonl"
run generate --model "$model" --prompts "$work/three.jsonl" --output "$work/three.answers" --stats
three=$(planned)
run generate --model "$model" --prompts "$work/lines.jsonl" --output "$work/lines.answers" --stats
many=$(planned)
expect_true "one prompt takes less than many ($one of $many)" test $((one * 4)) -lt "$many"
expect_true "three prompts take little more ($three)" test "$three" -lt $((one + one / 4))
expect_jsonl "$work/three.answers" 3

# Rules for logits come from a line, or from the model's generation_config.json, which also limits the answer. What
# transformers would obey there and qrun does not is named once.
cat >"$work/rules.jsonl" <<'JSONL'
{"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "no_repeat_ngram_size": 2, "min_new_tokens": 24}
{"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "bad_words_ids": [3]}
JSONL
run generate --model "$model" --prompts "$work/rules.jsonl"
expect_code 1
expect_out '"completion_tokens":24'
expect_out 'line 2: \"bad_words_ids\" must be a list of lists of token ids'
mkdir "$work/ruled"
cp "$model"/*.json "$model"/*.safetensors "$work/ruled"
echo '{"eos_token_id": 2, "max_new_tokens": 5, "num_beams": 3, "guidance_scale": 1.5}' >"$work/ruled/generation_config.json"
run generate --model "$work/ruled" --prompt "Once upon a time" --json
expect_code 0
expect_out '"completion_tokens":5'
expect_true "one line on stderr" test "$(wc -l <"$work/err")" = 1
expect_err "does not obey these members of the model's generation_config.json: num_beams, guidance_scale"
run generate --model "$work/ruled" --prompt "Once upon a time" --json --max-tokens 7
expect_out '"completion_tokens":7'

# Drafts save steps where the text repeats itself, and change nothing else; a prompt that was read before is not read
# again, in another run either.
lost="One day the door fell shut, and the key was inside."
echo "$lost There was only one tiny window. $lost There was only one tiny window. $lost" >"$work/again"
for speculate in off ngram; do
    run generate --model "$model" --prompt "$(cat "$work/again")" --max-tokens 100 --temperature 0 --ignore-eos --stats \
        --speculate $speculate
    expect_code 0
    cp "$work/out" "$work/$speculate.txt"
    cp "$work/err" "$work/$speculate.stats"
done
expect_true "drafts change no answer" cmp -s "$work/off.txt" "$work/ngram.txt"
expect_true "no drafts" grep -q '"draft_tokens":0,"accepted_draft_tokens":0,' "$work/off.stats"
expect_true "drafts that are right" grep -q '"draft_tokens":[1-9][0-9]*,"accepted_draft_tokens":[1-9]' "$work/ngram.stats"
run generate --model "$model" --prompt x --speculate never
expect_code 3
expect_err "--speculate: "
expect_one_error_line
run generate --model "$model" --prompt x --cache-dir-size 1GiB
expect_code 2
expect_err "--cache-dir-size needs --cache-dir"
for round in first second; do
    run generate --model "$model" --prompt "$(cat "$work/again")" --max-tokens 100 --temperature 0 --ignore-eos --stats \
        --cache-dir "$work/kv"
    expect_code 0
    expect_true "$round: the same answer" cmp -s "$work/out" "$work/off.txt"
    cp "$work/err" "$work/$round.stats"
done
expect_true "nothing was shared at first" grep -q '"cached_prompt_tokens":0,' "$work/first.stats"
expect_true "the prompt came back" grep -q '"cached_prompt_tokens":[1-9][0-9]' "$work/second.stats"
expect_true "the prompt was kept" test "$(find "$work/kv" -name '*.qrun-kv' | wc -l)" -gt 5
for page in "$work/kv/"*.qrun-kv; do printf 'x' >>"$page"; done
run generate --model "$model" --prompt "$(cat "$work/again")" --max-tokens 100 --temperature 0 --ignore-eos \
    --cache-dir "$work/kv"
expect_code 0
expect_true "damaged pages change no answer" cmp -s "$work/out" "$work/off.txt"
expect_err "is damaged; it is not used, and was removed"
expect_true "one line says so" test "$(wc -l <"$work/err")" = 1

# No requests at all.
: >"$work/none.jsonl"
run generate --model "$model" --prompts "$work/none.jsonl"
expect_code 0
expect_empty_out
finish

# qrun finetune: data as people have it: tables, plain text, folders, compressed files, pipes, other names of members.
. "$QRUN_SOURCE/tests/cli/lib.sh"

finetune() { run finetune --model "$model" --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 "$@"; }

# shows DATA ARGUMENTS…: what the model would be trained on is in $work/out.
shows() {
    finetune --show-mask 50 --data "$@"
    expect_code 0
    expect_silent_err
}

# refused CODE MESSAGE ARGUMENTS…
refused() {
    expected=$1 message=$2
    shift 2
    finetune --show-mask 1 "$@"
    expect_code "$expected"
    expect_one_error_line
    expect_err "$message"
}

# same_as_out FILE: $work/out has what the file has.
same_as_out() { expect_true "the same as $1" cmp -s "$work/out" "$1"; }

# ---- Pairs under other names ----

printf '{"prompt": "Who?", "response": " Me."}\n' >"$work/response.jsonl"
shows "$work/response.jsonl"
expect_out "Who?« Me.<|eos|>»"
printf '{"input": "Who?", "output": "Me."}\n' >"$work/input.jsonl"
shows "$work/input.jsonl"
expect_out "<|user|>Who?<|end|><|assistant|>«Me.<|end|>»"

printf '{"q": "Who?", "a": " Me.", "prompt": "not this"}\n' >"$work/qa.jsonl"
shows "$work/qa.jsonl" --columns prompt=q,completion=a
expect_out "Who?« Me.<|eos|>»"
shows "$work/qa.jsonl" --columns question=q,answer=a
expect_out "<|user|>Who?<|end|><|assistant|>«Me.<|end|>»"
refused 3 'has no known format: its members are "q", "a" and "prompt". A line should be like {"prompt": "Hello!", "completion": " Ahoy!"}' --data "$work/qa.jsonl"
expect_err "--columns gives other names"
refused 3 'qa.jsonl:1: has no "b", which --columns names; its members are "q", "a" and "prompt"' --data "$work/qa.jsonl" --columns prompt=q,completion=b
# "system" beside an example is the system message; where there are no messages, it is not lost in silence.
for example in '"instruction": "Hi", "input": "", "output": "Ahoy!"' '"question": "Hi", "answer": "Ahoy!"' \
    '"input": "Hi", "output": "Ahoy!"' '"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ahoy!"}]' \
    '"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}]' \
    '"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Ahoy!"}]'; do
    printf '{%s, "system": "Be kind."}\n' "$example" >"$work/system.jsonl"
    shows "$work/system.jsonl"
    expect_out "<|system|>Be kind.<|end|><|user|>Hi<|end|><|assistant|>«Ahoy!<|end|>»"
    printf '{%s, "system": ["Be kind."]}\n' "$example" >"$work/system.jsonl"
    refused 3 'system.jsonl:1: "system" should be a text, not a list' --data "$work/system.jsonl"
done
printf '{"prompt": "Hi", "response": "Ahoy!", "system": "Be kind."}\n' >"$work/system.jsonl"
refused 3 'system.jsonl:1: has a "system", which texts without a chat template have no place for' --data "$work/system.jsonl"
expect_err "leave it out with --columns prompt=prompt,response=response"
shows "$work/system.jsonl" --columns prompt=prompt,response=response
printf '{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}], "system": "Be kind."}\n' \
    >"$work/system.jsonl"
refused 3 'it has a "system", and a first message of the role system; give one of them' --data "$work/system.jsonl"

# Without an objective of pairs they are refused; what would learn the chosen answers works.
printf '{"prompt": "Hi", "chosen": " Ahoy!", "rejected": " No."}\n' >"$work/pairs.jsonl"
refused 3 '--objective dpo learns to prefer the one to the other. To learn the chosen ones alone: --columns prompt=prompt,completion=chosen' \
    --data "$work/pairs.jsonl"
shows "$work/pairs.jsonl" --columns prompt=prompt,completion=chosen
printf '{"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}], "rejected": []}\n' \
    >"$work/pairs.jsonl"
refused 3 'To learn the chosen ones alone: --columns messages=chosen' --data "$work/pairs.jsonl"
shows "$work/pairs.jsonl" --columns messages=chosen
printf '{"prompt": "Hi", "chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}], %s}\n' \
    '"rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No."}]' >"$work/pairs.jsonl"
refused 3 'To learn the chosen ones alone: --columns messages=chosen' --data "$work/pairs.jsonl"
shows "$work/pairs.jsonl" --columns messages=chosen
printf '{"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": "Ahoy!"}], %s}\n' \
    '"rejected": [{"role": "assistant", "content": "No."}]' >"$work/pairs.jsonl"
refused 3 'To learn the chosen ones alone: --columns prompt=prompt,completion=chosen' --data "$work/pairs.jsonl"
shows "$work/pairs.jsonl" --columns prompt=prompt,completion=chosen
refused 2 '--columns: "prompt" is not NAME=COLUMN' --data "$work/qa.jsonl" --columns prompt
refused 2 '--columns: no format has "promt"' --data "$work/qa.jsonl" --columns promt=q
refused 2 '--columns names "prompt" twice' --data "$work/qa.jsonl" --columns prompt=q,prompt=a

# ---- Conversations in two parts, and calls of tools ----

cat >"$work/trl.jsonl" <<'END'
{"prompt": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Who?"}], "completion": [{"role": "assistant", "content": "Me."}]}
END
shows "$work/trl.jsonl"
expect_out "<|assistant|>Yes?<|end|>"
expect_out "<|assistant|>«Me.<|end|>»"
printf '{"prompt": [{"role": "user", "content": "Hi!"}], "completion": "Me."}\n' >"$work/mixed.jsonl"
refused 3 "the prompt is a list of messages, so what completes it should be one too" --data "$work/mixed.jsonl"

cp -r "$model" "$work/tools-model"
cat >"$work/tools-model/chat_template.jinja" <<'END'
{% if tools %}[tools {{ tools[0].function.name }}]{% endif %}{% for m in messages %}<|{{ 'assistant' if m.role == 'assistant' else 'user' }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}[call {{ c.function.name }}({{ c.function.arguments.city }})]{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}
END
cat >"$work/tools.jsonl" <<'END'
{"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "rain", "arguments": {"city": "Oslo"}}}]}, {"role": "tool", "tool_call_id": "1", "content": "yes"}, {"role": "assistant", "content": "It rains."}], "tools": [{"type": "function", "function": {"name": "rain", "parameters": {}}}]}
END
run finetune --model "$work/tools-model" --seq-len 128 --data "$work/tools.jsonl" --show-mask 1
expect_code 0
expect_silent_err
expect_out "[tools rain]<|user|>Rain?<|end|><|assistant|>«[call rain(Oslo)]<|end|>»<|user|>yes<|end|><|assistant|>«It rains.<|end|>»"
# A table has tools as JSON in a text, and may have columns that are null.
cat >"$work/tools-text.jsonl" <<'END'
{"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "Yes."}], "tools": "[{\"type\": \"function\", \"function\": {\"name\": \"rain\", \"parameters\": {}}}]"}
{"messages": [{"role": "user", "content": "Snow?"}, {"role": "assistant", "content": "No."}], "tools": " "}
END
run finetune --model "$work/tools-model" --seq-len 128 --data "$work/tools-text.jsonl" --show-mask 2
expect_code 0
expect_out "[tools rain]<|user|>Rain?<|end|><|assistant|>«Yes.<|end|>»"
expect_true "tools that are a blank text are none" grep -q '^<|user|>Snow?' "$work/out"
printf '{"messages": null, "tools": null, "prompt": "Hail?", "completion": " No."}\n' >"$work/nulls.jsonl"
shows "$work/nulls.jsonl"
expect_out "Hail?« No.<|eos|>»"
sed 's/"\[{/"[{{/' "$work/tools-text.jsonl" >"$work/tools-bad.jsonl"
run finetune --model "$work/tools-model" --seq-len 128 --data "$work/tools-bad.jsonl" --show-mask 1
expect_code 3
expect_one_error_line
expect_err 'tools-bad.jsonl:1: the text in "tools"'
# The day is the same in every time zone.
mkdir "$work/dated-model"
cp "$work"/tools-model/* "$work/dated-model"
printf '%s' "{{ strftime_now('%d %B %Y %H:%M') }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" \
    >"$work/dated-model/chat_template.jinja"
for zone in UTC America/New_York Asia/Tokyo Pacific/Kiritimati EST5EDT; do
    TZ=$zone run finetune --model "$work/dated-model" --seq-len 128 --data "$work/tools-text.jsonl" --show-mask 1 \
        --date 2026-07-22
    expect_code 0
    expect_out "22 July 2026 00:00<|user|>Rain?"
done

# ---- Tables ----

printf '\357\273\277,question,answer\r\n0,"Who, ""you""?",Me.\r\n\r\n1,"Two\nlines",b\r\n' >"$work/table.csv"
shows "$work/table.csv"
expect_out '<|user|>Who, "you"?<|end|><|assistant|>«Me.<|end|>»'
expect_out "<|assistant|>«b<|end|>»"
expect_true "two records" grep -q "example 2 of 2" "$work/out"
cp "$work/out" "$work/table.shown"
tr ',' '\t' <"$work/table.csv" | sed 's/Who\t/Who,/' >"$work/table.tsv"
shows "$work/table.tsv"
same_as_out "$work/table.shown"
cp "$work/table.csv" "$work/table.data"
shows "$work/table.data" --format csv
same_as_out "$work/table.shown"
printf 'Question,Answer\nWho?,Me.\n' >"$work/names.csv"
refused 3 'names.csv:2: has no known format: its members are "Question" and "Answer"' --data "$work/names.csv"
shows "$work/names.csv" --columns prompt=Question,completion=Answer
expect_out "Who?«Me.<|eos|>»"
printf 'question,answer\nWho?,Me.\nWhat?\n' >"$work/short.csv"
refused 3 "short.csv:3: the header has 2 columns, and this record has fewer" --data "$work/short.csv"
shows "$work/short.csv" --skip-bad
printf 'question,answer\nWho?,"Me.\nWhat?,b\n' >"$work/open.csv"
refused 3 "open.csv:2: a quoted field that begins in this record is not closed" --data "$work/open.csv"
printf 'question,question\na,b\n' >"$work/twice.csv"
refused 3 'twice.csv:1: the header has two columns "question"' --data "$work/twice.csv"
printf 'Frage;Antwort\nWer?;Ich.\n' >"$work/excel.csv"
refused 3 "excel.csv:1: the header is one column, \"Frage;Antwort\"; columns are separated by commas, here apparently by ';'" --data "$work/excel.csv"
tr ';' '\t' <"$work/excel.csv" >"$work/tabs.csv"
refused 3 "apparently by tabs; save the table with commas, or with tabs as .tsv" --data "$work/tabs.csv"
shows "$work/tabs.csv" --format tsv --columns prompt=Frage,completion=Antwort
expect_out "Wer?«Ich.<|eos|>»"
printf 'text\n"a; b"\n' >"$work/one.csv"
shows "$work/one.csv"
expect_out "«a; b<|eos|>»"
printf '\357\273\277question,answer\n' >"$work/header.csv"
refused 3 "header.csv" --data "$work/header.csv"
printf '\357\273\277' >"$work/mark.csv"
refused 3 "mark.csv: is empty" --data "$work/mark.csv"
printf '\n\n  \n' >"$work/blank.csv"
refused 3 "blank.csv: is empty" --data "$work/blank.csv"
printf ',\na,b\n' >"$work/nameless.csv"
refused 3 "nameless.csv:2: has no known format: its members are none" --data "$work/nameless.csv"
printf 'question,answer\n,\r\nWho?,Me.\n,\n,,,\n' >"$work/rows.csv"
shows "$work/rows.csv"
expect_true "rows of separators are passed over" grep -q "example 1 of 1" "$work/out"
printf 'question,answer\n"Who" are you?,Me.\n' >"$work/after.csv"
refused 3 "after.csv:2: field 1 has text after its closing quote" --data "$work/after.csv"
refused 2 '--columns: no format has "frage"' --data "$work/table.csv" --columns frage=question
refused 3 'table.csv:2: has no "Frage", which --columns names; its members are "question" and "answer"' --data "$work/table.csv" --columns prompt=Frage,completion=answer
printf 'question,answer\nWho?,caf\351\n' >"$work/latin.csv"
refused 3 "latin.csv:2: byte 0xe9 is not valid UTF-8 here" --data "$work/latin.csv"

# ---- Plain text ----

printf 'The sea is\r\nwide.\r\n\r\n \r\nThe sea is deep.\r\n' >"$work/sea.txt"
shows "$work/sea.txt" --format paragraphs
expect_true "two paragraphs" grep -q "example 2 of 2" "$work/out"
expect_out "«The sea is"
expect_out "<|bos|>«The sea is deep.<|eos|>»"
expect_true "no CR is left" sh -c "! grep -q '$(printf '\r')' '$work/out'"
shows "$work/sea.txt"
expect_true "one text" grep -q "example 1 of 1" "$work/out"
expect_out "The sea is deep."
expect_out "<|eos|>»"

# A long text fills rows to the last token, and every byte of it comes once and in order.
seq -f 'Line %g of a long text that runs on and on.' 3000 >"$work/long.txt"
finetune --data "$work/long.txt" --show-mask 100000
expect_code 0
grep -v '^--- example' "$work/out" | tr -d '\n' | sed 's/«//g; s/»//g; s/<|bos|>//g; s/<|eos|>//g' >"$work/joined"
tr -d '\n' <"$work/long.txt" >"$work/expected"
expect_true "every row follows the one before it" cmp -s "$work/joined" "$work/expected"
finetune --data "$work/long.txt" --max-steps 1 --out "$work/rows" --json
expect_code 0
expect_true "rows are full" awk -F'[:,]' '{ for (i = 1; i <= NF; i++) { if ($i == "\"examples\"" && !n) n = $(i + 1); if ($i == "\"tokens\"" && !t) t = $(i + 1) } } END { exit !(n > 100 && t > 96 * (n - 1) && t <= 96 * n) }' "$work/out"

mkdir -p "$work/folder/deeper"
printf 'One.\n' >"$work/folder/b.txt"
printf 'Two.\n' >"$work/folder/deeper/c.txt"
gzip -c "$work/folder/b.txt" >"$work/folder/a.gz"
printf 'hidden\n' >"$work/folder/.hidden"
shows "$work/folder" --format text
expect_out "One."
expect_out "<|eos|>»<|bos|>«One."
expect_out "Two."
expect_true "hidden files are passed over" sh -c "! grep -q hidden '$work/out'"
refused 3 "folder: is a folder; say what its files are, such as --format text" --data "$work/folder"
printf 'a\000b' >"$work/folder/z.bin"
refused 3 "z.bin: is not text: it holds zero bytes" --data "$work/folder" --format text
mkdir "$work/nothing"
refused 3 "nothing: is a folder without files" --data "$work/nothing" --format text

# ---- Compressed, and through pipes ----

head -20 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/pirate.jsonl"
shows "$work/pirate.jsonl"
cp "$work/out" "$work/pirate.shown"
gzip -k "$work/pirate.jsonl"
shows "$work/pirate.jsonl.gz"
same_as_out "$work/pirate.shown"
head -9 "$work/pirate.jsonl" | gzip >"$work/members.gz"
tail -n +10 "$work/pirate.jsonl" | gzip >>"$work/members.gz"
shows "$work/members.gz"
same_as_out "$work/pirate.shown"
shows "$QRUN_SOURCE/tests/fuzz/seeds/unpack/frame.zst"
expect_out "<|bos|>«a b<|eos|>»"
head -c 200 "$work/pirate.jsonl.gz" >"$work/cut.gz"
refused 3 "cut.gz: is damaged and cannot be unpacked: it ends too early" --data "$work/cut.gz"
head -c 12 "$QRUN_SOURCE/tests/fuzz/seeds/unpack/frame.zst" >"$work/cut.zst"
refused 3 "cut.zst: is damaged and cannot be unpacked" --data "$work/cut.zst"
head -c 5 "$work/pirate.jsonl.gz" >"$work/start.jsonl.gz"
refused 3 "start.jsonl.gz: is damaged and cannot be unpacked: it ends too early" --data "$work/start.jsonl.gz"
{ cat "$work/pirate.jsonl.gz"; printf 'rubbish'; } >"$work/tail.gz"
refused 3 "tail.gz: is damaged and cannot be unpacked" --data "$work/tail.gz"
: | gzip >"$work/none.jsonl.gz"
refused 3 "none.jsonl.gz: is empty" --data "$work/none.jsonl.gz"
: >"$work/none.jsonl"
refused 3 "none.jsonl: is empty" --data "$work/none.jsonl"
gzip -c "$work/table.csv" >"$work/table.csv.gz"
shows "$work/table.csv.gz"
same_as_out "$work/table.shown"
gzip -c "$work/pirate.jsonl.gz" >"$work/twice.gz"
refused 3 "twice.gz: is compressed twice" --data "$work/twice.gz"
head -c 200000000 /dev/zero | gzip -9 >"$work/bomb.gz"
refused 3 "bomb.gz: unpacks to more than 1000 times its size" --data "$work/bomb.gz"

last="qrun finetune --data -"
"$QRUN" finetune --model "$model" --seq-len 96 --show-mask 50 --data - <"$work/pirate.jsonl" >"$work/out" 2>"$work/err"
same_as_out "$work/pirate.shown"
gzip -dc "$work/pirate.jsonl.gz" | "$QRUN" finetune --model "$model" --seq-len 96 --show-mask 50 --data - >"$work/out" 2>"$work/err"
same_as_out "$work/pirate.shown"
mkfifo "$work/pipe"
cat "$work/pirate.jsonl.gz" >"$work/pipe" &
shows "$work/pipe"
same_as_out "$work/pirate.shown"
wait

# A run from a pipe is resumed with the same bytes, and equals one from the file.
finetune --data "$work/pirate.jsonl" --max-steps 3 --out "$work/from-file" --quiet
expect_code 0
cat "$work/pirate.jsonl" | "$QRUN" finetune --model "$model" --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 \
    --data - --max-steps 3 --out "$work/from-pipe" --quiet >"$work/out" 2>"$work/err"
expect_true "a pipe gives the same adapter" cmp -s "$work/from-file/adapter_model.safetensors" "$work/from-pipe/adapter_model.safetensors"
expect_true "nothing unpacked stays" test -z "$(find "$work/from-pipe" -name '*unpacked*')"

# ---- What is none of these ----

printf 'Once upon a time\nthere was a sea.\n' >"$work/story"
refused 3 "story:1: begins with 'Once upon a time', which is not JSON; a line should be like {\"prompt\"" --data "$work/story"
expect_err "--format csv reads a table, and --format text plain text"
refused 3 "model.safetensors: is not text: it holds zero bytes" --data "$model/model.safetensors"
printf 'PK\003\004\000' >"$work/sheet.xlsx"
refused 3 "sheet.xlsx: is a spreadsheet; save it as CSV, in UTF-8" --data "$work/sheet.xlsx"
printf '\377\376{\000' >"$work/wide.jsonl"
refused 3 "wide.jsonl: is UTF-16; save it as UTF-8" --data "$work/wide.jsonl"
printf '{"data": [{"prompt": "a", "completion": "b"}]}\n' >"$work/wrapped.json"
refused 3 'wrapped.json:1: has no known format: its members are "data"' --data "$work/wrapped.json"
printf '{\n  "prompt": "a",\n  "completion": "b"\n}\n' >"$work/pretty.json"
refused 3 "pretty.json:1: is a JSON object over several lines" --data "$work/pretty.json"
printf '"a"\n' >"$work/string.jsonl"
refused 3 "string.jsonl:1" --data "$work/string.jsonl"
printf '[]\n' >"$work/array.json"
refused 3 "array.json" --data "$work/array.json"
refused 3 "none-such.jsonl" --data "$work/none-such.jsonl"
printf 'PAR1\025\000\025' >"$work/a b.parquet"
refused 3 "pandas.read_parquet('FILE.parquet')" --data "$work/a b.parquet"
printf 'PAR1\025\000\025' >"$work/rows.parquet"
refused 3 "rows.parquet: is a Parquet file; convert it with: python3 -c \"import pandas; pandas.read_parquet('$work/rows.parquet').to_json('$work/rows.parquet.jsonl', orient='records', lines=True)\"" --data "$work/rows.parquet"
finish

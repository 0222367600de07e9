# qrun finetune --sample-prompts: answers before and after a run.
. "$QRUN_SOURCE/tests/cli/lib.sh"

cat >"$work/prompts.jsonl" <<'END'
{"prompt": "Hello!", "max_tokens": 12}
{"id": "b", "messages": [{"role": "user", "content": "Who <are> you?"}], "max_tokens": 12}
END
finetune() {
    run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 --learning-rate 2e-2 \
        --schedule constant --max-steps 20 --seed 5 --sample-prompts "$work/prompts.jsonl" "$@"
}

finetune --out "$work/a"
expect_code 0
expect_silent_err
expect_jsonl "$work/a/samples-before.jsonl" 2
expect_jsonl "$work/a/samples-after.jsonl" 2
expect_true "training shows" sh -c "! grep -q \"\$(sed -n 's/.*\\(\"token_ids\":[^]]*]\\),\"finish.*/\\1/p' '$work/a/samples-before.jsonl' | head -1)\" '$work/a/samples-after.jsonl'"
report="$work/a/report.html"
expect_true "the report has both" sh -c "grep -q 'Samples, before and after' '$report' && grep -q '<th>before</th>' '$report' && grep -q '<th>after</th>' '$report'"
expect_true "answers come before options" sh -c "sed -n '/Samples, before/,\$p' '$report' | grep -q '<h2>Options'"
expect_true "prompts are escaped" grep -q 'Who &lt;are&gt; you?' "$report"
expect_true "no cell is empty" sh -c "! grep -q '<td></td>' '$report'"

# Ends of lines stay, and what is empty says so.
cat >"$work/odd.jsonl" <<'END'
{"prompt": "One\nTwo", "max_tokens": 4, "stop": ["e"]}
{"token_ids": [5, 6], "max_tokens": 1}
END
run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 --max-steps 1 \
    --sample-prompts "$work/odd.jsonl" --out "$work/odd" --quiet
expect_code 0
expect_true "a prompt of two lines" grep -qx '<tr><th>prompt</th><td>One' "$work/odd/report.html"
expect_true "ids of tokens" grep -qxF '<tr><th>prompt</th><td>(tokens)</td></tr>' "$work/odd/report.html"
expect_true "no cell is empty" sh -c "! grep -q '<td></td>' '$work/odd/report.html'"

# What is sampled is what the program answers, and sampling changes nothing of the run.
run generate --model "$model" --adapter "$work/a" --prompts "$work/prompts.jsonl" --chat --with-prompt --temperature 0
cut -d, -f1-7 "$work/out" | sort >"$work/answers"
cut -d, -f1-7 "$work/a/samples-after.jsonl" | sort >"$work/sampled"
expect_true "the samples are the answers" cmp -s "$work/sampled" "$work/answers"
run finetune --model "$model" --data "$QRUN_SOURCE/examples/finetune/pirate.jsonl" --seq-len 96 --learning-rate 2e-2 \
    --schedule constant --max-steps 20 --seed 5 --out "$work/b" --quiet
expect_true "the same adapter" cmp -s "$work/a/adapter_model.safetensors" "$work/b/adapter_model.safetensors"

# From an adapter, and a whole model.
finetune --adapter "$work/b" --out "$work/c" --quiet
expect_code 0
expect_true "before is after" sh -c "grep -o '\"text\":\"[^\"]*\"' '$work/a/samples-after.jsonl' | sort >'$work/1'; grep -o '\"text\":\"[^\"]*\"' '$work/c/samples-before.jsonl' | sort | cmp -s - '$work/1'"
finetune --full --out "$work/d" --quiet
expect_code 0
expect_jsonl "$work/d/samples-after.jsonl" 2

# A request that has no answer is told before the training, once.
printf '{"prompt": "Hello!", "max_tokens": 2}\n{"prompt": "Hello!", "max_tokns": 2}\n' >"$work/prompts.jsonl"
finetune --out "$work/e" --quiet
expect_code 0
expect_true "one line" test "$(wc -l <"$work/err")" -eq 1
expect_err 'note: 1 of 2 requests of --sample-prompts have no answer; the first: line 2: "max_tokns" is not a member'
: >"$work/prompts.jsonl"
finetune --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--sample-prompts takes a file of 1 to 64 requests"
expect_true "nothing is left" test ! -e "$work/none"
finish

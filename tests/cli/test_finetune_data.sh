# qrun finetune: what counts in messages, what is no text, and several files of data.
. "$QRUN_SOURCE/tests/cli/lib.sh"

# finetune ARGUMENTS…: of the shipped model, small and quick.
finetune() { run finetune --model "$model" --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 "$@"; }

# ---- Messages that do not count ----

cat >"$work/weights.jsonl" <<'END'
{"messages": [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "First.", "weight": 0}, {"role": "user", "content": "Well?"}, {"role": "assistant", "content": "Second.", "weight": 1}]}
{"messages": [{"role": "user", "content": "Hi!", "mood": "good"}, {"role": "assistant", "content": "Third.", "train": false}, {"role": "assistant", "content": [{"type": "text", "text": "Fo"}, {"type": "text", "text": "urth."}], "likes": 3}]}
{"messages": [{"role": "user", "content": "Learn me.", "train": true}, {"role": "assistant", "content": "Fifth.", "training": false}]}
END
finetune --data "$work/weights.jsonl" --show-mask 3
expect_code 0
expect_silent_err
expect_out "<|assistant|>First.<|end|>"
expect_out "<|assistant|>«Second.<|end|>»"
expect_out "<|assistant|>Third.<|end|>"
expect_out "<|assistant|>«Fourth.<|end|>»"
expect_out "<|user|>«Learn me.<|end|>»<|assistant|>Fifth.<|end|>"
expect_out "unread      members, unless the chat template reads them: \"mood\", \"likes\" (first in $work/weights.jsonl:2)"
expect_true "and once" test "$(grep -c '^unread' "$work/out")" -eq 1

# Of a run too, and of one that takes the tokens it made before.
for _ in first again; do
    finetune --data "$work/weights.jsonl" --max-steps 1 --out "$work/weights" --restart
    expect_code 0
    expect_out '"mood", "likes"'
done

# Another weight is other data.
sed -i 's/"weight": 0/"weight": 1/' "$work/weights.jsonl"
finetune --data "$work/weights.jsonl" --max-steps 1 --out "$work/weights"
expect_code 3
expect_one_error_line
expect_err "was made by another run"

# refused MESSAGE LINE: the second line of a file is refused.
refused() {
    printf '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n%s\n' "$2" >"$work/bad.jsonl"
    finetune --data "$work/bad.jsonl" --show-mask 1
    expect_code 3
    expect_one_error_line
    expect_err "$work/bad.jsonl:2: $1"
}
refused 'message 1: "weight" should be 0 or 1' '{"messages": [{"role": "assistant", "content": "b", "weight": 0.5}]}'
refused 'message 1: "train" should be true or false, not a text' '{"messages": [{"role": "assistant", "content": "b", "train": "no"}]}'
refused 'message 1: "content" should be a text, not null' '{"messages": [{"role": "assistant", "content": null}]}'
refused 'message 1: "content" should be a text, not true' '{"messages": [{"role": "assistant", "content": true}]}'
refused 'message 1: "content": part 1 is of the type "image_url"' '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}'

# ---- Several files ----

head -30 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/many.jsonl"
printf '{"text": "The sea is wide."}\n{"text": "The sea is deep."}\n{"text": "The sea is blue."}\n' >"$work/few.jsonl"
finetune --data "$work/many.jsonl" --data "$work/few.jsonl" --max-steps 2 --out "$work/both"
expect_code 0
expect_silent_err
expect_out "data        $work/many.jsonl: messages, 30 examples"
expect_out "            $work/few.jsonl: text, 3 examples"
expect_true "the report names both" grep -q "few.jsonl: text, 3 of 33 examples per epoch" "$work/both/report.html"

finetune --data "$work/many.jsonl" --data-weight 2 --data "$work/few.jsonl" --data-weight 1 --max-steps 2 --out "$work/shares"
expect_code 0
expect_out "            $work/few.jsonl: text, 3 examples; 15 an epoch, some repeated"
finetune --data "$work/many.jsonl" --data-weight 2 --data "$work/few.jsonl" --data-weight 1 --max-steps 2 --out "$work/json" --json
expect_code 0
expect_jsonl "$work/out" 4
expect_out "{\"file\":\"$work/few.jsonl\",\"format\":\"text\",\"examples\":3,\"epoch_examples\":15,\"unknown_members\":\"\"}"

# Other files, another order, other weights: another run.
finetune --data "$work/many.jsonl" --data-weight 1 --data "$work/few.jsonl" --data-weight 1 --max-steps 2 --out "$work/shares"
expect_code 3
expect_one_error_line
expect_err "--restart"
finetune --data "$work/few.jsonl" --data-weight 2 --data "$work/many.jsonl" --data-weight 1 --max-steps 2 --out "$work/shares"
expect_code 3
expect_err "--restart"

finetune --data "$work/many.jsonl" --data "$work/few.jsonl" --data-weight 1 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--data-weight needs one weight for each file of --data, in their order"
finetune --data "$work/many.jsonl" --data "$work/few.jsonl" --data-weight 1 --data-weight 0 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--data-weight takes a number from"
finetune --data "$work/many.jsonl" --data-weight 1 --data "$work/few.jsonl" --data-weight 1000000 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "few.jsonl: an epoch in these --data-weight"

# A bad line of the second file.
printf '{"text": "a"}\n{"text": 7}\n' >"$work/broken.jsonl"
finetune --data "$work/many.jsonl" --data "$work/broken.jsonl" --out "$work/none"
expect_code 3
expect_one_error_line
expect_err "broken.jsonl:2: \"text\" should be a text, not a number"

finetune --data "$work/many.jsonl" --eval-data "$work/few.jsonl" --eval-data "$work/weights.jsonl" --max-steps 2 --out "$work/evaluated"
expect_code 0
expect_out "evaluation  6 examples"

finish

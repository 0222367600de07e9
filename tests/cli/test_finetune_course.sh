# qrun finetune: which examples a step takes, evaluation on the way, what data it reads, and how it is stopped.
. "$QRUN_SOURCE/tests/cli/lib.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
tail -6 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/eval.jsonl"

# finetune ARGUMENTS…: of the shipped model, small and quick.
finetune() { run finetune --model "$model" --seq-len 96 --rank 4 --lr 5e-3 --seed 3 "$@"; }

# ---- What is refused ----

for wrong in "needs --batching group|--batch-tokens 100" "did you mean 'group'|--batching grouped" \
    "exclude each other|--batching group --batch-size 2 --batch-tokens 100"; do
    # shellcheck disable=SC2086 # words of the list
    run finetune --model "$model" --data x --out y ${wrong#*|}
    expect_code 2
    expect_one_error_line
    expect_err "${wrong%%|*}"
done

# ---- Batches by length ----

finetune --data "$work/train.jsonl" --batching group --batch-tokens 128 --epochs 1 --out "$work/group" --quiet
expect_code 0
expect_silent_err
sed 's/.*"tokens":\([0-9]*\).*/\1/' "$work/group/metrics.jsonl" >"$work/tokens"
expect_true "no step has more tokens than the budget" awk '$1 > 128 { exit 1 }' "$work/tokens"
expect_true "steps use the budget" awk '$1 > 64 { n++ } END { exit n < NR / 2 }' "$work/tokens"
finetune --data "$work/train.jsonl" --batching group --batch-tokens 16 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--seq-len of at most 16"

# ---- Data ----

# data TEXT: a data file with it, single quotes for double ones.
data() { printf "$1" | tr "'" '"' >"$work/data.jsonl"; }

data "{'question': '1 + 1?', 'answer': '#### 2'}\n{'question': '1 + 2?', 'answer': '#### 3'}\n"
finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/questions"
expect_code 0
expect_out "question/answer, 2 examples"
expect_out "--chat --prompt"
data "{'conversations': [{'from': 'human', 'value': 'Hi!'}, {'from': 'gpt', 'value': 'Hello!'}]}\n"
finetune --data "$work/data.jsonl" --show-mask 1 --out "$work/sharegpt"
expect_code 0
expect_out "«Hello!"
data "{'text': 'a b c'}\n{'text': 'd\n{'text': 'e f g'}\n"
finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/one-bad" --skip-bad
expect_code 0
expect_out "bad lines   1 passed over; the first: $work/data.jsonl:2:10: this string has no closing quote"

# refused WHY: of data.jsonl.
refused() {
    finetune --data "$work/data.jsonl" --max-steps 1 --out "$work/refused"
    expect_code 3
    expect_one_error_line
    expect_err "data.jsonl"
    expect_err "$1"
}
data ""
refused "is empty; one example per line is wanted"
data "[]"
refused "holds no examples"
data "{'text': 'a b c'}\n{'text': 'd'}\n{'text': 'e\n{'text': 'f'}\n"
refused "data.jsonl:3:10: this string has no closing quote; --skip-bad leaves such examples out"
data "{'txt': 'a b c'}\n"
refused "is of no known format"
data "{'messages': [{'role': 'user', 'content': 'Hi!'}]}\n"
refused 'no conversation has an answer of the role "assistant"'
data "{'prompt': '$(seq 200 | tr '\n' ' ')', 'completion': 'a'}\n"
refused "take a longer --seq-len"
head -c 5000 "$model/model.safetensors" >"$work/data.jsonl"
refused "is no text"
printf '\037\213\010\000' >"$work/data.jsonl"
refused "unpack it with gunzip first"
expect_true "no file of it stays" test -z "$(find "$work/refused" -type f)"

finish

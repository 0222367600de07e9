# The examples on the first screen of help fit together: each is run as it is printed, in an empty folder where only the
# model and a text are. What listens, measures or needs a model of the hub is not run.
. "$QRUN_SOURCE/tests/cli/lib.sh"

mkdir -p "$work/bin" "$work/room/path/to"
ln -s "$QRUN" "$work/bin/qrun"
cp -r "$model" "$work/room/path/to/model"
sed -i "s/\(\"max_position_embeddings\": \)[0-9]*/\18192/" "$work/room/path/to/model/config.json" # as examples have it
cp "$model/config.json" "$work/room/path/to/config.json"
cp "$QRUN_SOURCE/examples/eval.txt" "$work/room/wiki.test.raw"
PATH="$work/bin:$PATH"
cd "$work/room" || exit 1

# data COMMAND FILE: the lines of JSON in its examples.
data() { qrun help "$1" | sed -n 's/^  \({.*}\)$/\1/p' >"$2"; }
data finetune train.jsonl
data generate requests.jsonl
touch "$work/out" "$work/err"
last="the lines of JSON in the examples"
expect_true "two examples to train on" test "$(wc -l <train.jsonl)" -eq 2
expect_true "two requests" test "$(wc -l <requests.jsonl)" -eq 2

n_run=0
for command in finetune generate chat quantize merge export inspect plan tokenize eval; do
    qrun help "$command" | sed -n '/^Examples$/,/^More$/s/^  qrun /qrun /p' >"$work/lines"
    while IFS= read -r line; do
        case $line in *Qwen/*) continue ;; esac
        rm -rf merged
        last=$line
        sh -c "$line" </dev/null >"$work/out" 2>"$work/err"
        code=$?
        expect_code 0
        n_run=$((n_run + 1))
    done <"$work/lines"
done
expect_true "examples ran" test $n_run -ge 20
expect_jsonl answers.jsonl 2
expect_true "answers have the ids of the requests" grep -q '"id":"a"' answers.jsonl
expect_true "what was trained is a PEFT adapter" test -s my-adapter/adapter_config.json
finish

# --config: options from a YAML file, and the run.yaml that a run writes.
. "$QRUN_SOURCE/tests/cli/lib.sh"

data=$QRUN_SOURCE/examples/finetune/pirate.jsonl

# config TEXT: a file of options.
config() {
    [ "$1" != -- ] || shift
    printf "%b" "$1" >"$work/run.yaml"
}

# refused CODE MESSAGE COMMAND…: with the file.
refused() {
    expected=$1 message=$2
    shift 2
    run "$@" --config "$work/run.yaml" </dev/null
    expect_code "$expected"
    expect_one_error_line
    expect_err "$message"
}

# ---- Every kind of option, for several commands ----

config "# a comment\nmodel: $model\nprompt: \"Hello there!\"\nchat: true\nmax-tokens: 12\ntemperature: 0\n"
run generate --config "$work/run.yaml"
expect_code 0
cp "$work/out" "$work/from-file"
run generate --model "$model" --prompt "Hello there!" --chat --max-tokens 12 --temperature 0
expect_true "a file says what options say" cmp -s "$work/out" "$work/from-file"
run generate --config "$work/run.yaml" --max-tokens 3 --json
expect_code 0
expect_out '"completion_tokens":3'
config "model: $model\ndecode: false\n"
run tokenize --config "$work/run.yaml" hello
expect_code 0
config "text: $QRUN_SOURCE/examples/eval.txt\nmodel: $model\nmax-tokens: 64\njson: true\n"
run eval --config "$work/run.yaml"
expect_code 0
expect_out '"perplexity"'

# ---- Refused by line ----

config "model: x\nlerning-rate: 1\n"
refused 2 "run.yaml:2: 'finetune' has no option 'lerning-rate'; did you mean 'learning-rate'?" finetune
config "model: x\nlearning_rate: 1\n"
refused 2 "did you mean 'learning-rate'?" finetune
config "model: x\nlr: 1\n"
refused 2 "did you mean 'learning-rate'?" finetune
config "rank: many\n"
refused 2 "run.yaml:1: rank takes a whole number from 1 to 512, not 'many'" finetune
config "rank: [4, 8]\n"
refused 2 "run.yaml:1: rank takes one value and no list" finetune
config "target-modules: [q_proj, v_proj]\n"
refused 2 "run.yaml:1: target-modules takes one value and no list; where it is several names, they are one text: a,b" finetune
config "full: maybe\n"
refused 2 "run.yaml:1: full takes true or false, not 'maybe'" finetune
config "schedule: lineal\n"
refused 2 "run.yaml:1: schedule cannot be 'lineal'; did you mean 'linear'?" finetune
config "rank: 4\nrank: 8\n"
refused 3 "run.yaml:2: 'rank' is given twice" finetune
config "rank:\n"
refused 3 "run.yaml:1: 'rank' has no value" finetune
config "config: other.yaml\n"
refused 2 "run.yaml:1: 'finetune' has no option 'config' that a file may have" finetune
config "rank: &r 4\nalpha: *r\n"
refused 3 "run.yaml:1: anchors (&name) and tags (!name) are not read" finetune
config "rank: 4\nalpha: *r\n"
refused 3 "run.yaml:2: aliases (*name) are not read" finetune
config "lora: {rank: 4}\n"
refused 3 "run.yaml:1: a value should be here" finetune
config "data: [[a]]\n"
refused 3 "run.yaml:1: a value should be here" finetune
config -- "- rank\n"
refused 3 "names of options with their values should be here" finetune
config "a: \"\n"
refused 3 "is not YAML" finetune
config "rank: 4\n---\nrank: 8\n"
refused 3 "and not a second document" finetune
run finetune --config "$work/no-such.yaml"
expect_code 3
expect_one_error_line

# ---- What no file of options is ----

config "$(printf '%0100d' 0 | tr 0 n): 1\n"
refused 2 "has no option '$(printf '%060d' 0 | tr 0 n)'" generate
config "rank: 4\n\trank: 8\n"
refused 3 "run.yaml:2: is not YAML" finetune
config "caf\0351: 1\n"
refused 3 "is not YAML" finetune
config ""
refused 2 "no model" generate
config "just words\n"
refused 3 "run.yaml:1: names of options with their values should be here" generate
for null in '~' null Null; do
    config "prompt: $null\n"
    refused 3 "run.yaml:1: 'prompt' has no value" generate
done
config "model: $model\nprompt: \"null\"\nmax-tokens: 1\n"
run generate --config "$work/run.yaml"
expect_code 0
config "\0357\0273\0277model: $model\nprompt: x\nmax-tokens: 1\n"
run generate --config "$work/run.yaml"
expect_code 0
config "rank: 4.5\n"
refused 2 "run.yaml:1: rank takes a whole number from 1 to 512, not '4.5'" finetune
config "learning-rate: fast\n"
refused 2 "run.yaml:1: learning-rate takes a number" finetune
config "prompt: [a, b]\n"
refused 2 "run.yaml:1: prompt takes one value and no list" generate
config "rank: &r 4\nbase: &b {<<: *r}\n"
refused 3 "anchors" finetune
awk 'BEGIN { printf "data: "; for (i = 0; i < 100000; i++) printf "["; print "a" }' >"$work/run.yaml"
refused 3 "run.yaml:1: a value should be here" finetune
awk 'BEGIN { for (i = 0; i < 100000; i++) printf "{a: " }' >"$work/run.yaml"
refused 3 "run.yaml:1: a value should be here" finetune
awk 'BEGIN { for (i = 0; i < 90000; i++) print "a" i ": 1" }' >"$work/run.yaml"
refused 3 "run.yaml:10001: more than 10000 values are too many for a file of options" generate
head -c 2000000 /dev/zero | tr '\0' ' ' >"$work/run.yaml"
refused 3 "has more than 1048576 bytes" generate
head -c 300 "$model/model.safetensors" >"$work/run.yaml"
refused 3 "is not YAML" generate
run generate --config "$work"
expect_code 3
expect_one_error_line

# ---- Every command has it ----

config "frobnicate: 1\n"
for command in generate chat serve finetune merge export inspect plan tokenize eval quantize bench; do
    refused 2 "run.yaml:1: '$command' has no option 'frobnicate'" $command
done
config "model: $model\nmax-tokens: 3\n"
last="qrun chat --config"
echo "Hello" | "$QRUN" chat --config "$work/run.yaml" >"$work/out" 2>"$work/err"
code=$?
expect_code 0
config "model: $model\njson: true\n"
run inspect --config "$work/run.yaml"
expect_code 0
expect_out '"family":"llama"'
config "model: $model\ncontext: 64\njson: true\n"
run plan --config "$work/run.yaml"
expect_code 0
expect_jsonl "$work/out" 1
config "model: $model\nquant: int8\nout: $work/int8\n"
run quantize --config "$work/run.yaml"
expect_code 0
config "model: $model\ntype: q4_0\nout: $work/m.gguf\njson: true\n"
run export --config "$work/run.yaml"
expect_code 0
expect_out '"type":"q4_0"'
config "model: $model\nprompt-tokens: 8\ndecode-tokens: 2\nrepeat: 1\nbatch: 1\nquiet: true\n"
run bench --config "$work/run.yaml"
case $code in 2) expect_err "'bench' has no option 'quiet'" ;; *) expect_code 0 ;; esac

# ---- The same file gives the same run ----

run finetune --model "$model" --data "$data" --seq-len 128 --max-steps 4 --learning-rate 3e-3 --warmup 0.25 --seed 11 \
    --eval-split 0.1 --eval-every 2 --target-modules attn --out "$work/a"
expect_code 0
expect_true "it begins with qrun's mark" grep -q '^# finetune of qrun ' "$work/a/run.yaml"
for line in 'rank: 16' 'alpha: 32' 'learning-rate: 0.003' 'optimizer: adamw' 'schedule: linear' 'seed: 11' 'batch-size: 1' \
    'max-grad-norm: 1' 'keep: 2' 'target-modules: "attn"' 'eval-split: 0.1' "date: \"$(date -u +%Y-%m-%d)\"" 'quant: auto'; do
    expect_true "run.yaml has $line" grep -qxF "$line" "$work/a/run.yaml"
    expect_true "the report has ${line%%:*}" grep -q "<th>${line%%:*}</th>" "$work/a/report.html"
done
run finetune --config "$work/a/run.yaml" --out "$work/b"
expect_code 0
expect_true "to the bit" cmp -s "$work/a/adapter_model.safetensors" "$work/b/adapter_model.safetensors"
expect_true "and the same settled options" sh -c "grep -v '^out:' '$work/a/run.yaml' >'$work/1'; grep -v '^out:' '$work/b/run.yaml' | cmp -s - '$work/1'"
run finetune --config "$work/a/run.yaml"
expect_code 0
expect_out "All steps are done"
run generate --config "$work/a/run.yaml"
expect_code 2
expect_one_error_line
expect_err "'generate' has no option 'data'"
config "model: $model\nadapter: $work/a\nout: $work/merged\nno-compare: true\n"
run merge --config "$work/run.yaml"
expect_code 0
run finetune --config "$work/a/run.yaml" --seed 12 --out "$work/c" --quiet
expect_code 0
expect_true "the command line wins" sh -c "! cmp -s '$work/a/adapter_model.safetensors' '$work/c/adapter_model.safetensors'"

printf 'mine\n' >"$work/c/run.yaml"
run finetune --config "$work/a/run.yaml" --seed 12 --out "$work/c" --restart
expect_code 3
expect_err "run.yaml' is not qrun's"

run finetune --config "$work/a/run.yaml" --date 2026-02-30 --out "$work/d"
expect_code 2
expect_one_error_line
expect_err '--date: "2026-02-30" is not a day'
finish

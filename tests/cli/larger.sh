# Shared by the tests of folders that are larger than the memory: sourced after lib.sh, with $WIDE_MODEL (wide_model.c).
# Makes a quantised folder of 286 MB, and what it generates and learns where memory is plenty.

larger=$work/larger
mkdir "$larger"
cp "$model/tokenizer.json" "$model/tokenizer_config.json" "$larger"
"$WIDE_MODEL" "$larger" 20 2>"$work/err" || fail "the folder is written"
folder_bytes=$(wc -c <"$larger/model.safetensors")
head -4 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"

# larger_answer OPTIONS…, larger_step OPTIONS…: the arguments of qrun.
larger_answer() {
    echo generate --model "$larger" --prompt Once --max-tokens 4 --ignore-eos --threads 2 --context 64 \
        --max-sequences 1 --max-step-tokens 16 --speculate off "$@"
}
larger_step() {
    echo finetune --model "$larger" --data "$work/train.jsonl" --seq-len 32 --max-steps 1 --rank 2 --threads 2 \
        --checkpointing full --json "$@"
}

# shellcheck disable=SC2046 # words of options
run $(larger_answer)
expect_code 0
cp "$work/out" "$work/answer"
# shellcheck disable=SC2046
run $(larger_step --out "$work/resident")
expect_code 0

# check_larger LIMIT_BYTES RUNNER…: the same within that limit, which RUNNER sets, from the folder; without
# --offload parameters it is refused or ends in a clean error.
check_larger() {
    limit=$1
    shift
    expect_true "the folder is twice the limit" test "$folder_bytes" -gt $((2 * limit))
    # shellcheck disable=SC2046
    run_in "$@" -- $(larger_answer --offload parameters)
    expect_code 0
    expect_true "the same answer" cmp -s "$work/answer" "$work/out"
    # shellcheck disable=SC2046
    run_in "$@" -- $(larger_step --offload parameters --out "$work/limited")
    expect_code 0
    planned=$(sed -n 's/.*"planned_bytes":\([0-9]*\),"peak_bytes":\([0-9]*\).*/\1/p' "$work/out" | tail -1)
    expect_true "what is planned is below the limit" test "${planned:-$limit}" -lt "$limit"
    expect_true "the same adapter" cmp -s "$work/resident/adapter_model.safetensors" \
        "$work/limited/adapter_model.safetensors"
    rm -rf "$work/limited"
    # shellcheck disable=SC2046
    run_in "$@" -- $(larger_answer)
    expect_code 4
    expect_one_error_line
}

# run_in RUNNER… -- ARGUMENTS…: the program, started by RUNNER.
run_in() {
    runner=""
    while [ "$1" != -- ]; do
        runner="$runner $1"
        shift
    done
    shift
    last="$runner qrun $*"
    # shellcheck disable=SC2086 # words of a command
    $runner "$QRUN" "$@" >"$work/out" 2>"$work/err"
    code=$?
}

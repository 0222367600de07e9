# The examples of training, from C and from Python: both make the same adapter, also when Ctrl-C stopped them on the way.
. "$QRUN_SOURCE/tests/cli/lib.sh"

data=$QRUN_SOURCE/examples/finetune/pirate.jsonl
n_steps=60

# interrupted OUT COMMAND…: runs the command, interrupts it after its third step, and runs it again to the end.
interrupted() {
    out=$1
    shift
    "$@" >"$work/out" 2>"$work/err" &
    started=$!
    waited=0
    while ! grep -q "^step    3 " "$work/out" && [ "$waited" -lt 600 ]; do
        sleep 0.05
        waited=$((waited + 1))
    done
    kill -INT "$started"
    wait "$started"
    code=$?
    expect_code 130
    expect_out "the same command continues from the checkpoint"
    expect_true "a checkpoint was saved" sh -c "ls -d '$out'/checkpoint-* >/dev/null"
    "$@" >"$work/out" 2>"$work/err"
    code=$?
    expect_code 0
    expect_silent_err
    expect_true "it went on where it was" sh -c "! grep -q 'from step 1,' '$work/out'"
    expect_out "the adapter is in"
    expect_true "the same adapter as without a stop, to the bit" \
        cmp -s "$out/adapter_model.safetensors" "$work/whole/adapter_model.safetensors"
}

last="examples/c/finetune"
"$QRUN_EXAMPLE_FINETUNE" "$model" "$data" "$work/whole" $n_steps >"$work/out" 2>"$work/err"
code=$?
expect_code 0
expect_silent_err
expect_out " examples, $n_steps steps from step 1,"
expect_out "step   $n_steps  loss"
expect_out "evaluation loss"
run generate --model "$model" --adapter "$work/whole" --chat --prompt "Hello there!" --max-tokens 8
expect_code 0
last="examples/c/finetune, interrupted"
interrupted "$work/c" "$QRUN_EXAMPLE_FINETUNE" "$model" "$data" "$work/c" $n_steps
"$QRUN_EXAMPLE_FINETUNE" "$model" "$work/nowhere.jsonl" "$work/none" >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_err "nowhere.jsonl"

command -v python3 >/dev/null || finish
case ${QRUN_SANITIZE:-} in
    ?*) finish ;; # a Python without the sanitizer's run-time library cannot load the library
esac
last="examples/python/qrun_finetune.py"
export PYTHONPATH="$QRUN_SOURCE/python" PYTHONDONTWRITEBYTECODE=1
interrupted "$work/python" python3 "$QRUN_SOURCE/examples/python/qrun_finetune.py" "$model" "$data" "$work/python" \
    $n_steps
python3 "$QRUN_SOURCE/examples/python/qrun_finetune.py" "$model" "$work/nowhere.jsonl" "$work/none" \
    >"$work/out" 2>"$work/err"
code=$?
expect_code 1
expect_err "nowhere.jsonl"
finish

# A rank that dies, hangs, or finds its disk full ends all ranks soon, with one message that names it. The last checkpoint
# is whole, and the run continues from it to the same bits.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
usual="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --grad-accum 3 --seed 5 --save-every 2 --max-steps 30"
# shellcheck disable=SC2086 # words of options
run finetune $usual --quiet --out "$work/whole"
expect_code 0

# fault SIGNAL RANK STEP MESSAGE: the signal reaches the rank once rank 0 has written so many steps. The others end
# within the limit of three seconds, give or take what a busy machine needs. One of them says what happened.
fault() {
    rm -rf "$work/hit"
    # shellcheck disable=SC2086
    start_ranks 3 $usual --collective-timeout 3 --json --out "$work/hit"
    tries=0
    while [ "$(grep -c '"step"' "$work/out.0")" -lt "$3" ] && [ $tries -lt 1200 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
    kill -s "$1" "$(pid_of "$2")"
    begin=$(date +%s)
    for rank in 0 1 2; do
        [ $rank -eq "$2" ] || while kill -0 "$(pid_of $rank)" 2>/dev/null && [ $(($(date +%s) - begin)) -lt 60 ]; do
            sleep 0.1
        done
    done
    seconds=$(($(date +%s) - begin))
    kill -s KILL "$(pid_of "$2")" 2>/dev/null
    wait_ranks
    last="$last, SIG$1 to rank $2 after step $3"
    expect_true "the others end within the limit: $seconds s" test $seconds -lt 20
    case $codes in
    *" 0"*) fail "a rank has succeeded: $codes" ;;
    esac
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
    expect_err "$4"
    # What is left goes on, on another number of ranks.
    # shellcheck disable=SC2086
    run_ranks 2 $usual --quiet --out "$work/hit"
    expect_code 0
    expect_true "the resumed run has the same bits" cmp -s "$work/whole/adapter_model.safetensors" \
        "$work/hit/adapter_model.safetensors"
}

fault KILL 1 3 "rank 1 ended without a word"
fault KILL 0 5 "rank 0 ended without a word"
usual="$usual --zero 1" # each has states that no other has, but for those in the checkpoint
fault KILL 2 3 "rank 2 ended without a word"
fault STOP 2 4 "rank 2 has been silent for 3 s (--collective-timeout)"

# ---- A full disk on rank 0 ----

# shellcheck disable=SC2086
if [ -c /dev/full ]; then
    mkdir "$work/full"
    ln -s /dev/full "$work/full/metrics.jsonl"
    run_ranks 2 $usual --quiet --out "$work/full"
    expect_true "rank 0 fails" test "$code" -ne 0
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
fi

# ---- A stranger who connects first and sends a byte now and then ----

rank_of_two() {
    RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$QRUN" finetune --threads 1 --model "$model" \
        --data "$work/train.jsonl" --seq-len 96 --rank 4 --max-steps 1 --quiet --collective-timeout 25 \
        --out "$work/strange" >"$work/out.$1" 2>"$work/err.$1"
}
if command -v python3 >/dev/null; then
    port=$((port + 1))
    rank_of_two 0 &
    first=$!
    python3 - "$port" "$work/connected" <<'EOF' &
import socket, sys, time
while True:
    try:
        stranger = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.05)
open(sys.argv[2], "w").close()
try:
    for _ in range(60):
        stranger.send(b"q")
        time.sleep(1)
except OSError:
    pass
EOF
    stranger=$!
    tries=0
    while [ ! -e "$work/connected" ] && [ $tries -lt 400 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    rank_of_two 1
    code=$?
    last="two ranks and a stranger"
    cat "$work/err.0" "$work/err.1" >"$work/err"
    expect_code 0
    wait $first
    code=$?
    expect_code 0
    kill $stranger 2>/dev/null
fi

# ---- A rank that never comes ----

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 1)) run finetune --model "$model" \
    --data "$work/train.jsonl" --out "$work/none" --collective-timeout 1
expect_code 5
expect_one_error_line
expect_err "rank 1 did not join in time (--collective-timeout)"

finish

# Ranks on GPUs whose NCCL fails, as a stand-in for it does when it is told to, or one of which is gone: one message, and
# nothing hangs.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

export QRUN_CUDA_LIBRARY="$QRUN_CUDA_LIBRARY_SIMT" QRUN_CUDA_NCCL="$NCCL_STAND_IN"
head -20 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
common="--model $model --device cuda --data $work/train.jsonl --seq-len 32 --grad-accum 2 --schedule constant"
lora="$common --rank 4 --max-steps 1"

# ---- Errors of the library ----

# fails FAULT MESSAGE: one message, by whichever rank has to say it. Who hangs runs into the test's own limit.
fails() {
    rm -rf "$work/failing"
    # shellcheck disable=SC2086
    QRUN_NCCL_FAILS=$1 run_ranks 2 $lora --zero 3 --collective-timeout 20 --quiet --out "$work/failing"
    last="$last, $1 on ${QRUN_NCCL_FAILS_ON:-all ranks}"
    expect_true "it fails:$codes" test "$codes" != " 0 0"
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
    expect_err "$2"
}
fails ncclGetVersion:2 "nccl: asking for its version: unhandled system error"
fails ncclGetUniqueId:3 "nccl: making an id for the ranks: internal error"
fails ncclCommInitRankConfig:4 "nccl: joining the ranks: invalid argument"
fails ncclCommGetAsyncError:5 "nccl: asking how the ranks are joined: invalid usage"
fails ncclGroupStart:1 "nccl: beginning an exchange: unhandled cuda error"
for code in 1 2 3 4 5 6; do
    fails ncclGroupEnd:$code "nccl: an exchange: "
done
export QRUN_NCCL_FAILS_ON=1
fails ncclCommInitRankConfig:2 "rank 1: nccl: joining the ranks: unhandled system error"
fails ncclSend:3 "rank 1: nccl: sending to a rank: internal error"
fails ncclRecv:4 "rank 1: nccl: receiving from a rank: invalid argument"
QRUN_NCCL_FAILS_AT=9 fails ncclGroupEnd:5 "rank 1: nccl: an exchange: invalid usage"
QRUN_NCCL_FAILS_AT=4 fails async:6 "rank 1: nccl: an exchange: remote process exited"
unset QRUN_NCCL_FAILS_ON

# Of two versions.
start_with_version() {
    RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port QRUN_NCCL_VERSION=$2 \
        "$QRUN" finetune --threads 1 $lora --quiet --out "$work/versions" >"$work/out.$1" 2>"$work/err.$1" &
    pids="$pids $!"
}
port=$((port + 1))
pids="" n_ranks=2
start_with_version 0 21800
start_with_version 1 22105
wait_ranks
last="two ranks with two versions of NCCL"
expect_code 3
expect_one_error_line
expect_err "rank 1 has NCCL 22105 and rank 0 21800; use one version on all"

# ---- A rank that dies or stops during exchanges ----

# fault SIGNAL RANK MESSAGE: after the second step.
fault() {
    rm -rf "$work/hit"
    # shellcheck disable=SC2086
    start_ranks 2 $common --rank 4 --max-steps 400 --zero 3 --save-every 2 --collective-timeout 6 --json --out "$work/hit"
    tries=0
    while [ "$(grep -c '"step"' "$work/out.0")" -lt 2 ] && [ $tries -lt 1200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    kill -s "$1" "$(pid_of "$2")"
    other=$(pid_of $((1 - $2)))
    tries=0
    while kill -0 "$other" 2>/dev/null && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -s KILL "$(pid_of "$2")" 2>/dev/null
    expect_true "the other rank has ended" test $tries -lt 600
    [ $tries -lt 600 ] || kill -s KILL "$other"
    wait_ranks
    last="$last, SIG$1 to rank $2"
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
    expect_err "$3"
}
fault KILL 1 "rank 1 ended without a word"
QRUN_NCCL_LOST=error fault KILL 0 "rank 0 ended without a word"
fault STOP 1 "rank 1 has been silent for"

finish

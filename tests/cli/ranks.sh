# For tests of several ranks: sourced after lib.sh. The ranks are processes of this machine that find each other as those
# of torchrun do.

# A hundred ports of its own for each script that runs, below those that connections get from the system.
port=$((10000 + $$ % 190 * 100))

# start_ranks_of COMMAND N ARGUMENTS…: starts N ranks of it. Their process ids are then in $pids.
start_ranks_of() {
    command=$1 n_ranks=$2
    shift 2
    last="$n_ranks ranks of qrun $command $*"
    port=$((port + 1))
    [ $((port % 100)) -lt 99 ] || port=$((port - 99)) # long ago free again
    pids="" rank=0
    while [ $rank -lt "$n_ranks" ]; do
        : >"$work/out.$rank" # at once: what earlier ranks wrote must not be taken for this one's
        RANK=$rank WORLD_SIZE=$n_ranks LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$QRUN" "$command" --threads 1 "$@" >"$work/out.$rank" 2>"$work/err.$rank" &
        pids="$pids $!"
        rank=$((rank + 1))
    done
}

# Of qrun finetune.
start_ranks() {
    start_ranks_of finetune "$@"
}

# Waits for all of them. $code: of rank 0; $codes: of all. $work/out and $work/err have what they wrote, in their order.
wait_ranks() {
    codes="" rank=0
    : >"$work/out"
    : >"$work/err"
    for pid in $pids; do
        wait "$pid"
        status=$?
        [ $rank -gt 0 ] || code=$status
        codes="$codes $status"
        cat "$work/out.$rank" >>"$work/out"
        cat "$work/err.$rank" >>"$work/err"
        rank=$((rank + 1))
    done
}

run_ranks() {
    start_ranks "$@"
    wait_ranks
}

run_ranks_of() {
    start_ranks_of "$@"
    wait_ranks
}


# strike SIGNAL RANK: of three ranks that run, with a --collective-timeout of 3. The others must end within the limit,
# none of them with success, and one message says why.
strike() {
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
    last="$last, SIG$1 to rank $2"
    expect_true "the others end within the limit: $seconds s" test $seconds -lt 20
    case $codes in
    *" 0"*) fail "a rank has succeeded: $codes" ;;
    esac
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
}

# The metrics without what depends on the clock.
course_of() {
    sed -E 's/,"(tokens_per_second|seconds|peak_bytes)":[0-9.e+-]+//g' "$1/metrics.jsonl"
}

# expect_same WANTED GOT: the result, the last checkpoint (parameters, optimiser states, position) and the metrics.
expect_same() {
    expect_code 0
    for file in adapter_model.safetensors model.safetensors $(cd "$1" && ls -d checkpoint-*/state.safetensors | tail -1) \
        $(cd "$1" && ls -d checkpoint-*/state.json | tail -1); do
        [ -e "$1/$file" ] || continue
        expect_true "$file has the same bytes" cmp -s "$1/$file" "$2/$file"
    done
    course_of "$1" >"$work/wanted.jsonl"
    course_of "$2" >"$work/got.jsonl"
    expect_true "the metrics are the same" cmp -s "$work/wanted.jsonl" "$work/got.jsonl"
}

# The process of rank $1.
pid_of() {
    echo "$pids" | cut -d' ' -f$(($1 + 2))
}

# A rank that dies, hangs, or finds its disk full ends all ranks soon, with one message that names it. The last checkpoint
# is whole, and the run continues from it to the same bits.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

head -24 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
usual="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --grad-accum 4 --grad-sums 4 --seed 5 --save-every 2
    --max-steps 30"
whole=$usual
# shellcheck disable=SC2086 # words of options
run finetune $usual --quiet --out "$work/whole"
expect_code 0
began=$(date +%s%N)
# shellcheck disable=SC2086
run_ranks 2 $usual --quiet --out "$work/timed"
expect_code 0
all_seconds=$(awk -v began="$began" -v now="$(date +%s%N)" 'BEGIN { print (now - began) / 1e9 }')

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
    strike "$1" "$2"
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

# ---- Killed at any moment ----

# kills N SEED: N runs, each of a number of ranks and a stage of its own, of which a rank is killed at a moment of its
# own, from its start to beyond its end. What is left ends within the limit. Whichever number of ranks comes next, as an
# elastic launcher would start it, ends with the bits of the run that was never interrupted.
kills() {
    awk -v n="$1" -v seed="$2" 'BEGIN {
        srand(seed)
        while (n-- > 0) print 2 + int(rand() * 3), int(rand() * 4), rand(), rand(), 1 + int(rand() * 4) }' >"$work/kills"
    n_cut=0
    # shellcheck disable=SC2086
    while read -r n zero which share next; do
        rm -rf "$work/killed"
        which=$(awk -v n="$n" -v r="$which" 'BEGIN { print int(n * r) }')
        moment=$(awk -v all="$all_seconds" -v share="$share" 'BEGIN { printf "%.3f", 1.2 * all * share }')
        start_ranks "$n" $whole --zero "$zero" --collective-timeout 10 --quiet --out "$work/killed"
        sleep "$moment"
        kill -s KILL "$(pid_of "$which")" 2>/dev/null
        begin=$(date +%s)
        wait_ranks
        last="$last, rank $which killed after $moment s"
        expect_true "the others end within the limit" test $(($(date +%s) - begin)) -lt 60
        # A rank tells the others that it is done, and may be killed after it. So the run was cut short where one of the
        # others failed; else the result is there, whole.
        if [ "$(echo "$codes" | sed 's/\b137\b//; s/[ 0]//g')" != "" ]; then
            n_cut=$((n_cut + 1))
            expect_true "a message names the rank, and there is no other:$codes" sh -c "grep -q '^qrun: .*rank $which' \
                '$work/err' && ! grep '^qrun: ' '$work/err' | grep -v 'rank $which'"
        else
            expect_true "the run was over:$codes" cmp -s "$work/whole/adapter_model.safetensors" \
                "$work/killed/adapter_model.safetensors"
        fi
        run_ranks "$next" $whole --quiet --out "$work/killed"
        expect_code 0
        expect_true "the resumed run has the same bits" cmp -s "$work/whole/adapter_model.safetensors" \
            "$work/killed/adapter_model.safetensors"
        expect_true "and the same optimiser states" cmp -s "$work/whole/checkpoint-30/state.safetensors" \
            "$work/killed/checkpoint-30/state.safetensors"
    done <"$work/kills"
    echo "$n_cut of $1 runs were cut short"
}

# An argument says how many; the suite has few.
kills "${1:-6}" 17

# ---- A full disk on rank 0 ----

# shellcheck disable=SC2086
if [ -c /dev/full ]; then
    mkdir "$work/full"
    ln -s /dev/full "$work/full/metrics.jsonl"
    run_ranks 2 $usual --quiet --out "$work/full"
    expect_true "rank 0 fails" test "$code" -ne 0
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
fi

# A checkpoint that does not fit: rank 0's files may have so many blocks of 512 bytes. What was written before is whole.
# shellcheck disable=SC2086
{
    constant="$whole --schedule constant"
    rm -rf "$work/full"
    run finetune $constant --quiet --out "$work/unhurt"
    run_ranks 2 $constant --quiet --out "$work/full"
    expect_code 0
    blocks=$(($(wc -c <"$work/full/checkpoint-30/state.safetensors") / 1024))
    rm -rf "$work/full/checkpoint-30" "$work/full/adapter_model.safetensors"
    expect_true "an earlier checkpoint is left" test -e "$work/full/checkpoint-28"
    port=$((port + 1))
    pids="" n_ranks=2
    for rank in 0 1; do
        (
            [ $rank -gt 0 ] || ulimit -f "$blocks"
            RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port exec "$QRUN" finetune --threads 1 $constant \
                --quiet --out "$work/full" >"$work/out.$rank" 2>"$work/err.$rank"
        ) &
        pids="$pids $!"
    done
    wait_ranks
    last="two ranks, of which rank 0 may write files of $blocks blocks"
    expect_true "rank 0 fails" test "$code" -ne 0
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
    expect_err "File too large"
    run finetune $constant --quiet --out "$work/full"
    expect_code 0
    expect_true "the resumed run has the same bits" cmp -s "$work/unhurt/adapter_model.safetensors" \
        "$work/full/adapter_model.safetensors"
}

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

# ---- A rank of another version ----

if command -v python3 >/dev/null; then
    port=$((port + 1))
    rank_of_two 0 &
    first=$!
    python3 - "$port" <<'EOF'
import socket, struct, sys, time
while True:
    try:
        other = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.05)
other.sendall(struct.pack("=8s32sQiiII", b"qrunrank", b"0.0.1", 0xCBF29CE484222325, 1, 2, 0, 0))
other.recv(1 << 10)
EOF
    wait $first
    code=$?
    cp "$work/err.0" "$work/err"
    last="rank 0 and one of another version"
    expect_code 3
    expect_one_error_line
    expect_err "rank 1 is qrun 0.0.1 and rank 0 is "
fi

# ---- A rank that never comes ----

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 1)) run finetune --model "$model" \
    --data "$work/train.jsonl" --out "$work/none" --collective-timeout 1
expect_code 5
expect_one_error_line
expect_err "rank 1 did not join in time (--collective-timeout)"

# ---- A rank that fails alone, before the run or in it ----

# Rank $1 runs the commands $2 first, and has the options $3 where the others have $4.
cat >"$work/rank.sh" <<'END'
rank=${OMPI_COMM_WORLD_RANK:-$RANK} own=$4
if [ "$rank" -eq "$1" ]; then
    eval "$2"
    own=$3
fi
shift 4
exec "$QRUN" "$@" --threads 1 $own
END

# apart LAUNCHER RANKS RANK COMMANDS OWN OTHERS COMMAND ARGUMENTS…: the exit codes are in $codes, or that of mpirun.
apart() {
    launcher=$1 n_ranks=$2
    last="$*"
    shift 2
    begin=$(date +%s)
    if [ "$launcher" = mpirun ]; then
        LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" \
            OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
            mpirun --oversubscribe -n "$n_ranks" sh "$work/rank.sh" "$@" --collective-timeout 60 >"$work/out" 2>"$work/err"
        code=$? codes=" $?"
    else
        port=$((port + 1)) pids="" rank=0
        while [ $rank -lt "$n_ranks" ]; do
            RANK=$rank WORLD_SIZE=$n_ranks LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
                sh "$work/rank.sh" "$@" --collective-timeout 60 >"$work/out.$rank" 2>"$work/err.$rank" &
            pids="$pids $!"
            rank=$((rank + 1))
        done
        wait_ranks
    fi
    seconds=$(($(date +%s) - begin))
}

# All end long before the time limit, none with success, and one line says why.
apart_fails() {
    message=$1
    shift
    apart "$@"
    expect_true "all end soon: $seconds s" test $seconds -lt 40
    case $codes in
    *" 0"*) fail "a rank has succeeded: $codes" ;;
    esac
    expect_true "there is one message" test "$(grep -c '^qrun: ' "$work/err")" -eq 1
    expect_err "$message"
}

launchers=sockets
if command -v mpirun >/dev/null && [ -e "$(dirname "$QRUN_LIBRARY")/libqrun_mpi.so" ]; then launchers="sockets mpirun"; fi
run quantize --model "$model" --out "$work/stored"
expect_code 0
common="--data $work/train.jsonl --seq-len 96 --rank 4 --max-steps 2 --grad-accum 3 --quiet"
streams="--tensor-parallel 2 --offload parameters --prompts $work/many.jsonl --output $work/many-answers.jsonl --quiet"
i=0
while [ $i -lt 3000 ]; do
    echo "{\"prompt\": \"The sea $i\", \"max_tokens\": 100, \"ignore_eos\": true}"
    i=$((i + 1))
done >"$work/many.jsonl"
# After the first answer, or a minute.
cat >"$work/cut.sh" <<'END'
tries=0
while ! grep -q '"text"' "$1/many-answers.jsonl.partial" && [ $tries -lt 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
: >"$1/copy/model.safetensors"
END
# shellcheck disable=SC2086
for launcher in $launchers; do
    apart_fails "qrun: rank 1: $work/none: there is no such folder" $launcher 3 1 true "--model $work/none" "--model $model" \
        finetune $common --out "$work/apart"
    apart_fails "qrun: $work/none: there is no such folder" $launcher 3 0 true "--model $work/none" "--model $model" \
        finetune $common --out "$work/apart"
    apart_fails "qrun: $work/none: there is no such folder" $launcher 3 0 true "" "" \
        finetune $common --model "$work/none" --out "$work/apart"
    apart_fails "qrun: cannot open '$work/none'" $launcher 2 0 true "" "" \
        finetune $common --model "$model" --out "$work/apart" --sample-prompts "$work/none"
    apart_fails "qrun: cannot open '$work/none'" $launcher 2 0 true "" "" \
        generate --model "$model" --tensor-parallel 2 --prompts "$work/none"
    # Rank 1 has a folder of its own for the tokens, on a disk that is full.
    rm -rf "$work/apart" "$work/apart-1"
    apart_fails "cannot write: File too large; allow larger files (ulimit -f)" $launcher 2 1 "ulimit -f 1" \
        "--out $work/apart-1" "--out $work/apart" finetune $common --model "$model"
    expect_err "qrun: rank 1: $work/apart-1/tokens/"
    # Rank 1 streams its rows from a copy of the folder, which is cut short while it does.
    rm -rf "$work/copy" "$work"/many-answers.jsonl*
    cp -r "$work/stored" "$work/copy"
    apart_fails "qrun: rank 1: $work/copy/model.safetensors" $launcher 2 1 \
        "sh $work/cut.sh $work >$work/cut.log 2>&1 &" "--model $work/copy" "--model $work/stored" generate $streams
    # Kept pages are not needed: the run ends well, and a note says why none are kept.
    rm -rf "$work/pages"
    apart $launcher 2 1 "ulimit -f 1" "" "" generate --model "$model" --tensor-parallel 2 --prompt "$(seq -s ' ' 60)" \
        --max-tokens 4 --temperature 0 --cache-dir "$work/pages"
    expect_code 0
    expect_err "note: rank 1: $work/pages/rank-1-of-2: cannot write: File too large; no more K/V pages are kept there"
    expect_true "there is one note" test "$(grep -c "$work/pages" "$work/err")" -eq 1
done
head -3 "$work/train.jsonl" >"$work/eval-1.jsonl"
tail -3 "$work/train.jsonl" >"$work/eval.jsonl"
rm -rf "$work/apart"
apart_fails "rank 1: runs something else than rank 0 (there): the data to evaluate on differ" sockets 2 1 true \
    "--eval-data $work/eval-1.jsonl" "--eval-data $work/eval.jsonl" finetune $common --model "$model" \
    --out "$work/apart"
apart_fails "qrun: ranks 0 and 1 are at different places of the run; give all ranks the same options" sockets 2 1 true \
    "--adapter $work/none" "" generate --model "$model" --tensor-parallel 2 --prompt Once

finish

# qrun finetune on several ranks: the same bits as on one, whatever their number, and one message where they disagree.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

head -40 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/train.jsonl"
tail -20 "$QRUN_SOURCE/examples/finetune/pirate.jsonl" >"$work/other.jsonl"

# ---- The same bits ----

# Packed rows and dropout, in BF16; windows of five micro-batches, of which an epoch's last has fewer; evaluations.
lora="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --learning-rate 5e-3 --seed 3 --grad-accum 5 --max-steps 5
    --eval-split 0.2 --eval-every 2 --early-stopping-patience 3 --lora-dropout 0.1"
# shellcheck disable=SC2086 # words of options
{
    run finetune $lora --out "$work/lora-1"
    expect_code 0
    for n in 2 3 8; do
        run_ranks $n $lora --quiet --out "$work/lora-$n"
        expect_empty_out
        expect_silent_err
        expect_same "$work/lora-1" "$work/lora-$n"
    done
}

# Every weight, in F32, in batches by length.
full="--model $model --full --dtype f32 --data $work/train.jsonl --seq-len 64 --batching group --batch-tokens 128 --grad-accum 4
    --learning-rate 1e-3 --schedule constant"
# shellcheck disable=SC2086
{
    run finetune $full --max-steps 6 --out "$work/full-1"
    expect_code 0
    run_ranks 4 $full --max-steps 6 --out "$work/full-4"
    expect_out "ranks       4"
    expect_same "$work/full-1" "$work/full-4"
    # A run of two, continued by eight and then by one.
    run_ranks 2 $full --max-steps 2 --out "$work/full-parts"
    expect_code 0
    expect_out "ranks       2; each sends gradients 2 times a step, with --grad-sums 2 once"
    run_ranks 8 $full --max-steps 4 --quiet --out "$work/full-parts"
    expect_code 0
    run finetune $full --max-steps 6 --quiet --out "$work/full-parts"
    expect_same "$work/full-1" "$work/full-parts"
}

# Fewer micro-batches than ranks.
# shellcheck disable=SC2086
{
    short="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --grad-accum 1 --max-steps 2"
    run finetune $short --out "$work/short-1"
    run_ranks 2 $short --out "$work/short-2"
    expect_out "ranks       2; --grad-accum 1 occupies 1 of them"
    expect_same "$work/short-1" "$work/short-2"
}

# ---- What ranks share out ----

# shellcheck disable=SC2086
{
    for n in 2 3 8; do
        run_ranks $n $lora --zero 1 --quiet --out "$work/lora-zero-$n"
        expect_same "$work/lora-1" "$work/lora-zero-$n"
        run_ranks $n $lora --zero 2 --quiet --out "$work/lora-zero2-$n"
        expect_same "$work/lora-1" "$work/lora-zero2-$n"
    done
    # Weights in shares: quantised ones, plain ones in F32, and layers that are computed again in tiles or by twos. Of
    # eight ranks three have nothing to compute in a step of five batches.
    for n in 2 3 4 8; do
        run_ranks $n $lora --zero 3 --quiet --out "$work/lora-zero3-$n"
        expect_same "$work/lora-1" "$work/lora-zero3-$n"
    done
    plain="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --grad-accum 3 --dtype f32 --quant f32 --schedule constant"
    run finetune $plain --max-steps 3 --quiet --out "$work/plain-1"
    expect_code 0
    for more in "--checkpointing every:2" "--checkpointing full --tile-rows 32" "--checkpointing none"; do
        for zero in 2 3; do
            rm -rf "$work/plain-3"
            run_ranks 3 $plain $more --max-steps 3 --zero $zero --quiet --out "$work/plain-3"
            expect_same "$work/plain-1" "$work/plain-3"
        done
    done
    # A run of two, continued by eight and then by one, whatever they share out.
    run_ranks 2 $plain --max-steps 1 --zero 3 --quiet --out "$work/plain-parts"
    expect_code 0
    run_ranks 8 $plain --max-steps 2 --zero 3 --quiet --out "$work/plain-parts"
    expect_code 0
    run finetune $plain --max-steps 3 --zero 3 --quiet --out "$work/plain-parts"
    expect_same "$work/plain-1" "$work/plain-parts"
    # DoRA's norms are of all rows of a matrix: each layer's are made while it is there.
    dora="--model $model --data $work/train.jsonl --seq-len 96 --rank 4 --grad-accum 5 --eval-split 0.2 --eval-every 2 --dora"
    run finetune $dora --max-steps 4 --quiet --out "$work/dora-1"
    expect_code 0
    run_ranks 3 $dora --max-steps 4 --zero 3 --checkpointing full --quiet --out "$work/dora-3"
    expect_same "$work/dora-1" "$work/dora-3"
    run_ranks 2 $dora --max-steps 4 --zero 3 --checkpointing none --quiet --out "$work/dora-2"
    expect_same "$work/dora-1" "$work/dora-2"
    run_ranks 8 $dora --max-steps 2 --schedule constant --zero 3 --quiet --out "$work/dora-parts"
    expect_code 0
    run finetune $dora --max-steps 4 --schedule constant --quiet --out "$work/dora-parts"
    run finetune $dora --max-steps 4 --schedule constant --quiet --out "$work/dora-constant"
    expect_same "$work/dora-constant" "$work/dora-parts"
    # Every weight, in shares.
    for n in 2 4; do
        run_ranks $n $full --max-steps 6 --zero 3 --quiet --out "$work/full-zero3-$n"
        expect_same "$work/full-1" "$work/full-zero3-$n"
    done
    random="--model $model --full --init random --data $work/train.jsonl --seq-len 64 --grad-accum 5 --eval-split 0.2 --eval-every 1
        --learning-rate 0.05 --early-stopping-patience 2 --weight-decay 0.1 --keep 9 --seed 4"
    run finetune $random --max-steps 4 --quiet --out "$work/random-1"
    expect_code 0
    run_ranks 8 $random --max-steps 4 --zero 3 --checkpointing full --tile-rows 32 --quiet --out "$work/random-8"
    expect_same "$work/random-1" "$work/random-8"
    # Every stage and number of ranks goes on from the checkpoint of every other.
    run_ranks 2 $full --zero 1 --max-steps 2 --quiet --out "$work/full-zero"
    expect_code 0
    run_ranks 8 $full --zero 2 --max-steps 3 --quiet --out "$work/full-zero"
    expect_code 0
    run_ranks 3 $full --max-steps 4 --zero 3 --quiet --out "$work/full-zero"
    expect_code 0
    run finetune $full --zero 1 --max-steps 5 --quiet --out "$work/full-zero"
    expect_code 0
    run_ranks 4 $full --zero 1 --max-steps 6 --out "$work/full-zero"
    expect_same "$work/full-1" "$work/full-zero"
    for optimizer in adamw8bit adafactor sgd; do
        each="--model $model --full --dtype f16 --data $work/train.jsonl --seq-len 64 --grad-accum 3 --save-every 2
            --optimizer $optimizer --weight-decay 0.01"
        run finetune $each --max-steps 4 --quiet --out "$work/$optimizer-1"
        expect_code 0
        run_ranks 3 $each --max-steps 4 --zero 3 --quiet --out "$work/$optimizer-3"
        expect_same "$work/$optimizer-1" "$work/$optimizer-3"
        expect_true "the checkpoint before has the same states" cmp -s "$work/$optimizer-1/checkpoint-2/state.safetensors" \
            "$work/$optimizer-3/checkpoint-2/state.safetensors"
    done
    # In F16 a step whose gradients overflow is skipped by all ranks, and the loss scale halved: here it is far too large.
    sed -i 's/"loss_scale":65536/"loss_scale":1180591620717411303424/' "$work"/sgd-[13]/checkpoint-4/state.json
    run finetune $each --max-steps 6 --quiet --out "$work/sgd-1"
    run_ranks 3 $each --max-steps 6 --zero 1 --quiet --out "$work/sgd-3"
    expect_same "$work/sgd-1" "$work/sgd-3"
    expect_true "a step was skipped" grep -q '"skipped":true' "$work/sgd-3/metrics.jsonl"
}

# ---- Launched by mpirun ----

if command -v mpirun >/dev/null && [ -e "$(dirname "$QRUN_LIBRARY")/libqrun_mpi.so" ]; then
    last="mpirun -n 3 qrun finetune $lora"
    # What MPI keeps to its end is not ours. Root is refused without its option, which tests in containers run as.
    # shellcheck disable=SC2086
    LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe -n 3 "$QRUN" finetune --threads 1 $lora --zero 1 --quiet --out "$work/mpi" >"$work/out" 2>"$work/err"
    code=$?
    expect_same "$work/lora-1" "$work/mpi"
    # Gathering layers beside the computation, over MPI.
    # shellcheck disable=SC2086
    LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe -n 3 "$QRUN" finetune --threads 1 $lora --zero 3 --quiet --out "$work/mpi3" >"$work/out" 2>"$work/err"
    code=$?
    expect_same "$work/lora-1" "$work/mpi3"
    # As the launcher of another MPI would start it, which Open MPI does not know.
    if mpirun --version 2>/dev/null | grep -q "Open MPI"; then
        LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" \
            PMI_SIZE=2 PMI_RANK=0 run finetune --threads 1 --model "$model" --data "$work/train.jsonl" --out "$work/none"
        expect_code 3
        expect_one_error_line
        expect_err "mpi: the launcher started 2 processes, and MPI knows of 1"
    fi
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 QRUN_MPI_LIBRARY=$work/none.so \
        run finetune --model "$model" --data "$work/train.jsonl" --out "$work/none"
    expect_code 3
    expect_one_error_line
    expect_err "mpi: cannot open $work/none.so"
else
    echo "without mpirun or libqrun_mpi.so: MPI was not tested"
fi

# ---- What else is offloaded, and samples of a model that no rank has ----

printf '{"prompt": "Hello!", "max_tokens": 12}\n{"prompt": "The sea", "max_tokens": 9}\n' >"$work/prompts.jsonl"
texts_of() {
    sed -E 's/,"times":\{[^}]*\}//' "$1" | sort
}
# shellcheck disable=SC2086
for kind in "--rank 4" "--full --dtype f32" "--full"; do
    moved="--model $model --data $work/train.jsonl --seq-len 64 --grad-accum 4 --max-steps 3 --learning-rate 1e-3
        --checkpointing full --sample-prompts $work/prompts.jsonl $kind"
    rm -rf "$work/moved-1" "$work/moved-3"
    run finetune $moved --out "$work/moved-1"
    expect_code 0
    run_ranks 3 $moved --zero 3 --offload optimizer,activations --quiet --out "$work/moved-3"
    expect_empty_out
    expect_silent_err
    expect_same "$work/moved-1" "$work/moved-3"
    for when in before after; do
        texts_of "$work/moved-1/samples-$when.jsonl" >"$work/wanted"
        texts_of "$work/moved-3/samples-$when.jsonl" >"$work/got"
        expect_true "there are samples $when" test "$(wc -l <"$work/wanted")" -eq 2
        expect_true "samples $when are those of one rank" cmp -s "$work/wanted" "$work/got"
    done
done
run_ranks 2 --model "$model" --data "$work/train.jsonl" --full --zero 3 --offload gradients --out "$work/none"
expect_err "with several, --zero 2 and --zero 3 share gradients out"

# ---- Launched by srun, without MPI: what it sets ----

port=$((port + 1))
pids="" n_ranks=3
for rank in 0 1 2; do
    # shellcheck disable=SC2086
    SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NTASKS=3 SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=$rank SLURM_LOCALID=$rank \
        SLURM_STEP_NODELIST=127.0.0.1 MASTER_PORT=$port "$QRUN" finetune --threads 1 $lora --zero 2 --quiet \
        --out "$work/srun" >"$work/out.$rank" 2>"$work/err.$rank" &
    pids="$pids $!"
done
wait_ranks
last="three tasks of a step of srun: qrun finetune $lora --zero 2"
expect_silent_err
expect_same "$work/lora-1" "$work/srun"

# ---- What is refused ----

WORLD_SIZE=2 run finetune --model "$model" --data "$work/train.jsonl" --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "WORLD_SIZE=2 in the environment needs RANK, MASTER_ADDR and MASTER_PORT"
WORLD_SIZE=2 RANK=2 run finetune --model "$model" --data "$work/train.jsonl" --out "$work/none"
expect_code 2
expect_err "RANK=2 in the environment is not a number from 0 to 1"

run finetune --model "$model" --data "$work/train.jsonl" --zero 4 --out "$work/none"
expect_code 2
expect_one_error_line
expect_err "--zero"
run finetune --model "$model" --data "$work/train.jsonl" --zero 3 --offload parameters --out "$work/none"
expect_code 2
expect_err "--zero 3 holds no layer on a device"
run finetune --model "$model" --data "$work/train.jsonl" --ranks 2 --out "$work/none"
expect_code 2
expect_err "--ranks goes with --plan"

# ---- Plans of ranks that are not there ----

planned="--model $model --ranks 4 --zero 3 --grad-accum 8"
# shellcheck disable=SC2086
{
    run plan $planned --bandwidth 1GB --tflops 1e-3
    expect_code 0
    expect_out "sent a step"
    expect_true "there is a line for each rank" test "$(grep -cE '^ +[0-3] .* %$' "$work/out")" -eq 4
    run plan $planned --bandwidth 1GB --tflops 1e-3 --json
    expect_code 0
    cp "$work/out" "$work/plan.json"
    run finetune $planned --plan --bandwidth 1GB --tflops 1e-3 --json
    expect_true "finetune plans the same ranks" test "$(sed 's/.*"n_ranks"//' "$work/plan.json")" = \
        "$(sed 's/.*"n_ranks"//' "$work/out")"
    sed -nE 's/.*\{"rank":0,"sent_bytes":([0-9]+),.*"sending_seconds":([0-9.e+-]+),"computing_seconds":([0-9.e+-]+),"sending_share":([0-9.e+-]+),.*\{"rank":1.*/\1 \2 \3 \4/p' \
        "$work/plan.json" >"$work/times"
    expect_true "the times are those of the bytes: $(cat "$work/times")" awk '
        { near = $2 * 1e9 / $1; share = $2 / ($2 + $3) / $4
          exit !($1 > 0 && $3 > 0 && near > 0.999 && near < 1.001 && share > 0.999 && share < 1.001) }' "$work/times"
}
run plan --model "$model" --zero 3
expect_code 2
expect_err "--zero is of a fine-tuning run, which is planned with --ranks N"
run plan --model "$model" --ranks 2 --context 64
expect_code 2
expect_err "--context is of a session"
run plan --model "$model" --ranks 2 --tflops 3
expect_code 2
expect_err "--tflops needs --bandwidth"
run plan --model "$model" --ranks 2 --zero 3 --offload parameters
expect_code 2
expect_err "--zero 3 holds no layer on a device"

# disagrees WHAT ARGUMENTS…: rank 1 is given these besides.
disagrees() {
    what=$1
    shift
    port=$((port + 1))
    pids=""
    for rank in 0 1; do
        more=""
        [ $rank -eq 0 ] || more=$*
        # shellcheck disable=SC2086
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$QRUN" finetune --threads 1 --model "$model" \
            --seq-len 96 --max-steps 4 --out "$work/disagree" ${more:-$usual} >"$work/out.$rank" 2>"$work/err.$rank" &
        pids="$pids $!"
    done
    wait_ranks
    last="two ranks, of which one has $what"
    expect_code 3
    expect_one_error_line
    expect_err "rank 1: runs something else than rank 0 (there): "
    expect_err "$what"
}
usual="--data $work/train.jsonl --rank 4"
disagrees "rank is 8 here and 4 there" --data "$work/train.jsonl" --rank 8
disagrees "examples is 20 here and 40 there" --data "$work/other.jsonl" --rank 4
disagrees "zero is 1 here and 0 there" --data "$work/train.jsonl" --rank 4 --zero 1
disagrees "weights is nf4 here and nf4-dq there" --data "$work/train.jsonl" --rank 4 --quant nf4
expect_true "no checkpoint was written" test ! -e "$work/disagree/checkpoint-4"

finish

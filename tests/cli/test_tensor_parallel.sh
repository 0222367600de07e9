# qrun generate and serve on several ranks that share each layer: tokens and log-probabilities of one rank, to the bit.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"
. "$QRUN_SOURCE/tests/cli/tensor_parallel.sh"

# ---- Models whose heads can be dealt to four ranks --------------------------------------------------------------------

config_of llama 8 4 ', "tie_word_embeddings": false' | make_model llama
config_of gemma3_text 4 4 ', "tie_word_embeddings": true, "sliding_window": 24, "query_pre_attn_scalar": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}' | make_model gemma
config_of qwen3 8 4 ', "tie_word_embeddings": true, "attention_bias": false' | make_model qwen
config_of qwen2 8 8 ', "tie_word_embeddings": false' | make_model qwen2

# ---- Requests ---------------------------------------------------------------------------------------------------------

# Long ones, which are read in chunks; two with the same beginning; several samples; greedy and sampled; stops; scores.
story="Once upon a time there was a little boat that sailed over the sea and the wind was kind to it and the moon"
cat >"$work/requests.jsonl" <<LINES
{"id": "a", "prompt": "$story rose", "max_tokens": 24, "temperature": 0, "logprobs": 3}
{"id": "b", "prompt": "$story sank", "max_tokens": 24, "temperature": 1, "seed": 7, "n": 3, "logprobs": 0}
{"id": "c", "prompt": "Hello", "max_tokens": 40, "temperature": 0.8, "top_p": 0.9, "seed": 3, "logprobs": 2}
{"id": "d", "prompt": "$story $story $story", "max_tokens": 6, "temperature": 0, "prompt_logprobs": 1, "logprobs": 1}
{"id": "e", "token_ids": [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6], "max_tokens": 30, "temperature": 0, "logprobs": 0}
{"id": "f", "prompt": "The sea", "max_tokens": 12, "repetition_penalty": 1.3, "temperature": 0, "logprobs": 1}
LINES

same_answers "Llama in F32" "2 4" --model "$work/llama" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "Llama in BF16" "2 4" --model "$work/llama" --quant bf16 --max-step-tokens 16 --max-sequences 3
same_answers "Llama in F16" "4" --model "$work/llama" --quant f16 --dtype f16 --kv int8
same_answers "Llama in INT8, its head too" "2 4" --model "$work/llama" --quant int8 --quant-head int8
same_answers "Llama in NF4" "2" --model "$work/llama" --quant nf4 --speculate off
# Rank 0 alone has the second model.
same_answers "Llama with a second model" "2 4" --model "$work/llama" --speculate "$work/llama"
start_ranks_of generate 2 --tensor-parallel 2 --model "$work/llama" --prompts "$work/requests.jsonl" \
    --speculate "$work/llama" --output "$work/drafted.jsonl" --stats
wait_ranks
expect_code 0
expect_true "drafts were right" grep -qE '"accepted_draft_tokens":[1-9]' "$work/err"
same_answers "Llama in NF4, nested" "2 4" --model "$work/llama"
same_answers "Gemma" "2 4" --model "$work/gemma" --quant bf16 --max-step-tokens 20
same_answers "Gemma in NF4, nested" "2 4" --model "$work/gemma"
same_answers "Qwen3" "2 4" --model "$work/qwen"
same_answers "Qwen2, with biases" "4" --model "$work/qwen2" --quant bf16
same_answers "examples/model" "2" --model "$model"
for quant in nf4-dq int8; do
    run quantize --model "$work/llama" --quant $quant --out "$work/llama-$quant"
    expect_code 0
    same_answers "a folder in $quant" "2 4" --model "$work/llama-$quant"
    same_answers "a folder in $quant, streamed" "2 4" --model "$work/llama-$quant" --offload parameters
done

# Every instruction set of this processor, and the order of sums that all have.
sets=$(QRUN_FORCE_ISA=none "$QRUN" generate --model "$model" --prompt a 2>&1 | sed -n 's/.*: //p' | tr -d ',.')
[ -z "${QRUN_SANITIZE:-}" ] || sets="" # they have been compared, and are slow then
for isa in $sets; do
    export QRUN_FORCE_ISA="$isa"
    same_answers "Llama on $isa" 2 --model "$work/llama"
    same_answers "Llama in BF16 on $isa" 4 --model "$work/llama" --quant bf16 --max-step-tokens 16
done
unset QRUN_FORCE_ISA
same_answers "Llama in portable numerics" 2 --model "$work/llama" --numerics portable

for quant in bf16 nf4-dq; do
    same_on_cuda "examples/model in $quant" 2 --model "$model" --quant $quant
done
same_on_cuda "examples/model, streamed from host memory" 2 --model "$model" --offload parameters

# ---- LoRA -------------------------------------------------------------------------------------------------------------

for adapted in "" "--dora"; do
    # shellcheck disable=SC2086
    run finetune --model "$work/llama" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 --learning-rate 1e-3 \
        $adapted --quiet --out "$work/adapter$adapted"
    expect_code 0
done
same_answers "an adapter" "2 4" --model "$work/llama" --adapter "$work/adapter"
same_answers "an adapter, the layers streamed" 2 --model "$work/llama-nf4-dq" --offload parameters --adapter "$work/adapter"
same_answers "DoRA, the layers streamed" 2 --model "$work/llama" --quant bf16 --offload parameters \
    --adapter "$work/adapter--dora"
same_answers "DoRA" 2 --model "$work/llama" --quant bf16 --adapter "$work/adapter--dora"
cp "$work/requests.jsonl" "$work/all.jsonl"
sed 's/"id": "b"/&, "adapter": "adapter--dora"/; s/"id": "d"/&, "adapter": ""/' "$work/all.jsonl" >"$work/requests.jsonl"
same_answers "LoRA, DoRA and none in a batch" 4 --model "$work/llama" --adapter "$work/adapter" \
    --adapter "$work/adapter--dora"
cp "$work/all.jsonl" "$work/requests.jsonl"

# Modules that an adapter replaces: tables, norms, matrices with biases, a head of its own where the model's is the
# embedding. saved NAME MODEL MODULES: trains such an adapter.
saved() {
    run finetune --model "$work/$2" --data "$work/data.jsonl" --seq-len 16 --max-steps 1 --rank 4 --target-modules q_proj \
        --learning-rate 1e-2 --modules-to-save "$3" --quiet --out "$work/$1"
    expect_code 0
}
saved replaced-llama llama lm_head,embed_tokens,norm,input_layernorm
same_answers "tables and norms of an adapter" "2 4" --model "$work/llama" --adapter "$work/replaced-llama"
saved replaced-qwen qwen lm_head
same_answers "a head in the place of the embedding" 2 --model "$work/qwen" --adapter "$work/replaced-qwen"

# ---- More ranks than heads for keys and values ------------------------------------------------------------------------

same_answers "Llama on twice as many ranks as K/V heads" 8 --model "$work/llama" --max-step-tokens 16
run finetune --model "$model" --data "$work/data.jsonl" --seq-len 16 --max-steps 1 --rank 4 --dora --learning-rate 1e-2 \
    --quiet --out "$work/six"
expect_code 0
same_answers "examples/model with DoRA, a K/V head on three ranks" 6 --model "$model" --adapter "$work/six"
same_on_cuda "examples/model, a K/V head on three ranks" 6 --model "$model" --quant bf16

# ---- Kept prefixes ----------------------------------------------------------------------------------------------------

run generate --model "$work/llama" --prompt "$story" --max-tokens 20 --temperature 0
expect_code 0
cp "$work/out" "$work/one"
for round in first second; do
    run_ranks_of generate 2 --tensor-parallel 2 --model "$work/llama" --prompt "$story" --max-tokens 20 --temperature 0 \
        --cache-dir "$work/kv" --stats
    expect_code 0
    expect_true "$round: the same answer" cmp -s "$work/one" "$work/out"
    cp "$work/err" "$work/$round.stats"
done
expect_true "nothing was shared at first" grep -q '"cached_prompt_tokens":0,' "$work/first.stats"
expect_true "the prompt came back" grep -q '"cached_prompt_tokens":[1-9][0-9]' "$work/second.stats"
for rank in 0 1; do
    expect_true "rank $rank has files" test -n "$(find "$work/kv/rank-$rank-of-2" -name '*.qrun-kv')"
done

# ---- Ranks that are started here, and by mpirun -----------------------------------------------------------------------

run generate --model "$work/llama" --prompt "The sea" --max-tokens 30 --temperature 0
expect_code 0
cp "$work/out" "$work/one"
run generate --model "$work/llama" --prompt "The sea" --max-tokens 30 --temperature 0 --tensor-parallel 4
expect_code 0
expect_true "four ranks started here say the same" cmp -s "$work/one" "$work/out"
expect_silent_err
if command -v mpirun >/dev/null && [ -e "$(dirname "$QRUN_LIBRARY")/libqrun_mpi.so" ]; then
    last="mpirun -n 2 qrun generate --tensor-parallel 2"
    LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}detect_leaks=0" ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0" \
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        mpirun --oversubscribe -n 2 "$QRUN" generate --threads 1 --tensor-parallel 2 --model "$work/llama" \
        --prompt "The sea" --max-tokens 30 --temperature 0 >"$work/out" 2>"$work/err"
    code=$?
    expect_code 0
    expect_true "two ranks of mpirun say the same" test "$(cat "$work/one")" = "$(cat "$work/out")" # to a terminal of its
else
    echo "without mpirun or libqrun_mpi.so: MPI was not tested"
fi

# ---- Plans of ranks that are not there --------------------------------------------------------------------------------

run plan --model "$work/llama" --tensor-parallel 4 --memory 64MiB --context 128
expect_code 0
expect_out "sent a token"
expect_true "there is a line for each rank" test "$(grep -cE '^ +[0-3]  .* ' "$work/out")" -eq 4
run plan --model "$work/llama" --tensor-parallel 4 --memory 64MiB --context 128 --json
expect_code 0
expect_true "and an object" test "$(grep -o '"rank":[0-3],"sent_bytes":[1-9]' "$work/out" | wc -l)" -eq 4
run plan --model "$work/llama" --tensor-parallel 3
expect_code 2
expect_err "possible are: 2, 4, 8"

# ---- What is refused, once --------------------------------------------------------------------------------------------

fixtures=$QRUN_SOURCE/tests/fixtures/models
refused "the model's 6 heads, with 3 for keys and values, are dealt out whole; possible are: 3, 6" 2 --model "$fixtures/mistral"
refused "3 heads, with 1 for keys and values, are dealt out whole; possible are: 3" 2 --model "$fixtures/llama"
refused "5 heads with 1 for keys and values and 3 key heads of the gated delta rule" 2 --model "$fixtures/qwen3_5"
refused "--experts host does not go with --tensor-parallel" 2 --model "$work/llama" --experts host
refused "model.layers.0.self_attn.q_proj.weight is stored otherwise; quantise the folder first" 3 --model "$work/llama" \
    --offload parameters
refused "--speculate: $work/none: there is no such folder" 3 --model "$work/llama" --speculate "$work/none"
refused "there is no such folder" 3 --model "$work/none"
refused "is stored as int8 and cannot become nf4" 2 --model "$work/llama-int8" --quant nf4
run_ranks_of generate 2 --tensor-parallel 4 --model "$work/llama" --prompt "The sea"
expect_code 2
expect_err "--tensor-parallel 4 needs 4 ranks, and 2 were launched"

# Rank 1 has other weights.
port=$((port + 1))
pids=""
for rank in 0 1; do
    other=$work/llama
    [ $rank -eq 0 ] || other=$work/llama-nf4-dq
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$QRUN" generate --threads 1 --model "$other" \
        --tensor-parallel 2 --prompt "The sea" >"$work/out.$rank" 2>"$work/err.$rank" &
    pids="$pids $!"
done
wait_ranks
last="two ranks, of which one has another model"
expect_code 3
expect_one_error_line
expect_err "rank 1: runs something else than rank 0 (there): the model's config.json differs"

# ---- Faults -----------------------------------------------------------------------------------------------------------

i=0
while [ $i -lt 3000 ]; do
    echo "{\"prompt\": \"The sea $i\", \"max_tokens\": 100, \"ignore_eos\": true}"
    i=$((i + 1))
done >"$work/many.jsonl"

# fault SIGNAL RANK MESSAGE: the signal reaches the rank after the first answer. The others end within the limit of three
# seconds, give or take what a busy machine needs, and one of them says why.
fault() {
    rm -f "$work"/many-answers.jsonl*
    start_ranks_of generate 3 --tensor-parallel 3 --model "$work/three" --prompts "$work/many.jsonl" \
        --output "$work/many-answers.jsonl" --collective-timeout 3 --quiet
    tries=0
    while ! grep -q '"text"' "$work/many-answers.jsonl.partial" 2>/dev/null && [ $tries -lt 1200 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    strike "$1" "$2"
    expect_err "$3"
}
config_of llama 6 3 ', "tie_word_embeddings": true' | make_model three
fault KILL 1 "rank 1 ended without a word"
fault KILL 0 "rank 0 ended without a word"
fault STOP 2 "rank 2 has been silent for 3 s (--collective-timeout)"

finish

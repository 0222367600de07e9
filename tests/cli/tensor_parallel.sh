# For tests of ranks that share each layer: sourced after lib.sh and ranks.sh.

# A model of random weights with the tokenizer of examples/model: make_model NAME, config.json on stdin.
make_model() {
    mkdir "$work/shape"
    cp "$model"/tokenizer*.json "$model/generation_config.json" "$work/shape"
    cat >"$work/shape/config.json"
    printf '{"text": "once"}\n{"text": "twice"}\n' >"$work/data.jsonl"
    run finetune --model "$work/shape" --full --init random --data "$work/data.jsonl" --seq-len 16 --max-steps 1 \
        --learning-rate 1e-6 --seed 5 --quiet --out "$work/$1"
    expect_code 0
    rm -r "$work/shape"
}

# config_of MODEL_TYPE HEADS KV_HEADS MORE: three layers, with sizes that 64 does not divide.
config_of() {
    printf '{"model_type": "%s", "hidden_size": 176, "num_attention_heads": %s, "num_key_value_heads": %s,
        "head_dim": 24, "intermediate_size": 208, "num_hidden_layers": 3, "vocab_size": 2048,
        "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2,
        "rms_norm_eps": 1e-5, "dtype": "bfloat16"%s}' "$1" "$2" "$3" "$4"
}

# Tensors for random_model: matrix NAME ROWS COLUMNS, norm NAME ELEMENTS, dense PREFIX MLP (a gated MLP).
matrix() {
    echo "$1.weight 0 0.1 $2 $3"
}
norm() {
    echo "$1.weight 1 0.1 $2"
}
dense() {
    matrix "$1.gate_proj" "$2" 176
    matrix "$1.up_proj" "$2" 176
    matrix "$1.down_proj" 176 "$2"
}
# attention LAYER HEADS KV_HEADS [gated]: of 24; gates come with norms of heads.
attention() {
    if [ -n "${4:-}" ]; then
        matrix "model.layers.$1.self_attn.q_proj" $(($2 * 48)) 176
        norm "model.layers.$1.self_attn.q_norm" 24
        norm "model.layers.$1.self_attn.k_norm" 24
    else
        matrix "model.layers.$1.self_attn.q_proj" $(($2 * 24)) 176
    fi
    matrix "model.layers.$1.self_attn.k_proj" $(($3 * 24)) 176
    matrix "model.layers.$1.self_attn.v_proj" $(($3 * 24)) 176
    matrix "model.layers.$1.self_attn.o_proj" 176 $(($2 * 24))
}
# frame [untied]: what every model has.
frame() {
    matrix model.embed_tokens 2048 176
    norm model.norm 176
    if [ -n "${1:-}" ]; then matrix lm_head 2048 176; fi
    for layer in 0 1 2; do
        norm "model.layers.$layer.input_layernorm" 176
        norm "model.layers.$layer.post_attention_layernorm" 176
    done
}
# random_model NAME CONFIG: a folder of them, tensors on stdin.
random_model() {
    mkdir "$work/$1"
    cp "$model"/tokenizer*.json "$model/generation_config.json" "$work/$1"
    echo "$2" >"$work/$1/config.json"
    "$RANDOM_MODEL" "$work/$1" || fail "the model $1 is written"
}

# What does not depend on the clock, in the order of the requests.
answers_of() {
    sed -E 's/"times":\{[^}]*\},//g' "$1" | sort
}

# ranks_answer N ARGUMENTS…: N ranks answer the requests; the answers are then in $work/answers.jsonl.
ranks_answer() {
    n=$1
    shift
    rm -f "$work/answers.jsonl"
    start_ranks_of generate "$n" --tensor-parallel "$n" --prompts "$work/requests.jsonl" --output "$work/answers.jsonl" "$@"
    wait_ranks
    expect_code 0
    expect_silent_err
}

# same_answers WHAT RANKS ARGUMENTS…: as many ranks as are listed give the answers of one.
same_answers() {
    case=$1 counts=$2
    shift 2
    run generate --threads 1 --prompts "$work/requests.jsonl" --output "$work/alone.jsonl" --force --quiet "$@"
    expect_code 0
    answers_of "$work/alone.jsonl" >"$work/wanted"
    expect_true "$case: there are answers" test "$(grep -c '"logprobs"' "$work/wanted")" -ge "${least_answers:-8}"
    for count in $counts; do
        ranks_answer "$count" --quiet "$@"
        answers_of "$work/answers.jsonl" >"$work/got"
        expect_true "$case on $count ranks: the same tokens and log-probabilities" cmp -s "$work/wanted" "$work/got"
    done
}

# same_on_cuda WHAT RANKS ARGUMENTS…: over the CUDA kernels as the processor executes them; one prompt, because that is
# slow.
same_on_cuda() {
    case=$1 counts=$2
    shift 2
    if [ -z "${QRUN_CUDA_LIBRARY_SIMT:-}" ] || [ -n "${QRUN_SANITIZE:-}" ]; then return; fi
    for n in 1 $counts; do
        QRUN_CUDA_LIBRARY="$QRUN_CUDA_LIBRARY_SIMT"
        export QRUN_CUDA_LIBRARY
        run generate --device cuda --threads 1 --prompt "Once upon" --max-tokens 6 --temperature 0 --logprobs 2 --json \
            --max-sequences 2 --tensor-parallel "$n" "$@"
        unset QRUN_CUDA_LIBRARY
        expect_code 0
        answers_of "$work/out" >"$work/cuda-$n"
        expect_true "$case on $n ranks on CUDA: the same" cmp -s "$work/cuda-1" "$work/cuda-$n"
    done
    expect_out '"logprobs"'
}

# refused MESSAGE CODE ARGUMENTS…: by two ranks, and one says why.
refused() {
    message=$1 wanted=$2
    shift 2
    run_ranks_of generate 2 --tensor-parallel 2 --prompt "The sea" "$@"
    expect_code "$wanted"
    expect_one_error_line
    expect_err "$message"
}

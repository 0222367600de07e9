# qrun generate and serve on several ranks that share each layer: tokens and log-probabilities of one rank, to the bit.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"

# ---- Models whose heads can be dealt to four ranks --------------------------------------------------------------------

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
# config_of MODEL_TYPE HEADS KV_HEADS MORE: two layers, with sizes that 64 does not divide.
config_of() {
    printf '{"model_type": "%s", "hidden_size": 176, "num_attention_heads": %s, "num_key_value_heads": %s,
        "head_dim": 24, "intermediate_size": 208, "num_hidden_layers": 3, "vocab_size": 2048,
        "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2,
        "rms_norm_eps": 1e-5, "dtype": "bfloat16"%s}' "$1" "$2" "$3" "$4"
}
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
    expect_true "$case: there are answers" test "$(grep -c '"logprobs"' "$work/wanted")" -ge 8
    for count in $counts; do
        ranks_answer "$count" --quiet "$@"
        answers_of "$work/answers.jsonl" >"$work/got"
        expect_true "$case on $count ranks: the same tokens and log-probabilities" cmp -s "$work/wanted" "$work/got"
    done
}

same_answers "Llama in F32" "2 4" --model "$work/llama" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "Llama in BF16" "2 4" --model "$work/llama" --quant bf16 --max-step-tokens 16 --max-sequences 3
same_answers "Llama in F16" "4" --model "$work/llama" --quant f16 --dtype f16 --kv int8
same_answers "Llama in INT8, its head too" "2 4" --model "$work/llama" --quant int8 --quant-head int8
same_answers "Llama in NF4" "2" --model "$work/llama" --quant nf4 --speculate off
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
done

finish

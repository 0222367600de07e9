# Families of models whose layers are more than those of Llama, on several ranks that share each layer: tokens and
# log-probabilities of one rank, to the bit. Small models of the goldens, whose heads can be dealt to three ranks or five,
# and larger ones for two and four.
. "$QRUN_SOURCE/tests/cli/lib.sh"
. "$QRUN_SOURCE/tests/cli/ranks.sh"
. "$QRUN_SOURCE/tests/cli/tensor_parallel.sh"
fixtures=$QRUN_SOURCE/tests/fixtures/models

# Chunks of prompts, two with the same beginning, several samples, greedy and sampled, scores. Models without a tokenizer
# read them too.
cat >"$work/requests.jsonl" <<LINES
{"id": "a", "token_ids": [5, 6, 7, 9, 31, 8, 22, 41, 3, 77, 12, 5, 6, 90, 14, 2, 33, 7, 61, 18], "max_tokens": 14, "temperature": 0, "logprobs": 3, "ignore_eos": true}
{"id": "b", "token_ids": [5, 6, 7, 9, 31, 8, 22, 41, 3, 77, 12, 5, 6, 90, 14, 2, 33, 7, 61, 4], "max_tokens": 12, "temperature": 1, "seed": 7, "n": 3, "logprobs": 0}
{"id": "c", "token_ids": [9], "max_tokens": 20, "temperature": 0.8, "top_p": 0.9, "seed": 3, "logprobs": 2, "ignore_eos": true}
{"id": "d", "token_ids": [90, 14, 2, 33, 7, 61, 4, 5, 6, 7, 9, 31, 8, 22, 41, 3, 77, 12, 5, 6, 90, 14, 2, 33, 7, 61, 4], "max_tokens": 3, "temperature": 0, "prompt_logprobs": 1, "logprobs": 1}
{"id": "e", "token_ids": [5, 6, 7, 9, 31, 8, 22, 41, 3, 77, 12, 5, 6, 90, 14, 2, 33, 7, 61, 18, 50, 51], "max_tokens": 4, "temperature": 0, "logprobs": 1, "ignore_eos": true}
LINES
least_answers=7

# ---- Experts ----------------------------------------------------------------------------------------------------------

# experts LAYER N MLP: and their router.
experts() {
    for expert in $(seq 0 $(($2 - 1))); do
        matrix "model.layers.$1.mlp.experts.$expert.gate_proj" "$3" 176
        matrix "model.layers.$1.mlp.experts.$expert.up_proj" "$3" 176
        matrix "model.layers.$1.mlp.experts.$expert.down_proj" 176 "$3"
    done
    matrix "model.layers.$1.mlp.gate" "$2" 176
}
moe='"moe_intermediate_size": 96, "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": true'
{
    frame
    for layer in 0 1 2; do
        attention $layer 8 4
        norm model.layers.$layer.self_attn.q_norm 24
        norm model.layers.$layer.self_attn.k_norm 24
    done
    experts 0 7 96
    dense model.layers.1.mlp 208
    experts 2 7 96
} | random_model qwen3-moe "$(config_of qwen3_moe 8 4 ", $moe, \"tie_word_embeddings\": true, \"mlp_only_layers\": [1]")"
{
    frame untied
    for layer in 0 1 2; do
        attention $layer 4 4
        for name in q k v; do echo "model.layers.$layer.self_attn.${name}_proj.bias 0 0.1 96"; done
        experts $layer 7 96
        dense model.layers.$layer.mlp.shared_expert 112
        matrix model.layers.$layer.mlp.shared_expert_gate 1 176
    done
} | random_model qwen2-moe "$(config_of qwen2_moe 4 4 ", $moe, \"tie_word_embeddings\": false,
    \"shared_expert_intermediate_size\": 112")"
{
    frame untied
    for layer in 0 1 2; do
        attention $layer 4 4
        experts $layer 5 208
    done
} | sed -E 's/mlp\.(gate|experts)/block_sparse_moe.\1/; s/gate_proj/w1/; s/up_proj/w3/; s/(experts.*)down_proj/\1w2/' |
    random_model mixtral "$(config_of mixtral 4 4 ', "num_local_experts": 5, "num_experts_per_tok": 2,
    "tie_word_embeddings": false')"

same_answers "Qwen3-MoE in F32" "2 4" --model "$work/qwen3-moe" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "Qwen3-MoE in BF16" "2 4" --model "$work/qwen3-moe" --quant bf16 --max-sequences 3
same_answers "Qwen3-MoE in INT8" "4" --model "$work/qwen3-moe" --quant int8
same_answers "Qwen3-MoE in NF4" "2" --model "$work/qwen3-moe" --quant nf4
same_answers "Qwen3-MoE in NF4, nested" "2 4" --model "$work/qwen3-moe"
same_answers "Qwen2-MoE in BF16" "2 4" --model "$work/qwen2-moe" --quant bf16 --max-step-tokens 16
same_answers "Qwen2-MoE in NF4, nested" "2 4" --model "$work/qwen2-moe"
same_answers "Mixtral in NF4, nested" "2 4" --model "$work/mixtral" --max-step-tokens 16
for quant in nf4-dq int8; do
    run quantize --model "$work/qwen3-moe" --quant $quant --out "$work/qwen3-moe-$quant"
    expect_code 0
    same_answers "a folder of experts in $quant" "2 4" --model "$work/qwen3-moe-$quant"
done
same_answers "Qwen3-MoE of the goldens" 3 --model "$fixtures/qwen3-moe" --quant bf16
same_answers "Qwen2-MoE of the goldens" 3 --model "$fixtures/qwen2-moe" --quant f32 --dtype f32
same_answers "stacked experts" 5 --model "$fixtures/mixtral-stacked" --quant bf16
same_answers "experts in FP8" 3 --model "$fixtures/qwen3-moe-fp8" --quant bf16
same_on_cuda "Qwen3-MoE" 2 --model "$work/qwen3-moe"
same_on_cuda "Qwen2-MoE" 4 --model "$work/qwen2-moe" --quant bf16

printf '{"text": "once"}\n{"text": "twice"}\n' >"$work/data.jsonl"
run finetune --model "$work/qwen3-moe" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 \
    --target-parameters experts --learning-rate 1e-3 --quiet --out "$work/expert-adapter"
expect_code 0
same_answers "LoRA on experts" "2 4" --model "$work/qwen3-moe" --adapter "$work/expert-adapter"


# ---- The gated delta rule, and gates of attention's output ------------------------------------------------------------

# delta LAYER [by_head]: 4 key heads of 20 with four value heads of 12 each.
delta() {
    if [ -n "${2:-}" ]; then
        matrix "model.layers.$1.linear_attn.in_proj_qkvz" 544 176
        matrix "model.layers.$1.linear_attn.in_proj_ba" 32 176
    else
        matrix "model.layers.$1.linear_attn.in_proj_qkv" 352 176
        matrix "model.layers.$1.linear_attn.in_proj_z" 192 176
        matrix "model.layers.$1.linear_attn.in_proj_b" 16 176
        matrix "model.layers.$1.linear_attn.in_proj_a" 16 176
    fi
    echo "model.layers.$1.linear_attn.conv1d.weight 0 0.5 352 1 4"
    echo "model.layers.$1.linear_attn.A_log 0 0.5 16"
    echo "model.layers.$1.linear_attn.dt_bias 0 0.5 16"
    norm "model.layers.$1.linear_attn.norm" 12
    matrix "model.layers.$1.linear_attn.out_proj" 176 192
}
delta_config='"linear_num_key_heads": 4, "linear_num_value_heads": 16, "linear_key_head_dim": 20,
    "linear_value_head_dim": 12, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}'
{
    frame
    delta 0
    attention 1 8 4 gated
    delta 2
    for layer in 0 1 2; do dense model.layers.$layer.mlp 208; done
} | random_model qwen3_5 "$(config_of qwen3_5_text 8 4 ", $delta_config, \"tie_word_embeddings\": true")"
{
    frame untied
    delta 0
    attention 1 8 4 gated
    delta 2
    for layer in 0 1 2; do
        experts $layer 7 96
        dense model.layers.$layer.mlp.shared_expert 112
        matrix model.layers.$layer.mlp.shared_expert_gate 1 176
    done
} | random_model qwen3_5-moe "$(config_of qwen3_5_moe_text 8 4 ", $moe, $delta_config, \"tie_word_embeddings\": false,
    \"shared_expert_intermediate_size\": 112")"
{
    frame untied
    delta 0 by_head
    attention 1 8 4 gated
    delta 2 by_head
    for layer in 0 1 2; do
        experts $layer 7 96
        dense model.layers.$layer.mlp.shared_expert 112
        matrix model.layers.$layer.mlp.shared_expert_gate 1 176
    done
} | random_model qwen3-next "$(config_of qwen3_next 8 4 ", $moe, $delta_config, \"tie_word_embeddings\": false,
    \"shared_expert_intermediate_size\": 112")"

same_answers "Qwen3.5 in F32" "2 4" --model "$work/qwen3_5" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "Qwen3.5 in BF16, few sequences" "2 4" --model "$work/qwen3_5" --quant bf16 --max-sequences 2
# A state is restored from a snapshot of the end of another prompt: that of a, which is done before c is.
for id in c a e; do grep "\"id\": \"$id\"" "$work/requests.jsonl"; done >"$work/three.jsonl"
for n in 1 2 4; do
    start_ranks_of generate $n --tensor-parallel $n --prompts "$work/three.jsonl" --model "$work/qwen3_5" --quant bf16 \
        --max-sequences 2 --output "$work/shared-$n.jsonl" --stats
    wait_ranks
    expect_code 0
    expect_true "a prompt began with a snapshot" grep -qE '"cached_prompt_tokens":[1-9]' "$work/err"
    answers_of "$work/shared-$n.jsonl" >"$work/shared-$n"
    expect_true "restored on $n ranks: the same" cmp -s "$work/shared-1" "$work/shared-$n"
done
same_answers "Qwen3.5 in INT8" "4" --model "$work/qwen3_5" --quant int8
same_answers "Qwen3.5 in NF4, nested" "2 4" --model "$work/qwen3_5"
same_answers "Qwen3.5 with experts" "2 4" --model "$work/qwen3_5-moe" --max-step-tokens 16
same_answers "Qwen3-Next" "2 4" --model "$work/qwen3-next" --quant bf16 --max-step-tokens 16
same_answers "Qwen3-Next in NF4, nested" "4" --model "$work/qwen3-next"
same_answers "Qwen3-Next of the goldens" 3 --model "$fixtures/qwen3-next" --quant bf16
run quantize --model "$work/qwen3_5" --quant nf4-dq --out "$work/qwen3_5-nf4-dq"
expect_code 0
same_answers "a folder with the gated delta rule" "2 4" --model "$work/qwen3_5-nf4-dq"
same_on_cuda "Qwen3.5" 2 --model "$work/qwen3_5"
run finetune --model "$work/qwen3_5" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 \
    --learning-rate 1e-3 --quiet --out "$work/delta-adapter"
expect_code 0
same_answers "LoRA on the gated delta rule" "2 4" --model "$work/qwen3_5" --adapter "$work/delta-adapter"

# ---- Convolutions between gates, a gate for each head, and a router of sigmoids ----------------------------------------

# conv LAYER KERNEL
conv() {
    matrix "model.layers.$1.conv.in_proj" 528 176
    echo "model.layers.$1.conv.conv.weight 0 0.5 176 1 $2"
    matrix "model.layers.$1.conv.out_proj" 176 176
}
# heads LAYER: norms of queries and keys.
heads() {
    norm "model.layers.$1.self_attn.q_norm" 24
    norm "model.layers.$1.self_attn.k_norm" 24
}
# As LFM2 and LFM3 call their modules.
lfm_names() {
    sed -E 's/model\.norm/model.embedding_norm/; s/input_layernorm/operator_norm/; s/post_attention_layernorm/ffn_norm/
        s/mlp/feed_forward/; s/gate_proj/w1/; s/up_proj/w3/; s/down_proj/w2/'
}
lfm2_names() {
    lfm_names | sed -E 's/o_proj/out_proj/; s/([qk])_norm/\1_layernorm/'
}
lfm_config='"block_auto_adjust_ff_dim": false, "tie_word_embeddings": true'
{
    frame
    conv 0 3
    attention 1 8 4
    heads 1
    conv 2 3
    for layer in 0 1 2; do dense model.layers.$layer.mlp 208; done
} | lfm2_names | random_model lfm2 "$(config_of lfm2 8 4 ", $lfm_config, \"full_attn_idxs\": [1]")"
{
    frame
    conv 0 3
    attention 1 8 4
    heads 1
    conv 2 3
    dense model.layers.0.mlp 208
    for layer in 1 2; do
        experts $layer 7 96
        echo "model.layers.$layer.mlp.expert_bias 0 0.3 7"
    done
} | lfm2_names | random_model lfm2-moe "$(config_of lfm2_moe 8 4 ", $moe,
    \"tie_word_embeddings\": true, \"num_dense_layers\": 1, \"routed_scaling_factor\": 1.5,
    \"layer_types\": [\"conv\", \"full_attention\", \"conv\"]")"
{
    frame
    conv 0 7
    for layer in 1 2; do
        attention $layer 8 4
        heads $layer
        matrix model.layers.$layer.self_attn.head_gates 8 176
    done
    for layer in 0 1 2; do
        dense model.layers.$layer.mlp 208
        norm model.layers.$layer.post_operator_norm 176
        norm model.layers.$layer.post_ffn_norm 176
    done
} | lfm_names | sed 's/head_gates/gate_proj/' | random_model lfm3 "$(config_of lfm3 8 4 ", $lfm_config,
    \"sliding_window\": 7, \"layer_types\": [\"conv\", \"sliding_attention\", \"full_attention\"]")"
{
    frame untied
    for layer in 0 1 2; do attention $layer 8 4; done
    dense model.layers.0.mlp 208
    for layer in 1 2; do
        experts $layer 7 96
        dense model.layers.$layer.mlp.shared_experts 192
        echo "model.layers.$layer.mlp.gate.e_score_correction_bias 0 0.3 7"
    done
} | random_model glm4-moe "$(config_of glm4_moe 8 4 ", $moe, \"n_shared_experts\": 2, \"routed_scaling_factor\": 1.5,
    \"tie_word_embeddings\": false")"
{
    frame
    for layer in 0 1 2; do attention $layer 8 4; done
    dense model.layers.0.mlp 208
    for layer in 1 2; do
        experts $layer 7 96
        dense model.layers.$layer.mlp.shared_experts 192
        echo "model.layers.$layer.mlp.moe_statics.e_score_correction_bias 0 0.1 1 7"
    done
} | random_model ernie4_5-moe "$(config_of ernie4_5_moe 8 4 ", \"moe_intermediate_size\": 96, \"moe_num_experts\": 7,
    \"moe_k\": 3, \"moe_num_shared_experts\": 2")"
{
    frame untied
    for layer in 0 1 2; do
        attention $layer 8 4
        for name in "q 192" "k 96" "v 96"; do
            echo "model.layers.$layer.self_attn.${name% *}_proj.bias 0 0.1 ${name#* }"
        done
        norm model.layers.$layer.post_self_attn_layernorm 176
        norm model.layers.$layer.post_mlp_layernorm 176
        matrix model.layers.$layer.mlp.gate_up_proj 416 176
        matrix model.layers.$layer.mlp.down_proj 176 208
    done
} | random_model glm4 "$(config_of glm4 8 4 ', "tie_word_embeddings": false')"
same_answers "ERNIE 4.5 with experts" "2 4" --model "$work/ernie4_5-moe" --quant bf16 --max-step-tokens 16
same_answers "GLM-4" "2 4" --model "$work/glm4" --max-step-tokens 16
same_on_cuda "GLM-4" 2 --model "$work/glm4"
same_answers "GLM-4.5" "2 4" --model "$work/glm4-moe" --max-step-tokens 16
same_answers "LFM2 in F32" "2 4" --model "$work/lfm2" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "LFM2 in NF4, nested" "2 4" --model "$work/lfm2" --max-sequences 2
same_answers "LFM2-MoE" "2 4" --model "$work/lfm2-moe" --quant bf16 --max-step-tokens 16
same_answers "LFM3" "2 4" --model "$work/lfm3" --quant bf16 --max-step-tokens 16
same_answers "LFM3 in NF4, nested" "2" --model "$work/lfm3"
same_on_cuda "LFM3" 2 --model "$work/lfm3"
run finetune --model "$work/lfm3" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 \
    --learning-rate 1e-3 --quiet --out "$work/lfm3-adapter"
expect_code 0
same_answers "LoRA on convolutions and gates" "2" --model "$work/lfm3" --adapter "$work/lfm3-adapter"

# ---- Sinks of attention, and experts with biases ----------------------------------------------------------------------

# As gpt-oss; sizes are multiples of 32, which MXFP4 has blocks of. gpt_oss WHAT: experts in "bf16" or "mxfp4".
gpt_oss() {
    frame untied
    for layer in 0 1 2; do
        attention $layer 8 4
        prefix=model.layers.$layer
        echo "$prefix.self_attn.sinks 0 1 8"
        for name in "q 192" "k 96" "v 96" "o 176"; do echo "$prefix.self_attn.${name% *}_proj.bias 0 0.1 ${name#* }"; done
        matrix $prefix.mlp.router 7 176
        echo "$prefix.mlp.router.bias 0 0.1 7"
        echo "$prefix.mlp.experts.gate_up_proj_bias 0 0.1 7 192"
        echo "$prefix.mlp.experts.down_proj_bias 0 0.1 7 176"
        if [ "$1" = bf16 ]; then
            echo "$prefix.mlp.experts.gate_up_proj 0 0.1 7 176 192"
            echo "$prefix.mlp.experts.down_proj 0 0.1 7 96 176"
        else
            echo "$prefix.mlp.experts.gate_up_proj_blocks bytes 0 255 7 192 6 16"
            echo "$prefix.mlp.experts.gate_up_proj_scales bytes 117 122 7 192 6"
            echo "$prefix.mlp.experts.down_proj_blocks bytes 0 255 7 176 3 16"
            echo "$prefix.mlp.experts.down_proj_scales bytes 117 122 7 176 3"
        fi
    done
}
gpt_oss_config() {
    config_of gpt_oss 8 4 ", \"num_local_experts\": 7, \"num_experts_per_tok\": 3, \"sliding_window\": 7,
        \"tie_word_embeddings\": false, \"attention_bias\": true, \"swiglu_limit\": 7.0,
        \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"],
        \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 150000.0}$1" |
        sed 's/"hidden_size": 176/"hidden_size": 192/; s/"intermediate_size": 208/"intermediate_size": 96/'
}
hidden_192() {
    sed -E 's/ 176( |$)/ 192\1/g'
}
gpt_oss bf16 | hidden_192 | random_model gpt-oss "$(gpt_oss_config '')"
gpt_oss mxfp4 | hidden_192 | random_model gpt-oss-mxfp4 "$(gpt_oss_config ', "quantization_config": {"quant_method": "mxfp4"}')"
same_answers "gpt-oss in F32" "2 4" --model "$work/gpt-oss" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "gpt-oss in NF4, nested" "2 4" --model "$work/gpt-oss"
same_answers "gpt-oss in MXFP4" "2 4" --model "$work/gpt-oss-mxfp4" --max-step-tokens 16
same_answers "gpt-oss from MXFP4 to BF16" "4" --model "$work/gpt-oss-mxfp4" --quant bf16
same_answers "gpt-oss of the goldens" 3 --model "$fixtures/gpt-oss" --quant bf16
same_on_cuda "gpt-oss in MXFP4" 2 --model "$work/gpt-oss-mxfp4"

# ---- Inputs to each layer, experts beside an MLP (Gemma 4), gates from a matrix of their own --------------------------

# gemma4_layer LAYER: what all have, sizes of heads are 24.
gemma4_layer() {
    attention "$1" 4 2
    dense "model.layers.$1.mlp" 208
    norm "model.layers.$1.self_attn.q_norm" 24
    norm "model.layers.$1.self_attn.k_norm" 24
    norm "model.layers.$1.pre_feedforward_layernorm" 176
    norm "model.layers.$1.post_feedforward_layernorm" 176
    echo "model.layers.$1.layer_scalar 1 0.1 1"
}
gemma4_config='"global_head_dim": 24, "sliding_window": 7, "tie_word_embeddings": true,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
    "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}'
{
    frame
    matrix model.embed_tokens_per_layer 2048 96
    matrix model.per_layer_model_projection 96 176
    norm model.per_layer_projection_norm 32
    for layer in 0 1 2; do
        gemma4_layer $layer
        matrix model.layers.$layer.per_layer_input_gate 32 176
        matrix model.layers.$layer.per_layer_projection 176 32
        norm model.layers.$layer.post_per_layer_input_norm 176
    done
} | random_model gemma4 "$(config_of gemma4_text 4 2 ", $gemma4_config, \"hidden_size_per_layer_input\": 32,
    \"vocab_size_per_layer_input\": 2048, \"num_kv_shared_layers\": 0")"
{
    frame
    for layer in 0 1 2; do
        gemma4_layer $layer
        for name in post_feedforward_layernorm_1 pre_feedforward_layernorm_2 post_feedforward_layernorm_2; do
            norm model.layers.$layer.$name 176
        done
        echo "model.layers.$layer.router.scale 1 0.1 176"
        echo "model.layers.$layer.router.per_expert_scale 1 0.1 7"
        matrix model.layers.$layer.router.proj 7 176
        echo "model.layers.$layer.experts.gate_up_proj 0 0.1 7 192 176"
        echo "model.layers.$layer.experts.down_proj 0 0.1 7 176 96"
    done
} | random_model gemma4-moe "$(config_of gemma4_text 4 2 ", $gemma4_config, \"hidden_size_per_layer_input\": 0,
    \"enable_moe_block\": true, \"num_experts\": 7, \"top_k_experts\": 3, \"moe_intermediate_size\": 96")"
{
    frame untied
    for layer in 0 1 2; do
        attention $layer 8 4
        dense model.layers.$layer.mlp 208
        matrix model.layers.$layer.self_attn.gate_proj 192 176
        norm model.layers.$layer.pre_feedforward_layernorm 176
        norm model.layers.$layer.post_feedforward_layernorm 176
    done
} | sed 's/^model\./model.language_model./' | random_model muse-glimmer "{\"model_type\": \"muse_glimmer\",
    \"tie_word_embeddings\": false, \"text_config\": $(config_of muse_glimmer_text 8 4 ", \"post_norm_eps\": 3e-4,
    \"qk_scale_factor\": 2.3, \"output_multiplier\": 0.7, \"sliding_window\": 7, \"layer_rope_theta\": [0, 1e6, 1e6],
    \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"],
    \"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}")}"
same_answers "Gemma 4 with inputs in BF16" 2 --model "$work/gemma4" --quant bf16 --max-step-tokens 16
same_answers "Gemma 4 with inputs in NF4, nested" 2 --model "$work/gemma4"
same_answers "Gemma 4 with experts" 2 --model "$work/gemma4-moe" --quant bf16 --max-step-tokens 16
same_answers "Gemma 4 with experts in NF4, nested" 2 --model "$work/gemma4-moe"
same_answers "Muse Glimmer" "2 4" --model "$work/muse-glimmer" --quant bf16
same_on_cuda "Gemma 4 with experts" 2 --model "$work/gemma4-moe"

# ---- Fused matrices ---------------------------------------------------------------------------------------------------

# Of 24 with a K/V head for two, and an MLP of 208.
{
    frame untied
    for layer in 0 1 2; do
        matrix model.layers.$layer.self_attn.qkv_proj 384 176
        matrix model.layers.$layer.self_attn.o_proj 176 192
        matrix model.layers.$layer.mlp.gate_up_proj 416 176
        matrix model.layers.$layer.mlp.down_proj 176 208
    done
} | hidden_192 | random_model phi3 "$(config_of phi3 8 4 ', "tie_word_embeddings": false, "pad_token_id": null' |
    sed 's/"head_dim": 24,//; s/"hidden_size": 176/"hidden_size": 192/')"
same_answers "Phi-3 in F32" "2 4" --model "$work/phi3" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "Phi-3 in NF4" "2" --model "$work/phi3" --quant nf4
same_answers "Phi-3 in NF4, nested" "2 4" --model "$work/phi3"
for quant in nf4-dq int8; do
    run quantize --model "$work/phi3" --quant $quant --out "$work/phi3-$quant"
    expect_code 0
    same_answers "a folder of fused matrices in $quant" "2 4" --model "$work/phi3-$quant"
done
run finetune --model "$work/phi3" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 \
    --learning-rate 1e-3 --quiet --out "$work/fused-adapter"
expect_code 0
same_answers "LoRA on fused matrices" "2 4" --model "$work/phi3" --adapter "$work/fused-adapter"
same_on_cuda "Phi-3" 2 --model "$work/phi3"
same_answers "GPT-2 of the goldens" 5 --model "$fixtures/gpt2" --quant f32 --dtype f32
same_answers "GPT-2 of the goldens in INT8" 5 --model "$fixtures/gpt2" --quant int8
same_answers "Phi-3 of the goldens" 3 --model "$fixtures/phi3" --quant bf16 --max-step-tokens 16

# ---- Attention and an MLP that read one norm, LayerNorm, sinks beside factors ------------------------------------------

same_answers "blocks side by side in F32" 3 --model "$fixtures/cohere" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "blocks side by side with windows" 5 --model "$fixtures/cohere2" --quant bf16
same_answers "StarCoder2" 3 --model "$fixtures/starcoder2" --quant bf16
same_answers "Granite with windows, with experts" 3 --model "$fixtures/granite-moe-swa" --quant bf16
same_answers "a shared expert whose gate and up are one" 5 --model "$fixtures/granite-moe-shared" --quant bf16
same_answers "norms without weights" 2 --model "$fixtures/nanochat" --quant bf16 --max-step-tokens 16
same_answers "q, k and v of the delta rule apart" 2 --model "$fixtures/olmo-hybrid" --quant bf16
same_answers "a decay of every channel" 2 --model "$fixtures/kimi-linear" --quant bf16
same_answers "values shorter than keys, sinks" 2 --model "$fixtures/mimo-v2-flash" --quant bf16
same_answers "a head of fewer rows than the embedding" 2 --model "$fixtures/apertus1p5" --quant bf16
same_answers "heads by the layer, gates by softplus" 2 --model "$fixtures/laguna" --quant bf16
same_answers "a norm after experts alone" 4 --model "$fixtures/axk1" --quant bf16
same_answers "gates beside experts, norms around both" 2 --model "$fixtures/afmoe" --quant bf16
same_answers "q, k and v of one head after the other" 3 --model "$fixtures/gpt-neox" --quant bf16 --max-step-tokens 16
same_answers "LayerNorm that adds 1" 2 --model "$fixtures/nemotron" --quant f32 --dtype f32
same_answers "Solar Open" 2 --model "$fixtures/solar-open" --quant bf16 --max-step-tokens 16

# ---- Norms over all heads ---------------------------------------------------------------------------------------------

{
    frame untied
    for layer in 0 1 2; do
        attention $layer 8 4
        norm model.layers.$layer.self_attn.q_norm 192
        norm model.layers.$layer.self_attn.k_norm 96
        dense model.layers.$layer.mlp 208
        norm model.layers.$layer.post_feedforward_layernorm 176
    done
} | grep -v input_layernorm | hidden_192 | random_model olmo2 "$(config_of olmo2 8 4 ', "tie_word_embeddings": false' |
    sed 's/"head_dim": 24,//; s/"hidden_size": 176/"hidden_size": 192/')"
same_answers "OLMo 2 in F32" "2 4" --model "$work/olmo2" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "OLMo 2 in NF4, nested" "2 4" --model "$work/olmo2"
same_answers "OLMo 3 of the goldens" 2 --model "$fixtures/olmo3" --quant bf16 --max-step-tokens 16
same_answers "OLMoE of the goldens" 3 --model "$fixtures/olmoe" --quant bf16
same_on_cuda "OLMo 2" 2 --model "$work/olmo2"

# ---- Latent attention: latents are everyone's, and heads dealt out -----------------------------------------------------

latents() {
    matrix "model.layers.$1.self_attn.q_a_proj" 128 176
    norm "model.layers.$1.self_attn.q_a_layernorm" 128
    matrix "model.layers.$1.self_attn.q_b_proj" 112 128
    matrix "model.layers.$1.self_attn.kv_a_proj_with_mqa" 76 176
    norm "model.layers.$1.self_attn.kv_a_layernorm" 64
    matrix "model.layers.$1.self_attn.kv_b_proj" 160 64
    matrix "model.layers.$1.self_attn.o_proj" 176 96
}
{
    frame
    for layer in 0 1 2; do
        latents $layer
        dense model.layers.$layer.mlp 208
    done
} | random_model youtu "$(config_of youtu 4 4 ', "q_lora_rank": 128, "kv_lora_rank": 64, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 12, "v_head_dim": 24, "tie_word_embeddings": true' | sed 's/"head_dim": 24/"head_dim": 12/')"
same_answers "latents in NF4, nested" "2 4" --model "$work/youtu" --max-step-tokens 16
same_answers "latents of INT8 matrices" 2 --model "$work/youtu" --quant int8
run generate --model "$work/youtu" --kv int8 --prompt "Once upon"
expect_code 3
expect_one_error_line
expect_err 'kv int8 is not supported for models with latent attention'
same_answers "latents in F32" 3 --model "$fixtures/youtu" --quant f32 --dtype f32
same_answers "latents beside experts" 3 --model "$fixtures/glm4-moe-lite" --quant bf16
same_answers "queries without a latent" 4 --model "$fixtures/deepseek-v3" --quant bf16 --max-step-tokens 16
same_on_cuda "latents" 2 --model "$work/youtu"
for dora in "" --dora; do
    rm -rf "$work/latent-adapter"
    run finetune --model "$work/youtu" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 $dora \
        --learning-rate 1e-2 --quiet --out "$work/latent-adapter"
    expect_code 0
    same_answers "LoRA on latents $dora" "2 4" --model "$work/youtu" --adapter "$work/latent-adapter"
done

# ---- State spaces, and layers of one block each -----------------------------------------------------------------------

# 8 heads of 20 in two groups, which have a norm each: whole on each of two ranks, on two of four ranks.
hybrid=$work/hybrid.json
cat >"$hybrid" <<CONFIG
{"model_type": "nemotron_h", "hidden_size": 192, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 24,
 "intermediate_size": 208, "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe", "linear_attention"],
 "mamba_num_heads": 8, "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 4, "use_conv_bias": true,
 "mlp_hidden_act": "relu2", "n_routed_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 96,
 "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 112, "norm_topk_prob": true, "n_group": 1,
 "topk_group": 1, "routed_scaling_factor": 1.8, "vocab_size": 2048, "max_position_embeddings": 512,
 "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16"}
CONFIG
{
    for layer in 0 1 2 3 4; do norm backbone.layers.$layer.norm 192; done
    for layer in 0 4; do
        mixer=backbone.layers.$layer.mixer
        matrix $mixer.in_proj 376 192
        echo "$mixer.conv1d.weight 0 0.5 208 1 4"
        echo "$mixer.conv1d.bias 0 0.5 208"
        for name in A_log D dt_bias; do echo "$mixer.$name 0 0.5 8"; done
        norm $mixer.norm 160
        matrix $mixer.out_proj 192 160
    done
    matrix backbone.layers.1.mixer.q_proj 192 192
    matrix backbone.layers.1.mixer.k_proj 96 192
    matrix backbone.layers.1.mixer.v_proj 96 192
    matrix backbone.layers.1.mixer.o_proj 192 192
    matrix backbone.layers.2.mixer.up_proj 208 192
    matrix backbone.layers.2.mixer.down_proj 192 208
    matrix backbone.layers.3.mixer.gate 7 192
    echo "backbone.layers.3.mixer.gate.e_score_correction_bias 0 0.1 7"
    for expert in 0 1 2 3 4 5 6; do
        matrix backbone.layers.3.mixer.experts.$expert.up_proj 96 192
        matrix backbone.layers.3.mixer.experts.$expert.down_proj 192 96
    done
    matrix backbone.layers.3.mixer.shared_experts.up_proj 112 192
    matrix backbone.layers.3.mixer.shared_experts.down_proj 192 112
    matrix backbone.embeddings 2048 192
    norm backbone.norm_f 192
    matrix lm_head 2048 192
} | random_model hybrid "$(cat "$hybrid")"
same_answers "state spaces in F32" "2 4 8" --model "$work/hybrid" --quant f32 --dtype f32 --max-step-tokens 16
same_answers "state spaces in NF4, nested" "2 4" --model "$work/hybrid" --max-sequences 3
same_answers "state spaces in INT8" 8 --model "$work/hybrid" --quant int8
same_answers "a group for five ranks, beside attention" 5 --model "$fixtures/granite4-spaces" --quant bf16
same_answers "a group for each rank" 3 --model "$fixtures/nemotron-h" --quant bf16 --max-step-tokens 16
same_answers "a group for five ranks, beside attention in a layer" 5 --model "$fixtures/falcon-h1" --quant bf16 \
    --max-step-tokens 16
same_answers "a group and its norm for each rank, beside attention" 3 --model "$fixtures/falcon-h1-norm" --quant f32
same_answers "state spaces and heads that rotate in part" 5 --model "$fixtures/bamba" --quant int8
same_answers "residual streams and sparse gates" 5 --model "$fixtures/gemma3n" --quant bf16 --max-step-tokens 16
same_answers "three residual streams" "3 6" --model "$fixtures/gemma3n-three" --quant int8
same_answers "activations with numbers of each layer" 3 --model "$fixtures/apertus" --quant int8
same_on_cuda "state spaces" "2 4" --model "$work/hybrid" --quant bf16
run finetune --model "$work/hybrid" --data "$work/data.jsonl" --seq-len 16 --max-steps 2 --rank 4 \
    --learning-rate 1e-2 --quiet --out "$work/hybrid-adapter"
expect_code 0
same_answers "LoRA on state spaces" "2 4" --model "$work/hybrid" --adapter "$work/hybrid-adapter"

# ---- More ranks than heads for keys and values, and adapters of PEFT --------------------------------------------------

adapters=$QRUN_SOURCE/tests/fixtures/adapters
same_answers "a K/V head for three ranks, and DoRA" 3 --model "$fixtures/llama" --adapter "$adapters/llama-dora"
same_answers "a head and a norm of an adapter" 3 --model "$fixtures/llama" --quant bf16 --adapter "$adapters/llama-saved"
same_answers "an embedding of an adapter, which is the head" 3 --model "$fixtures/gemma3" --adapter "$adapters/gemma3-saved"
same_answers "DoRA on fused matrices" 5 --model "$fixtures/gpt2" --quant bf16 --adapter "$adapters/gpt2-dora"
same_answers "Phi-3 on twice as many ranks as K/V heads" 8 --model "$work/phi3"
same_answers "norms over K/V heads that two ranks have" 8 --model "$work/olmo2" --quant bf16 --max-step-tokens 16

# ---- Plans of ranks that are not there --------------------------------------------------------------------------------

# planned N ARGUMENTS…: there is a line for each rank, which sends something for a token.
planned() {
    n=$1
    shift
    run plan --tensor-parallel "$n" --memory 64MiB --context 128 --json "$@"
    expect_code 0
    expect_true "a plan for each of $n ranks: $*" \
        test "$(grep -oE '"rank":[0-9],"sent_bytes":[1-9]' "$work/out" | wc -l)" -eq "$n"
}
planned 4 --model "$work/qwen3-moe"
planned 2 --model "$work/qwen3-moe-int8"
planned 4 --model "$work/qwen3-next"
planned 4 --model "$work/gpt-oss-mxfp4"
planned 2 --model "$work/gemma4"
planned 4 --model "$work/youtu"
planned 4 --model "$work/hybrid"

# ---- What is refused --------------------------------------------------------------------------------------------------

# The attention of this one cannot be dealt to two ranks.
run plan --tensor-parallel 2 --model "$fixtures/nemotron-h-moe"
expect_code 2
expect_one_error_line
expect_err '4 heads of state spaces in groups of 2'

finish

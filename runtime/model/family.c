#include "runtime/model/family.h"

#include <stdio.h>
#include <string.h>

#include "base/sizes.h"

#define LAYER "model.layers.%d."

/* What the descendants of Llama share. */
#define FRAME \
    [QR_ROLE_EMBEDDING] = "model.embed_tokens", [QR_ROLE_FINAL_NORM] = "model.norm", [QR_ROLE_HEAD] = "lm_head"
#define LLAMA_FRAME FRAME, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_MLP_OUT] = LAYER "mlp.down_proj"
#define SPLIT_QKV                                                                   \
    [QR_ROLE_Q] = LAYER "self_attn.q_proj", [QR_ROLE_K] = LAYER "self_attn.k_proj", \
    [QR_ROLE_V] = LAYER "self_attn.v_proj"
#define SPLIT_GATE_UP [QR_ROLE_GATE] = LAYER "mlp.gate_proj", [QR_ROLE_UP] = LAYER "mlp.up_proj"
#define PRE_NORMS [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm", [QR_ROLE_MLP_NORM] = LAYER "post_attention_layernorm"
#define POST_NORMS                                                                         \
    [QR_ROLE_POST_ATTN_NORM] = LAYER "post_attention_layernorm", [QR_ROLE_POST_MLP_NORM] = \
                                                                     LAYER "post_feedforward_layernorm"
#define QK_NORMS [QR_ROLE_Q_NORM] = LAYER "self_attn.q_norm", [QR_ROLE_K_NORM] = LAYER "self_attn.k_norm"
#define HUNYUAN_NORMS \
    [QR_ROLE_Q_NORM] = LAYER "self_attn.query_layernorm", [QR_ROLE_K_NORM] = LAYER "self_attn.key_layernorm"
#define LATENT_ATTENTION                                                                                  \
    [QR_ROLE_Q] = LAYER "self_attn.q_proj", [QR_ROLE_Q_DOWN] = LAYER "self_attn.q_a_proj",                \
    [QR_ROLE_Q_DOWN_NORM] = LAYER "self_attn.q_a_layernorm", [QR_ROLE_Q_UP] = LAYER "self_attn.q_b_proj", \
    [QR_ROLE_KV_DOWN] = LAYER "self_attn.kv_a_proj_with_mqa",                                             \
    [QR_ROLE_KV_DOWN_NORM] = LAYER "self_attn.kv_a_layernorm", [QR_ROLE_KV_UP] = LAYER "self_attn.kv_b_proj"
#define DELTA                                                                                                         \
    [QR_ROLE_RECURRENT_NORM] = LAYER "linear_attn.norm", [QR_ROLE_CONV] = LAYER "linear_attn.conv1d",                 \
    [QR_ROLE_RECURRENT_A_LOG] = LAYER "linear_attn.A_log", [QR_ROLE_RECURRENT_DT_BIAS] = LAYER "linear_attn.dt_bias", \
    [QR_ROLE_RECURRENT_OUT] = LAYER "linear_attn.out_proj"
#define DELTA_SPLIT                                                                                           \
    [QR_ROLE_DELTA_QKV] = LAYER "linear_attn.in_proj_qkv", [QR_ROLE_DELTA_Z] = LAYER "linear_attn.in_proj_z", \
    [QR_ROLE_DELTA_B] = LAYER "linear_attn.in_proj_b", [QR_ROLE_DELTA_A] = LAYER "linear_attn.in_proj_a"
#define DELTA_APART                                                                                                   \
    [QR_ROLE_RECURRENT_NORM] = LAYER "linear_attn.o_norm", [QR_ROLE_CONV] = LAYER "linear_attn.conv1d",               \
    [QR_ROLE_RECURRENT_A_LOG] = LAYER "linear_attn.A_log", [QR_ROLE_RECURRENT_DT_BIAS] = LAYER "linear_attn.dt_bias", \
    [QR_ROLE_DELTA_Q] = LAYER "linear_attn.q_proj", [QR_ROLE_DELTA_K] = LAYER "linear_attn.k_proj",                   \
    [QR_ROLE_DELTA_V] = LAYER "linear_attn.v_proj", [QR_ROLE_DELTA_Z] = LAYER "linear_attn.g_proj",                   \
    [QR_ROLE_DELTA_B] = LAYER "linear_attn.b_proj", [QR_ROLE_DELTA_A] = LAYER "linear_attn.a_proj",                   \
    [QR_ROLE_RECURRENT_OUT] = LAYER "linear_attn.o_proj"
/* Norms of OLMo Hybrid: before the blocks of layers with a state, after those of others. */
#define OLMO_HYBRID                                                        \
    .name = "olmo-hybrid", .norms_all_heads = true, .norms_by_kind = true, \
    .conv_parts = {LAYER "linear_attn.q_conv1d", LAYER "linear_attn.k_conv1d", LAYER "linear_attn.v_conv1d"}
#define DELTA_BY_HEAD \
    [QR_ROLE_DELTA_QKVZ] = LAYER "linear_attn.in_proj_qkvz", [QR_ROLE_DELTA_BA] = LAYER "linear_attn.in_proj_ba"
#define STATE_SPACE                                                                                   \
    [QR_ROLE_RECURRENT_NORM] = LAYER "mamba.norm", [QR_ROLE_CONV] = LAYER "mamba.conv1d",             \
    [QR_ROLE_CONV_BIAS] = LAYER "mamba.conv1d.bias", [QR_ROLE_RECURRENT_A_LOG] = LAYER "mamba.A_log", \
    [QR_ROLE_RECURRENT_DT_BIAS] = LAYER "mamba.dt_bias", [QR_ROLE_SKIP] = LAYER "mamba.D",            \
    [QR_ROLE_SPACE_IN] = LAYER "mamba.in_proj", [QR_ROLE_RECURRENT_OUT] = LAYER "mamba.out_proj"
/* Of Falcon-H1 and Bamba. */
#define FEED_FORWARD                                                                              \
    [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm", [QR_ROLE_MLP_NORM] = LAYER "pre_ff_layernorm", \
    [QR_ROLE_GATE] = LAYER "feed_forward.gate_proj", [QR_ROLE_UP] = LAYER "feed_forward.up_proj", \
    [QR_ROLE_MLP_OUT] = LAYER "feed_forward.down_proj"
#define SANDWICH_NORMS                                                                                          \
    [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm", [QR_ROLE_POST_ATTN_NORM] = LAYER "post_attention_layernorm", \
    [QR_ROLE_MLP_NORM] = LAYER "pre_feedforward_layernorm",                                                     \
    [QR_ROLE_POST_MLP_NORM] = LAYER "post_feedforward_layernorm"

#define LAYER_INPUTS                                                                                                  \
    [QR_ROLE_INPUTS_EMBEDDING] = "model.embed_tokens_per_layer",                                                      \
    [QR_ROLE_INPUTS_NORM] = "model.per_layer_projection_norm", [QR_ROLE_INPUTS] = "model.per_layer_model_projection", \
    [QR_ROLE_INPUT_GATE] = LAYER "per_layer_input_gate", [QR_ROLE_INPUT_OUT] = LAYER "per_layer_projection",          \
    [QR_ROLE_POST_INPUT_NORM] = LAYER "post_per_layer_input_norm"

/* Of Gemma 3n. */
#define STREAMS                                                                                                        \
    [QR_ROLE_STREAM_IN_1] = "model.altup_projections.0", [QR_ROLE_STREAM_IN_2] = "model.altup_projections.1",          \
    [QR_ROLE_STREAM_IN_3] = "model.altup_projections.2", [QR_ROLE_STREAM_OUT_1] = "model.altup_unembed_projections.0", \
    [QR_ROLE_STREAM_OUT_2] = "model.altup_unembed_projections.1",                                                      \
    [QR_ROLE_STREAM_OUT_3] = "model.altup_unembed_projections.2", [QR_ROLE_STREAM_NORM] = LAYER "altup.router_norm",   \
    [QR_ROLE_STREAM_ROUTER] = LAYER "altup.modality_router",                                                           \
    [QR_ROLE_STREAM_PREDICT] = LAYER "altup.prediction_coefs",                                                         \
    [QR_ROLE_STREAM_CORRECT] = LAYER "altup.correction_coefs",                                                         \
    [QR_ROLE_STREAM_SCALE] = LAYER "altup.correct_output_scale", [QR_ROLE_RESIDUAL_DOWN] = LAYER "laurel.linear_left", \
    [QR_ROLE_RESIDUAL_UP] = LAYER "laurel.linear_right", [QR_ROLE_RESIDUAL_NORM] = LAYER "laurel.post_laurel_norm"

#define EXPERT_MATRICES                                                                                             \
    [QR_ROLE_EXPERT_GATE] = LAYER "mlp.experts.%d.gate_proj", [QR_ROLE_EXPERT_UP] = LAYER "mlp.experts.%d.up_proj", \
    [QR_ROLE_EXPERT_OUT] = LAYER "mlp.experts.%d.down_proj"
#define MIXTRAL_EXPERTS                                                                                               \
    [QR_ROLE_ROUTER] = LAYER "block_sparse_moe.gate", [QR_ROLE_EXPERT_GATE] = LAYER "block_sparse_moe.experts.%d.w1", \
    [QR_ROLE_EXPERT_UP] = LAYER "block_sparse_moe.experts.%d.w3",                                                     \
    [QR_ROLE_EXPERT_OUT] = LAYER "block_sparse_moe.experts.%d.w2"
#define EXPERTS EXPERT_MATRICES, [QR_ROLE_ROUTER] = LAYER "mlp.gate"
#define STACKED_EXPERTS \
    .stacked_gate_up = LAYER "mlp.experts.gate_up_proj", .stacked_out = LAYER "mlp.experts.down_proj"

/* Without a share: it counts in full. */
#define WHOLE_SHARED_EXPERT                                       \
    [QR_ROLE_SHARED_GATE] = LAYER "mlp.shared_experts.gate_proj", \
    [QR_ROLE_SHARED_UP] = LAYER "mlp.shared_experts.up_proj",     \
    [QR_ROLE_SHARED_OUT] = LAYER "mlp.shared_experts.down_proj"
#define SHARED_EXPERT                                            \
    [QR_ROLE_SHARED_GATE] = LAYER "mlp.shared_expert.gate_proj", \
    [QR_ROLE_SHARED_UP] = LAYER "mlp.shared_expert.up_proj",     \
    [QR_ROLE_SHARED_OUT] = LAYER "mlp.shared_expert.down_proj",  \
    [QR_ROLE_SHARED_SHARE] = LAYER "mlp.shared_expert_gate"

/* Granite's, 3 and 4. A layer without experts has the shared one alone. */
#define GRANITE_EXPERTS                                                                                 \
    FRAME, PRE_NORMS, SPLIT_QKV, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj",                         \
                                 [QR_ROLE_SHARED_OUT] = LAYER "shared_mlp.output_linear",               \
                                 [QR_ROLE_ROUTER] = LAYER "block_sparse_moe.router",                    \
                                 [QR_ROLE_EXPERT_GATE] = LAYER "block_sparse_moe.experts.%d.gate_proj", \
                                 [QR_ROLE_EXPERT_UP] = LAYER "block_sparse_moe.experts.%d.up_proj",     \
                                 [QR_ROLE_EXPERT_OUT] = LAYER "block_sparse_moe.experts.%d.down_proj"
#define GRANITE_SHARED_GATE_UP \
    [QR_ROLE_GATE_UP] = LAYER "shared_mlp.input_linear", [QR_ROLE_SHARED_GATE_UP] = LAYER "shared_mlp.input_linear"
#define GRANITE_STACKS                                                \
    .stacked_gate_up = LAYER "block_sparse_moe.experts.gate_up_proj", \
    .stacked_out = LAYER "block_sparse_moe.experts.down_proj", .writes_stacks = true
#define GRANITE_NAMES                                                                              \
    .renamed = {{"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"}, \
                {"block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"},   \
                {"block_sparse_moe.router", "block_sparse_moe.router.layer"}}

/* Command R's. */
#define COHERE                               \
    .layer_norm = true, .is_parallel = true, \
    .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm"}

/* LFM2 and LFM3. */
#define LFM_FRAME                                                                                                   \
    [QR_ROLE_EMBEDDING] = "model.embed_tokens", [QR_ROLE_FINAL_NORM] = "model.embedding_norm",                      \
    [QR_ROLE_HEAD] = "lm_head", [QR_ROLE_ATTN_NORM] = LAYER "operator_norm", [QR_ROLE_MLP_NORM] = LAYER "ffn_norm", \
    [QR_ROLE_CONV] = LAYER "conv.conv", [QR_ROLE_CONV_IN] = LAYER "conv.in_proj",                                   \
    [QR_ROLE_RECURRENT_OUT] = LAYER "conv.out_proj", [QR_ROLE_GATE] = LAYER "feed_forward.w1",                      \
    [QR_ROLE_UP] = LAYER "feed_forward.w3", [QR_ROLE_MLP_OUT] = LAYER "feed_forward.w2"
#define LFM2_ATTENTION                                                                                  \
    [QR_ROLE_Q_NORM] = LAYER "self_attn.q_layernorm", [QR_ROLE_K_NORM] = LAYER "self_attn.k_layernorm", \
    [QR_ROLE_ATTN_OUT] = LAYER "self_attn.out_proj"

/* With images: "language_model.model.layers…"; since transformers 4.52 "model.language_model.layers…". The head has
 * the old prefix, and no other. */
#define OLD_IMAGE_PREFIX "language_model."
#define IMAGE_PREFIXES OLD_IMAGE_PREFIX, "model.language_"

#define KIMI_LINEAR                                                \
    .name = "kimi-linear", .a_log_is_wide = true, STACKED_EXPERTS, \
    .conv_parts = {LAYER "self_attn.q_conv1d", LAYER "self_attn.k_conv1d", LAYER "self_attn.v_conv1d"}
/* In memory, and in files. */
#define KIMI_RENAMED                                                                                                \
    {"self_attn.forget_gate.f_a_proj", "self_attn.f_a_proj"},                                                       \
        {"self_attn.forget_gate.f_b_proj", "self_attn.f_b_proj"},                                                   \
        {"self_attn.forget_gate.dt_bias", "self_attn.dt_bias"}, {"self_attn.forget_gate.A_log", "self_attn.A_log"}, \
        {"mlp.gate", "block_sparse_moe.gate"},                                                                      \
        {"mlp.gate.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias"},                      \
        {"mlp.shared_experts.gate_proj", "block_sparse_moe.shared_experts.gate_proj"},                              \
        {"mlp.shared_experts.up_proj", "block_sparse_moe.shared_experts.up_proj"}, {                                \
        "mlp.shared_experts.down_proj", "block_sparse_moe.shared_experts.down_proj"                                 \
    }
#define KIMI_MODULES                                                                                              \
    LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, WHOLE_SHARED_EXPERT,                                 \
        [QR_ROLE_RECURRENT_NORM] = LAYER "self_attn.o_norm", [QR_ROLE_CONV] = LAYER "self_attn.conv1d",           \
        [QR_ROLE_RECURRENT_A_LOG] = LAYER "self_attn.forget_gate.A_log",                                          \
        [QR_ROLE_RECURRENT_DT_BIAS] = LAYER "self_attn.forget_gate.dt_bias",                                      \
        [QR_ROLE_DELTA_Q] = LAYER "self_attn.q_proj", [QR_ROLE_DELTA_K] = LAYER "self_attn.k_proj",               \
        [QR_ROLE_DELTA_V] = LAYER "self_attn.v_proj", [QR_ROLE_DELTA_Z] = LAYER "self_attn.g_b_proj",             \
        [QR_ROLE_DELTA_B] = LAYER "self_attn.b_proj", [QR_ROLE_DELTA_A] = LAYER "self_attn.forget_gate.f_b_proj", \
        [QR_ROLE_DELTA_Z_DOWN] = LAYER "self_attn.g_a_proj",                                                      \
        [QR_ROLE_DELTA_A_DOWN] = LAYER "self_attn.forget_gate.f_a_proj",                                          \
        [QR_ROLE_RECURRENT_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_ROUTER] = LAYER "mlp.gate",                  \
        [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias",                                         \
        [QR_ROLE_EXPERT_GATE] = LAYER "block_sparse_moe.experts.%d.w1",                                           \
        [QR_ROLE_EXPERT_UP] = LAYER "block_sparse_moe.experts.%d.w3",                                             \
        [QR_ROLE_EXPERT_OUT] = LAYER "block_sparse_moe.experts.%d.w2"

static const qr_family families[] = {
    {.family = QR_FAMILY_LLAMA, .name = "llama", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_MISTRAL,
     .name = "mistral",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_MINISTRAL3,
     .name = "ministral3",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_QWEN2, .name = "qwen2", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_QWEN3,
     .name = "qwen3",
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_GEMMA2, .name = "gemma2", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS}},
    {.family = QR_FAMILY_GEMMA3,
     .name = "gemma3",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_GEMMA3N,
     .name = "gemma3n",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS, QK_NORMS, LAYER_INPUTS, STREAMS}},
    {.family = QR_FAMILY_GEMMA4,
     .name = "gemma4",
     .prefixes = {IMAGE_PREFIXES},
     .stacked_gate_up = LAYER "experts.gate_up_proj",
     .stacked_out = LAYER "experts.down_proj",
     .writes_stacks = true,
     .modules =
         {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS, QK_NORMS,
          LAYER_INPUTS, [QR_ROLE_LAYER_SCALAR] = LAYER "layer_scalar",
          [QR_ROLE_DENSE_OUT_NORM] = LAYER "post_feedforward_layernorm_1",
          [QR_ROLE_EXPERT_NORM] = LAYER "pre_feedforward_layernorm_2",
          [QR_ROLE_EXPERT_OUT_NORM] = LAYER "post_feedforward_layernorm_2",
          [QR_ROLE_ROUTER_NORM] = LAYER "router.scale", [QR_ROLE_EXPERT_SCALE] = LAYER "router.per_expert_scale",
          [QR_ROLE_ROUTER] = LAYER "router.proj", [QR_ROLE_EXPERT_GATE] = LAYER "experts.%d.gate_proj",
          [QR_ROLE_EXPERT_UP] = LAYER "experts.%d.up_proj", [QR_ROLE_EXPERT_OUT] = LAYER "experts.%d.down_proj"}},
    {.family = QR_FAMILY_PHI3,
     .name = "phi3",
     .modules = {LLAMA_FRAME,
                 PRE_NORMS, [QR_ROLE_QKV] = LAYER "self_attn.qkv_proj", [QR_ROLE_GATE_UP] = LAYER "mlp.gate_up_proj"}},
    {.family = QR_FAMILY_SMOLLM3, .name = "smollm3", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_OLMO,
     .name = "olmo",
     .layer_norm = true,
     .modules = {SPLIT_QKV, SPLIT_GATE_UP, [QR_ROLE_EMBEDDING] = "model.embed_tokens", [QR_ROLE_HEAD] = "lm_head",
                 [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_MLP_OUT] = LAYER "mlp.down_proj"}},
    {.family = QR_FAMILY_OLMO2,
     .name = "olmo2",
     .norms_all_heads = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, POST_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_OLMO3,
     .name = "olmo3",
     .norms_all_heads = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, POST_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_OLMO_HYBRID,
     OLMO_HYBRID,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, POST_NORMS, QK_NORMS, DELTA_APART}},
    /* As published. */
    {.family = QR_FAMILY_OLMO_HYBRID,
     OLMO_HYBRID,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, POST_NORMS, QK_NORMS,
                 DELTA_APART, [QR_ROLE_ATTN_NORM] = LAYER "attention_layer_norm",
                 [QR_ROLE_MLP_NORM] = LAYER "feedforward_layer_norm"}},
    /* As transformers writes it: the norm after attention has that name too. */
    {.family = QR_FAMILY_OLMO_HYBRID,
     OLMO_HYBRID,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, QK_NORMS,
                 DELTA_APART, [QR_ROLE_ATTN_NORM] = LAYER "attention_layer_norm",
                 [QR_ROLE_MLP_NORM] = LAYER "feedforward_layer_norm",
                 [QR_ROLE_POST_ATTN_NORM] = LAYER "feedforward_layer_norm",
                 [QR_ROLE_POST_MLP_NORM] = LAYER "post_feedforward_layernorm"}},
    /* In files experts have Mixtral's names. */
    {.family = QR_FAMILY_KIMI_LINEAR, KIMI_LINEAR, .renamed = {KIMI_RENAMED}, .modules = {KIMI_MODULES}},
    /* As transformers writes it: dense layers have those names too. */
    {.family = QR_FAMILY_KIMI_LINEAR,
     KIMI_LINEAR,
     .renamed = {KIMI_RENAMED,
                 {"mlp.gate_proj", "block_sparse_moe.gate_proj"},
                 {"mlp.up_proj", "block_sparse_moe.up_proj"},
                 {"mlp.down_proj", "block_sparse_moe.down_proj"}},
     .modules = {KIMI_MODULES}},
    {.family = QR_FAMILY_QWEN2_MOE,
     .name = "qwen2-moe",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, EXPERTS, SHARED_EXPERT}},
    {.family = QR_FAMILY_QWEN3_MOE,
     .name = "qwen3-moe",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS}},
    {.family = QR_FAMILY_MIXTRAL, .name = "mixtral", .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, MIXTRAL_EXPERTS}},
    /* As transformers 5 has it in memory. */
    {.family = QR_FAMILY_MIXTRAL,
     .name = "mixtral",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, EXPERTS}},
    {.family = QR_FAMILY_OLMOE,
     .name = "olmoe",
     .norms_all_heads = true,
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, QK_NORMS, EXPERTS}},
    {.family = QR_FAMILY_GRANITE, .name = "granite", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_GRANITE4,
     .name = "granite4",
     GRANITE_STACKS,
     GRANITE_NAMES,
     .modules = {GRANITE_EXPERTS, GRANITE_SHARED_GATE_UP,
                 STATE_SPACE, [QR_ROLE_MLP_OUT] = LAYER "shared_mlp.output_linear"}},
    /* As GGUF has it: gate and up apart. */
    {.family = QR_FAMILY_GRANITE4,
     .name = "granite4",
     .writes_stacks = true,
     .renamed = {{"block_sparse_moe.router", "block_sparse_moe.router.layer"}},
     .modules =
         {GRANITE_EXPERTS, [QR_ROLE_GATE] = LAYER "shared_mlp.gate_proj", [QR_ROLE_UP] = LAYER "shared_mlp.up_proj",
          [QR_ROLE_SHARED_GATE] = LAYER "shared_mlp.gate_proj", [QR_ROLE_SHARED_UP] = LAYER "shared_mlp.up_proj",
          STATE_SPACE, [QR_ROLE_MLP_OUT] = LAYER "shared_mlp.output_linear"}},
    {.family = QR_FAMILY_GRANITE_MOE,
     .name = "granite-moe",
     GRANITE_STACKS,
     GRANITE_NAMES,
     .modules = {GRANITE_EXPERTS, GRANITE_SHARED_GATE_UP}},
    {.family = QR_FAMILY_GPT_OSS,
     .name = "gpt-oss",
     STACKED_EXPERTS,
     .stacks_in_turn = true,
     .writes_stacks = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS,
                 EXPERT_MATRICES, [QR_ROLE_ROUTER] = LAYER "mlp.router", [QR_ROLE_SINKS] = LAYER "self_attn.sinks",
                 [QR_ROLE_EXPERT_GATE_BIAS] = LAYER "mlp.experts.gate_up_proj_bias",
                 [QR_ROLE_EXPERT_UP_BIAS] = LAYER "mlp.experts.gate_up_proj_bias",
                 [QR_ROLE_EXPERT_OUT_BIAS] = LAYER "mlp.experts.down_proj_bias"}},
    /* As GGUF has it: gate and up apart, under the names that other families' have. */
    {.family = QR_FAMILY_GPT_OSS,
     .name = "gpt-oss",
     STACKED_EXPERTS,
     .stacks_in_turn = true,
     .writes_stacks = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, EXPERTS, [QR_ROLE_SINKS] = LAYER "self_attn.sinks",
                 [QR_ROLE_EXPERT_GATE_BIAS] = LAYER "mlp.experts.gate_proj_bias",
                 [QR_ROLE_EXPERT_UP_BIAS] = LAYER "mlp.experts.up_proj_bias",
                 [QR_ROLE_EXPERT_OUT_BIAS] = LAYER "mlp.experts.down_proj_bias"}},
    {.family = QR_FAMILY_QWEN3_5,
     .name = "qwen3_5",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, DELTA, DELTA_SPLIT}},
    {.family = QR_FAMILY_QWEN3_5_MOE,
     .name = "qwen3_5-moe",
     .prefixes = {IMAGE_PREFIXES},
     STACKED_EXPERTS,
     .writes_stacks = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, DELTA, DELTA_SPLIT, EXPERTS,
                 SHARED_EXPERT}},
    {.family = QR_FAMILY_QWEN3_NEXT,
     .name = "qwen3-next",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, DELTA, DELTA_BY_HEAD, EXPERTS,
                 SHARED_EXPERT}},
    {.family = QR_FAMILY_MUSE_GLIMMER,
     .name = "muse-glimmer",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP,
                 SANDWICH_NORMS, [QR_ROLE_ATTN_GATE] = LAYER "self_attn.gate_proj"}},
    {.family = QR_FAMILY_LFM2,
     .name = "lfm2",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LFM_FRAME, SPLIT_QKV, LFM2_ATTENTION}},
    {.family = QR_FAMILY_LFM2_MOE,
     .name = "lfm2-moe",
     .prefixes = {IMAGE_PREFIXES},
     .stacked_gate_up = LAYER "feed_forward.experts.gate_up_proj",
     .stacked_out = LAYER "feed_forward.experts.down_proj",
     .modules = {LFM_FRAME, SPLIT_QKV, LFM2_ATTENTION, [QR_ROLE_ROUTER] = LAYER "feed_forward.gate",
                 [QR_ROLE_CHOICE_BIAS] = LAYER "feed_forward.expert_bias",
                 [QR_ROLE_EXPERT_GATE] = LAYER "feed_forward.experts.%d.w1",
                 [QR_ROLE_EXPERT_UP] = LAYER "feed_forward.experts.%d.w3",
                 [QR_ROLE_EXPERT_OUT] = LAYER "feed_forward.experts.%d.w2"}},
    {.family = QR_FAMILY_LFM3,
     .name = "lfm3",
     .prefixes = {IMAGE_PREFIXES},
     .renamed = {{"self_attn.g_proj", "self_attn.gate_proj"}},
     .modules =
         {LFM_FRAME, SPLIT_QKV,
          QK_NORMS, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_ATTN_GATE] = LAYER "self_attn.g_proj",
          [QR_ROLE_POST_ATTN_NORM] = LAYER "post_operator_norm", [QR_ROLE_POST_MLP_NORM] = LAYER "post_ffn_norm"}},
    {.family = QR_FAMILY_QWEN3_VL,
     .name = "qwen3-vl",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_QWEN3_VL_MOE,
     .name = "qwen3-vl-moe",
     .prefixes = {IMAGE_PREFIXES},
     STACKED_EXPERTS,
     .stacks_may_be_wide = true,
     .writes_stacks = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS}},
    {.family = QR_FAMILY_QWEN2_VL,
     .name = "qwen2-vl",
     .has_frame = true,
     .prefixes = {"model.language_"},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_EXAONE, .name = "exaone", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_EXAONE4,
     .name = "exaone4",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, POST_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_MELLUM,
     .name = "mellum",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS}},
    {.family = QR_FAMILY_MINISTRAL, .name = "ministral", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_IQUEST_CODER,
     .name = "iquest-coder",
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_GLM4_MOE,
     .name = "glm4-moe",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_ERNIE4_5, .name = "ernie4_5", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_ERNIE4_5_MOE,
     .name = "ernie4_5-moe",
     STACKED_EXPERTS,
     .choice_bias_is_row = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.moe_statics.e_score_correction_bias"}},
    {.family = QR_FAMILY_GLM,
     .name = "glm",
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_GATE_UP] = LAYER "mlp.gate_up_proj"}},
    {.family = QR_FAMILY_GLM4,
     .name = "glm4",
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_GATE_UP] = LAYER "mlp.gate_up_proj",
                 [QR_ROLE_POST_ATTN_NORM] = LAYER "post_self_attn_layernorm",
                 [QR_ROLE_POST_MLP_NORM] = LAYER "post_mlp_layernorm"}},
    {.family = QR_FAMILY_GLM4V,
     .name = "glm4v",
     .prefixes = {IMAGE_PREFIXES},
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_GATE_UP] = LAYER "mlp.gate_up_proj",
                 [QR_ROLE_POST_ATTN_NORM] = LAYER "post_self_attn_layernorm",
                 [QR_ROLE_POST_MLP_NORM] = LAYER "post_mlp_layernorm"}},
    {.family = QR_FAMILY_GLM4V_MOE,
     .name = "glm4v-moe",
     .prefixes = {IMAGE_PREFIXES},
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_MINIMAX_M2,
     .name = "minimax-m2",
     .norms_all_heads = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, QK_NORMS,
                 MIXTRAL_EXPERTS, [QR_ROLE_CHOICE_BIAS] = LAYER "block_sparse_moe.e_score_correction_bias"}},
    /* As transformers 5 has it in memory. */
    {.family = QR_FAMILY_MINIMAX_M2,
     .name = "minimax-m2",
     .norms_all_heads = true,
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, QK_NORMS,
                 EXPERTS, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.e_score_correction_bias"}},
    {.family = QR_FAMILY_DOTS1,
     .name = "dots1",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_MIMO_V2_FLASH,
     .name = "mimo-v2-flash",
     STACKED_EXPERTS,
     .renamed = {{"self_attn.sinks", "self_attn.attention_sink_bias"}},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, EXPERTS, [QR_ROLE_SINKS] = LAYER "self_attn.sinks",
                 [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_EXAONE_MOE,
     .name = "exaone-moe",
     STACKED_EXPERTS,
     .renamed = {{"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"}},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_HY_V3,
     .name = "hy-v3",
     STACKED_EXPERTS,
     .renamed = {{"mlp.gate", "mlp.router.gate"},
                 {"mlp.e_score_correction_bias", "mlp.expert_bias"},
                 {"mlp.shared_experts.gate_proj", "mlp.shared_mlp.gate_proj"},
                 {"mlp.shared_experts.up_proj", "mlp.shared_mlp.up_proj"},
                 {"mlp.shared_experts.down_proj", "mlp.shared_mlp.down_proj"}},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.e_score_correction_bias"}},
    {.family = QR_FAMILY_HUNYUAN,
     .name = "hunyuan",
     .norms_rotated = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, HUNYUAN_NORMS}},
    {.family = QR_FAMILY_HUNYUAN_MOE,
     .name = "hunyuan-moe",
     .norms_rotated = true,
     STACKED_EXPERTS,
     .modules = {FRAME, SPLIT_QKV, PRE_NORMS, HUNYUAN_NORMS,
                 EXPERT_MATRICES, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_ROUTER] = LAYER "mlp.gate.wg",
                 [QR_ROLE_GATE] = LAYER "mlp.shared_mlp.gate_proj", /* no layer is dense */
                 [QR_ROLE_SHARED_GATE] = LAYER "mlp.shared_mlp.gate_proj",
                 [QR_ROLE_SHARED_UP] = LAYER "mlp.shared_mlp.up_proj",
                 [QR_ROLE_SHARED_OUT] = LAYER "mlp.shared_mlp.down_proj"}},
    {.family = QR_FAMILY_ARCEE,
     .name = "arcee",
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_UP] = LAYER "mlp.up_proj"}},
    {.family = QR_FAMILY_HELIUM, .name = "helium", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_COHERE, .name = "cohere", COHERE, .prefixes = {IMAGE_PREFIXES}},
    {.family = QR_FAMILY_COHERE2, .name = "cohere2", COHERE, .prefixes = {IMAGE_PREFIXES}},
    {.family = QR_FAMILY_GEMMA, .name = "gemma", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_VAULT_GEMMA,
     .name = "vault-gemma",
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm",
                 [QR_ROLE_MLP_NORM] = LAYER "pre_feedforward_layernorm"}},
    {.family = QR_FAMILY_STARCODER2,
     .name = "starcoder2",
     .layer_norm = true,
     .norm_biases = true,
     .modules = {FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj",
                 [QR_ROLE_UP] = LAYER "mlp.c_fc", [QR_ROLE_MLP_OUT] = LAYER "mlp.c_proj"}},
    {.family = QR_FAMILY_STABLELM,
     .name = "stablelm",
     .layer_norm = true,
     .norm_biases = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_INTERNLM3, .name = "internlm3", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_HYPERCLOVAX,
     .name = "hyperclovax",
     .modules =
         {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP,
          PRE_NORMS, [QR_ROLE_POST_ATTN_NORM] = LAYER "post_norm1", [QR_ROLE_POST_MLP_NORM] = LAYER "post_norm2"}},
    {.family = QR_FAMILY_CWM, .name = "cwm", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_SOLAR_OPEN,
     .name = "solar-open",
     STACKED_EXPERTS,
     .modules = {FRAME, SPLIT_QKV, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj",
                 [QR_ROLE_GATE] = LAYER "mlp.shared_experts.gate_proj", /* no layer is dense */
                 [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_GRANITE_SWA,
     .name = "granite-swa",
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, [QR_ROLE_SINKS] = LAYER "self_attn.sinks"}},
    {.family = QR_FAMILY_GRANITE_MOE_SWA,
     .name = "granite-moe-swa",
     GRANITE_STACKS, /* files have the names of memory */
     .modules = {GRANITE_EXPERTS, GRANITE_SHARED_GATE_UP, [QR_ROLE_SINKS] = LAYER "self_attn.sinks"}},
    {.family = QR_FAMILY_MISTRAL4,
     .name = "mistral4",
     .prefixes = {IMAGE_PREFIXES},
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS, WHOLE_SHARED_EXPERT}},
    {.family = QR_FAMILY_JAIS2,
     .name = "jais2",
     .layer_norm = true,
     .norm_biases = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_UP] = LAYER "mlp.up_proj"}},
    {.family = QR_FAMILY_SARVAM_MLA,
     .name = "sarvam-mla",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_SARVAM_MOE,
     .name = "sarvam-moe",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_FLEX_OLMO,
     .name = "flex-olmo",
     .norms_all_heads = true,
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, POST_NORMS, QK_NORMS, EXPERTS}},
    {.family = QR_FAMILY_AFMOE,
     .name = "afmoe",
     STACKED_EXPERTS,
     .modules =
         {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, QK_NORMS, EXPERT_MATRICES,
          WHOLE_SHARED_EXPERT, [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm",
          [QR_ROLE_POST_ATTN_NORM] = LAYER "post_attention_layernorm", [QR_ROLE_MLP_NORM] = LAYER "pre_mlp_layernorm",
          [QR_ROLE_POST_MLP_NORM] = LAYER "post_mlp_layernorm", [QR_ROLE_ATTN_GATE] = LAYER "self_attn.gate_proj",
          [QR_ROLE_ROUTER] = LAYER "mlp.router.gate", [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.expert_bias"}},
    {.family = QR_FAMILY_LAGUNA,
     .name = "laguna",
     STACKED_EXPERTS,
     .renamed = {{"mlp.gate.e_score_correction_bias", "mlp.experts.e_score_correction_bias"},
                 {"mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj"},
                 {"mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj"},
                 {"mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj"}},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_ATTN_GATE] = LAYER "self_attn.g_proj",
                 [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_AXK1,
     .name = "axk1",
     .norms_experts_alone = true,
     .choice_bias_may_lack = true,
     STACKED_EXPERTS,
     .renamed = {{"mlp.post_mlp_layernorm", "post_mlp_layernorm"}},
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_POST_MLP_NORM] = LAYER "mlp.post_mlp_layernorm",
                 [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_KOLIBRI1,
     .name = "kolibri1",
     STACKED_EXPERTS,
     .renamed = {{"mlp.gate.e_score_correction_bias", "moe.router.expert_bias"},
                 {"post_self_attn_layernorm", "post_attn_norm"},
                 {"post_mlp_layernorm", "post_ffn_norm"}},
     .modules = {FRAME, SPLIT_QKV, PRE_NORMS, QK_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj",
                 [QR_ROLE_GATE] = LAYER "mlp.shared_experts.gate_proj", /* no layer is dense */
                 [QR_ROLE_POST_ATTN_NORM] = LAYER "post_self_attn_layernorm",
                 [QR_ROLE_POST_MLP_NORM] = LAYER "post_mlp_layernorm",
                 [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_NEMOTRON,
     .name = "nemotron",
     .layer_norm = true,
     .norm_biases = true,
     .modules = {LLAMA_FRAME, SPLIT_QKV, PRE_NORMS, [QR_ROLE_UP] = LAYER "mlp.up_proj"}},
    {.family = QR_FAMILY_NANOCHAT,
     .name = "nanochat",
     .norms_rotated = true,
     .modules = {SPLIT_QKV, [QR_ROLE_EMBEDDING] = "model.embed_tokens", [QR_ROLE_HEAD] = "lm_head",
                 [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj", [QR_ROLE_UP] = LAYER "mlp.fc1",
                 [QR_ROLE_MLP_OUT] = LAYER "mlp.fc2"}},
    {.family = QR_FAMILY_COHERE2_MOE,
     .name = "cohere2-moe",
     .layer_norm = true,
     .is_parallel = true,
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm"}},
    {.family = QR_FAMILY_DEEPSEEK_V2,
     .name = "deepseek-v2",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS, WHOLE_SHARED_EXPERT}},
    {.family = QR_FAMILY_DEEPSEEK_V3,
     .name = "deepseek-v3",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_GLM4_MOE_LITE,
     .name = "glm4-moe-lite",
     STACKED_EXPERTS,
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS, EXPERTS,
                 WHOLE_SHARED_EXPERT, [QR_ROLE_CHOICE_BIAS] = LAYER "mlp.gate.e_score_correction_bias"}},
    {.family = QR_FAMILY_YOUTU, .name = "youtu", .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_MINICPM3,
     .name = "minicpm3",
     .modules = {LLAMA_FRAME, LATENT_ATTENTION, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_SEED_OSS, .name = "seed-oss", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_NEMOTRON_H,
     .name = "nemotron-h",
     .stacked_gate_up = "layers.%d.mixer.experts.up_proj",
     .stacked_out = "layers.%d.mixer.experts.down_proj",
     .recurrent_out_without_lora = true,
     .has_frame = true,
     .prefixes = {"model.", "backbone."},
     .modules = {[QR_ROLE_EMBEDDING] = "embeddings",
                 [QR_ROLE_FINAL_NORM] = "norm_f",
                 [QR_ROLE_HEAD] = "lm_head",
                 [QR_ROLE_ATTN_NORM] = "layers.%d.norm",
                 [QR_ROLE_MLP_NORM] = "layers.%d.norm",
                 [QR_ROLE_Q] = "layers.%d.mixer.q_proj",
                 [QR_ROLE_K] = "layers.%d.mixer.k_proj",
                 [QR_ROLE_V] = "layers.%d.mixer.v_proj",
                 [QR_ROLE_ATTN_OUT] = "layers.%d.mixer.o_proj",
                 [QR_ROLE_SPACE_IN] = "layers.%d.mixer.in_proj",
                 [QR_ROLE_CONV] = "layers.%d.mixer.conv1d",
                 [QR_ROLE_CONV_BIAS] = "layers.%d.mixer.conv1d.bias",
                 [QR_ROLE_RECURRENT_A_LOG] = "layers.%d.mixer.A_log",
                 [QR_ROLE_RECURRENT_DT_BIAS] = "layers.%d.mixer.dt_bias",
                 [QR_ROLE_SKIP] = "layers.%d.mixer.D",
                 [QR_ROLE_RECURRENT_NORM] = "layers.%d.mixer.norm",
                 [QR_ROLE_RECURRENT_OUT] = "layers.%d.mixer.out_proj",
                 [QR_ROLE_UP] = "layers.%d.mixer.up_proj",
                 [QR_ROLE_MLP_OUT] = "layers.%d.mixer.down_proj",
                 [QR_ROLE_SHARED_UP] = "layers.%d.mixer.shared_experts.up_proj",
                 [QR_ROLE_SHARED_OUT] = "layers.%d.mixer.shared_experts.down_proj",
                 [QR_ROLE_ROUTER] = "layers.%d.mixer.gate",
                 [QR_ROLE_CHOICE_BIAS] = "layers.%d.mixer.gate.e_score_correction_bias",
                 [QR_ROLE_EXPERT_GATE] = "layers.%d.mixer.experts.%d.up_proj",
                 [QR_ROLE_EXPERT_OUT] = "layers.%d.mixer.experts.%d.down_proj"}},
    {.family = QR_FAMILY_FALCON_H1,
     .name = "falcon-h1",
     .recurrent_out_without_lora = true,
     .modules = {[QR_ROLE_EMBEDDING] = "model.embed_tokens",
                 [QR_ROLE_FINAL_NORM] = "model.final_layernorm",
                 [QR_ROLE_HEAD] = "lm_head",
                 SPLIT_QKV,
                 STATE_SPACE,
                 FEED_FORWARD,
                 [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj"}},
    {.family = QR_FAMILY_BAMBA,
     .name = "bamba",
     .modules = {[QR_ROLE_EMBEDDING] = "model.embed_tokens",
                 [QR_ROLE_FINAL_NORM] = "model.final_layernorm",
                 [QR_ROLE_HEAD] = "lm_head",
                 SPLIT_QKV,
                 STATE_SPACE,
                 FEED_FORWARD,
                 [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj"}},
    {.family = QR_FAMILY_APERTUS,
     .name = "apertus",
     .prefixes = {IMAGE_PREFIXES},
     .modules =
         {LLAMA_FRAME, SPLIT_QKV, QK_NORMS, [QR_ROLE_ATTN_NORM] = LAYER "attention_layernorm",
          [QR_ROLE_MLP_NORM] = LAYER "feedforward_layernorm", [QR_ROLE_UP] = LAYER "mlp.up_proj",
          [QR_ROLE_XIELU_ALPHA_P] = LAYER "mlp.act_fn.alpha_p", [QR_ROLE_XIELU_ALPHA_N] = LAYER "mlp.act_fn.alpha_n",
          [QR_ROLE_XIELU_BETA] = LAYER "mlp.act_fn.beta", [QR_ROLE_XIELU_EPS] = LAYER "mlp.act_fn.eps"}},
    {.family = QR_FAMILY_GPT_NEOX,
     .name = "gpt-neox",
     .has_frame = true,
     .layer_norm = true,
     .norm_biases = true,
     .is_parallel = true,
     .qkv_by_head = true,
     .prefixes = {"gpt_neox."},
     .modules = {[QR_ROLE_EMBEDDING] = "embed_in",
                 [QR_ROLE_FINAL_NORM] = "final_layer_norm",
                 [QR_ROLE_HEAD] = "embed_out",
                 [QR_ROLE_ATTN_NORM] = "layers.%d.input_layernorm",
                 [QR_ROLE_MLP_NORM] = "layers.%d.post_attention_layernorm",
                 [QR_ROLE_QKV] = "layers.%d.attention.query_key_value",
                 [QR_ROLE_ATTN_OUT] = "layers.%d.attention.dense",
                 [QR_ROLE_UP] = "layers.%d.mlp.dense_h_to_4h",
                 [QR_ROLE_MLP_OUT] = "layers.%d.mlp.dense_4h_to_h"}},
    {.family = QR_FAMILY_GPT2,
     .name = "gpt2",
     .has_frame = true,
     .layer_norm = true,
     .norm_biases = true,
     .transposed = true,
     .prefixes = {"transformer."},
     .modules = {[QR_ROLE_EMBEDDING] = "wte",
                 [QR_ROLE_POSITION_EMBEDDING] = "wpe",
                 [QR_ROLE_FINAL_NORM] = "ln_f",
                 [QR_ROLE_HEAD] = "lm_head",
                 [QR_ROLE_ATTN_NORM] = "h.%d.ln_1",
                 [QR_ROLE_MLP_NORM] = "h.%d.ln_2",
                 [QR_ROLE_QKV] = "h.%d.attn.c_attn",
                 [QR_ROLE_ATTN_OUT] = "h.%d.attn.c_proj",
                 [QR_ROLE_UP] = "h.%d.mlp.c_fc",
                 [QR_ROLE_MLP_OUT] = "h.%d.mlp.c_proj"}},
};

const qr_family *qr_family_find(qr_model_family family) {
    for (size_t i = 0; i < QR_COUNT_OF(families); i++) {
        if (families[i].family == family) { return &families[i]; }
    }
    return NULL;
}

const qr_family *qr_family_renamed(const qr_family *family) {
    const qr_family *next = family + 1;
    return next < families + QR_COUNT_OF(families) && next->family == family->family ? next : NULL;
}

const char *qr_family_prefix(const qr_family *family, size_t i) {
    if (i == 0) { return ""; }
    return i <= QR_COUNT_OF(family->prefixes) ? family->prefixes[i - 1] : NULL;
}

/* What attention alone has, and layers with a state alone. */
static bool is_of_attention(qr_tensor_role role) {
    return (role >= QR_ROLE_Q_NORM && role <= QR_ROLE_KV_DOWN_NORM) || role == QR_ROLE_SINKS ||
           (role >= QR_ROLE_Q && role <= QR_ROLE_ATTN_OUT);
}
/* Of the layers' inputs, which a model of the family need not have. */
static bool is_of_inputs(qr_tensor_role role) {
    return (role >= QR_ROLE_INPUTS && role <= QR_ROLE_INPUT_OUT) || role == QR_ROLE_POST_INPUT_NORM;
}
/* Of experts alone: their biases, and what they have where a dense MLP is beside them. */
static bool is_vector_of_experts(qr_tensor_role role) {
    return qr_role_is_expert_bias(role) || role == QR_ROLE_ROUTER_NORM || role == QR_ROLE_EXPERT_SCALE ||
           role == QR_ROLE_CHOICE_BIAS || (role >= QR_ROLE_DENSE_OUT_NORM && role <= QR_ROLE_EXPERT_OUT_NORM);
}
/* What makes keys and values. */
static bool is_of_kv(qr_tensor_role role) { return role == QR_ROLE_K || role == QR_ROLE_V || role == QR_ROLE_K_NORM; }
/* Queries are made of a latent or, as others', of the layer's input. */
static bool is_of_query_latent(qr_tensor_role role) {
    return role == QR_ROLE_Q_DOWN_NORM || role == QR_ROLE_Q_DOWN || role == QR_ROLE_Q_UP;
}
/* Of what a layer ends with: an MLP, or experts. */
static bool is_of_mlp(qr_tensor_role role) {
    return role >= QR_ROLE_GATE || role == QR_ROLE_MLP_NORM || role == QR_ROLE_POST_MLP_NORM ||
           qr_role_is_xielu(role) || is_vector_of_experts(role);
}

bool qr_family_layer_has(const qr_family *family, const qr_model_config *config, int64_t layer, qr_tensor_role role) {
    if (family->modules[role] == NULL) { return false; }
    if (is_of_mlp(role) ? !qr_model_config_has_mlp(config, layer) : !qr_model_config_mixes(config, layer)) {
        return false;
    }
    const bool is_recurrent = config->recurrent.layers != NULL && config->recurrent.layers[layer];
    const bool has_experts = config->experts.layer_has_experts != NULL && config->experts.layer_has_experts[layer];
    if (role == QR_ROLE_CONV_BIAS && !config->recurrent.has_conv_bias) { return false; }
    if (role == QR_ROLE_RECURRENT_NORM && config->recurrent.without_norm) { return false; }
    if (role == QR_ROLE_CHOICE_BIAS && !config->experts.has_choice_bias) { return false; }
    if ((role == QR_ROLE_Q_NORM || role == QR_ROLE_K_NORM) && config->without_head_norms) { return false; }
    if (role >= QR_ROLE_SHARED_GATE && role <= QR_ROLE_SHARED_OUT && config->experts.shared_intermediate_size == 0) {
        return false;
    }
    if (role == QR_ROLE_SINKS && config->sinks_in_windows && !config->layer_slides[layer]) { return false; }
    if (role == QR_ROLE_ATTN_GATE && !config->attn_gate_apart) { return false; }
    if (is_of_query_latent(role) && config->latent.query_rank == 0) { return false; }
    if (role == QR_ROLE_Q && config->latent.query_rank > 0) { return false; }
    if ((role == QR_ROLE_POST_ATTN_NORM || role == QR_ROLE_POST_MLP_NORM) && config->without_post_norms) {
        return false;
    }
    if (role == QR_ROLE_STREAM_SCALE && !config->streams.scales) { return false; }
    if (qr_role_is_stream_end(role)) { return layer == 0 && qr_role_stream(role) < config->streams.n; }
    if (is_of_inputs(role)) { return config->layer_inputs.size > 0 && (role != QR_ROLE_INPUTS || layer == 0); }
    if (is_of_kv(role) && qr_model_config_kv_owner(config, layer) != layer) { return false; }
    if (role == QR_ROLE_V && qr_model_config_heads(config, layer).values_are_keys) { return false; }
    if (role == QR_ROLE_POST_MLP_NORM && family->norms_experts_alone) { return has_experts; }
    if (family->norms_by_kind && (role == QR_ROLE_ATTN_NORM || role == QR_ROLE_MLP_NORM)) { return is_recurrent; }
    if (family->norms_by_kind && (role == QR_ROLE_POST_ATTN_NORM || role == QR_ROLE_POST_MLP_NORM)) {
        return !is_recurrent;
    }
    if (role >= QR_ROLE_SHARED_GATE || is_vector_of_experts(role)) { return has_experts; }
    if (role >= QR_ROLE_GATE) { return !has_experts || config->experts.beside_dense; }
    if (config->recurrent.beside_attention) { return true; }
    return is_recurrent ? !is_of_attention(role) : !qr_role_is_of_recurrence(role);
}

bool qr_family_has_bias(const qr_model_config *config, qr_tensor_role role) {
    switch (role) {
        case QR_ROLE_Q: return config->qkv_bias && config->latent.kv_rank == 0;
        case QR_ROLE_K:
        case QR_ROLE_V:
        case QR_ROLE_QKV:
        case QR_ROLE_Q_DOWN:
        case QR_ROLE_KV_DOWN: return config->qkv_bias;
        case QR_ROLE_ATTN_OUT: return config->o_bias;
        case QR_ROLE_Q_UP:
        case QR_ROLE_KV_UP:
        case QR_ROLE_ATTN_GATE:
        case QR_ROLE_DELTA_Q:
        case QR_ROLE_DELTA_K:
        case QR_ROLE_DELTA_V:
        case QR_ROLE_DELTA_QKV:
        case QR_ROLE_DELTA_Z:
        case QR_ROLE_DELTA_B:
        case QR_ROLE_DELTA_A:
        case QR_ROLE_DELTA_QKVZ:
        case QR_ROLE_DELTA_BA:
        case QR_ROLE_DELTA_Z_DOWN:
        case QR_ROLE_DELTA_A_DOWN:
        case QR_ROLE_CONV_IN:
        case QR_ROLE_SPACE_IN:
        case QR_ROLE_RECURRENT_OUT:
        case QR_ROLE_SHARED_SHARE: return false;
        case QR_ROLE_ROUTER: return config->experts.has_biases;
        default: return config->mlp_bias;
    }
}

void qr_family_name_in_files(const qr_family *family, char *name, size_t name_bytes) {
    const size_t length = strlen(name);
    for (size_t i = 0; i < QR_COUNT_OF(family->renamed) && family->renamed[i].in_memory != NULL; i++) {
        const size_t n_end = strlen(family->renamed[i].in_memory);
        if (length < n_end || strcmp(name + length - n_end, family->renamed[i].in_memory) != 0) { continue; }
        if (length > n_end && name[length - n_end - 1] != '.') { continue; }
        (void)snprintf(name + length - n_end, name_bytes - (length - n_end), "%s", family->renamed[i].in_files);
        return;
    }
}

const char *qr_family_name_in_layer(const char *module) { return strstr(module, "%d") + strlen("%d."); }

void qr_family_write_name(const char *prefix, const char *module, int64_t layer, int64_t expert, char *name,
                          size_t name_bytes) {
    const long long numbers[] = {layer, expert};
    size_t n = (size_t)snprintf(name, name_bytes, "%s", prefix);
    for (size_t i = 0; n < name_bytes; i++) {
        const char *number = i < QR_COUNT_OF(numbers) ? strstr(module, "%d") : NULL;
        if (number == NULL) {
            (void)snprintf(name + n, name_bytes - n, "%s", module);
            return;
        }
        n += (size_t)snprintf(name + n, name_bytes - n, "%.*s%lld", (int)(number - module), module, numbers[i]);
        module = number + 2;
    }
}

void qr_family_module_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer, char *name,
                           size_t name_bytes) {
    const bool is_outside = role == QR_ROLE_HEAD && strcmp(prefix, OLD_IMAGE_PREFIX) != 0;
    qr_family_write_name(is_outside ? "" : prefix, family->modules[role], layer, 0, name, name_bytes);
}

size_t qr_family_tensor_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer,
                             const char *suffix, char *name, size_t name_bytes) {
    qr_family_module_name(family, prefix, role, layer, name, name_bytes);
    qr_family_name_in_files(family, name, name_bytes);
    const size_t length = strlen(name);
    if (qr_role_is_bare(role)) { return length; }
    const int n = snprintf(name + length, name_bytes - length, ".%s", suffix);
    return length + (size_t)(n > 0 ? n : 0);
}

#include "runtime/model/family.h"

#include <stdio.h>
#include <string.h>

#include "base/sizes.h"

#define LAYER "model.layers.%d."

/* What the descendants of Llama share. */
#define LLAMA_FRAME                                                                                              \
    [QR_ROLE_EMBEDDING] = "model.embed_tokens", [QR_ROLE_FINAL_NORM] = "model.norm", [QR_ROLE_HEAD] = "lm_head", \
    [QR_ROLE_ATTN_NORM] = LAYER "input_layernorm", [QR_ROLE_ATTN_OUT] = LAYER "self_attn.o_proj",                \
    [QR_ROLE_MLP_OUT] = LAYER "mlp.down_proj"
#define SPLIT_QKV                                                                   \
    [QR_ROLE_Q] = LAYER "self_attn.q_proj", [QR_ROLE_K] = LAYER "self_attn.k_proj", \
    [QR_ROLE_V] = LAYER "self_attn.v_proj"
#define SPLIT_GATE_UP [QR_ROLE_GATE] = LAYER "mlp.gate_proj", [QR_ROLE_UP] = LAYER "mlp.up_proj"
#define PRE_NORMS [QR_ROLE_MLP_NORM] = LAYER "post_attention_layernorm"
#define QK_NORMS [QR_ROLE_Q_NORM] = LAYER "self_attn.q_norm", [QR_ROLE_K_NORM] = LAYER "self_attn.k_norm"
#define SANDWICH_NORMS                                           \
    [QR_ROLE_POST_ATTN_NORM] = LAYER "post_attention_layernorm", \
    [QR_ROLE_MLP_NORM] = LAYER "pre_feedforward_layernorm",      \
    [QR_ROLE_POST_MLP_NORM] = LAYER "post_feedforward_layernorm"

static const qr_family families[] = {
    {.family = QR_FAMILY_LLAMA, .name = "llama", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_MISTRAL, .name = "mistral", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_QWEN2, .name = "qwen2", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS}},
    {.family = QR_FAMILY_QWEN3,
     .name = "qwen3",
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, PRE_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_GEMMA2, .name = "gemma2", .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS}},
    {.family = QR_FAMILY_GEMMA3,
     .name = "gemma3",
     /* With images: "language_model.model.layers…"; since transformers 4.52 "model.language_model.layers…". */
     .prefixes = {"language_model.", "model.language_"},
     .modules = {LLAMA_FRAME, SPLIT_QKV, SPLIT_GATE_UP, SANDWICH_NORMS, QK_NORMS}},
    {.family = QR_FAMILY_PHI3,
     .name = "phi3",
     .modules = {LLAMA_FRAME,
                 PRE_NORMS, [QR_ROLE_QKV] = LAYER "self_attn.qkv_proj", [QR_ROLE_GATE_UP] = LAYER "mlp.gate_up_proj"}},
    {.family = QR_FAMILY_GPT2,
     .name = "gpt2",
     .layer_norm = true,
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

const char *qr_family_prefix(const qr_family *family, size_t i) {
    if (i == 0) { return ""; }
    return i <= QR_COUNT_OF(family->prefixes) ? family->prefixes[i - 1] : NULL;
}

bool qr_family_has_bias(const qr_model_config *config, qr_tensor_role role) {
    switch (role) {
        case QR_ROLE_Q:
        case QR_ROLE_K:
        case QR_ROLE_V:
        case QR_ROLE_QKV: return config->qkv_bias;
        case QR_ROLE_ATTN_OUT: return config->o_bias;
        default: return config->mlp_bias;
    }
}

void qr_family_module_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer, char *name,
                           size_t name_bytes) {
    const char *module = family->modules[role];
    const char *number = strstr(module, "%d");
    if (number == NULL) {
        (void)snprintf(name, name_bytes, "%s%s", prefix, module);
    } else {
        (void)snprintf(name, name_bytes, "%s%.*s%lld%s", prefix, (int)(number - module), module, (long long)layer,
                       number + 2);
    }
}

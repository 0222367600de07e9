/* config.json: everything that the forward pass needs to know about a model, typed and range-checked. A key that is
 * absent has the default that transformers gives it for that family. What a family does with the values is the
 * runtime's business; a family here is a row of defaults and key names. */
#ifndef QR_LOADERS_CONFIG_MODEL_CONFIG_H
#define QR_LOADERS_CONFIG_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "loaders/config/attention_config.h"
#include "loaders/config/block_config.h"
#include "loaders/config/expert_config.h"
#include "loaders/config/quantization_config.h"
#include "loaders/config/recurrent_config.h"
#include "loaders/config/rope_config.h"
#include "loaders/config/token_ids.h"
#include "loaders/files/json.h"

/* The most that a config.json may have: as a tree it takes up to thirty times its size, and real ones have a few KB. */
enum { QR_MODEL_CONFIG_BYTES = 2 << 20 };

/* X(model_type of a wrapper with images, that of the text model in it unless its text_config says, whether the text
 * model's keys may be among the wrapper's own) */
#define QR_MODEL_WRAPPERS(X)                      \
    X("gemma3", "gemma3_text", false)             \
    X("gemma3n", "gemma3n_text", false)           \
    X("gemma4", "gemma4_text", false)             \
    X("mistral3", "mistral", false)               \
    X("qwen2_vl", "qwen2_vl_text", true)          \
    X("qwen2_5_vl", "qwen2_5_vl_text", true)      \
    X("qwen3_5", "qwen3_5_text", false)           \
    X("qwen3_5_moe", "qwen3_5_moe_text", false)   \
    X("qwen3_vl", "qwen3_vl_text", false)         \
    X("qwen3_vl_moe", "qwen3_vl_moe_text", false) \
    X("muse_glimmer", "muse_glimmer_text", false) \
    X("lfm2_vl", "lfm2", false)                   \
    X("lfm3_vl", "lfm3", false)                   \
    X("glm4v", "glm4v_text", false)               \
    X("glm4v_moe", "glm4v_moe_text", false)       \
    X("glm46v", "glm4v_text", false)              \
    X("exaone4_5", "exaone4", false)              \
    X("apertus1p5", "apertus1p5_text", false)

/* X(another name, model_type that is read alike). */
#define QR_MODEL_OTHER_NAMES(X)           \
    X("qwen2_5_vl_text", "qwen2_vl_text") \
    X("exaone4_5_text", "exaone4")        \
    X("apertus1p5_text", "apertus")       \
    X("granitemoeshared", "granitemoe")   \
    X("kimi_k2", "deepseek_v3")

/* X(enumerator suffix, model_type) */
#define QR_MODEL_FAMILIES(X)             \
    X(LLAMA, "llama")                    \
    X(MISTRAL, "mistral")                \
    X(MINISTRAL3, "ministral3")          \
    X(QWEN2, "qwen2")                    \
    X(QWEN3, "qwen3")                    \
    X(GEMMA2, "gemma2")                  \
    X(GEMMA3, "gemma3_text")             \
    X(GEMMA3N, "gemma3n_text")           \
    X(GEMMA4, "gemma4_text")             \
    X(PHI3, "phi3")                      \
    X(SMOLLM3, "smollm3")                \
    X(OLMO, "olmo")                      \
    X(OLMO2, "olmo2")                    \
    X(OLMO3, "olmo3")                    \
    X(QWEN2_MOE, "qwen2_moe")            \
    X(QWEN3_MOE, "qwen3_moe")            \
    X(MIXTRAL, "mixtral")                \
    X(OLMOE, "olmoe")                    \
    X(GPT_OSS, "gpt_oss")                \
    X(GRANITE, "granite")                \
    X(GRANITE4, "granitemoehybrid")      \
    X(QWEN3_5, "qwen3_5_text")           \
    X(QWEN3_5_MOE, "qwen3_5_moe_text")   \
    X(QWEN3_NEXT, "qwen3_next")          \
    X(MUSE_GLIMMER, "muse_glimmer_text") \
    X(LFM2, "lfm2")                      \
    X(LFM2_MOE, "lfm2_moe")              \
    X(LFM3, "lfm3")                      \
    X(QWEN3_VL, "qwen3_vl_text")         \
    X(QWEN3_VL_MOE, "qwen3_vl_moe_text") \
    X(QWEN2_VL, "qwen2_vl_text")         \
    X(EXAONE, "exaone")                  \
    X(EXAONE4, "exaone4")                \
    X(SEED_OSS, "seed_oss")              \
    X(MELLUM, "mellum")                  \
    X(MINISTRAL, "ministral")            \
    X(IQUEST_CODER, "iquestcoder")       \
    X(GLM4_MOE, "glm4_moe")              \
    X(ERNIE4_5, "ernie4_5")              \
    X(ERNIE4_5_MOE, "ernie4_5_moe")      \
    X(GLM, "glm")                        \
    X(GLM4, "glm4")                      \
    X(GLM4V, "glm4v_text")               \
    X(GLM4V_MOE, "glm4v_moe_text")       \
    X(MINIMAX_M2, "minimax_m2")          \
    X(DOTS1, "dots1")                    \
    X(EXAONE_MOE, "exaone_moe")          \
    X(HY_V3, "hy_v3")                    \
    X(HUNYUAN, "hunyuan_v1_dense")       \
    X(HUNYUAN_MOE, "hunyuan_v1_moe")     \
    X(GRANITE_MOE, "granitemoe")         \
    X(ARCEE, "arcee")                    \
    X(HELIUM, "helium")                  \
    X(COHERE, "cohere")                  \
    X(COHERE2, "cohere2")                \
    X(GEMMA, "gemma")                    \
    X(VAULT_GEMMA, "vaultgemma")         \
    X(STARCODER2, "starcoder2")          \
    X(STABLELM, "stablelm")              \
    X(INTERNLM3, "internlm3")            \
    X(HYPERCLOVAX, "hyperclovax")        \
    X(CWM, "cwm")                        \
    X(SOLAR_OPEN, "solar_open")          \
    X(GRANITE_SWA, "granite_swa")        \
    X(GRANITE_MOE_SWA, "granitemoe_swa") \
    X(MISTRAL4, "mistral4")              \
    X(JAIS2, "jais2")                    \
    X(SARVAM_MLA, "sarvam_mla")          \
    X(SARVAM_MOE, "sarvam_moe")          \
    X(FLEX_OLMO, "flex_olmo")            \
    X(AFMOE, "afmoe")                    \
    X(AXK1, "axk1")                      \
    X(KOLIBRI1, "kolibri1")              \
    X(NEMOTRON, "nemotron")              \
    X(NANOCHAT, "nanochat")              \
    X(COHERE2_MOE, "cohere2_moe")        \
    X(DEEPSEEK_V2, "deepseek_v2")        \
    X(DEEPSEEK_V3, "deepseek_v3")        \
    X(GLM4_MOE_LITE, "glm4_moe_lite")    \
    X(YOUTU, "youtu")                    \
    X(MINICPM3, "minicpm3")              \
    X(NEMOTRON_H, "nemotron_h")          \
    X(FALCON_H1, "falcon_h1")            \
    X(BAMBA, "bamba")                    \
    X(APERTUS, "apertus")                \
    X(MIMO_V2_FLASH, "mimo_v2_flash")    \
    X(OLMO_HYBRID, "olmo_hybrid")        \
    X(GPT_NEOX, "gpt_neox")              \
    X(KIMI_LINEAR, "kimi_linear")        \
    X(LAGUNA, "laguna")                  \
    X(GPT2, "gpt2")

typedef enum qr_model_family {
#define QR_X(suffix, name) QR_FAMILY_##suffix,
    QR_MODEL_FAMILIES(QR_X)
#undef QR_X
        QR_FAMILY_COUNT
} qr_model_family;

typedef enum qr_mlp_activation {
    QR_ACTIVATION_SILU,
    QR_ACTIVATION_GELU_TANH,
    QR_ACTIVATION_GELU_ERF,
    QR_ACTIVATION_RELU2,
    QR_ACTIVATION_XIELU /* Apertus: with numbers of each layer */
} qr_mlp_activation;

typedef struct qr_model_config {
    uint64_t content_hash; /* of the JSON, whatever its spaces */
    qr_model_family family;
    bool is_multimodal; /* a wrapper with images: the text model's tensors have a longer prefix */

    int64_t vocab_size;     /* tokens that a text may have, and rows of the head */
    int64_t embedding_rows; /* vocab_size, or where the head has no rows for tokens of images and sounds more */
    int64_t hidden_size;
    int64_t intermediate_size;
    int64_t n_layers;
    int64_t n_heads;    /* the most of any layer */
    int64_t n_kv_heads; /* divides n_heads */
    int64_t head_dim;
    int64_t value_dim; /* of values, where their heads are smaller than those of keys; 0: they are not, or are made of
                        * latents */
    qr_attention_config attention; /* where that differs between layers */
    qr_latent_config latent;
    qr_layer_inputs_config layer_inputs;
    qr_streams_config streams;
    int64_t *layer_mlp; /* [n_layers], owned: intermediate_size of each, of which that is the largest; NULL: alike */
    float *gate_parts;  /* [n_layers], owned: of an MLP's gate, the part that activation sparsity leaves out; NULL: 0 */
    int64_t max_position_embeddings;
    double norm_eps;
    double post_norm_eps; /* of the norms after blocks; norm_eps unless the model says */
    qr_mlp_activation activation;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias;
    qr_expert_config experts;

    bool has_rope;             /* false: learned positions (GPT-2), or none (Nemotron-H) */
    qr_rope_config rope;       /* of full-attention layers */
    qr_rope_config rope_local; /* of sliding-window layers; the same values as rope in most families */
    bool *layer_rotates;       /* [n_layers], owned; NULL: has_rope says it of all */

    int64_t sliding_window; /* tokens a position sees, itself included, in sliding layers; 0 = no layer slides */
    bool *layer_slides;     /* [n_layers], owned */

    qr_block *blocks;              /* [n_layers], owned: Nemotron-H's, of which each is a layer; NULL: a layer has both
                                    * what mixes tokens and an MLP */
    qr_recurrent_config recurrent; /* layers that carry a state along, instead of attention */
    bool attn_output_gate;         /* q_proj makes a gate beside every query head, for attention's output */
    bool attn_gate_apart;          /* Muse Glimmer, LFM3, Laguna: another matrix makes these gates */
    bool attn_gate_by_head;        /* LFM3, Laguna: one for each head */
    bool attn_gate_by_softplus;    /* Laguna: not by a sigmoid */
    bool without_post_norms;       /* LFM3 may have none after its blocks */
    bool without_head_norms;       /* GLM-4.5 may have none of queries and keys */
    int64_t
        n_layers_ahead;  /* GLM-4.5, DeepSeek: layers after the last, which predict further tokens; they are left out */
    bool blocks_in_turn; /* GPT-NeoX may have its MLPs after attention, where the family has them beside it */
    bool has_rms_norms;  /* Command A with experts may have RMSNorm where the family has LayerNorm */
    bool norms_layers;   /* nanochat, OLMo 1: the norms before blocks and the last one, without a weight */
    bool norms_heads;    /* Muse Glimmer: RMSNorm of every query and key head, without a weight */
    bool attn_sinks;     /* attention's softmax is over a learned score of each head too */
    bool sinks_in_windows; /* MiMo: in layers with a window alone */

    double embedding_multiplier, residual_multiplier; /* Granite: of embeddings, and of what a block adds; else 1 */
    double attention_multiplier;                      /* Granite, Gemma 4, Muse Glimmer: scores are multiplied by it; 0:
                                                       * query_pre_attn_scalar says                      it */
    double logits_scaling;                            /* Granite: logits are divided by it; else 1 */
    double attention_out_multiplier;                  /* Falcon-H1: of what attention adds, and what is beside it, and
                                                       * the MLP; else 1, as the next three */
    double space_out_multiplier, mlp_out_multiplier;
    double gate_multiplier;          /* Falcon-H1: of the MLP's gate, before its activation */
    double query_pre_attn_scalar;    /* scores are multiplied by its power of -1/2; head_dim unless the model says */
    double attn_logit_softcapping;   /* 0 = none */
    double final_logit_softcapping;  /* 0 = none */
    double attn_temperature_beta;    /* Ministral 3: queries are scaled by their position, as qr_rope_table_args says */
    int64_t attn_temperature_tokens; /* 0 = not */
    bool scale_embeddings;           /* Gemma: by the square root of hidden_size, rounded to the weights' type */
    bool norms_embeddings;           /* Muse Glimmer: RMSNorm without a weight */
    bool norm_adds_one; /* Gemma, Qwen3.5, Nemotron: norms multiply by 1 + weight; not where the file has that sum */
    bool final_norm_is_plain; /* the last norm does not, whatever the others do */
    bool outputs_first;       /* every matrix is stored [out, in], whatever the family does */

    double initializer_range; /* standard deviation of new weights */
    qr_dtype dtype;           /* F32, F16 or BF16, what the model was trained in */
    qr_token_ids eos;
    int64_t bos_token_id, pad_token_id; /* -1 = none */
    qr_quantization_config quantization;
} qr_model_config;

/* Reads config.json of a model's folder or GGUF file. QRUN_ERROR_UNSUPPORTED names a model_type, quantisation, rotary
 * or other feature that is not supported; QRUN_ERROR_INPUT is for wrong types, values out of range and values that
 * contradict each other. */
qrun_status qr_model_config_read(const char *folder, qr_model_config *config, qr_error *err);
/* The same from a parsed object; `what` names it in messages. */
qrun_status qr_model_config_parse(const qr_json *root, const char *what, qr_model_config *config, qr_error *err);
void qr_model_config_free(qr_model_config *config); /* leaves it zeroed; fine for a zeroed one */

/* The heads of a layer; and the layer that makes its keys and values: another where layers share them, else itself. */
qr_layer_heads qr_model_config_heads(const qr_model_config *config, int64_t layer);
int64_t qr_model_config_kv_owner(const qr_model_config *config, int64_t layer);
int64_t qr_model_config_mlp_size(const qr_model_config *config, int64_t layer); /* of a dense MLP */

/* What a layer has of both: attention or what is in its place, and an MLP or experts. */
static inline bool qr_model_config_mixes(const qr_model_config *config, int64_t layer) {
    return config->blocks == NULL || config->blocks[layer] <= QR_BLOCK_ATTENTION;
}
static inline bool qr_model_config_has_mlp(const qr_model_config *config, int64_t layer) {
    return config->blocks == NULL || config->blocks[layer] >= QR_BLOCK_MLP;
}

const char *qr_model_family_name(qr_model_family family); /* its model_type */

#endif

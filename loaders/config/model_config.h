/* config.json: everything that the forward pass needs to know about a model, typed and range-checked. A key that is
 * absent has the default that transformers gives it for that family. What a family does with the values is the
 * runtime's business; a family here is a row of defaults and key names. */
#ifndef QR_LOADERS_CONFIG_MODEL_CONFIG_H
#define QR_LOADERS_CONFIG_MODEL_CONFIG_H

#include "base/dtype.h"
#include "base/status.h"
#include "loaders/config/rope_config.h"
#include "loaders/config/token_ids.h"
#include "loaders/files/json.h"

/* X(enumerator suffix, model_type). "gemma3", the wrapper with pictures, is read as its text_config. */
#define QR_MODEL_FAMILIES(X) \
    X(LLAMA, "llama")        \
    X(MISTRAL, "mistral")    \
    X(QWEN2, "qwen2")        \
    X(QWEN3, "qwen3")        \
    X(GEMMA2, "gemma2")      \
    X(GEMMA3, "gemma3_text") \
    X(PHI3, "phi3")          \
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
    QR_ACTIVATION_GELU_ERF
} qr_mlp_activation;

/* How the folder stores its linear weights. */
typedef enum qr_stored_quantization { QR_STORED_PLAIN, QR_STORED_BNB_NF4, QR_STORED_BNB_INT8 } qr_stored_quantization;

typedef struct qr_quantization_config {
    qr_stored_quantization stored;
    bool double_quantised;  /* NF4: the scales are quantised too */
    qr_dtype compute_dtype; /* NF4: bnb_4bit_compute_dtype */
    char **skip_modules;    /* names of modules left alone, as in llm_int8_skip_modules; owned */
    size_t n_skip_modules;
} qr_quantization_config;

typedef struct qr_model_config {
    qr_model_family family;
    bool is_multimodal; /* a Gemma 3 wrapper: the text model's tensors have a longer prefix */

    int64_t vocab_size;
    int64_t hidden_size;
    int64_t intermediate_size;
    int64_t n_layers;
    int64_t n_heads;
    int64_t n_kv_heads; /* divides n_heads */
    int64_t head_dim;
    int64_t max_position_embeddings;
    double norm_eps;
    qr_mlp_activation activation;
    bool tie_word_embeddings;
    bool qkv_bias, o_bias, mlp_bias;

    bool has_rope;             /* false: learned positions (GPT-2) */
    qr_rope_config rope;       /* of full-attention layers */
    qr_rope_config rope_local; /* of sliding-window layers; the same values as rope except for Gemma 3 */

    int64_t sliding_window; /* tokens a position sees, itself included, in sliding layers; 0 = no layer slides */
    bool *layer_slides;     /* [n_layers], owned */

    double query_pre_attn_scalar;   /* scores are multiplied by its power of -1/2; head_dim unless the model says */
    double attn_logit_softcapping;  /* 0 = none */
    double final_logit_softcapping; /* 0 = none */
    bool scale_embeddings;          /* Gemma: by the square root of hidden_size, rounded to the weights' type */
    bool norm_adds_one;             /* Gemma: RMSNorm multiplies by 1 + weight */

    double initializer_range; /* standard deviation of new weights */
    qr_dtype dtype;           /* F32, F16 or BF16, what the model was trained in */
    qr_token_ids eos;
    int64_t bos_token_id, pad_token_id; /* -1 = none */
    qr_quantization_config quantization;
} qr_model_config;

/* Reads <folder>/config.json. QRUN_ERROR_UNSUPPORTED names a model_type, quantisation, rotary or other feature that is
 * not supported; QRUN_ERROR_INPUT is for wrong types, values out of range and values that contradict each other. */
qrun_status qr_model_config_read(const char *folder, qr_model_config *config, qr_error *err);
/* The same from a parsed object; `what` names it in messages. */
qrun_status qr_model_config_parse(const qr_json *root, const char *what, qr_model_config *config, qr_error *err);
void qr_model_config_free(qr_model_config *config); /* leaves it zeroed; fine for a zeroed one */

const char *qr_model_family_name(qr_model_family family); /* its model_type */

#endif

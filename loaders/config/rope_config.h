/* The rotary part of config.json, in both of its forms: `rope_theta` with `rope_scaling` {"type" or "rope_type"}, and
 * `rope_parameters` of transformers 5, which may be nested by layer type. What the values mean is in transformers'
 * modeling_rope_utils; nothing is computed from them here. */
#ifndef QR_LOADERS_CONFIG_ROPE_CONFIG_H
#define QR_LOADERS_CONFIG_ROPE_CONFIG_H

#include "base/status.h"
#include "loaders/files/json.h"

/* The most that a number of positions may be. */
#define QR_CONFIG_MAX_POSITIONS (INT64_C(1) << 31)

/* X(enumerator suffix, name in config.json) */
#define QR_ROPE_TYPES(X)    \
    X(DEFAULT, "default")   \
    X(LINEAR, "linear")     \
    X(DYNAMIC, "dynamic")   \
    X(LLAMA3, "llama3")     \
    X(YARN, "yarn")         \
    X(LONGROPE, "longrope") \
    X(PROPORTIONAL, "proportional")

typedef enum qr_rope_type {
#define QR_X(suffix, name) QR_ROPE_##suffix,
    QR_ROPE_TYPES(QR_X)
#undef QR_X
        QR_ROPE_TYPE_COUNT
} qr_rope_type;

typedef struct qr_rope_config {
    qr_rope_type type;
    double theta;
    int64_t rotary_dim; /* of head_dim, even; the rest of a head is passed through */
    bool reversed;      /* pairs rotate the other way around: by negative angles (nanochat) */
    bool interleaved;   /* elements 2 · i and 2 · i + 1 are a pair, not i and i + rotary_dim / 2 */
    int64_t n_rotated;  /* proportional: of the rotary_dim / 2 pairs, those with a frequency; the others stay */
    double factor;      /* every type but default; when YaRN or LongRoPE leave it out: max / original positions */
    int64_t original_max_position_embeddings; /* positions before scaling; max_position_embeddings where not given */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double attention_factor;                  /* YaRN, LongRoPE: multiplies cos and sin; 0 = derive from factor */
    double beta_fast, beta_slow;              /* YaRN: 32 and 1 unless given */
    double mscale, mscale_all_dim;            /* YaRN: 0 = not given */
    bool truncate;                            /* YaRN: round the correction range; true unless given */
    double *short_factors, *long_factors;     /* LongRoPE: [rotary_dim / 2] each, owned; NULL otherwise */
} qr_rope_config;

/* What the rotary part depends on elsewhere in config.json. */
typedef struct qr_rope_context {
    const char *what; /* file name for messages */
    int64_t head_dim;
    int64_t max_position_embeddings;
    double default_theta;
    int64_t original_max_position_embeddings; /* of the config itself, which wins (Phi-3); 0 = none */
    bool heads_rotate_in_part; /* the family obeys partial_rotary_factor; transformers passes it over in the others */
    double partial_rotary_factor;
    bool interleaved; /* as qr_rope_config has it, as the next */
    bool reversed;
    const char *type;     /* where the parameters say none; NULL: "default" */
    bool has_sections;    /* Qwen2-VL: "mrope" has sections of a head for images, which are one for text */
    bool has_fixed_alpha; /* Hunyuan: "dynamic" with an "alpha" is a larger base, at any length */
    bool su_is_longrope;  /* Phi-3 once called LongRoPE "su" and "yarn" */
} qr_rope_context;

/* Reads one object of rotary parameters, NULL or null meaning plain rotary embedding. Unknown types are
 * QRUN_ERROR_UNSUPPORTED by name. */
qrun_status qr_rope_config_read(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                                qr_error *err);
void qr_rope_config_free(qr_rope_config *rope);

/* Whether two descriptions rotate alike: every member is equal. */
bool qr_rope_config_equal(const qr_rope_config *a, const qr_rope_config *b);

const char *qr_rope_type_name(qr_rope_type type);

#endif

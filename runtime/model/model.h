/* A model as the forward pass sees it: its shape, its family, and its weights in the backend's memory. One struct for
 * every family; what differs between families is data (family.h), not code.
 *
 * A model is described first: formats and shapes of all weights, without data. Then qr_model_place_weights walks over
 * the description, once to count the bytes of the plan and once to give every weight its address.
 *
 * Shapes: D hidden size, H query heads, KV key/value heads, HD head size, M MLP size, V vocabulary, L layers. */
#ifndef QR_RUNTIME_MODEL_MODEL_H
#define QR_RUNTIME_MODEL_MODEL_H

#include <pthread.h>

#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"
#include "loaders/files/stored_weight.h"
#include "runtime/engine/context.h"
#include "runtime/engine/plan.h"
#include "runtime/model/family.h"
#include "runtime/model/tokenizer.h"

/* A linear layer. `slot` is its number within the model: its row in the adapters' table of factors. */
typedef struct qr_linear_layer {
    qr_weight weight; /* [out, in] */
    bool has_bias;
    const float *bias; /* device, [out], or NULL */
    int32_t slot;
    int64_t
        out_offset; /* first column of its output in the buffer shared with its siblings: [q | k | v], [gate | up] */
} qr_linear_layer;

typedef struct qr_norm {
    const float *weight; /* device, [dim] */
    const float *bias;   /* device, [dim]; LayerNorm only */
    int64_t dim;         /* 0: the family has no such norm */
} qr_norm;

enum { QR_MAX_ATTN_IN = 3, QR_MAX_MLP_IN = 2 };

typedef struct qr_layer {
    qr_norm attn_norm, post_attn_norm, mlp_norm, post_mlp_norm; /* [D] */
    qr_norm q_norm, k_norm;                                     /* [HD] */
    qr_linear_layer attn_in[QR_MAX_ATTN_IN]; /* q, k, v; or one fused: columns [H·HD | KV·HD | KV·HD] */
    qr_linear_layer attn_out;                /* [D, H·HD] */
    qr_linear_layer mlp_in[QR_MAX_MLP_IN];   /* gate, up; or one fused: columns [M | M]; or one ungated */
    qr_linear_layer mlp_out;                 /* [D, M] */
    int32_t window;                          /* tokens a position sees; 0: all */
    int32_t rope_kind;                       /* which frequencies: 0 global, 1 local */
    int32_t kv_group;                        /* layers of a group share block tables */
    int32_t kv_index;                        /* position within the group's pages */
} qr_layer;

/* Layers whose K/V share pages: group_layers of them, all with the same window. */
typedef struct qr_kv_group {
    int32_t window;
} qr_kv_group;

typedef struct qr_model_shape {
    int64_t hidden, n_layers, n_heads, n_kv_heads, head_dim, mlp, vocab;
    int64_t context_tokens;
    float norm_eps, norm_offset;       /* RMSNorm multiplies by weight + norm_offset */
    float attn_scale;                  /* multiplies q · k */
    float attn_softcap, logit_softcap; /* 0: none */
    float embedding_scale;
    qr_act_fn activation;
    bool tied_head;
    int64_t rope_half;    /* pairs rotated per head; 0: no rotary positions */
    int32_t n_rope_kinds; /* 0, 1 or 2 */
} qr_model_shape;

enum { QR_MAX_ADAPTERS = 64 /* the bits of dora_adapters */, QR_MAX_LORA_RANK = 512 };

struct qrun_adapter;

struct qrun_model {
    qrun_context *context;
    char *folder;
    const char *prefix;  /* before all module names of this checkpoint */
    bool prequantized;   /* bitsandbytes wrote the folder quantised */
    bool random_weights; /* no weights were read */
    qr_model_config config;
    qr_generation_config generation;
    const qr_family *family;
    qr_model_shape shape;
    qr_dtype act_dtype;             /* of activations that enter linear layers: BF16, F16 or F32 */
    qr_weight_format linear_format; /* of linear layers, unless the folder stores them otherwise */

    qr_weight embedding;          /* [V, D] */
    qr_weight position_embedding; /* [context, D]; rows 0 where the family has none */
    qr_weight head;               /* [V, D]; shares the embedding's data when tied */
    qr_norm final_norm;
    qr_layer *layers; /* [L] */
    int32_t n_slots;  /* linear layers, head excluded */

    int32_t n_kv_groups, group_layers;
    qr_kv_group *kv_groups;

    void *weight_memory; /* device; all of the above point into it */
    size_t weight_bytes;
    void *table_memory; /* device: embedding and head after full training has added rows; or NULL */
    size_t table_bytes;
    int64_t n_parameters, n_quantized_parameters;
    uint64_t content_hash; /* identifies the weights: of names, shapes and samples of the folder's tensors; random: 0 */
    double load_seconds;

    qrun_tokenizer *tokenizer;                      /* NULL: the folder has none */
    struct qrun_adapter *adapters[QR_MAX_ADAPTERS]; /* NULL: free */
    const struct qrun_adapter *replaced_by;         /* the open adapter that replaces whole modules; NULL: none */
    qr_lora_factor *lora_table;     /* device, [n_slots][QR_MAX_ADAPTERS]; NULL until the first adapter */
    _Atomic uint64_t dora_adapters; /* bit i: adapters[i] is DoRA; read by sessions while others are opened */
    int32_t n_sessions;
    pthread_mutex_t lock; /* guards adapters and n_sessions */
};

/* The shape and family that a config describes; nothing is allocated. */
qrun_status qr_model_shape_from_config(const qr_model_config *config, qr_dtype act_dtype, qr_model_shape *shape,
                                       const qr_family **family, qr_error *err);

/* The fields of qrun_model_params that would hold this model's weights in fewer bytes, as messages name them:
 * "`quant=nf4-dq`, `quant_head_int8`"; empty where there are none. */
typedef struct qr_options_text {
    char text[48];
} qr_options_text;
qr_options_text qr_model_smaller_options(const qrun_model *model);

struct qr_model_options {
    qr_weight_format linear_format; /* of linear layers that are not stored quantised */
    qr_weight_format table_format;  /* of embedding and head where no file says so */
    bool head_int8;
    bool trainable; /* tables in table_format, whatever the files store */
};

/* The format of a matrix in the compute type. */
qr_weight_format qr_model_compute_format(const qrun_model *model);

/* Fills layers, groups, slots, every weight's description (no data) and weight_bytes: what a plan needs. `source`, NULL
 * for random weights, says in which types the folder stores its tensors; every tensor of the model is looked up in it.
 * The model owns the tables; qr_model_free_tables frees them. */
qrun_status qr_model_describe(qrun_model *model, const struct qr_model_options *options, const qr_safetensors *source,
                              qr_error *err);
void qr_model_free_tables(qrun_model *model);

/* Points every weight into `memory` (NULL: only counts), in a fixed order, and returns the bytes. */
size_t qr_model_place_weights(qrun_model *model, void *memory);

/* For the plan of a model that is only described: until `end` its weights have addresses in the planning backend. Does
 * nothing for a loaded model. `end` is fine after a begin that failed. */
qrun_status qr_model_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err);
void qr_model_plan_end(qrun_model *model);

/* Calls visit for every linear layer of the model (not the head), in slot order. */
typedef qrun_status (*qr_linear_visitor)(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                         qr_error *err);
qrun_status qr_model_each_linear(qrun_model *model, qr_linear_visitor visit, void *arg, qr_error *err);

/* Adds `change` to n_sessions, under the lock; returns what it was before. */
int32_t qr_model_count_sessions(qrun_model *model, int32_t change);

#endif

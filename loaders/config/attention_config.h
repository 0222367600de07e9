/* How layers of one model may differ in their attention (Gemma 4, Laguna): those of full attention have heads of their
 * own, and the last layers use keys and values of earlier ones. */
#ifndef QR_LOADERS_CONFIG_ATTENTION_CONFIG_H
#define QR_LOADERS_CONFIG_ATTENTION_CONFIG_H

#include "base/status.h"
#include "loaders/files/json.h"

/* Of a layer. */
typedef struct qr_layer_heads {
    int64_t head_dim;
    int64_t n_heads;      /* of queries */
    int64_t n_kv_heads;   /* divides these */
    bool values_are_keys; /* there is no v_proj: values are what k_proj makes, before norm and rotation */
} qr_layer_heads;

typedef struct qr_attention_config {
    qr_layer_heads full, sliding; /* of layers of either kind; equal in most families */
    bool norms_values;            /* RMSNorm of every value head, without a weight */
    int64_t n_shared_layers;      /* the last layers, which attend to K/V of the last layer before them of their kind */
    bool shared_are_wide;         /* the MLPs of those layers have twice the size */
} qr_attention_config;

/* What the keys depend on elsewhere in config.json. */
typedef struct qr_attention_context {
    const char *what;
    int64_t n_layers, n_heads;
    const bool *layer_slides; /* [n_layers] */
} qr_attention_context;

/* Reads Gemma 4's keys: head_dim and num_key_value_heads of full attention, in either of their forms (global_… or
 * per_layer_config), attention_k_eq_v, num_kv_shared_layers, use_double_wide_mlp. `attention` has the heads of the
 * other layers already. QRUN_ERROR_INPUT for counts that are impossible, and for layers that share with none. */
qrun_status qr_attention_config_read(const qr_json *json, const qr_attention_context *context,
                                     qr_attention_config *attention, qr_error *err);

/* num_kv_shared_layers alone; `attention` has its default. */
qrun_status qr_shared_layers_read(const qr_json *json, const qr_attention_context *context,
                                  qr_attention_config *attention, qr_error *err);

/* Multi-head latent attention (DeepSeek-V2): keys and values of a token are made of a few numbers, its latent. */
typedef struct qr_latent_config {
    int64_t kv_rank;     /* of the latent that keys and values are made of; 0: the model has no such attention */
    int64_t query_rank;  /* of the one that queries are made of; 0: they are made of the layer's input */
    int64_t rotated_dim; /* the last elements of a query's or key's head, which rotate; all keys of a token have the
                          * same, which do not come from the latent */
    int64_t plain_dim;   /* the first ones */
    int64_t value_dim;   /* of a head of values */
} qr_latent_config;

/* q_lora_rank, kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim and v_head_dim; `latent` has the family's defaults.
 * QRUN_ERROR_UNSUPPORTED for heads of values that are wider than those of keys. */
qrun_status qr_latent_config_read(const qr_json *json, const char *what, qr_latent_config *latent, qr_error *err);

/* Inputs of every token to each layer (Gemma 4's E models): a table's row, and a product of the token's embedding. */
typedef struct qr_layer_inputs_config {
    int64_t size;       /* of the input to one layer; 0: the model has none */
    int64_t vocab_size; /* rows of the table; of fewer than the embedding's (Gemma 3n), other tokens have the first */
} qr_layer_inputs_config;

/* hidden_size_per_layer_input and vocab_size_per_layer_input. QRUN_ERROR_INPUT where the table has fewer rows than
 * `least`. */
qrun_status qr_layer_inputs_config_read(const qr_json *json, const char *what, int64_t least,
                                        qr_layer_inputs_config *inputs, qr_error *err);

enum { QR_MOST_STREAMS = 4 };

/* Several residual streams (Gemma 3n): alternating updates, and what comes with them. */
typedef struct qr_streams_config {
    int64_t n;             /* altup_num_inputs; 0: the model has one stream, and none of the others */
    bool scales;           /* altup_correct_scale: what makes a layer's input is scaled first */
    int64_t residual_rank; /* laurel_rank: of the low-rank product beside attention */
} qr_streams_config;

/* altup_num_inputs, altup_correct_scale and laurel_rank. QRUN_ERROR_UNSUPPORTED for numbers of streams that are not
 * computed, and where another than the first is a layer's. */
qrun_status qr_streams_config_read(const qr_json *json, const char *what, qr_streams_config *streams, qr_error *err);

#endif

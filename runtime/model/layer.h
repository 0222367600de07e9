/* One layer of the network, written once against ops: the attention block and the MLP block, for generation and for
 * training alike. What differs between them (where K/V live, which buffers are kept) is in the pass. */
#ifndef QR_RUNTIME_MODEL_LAYER_H
#define QR_RUNTIME_MODEL_LAYER_H

#include "runtime/model/model.h"

/* Where a layer reads and writes, device memory; T tokens. A pass that keeps nothing gives every layer the same
 * buffers, and may let `branch_normed` be `branch` and `mlp_normed` be `attn_normed`. */
typedef struct qr_layer_buffers {
    void *attn_normed; /* [T, D] act */
    float *qkv;        /* [T, (H + 2 KV) · HD]: [q | k | v] of a token side by side; normed and rotated in place */
    float *qk_raw;     /* [T, (H + KV) · HD] q and k before the heads' norms; NULL: not wanted */
    void *attended;    /* [T, H · HD] act */
    float *attn_branch, *mlp_branch; /* [T, D]: output of a block before its post-norm (families that have one) */
    float *branch_normed;            /* [T, D]: after it */
    void *mlp_normed;                /* [T, D] act */
    float *mlp;                      /* [T, 2 M] gate and up, or [T, M] ungated */
    void *gated;                     /* [T, M] act */
    float *dora; /* [T, D], in training [T, widest adapted output]: DoRA's work; read and written between any
                  * two others, so it may share memory with what is not needed after attention */
} qr_layer_buffers;

/* The LoRA factors of a pass, or none. */
typedef struct qr_layer_adapters {
    const qr_lora_factor *table; /* device, [n_slots][n_adapters]; NULL: no adapters */
    int32_t n_adapters, max_rank;
    const int32_t *row_adapter;  /* device, [T] */
    const int32_t *row_dora;     /* device, [T]: of row_adapter, what is DoRA, else −1; NULL: nothing is */
    const int32_t *row_plain;    /* device, [T]: the others; NULL: all rows are row_dora's */
    const int64_t *pair_of_slot; /* host, [n_slots]: −1 where none of them adapts the layer; NULL: any may */
} qr_layer_adapters;

/* LoRA dropout of a pass: the input of an adapter (not of its matrix) is dropped out first. The random choice for an
 * element is a pure function of key, row_key, module and column. */
typedef struct qr_layer_dropout {
    float p;                /* 0: none */
    uint64_t key;           /* of the run and the step */
    const int64_t *row_key; /* device, [T]: of the example and the token in it */
    void *dropped;          /* [T, widest input] act */
} qr_layer_dropout;

typedef struct qr_layer_pass qr_layer_pass;

/* Brings K/V to where attention reads it and runs attention: q, k, v are views of buffers->qkv, dst buffers->attended.
 */
typedef qrun_status (*qr_attend_fn)(void *arg, const qr_layer *layer, const float *q, const float *k, const float *v,
                                    void *dst, qr_error *err);

struct qr_layer_pass {
    const qrun_model *model;
    qr_backend *backend; /* that the ops run on: the model's, or one that plans for it */
    qr_workspace workspace;
    int64_t n_tokens;
    bool any_order; /* of sums: qr_linear_args; and all tokens have one adapter, which may be in pairs: qr_lora_args */
    bool buffers_only; /* fill the buffers; x need not become what it would (blocks that are computed again) */
    float *x;          /* [T, D] residual stream */
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    qr_layer_buffers buffers;
    qr_layer_adapters adapters;
    qr_layer_dropout dropout;
    qr_attend_fn attend;
    void *attend_arg;
};

int64_t qr_qkv_columns(const qr_model_shape *shape);
int64_t qr_mlp_columns(const qrun_model *model);
bool qr_model_is_gated(const qrun_model *model);
bool qr_model_has_post_norms(const qrun_model *model);

/* Where the rows of a pass are: frequencies [n_slots, half] and a factor [n_slots] per rope kind, and of every row its
 * slot and its position. */
typedef struct qr_rope_positions {
    float *const *inv_freq, *const *factor;
    const int32_t *slot, *position;
} qr_rope_positions;

/* cos_table and sin_table of the pass's rows. */
qrun_status qr_layer_rope_tables(const qr_layer_pass *pass, const qr_rope_positions *rope, qr_error *err);

/* x = embeddings of the tokens, and of their positions where the family learns them. ids, position: device, [T]. */
qrun_status qr_layer_embed(const qr_layer_pass *pass, const int32_t *ids, const int32_t *position, qr_error *err);

/* x += attention block(x); x += MLP block(x). */
qrun_status qr_layer_attention(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* logits [n_rows, V] of n_rows (any number) of x [n_rows, D], before the soft-cap; normed [n_rows, D] act is what the
 * head is fed. */
qrun_status qr_layer_head(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *normed, float *logits,
                          qr_error *err);

/* Of the input x of a layer, or of its gradient (F32); rows [n_rows, in] contiguous. dst may be x. */
qr_dropout_args qr_layer_dropout_args(const qr_layer_dropout *dropout, qr_dtype dtype, const qr_linear_layer *linear,
                                      const void *x, void *dst, int64_t n_rows);

#endif

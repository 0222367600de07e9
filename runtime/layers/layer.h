/* One layer of the network, written once against ops: the attention block and the MLP block, for generation and for
 * training alike. What differs between them (where K/V live, which buffers are kept) is in the pass. */
#ifndef QR_RUNTIME_LAYERS_LAYER_H
#define QR_RUNTIME_LAYERS_LAYER_H

#include "kernels/op_list.h"
#include "kernels/timeline/timeline.h"
#include "runtime/model/model.h"

/* The part of a layer with experts; S = T · top_k slots. */
typedef struct qr_expert_buffers {
    float *logits;                     /* [T, E] of the router */
    int32_t *expert, *slot, *slot_row; /* [S]: qr_routing */
    int32_t *expert_start;             /* [E + 1] */
    float *share;                      /* [S] */
    float *mlp;                        /* [S, 2 M] gate and up; of a model that is split, this rank's M */
    void *gated;                       /* [S, M] act */
    float *shared_share;               /* [T]: of the expert that every token goes to, before the sigmoid */
    float *slots;                      /* [S, D], of a model that is split this rank's columns: what each expert
                                        * gives, before the sum; nothing reads it later */
    /* Where a dense MLP is beside them; else NULL. */
    void *router_normed, *normed; /* [T, D] act: what the router and the experts read; `normed` may be mlp_normed */
    float *dense_branch, *branch; /* [T, D]: what the MLP and the experts give, before their norms */
    float *branch_normed;         /* [T, D]: of the experts, after it; may be `branch` */
} qr_expert_buffers;

/* Where a layer reads and writes, device memory; T tokens. A pass that keeps nothing gives every layer the same
 * buffers, and may let `branch_normed` be `branch` and `mlp_normed` be `attn_normed`. */
typedef struct qr_layer_buffers {
    void *attn_normed; /* [T, D] act */
    float *qkv;        /* [T, (H + 2 KV) · HD]: [q | k | v] of a token side by side; normed and rotated in place. Of a
                        * layer with a state [T, qr_recurrent_shape.columns]: [q k v | z | b | a] or [B | C | x]; of a
                        * pass that keeps latents [T, H · HD]: q alone */
    float *q_gate;     /* [T, H, 2, HD]: queries and their gates, or [T, H, HD]: gates alone; models with such gates */
    float *qk_raw;    /* [T, (H + KV) · HD] q and k before the heads' norms, or with v [T, (H + 2 KV) · HD]; NULL: not
                       * wanted */
    float *all_heads; /* [T, (H + KV) · HD] of all ranks, each rank's q and k side by side; models that are split and
                       * have norms over all heads, as the next */
    float *whole_row; /* [T, H · HD] of all ranks, in their order; or [T, values] where ranks share the groups of a
                       * state space */
    void *ungated; /* [T, H · HD] act: attention's output before its gates, which may be `attended`, or before what is
                    * behind values is left out (qr_model_pads_values); of a pass that keeps latents [T, H, kv_rank +
                    * rotated_dim]: before values are made of it */
    float *values; /* [T, KV · value_dim]: before zeros come behind each head; models that have them, but for those with
                    * latent attention */
    void *attended;        /* [T, H · HD] act, or with shorter values [T, H · value_dim]; of a layer with a state
                            * [T, values] */
    float *beside_qkv;     /* qkv and attended of what is beside attention (qr_layer.beside), [T, columns] and [T,
                            * values]; a pass that keeps nothing may have them in the same place */
    void *beside_attended; /* act */
    float *latent; /* [T, query_rank + kv_rank + rotated_dim]: latents before their norms, and keys' shared part,
                    * rotated in place; models with latent attention only, as the next */
    void *q_latent, *kv_latent; /* [T, query_rank], [T, kv_rank] act: after their norms; kv_latent not of a pass that
                                 * keeps latents, nor kv_up */
    float *kv_up;               /* [T, H, plain_dim + value_dim]: made of kv_latent; nothing reads it later */
    float *absorbed; /* [T, H, kv_rank + rotated_dim]: queries with the matrix of keys in them, and their rotated part;
                      * of a pass that keeps latents */
    float *by_head;  /* [T, columns]: what the projections make; models with shape.recurrent.by_key_head, or whose
                      * family has qkv_by_head: [T, H, 3, HD] */
    float *delta_latent;       /* [T, 2, gate_rank]: what z and a are made of; of the delta rule, as the next */
    void *z_latent, *a_latent; /* [T, gate_rank] act: the same; where the layer has such */
    float *conved;   /* [T, channels]: out of the delta rule's convolution, or into one between gates; layers with a
                      * state only, as the next */
    float *recalled; /* [T, values]: out of the recurrence, or the convolution between gates */
    float *recalled_normed;          /* [T, values]; of the delta rule; may be `recalled` */
    float *attn_branch, *mlp_branch; /* [T, D]: output of a block before its post-norm (families that have one) */
    float *branch_normed;            /* [T, D]: after it, or where there is none, before the factor */
    float *residual;        /* [T, R]: of the low-rank product beside attention (layer_streams.h), as the next */
    void *residual_x;       /* [T, R] act */
    float *residual_branch; /* [T, D] */
    float *residual_normed; /* [T, D]: read at once; not residual_branch */
    void *mlp_normed;       /* [T, D] act */
    float *mlp;             /* [T, 2 M] gate and up, or [T, M] ungated */
    float *sparse_gate;     /* [T, M]: a gate of which little is left; NULL: it stays in mlp */
    void *gated;            /* [T, M] act */
    void *input_x;          /* [T, D] act: what the gates of a layer's input are made of; models with inputs only */
    float *input;           /* [T, 2, P]: gates and inputs */
    void *input_gated;      /* [T, P] act */
    float *input_branch;    /* [T, D] */
    qr_expert_buffers experts;
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

/* What attention takes and gives: views of buffers. */
typedef struct qr_heads {
    const float *q, *k, *v; /* v is k where keys are the values (layer_latent.h) */
    int64_t q_stride, kv_stride;
    void *dst; /* [T, …] act, contiguous: buffers.attended, or buffers.ungated where something follows */
} qr_heads;

/* Brings K/V to where attention reads it and runs attention. */
typedef qrun_status (*qr_attend_fn)(void *arg, const qr_layer *layer, const qr_heads *heads, qr_error *err);

/* Columns that ranks have made parts of, of n_rows rows: all have all of them afterwards. */
typedef struct qr_gather {
    void *memory;              /* device, [n_rows, n_columns] of `dtype` */
    int64_t n_rows, n_columns; /* n_columns: of all ranks */
    int64_t unit;              /* columns are dealt out in such (split.h) */
    qr_dtype dtype;
    bool in_place;  /* this rank's columns stand where they belong; else alone, [n_rows, own] at the beginning */
    bool to_leader; /* only rank 0 needs the others' */
} qr_gather;
typedef qrun_status (*qr_gather_fn)(void *arg, const qr_gather *gather, qr_error *err);

struct qr_layer_pass {
    const qrun_model *model;
    qr_backend *backend; /* that the ops run on: the model's, or one that plans for it */
    qr_workspace workspace;
    qr_op_list *ops; /* where ops wait for others that they can run with; NULL: they do not. Who runs a pass ends it */
    int64_t n_tokens;
    bool any_order; /* of sums: qr_linear_args; and all tokens have one adapter, which may be in pairs: qr_lora_args */
    bool keeps_latents;        /* of latent attention, K/V are the latents themselves (layer_latent.h) */
    bool buffers_only;         /* fill the buffers; x need not become what it would (blocks that are computed again) */
    const qr_sampled *sampled; /* [n_sampled] that negative ids name (qr_embedding_args); NULL: none does */
    int64_t n_sampled;
    float *x;            /* [T, D] residual stream */
    float *streams;      /* [T, N, D]: where there are several (layer_streams.h), of which x is one; as the next */
    float *stream_work;  /* [T, N, D]; may be streams */
    void *stream_x;      /* [T, D] act */
    float *stream_coefs; /* [T, N, N], or of it [T, N] */
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    float *inputs;  /* [T, L, P]: of the tokens to each layer; models that have them only, as the next */
    void *inputs_x; /* [T, D] act: the embeddings that they are made of */
    qr_recurrence
        sequences; /* of the pass's rows; read by layers with a state. states: of whole models (layer_recurrent.h) */
    qr_layer_buffers buffers;
    qr_layer_adapters adapters;
    qr_layer_dropout dropout;
    qr_attend_fn attend;
    void *attend_arg;
    qr_gather_fn gather; /* of a model that is split among ranks (split.h) */
    void *gather_arg;
    /* Where the processor computes experts: what their ops run with, in host memory. Its buffers are the experts' and
     * mlp_normed [T, D], its x [T, D] takes their sum, and it has no adapters. NULL: they are computed as all else. */
    const qr_layer_pass *processor;
};

/* Of a model that is split, all columns of all ranks; nothing where it is whole. */
static inline qrun_status qr_layer_gather(const qr_layer_pass *pass, const qr_gather *columns, qr_error *err) {
    return pass->model->split.n_ranks > 0 ? pass->gather(pass->gather_arg, columns, err) : QRUN_OK;
}

/* An op of the pass: qr_layer_op_<op>(pass, args, err). */
#define QR_X(name)                                                                                        \
    static inline qrun_status qr_layer_op_##name(const qr_layer_pass *pass, const qr_##name##_args *args, \
                                                 qr_error *err) {                                         \
        return qr_op_list_run(pass->ops, pass->backend, QR_OP_##name, args, pass->workspace, err);        \
    }
QR_FORWARD_OPS(QR_X)
QR_X(round_act)
QR_X(dropout)
#undef QR_X

/* Of a layer's first block, for timelines. */
static inline qr_part qr_recurrent_part(const qrun_model *model) {
    static const qr_part parts[] = {[QR_RECURRENT_NONE] = QR_PART_DELTA,
                                    [QR_RECURRENT_DELTA] = QR_PART_DELTA,
                                    [QR_RECURRENT_CONV] = QR_PART_CONV,
                                    [QR_RECURRENT_SPACE] = QR_PART_SPACE};
    return parts[model->shape.recurrent.kind];
}
static inline qr_part qr_layer_part(const qrun_model *model, const qr_layer *layer) {
    return layer->is_recurrent ? qr_recurrent_part(model) : QR_PART_ATTENTION;
}

/* Whether norms over all heads need what other ranks have of them. */
static inline bool qr_model_gathers_heads(const qrun_model *model) {
    return model->split.n_ranks > 0 && model->family->norms_all_heads;
}
int64_t qr_qkv_columns(const qr_layer *layer);
/* Whether heads of values are shorter than those of keys: attention sees zeros behind them, and puts out more of a head
 * than the last matrix reads. */
static inline bool qr_model_pads_values(const qr_model_shape *shape) {
    return shape->value_dim > 0 && shape->value_dim < shape->head_dim;
}
/* Whether this layer of attention makes such values, which stand in buffers.values first. */
static inline bool qr_layer_makes_short_values(const qr_model_shape *shape, const qr_layer *layer,
                                               const qr_linear_layer *linear) {
    return qr_model_pads_values(shape) && linear == &layer->attn_in[2];
}
/* Of those, the columns that are normed: in buffers.qk_raw. */
int64_t qr_raw_columns(const qr_layer *layer);
/* The widest buffers.qkv of any layer. */
int64_t qr_widest_qkv(const qr_model_shape *shape);
bool qr_model_is_gated(const qrun_model *model);
/* Of a layer's MLP, or the expert that every token goes to: its M, and what of it stands side by side in buffers.mlp.
 */
static inline int64_t qr_layer_mlp_size(const qr_layer *layer) { return layer->mlp_out.weight.desc.cols; }
int64_t qr_layer_mlp_columns(const qrun_model *model, const qr_layer *layer);
/* The norm that an MLP reads. */
static inline const qr_norm *qr_layer_mlp_input_norm(const qr_layer *layer) {
    return layer->is_parallel && layer->mlp_norm.dim == 0 ? &layer->attn_norm : &layer->mlp_norm;
}
/* This rank's part of the same M, where the model is split. */
int64_t qr_layer_own_mlp_size(const qrun_model *model, const qr_layer *layer);
/* The largest M of those; 0: no layer has any. */
int64_t qr_model_mlp_size(const qrun_model *model);
int64_t qr_model_mlp_columns(const qrun_model *model);
/* QR_ROLE_POST_ATTN_NORM or QR_ROLE_POST_MLP_NORM, in some layer. */
bool qr_model_has_post_norm(const qrun_model *model, qr_tensor_role role);
/* Whether something comes between a block and the residual stream that it is added to: a norm, or a factor. */
bool qr_model_has_branches(const qrun_model *model);
bool qr_model_has_experts(const qrun_model *model); /* in some layer */

/* The pass as layer->beside sees it: its buffers are those beside attention's. */
static inline qr_layer_pass qr_layer_pass_beside(const qr_layer_pass *pass) {
    qr_layer_pass beside = *pass;
    beside.buffers.qkv = pass->buffers.beside_qkv;
    beside.buffers.attended = pass->buffers.beside_attended;
    return beside;
}

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

/* From q, k and v of each head, [T, H, 3, HD], to the layout of buffers.qkv; or the other way, `to_heads`. */
qrun_status qr_layer_qkv_reorder(const qr_layer_pass *pass, const qr_layer *layer, const float *src, float *dst,
                                 bool to_heads, qr_error *err);

/* x += factor · linear(src), through the norm after the block, where it has one: branch [T, D] is what is normed. */
qrun_status qr_layer_add_linear(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *src,
                                const qr_norm *post_norm, float *branch, float factor, qr_error *err);

/* x += attention block(x), or that of a layer with a state; x += MLP block(x), and what else a layer ends with. Nothing
 * where the layer has no such block. */
qrun_status qr_layer_attention(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* The parts of an attention block, unless a layer's with a state: buffers.attn_normed of x; buffers.qkv as attention
 * takes it; buffers.attended, over whole sequences; x += the last product. A row of all but `attend` depends on that
 * row alone, so a pass may have some of the rows for them. */
qrun_status qr_layer_attention_norm(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_attention_heads(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_attend(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_attention_out(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* An MLP's activation, where that has numbers of its own, for the backward part. */
qr_xielu_args qr_layer_xielu_args(const qr_layer_pass *pass, const qr_layer *layer);
/* A sparse gate, where the layer has one, for the backward part. */
qr_gaussian_topk_args qr_layer_gaussian_topk_args(const qr_layer_pass *pass, const qr_layer *layer);
/* The gate in buffers.mlp, or its gradient there, times the model's factor. */
qrun_status qr_layer_scale_gate(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_layer_mlp(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);
/* buffers.mlp_normed of x, which qr_layer_mlp begins with. Of a layer whose blocks are parallel that is part of
 * qr_layer_attention_out: x is what it was before attention then. */
qrun_status qr_layer_mlp_norm(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err);

/* dst = RMS norm of n_groups rows of norm->dim in each of n_rows rows of src; dst may be src. */
qrun_status qr_layer_rms_norm(const qr_layer_pass *pass, const qr_norm *norm, const float *src, int64_t src_stride,
                              void *dst, qr_dtype dst_dtype, int64_t dst_stride, int64_t n_rows, int64_t n_groups,
                              qr_error *err);

/* Rotates, in place, the first elements of each of n_heads heads, which are head_dim apart in rows that are `stride`
 * apart. QR_ROPE_NONE: nothing. */
qrun_status qr_layer_rotate(const qr_layer_pass *pass, int32_t rope_kind, float *heads, int64_t n_heads,
                            int64_t head_dim, int64_t stride, qr_error *err);

/* x [T, D] times the layer's scalar, where it has one: what the layer puts out, or the gradient of that. */
qrun_status qr_layer_scale(const qr_layer_pass *pass, const qr_layer *layer, float *x, qr_error *err);

/* Columns of buffers.q_gate of so many heads, and where in them the first gate is. */
int64_t qr_gate_columns(const qr_model_shape *shape, int64_t n_heads);
int64_t qr_gate_offset(const qr_model_shape *shape);
/* The gates of attention's output, for the backward part. */
qr_head_gate_args qr_layer_head_gate_args(const qr_layer_pass *pass, const qr_layer *layer);

/* The final norm of n_rows of x [n_rows, D]: dst [n_rows, D] in its type. */
qrun_status qr_layer_final_norm(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *dst,
                                qr_dtype dst_dtype, qr_error *err);

/* logits [n_rows, V] of n_rows (any number) of x [n_rows, D], before the soft-cap; normed [n_rows, D] act is what the
 * head is fed. Of a model that is split, on rank 0; the others fill [n_rows, own rows of the head] of it. */
qrun_status qr_layer_head(const qr_layer_pass *pass, const float *x, int64_t n_rows, void *normed, float *logits,
                          qr_error *err);

/* Of the input x of a layer, or of its gradient (F32); rows [n_rows, in] contiguous. dst may be x. */
qr_dropout_args qr_layer_dropout_args(const qr_layer_dropout *dropout, qr_dtype dtype, const qr_linear_layer *linear,
                                      const void *x, void *dst, int64_t n_rows);

#endif

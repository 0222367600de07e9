/* Inside a training pass: its buffers, and the functions that its files share. pass_memory.c plans and makes it, pass.c
 * runs it forward, loss.c computes the loss and its gradient, backward.c runs it backward, and tiles.c runs a layer
 * both ways in tiles of rows. Only these files include this. */
#ifndef QR_RUNTIME_PASS_PASS_STATE_H
#define QR_RUNTIME_PASS_PASS_STATE_H

#include "kernels/plan/plan.h"
#include "runtime/pass/pass.h"

/* Device buffers other than the kept activations; R rows go through the output head at once, and N rows through all of
 * a layer but attention: T without tiles. d… is the gradient with respect to …, F32. */
typedef struct qr_pass_buffers {
    float *x, *dx;                /* [T, D] residual stream */
    float *streams, *dstreams;    /* [T, N, D]: where there are several, as the next four */
    float *stream_work;           /* [T, N, D] */
    void *stream_x;               /* [N, D] act */
    float *stream_coefs, *dcoefs; /* [N, N²] */
    float *dresidual;             /* [N, R]: of the product beside attention */
    float *sparse_gate;           /* [N, M]: gates of which little is left, and their gradient */
    float *dbranch;               /* [N, D] into a block's output, after its post-norm */
    float *dnormed;               /* [N, D] of a block's normed input */
    float *dattended;             /* [T, H · HD], or [T, values] */
    float *dqkv;                  /* [T, (H + 2 KV) · HD], or [T, qr_recurrent_shape.columns] */
    float *dqkv_beside;           /* [T, qr_recurrent_shape.columns]: of what is beside attention */
    float *dq_gate;               /* [T, H, 2, HD] or [T, H, HD], with gated attention */
    float *dconved;               /* [T, channels]; layers with a state only, as the next */
    float *gate_work;    /* of layers with a state: [N, values] what the last gate reads, then its gradient; of a state
                          * space [2, N, values], what it gives and the gradient of that */
    float *by_head;      /* [N, columns]: of qr_layer_buffers, and its gradient */
    float *delta_latent; /* [N, 2, gate_rank]: of qr_layer_buffers; the gradient of one of them */
    float *kv_up;        /* [N, H, plain_dim + value_dim] of qr_layer_buffers, and its gradient; models with latent
                          * attention only, as the next. Of others with short values [N, H · value_dim]: what is in
                          * buffers.values, and gradients of heads without what is behind them */
    float *dlatent;      /* [N, …]: parts that backward_latent.c names */
    float *dgated;       /* [N, M], or [S, M] of experts, S = N · top_k; where dattended and dqkv are, or
                          * with tiles dqkv alone, while attention has its turn */
    float *dshare;       /* [S] of slots of experts */
    void *dy;            /* [N, widest output], or [S, M], act: a gradient on its way into a product
                          * with weights */
    float *cos_table[2], *sin_table[2]; /* [T, half] */
    float *selected;                    /* [R, D] rows whose next token is a target */
    void *selected_normed;              /* [R, D] act */
    float *dselected_normed;            /* [R, D] */
    float *dselected;                   /* [T, D] of all such rows, in order; where dattended is later */
    int32_t *ids, *position, *slot, *row_adapter, *target, *rows; /* [T] */
    int32_t *seq_start;                                           /* [S + 1] */
    int64_t *row_key;                                             /* [T], with dropout */
    void *dropped;                       /* [N, widest input] act: what dropout leaves of an adapter's input */
    float *ddropped;                     /* [N, widest input] */
    float *inputs, *dinputs;             /* [T, L, P], of models whose layers have inputs, as the next */
    void *inputs_x;                      /* [T, D] act */
    float *shared_kv[2], *dshared_kv[2]; /* [T, 2 · KV · HD]: K/V that later layers read, of full attention and with a
                                          * window */
    float *dora;                         /* [N, widest adapted output], with DoRA */
    float *inv_freq[2], *rope_factor[2]; /* [n_rope_slots, half], [n_rope_slots] */
    float *logits;                       /* [R, V], then their gradient */
    void *dlogits;                       /* [R, V] act */
    float *loss;                         /* [T] */
    float *weight;                       /* [T] of the gradients of targets, with pairs */
} qr_pass_buffers;

struct qr_train_pass {
    qrun_model *model;
    qr_backend *backend;
    qr_parameters *parameters;
    qr_train_limits limits;
    qr_pass_buffers b;
    qr_activations activations;
    uint64_t stage_tickets[2]; /* of the last transfer from or to each of activations' stages */
    qr_plan_memory memory;
    qr_workspace workspace;
    float *host_loss;                  /* [T] */
    float *host_weight;                /* [T] with pairs, as the next */
    qr_answer *answers;                /* [S] */
    int32_t *host_rows, *host_targets; /* [T] */
    int64_t n_rope_slots;              /* sets of rotary frequencies; slot 0 is that of short sequences */
    int32_t *host_slot;                /* [T] */
    float *host_rope;                  /* [half] */
    /* the batch that runs */
    int64_t n_tokens, n_sequences;
    int32_t longest;
    const qr_kept_layer *current; /* the layer whose blocks run */
    const atomic_bool *cancelled; /* lent; NULL: never */
    qr_train_layer_fn on_layer;   /* NULL: none */
    void *on_layer_user;
    qr_layer_dropout dropout;
    /* Where ranks gather each layer from all (layer_stream.h), a rank that computes nothing, or no longer, goes through
     * the layers all the same. */
    bool follows;
    qrun_status status; /* why it computes no longer; QRUN_OK: it never did */
};

/* Of something that the pass computes: what it returns; where layers are gathered, it is kept instead until the end of
 * the pass. */
qrun_status qr_pass_keep_status(qr_train_pass *pass, qrun_status status);
/* Computes `call`, unless the pass only follows. */
#define QR_PASS_COMPUTE(pass, call)                                                        \
    do {                                                                                   \
        if (!(pass)->follows) { QR_RETURN_IF_ERROR(qr_pass_keep_status((pass), (call))); } \
    } while (0)

/* Puts the rotary frequencies of a sequence of n_tokens into a slot. */
qrun_status qr_pass_set_rope(qr_train_pass *pass, int64_t slot, int64_t n_tokens, qr_error *err);

/* Rows whose logits are there at once. */
int64_t qr_pass_logit_rows(const qrun_model *model, const qr_train_limits *limits);

/* Elements of K/V that later layers read, of full attention or with a window; 0: none do. */
int64_t qr_pass_shared_kv_columns(const qrun_model *model, int windowed);

/* Attention of the layer that runs, as it was forward. */
qr_attention_packed_args qr_pass_attention_args(const qr_train_pass *pass, const qr_layer *layer);

/* A loop over n rows, `most` at a time. On a backend that plans, the first part stands for all that are as large. */
typedef struct qr_pass_parts {
    int64_t n, most;
    int64_t first, n_rows; /* of the part that is next */
    qr_planned before;     /* what was planned before that part */
} qr_pass_parts;

qr_pass_parts qr_pass_parts_begin(const qr_train_pass *pass, int64_t n, int64_t most); /* n_rows = 0: there is none */
void qr_pass_parts_next(qr_train_pass *pass, qr_pass_parts *parts);

/* QRUN_ERROR_CANCELLED where the flag that the pass watches is up. */
qrun_status qr_pass_check_cancelled(const qr_train_pass *pass, qr_error *err);

/* Forward. The layer pass is that of pass->current. */
qr_layer_pass qr_pass_layer(qr_train_pass *pass);
qrun_status qr_pass_copy_stream(qr_train_pass *pass, float *dst, const float *src, qr_error *err);
/* Between K/V of a layer, or their gradient, as rows of q, k and v have them, and those of all layers that share them
 * [n_tokens, K and V]. Nothing for a layer that shares none. */
qrun_status qr_pass_copy_shared_kv(qr_train_pass *pass, const qr_layer *layer, float *qkv, float *shared,
                                   bool to_shared, bool accumulate, qr_error *err);
qrun_status qr_pass_copy_ints(qr_train_pass *pass, int32_t *device, const int32_t *host, int64_t n, qr_error *err);
/* A layer from the residual stream, its input and the point between its blocks noted. buffers_only: nothing reads the
 * stream after it. */
qrun_status qr_pass_run_layer(qr_train_pass *pass, int64_t l, bool buffers_only, qr_error *err);

/* ---- Tiles (tiles.c) ---- */

static inline bool qr_pass_has_tiles(const qr_train_pass *pass) { return pass->limits.policy.tile_rows > 0; }
/* Runs a function on consecutive parts of the pass, each a pass over a tile's rows, whose kept layer is that of the
 * whole pass's current one. Without tiles, on the pass itself. `layer` is handed on; NULL: no layer is current. */
typedef qrun_status (*qr_pass_tile_fn)(qr_train_pass *tile, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_for_tiles(qr_train_pass *pass, const qr_layer *layer, qr_pass_tile_fn run, qr_error *err);
/* Of a pass with tiles: a layer from the residual stream, its input noted; and from dx of what it puts out to that of
 * its input, computing all of it again. */
qrun_status qr_pass_run_in_tiles(qr_train_pass *pass, int64_t l, qr_error *err);
qrun_status qr_pass_backward_in_tiles(qr_train_pass *pass, int64_t l, qr_error *err);

/* Loss over the targets, chunk by chunk; with backward, the gradient of the last layer's output in dx. sums: as in
 * qr_train_pass_run. */
qrun_status qr_pass_run_loss(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                             double *sums, qr_error *err);
/* What the reference, which has run, makes of the answers. */
qrun_status qr_pass_note_reference(qr_train_pass *pass, const qr_train_batch *batch, qr_error *err);

/* Backward. dx [n_rows, dim] of a norm, overwritten or added to; the norm's own gradients grow where it is trained. */
qrun_status qr_pass_norm_backward(qr_train_pass *pass, const qr_norm *norm, const float *x, const float *dy, float *dx,
                                  int64_t n_rows, bool accumulate, qr_error *err);
/* The gradient of a matrix from what it was fed, where it is trained. dy: [n_rows, out], F32. */
qrun_status qr_pass_whole_backward(qr_train_pass *pass, const qr_weight *weight, const float *bias, const void *x,
                                   const float *dy, int64_t dy_stride, int64_t n_rows, qr_error *err);
/* *dy, rows of `out` F32 elements, *dy_stride apart, as products with weights take it: contiguous, in the type of
 * activations, in b.dy; unchanged where that type is F32. */
qrun_status qr_pass_round_dy(qr_train_pass *pass, const void **dy, int64_t *dy_stride, int64_t n_rows, int64_t out,
                             qr_error *err);
/* Elements between rows of `out` elements in b.dy: on a device for an adapter's part of a product; on a processor so
 * that rows lie apart in caches and are read in place. 0: none, or there is no room. */
int64_t qr_pass_dy_room(const qr_train_pass *pass, int64_t out);
/* dx [T, in] = dy W, or dx += it, and through the matrix's adapter, whose gradients grow. x is what the layer was fed;
 * dy's rows [out], F32, are dy_stride apart. */
qrun_status qr_pass_linear_backward(qr_train_pass *pass, const qr_linear_layer *linear, const void *x, const float *dy,
                                    int64_t dy_stride, float *dx, bool accumulate, qr_error *err);
/* b.dnormed of a layer with experts, overwritten or added to, from the gradient of what they add up to; and through
 * the router, once that has run. */
qrun_status qr_pass_router_backward(qr_train_pass *pass, const qr_layer *layer, bool accumulate, qr_error *err);
qrun_status qr_pass_experts_backward(qr_train_pass *pass, const qr_layer *layer, const float *dbranch, bool accumulate,
                                     qr_error *err);
/* Of an expert that every token goes to: b.dgated through its share, of whose gradient the share's place is taken.
 * Nothing where there is none. */
qrun_status qr_pass_shared_share_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
/* Of a layer with a state (backward_recurrent.c): through its last gate, whose gradient goes to dqkv, in place in
 * dattended; along whole sequences, from there to the other columns of dqkv; and from dqkv to dnormed, overwritten or
 * added to. */
qrun_status qr_pass_recurrent_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_recurrent_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_recurrent_project_backward(qr_train_pass *pass, const qr_layer *layer, bool accumulate,
                                               qr_error *err);
/* The pass as layer->beside of the current layer sees it; `kept` becomes its current layer. */
qr_train_pass qr_pass_beside(const qr_train_pass *pass, qr_kept_layer *kept);
/* qr_layer_rms_norm backward, to dx, which may be dy, or added to it; the norm's own gradient grows where it is
 * trained. dx and dy: rows of n_groups · norm->dim. */
qrun_status qr_pass_rms_norm_backward(qr_train_pass *pass, const qr_norm *norm, int64_t n_groups, const float *x,
                                      int64_t x_stride, const float *dy, int64_t dy_stride, float *dx,
                                      int64_t dx_stride, int64_t n_rows, bool accumulate, qr_error *err);
/* qr_layer_rotate backward: of gradients, in place. */
qrun_status qr_pass_rotate_back(qr_train_pass *pass, int32_t rope_kind, float *dheads, int64_t n_heads,
                                int64_t head_dim, int64_t stride, qr_error *err);
/* Of latent attention (backward_latent.c), from dqkv to dnormed. */
qrun_status qr_pass_latent_heads_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
int64_t qr_pass_latent_work_columns(const qr_model_shape *shape); /* of b.dlatent */
/* The same of each kind (backward_delta.c, backward_conv.c, backward_space.c). */
qrun_status qr_pass_delta_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_delta_latent_backward(qr_train_pass *pass, const qr_layer *layer, int i, const float *dout,
                                          qr_error *err);
qrun_status qr_pass_delta_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_conv_gate_backward(qr_train_pass *pass, qr_error *err);
qrun_status qr_pass_conv_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_space_gate_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_space_recall_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
/* Of a block that makes something of the layer's own input: dst, overwritten or added to, the gradient of
 * buffers.input_x, from that of what its last matrix makes; and dinputs' part of the layer. */
qrun_status qr_pass_input_gated_backward(qr_train_pass *pass, const qr_layer *layer, const float *dbranch, float *dst,
                                         bool accumulate, qr_error *err);
/* Of residual streams (backward_streams.c): of what is left of them after the last layer, from dx; around a layer,
 * first from dstreams to dx of what the layer puts out, and last from dx of what it reads to dstreams; and of what
 * makes them, to dx of the embeddings. Nothing where there is one. */
qrun_status qr_pass_streams_leave_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err);
qrun_status qr_pass_streams_correct_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_streams_predict_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_streams_enter_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err);
/* The low-rank product beside attention: dnormed grows, from dx after attention's last matrix. */
qrun_status qr_pass_residual_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
/* After a layer's MLP: x_out, and the streams as corrected. */
qrun_status qr_pass_streams_correct(qr_train_pass *pass, const qr_layer_pass *blocks, const qr_layer *layer,
                                    qr_error *err);
/* The input of a layer, as activations keep it: of one residual stream or of all. Copies, both of all rows. */
qrun_status qr_pass_keep_input(qr_train_pass *pass, qr_error *err);
qrun_status qr_pass_take_input(qr_train_pass *pass, const qr_kept_layer *kept, qr_error *err);
/* The parts of a layer's backward pass, from dx of what it puts out; a row of all but `attend` depends on that row
 * alone. The MLP block, from dx to dx; through the last matrix of attention, to dattended; through attention, over
 * whole sequences, to dqkv; from there to dnormed; and from there to dx. */
qrun_status qr_pass_mlp_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_attention_out_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_attend_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_attention_heads_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
qrun_status qr_pass_attention_norm_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
/* The first two: from dx of what the layer puts out to dattended, and to dx between the blocks. Where they are parallel
 * dx is then that of the layer's input, but for what comes through attention. */
qrun_status qr_pass_outputs_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err);
/* dx from a segment's output to its input, computing again what was not kept. */
qrun_status qr_pass_segment_backward(qr_train_pass *pass, const qr_segment *segment, qr_error *err);
/* From the gradient of the first layer's input into the tables that it was looked up in. */
qrun_status qr_pass_embed_backward(qr_train_pass *pass, qr_error *err);

#endif

/* The ops of training: backward of every op of the forward pass, attention over packed rows, the loss, the optimisers.
 * They belong to ops.h and keep its promises. Gradients are F32; an op whose dst is "added to" accumulates, because
 * branches meet and micro-batches add up. Sums over tokens (gradients of weights) run in an order that the number of
 * tokens alone decides, whatever the number of threads. On the CPU they go on from what is there, token by token: the
 * tokens of one call in several calls, one after the other, give the same bits. Those of weight_backward and
 * lora_backward with x in BF16 go on by 32 tokens on AMX: so calls of a multiple of 32 tokens, but for the last. */
#ifndef QR_KERNELS_OPS_TRAIN_H
#define QR_KERNELS_OPS_TRAIN_H

#include "kernels/ops.h"

/* linear_backward: dx[i, c] = sum over o of dy[i, o] · w[o, c], added to dx when accumulate. Weights are
 * rounded to dy's type as in linear (INT8: codes exact; dy · (SCB / 127) of the row is F32, rounded to BF16 with dy
 * BF16, but not to F16 with dy F16, where small gradients would become zero).
 *
 * lora: then what lora_backward does with these arguments, of the same rows, sizes and dx, in one op. Its dy may be
 * another, of which this one is the rounded. dy_room elements after each row of dy may be overwritten: a backend that
 * makes one product of both needs qr_lora_room of them. */
typedef struct qr_linear_backward_args {
    const qr_weight *weight; /* [out, in] */
    const void *dy;          /* [n_rows, out], rows dy_stride apart */
    qr_dtype dy_dtype;       /* act */
    float *dx;               /* [n_rows, in], rows dx_stride apart */
    int64_t n_rows, dy_stride, dx_stride;
    int64_t dy_room; /* above; part of dy_stride */
    bool accumulate;
    bool any_order;                           /* as of linear */
    const struct qr_lora_backward_args *lora; /* NULL: none; above */
} qr_linear_backward_args;

/* Elements of 16 bits for an adapter's part of a row: three parts of its rank, each of whole 16 bytes. */
static inline int64_t qr_lora_room(int32_t rank) { return 3 * (((int64_t)rank + 7) / 8 * 8); }

/* weight_backward: dw[o, c] += sum over i of dy[i, o] · x[i, c], and dbias[o] += sum over i of dy[i, o] where dbias is
 * not NULL. For full fine-tuning and whole trained modules. A backend may take what is below 2^-126 for zero. */
typedef struct qr_weight_backward_args {
    const void *x;    /* [n_rows, in], rows x_stride apart */
    qr_dtype x_dtype; /* act */
    const float *dy;  /* [n_rows, out], rows dy_stride apart */
    float *dw;        /* [out, in] contiguous */
    float *dbias;     /* [out] or NULL */
    int64_t n_rows, in, out, x_stride, dy_stride;
} qr_weight_backward_args;

/* lora_backward: of y += scale · B (A x), one adapter for all rows:
 *     h = A x, db += scale · dyᵀ h, dh = scale · dy B, da += dhᵀ x, dx += dh A.
 * x may be of any act type; everything else is F32.
 *
 * in_pairs, of x in BF16, is as of lora: A, scale · B, h and dh may be pairs, and dy_rounded be taken for dy, which is
 * within 2^-8 of it. Pairs alone move h by 2^-17 Σ |a| |x| at most, dh by 2^-17 Σ |scale · b| |dy|; each term of da and
 * db by 2^-17 of itself more, and of dx by 2^-15. */
typedef struct qr_lora_backward_args {
    const float *a, *b; /* [rank, in], [out, rank] */
    float *da, *db;     /* the same shapes; added to */
    const void *x;      /* [n_rows, in], rows x_stride apart */
    qr_dtype x_dtype;
    const float *dy;        /* [n_rows, out], rows dy_stride apart */
    const void *dy_rounded; /* [n_rows, out], rows dy_rounded_stride apart: dy in the type of x; NULL: not there */
    float *dx;              /* [n_rows, in], rows dx_stride apart; added to; NULL: not wanted */
    int64_t n_rows, in, out, x_stride, dy_stride, dy_rounded_stride, dx_stride;
    int32_t rank;
    float scale;
    bool in_pairs; /* above */
} qr_lora_backward_args;

/* dora_backward: of y = magnitude / norm · z, the norm held fixed as PEFT does:
 *     dmagnitude[o] += sum over i of dy[i, o] · z[i, o] / norm[o]. */
typedef struct qr_dora_backward_args {
    const float *dy;   /* [n_rows, dim], rows dy_stride apart */
    const float *z;    /* [n_rows, dim], rows z_stride apart: W x + scale · B A x */
    const float *norm; /* [dim] */
    float *dmagnitude; /* [dim] */
    int64_t n_rows, dim, dy_stride, z_stride;
} qr_dora_backward_args;

/* rms_norm_backward: with s = 1 / sqrt(mean(x²) + eps), w' = weight + weight_offset, g = dy · w':
 *     dx += s · (g − x · s² · mean(g · x)); dweight += sum over rows of dy · x · s (NULL: not wanted). */
typedef struct qr_rms_norm_backward_args {
    const float *x;      /* what the forward op read: [n_rows, n_groups, dim], rows x_stride apart */
    const float *weight; /* [dim] */
    const float *dy;     /* [n_rows, n_groups, dim], rows dy_stride apart */
    float *dx;           /* [n_rows, n_groups, dim], rows dx_stride apart */
    float *dweight;      /* [dim] or NULL */
    int64_t n_rows, n_groups, dim, x_stride, dy_stride, dx_stride;
    float eps, weight_offset;
    bool accumulate; /* false: dx is overwritten, and may be dy */
} qr_rms_norm_backward_args;

/* layer_norm_backward: the same for LayerNorm; contiguous rows. dweight, dbias [dim] are added to; NULL: not wanted. */
typedef struct qr_layer_norm_backward_args {
    const float *x, *weight, *dy; /* [n_rows, dim], [dim], [n_rows, dim] */
    float *dx;                    /* [n_rows, dim] */
    float *dweight, *dbias;
    int64_t n_rows, dim;
    float eps, weight_offset;
    bool accumulate; /* false: dx is overwritten, and may be dy */
} qr_layer_norm_backward_args;

/* rope_backward: the transpose of what rope multiplies with, in place on a gradient: the inverse rotation, times the
 * attention factor that the tables hold. */
typedef struct qr_rope_backward_args {
    float *dx;                          /* [n_tokens, n_heads, head_dim], rows dx_stride apart */
    const float *cos_table, *sin_table; /* [n_tokens, half] */
    int64_t n_tokens, n_heads, head_dim, half, dx_stride;
    bool interleaved; /* as in rope */
} qr_rope_backward_args;

/* attention_packed: attention over sequences that follow each other in a batch. Token t of sequence s (rows
 * [seq_start[s], seq_start[s + 1])) sees the rows of its own sequence up to itself; window as in attention. q, k, v are
 * [n_tokens, heads, head_dim] views. With round_kv, k and v are rounded first, as a cache would hold them: to F16 if
 * dst is F16, else to BF16.
 * lse[t, h] = log of the sum of exp of the scores, for the backward pass.
 *
 * Where dst has 16 bits, a backend may take q, k, v and the softmax weights, backward also dout and the gradients of
 * the scores, as sums of two BF16 values each. These have 16 bits of mantissa and F32's range, so that no small
 * gradient becomes zero; rounded k and v are exact in them. Products of two low parts may be left out; sums and the
 * softmax are F32. Each value is then within 2^-17 of itself. A sum of products of two of them errs by another 2^-15 of
 * the sum of the absolute products. With dst F32 everything is F32.
 *
 * bf16_products, for dst in BF16, permits what flash attention in BF16 does: every operand of a product (q, k, v, the
 * softmax weights; backward also dout and the gradients of the scores) may be rounded to the nearest BF16. Sums, the
 * softmax, lse and delta stay F32; delta may be of dout as rounded. Each operand is then within 2^-8 of itself, and
 * everything else errs by no more than what follows from that. A score errs by scale · Σ |Δq · k + q · Δk|, and a
 * weight by e^(2E) − 1 of itself, where E is the largest error of a score. A result errs by another 2^-8 of Σ |p · v|.
 * Backward, dp errs by Σ |Δdout · v|, delta by Σ |Δdout · out|, and dq, dk and dv by 2^-8 of the sums of their terms'
 * absolute values for each operand. */
typedef struct qr_attention_packed_args {
    const float *q, *k, *v; /* rows qkv_stride apart */
    void *dst;              /* act, [n_tokens, n_heads · head_dim] contiguous */
    qr_dtype dst_dtype;
    float *lse;               /* [n_tokens, n_heads] */
    const int32_t *seq_start; /* [n_seqs + 1] */
    int64_t n_tokens, qkv_stride;
    int32_t n_heads, n_kv_heads, head_dim, n_seqs;
    int32_t max_seq_tokens; /* the longest sequence */
    float scale, softcap;
    int32_t window;
    const float *sinks; /* [n_heads] or NULL: as in attention, and in lse */
    bool round_kv;
    bool bf16_products; /* above */
} qr_attention_packed_args;

/* attention_packed_backward: dq, dk, dv (overwritten; views with the same stride) from dout [n_tokens, n_heads ·
 * head_dim], recomputing the probabilities from q, k and lse. delta = sum over head_dim of dout · out is computed
 * inside from `out`, what the forward op wrote. A sink has no value, so its gradient is that of its weight alone:
 * dsinks[h] −= sum over tokens of exp(sinks[h] − lse[t, h]) · delta[t, h]. */
typedef struct qr_attention_packed_backward_args {
    qr_attention_packed_args forward; /* q, k, v, lse and shapes of the forward op; dst is its result */
    const float *dout;                /* [n_tokens, n_heads · head_dim] contiguous */
    float *dq, *dk, *dv;              /* rows dqkv_stride apart */
    float *dsinks;                    /* [n_heads] or NULL: not wanted; only where there are sinks */
    int64_t dqkv_stride;
} qr_attention_packed_backward_args;

/* head_gate_backward: dx[i, h, :] = dy · open(gate), dgate = dy · x · open'(gate), where gate_dim is 1 the sum of that
 * over a head. open' is sigmoid(gate) · (1 − sigmoid(gate)), of softplus sigmoid(gate). dx may be dy. dgate has the
 * strides of gate. */
typedef struct qr_head_gate_backward_args {
    qr_head_gate_args forward; /* dst is not read */
    const float *dy;           /* [n_rows, n_heads · dim] contiguous */
    float *dx;                 /* the same */
    float *dgate;
} qr_head_gate_backward_args;

/* conv1d_causal_backward: over whole sequences (no slots). dx is overwritten; dweight [dim, kernel] and dbias [dim] are
 * added to; NULL: not wanted. */
typedef struct qr_conv1d_causal_backward_args {
    qr_conv1d_causal_args forward; /* dst is not read */
    const float *dy;               /* [n_tokens, dim] contiguous */
    float *dx;                     /* [n_tokens, dim], rows dx_stride apart */
    float *dweight, *dbias;
    int64_t dx_stride;
} qr_conv1d_causal_backward_args;

/* gated_delta_backward: over whole sequences (no slots). The states are computed again: once to keep those at the
 * borders of blocks of tokens, then inside each block, from the last block to the first. dqkv, da and db are
 * overwritten; da_log and ddt_bias, as a_log and dt_bias, are added to; NULL: not wanted. */
typedef struct qr_gated_delta_backward_args {
    qr_gated_delta_args forward; /* dst is not read */
    const float *dy;             /* [n_tokens, n_value_heads · value_dim] contiguous */
    float *dqkv;                 /* rows dqkv_stride apart */
    float *da, *db;              /* as a and b, rows dab_stride apart */
    float *da_log, *ddt_bias;
    int64_t dqkv_stride, dab_stride;
} qr_gated_delta_backward_args;

/* state_space_backward: over whole sequences (no slots), with states computed again as gated_delta_backward does. dxbc
 * and ddt are overwritten; da_log, ddt_bias and dskip [n_heads] are added to; NULL: not wanted. */
typedef struct qr_state_space_backward_args {
    qr_state_space_args forward; /* dst is not read */
    const float *dy;             /* [n_tokens, n_heads · head_dim] contiguous */
    float *dxbc;                 /* rows dxbc_stride apart */
    float *ddt;                  /* rows ddt_stride apart */
    float *da_log, *ddt_bias, *dskip;
    int64_t dxbc_stride, ddt_stride;
} qr_state_space_backward_args;

/* activation_backward: dx = dy · fn'(x). dx may be dy, or x, when the strides agree. */
typedef struct qr_activation_backward_args {
    qr_act_fn fn;
    const float *x, *dy; /* [n_rows, dim] */
    float *dx;           /* [n_rows, dim] */
    int64_t n_rows, dim, x_stride, dy_stride, dx_stride;
} qr_activation_backward_args;

/* gate_backward: of fn(g) · u: dg = dy · u · fn'(g), du = dy · fn(g). dg may be g, and du u or dy, when the strides
 * agree. */
typedef struct qr_gate_backward_args {
    qr_act_fn fn;
    const float *g, *u; /* [n_rows, dim], rows g_stride and u_stride apart */
    const float *dy;    /* [n_rows, dim] contiguous */
    float *dg, *du;     /* [n_rows, dim], rows dg_stride and du_stride apart */
    int64_t n_rows, dim, g_stride, u_stride, dg_stride, du_stride;
} qr_gate_backward_args;

/* xielu_backward: dx = dy · xielu'(x), which may be x or dy where the strides agree; and of the learned alphas the sums
 * over all elements, added to what is there, row after row. Between eps and 0 e^… is constant. */
typedef struct qr_xielu_backward_args {
    qr_xielu_args forward;      /* dst is not read */
    const float *dy;            /* [n_rows, dim], rows dy_stride apart */
    float *dx;                  /* [n_rows, dim], rows dx_stride apart */
    float *dalpha_p, *dalpha_n; /* [1]; NULL: not wanted */
    int64_t dy_stride, dx_stride;
} qr_xielu_backward_args;
/* clamped_gate_backward: dg and du; 0 where g or u is beyond its limit. dg may be g, and du u, when the strides agree.
 */
typedef struct qr_clamped_gate_backward_args {
    qr_clamped_gate_args forward; /* dst is not read */
    const float *dy;              /* [n_rows, dim] contiguous */
    float *dg, *du;               /* [n_rows, dim], rows dgu_stride apart */
    int64_t dgu_stride;
} qr_clamped_gate_backward_args;

/* cross_entropy: per row the loss −log softmax(c(logits))[target] and, in place, its gradient with respect to the
 * logits before the soft-cap c (c(x) = cap · tanh(x / cap); cap 0: none), times dloss and the row's weight. A target of
 * −1 gives loss 0 and a zero gradient. loss is F64 inside, stored F32. */
typedef struct qr_cross_entropy_args {
    float *logits;         /* [n_rows, vocab] contiguous, before the soft-cap; replaced by their gradient */
    const int32_t *target; /* [n_rows] */
    float *loss;           /* [n_rows] */
    const float *weight;   /* [n_rows], of the gradients; NULL: all 1 */
    int64_t n_rows, vocab;
    float softcap, dloss;
} qr_cross_entropy_args;

/* embedding_backward: dtable[ids[i], :] += dy[i, :] · scale, i ascending. */
typedef struct qr_embedding_backward_args {
    const int32_t *ids; /* [n_tokens] */
    const float *dy;    /* [n_tokens, dim] contiguous */
    float *dtable;      /* [vocab, dim] contiguous */
    int64_t n_tokens, dim, vocab;
    float scale;
    bool first_beyond; /* as in qr_embedding_args */
} qr_embedding_backward_args;

/* scatter_rows: dst[rows[i], :] = src[i, :]; the other rows of dst are zeroed. rows ascend without repetition. */
typedef struct qr_scatter_rows_args {
    const float *src;    /* [n_rows, dim] */
    const int32_t *rows; /* [n_rows] */
    float *dst;          /* [n_dst_rows, dim] */
    int64_t n_rows, n_dst_rows, dim;
} qr_scatter_rows_args;

/* dropout: dst[i, c] = x[i, c] / (1 − p), or 0 with probability p: a pure function of (key, row_key[i], c) through
 * Philox (base/random.h: counter {c / 4, row_key low, row_key high, 0}, word c mod 4, dropped when below p · 2³²). */
typedef struct qr_dropout_args {
    const void *x;          /* [n_rows, dim], rows x_stride apart */
    qr_dtype x_dtype;       /* act; of dst too */
    void *dst;              /* [n_rows, dim], rows dst_stride apart; may be x */
    const int64_t *row_key; /* [n_rows] */
    uint64_t key;
    float p;
    int64_t n_rows, dim, x_stride, dst_stride;
} qr_dropout_args;

/* round_act: dst = src converted to the activation type (a copy when it is F32). */
typedef struct qr_round_act_args {
    const float *src; /* [n_rows, dim], rows src_stride apart */
    void *dst;        /* [n_rows, dim], rows dst_stride apart */
    qr_dtype dst_dtype;
    int64_t n_rows, dim, src_stride, dst_stride;
} qr_round_act_args;

/* store_weight: every element of a weight of a plain format (F32, F16, BF16) from F32, rounded to nearest even: a
 * trained matrix after its master values have changed. */
typedef struct qr_store_weight_args {
    const float *src;        /* [rows, cols] contiguous */
    const qr_weight *weight; /* [rows, cols]: its data are written */
} qr_store_weight_args;

/* sum_squares, of each QR_SQUARES_CHUNK elements, of which the last may be fewer: the sum of x², F64, in a fixed order,
 * infinities and NaN included; n_nonfinite counts those. The caller adds the chunks up in their order, so that it does
 * not matter which rank has computed which. */
enum { QR_SQUARES_CHUNK = 4096 };
typedef struct qr_sum_squares_args {
    const float *x; /* [n] */
    int64_t n;
    double *dst;          /* [ceil(n / QR_SQUARES_CHUNK)] */
    int64_t *n_nonfinite; /* the same */
} qr_sum_squares_args;

/* Optimisers. g is scaled by grad_scale first (clipping, 1 / tokens). lr, step ≥ 1.
 * adamw: torch.optim.AdamW: p −= lr · wd · p; m, v updated; p −= lr / (1 − β1^t) · m / (sqrt(v / (1 − β2^t)) + eps).
 * With of_8bit instead what bitsandbytes does to tensors too small for 8-bit states: the decay after the update, eps
 * scaled by sqrt(1 − β2^t), and bits equal on every backend, F32 with every product and sum rounded. */
typedef struct qr_adamw_args {
    float *p;       /* [n] */
    const float *g; /* [n] */
    float *m, *v;   /* [n] */
    int64_t n, step;
    float grad_scale, lr, beta1, beta2, eps, weight_decay;
    bool of_8bit;
} qr_adamw_args;

/* adamw8bit: the same with states in blocks of 256 of the dynamic maps, as bitsandbytes stores them (quant/dynamic8.h;
 * decay after the update, m's code moved by one where its sign changed). An element whose gradient is not finite keeps
 * p and forgets m and v. The codes are equal on every backend, so this is F32 with every product and sum rounded, as in
 * ref/optimizer.c. */
typedef struct qr_adamw8bit_args {
    float *p;
    const float *g;
    uint8_t *m, *v;             /* [n] codes: signed map, unsigned map */
    float *m_absmax, *v_absmax; /* [ceil(n / 256)] */
    int64_t n, step;
    float grad_scale, lr, beta1, beta2, eps, weight_decay;
} qr_adamw8bit_args;

/* sgd: torch.optim.SGD with momentum: g += wd · p; m = momentum · m + g (m = g at step 1); p −= lr · m. */
typedef struct qr_sgd_args {
    float *p;
    const float *g;
    float *m; /* [n] */
    int64_t n, step;
    float grad_scale, lr, momentum, weight_decay;
} qr_sgd_args;

/* adafactor: transformers' Adafactor with scale_parameter=False, relative_step=False, no first moment: factored second
 * moments for matrices (rows > 1), plain ones for vectors; update clipped by its root mean square. The moments decay by
 * 1 − step^decay_rate (−0.8). What update holds afterwards is not said. */
typedef struct qr_adafactor_args {
    float *p; /* [rows, cols] */
    const float *g;
    float *row_moment; /* [rows], or [cols] unfactored (rows 1) */
    float *col_moment; /* [cols]; unused unfactored */
    float *update;     /* [rows, cols] scratch */
    int64_t rows, cols, step;
    float grad_scale, lr, eps1, clip_threshold, decay_rate, weight_decay;
} qr_adafactor_args;

#endif

/* Every op: what it computes, the shapes, types and aliasing of its arguments, and what a backend must promise.
 *
 * All pointers are device memory of the backend that runs the op, except where "host" is said. Rows of activations
 * carry a stride in elements (≥ the row's length), so that parts of a fused matrix are views. Unless said otherwise
 * dst may not overlap a source.
 *
 * The promise that makes results repeatable (docs/architecture.md): the bits of a row of output depend on that row's
 * inputs and on the weights alone. They do not depend on how many rows there are, on their order, on how a sequence is
 * cut into steps, nor on the number of threads. Sums over `cols` run in an order fixed by cols; attention runs over K/V
 * blocks aligned to absolute positions.
 *
 * Activations are F32, BF16 or F16 ("act" below: the compute type of the model); sums are F32 or wider everywhere. What
 * is too large for F16 becomes infinite, as IEEE 754 rounds, and stays so. */
#ifndef QR_KERNELS_OPS_H
#define QR_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "kernels/weight.h"

/* One line an op; those of experts are in ops_experts.h, those of streams in ops_streams.h. Adding a line makes the
 * backends' tables and the tests' table refuse to compile until they have it.
 */
#define QR_FORWARD_OPS(X) \
    X(quantize)           \
    X(embedding)          \
    X(gather_rows)        \
    X(rms_norm)           \
    X(layer_norm)         \
    X(linear)             \
    X(route)              \
    X(expert_fetch)       \
    X(expert_linear)      \
    X(expert_bias)        \
    X(expert_sum)         \
    X(expert_lora)        \
    X(share_rows)         \
    X(lora)               \
    X(dora_norm)          \
    X(dora)               \
    X(head_linear)        \
    X(rope_table)         \
    X(rope)               \
    X(kv_write)           \
    X(attention)          \
    X(copy_heads)         \
    X(head_gate)          \
    X(conv1d_causal)      \
    X(gated_delta)        \
    X(state_space)        \
    X(activation)         \
    X(gate)               \
    X(clamped_gate)       \
    X(xielu)              \
    X(gaussian_topk)      \
    X(stream_coefs)       \
    X(stream_predict)     \
    X(stream_correct)     \
    X(stream_level)       \
    X(add)                \
    X(scale)              \
    X(scale_columns)      \
    X(softcap)            \
    X(nll)                \
    X(sample)

/* Their arguments are in ops_train.h. */
#define QR_TRAIN_OPS(X)          \
    X(linear_backward)           \
    X(weight_backward)           \
    X(expert_linear_backward)    \
    X(expert_share_backward)     \
    X(expert_lora_backward)      \
    X(expert_weight_backward)    \
    X(expert_bias_backward)      \
    X(route_backward)            \
    X(share_rows_backward)       \
    X(lora_backward)             \
    X(dora_backward)             \
    X(rms_norm_backward)         \
    X(layer_norm_backward)       \
    X(rope_backward)             \
    X(attention_packed)          \
    X(attention_packed_backward) \
    X(head_gate_backward)        \
    X(conv1d_causal_backward)    \
    X(gated_delta_backward)      \
    X(state_space_backward)      \
    X(activation_backward)       \
    X(gate_backward)             \
    X(clamped_gate_backward)     \
    X(xielu_backward)            \
    X(gaussian_topk_backward)    \
    X(stream_coefs_backward)     \
    X(stream_predict_backward)   \
    X(stream_correct_backward)   \
    X(stream_level_backward)     \
    X(cross_entropy)             \
    X(embedding_backward)        \
    X(scatter_rows)              \
    X(dropout)                   \
    X(round_act)                 \
    X(store_weight)              \
    X(sum_squares)               \
    X(adamw)                     \
    X(adamw8bit)                 \
    X(sgd)                       \
    X(adafactor)

#define QR_OPS(X) QR_FORWARD_OPS(X) QR_TRAIN_OPS(X)

typedef enum qr_op {
#define QR_X(name) QR_OP_##name,
    QR_OPS(QR_X)
#undef QR_X
        QR_OP_COUNT
} qr_op;

/* quantize: canonical codes and scales of n_rows whole rows of a matrix, read from host memory in the type the file
 * has. The rows must begin at a block boundary of the matrix (first row · cols is a multiple of block; any multiple of
 * QR_WEIGHT_ROW_GROUP does for blocks up to 64), which the op cannot see. Bit-equal to quant/.
 * F32, F16 and BF16 targets are conversions (round to nearest even). Thread-safe: callers run it from many threads, one
 * call is single-threaded and needs no workspace. NF4_DQ is NF4 here: nesting needs the whole matrix and is done by
 * quant/nf4.h. */
typedef struct qr_quantize_args {
    qr_weight_format format;
    int block;
    qr_dtype src_dtype; /* F32, F16, BF16 */
    const void *src;    /* host, [n_rows, cols] contiguous, any alignment (a mapped file) */
    int64_t n_rows, cols;
    void *codes;   /* host, 64-byte aligned: canonical codes of these rows */
    float *absmax; /* host; NF4: [ceil(n_rows · cols / block)]; INT8: [n_rows]; else unused */
} qr_quantize_args;

/* embedding: dst[i, :] = table[ids[i], :] · scale, or added to dst when accumulate. scale is applied in F32. An id of
 * −1 − k stands for sampled[k].token: of a token that the host has not read yet. */
typedef struct qr_embedding_args {
    const qr_weight *table;           /* [vocab, dim]; F32, F16, BF16, INT8 */
    const int32_t *ids;               /* [n_tokens], each in [−n_sampled, vocab), or with first_beyond any above */
    const struct qr_sampled *sampled; /* [n_sampled], what the sample op wrote; NULL: no id is negative */
    int64_t n_sampled;
    float *dst; /* [n_tokens, dim], contiguous */
    int64_t n_tokens;
    float scale;
    bool accumulate;
    bool first_beyond; /* an id that the table has no row for has row 0 */
} qr_embedding_args;

/* gather_rows: dst[i, :] = src[rows[i], :]. */
typedef struct qr_gather_rows_args {
    const float *src;    /* [n_src_rows, dim] contiguous */
    const int32_t *rows; /* [n_rows] */
    float *dst;          /* [n_rows, dim] contiguous */
    int64_t n_rows, dim;
} qr_gather_rows_args;

/* rms_norm: dst = x / sqrt(mean(x²) + eps) · (weight + weight_offset), over groups of `dim` elements. A row holds
 * n_groups groups side by side that share the weight: the heads, for QK norm; else n_groups = 1. dst may be src when
 * the types and strides agree. */
typedef struct qr_rms_norm_args {
    const float *src;    /* [n_rows, n_groups, dim], rows src_stride apart */
    const float *weight; /* [dim] */
    void *dst;           /* act or F32, [n_rows, n_groups, dim], rows dst_stride apart */
    qr_dtype dst_dtype;
    int64_t n_rows, n_groups, dim, src_stride, dst_stride;
    float eps;
    float weight_offset; /* 1 for Gemma, else 0 */
} qr_rms_norm_args;

/* layer_norm: dst = (x − mean) / sqrt(var + eps) · (weight + weight_offset) + bias. bias may be NULL. */
typedef struct qr_layer_norm_args {
    const float *src;           /* [n_rows, dim] contiguous */
    const float *weight, *bias; /* [dim] */
    void *dst;                  /* act, [n_rows, dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_rows, dim;
    float eps;
    float weight_offset; /* 1 for Nemotron, else 0 */
} qr_layer_norm_args;

/* linear: y[i, o] = sum over c of x[i, c] · w[o, c] (+ bias[o]) (+ y[i, o] when accumulate; added last).
 * The weights are rounded to x's type after dequantisation (INT8: the codes are exact and the row's scale SCB / 127
 * multiplies the sum); with x F32 they stay F32. With x in BF16 a backend may take integers of 16 bits instead, as
 * int16_sum.h defines: weights are then nearer to what was dequantised, and a value of x is off by at most 2^-15 of the
 * largest of 64.
 *
 * any_order, for x in 16 bits, gives up the promise at the top of this file: the order of a sum may depend on all
 * sizes, including the number of rows, and on where the operands begin within 256 bytes. The same call still has the
 * same bits. For training, where the bits of a row may depend on its batch.
 *
 * lora: then y += what lora computes with these arguments, of the same rows, outputs and y; its x may be another. One
 * op for both, so that a backend may make one product of them. */
typedef struct qr_linear_args {
    const qr_weight *weight; /* [out, in] */
    const float *bias;       /* [out] or NULL */
    const void *x;           /* [n_rows, in], rows x_stride apart */
    qr_dtype x_dtype;        /* act */
    float *y;                /* [n_rows, out], rows y_stride apart */
    int64_t n_rows, x_stride, y_stride;
    bool accumulate;
    bool any_order;                  /* above */
    const struct qr_lora_args *lora; /* NULL: none; above */
} qr_linear_args;

/* lora: y[i, :] += scale_a · B_a (A_a x[i, :]) for rows whose adapter a = row_adapter[i] is not −1 and has this module
 * (rank > 0). Several adapters in one batch. A_a x is kept in F32.
 *
 * in_pairs, for x in BF16, says that all rows have one adapter. It gives up the order of sums, as any_order of linear
 * does, and some precision: A, scale · B and t = A x may each be the sum of two BF16 values, within 2^-17 of itself,
 * and products of two low parts may be left out. That moves t by 2^-17 Σ |a| |x| at most, and y by 2^-15 Σ |scale · b|
 * |t| more. Where F32 gives an infinity, the result may then be NaN. For training, as any_order is. */
typedef struct qr_lora_factor {
    const float *a; /* [rank, in] */
    const float *b; /* [out, rank] */
    int32_t rank;   /* 0: this adapter leaves the module alone */
    float scale;
    const float *ratio; /* [out], DoRA: what the module's output is scaled by; NULL: plain LoRA. The lora op does not
                         * look at it. */
} qr_lora_factor;

typedef struct qr_lora_args {
    const qr_lora_factor *factors; /* [n_adapters] */
    const int32_t *row_adapter;    /* [n_rows] */
    const void *x;                 /* [n_rows, in], rows x_stride apart */
    qr_dtype x_dtype;
    float *y; /* [n_rows, out], rows y_stride apart */
    int64_t n_rows, in, out, x_stride, y_stride;
    int32_t n_adapters, max_rank;
    bool in_pairs; /* above */
} qr_lora_args;

/* dora_norm: the length of every row of a matrix with its update, and what DoRA scales the row's output by:
 *     norm[o] = ‖w[o, :] + scale · (B A)[o, :]‖, ratio[o] = magnitude[o] / norm[o].
 * Weights are dequantised to F32, whatever the type of activations. */
typedef struct qr_dora_norm_args {
    const qr_weight *weight; /* [out, in] */
    const float *a, *b;      /* [rank, in], [out, rank] */
    int32_t rank;
    float scale;
    const float *magnitude; /* [out]; NULL: ratio is not wanted */
    float *norm;            /* [out]; NULL: not wanted */
    float *ratio;           /* [out]; may be magnitude */
} qr_dora_norm_args;

/* dora: dst[i, o] = (ratio_a[o] − minus) · (src[i, o] − bias[o]), added to dst when accumulate, for rows whose adapter
 * a = row_adapter[i] is not −1 and has ratios for this module. The other rows of dst are unchanged. dst may be src.
 * With minus 1 and accumulate, on the output of linear and lora: y = bias + ratio · (W x + scale · B A x). */
typedef struct qr_dora_args {
    const qr_lora_factor *factors; /* [n_adapters] */
    const int32_t *row_adapter;    /* [n_rows] */
    const float *src;              /* [n_rows, dim], rows src_stride apart */
    const float *bias;             /* [dim] or NULL */
    float *dst;                    /* [n_rows, dim], rows dst_stride apart */
    int64_t n_rows, dim, src_stride, dst_stride;
    int32_t n_adapters;
    float minus;
    bool accumulate;
} qr_dora_args;

/* head_linear: a product for each head, of x with the head's own rows of a matrix. w_h is `dim` rows of w, from row
 * first_row + h · row_stride on.
 *     y[i, h, o] = ratio[o] · (sum over c of w_h[o, c] · x[i, h, c] + scale · B_h (A x[i, h, :])), or, by_column,
 *     y[i, h, c] = sum over o of w_h[o, c] · x'[o] + scale · Aᵀ (B_hᵀ x'), with x'[o] = ratio[o] · x[i, h, o].
 * Weights are dequantised to F32, whatever the type of x. The terms of A and B are those of the row's adapter, where
 * row_adapter gives it one that has this matrix: they are factors of the whole matrix, of which B_h and the ratios are
 * the head's rows; ratio is 1 for an adapter without DoRA. */
typedef struct qr_head_linear_args {
    const qr_weight *weight; /* [rows, cols] */
    int64_t first_row, row_stride, n_heads, dim;
    bool by_column;
    const void *x; /* [n_rows, n_heads, cols], by_column [n_rows, n_heads, dim]; rows and heads are strides apart */
    void *y;       /* [n_rows, n_heads, dim], by_column [n_rows, n_heads, cols]; the same */
    qr_dtype x_dtype, y_dtype; /* act or F32 */
    int64_t n_rows, x_stride, x_head_stride, y_stride, y_head_stride;
    const struct qr_lora_factor *factors; /* [n_adapters]; NULL: none */
    const int32_t *row_adapter;           /* [n_rows]; read where there are factors */
    int32_t n_adapters, max_rank;
} qr_head_linear_args;

/* rope_table: cos and sin of position · inv_freq (the product and the functions in F32, as transformers does), times
 * the slot's attention factor (YaRN, LongRoPE; 1 otherwise). Row i uses the frequencies of slot token_slot[i].
 * temperature_tokens > 0: times 1 + temperature_beta · log(1 + floor(position / temperature_tokens)) too, which is how
 * Ministral 3 and Llama 4 scale queries beyond their trained length. */
typedef struct qr_rope_table_args {
    const float *inv_freq;        /* [n_slots, half] */
    const float *factor;          /* [n_slots] */
    const int32_t *token_slot;    /* [n_tokens] */
    const int32_t *position;      /* [n_tokens] */
    float *cos_table, *sin_table; /* [n_tokens, half] */
    int64_t n_tokens, half;
    float temperature_beta;
    int32_t temperature_tokens; /* 0: none */
} qr_rope_table_args;

/* rope: rotates, in place, pairs of the first 2 · half elements of each head: elements j and j + half ("rotate half"),
 * or, interleaved, 2 · j and 2 · j + 1. Pair j has the angle of column j of the tables. */
typedef struct qr_rope_args {
    float *x;                           /* [n_tokens, n_heads, head_dim], rows x_stride apart */
    const float *cos_table, *sin_table; /* [n_tokens, half] */
    int64_t n_tokens, n_heads, head_dim, half, x_stride;
    bool interleaved;
} qr_rope_args;

/* The K/V of one layer inside a page of QR_KV_PAGE_TOKENS tokens:
 *     K elements [n_kv_heads, 16, head_dim], K scales F32 [n_kv_heads, 16] (INT8 only), then V the same, unless keys
 *     are the values too;
 * the whole rounded up to 64 bytes. INT8: x ≈ code · scale, scale = max|x| / 127 over the head's elements of a token,
 * code = rint(x · (127 / max|x|)). All are zero when max|x| is 0 or so small that 127 / max|x| overflows. */
enum { QR_KV_PAGE_TOKENS = 16 };

typedef enum qr_kv_format { QR_KV_F32, QR_KV_BF16, QR_KV_F16, QR_KV_INT8 } qr_kv_format;

typedef struct qr_kv_layout {
    qr_kv_format format;
    int32_t n_kv_heads;
    int32_t head_dim;
    bool keys_are_values; /* V is K: it is neither stored nor written */
} qr_kv_layout;

/* Byte offsets inside one layer's part of a page. */
size_t qr_kv_element_bytes(qr_kv_format format);
size_t qr_kv_v_offset(const qr_kv_layout *layout);     /* where V begins: at 0 where it is K, which begins there */
size_t qr_kv_scale_offset(const qr_kv_layout *layout); /* of K's scales from K, and of V's from V */
size_t qr_kv_layer_bytes(const qr_kv_layout *layout);  /* a multiple of 64 */

/* kv_write: stores row i of k and v as token (position[i] mod 16) of page token_page[i]; −1 skips the row. */
typedef struct qr_kv_write_args {
    qr_kv_layout layout;
    const float *k, *v; /* [n_tokens, n_kv_heads, head_dim], rows k_stride and v_stride apart; v is not read where keys
                         * are the values */
    int64_t n_tokens, k_stride, v_stride;
    const int32_t *token_page; /* [n_tokens] */
    const int32_t *position;   /* [n_tokens] */
    unsigned char *pages;      /* page p of this layer begins at pages + p · page_stride_bytes */
    size_t page_stride_bytes;
} qr_kv_write_args;

/* attention: for token t of sequence s at position p, head h (K/V head h / (n_heads / n_kv_heads)):
 *     a[j] = softcap(scale · q · k[j]) for j in [max(0, p − window + 1), p], or [0, p] when window is 0;
 *     dst = sum softmax(a)[j] · v[j].
 * With sinks, the softmax is over these scores and sinks[h], which has no value: it takes its share of the weights.
 * Sequence s owns rows [q_start[s], q_start[s + 1]) of q, at positions first_position[s], +1, …; position j lies in
 * page block_table[s · table_stride + j / 16]. K/V of all positions read here, those of this step included, are already
 * in their pages. Blocks wholly outside the window may have table entries of −1. softcap(x) = c · tanh(x / c), c > 0.
 *
 * Where dst has 16 bits and the pages are not F32, a backend may split q and the softmax weights into sums of two
 * values of the type of K and V (INT8: BF16, which holds the codes). Such a sum is within 2^-17 of the value in BF16,
 * 2^-23 in F16; in F16 q loses what is below 2^-25, and is infinite beyond the range. INT8: K's scale multiplies the
 * score, V's the weight before it is split. K and V are used as stored; sums and softmax are F32. Where F32 gives an
 * infinity, the result may then be NaN. A position that a token does not see has no effect on it, whatever it holds. */
typedef struct qr_attention_args {
    qr_kv_layout layout;
    const float *q; /* [n_tokens, n_heads, head_dim], rows q_stride apart; not yet scaled */
    void *dst;      /* act, [n_tokens, n_heads · head_dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_tokens, q_stride;
    int32_t n_heads, n_seqs;
    const int32_t *q_start;        /* [n_seqs + 1] */
    const int32_t *first_position; /* [n_seqs] */
    const int32_t *block_table;    /* [n_seqs, table_stride] */
    int64_t table_stride;
    const unsigned char *pages;
    size_t page_stride_bytes;
    float scale;
    float softcap;      /* 0: none */
    int32_t window;     /* tokens a position sees, itself included; 0: all */
    const float *sinks; /* [n_heads] or NULL */
} qr_attention_args;

typedef enum qr_act_fn {
    QR_ACT_SILU,
    QR_ACT_GELU_TANH,
    QR_ACT_GELU_ERF,
    QR_ACT_RELU2, /* max(x, 0)² */
    QR_ACT_NONE,  /* x itself */
    QR_ACT_SIGMOID
} qr_act_fn;

/* copy_heads: dst[i, h, :] = src[i, h, :], or dst += src with accumulate. Heads are a head stride apart, in both. */
typedef struct qr_copy_heads_args {
    const void *src; /* [n_rows, n_heads, dim], rows src_stride apart, heads src_head_stride apart (0: one is for all);
                      * NULL: zeros */
    void *dst;
    qr_dtype dtype; /* of both: F32, BF16 or F16; with accumulate F32 */
    int64_t n_rows, n_heads, dim, src_stride, src_head_stride, dst_stride, dst_head_stride;
    bool accumulate;
} qr_copy_heads_args;

/* head_gate: dst[i, h, :] = x[i, h, :] · open(gate[i, h, :]), or where gate_dim is 1 · open(gate[i, h, 0]). open is the
 * sigmoid, or softplus, ln(1 + e^gate). dst may be x. */
typedef struct qr_head_gate_args {
    const void *x;     /* act, [n_rows, n_heads · dim] contiguous */
    const float *gate; /* [n_rows, n_heads, gate_dim], rows gate_stride apart, heads gate_head_stride apart */
    void *dst;         /* [n_rows, n_heads · dim] contiguous */
    qr_dtype dtype;    /* of x and dst */
    int64_t n_rows, n_heads, dim;
    int64_t gate_dim; /* dim, or 1: a gate for each head as a whole */
    int64_t gate_stride, gate_head_stride;
    bool by_softplus;
} qr_head_gate_args;

/* The sequences of a batch, for ops that carry a state along each of them. Sequence s owns rows [start[s], start[s +
 * 1]), at positions first_position[s], +1, …. Its state is slot[s] of `states`. It is read where first_position is not
 * 0, and then holds what the same op left there after the position before; at position 0 it is zero, whatever the
 * memory holds. Afterwards it is that of the last row. A slot of −1, or slot NULL, has no memory: the sequence begins
 * from zero and its state is not kept. No two sequences have the same slot.
 * A state is F32 after every token, so that its bits do not depend on how a sequence is cut. */
typedef struct qr_recurrence {
    int32_t n_seqs;
    int32_t max_seq_tokens;        /* the longest sequence; read by the backward ops alone */
    const int32_t *start;          /* [n_seqs + 1] */
    const int32_t *first_position; /* [n_seqs]; NULL: all 0 */
    const int32_t *slot;           /* [n_seqs]; NULL: all −1 */
    float *states;                 /* slot i begins at states + i · state_stride */
    int64_t state_stride;
} qr_recurrence;

/* conv1d_causal: a convolution over the tokens of each sequence, every channel for itself:
 *     dst[t, c] = fn(bias[c] + sum over j of weight[c, j] · x[t − kernel + 1 + j, c]), j ascending.
 * Rows before the sequence count as 0. The state is the last kernel − 1 rows of x, [kernel − 1, dim], oldest first. */
typedef struct qr_conv1d_causal_args {
    qr_act_fn fn;
    const float *x;      /* [n_tokens, dim], rows x_stride apart */
    const float *weight; /* [dim, kernel] */
    const float *bias;   /* [dim]; NULL: none */
    float *dst;          /* [n_tokens, dim] contiguous */
    int64_t n_tokens, dim, x_stride;
    int32_t kernel; /* at most QR_CONV_MAX_KERNEL */
    qr_recurrence sequences;
} qr_conv1d_causal_args;

enum { QR_CONV_MAX_KERNEL = 8 };

/* gated_delta: the gated delta rule (Yang et al., "Gated Delta Networks", 2024) as Qwen3-Next and Qwen3.5 have it. For
 * a token and value head h, with q and k of key head h / (n_value_heads / n_key_heads):
 *     q' = q / sqrt(sum q² + 1e-6) / sqrt(key_dim), k' = k / sqrt(sum k² + 1e-6),
 *     decay = exp(−exp(a_log[h]) · softplus(a[h] + dt_bias[h])), beta = sigmoid(b[h]), or twice that,
 *     delta = beta · (v − decay · stateᵀ k'), state = decay · state + k' deltaᵀ, dst = stateᵀ q'.
 * The state is [n_value_heads, key_dim, value_dim]. With decays_channels (Kimi Team, "Kimi Linear", 2025) every channel
 * of a key has a decay of its own, of a[h, i] + dt_bias[h, i], and so has each row of the state:
 *     delta = beta · (v − (decay · state)ᵀ k'), state[i] = decay[i] · state[i] + k'[i] delta. */
typedef struct qr_gated_delta_args {
    const float *qkv;             /* [n_tokens, 2 · n_key_heads · key_dim + n_value_heads · value_dim]: [q | k | v],
                                   * rows qkv_stride apart */
    const float *a, *b;           /* [n_tokens, n_value_heads], rows ab_stride apart; a: [n_tokens, n_value_heads,
                                   * key_dim] with decays_channels */
    const float *a_log, *dt_bias; /* [n_value_heads]; dt_bias: [n_value_heads, key_dim] with decays_channels */
    float *dst;                   /* [n_tokens, n_value_heads · value_dim] contiguous */
    int64_t n_tokens, qkv_stride, ab_stride;
    int32_t n_key_heads, n_value_heads, key_dim, value_dim; /* n_key_heads divides n_value_heads */
    bool doubles_beta;    /* OLMo Hybrid: a state may be overwritten by the opposite of what it holds */
    bool decays_channels; /* Kimi Linear */
    qr_recurrence sequences;
} qr_gated_delta_args;

/* Decays of a value head. */
static inline int32_t qr_delta_decays(const qr_gated_delta_args *args) {
    return args->decays_channels ? args->key_dim : 1;
}

/* state_space: a selective state space as Mamba-2 has it (Dao and Gu, "Transformers are SSMs", 2024). For a token and
 * head h, with B and C of group h / (n_heads / n_groups):
 *     step = softplus(dt[h] + dt_bias[h]), decay = exp(−exp(a_log[h]) · step),
 *     state = decay · state + B (step · x)ᵀ, dst = stateᵀ C + skip[h] · x.
 * The state is [n_heads, state_dim, head_dim]. */
typedef struct qr_state_space_args {
    const float *xbc; /* [n_tokens, n_heads · head_dim + 2 · n_groups · state_dim]: [x | B | C], rows
                       * xbc_stride apart */
    const float *dt;  /* [n_tokens, n_heads], rows dt_stride apart */
    const float *a_log, *dt_bias, *skip; /* [n_heads] */
    float *dst;                          /* [n_tokens, n_heads · head_dim] contiguous */
    int64_t n_tokens, xbc_stride, dt_stride;
    int32_t n_heads, n_groups, head_dim, state_dim; /* n_groups divides n_heads */
    qr_recurrence sequences;
} qr_state_space_args;

/* activation: dst = fn(x). */
typedef struct qr_activation_args {
    qr_act_fn fn;
    const float *x; /* [n_rows, dim], rows x_stride apart */
    void *dst;      /* act, [n_rows, dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_rows, dim, x_stride;
} qr_activation_args;

/* gate: dst = fn(g) · u. dst may be u where that is F32 and contiguous. */
typedef struct qr_gate_args {
    qr_act_fn fn;
    const float *g, *u; /* [n_rows, dim], rows g_stride and u_stride apart */
    void *dst;          /* act, [n_rows, dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_rows, dim, g_stride, u_stride;
} qr_gate_args;

/* clamped_gate: with g' = min(g, limit) and u' = u held to ±limit: dst = g' · sigmoid(alpha · g') · (u' + 1), as
 * gpt-oss has it. */
typedef struct qr_clamped_gate_args {
    const float *g, *u; /* [n_rows, dim], rows stride apart */
    void *dst;          /* act, [n_rows, dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_rows, dim, stride;
    float alpha, limit; /* positive */
} qr_clamped_gate_args;

/* xielu: the activation of Apertus (Huang, "Deriving Activation Functions Using Integration", 2024). With
 * p = softplus(alpha_p[0]), n = beta[0] + softplus(alpha_n[0]):
 *     dst = p · x² + beta[0] · x where x > 0, else n · (e^min(x, eps[0]) − 1 − x) + beta[0] · x. */
typedef struct qr_xielu_args {
    const float *x;                              /* [n_rows, dim], rows x_stride apart */
    const float *alpha_p, *alpha_n, *beta, *eps; /* [1]; eps is negative, and next to 0 */
    void *dst;                                   /* act, [n_rows, dim] contiguous */
    qr_dtype dst_dtype;
    int64_t n_rows, dim, x_stride;
} qr_xielu_args;

/* add: x += y, elementwise over n elements. */
typedef struct qr_add_args {
    float *x;
    const float *y;
    int64_t n;
} qr_add_args;

/* scale: x = factor · x, in place over n elements; with `by`, x = (factor · by[0]) · x. */
typedef struct qr_scale_args {
    float *x;
    int64_t n;
    float factor;
    const float *by; /* [1] or NULL */
} qr_scale_args;

/* scale_columns: x[i, j] = factor · x[i, j], in place, with the factor of the part that column j is of. Parts are one
 * after the other from column 0 on; what follows the last one stays. */
enum { QR_MAX_SCALED_PARTS = 5 };
typedef struct qr_scaled_part {
    int64_t n; /* columns */
    float factor;
} qr_scaled_part;
typedef struct qr_scale_columns_args {
    float *x; /* rows x_stride apart */
    int64_t n_rows, x_stride;
    qr_scaled_part parts[QR_MAX_SCALED_PARTS]; /* of n 0 where there are fewer */
} qr_scale_columns_args;

/* softcap: x = cap · tanh(x / cap), in place over n elements. */
typedef struct qr_softcap_args {
    float *x;
    int64_t n;
    float cap;
} qr_softcap_args;

/* nll: dst[i] = log(sum over v of exp(logits[i, v])) − logits[i, target[i]]. The exponentials, of the differences from
 * the largest logit, may be F32; sums and the rest are F64. */
typedef struct qr_nll_args {
    const float *logits;   /* [n_rows, vocab] contiguous */
    const int32_t *target; /* [n_rows] */
    float *dst;            /* [n_rows] */
    int64_t n_rows, vocab;
} qr_nll_args;

/* sample: samples tokens from rows of logits. With w[v] = exp((logits[v] − largest) / temperature) in F64, and ids in
 * falling order of their logits, the lower id first among equals:
 *   - temperature 0 takes the first id;
 *   - top_k keeps the first top_k ids; of those, top_p keeps the fewest first ones whose w sum to at least top_p of all
 *     the w that top_k left; of those, min_p keeps the ones with w ≥ min_p. The first id is always kept, an id whose w
 *     is 0 never.
 *   - The sample is the first kept id at which the sum of w, taken in that order, exceeds uniform · (the sum of all
 *     kept w). Where nothing is dropped (top_k 0, top_p 1, min_p 0), the order is that of the ids.
 * Sums are F64, sequential over kept ids, in an order fixed by vocab and the qr_sample_params alone. Two backends
 * sample the same token unless the order of additions, or the last bit of exp, decides. A row with a value that is not
 * finite gives is_finite 0, token 0 and logprob 0. */
typedef struct qr_sample_params {
    double uniform;    /* in [0, 1) */
    int32_t row;       /* of logits; several samples may share one */
    float temperature; /* 0: the most likely token */
    int32_t top_k;     /* 0: all */
    float top_p;       /* 1: all */
    float min_p;       /* 0: all */
    int32_t wants_logprob;
} qr_sample_params;

typedef struct qr_sampled {
    int32_t token;
    int32_t is_finite;
    float logprob; /* log of the token's share of exp(logits), whatever the temperature; 0 where it is not wanted */
} qr_sampled;

typedef struct qr_sample_args {
    const float *logits;             /* [n_rows, vocab] contiguous */
    const qr_sample_params *samples; /* [n_samples] */
    qr_sampled *dst;                 /* [n_samples] */
    int64_t n_samples, vocab;
} qr_sample_args;

#include "kernels/ops_experts.h"
#include "kernels/ops_streams.h"
#include "kernels/ops_train.h"

#endif

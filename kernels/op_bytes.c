#include "kernels/op_bytes.h"

#include <stdio.h>

#include "base/sizes.h"

/* What is known of an op: rows of `dim` elements of so many bytes, read and written; a weight, and the rest. */
typedef struct op_size {
    int64_t rows, in, dim;        /* in: of a matrix product, whose outputs are dim; else 0 */
    double bytes;                 /* without the weight's */
    const qr_weight_desc *weight; /* NULL: none */
    int64_t n_weights;
} op_size;

/* Rows of dim elements, so many bytes an element in all. */
static op_size rows_of(int64_t rows, int64_t dim, size_t bytes) {
    return (op_size){.rows = rows, .dim = dim, .bytes = (double)rows * (double)dim * (double)bytes};
}

/* Rows of `in` elements become rows of `out` ones. */
static op_size product(int64_t rows, int64_t in, size_t in_bytes, int64_t out, size_t out_bytes) {
    const double bytes = (double)in * (double)in_bytes + (double)out * (double)out_bytes;
    return (op_size){.rows = rows, .in = in, .dim = out, .bytes = (double)rows * bytes};
}

static op_size with_weights(op_size size, const qr_weight_desc *weight, int64_t n) {
    size.weight = weight;
    size.n_weights = n;
    return size;
}

static op_size plus(op_size size, double bytes) {
    size.bytes += bytes;
    return size;
}

enum { F32_BYTES = 4, READ_WRITE = 8 }; /* an F32 element once, or read and written */

static size_t added(bool accumulate) { return accumulate ? READ_WRITE : F32_BYTES; }

#define ARGS(op) const qr_##op##_args *a = args
#define BYTES(dtype) qr_dtype_bytes(dtype)

/* ---- Forward ---- */

/* Of an adapter's factors. */
static double of_factors(int64_t rank, int64_t in, int64_t out, size_t bytes) {
    return (double)bytes * (double)rank * (double)(in + out);
}

static op_size of_linear(const void *args) {
    ARGS(linear);
    const qr_weight_desc *w = &a->weight->desc;
    const op_size own = product(a->n_rows, w->cols, BYTES(a->x_dtype), w->rows, added(a->accumulate));
    const double factors = a->lora != NULL ? of_factors(a->lora->max_rank, w->cols, w->rows, F32_BYTES) : 0.0;
    return with_weights(plus(own, factors), w, 1);
}

static op_size of_expert_linear(const void *args) {
    ARGS(expert_linear);
    const qr_weight_desc *w = &a->weights[0].desc;
    const int64_t slots = qr_routing_slots(&a->routing);
    return with_weights(product(slots, w->cols, BYTES(a->x_dtype), w->rows, F32_BYTES), w,
                        qr_min(slots, a->routing.n_experts));
}

static op_size of_lora(const void *args) {
    ARGS(lora);
    return plus(product(a->n_rows, a->in, BYTES(a->x_dtype), a->out, READ_WRITE),
                of_factors(a->max_rank, a->in, a->out, F32_BYTES));
}

static op_size of_embedding(const void *args) {
    ARGS(embedding);
    const qr_weight_desc *w = &a->table->desc;
    const size_t element = w->format == QR_WEIGHT_F32 ? 4 : w->format == QR_WEIGHT_INT8 ? 1 : 2;
    return rows_of(a->n_tokens, w->cols, element + added(a->accumulate));
}

static op_size of_head_linear(const void *args) {
    ARGS(head_linear);
    qr_weight_desc own = a->weight->desc; /* the rows that are read */
    own.rows = a->n_heads * a->dim;
    const int64_t x_dim = a->by_column ? own.rows : a->n_heads * own.cols;
    const int64_t y_dim = a->by_column ? a->n_heads * own.cols : own.rows;
    return with_weights(product(a->n_rows, x_dim, BYTES(a->x_dtype), y_dim, BYTES(a->y_dtype)), &own, 1);
}

static op_size of_rope(const void *args) {
    ARGS(rope);
    return rows_of(a->n_tokens, a->n_heads * 2 * a->half, READ_WRITE);
}

static op_size of_kv_write(const void *args) {
    ARGS(kv_write);
    const int64_t dim = (int64_t)a->layout.n_kv_heads * a->layout.head_dim;
    const size_t n_parts = a->layout.keys_are_values ? 1 : 2;
    return rows_of(a->n_tokens, dim, n_parts * (F32_BYTES + qr_kv_element_bytes(a->layout.format)));
}

static op_size of_attention(const void *args) {
    ARGS(attention);
    const int64_t length = a->table_stride * QR_KV_PAGE_TOKENS;
    const int64_t seen = a->window > 0 ? qr_min(length, a->window) : length;
    const double token = (double)qr_kv_layer_bytes(&a->layout) / QR_KV_PAGE_TOKENS;
    const int64_t dim = (int64_t)a->n_heads * a->layout.head_dim;
    op_size size =
        plus(rows_of(a->n_tokens, dim, F32_BYTES + BYTES(a->dst_dtype)), (double)a->n_seqs * (double)seen * token);
    size.in = seen;
    return size;
}

static op_size of_gated_delta(const void *args) {
    ARGS(gated_delta);
    const int64_t keys = 2 * (int64_t)a->n_key_heads * a->key_dim, values = (int64_t)a->n_value_heads * a->value_dim;
    const int64_t decays = a->decays_channels ? (int64_t)a->n_value_heads * a->key_dim : 0; /* else few */
    return plus(rows_of(a->n_tokens, keys + 2 * values + decays, F32_BYTES),
                (double)READ_WRITE * (double)a->sequences.n_seqs * (double)values * (double)a->key_dim);
}

static op_size of_state_space(const void *args) {
    ARGS(state_space);
    const int64_t keys = 2 * (int64_t)a->n_groups * a->state_dim, values = (int64_t)a->n_heads * a->head_dim;
    return plus(rows_of(a->n_tokens, keys + 2 * values, F32_BYTES),
                (double)READ_WRITE * (double)a->sequences.n_seqs * (double)values * (double)a->state_dim);
}

static op_size of_forward(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_linear: return of_linear(args);
        case QR_OP_expert_linear: return of_expert_linear(args);
        case QR_OP_lora: return of_lora(args);
        case QR_OP_embedding: return of_embedding(args);
        case QR_OP_rope: return of_rope(args);
        case QR_OP_kv_write: return of_kv_write(args);
        case QR_OP_head_linear: return of_head_linear(args);
        case QR_OP_attention: return of_attention(args);
        case QR_OP_gated_delta: return of_gated_delta(args);
        case QR_OP_state_space: return of_state_space(args);
        case QR_OP_gather_rows: {
            ARGS(gather_rows);
            return rows_of(a->n_rows, a->dim, READ_WRITE);
        }
        case QR_OP_rms_norm: {
            ARGS(rms_norm);
            return rows_of(a->n_rows, a->n_groups * a->dim, F32_BYTES + BYTES(a->dst_dtype));
        }
        case QR_OP_layer_norm: {
            ARGS(layer_norm);
            return rows_of(a->n_rows, a->dim, F32_BYTES + BYTES(a->dst_dtype));
        }
        case QR_OP_route: {
            ARGS(route);
            return rows_of(a->routing.n_rows, a->routing.n_experts, F32_BYTES);
        }
        case QR_OP_expert_sum: {
            ARGS(expert_sum);
            return rows_of(a->routing.n_rows, a->dim, F32_BYTES * (size_t)a->routing.top_k + added(a->accumulate));
        }
        case QR_OP_share_rows: {
            ARGS(share_rows);
            return rows_of(a->n_rows, a->dim, 2 * BYTES(a->x_dtype));
        }
        case QR_OP_dora_norm: {
            ARGS(dora_norm);
            return with_weights(product(1, a->weight->desc.cols, 0, a->weight->desc.rows, F32_BYTES), &a->weight->desc,
                                1);
        }
        case QR_OP_dora: {
            ARGS(dora);
            return rows_of(a->n_rows, a->dim, F32_BYTES + added(a->accumulate));
        }
        case QR_OP_rope_table: {
            ARGS(rope_table);
            return rows_of(a->n_tokens, a->half, 2 * F32_BYTES);
        }
        case QR_OP_copy_heads: {
            ARGS(copy_heads);
            return rows_of(a->n_rows, a->n_heads * a->dim, 2 * BYTES(a->dtype));
        }
        case QR_OP_head_gate: {
            ARGS(head_gate);
            return rows_of(a->n_rows, a->n_heads * a->dim, F32_BYTES + 2 * BYTES(a->dtype));
        }
        case QR_OP_conv1d_causal: {
            ARGS(conv1d_causal);
            return rows_of(a->n_tokens, a->dim, READ_WRITE);
        }
        case QR_OP_activation: {
            ARGS(activation);
            return rows_of(a->n_rows, a->dim, F32_BYTES + BYTES(a->dst_dtype));
        }
        case QR_OP_xielu: {
            ARGS(xielu);
            return rows_of(a->n_rows, a->dim, F32_BYTES + BYTES(a->dst_dtype));
        }
        case QR_OP_gaussian_topk: {
            ARGS(gaussian_topk);
            return rows_of(a->n_rows, a->dim, READ_WRITE);
        }
        case QR_OP_stream_coefs: {
            ARGS(stream_coefs);
            return product(a->n_rows, a->dim, F32_BYTES, a->n_coefs, F32_BYTES);
        }
        case QR_OP_stream_predict: {
            ARGS(stream_predict);
            return plus(rows_of(a->n_rows, a->n_streams * a->dim, READ_WRITE),
                        (double)F32_BYTES * (double)a->n_rows * (double)a->dim);
        }
        case QR_OP_stream_correct: {
            ARGS(stream_correct);
            return plus(rows_of(a->n_rows, a->n_streams * a->dim, READ_WRITE),
                        (double)(F32_BYTES + BYTES(a->dst_dtype)) * (double)a->n_rows * (double)a->dim);
        }
        case QR_OP_stream_level: {
            ARGS(stream_level);
            return rows_of(a->n_rows, a->n_streams * a->dim, READ_WRITE);
        }
        case QR_OP_gate: {
            ARGS(gate);
            return rows_of(a->n_rows, a->dim, 2 * F32_BYTES + BYTES(a->dst_dtype));
        }
        case QR_OP_add: return rows_of(1, ((const qr_add_args *)args)->n, F32_BYTES + READ_WRITE);
        case QR_OP_scale_columns: {
            ARGS(scale_columns);
            int64_t dim = 0;
            for (int p = 0; p < QR_MAX_SCALED_PARTS; p++) { dim += a->parts[p].n; }
            return rows_of(a->n_rows, dim, READ_WRITE);
        }
        case QR_OP_softcap: return rows_of(1, ((const qr_softcap_args *)args)->n, READ_WRITE);
        case QR_OP_nll:
            return rows_of(((const qr_nll_args *)args)->n_rows, ((const qr_nll_args *)args)->vocab, F32_BYTES);
        case QR_OP_sample: {
            ARGS(sample);
            return rows_of(a->n_samples, a->vocab, F32_BYTES);
        }
        default: return (op_size){0};
    }
}

/* ---- Training ---- */

static op_size of_linear_backward(const void *args) {
    ARGS(linear_backward);
    const qr_weight_desc *w = &a->weight->desc;
    op_size size = product(a->n_rows, w->rows, BYTES(a->dy_dtype), w->cols, added(a->accumulate));
    if (a->lora != NULL) { /* reads x too */
        const double x_bytes = (double)a->n_rows * (double)w->cols * (double)BYTES(a->lora->x_dtype);
        size = plus(size, x_bytes + of_factors(a->lora->rank, w->cols, w->rows, F32_BYTES + READ_WRITE));
    }
    return with_weights(size, w, 1);
}

static op_size of_expert_linear_backward(const void *args) {
    ARGS(expert_linear_backward);
    const qr_weight_desc *w = &a->weights[0].desc;
    const int64_t slots = qr_routing_slots(&a->routing);
    return with_weights(product(slots, w->rows, BYTES(a->dy_dtype), w->cols, added(a->accumulate)), w,
                        qr_min(slots, a->routing.n_experts));
}

static op_size of_weight_backward(const void *args) {
    ARGS(weight_backward);
    return plus(product(a->n_rows, a->in, BYTES(a->x_dtype), a->out, F32_BYTES),
                (double)READ_WRITE * (double)a->in * (double)a->out);
}

static op_size of_expert_weight_backward(const void *args) {
    ARGS(expert_weight_backward);
    const int64_t slots = qr_routing_slots(&a->routing), n_changed = qr_min(slots, a->routing.n_experts);
    return plus(product(slots, a->in, BYTES(a->x_dtype), a->out, F32_BYTES),
                (double)READ_WRITE * (double)n_changed * (double)a->in * (double)a->out);
}

static op_size of_lora_backward(const void *args) {
    ARGS(lora_backward);
    const size_t in_bytes = BYTES(a->x_dtype) + (a->dx != NULL ? READ_WRITE : 0);
    return plus(product(a->n_rows, a->in, in_bytes, a->out, F32_BYTES),
                of_factors(a->rank, a->in, a->out, F32_BYTES + READ_WRITE));
}

/* q, k and v in, or their gradients out: elements of a token. */
static int64_t qkv(const qr_attention_packed_args *a) {
    return ((int64_t)a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
}

static op_size of_attention_packed(const qr_attention_packed_args *a) {
    const int64_t dim = (int64_t)a->n_heads * a->head_dim;
    op_size size = rows_of(a->n_tokens, dim, BYTES(a->dst_dtype));
    size.in = a->max_seq_tokens;
    return plus(size, (double)F32_BYTES * (double)a->n_tokens * (double)(qkv(a) + a->n_heads));
}

static op_size of_attention_packed_backward(const qr_attention_packed_backward_args *a) {
    const qr_attention_packed_args *f = &a->forward;
    return plus(of_attention_packed(f),
                (double)F32_BYTES * (double)f->n_tokens * (double)(qkv(f) + (int64_t)f->n_heads * f->head_dim));
}

static op_size of_optimizer(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_sum_squares: return rows_of(1, ((const qr_sum_squares_args *)args)->n, F32_BYTES);
        case QR_OP_adamw: return rows_of(1, ((const qr_adamw_args *)args)->n, F32_BYTES + 3 * READ_WRITE);
        case QR_OP_adamw8bit: return rows_of(1, ((const qr_adamw8bit_args *)args)->n, F32_BYTES + READ_WRITE + 4);
        case QR_OP_sgd: return rows_of(1, ((const qr_sgd_args *)args)->n, F32_BYTES + 2 * READ_WRITE);
        case QR_OP_adafactor: {
            ARGS(adafactor);
            return rows_of(a->rows, a->cols, F32_BYTES + READ_WRITE);
        }
        case QR_OP_store_weight: {
            ARGS(store_weight);
            return with_weights(rows_of(a->weight->desc.rows, a->weight->desc.cols, F32_BYTES), &a->weight->desc, 1);
        }
        default: return (op_size){0};
    }
}

static op_size of_row_gradient(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_dora_backward: {
            ARGS(dora_backward);
            return rows_of(a->n_rows, a->dim, 2 * F32_BYTES);
        }
        case QR_OP_rms_norm_backward: {
            ARGS(rms_norm_backward);
            return rows_of(a->n_rows, a->n_groups * a->dim, 2 * F32_BYTES + added(a->accumulate));
        }
        case QR_OP_layer_norm_backward: {
            ARGS(layer_norm_backward);
            return rows_of(a->n_rows, a->dim, 2 * F32_BYTES + added(a->accumulate));
        }
        case QR_OP_rope_backward: {
            ARGS(rope_backward);
            return rows_of(a->n_tokens, a->n_heads * 2 * a->half, READ_WRITE);
        }
        case QR_OP_activation_backward: {
            ARGS(activation_backward);
            return rows_of(a->n_rows, a->dim, 3 * F32_BYTES);
        }
        case QR_OP_xielu_backward: {
            ARGS(xielu_backward);
            return rows_of(a->forward.n_rows, a->forward.dim, 3 * F32_BYTES);
        }
        case QR_OP_gaussian_topk_backward: {
            ARGS(gaussian_topk_backward);
            return rows_of(a->forward.n_rows, a->forward.dim, 3 * F32_BYTES);
        }
        case QR_OP_stream_coefs_backward: {
            ARGS(stream_coefs_backward);
            return product(a->forward.n_rows, a->forward.n_coefs, F32_BYTES, a->forward.dim, READ_WRITE);
        }
        case QR_OP_stream_predict_backward: {
            ARGS(stream_predict_backward);
            return plus(rows_of(a->n_rows, a->n_streams * a->dim, 3 * F32_BYTES),
                        (double)F32_BYTES * (double)a->n_rows * (double)a->dim);
        }
        case QR_OP_stream_correct_backward: {
            ARGS(stream_correct_backward);
            return plus(rows_of(a->n_rows, a->n_streams * a->dim, READ_WRITE),
                        4.0 * (double)F32_BYTES * (double)a->n_rows * (double)a->dim);
        }
        case QR_OP_stream_level_backward: {
            ARGS(stream_level_backward);
            return rows_of(a->n_rows, a->n_streams * a->dim, 3 * F32_BYTES);
        }
        case QR_OP_gate_backward: {
            ARGS(gate_backward);
            return rows_of(a->n_rows, a->dim, 5 * F32_BYTES);
        }
        case QR_OP_cross_entropy: {
            ARGS(cross_entropy);
            return rows_of(a->n_rows, a->vocab, READ_WRITE);
        }
        case QR_OP_embedding_backward: {
            ARGS(embedding_backward);
            return rows_of(a->n_tokens, a->dim, F32_BYTES + READ_WRITE);
        }
        case QR_OP_scatter_rows: {
            ARGS(scatter_rows);
            return rows_of(a->n_rows + a->n_dst_rows, a->dim, F32_BYTES);
        }
        case QR_OP_dropout: {
            ARGS(dropout);
            return rows_of(a->n_rows, a->dim, 2 * BYTES(a->x_dtype));
        }
        case QR_OP_round_act: {
            ARGS(round_act);
            return rows_of(a->n_rows, a->dim, F32_BYTES + BYTES(a->dst_dtype));
        }
        default: return of_optimizer(op, args);
    }
}

static op_size size_of(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_linear_backward: return of_linear_backward(args);
        case QR_OP_expert_linear_backward: return of_expert_linear_backward(args);
        case QR_OP_weight_backward: return of_weight_backward(args);
        case QR_OP_expert_weight_backward: return of_expert_weight_backward(args);
        case QR_OP_lora_backward: return of_lora_backward(args);
        case QR_OP_attention_packed: return of_attention_packed(args);
        case QR_OP_attention_packed_backward: return of_attention_packed_backward(args);
        default: {
            const op_size size = of_forward(op, args);
            return size.rows > 0 ? size : of_row_gradient(op, args);
        }
    }
}

double qr_op_bytes(const qr_backend *backend, qr_op op, const void *args) {
    const op_size size = size_of(op, args);
    const double of_weight = size.weight != NULL ? (double)backend->weight_bytes(backend, size.weight) : 0.0;
    return size.bytes + of_weight * (double)size.n_weights;
}

qr_op_extent qr_op_measure(qr_op op, const void *args) {
    const op_size size = size_of(op, args);
    return (qr_op_extent){.rows = size.rows,
                          .in = size.in,
                          .dim = size.dim,
                          .format = size.weight != NULL ? (int32_t)size.weight->format : -1};
}

void qr_op_write_shape(const qr_op_extent *extent, char shape[QR_OP_SHAPE_BYTES]) {
    const bool has_weight = extent->format >= 0;
    shape[0] = '\0';
    if (extent->rows == 0) { return; }
    int n = snprintf(shape, QR_OP_SHAPE_BYTES, "%lld x ", (long long)extent->rows);
    if (extent->in > 0) { n += snprintf(shape + n, QR_OP_SHAPE_BYTES - (size_t)n, "%lld x ", (long long)extent->in); }
    (void)snprintf(shape + n, QR_OP_SHAPE_BYTES - (size_t)n, "%lld%s%s", (long long)extent->dim, has_weight ? " " : "",
                   has_weight ? qr_weight_format_name((qr_weight_format)extent->format) : "");
}

void qr_op_shape(qr_op op, const void *args, char shape[QR_OP_SHAPE_BYTES]) {
    const qr_op_extent extent = qr_op_measure(op, args);
    qr_op_write_shape(&extent, shape);
}

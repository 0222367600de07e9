#include "kernels/op_flops.h"

#include "base/sizes.h"

static double product(int64_t n_rows, int64_t in, int64_t out) {
    return 2.0 * (double)n_rows * (double)in * (double)out;
}

static double of_lora(const qr_lora_args *a) { return product(a->n_rows, a->max_rank, a->in + a->out); }

/* The gradients of A, B, A x and x. A x, which the op computes again because nobody keeps it, is not counted. */
static double of_lora_backward(const qr_lora_backward_args *a) {
    return 2.0 * product(a->n_rows, a->rank, a->in + a->out);
}

static double of_linear(const qr_linear_args *a) {
    const double own = product(a->n_rows, a->weight->desc.cols, a->weight->desc.rows);
    return a->lora != NULL ? own + of_lora(a->lora) : own;
}

static double of_linear_backward(const qr_linear_backward_args *a) {
    const double own = product(a->n_rows, a->weight->desc.cols, a->weight->desc.rows);
    return a->lora != NULL ? own + of_lora_backward(a->lora) : own;
}

static double of_expert_linear(const qr_expert_linear_args *a) {
    return product(qr_routing_slots(&a->routing), a->weights->desc.cols, a->weights->desc.rows);
}

static double of_expert_linear_backward(const qr_expert_linear_backward_args *a) {
    return product(qr_routing_slots(&a->routing), a->weights->desc.cols, a->weights->desc.rows);
}

/* Of adapters it is not known here what ranks they have; those of training are counted backward. */
static double of_expert_lora_backward(const qr_expert_lora_backward_args *a) {
    return 2.0 * product(qr_routing_slots(&a->routing), a->rank, a->in + a->out);
}

static double of_weight_backward(const qr_weight_backward_args *a) { return product(a->n_rows, a->in, a->out); }

static double of_expert_weight_backward(const qr_expert_weight_backward_args *a) {
    return product(qr_routing_slots(&a->routing), a->in, a->out);
}

static double of_dora_norm(const qr_dora_norm_args *a) {
    return product(a->weight->desc.rows, a->rank, a->weight->desc.cols);
}

/* Scores, and the weighted sum of values, of positions that each of n_tokens sees. */
static double attention(int64_t n_tokens, double seen, int64_t n_heads, int64_t head_dim) {
    return 4.0 * (double)n_tokens * seen * (double)n_heads * (double)head_dim;
}

static double of_attention(const qr_attention_args *a) {
    const int64_t length = a->table_stride * QR_KV_PAGE_TOKENS;
    const int64_t seen = a->window > 0 ? qr_min(length, a->window) : length;
    return attention(a->n_tokens, (double)seen, a->n_heads, a->layout.head_dim);
}

static double of_head_linear(const qr_head_linear_args *a) {
    return product(a->n_rows * a->n_heads, a->dim, a->weight->desc.cols);
}

/* The mean over a causal sequence. */
static double of_attention_packed(const qr_attention_packed_args *a) {
    const double length = (double)a->max_seq_tokens;
    const double window = a->window > 0 ? (double)qr_min(a->max_seq_tokens, a->window) : length;
    const double seen = window - window * (window - 1.0) / (2.0 * length);
    return attention(a->n_tokens, seen, a->n_heads, a->head_dim);
}

/* Five products for the two of the forward op. */
static double of_attention_packed_backward(const qr_attention_packed_backward_args *a) {
    return 2.5 * of_attention_packed(&a->forward);
}

/* What a token reads of the state and writes to it, and, for its gradient, that again with two reads of the gradient.
 */
static double of_gated_delta(const qr_gated_delta_args *a) {
    return 6.0 * (double)a->n_tokens * (double)a->n_value_heads * (double)a->key_dim * (double)a->value_dim;
}

static double of_gated_delta_backward(const qr_gated_delta_backward_args *a) {
    return 2.5 * of_gated_delta(&a->forward);
}

/* The state moves on, and is read; for the gradient it is computed again, and its gradient is used three times. */
static double of_state_space(const qr_state_space_args *a) {
    return 5.0 * (double)a->n_tokens * (double)a->n_heads * (double)a->state_dim * (double)a->head_dim;
}

static double of_state_space_backward(const qr_state_space_backward_args *a) {
    return 3.0 * of_state_space(&a->forward);
}

double qr_op_flops(qr_op op, const void *args) {
    switch (op) {
        case QR_OP_linear: return of_linear(args);
        case QR_OP_linear_backward: return of_linear_backward(args);
        case QR_OP_expert_linear: return of_expert_linear(args);
        case QR_OP_expert_linear_backward: return of_expert_linear_backward(args);
        case QR_OP_expert_lora_backward: return of_expert_lora_backward(args);
        case QR_OP_weight_backward: return of_weight_backward(args);
        case QR_OP_expert_weight_backward: return of_expert_weight_backward(args);
        case QR_OP_lora: return of_lora(args);
        case QR_OP_lora_backward: return of_lora_backward(args);
        case QR_OP_dora_norm: return of_dora_norm(args);
        case QR_OP_head_linear: return of_head_linear(args);
        case QR_OP_attention: return of_attention(args);
        case QR_OP_attention_packed: return of_attention_packed(args);
        case QR_OP_attention_packed_backward: return of_attention_packed_backward(args);
        case QR_OP_gated_delta: return of_gated_delta(args);
        case QR_OP_gated_delta_backward: return of_gated_delta_backward(args);
        case QR_OP_state_space: return of_state_space(args);
        case QR_OP_state_space_backward: return of_state_space_backward(args);
        default: return 0.0;
    }
}

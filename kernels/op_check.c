#include "kernels/op_check.h"

#include <inttypes.h>
#include <math.h>

/* One precondition: fails with the op's name before the message. */
#define REQUIRE(condition, op, ...)                                \
    do {                                                           \
        if (!(condition)) { return refuse(err, op, __VA_ARGS__); } \
    } while (0)

QR_PRINTF(3, 4) static bool refuse(qr_error *err, const char *op, const char *fmt, ...) {
    if (err != NULL && err->status == QRUN_OK) {
        va_list args;
        va_start(args, fmt);
        qr_vfail(err, QRUN_ERROR_ARGUMENT, fmt, args);
        va_end(args);
        qr_error_prefix(err, op);
    }
    return false;
}

static bool check_positive(const char *op, const char *what, int64_t value, qr_error *err) {
    REQUIRE(value > 0, op, "%s is %" PRId64 "; it must be positive", what, value);
    return true;
}

/* A matrix view: both sizes positive, the stride no shorter than a row, the last element countable. */
static bool check_view(const char *op, const char *what, int64_t n_rows, int64_t row, int64_t stride, qr_error *err) {
    if (!check_positive(op, "the number of rows", n_rows, err) ||
        !check_positive(op, "the length of a row", row, err)) {
        return false;
    }
    REQUIRE(stride >= row, op, "%s has a row stride of %" PRId64 " elements, less than its row of %" PRId64, what,
            stride, row);
    REQUIRE(n_rows <= INT64_MAX / 16 / stride, op, "%s of %" PRId64 " rows %" PRId64 " apart is too large", what,
            n_rows, stride);
    return true;
}

static bool check_act_dtype(const char *op, const char *what, qr_dtype dtype, qr_error *err) {
    REQUIRE(dtype == QR_DTYPE_F32 || dtype == QR_DTYPE_BF16 || dtype == QR_DTYPE_F16, op,
            "%s is %s; it must be F32, BF16 or F16", what, qr_dtype_name(dtype));
    return true;
}

static bool check_eps(const char *op, float eps, qr_error *err) {
    REQUIRE(eps >= 0.0F && isfinite(eps), op, "eps is %g; it must be finite and not negative", (double)eps);
    return true;
}

static bool check_finite(const char *op, const char *what, float value, qr_error *err) {
    REQUIRE(isfinite(value), op, "%s is %g; it must be finite", what, (double)value);
    return true;
}

static bool check_weight(const char *op, const qr_weight *weight, qr_error *err) {
    REQUIRE(weight != NULL, op, "there is no weight");
    return qr_weight_desc_check(&weight->desc, op, err) == QRUN_OK;
}

/* n_heads · head_dim elements a row, checked for overflow. */
static bool check_heads(const char *op, int64_t n_heads, int64_t head_dim, qr_error *err) {
    if (!check_positive(op, "the number of heads", n_heads, err) || !check_positive(op, "head_dim", head_dim, err)) {
        return false;
    }
    REQUIRE(n_heads <= INT32_MAX / head_dim, op, "%" PRId64 " heads of %" PRId64 " elements are too many", n_heads,
            head_dim);
    return true;
}

static bool check_kv_layout(const char *op, const qr_kv_layout *layout, size_t page_stride_bytes, qr_error *err) {
    REQUIRE((unsigned)layout->format <= QR_KV_INT8, op, "%d is not a K/V format", (int)layout->format);
    if (!check_heads(op, layout->n_kv_heads, layout->head_dim, err)) { return false; }
    REQUIRE(page_stride_bytes >= qr_kv_layer_bytes(layout) && page_stride_bytes % 64 == 0, op,
            "pages are %zu bytes apart; it must be a multiple of 64 and at least the layer's %zu", page_stride_bytes,
            qr_kv_layer_bytes(layout));
    return true;
}

static bool check_act_fn(const char *op, qr_act_fn fn, qr_error *err) {
    REQUIRE((unsigned)fn <= QR_ACT_GELU_ERF, op, "%d is not an activation function", (int)fn);
    return true;
}

static bool fits_quantize(const qr_quantize_args *a, const char *op, qr_error *err) {
    const qr_weight_desc desc = {.format = a->format, .block = a->block, .rows = a->n_rows, .cols = a->cols};
    REQUIRE(a->src_dtype == QR_DTYPE_F32 || a->src_dtype == QR_DTYPE_F16 || a->src_dtype == QR_DTYPE_BF16, op,
            "the source is %s; it must be F32, F16 or BF16", qr_dtype_name(a->src_dtype));
    return qr_weight_desc_check(&desc, op, err) == QRUN_OK;
}

static bool fits_embedding(const qr_embedding_args *a, const char *op, qr_error *err) {
    if (!check_weight(op, a->table, err)) { return false; }
    REQUIRE(!qr_weight_is_nf4(a->table->desc.format), op, "the table is %s; it must be f32, f16, bf16 or int8",
            qr_weight_format_name(a->table->desc.format));
    REQUIRE(a->table->desc.rows <= INT32_MAX, op, "a vocabulary of %" PRId64 " is too large", a->table->desc.rows);
    return check_view(op, "dst", a->n_tokens, a->table->desc.cols, a->table->desc.cols, err);
}

static bool fits_gather_rows(const qr_gather_rows_args *a, const char *op, qr_error *err) {
    return check_view(op, "dst", a->n_rows, a->dim, a->dim, err);
}

static bool fits_rms_norm(const qr_rms_norm_args *a, const char *op, qr_error *err) {
    return check_heads(op, a->n_groups, a->dim, err) && check_eps(op, a->eps, err) &&
           check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "src", a->n_rows, a->n_groups * a->dim, a->src_stride, err) &&
           check_view(op, "dst", a->n_rows, a->n_groups * a->dim, a->dst_stride, err);
}

static bool fits_layer_norm(const qr_layer_norm_args *a, const char *op, qr_error *err) {
    return check_eps(op, a->eps, err) && check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "src", a->n_rows, a->dim, a->dim, err);
}

static bool fits_linear(const qr_linear_args *a, const char *op, qr_error *err) {
    return check_weight(op, a->weight, err) && check_act_dtype(op, "x", a->x_dtype, err) &&
           check_view(op, "x", a->n_rows, a->weight->desc.cols, a->x_stride, err) &&
           check_view(op, "y", a->n_rows, a->weight->desc.rows, a->y_stride, err);
}

static bool fits_lora(const qr_lora_args *a, const char *op, qr_error *err) {
    return check_act_dtype(op, "x", a->x_dtype, err) &&
           check_positive(op, "the number of adapters", a->n_adapters, err) &&
           check_positive(op, "max_rank", a->max_rank, err) &&
           check_view(op, "x", a->n_rows, a->in, a->x_stride, err) &&
           check_view(op, "y", a->n_rows, a->out, a->y_stride, err);
}

static bool fits_dora_norm(const qr_dora_norm_args *a, const char *op, qr_error *err) {
    return check_weight(op, a->weight, err) && check_positive(op, "rank", a->rank, err) &&
           check_finite(op, "scale", a->scale, err);
}

static bool fits_dora(const qr_dora_args *a, const char *op, qr_error *err) {
    return check_positive(op, "the number of adapters", a->n_adapters, err) &&
           check_view(op, "src", a->n_rows, a->dim, a->src_stride, err) &&
           check_view(op, "dst", a->n_rows, a->dim, a->dst_stride, err);
}

static bool fits_rope_table(const qr_rope_table_args *a, const char *op, qr_error *err) {
    return check_view(op, "the table", a->n_tokens, a->half, a->half, err);
}

static bool fits_rope(const qr_rope_args *a, const char *op, qr_error *err) {
    if (!check_heads(op, a->n_heads, a->head_dim, err) || !check_positive(op, "half", a->half, err)) { return false; }
    REQUIRE(a->half <= a->head_dim / 2, op, "half is %" PRId64 ", more than half of head_dim %" PRId64, a->half,
            a->head_dim);
    return check_view(op, "x", a->n_tokens, a->n_heads * a->head_dim, a->x_stride, err);
}

static bool fits_kv_write(const qr_kv_write_args *a, const char *op, qr_error *err) {
    const int64_t row = (int64_t)a->layout.n_kv_heads * a->layout.head_dim;
    return check_kv_layout(op, &a->layout, a->page_stride_bytes, err) &&
           check_view(op, "k", a->n_tokens, row, a->k_stride, err) &&
           check_view(op, "v", a->n_tokens, row, a->v_stride, err);
}

static bool fits_attention(const qr_attention_args *a, const char *op, qr_error *err) {
    if (!check_kv_layout(op, &a->layout, a->page_stride_bytes, err) ||
        !check_heads(op, a->n_heads, a->layout.head_dim, err)) {
        return false;
    }
    REQUIRE(a->n_heads % a->layout.n_kv_heads == 0, op, "%d query heads do not divide over %d K/V heads",
            (int)a->n_heads, (int)a->layout.n_kv_heads);
    REQUIRE(a->softcap >= 0.0F && isfinite(a->softcap), op, "softcap is %g; it must be positive, or 0 for none",
            (double)a->softcap);
    REQUIRE(isfinite(a->scale), op, "scale is %g", (double)a->scale);
    REQUIRE(a->window >= 0, op, "window is %d; it must be positive, or 0 for all", (int)a->window);
    return check_positive(op, "the number of sequences", a->n_seqs, err) &&
           check_positive(op, "table_stride", a->table_stride, err) && check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "q", a->n_tokens, (int64_t)a->n_heads * a->layout.head_dim, a->q_stride, err);
}

static bool fits_activation(const qr_activation_args *a, const char *op, qr_error *err) {
    return check_act_fn(op, a->fn, err) && check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "x", a->n_rows, a->dim, a->x_stride, err);
}

static bool fits_gate(const qr_gate_args *a, const char *op, qr_error *err) {
    return check_act_fn(op, a->fn, err) && check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "g", a->n_rows, a->dim, a->g_stride, err) &&
           check_view(op, "u", a->n_rows, a->dim, a->u_stride, err);
}

static bool fits_add(const qr_add_args *a, const char *op, qr_error *err) {
    return check_view(op, "x", 1, a->n, a->n, err);
}

static bool fits_softcap(const qr_softcap_args *a, const char *op, qr_error *err) {
    REQUIRE(a->cap > 0.0F && isfinite(a->cap), op, "the cap is %g; it must be positive", (double)a->cap);
    return check_view(op, "x", 1, a->n, a->n, err);
}

static bool fits_nll(const qr_nll_args *a, const char *op, qr_error *err) {
    REQUIRE(a->vocab <= INT32_MAX, op, "a vocabulary of %" PRId64 " is too large", a->vocab);
    return check_view(op, "logits", a->n_rows, a->vocab, a->vocab, err);
}

static bool fits_sample(const qr_sample_args *a, const char *op, qr_error *err) {
    REQUIRE(a->vocab <= INT32_MAX, op, "a vocabulary of %" PRId64 " is too large", a->vocab);
    return check_view(op, "logits", a->n_draws, a->vocab, a->vocab, err);
}

/* --- Training ---------------------------------------------------------------------------------------------------- */

static bool check_not_negative(const char *op, const char *what, float value, qr_error *err) {
    REQUIRE(value >= 0.0F && isfinite(value), op, "%s is %g; it must be finite and not negative", what, (double)value);
    return true;
}

/* A factor of a running mean: at 1 nothing new would ever enter it. */
static bool check_decay(const char *op, const char *what, float value, qr_error *err) {
    REQUIRE(value >= 0.0F && value < 1.0F, op, "%s is %g; it must be at least 0 and less than 1", what, (double)value);
    return true;
}

static bool check_step(const char *op, int64_t n, int64_t step, float grad_scale, float lr, qr_error *err) {
    REQUIRE(step >= 1, op, "step is %" PRId64 "; the first one is 1", step);
    return check_view(op, "p", 1, n, n, err) && check_finite(op, "grad_scale", grad_scale, err) &&
           check_finite(op, "lr", lr, err);
}

static bool fits_linear_backward(const qr_linear_backward_args *a, const char *op, qr_error *err) {
    return check_weight(op, a->weight, err) && check_act_dtype(op, "dy", a->dy_dtype, err) &&
           check_view(op, "dy", a->n_rows, a->weight->desc.rows, a->dy_stride, err) &&
           check_view(op, "dx", a->n_rows, a->weight->desc.cols, a->dx_stride, err);
}

static bool fits_weight_backward(const qr_weight_backward_args *a, const char *op, qr_error *err) {
    return check_act_dtype(op, "x", a->x_dtype, err) && check_view(op, "x", a->n_rows, a->in, a->x_stride, err) &&
           check_view(op, "dy", a->n_rows, a->out, a->dy_stride, err) &&
           check_view(op, "dw", a->out, a->in, a->in, err);
}

static bool fits_lora_backward(const qr_lora_backward_args *a, const char *op, qr_error *err) {
    return check_act_dtype(op, "x", a->x_dtype, err) && check_positive(op, "rank", a->rank, err) &&
           check_finite(op, "scale", a->scale, err) && check_view(op, "x", a->n_rows, a->in, a->x_stride, err) &&
           check_view(op, "dy", a->n_rows, a->out, a->dy_stride, err) &&
           (a->dx == NULL || check_view(op, "dx", a->n_rows, a->in, a->dx_stride, err));
}

static bool fits_dora_backward(const qr_dora_backward_args *a, const char *op, qr_error *err) {
    return check_view(op, "dy", a->n_rows, a->dim, a->dy_stride, err) &&
           check_view(op, "z", a->n_rows, a->dim, a->z_stride, err);
}

static bool fits_rms_norm_backward(const qr_rms_norm_backward_args *a, const char *op, qr_error *err) {
    return check_heads(op, a->n_groups, a->dim, err) && check_eps(op, a->eps, err) &&
           check_view(op, "x", a->n_rows, a->n_groups * a->dim, a->x_stride, err) &&
           check_view(op, "dy", a->n_rows, a->n_groups * a->dim, a->dy_stride, err) &&
           check_view(op, "dx", a->n_rows, a->n_groups * a->dim, a->dx_stride, err);
}

static bool fits_layer_norm_backward(const qr_layer_norm_backward_args *a, const char *op, qr_error *err) {
    return check_eps(op, a->eps, err) && check_view(op, "x", a->n_rows, a->dim, a->dim, err);
}

static bool fits_rope_backward(const qr_rope_backward_args *a, const char *op, qr_error *err) {
    if (!check_heads(op, a->n_heads, a->head_dim, err) || !check_positive(op, "half", a->half, err)) { return false; }
    REQUIRE(a->half <= a->head_dim / 2, op, "half is %" PRId64 ", more than half of head_dim %" PRId64, a->half,
            a->head_dim);
    return check_view(op, "dx", a->n_tokens, a->n_heads * a->head_dim, a->dx_stride, err);
}

static bool check_packed(const char *op, const qr_attention_packed_args *a, qr_error *err) {
    if (!check_heads(op, a->n_heads, a->head_dim, err) || !check_heads(op, a->n_kv_heads, a->head_dim, err)) {
        return false;
    }
    REQUIRE(a->n_heads % a->n_kv_heads == 0, op, "%d query heads do not divide over %d K/V heads", (int)a->n_heads,
            (int)a->n_kv_heads);
    REQUIRE(a->window >= 0, op, "window is %d; it must be positive, or 0 for all", (int)a->window);
    REQUIRE(a->max_seq_tokens <= a->n_tokens, op, "max_seq_tokens is %d, more than the %" PRId64 " tokens there are",
            (int)a->max_seq_tokens, a->n_tokens);
    return check_positive(op, "the number of sequences", a->n_seqs, err) &&
           check_positive(op, "max_seq_tokens", a->max_seq_tokens, err) && check_finite(op, "scale", a->scale, err) &&
           check_not_negative(op, "softcap", a->softcap, err) && check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "q", a->n_tokens, (int64_t)a->n_heads * a->head_dim, a->qkv_stride, err);
}

static bool fits_attention_packed(const qr_attention_packed_args *a, const char *op, qr_error *err) {
    return check_packed(op, a, err);
}

static bool fits_attention_packed_backward(const qr_attention_packed_backward_args *a, const char *op, qr_error *err) {
    return check_packed(op, &a->forward, err) &&
           check_view(op, "dq", a->forward.n_tokens, (int64_t)a->forward.n_heads * a->forward.head_dim, a->dqkv_stride,
                      err);
}

static bool fits_activation_backward(const qr_activation_backward_args *a, const char *op, qr_error *err) {
    return check_act_fn(op, a->fn, err) && check_view(op, "x", a->n_rows, a->dim, a->x_stride, err) &&
           check_view(op, "dy", a->n_rows, a->dim, a->dy_stride, err) &&
           check_view(op, "dx", a->n_rows, a->dim, a->dx_stride, err);
}

static bool fits_gate_backward(const qr_gate_backward_args *a, const char *op, qr_error *err) {
    return check_act_fn(op, a->fn, err) && check_view(op, "g and u", a->n_rows, a->dim, a->gu_stride, err) &&
           check_view(op, "dg and du", a->n_rows, a->dim, a->dgu_stride, err);
}

static bool fits_cross_entropy(const qr_cross_entropy_args *a, const char *op, qr_error *err) {
    REQUIRE(a->vocab <= INT32_MAX, op, "a vocabulary of %" PRId64 " is too large", a->vocab);
    return check_not_negative(op, "softcap", a->softcap, err) && check_finite(op, "dloss", a->dloss, err) &&
           check_view(op, "logits", a->n_rows, a->vocab, a->vocab, err);
}

static bool fits_embedding_backward(const qr_embedding_backward_args *a, const char *op, qr_error *err) {
    REQUIRE(a->vocab <= INT32_MAX, op, "a vocabulary of %" PRId64 " is too large", a->vocab);
    return check_view(op, "dy", a->n_tokens, a->dim, a->dim, err) &&
           check_view(op, "dtable", a->vocab, a->dim, a->dim, err);
}

static bool fits_scatter_rows(const qr_scatter_rows_args *a, const char *op, qr_error *err) {
    REQUIRE(a->n_rows <= a->n_dst_rows, op, "%" PRId64 " rows do not fit into %" PRId64, a->n_rows, a->n_dst_rows);
    return check_view(op, "src", a->n_rows, a->dim, a->dim, err) &&
           check_view(op, "dst", a->n_dst_rows, a->dim, a->dim, err);
}

static bool fits_dropout(const qr_dropout_args *a, const char *op, qr_error *err) {
    return check_decay(op, "p", a->p, err) && check_act_dtype(op, "x", a->x_dtype, err) &&
           check_view(op, "x", a->n_rows, a->dim, a->x_stride, err) &&
           check_view(op, "dst", a->n_rows, a->dim, a->dst_stride, err);
}

static bool fits_round_act(const qr_round_act_args *a, const char *op, qr_error *err) {
    return check_act_dtype(op, "dst", a->dst_dtype, err) &&
           check_view(op, "src", a->n_rows, a->dim, a->src_stride, err);
}

static bool fits_store_weight(const qr_store_weight_args *a, const char *op, qr_error *err) {
    if (!check_weight(op, a->weight, err)) { return false; }
    REQUIRE(a->weight->desc.format <= QR_WEIGHT_BF16, op, "the weight is %s; it must be F32, F16 or BF16",
            qr_weight_format_name(a->weight->desc.format));
    return true;
}

static bool fits_sum_squares(const qr_sum_squares_args *a, const char *op, qr_error *err) {
    return check_view(op, "x", 1, a->n, a->n, err);
}

static bool fits_adamw(const qr_adamw_args *a, const char *op, qr_error *err) {
    return check_step(op, a->n, a->step, a->grad_scale, a->lr, err) && check_decay(op, "beta1", a->beta1, err) &&
           check_decay(op, "beta2", a->beta2, err) && check_eps(op, a->eps, err) &&
           check_finite(op, "weight_decay", a->weight_decay, err);
}

static bool fits_adamw8bit(const qr_adamw8bit_args *a, const char *op, qr_error *err) {
    return check_step(op, a->n, a->step, a->grad_scale, a->lr, err) && check_decay(op, "beta1", a->beta1, err) &&
           check_decay(op, "beta2", a->beta2, err) && check_eps(op, a->eps, err) &&
           check_finite(op, "weight_decay", a->weight_decay, err);
}

static bool fits_sgd(const qr_sgd_args *a, const char *op, qr_error *err) {
    return check_step(op, a->n, a->step, a->grad_scale, a->lr, err) && check_decay(op, "momentum", a->momentum, err) &&
           check_finite(op, "weight_decay", a->weight_decay, err);
}

static bool fits_adafactor(const qr_adafactor_args *a, const char *op, qr_error *err) {
    if (!check_view(op, "p", a->rows, a->cols, a->cols, err)) { return false; }
    REQUIRE(a->clip_threshold > 0.0F && isfinite(a->clip_threshold), op, "clip_threshold is %g; it must be positive",
            (double)a->clip_threshold);
    REQUIRE(a->decay_rate <= 0.0F && isfinite(a->decay_rate), op,
            "decay_rate is %g; it must not be positive (usually -0.8)", (double)a->decay_rate);
    return check_step(op, a->rows * a->cols, a->step, a->grad_scale, a->lr, err) && check_eps(op, a->eps1, err) &&
           check_finite(op, "weight_decay", a->weight_decay, err);
}

#define QR_X(name) \
    bool qr_check_##name(const void *args, qr_error *err) { return fits_##name(args, #name, err); }
QR_OPS(QR_X)
#undef QR_X

/* --- Weights ----------------------------------------------------------------------------------------------------- */

qrun_status qr_check_weight_rows(const qr_weight_desc *desc, int64_t row, int64_t n_rows, qr_error *err) {
    const bool inside = row >= 0 && n_rows > 0 && row <= desc->rows && n_rows <= desc->rows - row;
    const bool aligned =
        row % QR_WEIGHT_ROW_GROUP == 0 && (n_rows % QR_WEIGHT_ROW_GROUP == 0 || row + n_rows == desc->rows);
    if (inside && aligned) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "rows %" PRId64 " to %" PRId64 " of a weight with %" PRId64 " rows; they must lie inside and be "
                   "whole groups of %d",
                   row, row + n_rows, desc->rows, QR_WEIGHT_ROW_GROUP);
}

qrun_status qr_check_weight_scales(const qr_weight_desc *desc, const qr_weight_scales *scales, qr_error *err) {
    const char *missing = NULL;
    if (desc->format == QR_WEIGHT_INT8 && scales->row_absmax == NULL) { missing = "row_absmax"; }
    if (desc->format == QR_WEIGHT_NF4 && scales->absmax == NULL) { missing = "absmax"; }
    if (desc->format == QR_WEIGHT_NF4_DQ && scales->absmax_codes == NULL) { missing = "absmax_codes"; }
    if (desc->format == QR_WEIGHT_NF4_DQ && scales->nested_absmax == NULL) { missing = "nested_absmax"; }
    if (missing == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "the scales of a %s weight lack %s", qr_weight_format_name(desc->format),
                   missing);
}

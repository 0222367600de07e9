#include "kernels/op_check.h"

#include <inttypes.h>
#include <math.h>

/* The op that is checked, and the error that a refusal fills in. */
typedef struct check {
    const char *op;
    qr_error *err;
} check;

/* One precondition of the check `c`: fails with the op's name before the message. */
#define REQUIRE(condition, ...)                              \
    do {                                                     \
        if (!(condition)) { return refuse(c, __VA_ARGS__); } \
    } while (0)

QR_PRINTF(2, 3) static bool refuse(const check *c, const char *fmt, ...) {
    qr_error *err = c->err;
    if (err != NULL && err->status == QRUN_OK) {
        va_list args;
        va_start(args, fmt);
        qr_vfail(err, QRUN_ERROR_ARGUMENT, fmt, args);
        va_end(args);
        qr_error_prefix(err, c->op);
    }
    return false;
}

static bool check_positive(const check *c, const char *what, int64_t value) {
    REQUIRE(value > 0, "%s is %" PRId64 "; it must be positive", what, value);
    return true;
}

/* A matrix view: both sizes positive, the stride no shorter than a row, the last element countable. */
static bool check_view(const check *c, const char *what, int64_t n_rows, int64_t row, int64_t stride) {
    if (!check_positive(c, "the number of rows", n_rows) || !check_positive(c, "the length of a row", row)) {
        return false;
    }
    REQUIRE(stride >= row, "%s has a row stride of %" PRId64 " elements, less than its row of %" PRId64, what, stride,
            row);
    REQUIRE(n_rows <= INT64_MAX / 16 / stride, "%s of %" PRId64 " rows %" PRId64 " apart is too large", what, n_rows,
            stride);
    return true;
}

static bool check_act_dtype(const check *c, const char *what, qr_dtype dtype) {
    REQUIRE(dtype == QR_DTYPE_F32 || dtype == QR_DTYPE_BF16 || dtype == QR_DTYPE_F16,
            "%s is %s; it must be F32, BF16 or F16", what, qr_dtype_name(dtype));
    return true;
}

static bool check_not_negative(const check *c, const char *what, float value) {
    REQUIRE(value >= 0.0F && isfinite(value), "%s is %g; it must be finite and not negative", what, (double)value);
    return true;
}

static bool check_finite(const check *c, const char *what, float value) {
    REQUIRE(isfinite(value), "%s is %g; it must be finite", what, (double)value);
    return true;
}

static bool check_vocab(const check *c, int64_t vocab) {
    REQUIRE(vocab <= INT32_MAX, "a vocabulary of %" PRId64 " is too large", vocab);
    return true;
}

static bool check_weight(const check *c, const qr_weight *weight) {
    REQUIRE(weight != NULL, "there is no weight");
    return qr_weight_desc_check(&weight->desc, c->op, c->err) == QRUN_OK;
}

/* n_heads · head_dim elements a row, checked for overflow. */
static bool check_heads(const check *c, int64_t n_heads, int64_t head_dim) {
    if (!check_positive(c, "the number of heads", n_heads) || !check_positive(c, "head_dim", head_dim)) {
        return false;
    }
    REQUIRE(n_heads <= INT32_MAX / head_dim, "%" PRId64 " heads of %" PRId64 " elements are too many", n_heads,
            head_dim);
    return true;
}

/* The rotated half of a head. */
static bool check_rotation(const check *c, int64_t n_heads, int64_t head_dim, int64_t half) {
    if (!check_heads(c, n_heads, head_dim) || !check_positive(c, "half", half)) { return false; }
    REQUIRE(half <= head_dim / 2, "half is %" PRId64 ", more than half of head_dim %" PRId64, half, head_dim);
    return true;
}

/* What attention and attention_packed have in common; the heads have been checked. */
static bool check_scores(const check *c, int32_t n_heads, int32_t n_kv_heads, float scale, float softcap,
                         int32_t window) {
    REQUIRE(n_heads % n_kv_heads == 0, "%d query heads do not divide over %d K/V heads", (int)n_heads, (int)n_kv_heads);
    REQUIRE(softcap >= 0.0F && isfinite(softcap), "softcap is %g; it must be positive, or 0 for none", (double)softcap);
    REQUIRE(window >= 0, "window is %d; it must be positive, or 0 for all", (int)window);
    return check_finite(c, "scale", scale);
}

static bool check_kv_layout(const check *c, const qr_kv_layout *layout, size_t page_stride_bytes) {
    REQUIRE((unsigned)layout->format <= QR_KV_INT8, "%d is not a K/V format", (int)layout->format);
    if (!check_heads(c, layout->n_kv_heads, layout->head_dim)) { return false; }
    REQUIRE(page_stride_bytes >= qr_kv_layer_bytes(layout) && page_stride_bytes % 64 == 0,
            "pages are %zu bytes apart; it must be a multiple of 64 and at least the layer's %zu", page_stride_bytes,
            qr_kv_layer_bytes(layout));
    return true;
}

static bool check_act_fn(const check *c, qr_act_fn fn) {
    REQUIRE((unsigned)fn <= QR_ACT_SIGMOID, "%d is not an activation function", (int)fn);
    return true;
}

static bool check_quantize(const check *c, const qr_quantize_args *a) {
    const qr_weight_desc desc = {.format = a->format, .block = a->block, .rows = a->n_rows, .cols = a->cols};
    REQUIRE(a->format != QR_WEIGHT_MXFP4, "nothing is quantised to %s: it is kept where it is stored",
            qr_weight_format_name(a->format));
    return check_act_dtype(c, "the source", a->src_dtype) && qr_weight_desc_check(&desc, c->op, c->err) == QRUN_OK;
}

static bool check_embedding(const check *c, const qr_embedding_args *a) {
    if (!check_weight(c, a->table)) { return false; }
    REQUIRE(!qr_weight_has_blocks(a->table->desc.format), "the table is %s; it must be f32, f16, bf16 or int8",
            qr_weight_format_name(a->table->desc.format));
    REQUIRE(a->n_sampled >= 0 && (a->n_sampled > 0) == (a->sampled != NULL),
            "%lld sampled tokens at %p; negative ids need both, and others neither", (long long)a->n_sampled,
            (const void *)a->sampled);
    return check_vocab(c, a->table->desc.rows) &&
           check_view(c, "dst", a->n_tokens, a->table->desc.cols, a->table->desc.cols);
}

static bool check_gather_rows(const check *c, const qr_gather_rows_args *a) {
    return check_view(c, "dst", a->n_rows, a->dim, a->dim);
}

static bool check_rms_norm(const check *c, const qr_rms_norm_args *a) {
    return check_heads(c, a->n_groups, a->dim) && check_not_negative(c, "eps", a->eps) &&
           check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "src", a->n_rows, a->n_groups * a->dim, a->src_stride) &&
           check_view(c, "dst", a->n_rows, a->n_groups * a->dim, a->dst_stride);
}

static bool check_layer_norm(const check *c, const qr_layer_norm_args *a) {
    return check_not_negative(c, "eps", a->eps) && check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "src", a->n_rows, a->dim, a->dim);
}

static bool check_lora(const check *c, const qr_lora_args *a) {
    return check_act_dtype(c, "x", a->x_dtype) && check_positive(c, "the number of adapters", a->n_adapters) &&
           check_positive(c, "max_rank", a->max_rank) && check_view(c, "x", a->n_rows, a->in, a->x_stride) &&
           check_view(c, "y", a->n_rows, a->out, a->y_stride);
}

static bool check_linear(const check *c, const qr_linear_args *a) {
    const qr_lora_args *lora = a->lora;
    if (!check_weight(c, a->weight) || !check_act_dtype(c, "x", a->x_dtype) ||
        !check_view(c, "x", a->n_rows, a->weight->desc.cols, a->x_stride) ||
        !check_view(c, "y", a->n_rows, a->weight->desc.rows, a->y_stride)) {
        return false;
    }
    if (lora == NULL) { return true; }
    REQUIRE(lora->y == a->y && lora->y_stride == a->y_stride && lora->n_rows == a->n_rows &&
                lora->out == a->weight->desc.rows && lora->in == a->weight->desc.cols && lora->x_dtype == a->x_dtype,
            "the adapter's rows, sizes or y are not those of the matrix");
    return check_lora(c, lora);
}

/* --- Experts ----------------------------------------------------------------------------------------------------- */

static bool check_routing(const check *c, const qr_routing *r) {
    REQUIRE(r->n_experts > 0 && r->top_k > 0 && r->top_k <= r->n_experts && r->top_k <= QR_MAX_EXPERTS_PER_TOKEN,
            "%d of %d experts for a token; it must be from 1 to all of them, and at most %d", (int)r->top_k,
            (int)r->n_experts, QR_MAX_EXPERTS_PER_TOKEN);
    if (!check_positive(c, "the number of rows", r->n_rows)) { return false; }
    REQUIRE(r->n_rows <= INT32_MAX / r->n_experts, "%" PRId64 " rows for %d experts are too many", r->n_rows,
            (int)r->n_experts);
    return true;
}

/* The matrices of all experts; the routing has been checked. */
static bool check_expert_weights(const check *c, const qr_weight *weights, int32_t n_experts) {
    if (!check_weight(c, weights)) { return false; }
    const qr_weight_desc *first = &weights[0].desc;
    for (int32_t e = 1; e < n_experts; e++) {
        const qr_weight_desc *desc = &weights[e].desc;
        REQUIRE(desc->format == first->format && desc->block == first->block && desc->rows == first->rows &&
                    desc->cols == first->cols,
                "the matrix of expert %d is not as that of expert 0", (int)e);
    }
    return true;
}

static int64_t routed_rows(const qr_routing *r, bool gathers) { return gathers ? r->n_rows : qr_routing_slots(r); }

static bool check_router(const check *c, const qr_router *r) {
    REQUIRE(r->factor > 0.0F && (!r->is_sigmoid || r->eps >= 0.0F), "a router with eps %g and factor %g",
            (double)r->eps, (double)r->factor);
    return true;
}

static bool check_groups(const check *c, const qr_routing *r, const qr_router *router) {
    const int32_t n = router->n_groups;
    if (n <= 1) { return true; }
    REQUIRE(n <= QR_MAX_EXPERT_GROUPS && r->n_experts % n == 0 && router->top_groups > 0 && router->top_groups <= n &&
                router->top_groups * (r->n_experts / n) >= r->top_k,
            "%d of %d experts in %d of %d groups", (int)r->top_k, (int)r->n_experts, (int)router->top_groups, (int)n);
    return true;
}

static bool check_route(const check *c, const qr_route_args *a) {
    return check_routing(c, &a->routing) && check_router(c, &a->router) && check_groups(c, &a->routing, &a->router);
}

static bool check_expert_fetch(const check *c, const qr_expert_fetch_args *a) {
    REQUIRE(a->n_bytes > 0 && a->n_bytes % 64 == 0, "experts have %" PRId64 " bytes each; it must be a multiple of 64",
            a->n_bytes);
    return check_routing(c, &a->routing);
}

static bool check_expert_linear(const check *c, const qr_expert_linear_args *a) {
    const qr_routing *r = &a->routing;
    return check_routing(c, r) && check_expert_weights(c, a->weights, r->n_experts) &&
           check_act_dtype(c, "x", a->x_dtype) &&
           check_view(c, "x", routed_rows(r, a->gathers), a->weights->desc.cols, a->x_stride) &&
           check_view(c, "y", qr_routing_slots(r), a->weights->desc.rows, a->y_stride);
}

static bool check_expert_sum(const check *c, const qr_expert_sum_args *a) {
    return check_routing(c, &a->routing) && check_view(c, "src", qr_routing_slots(&a->routing), a->dim, a->dim) &&
           check_view(c, "dst", a->routing.n_rows, a->dim, a->dst_stride);
}

static bool check_expert_bias(const check *c, const qr_expert_bias_args *a) {
    return check_routing(c, &a->routing) && check_view(c, "y", qr_routing_slots(&a->routing), a->dim, a->y_stride);
}

static bool check_expert_linear_backward(const check *c, const qr_expert_linear_backward_args *a) {
    const qr_routing *r = &a->routing;
    return check_routing(c, r) && check_expert_weights(c, a->weights, r->n_experts) &&
           check_act_dtype(c, "dy", a->dy_dtype) &&
           check_view(c, "dy", routed_rows(r, a->gathers), a->weights->desc.rows, a->dy_stride) &&
           check_view(c, "dx", qr_routing_slots(r), a->weights->desc.cols, a->dx_stride);
}

static bool check_expert_lora(const check *c, const qr_expert_lora_args *a) {
    return check_routing(c, &a->routing) && check_act_dtype(c, "x", a->x_dtype) &&
           check_positive(c, "the number of adapters", a->n_adapters) &&
           check_view(c, "x", routed_rows(&a->routing, a->gathers), a->in, a->x_stride) &&
           check_view(c, "y", qr_routing_slots(&a->routing), a->out, a->y_stride);
}

static bool check_expert_lora_backward(const check *c, const qr_expert_lora_backward_args *a) {
    const qr_routing *r = &a->routing;
    REQUIRE(a->rank > 0 && a->rank <= QR_MAX_EXPERT_LORA_RANK, "rank %d is not from 1 to %d", (int)a->rank,
            QR_MAX_EXPERT_LORA_RANK);
    return check_routing(c, r) && check_act_dtype(c, "x", a->x_dtype) && check_finite(c, "scale", a->scale) &&
           check_view(c, "x", routed_rows(r, a->gathers), a->in, a->x_stride) &&
           check_view(c, "dy", routed_rows(r, a->shares), a->out, a->dy_stride) &&
           check_view(c, "dx", qr_routing_slots(r), a->in, a->dx_stride);
}

static bool check_expert_weight_backward(const check *c, const qr_expert_weight_backward_args *a) {
    const qr_routing *r = &a->routing;
    return check_routing(c, r) && check_act_dtype(c, "x", a->x_dtype) &&
           check_view(c, "x", routed_rows(r, a->gathers), a->in, a->x_stride) &&
           check_view(c, "dy", routed_rows(r, a->shares), a->out, a->dy_stride) &&
           check_view(c, "dw", a->out, a->in, a->in) && check_view(c, "dw", r->n_experts, a->out * a->in, a->dw_stride);
}

static bool check_expert_share_backward(const check *c, const qr_expert_share_backward_args *a) {
    return check_routing(c, &a->routing) && check_act_dtype(c, "h", a->h_dtype) &&
           check_view(c, "h", qr_routing_slots(&a->routing), a->dim, a->dim);
}

static bool check_expert_bias_backward(const check *c, const qr_expert_bias_backward_args *a) {
    return check_routing(c, &a->routing) && check_view(c, "dy", a->routing.n_rows, a->dim, a->dim);
}

static bool check_route_backward(const check *c, const qr_route_backward_args *a) {
    REQUIRE(a->dscale == NULL || a->scale != NULL, "there are no scales for dscale");
    return check_routing(c, &a->routing) && check_router(c, &a->router);
}

static bool check_share_rows(const check *c, const qr_share_rows_args *a) {
    return check_act_dtype(c, "x", a->x_dtype) && check_view(c, "x", a->n_rows, a->dim, a->dim);
}

static bool check_share_rows_backward(const check *c, const qr_share_rows_backward_args *a) {
    return check_act_dtype(c, "x", a->x_dtype) && check_view(c, "x", a->n_rows, a->dim, a->dim);
}

/* --- The other forward ops --------------------------------------------------------------------------------------- */

static bool check_dora_norm(const check *c, const qr_dora_norm_args *a) {
    return check_weight(c, a->weight) && check_positive(c, "rank", a->rank) && check_finite(c, "scale", a->scale);
}

static bool check_dora(const check *c, const qr_dora_args *a) {
    return check_positive(c, "the number of adapters", a->n_adapters) &&
           check_view(c, "src", a->n_rows, a->dim, a->src_stride) &&
           check_view(c, "dst", a->n_rows, a->dim, a->dst_stride);
}

/* Heads of a row, which are strides apart. */
static bool check_head_view(const check *c, const char *name, int64_t n_rows, int64_t n_heads, int64_t dim,
                            int64_t head_stride, int64_t stride) {
    REQUIRE(head_stride >= dim, "%s: heads are %" PRId64 " apart, but %" PRId64 " long", name, head_stride, dim);
    return check_heads(c, n_heads, head_stride) &&
           check_view(c, name, n_rows, (n_heads - 1) * head_stride + dim, stride);
}

static bool check_head_linear(const check *c, const qr_head_linear_args *a) {
    if (!check_weight(c, a->weight) || !check_act_dtype(c, "x", a->x_dtype) || !check_act_dtype(c, "y", a->y_dtype) ||
        !check_heads(c, a->n_heads, a->dim)) {
        return false;
    }
    const qr_weight_desc *w = &a->weight->desc;
    const int64_t x_dim = a->by_column ? a->dim : w->cols, y_dim = a->by_column ? w->cols : a->dim;
    REQUIRE(a->first_row >= 0 && a->row_stride >= a->dim && a->row_stride <= w->rows && a->n_heads <= w->rows &&
                a->first_row + (a->n_heads - 1) * a->row_stride + a->dim <= w->rows,
            "%" PRId64 " heads of %" PRId64 " rows, %" PRId64 " apart from row %" PRId64
            " on, are not in a matrix of %" PRId64,
            a->n_heads, a->dim, a->row_stride, a->first_row, w->rows);
    REQUIRE(a->factors == NULL || (a->row_adapter != NULL && a->n_adapters > 0 && a->max_rank > 0),
            "adapters need their rows, their number and their rank");
    return check_head_view(c, "x", a->n_rows, a->n_heads, x_dim, a->x_head_stride, a->x_stride) &&
           check_head_view(c, "y", a->n_rows, a->n_heads, y_dim, a->y_head_stride, a->y_stride);
}

static bool check_rope_table(const check *c, const qr_rope_table_args *a) {
    return check_not_negative(c, "temperature_tokens", (float)a->temperature_tokens) &&
           check_finite(c, "temperature_beta", a->temperature_beta) &&
           check_view(c, "the table", a->n_tokens, a->half, a->half);
}

static bool check_rope(const check *c, const qr_rope_args *a) {
    return check_rotation(c, a->n_heads, a->head_dim, a->half) &&
           check_view(c, "x", a->n_tokens, a->n_heads * a->head_dim, a->x_stride);
}

static bool check_kv_write(const check *c, const qr_kv_write_args *a) {
    const int64_t row = (int64_t)a->layout.n_kv_heads * a->layout.head_dim;
    return check_kv_layout(c, &a->layout, a->page_stride_bytes) && check_view(c, "k", a->n_tokens, row, a->k_stride) &&
           (a->layout.keys_are_values || check_view(c, "v", a->n_tokens, row, a->v_stride));
}

static bool check_attention(const check *c, const qr_attention_args *a) {
    const qr_kv_layout *layout = &a->layout;
    return check_kv_layout(c, layout, a->page_stride_bytes) && check_heads(c, a->n_heads, layout->head_dim) &&
           check_scores(c, a->n_heads, layout->n_kv_heads, a->scale, a->softcap, a->window) &&
           check_positive(c, "the number of sequences", a->n_seqs) &&
           check_positive(c, "table_stride", a->table_stride) && check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "q", a->n_tokens, (int64_t)a->n_heads * layout->head_dim, a->q_stride);
}

static bool check_activation(const check *c, const qr_activation_args *a) {
    return check_act_fn(c, a->fn) && check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "x", a->n_rows, a->dim, a->x_stride);
}

static bool check_gate(const check *c, const qr_gate_args *a) {
    return check_act_fn(c, a->fn) && check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "g", a->n_rows, a->dim, a->g_stride) && check_view(c, "u", a->n_rows, a->dim, a->u_stride);
}

static bool check_clamped_gate(const check *c, const qr_clamped_gate_args *a) {
    REQUIRE(a->limit > 0.0F && isfinite(a->limit) && a->alpha > 0.0F && isfinite(a->alpha),
            "alpha is %g and the limit %g; both must be positive", (double)a->alpha, (double)a->limit);
    return check_act_dtype(c, "dst", a->dst_dtype) && check_view(c, "g and u", a->n_rows, a->dim, a->stride);
}

static bool check_xielu(const check *c, const qr_xielu_args *a) {
    return check_act_dtype(c, "dst", a->dst_dtype) && check_view(c, "x", a->n_rows, a->dim, a->x_stride);
}

/* n_streams rows of dim for each of n_rows. */
static bool check_streams(const check *c, int64_t n_rows, int64_t dim, int32_t n_streams) {
    REQUIRE(n_streams >= 1 && n_streams <= QR_MAX_STREAMS, "there are %d streams; 1 to %d are possible", (int)n_streams,
            (int)QR_MAX_STREAMS);
    return check_view(c, "a stream", n_rows, dim, dim) &&
           check_view(c, "the streams", n_rows, n_streams * dim, n_streams * dim);
}

static bool check_gaussian_topk(const check *c, const qr_gaussian_topk_args *a) {
    return check_finite(c, "quantile", a->quantile) && check_view(c, "x", a->n_rows, a->dim, a->x_stride) &&
           check_view(c, "dst", a->n_rows, a->dim, a->dst_stride);
}

static bool check_stream_coefs(const check *c, const qr_stream_coefs_args *a) {
    REQUIRE(a->n_coefs >= 1 && a->n_coefs <= QR_MAX_STREAM_COEFS, "there are %d coefficients; 1 to %d are possible",
            (int)a->n_coefs, (int)QR_MAX_STREAM_COEFS);
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_stream_predict(const check *c, const qr_stream_predict_args *a) {
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_stream_correct(const check *c, const qr_stream_correct_args *a) {
    return check_act_dtype(c, "dst", a->dst_dtype) && check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_stream_level(const check *c, const qr_stream_level_args *a) {
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_add(const check *c, const qr_add_args *a) { return check_view(c, "x", 1, a->n, a->n); }

static bool check_scale(const check *c, const qr_scale_args *a) {
    REQUIRE(isfinite(a->factor), "the factor is %g; it must be finite", (double)a->factor);
    return check_view(c, "x", 1, a->n, a->n);
}

static bool check_scale_columns(const check *c, const qr_scale_columns_args *a) {
    int64_t dim = 0;
    for (int p = 0; p < QR_MAX_SCALED_PARTS; p++) {
        REQUIRE(a->parts[p].n >= 0, "part %d has %" PRId64 " columns", p, a->parts[p].n);
        REQUIRE(isfinite(a->parts[p].factor), "factor %d is %g; it must be finite", p, (double)a->parts[p].factor);
        dim += a->parts[p].n;
    }
    return check_view(c, "x", a->n_rows, dim, a->x_stride);
}

static bool check_softcap(const check *c, const qr_softcap_args *a) {
    REQUIRE(a->cap > 0.0F && isfinite(a->cap), "the cap is %g; it must be positive", (double)a->cap);
    return check_view(c, "x", 1, a->n, a->n);
}

static bool check_nll(const check *c, const qr_nll_args *a) {
    return check_vocab(c, a->vocab) && check_view(c, "logits", a->n_rows, a->vocab, a->vocab);
}

static bool check_sample(const check *c, const qr_sample_args *a) {
    return check_vocab(c, a->vocab) && check_view(c, "logits", a->n_samples, a->vocab, a->vocab);
}

/* --- Training ---------------------------------------------------------------------------------------------------- */

/* A factor of a running mean: with 1, no new value would enter it. */
static bool check_decay(const check *c, const char *what, float value) {
    REQUIRE(value >= 0.0F && value < 1.0F, "%s is %g; it must be at least 0 and less than 1", what, (double)value);
    return true;
}

static bool check_step(const check *c, int64_t n, int64_t step, float grad_scale, float lr) {
    REQUIRE(step >= 1, "step is %" PRId64 "; the first one is 1", step);
    return check_view(c, "p", 1, n, n) && check_finite(c, "grad_scale", grad_scale) && check_finite(c, "lr", lr);
}

static bool check_lora_backward(const check *c, const qr_lora_backward_args *a) {
    return check_act_dtype(c, "x", a->x_dtype) && check_positive(c, "rank", a->rank) &&
           check_finite(c, "scale", a->scale) && check_view(c, "x", a->n_rows, a->in, a->x_stride) &&
           check_view(c, "dy", a->n_rows, a->out, a->dy_stride) &&
           (a->dy_rounded == NULL || check_view(c, "dy_rounded", a->n_rows, a->out, a->dy_rounded_stride)) &&
           (a->dx == NULL || check_view(c, "dx", a->n_rows, a->in, a->dx_stride));
}

static bool check_linear_backward(const check *c, const qr_linear_backward_args *a) {
    const qr_lora_backward_args *lora = a->lora;
    if (!check_weight(c, a->weight) || !check_act_dtype(c, "dy", a->dy_dtype) ||
        !check_view(c, "dy", a->n_rows, a->weight->desc.rows + a->dy_room, a->dy_stride) ||
        !check_view(c, "dx", a->n_rows, a->weight->desc.cols, a->dx_stride)) {
        return false;
    }
    REQUIRE(a->dy_room >= 0, "dy_room is %" PRId64 "; it must not be negative", a->dy_room);
    if (lora == NULL) { return true; }
    REQUIRE(lora->dx == a->dx && lora->dx_stride == a->dx_stride && lora->n_rows == a->n_rows &&
                lora->out == a->weight->desc.rows && lora->in == a->weight->desc.cols,
            "the adapter's rows, sizes or dx are not those of the matrix");
    return check_lora_backward(c, lora);
}

static bool check_weight_backward(const check *c, const qr_weight_backward_args *a) {
    return check_act_dtype(c, "x", a->x_dtype) && check_view(c, "x", a->n_rows, a->in, a->x_stride) &&
           check_view(c, "dy", a->n_rows, a->out, a->dy_stride) && check_view(c, "dw", a->out, a->in, a->in);
}

static bool check_dora_backward(const check *c, const qr_dora_backward_args *a) {
    return check_view(c, "dy", a->n_rows, a->dim, a->dy_stride) && check_view(c, "z", a->n_rows, a->dim, a->z_stride);
}

static bool check_rms_norm_backward(const check *c, const qr_rms_norm_backward_args *a) {
    return check_heads(c, a->n_groups, a->dim) && check_not_negative(c, "eps", a->eps) &&
           check_view(c, "x", a->n_rows, a->n_groups * a->dim, a->x_stride) &&
           check_view(c, "dy", a->n_rows, a->n_groups * a->dim, a->dy_stride) &&
           check_view(c, "dx", a->n_rows, a->n_groups * a->dim, a->dx_stride);
}

static bool check_layer_norm_backward(const check *c, const qr_layer_norm_backward_args *a) {
    return check_not_negative(c, "eps", a->eps) && check_view(c, "x", a->n_rows, a->dim, a->dim);
}

static bool check_rope_backward(const check *c, const qr_rope_backward_args *a) {
    return check_rotation(c, a->n_heads, a->head_dim, a->half) &&
           check_view(c, "dx", a->n_tokens, a->n_heads * a->head_dim, a->dx_stride);
}

static bool check_attention_packed(const check *c, const qr_attention_packed_args *a) {
    if (!check_heads(c, a->n_heads, a->head_dim) || !check_heads(c, a->n_kv_heads, a->head_dim)) { return false; }
    REQUIRE(a->max_seq_tokens <= a->n_tokens, "max_seq_tokens is %d, more than the %" PRId64 " tokens there are",
            (int)a->max_seq_tokens, a->n_tokens);
    return check_scores(c, a->n_heads, a->n_kv_heads, a->scale, a->softcap, a->window) &&
           check_positive(c, "the number of sequences", a->n_seqs) &&
           check_positive(c, "max_seq_tokens", a->max_seq_tokens) && check_act_dtype(c, "dst", a->dst_dtype) &&
           check_view(c, "q", a->n_tokens, (int64_t)a->n_heads * a->head_dim, a->qkv_stride);
}

static bool check_attention_packed_backward(const check *c, const qr_attention_packed_backward_args *a) {
    REQUIRE(a->dsinks == NULL || a->forward.sinks != NULL, "dsinks is asked for, and there are no sinks");
    return check_attention_packed(c, &a->forward) &&
           check_view(c, "dq", a->forward.n_tokens, (int64_t)a->forward.n_heads * a->forward.head_dim, a->dqkv_stride);
}

static bool check_activation_backward(const check *c, const qr_activation_backward_args *a) {
    return check_act_fn(c, a->fn) && check_view(c, "x", a->n_rows, a->dim, a->x_stride) &&
           check_view(c, "dy", a->n_rows, a->dim, a->dy_stride) && check_view(c, "dx", a->n_rows, a->dim, a->dx_stride);
}

static bool check_gate_backward(const check *c, const qr_gate_backward_args *a) {
    return check_act_fn(c, a->fn) && check_view(c, "g", a->n_rows, a->dim, a->g_stride) &&
           check_view(c, "u", a->n_rows, a->dim, a->u_stride) && check_view(c, "dg", a->n_rows, a->dim, a->dg_stride) &&
           check_view(c, "du", a->n_rows, a->dim, a->du_stride);
}

static bool check_clamped_gate_backward(const check *c, const qr_clamped_gate_backward_args *a) {
    return check_clamped_gate(c, &a->forward) &&
           check_view(c, "dg and du", a->forward.n_rows, a->forward.dim, a->dgu_stride);
}

static bool check_xielu_backward(const check *c, const qr_xielu_backward_args *a) {
    return check_view(c, "x", a->forward.n_rows, a->forward.dim, a->forward.x_stride) &&
           check_view(c, "dy", a->forward.n_rows, a->forward.dim, a->dy_stride) &&
           check_view(c, "dx", a->forward.n_rows, a->forward.dim, a->dx_stride);
}

static bool check_gaussian_topk_backward(const check *c, const qr_gaussian_topk_backward_args *a) {
    const qr_gaussian_topk_args *f = &a->forward;
    return check_finite(c, "quantile", f->quantile) && check_view(c, "x", f->n_rows, f->dim, f->x_stride) &&
           check_view(c, "dy", f->n_rows, f->dim, a->dy_stride) && check_view(c, "dx", f->n_rows, f->dim, a->dx_stride);
}

static bool check_stream_coefs_backward(const check *c, const qr_stream_coefs_backward_args *a) {
    return check_stream_coefs(c, &a->forward);
}

static bool check_stream_predict_backward(const check *c, const qr_stream_predict_backward_args *a) {
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_stream_correct_backward(const check *c, const qr_stream_correct_backward_args *a) {
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_stream_level_backward(const check *c, const qr_stream_level_backward_args *a) {
    return check_streams(c, a->n_rows, a->dim, a->n_streams);
}

static bool check_cross_entropy(const check *c, const qr_cross_entropy_args *a) {
    return check_vocab(c, a->vocab) && check_not_negative(c, "softcap", a->softcap) &&
           check_finite(c, "dloss", a->dloss) && check_view(c, "logits", a->n_rows, a->vocab, a->vocab);
}

static bool check_embedding_backward(const check *c, const qr_embedding_backward_args *a) {
    return check_vocab(c, a->vocab) && check_view(c, "dy", a->n_tokens, a->dim, a->dim) &&
           check_view(c, "dtable", a->vocab, a->dim, a->dim);
}

static bool check_scatter_rows(const check *c, const qr_scatter_rows_args *a) {
    REQUIRE(a->n_rows <= a->n_dst_rows, "%" PRId64 " rows do not fit into %" PRId64, a->n_rows, a->n_dst_rows);
    return check_view(c, "src", a->n_rows, a->dim, a->dim) && check_view(c, "dst", a->n_dst_rows, a->dim, a->dim);
}

static bool check_dropout(const check *c, const qr_dropout_args *a) {
    return check_decay(c, "p", a->p) && check_act_dtype(c, "x", a->x_dtype) &&
           check_view(c, "x", a->n_rows, a->dim, a->x_stride) && check_view(c, "dst", a->n_rows, a->dim, a->dst_stride);
}

static bool check_round_act(const check *c, const qr_round_act_args *a) {
    return check_act_dtype(c, "dst", a->dst_dtype) && check_view(c, "src", a->n_rows, a->dim, a->src_stride) &&
           check_view(c, "dst", a->n_rows, a->dim, a->dst_stride);
}

static bool check_store_weight(const check *c, const qr_store_weight_args *a) {
    if (!check_weight(c, a->weight)) { return false; }
    REQUIRE(a->weight->desc.format <= QR_WEIGHT_BF16, "the weight is %s; it must be F32, F16 or BF16",
            qr_weight_format_name(a->weight->desc.format));
    return true;
}

static bool check_sum_squares(const check *c, const qr_sum_squares_args *a) {
    return check_view(c, "x", 1, a->n, a->n);
}

/* adamw and adamw8bit have these fields in common. */
#define CHECK_ADAM(a)                                                                                     \
    (check_step(c, (a)->n, (a)->step, (a)->grad_scale, (a)->lr) && check_decay(c, "beta1", (a)->beta1) && \
     check_decay(c, "beta2", (a)->beta2) && check_not_negative(c, "eps", (a)->eps) &&                     \
     check_finite(c, "weight_decay", (a)->weight_decay))

static bool check_adamw(const check *c, const qr_adamw_args *a) { return CHECK_ADAM(a); }
static bool check_adamw8bit(const check *c, const qr_adamw8bit_args *a) { return CHECK_ADAM(a); }

static bool check_sgd(const check *c, const qr_sgd_args *a) {
    return check_step(c, a->n, a->step, a->grad_scale, a->lr) && check_decay(c, "momentum", a->momentum) &&
           check_finite(c, "weight_decay", a->weight_decay);
}

static bool check_adafactor(const check *c, const qr_adafactor_args *a) {
    if (!check_view(c, "p", a->rows, a->cols, a->cols)) { return false; }
    REQUIRE(a->clip_threshold > 0.0F && isfinite(a->clip_threshold), "clip_threshold is %g; it must be positive",
            (double)a->clip_threshold);
    REQUIRE(a->decay_rate <= 0.0F && isfinite(a->decay_rate),
            "decay_rate is %g; it must not be positive (usually -0.8)", (double)a->decay_rate);
    return check_step(c, a->rows * a->cols, a->step, a->grad_scale, a->lr) && check_not_negative(c, "eps1", a->eps1) &&
           check_finite(c, "weight_decay", a->weight_decay);
}

/* --- Recurrences, and what goes with them ------------------------------------------------------------------------ */

static bool check_copy_heads(const check *c, const qr_copy_heads_args *a) {
    const bool is_for_all = a->src_head_stride == 0 || a->src == NULL;
    REQUIRE((is_for_all || a->src_head_stride >= a->dim) && a->dst_head_stride >= a->dim,
            "heads of %" PRId64 " elements are %" PRId64 " and %" PRId64 " apart", a->dim, a->src_head_stride,
            a->dst_head_stride);
    REQUIRE(!a->accumulate || a->dtype == QR_DTYPE_F32, "it adds up in %s; only F32 does", qr_dtype_name(a->dtype));
    if (a->src != NULL && !is_for_all && !check_heads(c, a->n_heads, a->src_head_stride)) { return false; }
    if (a->src != NULL &&
        !check_view(c, "src", a->n_rows, (a->n_heads - 1) * a->src_head_stride + a->dim, a->src_stride)) {
        return false;
    }
    return check_act_dtype(c, "src", a->dtype) && check_heads(c, a->n_heads, a->dst_head_stride) &&
           check_view(c, "dst", a->n_rows, (a->n_heads - 1) * a->dst_head_stride + a->dim, a->dst_stride);
}

static bool check_head_gate(const check *c, const qr_head_gate_args *a) {
    REQUIRE(a->gate_dim == a->dim || a->gate_dim == 1, "gates have %" PRId64 " elements, heads %" PRId64, a->gate_dim,
            a->dim);
    REQUIRE(a->gate_head_stride >= a->gate_dim, "gates of %" PRId64 " elements are %" PRId64 " apart", a->gate_dim,
            a->gate_head_stride);
    return check_act_dtype(c, "x", a->dtype) && check_heads(c, a->n_heads, a->gate_head_stride) &&
           check_view(c, "x", a->n_rows, a->n_heads * a->dim, a->n_heads * a->dim) &&
           check_view(c, "gate", a->n_rows, (a->n_heads - 1) * a->gate_head_stride + a->gate_dim, a->gate_stride);
}

static bool check_head_gate_backward(const check *c, const qr_head_gate_backward_args *a) {
    return check_head_gate(c, &a->forward);
}

/* state: elements of one. */
static bool check_recurrence(const check *c, const qr_recurrence *r, int64_t n_tokens, int64_t state) {
    if (!check_positive(c, "n_seqs", r->n_seqs)) { return false; }
    REQUIRE(n_tokens <= INT32_MAX, "%" PRId64 " tokens are too many", n_tokens);
    if (r->slot == NULL) { return true; }
    REQUIRE(r->state_stride >= state, "states of %" PRId64 " elements are %" PRId64 " apart", state, r->state_stride);
    return true;
}

/* The backward ops run over whole sequences. */
static bool check_whole(const check *c, const qr_recurrence *r, int64_t n_tokens) {
    REQUIRE(r->slot == NULL && r->first_position == NULL, "the sequences are not whole");
    REQUIRE(r->max_seq_tokens > 0 && r->max_seq_tokens <= n_tokens,
            "the longest sequence has %" PRId32 " of %" PRId64 " tokens", r->max_seq_tokens, n_tokens);
    return true;
}

static bool check_conv1d_causal(const check *c, const qr_conv1d_causal_args *a) {
    REQUIRE(a->kernel >= 1 && a->kernel <= QR_CONV_MAX_KERNEL, "kernel is %" PRId32 "; it must be from 1 to %d",
            a->kernel, QR_CONV_MAX_KERNEL);
    return check_act_fn(c, a->fn) && check_view(c, "x", a->n_tokens, a->dim, a->x_stride) &&
           check_recurrence(c, &a->sequences, a->n_tokens, (a->kernel - 1) * a->dim);
}

static bool check_conv1d_causal_backward(const check *c, const qr_conv1d_causal_backward_args *a) {
    const qr_conv1d_causal_args *forward = &a->forward;
    return check_conv1d_causal(c, forward) && check_whole(c, &forward->sequences, forward->n_tokens) &&
           check_view(c, "dx", forward->n_tokens, forward->dim, a->dx_stride);
}

static int64_t qkv_columns(const qr_gated_delta_args *a) {
    return 2 * (int64_t)a->n_key_heads * a->key_dim + (int64_t)a->n_value_heads * a->value_dim;
}

static int64_t decay_columns(const qr_gated_delta_args *a) { return (int64_t)a->n_value_heads * qr_delta_decays(a); }

static bool check_gated_delta(const check *c, const qr_gated_delta_args *a) {
    if (!check_heads(c, a->n_key_heads, a->key_dim) || !check_heads(c, a->n_value_heads, a->value_dim)) {
        return false;
    }
    REQUIRE(a->n_value_heads % a->n_key_heads == 0,
            "%" PRId32 " value heads are not divisible by %" PRId32 " key heads", a->n_value_heads, a->n_key_heads);
    REQUIRE((int64_t)a->key_dim * a->value_dim <= INT32_MAX / a->n_value_heads, "the state is too large");
    const int64_t state = (int64_t)a->n_value_heads * a->key_dim * a->value_dim;
    return check_view(c, "qkv", a->n_tokens, qkv_columns(a), a->qkv_stride) &&
           check_view(c, "a", a->n_tokens, decay_columns(a), a->ab_stride) &&
           check_recurrence(c, &a->sequences, a->n_tokens, state);
}

static bool check_gated_delta_backward(const check *c, const qr_gated_delta_backward_args *a) {
    const qr_gated_delta_args *forward = &a->forward;
    return check_gated_delta(c, forward) && check_whole(c, &forward->sequences, forward->n_tokens) &&
           check_view(c, "dqkv", forward->n_tokens, qkv_columns(forward), a->dqkv_stride) &&
           check_view(c, "da", forward->n_tokens, decay_columns(forward), a->dab_stride);
}

static int64_t xbc_columns(const qr_state_space_args *a) {
    return (int64_t)a->n_heads * a->head_dim + 2 * (int64_t)a->n_groups * a->state_dim;
}

static bool check_state_space(const check *c, const qr_state_space_args *a) {
    if (!check_heads(c, a->n_heads, a->head_dim) || !check_heads(c, a->n_groups, a->state_dim)) { return false; }
    REQUIRE(a->n_heads % a->n_groups == 0, "%" PRId32 " heads are not divisible by %" PRId32 " groups", a->n_heads,
            a->n_groups);
    REQUIRE((int64_t)a->state_dim * a->head_dim <= INT32_MAX / a->n_heads, "the state is too large");
    const int64_t state = (int64_t)a->n_heads * a->state_dim * a->head_dim;
    return check_view(c, "xbc", a->n_tokens, xbc_columns(a), a->xbc_stride) &&
           check_view(c, "dt", a->n_tokens, a->n_heads, a->dt_stride) &&
           check_recurrence(c, &a->sequences, a->n_tokens, state);
}

static bool check_state_space_backward(const check *c, const qr_state_space_backward_args *a) {
    const qr_state_space_args *forward = &a->forward;
    return check_state_space(c, forward) && check_whole(c, &forward->sequences, forward->n_tokens) &&
           check_view(c, "dxbc", forward->n_tokens, xbc_columns(forward), a->dxbc_stride) &&
           check_view(c, "ddt", forward->n_tokens, forward->n_heads, a->ddt_stride);
}

/* --- The functions of op_check.h --------------------------------------------------------------------------------- */

#define QR_X(name)                                                                           \
    bool qr_check_##name(const void *args, qr_error *err) {                                  \
        return check_##name(&(check){.op = #name, .err = err}, args);                        \
    }                                                                                        \
    bool qr_op_supports_##name(const qr_backend *backend, const void *args, qr_error *err) { \
        (void)backend;                                                                       \
        return qr_check_##name(args, err);                                                   \
    }
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
    const bool has_codes = desc->format == QR_WEIGHT_NF4_DQ || desc->format == QR_WEIGHT_MXFP4;
    if (has_codes && scales->absmax_codes == NULL) { missing = "absmax_codes"; }
    if (desc->format == QR_WEIGHT_NF4_DQ && scales->nested_absmax == NULL) { missing = "nested_absmax"; }
    if (missing == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "the scales of a %s weight lack %s", qr_weight_format_name(desc->format),
                   missing);
}

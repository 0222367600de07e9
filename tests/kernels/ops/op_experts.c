/* The ops of experts.
 *
 * A case's rows are tokens: what an op has in slots is read in the order of each token's choices, so that the bits of a
 * token are compared alone and among others. Bounds as in op_linear.c. */
#include "op_routing.h"

#include <sys/mman.h>

#include "check.h"

#include "base/alloc.h"

/* The matrices of all experts on a backend. */
static void put_weights(op_run *run, op_weight *const *weights, int32_t n_experts, qr_weight dst[MOST_EXPERTS]) {
    for (int32_t e = 0; e < n_experts; e++) {
        qr_error err = {0};
        const size_t n_bytes = run->backend->weight_bytes(run->backend, &weights[e]->desc);
        void *data = op_output(run, NULL, 1, n_bytes, n_bytes);
        CHECK_MSG(op_weight_put(run->backend, weights[e], data, &dst[e], &err), "%s", err.message);
    }
}

/* --- expert_linear and its backward part ------------------------------------------------------------------------- */

typedef struct matrices_case {
    op_weight **weights; /* [n_experts] */
    const choices *choices;
    qr_dtype dtype;
    const void *x; /* [n_rows or pairs, width + gap]: x, or dy */
    int64_t gap;
    bool gathers;
    const float *dx; /* [pairs, in]: what is accumulated onto; NULL: nothing */
    bool backward;
} matrices_case;

static int64_t width_of(const matrices_case *c, bool of_result) {
    const qr_weight_desc *desc = &c->weights[0]->desc;
    return c->backward == of_result ? desc->cols : desc->rows;
}

/* Matrices that nothing may read. */
static void hide_idle(const host_routing *r, int32_t n_experts, qr_weight *weights) {
    static void *nothing;
    if (nothing == NULL) { nothing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
    REQUIRE(nothing != MAP_FAILED);
    for (int32_t e = 0; e < n_experts; e++) {
        if (r->expert_start[e] == r->expert_start[e + 1]) { weights[e].data = nothing; }
    }
}

/* Row: the results of a token's slots, one after the other. Nothing is read of an expert that has none. */
static void exec_matrices(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const matrices_case *c = data;
    const int64_t stride = width_of(c, false) + c->gap, width = width_of(c, true);
    const size_t out_bytes = (size_t)width * F32_BYTES;
    const host_routing r = routing_of(c->choices, first, n_rows);
    unsigned char *slots = qr_alloc((size_t)(r.n_slots * stride) * sizeof(float));
    float *initial = qr_alloc((size_t)r.n_slots * out_bytes), *result = qr_alloc((size_t)r.n_slots * out_bytes);
    if (c->dx != NULL) { by_slots(&r, c->dx + first * c->choices->top_k * width, out_bytes, initial); }
    qr_weight weights[MOST_EXPERTS];
    put_weights(run, c->weights, c->choices->n_experts, weights);
    hide_idle(&r, c->choices->n_experts, weights);
    const qr_routing routing = put_routing(run, c->choices, &r);
    const void *x = put_rows(run, c->choices, c->x, c->dtype, c->gathers, &r, first, stride, c->gap, slots);
    float *y = op_output(run, c->dx != NULL ? initial : NULL, r.n_slots, out_bytes, out_bytes + GAP * F32_BYTES);
    const qr_expert_linear_args forward = {.weights = weights,
                                           .routing = routing,
                                           .x = x,
                                           .x_dtype = c->dtype,
                                           .y = y,
                                           .x_stride = stride,
                                           .y_stride = width + GAP,
                                           .gathers = c->gathers};
    const qr_expert_linear_backward_args backward = {.weights = weights,
                                                     .routing = routing,
                                                     .dy = x,
                                                     .dy_dtype = c->dtype,
                                                     .dx = y,
                                                     .dy_stride = stride,
                                                     .dx_stride = width + GAP,
                                                     .gathers = c->gathers,
                                                     .accumulate = c->dx != NULL};
    op_call(run, c->backward ? QR_OP_expert_linear_backward : QR_OP_expert_linear,
            c->backward ? (const void *)&backward : &forward);
    op_read(run, y, result);
    by_pairs(&r, result, out_bytes, out);
    op_run_end(run); /* before the copies that inputs are compared with go */
    qr_free(slots);
    qr_free(initial);
    qr_free(result);
}

static void matrices_bound(const matrices_case *c, double *bound) {
    const choices *chosen = c->choices;
    const int64_t in = width_of(c, false), out = width_of(c, true), cols = c->weights[0]->desc.cols;
    for (int64_t pair = 0; pair < chosen->n_rows * chosen->top_k; pair++) {
        const float *w = c->weights[chosen->expert[pair]]->values;
        const int64_t row = c->gathers ? pair / chosen->top_k : pair;
        for (int64_t o = 0; o < out; o++) {
            double sum = 0.0;
            for (int64_t k = 0; k < in; k++) {
                const float value = c->backward ? w[k * cols + o] : w[o * cols + k];
                sum += fabs(op_from_dtype(c->x, c->dtype, row * (in + c->gap) + k) * (double)value);
            }
            sum *= c->dtype != QR_DTYPE_F32 ? 1.0 + 0x1p-8 : 1.0;
            if (c->dx != NULL) { sum += fabs((double)c->dx[pair * out + o]); }
            bound[pair * out + o] = (double)(in + 5) * OP_U * sum;
        }
    }
}

typedef struct matrices_shape {
    qr_weight_format format;
    int block;
    int64_t rows, cols;
    qr_dtype dtype;
    int64_t n_rows;
    int32_t n_experts, top_k;
    bool gathers, whole; /* `whole`: rows of x follow each other, and begin at 16 bytes where they can */
} matrices_shape;

static void check_matrices(const matrices_shape *s, bool backward, bool accumulate) {
    const uint64_t stream = (uint64_t)(s->rows * 10007 + s->cols * 31 + s->n_rows);
    const choices chosen = choose(s->n_rows, s->n_experts, s->top_k, stream);
    const int64_t n_pairs = s->n_rows * s->top_k;
    REQUIRE(s->n_experts > 0);
    op_weight *weights[MOST_EXPERTS] = {NULL};
    for (int32_t e = 0; e < s->n_experts; e++) {
        const qr_weight_desc desc = {.format = s->format, .block = s->block, .rows = s->rows, .cols = s->cols};
        weights[e] = op_weight_create(desc, stream + 100 + (uint64_t)e);
    }
    matrices_case data = {
        .weights = weights, .choices = &chosen, .dtype = s->dtype, .gathers = s->gathers, .backward = backward};
    data.gap = s->whole ? 0 : GAP;
    const int64_t width = width_of(&data, true),
                  n_x = (s->gathers ? s->n_rows : n_pairs) * (width_of(&data, false) + data.gap);
    float *x = op_normals(n_x, stream + 1, 1.0), *dx = op_normals(n_pairs * width, stream + 2, 1.0);
    void *typed = op_to_dtype(x, n_x, s->dtype);
    double *bound = op_doubles(n_pairs * width);
    data.x = typed;
    data.dx = accumulate ? dx : NULL;
    matrices_bound(&data, bound);
    op_case c = {.n_rows = s->n_rows, .row = s->top_k * width, .exec = exec_matrices, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "expert_linear%s %s [%lld, %lld] x %s, %lld rows, %d of %d%s%s",
             backward ? "_backward" : "", qr_weight_format_name(s->format), (long long)s->rows, (long long)s->cols,
             qr_dtype_name(s->dtype), (long long)s->n_rows, (int)s->top_k, (int)s->n_experts,
             s->gathers ? ", gathered" : "", accumulate ? ", accumulate" : "");
    op_check_case(&c, QR_DTYPE_F32);
    for (int32_t e = 0; e < s->n_experts; e++) { op_weight_destroy(weights[e]); }
    qr_free(x);
    qr_free(dx);
    qr_free(typed);
    qr_free(bound);
}

/* One token, few, and more than a tile, in every format; matrices of odd sizes and of those that kernels like. */
static const matrices_shape shapes[] = {
    {QR_WEIGHT_F32, 0, 17, 33, QR_DTYPE_F32, 1, 7, 3, true, false},
    {QR_WEIGHT_F32, 0, 70, 64, QR_DTYPE_F32, 23, 7, 3, false, false},
    {QR_WEIGHT_BF16, 0, 36, 48, QR_DTYPE_BF16, 33, 7, 3, true, false},
    {QR_WEIGHT_BF16, 0, 130, 31, QR_DTYPE_BF16, 9, 13, 4, false, false},
    {QR_WEIGHT_BF16, 0, 20, 64, QR_DTYPE_F16, 5, 7, 3, true, false},
    {QR_WEIGHT_INT8, 0, 48, 36, QR_DTYPE_F32, 19, 7, 3, true, false},
    {QR_WEIGHT_INT8, 0, 65, 64, QR_DTYPE_BF16, 70, 5, 2, true, false},
    {QR_WEIGHT_NF4, 64, 48, 36, QR_DTYPE_F32, 6, 7, 3, false, false},
    {QR_WEIGHT_NF4, 64, 33, 128, QR_DTYPE_BF16, 40, 7, 3, true, false},
    {QR_WEIGHT_NF4_DQ, 64, 64, 192, QR_DTYPE_BF16, 1, 7, 3, true, false},
    {QR_WEIGHT_NF4_DQ, 64, 70, 64, QR_DTYPE_BF16, 150, 3, 1, true, false},
    {QR_WEIGHT_NF4_DQ, 64, 17, 64, QR_DTYPE_F16, 12, 13, 4, false, false},
    {QR_WEIGHT_NF4_DQ, 64, 64, 192, QR_DTYPE_BF16, 1, 7, 3, true, true},
    {QR_WEIGHT_NF4, 64, 72, 576, QR_DTYPE_BF16, 120, 5, 3, true, true},
    {QR_WEIGHT_NF4_DQ, 64, 136, 64, QR_DTYPE_F16, 90, 13, 3, false, true},
    {QR_WEIGHT_INT8, 0, 40, 128, QR_DTYPE_BF16, 100, 7, 3, true, true},
    {QR_WEIGHT_BF16, 0, 64, 128, QR_DTYPE_BF16, 67, 13, 4, false, true},
    {QR_WEIGHT_F16, 0, 64, 64, QR_DTYPE_F16, 150, 3, 2, true, true},
    {QR_WEIGHT_MXFP4, 0, 48, 96, QR_DTYPE_F32, 6, 7, 3, false, false},
    {QR_WEIGHT_MXFP4, 0, 33, 128, QR_DTYPE_BF16, 40, 7, 3, true, false},
    {QR_WEIGHT_MXFP4, 0, 64, 192, QR_DTYPE_BF16, 1, 7, 3, true, true},
    {QR_WEIGHT_MXFP4, 0, 70, 32, QR_DTYPE_BF16, 150, 3, 1, true, false},
    {QR_WEIGHT_MXFP4, 0, 17, 320, QR_DTYPE_F16, 12, 13, 4, false, false},
    {QR_WEIGHT_MXFP4, 0, 72, 576, QR_DTYPE_BF16, 120, 5, 3, true, true},
    {QR_WEIGHT_MXFP4, 0, 33, 2880, QR_DTYPE_BF16, 5, 4, 2, true, false},
    {QR_WEIGHT_MXFP4, 0, 20, 4608, QR_DTYPE_F16, 2, 3, 2, true, false},
};

/* What linear gives row 0, …, n_rows − 1 of x with an expert's matrix: y [n_rows, out]. */
static void run_linear(qr_backend *backend, const matrices_case *c, int32_t expert, float *y) {
    op_run run = {.backend = backend, .label = "linear"};
    qr_error err = {0};
    op_weight *weight = c->weights[expert];
    const int64_t in = weight->desc.cols, n_rows = c->choices->n_rows;
    const size_t n_bytes = backend->weight_bytes(backend, &weight->desc),
                 row_bytes = (size_t)weight->desc.rows * F32_BYTES;
    qr_weight matrix;
    void *memory = op_output(&run, NULL, 1, n_bytes, n_bytes);
    CHECK_MSG(op_weight_put(backend, weight, memory, &matrix, &err), "%s", err.message);
    const qr_linear_args args = {.weight = &matrix,
                                 .x = op_input(&run, c->x, (size_t)(n_rows * in) * qr_dtype_bytes(c->dtype)),
                                 .x_dtype = c->dtype,
                                 .y = op_output(&run, NULL, n_rows, row_bytes, row_bytes),
                                 .n_rows = n_rows,
                                 .x_stride = in,
                                 .y_stride = weight->desc.rows};
    op_call(&run, QR_OP_linear, &args);
    op_read(&run, args.y, y);
    op_run_end(&run);
}

/* A slot has the bits of linear's row. */
static void check_bits_of_linear(const matrices_shape *s) {
    const choices chosen = choose(s->n_rows, s->n_experts, s->top_k, 5);
    REQUIRE(s->n_experts > 0);
    op_weight *weights[MOST_EXPERTS] = {NULL};
    for (int32_t e = 0; e < s->n_experts; e++) {
        const qr_weight_desc desc = {.format = s->format, .block = s->block, .rows = s->rows, .cols = s->cols};
        weights[e] = op_weight_create(desc, 200 + (uint64_t)e);
    }
    float *x = op_normals(s->n_rows * s->cols, 6, 1.0);
    void *typed = op_to_dtype(x, s->n_rows * s->cols, s->dtype);
    const matrices_case c = {.weights = weights, .choices = &chosen, .dtype = s->dtype, .x = typed, .gathers = true};
    const int64_t n_out = s->n_rows * s->rows;
    float *slots = qr_alloc((size_t)(n_out * s->top_k) * sizeof *slots), *rows = qr_alloc((size_t)n_out * sizeof *rows);
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        op_run run = {.backend = device->backends[0], .label = "expert_linear"};
        exec_matrices(&run, &c, 0, s->n_rows, QR_DTYPE_F32, slots);
        int64_t n_other = 0;
        for (int32_t e = 0; e < s->n_experts; e++) {
            run_linear(device->backends[0], &c, e, rows);
            for (int64_t pair = 0; pair < s->n_rows * s->top_k; pair++) {
                const float *row = rows + pair / s->top_k * s->rows;
                n_other +=
                    chosen.expert[pair] == e && memcmp(slots + pair * s->rows, row, (size_t)s->rows * sizeof *row) != 0;
            }
        }
        CHECK_MSG(n_other == 0, "%s: %s x %s: %lld slots have other bits than linear gives their rows", device->label,
                  qr_weight_format_name(s->format), qr_dtype_name(s->dtype), (long long)n_other);
    }
    for (int32_t e = 0; e < s->n_experts; e++) { op_weight_destroy(weights[e]); }
    qr_free(x);
    qr_free(typed);
    qr_free(slots);
    qr_free(rows);
}

void test_op_expert_linear(void) {
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) { check_matrices(&shapes[i], false, false); }
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) {
        if (shapes[i].gathers) { check_bits_of_linear(&shapes[i]); }
    }
}

void test_op_expert_linear_backward(void) {
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) { check_matrices(&shapes[i], true, i % 2 == 1); }
}

/* --- expert_sum -------------------------------------------------------------------------------------------------- */

typedef struct sum_case {
    const choices *choices;
    int64_t dim, dst_stride;
    const float *src; /* [pairs, dim] */
    const float *dst; /* [n_rows, dim]: what is accumulated onto; NULL: nothing */
    bool by_share;
} sum_case;

static void exec_sum(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const sum_case *c = data;
    const size_t row_bytes = (size_t)c->dim * F32_BYTES;
    const host_routing r = routing_of(c->choices, first, n_rows);
    float *slots = qr_alloc((size_t)r.n_slots * row_bytes);
    by_slots(&r, c->src + first * c->choices->top_k * c->dim, row_bytes, slots);
    const qr_expert_sum_args args = {
        .routing = put_routing(run, c->choices, &r),
        .src = op_input(run, slots, (size_t)r.n_slots * row_bytes),
        .dst = op_output(run, c->dst != NULL ? c->dst + first * c->dim : NULL, n_rows, row_bytes,
                         (size_t)c->dst_stride * F32_BYTES),
        .dim = c->dim,
        .dst_stride = c->dst_stride,
        .by_share = c->by_share,
        .accumulate = c->dst != NULL,
    };
    op_call(run, QR_OP_expert_sum, &args);
    op_read(run, args.dst, out);
    op_run_end(run);
    qr_free(slots);
}

static void check_sum(int64_t n_rows, int32_t n_experts, int32_t top_k, int64_t dim, int64_t dst_stride, bool by_share,
                      bool accumulate) {
    const uint64_t stream = (uint64_t)(n_rows * 31 + dim);
    const choices chosen = choose(n_rows, n_experts, top_k, stream);
    float *src = op_normals(n_rows * top_k * dim, stream + 1, 1.0), *dst = op_normals(n_rows * dim, stream + 2, 1.0);
    double *bound = op_doubles(n_rows * dim);
    for (int64_t i = 0; i < n_rows * dim; i++) {
        double sum = accumulate ? fabs((double)dst[i]) : 0.0;
        for (int32_t k = 0; k < top_k; k++) {
            const int64_t pair = i / dim * top_k + k;
            sum += fabs((double)(by_share ? chosen.share[pair] : 1.0F) * (double)src[pair * dim + i % dim]);
        }
        bound[i] = (double)(top_k + 3) * OP_U * sum;
    }
    const sum_case data = {&chosen, dim, dst_stride, src, accumulate ? dst : NULL, by_share};
    op_case c = {.n_rows = n_rows, .row = dim, .exec = exec_sum, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "expert_sum rows %lld of %lld, %d of %d%s%s", (long long)n_rows, (long long)dim,
             (int)top_k, (int)n_experts, by_share ? ", by share" : "", accumulate ? ", accumulate" : "");
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(src);
    qr_free(dst);
    qr_free(bound);
}

void test_op_expert_sum(void) {
    check_sum(1, 7, 3, 1, 1, true, true);
    check_sum(33, 7, 3, 50, 57, true, true);
    check_sum(70, 13, 4, 64, 64, true, false);
    check_sum(21, 13, 4, 64, 128, true, true);
    check_sum(9, 5, 1, 131, 131, false, false);
    check_sum(40, 7, 3, 33, 40, false, true);
}

/* --- expert_fetch ------------------------------------------------------------------------------------------------ */

/* What the experts of tokens [first, first + n) have in host memory is on the device afterwards; the others' is as it
 * was. */
static void check_fetch(qr_backend *backend, const choices *chosen, int64_t first, int64_t n_rows, size_t n_bytes) {
    op_run run = {.backend = backend, .label = "expert_fetch"};
    const size_t all = (size_t)chosen->n_experts * n_bytes;
    unsigned char *before = qr_alloc(all), *after = qr_alloc(all);
    void *host = NULL;
    qr_error err = {0};
    REQUIRE(backend->memory_create(backend, QR_MEMORY_HOST, all, &host, &err) == QRUN_OK);
    for (size_t i = 0; i < all; i++) {
        ((unsigned char *)host)[i] = (unsigned char)(i * 7 + i / n_bytes);
        before[i] = (unsigned char)(i * 5 + 1);
    }
    const host_routing r = routing_of(chosen, first, n_rows);
    const qr_expert_fetch_args args = {.routing = put_routing(&run, chosen, &r),
                                       .host = host,
                                       .device = op_output(&run, before, 1, all, all),
                                       .n_bytes = (int64_t)n_bytes};
    op_call(&run, QR_OP_expert_fetch, &args);
    op_read(&run, args.device, after);
    for (int32_t e = 0; e < chosen->n_experts; e++) {
        const bool has_slots = r.expert_start[e] < r.expert_start[e + 1];
        const unsigned char *expected = has_slots ? (const unsigned char *)host : before;
        const size_t at = (size_t)e * n_bytes;
        CHECK_MSG(memcmp(after + at, expected + at, n_bytes) == 0, "%s: expert_fetch: expert %d of %d, %s",
                  backend->isa, (int)e, (int)chosen->n_experts, has_slots ? "with slots" : "without");
    }
    op_run_end(&run);
    backend->memory_destroy(backend, QR_MEMORY_HOST, host, all);
    qr_free(before);
    qr_free(after);
}

static void check_fetches(qr_backend *backend) {
    static const size_t sizes[] = {64, 192, 4096 + 64, 131072 + 128};
    static const int32_t of[][2] = {{1, 1}, {7, 3}, {13, 4}};
    for (size_t s = 0; s < QR_COUNT_OF(sizes); s++) {
        for (size_t k = 0; k < QR_COUNT_OF(of); k++) {
            const choices chosen = choose(5, of[k][0], of[k][1], s);
            check_fetch(backend, &chosen, 0, 1, sizes[s]);
            check_fetch(backend, &chosen, 2, 3, sizes[s]);
        }
    }
}

void test_op_expert_fetch(void) {
    check_fetches(op_everything.ref);
    for (int d = 0; d < op_everything.n_devices; d++) {
        for (int t = 0; t < 2; t++) { check_fetches(op_everything.devices[d].backends[t]); }
    }
}

/* --- expert_bias and its backward part --------------------------------------------------------------------------- */

typedef struct bias_case {
    const choices *choices;
    int64_t dim;
    const float *bias; /* [n_experts, dim] */
    const float *y;    /* [pairs, dim]; backward the shares' gradients before, [pairs] */
    const float *dy;   /* [n_rows, dim]; NULL: forward */
} bias_case;

/* Row: y of a token's slots, or their dshare. */
static void exec_bias(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const bias_case *c = data;
    const int64_t width = c->dy != NULL ? 1 : c->dim, first_pair = first * c->choices->top_k;
    const size_t row_bytes = (size_t)width * F32_BYTES, stride_bytes = row_bytes + (c->dy != NULL ? 0 : 12);
    const size_t bias_bytes = (size_t)(c->choices->n_experts * c->dim) * F32_BYTES;
    const host_routing r = routing_of(c->choices, first, n_rows);
    float *slots = qr_alloc((size_t)r.n_slots * row_bytes);
    by_slots(&r, c->y + first_pair * width, row_bytes, slots);
    float *y = op_output(run, slots, r.n_slots, row_bytes, stride_bytes);
    if (c->dy == NULL) {
        const qr_expert_bias_args args = {.routing = put_routing(run, c->choices, &r),
                                          .bias = op_input(run, c->bias, bias_bytes),
                                          .y = y,
                                          .dim = c->dim,
                                          .y_stride = (int64_t)(stride_bytes / F32_BYTES)};
        op_call(run, QR_OP_expert_bias, &args);
    } else {
        const qr_expert_bias_backward_args args = {
            .routing = put_routing(run, c->choices, &r),
            .bias = op_input(run, c->bias, bias_bytes),
            .dy = op_input(run, c->dy + first * c->dim, (size_t)(n_rows * c->dim) * F32_BYTES),
            .dshare = y,
            .dim = c->dim};
        op_call(run, QR_OP_expert_bias_backward, &args);
    }
    op_read(run, y, slots);
    op_run_end(run);
    for (int64_t pair = 0; pair < r.n_slots; pair++) {
        memcpy((float *)out + pair * width, slots + r.slot[pair] * width, row_bytes);
    }
    qr_free(slots);
}

static void check_bias(int64_t n_rows, int32_t n_experts, int32_t top_k, int64_t dim, bool backward) {
    const uint64_t stream = (uint64_t)(n_rows * 57 + dim);
    const choices chosen = choose(n_rows, n_experts, top_k, stream);
    const int64_t n_pairs = n_rows * top_k, width = backward ? 1 : dim;
    float *bias = op_normals(n_experts * dim, stream + 1, 1.0), *y = op_normals(n_pairs * width, stream + 2, 1.0);
    float *dy = op_normals(n_rows * dim, stream + 3, 1.0);
    double *bound = op_doubles(n_pairs * width);
    for (int64_t i = 0; backward && i < n_pairs; i++) { /* F64 sums of products that are rounded to F32 */
        double sum = fabs((double)y[i]);
        for (int64_t j = 0; j < dim; j++) {
            sum += fabs((double)bias[chosen.expert[i] * dim + j] * (double)dy[i / top_k * dim + j]);
        }
        bound[i] = 3.0 * OP_U * sum;
    }
    const bias_case data = {&chosen, dim, bias, y, backward ? dy : NULL};
    op_case c = {.n_rows = n_rows, .row = top_k * width, .exec = exec_bias, .data = &data};
    c.bound = backward ? bound : NULL;
    snprintf(c.label, sizeof c.label, "expert_bias%s rows %lld of %lld, %d of %d", backward ? "_backward" : "",
             (long long)n_rows, (long long)dim, (int)top_k, (int)n_experts);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(bias);
    qr_free(y);
    qr_free(dy);
    qr_free(bound);
}

static void check_all_biases(bool backward) {
    check_bias(1, 1, 1, 1, backward);
    check_bias(33, 7, 3, 50, backward);
    check_bias(70, 13, 4, 64, backward);
    check_bias(9, 5, 2, 131, backward);
}

void test_op_expert_bias(void) { check_all_biases(false); }
void test_op_expert_bias_backward(void) { check_all_biases(true); }

/* --- expert_share_backward --------------------------------------------------------------------------------------- */

typedef struct share_case {
    const choices *choices;
    int64_t dim;
    qr_dtype h_dtype;
    const void *h;   /* [pairs, dim] */
    const float *dh; /* [pairs, dim] */
} share_case;

/* Row: dh of a token's slots, then their dshare. */
static void exec_share(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const share_case *c = data;
    const int64_t top_k = c->choices->top_k, first_pair = first * top_k;
    const size_t row_bytes = (size_t)c->dim * F32_BYTES, h_bytes = (size_t)c->dim * qr_dtype_bytes(c->h_dtype);
    const host_routing r = routing_of(c->choices, first, n_rows);
    float *dh = qr_alloc((size_t)r.n_slots * row_bytes), dshare[MOST_SLOTS];
    unsigned char *h = qr_alloc((size_t)r.n_slots * h_bytes);
    by_slots(&r, c->dh + first_pair * c->dim, row_bytes, dh);
    by_slots(&r, (const unsigned char *)c->h + (size_t)first_pair * h_bytes, h_bytes, h);
    const qr_expert_share_backward_args args = {
        .routing = put_routing(run, c->choices, &r),
        .h = op_input(run, h, (size_t)r.n_slots * h_bytes),
        .h_dtype = c->h_dtype,
        .dh = op_output(run, dh, r.n_slots, row_bytes, row_bytes),
        .dshare = op_output(run, NULL, r.n_slots, F32_BYTES, F32_BYTES),
        .dim = c->dim,
    };
    op_call(run, QR_OP_expert_share_backward, &args);
    op_read(run, args.dh, dh);
    op_read(run, args.dshare, dshare);
    op_run_end(run);
    for (int64_t pair = 0; pair < r.n_slots; pair++) {
        float *row = (float *)out + pair / top_k * top_k * (c->dim + 1);
        memcpy(row + pair % top_k * c->dim, dh + r.slot[pair] * c->dim, row_bytes);
        row[top_k * c->dim + pair % top_k] = dshare[r.slot[pair]];
    }
    qr_free(dh);
    qr_free(h);
}

static void check_share(int64_t n_rows, int32_t top_k, int64_t dim, qr_dtype dtype) {
    const uint64_t stream = (uint64_t)(n_rows * 77 + dim);
    const choices chosen = choose(n_rows, 7, top_k, stream);
    const int64_t n_pairs = n_rows * top_k;
    float *h = op_normals(n_pairs * dim, stream + 1, 1.0), *dh = op_normals(n_pairs * dim, stream + 2, 1.0);
    void *typed = op_to_dtype(h, n_pairs * dim, dtype);
    double *bound = op_doubles(n_rows * top_k * (dim + 1));
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        double *row = bound + pair / top_k * top_k * (dim + 1), sum = 0.0;
        for (int64_t j = 0; j < dim; j++) {
            const double value = (double)dh[pair * dim + j];
            row[pair % top_k * dim + j] = OP_U * fabs(value * (double)chosen.share[pair]);
            sum += fabs(value * op_from_dtype(typed, dtype, pair * dim + j));
        }
        row[top_k * dim + pair % top_k] = (double)(dim + 2) * OP_U * sum;
    }
    const share_case data = {&chosen, dim, dtype, typed, dh};
    op_case c = {.n_rows = n_rows, .row = top_k * (dim + 1), .exec = exec_share, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "expert_share_backward rows %lld of %lld, h %s", (long long)n_rows,
             (long long)dim, qr_dtype_name(dtype));
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(h);
    qr_free(dh);
    qr_free(typed);
    qr_free(bound);
}

void test_op_expert_share_backward(void) {
    check_share(1, 1, 1, QR_DTYPE_F32);
    check_share(33, 3, 50, QR_DTYPE_F32);
    check_share(40, 3, 64, QR_DTYPE_BF16);
    check_share(9, 4, 131, QR_DTYPE_F16);
}

/* --- share_rows and its backward part ---------------------------------------------------------------------------- */

typedef struct rows_case {
    int64_t dim;
    const float *g, *dx; /* [n_rows], [n_rows, dim]; dx NULL: forward */
    const void *x;       /* [n_rows, dim] */
    const float *x_f32;  /* the same values */
    qr_dtype x_dtype;
} rows_case;

static void exec_share_rows(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    const rows_case *c = data;
    const size_t row_bytes = (size_t)c->dim * qr_dtype_bytes(dtype);
    const void *x = dtype == QR_DTYPE_F32 ? c->x_f32 : c->x;
    const qr_share_rows_args args = {
        .g = op_input(run, c->g + first, (size_t)n_rows * F32_BYTES),
        .x = op_output(run, (const unsigned char *)x + (size_t)first * row_bytes, n_rows, row_bytes, row_bytes),
        .x_dtype = dtype,
        .n_rows = n_rows,
        .dim = c->dim,
    };
    op_call(run, QR_OP_share_rows, &args);
    op_read(run, args.x, out);
}

/* Row: dx, then dg. */
static void exec_share_rows_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                     void *out) {
    (void)dtype;
    const rows_case *c = data;
    const size_t row_bytes = (size_t)c->dim * F32_BYTES, x_bytes = (size_t)c->dim * qr_dtype_bytes(c->x_dtype);
    float *dx = qr_alloc((size_t)n_rows * row_bytes), dg[MOST_ROWS];
    const qr_share_rows_backward_args args = {
        .g = op_input(run, c->g + first, (size_t)n_rows * F32_BYTES),
        .x = op_input(run, (const unsigned char *)c->x + (size_t)first * x_bytes, (size_t)n_rows * x_bytes),
        .x_dtype = c->x_dtype,
        .dx = op_output(run, c->dx + first * c->dim, n_rows, row_bytes, row_bytes),
        .dg = op_output(run, NULL, n_rows, F32_BYTES, F32_BYTES),
        .n_rows = n_rows,
        .dim = c->dim,
    };
    op_call(run, QR_OP_share_rows_backward, &args);
    op_read(run, args.dx, dx);
    op_read(run, args.dg, dg);
    for (int64_t i = 0; i < n_rows; i++) {
        float *row = (float *)out + i * (c->dim + 1);
        memcpy(row, dx + i * c->dim, row_bytes);
        row[c->dim] = dg[i];
    }
    qr_free(dx);
}

static void check_share_rows(int64_t n_rows, int64_t dim, qr_dtype dtype, bool backward) {
    const uint64_t stream = (uint64_t)(n_rows * 7 + dim);
    float *g = op_normals(n_rows, stream, 4.0), *x = op_normals(n_rows * dim, stream + 1, 1.0);
    float *dx = op_normals(n_rows * dim, stream + 2, 1.0);
    void *typed = op_to_dtype(x, n_rows * dim, dtype);
    const int64_t row = backward ? dim + 1 : dim;
    double *bound = op_doubles(n_rows * row);
    for (int64_t i = 0; i < n_rows; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < dim; j++) {
            const double value = op_from_dtype(typed, dtype, i * dim + j), gradient = (double)dx[i * dim + j];
            bound[i * row + j] = 3.0 * OP_U * fabs(backward ? gradient : value);
            sum += fabs(value * gradient);
        }
        if (backward) { bound[i * row + dim] = (double)(dim + 4) * OP_U * sum; }
    }
    for (int64_t i = 0; i < n_rows * dim; i++) { x[i] = (float)op_from_dtype(typed, dtype, i); }
    const rows_case data = {dim, g, backward ? dx : NULL, typed, x, dtype};
    op_case c = {.n_rows = n_rows,
                 .row = row,
                 .exec = backward ? exec_share_rows_backward : exec_share_rows,
                 .data = &data,
                 .bound = bound};
    snprintf(c.label, sizeof c.label, "share_rows%s [%lld, %lld] %s", backward ? "_backward" : "", (long long)n_rows,
             (long long)dim, qr_dtype_name(dtype));
    op_check_case(&c, backward ? QR_DTYPE_F32 : dtype);
    qr_free(g);
    qr_free(x);
    qr_free(dx);
    qr_free(typed);
    qr_free(bound);
}

void test_op_share_rows(void) {
    check_share_rows(1, 1, QR_DTYPE_F32, false);
    check_share_rows(33, 50, QR_DTYPE_F32, false);
    check_share_rows(40, 131, QR_DTYPE_BF16, false);
    check_share_rows(9, 64, QR_DTYPE_F16, false);
}

void test_op_share_rows_backward(void) {
    check_share_rows(2, 3, QR_DTYPE_F32, true);
    check_share_rows(33, 50, QR_DTYPE_F32, true);
    check_share_rows(40, 131, QR_DTYPE_BF16, true);
    check_share_rows(9, 64, QR_DTYPE_F16, true);
}

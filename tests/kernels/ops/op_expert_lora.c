/* The ops of LoRA on experts. Bounds as in op_experts.c. */
#include <math.h>
#include <stdio.h>

#include "op_routing.h"

#include "base/alloc.h"

enum { N_ADAPTERS = 2 };

/* LoRA of two adapters, one of which may leave the module alone (rank 0), or backward of the first. */
typedef struct lora_case {
    const choices *choices;
    qr_dtype dtype;
    const void *x; /* [n_rows or pairs, in + GAP] */
    bool gathers;
    int64_t in, out;
    int32_t rank[N_ADAPTERS];
    const int32_t *row_adapter; /* [n_rows] */
    const float *a[N_ADAPTERS], *b[N_ADAPTERS];
    const float *y;  /* [pairs, out]: what is added to */
    const float *dy; /* [n_rows or pairs, out]; backward, as the next */
    const float *dx, *da, *db;
    bool shares;
} lora_case;

static const float LORA_SCALE = 1.25F;

static void exec_lora(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const lora_case *c = data;
    const choices *chosen = c->choices;
    const int64_t stride = c->in + GAP;
    const size_t out_bytes = (size_t)c->out * F32_BYTES;
    const host_routing r = routing_of(chosen, first, n_rows);
    unsigned char *slots = qr_alloc((size_t)(r.n_slots * stride) * sizeof(float));
    float *initial = qr_alloc((size_t)r.n_slots * out_bytes), *result = qr_alloc((size_t)r.n_slots * out_bytes);
    by_slots(&r, c->y + first * chosen->top_k * c->out, out_bytes, initial);
    qr_lora_factor factors[N_ADAPTERS];
    for (int i = 0; i < N_ADAPTERS; i++) {
        const size_t n = (size_t)(chosen->n_experts * c->rank[i]) * F32_BYTES;
        factors[i] = (qr_lora_factor){.a = op_input(run, c->a[i], n * (size_t)c->in),
                                      .b = op_input(run, c->b[i], n * (size_t)c->out),
                                      .rank = c->rank[i],
                                      .scale = LORA_SCALE};
    }
    const qr_expert_lora_args args = {
        .factors = op_input(run, factors, sizeof factors),
        .row_adapter = op_input(run, c->row_adapter + first, (size_t)n_rows * sizeof(int32_t)),
        .routing = put_routing(run, chosen, &r),
        .x = put_rows(run, chosen, c->x, c->dtype, c->gathers, &r, first, stride, GAP, slots),
        .x_dtype = c->dtype,
        .y = op_output(run, initial, r.n_slots, out_bytes, out_bytes + GAP * F32_BYTES),
        .in = c->in,
        .out = c->out,
        .x_stride = stride,
        .y_stride = c->out + GAP,
        .n_adapters = N_ADAPTERS,
        .gathers = c->gathers};
    op_call(run, QR_OP_expert_lora, &args);
    op_read(run, args.y, result);
    by_pairs(&r, result, out_bytes, out);
    op_run_end(run);
    qr_free(slots);
    qr_free(initial);
    qr_free(result);
}

/* dx of the pairs, then da and db. */
static void exec_lora_backward(op_run *run, const void *data, int64_t first, int64_t one, qr_dtype dtype, void *out) {
    (void)dtype, (void)one;
    const lora_case *c = data;
    const choices *chosen = c->choices;
    const int64_t n_rows = chosen->n_rows;
    const int64_t stride = c->in + GAP, n_a = chosen->n_experts * c->rank[0] * c->in,
                  n_b = chosen->n_experts * c->rank[0] * c->out;
    const size_t in_bytes = (size_t)c->in * F32_BYTES, out_bytes = (size_t)c->out * F32_BYTES;
    const host_routing r = routing_of(chosen, first, n_rows);
    unsigned char *slots = qr_alloc((size_t)(r.n_slots * stride) * sizeof(float));
    float *dy = qr_alloc((size_t)r.n_slots * out_bytes), *dx = qr_alloc((size_t)r.n_slots * in_bytes);
    if (!c->shares) { by_slots(&r, c->dy, out_bytes, dy); }
    by_slots(&r, c->dx, in_bytes, dx);
    const size_t dy_bytes = (size_t)(c->shares ? n_rows : r.n_slots) * out_bytes;
    const qr_expert_lora_backward_args args = {
        .a = op_input(run, c->a[0], (size_t)n_a * F32_BYTES),
        .b = op_input(run, c->b[0], (size_t)n_b * F32_BYTES),
        .da = op_output(run, c->da, 1, (size_t)n_a * F32_BYTES, (size_t)n_a * F32_BYTES),
        .db = op_output(run, c->db, 1, (size_t)n_b * F32_BYTES, (size_t)n_b * F32_BYTES),
        .routing = put_routing(run, chosen, &r),
        .x = put_rows(run, chosen, c->x, c->dtype, c->gathers, &r, first, stride, GAP, slots),
        .x_dtype = c->dtype,
        .dy = op_input(run, c->shares ? c->dy : dy, dy_bytes),
        .dx = op_output(run, dx, r.n_slots, in_bytes, in_bytes + GAP * F32_BYTES),
        .in = c->in,
        .out = c->out,
        .x_stride = stride,
        .dy_stride = c->out,
        .dx_stride = c->in + GAP,
        .rank = c->rank[0],
        .scale = LORA_SCALE,
        .gathers = c->gathers,
        .shares = c->shares};
    op_call(run, QR_OP_expert_lora_backward, &args);
    float *result = qr_alloc((size_t)r.n_slots * in_bytes);
    op_read(run, args.dx, result);
    by_pairs(&r, result, in_bytes, out);
    op_read(run, args.da, (float *)out + r.n_slots * c->in);
    op_read(run, args.db, (float *)out + r.n_slots * c->in + n_a);
    op_run_end(run);
    void *const made[] = {slots, dy, dx, result};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

/* The element c of what the slot of a pair is fed. */
static double fed(const lora_case *c, int64_t pair, int64_t column) {
    const int64_t row = c->gathers ? pair / c->choices->top_k : pair;
    return op_from_dtype(c->x, c->dtype, row * (c->in + GAP) + column);
}

/* Sum of |A_j| |x|. */
static double down_size(const lora_case *c, const float *a, int64_t pair, int64_t row) {
    double sum = 0.0;
    for (int64_t k = 0; k < c->in; k++) { sum += fabs((double)a[row * c->in + k] * fed(c, pair, k)); }
    return sum;
}

static void lora_bound(const lora_case *c, double *bound) {
    const choices *chosen = c->choices;
    for (int64_t pair = 0; pair < chosen->n_rows * chosen->top_k; pair++) {
        const int32_t adapter = c->row_adapter[pair / chosen->top_k], rank = adapter >= 0 ? c->rank[adapter] : 0;
        double down[16];
        for (int32_t j = 0; j < rank; j++) {
            down[j] = down_size(c, c->a[adapter], pair, chosen->expert[pair] * rank + j);
        }
        for (int64_t o = 0; o < c->out; o++) {
            double sum = fabs((double)c->y[pair * c->out + o]);
            for (int32_t j = 0; j < rank; j++) {
                const float *b = c->b[adapter] + (chosen->expert[pair] * c->out + o) * rank;
                sum += (double)LORA_SCALE * fabs((double)b[j]) * down[j];
            }
            bound[pair * c->out + o] = rank > 0 ? (double)(c->in + rank + 6) * OP_U * sum : 0.0;
        }
    }
}

static void lora_backward_bound(const lora_case *c, double *bound) {
    const choices *chosen = c->choices;
    const int64_t n_pairs = chosen->n_rows * chosen->top_k, rank = c->rank[0], in = c->in, out = c->out;
    double *da = bound + n_pairs * in, *db = da + chosen->n_experts * rank * in;
    const double factor = OP_U * (double)(in + out + rank + n_pairs + 8);
    for (int64_t i = 0; i < chosen->n_experts * rank * in; i++) { da[i] = factor * fabs((double)c->da[i]); }
    for (int64_t i = 0; i < chosen->n_experts * rank * out; i++) { db[i] = factor * fabs((double)c->db[i]); }
    for (int64_t i = 0; i < n_pairs * in; i++) { bound[i] = factor * fabs((double)c->dx[i]); }
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        const int64_t e = chosen->expert[pair], row = c->shares ? pair / chosen->top_k : pair;
        const double share = c->shares ? fabs((double)chosen->share[pair]) : 1.0;
        for (int64_t j = 0; j < rank; j++) {
            const double down = down_size(c, c->a[0], pair, e * rank + j);
            double dh = 0.0;
            for (int64_t o = 0; o < out; o++) {
                const double dy = (double)LORA_SCALE * fabs((double)c->dy[row * out + o]);
                dh += dy * fabs((double)c->b[0][(e * out + o) * rank + j]);
                db[(e * out + o) * rank + j] += factor * share * dy * down;
            }
            for (int64_t k = 0; k < in; k++) {
                bound[pair * in + k] += factor * dh * fabs((double)c->a[0][(e * rank + j) * in + k]);
                da[(e * rank + j) * in + k] += factor * share * dh * fabs(fed(c, pair, k));
            }
        }
    }
}

static void check_lora(int64_t n_rows, int64_t in, int64_t out, int32_t rank, qr_dtype dtype, bool gathers,
                       bool backward) {
    enum { EXPERTS = 7, TOP_K = 3 };
    const uint64_t stream = (uint64_t)(n_rows * 131 + in * 17 + out);
    const choices chosen = choose(n_rows, EXPERTS, TOP_K, stream);
    const int64_t n_pairs = n_rows * TOP_K, n_x = (gathers ? n_rows : n_pairs) * (in + GAP);
    const int64_t n_a = EXPERTS * rank * in, n_b = EXPERTS * rank * out, n_dx = n_pairs * in;
    int32_t row_adapter[MOST_ROWS];
    for (int64_t i = 0; i < n_rows; i++) { row_adapter[i] = (int32_t)(i + 1) % 3 - 1; }
    float *x = op_normals(n_x, stream + 1, 1.0), *y = op_normals(n_pairs * out, stream + 2, 1.0);
    float *a = op_normals(n_a, stream + 3, 0.5), *b = op_normals(n_b, stream + 4, 0.5);
    float *da = op_normals(n_a, stream + 5, 1.0), *db = op_normals(n_b, stream + 6, 1.0);
    float *dx = op_normals(n_dx, stream + 7, 1.0);
    void *typed = op_to_dtype(x, n_x, dtype);
    const lora_case data = {
        .choices = &chosen,
        .dtype = dtype,
        .x = typed,
        .gathers = gathers,
        .in = in,
        .out = out,
        .rank = {rank, n_rows % 2 == 0 ? rank / 2 : 0},
        .row_adapter = row_adapter,
        .a = {a, a},
        .b = {b, b},
        .y = y,
        .dy = y,
        .dx = dx,
        .da = da,
        .db = db,
        .shares = !gathers,
    };
    double *bound = op_doubles(backward ? n_dx + n_a + n_b : n_pairs * out);
    op_case c = {.n_rows = n_rows, .row = TOP_K * out, .exec = exec_lora, .data = &data, .bound = bound};
    if (backward) {
        c = (op_case){.n_rows = 1, .row = n_dx + n_a + n_b, .exec = exec_lora_backward, .data = &data, .bound = bound};
        c.whole = true;
    }
    snprintf(c.label, sizeof c.label, "expert_lora%s [%lld, %lld] rank %d x %s, %lld rows%s",
             backward ? "_backward" : "", (long long)out, (long long)in, (int)rank, qr_dtype_name(dtype),
             (long long)n_rows, gathers ? ", gathered" : "");
    if (backward) {
        lora_backward_bound(&data, bound);
    } else {
        lora_bound(&data, bound);
    }
    op_check_case(&c, QR_DTYPE_F32);
    void *const made[] = {x, y, a, b, da, db, dx, typed, bound};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

static void check_loras(bool backward) {
    check_lora(1, 17, 33, 4, QR_DTYPE_F32, true, backward);
    check_lora(22, 48, 20, 5, QR_DTYPE_F32, false, backward);
    check_lora(33, 64, 70, 16, QR_DTYPE_BF16, true, backward);
    check_lora(40, 31, 130, 2, QR_DTYPE_BF16, false, backward);
    check_lora(9, 100, 8, 7, QR_DTYPE_F16, true, backward);
}

void test_op_expert_lora(void) { check_loras(false); }
void test_op_expert_lora_backward(void) { check_loras(true); }

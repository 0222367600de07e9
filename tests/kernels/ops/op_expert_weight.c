/* Gradients of experts' matrices. Bounds as those of weight_backward, over the slots that an expert has. */
#include <math.h>
#include <stdio.h>

#include "op_routing.h"

#include "base/alloc.h"

typedef struct weight_case {
    const choices *choices;
    qr_dtype dtype;
    bool gathers, shares;
    int64_t in, out;
    const void *x;                /* [n_rows or pairs, in + GAP] */
    const float *dy, *dw, *dbias; /* dy [n_rows or pairs, out + GAP]; what is added to; dbias NULL: not wanted */
} weight_case;

/* Of the gradients of one expert, dw and dbias. */
static int64_t expert_elements(const weight_case *c) { return (c->in + 1) * c->out; }

static void exec_weight(op_run *run, const void *data, int64_t first, int64_t one, qr_dtype dtype, void *out) {
    (void)dtype, (void)one;
    const weight_case *c = data;
    const choices *chosen = c->choices;
    const int64_t n_experts = chosen->n_experts, x_stride = c->in + GAP, dy_stride = c->out + GAP,
                  n_dw = c->in * c->out;
    const size_t dw_bytes = (size_t)n_dw * F32_BYTES, dbias_bytes = (size_t)c->out * F32_BYTES;
    const host_routing r = routing_of(chosen, first, chosen->n_rows);
    unsigned char *x = qr_alloc((size_t)(r.n_slots * x_stride) * F32_BYTES);
    unsigned char *dy = qr_alloc((size_t)(r.n_slots * dy_stride) * F32_BYTES);
    const qr_expert_weight_backward_args args = {
        .dw = op_output(run, c->dw, n_experts, dw_bytes, dw_bytes + GAP * F32_BYTES),
        .dbias = c->dbias != NULL ? op_output(run, c->dbias, n_experts, dbias_bytes, dbias_bytes) : NULL,
        .routing = put_routing(run, chosen, &r),
        .x = put_rows(run, chosen, c->x, c->dtype, c->gathers, &r, first, x_stride, GAP, x),
        .x_dtype = c->dtype,
        .dy = put_rows(run, chosen, c->dy, QR_DTYPE_F32, c->shares, &r, first, dy_stride, GAP, dy),
        .in = c->in,
        .out = c->out,
        .dw_stride = n_dw + GAP,
        .x_stride = x_stride,
        .dy_stride = dy_stride,
        .gathers = c->gathers,
        .shares = c->shares};
    op_call(run, QR_OP_expert_weight_backward, &args);
    op_read(run, args.dw, out);
    if (c->dbias != NULL) { op_read(run, args.dbias, (float *)out + n_experts * n_dw); }
    op_run_end(run);
    qr_free(x);
    qr_free(dy);
}

/* An expert without slots keeps its bits: nothing is added to its bound. */
static void weight_bound(const weight_case *c, double *bound) {
    const choices *chosen = c->choices;
    const int64_t n_pairs = chosen->n_rows * chosen->top_k, n_dw = c->in * c->out;
    double *dbias = bound + chosen->n_experts * n_dw;
    const double factor = OP_U * (double)(n_pairs + 5);
    bool has_slots[MOST_EXPERTS] = {false};
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        const int64_t e = chosen->expert[pair], row = pair / chosen->top_k;
        const double share = c->shares ? fabs((double)chosen->share[pair]) : 1.0;
        has_slots[e] = true;
        for (int64_t o = 0; o < c->out; o++) {
            const double dy = share * fabs((double)c->dy[(c->shares ? row : pair) * (c->out + GAP) + o]);
            if (c->dbias != NULL) { dbias[e * c->out + o] += factor * dy; }
            for (int64_t k = 0; k < c->in; k++) {
                const double x = op_from_dtype(c->x, c->dtype, (c->gathers ? row : pair) * (c->in + GAP) + k);
                bound[e * n_dw + o * c->in + k] += factor * fabs(dy * x);
            }
        }
    }
    for (int64_t e = 0; e < chosen->n_experts; e++) {
        if (!has_slots[e]) { continue; }
        for (int64_t i = e * n_dw; i < (e + 1) * n_dw; i++) { bound[i] += factor * fabs((double)c->dw[i]); }
        for (int64_t o = e * c->out; c->dbias != NULL && o < (e + 1) * c->out; o++) {
            dbias[o] += factor * fabs((double)c->dbias[o]);
        }
    }
}

static void check_weight(int64_t n_rows, int32_t n_experts, int64_t in, int64_t out, qr_dtype dtype, bool gathers,
                         bool shares, bool bias) {
    enum { TOP_K = 3 };
    const uint64_t stream = (uint64_t)(n_rows * 151 + in * 19 + out);
    const choices chosen = choose(n_rows, n_experts, TOP_K, stream);
    const int64_t n_pairs = n_rows * TOP_K, n_x = (gathers ? n_rows : n_pairs) * (in + GAP);
    float *x = op_normals(n_x, stream + 1, 1.0);
    float *dy = op_normals((shares ? n_rows : n_pairs) * (out + GAP), stream + 2, 1.0);
    float *dw = op_normals(n_experts * in * out, stream + 3, 1.0),
          *dbias = op_normals(n_experts * out, stream + 4, 1.0);
    void *typed = op_to_dtype(x, n_x, dtype);
    const weight_case data = {.choices = &chosen,
                              .dtype = dtype,
                              .gathers = gathers,
                              .shares = shares,
                              .in = in,
                              .out = out,
                              .x = typed,
                              .dy = dy,
                              .dw = dw,
                              .dbias = bias ? dbias : NULL};
    const int64_t n = bias ? n_experts * expert_elements(&data) : n_experts * in * out;
    double *bound = op_doubles(n);
    op_case c = {.n_rows = 1, .row = n, .exec = exec_weight, .data = &data, .bound = bound, .whole = true};
    snprintf(c.label, sizeof c.label, "expert_weight_backward %d of [%lld, %lld] x %s, %lld rows%s%s%s", (int)n_experts,
             (long long)out, (long long)in, qr_dtype_name(dtype), (long long)n_rows, gathers ? ", gathered" : "",
             shares ? ", shares" : "", bias ? ", bias" : "");
    weight_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    void *const made[] = {x, dy, dw, dbias, typed, bound};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) { qr_free(made[i]); }
}

void test_op_expert_weight_backward(void) {
    check_weight(1, 7, 17, 33, QR_DTYPE_F32, true, false, true);
    check_weight(22, 13, 48, 20, QR_DTYPE_F32, false, true, false);
    check_weight(33, 7, 64, 70, QR_DTYPE_BF16, true, false, true);
    check_weight(150, 5, 31, 130, QR_DTYPE_BF16, false, true, true);
    check_weight(40, 13, 300, 23, QR_DTYPE_F16, true, true, false);
    check_weight(150, 3, 130, 140, QR_DTYPE_F32, false, false, true);
}

/* LoRA on the matrices of experts: the ops of ops_experts.h. */
#include "kernels/ref/ref.h"

/* h = A x of a slot; x from element x_first on. */
static void go_down(const float *a, int32_t rank, int64_t in, const void *x, qr_dtype dtype, int64_t x_first,
                    double *h) {
    for (int32_t j = 0; j < rank; j++) {
        h[j] = 0.0;
        for (int64_t c = 0; c < in; c++) { h[j] += (double)a[j * in + c] * (double)qr_ref_load(x, dtype, x_first + c); }
    }
}

void qr_ref_expert_lora(const qr_expert_lora_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int32_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            const int32_t adapter = args->row_adapter[r->slot_row[p]];
            if (adapter < 0 || args->factors[adapter].rank == 0) { continue; }
            const qr_lora_factor *factor = &args->factors[adapter];
            const int32_t rank = factor->rank;
            const float *b = factor->b + e * args->out * rank;
            double h[QR_MAX_EXPERT_LORA_RANK];
            const int64_t x_first = (args->gathers ? r->slot_row[p] : p) * args->x_stride;
            go_down(factor->a + e * rank * args->in, rank, args->in, args->x, args->x_dtype, x_first, h);
            for (int64_t o = 0; o < args->out; o++) {
                double sum = 0.0;
                for (int32_t j = 0; j < rank; j++) { sum += (double)b[o * rank + j] * h[j]; }
                args->y[p * args->y_stride + o] += (float)((double)factor->scale * sum);
            }
        }
    }
}

static void slot_backward(const qr_expert_lora_backward_args *args, int32_t e, int32_t p) {
    const qr_routing *r = &args->routing;
    const int32_t rank = args->rank;
    const int64_t in = args->in, out = args->out;
    const int64_t a_first = e * rank * in, b_first = e * out * rank;
    const int64_t x_first = (args->gathers ? r->slot_row[p] : p) * args->x_stride;
    const float *dy = args->dy + (args->shares ? r->slot_row[p] : p) * args->dy_stride;
    const double share = args->shares ? (double)r->share[p] : 1.0, scale = (double)args->scale;
    double h[QR_MAX_EXPERT_LORA_RANK], dh[QR_MAX_EXPERT_LORA_RANK];
    go_down(args->a + a_first, rank, in, args->x, args->x_dtype, x_first, h);
    for (int32_t j = 0; j < rank; j++) {
        dh[j] = 0.0;
        for (int64_t o = 0; o < out; o++) {
            dh[j] += scale * (double)args->b[b_first + o * rank + j] * (double)dy[o];
            args->db[b_first + o * rank + j] += (float)(scale * share * (double)dy[o] * h[j]);
        }
    }
    for (int64_t c = 0; c < in; c++) {
        const double x = (double)qr_ref_load(args->x, args->x_dtype, x_first + c);
        double sum = 0.0;
        for (int32_t j = 0; j < rank; j++) {
            sum += dh[j] * (double)args->a[a_first + j * in + c];
            args->da[a_first + j * in + c] += (float)(share * dh[j] * x);
        }
        args->dx[p * args->dx_stride + c] += (float)sum;
    }
}

void qr_ref_expert_lora_backward(const qr_expert_lora_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int32_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) { slot_backward(args, e, p); }
    }
}

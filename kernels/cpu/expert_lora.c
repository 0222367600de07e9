/* LoRA on the matrices of experts. Forward a slot is computed by itself; backward an expert is, because its slots add
 * to the same factors, in order. */
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/vector_ops.h"

enum { RANK_GUESS = 16 }; /* for the cost of a slot */

static float dot(const float *w, const void *x, qr_dtype dtype, int64_t first, int64_t n) {
    qr_vec_f64 sums = {.lanes = {0.0}};
    for (int64_t c = 0; c < n; c += QR_VEC) {
        qr_vec_f64_add(&sums, qr_vec_mul(qr_vec_load_n(w + c, n - c), qr_vec_load_act_n(x, dtype, first + c, n - c)));
    }
    return (float)qr_vec_f64_total(&sums);
}

/* y [n] += factor · x. */
static void add_scaled(float *y, float factor, const void *x, qr_dtype dtype, int64_t first, int64_t n) {
    const qr_vec scaled = qr_vec_set1(factor);
    for (int64_t c = 0; c < n; c += QR_VEC) {
        const qr_vec value = qr_vec_load_act_n(x, dtype, first + c, n - c);
        qr_vec_store_n(y + c, qr_vec_fma(value, scaled, qr_vec_load_n(y + c, n - c)), n - c);
    }
}

static void lora_slots(const void *args, int64_t begin, int64_t end) {
    const qr_expert_lora_args *a = args;
    const qr_routing *r = &a->routing;
    int32_t e = 0;
    for (int64_t p = begin; p < end; p++) {
        while (p >= r->expert_start[e + 1]) { e++; }
        const int32_t adapter = a->row_adapter[r->slot_row[p]];
        if (adapter < 0 || a->factors[adapter].rank == 0) { continue; }
        const qr_lora_factor *factor = &a->factors[adapter];
        const int32_t rank = factor->rank;
        const float *down = factor->a + e * rank * a->in, *up = factor->b + e * a->out * rank;
        const int64_t first = (a->gathers ? r->slot_row[p] : p) * a->x_stride;
        float h[QR_MAX_EXPERT_LORA_RANK], *y = a->y + p * a->y_stride;
        for (int32_t j = 0; j < rank; j++) { h[j] = dot(down + j * a->in, a->x, a->x_dtype, first, a->in); }
        for (int64_t o = 0; o < a->out; o++) { y[o] += factor->scale * dot(up + o * rank, h, QR_DTYPE_F32, 0, rank); }
    }
}

QR_CPU_RANGE_OP(expert_lora, qr_routing_slots(&args->routing), RANK_GUESS *(args->in + args->out), lora_slots)

static void slot_backward(const qr_expert_lora_backward_args *a, int64_t e, int32_t p) {
    const qr_routing *r = &a->routing;
    const int32_t rank = a->rank;
    const int64_t in = a->in, out = a->out, down = e * rank * in, up = e * out * rank;
    const int64_t first = (a->gathers ? r->slot_row[p] : p) * a->x_stride;
    const float *dy = a->dy + (a->shares ? r->slot_row[p] : p) * a->dy_stride;
    const float share = a->shares ? r->share[p] : 1.0F;
    float h[QR_MAX_EXPERT_LORA_RANK], dh[QR_MAX_EXPERT_LORA_RANK] = {0.0F};
    for (int32_t j = 0; j < rank; j++) { h[j] = dot(a->a + down + j * in, a->x, a->x_dtype, first, in); }
    for (int64_t o = 0; o < out; o++) {
        add_scaled(dh, a->scale * dy[o], a->b, QR_DTYPE_F32, up + o * rank, rank);
        add_scaled(a->db + up + o * rank, a->scale * share * dy[o], h, QR_DTYPE_F32, 0, rank);
    }
    for (int32_t j = 0; j < rank; j++) {
        add_scaled(a->dx + p * a->dx_stride, dh[j], a->a, QR_DTYPE_F32, down + j * in, in);
        add_scaled(a->da + down + j * in, share * dh[j], a->x, a->x_dtype, first, in);
    }
}

static void lora_backward_experts(const void *args, int64_t begin, int64_t end) {
    const qr_expert_lora_backward_args *a = args;
    const int32_t *start = a->routing.expert_start;
    for (int64_t e = begin; e < end; e++) {
        for (int32_t p = start[e]; p < start[e + 1]; p++) { slot_backward(a, e, p); }
    }
}

QR_CPU_RANGE_OP(expert_lora_backward, args->routing.n_experts,
                4 * args->rank * (args->in + args->out) * args->routing.top_k, lora_backward_experts)

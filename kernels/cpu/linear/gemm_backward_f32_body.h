/* Outer products on F32 elements for one instruction set. Included after a lanes_<isa>.h. */
#include "base/half.h"
#include "kernels/cpu/linear/outer.h"

typedef lanes outer_vector;
static inline lanes outer_load(const float *src) { return lanes_load(src); }
static inline lanes outer_broadcast(const float *src) { return lanes_set(*src); }
static inline lanes outer_dot(lanes acc, lanes a, lanes b) { return lanes_fma(a, b, acc); }

#include "kernels/cpu/linear/outer_body.h"

static void outer_multiply(const qr_cpu_outer_product *p) {
    if (p->a_by_k) {
        outer_strips(p, true);
    } else {
        outer_strips(p, false);
    }
}

static inline lanes outer_lanes(const void *src, qr_dtype dtype, int64_t i) {
    switch (dtype) {
        case QR_DTYPE_BF16: return lanes_from_bf16((const uint16_t *)src + i);
        case QR_DTYPE_F16: return lanes_from_f16((const uint16_t *)src + i);
        default: return lanes_load((const float *)src + i);
    }
}

static inline float outer_element(const void *src, qr_dtype dtype, int64_t i) {
    switch (dtype) {
        case QR_DTYPE_BF16: return qr_bf16_to_f32(((const qr_bf16 *)src)[i]);
        case QR_DTYPE_F16: return qr_f16_to_f32(((const qr_f16 *)src)[i]);
        default: return ((const float *)src)[i];
    }
}

/* dtype is a constant after inlining: nothing is decided inside the loop. */
static inline __attribute__((always_inline)) void outer_pack_as(const void *src, qr_dtype dtype, const float *factors,
                                                                int64_t n, bool round_bf16, float *dst) {
    const bool rounds = round_bf16 && factors != NULL;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = outer_lanes(src, dtype, i);
        if (factors != NULL) { value = lanes_mul(value, lanes_load(factors + i)); }
        lanes_store(dst + i, rounds ? lanes_round(value, QR_DTYPE_BF16) : value);
    }
    for (; i < n; i++) {
        const float value = outer_element(src, dtype, i) * (factors != NULL ? factors[i] : 1.0F);
        dst[i] = rounds ? qr_bf16_to_f32(qr_f32_to_bf16(value)) : value;
    }
}

static inline __attribute__((always_inline)) void outer_pack(const void *src, qr_dtype dtype, const float *factors,
                                                             int64_t n, bool round_bf16, float *dst) {
    switch (dtype) {
        case QR_DTYPE_BF16: outer_pack_as(src, QR_DTYPE_BF16, factors, n, round_bf16, dst); break;
        case QR_DTYPE_F16: outer_pack_as(src, QR_DTYPE_F16, factors, n, round_bf16, dst); break;
        default: outer_pack_as(src, QR_DTYPE_F32, factors, n, round_bf16, dst); break;
    }
}

static void outer_pack_f32(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst) {
    outer_pack(src, dtype, factors, n, false, dst);
}

static void outer_pack_rounded(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst) {
    outer_pack(src, dtype, factors, n, true, dst);
}

static const qr_cpu_outer_kernel outer_f32 = {.unit_k = 1, .pack = outer_pack_f32, .multiply = outer_multiply};
static const qr_cpu_outer_kernel outer_rounded = {.unit_k = 1, .pack = outer_pack_rounded, .multiply = outer_multiply};

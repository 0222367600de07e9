/* gemm_backward on F32 elements for one instruction set. Included after vec_tile.h. */
#include "kernels/cpu/linear/gemm_backward.h"

typedef qr_vec gemm_vector;
static inline qr_vec gemm_load(const float *src) { return qr_vec_load(src); }
static inline qr_vec gemm_broadcast(const float *src) { return qr_vec_set1(*src); }
static inline qr_vec gemm_dot(qr_vec acc, qr_vec a, qr_vec b) { return qr_vec_fma(a, b, acc); }

#include "kernels/cpu/linear/gemm_backward_microkernel.h"

/* Of k that B's strip is walked in: 16 KiB, half of a small L1, so that rows of A and C do not evict it (Cascade Lake,
 * one busy core, thread time, NF4, 2048 x 2048, linear_backward of 256 and 512 rows: 0 to 6 % less than with 32 KiB). C
 * carries the sums. */
enum { GEMM_STRIP_UNITS = 4096 / (GEMM_VECTORS * QR_VEC) };

static void gemm_multiply(const qr_cpu_gemm_product *p) {
    const int64_t step =
        p->n_rows > 2 * GEMM_TALL_ROWS ? GEMM_STRIP_UNITS : p->n_units; /* few: C would be read twice */
    qr_cpu_gemm_product part = *p;
    for (int64_t u = 0; u < p->n_units; u += step) {
        part.n_units = qr_min(step, p->n_units - u);
        part.b = p->b + u * QR_CPU_GEMM_B_STRIDE;
        if (p->a_by_k) {
            part.a = p->a + u * QR_CPU_GEMM_A_BY_K_STRIDE;
            gemm_strips(&part, true);
        } else {
            part.a = p->a + u;
            gemm_strips(&part, false);
        }
    }
}

/* dtype is a constant after inlining: nothing is decided inside the loop. */
QR_INLINE void gemm_pack_as(const void *src, qr_dtype dtype, const float *factors, int64_t n, bool round_bf16,
                            float *dst) {
    const bool rounds = round_bf16 && factors != NULL;
    for (int64_t i = 0; i < n; i += QR_VEC) {
        qr_vec value = qr_vec_load_act_n(src, dtype, i, n - i);
        if (factors != NULL) { value = qr_vec_mul(value, qr_vec_load_n(factors + i, n - i)); }
        qr_vec_store_n(dst + i, rounds ? qr_vec_round_bf16(value) : value, n - i);
    }
}

QR_INLINE void gemm_pack(const void *src, qr_dtype dtype, const float *factors, int64_t n, bool round_bf16,
                         float *dst) {
    switch (dtype) {
        case QR_DTYPE_BF16: gemm_pack_as(src, QR_DTYPE_BF16, factors, n, round_bf16, dst); break;
        case QR_DTYPE_F16: gemm_pack_as(src, QR_DTYPE_F16, factors, n, round_bf16, dst); break;
        default: gemm_pack_as(src, QR_DTYPE_F32, factors, n, round_bf16, dst); break;
    }
}

static void gemm_pack_f32(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst) {
    gemm_pack(src, dtype, factors, n, false, dst);
}

static void gemm_pack_rounded(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst) {
    gemm_pack(src, dtype, factors, n, true, dst);
}

static const qr_cpu_gemm_kernel gemm_f32 = {
    .unit_k = 1, .row_step = GEMM_TALL_ROWS, .pack = gemm_pack_f32, .multiply = gemm_multiply};
static const qr_cpu_gemm_kernel gemm_rounded = {
    .unit_k = 1, .row_step = GEMM_TALL_ROWS, .pack = gemm_pack_rounded, .multiply = gemm_multiply};

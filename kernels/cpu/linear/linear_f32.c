/* linear and gemm_backward on F32 elements, compiled once for each instruction set. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/vec_tile.h"
#include "kernels/cpu/simd/vec_units.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

typedef float tile_element;
typedef qr_vec tile_vector;
#define TILE_STEP QR_VEC
static inline qr_vec tile_load(const float *src) { return qr_vec_load(src); }
static inline qr_vec tile_dot(qr_vec acc, qr_vec w, qr_vec x) { return qr_vec_fma(w, x, acc); }

QR_INLINE void fetch_values(float *dst, const qr_vec_values *values, qr_vec_codes codes, int shift) {
    qr_vec_store_values(dst, values, codes, shift);
}
QR_INLINE void fetch_store(float *dst, qr_vec v) { qr_vec_store(dst, v); }
QR_INLINE void fetch_flat_row(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, float *dst) {
    qr_cpu_nf4_flat_row_f32(panel, row, round_to, dst);
}

typedef qr_vec gemm_vector;
static inline qr_vec gemm_load(const float *src) { return qr_vec_load(src); }
static inline qr_vec gemm_broadcast(const float *src) { return qr_vec_set1(*src); }
static inline qr_vec gemm_dot(qr_vec acc, qr_vec a, qr_vec b) { return qr_vec_fma(a, b, acc); }

#include "kernels/cpu/linear/gemm_backward_microkernel.h"
#include "kernels/cpu/linear/linear_dequantise.h"
#include "kernels/cpu/linear/linear_microkernel.h"

static void fetch_f32(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_F32); }
static void fetch_rounded_to_bf16(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_BF16); }
static void fetch_rounded_to_f16(const qr_cpu_panel *p) { fetch_panel(p, QR_DTYPE_F16); }

/* Weight rows that a few rows of x pass at once: with AVX-512 two tiles, 16 KiB, so that x is read from L2 half as
 * often (Cascade Lake, one busy core, thread time, NF4, 2048 x 2048, 64 rows of x: 6.8 → 6.4 ms). */
enum { K_BLOCK = 512, PIECE_ROWS = QR_VEC == 16 ? 2 * QR_TILE_ROWS : QR_TILE_ROWS };

#include "kernels/cpu/linear/linear_stored.h"

static tile_vector stored_i8(const void *src) { return qr_vec_load_i8_n(src, QR_VEC); }
static tile_vector stored_bf16(const void *src) { return qr_vec_load_bf16_n(src, QR_VEC); }
static tile_vector stored_f16(const void *src) { return qr_vec_load_f16_n(src, QR_VEC); }

QR_INLINE bool decode_stored(const qr_cpu_panel *p, const qr_cpu_product *product, tile_load_fn load_w,
                             const size_t w_bytes) {
    switch (product->n_x) {
        case 1: decode_stored_rows(p, product, load_w, w_bytes, 1); return true;
#if QR_TILE_MAX_COLS >= 2
        case 2: decode_stored_rows(p, product, load_w, w_bytes, 2); return true;
#endif
#if QR_TILE_MAX_COLS >= 3
        case 3: decode_stored_rows(p, product, load_w, w_bytes, 3); return true;
#endif
#if QR_TILE_MAX_COLS >= 6
        case 4: decode_stored_rows(p, product, load_w, w_bytes, 4); return true;
        case 5: decode_stored_rows(p, product, load_w, w_bytes, 5); return true;
        case 6: decode_stored_rows(p, product, load_w, w_bytes, 6); return true;
#endif
        default: return false;
    }
}

/* Rows of 8 and 16 bits whose values need no rounding. */
static bool decode_rows_of(const qr_cpu_panel *p, const qr_cpu_product *product, qr_dtype round_to) {
    switch (p->weight->desc.format) {
        case QR_WEIGHT_INT8: return decode_stored(p, product, stored_i8, 1);
        case QR_WEIGHT_BF16: return round_to != QR_DTYPE_F16 && decode_stored(p, product, stored_bf16, 2);
        case QR_WEIGHT_F16: return round_to != QR_DTYPE_BF16 && decode_stored(p, product, stored_f16, 2);
        default: return false;
    }
}

#ifdef QR_VEC_LOOKS_UP
#include "kernels/cpu/linear/linear_decode.h"
#else
QR_INLINE bool decode_codes(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_dtype round_to) {
    (void)p, (void)product, (void)round_to;
    return false;
}
#endif

QR_INLINE bool decode(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_dtype round_to) {
    return p->layout->kind == QR_CPU_ROWS ? decode_rows_of(p, product, round_to) : decode_codes(p, product, round_to);
}
static bool decode_f32(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_F32);
}
static bool decode_bf16(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_BF16);
}
static bool decode_f16(const qr_cpu_panel *p, const qr_cpu_product *product) {
    return decode(p, product, QR_DTYPE_F16);
}

/* Four vectors of n_sums sums at once, from sum `first` on; n_sums is a constant after inlining: each waits for its
 * last product. */
QR_INLINE void combine_rows(const qr_cpu_combined *c, int64_t first, const int n_sums) {
    const float *factors = c->factors + first * c->factor_stride;
    float *sums = c->sums + first * QR_CPU_PANEL_ROWS;
    for (int64_t o = 0; o < QR_CPU_PANEL_ROWS; o += 4 * QR_VEC) {
        qr_vec sum[QR_TILE_MAX_COLS][4];
        QR_UNROLL for (int i = 0; i < n_sums; i++) {
            QR_UNROLL for (int v = 0; v < 4; v++) {
                sum[i][v] = c->accumulate ? qr_vec_load(sums + i * QR_CPU_PANEL_ROWS + o + v * QR_VEC) : qr_vec_zero();
            }
        }
        for (int64_t r = 0; r < c->n_rows; r++) {
            qr_vec row[4];
            QR_UNROLL for (int v = 0; v < 4; v++) {
                row[v] = qr_vec_load(c->rows + r * c->row_stride + o + v * QR_VEC);
            }
            QR_UNROLL for (int i = 0; i < n_sums; i++) {
                const qr_vec factor = qr_vec_set1(factors[i * c->factor_stride + r]);
                QR_UNROLL for (int v = 0; v < 4; v++) { sum[i][v] = qr_vec_fma(factor, row[v], sum[i][v]); }
            }
        }
        QR_UNROLL for (int i = 0; i < n_sums; i++) {
            QR_UNROLL for (int v = 0; v < 4; v++) {
                qr_vec_store(sums + i * QR_CPU_PANEL_ROWS + o + v * QR_VEC, sum[i][v]);
            }
        }
    }
}

static void combine(const qr_cpu_combined *c) {
    int64_t i = 0;
    for (; i + QR_TILE_MAX_COLS <= c->n_sums; i += QR_TILE_MAX_COLS) { combine_rows(c, i, QR_TILE_MAX_COLS); }
    for (; i < c->n_sums; i++) { combine_rows(c, i, 1); }
}

/* --- gemm_backward ----------------------------------------------------------------------------------------------- */

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
            gemm_strips(&part, GEMM_A_BY_K);
        } else {
            part.a = p->a + u;
            gemm_strips(&part, GEMM_A_ROWS);
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

#define F32_MATMUL(...)                                                                                       \
    {                                                                                                         \
        .element_bytes = 4, .k_block = K_BLOCK, .k_step = 16, .piece_rows = PIECE_ROWS, .multiply = multiply, \
        .exercise = exercise, .exercise_flops = EXERCISE_FLOPS, __VA_ARGS__                                   \
    }

const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f32) = F32_MATMUL(.decode = decode_f32, .x_dtype = QR_DTYPE_F32,
                                                           .fetch = fetch_f32, .gemm_backward = &gemm_f32,
                                                           .combine = combine);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_bf16) = F32_MATMUL(.decode = decode_bf16, .x_dtype = QR_DTYPE_BF16,
                                                            .fetch = fetch_rounded_to_bf16,
                                                            .gemm_backward = &gemm_rounded);
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_f16) = F32_MATMUL(.decode = decode_f16, .x_dtype = QR_DTYPE_F16,
                                                           .fetch = fetch_rounded_to_f16, .gemm_backward = &gemm_f32);

#if QR_VEC == 16
/* Rows of x that are in work at once: two accumulators each, of 32 or of 16 registers. */
enum { ORDER_COLS = QR_TILE_MAX_COLS >= 6 ? 8 : 2 };
#include "kernels/cpu/linear/linear_tile_order.h"
const qr_cpu_matmul QR_ISA(qr_cpu_matmul_tile_order) = TILE_ORDER_MATMUL;
#endif

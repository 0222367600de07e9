/* Operands of gemm_backward.h in parts: an F32 element as the sum of BF16 values, the first of them the nearest, the
 * next what it leaves, rounded. Two are within 2^-18 of the element, three are the element itself, but for what lies
 * below 2^-126. An element beyond the largest BF16 value is infinite, and has no other parts.
 *
 * A block of 16 elements of one dimension by 32 of k is read along the dimension whose elements are neighbours, as 16
 * vectors of pairs of k, and transposed where the operand wants them the other way. */
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/simd/vec_units.h"

enum { GROUP_K = QR_CPU_GEMM_PARTS_K, GROUP_UNITS = GROUP_K / 2, LANES = QR_VEC };

/* 16 × 16 units of a part, and how much of it is there. */
typedef struct parts_block {
    const qr_cpu_gemm_pack *pack;
    int64_t first, k; /* of the elements of the operand's other dimension, and of k */
    int64_t n, n_k;
} parts_block;

/* Part number `part`, a constant, as F32. */
QR_INLINE qr_vec part_of(qr_vec value, const int part) {
    qr_vec nearest = qr_vec_round_bf16(value);
    QR_UNROLL for (int i = 0; i < part; i++) {
        const __mmask16 finite = _mm512_cmp_ps_mask(qr_vec_abs(nearest), qr_vec_set1(INFINITY), _CMP_LT_OQ);
        value = _mm512_maskz_sub_ps(finite, value, nearest);
        nearest = qr_vec_round_bf16(value);
    }
    return nearest;
}

QR_INLINE const unsigned char *element_at(const qr_cpu_gemm_pack *p, int64_t index) {
    return (const unsigned char *)p->src + (size_t)index * qr_dtype_bytes(p->dtype);
}

/* n (1 … 16) neighbours as F32, zeros after them. */
QR_INLINE qr_vec load_f32(const qr_cpu_gemm_pack *p, int64_t index, int64_t n) {
    return qr_vec_load_act_n(p->src, p->dtype, index, n);
}

/* Two vectors of values of BF16 as pairs of lanes. */
QR_INLINE qr_vec as_pairs(qr_vec even, qr_vec odd) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd)));
}

/* One element of the other dimension, up to 32 of k. */
QR_INLINE qr_vec units_along_k(const parts_block *b, int64_t i, const int part) {
    const qr_cpu_gemm_pack *p = b->pack;
    const int64_t index = (b->first + i) * p->stride + b->k;
    if (p->dtype == QR_DTYPE_BF16) { return qr_vec_load_units(element_at(p, index), 2 * b->n_k); }
    const qr_vec low = part_of(load_f32(p, index, b->n_k), part);
    const qr_vec high = b->n_k > LANES ? part_of(load_f32(p, index + LANES, b->n_k - LANES), part) : qr_vec_zero();
    return (qr_vec)_mm512_cvtne2ps_pbh(high, low);
}

/* Two of k, up to 16 of the other dimension. */
QR_INLINE qr_vec units_across_k(const parts_block *b, int64_t unit, const int part) {
    const qr_cpu_gemm_pack *p = b->pack;
    const int64_t index = (b->k + 2 * unit) * p->stride + b->first;
    const qr_vec even = part_of(load_f32(p, index, b->n), part);
    const qr_vec odd = 2 * unit + 1 < b->n_k ? part_of(load_f32(p, index + p->stride, b->n), part) : qr_vec_zero();
    return as_pairs(even, odd);
}

/* 16 × 16 units, as rows of the operand that they become. */
QR_INLINE void make_units(const parts_block *b, int64_t n_units, const int part, qr_vec v[LANES]) {
    const qr_cpu_gemm_pack *p = b->pack;
    if (p->along_k) {
        for (int64_t i = 0; i < LANES; i++) { v[i] = i < b->n ? units_along_k(b, i, part) : qr_vec_zero(); }
    } else {
        for (int64_t u = 0; u < LANES; u++) { v[u] = u < n_units ? units_across_k(b, u, part) : qr_vec_zero(); }
    }
    if (p->along_k == p->is_b) { qr_vec_transpose(v); }
}

/* At units [unit, + n_units) of the operand. */
QR_INLINE void store_units(const parts_block *b, int64_t unit, int64_t n_units, const qr_vec v[LANES]) {
    const qr_cpu_gemm_pack *p = b->pack;
    if (p->is_b) {
        float *dst = p->dst + unit * QR_CPU_GEMM_B_STRIDE + b->first - p->first;
        for (int64_t u = 0; u < n_units; u++) { qr_vec_store(dst + u * QR_CPU_GEMM_B_STRIDE, v[u]); }
    } else {
        float *dst = p->dst + (b->first - p->first) * QR_CPU_GEMM_A_STRIDE + unit;
        for (int64_t i = 0; i < b->n; i++) { qr_vec_store_n(dst + i * QR_CPU_GEMM_A_STRIDE, v[i], n_units); }
    }
}

void qr_cpu_gemm_pack_parts_bf16(const qr_cpu_gemm_pack *p) {
    const int n_products = p->n_products;
    for (int64_t k = 0; k < p->n_k; k += GROUP_K) {
        parts_block b = {.pack = p, .k = p->k + k, .n_k = qr_min(p->n_k - k, GROUP_K)};
        const int64_t n_units = qr_ceil_div(b.n_k, 2);
        for (int64_t i = 0; i < p->n; i += LANES) {
            qr_vec v[LANES];
            b.first = p->first + i;
            b.n = qr_min(p->n - i, LANES);
            for (int product = 0; product < n_products; product++) {
                const bool same = product > 0 && p->part[product] == p->part[product - 1];
                switch (same ? -1 : p->part[product]) {
                    case -1: break;
                    case 0: make_units(&b, n_units, 0, v); break;
                    case 1: make_units(&b, n_units, 1, v); break;
                    default: make_units(&b, n_units, 2, v); break;
                }
                store_units(&b, k / GROUP_K * n_products * GROUP_UNITS + product * n_units, n_units, v);
            }
        }
    }
}

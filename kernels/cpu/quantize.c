/* quantize: one pass from the file's type to canonical codes, bit-equal to quant/. A block, or a row, is read twice,
 * the second time from the first-level cache. */
#include "kernels/cpu/simd/vec_nf4.h"
#include "kernels/cpu/simd/vec_units.h"
#include "kernels/cpu/vector_ops.h"
#include "quant/format.h"

/* Elements [index, index + 2 · QR_VEC): the even ones, and the odd ones in *odd. A pair of BF16 is one 32-bit lane. */
QR_INLINE qr_vec load_pairs(const void *src, qr_dtype dtype, int64_t index, qr_vec *odd) {
    if (dtype == QR_DTYPE_BF16) {
        const qr_vec units = qr_vec_load_units((const uint16_t *)src + index, 4 * QR_VEC);
        *odd = qr_vec_unit_bf16(units, 1);
        return qr_vec_unit_bf16(units, 0);
    }
    const qr_vec first = qr_vec_load_act_n(src, dtype, index, QR_VEC);
    return qr_vec_split(first, qr_vec_load_act_n(src, dtype, index + QR_VEC, QR_VEC), odd);
}

/* The largest of |x|; NaN is skipped, as by fmaxf. */
QR_INLINE float absmax_of(const void *src, qr_dtype dtype, int64_t index, int64_t n) {
    qr_vec highest = qr_vec_zero(), highest_odd = qr_vec_zero(), odd;
    int64_t j = 0;
    for (; j + 2 * QR_VEC <= n; j += 2 * QR_VEC) {
        if (dtype == QR_DTYPE_BF16) {
            highest = qr_vec_max(qr_vec_abs(load_pairs(src, dtype, index + j, &odd)), highest);
        } else {
            highest = qr_vec_max(qr_vec_abs(qr_vec_load_act_n(src, dtype, index + j, QR_VEC)), highest);
            odd = qr_vec_load_act_n(src, dtype, index + j + QR_VEC, QR_VEC);
        }
        highest_odd = qr_vec_max(qr_vec_abs(odd), highest_odd);
    }
    for (; j < n; j += QR_VEC) {
        highest = qr_vec_max(qr_vec_abs(qr_vec_load_act_n(src, dtype, index + j, n - j)), highest);
    }
    return qr_vec_highest(qr_vec_max(highest, highest_odd));
}

/* The last n < 2 · QR_VEC elements; a spare half of a byte is the code of zero. */
QR_INLINE void encode_tail(const void *src, qr_dtype dtype, int64_t index, int64_t n, qr_vec inverse,
                           const qr_vec_nf4 *tables, uint8_t *codes) {
    float elements[2 * QR_VEC] = {0};
    uint8_t bytes[QR_VEC];
    qr_vec odd;
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec_store(elements + j, qr_vec_load_act_n(src, dtype, index + j, n - j));
    }
    const qr_vec even = load_pairs(elements, QR_DTYPE_F32, 0, &odd);
    qr_vec_store_nf4(bytes, qr_vec_mul(even, inverse), qr_vec_mul(odd, inverse), tables);
    if (n % 2 != 0) { bytes[n / 2] = (uint8_t)((bytes[n / 2] & 0xF0U) | 7U); }
    memcpy(codes, bytes, (size_t)(n + 1) / 2);
}

QR_INLINE void quantize_nf4_from(const qr_quantize_args *a, qr_dtype dtype) {
    const int64_t n = a->n_rows * a->cols;
    const qr_vec_nf4 tables = qr_vec_nf4_make();
    for (int64_t first = 0; first < n; first += a->block) {
        const int64_t end = qr_min(first + a->block, n);
        const float absmax = absmax_of(a->src, dtype, first, end - first);
        const qr_vec inverse = qr_vec_set1(absmax > 0.0F ? 1.0F / absmax : 0.0F);
        a->absmax[first / a->block] = absmax;
        uint8_t *codes = (uint8_t *)a->codes + first / 2;
        int64_t j = first;
        for (; j + 2 * QR_VEC <= end; j += 2 * QR_VEC, codes += QR_VEC) {
            qr_vec odd;
            const qr_vec even = load_pairs(a->src, dtype, j, &odd);
            qr_vec_store_nf4(codes, qr_vec_mul(even, inverse), qr_vec_mul(odd, inverse), &tables);
        }
        if (j < end) { encode_tail(a->src, dtype, j, end - j, inverse, &tables, codes); }
    }
}

/* Rounding to F16 keeps order, so the largest is rounded, not each. */
QR_INLINE void quantize_int8_from(const qr_quantize_args *a, qr_dtype dtype) {
    for (int64_t row = 0; row < a->n_rows; row++) {
        const int64_t begin = row * a->cols;
        const float absmax = qr_vec_get(qr_vec_round_f16(qr_vec_set1(absmax_of(a->src, dtype, begin, a->cols))));
        const qr_vec scale = qr_vec_set1(absmax > 0.0F ? 127.0F * (1.0F / absmax) : 0.0F);
        int8_t *codes = (int8_t *)a->codes + begin;
        a->absmax[row] = absmax;
        for (int64_t j = 0; j < a->cols; j += QR_VEC) {
            qr_vec v = qr_vec_load_act_n(a->src, dtype, begin + j, a->cols - j);
            if (dtype != QR_DTYPE_F16) { v = qr_vec_round_f16(v); }
            qr_vec_store_i8_n(codes + j, qr_vec_mul(v, scale), a->cols - j);
        }
    }
}

QR_INLINE void convert_from(const qr_quantize_args *a, qr_dtype dtype) {
    const int64_t n = a->n_rows * a->cols;
    for (int64_t j = 0; j < n; j += QR_VEC) {
        const qr_vec v = qr_vec_load_act_n(a->src, dtype, j, n - j);
        switch (a->format) {
            case QR_WEIGHT_F16: qr_vec_store_f16_n((uint16_t *)a->codes + j, v, n - j); break;
            case QR_WEIGHT_BF16: qr_vec_store_bf16_n((uint16_t *)a->codes + j, v, n - j); break;
            default: qr_vec_store_n((float *)a->codes + j, v, n - j); break;
        }
    }
}

QR_INLINE void quantize_from(const qr_quantize_args *a, qr_dtype dtype) {
    switch (a->format) {
        case QR_WEIGHT_NF4:
        case QR_WEIGHT_NF4_DQ: quantize_nf4_from(a, dtype); break;
        case QR_WEIGHT_INT8: quantize_int8_from(a, dtype); break;
        default: convert_from(a, dtype); break;
    }
}

static bool is_copy(const qr_quantize_args *a) {
    return (a->format == QR_WEIGHT_F32 && a->src_dtype == QR_DTYPE_F32) ||
           (a->format == QR_WEIGHT_F16 && a->src_dtype == QR_DTYPE_F16) ||
           (a->format == QR_WEIGHT_BF16 && a->src_dtype == QR_DTYPE_BF16);
}

static void quantize(const qr_quantize_args *a) {
    if (is_copy(a)) {
        memcpy(a->codes, a->src, (size_t)(a->n_rows * a->cols) * qr_dtype_bytes(a->src_dtype));
        return;
    }
    switch (a->src_dtype) {
        case QR_DTYPE_BF16: quantize_from(a, QR_DTYPE_BF16); break;
        case QR_DTYPE_F16: quantize_from(a, QR_DTYPE_F16); break;
        default: quantize_from(a, QR_DTYPE_F32); break;
    }
}

/* In the calling thread: many threads call it at once. */
void QR_ISA(qr_cpu_quantize)(const qr_backend *backend, const qr_quantize_args *args) {
    (void)backend;
    quantize(args);
}

/* quantize: one pass from the file's type to canonical codes, bit-equal to quant/. A block, or a row, is read twice, the
 * second time from the first-level cache. */
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vec_nf4.h"
#include "kernels/cpu/vector_ops.h"
#include "quant/format.h"

/* Elements [index, index + n) of a tensor in the file's type. */
QR_INLINE qr_vec load_source(const void *src, qr_dtype dtype, int64_t index, int64_t n) {
    switch (dtype) {
    case QR_DTYPE_BF16: return qr_vec_load_bf16_n((const uint16_t *)src + index, n);
    case QR_DTYPE_F16: return qr_vec_load_f16_n((const uint16_t *)src + index, n);
    default: return qr_vec_load_n((const float *)src + index, n);
    }
}

/* The largest of |x|; NaN is passed over, as by fmaxf. */
QR_INLINE float absmax_of(const void *src, qr_dtype dtype, int64_t index, int64_t n, bool as_f16) {
    qr_vec highest[2] = {qr_vec_zero(), qr_vec_zero()};
    for (int64_t j = 0, k = 0; j < n; j += QR_VEC, k ^= 1) {
        qr_vec v = load_source(src, dtype, index + j, n - j);
        if (as_f16) { v = qr_vec_round_f16(v); }
        highest[k] = qr_vec_max(qr_vec_abs(v), highest[k]);
    }
    return qr_vec_highest(qr_vec_max(highest[0], highest[1]));
}

/* A short last block, or a pair at the end of it: lanes beyond the end are zeros; a spare nibble is the code of zero. */
QR_INLINE void encode_tail(const void *src, qr_dtype dtype, int64_t index, int64_t n, qr_vec inverse,
                           const qr_vec_nf4 *tables, uint8_t *codes) {
    uint8_t bytes[QR_VEC / 2];
    qr_vec_store_nf4(bytes, qr_vec_mul(load_source(src, dtype, index, n), inverse), tables);
    if (n % 2 != 0) { bytes[n / 2] = (uint8_t)((bytes[n / 2] & 0xF0U) | 7U); }
    memcpy(codes, bytes, (size_t)(n + 1) / 2);
}

QR_INLINE void quantize_nf4_from(const qr_quantize_args *a, qr_dtype dtype) {
    const int64_t n = a->n_rows * a->cols;
    const qr_vec_nf4 tables = qr_vec_nf4_make();
    for (int64_t first = 0; first < n; first += a->block) {
        const int64_t end = qr_min(first + a->block, n);
        const float absmax = absmax_of(a->src, dtype, first, end - first, false);
        const qr_vec inverse = qr_vec_set1(absmax > 0.0F ? 1.0F / absmax : 0.0F);
        a->absmax[first / a->block] = absmax;
        uint8_t *codes = (uint8_t *)a->codes + first / 2;
        int64_t j = first;
        for (; j + QR_VEC <= end; j += QR_VEC, codes += QR_VEC / 2) {
            qr_vec_store_nf4(codes, qr_vec_mul(load_source(a->src, dtype, j, QR_VEC), inverse), &tables);
        }
        if (j < end) { encode_tail(a->src, dtype, j, end - j, inverse, &tables, codes); }
    }
}

QR_INLINE void quantize_int8_from(const qr_quantize_args *a, qr_dtype dtype) {
    for (int64_t row = 0; row < a->n_rows; row++) {
        const int64_t begin = row * a->cols;
        const float absmax = absmax_of(a->src, dtype, begin, a->cols, true);
        const qr_vec scale = qr_vec_set1(absmax > 0.0F ? 127.0F * (1.0F / absmax) : 0.0F);
        int8_t *codes = (int8_t *)a->codes + begin;
        a->absmax[row] = absmax;
        for (int64_t j = 0; j < a->cols; j += QR_VEC) {
            const qr_vec v = qr_vec_round_f16(load_source(a->src, dtype, begin + j, a->cols - j));
            qr_vec_store_i8_n(codes + j, qr_vec_mul(v, scale), a->cols - j);
        }
    }
}

QR_INLINE void convert_from(const qr_quantize_args *a, qr_dtype dtype) {
    const int64_t n = a->n_rows * a->cols;
    for (int64_t j = 0; j < n; j += QR_VEC) {
        const qr_vec v = load_source(a->src, dtype, j, n - j);
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

/* In the calling thread: callers are many. */
void QR_ISA(qr_cpu_quantize)(const qr_backend *backend, const qr_quantize_args *args, void *workspace) {
    (void)backend, (void)workspace;
    quantize(args);
}

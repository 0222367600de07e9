/* K and V of one page and head, as F32 in the shapes that attention_tile.h multiplies with. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PAGES_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PAGES_H

#include "kernels/cpu/attention/attention_tiling.h"
#include "kernels/cpu/simd/vec_units.h"

/* Element k of every unit. */
QR_INLINE qr_vec unit_element(qr_vec units, qr_kv_format format, int k) {
    switch (format) {
        case QR_KV_BF16: return qr_vec_unit_bf16(units, k);
        case QR_KV_F16: return qr_vec_unit_f16(units, k);
        case QR_KV_INT8: return qr_vec_unit_i8(units, k);
        default: return units;
    }
}

/* K of one page and head, transposed into 16 columns of keys. */
QR_INLINE void load_keys_as(const unsigned char *src, qr_kv_format format, int64_t head_dim, float *keys) {
    const int64_t element_bytes = format == QR_KV_F32 ? 4 : format == QR_KV_INT8 ? 1 : 2;
    const int64_t row_bytes = head_dim * element_bytes;
    const int per_unit = (int)(4 / element_bytes);
    for (int first = 0; first < QR_KV_PAGE_TOKENS; first += QR_VEC) {
        for (int64_t at = 0; at < row_bytes; at += 4 * QR_VEC) {
            qr_vec units[QR_VEC];
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) {
                units[i] = qr_vec_load_units(src + (first + i) * row_bytes + at, row_bytes - at);
            }
            qr_vec_transpose(units);
            float *dst = keys + at / element_bytes * QR_ATTENTION_BLOCK + first;
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) {
                QR_UNROLL for (int k = 0; k < per_unit; k++) {
                    qr_vec_store(dst + (i * per_unit + k) * QR_ATTENTION_BLOCK, unit_element(units[i], format, k));
                }
            }
        }
    }
}

static void load_keys(const qr_kv_layout *layout, const unsigned char *src, float *keys) {
    switch (layout->format) {
        case QR_KV_F32: load_keys_as(src, QR_KV_F32, layout->head_dim, keys); break;
        case QR_KV_BF16: load_keys_as(src, QR_KV_BF16, layout->head_dim, keys); break;
        case QR_KV_F16: load_keys_as(src, QR_KV_F16, layout->head_dim, keys); break;
        case QR_KV_INT8: load_keys_as(src, QR_KV_INT8, layout->head_dim, keys); break;
    }
}

QR_INLINE qr_vec load_elements(const void *src, qr_kv_format format, int64_t index, int64_t n) {
    switch (format) {
        case QR_KV_BF16: return qr_vec_load_bf16_n((const uint16_t *)src + index, n);
        case QR_KV_F16: return qr_vec_load_f16_n((const uint16_t *)src + index, n);
        case QR_KV_INT8: return qr_vec_load_i8_n((const int8_t *)src + index, n);
        default: return qr_vec_load_n((const float *)src + index, n);
    }
}

/* V of one page and head, a row a token. */
QR_INLINE void load_values_as(const void *src, qr_kv_format format, int64_t dim, float *values, int64_t stride) {
    const int64_t whole = dim - dim % QR_VEC;
    for (int token = 0; token < QR_KV_PAGE_TOKENS; token++) {
        float *row = values + token * stride;
        for (int64_t j = 0; j < whole; j += QR_VEC) {
            qr_vec_store(row + j, load_elements(src, format, token * dim + j, QR_VEC));
        }
        if (whole < dim) { qr_vec_store(row + whole, load_elements(src, format, token * dim + whole, dim - whole)); }
    }
}

static void load_values(const qr_kv_layout *layout, const unsigned char *src, float *values, int64_t stride) {
    switch (layout->format) {
        case QR_KV_F32: load_values_as(src, QR_KV_F32, layout->head_dim, values, stride); break;
        case QR_KV_BF16: load_values_as(src, QR_KV_BF16, layout->head_dim, values, stride); break;
        case QR_KV_F16: load_values_as(src, QR_KV_F16, layout->head_dim, values, stride); break;
        case QR_KV_INT8: load_values_as(src, QR_KV_INT8, layout->head_dim, values, stride); break;
    }
}

#endif

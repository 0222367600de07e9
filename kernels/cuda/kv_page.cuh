/* The K/V of one layer inside a page (kernels/ops.h): where a token's head lies, and what is stored there. */
#ifndef QR_KERNELS_CUDA_KV_PAGE_CUH
#define QR_KERNELS_CUDA_KV_PAGE_CUH

#include "kernels/cuda/device/device.cuh"

/* Offsets that the host computes once. */
struct kv_offsets {
    qr_kv_format format;
    int32_t head_dim;
    size_t head_bytes, scales, v; /* bytes of one token's head; of scales from K or V; of V from the page */
};

static inline kv_offsets kv_offsets_of(const qr_kv_layout *layout) {
    kv_offsets offsets;
    offsets.format = layout->format;
    offsets.head_dim = layout->head_dim;
    offsets.head_bytes = static_cast<size_t>(layout->head_dim) * qr_kv_element_bytes(layout->format);
    offsets.scales = qr_kv_scale_offset(layout);
    offsets.v = qr_kv_v_offset(layout);
    return offsets;
}

/* Of a format but INT8. */
QR_DEVICE qr_dtype kv_dtype_of(qr_kv_format format) {
    return format == QR_KV_BF16 ? QR_DTYPE_BF16 : format == QR_KV_F16 ? QR_DTYPE_F16 : QR_DTYPE_F32;
}

/* Where kv_write puts a token's head of K or V: head number `index` of a part of a page; NULL: nowhere. */
struct kv_place {
    unsigned char *part;
    int64_t index;
};

QR_DEVICE kv_place kv_place_of(const qr_kv_write_args &a, const kv_offsets &o, int64_t token, int64_t head, bool is_v) {
    if (a.token_page[token] < 0) { return {NULL, 0}; }
    return {a.pages + static_cast<size_t>(a.token_page[token]) * a.page_stride_bytes + (is_v ? o.v : 0),
            head * QR_KV_PAGE_TOKENS + a.position[token] % QR_KV_PAGE_TOKENS};
}

/* The elements of one token's head in the K or V part of a page, and their scale (INT8). */
struct kv_vector {
    const unsigned char *elements;
    float scale;
};

QR_DEVICE kv_vector kv_vector_at(const kv_offsets &o, const unsigned char *part, int64_t head, int64_t token) {
    const int64_t index = head * QR_KV_PAGE_TOKENS + token;
    kv_vector vector;
    vector.elements = part + index * static_cast<int64_t>(o.head_bytes);
    vector.scale = o.format == QR_KV_INT8 ? reinterpret_cast<const float *>(part + o.scales)[index] : 1.0F;
    return vector;
}

/* Element j, of INT8 without the scale. */
template <qr_kv_format format> QR_DEVICE float kv_element(const unsigned char *elements, int64_t j) {
    if (format == QR_KV_INT8) { return static_cast<float>(reinterpret_cast<const int8_t *>(elements)[j]); }
    if (format == QR_KV_BF16) { return bf16_to_f32(reinterpret_cast<const uint16_t *>(elements)[j]); }
    if (format == QR_KV_F16) { return f16_to_f32(reinterpret_cast<const uint16_t *>(elements)[j]); }
    return reinterpret_cast<const float *>(elements)[j];
}

#endif

/* kv_write. */
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"

/* One head of one token as INT8 (qr_kv_layout): returns its scale. */
static float write_codes(const float *x, int64_t n, int8_t *codes) {
    qr_vec highest = qr_vec_zero();
    for (int64_t j = 0; j < n; j += QR_VEC) { highest = qr_vec_max(qr_vec_abs(qr_vec_load_n(x + j, n - j)), highest); }
    const float absmax = qr_vec_highest(highest);
    const float inverse = 127.0F / absmax;
    const qr_vec scale = qr_vec_set1(isfinite(inverse) ? inverse : 0.0F);
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec_store_i8_n(codes + j, qr_vec_mul(qr_vec_load_n(x + j, n - j), scale), n - j);
    }
    return absmax / 127.0F;
}

/* The heads of one token into the K or the V part of its page. */
static void write_token(const qr_kv_layout *layout, const float *x, int64_t token_in_page, unsigned char *part) {
    const int64_t dim = layout->head_dim;
    for (int64_t head = 0; head < layout->n_kv_heads; head++) {
        const int64_t slot = head * QR_KV_PAGE_TOKENS + token_in_page;
        unsigned char *dst = part + (size_t)(slot * dim) * qr_kv_element_bytes(layout->format);
        const float *src = x + head * dim;
        if (layout->format == QR_KV_F32) {
            memcpy(dst, src, (size_t)dim * sizeof *src);
        } else if (layout->format == QR_KV_BF16) {
            for (int64_t j = 0; j < dim; j += QR_VEC) {
                qr_vec_store_bf16_n((uint16_t *)(void *)dst + j, qr_vec_load_n(src + j, dim - j), dim - j);
            }
        } else if (layout->format == QR_KV_F16) {
            for (int64_t j = 0; j < dim; j += QR_VEC) {
                qr_vec_store_f16_n((uint16_t *)(void *)dst + j, qr_vec_load_n(src + j, dim - j), dim - j);
            }
        } else {
            const float scale = write_codes(src, dim, (int8_t *)dst);
            memcpy(part + qr_kv_scale_offset(layout) + (size_t)slot * sizeof scale, &scale, sizeof scale);
        }
    }
}

static void kv_write_rows(const void *args, int64_t begin, int64_t end) {
    const qr_kv_write_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        if (a->token_page[i] < 0) { continue; }
        unsigned char *page = a->pages + (size_t)a->token_page[i] * a->page_stride_bytes;
        const int64_t token_in_page = a->position[i] % QR_KV_PAGE_TOKENS;
        write_token(&a->layout, a->k + i * a->k_stride, token_in_page, page);
        if (a->layout.keys_are_values) { continue; }
        write_token(&a->layout, a->v + i * a->v_stride, token_in_page, page + qr_kv_v_offset(&a->layout));
    }
}

QR_CPU_RANGE_OP(kv_write, args->n_tokens, 2 * (int64_t)args->layout.n_kv_heads * args->layout.head_dim, kv_write_rows)

/* rope_table, rope, rope_backward. The table is made once a step and shared by all layers, so libm's functions are fast
 * enough; they reduce arguments of any size exactly. */
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"

static float temperature(const qr_rope_table_args *a, int32_t position) {
    if (a->temperature_tokens == 0) { return 1.0F; }
    const int32_t n_spans = position / a->temperature_tokens;
    return 1.0F + a->temperature_beta * logf(1.0F + (float)n_spans);
}

static void rope_table_rows(const void *args, int64_t begin, int64_t end) {
    const qr_rope_table_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float position = (float)a->position[i];
        const float factor = a->factor[a->token_slot[i]] * temperature(a, a->position[i]);
        const float *inv_freq = a->inv_freq + a->token_slot[i] * a->half;
        for (int64_t j = 0; j < a->half; j++) {
            const float angle = position * inv_freq[j];
            a->cos_table[i * a->half + j] = cosf(angle) * factor;
            a->sin_table[i * a->half + j] = sinf(angle) * factor;
        }
    }
}

/* Rotates by the angles of the row, or back: the rotation is orthogonal, so its transpose is its inverse. */
QR_INLINE void rotate_head(float *x, const float *cos_row, const float *sin_row, int64_t half, bool interleaved,
                           bool back) {
    for (int64_t j = 0; j < half; j += QR_VEC) {
        const int64_t n = half - j;
        const qr_vec c = qr_vec_load_n(cos_row + j, n), sine = qr_vec_load_n(sin_row + j, n);
        const qr_vec s = back ? qr_vec_sub(qr_vec_zero(), sine) : sine;
        qr_vec first, second;
        if (interleaved) {
            qr_vec_load_pairs_n(x + 2 * j, n, &first, &second);
        } else {
            first = qr_vec_load_n(x + j, n), second = qr_vec_load_n(x + half + j, n);
        }
        const qr_vec turned = qr_vec_sub(qr_vec_mul(first, c), qr_vec_mul(second, s));
        second = qr_vec_add(qr_vec_mul(second, c), qr_vec_mul(first, s));
        if (interleaved) {
            qr_vec_store_pairs_n(x + 2 * j, turned, second, n);
        } else {
            qr_vec_store_n(x + j, turned, n);
            qr_vec_store_n(x + half + j, second, n);
        }
    }
}

static void rope_rows(const void *args, int64_t begin, int64_t end) {
    const qr_rope_args *a = args;
    for (int64_t i = begin * a->n_heads; i < end * a->n_heads; i++) {
        const int64_t token = i / a->n_heads, at = token * a->half;
        float *x = a->x + token * a->x_stride + i % a->n_heads * a->head_dim;
        rotate_head(x, a->cos_table + at, a->sin_table + at, a->half, a->interleaved, false);
    }
}

static void rope_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_rope_backward_args *a = args;
    for (int64_t i = begin * a->n_heads; i < end * a->n_heads; i++) {
        const int64_t token = i / a->n_heads, at = token * a->half;
        float *dx = a->dx + token * a->dx_stride + i % a->n_heads * a->head_dim;
        rotate_head(dx, a->cos_table + at, a->sin_table + at, a->half, a->interleaved, true);
    }
}

enum { LIBM_COST = 32 };
QR_CPU_RANGE_OP(rope_table, args->n_tokens, LIBM_COST * args->half, rope_table_rows)
QR_CPU_RANGE_OP(rope, args->n_tokens, args->n_heads * args->head_dim, rope_rows)
QR_CPU_RANGE_OP(rope_backward, args->n_tokens, args->n_heads * args->head_dim, rope_backward_rows)

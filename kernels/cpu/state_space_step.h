/* One token of state_space on a block of columns of a head's state, and the scratch of the op and its gradient. The
 * columns are independent of each other, and the sums run over the rows in order, so a column has the same bits in any
 * block. */
#ifndef QR_KERNELS_CPU_STATE_SPACE_STEP_H
#define QR_KERNELS_CPU_STATE_SPACE_STEP_H

#include "kernels/cpu/recurrence_step.h"
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/state_space_scratch.h"
#include "kernels/cpu/vector_ops.h"

/* A token of a head. */
typedef struct space_token {
    const float *x, *b, *c;
    float step, decay, skip;
} space_token;

QR_INLINE space_token space_token_at(const qr_state_space_args *a, int64_t token, int32_t head) {
    const int64_t keys = (int64_t)a->n_groups * a->state_dim, group = head / (a->n_heads / a->n_groups);
    const float *row = a->xbc + token * a->xbc_stride;
    const float *b = row + (int64_t)a->n_heads * a->head_dim + group * a->state_dim;
    const float step = recurrence_softplus(a->dt[token * a->dt_stride + head] + a->dt_bias[head]);
    return (space_token){.x = row + (int64_t)head * a->head_dim,
                         .b = b,
                         .c = b + keys,
                         .step = step,
                         .decay = expf(-expf(a->a_log[head]) * step),
                         .skip = a->skip[head]};
}

/* n_vecs vectors of columns, n columns in all; rows `stride` apart. after may be before. dst: NULL, or receives the
 * output. */
QR_INLINE void space_vectors(const space_token *in, int64_t state_dim, const float *before, float *after,
                             int64_t stride, const float *x, float *dst, int n_vecs, int64_t n) {
    qr_vec input[4], out[4];
    const qr_vec step = qr_vec_set1(in->step), decay = qr_vec_set1(in->decay);
    QR_UNROLL for (int u = 0; u < n_vecs; u++) {
        input[u] = qr_vec_mul(step, qr_vec_load_n(x + u * QR_VEC, n - u * QR_VEC));
        out[u] = qr_vec_zero();
    }
    for (int64_t i = 0; i < state_dim; i++) {
        const qr_vec b = qr_vec_set1(in->b[i]), c = qr_vec_set1(in->c[i]);
        QR_UNROLL for (int u = 0; u < n_vecs; u++) {
            const int64_t at = i * stride + u * QR_VEC, left = n - u * QR_VEC;
            const qr_vec state = qr_vec_fma(b, input[u], qr_vec_mul(decay, qr_vec_load_n(before + at, left)));
            out[u] = qr_vec_fma(c, state, out[u]);
            qr_vec_store_n(after + at, state, left);
        }
    }
    const qr_vec skip = qr_vec_set1(in->skip);
    QR_UNROLL for (int u = 0; dst != NULL && u < n_vecs; u++) {
        const int64_t at = u * QR_VEC, left = n - at;
        qr_vec_store_n(dst + at, qr_vec_fma(skip, qr_vec_load_n(x + at, left), out[u]), left);
    }
}

/* The same for any n, from column `first` of the head on: four vectors at a time, then one. */
QR_INLINE void space_columns(const space_token *in, int64_t state_dim, const float *before, float *after,
                             int64_t stride, int64_t first, float *dst, int64_t n) {
    for (int64_t j = 0; j < n;) {
        float *to = dst != NULL ? dst + j : NULL;
        const float *x = in->x + first + j;
        if (n - j >= 4 * QR_VEC) {
            space_vectors(in, state_dim, before + j, after + j, stride, x, to, 4, 4 * QR_VEC);
            j += 4 * QR_VEC;
        } else {
            space_vectors(in, state_dim, before + j, after + j, stride, x, to, 1, n - j);
            j += QR_VEC;
        }
    }
}

#endif

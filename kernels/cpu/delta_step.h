/* One token of gated_delta on a block of columns of a head's state. The columns are independent of each other, and the
 * sums run over the rows in order, so a column has the same bits in any block. */
#ifndef QR_KERNELS_CPU_DELTA_STEP_H
#define QR_KERNELS_CPU_DELTA_STEP_H

#include "kernels/cpu/delta_scratch.h"
#include "kernels/cpu/recurrence_step.h"
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"

static const float QR_DELTA_EPS = 1e-6F;

/* A token of a value head. */
typedef struct delta_token {
    const float *q, *k;  /* [key_dim] q', k' */
    const float *decays; /* [key_dim]; NULL: `decay` is of all rows of the state */
    float qk, decay, beta;
} delta_token;

QR_INLINE delta_token delta_token_at(const qr_gated_delta_args *a, const qr_delta_tokens *t, int64_t token,
                                     int32_t head) {
    const int64_t key = token * a->n_key_heads + head / (a->n_value_heads / a->n_key_heads);
    const int64_t value = token * a->n_value_heads + head;
    const float *decays = t->decay + value * qr_delta_decays(a);
    return (delta_token){.q = t->q + key * a->key_dim,
                         .k = t->k + key * a->key_dim,
                         .qk = t->qk[key],
                         .decays = a->decays_channels ? decays : NULL,
                         .decay = decays[0],
                         .beta = t->beta[value]};
}

/* n_vecs vectors of columns, n columns in all; rows `stride` apart. after may be before. error: NULL, or receives
 * v − (decay · state)ᵀ k'. dst: NULL, or receives the output, (decay · state)ᵀ q' + (q' · k') · delta. by_channel: the
 * token has `decays`, which enter the sums; a decay of all rows multiplies them. */
QR_INLINE void delta_vectors(const delta_token *in, int64_t key_dim, const float *before, float *after, int64_t stride,
                             const float *v, float *dst, float *error, int n_vecs, int64_t n, bool by_channel) {
    qr_vec read[4], out[4], delta[4];
    QR_UNROLL for (int u = 0; u < n_vecs; u++) { read[u] = out[u] = qr_vec_zero(); }
    for (int64_t i = 0; i < key_dim; i++) {
        const qr_vec k = qr_vec_set1(by_channel ? in->decays[i] * in->k[i] : in->k[i]);
        const qr_vec q = qr_vec_set1(by_channel ? in->decays[i] * in->q[i] : in->q[i]);
        QR_UNROLL for (int u = 0; u < n_vecs; u++) {
            const qr_vec s = qr_vec_load_n(before + i * stride + u * QR_VEC, n - u * QR_VEC);
            read[u] = qr_vec_fma(s, k, read[u]);
            out[u] = qr_vec_fma(s, q, out[u]);
        }
    }
    const qr_vec of_all = qr_vec_set1(in->decay), beta = qr_vec_set1(in->beta), qk = qr_vec_set1(in->qk);
    QR_UNROLL for (int u = 0; u < n_vecs; u++) {
        const int64_t at = u * QR_VEC, left = n - at;
        if (!by_channel) {
            read[u] = qr_vec_mul(of_all, read[u]);
            out[u] = qr_vec_mul(of_all, out[u]);
        }
        const qr_vec wrong = qr_vec_sub(qr_vec_load_n(v + at, left), read[u]);
        delta[u] = qr_vec_mul(beta, wrong);
        if (error != NULL) { qr_vec_store_n(error + at, wrong, left); }
        if (dst != NULL) { qr_vec_store_n(dst + at, qr_vec_fma(qk, delta[u], out[u]), left); }
    }
    for (int64_t i = 0; i < key_dim; i++) {
        const qr_vec k = qr_vec_set1(in->k[i]), decay = by_channel ? qr_vec_set1(in->decays[i]) : of_all;
        QR_UNROLL for (int u = 0; u < n_vecs; u++) {
            const int64_t at = i * stride + u * QR_VEC, left = n - u * QR_VEC;
            qr_vec_store_n(after + at, qr_vec_fma(k, delta[u], qr_vec_mul(decay, qr_vec_load_n(before + at, left))),
                           left);
        }
    }
}

/* The same for any n: four vectors at a time, then one. */
QR_INLINE void delta_columns_of(const delta_token *in, int64_t key_dim, const float *before, float *after,
                                int64_t stride, const float *v, float *dst, float *error, int64_t n, bool by_channel) {
    for (int64_t j = 0; j < n;) {
        float *to = dst != NULL ? dst + j : NULL, *wrong = error != NULL ? error + j : NULL;
        if (n - j >= 4 * QR_VEC) {
            delta_vectors(in, key_dim, before + j, after + j, stride, v + j, to, wrong, 4, 4 * QR_VEC, by_channel);
            j += 4 * QR_VEC;
        } else {
            delta_vectors(in, key_dim, before + j, after + j, stride, v + j, to, wrong, 1, n - j, by_channel);
            j += QR_VEC;
        }
    }
}

QR_INLINE void delta_columns(const delta_token *in, int64_t key_dim, const float *before, float *after, int64_t stride,
                             const float *v, float *dst, float *error, int64_t n) {
    if (in->decays != NULL) {
        delta_columns_of(in, key_dim, before, after, stride, v, dst, error, n, true);
    } else {
        delta_columns_of(in, key_dim, before, after, stride, v, dst, error, n, false);
    }
}

/* Fills `tokens`, which lies in a workspace; in delta.c. */
void QR_ISA(qr_cpu_delta_prepare)(const qr_backend *backend, const qr_gated_delta_args *args,
                                  const qr_delta_tokens *tokens);

#endif

/* dora and dora_backward. */
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"

static void dora_row(const qr_dora_args *a, const float *ratio, const float *src, float *dst) {
    const qr_vec minus = qr_vec_set1(a->minus);
    for (int64_t j = 0; j < a->dim; j += QR_VEC) {
        const int64_t n = a->dim - j;
        const qr_vec factor = qr_vec_sub(qr_vec_load_n(ratio + j, n), minus);
        qr_vec x = qr_vec_load_n(src + j, n);
        if (a->bias != NULL) { x = qr_vec_sub(x, qr_vec_load_n(a->bias + j, n)); }
        const qr_vec before = a->accumulate ? qr_vec_load_n(dst + j, n) : qr_vec_zero();
        qr_vec_store_n(dst + j, qr_vec_fma(factor, x, before), n);
    }
}

static void dora_rows(const void *args, int64_t begin, int64_t end) {
    const qr_dora_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *ratio = a->row_adapter[i] >= 0 ? a->factors[a->row_adapter[i]].ratio : NULL;
        if (ratio != NULL) { dora_row(a, ratio, a->src + i * a->src_stride, a->dst + i * a->dst_stride); }
    }
}

QR_CPU_RANGE_OP(dora, args->n_rows, 2 * args->dim, dora_rows)

/* --- dora_backward: blocks of columns, all rows in order. The sums go on from what is there, so rows in several calls
 * have the bits of one --- */

enum { COLUMN_VECTORS = 4, COLUMN_BLOCK = COLUMN_VECTORS * QR_VEC };

static void magnitude_block(const qr_dora_backward_args *a, int64_t first) {
    qr_vec sums[COLUMN_VECTORS], inverse[COLUMN_VECTORS];
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
        const int64_t j = first + v * QR_VEC;
        sums[v] = inverse[v] = qr_vec_zero();
        if (j >= a->dim) { continue; }
        sums[v] = qr_vec_load_n(a->dmagnitude + j, a->dim - j);
        inverse[v] = qr_vec_div(qr_vec_set1(1.0F), qr_vec_load_n(a->norm + j, a->dim - j));
    }
    for (int64_t i = 0; i < a->n_rows; i++) {
        const float *dy = a->dy + i * a->dy_stride, *z = a->z + i * a->z_stride;
        QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
            const int64_t j = first + v * QR_VEC;
            if (j >= a->dim) { break; }
            const qr_vec along = qr_vec_mul(qr_vec_load_n(z + j, a->dim - j), inverse[v]);
            sums[v] = qr_vec_fma(qr_vec_load_n(dy + j, a->dim - j), along, sums[v]);
        }
    }
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
        const int64_t j = first + v * QR_VEC;
        if (j >= a->dim) { break; }
        qr_vec_store_n(a->dmagnitude + j, sums[v], a->dim - j);
    }
}

static void magnitude_columns(const void *args, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) { magnitude_block(args, block * COLUMN_BLOCK); }
}

QR_CPU_RANGE_OP(dora_backward, qr_ceil_div(args->dim, COLUMN_BLOCK), 2 * args->n_rows * COLUMN_BLOCK, magnitude_columns)

/* From tiles to y: sums are [weight row][row of x] and leave as rows of y, 16 by 16 transposed in registers. */
#ifndef QR_KERNELS_CPU_LINEAR_TILES_STORE_H
#define QR_KERNELS_CPU_LINEAR_TILES_STORE_H

#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/cpu/simd/vec_units.h"

/* y = sum · factor (+ bias) (+ y) for row i of x and up to 16 outputs from o on. */
QR_INLINE void store_outputs(const qr_cpu_tiles_task *task, int64_t i, int64_t o, qr_vec sum) {
    const qr_linear_args *args = task->args;
    const int64_t n = args->weight->desc.rows - o;
    float *y = args->y + i * args->y_stride + o;
    if (args->weight->desc.format == QR_WEIGHT_INT8) {
        const qr_vec row_absmax = qr_vec_load_n(qr_cpu_scales(args->weight, task->layout) + o, n);
        sum = qr_vec_mul(sum, qr_vec_div(row_absmax, qr_vec_set1(127.0F)));
    }
    if (args->bias != NULL) { sum = qr_vec_add(sum, qr_vec_load_n(args->bias + o, n)); }
    if (args->accumulate) { sum = qr_vec_add(sum, qr_vec_load_n(y, n)); }
    qr_vec_store_n(y, sum, n);
}

/* sums [16 weight rows][16] of outputs from o on and n (1 … 16) rows of x from i on. */
static void store_tile(const qr_cpu_tiles_task *task, const float *sums, int64_t o, int64_t i, int64_t n) {
    qr_vec rows[QR_VEC];
    QR_UNROLL for (int r = 0; r < QR_VEC; r++) { rows[r] = qr_vec_load(sums + r * QR_VEC); }
    qr_vec_transpose(rows);
    for (int64_t r = 0; r < n; r++) { store_outputs(task, i + r, o, rows[r]); }
}

#endif

/* From tiles to y: sums are [weight row][row of x] and leave as rows of y, four rows of 16 outputs at a time,
 * transposed in registers. A large y leaves past the caches: fetching its lines in order to overwrite them takes the
 * line fill buffers that the operands of the products come through. A task that stores so ends with _mm_sfence(). */
#ifndef QR_KERNELS_CPU_LINEAR_TILES_STORE_H
#define QR_KERNELS_CPU_LINEAR_TILES_STORE_H

#include <immintrin.h>

#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/cpu/simd/vec_units.h"

enum { STORE_ROWS = 4 /* of x, at a time */ };

/* How outputs [o, o + 16) leave. */
typedef struct outputs {
    float *y; /* of row 0 of x and output o */
    int64_t y_stride, n;
    const float *bias; /* of output o, or NULL */
    qr_vec factor;     /* INT8: of the sums */
    bool scaled, accumulate, streamed;
} outputs;

QR_INLINE outputs outputs_of(const qr_cpu_tiles_task *task, int64_t o) {
    const qr_linear_args *args = task->args;
    outputs out = {
        .y = args->y + o,
        .y_stride = args->y_stride,
        .n = args->weight->desc.rows - o,
        .bias = args->bias == NULL ? NULL : args->bias + o,
        .factor = qr_vec_zero(),
        .scaled = args->weight->desc.format == QR_WEIGHT_INT8,
        .accumulate = args->accumulate,
        .streamed = task->stream_y && args->weight->desc.rows - o >= QR_VEC,
    };
    if (out.scaled) {
        const qr_vec row_absmax = qr_vec_load_n(qr_cpu_scales(args->weight, task->layout) + o, out.n);
        out.factor = qr_vec_div(row_absmax, qr_vec_set1(127.0F));
    }
    return out;
}

/* y = sum · factor (+ bias) (+ y) for row i of x. */
QR_INLINE void store_outputs(const outputs *out, int64_t i, qr_vec sum) {
    float *y = out->y + i * out->y_stride;
    if (out->scaled) { sum = qr_vec_mul(sum, out->factor); }
    if (out->bias != NULL) { sum = qr_vec_add(sum, qr_vec_load_n(out->bias, out->n)); }
    if (out->accumulate) { sum = qr_vec_add(sum, qr_vec_load_n(y, out->n)); }
    if (out->streamed) {
        _mm512_stream_ps(y, sum);
    } else {
        qr_vec_store_n(y, sum, out->n);
    }
}

/* sums [16 weight rows][16], of which four columns leave as rows i … i + n − 1 of y; n is at most four. */
QR_INLINE void store_rows(const outputs *out, const float *sums, int64_t i, int64_t n) {
    __m512 columns[STORE_ROWS]; /* of weight rows r, r + 4, r + 8, r + 12 */
    QR_UNROLL for (int r = 0; r < STORE_ROWS; r++) {
        const float *from = sums + QR_TILES_COLS * r;
        __m512 four = _mm512_castps128_ps512(_mm_load_ps(from));
        four = _mm512_insertf32x4(four, _mm_load_ps(from + 4 * QR_TILES_COLS), 1);
        four = _mm512_insertf32x4(four, _mm_load_ps(from + 8 * QR_TILES_COLS), 2);
        columns[r] = _mm512_insertf32x4(four, _mm_load_ps(from + 12 * QR_TILES_COLS), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(columns[0], columns[1]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(columns[0], columns[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(columns[2], columns[3]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(columns[2], columns[3]));
    store_outputs(out, i, _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23)));
    if (n > 1) { store_outputs(out, i + 1, _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23))); }
    if (n > 2) { store_outputs(out, i + 2, _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23))); }
    if (n > 3) { store_outputs(out, i + 3, _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23))); }
}

/* sums [16 weight rows][16] of outputs from o on and n (1 … 16) rows of x from i on. */
static void store_tile(const qr_cpu_tiles_task *task, const float *sums, int64_t o, int64_t i, int64_t n) {
    const outputs out = outputs_of(task, o);
    for (int64_t r = 0; r < n; r += STORE_ROWS) { store_rows(&out, sums + r, i + r, qr_min(n - r, STORE_ROWS)); }
}

#endif

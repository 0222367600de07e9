/* linear in the order of sums of AMX tiles (kernels/tile_sum.h) on vectors of 16 weight rows: the two chains of a tile
 * are two accumulators. Included by linear_f32.c where a vector has 16 lanes. */
#include "kernels/tile_sum.h"

enum { ORDER_ROWS = 16, ORDER_K_BLOCK = 512 };

/* The CPU's FMA, told to treat subnormals as tiles do (MXCSR), or scalar C. */
#if defined(__FMA__)
#include <immintrin.h>
QR_INLINE qr_vec order_fma(qr_vec a, qr_vec b, qr_vec c) { return qr_vec_fma(a, b, c); }
QR_INLINE qr_vec order_add(qr_vec a, qr_vec b) { return qr_vec_add(a, b); }
static unsigned int flush_begin(void) {
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    const unsigned int saved = _mm_getcsr();
    _mm_setcsr(saved | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
    return saved;
}
static void flush_end(unsigned int saved) { _mm_setcsr(saved); }
#else
QR_INLINE qr_vec order_fma(qr_vec a, qr_vec b, qr_vec c) {
    for (int i = 0; i < QR_VEC; i++) { c[i] = qr_tile_fma(a[i], b[i], c[i]); }
    return c;
}
QR_INLINE qr_vec order_add(qr_vec a, qr_vec b) {
    for (int i = 0; i < QR_VEC; i++) { a[i] = qr_tile_add(a[i], b[i]); }
    return a;
}
static unsigned int flush_begin(void) { return 0; }
static void flush_end(unsigned int saved) { (void)saved; }
#endif

/* Rows as usual, then each block of 16 rows by 16 columns transposed where it lies: column k of 16 weight rows is the
 * vector at row k % 16, column k − k % 16. Rows that are missing are zeros. */
static void fetch_columns(const qr_cpu_panel *p) {
    float *panel = p->dst;
    fetch_rounded_to_bf16(p);
    for (int64_t r = p->n_rows; r % ORDER_ROWS != 0; r++) {
        memset(panel + r * p->dst_stride, 0, (size_t)p->n_k_padded * sizeof *panel);
    }
    for (int64_t r = 0; r < p->n_rows; r += ORDER_ROWS) {
        for (int64_t k = 0; k < p->n_k_padded; k += ORDER_ROWS) {
            float *block = panel + r * p->dst_stride + k;
            qr_vec v[QR_VEC];
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) { v[i] = qr_vec_load(block + i * p->dst_stride); }
            qr_vec_transpose(v);
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) { qr_vec_store(block + i * p->dst_stride, v[i]); }
        }
    }
}

/* 16 weight rows by n_x rows of x, a constant after inlining. */
QR_INLINE void multiply_in_order(const qr_cpu_product *p, int64_t o, int64_t i, const int n_x) {
    const float *w = (const float *)p->w + o * p->w_stride, *x = (const float *)p->x + i * p->x_stride;
    float *sums = p->sums + i * p->sum_stride + o;
    for (int64_t k = 0; k < p->n_k; k += QR_TILE_K) {
        qr_vec even[ORDER_COLS], odd[ORDER_COLS];
        QR_UNROLL for (int c = 0; c < n_x; c++) { even[c] = odd[c] = qr_vec_zero(); }
        for (int64_t j = k; j < k + QR_TILE_K; j += 2) {
            const float *column = w + j % ORDER_ROWS * p->w_stride + (j - j % ORDER_ROWS);
            const qr_vec first = qr_vec_load(column), second = qr_vec_load(column + p->w_stride);
            QR_UNROLL for (int c = 0; c < n_x; c++) {
                even[c] = order_fma(first, qr_vec_set1(x[c * p->x_stride + j]), even[c]);
                odd[c] = order_fma(second, qr_vec_set1(x[c * p->x_stride + j + 1]), odd[c]);
            }
        }
        QR_UNROLL for (int c = 0; c < n_x; c++) {
            float *sum = sums + c * p->sum_stride;
            const qr_vec before = p->first && k == 0 ? qr_vec_zero() : qr_vec_load(sum);
            qr_vec_store(sum, order_add(before, order_add(even[c], odd[c])));
        }
    }
}

/* Not inlined: no operation may move to where MXCSR is another. */
static __attribute__((noinline)) void multiply_flushed(const qr_cpu_product *p) {
    for (int64_t o = 0; o < p->n_w; o += ORDER_ROWS) {
        int64_t i = 0;
        for (; i + ORDER_COLS <= p->n_x; i += ORDER_COLS) { multiply_in_order(p, o, i, ORDER_COLS); }
        for (; i < p->n_x; i++) { multiply_in_order(p, o, i, 1); }
    }
}

static void multiply_columns(const qr_cpu_product *p) {
    const unsigned int saved = flush_begin();
    multiply_flushed(p);
    flush_end(saved);
}

#define TILE_ORDER_MATMUL                                                                                     \
    {                                                                                                         \
        .element_bytes = 4, .k_block = ORDER_K_BLOCK, .k_step = QR_TILE_K, .piece_rows = ORDER_ROWS,          \
        .x_dtype = QR_DTYPE_BF16, .fetch = fetch_columns, .multiply = multiply_columns, .exercise = exercise, \
        .exercise_flops = EXERCISE_FLOPS, .gemm_backward = &gemm_rounded                                      \
    }

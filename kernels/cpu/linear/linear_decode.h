/* Products of a few rows of x from the codes of NF4_GROUPS, without a panel: for instruction sets whose vectors
 * look up a value for each lane (qr_vec_lookup). Included by linear_f32.c after linear_microkernel.h. The accumulations
 * are those of tile_multiply, in the same order, so the bits are the same.
 *
 * One busy core of a Zen 5 server, 4096 x 2048, one row of x (bench_linear), panels and this in G weights/s: NF4
 * in BF16 14.1 and 21.2 with AVX-512, 7.3 and 8.4 with AVX2; in F32, where no value is rounded, 15.2 and 31.8, and 9.6
 * and 13.3. */

enum {
    DECODE_X = QR_TILE_MAX_COLS >= 6 ? 4 : 2, /* with more, panels take about as long */
    DECODE_AT_ONCE = 2,                       /* rows whose sums do not wait for each other */
    DECODE_AHEAD_BYTES = 4096,
    MAX_SCALES = K_BLOCK / QR_CPU_MXFP4_SCALE_COLS, /* of a row of a K block */
};

/* The values of a block of 64 columns of some rows, rounded to the type. */
typedef struct decode_tables {
    qr_vec_values rows[DECODE_AT_ONCE];
} decode_tables;

/* Columns [32 · part, + 32) of a run: of DECODE_AT_ONCE rows, times n_x rows of x. A run's bytes are `run_bytes`. */
QR_INLINE void decode_quarter(qr_vec acc[DECODE_AT_ONCE][DECODE_X], const uint8_t *codes, const int run_bytes,
                              const int part, const decode_tables *tables, const float *x, int64_t x_stride,
                              const int n_x) {
    QR_UNROLL for (int w = 0; w < 32; w += QR_VEC) {
        qr_vec values[DECODE_AT_ONCE];
        QR_UNROLL for (int r = 0; r < DECODE_AT_ONCE; r++) {
            const qr_vec_codes lanes = run_codes(codes + r * run_bytes, run_bytes == 32, part, w);
            values[r] = qr_vec_lookup(&tables->rows[r], lanes, run_shift(part));
        }
        QR_UNROLL for (int i = 0; i < n_x; i++) {
            const qr_vec xv = qr_vec_load(x + i * x_stride + 32 * part + w);
            QR_UNROLL for (int r = 0; r < DECODE_AT_ONCE; r++) { acc[r][i] = qr_vec_fma(values[r], xv, acc[r][i]); }
        }
    }
}

/* A run of a group's 16 rows: 128 columns, or (run_bytes 32) the last 64. The sums wait in L1 meanwhile. */
QR_INLINE void decode_run(qr_vec acc[QR_CPU_NF4_GROUP_ROWS][DECODE_X], const uint8_t *codes, const int run_bytes,
                          const float *scales, int64_t scale_stride, const float *x, int64_t x_stride, const int n_x,
                          const bool is_mxfp4, const qr_dtype round_to, const bool ordinary) {
    const float *code = is_mxfp4 ? qr_float4_values : qr_nf4_code;
    const int parts_of_scale = qr_cpu_scale_cols_of(is_mxfp4) / 32;
    for (int row = 0; row < QR_CPU_NF4_GROUP_ROWS; row += DECODE_AT_ONCE) {
        const uint8_t *run = codes + row * run_bytes;
        qr_vec now[DECODE_AT_ONCE][DECODE_X];
        decode_tables tables;
        QR_UNROLL for (int r = 0; r < DECODE_AT_ONCE; r++) {
            QR_UNROLL for (int i = 0; i < n_x; i++) { now[r][i] = acc[row + r][i]; }
            __builtin_prefetch(run + r * run_bytes + DECODE_AHEAD_BYTES);
        }
        QR_UNROLL for (int part = 0; part < run_bytes / 16; part++) {
            if (part % parts_of_scale == 0) {
                QR_UNROLL for (int r = 0; r < DECODE_AT_ONCE; r++) {
                    const float scale = scales[(row + r) * scale_stride + part / parts_of_scale];
                    tables.rows[r] = qr_vec_values_make(code, scale, round_to, ordinary);
                }
            }
            decode_quarter(now, run, run_bytes, part, &tables, x, x_stride, n_x);
        }
        QR_UNROLL for (int r = 0; r < DECODE_AT_ONCE; r++) {
            QR_UNROLL for (int i = 0; i < n_x; i++) { acc[row + r][i] = now[r][i]; }
        }
    }
}

/* Columns [k0, k0 + n_k) of a group with their scales. */
QR_INLINE void decode_runs(qr_vec acc[QR_CPU_NF4_GROUP_ROWS][DECODE_X], const qr_cpu_panel *p,
                           const qr_cpu_product *product, int64_t row, int64_t k0, int64_t n_k, const float *scales,
                           const int n_x, const bool is_mxfp4, const qr_dtype round_to, const bool ordinary) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    const float *x = (const float *)product->x + k0;
    int64_t k = 0;
    for (; k + 128 <= n_k; k += 128) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), 64, scales + k / scale_cols, MAX_SCALES,
                   x + k, product->x_stride, n_x, is_mxfp4, round_to, ordinary);
    }
    if (k < n_k) {
        decode_run(acc, qr_cpu_nf4_run(p->weight, p->layout, row, k0 + k), 32, scales + k / scale_cols, MAX_SCALES,
                   x + k, product->x_stride, n_x, is_mxfp4, round_to, ordinary);
    }
}

/* One K block of the group from `row` on. */
QR_INLINE void decode_block(const qr_cpu_panel *p, const qr_cpu_product *product, int64_t row, int64_t k0,
                            const int n_x, const bool is_mxfp4, const qr_dtype round_to) {
    const int64_t n_k = qr_min(p->weight->desc.cols - k0, K_BLOCK);
    float scales[QR_CPU_NF4_GROUP_ROWS * MAX_SCALES];
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    fetch_scales(p, row, QR_CPU_NF4_GROUP_ROWS, k0, n_k, scale_cols, scales, MAX_SCALES);
    qr_vec acc[QR_CPU_NF4_GROUP_ROWS][DECODE_X];
    for (int r = 0; r < QR_CPU_NF4_GROUP_ROWS; r++) {
        QR_UNROLL for (int i = 0; i < n_x; i++) { acc[r][i] = qr_vec_zero(); }
    }
    if (round_to == QR_DTYPE_BF16 && scales_are_ordinary(scales, QR_CPU_NF4_GROUP_ROWS, n_k / scale_cols, MAX_SCALES)) {
        decode_runs(acc, p, product, row, k0, n_k, scales, n_x, is_mxfp4, round_to, true);
    } else {
        decode_runs(acc, p, product, row, k0, n_k, scales, n_x, is_mxfp4, round_to, false);
    }
    for (int i = 0; i < n_x; i++) {
        for (int r = 0; r < QR_CPU_NF4_GROUP_ROWS; r += QR_TILE_ROWS) {
            const qr_vec four[QR_TILE_ROWS] = {acc[r][i], acc[r + 1][i], acc[r + 2][i], acc[r + 3][i]};
            qr_vec_reduce(four, product->sums + i * product->sum_stride + (row - p->row) + r, k0 == 0);
        }
    }
}

QR_INLINE void decode_rows(const qr_cpu_panel *p, const qr_cpu_product *product, const int n_x, const bool is_mxfp4,
                           const qr_dtype round_to) {
    for (int64_t row = 0; row < p->n_rows; row += QR_CPU_NF4_GROUP_ROWS) {
        for (int64_t k = 0; k < p->weight->desc.cols; k += K_BLOCK) {
            decode_block(p, product, p->row + row, k, n_x, is_mxfp4, round_to);
        }
    }
}

QR_INLINE bool decode_codes(const qr_cpu_panel *p, const qr_cpu_product *product, const qr_dtype round_to) {
    if (p->layout->kind != QR_CPU_NF4_GROUPS) { return false; }
    const bool is_mxfp4 = p->weight->desc.format == QR_WEIGHT_MXFP4;
#define CASE(n)                                          \
    case n:                                              \
        if (is_mxfp4) {                                  \
            decode_rows(p, product, n, true, round_to);  \
        } else {                                         \
            decode_rows(p, product, n, false, round_to); \
        }                                                \
        return true;
    switch (product->n_x) {
        CASE(1)
        CASE(2)
#if QR_TILE_MAX_COLS >= 6
        CASE(3)
        CASE(4)
#endif
        default: return false;
    }
#undef CASE
}

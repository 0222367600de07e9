/* Dequantised panels of weights, included after vec_tile.h by kernel files, which define before:
 *     tile_element                                        the type of a panel's elements
 *     fetch_values(dst, values, codes, shift)             QR_VEC_CODES of them, as qr_vec_store_values
 *     fetch_store(dst, v)                                 QR_VEC of them
 *     fetch_flat_row(panel, row, round_to, dst)           a row of NF4_FLAT
 * `round_to`, the type to whose values the weights are rounded (F32: not rounded), is a constant after inlining, and so
 * is `ordinary`, which says that all values are so (qr_vec_round_ordinary). */
#include "kernels/cpu/linear/linear_scales.h"

/* Codes of columns [32 · part + w, + QR_VEC_CODES) of a run, at bits run_shift(part), in the arrangement of the
 * instruction set (cpu.h). Parts 0 and 1 have the same words, and so have 2 and 3. */
#ifdef QR_CPU_CODES_IN_BLOCKS
QR_INLINE qr_vec_codes run_codes(const uint8_t *run, bool half, int part, int w) {
    (void)half;
    uint8_t in_order[QR_VEC_CODES];
    for (int i = 0; i < QR_VEC_CODES; i += 8) {
        const int column = w + i;
        memcpy(in_order + i, run + part / 2 * 32 + ((column & 8) << 1 | (column & 16) >> 1), 8);
    }
    return qr_vec_codes_8(in_order);
}
QR_INLINE int run_shift(int part) { return 4 * (part % 2); }
#else
QR_INLINE qr_vec_codes run_codes(const uint8_t *run, bool half, int part, int w) {
    (void)part;
    return half ? qr_vec_codes_8(run + w) : qr_vec_codes_16(run + 2 * w);
}
QR_INLINE int run_shift(int part) { return 4 * part; }
#endif

/* 128 columns of one row of a group (64 when half), from 64 (32) bytes of codes and 2 (1) scales of NF4. */
QR_INLINE void fetch_nf4_run(const uint8_t *codes, const float *scales, bool half, qr_dtype round_to,
                             const bool ordinary, tile_element *dst) {
    const qr_vec_values t0 = qr_vec_values_make(qr_nf4_code, scales[0], round_to, ordinary);
    if (half) {
        for (int w = 0; w < 32; w += QR_VEC_CODES) {
            const qr_vec_codes lane = run_codes(codes, true, 0, w);
            fetch_values(dst + w, &t0, lane, 0);
            fetch_values(dst + 32 + w, &t0, lane, 4);
        }
        return;
    }
    const qr_vec_values t1 = qr_vec_values_make(qr_nf4_code, scales[1], round_to, ordinary);
    for (int w = 0; w < 32; w += QR_VEC_CODES) {
        const qr_vec_codes first = run_codes(codes, false, 0, w), second = run_codes(codes, false, 2, w);
        fetch_values(dst + w, &t0, first, run_shift(0));
        fetch_values(dst + 32 + w, &t0, first, run_shift(1));
        fetch_values(dst + 64 + w, &t1, second, run_shift(2));
        fetch_values(dst + 96 + w, &t1, second, run_shift(3));
    }
}

/* The same of MXFP4, whose 4 (2) scales are for 32 columns each. */
QR_INLINE void fetch_mxfp4_run(const uint8_t *codes, const float *scales, bool half, qr_dtype round_to,
                               const bool ordinary, tile_element *dst) {
    for (int j = 0; j < (half ? 2 : 4); j++) {
        const qr_vec_values values = qr_vec_values_make(qr_float4_values, scales[j], round_to, ordinary);
        for (int w = 0; w < 32; w += QR_VEC_CODES) {
            fetch_values(dst + 32 * j + w, &values, run_codes(codes, half, j, w), run_shift(j));
        }
    }
}

/* Rows of one group with their scales, in the order in which their codes lie. */
QR_INLINE void fetch_runs(const qr_cpu_panel *p, int64_t row, int64_t n_rows, const float *scales, const bool is_mxfp4,
                          qr_dtype round_to, const bool ordinary, tile_element *dst) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4), most = SCALES_MAX_K / scale_cols;
    int64_t next_row, next_k;
    qr_cpu_position_ahead(p, row, n_rows, &next_row, &next_k);
    const uint8_t *next = qr_cpu_nf4_run(p->weight, p->layout, next_row, next_k);
    for (int64_t k = 0; k < p->n_k; k += 128) {
        const bool half = p->n_k - k < 128;
        const uint8_t *codes = qr_cpu_nf4_run(p->weight, p->layout, row, p->k + k);
        for (int64_t r = 0; r < n_rows; r++) {
            __builtin_prefetch(next + k / 2 * QR_CPU_NF4_GROUP_ROWS + r * 64);
            const uint8_t *run = codes + r * (half ? 32 : 64);
            const float *of_run = scales + r * most + k / scale_cols;
            tile_element *values = dst + r * p->dst_stride + k;
            if (is_mxfp4) {
                fetch_mxfp4_run(run, of_run, half, round_to, ordinary, values);
            } else {
                fetch_nf4_run(run, of_run, half, round_to, ordinary, values);
            }
        }
    }
}

/* Up to 16 rows of one group. n_k is a multiple of 64. is_mxfp4 is a constant after inlining. */
QR_INLINE void fetch_group(const qr_cpu_panel *p, int64_t row, int64_t n_rows, const bool is_mxfp4, qr_dtype round_to,
                           tile_element *dst) {
    const int scale_cols = qr_cpu_scale_cols_of(is_mxfp4);
    float scales[QR_CPU_NF4_GROUP_ROWS * (SCALES_MAX_K / QR_CPU_MXFP4_SCALE_COLS)];
    const int64_t most = SCALES_MAX_K / scale_cols;
    fetch_scales(p, row, n_rows, p->k, p->n_k, scale_cols, scales, most);
    if (round_to == QR_DTYPE_BF16 && scales_are_ordinary(scales, n_rows, p->n_k / scale_cols, most)) {
        fetch_runs(p, row, n_rows, scales, is_mxfp4, round_to, true, dst);
    } else {
        fetch_runs(p, row, n_rows, scales, is_mxfp4, round_to, false, dst);
    }
}

static inline qr_vec load_elements(qr_weight_format format, const unsigned char *src) {
    switch (format) {
        case QR_WEIGHT_F32: return qr_vec_load((const float *)(const void *)src);
        case QR_WEIGHT_F16: return qr_vec_load_f16_n((const uint16_t *)(const void *)src, QR_VEC);
        case QR_WEIGHT_BF16: return qr_vec_load_bf16_n((const uint16_t *)(const void *)src, QR_VEC);
        default: return qr_vec_load_i8_n((const int8_t *)src, QR_VEC);
    }
}

/* Rows of the ROWS layout are followed by zeros up to 64 bytes, so that whole vectors may be read. */
QR_INLINE void fetch_element_row(const qr_cpu_panel *p, int64_t row, qr_dtype round_to, tile_element *dst) {
    enum { ROWS_AHEAD = 4 };
    const qr_weight_format format = p->weight->desc.format;
    const qr_weight_format other_half = round_to == QR_DTYPE_BF16 ? QR_WEIGHT_F16 : QR_WEIGHT_BF16;
    const bool rounds =
        round_to != QR_DTYPE_F32 && (format == QR_WEIGHT_F32 || format == other_half); /* others are exact */
    const int64_t bytes = format == QR_WEIGHT_F32 ? 4 : format == QR_WEIGHT_INT8 ? 1 : 2;
    int64_t next_row, next_k;
    qr_cpu_position_ahead(p, row, ROWS_AHEAD, &next_row, &next_k);
    const unsigned char *src = (const unsigned char *)qr_cpu_row(p->weight, p->layout, row) + p->k * bytes;
    const unsigned char *next = (const unsigned char *)qr_cpu_row(p->weight, p->layout, next_row) + next_k * bytes;
    for (int64_t j = 0; j < p->n_k; j += QR_VEC) {
        __builtin_prefetch(next + j * bytes);
        const qr_vec value = load_elements(format, src + j * bytes);
        fetch_store(dst + j, rounds ? qr_vec_round_to(value, round_to) : value);
    }
}

QR_INLINE void fetch_panel(const qr_cpu_panel *p, qr_dtype round_to) {
    const bool groups = p->layout->kind == QR_CPU_NF4_GROUPS, is_mxfp4 = p->weight->desc.format == QR_WEIGHT_MXFP4;
    for (int64_t r = 0, n = 1; r < p->n_rows; r += n) {
        const int64_t row = p->row + r;
        tile_element *dst = (tile_element *)p->dst + r * p->dst_stride;
        if (groups) { n = qr_min(p->n_rows - r, QR_CPU_NF4_GROUP_ROWS - row % QR_CPU_NF4_GROUP_ROWS); }
        switch (p->layout->kind) {
            case QR_CPU_ROWS: fetch_element_row(p, row, round_to, dst); break;
            case QR_CPU_NF4_GROUPS:
                if (is_mxfp4) {
                    fetch_group(p, row, n, true, round_to, dst);
                } else {
                    fetch_group(p, row, n, false, round_to, dst);
                }
                break;
            case QR_CPU_NF4_FLAT: fetch_flat_row(p, row, round_to, dst); break;
        }
        for (int64_t j = p->n_k; j < p->n_k_padded; j++) { dst[j] = 0; }
    }
}

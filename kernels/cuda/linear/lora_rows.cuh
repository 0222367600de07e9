/* What lora and lora_backward are made of where they must be exact in F32: products with one side as short as an
 * adapter's rank. They are bound by memory, or by multiply-adds where a thread holds enough of the result. Tensor cores
 * do not help: each F32 would need three operands of 16 bits.
 *
 * Intermediate rows (t, h, dh) have a length of whole tiles of LORA_RANKS, with zeros after the rank. */
#ifndef QR_KERNELS_CUDA_LORA_ROWS_CUH
#define QR_KERNELS_CUDA_LORA_ROWS_CUH

#include "kernels/cuda/device/vec4.cuh"

enum {
    LORA_RANKS = 16, /* in one tile */
    LORA_DOT_ROWS = 4,
    LORA_UP_ROWS = 16,
};

static inline int64_t lora_row_length(int64_t rank) { return qr_round_up(rank, LORA_RANKS); }

/* Elements [j, j + 4) of a row of any act type that begins at element `at`; zeros from n on. */
QR_DEVICE void load_vec4_act(float x[VEC4], const void *src, qr_dtype dtype, int64_t at, int64_t j, int64_t n,
                             bool aligned) {
    if (dtype == QR_DTYPE_F32) {
        load_vec4(x, static_cast<const float *>(src) + at, j, n, aligned);
        return;
    }
    const uint16_t *row = static_cast<const uint16_t *>(src) + at;
    uint2 four = make_uint2(0, 0);
    if (aligned && j + VEC4 <= n) {
        four = *reinterpret_cast<const uint2 *>(row + j);
    } else {
        const uint16_t zero = 0;
        four.x = pack16(j < n ? row[j] : zero, j + 1 < n ? row[j + 1] : zero);
        four.y = pack16(j + 2 < n ? row[j + 2] : zero, j + 3 < n ? row[j + 3] : zero);
    }
    const uint16_t bits[VEC4] = {static_cast<uint16_t>(four.x), static_cast<uint16_t>(four.x >> 16),
                                 static_cast<uint16_t>(four.y), static_cast<uint16_t>(four.y >> 16)};
#pragma unroll
    for (int k = 0; k < VEC4; k++) { x[k] = dtype == QR_DTYPE_BF16 ? bf16_to_f32(bits[k]) : f16_to_f32(bits[k]); }
}

/* x [n_rows, k] with rows of any act type, and a factor [n, k] in F32. */
struct lora_dots {
    const void *x;
    qr_dtype x_dtype;
    int64_t x_stride, k;
    const float *factor;
    int64_t n; /* rows of the factor */
    bool x_aligned, factor_aligned;
};

/* By a warp: sums[i][r] = sum over k of x[row + i, k] · factor[first + r, k], in every lane. A lane takes four columns
 * of each 128, in order, then a butterfly: a sum's order follows from k alone. 64 sums a lane want 16 + 4 loads of 16
 * bytes for 256 multiply-adds. */
template <int n_ranks>
static QR_DEVICE void lora_dots_of(const lora_dots &d, int64_t row, int n_rows, int64_t first,
                                   float sums[LORA_DOT_ROWS][n_ranks]) {
#pragma unroll
    for (int i = 0; i < LORA_DOT_ROWS * n_ranks; i++) { sums[i / n_ranks][i % n_ranks] = 0.0F; }
    for (int64_t base = 0; base < d.k; base += VEC4 * WARP_LANES) {
        const int64_t c = base + VEC4 * lane_index();
        float x[LORA_DOT_ROWS][VEC4] = {};
#pragma unroll
        for (int i = 0; i < LORA_DOT_ROWS; i++) {
            if (i < n_rows) { load_vec4_act(x[i], d.x, d.x_dtype, (row + i) * d.x_stride, c, d.k, d.x_aligned); }
        }
#pragma unroll
        for (int r = 0; r < n_ranks; r++) {
            if (first + r >= d.n) { break; }
            float f[VEC4];
            load_vec4(f, d.factor + (first + r) * d.k, c, d.k, d.factor_aligned);
#pragma unroll
            for (int i = 0; i < LORA_DOT_ROWS; i++) {
#pragma unroll
                for (int j = 0; j < VEC4; j++) { sums[i][r] = fmaf(f[j], x[i][j], sums[i][r]); }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LORA_DOT_ROWS * n_ranks; i++) {
        float &sum = sums[i / n_ranks][i % n_ranks];
        sum = warp_sum(sum);
    }
}

/* Writes alpha · sums to rows [row, row + n_rows) of dst, zeros after the factor's rows. All lanes hold the sums. */
template <int n_ranks>
static QR_DEVICE void lora_put_dots(const float sums[LORA_DOT_ROWS][n_ranks], float alpha, int64_t n, int64_t row,
                                    int n_rows, int64_t first, float *dst, int64_t dst_stride) {
#pragma unroll
    for (int i = 0; i < LORA_DOT_ROWS * n_ranks; i++) {
        if (i / n_ranks >= n_rows || lane_index() != static_cast<unsigned>(i) % WARP_LANES) { continue; }
        const int64_t r = first + i % n_ranks;
        dst[(row + i / n_ranks) * dst_stride + r] = r < n ? alpha * sums[i / n_ranks][i % n_ranks] : 0.0F;
    }
}

/* By a thread: sums[i] = sum over r of t[i, r] · factor(r, col), r in order. The factor lies as [columns, rank] or, of
 * `across`, as [rank, n_cols]. t is read by all threads of a block alike. */
template <bool across>
static QR_DEVICE void lora_up_of(const float *t, int64_t t_stride, int n_rows, const float *factor, int64_t rank,
                                 int64_t n_cols, int64_t col, bool aligned, float sums[LORA_UP_ROWS]) {
#pragma unroll
    for (int i = 0; i < LORA_UP_ROWS; i++) { sums[i] = 0.0F; }
    for (int64_t first = 0; first < rank; first += LORA_RANKS) {
        float f[LORA_RANKS];
#pragma unroll
        for (int r = 0; r < LORA_RANKS; r += VEC4) {
            if (!across) { load_vec4(&f[r], factor + col * rank, first + r, rank, aligned); }
        }
#pragma unroll
        for (int r = 0; r < LORA_RANKS; r++) {
            if (across) { f[r] = first + r < rank ? factor[(first + r) * n_cols + col] : 0.0F; }
        }
#pragma unroll
        for (int i = 0; i < LORA_UP_ROWS; i++) {
            if (i >= n_rows) { break; }
#pragma unroll
            for (int r = 0; r < LORA_RANKS; r += VEC4) {
                float v[VEC4];
                load_vec4(v, t + i * t_stride + first + r);
#pragma unroll
                for (int k = 0; k < VEC4; k++) { sums[i] = fmaf(f[r + k], v[k], sums[i]); }
            }
        }
    }
}

#endif

/* How linear is cut up, and what an instruction set supplies.
 *
 * y = x · Wᵀ in tasks of up to 64 weight rows by up to 256 rows of x. Within a task, K is walked in blocks of
 * a fixed size: `fetch` writes the task's weights of that block, row-major, to a dequantised panel in per-thread
 * scratch that stays in L2. Weights that are already stored as the kernel wants them are used without a copy.
 * `multiply` adds the block's products to the task's sums. A kernel that works from the codes (`decode`) replaces both
 * when x has few rows.
 *
 * Why the bits do not depend on the number of rows: lanes run along k. For one weight row and one row of x, one vector
 * accumulator takes `step` consecutive k at a time; at the end of each K block its lanes are added in a fixed tree to
 * the sum. The tile that the pair was computed in, the chunk and the thread make no difference. (AMX: see
 * linear_amx_body.h.) */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_H

#include "kernels/cpu/cpu.h"

enum {
    QR_CPU_PANEL_ROWS = 64,   /* weight rows of a task; a multiple of the NF4 group */
    QR_CPU_CHUNK_ROWS = 256,  /* rows of x of a task: dequantising then takes 2 % of the time of its products */
    QR_CPU_DECODE_ROWS = 4,   /* of x, at most, for kernels that work from the codes */
    QR_CPU_FEW_ROWS = 64,     /* of x: a task then dequantises its weights in pieces that stay in L1 */
    QR_CPU_VECTOR_BYTES = 64, /* the widest vector: operands are padded to it with zeros */
    QR_CPU_TILE_COLS = 16,    /* rows of x in a tile */
    QR_CPU_EXERCISE_ROUNDS = 100000,
};

/* Rows [row, row + n_rows) and columns [k, k + n_k) of a matrix, to be written to dst as [n_rows, dst_stride] elements,
 * zeros from n_k up to n_k_padded. n_k is a multiple of 128 unless the matrix ends there. */
typedef struct qr_cpu_panel {
    const qr_weight *weight;
    const qr_cpu_layout *layout;
    int64_t row, n_rows, k, n_k, n_k_padded;
    int64_t k_block; /* in which the matrix is walked; 0: it is walked down its rows */
    void *dst;
    int64_t dst_stride;
} qr_cpu_panel;

/* The operands of one K block. sums[i * sum_stride + o] for row i of x and weight row o of the panel, or, when the
 * kernel takes x in tiles, sums[o * sum_stride + i]. `first` starts the sums from zero. The sums of up to 3 weight rows
 * past the end (with tiles, of up to 15 rows of both) may be overwritten. */
typedef struct qr_cpu_product {
    const void *w; /* [n_w, n_k], w_stride elements apart */
    const void *x; /* [n_x, n_k], x_stride elements apart; or tiles of 16 rows, 16 · x_stride elements apart */
    int64_t w_stride, x_stride, n_w, n_x, n_k;
    int64_t tile_cols; /* rows of x in a tile: 16, or all of them when there are fewer */
    float *sums;
    int64_t sum_stride;
    bool first;
} qr_cpu_product;

struct qr_cpu_gemm_kernel; /* kernels/cpu/linear/gemm_backward.h */

typedef struct qr_cpu_matmul {
    size_t element_bytes; /* of the operands: 2 (BF16) or 4 (F32) */
    int64_t k_block;      /* a multiple of 128 */
    int64_t piece_rows;   /* weight rows of a tile: divides the NF4 group */
    qr_dtype x_dtype;     /* of x; the weights are rounded to its values (and both held in element_bytes) */
    void (*fetch)(const qr_cpu_panel *panel);
    void (*multiply)(const qr_cpu_product *product);
    /* Whole K at once from the codes, for x of up to QR_CPU_DECODE_ROWS rows; product->w, w_stride and first are not
     * used. False: there is none for this format. NULL: for no format. */
    bool (*decode)(const qr_cpu_panel *panel, const qr_cpu_product *product);
    /* AMX: how rows of x are packed before multiply and its sums turned after it (tile_layout.h). NULL: multiply takes
     * rows and gives sums by rows. */
    void (*tile_pack)(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                      int64_t n_k_padded, uint16_t *dst);
    void (*tile_turn)(const float *sums, int64_t sum_stride, int64_t n_w, int64_t n_x, float *dst, int64_t dst_stride);
    /* The product of the backward pass, on the same elements. */
    const struct qr_cpu_gemm_kernel *gemm_backward;
    /* F32 only: sums[o] = Σ over r of factors[r] · rows[r, o], r ascending; rows [n, QR_CPU_PANEL_ROWS]. */
    void (*combine)(const float *rows, const float *factors, int64_t n, float *sums);
    /* Accumulates on registers alone, exercise_flops operations a round: what the peak is measured with. NULL:
     * emulated. */
    void (*exercise)(int64_t n_rounds);
    double exercise_flops;
} qr_cpu_matmul;

extern const qr_cpu_matmul qr_cpu_matmul_bf16_c, qr_cpu_matmul_f16_c, qr_cpu_matmul_f32_c;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_avx2, qr_cpu_matmul_f16_avx2, qr_cpu_matmul_f32_avx2;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_avx512, qr_cpu_matmul_f16_avx512, qr_cpu_matmul_f32_avx512;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_avx512_bf16;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_amx, qr_cpu_matmul_bf16_amx_emulated;

/* The position in the matrix that is fetched n_ahead rows after `row` of this K block: rows of the panel first, then
 * its K blocks, then the next panel (k_block 0: the next panel at once). `fetch` prefetches it: the CPU's own
 * prefetcher does not follow this order, and without the hint three quarters of the time were spent waiting for codes.
 */
void qr_cpu_position_ahead(const qr_cpu_panel *panel, int64_t row, int64_t n_ahead, int64_t *ahead_row,
                           int64_t *ahead_k);

/* dst[j] = absmax of the block that columns [k + 64j, k + 64j + 64) of a row lie in (NF4_GROUPS; F32, two roundings for
 * NF4_DQ). A row past the end gives zeros. */
void qr_cpu_nf4_scales(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t k, int64_t n,
                       float *dst);

/* The kernel of linear with x of a type. */
const qr_cpu_matmul *qr_cpu_matmul_of(const qr_backend *backend, qr_dtype x_dtype);

/* Columns [k, k + n_k) of rows [row, row + n_rows) of LoRA's A [rank, in], padded with zeros to n_k_padded. */
void qr_cpu_lora_fetch(const float *a, int64_t in, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                       int64_t n_k_padded, float *dst, int64_t dst_stride);

/* One row of a panel of NF4_FLAT weights: dst in F32, rounded to the values of a type first, or in BF16. */
void qr_cpu_nf4_flat_row_f32(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, float *dst);
void qr_cpu_nf4_flat_row_bf16(const qr_cpu_panel *panel, int64_t row, uint16_t *dst);

#endif

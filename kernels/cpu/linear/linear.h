/* How linear is cut up, and what an instruction set supplies.
 *
 * y = x · Wᵀ in tasks of up to 64 weight rows by up to 256 rows of x, or more in strips. Within a task, K is walked in
 * blocks of a fixed size: `fetch` writes the task's weights of that block, row-major, to a dequantised panel in
 * per-thread scratch that stays in L2. Weights that are already stored as the kernel wants them are used without a
 * copy. `multiply` adds the block's products to the task's sums. A kernel that works from the codes (`decode`) replaces
 * both when x has few rows.
 *
 * Why the bits do not depend on the number of rows: lanes run along k. For one weight row and one row of x, one vector
 * accumulator takes `step` consecutive k at a time; at the end of each K block its lanes are added in a fixed tree to
 * the sum. The tile that the pair was computed in, the chunk and the thread make no difference. With x in strips
 * (qr_cpu_strips) these lanes are walked one after the other, and added in the same tree. Matrix tiles have a way
 * of their own (linear_tiles.h), and linear_tile_order.h their order of sums without them. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/row_groups.h"

enum {
    QR_CPU_PANEL_ROWS = 64,   /* weight rows of a task; a multiple of the NF4 group */
    QR_CPU_CHUNK_ROWS = 256,  /* rows of x of a task: dequantising then takes 2 % of the time of its products */
    QR_CPU_DECODE_ROWS = 4,   /* of x, at most, that never pass through a panel: they may be read in place */
    QR_CPU_FEW_ROWS = 64,     /* of x: a task then dequantises its weights in pieces that stay in L1, but for strips */
    QR_CPU_VECTOR_BYTES = 64, /* the widest vector: operands are padded to it with zeros */
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

/* Lines of 64 bytes that what follows a product will read, and the product asks for beside its own work: n_lines of
 * each of n_rows rows, `line` of the first one being the next, some at a time. */
typedef struct qr_cpu_ahead {
    const unsigned char *row;
    size_t stride; /* bytes from row to row */
    int64_t n_rows, n_lines, line, at_once;
} qr_cpu_ahead;

/* Spreads what is left over n_turns calls of qr_cpu_ask. */
static inline void qr_cpu_ask_in(qr_cpu_ahead *ahead, int64_t n_turns) {
    ahead->at_once = (ahead->n_rows * ahead->n_lines + n_turns - 1) / n_turns;
}

/* Asks for the next lines, into L2. */
static inline void qr_cpu_ask(qr_cpu_ahead *ahead) {
    qr_cpu_ahead left = *ahead;
    for (int64_t i = 0; i < left.at_once && left.n_rows > 0; i++) {
        __builtin_prefetch(left.row + 64 * left.line, 0, 2);
        if (++left.line == left.n_lines) {
            left.line = 0;
            left.row += left.stride;
            left.n_rows--;
        }
    }
    *ahead = left;
}

/* The stored codes or elements of rows [row, row + n_rows), columns [k, k + n_k), k % 128 == 0; not the scales. */
qr_cpu_ahead qr_cpu_weight_ahead(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t n_rows,
                                 int64_t k, int64_t n_k);

/* The operands of one K block. sums[i * sum_stride + o] for row i of x and weight row o of the panel. `first` starts
 * the sums from zero. The sums of weight rows past the end, up to a whole tile, may be overwritten. */
typedef struct qr_cpu_product {
    const void *w; /* [n_w, n_k], w_stride elements apart, as fetch writes them */
    const void *x; /* [n_x, n_k], x_stride elements apart; in strips: those of the strip that the first row is in */
    int64_t w_stride, x_stride, n_w, n_x, n_k;
    int64_t x_k_stride; /* elements from a K block of x to the next one, for `decode` */
    int64_t x_skip;     /* rows of that strip before the first */
    bool x_in_strips;   /* packed by qr_cpu_strips.pack */
    float *sums;
    int64_t sum_stride;
    bool first;
    qr_weight_format format; /* of the weights, before fetch */
    bool w_in_place; /* w are the stored weights, not a panel that has just been written: what follows is prefetched */
    qr_cpu_ahead *ahead; /* in strips: the weights that are fetched next; NULL: nothing */
} qr_cpu_product;

struct qr_cpu_gemm_kernel;  /* kernels/cpu/linear/gemm_backward.h */
struct qr_cpu_tiles_kernel; /* kernels/cpu/linear/linear_tiles.h */

/* How a kernel of BF16 multiplies many rows of x: packed in strips, the last filled with zeros, and with lanes along
 * the weight rows. Columns are padded with zeros to k_step. The bits are those of rows as they are. */
typedef struct qr_cpu_strips {
    int64_t rows;       /* of a strip */
    int64_t above_rows; /* of x, for each matrix: as many, or fewer, are not packed in strips */
    int64_t chunk_rows; /* of a task, a multiple of rows: in place of QR_CPU_CHUNK_ROWS */
    /* dst: K blocks one after the other, each [n_k · rows]. A row that is not there is NULL. */
    void (*pack)(const uint16_t *const *rows, int64_t n, void *dst);
    void (*fetch)(const qr_cpu_panel *panel);
    void (*multiply)(const qr_cpu_product *product);
} qr_cpu_strips;

/* sums[i, o] = Σ over r of factors[i, r] · rows[r, o], r ascending, after what is there with `accumulate`. */
typedef struct qr_cpu_combined {
    const float *rows; /* [n_rows, QR_CPU_PANEL_ROWS], row_stride apart */
    int64_t row_stride, n_rows;
    const float *factors; /* [n_sums, n_rows], factor_stride apart */
    int64_t factor_stride, n_sums;
    float *sums; /* [n_sums, QR_CPU_PANEL_ROWS] */
    bool accumulate;
} qr_cpu_combined;

typedef struct qr_cpu_matmul {
    size_t element_bytes; /* of the operands: 2 (BF16) or 4 (F32) */
    int64_t k_block;      /* a multiple of 128 */
    int64_t k_step;       /* the operands of `multiply` are padded with zeros to a multiple of it */
    int64_t piece_rows;   /* weight rows of a tile: divides the NF4 group */
    qr_dtype x_dtype; /* of x; weights are rounded to its values, and both held in element_bytes, but for integers */
    const qr_cpu_strips *strips; /* NULL: x is never packed in strips */
    /* Elements that a K block of a row of x takes; those of all rows lie together, and then the next ones. 0: the K
     * blocks of a row lie together. */
    int64_t x_block;
    /* A row of x as operands, K blocks k_stride elements apart, padded with zeros to k_step. NULL: rows of elements, in
     * place where they can be. */
    void (*pack_row)(const uint16_t *x, int64_t n, int64_t k_stride, void *dst);
    void (*fetch)(const qr_cpu_panel *panel);
    void (*multiply)(const qr_cpu_product *product); /* NULL, as fetch: what is not in strips is decoded */
    /* Whole K at once from the codes, for x of up to QR_CPU_FEW_ROWS rows; product->w, w_stride and first are not used,
     * and panel->dst is scratch. False: there is none for this format and as many rows. NULL: there is none. x in
     * strips is never decoded. */
    bool (*decode)(const qr_cpu_panel *panel, const qr_cpu_product *product);
    /* All of linear by matrix tiles, in place of multiply and decode; NULL: there are none. */
    const struct qr_cpu_tiles_kernel *tiles;
    /* The product of the backward pass, on the same elements. */
    const struct qr_cpu_gemm_kernel *gemm_backward;
    void (*combine)(const qr_cpu_combined *combined); /* F32 only */
    /* Accumulates on registers alone, exercise_flops operations a round: what the peak is measured with. NULL:
     * emulated. */
    void (*exercise)(int64_t n_rounds);
    double exercise_flops;
} qr_cpu_matmul;

/* For every instruction set that sources are compiled for (vec.h). */
#define QR_X(isa) extern const qr_cpu_matmul qr_cpu_matmul_bf16_##isa, qr_cpu_matmul_f16_##isa, qr_cpu_matmul_f32_##isa;
QR_X(c)
QR_X(avx2)
QR_X(avx512)
QR_X(neon)
QR_X(wide_c)
QR_X(wide_avx2)
#undef QR_X
extern const qr_cpu_matmul qr_cpu_matmul_bf16_chains_avx2, qr_cpu_matmul_int16_avx2;
/* BF16 in the order of sums of tiles. */
extern const qr_cpu_matmul qr_cpu_matmul_tile_order_avx512, qr_cpu_matmul_tile_order_wide_c;
extern const qr_cpu_matmul qr_cpu_matmul_tile_order_wide_avx2;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_avx512_bf16, qr_cpu_matmul_bf16_neon_bf16;
extern const qr_cpu_matmul qr_cpu_matmul_bf16_amx, qr_cpu_matmul_bf16_amx_emulated;

/* The position in the matrix that is fetched n_ahead rows after `row` of this K block: rows of the panel first, then
 * its K blocks, then the next panel (k_block 0: the next panel at once). `fetch` prefetches it: the CPU's own
 * prefetcher does not follow this order, and without the hint three quarters of the time were spent waiting for codes.
 */
void qr_cpu_position_ahead(const qr_cpu_panel *panel, int64_t row, int64_t n_ahead, int64_t *ahead_row,
                           int64_t *ahead_k);

/* The columns of a run of NF4_GROUPS that have one scale: 64, also where an NF4 block is larger; 32 of MXFP4. */
enum { QR_CPU_NF4_SCALE_COLS = 64, QR_CPU_MXFP4_SCALE_COLS = QR_MXFP4_BLOCK };
static inline int qr_cpu_scale_cols_of(bool is_mxfp4) {
    return is_mxfp4 ? QR_CPU_MXFP4_SCALE_COLS : QR_CPU_NF4_SCALE_COLS;
}
static inline int qr_cpu_scale_cols(const qr_weight *weight) {
    return qr_cpu_scale_cols_of(weight->desc.format == QR_WEIGHT_MXFP4);
}

/* dst[j] = the scale of columns [k + j · scale_cols, k + (j + 1) · scale_cols) of a row (NF4_GROUPS; F32, two roundings
 * for NF4_DQ). A row past the end gives zeros. */
void qr_cpu_nf4_scales(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t k, int64_t n,
                       float *dst);

/* The kernel of linear for a matrix and x of a type, and of the backward pass with dy of a type. */
const qr_cpu_matmul *qr_cpu_matmul_of(const qr_backend *backend, const qr_weight_desc *desc, qr_dtype x_dtype);
const qr_cpu_matmul *qr_cpu_backward_matmul_of(const qr_backend *backend, qr_dtype dy_dtype);

/* Columns [k, k + n_k) of rows [row, row + n_rows) of LoRA's A [rank, in], padded with zeros to n_k_padded. */
void qr_cpu_lora_fetch(const float *a, int64_t in, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                       int64_t n_k_padded, float *dst, int64_t dst_stride);

/* One row of a panel of NF4_FLAT weights: dst in F32, rounded to the values of a type first, or in BF16. */
void qr_cpu_nf4_flat_row_f32(const qr_cpu_panel *panel, int64_t row, qr_dtype round_to, float *dst);
void qr_cpu_nf4_flat_row_bf16(const qr_cpu_panel *panel, int64_t row, uint16_t *dst);

#endif

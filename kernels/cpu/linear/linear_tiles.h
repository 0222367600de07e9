/* linear on matrix tiles (AMX), for x in BF16: how a call is cut, and what the kernel supplies.
 *
 * x is packed once a call into tiles of 16 rows. Tasks are up to 256 rows of x by a stretch of weight rows:
 *   decode   up to 32 rows of x: weights stream from memory, each is dequantised once and multiplied at once
 *   panels   more: weights are dequantised into panels of 32 rows by 512 columns, which stay in L1 for all rows of x
 *
 * Why the bits do not depend on the number of rows: a sum starts from zero and takes 32 columns at a time, ascending,
 * in an order inside them that is the instruction's (kernels/tile_sum.h). Between two of them it may be stored and
 * loaded again, which is exact; so neither the panel, nor the task, nor the rows beside it enter. */
#ifndef QR_KERNELS_CPU_LINEAR_LINEAR_TILES_H
#define QR_KERNELS_CPU_LINEAR_LINEAR_TILES_H

#include "kernels/cpu/linear/linear.h"

enum {
    QR_TILES_COLS = 16,                /* rows of x in a tile */
    QR_TILES_CHUNK = 256,              /* rows of x of a task of panels: a panel is dequantised once for them */
    QR_TILES_DECODE_ROWS = 32,         /* of x, at most, to decode */
    QR_TILES_DECODE_TASK_ROWS = 128,   /* weight rows of a task */
    QR_TILES_PANEL_TASK_ROWS = 512,    /* at most */
    QR_TILES_STREAMED_BYTES = 1 << 20, /* of y of panels, from which on it leaves past the caches */
};

/* Weight rows [row, row + n_rows) by rows [i, i + n_x) of x. */
typedef struct qr_cpu_tiles_task {
    const qr_linear_args *args;
    const qr_cpu_layout *layout; /* of the weight */
    /* Tiles from that of row i on, n_k_padded · 16 elements apart: [n_k_padded / 32][16 pairs of k][tile_cols][2].
     * Where there are more than 16 rows in a call, the number of its tiles is even. */
    const uint16_t *x;
    int64_t n_k_padded;
    int64_t tile_cols; /* 16, or all rows of the call when there are fewer */
    int64_t row, n_rows, i, n_x;
    bool stream_y; /* y leaves past the caches (tiles_store.h) */
    /* With LoRA in the same sums: tiles of B [groups of 16 weight rows][n_lora][16][32], and of t = scale · A x from
     * that of row i on [tiles of 16 rows of x][n_lora][16 pairs][16][2]. n_lora 0: without. */
    const uint16_t *lora_b, *lora_t;
    int64_t n_lora;
    void *scratch; /* one worker's, 64-byte aligned */
} qr_cpu_tiles_task;

typedef struct qr_cpu_tiles_kernel {
    /* n_rows (0 … 16) rows of x as one tile column of tile_cols; missing rows and k are zeros. */
    void (*pack)(const uint16_t *x, int64_t x_stride, int64_t n_rows, int64_t tile_cols, int64_t n_k,
                 int64_t n_k_padded, uint16_t *dst);
    size_t (*scratch_bytes)(int64_t n_rows); /* of a worker, for n_rows rows of x; a multiple of 64 */
    void (*decode)(const qr_cpu_tiles_task *task);
    void (*panels)(const qr_cpu_tiles_task *task);
    /* c [16][16] += a [16][32] · b [16 pairs][16][2]: the instruction alone, for its tests. */
    void (*dot)(float *c, const uint16_t *a, const uint16_t *b);
} qr_cpu_tiles_kernel;

extern const qr_cpu_tiles_kernel qr_cpu_tiles_amx, qr_cpu_tiles_amx_emulated;

size_t qr_cpu_tiles_workspace(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args);
/* Returns whether y has what LoRA adds: where its second product goes on in the sums of the first. */
bool qr_cpu_tiles_run(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args, void *workspace);

/* y [n_rows, rank] = factor · x Wᵀ for few rows of W in F32, each the sum of two BF16 values: W becomes 2 · rank rows
 * of BF16, whose two sums are added last. For LoRA by pairs. */
typedef struct qr_cpu_pairs_args {
    const float *w;  /* [rank, k], or [k, rank] */
    bool transposed; /* the latter */
    int64_t rank, k;
    const uint16_t *x; /* BF16, rows x_stride apart */
    int64_t n_rows, x_stride;
    float factor;
    float *y;
    int64_t y_stride;
} qr_cpu_pairs_args;

size_t qr_cpu_pairs_workspace(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_cpu_pairs_args *args);
void qr_cpu_pairs_run(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_cpu_pairs_args *args, void *workspace);

/* The adapter of a call of lora that is computed by pairs; NULL: it is not, or there is nothing to add. */
const struct qr_lora_factor *qr_cpu_lora_pairs_factor(const qr_backend *backend, const struct qr_lora_args *args);
/* Its first product, t = scale · A x. */
qr_cpu_pairs_args qr_cpu_lora_down(const qr_lora_args *args, const qr_lora_factor *factor, float *t);

#endif

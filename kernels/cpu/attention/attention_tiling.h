/* How an attention call is cut into tasks, and the scratch of each. The same for every instruction set.
 *
 * A tile is up to QR_ATTENTION_ROWS query rows (on matrix tiles, where making an operand of V costs more, twice those):
 * consecutive tokens of a sequence times the query heads that share a K/V head. So K and V are converted once for all
 * of them. Row r of a tile is token r / n_heads, head r % n_heads.
 *
 * Positions are cut at multiples of QR_ATTENTION_SPLIT. A row's result is by definition that of its splits, each made
 * of blocks of QR_ATTENTION_BLOCK positions in order, merged in order. A task runs all splits of a tile. Where there
 * are too few tiles to keep the threads busy, it runs one split, whose partial result another loop merges. The
 * arithmetic is the same, so neither the choice nor the number of threads changes the bits. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_TILING_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_TILING_H

#include "kernels/backend.h"

enum {
    QR_ATTENTION_ROWS = 48,
    QR_ATTENTION_TILES_ROWS = 96, /* on matrix tiles */
    QR_ATTENTION_BLOCK = 64,      /* positions: four pages */
    QR_ATTENTION_SPLIT = 512,     /* positions: eight blocks */
};

typedef struct qr_attention_tile {
    int32_t seq;
    int32_t first_row; /* of q */
    int32_t n_tokens;
    int32_t position; /* of the first token */
} qr_attention_tile;

/* What one worker has on matrix tiles (attention_blocks_tiles.h) in place of keys, values, weights and rescale. D is
 * head_dim rounded up to 32. */
typedef struct qr_attention_tiles_scratch {
    uint16_t *q;                    /* [ROWS / 16, D / 32, 2] tiles, high and low */
    uint16_t *keys;                 /* [BLOCK, D]; unused where K is read from its pages */
    uint16_t *values;               /* [D, BLOCK], or as many in pairs of positions */
    uint16_t *weights;              /* of a group of 16 rows: [BLOCK / 32, 2] tiles, high and low */
    uint16_t *zeros;                /* [D] */
    float *sums;                    /* of products, for two groups: [2, BLOCK, 16] */
    float *acc;                     /* [ROWS / 16, D, 16], or [8, D] for up to 8 rows */
    float *highest, *sum, *rescale; /* [ROWS]; highest in units of ln 2 */
} qr_attention_tiles_scratch;

/* Scratch of one worker. Columns of a row of `values`, `acc` and `total` beyond head_dim are not used. */
typedef struct qr_attention_scratch {
    float *keys;                              /* [round_up(head_dim, 64), BLOCK]: K transposed */
    float *values;                            /* [BLOCK, dim_padded] */
    float *k_scales, *v_scales;               /* [BLOCK]; INT8 only */
    float *weights;                           /* [ROWS, BLOCK]: scores, then e^(score − highest) */
    float *rescale;                           /* [ROWS]: e^(highest before − highest after this block) */
    float *highest, *sum, *acc;               /* of this split: [ROWS], [ROWS], [ROWS, dim_padded] */
    float *total_highest, *total_sum, *total; /* of the splits so far */
    qr_attention_tiles_scratch on_tiles;
} qr_attention_scratch;

typedef struct qr_attention_tiling {
    bool on_tiles;          /* matrix tiles */
    int32_t most_rows;      /* of a tile, ROWS above: QR_ATTENTION_ROWS or QR_ATTENTION_TILES_ROWS */
    int32_t group;          /* query heads per K/V head */
    int32_t heads_per_tile; /* ≤ group */
    int32_t n_head_tiles;   /* ceil(group / heads_per_tile) */
    int32_t tokens_per_tile;
    int64_t dim_padded;        /* head_dim rounded up to 16 */
    int64_t n_tiles, n_splits; /* n_splits > 1: one task a split */
    qr_attention_tile *tiles;
    float *partial;         /* [n_tiles, n_kv_heads · n_head_tiles, n_splits, partial_floats] */
    int64_t partial_floats; /* highest, sum, acc of one tile and split */
    float *scratch;         /* [n_threads, scratch_floats] */
    int64_t scratch_floats;
} qr_attention_tiling;

/* attention on matrix tiles: lse [n_tokens, n_heads] or NULL. */
typedef void (*qr_attention_on_tiles)(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                      void *workspace);
void qr_cpu_attention_amx(const qr_backend *backend, const qr_attention_args *args, float *lse, void *workspace);
void qr_cpu_attention_amx_emulated(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                   void *workspace);
/* That of the backend, for types that it takes: a dst of 16 bits, and K and V that BF16 holds exactly (ops.h says what
 * may be split then). NULL: vectors. Sizes of the call do not matter, so a token's bits do not depend on them. */
qr_attention_on_tiles qr_attention_on_tiles_of(const qr_backend *backend, const qr_attention_args *args);

/* Cuts the call into tiles inside `workspace` (qr_cpu_attention_workspace bytes). */
void qr_attention_tiling_make(const qr_backend *backend, const qr_attention_args *args, void *workspace,
                              qr_attention_tiling *tiling);
void qr_attention_scratch_of(const qr_attention_tiling *tiling, const qr_attention_args *args, int worker,
                             qr_attention_scratch *scratch);

#endif

/* Attention over packed sequences, forward and backward: K and V are written to pages of one layer, the pages
 * of a sequence next to each other, and the kernels of generation read them there. So a token attends in training with
 * the same arithmetic, and the same rounding of K and V, as in generation. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_PACKED_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_PACKED_H

#include "kernels/cpu/attention/attention_packed_cut.h"

typedef struct qr_packed_pages {
    qr_kv_layout layout;
    int64_t page_bytes;
    int64_t table_stride;
    unsigned char *pages;
    int32_t *block_table;           /* [n_seqs, table_stride] */
    int32_t *first_position;        /* [n_seqs]: zeros */
    int32_t *token_page, *position; /* [n_tokens] */
} qr_packed_pages;

/* A call runs in parts, of consecutive sequences each, whose pages are there at a time. A sequence fills whole pages,
 * so the pages of very many short ones would take several times what their tokens do. A sequence sees its own rows
 * alone, so parts do not change the bits. */
typedef struct qr_packed_part {
    qr_attention_packed_args args; /* of the part's rows; seq_start is `starts` */
    int64_t first_token;           /* of the call */
    int32_t next_seq;              /* the first of the next part; 0: none has been cut yet */
    int32_t page_tokens;           /* of the pages that sequences fill */
    int32_t *starts;               /* [n_seqs + 1] */
} qr_packed_part;

/* Takes the starts out of `memory`, and returns the bytes of that, a multiple of 64. */
size_t qr_packed_parts_begin(const qr_attention_packed_args *args, int32_t page_tokens, void *memory,
                             qr_packed_part *part);
/* False: there are no more. */
bool qr_packed_parts_next(const qr_attention_packed_args *args, qr_packed_part *part);
/* What the pages and tables of any part take at most: it follows from the sizes alone. */
size_t qr_packed_pages_bytes(const qr_attention_packed_args *args, qr_packed_pages *pages);

/* Cuts the pages of a part and their tables out of `memory`, 64-byte aligned, and fills the tables; returns the bytes
 * taken, a multiple of 64. */
size_t qr_packed_pages_make(const qr_attention_packed_args *part, void *memory, qr_packed_pages *pages);

/* The two ops of a packed call: writing its K and V, and attention over what was written. */
void qr_packed_kv_write(const qr_attention_packed_args *args, const qr_packed_pages *pages, qr_kv_write_args *write);
void qr_packed_attention(const qr_attention_packed_args *args, const qr_packed_pages *pages,
                         qr_attention_args *attention);

/* --- On matrix tiles ---
 *
 * Where there are any and the caller permits products of BF16, both ops run on them, from q, k and v as they are given.
 * K and V of QR_PACKED_TILES_TOKENS tokens are packed together. Sequences begin with new ones, so that parts are what
 * they are with pages. */
enum { QR_PACKED_TILES_TOKENS = 32 };

typedef struct qr_cpu_packed_tiles {
    /* Of a part with n_packed times 32 tokens. */
    size_t (*forward_bytes)(const qr_backend *backend, const qr_attention_packed_args *args, int64_t n_packed);
    void (*forward)(const qr_backend *backend, const qr_attention_packed_args *part, void *workspace);
    size_t (*backward_bytes)(const qr_backend *backend, const qr_attention_packed_args *forward);
    /* dq, dk and dv, of any number of sequences; delta [n_tokens, n_heads]. */
    void (*backward)(const qr_backend *backend, const qr_attention_packed_backward_args *args, const float *delta,
                     void *workspace);
} qr_cpu_packed_tiles;

extern const qr_cpu_packed_tiles qr_cpu_packed_tiles_amx, qr_cpu_packed_tiles_amx_emulated;
extern const qr_cpu_packed_tiles qr_cpu_packed_tiles_avx512_bf16;

/* NULL: the call runs on vectors. */
const qr_cpu_packed_tiles *qr_packed_tiles_of(const qr_backend *backend, const qr_attention_packed_args *args);
/* Of delta; a multiple of 64. */
size_t qr_packed_delta_bytes(const qr_attention_packed_args *args);

/* --- Backward ---
 *
 * From the sequence's first token on, keys are cut into blocks of QR_ATTENTION_BLOCK, and queries into tiles of up to
 * QR_ATTENTION_ROWS rows. A row is one of the query heads of a token that share a K/V head. A block meets every tile
 * that sees it. From the scores and the probabilities come a share of dq of the tile, and shares of dk and dv of the
 * block. dq of a row is the sum over blocks, in order; dk and dv of a key are the sum over tiles, in order.
 *
 * A task is a sequence and K/V head: all blocks by all tiles, with dq added up in the result. If these are too few to
 * keep the threads busy, a first loop has a task for each block and computes dk and dv. A second one has a task for
 * each tile and computes dq. The sums are the same; the scores are computed twice. */
typedef struct qr_packed_backward_scratch { /* of one worker */
    float *keys_by_dim, *values_by_dim;     /* [round_up(head_dim, 64), BLOCK]: K and V transposed */
    float *keys;                            /* [BLOCK, dim_padded] */
    float *q, *dout, *dq;                   /* [ROWS, dim_padded] */
    float *dk, *dv;                         /* [BLOCK, dim_padded] */
    float *p, *ds;                          /* [ROWS, BLOCK]: probabilities; gradients of q · k */
    float *p_by_key, *ds_by_key;            /* [BLOCK, BLOCK]: transposed, ROWS columns used */
    float *ones;                            /* [BLOCK] */
} qr_packed_backward_scratch;

typedef struct qr_packed_backward_tiling {
    qr_packed_pages pages;
    qr_packed_cut cut;
    int64_t dim_padded;
    float *delta;   /* [n_tokens, n_heads] */
    float *scratch; /* [n_threads, scratch_floats] */
    int64_t scratch_floats;
} qr_packed_backward_tiling;

/* As qr_packed_pages_make. */
size_t qr_packed_backward_tiling_make(const qr_backend *backend, const qr_attention_packed_backward_args *part,
                                      void *memory, qr_packed_backward_tiling *tiling);
void qr_packed_backward_scratch_of(const qr_packed_backward_tiling *tiling, int worker,
                                   qr_packed_backward_scratch *scratch);

#endif

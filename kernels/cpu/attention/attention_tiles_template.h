/* Packed attention by products of BF16, forward and backward, for operands that may be rounded to it (bf16_products of
 * ops_train.h). Included after the products, `multiply` of attention_product.h: attention_product_tiles.h on matrix
 * tiles, or emulated ones, so that CPUs without AMX test this code too; attention_product_avx512_bf16.h on vectors.
 *
 * A query tile of up to 64 rows meets blocks of 64 keys, in order. Every product takes k ascending, 32 elements at a
 * time, into sums in F32 that are stored between blocks; so a sequence's bits depend on itself alone. What a row does
 * not see has a weight of zero. Dimensions are filled with zeros to a multiple of 32.
 *
 * Operands. A (rows of 32 k) is rows as they lie. B (pairs of k by 16 columns) is held in tiles of 512 elements,
 *   by_dim  [16 rows of the matrix each][32 dimensions each]: k runs along dimensions;
 *   by_row  [32 rows each][16 dimensions each]: k runs along rows.
 *
 * On AMX a block of 64 by 64 and 64 dimensions takes 1,024 cycles of products forward, and its softmax several times
 * that: forward reaches 5 to 7 % of the tile peak, backward 9 to 10. */
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/attention/attention_packed.h"
#include "kernels/cpu/attention/attention_softmax.h"
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/simd/vec_units.h"

enum {
    ROWS = 64, /* of a query tile */
    BLOCK = QR_ATTENTION_BLOCK,
    BLOCK_TILES = BLOCK / TILE,
    BLOCKS = 4, /* of keys that a query tile meets backward, once it is packed */
};

_Static_assert(BLOCK % TILE_K == 0 && ROWS % TILE_K == 0, "products take whole tiles of k");

static int64_t padded_dim(const qr_attention_packed_args *args) { return qr_round_up(args->head_dim, TILE_K); }

/* --- Operands ---------------------------------------------------------------------------------------------------- */

/* Rows of F32 that become an operand; those that are NULL, and all from n on, are zeros. */
typedef struct source_rows {
    const float *row[ROWS];
    int n;
    int64_t dim;
} source_rows;

QR_INLINE qr_vec source_vector(const source_rows *src, int row, int64_t j) {
    if (row >= src->n || j >= src->dim) { return qr_vec_zero(); }
    return qr_vec_load_n(src->row[row] + j, src->dim - j);
}

/* 16 elements of one row, then 16 of another. */
QR_INLINE __m512i both_bf16(qr_vec first, qr_vec second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

/* The same as pairs. */
QR_INLINE __m512i pairs_bf16(qr_vec even, qr_vec odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, both_bf16(even, odd));
}

QR_INLINE qr_vec source_units(const source_rows *src, int row, int64_t j) {
    return _mm512_castsi512_ps(both_bf16(source_vector(src, row, j), source_vector(src, row, j + TILE)));
}

/* A: n_rows rows of padded_dim elements. */
static void pack_rows(const source_rows *src, int n_rows, int64_t dim_padded, uint16_t *dst) {
    for (int row = 0; row < n_rows; row++) {
        for (int64_t j = 0; j < dim_padded; j += TILE_K) {
            _mm512_store_si512(dst + row * dim_padded + j, _mm512_castps_si512(source_units(src, row, j)));
        }
    }
}

static void pack_by_dim(const source_rows *src, int n_rows, int64_t dim_padded, uint16_t *dst) {
    for (int row = 0; row < n_rows; row += TILE) {
        for (int64_t j = 0; j < dim_padded; j += TILE_K, dst += TILE_UINT16) {
            qr_vec units[QR_VEC];
            QR_UNROLL for (int i = 0; i < TILE; i++) { units[i] = source_units(src, row + i, j); }
            qr_vec_transpose(units);
            QR_UNROLL for (int i = 0; i < TILE; i++) { qr_vec_store((float *)(void *)(dst + i * TILE_K), units[i]); }
        }
    }
}

static void pack_by_row(const source_rows *src, int n_rows, int64_t dim_padded, uint16_t *dst) {
    for (int row = 0; row < n_rows; row += TILE_K) {
        for (int64_t j = 0; j < dim_padded; j += TILE, dst += TILE_UINT16) {
            for (int i = 0; i < TILE_K; i += 2) {
                const qr_vec even = source_vector(src, row + i, j), odd = source_vector(src, row + i + 1, j);
                _mm512_store_si512(dst + i * TILE, pairs_bf16(even, odd));
            }
        }
    }
}

/* Rows of k or v from token `first` of the sequence on. */
static void key_rows(const qr_attention_packed_args *args, const qr_packed_sequence *s, const float *kv, int32_t first,
                     int n, source_rows *src) {
    src->n = (int)qr_min(s->n_tokens - first, n);
    src->dim = args->head_dim;
    for (int i = 0; i < src->n; i++) {
        src->row[i] = kv + (s->first_token + first + i) * args->qkv_stride + s->kv_head * src->dim;
    }
}

/* Rows of a query tile: `stride` elements from token to token. */
static void query_rows(const qr_packed_sequence *s, const qr_packed_tile *tile, const float *x, int64_t stride,
                       int64_t dim, source_rows *src) {
    src->n = tile->n_rows;
    src->dim = dim;
    for (int row = 0; row < tile->n_rows; row++) {
        src->row[row] = x + qr_packed_token_of(s, tile, row) * stride + qr_packed_head_of(tile, row) * dim;
    }
}

/* rows · keysᵀ for columns [first, last) of a block: `by_dim` is of the whole block. */
static void multiply_by_keys(tiles_state *state, const uint16_t *rows, int64_t n_rows, const uint16_t *by_dim,
                             int64_t dim_padded, int first, int last, float *scores) {
    const int64_t of_tile = dim_padded / TILE_K * TILE_UINT16;
    const tiles_product product = {
        .a = rows,
        .b = by_dim + first / TILE * of_tile,
        .c = scores + first,
        .a_stride = dim_padded,
        .c_stride = BLOCK,
        .b_col = of_tile,
        .b_k = TILE_UINT16,
        .n_rows = n_rows,
        .n_cols = last - first,
        .n_k = dim_padded,
        .first = true,
    };
    multiply(state, &product);
}

/* sums [n_rows, dim] = or += weights [n_rows, 64] · what by_row holds, over k in [first, last). */
static void multiply_by_rows(tiles_state *state, const uint16_t *weights, int64_t n_rows, const uint16_t *by_row,
                             int64_t dim_padded, int first, int last, bool from_zero, float *sums) {
    const int64_t of_tiles = dim_padded / TILE * TILE_UINT16;
    const tiles_product product = {
        .a = weights + first,
        .b = by_row + first / TILE_K * of_tiles,
        .c = sums,
        .a_stride = BLOCK,
        .c_stride = dim_padded,
        .b_col = TILE_UINT16,
        .b_k = of_tiles,
        .n_rows = n_rows,
        .n_cols = dim_padded,
        .n_k = last - first,
        .first = from_zero,
    };
    multiply(state, &product);
}

static int floor_k(int column) { return column - column % TILE_K; }
static int ceil_k(int column) { return floor_k(column + TILE_K - 1); }

/* --- Forward -----------------------------------------------------------------------------------------------------
 *
 * K and V are packed once a call, in blocks of 32 tokens that begin with their sequence. */

typedef struct forward_call {
    const qr_attention_packed_args *args;
    qr_packed_cut cut;
    int64_t dim_padded, n_granules; /* of 32 tokens, of all sequences */
    int32_t *granule;               /* [n_seqs]: the first of each sequence */
    uint16_t *keys, *values;        /* [n_kv_heads, n_granules, 32 · dim_padded], by_dim and by_row */
    unsigned char *scratch;         /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
} forward_call;

/* One worker's. */
typedef struct forward_scratch {
    uint16_t *q, *weights; /* [ROWS, dim_padded], [ROWS, BLOCK] */
    float *scores, *acc;   /* [ROWS, BLOCK], [ROWS, dim_padded] */
    float *highest, *sum;  /* [ROWS] */
} forward_scratch;

/* Points the parts into `memory` (NULL: counts only) and returns the bytes, a multiple of 64. */
static size_t cut_forward_scratch(int64_t dim_padded, unsigned char *memory, forward_scratch *s) {
    size_t n = 0;
#define TAKE(field, n_elements) \
    (s->field = memory == NULL ? NULL : (void *)(memory + n), n += (size_t)(n_elements) * sizeof *s->field)
    TAKE(q, ROWS * dim_padded);
    TAKE(weights, ROWS * BLOCK);
    TAKE(scores, ROWS * BLOCK);
    TAKE(acc, ROWS * dim_padded);
    TAKE(highest, ROWS);
    TAKE(sum, ROWS);
    return n;
}

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~(size_t)63; }

/* Of n_tokens in n_seqs sequences: at most. */
static size_t forward_layout(const qr_attention_packed_args *args, int64_t n_granules, unsigned char *memory,
                             forward_call *call) {
    const size_t n_starts = align64((size_t)args->n_seqs * sizeof(int32_t));
    const size_t n_matrix = (size_t)(args->n_kv_heads * n_granules * TILE_K * padded_dim(args)) * sizeof(uint16_t);
    if (memory != NULL) {
        call->granule = (int32_t *)(void *)memory;
        call->keys = (uint16_t *)(void *)(memory + n_starts);
        call->values = (uint16_t *)(void *)(memory + n_starts + n_matrix);
        call->scratch = memory + n_starts + 2 * n_matrix;
    }
    return n_starts + 2 * n_matrix;
}

static size_t forward_bytes(const qr_backend *backend, const qr_attention_packed_args *args, int64_t n_granules) {
    forward_scratch scratch;
    return forward_layout(args, n_granules, NULL, NULL) +
           (size_t)qr_threads_count(backend->threads) * cut_forward_scratch(padded_dim(args), NULL, &scratch);
}

static void pack_granule(void *untyped, int64_t index, int worker) {
    (void)worker;
    const forward_call *call = untyped;
    const qr_attention_packed_args *args = call->args;
    const int64_t per_sequence = qr_ceil_div(args->max_seq_tokens, TILE_K);
    const qr_packed_sequence s = qr_packed_sequence_at(&call->cut, args, index / per_sequence);
    const int64_t in_sequence = index % per_sequence, first = in_sequence * TILE_K;
    if (first >= s.n_tokens) { return; }
    const int64_t granule = s.kv_head * call->n_granules + call->granule[s.index] + in_sequence;
    const int64_t at = granule * TILE_K * call->dim_padded;
    source_rows src;
    key_rows(args, &s, args->k, (int32_t)first, TILE_K, &src);
    pack_by_dim(&src, TILE_K, call->dim_padded, call->keys + at);
    key_rows(args, &s, args->v, (int32_t)first, TILE_K, &src);
    pack_by_row(&src, TILE_K, call->dim_padded, call->values + at);
}

/* Scores of one row and block become weights in BF16, and the row's maximum and sum are brought up to date. Columns of
 * [first, last) that it does not see get a weight of 0. Returns what its sums so far are multiplied with. `masks`,
 * where it does not see all of them, is a constant after inlining, and for most blocks so are first and last. */
QR_INLINE float weigh_columns_forward(const qr_attention_packed_args *args, const forward_scratch *s, int row,
                                      qr_packed_span seen, const int first, const int last, const bool masks) {
    const float *scores = s->scores + row * BLOCK;
    qr_vec score[BLOCK_TILES], highest = qr_vec_set1(-INFINITY), sum = qr_vec_zero();
    QR_UNROLL for (int c = first; c < last; c += QR_VEC) {
        qr_vec scaled = qr_vec_mul(qr_vec_load(scores + c), qr_vec_set1(args->scale));
        if (args->softcap > 0.0F) { scaled = qr_vec_softcap(scaled, args->softcap); }
        if (masks) { scaled = qr_vec_select_range(scaled, qr_vec_set1(-INFINITY), seen.begin - c, seen.end - c); }
        highest = qr_vec_max(scaled, highest);
        score[c / QR_VEC] = scaled;
    }
    const float before = s->highest[row], block_highest = qr_vec_highest(highest);
    const float now = block_highest > before ? block_highest : before;
    QR_UNROLL for (int c = first; c < last; c += TILE_K) {
        qr_vec weights[2];
        QR_UNROLL for (int i = 0; i < 2; i++) {
            const int at = c + i * QR_VEC;
            weights[i] = qr_vec_exp(qr_vec_sub(score[at / QR_VEC], qr_vec_set1(now)));
            if (masks) { weights[i] = qr_vec_select_range(weights[i], qr_vec_zero(), seen.begin - at, seen.end - at); }
            sum = qr_vec_add(sum, weights[i]);
        }
        _mm512_store_si512(s->weights + row * BLOCK + c, both_bf16(weights[0], weights[1]));
    }
    const float rescale = before == now ? 1.0F : qr_vec_get(qr_vec_exp(qr_vec_set1(before - now)));
    s->highest[row] = now;
    s->sum[row] = s->sum[row] * rescale + qr_vec_sum(sum);
    return rescale;
}

static float weigh_forward(const qr_attention_packed_args *args, const forward_scratch *s, int row, qr_packed_span seen,
                           int first, int last) {
    const bool sees_all = seen.begin == 0 && seen.end == BLOCK;
    return sees_all ? weigh_columns_forward(args, s, row, seen, 0, BLOCK, false)
                    : weigh_columns_forward(args, s, row, seen, first, last, true);
}

static void clear_weights(const forward_scratch *s, int row, int first, int last) {
    memset(s->weights + row * BLOCK + first, 0, (size_t)(last - first) * sizeof *s->weights);
}

static void attend_block(const forward_call *call, tiles_state *state, const qr_packed_sequence *s,
                         const qr_packed_tile *tile, int32_t block_start, bool is_first,
                         const forward_scratch *scratch) {
    const qr_packed_span columns = qr_packed_tile_columns(s, tile, block_start);
    const int first = floor_k(columns.begin), last = ceil_k(columns.end);
    const int n_rows = ceil_k(tile->n_rows);
    const int64_t granule = s->kv_head * call->n_granules + call->granule[s->index] + block_start / TILE_K;
    const int64_t at = granule * TILE_K * call->dim_padded;
    multiply_by_keys(state, scratch->q, n_rows, call->keys + at, call->dim_padded, first, last, scratch->scores);
    for (int row = 0; row < n_rows; row++) {
        qr_packed_span seen = {0, 0};
        if (row < tile->n_rows) { seen = qr_packed_row_columns(s, tile, block_start, row, 1); }
        if (seen.begin >= seen.end) {
            clear_weights(scratch, row, first, last);
            continue;
        }
        const float rescale = weigh_forward(call->args, scratch, row, seen, first, last);
        if (is_first || rescale == 1.0F) { continue; }
        float *acc = scratch->acc + row * call->dim_padded;
        for (int64_t j = 0; j < call->dim_padded; j += QR_VEC) {
            qr_vec_store(acc + j, qr_vec_mul(qr_vec_load(acc + j), qr_vec_set1(rescale)));
        }
    }
    multiply_by_rows(state, scratch->weights, n_rows, call->values + at, call->dim_padded, first, last, is_first,
                     scratch->acc);
}

static void write_forward(const forward_call *call, const qr_packed_sequence *s, const qr_packed_tile *tile,
                          const forward_scratch *scratch) {
    const qr_attention_packed_args *args = call->args;
    const int64_t dim = args->head_dim;
    for (int row = 0; row < tile->n_rows; row++) {
        const int64_t head = qr_packed_head_of(tile, row);
        const int64_t index = qr_packed_token_of(s, tile, row) * args->n_heads + head;
        const float *acc = scratch->acc + row * call->dim_padded;
        float highest = scratch->highest[row], sum = scratch->sum[row];
        const float share = args->sinks != NULL ? qr_softmax_add_sink(args->sinks[head], &highest, &sum) : 1.0F;
        args->lse[index] = qr_softmax_lse(highest, sum);
        for (int64_t j = 0; j < dim; j += QR_VEC) {
            const qr_vec y = qr_vec_mul(qr_vec_load(acc + j), qr_vec_set1(share / sum));
            qr_vec_store_act_n(args->dst, args->dst_dtype, index * dim + j, y, dim - j);
        }
    }
}

/* Late tiles, which see the most keys, come first. */
static void run_forward_tile(void *untyped, int64_t index, int worker) {
    const forward_call *call = untyped;
    const qr_attention_packed_args *args = call->args;
    const int64_t n_sequences = (int64_t)args->n_seqs * args->n_kv_heads;
    const int64_t in_sequence = qr_packed_most_tiles(&call->cut, args) - 1 - index / n_sequences;
    const qr_packed_sequence s = qr_packed_sequence_at(&call->cut, args, index % n_sequences);
    const int32_t number = (int32_t)(in_sequence / call->cut.n_head_tiles);
    if (number * call->cut.tokens_per_tile >= s.n_tokens) { return; }
    const qr_packed_tile tile = qr_packed_tile_at(&s, (int32_t)(in_sequence % call->cut.n_head_tiles), number);
    forward_scratch scratch;
    source_rows src;
    tiles_state state;
    cut_forward_scratch(call->dim_padded, call->scratch + (size_t)worker * call->scratch_bytes, &scratch);
    query_rows(&s, &tile, args->q, args->qkv_stride, args->head_dim, &src);
    pack_rows(&src, ceil_k(tile.n_rows), call->dim_padded, scratch.q);
    for (int row = 0; row < tile.n_rows; row++) {
        scratch.highest[row] = -INFINITY;
        scratch.sum[row] = 0.0F;
    }
    const int32_t first_block = qr_packed_first_block(&s, &tile);
    tiles_begin(&state, TILE, TILE, TILE);
    for (int32_t block = first_block; block < tile.first + tile.n_tokens; block += BLOCK) {
        attend_block(call, &state, &s, &tile, block, block == first_block, &scratch);
    }
    tiles_end(&state);
    write_forward(call, &s, &tile, &scratch);
}

static void forward(const qr_backend *backend, const qr_attention_packed_args *args, void *workspace) {
    forward_scratch scratch;
    forward_call call = {
        .args = args,
        .cut = qr_packed_cut_of(args, ROWS),
        .dim_padded = padded_dim(args),
        .scratch_bytes = cut_forward_scratch(padded_dim(args), NULL, &scratch),
    };
    for (int32_t seq = 0; seq < args->n_seqs; seq++) {
        call.n_granules += qr_ceil_div(args->seq_start[seq + 1] - args->seq_start[seq], TILE_K);
    }
    forward_layout(args, call.n_granules, workspace, &call);
    int32_t granule = 0;
    for (int32_t seq = 0; seq < args->n_seqs; seq++) {
        call.granule[seq] = granule;
        granule += (int32_t)qr_ceil_div(args->seq_start[seq + 1] - args->seq_start[seq], TILE_K);
    }
    const int64_t n_sequences = (int64_t)args->n_seqs * args->n_kv_heads;
    qr_threads_run(backend->threads, n_sequences * qr_ceil_div(args->max_seq_tokens, TILE_K), pack_granule, &call);
    qr_threads_run(backend->threads, n_sequences * qr_packed_most_tiles(&call.cut, args), run_forward_tile, &call);
}

/* --- Backward ----------------------------------------------------------------------------------------------------
 *
 * As on vectors (attention_packed.h): a block of keys meets every tile that sees it. */

typedef struct backward_call {
    const qr_attention_packed_backward_args *args;
    const float *delta; /* [n_tokens, n_heads] */
    qr_packed_cut cut;
    int64_t dim_padded;
    unsigned char *scratch; /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
} backward_call;

/* One worker's. */
typedef struct backward_scratch {
    uint16_t *keys_by_dim, *values_by_dim, *keys_by_row; /* [BLOCKS, BLOCK · dim_padded] */
    uint16_t *q, *dout, *q_by_row, *dout_by_row;         /* [ROWS · dim_padded] */
    float *scores, *dp;                                  /* [ROWS, BLOCK]: q · k, and dout · v */
    uint16_t *ds;                                        /* [ROWS, BLOCK]: gradients of q · k */
    float *p_pairs, *ds_pairs;                           /* [ROWS / 2, BLOCK]: of rows, in BF16 */
    uint16_t *p_by_key, *ds_by_key;                      /* [BLOCK, ROWS] */
    float *dq, *dk, *dv;                                 /* [ROWS, dim_padded], [BLOCKS, BLOCK, dim_padded] twice */
} backward_scratch;

typedef struct backward_task {
    const backward_call *call;
    tiles_state *state;
    qr_packed_sequence s;
    backward_scratch scratch;
} backward_task;

static size_t cut_backward_scratch(int64_t dim_padded, unsigned char *memory, backward_scratch *s) {
    size_t n = 0;
    TAKE(keys_by_dim, BLOCKS * BLOCK * dim_padded);
    TAKE(values_by_dim, BLOCKS * BLOCK * dim_padded);
    TAKE(keys_by_row, BLOCKS * BLOCK * dim_padded);
    TAKE(q, ROWS * dim_padded);
    TAKE(dout, ROWS * dim_padded);
    TAKE(q_by_row, ROWS * dim_padded);
    TAKE(dout_by_row, ROWS * dim_padded);
    TAKE(scores, ROWS * BLOCK);
    TAKE(dp, ROWS * BLOCK);
    TAKE(ds, ROWS * BLOCK);
    TAKE(p_pairs, ROWS / 2 * BLOCK);
    TAKE(ds_pairs, ROWS / 2 * BLOCK);
    TAKE(p_by_key, BLOCK * ROWS);
    TAKE(ds_by_key, BLOCK * ROWS);
    TAKE(dq, ROWS * dim_padded);
    TAKE(dk, BLOCKS * BLOCK * dim_padded);
    TAKE(dv, BLOCKS * BLOCK * dim_padded);
    return n;
}
#undef TAKE

static size_t backward_bytes(const qr_backend *backend, const qr_attention_packed_args *forward_args) {
    backward_scratch scratch;
    return (size_t)qr_threads_count(backend->threads) * cut_backward_scratch(padded_dim(forward_args), NULL, &scratch);
}

static const qr_attention_packed_args *forward_of(const backward_task *t) { return &t->call->args->forward; }

static void load_block(const backward_task *t, int32_t block_start, bool wants_dq) {
    source_rows src;
    key_rows(forward_of(t), &t->s, forward_of(t)->k, block_start, BLOCK, &src);
    pack_by_dim(&src, BLOCK, t->call->dim_padded, t->scratch.keys_by_dim);
    if (wants_dq) { pack_by_row(&src, BLOCK, t->call->dim_padded, t->scratch.keys_by_row); }
    key_rows(forward_of(t), &t->s, forward_of(t)->v, block_start, BLOCK, &src);
    pack_by_dim(&src, BLOCK, t->call->dim_padded, t->scratch.values_by_dim);
}

static void load_tile(const backward_task *t, const qr_packed_tile *tile, bool wants_dkv) {
    const qr_attention_packed_args *args = forward_of(t);
    const int64_t dim = args->head_dim, dim_padded = t->call->dim_padded;
    const int n_rows = ceil_k(tile->n_rows);
    source_rows src;
    query_rows(&t->s, tile, args->q, args->qkv_stride, dim, &src);
    pack_rows(&src, n_rows, dim_padded, t->scratch.q);
    if (wants_dkv) { pack_by_row(&src, n_rows, dim_padded, t->scratch.q_by_row); }
    query_rows(&t->s, tile, t->call->args->dout, args->n_heads * dim, dim, &src);
    pack_rows(&src, n_rows, dim_padded, t->scratch.dout);
    if (wants_dkv) { pack_by_row(&src, n_rows, dim_padded, t->scratch.dout_by_row); }
}

/* A row of the tile in a block. */
typedef struct weighed_row {
    const float *scores, *dp;
    float lse, delta;
    qr_packed_span seen;
} weighed_row;

/* Rows past the tile's end, which fill it up to a multiple of 32, see nothing. */
QR_INLINE weighed_row weighed_row_of(const backward_task *t, const qr_packed_tile *tile, int32_t block_start, int row) {
    weighed_row r = {.scores = t->scratch.scores + row * BLOCK, .dp = t->scratch.dp + row * BLOCK};
    if (row >= tile->n_rows) { return r; }
    const int64_t index = qr_packed_token_of(&t->s, tile, row) * forward_of(t)->n_heads + qr_packed_head_of(tile, row);
    r.lse = forward_of(t)->lse[index];
    r.delta = t->call->delta[index];
    r.seen = qr_packed_row_columns(&t->s, tile, block_start, row, 1);
    return r;
}

/* 16 columns of one row: the probability and the gradient of q · k; zeros where the row does not see them. */
QR_INLINE void weigh_columns(const qr_attention_packed_args *args, const weighed_row *row, int c, const bool masks,
                             qr_vec *p, qr_vec *ds) {
    const qr_vec zero = qr_vec_zero(), scale = qr_vec_set1(args->scale);
    const qr_vec scaled = qr_vec_mul(qr_vec_load(row->scores + c), scale);
    const qr_vec score = args->softcap > 0.0F ? qr_vec_softcap(scaled, args->softcap) : scaled;
    const qr_vec dp = qr_vec_sub(qr_vec_load(row->dp + c), qr_vec_set1(row->delta));
    qr_vec weight = qr_vec_exp(qr_vec_sub(score, qr_vec_set1(row->lse)));
    qr_vec gradient = qr_vec_mul(qr_vec_mul(weight, dp), scale);
    if (args->softcap > 0.0F) { gradient = qr_vec_mul(gradient, qr_vec_softcap_slope(scaled, args->softcap)); }
    if (masks) {
        weight = qr_vec_select_range(weight, zero, row->seen.begin - c, row->seen.end - c);
        gradient = qr_vec_select_range(gradient, zero, row->seen.begin - c, row->seen.end - c);
    }
    *p = weight;
    *ds = gradient;
}

/* ds, and pairs of rows of p and ds, in columns [first, last). */
QR_INLINE void weigh_rows(const qr_attention_packed_args *args, const backward_scratch *s, const weighed_row rows[2],
                          int row, const int first, const int last, const bool masks) {
    for (int c = first; c < last; c += TILE_K) {
        qr_vec p[2][2], ds[2][2]; /* [row][half] */
        QR_UNROLL for (int half = 0; half < 2; half++) {
            const int at = c + half * QR_VEC;
            QR_UNROLL for (int i = 0; i < 2; i++) {
                weigh_columns(args, &rows[i], at, masks, &p[i][half], &ds[i][half]);
            }
            _mm512_store_si512(s->p_pairs + row / 2 * BLOCK + at, pairs_bf16(p[0][half], p[1][half]));
            _mm512_store_si512(s->ds_pairs + row / 2 * BLOCK + at, pairs_bf16(ds[0][half], ds[1][half]));
        }
        QR_UNROLL for (int i = 0; i < 2; i++) {
            _mm512_store_si512(s->ds + (row + i) * BLOCK + c, both_bf16(ds[i][0], ds[i][1]));
        }
    }
}

static void weigh_pair(const backward_task *t, const qr_packed_tile *tile, int32_t block_start, int row, int first,
                       int last) {
    const weighed_row rows[2] = {weighed_row_of(t, tile, block_start, row),
                                 weighed_row_of(t, tile, block_start, row + 1)};
    const int begin = (int)qr_max(rows[0].seen.begin, rows[1].seen.begin);
    const int end = (int)qr_min(rows[0].seen.end, rows[1].seen.end);
    if (begin == 0 && end == BLOCK) {
        weigh_rows(forward_of(t), &t->scratch, rows, row, 0, BLOCK, false);
    } else {
        weigh_rows(forward_of(t), &t->scratch, rows, row, first, last, true);
    }
}

static void weigh_tile(const backward_task *t, const qr_packed_tile *tile, int32_t block_start, int first, int last) {
    const backward_scratch *s = &t->scratch;
    const int n_rows = ceil_k(tile->n_rows);
    multiply_by_keys(t->state, s->q, n_rows, s->keys_by_dim, t->call->dim_padded, first, last, s->scores);
    multiply_by_keys(t->state, s->dout, n_rows, s->values_by_dim, t->call->dim_padded, first, last, s->dp);
    for (int row = 0; row < n_rows; row += 2) { weigh_pair(t, tile, block_start, row, first, last); }
}

/* Pairs of rows [n_rows / 2, BLOCK] become rows by key, for keys [first, last). */
static void turn_pairs(const float *pairs, int n_rows, int first, int last, uint16_t *by_key) {
    for (int pair = 0; pair < n_rows / 2; pair += TILE) {
        for (int c = first; c < last; c += TILE) {
            qr_vec v[QR_VEC];
            QR_UNROLL for (int i = 0; i < TILE; i++) { v[i] = qr_vec_load(pairs + (pair + i) * BLOCK + c); }
            qr_vec_transpose(v);
            QR_UNROLL for (int i = 0; i < TILE; i++) {
                qr_vec_store((float *)(void *)(by_key + (c + i) * ROWS + 2 * pair), v[i]);
            }
        }
    }
}

static void add_dk_dv(const backward_task *t, const qr_packed_tile *tile, int first, int last) {
    const backward_scratch *s = &t->scratch;
    const int64_t dim_padded = t->call->dim_padded;
    const int n_rows = ceil_k(tile->n_rows);
    turn_pairs(s->p_pairs, n_rows, first, last, s->p_by_key);
    turn_pairs(s->ds_pairs, n_rows, first, last, s->ds_by_key);
    multiply_by_rows(t->state, s->p_by_key + first * ROWS, last - first, s->dout_by_row, dim_padded, 0, n_rows, false,
                     s->dv + first * dim_padded);
    multiply_by_rows(t->state, s->ds_by_key + first * ROWS, last - first, s->q_by_row, dim_padded, 0, n_rows, false,
                     s->dk + first * dim_padded);
}

static void add_dq(const backward_task *t, const qr_packed_tile *tile, int first, int last) {
    multiply_by_rows(t->state, t->scratch.ds, ceil_k(tile->n_rows), t->scratch.keys_by_row, t->call->dim_padded, first,
                     last, false, t->scratch.dq);
}

/* The part of dq that is in the result so far, and back. */
static void move_dq(const backward_task *t, const qr_packed_tile *tile, bool is_load) {
    const qr_attention_packed_backward_args *args = t->call->args;
    const int64_t dim = args->forward.head_dim;
    for (int row = 0; row < tile->n_rows; row++) {
        const int64_t token = qr_packed_token_of(&t->s, tile, row);
        float *part = t->scratch.dq + row * t->call->dim_padded;
        float *result = args->dq + token * args->dqkv_stride + qr_packed_head_of(tile, row) * dim;
        memcpy(is_load ? part : result, is_load ? result : part, (size_t)dim * sizeof *part);
    }
}

static void clear(const backward_task *t, float *rows, int n_rows) {
    memset(rows, 0, (size_t)(n_rows * t->call->dim_padded) * sizeof *rows);
}

static void write_dk_dv(const backward_task *t, int32_t block_start) {
    const qr_attention_packed_backward_args *args = t->call->args;
    const int64_t dim = args->forward.head_dim;
    for (int32_t c = 0; c < qr_min(BLOCK, t->s.n_tokens - block_start); c++) {
        const int64_t at = (t->s.first_token + block_start + c) * args->dqkv_stride + t->s.kv_head * dim;
        memcpy(args->dk + at, t->scratch.dk + c * t->call->dim_padded, (size_t)dim * sizeof(float));
        memcpy(args->dv + at, t->scratch.dv + c * t->call->dim_padded, (size_t)dim * sizeof(float));
    }
}

/* The task with the operands and sums of block `n` of those that meet a tile together. */
static backward_task at_block(const backward_task *t, int n) {
    backward_task at = *t;
    const int64_t elements = n * BLOCK * t->call->dim_padded;
    at.scratch.keys_by_dim += elements;
    at.scratch.values_by_dim += elements;
    at.scratch.keys_by_row += elements;
    at.scratch.dk += elements;
    at.scratch.dv += elements;
    return at;
}

/* What a tile adds to the sums of blocks [first_block, end), and they to dq. False: it sees none of them. */
static bool meet_blocks(const backward_task *t, const qr_packed_tile *tile, int32_t first_block, int32_t end,
                        bool wants_dq) {
    bool is_loaded = false;
    for (int32_t block = first_block; block < end; block += BLOCK) {
        const qr_packed_span columns = qr_packed_tile_columns(&t->s, tile, block);
        if (columns.begin >= columns.end) { continue; }
        if (!is_loaded) {
            load_tile(t, tile, true);
            if (wants_dq) { move_dq(t, tile, true); }
            is_loaded = true;
        }
        const backward_task at = at_block(t, (block - first_block) / BLOCK);
        const int first = floor_k(columns.begin), last = ceil_k(columns.end);
        weigh_tile(&at, tile, block, first, last);
        add_dk_dv(&at, tile, first, last);
        if (wants_dq) { add_dq(&at, tile, first, last); }
    }
    if (is_loaded && wants_dq) { move_dq(t, tile, false); }
    return is_loaded;
}

/* dk and dv of up to BLOCKS blocks, and their share of dq where that is wanted. A tile is packed once for all of them:
 * that takes a quarter of the time where there is one. */
static void backward_blocks(const backward_task *t, int32_t first_block, int n_blocks, bool wants_dq) {
    const qr_packed_cut *cut = t->s.cut;
    const int32_t end = (int32_t)qr_min(t->s.n_tokens, (int64_t)first_block + (int64_t)n_blocks * BLOCK);
    for (int32_t block = first_block; block < end; block += BLOCK) {
        const backward_task at = at_block(t, (block - first_block) / BLOCK);
        load_block(&at, block, wants_dq);
        clear(&at, at.scratch.dk, BLOCK);
        clear(&at, at.scratch.dv, BLOCK);
    }
    clear(t, t->scratch.dq, ROWS);
    for (int32_t head_tile = 0; head_tile < cut->n_head_tiles; head_tile++) {
        for (int32_t i = first_block / cut->tokens_per_tile; i * cut->tokens_per_tile < t->s.n_tokens; i++) {
            const qr_packed_tile tile = qr_packed_tile_at(&t->s, head_tile, i);
            if (!meet_blocks(t, &tile, first_block, end, wants_dq)) { break; } /* the window has left them */
        }
    }
    for (int32_t block = first_block; block < end; block += BLOCK) {
        const backward_task at = at_block(t, (block - first_block) / BLOCK);
        write_dk_dv(&at, block);
    }
}

/* dq of one tile from all blocks it sees. */
static void backward_tile(backward_task *t, const qr_packed_tile *tile) {
    load_tile(t, tile, false);
    clear(t, t->scratch.dq, ROWS);
    for (int32_t block = qr_packed_first_block(&t->s, tile); block < tile->first + tile->n_tokens; block += BLOCK) {
        const qr_packed_span columns = qr_packed_tile_columns(&t->s, tile, block);
        const int first = floor_k(columns.begin), last = ceil_k(columns.end);
        load_block(t, block, true);
        weigh_tile(t, tile, block, first, last);
        add_dq(t, tile, first, last);
    }
    move_dq(t, tile, false);
}

static void open_task(const backward_call *call, int64_t index, int worker, tiles_state *state, backward_task *t) {
    t->call = call;
    t->state = state;
    t->s = qr_packed_sequence_at(&call->cut, &call->args->forward, index);
    cut_backward_scratch(call->dim_padded, call->scratch + (size_t)worker * call->scratch_bytes, &t->scratch);
    tiles_begin(state, TILE, TILE, TILE);
}

/* All of a sequence and K/V head; dq is added up in the result. */
static void run_whole(void *untyped, int64_t index, int worker) {
    const backward_call *call = untyped;
    backward_task t;
    tiles_state state;
    open_task(call, index, worker, &state, &t);
    const int64_t heads = call->cut.group * (int64_t)call->args->forward.head_dim;
    for (int32_t token = 0; token < t.s.n_tokens; token++) {
        float *dq = call->args->dq + (t.s.first_token + token) * call->args->dqkv_stride + t.s.kv_head * heads;
        memset(dq, 0, (size_t)heads * sizeof *dq);
    }
    for (int32_t block = 0; block < t.s.n_tokens; block += BLOCKS * BLOCK) { backward_blocks(&t, block, BLOCKS, true); }
    tiles_end(&state);
}

static void run_one_block(void *untyped, int64_t index, int worker) {
    const backward_call *call = untyped;
    const int64_t most = qr_packed_most_blocks(&call->args->forward), block = index % most * BLOCK;
    backward_task t;
    tiles_state state;
    open_task(call, index / most, worker, &state, &t);
    if (block < t.s.n_tokens) { backward_blocks(&t, (int32_t)block, 1, false); }
    tiles_end(&state);
}

static void run_one_tile(void *untyped, int64_t index, int worker) {
    const backward_call *call = untyped;
    const int64_t most = qr_packed_most_tiles(&call->cut, &call->args->forward);
    const int32_t in_task = (int32_t)(index % most), number = in_task / call->cut.n_head_tiles;
    backward_task t;
    tiles_state state;
    open_task(call, index / most, worker, &state, &t);
    if (number * call->cut.tokens_per_tile < t.s.n_tokens) {
        const qr_packed_tile tile = qr_packed_tile_at(&t.s, in_task % call->cut.n_head_tiles, number);
        backward_tile(&t, &tile);
    }
    tiles_end(&state);
}

static void backward(const qr_backend *backend, const qr_attention_packed_backward_args *args, const float *delta,
                     void *workspace) {
    backward_scratch scratch;
    const qr_attention_packed_args *forward_args = &args->forward;
    backward_call call = {
        .args = args,
        .delta = delta,
        .cut = qr_packed_cut_of(forward_args, ROWS),
        .dim_padded = padded_dim(forward_args),
        .scratch = workspace,
        .scratch_bytes = cut_backward_scratch(padded_dim(forward_args), NULL, &scratch),
    };
    const int64_t n_tasks = (int64_t)forward_args->n_seqs * forward_args->n_kv_heads;
    if (qr_packed_takes_sequences(backend, forward_args)) {
        qr_threads_run(backend->threads, n_tasks, run_whole, &call);
        return;
    }
    qr_threads_run(backend->threads, n_tasks * qr_packed_most_blocks(forward_args), run_one_block, &call);
    qr_threads_run(backend->threads, n_tasks * qr_packed_most_tiles(&call.cut, forward_args), run_one_tile, &call);
}

#define PACKED_TILES \
    { .forward_bytes = forward_bytes, .forward = forward, .backward_bytes = backward_bytes, .backward = backward }

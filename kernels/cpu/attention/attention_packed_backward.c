/* attention_packed_backward: probabilities recomputed block by block from the scores and lse (Dao et al.,
 * "FlashAttention", 2022). attention_packed.h says how a call is cut, and why that does not change the bits. */
#include "kernels/cpu/attention/attention_packed.h"
#include "kernels/cpu/attention/attention_pages.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/vector_ops_isa.h"

struct call {
    const qr_attention_packed_backward_args *args;
    float *delta; /* [n_tokens, n_heads] */
    qr_packed_backward_tiling tiling;
};

/* A sequence at one K/V head. */
struct task {
    const qr_attention_packed_backward_args *args;
    const qr_packed_backward_tiling *tiling;
    qr_packed_backward_scratch scratch;
    qr_packed_sequence s;
};

/* The rows of the tile that see one of the keys [first, last]. */
static qr_packed_span seeing_rows(const struct task *t, const qr_packed_tile *tile, int32_t first, int32_t last) {
    const int32_t window = t->args->forward.window;
    const int64_t after = window > 0 ? (int64_t)last + window : INT32_MAX; /* the first token that sees none */
    return (qr_packed_span){qr_packed_clamp((int64_t)(first - tile->first) * tile->n_heads, 0, tile->n_rows),
                            qr_packed_clamp((after - tile->first) * tile->n_heads, 0, tile->n_rows)};
}

static int page_floor(int column) { return column - column % QR_KV_PAGE_TOKENS; }
static int page_ceil(int column) { return page_floor(column + QR_KV_PAGE_TOKENS - 1); }

static void load_tile(struct task *t, const qr_packed_tile *tile) {
    const qr_attention_packed_args *forward = &t->args->forward;
    const int64_t dim = forward->head_dim, stride = t->tiling->dim_padded;
    for (int row = 0; row < tile->n_rows; row++) {
        const int64_t token = qr_packed_token_of(&t->s, tile, row), head = qr_packed_head_of(tile, row);
        const float *q = forward->q + token * forward->qkv_stride + head * dim;
        const float *dout = t->args->dout + (token * forward->n_heads + head) * dim;
        memcpy(t->scratch.q + row * stride, q, (size_t)dim * sizeof *q);
        memcpy(t->scratch.dout + row * stride, dout, (size_t)dim * sizeof *dout);
    }
}

static void load_block(struct task *t, int32_t block_start) {
    const qr_packed_pages *pages = &t->tiling->pages;
    const qr_kv_layout *layout = &pages->layout;
    const size_t head_bytes = (size_t)(QR_KV_PAGE_TOKENS * layout->head_dim) * qr_kv_element_bytes(layout->format);
    const int32_t end = (int32_t)qr_min(t->s.n_tokens, block_start + QR_ATTENTION_BLOCK);
    for (int32_t position = block_start; position < end; position += QR_KV_PAGE_TOKENS) {
        const int32_t page = pages->block_table[t->s.index * pages->table_stride + position / QR_KV_PAGE_TOKENS];
        const unsigned char *k = pages->pages + page * pages->page_bytes + (size_t)t->s.kv_head * head_bytes;
        const unsigned char *v = k + qr_kv_v_offset(layout);
        const int32_t column = position - block_start;
        load_keys(layout, k, t->scratch.keys_by_dim + column);
        load_keys(layout, v, t->scratch.values_by_dim + column);
        load_values(layout, k, t->scratch.keys + column * t->tiling->dim_padded, t->tiling->dim_padded);
    }
}

/* Of one row: the products q · k in `p` become probabilities, the products dout · v in `ds` the gradients of q · k.
 * Columns of [first, last) that the row does not see become 0, whatever they were. */
static void weigh_row(const struct task *t, const qr_packed_tile *tile, int row, qr_packed_span seen, int first,
                      int last) {
    const qr_attention_packed_args *forward = &t->args->forward;
    const int64_t index = qr_packed_token_of(&t->s, tile, row) * forward->n_heads + qr_packed_head_of(tile, row);
    const qr_vec lse = qr_vec_set1(forward->lse[index]), delta = qr_vec_set1(t->tiling->delta[index]);
    const qr_vec scale = qr_vec_set1(forward->scale), zero = qr_vec_zero();
    float *p_row = t->scratch.p + row * QR_ATTENTION_BLOCK, *ds_row = t->scratch.ds + row * QR_ATTENTION_BLOCK;
    for (int c = first; c < last; c += QR_VEC) {
        const qr_vec scaled = qr_vec_mul(qr_vec_load(p_row + c), scale);
        const qr_vec score = forward->softcap > 0.0F ? qr_vec_softcap(scaled, forward->softcap) : scaled;
        const qr_vec p = qr_vec_exp(qr_vec_sub(score, lse));
        qr_vec ds = qr_vec_mul(qr_vec_mul(p, qr_vec_sub(qr_vec_load(ds_row + c), delta)), scale);
        if (forward->softcap > 0.0F) { ds = qr_vec_mul(ds, qr_vec_softcap_slope(scaled, forward->softcap)); }
        qr_vec_store(p_row + c, qr_vec_select_range(p, zero, seen.begin - c, seen.end - c));
        qr_vec_store(ds_row + c, qr_vec_select_range(ds, zero, seen.begin - c, seen.end - c));
    }
}

/* p and ds of a tile and block, in columns [first, last). */
static void weigh_tile(struct task *t, const qr_packed_tile *tile, int32_t block_start, int first, int last) {
    const int64_t dim = t->args->forward.head_dim, stride = t->tiling->dim_padded;
    const qr_packed_backward_scratch *s = &t->scratch;
    for (int row = 0, n; row < tile->n_rows; row += n) {
        n = tile->n_rows - row < TILE_ROWS ? tile->n_rows - row : TILE_ROWS;
        const float *q[TILE_ROWS], *dout[TILE_ROWS];
        for (int i = 0; i < n; i++) {
            q[i] = s->q + (row + i) * stride;
            dout[i] = s->dout + (row + i) * stride;
        }
        const qr_packed_span columns = qr_packed_row_columns(&t->s, tile, block_start, row, n);
        const int begin = page_floor(columns.begin), end = page_ceil(columns.end);
        score_rows(q, dim, s->keys_by_dim, begin, end, s->p + row * QR_ATTENTION_BLOCK, n);
        score_rows(dout, dim, s->values_by_dim, begin, end, s->ds + row * QR_ATTENTION_BLOCK, n);
        for (int i = 0; i < n; i++) {
            weigh_row(t, tile, row + i, qr_packed_row_columns(&t->s, tile, block_start, row + i, 1), first, last);
        }
    }
}

static void add_dq(struct task *t, const qr_packed_tile *tile, int32_t block_start) {
    const int64_t dim = t->args->forward.head_dim, stride = t->tiling->dim_padded;
    const qr_packed_backward_scratch *s = &t->scratch;
    for (int row = 0, n; row < tile->n_rows; row += n) {
        n = tile->n_rows - row < TILE_ROWS ? tile->n_rows - row : TILE_ROWS;
        const qr_packed_span columns = qr_packed_row_columns(&t->s, tile, block_start, row, n);
        if (columns.begin >= columns.end) { continue; }
        mix_rows(s->ds + row * QR_ATTENTION_BLOCK, s->ones, s->keys, dim, stride, columns.begin, columns.end,
                 s->dq + row * stride, n);
    }
}

/* Rows of `src` [n_rows, BLOCK] become columns of `dst`, for columns [first, last). */
static void transpose(const float *src, int n_rows, int first, int last, float *dst) {
    for (int row = 0; row < n_rows; row += QR_VEC) {
        for (int c = first; c < last; c += QR_VEC) {
            qr_vec v[QR_VEC];
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) { v[i] = qr_vec_load(src + (row + i) * QR_ATTENTION_BLOCK + c); }
            qr_vec_transpose(v);
            QR_UNROLL for (int i = 0; i < QR_VEC; i++) { qr_vec_store(dst + (c + i) * QR_ATTENTION_BLOCK + row, v[i]); }
        }
    }
}

static void add_dk_dv(struct task *t, const qr_packed_tile *tile, int32_t block_start, qr_packed_span columns) {
    const int64_t dim = t->args->forward.head_dim, stride = t->tiling->dim_padded;
    const qr_packed_backward_scratch *s = &t->scratch;
    const int first = page_floor(columns.begin), last = page_ceil(columns.end);
    transpose(s->p, tile->n_rows, first, last, s->p_by_key);
    transpose(s->ds, tile->n_rows, first, last, s->ds_by_key);
    for (int c = columns.begin, n; c < columns.end; c += n) {
        n = columns.end - c < TILE_ROWS ? columns.end - c : TILE_ROWS;
        const qr_packed_span rows = seeing_rows(t, tile, block_start + c, block_start + c + n - 1);
        if (rows.begin >= rows.end) { continue; }
        mix_rows(s->p_by_key + c * QR_ATTENTION_BLOCK, s->ones, s->dout, dim, stride, rows.begin, rows.end,
                 s->dv + c * stride, n);
        mix_rows(s->ds_by_key + c * QR_ATTENTION_BLOCK, s->ones, s->q, dim, stride, rows.begin, rows.end,
                 s->dk + c * stride, n);
    }
}

/* The part of dq that is in the result so far, and back. */
static void move_dq(struct task *t, const qr_packed_tile *tile, bool is_load) {
    const qr_attention_packed_args *forward = &t->args->forward;
    const size_t row_bytes = (size_t)forward->head_dim * sizeof(float);
    for (int row = 0; row < tile->n_rows; row++) {
        const int64_t at = qr_packed_token_of(&t->s, tile, row) * t->args->dqkv_stride +
                           qr_packed_head_of(tile, row) * forward->head_dim;
        float *part = t->scratch.dq + row * t->tiling->dim_padded, *result = t->args->dq + at;
        memcpy(is_load ? part : result, is_load ? result : part, row_bytes);
    }
}

static void clear(struct task *t, float *rows, int n_rows) {
    memset(rows, 0, (size_t)(n_rows * t->tiling->dim_padded) * sizeof *rows);
}

/* dk and dv of one block, and its share of dq where that is wanted. */
static void run_block(struct task *t, int32_t block_start, bool wants_dq) {
    load_block(t, block_start);
    clear(t, t->scratch.dk, QR_ATTENTION_BLOCK);
    clear(t, t->scratch.dv, QR_ATTENTION_BLOCK);
    for (int32_t head_tile = 0; head_tile < t->tiling->cut.n_head_tiles; head_tile++) {
        for (int32_t i = block_start / t->tiling->cut.tokens_per_tile;
             i * t->tiling->cut.tokens_per_tile < t->s.n_tokens; i++) {
            const qr_packed_tile tile = qr_packed_tile_at(&t->s, head_tile, i);
            const qr_packed_span columns = qr_packed_tile_columns(&t->s, &tile, block_start);
            if (columns.begin >= columns.end) { break; } /* the window has left the block */
            load_tile(t, &tile);
            weigh_tile(t, &tile, block_start, page_floor(columns.begin), page_ceil(columns.end));
            add_dk_dv(t, &tile, block_start, columns);
            if (!wants_dq) { continue; }
            move_dq(t, &tile, true);
            add_dq(t, &tile, block_start);
            move_dq(t, &tile, false);
        }
    }
    const qr_attention_packed_args *forward = &t->args->forward;
    const size_t row_bytes = (size_t)forward->head_dim * sizeof(float);
    for (int32_t c = 0; c < qr_min(QR_ATTENTION_BLOCK, t->s.n_tokens - block_start); c++) {
        const int64_t token = t->s.first_token + block_start + c;
        const int64_t at = token * t->args->dqkv_stride + t->s.kv_head * forward->head_dim;
        memcpy(t->args->dk + at, t->scratch.dk + c * t->tiling->dim_padded, row_bytes);
        memcpy(t->args->dv + at, t->scratch.dv + c * t->tiling->dim_padded, row_bytes);
    }
}

/* dq of one tile from all blocks it sees. */
static void run_tile(struct task *t, const qr_packed_tile *tile) {
    load_tile(t, tile);
    clear(t, t->scratch.dq, tile->n_rows);
    int32_t block_start = qr_packed_first_block(&t->s, tile);
    for (; block_start < tile->first + tile->n_tokens; block_start += QR_ATTENTION_BLOCK) {
        const qr_packed_span columns = qr_packed_tile_columns(&t->s, tile, block_start);
        load_block(t, block_start);
        weigh_tile(t, tile, block_start, page_floor(columns.begin), page_ceil(columns.end));
        add_dq(t, tile, block_start);
    }
    move_dq(t, tile, false);
}

static void open_task(const struct call *call, int64_t index, int worker, struct task *t) {
    t->args = call->args;
    t->tiling = &call->tiling;
    t->s = qr_packed_sequence_at(&call->tiling.cut, &call->args->forward, index);
    qr_packed_backward_scratch_of(t->tiling, worker, &t->scratch);
}

/* All of a sequence and K/V head; dq is added up in the result. */
static void run_whole(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    struct task t;
    open_task(call, index, worker, &t);
    const int64_t dim = call->args->forward.head_dim, heads = call->tiling.cut.group * dim;
    for (int32_t token = 0; token < t.s.n_tokens; token++) {
        float *dq = call->args->dq + (t.s.first_token + token) * call->args->dqkv_stride + t.s.kv_head * heads;
        memset(dq, 0, (size_t)heads * sizeof *dq);
    }
    for (int32_t block_start = 0; block_start < t.s.n_tokens; block_start += QR_ATTENTION_BLOCK) {
        run_block(&t, block_start, true);
    }
}

static void run_one_block(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    struct task t;
    open_task(call, index / qr_packed_most_blocks(&call->args->forward), worker, &t);
    const int64_t block_start = index % qr_packed_most_blocks(&call->args->forward) * QR_ATTENTION_BLOCK;
    if (block_start < t.s.n_tokens) { run_block(&t, (int32_t)block_start, false); }
}

static void run_one_tile(void *arg, int64_t index, int worker) {
    const struct call *call = arg;
    struct task t;
    open_task(call, index / qr_packed_most_tiles(&call->tiling.cut, &call->args->forward), worker, &t);
    const int32_t in_task = (int32_t)(index % qr_packed_most_tiles(&call->tiling.cut, &call->args->forward)),
                  n_head_tiles = call->tiling.cut.n_head_tiles;
    if (in_task / n_head_tiles * call->tiling.cut.tokens_per_tile >= t.s.n_tokens) { return; }
    const qr_packed_tile tile = qr_packed_tile_at(&t.s, in_task % n_head_tiles, in_task / n_head_tiles);
    run_tile(&t, &tile);
}

static void delta_rows(const void *args, int64_t begin, int64_t end) {
    const struct call *call = args;
    const qr_attention_packed_args *forward = &call->args->forward;
    const int64_t dim = forward->head_dim;
    for (int64_t i = begin * forward->n_heads; i < end * forward->n_heads; i++) {
        qr_vec sum = qr_vec_zero();
        for (int64_t j = 0; j < dim; j += QR_VEC) {
            const qr_vec out = qr_vec_load_act_n(forward->dst, forward->dst_dtype, i * dim + j, dim - j);
            sum = qr_vec_fma(qr_vec_load_n(call->args->dout + i * dim + j, dim - j), out, sum);
        }
        call->delta[i] = qr_vec_sum(sum);
    }
}

/* Token by token from what is there, so that the sum does not depend on how the tokens are cut into parts. */
static void add_dsinks(const struct call *call) {
    const qr_attention_packed_args *forward = &call->args->forward;
    const int64_t n_heads = forward->n_heads;
    float *dsinks = call->args->dsinks;
    for (int64_t h = 0; h < n_heads; h += QR_VEC) {
        const qr_vec sink = qr_vec_load_n(forward->sinks + h, n_heads - h);
        qr_vec sum = qr_vec_load_n(dsinks + h, n_heads - h);
        for (int64_t t = 0; t < forward->n_tokens; t++) {
            const int64_t at = t * n_heads + h;
            const qr_vec lse = qr_vec_load_n(forward->lse + at, n_heads - h);
            const qr_vec delta = qr_vec_load_n(call->delta + at, n_heads - h);
            sum = qr_vec_sub(sum, qr_vec_mul(qr_vec_exp(qr_vec_sub(sink, lse)), delta));
        }
        qr_vec_store_n(dsinks + h, sum, n_heads - h);
    }
}

/* delta, and the gradients of sinks, which follow from it. */
static void find_delta(const qr_backend *backend, const struct call *call) {
    const qr_attention_packed_args *forward = &call->args->forward;
    qr_cpu_run_ranges(backend, forward->n_tokens, (int64_t)forward->n_heads * forward->head_dim, delta_rows, call);
    if (call->args->dsinks != NULL) { add_dsinks(call); }
}

/* Everything else on matrix tiles. */
static void run_on_tiles(const qr_backend *backend, const qr_attention_packed_backward_args *args,
                         const qr_cpu_packed_tiles *tiles, void *workspace) {
    const struct call call = {.args = args, .delta = workspace};
    find_delta(backend, &call);
    tiles->backward(backend, args, call.delta, (unsigned char *)workspace + qr_packed_delta_bytes(&args->forward));
}

static void run_part(const qr_backend *backend, const qr_attention_packed_backward_args *part, void *workspace) {
    const qr_attention_packed_args *forward = &part->forward;
    struct call call = {.args = part};
    qr_kv_write_args write;
    qr_packed_backward_tiling_make(backend, part, workspace, &call.tiling);
    qr_packed_kv_write(forward, &call.tiling.pages, &write);
    QR_ISA(qr_cpu_kv_write)(backend, &write);
    call.delta = call.tiling.delta;
    find_delta(backend, &call);
    const int64_t n_tasks = (int64_t)forward->n_seqs * forward->n_kv_heads;
    if (qr_packed_takes_sequences(backend, forward)) {
        qr_threads_run(backend->threads, n_tasks, run_whole, &call);
        return;
    }
    qr_threads_run(backend->threads, n_tasks * qr_packed_most_blocks(forward), run_one_block, &call);
    qr_threads_run(backend->threads, n_tasks * qr_packed_most_tiles(&call.tiling.cut, forward), run_one_tile, &call);
}

void QR_ISA(qr_cpu_attention_packed_backward)(const qr_backend *backend, const qr_attention_packed_backward_args *args,
                                              void *workspace) {
    const int64_t out_row = (int64_t)args->forward.n_heads * args->forward.head_dim;
    const qr_cpu_packed_tiles *tiles = qr_packed_tiles_of(backend, &args->forward);
    if (tiles != NULL) {
        run_on_tiles(backend, args, tiles, workspace);
        return;
    }
    qr_packed_part part;
    unsigned char *rest =
        (unsigned char *)workspace + qr_packed_parts_begin(&args->forward, QR_KV_PAGE_TOKENS, workspace, &part);
    while (qr_packed_parts_next(&args->forward, &part)) {
        qr_attention_packed_backward_args backward = *args;
        backward.forward = part.args;
        backward.dout += part.first_token * out_row;
        backward.dq += part.first_token * args->dqkv_stride;
        backward.dk += part.first_token * args->dqkv_stride;
        backward.dv += part.first_token * args->dqkv_stride;
        run_part(backend, &backward, rest);
    }
}

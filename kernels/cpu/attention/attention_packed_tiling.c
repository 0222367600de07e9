#include "base/sizes.h"
#include "kernels/cpu/attention/attention_packed.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector_ops.h"

/* Hands out 64-byte aligned parts of a block of memory, or counts them only. */
typedef struct cutter {
    unsigned char *memory;
    size_t taken;
} cutter;

static void *cut(cutter *c, int64_t n_bytes) {
    void *part = c->memory == NULL ? NULL : c->memory + c->taken;
    c->taken += (size_t)qr_round_up(n_bytes, 64);
    return part;
}

static void fill_tables(const qr_attention_packed_args *args, qr_packed_pages *pages) {
    for (int64_t i = 0; i < args->n_tokens; i++) { pages->token_page[i] = -1; }
    int32_t next_page = 0;
    for (int32_t seq = 0; seq < args->n_seqs; seq++) {
        const int32_t begin = args->seq_start[seq], end = args->seq_start[seq + 1];
        pages->first_position[seq] = 0;
        for (int32_t token = begin; token < end; token++) {
            const int32_t position = token - begin, page = next_page + position / QR_KV_PAGE_TOKENS;
            pages->token_page[token] = page;
            pages->position[token] = position;
            pages->block_table[seq * pages->table_stride + position / QR_KV_PAGE_TOKENS] = page;
        }
        next_page += (int32_t)qr_ceil_div(end - begin, QR_KV_PAGE_TOKENS);
    }
}

static qr_packed_pages describe_pages(const qr_attention_packed_args *args) {
    const qr_kv_format rounded = args->dst_dtype == QR_DTYPE_F16 ? QR_KV_F16 : QR_KV_BF16;
    qr_packed_pages pages = {
        .layout = {.format = args->round_kv ? rounded : QR_KV_F32,
                   .n_kv_heads = args->n_kv_heads,
                   .head_dim = args->head_dim},
        .table_stride = qr_ceil_div(args->max_seq_tokens, QR_KV_PAGE_TOKENS),
    };
    pages.page_bytes = (int64_t)qr_kv_layer_bytes(&pages.layout);
    return pages;
}

/* Of n_tokens in n_seqs sequences: the full pages of all tokens, and one partly filled page for each sequence. */
static int64_t pages_of(int64_t n_tokens, int64_t n_seqs, int64_t page_tokens) {
    return n_tokens / page_tokens + n_seqs;
}

static size_t lay_out(const qr_attention_packed_args *args, int64_t n_pages, int64_t n_entries, void *memory,
                      qr_packed_pages *pages) {
    const int64_t entry = (int64_t)sizeof(int32_t);
    cutter c = {.memory = memory};
    pages->pages = cut(&c, n_pages * pages->page_bytes);
    pages->block_table = cut(&c, n_entries * entry);
    pages->first_position = cut(&c, args->n_seqs * entry);
    pages->token_page = cut(&c, args->n_tokens * entry);
    pages->position = cut(&c, args->n_tokens * entry);
    return c.taken;
}

const qr_cpu_packed_tiles *qr_packed_tiles_of(const qr_backend *backend, const qr_attention_packed_args *args) {
    return args->bf16_products && args->dst_dtype == QR_DTYPE_BF16 ? qr_cpu(backend)->kernels->packed_tiles : NULL;
}

size_t qr_packed_delta_bytes(const qr_attention_packed_args *args) {
    return (size_t)qr_round_up(args->n_tokens * args->n_heads * (int64_t)sizeof(float), 64);
}

/* --- Parts --- */

/* Of a part: as many pages as the tokens fill, and some that are filled partly; a table entry for each token. Any one
 * sequence takes no more. */
static int64_t most_pages(const qr_attention_packed_args *args, int64_t page_tokens) {
    enum { PARTLY_FILLED = 64 };
    const int64_t partly = PARTLY_FILLED + args->n_tokens / (4 * page_tokens);
    return pages_of(args->n_tokens, qr_min(args->n_seqs, partly), page_tokens);
}

static int64_t most_entries(const qr_attention_packed_args *args) {
    const int64_t stride = qr_ceil_div(args->max_seq_tokens, QR_KV_PAGE_TOKENS);
    return qr_max(stride, qr_min(args->n_seqs * stride, args->n_tokens));
}

size_t qr_packed_pages_bytes(const qr_attention_packed_args *args, qr_packed_pages *pages) {
    *pages = describe_pages(args);
    return lay_out(args, most_pages(args, QR_KV_PAGE_TOKENS), most_entries(args), NULL, pages);
}

size_t qr_packed_parts_begin(const qr_attention_packed_args *args, int32_t page_tokens, void *memory,
                             qr_packed_part *part) {
    cutter c = {.memory = memory};
    *part = (qr_packed_part){.next_seq = 0, .page_tokens = page_tokens};
    part->starts = cut(&c, ((int64_t)args->n_seqs + 1) * (int64_t)sizeof(int32_t));
    return c.taken;
}

/* Sequences from `first` on, and the tokens of the longest. */
static int32_t count_seqs(const qr_attention_packed_args *args, int32_t first, int32_t page_tokens, int32_t *longest) {
    const int64_t n_pages = most_pages(args, page_tokens), n_entries = most_entries(args);
    int32_t n = 0;
    *longest = 0;
    for (; first + n < args->n_seqs; n++) {
        const int32_t tokens = args->seq_start[first + n + 1] - args->seq_start[first];
        const int32_t most = (int32_t)qr_max(*longest, args->seq_start[first + n + 1] - args->seq_start[first + n]);
        const int64_t entries = (n + 1) * qr_ceil_div(most, QR_KV_PAGE_TOKENS);
        if (n > 0 && (pages_of(tokens, n + 1, page_tokens) > n_pages || entries > n_entries)) { break; }
        *longest = most;
    }
    return n;
}

bool qr_packed_parts_next(const qr_attention_packed_args *args, qr_packed_part *part) {
    const int32_t first_seq = part->next_seq;
    if (first_seq == args->n_seqs) { return false; }
    int32_t longest;
    const int32_t n = count_seqs(args, first_seq, part->page_tokens, &longest), first = args->seq_start[first_seq];
    const int64_t out_row = (int64_t)args->n_heads * args->head_dim;
    for (int32_t s = 0; s <= n; s++) { part->starts[s] = args->seq_start[first_seq + s] - first; }
    part->args = *args;
    part->args.q += first * args->qkv_stride;
    part->args.k += first * args->qkv_stride;
    part->args.v += first * args->qkv_stride;
    part->args.dst = (unsigned char *)args->dst + (size_t)(first * out_row) * qr_dtype_bytes(args->dst_dtype);
    part->args.lse += (int64_t)first * args->n_heads;
    part->args.seq_start = part->starts;
    part->args.n_tokens = part->starts[n];
    part->args.n_seqs = n;
    part->args.max_seq_tokens = longest;
    part->first_token = first;
    part->next_seq = first_seq + n;
    return true;
}

/* --- Forward --- */

size_t qr_packed_pages_make(const qr_attention_packed_args *part, void *memory, qr_packed_pages *pages) {
    *pages = describe_pages(part);
    const int64_t n_pages = pages_of(part->n_tokens, part->n_seqs, QR_KV_PAGE_TOKENS),
                  n_entries = part->n_seqs * pages->table_stride;
    const size_t n_bytes = lay_out(part, n_pages, n_entries, memory, pages);
    fill_tables(part, pages);
    return n_bytes;
}

void qr_packed_kv_write(const qr_attention_packed_args *args, const qr_packed_pages *pages, qr_kv_write_args *write) {
    *write = (qr_kv_write_args){
        .layout = pages->layout,
        .k = args->k,
        .v = args->v,
        .n_tokens = args->n_tokens,
        .k_stride = args->qkv_stride,
        .v_stride = args->qkv_stride,
        .token_page = pages->token_page,
        .position = pages->position,
        .pages = pages->pages,
        .page_stride_bytes = (size_t)pages->page_bytes,
    };
}

void qr_packed_attention(const qr_attention_packed_args *args, const qr_packed_pages *pages,
                         qr_attention_args *attention) {
    *attention = (qr_attention_args){
        .layout = pages->layout,
        .q = args->q,
        .dst = args->dst,
        .dst_dtype = args->dst_dtype,
        .n_tokens = args->n_tokens,
        .q_stride = args->qkv_stride,
        .n_heads = args->n_heads,
        .n_seqs = args->n_seqs,
        .q_start = args->seq_start,
        .first_position = pages->first_position,
        .block_table = pages->block_table,
        .table_stride = pages->table_stride,
        .pages = pages->pages,
        .page_stride_bytes = (size_t)pages->page_bytes,
        .scale = args->scale,
        .softcap = args->softcap,
        .window = args->window,
        .sinks = args->sinks,
    };
}

size_t qr_cpu_attention_packed_workspace(const qr_backend *backend, const qr_attention_packed_args *args) {
    const qr_cpu_packed_tiles *tiles = qr_packed_tiles_of(backend, args);
    qr_packed_pages pages;
    qr_packed_part part;
    qr_attention_args attention;
    const size_t starts_bytes = qr_packed_parts_begin(args, QR_KV_PAGE_TOKENS, NULL, &part);
    if (tiles != NULL) {
        return starts_bytes + tiles->forward_bytes(backend, args, most_pages(args, QR_PACKED_TILES_TOKENS));
    }
    const size_t pages_bytes = qr_packed_pages_bytes(args, &pages);
    qr_packed_attention(args, &pages, &attention);
    return starts_bytes + pages_bytes + qr_cpu_attention_workspace(backend, &attention);
}

/* --- Backward --- */

/* Points every part of a worker's scratch into `first` (NULL: counts only) and returns the number of floats. */
static int64_t cut_scratch(const qr_packed_backward_tiling *tiling, float *first, qr_packed_backward_scratch *scratch) {
    const int64_t dim = tiling->dim_padded, block = QR_ATTENTION_BLOCK, rows = QR_ATTENTION_ROWS;
    const int64_t by_dim = qr_round_up(dim, 64) * block;
    int64_t n = 0;
#define TAKE(field, n_floats) (scratch->field = first == NULL ? NULL : first + n, n += (n_floats))
    TAKE(keys_by_dim, by_dim);
    TAKE(values_by_dim, by_dim);
    TAKE(keys, block * dim);
    TAKE(q, rows * dim);
    TAKE(dout, rows * dim);
    TAKE(dq, rows * dim);
    TAKE(dk, block * dim);
    TAKE(dv, block * dim);
    TAKE(p, rows * block);
    TAKE(ds, rows * block);
    TAKE(p_by_key, block * block);
    TAKE(ds_by_key, block * block);
    TAKE(ones, block);
#undef TAKE
    return n;
}

/* All but the pages, which have taken `c` so far. */
static size_t tiling_rest(const qr_backend *backend, const qr_attention_packed_args *forward, cutter c,
                          qr_packed_backward_tiling *tiling) {
    tiling->cut = qr_packed_cut_of(forward, QR_ATTENTION_ROWS);
    tiling->dim_padded = qr_round_up(forward->head_dim, 16);
    qr_packed_backward_scratch scratch;
    tiling->scratch_floats = cut_scratch(tiling, NULL, &scratch);
    tiling->delta = cut(&c, (int64_t)qr_packed_delta_bytes(forward));
    tiling->scratch = cut(&c, qr_threads_count(backend->threads) * tiling->scratch_floats * (int64_t)sizeof(float));
    return c.taken;
}

size_t qr_packed_backward_tiling_make(const qr_backend *backend, const qr_attention_packed_backward_args *part,
                                      void *memory, qr_packed_backward_tiling *tiling) {
    const size_t n_bytes = qr_packed_pages_make(&part->forward, memory, &tiling->pages);
    return tiling_rest(backend, &part->forward, (cutter){.memory = memory, .taken = n_bytes}, tiling);
}

void qr_packed_backward_scratch_of(const qr_packed_backward_tiling *tiling, int worker,
                                   qr_packed_backward_scratch *scratch) {
    cut_scratch(tiling, tiling->scratch + worker * tiling->scratch_floats, scratch);
    for (int i = 0; i < QR_ATTENTION_BLOCK; i++) { scratch->ones[i] = 1.0F; }
}

size_t qr_cpu_attention_packed_backward_workspace(const qr_backend *backend,
                                                  const qr_attention_packed_backward_args *args) {
    const qr_cpu_packed_tiles *tiles = qr_packed_tiles_of(backend, &args->forward);
    qr_packed_backward_tiling tiling;
    qr_packed_part part;
    const size_t starts_bytes = qr_packed_parts_begin(&args->forward, QR_KV_PAGE_TOKENS, NULL, &part);
    if (tiles != NULL) {
        return qr_packed_delta_bytes(&args->forward) + tiles->backward_bytes(backend, &args->forward);
    }
    const size_t pages_bytes = qr_packed_pages_bytes(&args->forward, &tiling.pages);
    return starts_bytes + tiling_rest(backend, &args->forward, (cutter){.taken = pages_bytes}, &tiling);
}

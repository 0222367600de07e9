/* A tile of attention over pages (attention_tiling.h) at one K/V head, and which positions its rows see: what the
 * driver (attention_pages_template.h) and the two ways to compute a block share. */
#ifndef QR_KERNELS_CPU_ATTENTION_ATTENTION_QUERY_TILE_H
#define QR_KERNELS_CPU_ATTENTION_ATTENTION_QUERY_TILE_H

#include "base/sizes.h"
#include "kernels/cpu/attention/attention_tiling.h"

struct blocks;

/* One tile at one K/V head: everything that its blocks share. */
struct tile {
    const qr_attention_args *args;
    float *lse; /* [n_tokens, n_heads] or NULL */
    const qr_attention_tiling *tiling;
    const qr_attention_tile *tokens;
    int32_t kv_head;
    int32_t first_head, n_heads; /* query heads [first_head, first_head + n_heads) */
    int n_rows;
    const float *q[QR_ATTENTION_TILES_ROWS];
    qr_attention_scratch scratch;
    struct blocks *blocks; /* the state of the block part */
};

/* Positions [begin, end). */
struct range {
    int32_t begin, end;
};

static struct range visible_to(const qr_attention_args *args, int32_t position) {
    const int32_t window = args->window;
    return (struct range){window > 0 && position >= window ? position - window + 1 : 0, position + 1};
}

static struct range intersect(struct range a, struct range b) {
    return (struct range){a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

static struct range visible_to_tile(const struct tile *t) {
    const int32_t first = t->tokens->position, last = first + t->tokens->n_tokens - 1;
    return (struct range){visible_to(t->args, first).begin, visible_to(t->args, last).end};
}

static struct range visible_to_row(const struct tile *t, int row) {
    return visible_to(t->args, t->tokens->position + row / t->n_heads);
}

static const unsigned char *page_of(const struct tile *t, int32_t position) {
    const qr_attention_args *a = t->args;
    const int32_t page = a->block_table[t->tokens->seq * a->table_stride + position / QR_KV_PAGE_TOKENS];
    return a->pages + (size_t)page * a->page_stride_bytes;
}

#endif

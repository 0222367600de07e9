/* The state of the page accounting: for kv_cache.c, and for the test that checks every count against every list. */
#ifndef QR_RUNTIME_CACHE_KV_CACHE_INTERNAL_H
#define QR_RUNTIME_CACHE_KV_CACHE_INTERNAL_H

#include "base/keyed_hash.h"
#include "runtime/cache/kv_cache.h"

enum { QR_KV_NONE = -1 };

typedef struct qr_kv_page {
    int32_t n_refs;     /* sequences whose table names it */
    int32_t node;       /* node that remembers it, or QR_KV_NONE */
    int32_t group;      /* which of the node's pages it is */
    int32_t prev, next; /* in the list of cached pages, least recently used first; `next` links free pages too */
} qr_kv_page;

typedef struct qr_kv_node {
    int32_t parent; /* node or QR_KV_ROOT */
    int32_t next;   /* in its bucket, or in the free list */
    int32_t n_children;
    int32_t n_tails;                   /* sequences whose tail it is */
    int32_t n_known;                   /* groups whose page is remembered */
    int32_t snapshot;                  /* QR_KV_NONE: none */
    int32_t n_leaves;                  /* of its children */
    qr_kv_key key;                     /* repeated in every node; decides under the root */
    int32_t tokens[QR_KV_PAGE_TOKENS]; /* of a leaf: then NO_TOKEN */
} qr_kv_node;

enum { QR_KV_NO_TOKEN = -1 };

/* The state after the tokens of a node, in the session's keeping. */
typedef struct qr_kv_snapshot {
    int32_t node;       /* QR_KV_NONE: free */
    uint64_t last_used; /* in the cache's own time */
} qr_kv_snapshot;

struct qr_kv_cache {
    qr_kv_cache_options options;
    int32_t *windows; /* [n_groups] */
    qr_kv_page *pages;
    int32_t free_page, n_free;
    int32_t lru_first, lru_last, n_cached;
    int32_t n_shared, peak_used;
    qr_kv_node *nodes;
    int32_t *node_pages; /* [n_nodes][n_groups] */
    qr_digest *digests;  /* [n_nodes] of their blocks; NULL without a keeper */
    int64_t n_brought_tokens;
    int32_t n_nodes, free_node;
    int32_t *buckets;
    uint32_t bucket_mask;
    qr_hash_key hash_key;      /* prompts come from others, who must not choose what shares a bucket */
    qr_kv_snapshot *snapshots; /* [options.n_snapshots] */
    uint64_t time;
};

/* The page of a group that a node remembers; QR_KV_NONE: none. */
static inline int32_t *qr_kv_node_page(const qr_kv_cache *cache, int32_t node, int32_t group) {
    return &cache->node_pages[(int64_t)node * cache->options.n_groups + group];
}

/* Whether the node remembers a page of which only the first tokens are written. */
static inline bool qr_kv_is_leaf(const qr_kv_node *node) {
    return node->tokens[QR_KV_PAGE_TOKENS - 1] == QR_KV_NO_TOKEN;
}

#endif

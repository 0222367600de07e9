#include "kv_cache_check.h"

#include "runtime/cache/kv_cache_internal.h"

static int32_t count_references(const qr_kv_cache *cache, const qr_kv_sequence *const *sequences, int32_t n,
                                int32_t page) {
    int32_t refs = 0;
    for (int32_t s = 0; s < n; s++) {
        for (int64_t i = 0; i < (int64_t)cache->options.n_groups * sequences[s]->n_blocks; i++) {
            refs += sequences[s]->tables[i] == page;
        }
    }
    return refs;
}

static bool check_page(const qr_kv_cache *cache, int32_t p, int32_t refs, qr_error *err) {
    const qr_kv_page *page = &cache->pages[p];
    if (page->n_refs != refs) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "page %d counts %d references, tables hold %d", p, page->n_refs, refs);
        return false;
    }
    if (page->node != QR_KV_NONE && *qr_kv_node_page(cache, page->node, page->group) != p) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "page %d is not what its node remembers", p);
        return false;
    }
    return true;
}

static int32_t count_tails(const qr_kv_sequence *const *sequences, int32_t n, int32_t node) {
    int32_t tails = 0;
    for (int32_t s = 0; s < n; s++) { tails += sequences[s]->tail == node; }
    return tails;
}

enum { MAX_NODES = 1024 };

/* Leaves of every node, counted by their parents. */
static bool count_leaves(const qr_kv_cache *cache, int32_t leaves[MAX_NODES]) {
    if (cache->n_nodes > MAX_NODES) { return false; }
    for (int32_t n = 0; n < cache->n_nodes; n++) { leaves[n] = 0; }
    for (uint32_t b = 0; b <= cache->bucket_mask; b++) {
        for (int32_t n = cache->buckets[b]; n != QR_KV_NONE; n = cache->nodes[n].next) {
            const qr_kv_node *node = &cache->nodes[n];
            if (node->parent >= 0) { leaves[node->parent] += qr_kv_is_leaf(node); }
        }
    }
    return true;
}

/* A node and its snapshot name each other, and the node has all its pages. */
static bool check_snapshot(const qr_kv_cache *cache, int32_t n, int32_t n_leaves, qr_error *err) {
    const qr_kv_node *node = &cache->nodes[n];
    const bool has = node->snapshot != QR_KV_NONE;
    if (has && (cache->snapshots[node->snapshot].node != n || node->n_known != cache->options.n_groups)) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "node %d has snapshot %d, which is not its own or has lost pages", n,
                node->snapshot);
        return false;
    }
    if (n_leaves == node->n_leaves) { return true; }
    qr_fail(err, QRUN_ERROR_INTERNAL, "node %d counts %d leaves and has %d", n, node->n_leaves, n_leaves);
    return false;
}

static bool check_snapshots(const qr_kv_cache *cache, qr_error *err) {
    for (int32_t i = 0; i < cache->options.n_snapshots; i++) {
        const int32_t n = cache->snapshots[i].node;
        if (n == QR_KV_NONE || cache->nodes[n].snapshot == i) { continue; }
        qr_fail(err, QRUN_ERROR_INTERNAL, "snapshot %d names node %d, which does not know it", i, n);
        return false;
    }
    return true;
}

static bool check_nodes(const qr_kv_cache *cache, const qr_kv_sequence *const *sequences, int32_t n_sequences,
                        qr_error *err) {
    static int32_t leaves[MAX_NODES];
    int32_t n_linked = 0, n_free_nodes = 0, n_children = 0, n_parents = 0;
    if (!count_leaves(cache, leaves)) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "%d nodes are more than this check has room for", cache->n_nodes);
        return false;
    }
    for (uint32_t b = 0; b <= cache->bucket_mask; b++) {
        for (int32_t n = cache->buckets[b]; n != QR_KV_NONE; n = cache->nodes[n].next, n_linked++) {
            int32_t known = 0;
            for (int32_t g = 0; g < cache->options.n_groups; g++) {
                known += *qr_kv_node_page(cache, n, g) != QR_KV_NONE;
            }
            const qr_kv_node *node = &cache->nodes[n];
            if (known != node->n_known || node->n_tails != count_tails(sequences, n_sequences, n) ||
                known + node->n_tails + node->n_children == 0) {
                qr_fail(err, QRUN_ERROR_INTERNAL, "node %d is miscounted or empty", n);
                return false;
            }
            if (!check_snapshot(cache, n, leaves[n], err)) { return false; }
            n_children += node->n_children;
            n_parents += node->parent >= 0;
        }
    }
    for (int32_t n = cache->free_node; n != QR_KV_NONE; n = cache->nodes[n].next) { n_free_nodes++; }
    if (n_linked + n_free_nodes != cache->n_nodes || n_children != n_parents) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "%d nodes in use and %d free of %d; %d have a parent, parents count %d",
                n_linked, n_free_nodes, cache->n_nodes, n_parents, n_children);
        return false;
    }
    return true;
}

bool kv_cache_check(const qr_kv_cache *cache, const qr_kv_sequence *const *sequences, int32_t n_sequences,
                    qr_error *err) {
    int32_t n_free = 0, n_cached = 0, idle = 0;
    for (int32_t p = cache->free_page; p != QR_KV_NONE; p = cache->pages[p].next) { n_free++; }
    for (int32_t p = cache->lru_first; p != QR_KV_NONE; p = cache->pages[p].next) { n_cached++; }
    for (int32_t p = 0; p < cache->options.n_pages; p++) {
        const int32_t refs = count_references(cache, sequences, n_sequences, p);
        idle += refs == 0;
        if (!check_page(cache, p, refs, err)) { return false; }
    }
    if (n_free != cache->n_free || n_cached != cache->n_cached || n_free + n_cached != idle) {
        qr_fail(err, QRUN_ERROR_INTERNAL, "%d free and %d cached pages listed, %d and %d counted, %d idle", n_free,
                n_cached, cache->n_free, cache->n_cached, idle);
        return false;
    }
    return check_snapshots(cache, err) && check_nodes(cache, sequences, n_sequences, err);
}

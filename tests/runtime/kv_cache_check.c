#include "kv_cache_check.h"

#include "runtime/generate/kv_cache_internal.h"

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

static bool check_nodes(const qr_kv_cache *cache, const qr_kv_sequence *const *sequences, int32_t n_sequences,
                        qr_error *err) {
    int32_t n_linked = 0, n_free_nodes = 0, n_children = 0, n_parents = 0;
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
    return check_nodes(cache, sequences, n_sequences, err);
}

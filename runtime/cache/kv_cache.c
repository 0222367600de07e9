#include "runtime/cache/kv_cache_internal.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

enum { PAGE = QR_KV_PAGE_TOKENS, NONE = QR_KV_NONE };

/* ---- Lists of pages ---------------------------------------------------------------------------------------------- */

static void lru_remove(qr_kv_cache *cache, int32_t p) {
    qr_kv_page *page = &cache->pages[p];
    *(page->prev == NONE ? &cache->lru_first : &cache->pages[page->prev].next) = page->next;
    *(page->next == NONE ? &cache->lru_last : &cache->pages[page->next].prev) = page->prev;
    page->prev = page->next = NONE;
    cache->n_cached--;
}

static void lru_append(qr_kv_cache *cache, int32_t p) {
    qr_kv_page *page = &cache->pages[p];
    page->prev = cache->lru_last;
    page->next = NONE;
    *(cache->lru_last == NONE ? &cache->lru_first : &cache->pages[cache->lru_last].next) = p;
    cache->lru_last = p;
    cache->n_cached++;
}

static void free_append(qr_kv_cache *cache, int32_t p) {
    cache->pages[p].next = cache->free_page;
    cache->free_page = p;
    cache->n_free++;
}

static int32_t n_used(const qr_kv_cache *cache) { return cache->options.n_pages - cache->n_free - cache->n_cached; }

static void note_peak(qr_kv_cache *cache) { cache->peak_used = (int32_t)qr_max(cache->peak_used, n_used(cache)); }

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static bool same_key(qr_kv_key a, qr_kv_key b) { return a.adapter == b.adapter && a.rope_class == b.rope_class; }

static uint32_t bucket_of(const qr_kv_cache *cache, int32_t parent, qr_kv_key key, const int32_t *tokens) {
    uint64_t hash = qr_hash_keyed(&cache->hash_key, tokens, PAGE * sizeof *tokens);
    hash = qr_hash_keyed_word(&cache->hash_key, hash ^ (uint64_t)(uint32_t)parent);
    hash = qr_hash_keyed_word(&cache->hash_key, hash ^ (uint64_t)key.adapter);
    hash = qr_hash_keyed_word(&cache->hash_key, hash ^ (uint64_t)key.rope_class);
    return (uint32_t)hash & cache->bucket_mask;
}

static int32_t find_child(const qr_kv_cache *cache, int32_t parent, qr_kv_key key, const int32_t *tokens) {
    for (int32_t n = cache->buckets[bucket_of(cache, parent, key, tokens)]; n != NONE; n = cache->nodes[n].next) {
        const qr_kv_node *node = &cache->nodes[n];
        const bool same_tokens = memcmp(node->tokens, tokens, sizeof node->tokens) == 0;
        if (same_tokens && node->parent == parent && same_key(node->key, key)) { return n; }
    }
    return NONE;
}

/* What a block is called, after the one before it (or the key's root). */
static qr_digest digest_after(const qr_digest *before, const int32_t *tokens) {
    qr_digest_state state;
    qr_digest_begin(&state);
    qr_digest_add(&state, before, sizeof *before);
    qr_digest_add(&state, tokens, PAGE * sizeof *tokens);
    return qr_digest_end(&state);
}

static qr_digest digest_of(const qr_kv_cache *cache, int32_t node, qr_kv_key key) {
    const qr_kv_keeper *keeper = cache->options.keeper;
    return node == QR_KV_ROOT ? keeper->root(keeper->arg, key) : cache->digests[node];
}

/* NONE when every node is in use: the sequence then continues unshared. */
static int32_t make_child(qr_kv_cache *cache, int32_t parent, qr_kv_key key, const int32_t *tokens) {
    const int32_t n = cache->free_node;
    if (n == NONE) { return NONE; }
    qr_kv_node *node = &cache->nodes[n];
    cache->free_node = node->next;
    int32_t *bucket = &cache->buckets[bucket_of(cache, parent, key, tokens)];
    *node = (qr_kv_node){.parent = parent, .next = *bucket, .key = key, .snapshot = NONE};
    memcpy(node->tokens, tokens, sizeof node->tokens);
    *bucket = n;
    for (int32_t g = 0; g < cache->options.n_groups; g++) { *qr_kv_node_page(cache, n, g) = NONE; }
    if (cache->digests != NULL) {
        const qr_digest before = digest_of(cache, parent, key);
        cache->digests[n] = digest_after(&before, tokens);
    }
    if (parent != QR_KV_ROOT) {
        cache->nodes[parent].n_children++;
        cache->nodes[parent].n_leaves += qr_kv_is_leaf(node);
    }
    return n;
}

static void unlink_node(qr_kv_cache *cache, int32_t n) {
    qr_kv_node *node = &cache->nodes[n];
    int32_t *link = &cache->buckets[bucket_of(cache, node->parent, node->key, node->tokens)];
    while (*link != n) { link = &cache->nodes[*link].next; }
    *link = node->next;
    node->next = cache->free_node;
    cache->free_node = n;
}

/* Frees n and then its ancestors, as far as they have no pages, no children and are no tail. */
static void drop_if_empty(qr_kv_cache *cache, int32_t n) {
    while (n >= 0) {
        const qr_kv_node *node = &cache->nodes[n];
        if (node->n_children > 0 || node->n_tails > 0 || node->n_known > 0) { return; }
        const int32_t parent = node->parent;
        if (parent >= 0) {
            cache->nodes[parent].n_children--;
            cache->nodes[parent].n_leaves -= qr_kv_is_leaf(node);
        }
        unlink_node(cache, n);
        n = parent;
    }
}

static void forget_page(qr_kv_cache *cache, int32_t p) {
    qr_kv_page *page = &cache->pages[p];
    const int32_t n = page->node;
    qr_kv_node *node = &cache->nodes[n];
    *qr_kv_node_page(cache, n, page->group) = NONE;
    page->node = NONE;
    node->n_known--;
    if (node->snapshot != NONE) { cache->snapshots[node->snapshot].node = NONE; }
    node->snapshot = NONE;
    drop_if_empty(cache, n);
}

static void attach_page(qr_kv_cache *cache, int32_t n, int32_t group, int32_t p) {
    *qr_kv_node_page(cache, n, group) = p;
    cache->pages[p].node = n;
    cache->pages[p].group = group;
    cache->nodes[n].n_known++;
}

/* A copy of a full page for the keeper. */
static void give_to_keeper(const qr_kv_cache *cache, int32_t p, bool lasting) {
    const qr_kv_keeper *keeper = cache->options.keeper;
    const qr_kv_page *page = &cache->pages[p];
    if (keeper == NULL) { return; }
    const qr_kv_page_name name = {cache->digests[page->node], page->group, cache->nodes[page->node].tokens};
    keeper->keep(keeper->arg, &name, p, lasting);
}

void qr_kv_keep_all(qr_kv_cache *cache) {
    for (int32_t p = 0; p < cache->options.n_pages; p++) {
        if (cache->pages[p].node != NONE) { give_to_keeper(cache, p, true); }
    }
}

static void set_tail(qr_kv_cache *cache, qr_kv_sequence *sequence, int32_t tail) {
    const int32_t old = sequence->tail;
    sequence->tail = tail;
    if (tail >= 0) { cache->nodes[tail].n_tails++; }
    if (old >= 0) {
        cache->nodes[old].n_tails--;
        drop_if_empty(cache, old);
    }
}

/* ---- Pages of sequences ------------------------------------------------------------------------------------------ */

static int32_t *table_entry(const qr_kv_sequence *sequence, int32_t group, int64_t block) {
    return &sequence->tables[(int64_t)group * sequence->n_blocks + block];
}

int32_t qr_kv_table_entry(const qr_kv_sequence *sequence, int32_t group, int64_t block) {
    return *table_entry(sequence, group, block);
}

/* A page with one reference, its content unspecified. The caller made sure there is one. */
static int32_t take_page(qr_kv_cache *cache) {
    int32_t p = cache->free_page;
    if (p != NONE) {
        cache->free_page = cache->pages[p].next;
        cache->pages[p].next = NONE;
        cache->n_free--;
    } else {
        p = cache->lru_first;
        assert(p != NONE);
        lru_remove(cache, p);
        give_to_keeper(cache, p, false);
        forget_page(cache, p);
    }
    cache->pages[p].n_refs = 1;
    note_peak(cache);
    return p;
}

static void share_page(qr_kv_cache *cache, int32_t p) {
    if (cache->pages[p].n_refs == 0) { lru_remove(cache, p); }
    cache->n_shared += cache->pages[p].n_refs == 1;
    cache->pages[p].n_refs++;
    note_peak(cache);
}

static void release_page(qr_kv_cache *cache, int32_t p) {
    qr_kv_page *page = &cache->pages[p];
    assert(page->n_refs > 0);
    cache->n_shared -= page->n_refs == 2;
    if (--page->n_refs > 0) { return; }
    if (page->node != NONE) {
        lru_append(cache, p);
    } else {
        free_append(cache, p);
    }
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static bool make_tables(qr_kv_cache *cache) {
    const qr_kv_cache_options *options = &cache->options;
    uint32_t n_buckets = 16;
    while (n_buckets < (uint32_t)cache->n_nodes) { n_buckets *= 2; }
    cache->bucket_mask = n_buckets - 1;
    cache->pages = qr_alloc_array((size_t)options->n_pages, sizeof *cache->pages);
    cache->nodes = qr_alloc_array((size_t)cache->n_nodes, sizeof *cache->nodes);
    cache->node_pages = qr_alloc_array((size_t)cache->n_nodes * (size_t)options->n_groups, sizeof *cache->node_pages);
    cache->buckets = qr_alloc_array(n_buckets, sizeof *cache->buckets);
    cache->windows = qr_alloc_array((size_t)options->n_groups, sizeof *cache->windows);
    if (options->keeper != NULL) {
        cache->digests = qr_alloc_array((size_t)cache->n_nodes, sizeof *cache->digests);
        if (cache->digests == NULL) { return false; }
    }
    if (options->n_snapshots > 0) {
        cache->snapshots = qr_alloc_array((size_t)options->n_snapshots, sizeof *cache->snapshots);
        if (cache->snapshots == NULL) { return false; }
    }
    return cache->pages != NULL && cache->nodes != NULL && cache->node_pages != NULL && cache->buckets != NULL &&
           cache->windows != NULL;
}

static void fill_lists(qr_kv_cache *cache) {
    cache->free_page = cache->lru_first = cache->lru_last = cache->free_node = NONE;
    for (int32_t p = cache->options.n_pages - 1; p >= 0; p--) {
        cache->pages[p] = (qr_kv_page){.node = NONE, .prev = NONE};
        free_append(cache, p);
    }
    for (int32_t n = cache->n_nodes - 1; n >= 0; n--) {
        cache->nodes[n] = (qr_kv_node){.next = cache->free_node, .snapshot = NONE};
        cache->free_node = n;
    }
    cache->hash_key = qr_hash_key_of_process();
    for (uint32_t b = 0; b <= cache->bucket_mask; b++) { cache->buckets[b] = NONE; }
    for (int32_t i = 0; i < cache->options.n_snapshots; i++) { cache->snapshots[i] = (qr_kv_snapshot){.node = NONE}; }
}

qrun_status qr_kv_cache_create(const qr_kv_cache_options *options, qr_kv_cache **cache, qr_error *err) {
    *cache = NULL;
    if (options->n_pages < 1 || options->n_groups < 1) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a K/V pool needs at least one page and one group");
    }
    qr_kv_cache *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the K/V page tables", sizeof *made); }
    made->options = *options;
    /* Nodes without pages stay as long as they have descendants with some, hence more nodes than pages. A prefix that
     * is brought back has all its nodes before the pages of others make room for it, hence twice as many. */
    const int32_t n_spare = options->keeper != NULL ? options->n_pages : options->n_pages / 2;
    made->n_nodes = options->n_pages + n_spare + 64 + options->n_snapshots;
    if (!make_tables(made)) {
        qr_kv_cache_destroy(made);
        return qr_fail_memory(err, "the K/V page tables", (unsigned long long)options->n_pages * sizeof(qr_kv_node));
    }
    memcpy(made->windows, options->windows, (size_t)options->n_groups * sizeof *made->windows);
    made->options.windows = made->windows;
    fill_lists(made);
    *cache = made;
    return QRUN_OK;
}

void qr_kv_cache_destroy(qr_kv_cache *cache) {
    if (cache == NULL) { return; }
    qr_free(cache->pages);
    qr_free(cache->nodes);
    qr_free(cache->node_pages);
    qr_free(cache->buckets);
    qr_free(cache->windows);
    qr_free(cache->digests);
    qr_free(cache->snapshots);
    qr_free(cache);
}

static void free_tables(qr_kv_sequence *sequence) {
    qr_free(sequence->tables);
    qr_free(sequence->first_block);
    *sequence = (qr_kv_sequence){0};
}

static void reset_tables(const qr_kv_cache *cache, qr_kv_sequence *sequence) {
    for (int64_t i = 0; i < (int64_t)cache->options.n_groups * sequence->n_blocks; i++) { sequence->tables[i] = NONE; }
    for (int32_t g = 0; g < cache->options.n_groups; g++) { sequence->first_block[g] = 0; }
    sequence->n_tokens = 0;
    sequence->snapshot = QR_KV_NO_SNAPSHOT;
}

qrun_status qr_kv_sequence_create(const qr_kv_cache *cache, int64_t max_tokens, qr_kv_key key, qr_kv_sequence *sequence,
                                  qr_error *err) {
    const size_t n_groups = (size_t)cache->options.n_groups;
    *sequence = (qr_kv_sequence){.n_blocks = (int32_t)qr_ceil_div(max_tokens, PAGE), .tail = QR_KV_ROOT, .key = key};
    sequence->tables = qr_alloc_array(n_groups * (size_t)sequence->n_blocks, sizeof *sequence->tables);
    sequence->first_block = qr_alloc_array(n_groups, sizeof *sequence->first_block);
    if (sequence->tables == NULL || sequence->first_block == NULL) {
        free_tables(sequence);
        return qr_fail_memory(err, "a block table", n_groups * (size_t)qr_ceil_div(max_tokens, PAGE) * sizeof(int32_t));
    }
    reset_tables(cache, sequence);
    return QRUN_OK;
}

static void release_block(qr_kv_cache *cache, const qr_kv_sequence *sequence, int64_t block) {
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        const int32_t page = qr_kv_table_entry(sequence, g, block);
        if (page != NONE) { release_page(cache, page); }
    }
}

void qr_kv_sequence_release(qr_kv_cache *cache, qr_kv_sequence *sequence) {
    const int64_t n_written = qr_min(qr_ceil_div(sequence->n_tokens, PAGE) + 1, sequence->n_blocks);
    /* The last pages first: the end of a prefix is reused before its beginning, without which it would be useless. */
    for (int64_t b = n_written; b-- > 0;) { release_block(cache, sequence, b); }
    for (int64_t b = n_written; b < sequence->n_blocks; b++) { release_block(cache, sequence, b); } /* only reserved */
    set_tail(cache, sequence, QR_KV_ROOT);
    reset_tables(cache, sequence);
}

void qr_kv_sequence_destroy(qr_kv_cache *cache, qr_kv_sequence *sequence) {
    if (sequence->tables == NULL) { return; }
    qr_kv_sequence_release(cache, sequence);
    free_tables(sequence);
}

/* ---- Prefix sharing ---------------------------------------------------------------------------------------------- */

/* First block that a query at position n_tokens still sees in a group. */
static int64_t first_visible_block(int32_t window, int64_t n_tokens) {
    return window == 0 ? 0 : qr_max(n_tokens - window + 1, 0) / PAGE;
}

/* Of a prompt of n tokens, what n_blocks of it hold but for the last token, which is always computed. */
static int64_t tokens_shared(int64_t n_blocks, int64_t n) { return qr_min(n_blocks * PAGE, n - 1); }

/* Walks the tree along tokens and writes the nodes into table 0, where their pages go later; returns their number. */
static int64_t walk_nodes(const qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens,
                          int64_t max_blocks) {
    int32_t node = QR_KV_ROOT;
    int64_t n = 0;
    for (; n < max_blocks; n++) {
        node = find_child(cache, node, sequence->key, tokens + n * PAGE);
        if (node == NONE) { break; }
        *table_entry(sequence, 0, n) = node;
    }
    return n;
}

/* Where a shared prefix ends: after blocks, and then after the first tokens of a leaf's page. */
typedef struct prefix_end {
    int64_t n_blocks;
    int32_t node; /* the last block's, or QR_KV_ROOT */
    int32_t leaf; /* NONE: at a page border */
    int64_t n_leaf_tokens;
} prefix_end;

/* The leaf under a node with a snapshot and the most of the next n tokens; returns how many, 0: there is none. */
static int64_t find_leaf(const qr_kv_cache *cache, int32_t node, qr_kv_key key, const int32_t *tokens, int64_t n,
                         int32_t *leaf) {
    int32_t padded[PAGE];
    if (node != QR_KV_ROOT && cache->nodes[node].n_leaves == 0) { return 0; }
    for (int64_t k = qr_min(n, PAGE - 1); k > 0; k--) {
        for (int64_t i = 0; i < PAGE; i++) { padded[i] = i < k ? tokens[i] : QR_KV_NO_TOKEN; }
        *leaf = find_child(cache, node, key, padded);
        if (*leaf != NONE && cache->nodes[*leaf].snapshot != NONE) { return k; }
    }
    return 0;
}

/* With needs_snapshots: the last snapshot after the first n_blocks blocks, or in the block after them. */
static void end_at_snapshot(const qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens, int64_t n,
                            int32_t node, int64_t n_blocks, prefix_end *end) {
    int32_t leaf = NONE;
    const int64_t first = n_blocks * PAGE;
    if (n_blocks > 0 && cache->nodes[node].snapshot != NONE) { *end = (prefix_end){n_blocks, node, NONE, 0}; }
    const int64_t k = find_leaf(cache, node, sequence->key, tokens + first, n - 1 - first, &leaf);
    if (k > 0) { *end = (prefix_end){n_blocks, node, leaf, k}; }
}

/* The most blocks, at most n_nodes, after which every group still has all that the next token would see. One walk,
 * which uses first_block [n_groups], not in use yet, for the first page of each group's last run without a gap. */
static prefix_end find_end(const qr_kv_cache *cache, const qr_kv_sequence *nodes, const int32_t *tokens, int64_t n,
                           int64_t n_nodes) {
    const bool needs_snapshots = cache->options.needs_snapshots;
    prefix_end end = {.node = QR_KV_ROOT, .leaf = NONE};
    if (needs_snapshots) { end_at_snapshot(cache, nodes, tokens, n, QR_KV_ROOT, 0, &end); }
    for (int64_t b = 1; b <= n_nodes; b++) {
        const int32_t node = qr_kv_table_entry(nodes, 0, b - 1);
        bool whole = true;
        for (int32_t g = 0; g < cache->options.n_groups; g++) {
            if (*qr_kv_node_page(cache, node, g) == NONE) { nodes->first_block[g] = (int32_t)b; }
            whole = whole && nodes->first_block[g] <= first_visible_block(cache->windows[g], tokens_shared(b, n));
        }
        if (!whole) { continue; }
        if (needs_snapshots) {
            end_at_snapshot(cache, nodes, tokens, n, node, b, &end);
        } else {
            end = (prefix_end){b, node, NONE, 0};
        }
    }
    for (int32_t g = 0; g < cache->options.n_groups; g++) { nodes->first_block[g] = 0; }
    return end;
}

/* The leaf's pages follow those of whole blocks. */
static void share_leaf(qr_kv_cache *cache, qr_kv_sequence *sequence, const prefix_end *end) {
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        const int32_t page = *qr_kv_node_page(cache, end->leaf, g);
        *table_entry(sequence, g, end->n_blocks) = page;
        share_page(cache, page);
    }
}

/* After n_blocks of a prompt of n tokens. Where these are all of it, the sequence ends inside the last block, which its
 * last token completes again. */
static void set_shared(qr_kv_cache *cache, qr_kv_sequence *sequence, int32_t last_node, int64_t n_blocks, int64_t n) {
    const bool is_inside = n_blocks * PAGE >= n;
    set_tail(cache, sequence, is_inside ? cache->nodes[last_node].parent : last_node);
    sequence->n_tokens = tokens_shared(n_blocks, n);
}

static void match_in_pool(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n) {
    const int64_t n_most = cache->options.needs_snapshots ? n - 1 : n;
    const int64_t n_nodes = walk_nodes(cache, sequence, tokens, n_most / PAGE);
    const prefix_end end = find_end(cache, sequence, tokens, n, n_nodes);
    for (int64_t b = 0; b < n_nodes; b++) {
        const int32_t node = qr_kv_table_entry(sequence, 0, b);
        for (int32_t g = 0; g < cache->options.n_groups; g++) {
            const int64_t first = first_visible_block(cache->windows[g], tokens_shared(end.n_blocks, n));
            const int32_t page = b >= first && b < end.n_blocks ? *qr_kv_node_page(cache, node, g) : NONE;
            *table_entry(sequence, g, b) = page;
            if (page != NONE) { share_page(cache, page); }
            sequence->first_block[g] = (int32_t)first;
        }
    }
    if (end.leaf != NONE) { share_leaf(cache, sequence, &end); }
    set_shared(cache, sequence, end.node, end.n_blocks, n);
    sequence->n_tokens += end.n_leaf_tokens;
    const int32_t last = end.leaf != NONE ? end.leaf : end.node;
    if (cache->options.needs_snapshots && last >= 0) {
        sequence->snapshot = cache->nodes[last].snapshot;
        cache->snapshots[sequence->snapshot].last_used = ++cache->time;
    }
}

/* ---- Prefixes of the keeper -------------------------------------------------------------------------------------- */

/* As find_end, with the pages that the keeper has. */
static int64_t usable_with_keeper(const qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens,
                                  int64_t n_tokens) {
    const qr_kv_keeper *keeper = cache->options.keeper;
    qr_digest digest = digest_of(cache, QR_KV_ROOT, sequence->key);
    int32_t parent = QR_KV_ROOT;
    int64_t usable = 0;
    bool in_pool = true, possible = true;
    for (int64_t n = 1; n <= n_tokens / PAGE && possible; n++) {
        const int32_t *block = tokens + (n - 1) * PAGE;
        const int32_t node = in_pool ? find_child(cache, parent, sequence->key, block) : NONE;
        bool whole = true;
        in_pool = node != NONE;
        parent = node;
        digest = digest_after(&digest, block);
        for (int32_t g = 0; g < cache->options.n_groups; g++) {
            const qr_kv_page_name name = {digest, g, block};
            const bool present =
                (in_pool && *qr_kv_node_page(cache, node, g) != NONE) || keeper->has(keeper->arg, &name);
            if (!present) { sequence->first_block[g] = (int32_t)n; }
            possible = possible && (present || cache->windows[g] > 0);
            whole =
                whole && sequence->first_block[g] <= first_visible_block(cache->windows[g], tokens_shared(n, n_tokens));
        }
        if (whole) { usable = n; }
    }
    for (int32_t g = 0; g < cache->options.n_groups; g++) { sequence->first_block[g] = 0; }
    return usable;
}

/* Nodes for the first n_blocks of tokens, the last of them the sequence's tail, so that all stay. */
static bool make_nodes(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n_blocks) {
    for (int64_t b = 0; b < n_blocks; b++) {
        int32_t node = find_child(cache, sequence->tail, sequence->key, tokens + b * PAGE);
        if (node == NONE) { node = make_child(cache, sequence->tail, sequence->key, tokens + b * PAGE); }
        if (node == NONE) { return false; }
        set_tail(cache, sequence, node);
    }
    return true;
}

/* Shares the pages of the sequence's nodes that are in the pool, of those that position n_tokens sees. Returns how many
 * are not. */
static int64_t share_nodes(qr_kv_cache *cache, qr_kv_sequence *sequence, int64_t n_blocks, int64_t n_tokens) {
    int64_t n_missing = 0;
    int32_t node = sequence->tail;
    for (int64_t b = n_blocks; b-- > 0; node = cache->nodes[node].parent) {
        for (int32_t g = 0; g < cache->options.n_groups; g++) {
            const int64_t first = first_visible_block(cache->windows[g], n_tokens);
            const int32_t page = b >= first ? *qr_kv_node_page(cache, node, g) : NONE;
            *table_entry(sequence, g, b) = page;
            if (page != NONE) { share_page(cache, page); }
            n_missing += b >= first && page == NONE;
            sequence->first_block[g] = (int32_t)first;
        }
    }
    sequence->n_tokens = n_tokens;
    return n_missing;
}

/* Takes a page of the pool for each of a node that is missing, and has the keeper fill it. */
static bool bring_block(qr_kv_cache *cache, qr_kv_sequence *sequence, int32_t node, int64_t b) {
    const qr_kv_keeper *keeper = cache->options.keeper;
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        const qr_kv_page_name name = {cache->digests[node], g, cache->nodes[node].tokens};
        if (b < sequence->first_block[g] || *table_entry(sequence, g, b) != NONE) { continue; }
        const int32_t page = take_page(cache);
        *table_entry(sequence, g, b) = page;
        if (!keeper->bring(keeper->arg, &name, page)) { return false; }
        attach_page(cache, node, g, page);
    }
    return true;
}

/* From the first on: those before one that fails are in the pool then. */
static bool bring_blocks(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n,
                         int64_t n_blocks) {
    if (!make_nodes(cache, sequence, tokens, n_blocks)) { return false; }
    const int64_t n_missing = share_nodes(cache, sequence, n_blocks, tokens_shared(n_blocks, n));
    if (n_missing > cache->n_free + cache->n_cached) { return false; }
    int32_t node = QR_KV_ROOT;
    for (int64_t b = 0; b < n_blocks; b++) {
        node = find_child(cache, node, sequence->key, tokens + b * PAGE);
        if (!bring_block(cache, sequence, node, b)) { return false; }
    }
    set_shared(cache, sequence, node, n_blocks, n);
    return true;
}

/* More blocks than the pool has, if the keeper has them all and the pool has room. A page that cannot be used after all
 * makes the prefix shorter. */
static void match_with_keeper(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n) {
    const int64_t in_pool = sequence->n_tokens;
    bool brought = false;
    for (int64_t most = n / PAGE + 1; !brought;) {
        qr_kv_sequence_release(cache, sequence);
        const int64_t n_blocks = usable_with_keeper(cache, sequence, tokens, n);
        if (tokens_shared(n_blocks, n) <= in_pool || n_blocks >= most) { break; }
        brought = bring_blocks(cache, sequence, tokens, n, n_blocks);
        most = n_blocks;
    }
    if (!brought) {
        qr_kv_sequence_release(cache, sequence);
        match_in_pool(cache, sequence, tokens, n);
    }
    cache->n_brought_tokens += qr_max(sequence->n_tokens - in_pool, 0);
}

int64_t qr_kv_match_prefix(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n) {
    assert(sequence->n_tokens == 0);
    if (!cache->options.share_prefixes || n < 2) { return 0; }
    match_in_pool(cache, sequence, tokens, n);
    if (cache->options.keeper != NULL && sequence->n_tokens < tokens_shared(n / PAGE, n)) {
        match_with_keeper(cache, sequence, tokens, n);
    }
    return sequence->n_tokens;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/* A leaf's pages are of no use without it. */
static void forget_leaf(qr_kv_cache *cache, int32_t leaf) {
    int32_t n_left = cache->nodes[leaf].n_known;
    for (int32_t g = 0; n_left > 0; g++) {
        const int32_t page = *qr_kv_node_page(cache, leaf, g);
        if (page == NONE) { continue; }
        n_left--;
        forget_page(cache, page);
        if (cache->pages[page].n_refs > 0) { continue; }
        lru_remove(cache, page);
        free_append(cache, page);
    }
}

static void forget_snapshot(qr_kv_cache *cache, int32_t snapshot) {
    const int32_t n = cache->snapshots[snapshot].node;
    cache->snapshots[snapshot].node = NONE;
    cache->nodes[n].snapshot = NONE;
    if (qr_kv_is_leaf(&cache->nodes[n])) { forget_leaf(cache, n); }
}

void qr_kv_snapshots_forget(qr_kv_cache *cache) {
    for (int32_t i = 0; i < cache->options.n_snapshots; i++) {
        if (cache->snapshots[i].node != NONE) { forget_snapshot(cache, i); }
    }
}

/* A free number; the one not used for longest goes where there is none. */
static int32_t free_snapshot(qr_kv_cache *cache) {
    int32_t oldest = 0;
    for (int32_t i = 0; i < cache->options.n_snapshots; i++) {
        if (cache->snapshots[i].node == NONE) { return i; }
        if (cache->snapshots[i].last_used < cache->snapshots[oldest].last_used) { oldest = i; }
    }
    forget_snapshot(cache, oldest);
    return oldest;
}

/* Remembers the sequence's page of block b under a node, where neither is taken; every group. */
static void remember_pages(qr_kv_cache *cache, const qr_kv_sequence *sequence, int64_t b, int32_t node) {
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        const int32_t page = qr_kv_table_entry(sequence, g, b);
        if (page == NONE || *qr_kv_node_page(cache, node, g) != NONE || cache->pages[page].node != NONE) { continue; }
        *qr_kv_node_page(cache, node, g) = page;
        cache->pages[page].node = node;
        cache->pages[page].group = g;
        cache->nodes[node].n_known++;
    }
}

/* The node that the sequence's tokens end at, made where they end inside a page; NONE: it lacks pages. */
static int32_t node_at_end(qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens) {
    const int64_t n = sequence->n_tokens % PAGE, b = sequence->n_tokens / PAGE;
    int32_t node = sequence->tail, padded[PAGE];
    if (n > 0) {
        for (int64_t i = 0; i < PAGE; i++) { padded[i] = i < n ? tokens[b * PAGE + i] : QR_KV_NO_TOKEN; }
        node = find_child(cache, sequence->tail, sequence->key, padded);
        if (node == NONE) { node = make_child(cache, sequence->tail, sequence->key, padded); }
        if (node == NONE) { return NONE; }
        remember_pages(cache, sequence, b, node);
    }
    if (cache->nodes[node].n_known == cache->options.n_groups) { return node; }
    if (n > 0 && cache->nodes[node].n_known > 0) {
        forget_leaf(cache, node);
    } else if (n > 0) {
        drop_if_empty(cache, node);
    }
    return NONE;
}

int32_t qr_kv_snapshot_take(qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens) {
    if (!cache->options.share_prefixes || cache->options.n_snapshots == 0 || sequence->tail == QR_KV_UNSHARED ||
        sequence->n_tokens == 0) {
        return QR_KV_NO_SNAPSHOT;
    }
    const int32_t n = node_at_end(cache, sequence, tokens);
    if (n == NONE) { return QR_KV_NO_SNAPSHOT; }
    qr_kv_node *node = &cache->nodes[n];
    const bool is_there = node->snapshot != NONE;
    const int32_t snapshot = is_there ? node->snapshot : free_snapshot(cache);
    cache->snapshots[snapshot] = (qr_kv_snapshot){n, ++cache->time};
    node->snapshot = snapshot;
    return is_there ? QR_KV_NO_SNAPSHOT : snapshot;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* A page that others read, and one that the tree remembers while `keep`. With a keeper the latter is written in place:
 * it could be filled from there for another sequence before the copy is made. */
static bool must_copy(const qr_kv_cache *cache, int32_t page, bool keep) {
    if (page == NONE) { return false; }
    const bool is_known = cache->pages[page].node != NONE;
    return cache->pages[page].n_refs > 1 || (keep && is_known && cache->options.keeper == NULL);
}

static int64_t count_missing(const qr_kv_cache *cache, const qr_kv_sequence *sequence, int64_t first, int64_t last,
                             bool keep) {
    int64_t n = 0;
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        for (int64_t b = first; b <= last; b++) {
            const int32_t page = qr_kv_table_entry(sequence, g, b);
            n += page == NONE || must_copy(cache, page, keep);
        }
    }
    return n;
}

bool qr_kv_reserve(qr_kv_cache *cache, qr_kv_sequence *sequence, int64_t n_new, qr_kv_copy *copies, int32_t *n_copies) {
    const int64_t first = sequence->n_tokens / PAGE, last = (sequence->n_tokens + n_new - 1) / PAGE;
    const int64_t n_left = cache->n_free + cache->n_cached;
    assert(n_new > 0 && last < sequence->n_blocks);
    *n_copies = 0;
    const bool keep = count_missing(cache, sequence, first, last, true) <= n_left;
    if (!keep && count_missing(cache, sequence, first, last, false) > n_left) { return false; }
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        for (int64_t b = first; b <= last; b++) {
            int32_t *entry = table_entry(sequence, g, b);
            const int32_t old = *entry;
            if (must_copy(cache, old, keep)) {
                *entry = take_page(cache);
                copies[(*n_copies)++] = (qr_kv_copy){old, *entry};
                release_page(cache, old);
            } else if (old == NONE) {
                *entry = take_page(cache);
            } else if (cache->pages[old].node != NONE) {
                forget_page(cache, old); /* about to be overwritten */
            }
        }
    }
    return true;
}

/* Adds block b, which has just become full, to the tree under the sequence's tail. */
static void remember_block(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t b) {
    if (sequence->tail == QR_KV_UNSHARED) { return; }
    int32_t node = find_child(cache, sequence->tail, sequence->key, tokens + b * PAGE);
    if (node == NONE) { node = make_child(cache, sequence->tail, sequence->key, tokens + b * PAGE); }
    if (node == NONE) {
        set_tail(cache, sequence, QR_KV_UNSHARED);
        return;
    }
    remember_pages(cache, sequence, b, node);
    set_tail(cache, sequence, node);
}

static void release_outside_windows(qr_kv_cache *cache, qr_kv_sequence *sequence) {
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        const int64_t first = first_visible_block(cache->windows[g], sequence->n_tokens);
        for (int64_t b = sequence->first_block[g]; b < first; b++) {
            int32_t *entry = table_entry(sequence, g, b);
            if (*entry != NONE) { release_page(cache, *entry); }
            *entry = NONE;
        }
        if (first > sequence->first_block[g]) { sequence->first_block[g] = (int32_t)first; }
    }
}

void qr_kv_commit(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n_new) {
    const int64_t first = sequence->n_tokens / PAGE;
    sequence->n_tokens += n_new;
    if (cache->options.share_prefixes) {
        for (int64_t b = first; (b + 1) * PAGE <= sequence->n_tokens; b++) {
            remember_block(cache, sequence, tokens, b);
        }
    }
    release_outside_windows(cache, sequence);
}

void qr_kv_fork(qr_kv_cache *cache, const qr_kv_sequence *src, qr_kv_sequence *dst) {
    assert(dst->n_tokens == 0 && qr_ceil_div(src->n_tokens, PAGE) <= dst->n_blocks);
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        for (int64_t b = 0; b < qr_ceil_div(src->n_tokens, PAGE); b++) {
            const int32_t page = qr_kv_table_entry(src, g, b);
            *table_entry(dst, g, b) = page;
            if (page != NONE) { share_page(cache, page); }
        }
        dst->first_block[g] = src->first_block[g];
    }
    dst->n_tokens = src->n_tokens;
    dst->key = src->key;
    set_tail(cache, dst, src->tail);
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

int64_t qr_kv_group_pages(int32_t window, int64_t n_tokens, int64_t step_tokens) {
    const int64_t all = qr_ceil_div(n_tokens, PAGE);
    if (window == 0) { return all; }
    /* A step's own tokens, the window before them, and at either end a page that is only partly inside. */
    return qr_min(all, qr_ceil_div((int64_t)window + step_tokens, PAGE) + 2);
}

int64_t qr_kv_pages_needed(const qr_kv_cache *cache, int64_t n_tokens, int64_t step_tokens) {
    int64_t total = 0;
    for (int32_t g = 0; g < cache->options.n_groups; g++) {
        total += qr_kv_group_pages(cache->windows[g], n_tokens, step_tokens);
    }
    return total;
}

void qr_kv_get_stats(const qr_kv_cache *cache, qr_kv_stats *stats) {
    *stats = (qr_kv_stats){.n_pages = cache->options.n_pages,
                           .n_free = cache->n_free,
                           .n_cached = cache->n_cached,
                           .n_shared = cache->n_shared,
                           .n_used = n_used(cache),
                           .peak_used = cache->peak_used,
                           .n_brought_tokens = cache->n_brought_tokens};
}

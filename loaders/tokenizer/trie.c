/* A trie over bytes whose edges live in one hash table: small, built in one pass, a probe per byte. */
#include "base/sizes.h"
#include "loaders/tokenizer/internal.h"

qrun_status qr_trie_create(qr_trie *trie, size_t n_bytes, qr_error *err) {
    size_t n_edges = 16;
    while (n_edges < 2 * n_bytes) { n_edges *= 2; }
    if (n_edges > (size_t)1 << 31) {
        return qr_fail(err, QRUN_ERROR_INPUT, "the tokens have %zu bytes of text in all, too many", n_bytes);
    }
    trie->edges = qr_alloc_array_zeroed(n_edges, sizeof *trie->edges);
    if (trie->edges == NULL) { return qr_fail_memory(err, "the index of tokens", n_edges * sizeof *trie->edges); }
    trie->edge_mask = (uint32_t)(n_edges - 1);
    trie->n_nodes = 1;
    trie->hash_key = qr_hash_key_of_process();
    return QRUN_OK;
}

void qr_trie_free(qr_trie *trie) {
    qr_free(trie->edges);
    *trie = (qr_trie){0};
}

static qr_trie_edge *find_edge(const qr_trie *trie, uint32_t node, unsigned char byte) {
    const uint64_t key = ((uint64_t)node << 8 | byte) + 1;
    uint32_t at = (uint32_t)qr_hash_keyed_word(&trie->hash_key, key) & trie->edge_mask;
    while (trie->edges[at].key != 0 && trie->edges[at].key != key) { at = (at + 1) & trie->edge_mask; }
    return &trie->edges[at];
}

void qr_trie_insert(qr_trie *trie, const char *key, size_t n_bytes, int32_t value) {
    uint32_t node = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        const unsigned char byte = (unsigned char)key[i];
        qr_trie_edge *edge = find_edge(trie, node, byte);
        if (edge->key == 0) { *edge = (qr_trie_edge){((uint64_t)node << 8 | byte) + 1, trie->n_nodes++, -1}; }
        if (i + 1 == n_bytes) { edge->value = value; }
        node = edge->child;
    }
    if (n_bytes > 0) { trie->begins[(unsigned char)key[0]] = true; }
}

bool qr_trie_step(const qr_trie *trie, uint32_t *node, unsigned char byte, int32_t *value) {
    const qr_trie_edge *edge = find_edge(trie, *node, byte);
    *node = edge->child;
    *value = edge->value;
    return edge->key != 0;
}

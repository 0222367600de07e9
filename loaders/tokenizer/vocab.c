/* Token texts by id and ids by text: one arena, one hash table sized up front. */
#include <string.h>

#include "base/sizes.h"
#include "loaders/tokenizer/internal.h"

qrun_status qr_vocab_create(qr_vocab *vocab, int32_t n_tokens, int32_t n_ids, size_t n_bytes, qr_error *err) {
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)n_tokens) { n_slots *= 2; }
    vocab->bytes = qr_alloc(n_bytes);
    vocab->entries = qr_alloc_array((size_t)n_ids, sizeof *vocab->entries);
    vocab->slots = qr_alloc_array(n_slots, sizeof *vocab->slots);
    if (vocab->bytes == NULL || vocab->entries == NULL || vocab->slots == NULL) {
        return qr_fail_memory(err, "the vocabulary", n_bytes + n_slots * sizeof *vocab->slots);
    }
    vocab->n_ids = n_ids;
    vocab->hash_key = qr_hash_key_of_process();
    vocab->slot_mask = (uint32_t)(n_slots - 1);
    for (int32_t id = 0; id < n_ids; id++) { vocab->entries[id] = (qr_vocab_entry){0, QR_VOCAB_HOLE}; }
    for (size_t i = 0; i < n_slots; i++) { vocab->slots[i] = (qr_vocab_slot){0, -1}; }
    return QRUN_OK;
}

void qr_vocab_free(qr_vocab *vocab) {
    qr_free(vocab->bytes);
    qr_free(vocab->entries);
    qr_free(vocab->slots);
    *vocab = (qr_vocab){0};
}

static uint32_t hash_of(const qr_vocab *vocab, const char *text, size_t n_bytes) {
    return (uint32_t)qr_hash_keyed(&vocab->hash_key, text, n_bytes);
}

/* The slot that holds the text, or the free one where it belongs. */
static uint32_t find_slot(const qr_vocab *vocab, uint32_t hash, const char *text, size_t n_bytes) {
    uint32_t at = hash & vocab->slot_mask;
    for (; vocab->slots[at].id >= 0; at = (at + 1) & vocab->slot_mask) {
        if (vocab->slots[at].hash != hash) { continue; }
        const qr_vocab_entry *entry = &vocab->entries[vocab->slots[at].id];
        if ((size_t)entry->length == n_bytes && memcmp(vocab->bytes + entry->offset, text, n_bytes) == 0) { break; }
    }
    return at;
}

qrun_status qr_vocab_add(qr_vocab *vocab, int32_t id, const char *text, size_t n_bytes, const char *what,
                         qr_error *err) {
    const uint32_t hash = hash_of(vocab, text, n_bytes);
    const uint32_t at = find_slot(vocab, hash, text, n_bytes);
    if (vocab->slots[at].id >= 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the vocabulary has the token \"%.64s\" twice", what, text);
    }
    if (vocab->entries[id].length != QR_VOCAB_HOLE) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: two tokens of the vocabulary have the id %d, one is \"%.64s\"", what,
                       (int)id, text);
    }
    if (n_bytes > 0) { memcpy(vocab->bytes + vocab->n_bytes, text, n_bytes); }
    vocab->entries[id] = (qr_vocab_entry){(uint32_t)vocab->n_bytes, (int32_t)n_bytes};
    vocab->n_bytes += n_bytes;
    if (n_bytes > vocab->longest) { vocab->longest = n_bytes; }
    vocab->slots[at] = (qr_vocab_slot){hash, id};
    return QRUN_OK;
}

int32_t qr_vocab_find(const qr_vocab *vocab, const char *text, size_t n_bytes) {
    const uint32_t at = find_slot(vocab, hash_of(vocab, text, n_bytes), text, n_bytes);
    return vocab->slots[at].id;
}

const char *qr_vocab_text(const qr_vocab *vocab, int32_t id, size_t *n_bytes) {
    if (id < 0 || id >= vocab->n_ids || vocab->entries[id].length == QR_VOCAB_HOLE) { return NULL; }
    *n_bytes = (size_t)vocab->entries[id].length;
    return vocab->bytes + vocab->entries[id].offset;
}

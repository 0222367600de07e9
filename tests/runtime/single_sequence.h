/* One sequence through the forward pass, without a session: what model-level tests feed and read. */
#ifndef QR_TESTS_SINGLE_SEQUENCE_H
#define QR_TESTS_SINGLE_SEQUENCE_H

#include "runtime/cache/kv_cache.h"
#include "runtime/generate/forward.h"

typedef struct single_sequence {
    qrun_model *model;
    qr_forward *forward;
    qr_kv_cache *cache;
    qr_kv_sequence sequence;
    void *pages;
    size_t pages_bytes;
    void *state; /* NULL: the model's layers carry none along */
    size_t state_bytes;
    int64_t max_tokens;
    int32_t adapter; /* index of the adapter used, or −1 */
} single_sequence;

/* For up to max_tokens tokens, with the rotary frequencies of its first n_tokens (rope.h). */
qrun_status single_sequence_create(qrun_model *model, int64_t max_tokens, int64_t n_tokens, qr_kv_format kv_format,
                                   single_sequence *single, qr_error *err);
void single_sequence_destroy(single_sequence *single);

/* Runs tokens [n_done, n_done + n) of ids. */
qrun_status single_sequence_feed(single_sequence *single, const int32_t *ids, int64_t n, qr_error *err);

/* Logits of row `row` of the last feed, into [V]. */
qrun_status single_sequence_logits(single_sequence *single, int64_t row, float *logits, qr_error *err);

#endif

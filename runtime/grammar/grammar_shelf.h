/* Grammars that requests may share: the last few that a session made, by the text that each was made of. A grammar
 * lives until neither the shelf nor a request has it. Safe from any thread. */
#ifndef QR_RUNTIME_GRAMMAR_GRAMMAR_SHELF_H
#define QR_RUNTIME_GRAMMAR_GRAMMAR_SHELF_H

#include "base/buffer.h"
#include "runtime/grammar/grammar.h"

enum { QR_SHELF_GRAMMARS = 8, QR_SHELF_BYTES = 4 << 20 }; /* at most; masks are beside the bytes */

typedef struct qr_shelved_grammar {
    char *key;
    size_t key_bytes;
    qr_grammar *grammar; /* NULL: an empty place */
    uint64_t last_use;
} qr_shelved_grammar;

typedef struct qr_grammar_shelf {
    pthread_mutex_t lock;
    qr_shelved_grammar places[QR_SHELF_GRAMMARS];
    uint64_t n_uses;
} qr_grammar_shelf;

void qr_grammar_shelf_init(qr_grammar_shelf *shelf);
void qr_grammar_shelf_free(qr_grammar_shelf *shelf); /* after init */

/* The grammar that was made of these bytes, for one more user (qr_grammar_destroy); NULL: it is not there. */
qr_grammar *qr_grammar_shelf_find(qr_grammar_shelf *shelf, const qr_buffer *key);
/* Keeps it for others, in the place of those not asked for for longest. Where memory is short or it is too large, it
 * does not. Takes the key's bytes. */
void qr_grammar_shelf_keep(qr_grammar_shelf *shelf, qr_buffer *key, qr_grammar *grammar);

#endif

#include "runtime/grammar/grammar_shelf.h"

#include <string.h>

#include "base/alloc.h"

void qr_grammar_shelf_init(qr_grammar_shelf *shelf) {
    *shelf = (qr_grammar_shelf){.n_uses = 0};
    pthread_mutex_init(&shelf->lock, NULL);
}

static void clear(qr_shelved_grammar *place) {
    qr_free(place->key);
    qr_grammar_destroy(place->grammar);
    *place = (qr_shelved_grammar){0};
}

void qr_grammar_shelf_free(qr_grammar_shelf *shelf) {
    for (int i = 0; i < QR_SHELF_GRAMMARS; i++) { clear(&shelf->places[i]); }
    pthread_mutex_destroy(&shelf->lock);
}

static int64_t place_bytes(const qr_shelved_grammar *place) {
    return place->grammar != NULL ? (int64_t)place->key_bytes + qr_grammar_bytes(place->grammar) : 0;
}

static qr_shelved_grammar *find(qr_grammar_shelf *shelf, const char *key, size_t n_bytes) {
    for (int i = 0; i < QR_SHELF_GRAMMARS; i++) {
        qr_shelved_grammar *place = &shelf->places[i];
        const bool is_it =
            place->grammar != NULL && place->key_bytes == n_bytes && memcmp(place->key, key, n_bytes) == 0;
        if (is_it) { return place; }
    }
    return NULL;
}

qr_grammar *qr_grammar_shelf_find(qr_grammar_shelf *shelf, const qr_buffer *key) {
    qr_grammar *found = NULL;
    pthread_mutex_lock(&shelf->lock);
    qr_shelved_grammar *place = find(shelf, key->data, key->size);
    if (place != NULL) {
        place->last_use = ++shelf->n_uses;
        found = qr_grammar_share(place->grammar);
    }
    pthread_mutex_unlock(&shelf->lock);
    return found;
}

/* An empty place, after which all of them have at most so many bytes. */
static qr_shelved_grammar *make_place(qr_grammar_shelf *shelf, int64_t most_bytes) {
    for (;;) {
        qr_shelved_grammar *empty = NULL, *oldest = NULL;
        int64_t n_bytes = 0;
        for (int i = 0; i < QR_SHELF_GRAMMARS; i++) {
            qr_shelved_grammar *place = &shelf->places[i];
            n_bytes += place_bytes(place);
            if (place->grammar == NULL) {
                empty = place;
            } else if (oldest == NULL || place->last_use < oldest->last_use) {
                oldest = place;
            }
        }
        if ((empty != NULL && n_bytes <= most_bytes) || oldest == NULL) { return empty; }
        clear(oldest);
    }
}

void qr_grammar_shelf_keep(qr_grammar_shelf *shelf, qr_buffer *key, qr_grammar *grammar) {
    const size_t key_bytes = key->size;
    const int64_t n_bytes = (int64_t)key_bytes + qr_grammar_bytes(grammar);
    char *bytes = n_bytes <= QR_SHELF_BYTES ? qr_buffer_take(key) : NULL;
    if (bytes == NULL) { return; }
    pthread_mutex_lock(&shelf->lock);
    if (find(shelf, bytes, key_bytes) != NULL) { /* another thread was faster */
        qr_free(bytes);
    } else {
        *make_place(shelf, QR_SHELF_BYTES - n_bytes) = (qr_shelved_grammar){
            .key = bytes, .key_bytes = key_bytes, .grammar = qr_grammar_share(grammar), .last_use = ++shelf->n_uses};
    }
    pthread_mutex_unlock(&shelf->lock);
}

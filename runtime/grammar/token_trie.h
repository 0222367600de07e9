/* The tokens of a vocabulary by their bytes: what a token adds to a text, as a trie in depth-first order. Made once a
 * session.
 *
 * Most tokens are nothing but characters that stand for themselves in a JSON string. They are allowed inside one
 * whatever comes after it, so they lie in a trie of their own, which need not be walked there: `plain_masks` have them.
 *
 * Special tokens add no text. Here each has a byte that no text has, and then its name: so only a grammar that says
 * this takes them. */
#ifndef QR_RUNTIME_GRAMMAR_TOKEN_TRIE_H
#define QR_RUNTIME_GRAMMAR_TOKEN_TRIE_H

#include "loaders/tokenizer/tokenizer.h"

enum {
    QR_TOKEN_MAX_BYTES = 256,
    QR_PLAIN_TOKEN_CHARACTERS = 16,
    QR_SPECIAL_MARK = 0xFF, /* the byte before the name of a special token */
};

/* A node is its byte, after those of its ancestors. */
typedef struct qr_trie_node {
    int32_t end;    /* the node after all below this one */
    int32_t token;  /* that ends here; −1: none. Others with the same bytes: next_same */
    uint16_t depth; /* 1: of the first bytes */
    uint8_t byte;
} qr_trie_node;

typedef struct qr_trie_part {
    qr_trie_node *nodes;
    int32_t n_nodes;
} qr_trie_part;

typedef struct qr_token_trie {
    qr_trie_part plain, other;
    int64_t vocab;
    int32_t *next_same; /* [vocab]; −1: none */
    /* [QR_PLAIN_TOKEN_CHARACTERS + 1, mask_words] a bit for each token of `plain` with at most so many characters */
    uint32_t *plain_masks;
    char *text;       /* of all tokens, one after the other */
    uint32_t *begins; /* [vocab + 1] of each in `text`; without bytes: never allowed */
    int64_t mask_words;
} qr_token_trie;

/* Of the tokens below vocab. Those of more than QR_TOKEN_MAX_BYTES bytes have no bytes here.
 * QRUN_ERROR_UNSUPPORTED where a token's text depends on its neighbours. */
qrun_status qr_token_trie_create(const qr_tokenizer *tokenizer, int64_t vocab, qr_token_trie *trie, qr_error *err);
void qr_token_trie_free(qr_token_trie *trie); /* fine for a zeroed one */

/* The bytes of a token; 0 of them for one that is never allowed. */
const char *qr_token_trie_bytes(const qr_token_trie *trie, int32_t token, size_t *n_bytes);

#endif

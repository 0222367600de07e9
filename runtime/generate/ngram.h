/* Drafts from a sequence's own text: what followed the last time when its last tokens appeared. (Prompt lookup
 * decoding; Saxena, "Prompt Lookup Decoding", 2023.) */
#ifndef QR_RUNTIME_GENERATE_NGRAM_H
#define QR_RUNTIME_GENERATE_NGRAM_H

#include <stdint.h>

enum { QR_NGRAM_SHORTEST = 2, QR_NGRAM_LONGEST = 8 };

/* What is found: tokens[next] followed earlier on the same `length` tokens that the text ends with. */
typedef struct qr_ngram_match {
    int64_t next;
    int32_t length; /* QR_NGRAM_SHORTEST … QR_NGRAM_LONGEST; 0: no match */
} qr_ngram_match;

/* The longest match within tokens [n], of equally long ones the last. Takes O(n). */
qr_ngram_match qr_ngram_find(const int32_t *tokens, int64_t n);

#endif

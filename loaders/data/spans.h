/* Text of which some characters are targets, and which of its tokens that makes targets. */
#ifndef QR_LOADERS_DATA_SPANS_H
#define QR_LOADERS_DATA_SPANS_H

#include "base/buffer.h"
#include "base/status.h"
#include "loaders/tokenizer/tokenizer.h"

typedef struct qr_text_span {
    size_t start, end; /* bytes [start, end), at characters' edges */
} qr_text_span;

/* Zero-initialise before first use. */
typedef struct qr_marked_text {
    qr_buffer text;
    qr_text_span *spans; /* in rising order, apart from each other */
    size_t n_spans, capacity;
} qr_marked_text;

/* Does nothing for an empty span. */
qrun_status qr_marked_text_add(qr_marked_text *marked, size_t start, size_t end, qr_error *err);
void qr_marked_text_clear(qr_marked_text *marked); /* keeps the memory */
void qr_marked_text_free(qr_marked_text *marked);  /* back to the zero state */

/* Encodes the whole text at once. Appends its tokens to *tokens, and one byte per token, 0 or 1, to *is_target.
 *
 * A token is a target when it lies in a span. One that begins before a span counts if it shares more than white space
 * with it, as the first token of an answer may. One that ends after a span counts if only white space is outside,
 * because the text that follows was not written by the assistant. The characters of a token are found by decoding the
 * ids one by one and comparing with the text. Where the decoded text differs, because the tokenizer normalises it, the
 * tokens are compared with those of the text up to each edge and from each edge. Tokens that agree on the inner side of
 * both edges are targets; a token whose position is in doubt is not. */
qrun_status qr_marked_text_encode(const qr_marked_text *marked, const qr_tokenizer *tokenizer, qr_tokens *tokens,
                                  qr_buffer *is_target, qr_error *err);

#endif

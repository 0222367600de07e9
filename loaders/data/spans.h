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

/* Appends the tokens of the whole text, encoded at once, so that they are what the text's tokens are anywhere, to
 * *tokens, and one byte per token, 0 or 1, to *is_target.
 *
 * A token is a target when it lies in a span. One that reaches into a span from before counts when it shares more than
 * white space with it, as the first of an answer may; one that reaches out at the end counts when what it has outside
 * is white space, because what follows is somebody else's. The characters of a token are found by
 * decoding the ids one by one and comparing with the text. Where that does not give the text back, because the
 * tokenizer normalises it, the tokens are compared with those of the text up to, and from, each edge: what is the same
 * on the right side of both edges is a target, so that a token whose place is in doubt is none. */
qrun_status qr_marked_text_encode(const qr_marked_text *marked, const qr_tokenizer *tokenizer, qr_tokens *tokens,
                                  qr_buffer *is_target, qr_error *err);

#endif

#include "loaders/data/spans.h"

#include <string.h>

#include "base/alloc.h"

static const qr_encode_options body_only = {.add_special = false, .parse_special = true};

qrun_status qr_marked_text_add(qr_marked_text *marked, size_t start, size_t end, qr_error *err) {
    if (start >= end) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_array_grow(&marked->spans, &marked->capacity, marked->n_spans + 1, sizeof *marked->spans,
                                     "the targets of an example", err));
    marked->spans[marked->n_spans++] = (qr_text_span){start, end};
    return QRUN_OK;
}

void qr_marked_text_clear(qr_marked_text *marked) {
    qr_buffer_clear(&marked->text);
    marked->n_spans = 0;
}

void qr_marked_text_free(qr_marked_text *marked) {
    qr_buffer_free(&marked->text);
    qr_free(marked->spans);
    *marked = (qr_marked_text){0};
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static bool is_blank(const char *text, size_t start, size_t end) {
    while (start < end && is_space(text[start])) { start++; }
    return start >= end;
}

/* ---- where each token's characters are --------------------------------------------------------------------------- */

/* Steps over decoded[0, n) in the text at *at. White space may be missing on either side: some tokenizers put a space
 * before words, some added tokens swallow the space around them. False where the two differ otherwise. */
static bool match(const qr_buffer *text, const char *decoded, size_t n, qr_text_span *span, size_t *at) {
    span->start = span->end = *at;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        size_t next = *at;
        while (next < text->size && text->data[next] != decoded[i] && is_space(text->data[next])) { next++; }
        if (next < text->size && text->data[next] == decoded[i]) {
            if (!any) { span->start = next; }
            any = true;
            *at = span->end = next + 1;
        } else if (decoded[i] != ' ') {
            return false;
        }
    }
    return true;
}

typedef struct alignment {
    const qr_tokenizer *tokenizer;
    const qr_buffer *text;
    const int32_t *ids;
    bool byte_fallback;
    qr_text_span *spans; /* [n] */
    size_t n_placed;
    size_t at; /* in the text: after the last token placed */
} alignment;

static bool is_byte_token(const alignment *a, int32_t id) {
    size_t n_bytes = 0;
    const char *text = qr_tokenizer_token(a->tokenizer, id, &n_bytes);
    return a->byte_fallback && text != NULL && n_bytes == 6 && memcmp(text, "<0x", 3) == 0;
}

/* Places the tokens up to i, whose text together is `decoded`. All but the last gave nothing alone: they are parts of
 * one character, which is then the place of each, or a run of byte-fallback tokens, which is held until it ends. */
static bool place(alignment *a, size_t i, const qr_buffer *decoded) {
    size_t used = 0;
    bool same = true;
    if (!a->byte_fallback) {
        qr_text_span span;
        same = match(a->text, decoded->data, decoded->size, &span, &a->at);
        while (a->n_placed <= i) { a->spans[a->n_placed++] = span; }
        return same;
    }
    while (same && a->n_placed <= i) {
        const size_t left = decoded->size - used;
        const size_t n = is_byte_token(a, a->ids[a->n_placed]) ? left > 0 : a->n_placed == i ? left : 0;
        same = match(a->text, decoded->data + used, n, &a->spans[a->n_placed++], &a->at);
        used += n;
    }
    return same && used == decoded->size;
}

/* a->spans: the characters of each token; *aligned is false where decoding does not give the same text. */
static qrun_status align(alignment *a, size_t n, bool *aligned, qr_error *err) {
    qr_token_stream stream;
    qr_buffer decoded = {0};
    qrun_status status = QRUN_OK;
    qr_token_stream_init(&stream, a->tokenizer, false);
    *aligned = true;
    for (size_t i = 0; i < n && *aligned; i++) {
        qr_buffer_clear(&decoded);
        QR_TRY(qr_token_stream_push(&stream, a->ids[i], &decoded, err));
        if (i + 1 == n) { QR_TRY(qr_token_stream_finish(&stream, &decoded, err)); }
        if (!qr_buffer_ok(&decoded)) { QR_TRY(qr_fail_memory(err, "the text of a token", decoded.size)); }
        if (decoded.size > 0 || i + 1 == n) { *aligned = place(a, i, &decoded); }
    }
    *aligned = *aligned && is_blank(a->text->data, a->at, a->text->size);
out:
    qr_token_stream_free(&stream);
    qr_buffer_free(&decoded);
    return status;
}

static bool counts(const char *text, qr_text_span token, qr_text_span target) {
    const size_t start = token.start > target.start ? token.start : target.start;
    const size_t end = token.end < target.end ? token.end : target.end;
    if (start >= end) { return false; }
    if (start == token.start && end == token.end) { return true; }
    if (!is_blank(text, end, token.end)) { return false; }
    return !is_blank(text, start, end) || is_blank(text, token.start, start);
}

static void mark_by_position(const qr_marked_text *marked, const qr_text_span *tokens, size_t n, uint8_t *is_target) {
    size_t next = 0; /* the first span that may still reach the token */
    for (size_t i = 0; i < n; i++) {
        while (next < marked->n_spans && marked->spans[next].end <= tokens[i].start) { next++; }
        for (size_t k = next; k < marked->n_spans && marked->spans[k].start < tokens[i].end; k++) {
            if (counts(marked->text.data, tokens[i], marked->spans[k])) { is_target[i] = 1; }
        }
    }
}

/* ---- where the positions of the characters are not known
 * -------------------------------------------------------------- */

/* How many tokens at the front (or, from_end, at the end) of ids[0, n) are those of text[0, n_bytes). */
static qrun_status count_common(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes, const int32_t *ids,
                                size_t n, bool from_end, size_t *n_common, qr_error *err) {
    qr_tokens part = {0};
    const qrun_status status = qr_tokenizer_encode(tokenizer, text, n_bytes, &body_only, &part, err);
    size_t k = 0;
    while (k < n && k < part.n && (from_end ? ids[n - 1 - k] == part.ids[part.n - 1 - k] : ids[k] == part.ids[k])) {
        k++;
    }
    *n_common = k;
    qr_tokens_free(&part);
    return status;
}

static qrun_status mark_by_comparison(const qr_marked_text *marked, const qr_tokenizer *tokenizer, const int32_t *ids,
                                      size_t n, uint8_t *is_target, qr_error *err) {
    const qr_buffer *text = &marked->text;
    for (size_t i = 0; i < marked->n_spans; i++) {
        const qr_text_span span = marked->spans[i];
        size_t n_after, n_before;
        QR_RETURN_IF_ERROR(
            count_common(tokenizer, text->data + span.start, text->size - span.start, ids, n, true, &n_after, err));
        QR_RETURN_IF_ERROR(count_common(tokenizer, text->data, span.end, ids, n, false, &n_before, err));
        for (size_t k = n - n_after; k < n_before; k++) { is_target[k] = 1; }
    }
    return QRUN_OK;
}

qrun_status qr_marked_text_encode(const qr_marked_text *marked, const qr_tokenizer *tokenizer, qr_tokens *tokens,
                                  qr_buffer *is_target, qr_error *err) {
    const qr_buffer *text = &marked->text;
    const size_t n_before = tokens->n;
    qr_text_span *ranges = NULL;
    uint8_t *mask = NULL;
    qrun_status status;
    QR_TRY(qr_tokenizer_encode(tokenizer, text->size > 0 ? text->data : "", text->size, &body_only, tokens, err));
    const size_t n = tokens->n - n_before;
    if (n == 0) { goto out; }
    const int32_t *ids = tokens->ids + n_before;
    ranges = qr_alloc_array(n, sizeof *ranges);
    mask = qr_alloc_array_zeroed(n, sizeof *mask);
    if (ranges == NULL || mask == NULL) { QR_TRY(qr_fail_memory(err, "the positions of tokens", n * sizeof *ranges)); }
    qr_tokenizer_info info;
    qr_tokenizer_get_info(tokenizer, &info);
    alignment positions = {tokenizer, text, ids, info.byte_fallback, ranges, 0, 0};
    bool aligned;
    QR_TRY(align(&positions, n, &aligned, err));
    if (aligned) {
        mark_by_position(marked, ranges, n, mask);
    } else {
        QR_TRY(mark_by_comparison(marked, tokenizer, ids, n, mask, err));
    }
    qr_buffer_append(is_target, mask, n);
    if (!qr_buffer_ok(is_target)) { status = qr_fail_memory(err, "the mask of an example", n); }
out:
    qr_free(ranges);
    qr_free(mask);
    return status;
}

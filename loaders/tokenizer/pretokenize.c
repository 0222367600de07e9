/* Pre-tokenisers: a list of pieces over one text; each step splits the pieces, and some rewrite the text. */
#include <string.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static qrun_status push_piece(qr_encode_work *work, size_t start, size_t end, size_t n_first) {
    qr_piece_list *list = &work->next_pieces;
    if (start == end) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_array_grow(&list->items, &list->capacity, list->n + 1, sizeof *list->items,
                                     "the pieces of the text", work->err));
    list->items[list->n++] = (qr_piece){start, end, n_first};
    return QRUN_OK;
}

static qrun_status push_span(qr_encode_work *work, size_t start, size_t end, bool is_match) {
    QR_RETURN_IF_ERROR(qr_array_grow(&work->spans, &work->spans_capacity, work->n_spans + 1, sizeof *work->spans,
                                     "the pieces of the text", work->err));
    work->spans[work->n_spans++] = (qr_match_span){start, end, is_match};
    return QRUN_OK;
}

/* --- finding: work->spans covers the piece with matches and what lies between ------------------------------------- */

static qrun_status find_by_character(qr_encode_work *work, const qr_pretokenizer *step, const char *text,
                                     const qr_piece *piece) {
    size_t copied = piece->start;
    for (size_t i = piece->start; i < piece->end;) {
        uint32_t c;
        const size_t length = qr_utf8_decode(text + i, piece->end - i, &c);
        if (step->is_delimiter(c)) {
            if (copied < i) { QR_RETURN_IF_ERROR(push_span(work, copied, i, false)); }
            QR_RETURN_IF_ERROR(push_span(work, i, i + length, true));
            copied = i + length;
        }
        i += length;
    }
    if (copied < piece->end) { QR_RETURN_IF_ERROR(push_span(work, copied, piece->end, false)); }
    return QRUN_OK;
}

static qrun_status find_by_pattern(qr_encode_work *work, const qr_pretokenizer *step, const char *text,
                                   const qr_piece *piece) {
    /* The piece is the whole subject: lookarounds do not see what is around it. */
    qr_pattern_search search =
        qr_pattern_search_in(text + piece->start, piece->end - piece->start, &step->pattern, &work->matcher);
    size_t start, end, copied = 0;
    for (bool found = true; found;) {
        QR_RETURN_IF_ERROR(qr_pattern_next(&search, &start, &end, &found, work->err));
        if (!found) { break; }
        if (copied < start) { QR_RETURN_IF_ERROR(push_span(work, piece->start + copied, piece->start + start, false)); }
        QR_RETURN_IF_ERROR(push_span(work, piece->start + start, piece->start + end, true));
        copied = end;
    }
    if (copied < search.n_bytes) { QR_RETURN_IF_ERROR(push_span(work, piece->start + copied, piece->end, false)); }
    return QRUN_OK;
}

static qrun_status find_by_length(qr_encode_work *work, const qr_pretokenizer *step, const char *text,
                                  const qr_piece *piece) {
    for (size_t i = piece->start; i < piece->end;) {
        const size_t start = i;
        for (int64_t n = 0; n < step->n_characters && i < piece->end; n++) { i += qr_char_length(text[i]); }
        QR_RETURN_IF_ERROR(push_span(work, start, i, true));
    }
    return QRUN_OK;
}

static qrun_status find_spans(qr_encode_work *work, const qr_pretokenizer *step, const char *text,
                              const qr_piece *piece) {
    if (step->kind == QR_PRETOKENIZE_FIXED_LENGTH) { return find_by_length(work, step, text, piece); }
    return step->is_delimiter != NULL ? find_by_character(work, step, text, piece)
                                      : find_by_pattern(work, step, text, piece);
}

/* --- what becomes of the matches ---------------------------------------------------------------------------------- */

/* Joins spans into work->spans in place; joins(span, previous span is a match) says whether a span extends the last. */
static void join_forward(qr_encode_work *work, qr_split_behavior behavior) {
    size_t n = 0;
    bool previous = false;
    for (size_t i = 0; i < work->n_spans; i++) {
        const qr_match_span span = work->spans[i];
        const bool joins = behavior == QR_SPLIT_CONTIGUOUS ? span.is_match == previous : span.is_match && !previous;
        if (joins && n > 0) {
            work->spans[n - 1].end = span.end;
        } else {
            work->spans[n++] = span;
        }
        previous = span.is_match;
    }
    work->n_spans = n;
}

static void join_backward(qr_encode_work *work) {
    size_t at = work->n_spans;
    bool previous = false;
    for (size_t i = work->n_spans; i > 0; i--) {
        const qr_match_span span = work->spans[i - 1];
        if (span.is_match && !previous && at < work->n_spans) {
            work->spans[at].start = span.start;
        } else {
            work->spans[--at] = span;
        }
        previous = span.is_match;
    }
    work->n_spans -= at;
    memmove(work->spans, work->spans + at, work->n_spans * sizeof *work->spans);
}

static qrun_status split_piece(qr_encode_work *work, const qr_pretokenizer *step, const char *text,
                               const qr_piece *piece) {
    work->n_spans = 0;
    QR_RETURN_IF_ERROR(find_spans(work, step, text, piece));
    for (size_t i = 0; step->invert && i < work->n_spans; i++) { work->spans[i].is_match = !work->spans[i].is_match; }
    if (step->behavior == QR_SPLIT_CONTIGUOUS || step->behavior == QR_SPLIT_MERGED_WITH_PREVIOUS) {
        join_forward(work, step->behavior);
    } else if (step->behavior == QR_SPLIT_MERGED_WITH_NEXT) {
        join_backward(work);
    }
    for (size_t i = 0; i < work->n_spans; i++) {
        const qr_match_span span = work->spans[i];
        if (step->behavior == QR_SPLIT_REMOVED && span.is_match) { continue; }
        const size_t n_first = qr_first_from(piece->n_first, span.start - piece->start, span.end - span.start);
        QR_RETURN_IF_ERROR(push_piece(work, span.start, span.end, n_first));
    }
    return QRUN_OK;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static void take_next_pieces(qr_encode_work *work) {
    const qr_piece_list list = work->pieces;
    work->pieces = work->next_pieces;
    work->next_pieces = list;
    work->next_pieces.n = 0;
}

static qrun_status split_all(qr_encode_work *work, const qr_pretokenizer *step, const char *text) {
    for (size_t i = 0; i < work->pieces.n; i++) {
        QR_RETURN_IF_ERROR(split_piece(work, step, text, &work->pieces.items[i]));
    }
    take_next_pieces(work);
    return QRUN_OK;
}

/* The buffer that *text does not lie in, empty. */
static qr_buffer *other_buffer(qr_encode_work *work, const char *text) {
    qr_buffer *buffer = &work->mapped[work->mapped[0].data == text ? 1 : 0];
    qr_buffer_clear(buffer);
    return buffer;
}

/* Makes what was written to `out` the text. */
static qrun_status take_text(qr_encode_work *work, const qr_buffer *out, const char **text) {
    take_next_pieces(work);
    if (!qr_buffer_ok(out)) { return qr_fail_memory(work->err, "the pieces of the text", out->size); }
    *text = out->data != NULL ? out->data : "";
    return QRUN_OK;
}

static qrun_status map_to_bytes(qr_encode_work *work, const char *text, const qr_piece *piece, qr_buffer *out) {
    const size_t start = out->size;
    size_t n_first = 0;
    for (size_t i = piece->start; i < piece->end; i++) {
        const bool is_first = i < piece->start + piece->n_first;
        uint32_t c = (unsigned char)text[i];
        char bytes[4];
        if (work->escape_base != 0 && c >= 0xF4U) {
            (void)qr_utf8_decode(text + i, piece->end - i, &c);
            if (qr_is_escape(work->escape_base, c)) {
                c -= work->escape_base;
                i += 3;
            } else {
                c = 0xF4U;
            }
        }
        qr_buffer_append(out, bytes, qr_utf8_encode(qr_byte_to_char((unsigned char)c), bytes));
        if (is_first) { n_first = out->size - start; }
    }
    return push_piece(work, start, out->size, n_first);
}

static qrun_status byte_level(qr_encode_work *work, const qr_pretokenizer *step, const char **text) {
    if (step->add_prefix_space) {
        qr_buffer *out = other_buffer(work, *text);
        for (size_t i = 0; i < work->pieces.n; i++) {
            const qr_piece *piece = &work->pieces.items[i];
            const size_t start = out->size;
            const bool prepends = (*text)[piece->start] != ' ';
            if (prepends) { qr_buffer_append_char(out, ' '); }
            qr_buffer_append(out, *text + piece->start, piece->end - piece->start);
            const size_t n_first = piece->n_first > 0 && prepends ? piece->n_first + 1 : piece->n_first;
            QR_RETURN_IF_ERROR(push_piece(work, start, out->size, n_first));
        }
        QR_RETURN_IF_ERROR(take_text(work, out, text));
    }
    if (step->split) { QR_RETURN_IF_ERROR(split_all(work, step, *text)); }
    qr_buffer *out = other_buffer(work, *text);
    for (size_t i = 0; i < work->pieces.n; i++) {
        QR_RETURN_IF_ERROR(map_to_bytes(work, *text, &work->pieces.items[i], out));
    }
    return take_text(work, out, text);
}

/* Spaces become the mark. */
static void append_marked(const qr_pattern *mark, const char *text, size_t n_bytes, qr_buffer *out) {
    for (const char *at = text, *end = text + n_bytes; at < end;) {
        const char *space = memchr(at, ' ', (size_t)(end - at));
        qr_buffer_append(out, at, (size_t)((space != NULL ? space : end) - at));
        if (space != NULL) { qr_buffer_append(out, mark->literal, mark->n_literal); }
        at = space != NULL ? space + 1 : end;
    }
}

static qrun_status metaspace(qr_encode_work *work, const qr_pretokenizer *step, const char **text) {
    qr_buffer *out = other_buffer(work, *text);
    const char *mark = step->pattern.literal;
    const size_t n_mark = step->pattern.n_literal;
    for (size_t i = 0; i < work->pieces.n; i++) {
        const qr_piece *piece = &work->pieces.items[i];
        const char *begin = *text + piece->start;
        const size_t start = out->size, n_bytes = piece->end - piece->start;
        const bool marked = *begin == ' ' || (n_bytes >= n_mark && memcmp(begin, mark, n_mark) == 0);
        const bool prepends =
            step->scheme == QR_PREPEND_ALWAYS || (step->scheme == QR_PREPEND_FIRST && piece->n_first > 0);
        if (prepends && !marked) { qr_buffer_append(out, mark, n_mark); }
        append_marked(&step->pattern, begin, piece->n_first, out);
        const size_t n_first = piece->n_first > 0 ? out->size - start : 0;
        append_marked(&step->pattern, begin + piece->n_first, n_bytes - piece->n_first, out);
        QR_RETURN_IF_ERROR(push_piece(work, start, out->size, n_first));
    }
    QR_RETURN_IF_ERROR(take_text(work, out, text));
    return step->split ? split_all(work, step, *text) : QRUN_OK;
}

static size_t text_size(const qr_encode_work *work) {
    return work->pieces.n > 0 ? work->pieces.items[work->pieces.n - 1].end : 0;
}

qrun_status qr_pretokenize(qr_encode_work *work, const qr_segment *segment, const char **text) {
    work->pieces.n = 0;
    work->next_pieces.n = 0;
    *text = segment->text;
    QR_RETURN_IF_ERROR(push_piece(work, 0, segment->n_bytes, segment->n_first));
    take_next_pieces(work);
    work->budget.section = "pre_tokenizer";
    for (size_t i = 0; i < work->tokenizer->n_pretokenizers; i++) {
        const qr_pretokenizer *step = &work->tokenizer->pretokenizers[i];
        const size_t n_before = text_size(work);
        switch (step->kind) {
            case QR_PRETOKENIZE_SPLIT:
            case QR_PRETOKENIZE_FIXED_LENGTH: QR_RETURN_IF_ERROR(split_all(work, step, *text)); break;
            case QR_PRETOKENIZE_BYTE_LEVEL: QR_RETURN_IF_ERROR(byte_level(work, step, text)); break;
            case QR_PRETOKENIZE_METASPACE: QR_RETURN_IF_ERROR(metaspace(work, step, text)); break;
        }
        QR_RETURN_IF_ERROR(qr_budget_charge_stage(&work->budget, n_before, text_size(work), work->err));
    }
    return QRUN_OK;
}

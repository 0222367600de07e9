/* Normalisers: each reads one buffer and writes the other. */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static qrun_status replace(qr_encode_work *work, const qr_normalizer *normalizer, const char *text, size_t n_bytes,
                           qr_buffer *out) {
    qr_pattern_search search = qr_pattern_search_in(text, n_bytes, &normalizer->pattern, &work->matcher);
    const size_t max_bytes = qr_budget_limit(&work->budget, n_bytes);
    size_t start, end, copied = 0;
    bool found = true;
    while (found && out->size <= max_bytes) {
        QR_RETURN_IF_ERROR(qr_pattern_next(&search, &start, &end, &found, work->err));
        if (found) {
            qr_buffer_append(out, text + copied, start - copied);
            qr_buffer_append(out, normalizer->content, normalizer->n_content);
            copied = end;
        }
    }
    qr_buffer_append(out, text + copied, n_bytes - copied);
    return QRUN_OK;
}

static void append_char(qr_buffer *out, uint32_t c) {
    char bytes[4];
    qr_buffer_append(out, bytes, qr_utf8_encode(c, bytes));
}

/* BERT: control, format and private-use characters go, but for three that count as spaces. Every space is a plain
 * one. */
static void append_clean(qr_buffer *out, uint32_t c) {
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    const bool is_other =
        category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
    if (c == 0xFFFDU || (is_other && c != '\t' && c != '\n' && c != '\r')) { return; }
    append_char(out, qr_is_space(c) ? ' ' : c);
}

/* BERT's CJK ideographs, with a gap in the plane that its own list has. */

static bool is_chinese(uint32_t c) {
    return (c >= 0x4E00U && c <= 0x9FFFU) || (c >= 0x3400U && c <= 0x4DBFU) || (c >= 0x20000U && c <= 0x2A6DFU) ||
           (c >= 0x2A700U && c <= 0x2B73FU) || (c >= 0x2B740U && c <= 0x2B81FU) || (c >= 0x2B920U && c <= 0x2CEAFU) ||
           (c >= 0xF900U && c <= 0xFAFFU) || (c >= 0x2F800U && c <= 0x2FA1FU);
}

/* SentencePiece's rules for machine translation: most control characters go, and what it takes for spaces is one. */
static void append_nmt(qr_buffer *out, uint32_t c) {
    const bool is_control =
        (c >= 1 && c <= 8) || c == 0xBU || (c >= 0xEU && c <= 0x1FU) || c == 0x7FU || c == 0x8FU || c == 0x9FU;
    const bool is_space = c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680U ||
                          (c >= 0x200BU && c <= 0x200FU) || c == 0x2028U || c == 0x2029U || c == 0x2581U ||
                          c == 0xFEFFU || c == 0xFFFDU;
    if (!is_control) { append_char(out, is_space ? ' ' : c); }
}

static void append_bytes(qr_buffer *out, const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) { append_char(out, qr_byte_to_char((unsigned char)text[i])); }
}

static void append_mapped(qr_normalizer_kind kind, const char *text, size_t length, uint32_t c, qr_buffer *out) {
    switch (kind) {
        case QR_NORMALIZE_BYTE_LEVEL: append_bytes(out, text, length); break;
        case QR_NORMALIZE_STRIP_ACCENTS:
            if (!qr_is_mark(c)) { append_char(out, c); }
            break;
        case QR_NORMALIZE_STRIP_NONSPACING:
            if (utf8proc_category((utf8proc_int32_t)c) != UTF8PROC_CATEGORY_MN) { append_char(out, c); }
            break;
        case QR_NORMALIZE_BERT_CLEAN: append_clean(out, c); break;
        case QR_NORMALIZE_BERT_CHINESE:
            if (is_chinese(c)) { append_char(out, ' '); }
            append_char(out, c);
            if (is_chinese(c)) { append_char(out, ' '); }
            break;
        case QR_NORMALIZE_NMT: append_nmt(out, c); break;
        default: /* lower case */
            append_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
            if (c == 0x130U) { append_char(out, 0x307U); } /* the one character whose lower case is two */
    }
}

/* Normalisers that map each character by itself. A byte that is not UTF-8 is no character to any but ByteLevel. */
static void map_characters(const qr_encode_work *work, qr_normalizer_kind kind, const char *text, size_t n_bytes,
                           qr_buffer *out) {
    for (size_t i = 0, length; i < n_bytes; i += length) {
        uint32_t c;
        length = qr_utf8_decode(text + i, n_bytes - i, &c);
        if (!qr_is_escape(work->escape_base, c)) {
            append_mapped(kind, text + i, length, c, out);
        } else if (kind == QR_NORMALIZE_BYTE_LEVEL) {
            const char byte = (char)(unsigned char)(c - work->escape_base);
            append_bytes(out, &byte, 1);
        } else {
            append_char(out, c);
        }
    }
}

static void strip(const qr_normalizer *normalizer, const char *text, size_t n_bytes, qr_buffer *out) {
    const size_t start = normalizer->left ? qr_utf8_span(text, n_bytes, qr_is_space) : 0;
    const size_t left = n_bytes - start;
    qr_buffer_append(out, text + start, normalizer->right ? qr_utf8_trim(text + start, left, qr_is_space) : left);
}

static qrun_status apply(qr_encode_work *work, const qr_normalizer *normalizer, const char *text, size_t n_bytes,
                         qr_buffer *out) {
    switch (normalizer->kind) {
        case QR_NORMALIZE_FORM: return qr_unicode_normalize(normalizer->form, text, n_bytes, out, work->err);
        case QR_NORMALIZE_REPLACE: return replace(work, normalizer, text, n_bytes, out);
        case QR_NORMALIZE_PREPEND:
            if (n_bytes > 0) { qr_buffer_append(out, normalizer->content, normalizer->n_content); }
            qr_buffer_append(out, text, n_bytes);
            break;
        case QR_NORMALIZE_STRIP: strip(normalizer, text, n_bytes, out); break;
        case QR_NORMALIZE_CHARSMAP:
            qr_charsmap_apply(&normalizer->charsmap, text, n_bytes, qr_budget_limit(&work->budget, n_bytes), out);
            break;
        case QR_NORMALIZE_LOWERCASE:
        case QR_NORMALIZE_STRIP_ACCENTS:
        case QR_NORMALIZE_STRIP_NONSPACING:
        case QR_NORMALIZE_BERT_CLEAN:
        case QR_NORMALIZE_BERT_CHINESE:
        case QR_NORMALIZE_NMT:
        case QR_NORMALIZE_BYTE_LEVEL: map_characters(work, normalizer->kind, text, n_bytes, out); break;
    }
    return QRUN_OK;
}

/* --- where the normal form comes from ----------------------------------------------------------------------------- */

/* Bytes of the first n characters. */
static size_t characters_length(const qr_buffer *text, size_t n) {
    size_t i = 0;
    for (; n > 0 && i < text->size; n--) { i += qr_char_length(text->data[i]); }
    return i;
}

static size_t count_characters(const char *text, size_t n_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i += qr_char_length(text[i])) { n++; }
    return n;
}

/* Characters at the start of both. */
static size_t count_common(const qr_buffer *a, const qr_buffer *b) {
    size_t i = 0, n = 0;
    while (i < a->size && i < b->size) {
        const size_t length = qr_char_length(a->data[i]);
        if (b->size - i < length || memcmp(a->data + i, b->data + i, length) != 0) { break; }
        i += length;
        n++;
    }
    return n;
}

/* A replacement comes from where its match ends, what lies between from where it was. */
static qrun_status replaced_first(qr_encode_work *work, const qr_normalizer *normalizer, const qr_segment *segment,
                                  size_t *n_first) {
    qr_pattern_search search =
        qr_pattern_search_in(segment->text, segment->n_bytes, &normalizer->pattern, &work->matcher);
    size_t start, end, copied = 0;
    bool found = true;
    *n_first = 0;
    while (found) {
        QR_RETURN_IF_ERROR(qr_pattern_next(&search, &start, &end, &found, work->err));
        if (!found || start > segment->n_first) { break; }
        *n_first += start - copied;
        copied = end;
        if (end > segment->n_first) { return QRUN_OK; }
        *n_first += normalizer->n_content;
    }
    *n_first += segment->n_first - copied;
    return QRUN_OK;
}

/* How many bytes of the normal form come from the first n_first of the segment: as many characters as those alone would
 * become, unless marks that follow come in between. A character that composes with them keeps its place, as does one
 * that a character map removes, because the library takes the next one for it. */
static qrun_status normalized_first(qr_encode_work *work, const qr_normalizer *normalizer, const qr_segment *segment,
                                    const qr_buffer *normal, size_t *n_first) {
    if (segment->n_first == 0 || normal->size == 0) {
        *n_first = 0;
        return QRUN_OK;
    }
    if (normalizer->kind == QR_NORMALIZE_REPLACE) { return replaced_first(work, normalizer, segment, n_first); }
    qr_normalizer left_only = *normalizer; /* the end of these bytes is no end of the text */
    left_only.right = false;
    qr_buffer_clear(&work->word);
    QR_RETURN_IF_ERROR(apply(work, &left_only, segment->text, segment->n_first, &work->word));
    if (!qr_buffer_ok(&work->word)) { return qr_fail_memory(work->err, "the normalised text", segment->n_first); }
    qr_budget_spend(&work->budget, segment->n_first + work->word.size);
    size_t n = count_characters(work->word.data, work->word.size), n_least = 0;
    if (normalizer->kind == QR_NORMALIZE_FORM) {
        n = count_common(&work->word, normal);
        n_least = count_characters(segment->text, segment->n_first);
    } else if (normalizer->kind == QR_NORMALIZE_CHARSMAP) {
        n_least = 1;
    }
    *n_first = characters_length(normal, n > n_least ? n : n_least);
    return QRUN_OK;
}

qrun_status qr_normalize(qr_encode_work *work, qr_segment *segment) {
    work->budget.section = "normalizer";
    for (size_t i = 0; i < work->tokenizer->n_normalizers && segment->n_bytes > 0; i++) {
        const qr_normalizer *normalizer = &work->tokenizer->normalizers[i];
        qr_buffer *out = &work->normal[i % 2];
        qr_buffer_clear(out);
        QR_RETURN_IF_ERROR(apply(work, normalizer, segment->text, segment->n_bytes, out));
        if (!qr_buffer_ok(out)) { return qr_fail_memory(work->err, "the normalised text", segment->n_bytes); }
        QR_RETURN_IF_ERROR(qr_budget_charge_stage(&work->budget, segment->n_bytes, out->size, work->err));
        size_t n_first = 0;
        QR_RETURN_IF_ERROR(normalized_first(work, normalizer, segment, out, &n_first));
        *segment = (qr_segment){out->data != NULL ? out->data : "", out->size, n_first};
    }
    return QRUN_OK;
}

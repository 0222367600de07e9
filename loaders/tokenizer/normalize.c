/* Normalisers: each reads one buffer and writes the other. */
#include <utf8proc.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static qrun_status replace(qr_encode_work *work, const qr_normalizer *normalizer, const char *text, size_t n_bytes,
                           qr_buffer *out) {
    qr_pattern_search search = qr_pattern_search_in(text, n_bytes, &normalizer->pattern, work->tokenizer, &work->match);
    size_t start, end, copied = 0;
    bool found = true;
    while (found && out->size <= QR_MAX_NORMALIZED_BYTES) {
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

/* Normalisers that map each character by itself. */
static void map_characters(const qr_encode_work *work, qr_normalizer_kind kind, const char *text, size_t n_bytes,
                           qr_buffer *out) {
    for (size_t i = 0, length; i < n_bytes; i += length) {
        uint32_t c;
        length = qr_utf8_decode(text + i, n_bytes - i, &c);
        if (kind == QR_NORMALIZE_BYTE_LEVEL && qr_is_escape(work->escape_base, c)) {
            append_char(out, qr_byte_to_char((unsigned char)(c - work->escape_base)));
        } else if (kind == QR_NORMALIZE_BYTE_LEVEL) {
            for (size_t k = 0; k < length; k++) { append_char(out, qr_byte_to_char((unsigned char)text[i + k])); }
        } else if (kind == QR_NORMALIZE_STRIP_ACCENTS) {
            if (!qr_is_mark(c)) { qr_buffer_append(out, text + i, length); }
        } else {
            append_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
            if (c == 0x130U) { append_char(out, 0x307U); } /* the one character whose lower case is two */
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
        case QR_NORMALIZE_CHARSMAP: qr_charsmap_apply(&normalizer->charsmap, text, n_bytes, out); break;
        case QR_NORMALIZE_LOWERCASE:
        case QR_NORMALIZE_STRIP_ACCENTS:
        case QR_NORMALIZE_BYTE_LEVEL: map_characters(work, normalizer->kind, text, n_bytes, out); break;
    }
    return QRUN_OK;
}

qrun_status qr_normalize(qr_encode_work *work, const char **text, size_t *n_bytes) {
    for (size_t i = 0; i < work->tokenizer->n_normalizers; i++) {
        qr_buffer *out = &work->normal[i % 2];
        qr_buffer_clear(out);
        QR_RETURN_IF_ERROR(apply(work, &work->tokenizer->normalizers[i], *text, *n_bytes, out));
        if (!qr_buffer_ok(out)) { return qr_fail_memory(work->err, "the normalised text", *n_bytes); }
        if (out->size > QR_MAX_NORMALIZED_BYTES) {
            return qr_fail(work->err, QRUN_ERROR_INPUT, "the normalised text grew beyond 1 GiB");
        }
        *text = out->data != NULL ? out->data : "";
        *n_bytes = out->size;
    }
    return QRUN_OK;
}

/* Text to ids: added tokens, normalisation, added tokens again, pre-tokens, the model. */
#include <string.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

qrun_status qr_tokens_push(qr_tokens *tokens, int32_t id, qr_error *err) {
    QR_RETURN_IF_ERROR(
        qr_array_grow(&tokens->ids, &tokens->capacity, tokens->n + 1, sizeof *tokens->ids, "the token ids", err));
    tokens->ids[tokens->n++] = id;
    return QRUN_OK;
}

qrun_status qr_tokens_append(qr_tokens *tokens, const qr_tokens *more, qr_error *err) {
    for (size_t i = 0; i < more->n; i++) { QR_RETURN_IF_ERROR(qr_tokens_push(tokens, more->ids[i], err)); }
    return QRUN_OK;
}

void qr_tokens_free(qr_tokens *tokens) {
    qr_free(tokens->ids);
    *tokens = (qr_tokens){0};
}

void qr_encode_work_init(qr_encode_work *work, const qr_tokenizer *tokenizer, size_t n_bytes, qr_tokens *out,
                         qr_error *err) {
    *work = (qr_encode_work){
        .tokenizer = tokenizer, .budget = qr_budget_for(n_bytes), .out = out, .max_out = SIZE_MAX, .err = err};
    work->matcher = (qr_matcher){.regex = &tokenizer->regex, .budget = &work->budget};
}

void qr_encode_work_free(qr_encode_work *work) {
    for (int i = 0; i < 2; i++) {
        qr_buffer_free(&work->normal[i]);
        qr_buffer_free(&work->mapped[i]);
    }
    qr_buffer_free(&work->word);
    qr_free(work->pieces.items);
    qr_free(work->next_pieces.items);
    qr_free(work->spans);
    qr_matcher_free(&work->matcher);
    qr_free(work->symbols);
    qr_free(work->heap);
    qr_free(work->nodes);
}

qrun_status qr_byte_fallback(qr_encode_work *work, const char *text, size_t n_bytes, bool *done) {
    const size_t n_before = work->out->n;
    *done = false;
    for (size_t i = 0, length; i < n_bytes; i += length) {
        unsigned char bytes[4];
        uint32_t c;
        length = qr_utf8_decode(text + i, n_bytes - i, &c);
        const bool escape = qr_is_escape(work->escape_base, c);
        memcpy(bytes, text + i, length);
        if (escape) { bytes[0] = (unsigned char)(c - work->escape_base); }
        for (size_t k = 0; k < (escape ? 1 : length); k++) {
            const int32_t id = work->tokenizer->byte_ids[bytes[k]];
            QR_RETURN_IF_ERROR(id >= 0 ? qr_tokens_push(work->out, id, work->err) : QRUN_OK);
            if (id < 0) {
                work->out->n = n_before;
                return QRUN_OK;
            }
        }
    }
    *done = true;
    return QRUN_OK;
}

static qrun_status encode_text(qr_encode_work *work, const qr_segment *segment) {
    const char *text = NULL;
    QR_RETURN_IF_ERROR(qr_pretokenize(work, segment, &text));
    work->budget.section = "model";
    for (size_t i = 0; i < work->pieces.n && !qr_encode_is_over(work); i++) {
        const qr_piece piece = work->pieces.items[i];
        const char *word = text + piece.start;
        const size_t n_word = piece.end - piece.start;
        switch (work->tokenizer->model) {
            case QR_MODEL_BPE: QR_RETURN_IF_ERROR(qr_bpe_encode(work, word, n_word)); break;
            case QR_MODEL_UNIGRAM: QR_RETURN_IF_ERROR(qr_unigram_encode(work, word, n_word)); break;
            case QR_MODEL_WORD_PIECE: QR_RETURN_IF_ERROR(qr_word_piece_encode(work, word, n_word)); break;
            case QR_MODEL_WORD_LEVEL: QR_RETURN_IF_ERROR(qr_word_level_encode(work, word, n_word)); break;
        }
    }
    return QRUN_OK;
}

/* Text without raw added tokens. */
static qrun_status encode_normalized(qr_encode_work *work, qr_segment segment, bool skip_special) {
    if (segment.n_bytes == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_normalize(work, &segment));
    qr_added_search search = {
        work->tokenizer, &work->tokenizer->added_normalized, segment.text, segment.n_bytes, skip_special, 0, 0,
        &work->budget};
    for (int32_t index = 0; index >= 0 && !qr_encode_is_over(work);) {
        size_t start, end;
        work->budget.section = "added_tokens";
        index = qr_added_next(&search, &start, &end);
        QR_RETURN_IF_ERROR(qr_budget_check(&work->budget, work->err));
        if (start < end) {
            const size_t n_first = qr_first_from(segment.n_first, start, end - start);
            const qr_segment gap = {segment.text + start, end - start, n_first};
            QR_RETURN_IF_ERROR(encode_text(work, &gap));
        }
        if (index >= 0) { QR_RETURN_IF_ERROR(qr_tokens_push(work->out, work->tokenizer->added[index].id, work->err)); }
    }
    return QRUN_OK;
}

static qrun_status encode_all(qr_encode_work *work, const char *text, size_t n_bytes, bool skip_special) {
    qr_added_search search = {work->tokenizer, &work->tokenizer->added_raw, text, n_bytes, skip_special, 0, 0,
                              &work->budget};
    for (int32_t index = 0; index >= 0 && !qr_encode_is_over(work);) {
        size_t start, end;
        work->budget.section = "added_tokens";
        index = qr_added_next(&search, &start, &end);
        QR_RETURN_IF_ERROR(qr_budget_check(&work->budget, work->err));
        const size_t n_first = start == 0 && end > 0 ? qr_char_length(text[0]) : 0;
        QR_RETURN_IF_ERROR(encode_normalized(work, (qr_segment){text + start, end - start, n_first}, skip_special));
        if (index >= 0) { QR_RETURN_IF_ERROR(qr_tokens_push(work->out, work->tokenizer->added[index].id, work->err)); }
    }
    return QRUN_OK;
}

qrun_status qr_tokenizer_encode(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                const qr_encode_options *options, qr_tokens *tokens, qr_error *err) {
    enum { MAX_TEXT_BYTES = 1 << 30 };
    if (n_bytes > MAX_TEXT_BYTES) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a text of %zu bytes is too long to encode at once (at most 1 GiB)",
                       n_bytes);
    }
    const size_t n_before = tokens->n;
    qr_encode_work work;
    qr_encode_work_init(&work, tokenizer, n_bytes, tokens, err);
    qr_buffer escaped = {0};
    qrun_status status;
    QR_TRY(qr_escape_bytes(text, n_bytes, &escaped, &work.escape_base, err));
    if (escaped.size > 0) {
        text = escaped.data;
        n_bytes = escaped.size;
    }
    if (options->max_tokens > 0) { work.max_out = n_before + (size_t)options->max_tokens; }
    if (options->add_special) { QR_TRY(qr_tokens_append(tokens, &tokenizer->prefix, err)); }
    QR_TRY(encode_all(&work, text, n_bytes, !options->parse_special));
    if (options->add_special) { QR_TRY(qr_tokens_append(tokens, &tokenizer->suffix, err)); }
out:
    if (status != QRUN_OK) { tokens->n = n_before; }
    qr_buffer_free(&escaped);
    qr_encode_work_free(&work);
    return status;
}

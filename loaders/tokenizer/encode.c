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

void qr_encode_work_free(qr_encode_work *work) {
    for (int i = 0; i < 2; i++) {
        qr_buffer_free(&work->normal[i]);
        qr_buffer_free(&work->mapped[i]);
    }
    qr_buffer_free(&work->word);
    qr_free(work->pieces.items);
    qr_free(work->next_pieces.items);
    qr_free(work->spans);
    pcre2_match_data_free(work->match);
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

static qrun_status encode_word_level(qr_encode_work *work, const char *text, size_t n_bytes) {
    int32_t id = qr_vocab_find(&work->tokenizer->vocab, text, n_bytes);
    if (id < 0) { id = work->tokenizer->model_unk_id; }
    if (id < 0) {
        return qr_fail(work->err, QRUN_ERROR_INPUT,
                       "the text has a word that the WordLevel vocabulary lacks, and its unk_token is not a token");
    }
    return qr_tokens_push(work->out, id, work->err);
}

static qrun_status encode_text(qr_encode_work *work, const char *text, size_t n_bytes, bool first) {
    QR_RETURN_IF_ERROR(qr_pretokenize(work, &text, n_bytes, first));
    for (size_t i = 0; i < work->pieces.n; i++) {
        const qr_piece piece = work->pieces.items[i];
        const char *word = text + piece.start;
        const size_t n_word = piece.end - piece.start;
        switch (work->tokenizer->model) {
            case QR_MODEL_BPE: QR_RETURN_IF_ERROR(qr_bpe_encode(work, word, n_word)); break;
            case QR_MODEL_UNIGRAM: QR_RETURN_IF_ERROR(qr_unigram_encode(work, word, n_word)); break;
            case QR_MODEL_WORD_LEVEL: QR_RETURN_IF_ERROR(encode_word_level(work, word, n_word)); break;
        }
    }
    return QRUN_OK;
}

/* Text without raw added tokens. */
static qrun_status encode_normalized(qr_encode_work *work, const char *text, size_t n_bytes, bool first,
                                     bool skip_special) {
    if (n_bytes == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_normalize(work, &text, &n_bytes));
    qr_added_search search = {work->tokenizer, &work->tokenizer->added_normalized, text, n_bytes, skip_special, 0, 0};
    for (int32_t index = 0; index >= 0;) {
        size_t start, end;
        index = qr_added_next(&search, &start, &end);
        if (start < end) { QR_RETURN_IF_ERROR(encode_text(work, text + start, end - start, first && start == 0)); }
        if (index >= 0) { QR_RETURN_IF_ERROR(qr_tokens_push(work->out, work->tokenizer->added[index].id, work->err)); }
    }
    return QRUN_OK;
}

static qrun_status encode_all(qr_encode_work *work, const char *text, size_t n_bytes, bool skip_special) {
    qr_added_search search = {work->tokenizer, &work->tokenizer->added_raw, text, n_bytes, skip_special, 0, 0};
    for (int32_t index = 0; index >= 0;) {
        size_t start, end;
        index = qr_added_next(&search, &start, &end);
        QR_RETURN_IF_ERROR(encode_normalized(work, text + start, end - start, start == 0, skip_special));
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
    qr_encode_work work = {.tokenizer = tokenizer, .out = tokens, .err = err};
    qr_buffer escaped = {0};
    qrun_status status;
    QR_TRY(qr_escape_bytes(text, n_bytes, &escaped, &work.escape_base, err));
    if (escaped.size > 0) {
        text = escaped.data;
        n_bytes = escaped.size;
    }
    if (options->add_special) { QR_TRY(qr_tokens_append(tokens, &tokenizer->prefix, err)); }
    QR_TRY(encode_all(&work, text, n_bytes, !options->parse_special));
    if (options->add_special) { QR_TRY(qr_tokens_append(tokens, &tokenizer->suffix, err)); }
out:
    if (status != QRUN_OK) { tokens->n = n_before; }
    qr_buffer_free(&escaped);
    qr_encode_work_free(&work);
    return status;
}

/* What the tokenizer's tests share: calls that fail the case on an error. */
#ifndef QR_TESTS_TOKENIZER_CHECK_H
#define QR_TESTS_TOKENIZER_CHECK_H

#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
#include "check.h"
#include "loaders/tokenizer/tokenizer.h"

static const qr_encode_options plain = {.add_special = false, .parse_special = true};

static inline qr_tokenizer *open_folder(const char *folder) {
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_MSG(qr_tokenizer_open(folder, &tokenizer, &err) == QRUN_OK, "%s", err.message);
    return tokenizer;
}

static inline qr_tokenizer *open_shared(const char *name) {
    char folder[256];
    snprintf(folder, sizeof folder, "tokenizers/%s", name);
    const char *path = check_shared_data(folder);
    if (path == NULL) {
        check_skip("no ../shared/data");
        return NULL;
    }
    return open_folder(path);
}

/* The ids of a text; fails the case on an error. */
static inline qr_tokens encode(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes,
                               const qr_encode_options *options) {
    qr_error err = {0};
    qr_tokens tokens = {0};
    CHECK_MSG(qr_tokenizer_encode(tokenizer, text, n_bytes, options, &tokens, &err) == QRUN_OK, "%s", err.message);
    return tokens;
}

static inline char *decode(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special, size_t *n_bytes) {
    qr_error err = {0};
    qr_buffer out = {0};
    CHECK_MSG(qr_tokenizer_decode(tokenizer, tokens->ids, tokens->n, skip_special, &out, &err) == QRUN_OK, "%s",
              err.message);
    *n_bytes = out.size;
    return qr_buffer_take(&out);
}

/* One id at a time; every append must be whole characters. */
static inline char *decode_stream(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special,
                                  size_t *n_bytes) {
    qr_error err = {0};
    qr_buffer out = {0};
    qr_token_stream stream;
    qr_token_stream_init(&stream, tokenizer, skip_special);
    for (size_t i = 0; i <= tokens->n; i++) {
        const size_t before = out.size;
        const qrun_status status = i < tokens->n ? qr_token_stream_push(&stream, tokens->ids[i], &out, &err)
                                                 : qr_token_stream_finish(&stream, &out, &err);
        CHECK_MSG(status == QRUN_OK, "%s", err.message);
        const size_t n_new = out.size - before;
        CHECK_MSG(n_new == 0 || qr_utf8_valid_prefix(out.data + before, n_new) == n_new,
                  "half a character at token %zu", i);
    }
    qr_token_stream_free(&stream);
    *n_bytes = out.size;
    return qr_buffer_take(&out);
}

/* The whole decode, the streamed decode, and that they are the same. */
static inline char *decode_both_ways(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special,
                                     size_t *n_bytes) {
    size_t n_streamed;
    char *whole = decode(tokenizer, tokens, skip_special, n_bytes);
    char *streamed = decode_stream(tokenizer, tokens, skip_special, &n_streamed);
    CHECK_MSG(n_streamed == *n_bytes && memcmp(whole, streamed, n_streamed) == 0,
              "the streamed text differs from the whole one: \"%s\", \"%s\"", streamed, whole);
    qr_free(streamed);
    return whole;
}

#endif

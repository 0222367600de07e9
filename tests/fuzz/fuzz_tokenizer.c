/* A tokenizer.json and, after the first NUL, a text for it. What is accepted must mean something: every id a token, the
 * decoded text UTF-8, the same whole and streamed, the same ids a second time.
 *
 * A run is cheap where the text is short: what long texts may cost is test_tokenizer_limits' to hold. The last bit of
 * the text's first byte says whether special tokens are added and recognised. */
#include "base/utf8.h"
#include "fuzz.h"
#include "loaders/tokenizer/tokenizer.h"

static void check_decode(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special) {
    qr_error err = {0};
    qr_buffer whole = {0}, streamed = {0};
    qrun_status status = qr_tokenizer_decode(tokenizer, tokens->ids, tokens->n, skip_special, &whole, &err);
    qr_token_stream stream;
    qr_token_stream_init(&stream, tokenizer, skip_special);
    for (size_t i = 0; status == QRUN_OK && i <= tokens->n; i++) {
        const size_t before = streamed.size;
        status = i < tokens->n ? qr_token_stream_push(&stream, tokens->ids[i], &streamed, &err)
                               : qr_token_stream_finish(&stream, &streamed, &err);
        const size_t n_new = streamed.size - before;
        FUZZ_CHECK(n_new == 0 || qr_utf8_valid_prefix(streamed.data + before, n_new) == n_new);
    }
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    if (status == QRUN_OK) {
        FUZZ_CHECK(whole.size == streamed.size);
        FUZZ_CHECK(whole.size == 0 || memcmp(whole.data, streamed.data, whole.size) == 0);
    }
    qr_token_stream_free(&stream);
    qr_buffer_free(&whole);
    qr_buffer_free(&streamed);
}

/* With a limit there are more tokens than it, or all of them. */
static void check_limit(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes, qr_encode_options options,
                        const qr_tokens *all, size_t most) {
    qr_tokens some = {0};
    options.max_tokens = (int64_t)most;
    FUZZ_CHECK(qr_tokenizer_encode(tokenizer, text, n_bytes, &options, &some, NULL) == QRUN_OK);
    FUZZ_CHECK(all->n > most ? some.n > most : some.n == all->n);
    FUZZ_CHECK(all->n > most || all->n == 0 || memcmp(some.ids, all->ids, all->n * sizeof *all->ids) == 0);
    qr_tokens_free(&some);
}

static void check_text(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes, qr_encode_options options) {
    qr_error err = {0};
    qr_tokens tokens = {0}, again = {0};
    const qrun_status status = qr_tokenizer_encode(tokenizer, text, n_bytes, &options, &tokens, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    if (status == QRUN_OK) {
        for (size_t i = 0; i < tokens.n; i++) {
            size_t n;
            FUZZ_CHECK(qr_tokenizer_token(tokenizer, tokens.ids[i], &n) != NULL);
        }
        FUZZ_CHECK(qr_tokenizer_encode(tokenizer, text, n_bytes, &options, &again, &err) == QRUN_OK);
        FUZZ_CHECK(again.n == tokens.n);
        FUZZ_CHECK(again.n == 0 || memcmp(again.ids, tokens.ids, again.n * sizeof *again.ids) == 0);
        check_decode(tokenizer, &tokens, options.parse_special);
        check_limit(tokenizer, text, n_bytes, options, &tokens, tokens.n / 2 + 1);
        check_limit(tokenizer, text, n_bytes, options, &tokens, tokens.n + 1);
    } else {
        FUZZ_CHECK(tokens.n == 0);
    }
    qr_tokens_free(&tokens);
    qr_tokens_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n_json = nul != NULL ? (size_t)(nul - data) : size;
    const char *text = nul != NULL ? (const char *)nul + 1 : "";
    enum { MAX_TEXT_BYTES = 128 };
    size_t n_text = nul != NULL ? size - n_json - 1 : 0;
    if (n_text > MAX_TEXT_BYTES) { n_text = MAX_TEXT_BYTES; }
    const bool special = n_text > 0 && text[0] % 2 != 0;
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    const qrun_status status = qr_tokenizer_parse((const char *)data, n_json, "fuzz", &tokenizer, &err);
    FUZZ_CHECK((status == QRUN_OK) == (tokenizer != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (status != QRUN_OK) { return 0; }
    check_text(tokenizer, text, n_text, (qr_encode_options){.add_special = special, .parse_special = special});
    qr_tokenizer_destroy(tokenizer);
    return 0;
}

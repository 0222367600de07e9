/* Characters to tokens, with tokenizers of every kind: what the marked tokens say is what was marked. */
#include "dataset_check.h"

#include "loaders/data/spans.h"

/* Text with the targets in brackets. */
static void mark(const char *text, qr_marked_text *marked) {
    size_t start = 0;
    qr_error err = {0};
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '[') {
            start = marked->text.size;
        } else if (*c == ']') {
            CHECK(qr_marked_text_add(marked, start, marked->text.size, &err) == QRUN_OK);
        } else {
            qr_buffer_append_char(&marked->text, *c);
        }
    }
}

static void trim(qr_buffer *text) {
    size_t start = 0;
    while (text->size > 0 && strchr(" \n", text->data[text->size - 1]) != NULL) { text->size--; }
    while (start < text->size && strchr(" \n", text->data[start]) != NULL) { start++; }
    text->size -= start;
    if (text->data == NULL) { return; }
    memmove(text->data, text->data + start, text->size);
    text->data[text->size] = '\0';
}

static void check_run(const char *name, const qr_tokenizer *tokenizer, const int32_t *ids, size_t n,
                      const qr_marked_text *marked, size_t span) {
    qr_buffer found = {0}, expected = {0};
    qr_error err = {0};
    CHECK(qr_tokenizer_decode(tokenizer, ids, n, false, &found, &err) == QRUN_OK);
    qr_buffer_append(&expected, marked->text.data + marked->spans[span].start,
                     marked->spans[span].end - marked->spans[span].start);
    trim(&found);
    trim(&expected);
    CHECK_MSG(found.size == expected.size && memcmp(found.data, expected.data, found.size) == 0,
              "%s: span %zu is \"%s\", expected \"%s\"", name, span, found.data, expected.data);
    qr_buffer_free(&found);
    qr_buffer_free(&expected);
}

/* Every run of target tokens decodes to its span, but for white space around it. */
static void check_text(const char *name, const qr_tokenizer *tokenizer, const char *text) {
    qr_marked_text marked = {0};
    qr_tokens tokens = {0}, whole = {0};
    qr_buffer mask = {0};
    qr_error err = {0};
    mark(text, &marked);
    CHECK_MSG(qr_marked_text_encode(&marked, tokenizer, &tokens, &mask, &err) == QRUN_OK, "%s: %s", name, err.message);
    CHECK(qr_tokenizer_encode(tokenizer, marked.text.data, marked.text.size,
                              &(qr_encode_options){.parse_special = true}, &whole, &err) == QRUN_OK);
    CHECK_INT(tokens.n, whole.n);
    CHECK_INT(mask.size, whole.n);
    CHECK(memcmp(tokens.ids, whole.ids, whole.n * sizeof *whole.ids) == 0);
    size_t n_runs = 0;
    for (size_t t = 0; t < mask.size; t++) {
        if (mask.data[t] == 0) { continue; }
        size_t n = 0;
        while (t + n < mask.size && mask.data[t + n] != 0) { n++; }
        if (n_runs < marked.n_spans) { check_run(name, tokenizer, tokens.ids + t, n, &marked, n_runs); }
        n_runs++;
        t += n;
    }
    CHECK_MSG(n_runs == marked.n_spans, "%s: %zu runs for %zu spans in \"%s\"", name, n_runs, marked.n_spans, text);
    qr_marked_text_free(&marked);
    qr_tokens_free(&tokens);
    qr_tokens_free(&whole);
    qr_buffer_free(&mask);
}

static qr_tokenizer *open_tokenizer(const char *folder) {
    qr_tokenizer *tokenizer = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_tokenizer_open(folder, &tokenizer, &err) == QRUN_OK, "%s", err.message);
    return tokenizer;
}

static const char *const texts[] = {
    "user: hello there\nassistant:[ a good day, isn't it?]\nuser: yes\nassistant:[ good]",
    "[all of it]",
    "the end of it [is]",
    "one [two] three [four] five",
    "caf\xC3\xA9 \xE7\x8C\xAB: [\xF0\x9F\x99\x82\xF0\x9F\x99\x82 l\xC3\xA0-bas \xE2\x98\x95\n] \xF0\x9F\x99\x82 x",
    "a\xF0\x9F\x99\x82[\xF0\x9F\x98\x80\xE7\x8C\xAB]\xE7\x8C\xAB", /* byte by byte on both sides of both edges */
    "  [  two spaces  ]  ",
};

static void test_own_tokenizers(void) {
    static const char *const names[] = {"llama2", "llama3",       "gpt4o", "gemma", "mistral_metaspace",
                                        "qwen2",  "unigram_bytes"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        char folder[1024];
        snprintf(folder, sizeof folder, "%s/tests/fixtures/tokenizers/%s", QRUN_SOURCE_DIR, names[i]);
        qr_tokenizer *tokenizer = open_tokenizer(folder);
        if (tokenizer == NULL) { continue; }
        for (size_t t = 0; t < QR_COUNT_OF(texts); t++) { check_text(names[i], tokenizer, texts[t]); }
        qr_tokenizer_destroy(tokenizer);
    }
}

static void test_real_tokenizers(void) {
    static const char *const names[] = {"tokenizers/llama-3.2", "tokenizers/gpt2",
                                        "tokenizers/llama-2/support/token_config", "tokenizers/phi-3-mini"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        const char *folder = check_shared_data(names[i]);
        if (folder == NULL) {
            check_skip("no shared data");
            return;
        }
        qr_tokenizer *tokenizer = open_tokenizer(folder);
        if (tokenizer == NULL) { continue; }
        for (size_t t = 0; t < QR_COUNT_OF(texts); t++) { check_text(names[i], tokenizer, texts[t]); }
        qr_tokenizer_destroy(tokenizer);
    }
}

/* Added tokens that swallow white space, and a space that is put in front of what follows one. */
static void test_added_tokens(void) {
    const char *folder = check_shared_data("tokenizers/phi-3-mini");
    if (folder == NULL) {
        check_skip("no shared data");
        return;
    }
    qr_tokenizer *tokenizer = open_tokenizer(folder);
    REQUIRE(tokenizer != NULL);
    check_text("phi-3", tokenizer, "<|user|>\nWho?<|end|>\n<|assistant|>\n[Me.<|end|>\n]<|user|>\nI?<|end|>\n");
    check_text("phi-3", tokenizer, "<|assistant|>[ Me.\xF0\x9F\x99\x82<|end|>]<|user|>\xF0\x9F\x99\x82");
    qr_tokenizer_destroy(tokenizer);
}

/* Where the tokenizer changes the text (NFC here), tokens in doubt are none, and the user's never count. */
static void test_normalised_text(void) {
    char folder[1024];
    snprintf(folder, sizeof folder, "%s/tests/fixtures/tokenizers/qwen2", QRUN_SOURCE_DIR);
    qr_tokenizer *tokenizer = open_tokenizer(folder);
    REQUIRE(tokenizer != NULL);
    qr_marked_text marked = {0};
    qr_tokens tokens = {0};
    qr_buffer mask = {0}, shown = {0};
    qr_error err = {0};
    mark("user: cafe\xCC\x81 now\nassistant:[ the good cafe\xCC\x81 is here]\nuser: cafe\xCC\x81", &marked);
    CHECK(qr_marked_text_encode(&marked, tokenizer, &tokens, &mask, &err) == QRUN_OK);
    for (size_t t = 0; t < tokens.n; t++) {
        if (mask.data[t] == 0) { continue; }
        CHECK(qr_tokenizer_decode(tokenizer, &tokens.ids[t], 1, false, &shown, &err) == QRUN_OK);
    }
    CHECK(shown.size > 0 && strstr(shown.data, "good caf") != NULL && strstr(shown.data, "here") != NULL);
    CHECK(shown.size > 0 && strstr(shown.data, "now") == NULL && strstr(shown.data, "user") == NULL);
    qr_buffer_free(&mask);
    qr_buffer_free(&shown);
    qr_tokens_free(&tokens);
    qr_marked_text_free(&marked);
    qr_tokenizer_destroy(tokenizer);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_own_tokenizers);
    CHECK_RUN(test_real_tokenizers);
    CHECK_RUN(test_added_tokens);
    CHECK_RUN(test_normalised_text);
    return check_end();
}

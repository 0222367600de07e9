/* The tokenizer against what other implementations gave for real tokenizers (the data beside the checkout) and for the
 * small ones in tests/fixtures/tokenizers, made by tests/golden/make_tokenizer_goldens.py. */
#include "loaders/tokenizer.h"


#include "base/alloc.h"
#include "base/file.h"
#include "base/utf8.h"
#include "check.h"
#include "loaders/json.h"

static const qr_encode_options plain = {.add_special = false, .parse_special = true};

static qr_tokenizer *open_folder(const char *folder) {
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_MSG(qr_tokenizer_open(folder, &tokenizer, &err) == QRUN_OK, "%s", err.message);
    return tokenizer;
}

static qr_tokenizer *open_shared(const char *name) {
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
static qr_tokens encode(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes,
                        const qr_encode_options *options) {
    qr_error err = {0};
    qr_tokens tokens = {0};
    CHECK_MSG(qr_tokenizer_encode(tokenizer, text, n_bytes, options, &tokens, &err) == QRUN_OK, "%s", err.message);
    return tokens;
}

static char *decode(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special, size_t *n_bytes) {
    qr_error err = {0};
    qr_buffer out = {0};
    CHECK_MSG(qr_tokenizer_decode(tokenizer, tokens->ids, tokens->n, skip_special, &out, &err) == QRUN_OK, "%s",
              err.message);
    *n_bytes = out.size;
    return qr_buffer_take(&out);
}

/* One id at a time; every append must be whole characters. */
static char *decode_stream(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special, size_t *n_bytes) {
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
        CHECK_MSG(n_new == 0 || qr_utf8_valid_prefix(out.data + before, n_new) == n_new, "half a character at token %zu",
                  i);
    }
    qr_token_stream_free(&stream);
    *n_bytes = out.size;
    return qr_buffer_take(&out);
}

/* The whole decode, the streamed decode, and that they are the same. */
static char *decode_both_ways(const qr_tokenizer *tokenizer, const qr_tokens *tokens, bool skip_special,
                              size_t *n_bytes) {
    size_t n_streamed;
    char *whole = decode(tokenizer, tokens, skip_special, n_bytes);
    char *streamed = decode_stream(tokenizer, tokens, skip_special, &n_streamed);
    CHECK_MSG(n_streamed == *n_bytes && memcmp(whole, streamed, n_streamed) == 0,
              "the streamed text differs from the whole one: \"%s\", \"%s\"", streamed, whole);
    qr_free(streamed);
    return whole;
}

static void check_ids(const qr_tokens *tokens, const qr_json *expected, const char *text) {
    size_t i = 0;
    for (const qr_json *id = qr_json_first(expected); id != NULL; id = id->next, i++) {
        if (i >= tokens->n || tokens->ids[i] != (int32_t)id->valuedouble) {
            check_fail(__FILE__, __LINE__, "token %zu of \"%.80s\" is %d, expected %d", i, text,
                       i < tokens->n ? (int)tokens->ids[i] : -1, (int)id->valuedouble);
            return;
        }
    }
    CHECK_MSG(i == tokens->n, "\"%.80s\" gave %zu tokens, expected %zu", text, tokens->n, i);
}

/* --- goldens of real tokenizers ------------------------------------------------------------------------------------ */

/* Texts between separator lines, and a line of ids for each. */
static void check_listed_goldens(const char *tokenizer_name, const char *golden) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    qr_tokenizer *tokenizer = open_shared(tokenizer_name);
    if (tokenizer == NULL) { return; }
    char name[256];
    char *texts = NULL, *ids = NULL;
    size_t n_texts = 0, n_ids = 0, n_cases = 0;
    snprintf(name, sizeof name, "tokenizers/goldens/%s.inp", golden);
    REQUIRE(qr_file_read(check_shared_data(name), 1 << 20, &texts, &n_texts, NULL) == QRUN_OK);
    snprintf(name, sizeof name, "tokenizers/goldens/%s.out", golden);
    REQUIRE(qr_file_read(check_shared_data(name), 1 << 20, &ids, &n_ids, NULL) == QRUN_OK);
    char *line = ids;
    for (char *text = texts; text < texts + n_texts; n_cases++) {
        char *end = strstr(text, separator);
        const size_t n_bytes = end != NULL ? (size_t)(end - text) : (size_t)(texts + n_texts - text);
        qr_tokens tokens = encode(tokenizer, text, n_bytes, &plain);
        size_t i = 0;
        bool same = true;
        for (; *line != '\n' && *line != '\0'; i++) {
            const long expected = strtol(line, &line, 10);
            same = same && i < tokens.n && tokens.ids[i] == expected;
            while (*line == ' ') { line++; }
        }
        CHECK_MSG(same && i == tokens.n, "case %zu, \"%.*s\": %zu tokens, expected %zu", n_cases, (int)n_bytes, text,
                  tokens.n, i);
        line += *line == '\n';
        qr_tokens_free(&tokens);
        text += n_bytes + (end != NULL ? sizeof separator - 1 : 0);
        if (end == NULL) { break; }
    }
    CHECK_MSG(n_cases >= 45, "%zu cases", n_cases);
    qr_free(texts);
    qr_free(ids);
    qr_tokenizer_destroy(tokenizer);
}

static void test_listed_llama_3(void) { check_listed_goldens("llama-3.2", "llama-bpe"); }
static void test_listed_gpt2(void) { check_listed_goldens("gpt2", "gpt-2"); }
static void test_listed_llama_2(void) { check_listed_goldens("llama-2/support/token_config", "llama-spm"); }
static void test_listed_phi_3(void) { check_listed_goldens("phi-3-mini", "phi-3"); }

/* Goldens may have NUL in their texts, which the JSON reader refuses: it is read as U+F8FF and put back here. */
static qr_json *read_golden(const char *path) {
    qr_error err = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    qr_json *root = NULL;
    CHECK_MSG(qr_file_read(path, 1 << 24, &text, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    for (char *at = text; at != NULL && (at = strstr(at, "\\u0000")) != NULL; at += 6) { memcpy(at + 2, "f8ff", 4); }
    if (text != NULL) { CHECK_MSG(qr_json_parse(text, n_bytes, path, &root, &err) == QRUN_OK, "%s", err.message); }
    qr_free(text);
    return root;
}

/* A string of such a file, of *n_bytes, the caller's to free. */
static char *golden_text(const qr_json *value, size_t *n_bytes) {
    char *text = qr_strdup(cJSON_IsString(value) ? value->valuestring : "");
    size_t n = 0;
    for (const char *from = text; *from != '\0';) {
        const bool is_nul = strncmp(from, "\xEF\xA3\xBF", 3) == 0;
        text[n++] = is_nul ? '\0' : *from;
        from += is_nul ? 3 : 1;
    }
    text[n] = '\0';
    *n_bytes = n;
    return text;
}

/* What transformers' clean_up_tokenization_spaces made of decoded text; the goldens of transformers.js were made with it
 * on for the byte-level tokenizers. qrun leaves decoded text as it is. */
static void clean_up_spaces(char *text, size_t *n_bytes) {
    static const char *const marks[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const size_t n_mark = strlen(marks[i]);
        for (size_t at = 0; at + n_mark < *n_bytes; at++) {
            if (text[at] != ' ' || memcmp(text + at + 1, marks[i], n_mark) != 0) { continue; }
            memmove(text + at, text + at + 1, *n_bytes - at);
            (*n_bytes)--;
        }
    }
}

/* {"text", "ids", "decoded"}: the ids of the text and the text of the ids. */
static void check_golden(const qr_tokenizer *tokenizer, const qr_json *test, const qr_encode_options *options,
                         bool skip_special, bool cleaned_up) {
    size_t n_text, n_decoded, n_back;
    char *text = golden_text(qr_json_get(test, "text"), &n_text);
    char *decoded = golden_text(qr_json_get(test, "decoded"), &n_decoded);
    qr_tokens tokens = encode(tokenizer, text, n_text, options);
    check_ids(&tokens, qr_json_get(test, "ids"), text);
    char *back = decode_both_ways(tokenizer, &tokens, skip_special, &n_back);
    if (cleaned_up) { clean_up_spaces(back, &n_back); }
    CHECK_MSG(n_back == n_decoded && memcmp(back, decoded, n_back) == 0, "decoded \"%s\", expected \"%s\"", back, decoded);
    qr_tokens_free(&tokens);
    qr_free(back);
    qr_free(decoded);
    qr_free(text);
}

/* {"tests": [...]}. */
static void check_json_goldens(const char *tokenizer_name, const char *golden, bool add_special, bool cleaned_up) {
    qr_tokenizer *tokenizer = open_shared(tokenizer_name);
    if (tokenizer == NULL) { return; }
    char name[256];
    snprintf(name, sizeof name, "tokenizers/goldens/%s.json", golden);
    qr_json *root = read_golden(check_shared_data(name));
    size_t n_cases = 0;
    const qr_encode_options options = {.add_special = add_special, .parse_special = true};
    for (const qr_json *test = qr_json_first(qr_json_get(root, "tests")); test != NULL; test = test->next, n_cases++) {
        check_golden(tokenizer, test, &options, false, cleaned_up);
    }
    CHECK_MSG(n_cases >= 10, "%zu cases", n_cases);
    qr_json_free(root);
    qr_tokenizer_destroy(tokenizer);
}

static void test_json_llama_3(void) { check_json_goldens("llama-3.2", "llama3", false, true); }
static void test_json_llama_3_bos(void) { check_json_goldens("llama-3.2", "llama3-bos", true, true); }
static void test_json_gpt2(void) { check_json_goldens("gpt2", "gpt2", false, true); }
static void test_json_llama_2(void) { check_json_goldens("llama-2/support/token_config", "llama", true, false); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_listed_llama_3);
    CHECK_RUN(test_listed_gpt2);
    CHECK_RUN(test_listed_llama_2);
    CHECK_RUN(test_listed_phi_3);
    CHECK_RUN(test_json_llama_3);
    CHECK_RUN(test_json_llama_3_bos);
    CHECK_RUN(test_json_gpt2);
    CHECK_RUN(test_json_llama_2);
    return check_end();
}

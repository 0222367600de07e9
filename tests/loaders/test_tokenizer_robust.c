/* The tokenizer on what nobody wrote on purpose: long and degenerate texts, random bytes, memory that runs out,
 * tokenizer files that are wrong. */
#include <pthread.h>
#include <time.h>

#include "tokenizer_check.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/tokenizers"

static const char *const kinds[] = {"llama3",
                                    "qwen2",
                                    "gpt4o",
                                    "gpt2_prefix_space",
                                    "llama2",
                                    "gemma",
                                    "mistral_metaspace",
                                    "unigram_charsmap",
                                    "unigram_bytes",
                                    "word_level",
                                    "affixes",
                                    "bert",
                                    "metaspace_first"};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static qr_tokenizer *open_kind(size_t i) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s/%s", FIXTURES, kinds[i]);
    return open_folder(folder);
}

/* A small generator of our own, so that a failure can be repeated from its seed. */
static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33);
}

/* --- round trips -------------------------------------------------------------------------------------------------- */

static void check_round_trip(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes, const char *what) {
    const qr_encode_options literal = {0};
    qr_tokens tokens = encode(tokenizer, text, n_bytes, &literal);
    size_t n_back;
    char *back = decode_both_ways(tokenizer, &tokens, false, &n_back);
    CHECK_MSG(n_back == n_bytes && memcmp(back, text, n_bytes) == 0, "%s does not come back", what);
    qr_free(back);
    qr_tokens_free(&tokens);
}

static void test_real_texts_come_back(void) {
    static const char *const files[] = {"datasets/wiki.test.raw", "datasets/tinyshakespeare.txt",
                                        "tokenizers/unicode/blns.json"};
    static const char *const names[] = {"llama-3.2", "gpt2", "llama-2/support/token_config", "phi-3-mini"};
    for (int k = 0; k < check_repeats(4, 1); k++) {
        qr_tokenizer *tokenizer = open_shared(names[k]);
        if (tokenizer == NULL) { return; }
        for (size_t f = 0; f < 3; f++) {
            char *text = NULL;
            size_t n_bytes = 0;
            REQUIRE(qr_file_read(check_shared_data(files[f]), 1 << 24, &text, &n_bytes, NULL) == QRUN_OK);
            check_round_trip(tokenizer, text, n_bytes, files[f]);
            qr_free(text);
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

/* Byte-level and byte-fallback tokenizers that change nothing give back any text. */
static void test_random_text_comes_back(void) {
    static const size_t faithful[] = {0, 2, 4, 5};
    uint64_t state = 7;
    for (size_t k = 0; k < 4; k++) {
        qr_tokenizer *tokenizer = open_kind(faithful[k]);
        REQUIRE(tokenizer != NULL);
        for (int round = 0; round < 300; round++) {
            qr_buffer text = {0};
            for (uint32_t n = next_random(&state) % 20; n > 0; n--) {
                char bytes[4];
                const uint32_t c = next_random(&state) % (next_random(&state) % 2 == 0 ? 0x80U : 0x11000U);
                /* U+2581 itself comes back as a space. */
                qr_buffer_append(&text, bytes, c == 0x2581U ? 0 : qr_utf8_encode(c, bytes));
            }
            check_round_trip(tokenizer, text.data != NULL ? text.data : "", text.size, kinds[faithful[k]]);
            qr_buffer_free(&text);
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

/* --- bytes that are not UTF-8 ------------------------------------------------------------------------------------- */

static void test_invalid_bytes_are_kept_as_bytes(void) {
    static const char text[] = "a\xFF"
                               "b\xC3"
                               "\xE2\x96";
    const qr_encode_options literal = {0};
    qr_tokenizer *fallback = open_kind(5);
    qr_tokens tokens = encode(fallback, text, sizeof text - 1, &literal);
    static const char *const expected[] = {"a", "<0xFF>", "b", "<0xC3>", "<0xE2>", "<0x96>"};
    CHECK_INT(tokens.n, 6);
    for (size_t i = 0; i < tokens.n && i < 6; i++) {
        CHECK_INT(tokens.ids[i], qr_tokenizer_id(fallback, expected[i], strlen(expected[i])));
    }
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(fallback);

    qr_tokenizer *byte_level = open_kind(0);
    tokens = encode(byte_level, text, sizeof text - 1, &literal);
    qr_buffer spelled = {0};
    for (size_t i = 0; i < tokens.n; i++) {
        size_t n;
        const char *token = qr_tokenizer_token(byte_level, tokens.ids[i], &n);
        qr_buffer_append(&spelled, token, n);
    }
    CHECK_STR(spelled.data, "a\xC3\xBF"
                            "b\xC3\x83\xC3\xA2\xC4\xB8"); /* each byte as its character: 0x96 is U+0138 */
    qr_buffer_free(&spelled);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(byte_level);
}

static void test_random_bytes(void) {
    uint64_t state = 11;
    for (size_t k = 0; k < N_KINDS; k++) {
        qr_tokenizer *tokenizer = open_kind(k);
        REQUIRE(tokenizer != NULL);
        for (int round = 0; round < 400; round++) {
            char text[64];
            const size_t n_bytes = next_random(&state) % sizeof text;
            for (size_t i = 0; i < n_bytes; i++) { text[i] = (char)(unsigned char)next_random(&state); }
            const qr_encode_options options = {.add_special = next_random(&state) % 2 == 0,
                                               .parse_special = next_random(&state) % 2 == 0};
            qr_tokens tokens = encode(tokenizer, text, n_bytes, &options);
            for (size_t i = 0; i < tokens.n; i++) {
                CHECK(tokens.ids[i] >= 0 && tokens.ids[i] < qr_tokenizer_vocab_size(tokenizer));
            }
            size_t n_back;
            qr_free(decode_both_ways(tokenizer, &tokens, options.parse_special, &n_back));
            qr_tokens_free(&tokens);
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

static void test_random_ids_stream_as_they_decode(void) {
    uint64_t state = 13;
    for (size_t k = 0; k < N_KINDS; k++) {
        qr_tokenizer *tokenizer = open_kind(k);
        REQUIRE(tokenizer != NULL);
        const uint32_t n_ids = (uint32_t)qr_tokenizer_vocab_size(tokenizer);
        for (int round = 0; round < 400; round++) {
            int32_t ids[40];
            qr_tokens tokens = {ids, next_random(&state) % 40U, 0};
            /* Half of the rounds from the first ids, where the byte tokens are. */
            const uint32_t range = round % 2 == 0 || n_ids < 260 ? n_ids : 260;
            for (size_t i = 0; i < tokens.n; i++) { ids[i] = (int32_t)(next_random(&state) % range); }
            size_t n_bytes;
            qr_free(decode_both_ways(tokenizer, &tokens, round % 4 < 2, &n_bytes));
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Much of one unit; a quadratic step would take minutes. */
static void test_degenerate_texts_take_linear_time(void) {
    static const char *const units[] = {
        "a",  " ",           "\n", "1", "'", "\xE2\x96\x81", "\xCC\x81\xCC\xA3", "ab", "<", "\xFF", "\xF0\x9F\x98\x81",
        "a ", "\xE1\x84\x92"};
    const qr_encode_options literal = {0};
    const size_t n_most = (size_t)check_repeats(1 << 18, 1 << 14);
    char *text = qr_alloc(n_most);
    for (size_t k = 0; k < N_KINDS; k++) {
        qr_tokenizer *tokenizer = open_kind(k);
        REQUIRE(tokenizer != NULL && text != NULL);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            const size_t n_unit = strlen(units[u]);
            size_t n_bytes = 0;
            for (; n_bytes + n_unit <= n_most; n_bytes += n_unit) { memcpy(text + n_bytes, units[u], n_unit); }
            const double begin = seconds();
            qr_tokens tokens = encode(tokenizer, text, n_bytes, &literal);
            const double spent = seconds() - begin;
            CHECK_MSG(spent < 20.0, "%s took %.1f s for \"%s\" over and over", kinds[k], spent, units[u]);
            qr_tokens_free(&tokens);
        }
        qr_tokenizer_destroy(tokenizer);
    }
    qr_free(text);
}

/* --- normal forms, seen through a tokenizer of bytes -------------------------------------------------------------- */

static qr_tokenizer *open_bytes(const char *normalizer) {
    qr_buffer json = {0};
    qr_buffer_append_format(&json,
                            "{\"normalizer\":{\"type\":\"%s\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                            "\"add_prefix_space\":false,\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
                            "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{",
                            normalizer);
    int n_others = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        char spelled[5] = {0};
        (void)qr_utf8_encode(printable ? byte : 0x100U + (uint32_t)n_others++, spelled);
        qr_buffer_append_json_string(&json, spelled, strlen(spelled));
        qr_buffer_append_format(&json, ":%u%s", byte, byte < 255 ? "," : "}}}");
    }
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_MSG(qr_tokenizer_parse(json.data, json.size, "bytes", &tokenizer, &err) == QRUN_OK, "%s", err.message);
    qr_buffer_free(&json);
    return tokenizer;
}

/* "0044 030C" → text; returns what follows the field. */
static const char *read_code_points(const char *field, qr_buffer *text) {
    qr_buffer_clear(text);
    while (*field != ';') {
        char *end, bytes[4];
        qr_buffer_append(text, bytes, qr_utf8_encode((uint32_t)strtoul(field, &end, 16), bytes));
        field = *end == ' ' ? end + 1 : end;
    }
    return field + 1;
}

static void check_normal_form(const qr_tokenizer *tokenizer, const qr_buffer *from, const qr_buffer *to,
                              const char *line) {
    const qr_encode_options literal = {0};
    qr_tokens tokens = encode(tokenizer, from->data, from->size, &literal);
    size_t n_bytes;
    char *text = decode(tokenizer, &tokens, false, &n_bytes);
    CHECK_MSG(n_bytes == to->size && memcmp(text, to->data, n_bytes) == 0, "wrong normal form: %.40s", line);
    qr_free(text);
    qr_tokens_free(&tokens);
}

static void test_unicode_normalization(void) {
    const char *path = check_shared_data("tokenizers/unicode/NormalizationTest.txt");
    if (path == NULL) {
        check_skip("no ../shared/data");
        return;
    }
    char *data = NULL;
    size_t n_bytes = 0, n_lines = 0;
    REQUIRE(qr_file_read(path, 1 << 24, &data, &n_bytes, NULL) == QRUN_OK);
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    qr_tokenizer *tokenizers[4];
    for (int f = 0; f < 4; f++) { REQUIRE((tokenizers[f] = open_bytes(forms[f])) != NULL); }
    qr_buffer columns[5] = {{0}};
    for (const char *line = data; line != NULL && *line != '\0'; line = strchr(line, '\n'), line += line != NULL) {
        if (*line == '#' || *line == '@') { continue; }
        const char *field = line;
        for (int c = 0; c < 5; c++) { field = read_code_points(field, &columns[c]); }
        for (int c = 0; c < 5; c++) { /* the conformance clauses at the head of the file */
            check_normal_form(tokenizers[0], &columns[c], &columns[c < 3 ? 1 : 3], line);
            check_normal_form(tokenizers[1], &columns[c], &columns[c < 3 ? 2 : 4], line);
            check_normal_form(tokenizers[2], &columns[c], &columns[3], line);
            check_normal_form(tokenizers[3], &columns[c], &columns[4], line);
        }
        n_lines++;
        if (check_state.n_failures_in_case > 20) { break; }
    }
    CHECK_MSG(n_lines > 15000, "%zu lines", n_lines);
    for (int c = 0; c < 5; c++) { qr_buffer_free(&columns[c]); }
    for (int f = 0; f < 4; f++) { qr_tokenizer_destroy(tokenizers[f]); }
    qr_free(data);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void test_any_allocation_may_fail(void) {
    static const char text[] = "<s>Hello  w\xC3\xB6rld 12 <|end|>\xFF e\xCC\x81 tagged";
    static const size_t chosen[] = {4, 7, 9, 10, 11};
    const qr_encode_options options = {.add_special = true, .parse_special = true};
    for (size_t k = 0; k < sizeof chosen / sizeof chosen[0]; k++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%s", FIXTURES, kinds[chosen[k]]);
        bool done = false;
        for (int64_t n = 1; !done; n++) {
            qr_alloc_stats before, after;
            qr_alloc_get_stats(&before);
            qr_error err = {0};
            qr_tokenizer *tokenizer = NULL;
            qr_tokens tokens = {0};
            qr_buffer out = {0};
            qr_alloc_fail_at(n);
            qrun_status status = qr_tokenizer_open(folder, &tokenizer, &err);
            if (status == QRUN_OK) {
                status = qr_tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &tokens, &err);
            }
            if (status == QRUN_OK) { status = qr_tokenizer_decode(tokenizer, tokens.ids, tokens.n, false, &out, &err); }
            qr_alloc_fail_at(0);
            CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "%s, allocation %lld: %s", kinds[chosen[k]],
                      (long long)n, err.message);
            CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
            qr_buffer_free(&out);
            qr_tokens_free(&tokens);
            qr_tokenizer_destroy(tokenizer);
            qr_alloc_get_stats(&after);
            CHECK_MSG(after.n_held == before.n_held, "%s, allocation %lld: %lld blocks leak", kinds[chosen[k]],
                      (long long)n, (long long)(after.n_held - before.n_held));
            done = after.n_allocations - before.n_allocations < n; /* the n-th was never asked for */
            if (check_state.n_failures_in_case > 10) { return; }
        }
    }
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

typedef struct shared_encode {
    const qr_tokenizer *tokenizer;
    const qr_tokens *expected;
    const char *text;
    bool same;
} shared_encode;

static void *encode_in_thread(void *arg) {
    shared_encode *shared = arg;
    shared->same = true;
    for (int i = 0; i < 20; i++) {
        const qr_encode_options literal = {0};
        qr_tokens tokens = {0};
        const qrun_status status =
            qr_tokenizer_encode(shared->tokenizer, shared->text, strlen(shared->text), &literal, &tokens, NULL);
        shared->same = shared->same && status == QRUN_OK && tokens.n == shared->expected->n &&
                       memcmp(tokens.ids, shared->expected->ids, tokens.n * sizeof *tokens.ids) == 0;
        qr_tokens_free(&tokens);
    }
    return NULL;
}

static void test_threads_share_a_tokenizer(void) {
    static const char text[] = "The quick brown fox doesn't mind 12345 foxes;\n\n  "
                               "\xC3\xBC"
                               "ber \xE5\xB0\x8F\xE7\x8B\x97";
    const qr_encode_options literal = {0};
    for (size_t k = 0; k < N_KINDS; k++) {
        qr_tokenizer *tokenizer = open_kind(k);
        REQUIRE(tokenizer != NULL);
        qr_tokens expected = encode(tokenizer, text, strlen(text), &literal);
        shared_encode shared[4];
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            shared[i] = (shared_encode){tokenizer, &expected, text, false};
            REQUIRE(pthread_create(&threads[i], NULL, encode_in_thread, &shared[i]) == 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            CHECK(shared[i].same);
        }
        qr_tokens_free(&expected);
        qr_tokenizer_destroy(tokenizer);
    }
}

/* --- files that are wrong ----------------------------------------------------------------------------------------- */

#define BPE(members) "{\"model\":{\"type\":\"BPE\"," members "}}"
#define WITH(section, value) "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}},\"" section "\":" value "}"

static void test_wrong_files_are_refused(void) {
    static const struct {
        const char *json;
        qrun_status status;
        const char *message; /* part of it */
    } cases[] = {
        {"[]", QRUN_ERROR_INPUT, "not a JSON object"},
        {"{}", QRUN_ERROR_INPUT, "no \"model\" object"},
        {"{\"model\":{\"type\":\"Bigram\",\"vocab\":{}}}", QRUN_ERROR_UNSUPPORTED, "\"Bigram\" is not supported"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", QRUN_ERROR_INPUT, "a vocabulary of 0 tokens"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0},\"max_input_chars_per_word\":-1}}", QRUN_ERROR_INPUT,
         "max_input_chars_per_word"},
        {BPE("\"merges\":[]"), QRUN_ERROR_INPUT, "no vocab object"},
        {BPE("\"vocab\":{},\"merges\":[]"), QRUN_ERROR_INPUT, "a vocabulary of 0 tokens"},
        {BPE("\"vocab\":{\"a\":0}"), QRUN_ERROR_INPUT, "no list of merges"},
        {BPE("\"vocab\":{\"a\":-1},\"merges\":[]"), QRUN_ERROR_INPUT, "\"a\" is not an id"},
        {BPE("\"vocab\":{\"a\":2000000000},\"merges\":[]"), QRUN_ERROR_INPUT, "\"a\" is not an id"},
        {BPE("\"vocab\":{\"a\":0.5},\"merges\":[]"), QRUN_ERROR_INPUT, "\"a\" is not an id"},
        {BPE("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), QRUN_ERROR_INPUT, "\"a\" is not an id"},
        {BPE("\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]"), QRUN_ERROR_INPUT, "have the id 1"},
        {BPE("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]"), QRUN_ERROR_INPUT, "merge 0, \"a\" + \"b\""},
        {BPE("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"ab\"]"), QRUN_ERROR_INPUT, "merge 0 is not a pair"},
        {BPE("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\",\"c\"]]"), QRUN_ERROR_INPUT, "merge 0"},
        {BPE("\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1"), QRUN_ERROR_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", QRUN_ERROR_INPUT, "not [text, score]"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]],\"unk_id\":1}}", QRUN_ERROR_INPUT, "\"unk_id\" is 1"},
        {WITH("added_tokens", "{}"), QRUN_ERROR_INPUT, "added_tokens is not a list"},
        {WITH("added_tokens", "[{\"id\":0,\"content\":\"x\"}]"), QRUN_ERROR_INPUT, "the id 0 of another token"},
        {WITH("added_tokens", "[{\"id\":1,\"content\":\"x\"},{\"id\":1,\"content\":\"y\"}]"), QRUN_ERROR_UNSUPPORTED,
         "\"y\" has the id 1, where the next free one is 2"},
        {WITH("added_tokens", "[{\"id\":5,\"content\":\"x\"}]"), QRUN_ERROR_UNSUPPORTED,
         "\"x\" has the id 5, where the next free one is 1"},
        {WITH("added_tokens", "[{\"id\":1}]"), QRUN_ERROR_INPUT, "has no content"},
        {WITH("normalizer", "{\"type\":\"Emoji\"}"), QRUN_ERROR_UNSUPPORTED,
         "the normalizer \"Emoji\" is not supported"},
        {WITH("normalizer", "{\"type\":\"BertNormalizer\",\"lowercase\":1}"), QRUN_ERROR_INPUT, "lowercase"},
        {WITH("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}"), QRUN_ERROR_INPUT,
         "cut short"},
        {WITH("normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"A*==\"}"), QRUN_ERROR_INPUT,
         "base64"},
        {WITH("normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}"),
         QRUN_ERROR_UNSUPPORTED, "a group without an end"},
        {WITH("normalizer",
              "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a*\"},"
              "\"content\":\"-\"},{\"type\":\"NFC\"}]}"),
         QRUN_ERROR_UNSUPPORTED, "matches no text"},
        {WITH("pre_tokenizer", "{\"type\":\"UnicodeScripts\"}"), QRUN_ERROR_UNSUPPORTED, "\"UnicodeScripts\""},
        {WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Often\",\"pattern\":{\"String\":\"x\"}}"),
         QRUN_ERROR_UNSUPPORTED, "\"Often\""},
        {WITH("pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z&&[^x]]\"}}"), QRUN_ERROR_UNSUPPORTED,
         "intersects character classes"},
        {WITH("pre_tokenizer", "{\"type\":\"Sequence\"}"), QRUN_ERROR_INPUT, "without \"pretokenizers\""},
        {WITH("pre_tokenizer", "{\"type\":\"FixedLength\",\"length\":0}"), QRUN_ERROR_INPUT, "\"length\" is 0"},
        {WITH("pre_tokenizer", "{\"type\":\"CharDelimiterSplit\"}"), QRUN_ERROR_INPUT, "not one character"},
        {WITH("pre_tokenizer", "7"), QRUN_ERROR_INPUT, "without a type"},
        {WITH("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}"), QRUN_ERROR_INPUT, "no sequence A"},
        {WITH("post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}}]}"),
         QRUN_ERROR_INPUT, "\"s\" has no ids"},
        {WITH("post_processor",
              "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":["
              "{\"SpecialToken\":{\"id\":\"s\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"s\":"
              "{\"ids\":[0]}}},{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[\"a\",0]}]}"),
         QRUN_ERROR_UNSUPPORTED, "\"BertProcessing\" after a TemplateProcessing"},
        {WITH("decoder", "{\"type\":\"WordPiece\"}"), QRUN_ERROR_INPUT, "without \"prefix\""},
        {WITH("decoder", "{\"type\":\"BPEDecoder\",\"suffix\":\"\"}"), QRUN_ERROR_UNSUPPORTED, "an empty pattern"},
        {WITH("decoder", "{\"type\":\"CTC\"}"), QRUN_ERROR_UNSUPPORTED, "the decoder \"CTC\" is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qr_error err = {0};
        qr_tokenizer *tokenizer = NULL;
        const qrun_status status = qr_tokenizer_parse(cases[i].json, strlen(cases[i].json), "t", &tokenizer, &err);
        CHECK_MSG(status == cases[i].status && strstr(err.message, cases[i].message) != NULL, "%s gave %d, \"%s\"",
                  cases[i].json, (int)status, err.message);
        CHECK(tokenizer == NULL);
        qr_tokenizer_destroy(tokenizer);
    }
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_INT(qr_tokenizer_open(FIXTURES, &tokenizer, &err), QRUN_ERROR_NOT_FOUND);
    CHECK(strstr(err.message, "tokenizer.json") != NULL);
}

/* A pattern that backtracks without end must end. */
static void test_hostile_pattern_is_stopped(void) {
    static const char json[] = WITH("pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+[^a!]\"}}");
    char text[2000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '!';
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    qr_tokens tokens = {0};
    const qr_encode_options literal = {0};
    REQUIRE(qr_tokenizer_parse(json, strlen(json), "t", &tokenizer, &err) == QRUN_OK);
    CHECK_INT(qr_tokenizer_encode(tokenizer, text, sizeof text, &literal, &tokens, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "pre_tokenizer of tokenizer.json takes too long") != NULL, "%s", err.message);
    CHECK_INT(tokens.n, 0);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_real_texts_come_back);
    CHECK_RUN(test_random_text_comes_back);
    CHECK_RUN(test_invalid_bytes_are_kept_as_bytes);
    CHECK_RUN(test_random_bytes);
    CHECK_RUN(test_random_ids_stream_as_they_decode);
    CHECK_RUN(test_degenerate_texts_take_linear_time);
    CHECK_RUN(test_unicode_normalization);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_threads_share_a_tokenizer);
    CHECK_RUN(test_wrong_files_are_refused);
    CHECK_RUN(test_hostile_pattern_is_stopped);
    return check_end();
}

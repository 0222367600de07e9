/* What a hostile tokenizer.json may cost: every stage that multiplies text, or walks it again and again, ends with one
 * error line that names its section, before memory or time run away. The bounds on time are far above what is needed:
 * they catch hours, not seconds. */
#include <time.h>

#include "loaders/tokenizer/internal.h"
#include "tokenizer_check.h"

enum { MOST_BYTES = 64 << 20, MOST_SECONDS = 60 };

#define WORDS "\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"u\":0}}"
#define WITH(section, value) "{" WORDS ",\"" section "\":" value "}"
#define SPLIT(regex) WITH("pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"}}")

/* Of computing: on a busy machine a test may wait. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* `unit` repeated to n_bytes, the caller's to free. */
static char *repeat(const char *unit, size_t n_bytes) {
    const size_t n_unit = strlen(unit);
    char *text = qr_alloc(n_bytes + 1);
    for (size_t i = 0; i < n_bytes; i++) { text[i] = unit[i % n_unit]; }
    text[n_bytes] = '\0';
    return text;
}

/* `begin`, n times `unit` with commas between, `end`. */
static char *list_of(const char *begin, const char *unit, size_t n, const char *end) {
    qr_buffer json = {0};
    qr_buffer_append_text(&json, begin);
    for (size_t i = 0; i < n; i++) { qr_buffer_append_format(&json, "%s%s", i > 0 ? "," : "", unit); }
    qr_buffer_append_text(&json, end);
    return qr_buffer_take(&json);
}

/* Opens and encodes within bounds; an error must name `section`, and there must be one where that is not NULL. */
static qrun_status check_bounded(const char *json, const char *text, const char *section) {
    const qr_encode_options literal = {0};
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    qr_tokens tokens = {0};
    qr_alloc_stats before, after;
    qr_alloc_get_stats(&before);
    qr_alloc_reset_peak();
    const double begin = seconds();
    qrun_status status = qr_tokenizer_parse(json, strlen(json), "t", &tokenizer, &err);
    if (status == QRUN_OK) { status = qr_tokenizer_encode(tokenizer, text, strlen(text), &literal, &tokens, &err); }
    const double spent = seconds() - begin;
    qr_alloc_get_stats(&after);
    CHECK_MSG(after.bytes_peak - before.bytes_held < MOST_BYTES, "%lld bytes for %.200s",
              (long long)(after.bytes_peak - before.bytes_held), json);
    CHECK_MSG(spent < MOST_SECONDS, "%.1f s for %.200s", spent, json);
    if (section != NULL) {
        CHECK_MSG(status != QRUN_OK && strstr(err.message, section) != NULL, "\"%s\" for %.200s", err.message, json);
    }
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
    return status;
}

/* --- text that grows ---------------------------------------------------------------------------------------------- */

#define TENFOLD "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"
#define NORMALIZERS "{" WORDS ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["

static void test_normalizers_multiply(void) {
    char *replaces = list_of(NORMALIZERS, TENFOLD, 12, "]}}");
    check_bounded(replaces, "a", "normalizer of tokenizer.json");
    qr_free(replaces);

    char *regexes =
        list_of(NORMALIZERS, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\".\"},\"content\":\"aaaa\"}", 40, "]}}");
    check_bounded(regexes, "a", "normalizer of tokenizer.json");
    qr_free(regexes);

    char *bytes = list_of(NORMALIZERS, "{\"type\":\"ByteLevel\"}", 60, "]}}");
    check_bounded(bytes, "\xC3\xA9", "normalizer of tokenizer.json");
    qr_free(bytes);

    char *prepends =
        list_of(NORMALIZERS, "{\"type\":\"Prepend\",\"prepend\":\"0123456789012345678901234567890123\"}", 2000, "]}}");
    check_bounded(prepends, "a", "normalizer of tokenizer.json"); /* 68 KB in front of a letter */
    qr_free(prepends);
}

/* The growth of each stretch between added tokens is small; that of all of them is not. */
static void test_growth_is_counted_over_the_text(void) {
    char *prefix = repeat("p", 30000);
    qr_buffer json = {0};
    qr_buffer_append_format(&json,
                            "{" WORDS ",\"added_tokens\":[{\"id\":1,\"content\":\"<\",\"normalized\":false}],"
                            "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"%s\"},\"pre_tokenizer\":{"
                            "\"type\":\"Split\",\"pattern\":{\"String\":\"p\"}}}",
                            prefix);
    char *text = repeat("<a", 4000);
    check_bounded(json.data, text, "normalizer of tokenizer.json");
    qr_free(text);
    qr_free(prefix);
    qr_buffer_free(&json);
}

/* An added token is normalised when the file is opened. */
static void test_added_tokens_multiply(void) {
    char *json = list_of("{" WORDS ",\"added_tokens\":[{\"id\":1,\"content\":\"a\"}],\"normalizer\":{\"type\":"
                         "\"Sequence\",\"normalizers\":[",
                         TENFOLD, 12, "]}}");
    check_bounded(json, "", "normalizer of tokenizer.json");
    qr_free(json);
}

static void test_pretokenizers_multiply(void) {
    char *json = list_of("{" WORDS ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
                         "{\"type\":\"ByteLevel\",\"use_regex\":false}", 60, "]}}");
    check_bounded(json, "\xC3\xA9", "pre_tokenizer of tokenizer.json");
    qr_free(json);
}

/* Each character is looked up, and spelled in bytes, with the prefix in front. */
static void test_subword_prefix(void) {
    char *prefix = repeat("#", 100000);
    qr_buffer json = {0};
    qr_buffer_append_format(&json,
                            "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"merges\":[],"
                            "\"continuing_subword_prefix\":\"%s\",\"vocab\":{",
                            prefix);
    for (int byte = 0; byte < 256; byte++) {
        qr_buffer_append_format(&json, "\"<0x%02X>\":%d%s", (unsigned)byte, byte, byte < 255 ? "," : "}}}");
    }
    char *text = repeat("a", 3000);
    check_bounded(json.data, text, "model of tokenizer.json");
    check_bounded(json.data, "a", NULL);
    qr_free(text);
    qr_free(prefix);
    qr_buffer_free(&json);
}

static void test_decoders_multiply(void) {
    char *json = list_of("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}},\"decoder\":{\"type\":\"Sequence\","
                         "\"decoders\":[",
                         TENFOLD, 8, "]}}");
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    qr_buffer out = {0};
    const int32_t id = 0;
    REQUIRE(qr_tokenizer_parse(json, strlen(json), "t", &tokenizer, &err) == QRUN_OK);
    qr_alloc_reset_peak();
    CHECK_INT(qr_tokenizer_decode(tokenizer, &id, 1, false, &out, &err), QRUN_ERROR_INPUT);
    CHECK_MSG(strstr(err.message, "decoder of tokenizer.json") != NULL, "%s", err.message);
    qr_alloc_stats stats;
    qr_alloc_get_stats(&stats);
    CHECK_MSG(stats.bytes_peak < MOST_BYTES, "%lld bytes", (long long)stats.bytes_peak);
    qr_buffer_free(&out);
    qr_tokenizer_destroy(tokenizer);
    qr_free(json);
}

/* --- text that is walked again and again -------------------------------------------------------------------------- */

/* Each of these takes hours or ages where only the steps of one match at one offset are limited. They end in a class,
 * because a text without a letter that every match needs is dismissed at once. */
static void test_regular_expressions(void) {
    static const char *const regexes[] = {
        SPLIT("a*[bc]"),
        SPLIT("a*a*a*[bc]"),
        SPLIT("(?:a|a)*[bc]"),
        SPLIT("(?:a+)+[^a]"),
        SPLIT("(?=(?:a*)*[bc])a"),
        SPLIT("(?:a?){40}a{40}[bc]"),
        SPLIT("a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?[^a]"),
        SPLIT("(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)"
              "(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)(a|aa)[bc]"),
        SPLIT("(?:a{1000}){50}[bc]"),
        SPLIT("(?:\\\\w+?)*[bc]"),
        SPLIT("(?i:A*A*[BC])"),
        SPLIT("(?:[^b]*?){2}[bc]"),
        SPLIT("(?=.*?[bc])a"),
        SPLIT("(?<!b)(?=a*+[bc])a"),
        SPLIT("[\\\\W\\\\d]*[bc]|\\\\w*[bc]"),
        SPLIT("(?:a(?=.*[bc])|a(?=.*[cd])){1,9}[bc]"),
        SPLIT("a{60000}[bc]"),
        SPLIT("(?:a**)+?[bc]")};
    size_t n_stopped = 0;
    char *text = repeat("a", 100000);
    for (size_t i = 0; i < sizeof regexes / sizeof regexes[0]; i++) {
        n_stopped += check_bounded(regexes[i], text, NULL) == QRUN_ERROR_INPUT ? 1 : 0;
    }
    CHECK_MSG(n_stopped >= 12, "%zu were stopped", n_stopped); /* PCRE2 finds short ways for some */
    qr_free(text);
    /* Groups of three digits are counted from the end of the number at each of them: a page of digits still passes. */
    char *number = repeat("1234567", 6000);
    qr_error err = {0};
    const char *json = SPLIT("\\\\d{1,3}(?=(?:\\\\d{3})*\\\\b)");
    check_bounded(json, number, NULL);
    qr_tokenizer *tokenizer = NULL;
    REQUIRE(qr_tokenizer_parse(json, strlen(json), "t", &tokenizer, &err) == QRUN_OK);
    qr_tokens tokens = encode(tokenizer, number, 6000, &plain);
    CHECK_INT(tokens.n, 2000);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
    qr_free(number);
}

/* Long keys that nearly match everywhere: `format` has one %s for them. */
static void check_long_key(const char *format, const char *section) {
    char *key = repeat("a", 60000), *text = repeat("a", 100000);
    const char *at = strstr(format, "%s");
    qr_buffer json = {0};
    qr_buffer_append(&json, format, (size_t)(at - format));
    qr_buffer_append_text(&json, key);
    qr_buffer_append_text(&json, at + 2);
    check_bounded(json.data, text, section);
    qr_buffer_free(&json);
    qr_free(key);
    qr_free(text);
}

static void test_long_keys(void) {
    check_long_key("{" WORDS ",\"added_tokens\":[{\"id\":1,\"content\":\"%sb\",\"normalized\":false}]}",
                   "added_tokens of tokenizer.json");
    check_long_key("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"u\",0],[\"a\",0],[\"%sb\",0]]}}",
                   "model of tokenizer.json");
    check_long_key(WITH("normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"%sb\"},\"content\":\"\"}"),
                   "normalizer of tokenizer.json");
}

static void test_many_steps(void) {
    char *json = list_of("{" WORDS ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
                         "{\"type\":\"Split\",\"pattern\":{\"String\":\"b\"}}", 3000, "]}}");
    char *text = repeat("a", 100000);
    check_bounded(json, text, "pre_tokenizer of tokenizer.json");
    qr_free(text);
    qr_free(json);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void test_compiled_expressions_are_bounded(void) {
    char *json = list_of("{" WORDS ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
                         "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:[^a]?[^b]?){900}\"}}", 2000, "]}}");
    check_bounded(json, "a", "16 MiB");
    qr_free(json);
    char *boundaries = repeat("\\\\b", 60000);
    qr_buffer one = {0};
    qr_buffer_append_format(&one, "{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"}}}",
                            boundaries);
    check_bounded(one.data, "a", "is too long");
    qr_buffer_free(&one);
    qr_free(boundaries);
}

/* A character is read without a look at all that follows: 16 MiB of letters would take minutes. */
static void test_long_expressions_are_refused_in_time(void) {
    char *letters = repeat("a", 16 << 20);
    qr_buffer json = {0};
    qr_buffer_append_format(&json, "{" WORDS ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"}}}",
                            letters);
    check_bounded(json.data, "a", "is too long");
    qr_buffer_free(&json);
    qr_free(letters);
}

/* --- tokens that are not wanted ----------------------------------------------------------------------------------- */

/* Encodes with a limit: below it everything, else more than the limit and the same as far as it goes. */
static void check_enough(const qr_tokenizer *tokenizer, const char *text, const qr_tokens *all, int64_t max_tokens) {
    const qr_encode_options options = {.parse_special = true, .max_tokens = max_tokens};
    qr_tokens some = encode(tokenizer, text, strlen(text), &options);
    if (all->n <= (size_t)max_tokens) {
        CHECK_INT(some.n, all->n);
    } else {
        CHECK_MSG(some.n > (size_t)max_tokens, "%zu of %zu tokens, with a limit of %lld", some.n, all->n,
                  (long long)max_tokens);
    }
    qr_tokens_free(&some);
}

static void test_encoding_ends_with_enough_tokens(void) {
    static const char *const names[] = {"llama2",  "gpt2_prefix_space", "gemma",      "qwen2",           "bert",
                                        "affixes", "unigram_bytes",     "word_level", "unigram_charsmap"};
    static const char *const texts[] = {
        "",
        "a",
        "<s>a</s><s>",
        "The quick brown fox  jumps\n\n over 13 lazy dogs.",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E na\xC3\xAFve \xF0\x9F\x99\x82\xF0\x9F\x99\x82"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/%s", names[i]);
        qr_tokenizer *tokenizer = open_folder(folder);
        for (size_t k = 0; tokenizer != NULL && k < sizeof texts / sizeof texts[0]; k++) {
            qr_tokens all = encode(tokenizer, texts[k], strlen(texts[k]), &plain);
            for (int64_t most = 1; most < (int64_t)all.n + 2; most++) { check_enough(tokenizer, texts[k], &all, most); }
            qr_tokens_free(&all);
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

/* A word of 16 MB: some hundred bytes of it are enough. */
static void test_a_long_word_is_not_read_to_its_end(void) {
    static const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a\"]}}";
    const qr_encode_options options = {.max_tokens = 100};
    char *text = repeat("a", 16 << 20);
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    qr_alloc_stats before, after;
    REQUIRE(qr_tokenizer_parse(json, sizeof json - 1, "t", &tokenizer, &err) == QRUN_OK);
    qr_alloc_get_stats(&before);
    qr_alloc_reset_peak();
    qr_tokens tokens = encode(tokenizer, text, 16 << 20, &options);
    qr_alloc_get_stats(&after);
    CHECK_MSG(tokens.n > 100 && tokens.n < 1000, "%zu tokens", tokens.n);
    CHECK_MSG(after.bytes_peak - before.bytes_held < 1 << 20, "%lld bytes",
              (long long)(after.bytes_peak - before.bytes_held));
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
    qr_free(text);
}

/* --- tables whose keys collide ------------------------------------------------------------------------------------ */

/* A table of half-full slots has short runs of full ones, unless keys were chosen so that they meet. These files were
 * chosen so for hashes without a key, which qrun once had: then all keys are one run, and loading is quadratic. */
enum { LONGEST_RUN = 250 };

static size_t longest_run(const bool *is_full, size_t n) {
    size_t longest = 0, run = 0;
    for (size_t i = 0; i < 2 * n; i++) {
        run = is_full[i % n] ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest;
}

static uint64_t multiplied(uint64_t key) { return key * 0x9E3779B97F4A7C15ULL; }

static uint64_t old_hash_of_text(const char *text, size_t n_bytes) {
    uint64_t hash = multiplied(n_bytes), tail = 0;
    for (; n_bytes >= 8; text += 8, n_bytes -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = multiplied(hash ^ word);
        hash ^= hash >> 32;
    }
    for (size_t i = 0; i < n_bytes; i++) { tail = tail << 8 | (unsigned char)text[i]; }
    hash = multiplied(hash ^ tail);
    return hash ^ hash >> 29;
}

static qr_tokenizer *parse(const qr_buffer *json) {
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_MSG(qr_tokenizer_parse(json->data, json->size, "t", &tokenizer, &err) == QRUN_OK, "%s", err.message);
    return tokenizer;
}

static void check_runs(const bool *is_full, size_t n, const char *what) {
    const size_t longest = longest_run(is_full, n);
    CHECK_MSG(longest < LONGEST_RUN, "%s: %zu slots in a row are full", what, longest);
}

static void test_tokens_that_collide(void) {
    enum { N_TOKENS = 2000, N_SLOTS = 4096, WINDOW = 16 };
    qr_buffer json = {0};
    qr_buffer_append_text(&json, "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"u\":0");
    for (int n = 1, i = 0; n < N_TOKENS; i++) {
        char token[16];
        const int length = snprintf(token, sizeof token, "token%07d", i);
        if ((old_hash_of_text(token, (size_t)length) & (N_SLOTS - 1)) >= WINDOW) { continue; }
        qr_buffer_append_format(&json, ",\"%s\":%d", token, n++);
    }
    qr_buffer_append_text(&json, "}}}");
    qr_tokenizer *tokenizer = parse(&json);
    REQUIRE(tokenizer != NULL);
    static bool is_full[N_SLOTS];
    REQUIRE(tokenizer->vocab.slot_mask == N_SLOTS - 1);
    for (size_t i = 0; i < N_SLOTS; i++) { is_full[i] = tokenizer->vocab.slots[i].id >= 0; }
    check_runs(is_full, N_SLOTS, "tokens");
    qr_tokenizer_destroy(tokenizer);
    qr_buffer_free(&json);
}

static void test_merges_that_collide(void) {
    enum { N_SIDES = 220, N_MERGES = 600, N_SLOTS = 2048, WINDOW = 32 };
    static bool is_full[N_SLOTS];
    qr_buffer vocab = {0}, merges = {0};
    int n_merges = 0;
    for (int i = 0; i < 2 * N_SIDES; i++) {
        qr_buffer_append_format(&vocab, "%s\"%c%d\":%d", i > 0 ? "," : "", i < N_SIDES ? 'l' : 'r', i % N_SIDES, i);
    }
    for (int l = 0; l < N_SIDES; l++) {
        for (int r = 0; r < N_SIDES && n_merges < N_MERGES; r++) {
            const uint64_t pair = (uint64_t)l << 32 | (uint64_t)(N_SIDES + r);
            if ((multiplied(pair) >> 32 & (N_SLOTS - 1)) >= WINDOW) { continue; }
            qr_buffer_append_format(&vocab, ",\"l%dr%d\":%d", l, r, 2 * N_SIDES + n_merges);
            qr_buffer_append_format(&merges, "%s\"l%d r%d\"", n_merges > 0 ? "," : "", l, r);
            n_merges++;
        }
    }
    CHECK_INT(n_merges, N_MERGES);
    qr_buffer json = {0};
    qr_buffer_append_format(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[%s]}}", vocab.data,
                            merges.data);
    qr_tokenizer *tokenizer = parse(&json);
    REQUIRE(tokenizer != NULL);
    REQUIRE(tokenizer->bpe.table_mask == N_SLOTS - 1);
    for (size_t i = 0; i < N_SLOTS; i++) { is_full[i] = tokenizer->bpe.table[i].left >= 0; }
    check_runs(is_full, N_SLOTS, "merges");
    qr_tokenizer_destroy(tokenizer);
    qr_buffer_free(&json);
    qr_buffer_free(&merges);
    qr_buffer_free(&vocab);
}

/* Every token is one known before and a byte whose edge meets the others. A long last one makes the table's size. */
static void test_edges_that_collide(void) {
    enum { N_NODES = 900, N_EDGES = 16384, WINDOW = 700, N_BYTES = 8000, MOST_DEPTH = 32 };
    static char paths[N_NODES][MOST_DEPTH + 1];
    static bool is_full[N_EDGES];
    qr_buffer json = {0};
    size_t n_bytes = 1;
    uint32_t n = 2; /* the root, and the unknown token */
    snprintf(paths[1], sizeof paths[1], "u");
    qr_buffer_append_text(&json, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"u\",0]");
    for (uint32_t node = 0; node < n && n < N_NODES; node++) {
        for (char byte = 'A'; byte <= 'z' && n < N_NODES; byte++) {
            const uint64_t key = ((uint64_t)node << 8 | (unsigned char)byte) + 1;
            const size_t length = strlen(paths[node]) + 1;
            const bool meets = (multiplied(key) >> 32 & (N_EDGES - 1)) < WINDOW;
            if (!meets || byte == '\\' || (node == 0 && byte == 'u') || length > MOST_DEPTH) { continue; }
            memcpy(paths[n], paths[node], length - 1);
            paths[n][length - 1] = byte; /* and the zero that is there */
            qr_buffer_append_format(&json, ",[\"%s\",-1]", paths[n++]);
            n_bytes += length;
        }
    }
    CHECK_MSG(n == N_NODES && n_bytes < N_BYTES, "%u edges, %zu bytes", (unsigned)n, n_bytes);
    char *rest = repeat("0123456789", N_BYTES - n_bytes);
    qr_buffer_append_format(&json, ",[\"%s\",-1]]}}", rest);
    qr_tokenizer *tokenizer = parse(&json);
    REQUIRE(tokenizer != NULL);
    REQUIRE(tokenizer->unigram.trie.edge_mask == N_EDGES - 1);
    for (size_t i = 0; i < N_EDGES; i++) { is_full[i] = tokenizer->unigram.trie.edges[i].key != 0; }
    check_runs(is_full, N_EDGES, "edges");
    qr_tokenizer_destroy(tokenizer);
    qr_free(rest);
    qr_buffer_free(&json);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_normalizers_multiply);
    CHECK_RUN(test_growth_is_counted_over_the_text);
    CHECK_RUN(test_added_tokens_multiply);
    CHECK_RUN(test_pretokenizers_multiply);
    CHECK_RUN(test_subword_prefix);
    CHECK_RUN(test_decoders_multiply);
    CHECK_RUN(test_regular_expressions);
    CHECK_RUN(test_long_keys);
    CHECK_RUN(test_many_steps);
    CHECK_RUN(test_compiled_expressions_are_bounded);
    CHECK_RUN(test_long_expressions_are_refused_in_time);
    CHECK_RUN(test_encoding_ends_with_enough_tokens);
    CHECK_RUN(test_a_long_word_is_not_read_to_its_end);
    CHECK_RUN(test_tokens_that_collide);
    CHECK_RUN(test_merges_that_collide);
    CHECK_RUN(test_edges_that_collide);
    return check_end();
}

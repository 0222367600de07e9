/* Characters in regular expressions against the `tokenizers` library: the golden of tests/golden/tokenizer_unicode.py,
 * which holds for a sample of characters whether each expression matches them. */
#include "base/number.h"
#include "loaders/files/json.h"
#include "tokenizer_check.h"

#define GOLDEN QRUN_SOURCE_DIR "/tests/fixtures/unicode/tokenizer_classes.json"

/* A tokenizer that removes what the expression matches and has no token for the rest, so that a character of the text
 * is kept where it gives an unknown token. */
static qr_tokenizer *open_expression(const char *regex, qr_error *err) {
    qr_tokenizer *tokenizer = NULL;
    qr_buffer json = {0};
    qr_buffer_append_text(&json, "{\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{\"Regex\":");
    qr_buffer_append_json_string(&json, regex, strlen(regex));
    qr_buffer_append_text(&json,
                          "}},\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0},\"merges\":[]}}");
    (void)qr_tokenizer_parse(json.data, json.size, "t", &tokenizer, err);
    qr_buffer_free(&json);
    return tokenizer;
}

static size_t count_kept(const qr_tokenizer *tokenizer, const qr_buffer *text) {
    const qr_encode_options literal = {0};
    qr_tokens tokens = encode(tokenizer, text->data, text->size, &literal);
    const size_t n = tokens.n;
    qr_tokens_free(&tokens);
    return n;
}

/* "matches" is a hexadecimal number whose bit i is set where the expression matches character i of the sample. */
static bool golden_bit(const char *matches, size_t i) {
    const size_t n_digits = strlen(matches), digit = i / 4;
    return digit < n_digits && ((unsigned)qr_hex_digit(matches[n_digits - 1 - digit]) >> i % 4 & 1U) != 0;
}

static void check_expression(const qr_json *test, const qr_json *sample) {
    const char *regex = NULL, *prefix = NULL, *matches = NULL;
    qr_error err = {0};
    REQUIRE(qr_json_get_string(test, "regex", &regex, "golden", &err) == QRUN_OK && regex != NULL);
    REQUIRE(qr_json_get_string(test, "prefix", &prefix, "golden", &err) == QRUN_OK && prefix != NULL);
    REQUIRE(qr_json_get_string(test, "matches", &matches, "golden", &err) == QRUN_OK && matches != NULL);
    qr_tokenizer *tokenizer = open_expression(regex, &err);
    if (tokenizer == NULL) {
        check_fail(__FILE__, __LINE__, "%s", err.message);
        return;
    }
    qr_buffer text = {0};
    size_t i = 0, n_wrong = 0;
    for (const qr_json *item = qr_json_first(sample); item != NULL; item = item->next, i++) {
        char bytes[4];
        const uint32_t c = (uint32_t)item->valuedouble;
        size_t n_characters = 1;
        for (const char *at = prefix; *at != '\0'; at++) { n_characters += ((unsigned char)*at & 0xC0U) != 0x80U; }
        qr_buffer_clear(&text);
        qr_buffer_append_text(&text, prefix);
        qr_buffer_append(&text, bytes, qr_utf8_encode(c, bytes));
        const bool matched = count_kept(tokenizer, &text) < n_characters;
        if (matched != golden_bit(matches, i) && n_wrong++ < 3) {
            check_fail(__FILE__, __LINE__, "%s %s U+%04X after \"%s\"", regex, matched ? "matches" : "does not match",
                       (unsigned)c, prefix);
        }
    }
    CHECK_MSG(n_wrong == 0, "%s differs on %zu of %zu characters", regex, n_wrong, i);
    qr_buffer_free(&text);
    qr_tokenizer_destroy(tokenizer);
}

static void test_classes(void) {
    qr_error err = {0};
    char *data = NULL;
    size_t n_bytes = 0, n = 0;
    qr_json *root = NULL;
    REQUIRE(qr_file_read(GOLDEN, 1 << 20, &data, &n_bytes, &err) == QRUN_OK);
    REQUIRE(qr_json_parse(data, n_bytes, "golden", &root, &err) == QRUN_OK);
    const qr_json *sample = qr_json_get(root, "sample");
    CHECK_MSG(qr_json_count(sample) > 600, "%zu characters", (size_t)qr_json_count(sample));
    for (const qr_json *test = qr_json_first(qr_json_get(root, "tests")); test != NULL; test = test->next, n++) {
        check_expression(test, sample);
    }
    CHECK_MSG(n > 100, "%zu expressions", n);
    qr_json_free(root);
    qr_free(data);
}

/* What Oniguruma means by syntax that PCRE2 reads in another way: the text without the matches has `n_kept`
 * characters. The counts are those of `tokenizers` 0.23.3. */
static void test_syntax(void) {
    static const struct {
        const char *regex, *text;
        size_t n_kept;
    } cases[] = {{"x{,2}", "axxa{,2}", 6},
                 {"(?:ab){1}+", "ababa", 1},
                 {"a{2}?", "aaa", 1},
                 {"\\Qa", "Qab", 1},
                 {"a(?i)b|c", "aBCc", 2},
                 {"a**", "aab", 1},
                 {"a+*b", "aab", 0},
                 {"(?m:.)", "a\n", 0},
                 {".", "a\n", 1},
                 {"[\\R]", "R\n", 1},
                 {"\\V", "V\v", 1},
                 {"\\v", "\v\f\n", 2},
                 {"[a-c-e]", "abcde-", 1},
                 {"[\\w-]", "a-.", 1},
                 {"a{1", "a{1a", 1},
                 {"^", "a\nb\n", 4},
                 {"(?#(c)a", "ab", 1},
                 {"\\u0061\\x62\\x{63}", "abcd", 1},
                 {"(?i:'S)", "it'\xC5\xBF", 2},
                 {"a#b", "a#b", 0},
                 {"(?>a+)b", "aaab", 0},
                 {"\\-\\_", "a-_", 1},
                 {"[\\1]",
                  "\1"
                  "1",
                  1},
                 {"(?<=\\W)a\\b", "a-a", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qr_error err = {0};
        qr_tokenizer *tokenizer = open_expression(cases[i].regex, &err);
        if (tokenizer == NULL) {
            check_fail(__FILE__, __LINE__, "%s", err.message);
            continue;
        }
        qr_buffer text = {0};
        qr_buffer_append_text(&text, cases[i].text);
        const size_t n_kept = count_kept(tokenizer, &text);
        CHECK_MSG(n_kept == cases[i].n_kept, "%s leaves %zu of %s", cases[i].regex, n_kept, cases[i].text);
        qr_buffer_free(&text);
        qr_tokenizer_destroy(tokenizer);
    }
}

/* What cannot be made equal is refused when the file is opened, by name. */
static void test_refusals(void) {
    static const struct {
        const char *regex, *message;
    } cases[] = {{"[a-z&&[^x]]", "intersects character classes"},
                 {"[a[b]]", "nests character classes"},
                 {"[[:foo:]]", "nests character classes"},
                 {"\\p{In_Basic_Latin}", "property"},
                 {"\\pL", "\\p without a name in braces"},
                 {"\\xE9", "bytes above 0x7F"},
                 {"(a)\\1", "refers back"},
                 {"\\g<1>(a)", "refers back"},
                 {"\\X", "text segments"},
                 {"\\y", "text segments"},
                 {"(?~a)", "a group of an unknown kind"},
                 {"(?x: a)", "a group of an unknown kind"},
                 {"(*FAIL)", "a callout"},
                 {"(?i:stra\xC3\x9F"
                  "e)",
                  "letters without case"},
                 {"(?i:ss)", "letters without case"},
                 {"(?i:\\p{Lu})", "upper or lower case"},
                 {"a{3,1}", "down to a smaller one"},
                 {"(?=a)*", "repeats a place"},
                 {"*a", "repeats nothing"},
                 {"(a", "a group without an end"},
                 {"a)", "closes a group that is not open"},
                 {"[a", "a character class without an end"},
                 {"(?<=a*)b", "lookbehind"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qr_error err = {0};
        qr_tokenizer *tokenizer = open_expression(cases[i].regex, &err);
        CHECK_MSG(tokenizer == NULL && err.status == QRUN_ERROR_UNSUPPORTED && strstr(err.message, cases[i].message),
                  "%s: \"%s\"", cases[i].regex, err.message);
        qr_tokenizer_destroy(tokenizer);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_classes);
    CHECK_RUN(test_syntax);
    CHECK_RUN(test_refusals);
    return check_end();
}

/* Schemas and the texts that fit them: never one that jsonschema does not accept, and all that it, xgrammar and
 * llguidance accept; what is refused, and why; masks against the definition, token by token. */
#include "check.h"

#include "base/alloc.h"
#include "base/random.h"
#include "base/utf8.h"
#include "loaders/files/json.h"
#include "runtime/grammar/grammar_shelf.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"
#define EXAMPLE QRUN_SOURCE_DIR "/examples/model"

static qr_match_arena arena;

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* Whether a text is an answer; *n_read: its bytes that can begin one. */
static bool fits(const qr_automaton *automaton, const char *text, size_t n_bytes, size_t *n_read) {
    qr_match_set set = qr_match_start(&arena, automaton);
    for (*n_read = 0; *n_read < n_bytes; (*n_read)++) {
        set = qr_match_step(&arena, &set, (uint8_t)text[*n_read]);
        if (set.begin == set.end && !set.is_complete) { return false; }
        if (set.begin == set.end && *n_read + 1 < n_bytes) { return false; }
    }
    CHECK(!arena.overflow);
    return set.is_complete;
}

static qr_grammar *make(const char *schema) {
    qr_grammar *grammar = NULL;
    qr_error err = {0};
    const qrun_status status = qr_grammar_create(schema, strlen(schema), &grammar, &err);
    CHECK_MSG(status == QRUN_OK, "%s: %s", schema, err.message);
    return grammar;
}

static bool says(const qr_json *row, const char *key) { return cJSON_IsTrue(qr_json_get(row, key)); }

static void check_entry(const qr_json *entry, int *n_texts, int *n_fit) {
    const char *name = qr_json_get(entry, "name")->valuestring;
    qr_buffer schema = {0};
    qr_json_append(&schema, qr_json_get(entry, "schema"));
    qr_grammar *grammar = make(schema.data);
    qr_buffer_free(&schema);
    REQUIRE(grammar != NULL);
    for (const qr_json *row = qr_json_first(qr_json_get(entry, "texts")); row != NULL; row = row->next, (*n_texts)++) {
        const char *text = qr_json_get(row, "text")->valuestring;
        size_t n_read;
        const bool found = fits(&grammar->automaton, text, strlen(text), &n_read), valid = says(row, "valid");
        CHECK_MSG(!found || valid, "%s: %s fits, and is not valid", name, text);
        CHECK_MSG(found || !(valid && says(row, "xgrammar") && says(row, "llguidance")),
                  "%s: %s fits not after %zu bytes", name, text, n_read);
        *n_fit += found;
    }
    qr_grammar_destroy(grammar);
}

static void test_goldens(void) {
    qr_json *goldens = NULL;
    int n_texts = 0, n_fit = 0;
    REQUIRE(qr_json_read(FIXTURES "goldens/schemas.json", 1 << 20, &goldens, NULL) == QRUN_OK);
    for (const qr_json *c = qr_json_first(qr_json_get(goldens, "cases")); c != NULL; c = c->next) {
        check_entry(c, &n_texts, &n_fit);
    }
    printf("  %d of %d texts fit\n", n_fit, n_texts);
    CHECK(n_texts > 200 && n_fit > 80);
    qr_json_free(goldens);
}

/* What the goldens' tools see in another way, or not at all: own rules of form. */
static void test_form(void) {
    static const struct {
        const char *schema, *text;
        bool fits;
    } cases[] = {
        {"{\"type\":\"object\"}", "{ \"a\": 1}", true},
        {"{\"type\":\"object\"}", "{  \"a\": 1}", false}, /* one space at most */
        {"{\"type\":\"object\"}", " {}", false},
        {"{\"type\":\"object\"}", "{} ", false},
        {"{\"type\":\"object\"}", "{\"a\" : 1}", false},
        {"{\"type\":\"object\"}", "{\n\t\t\"a\": [\n 1\n ]\n}", true},
        {"{\"type\":\"object\"}", "{\n\n\"a\": 1}", false},
        {"{\"type\":\"object\"}", "{\n                     \"a\": 1}", false}, /* 21 spaces */
        {"{\"type\":\"integer\"}", "999999999999999999", true},
        {"{\"type\":\"integer\"}", "1000000000000000000", false},
        {"{\"type\":\"number\"}", "1e99", true},
        {"{\"type\":\"number\"}", "1e100", false},
        {"{\"type\":\"string\"}", "\"\\u0000\"", false},
        {"{\"type\":\"string\"}", "\"\\u0001\"", true},
        {"{\"type\":\"string\"}", "\"\\ud800\"", false},
        {"{\"type\":\"string\"}", "\"\\uD83D\\uDE00\"", true},
        {"{\"type\":\"string\"}", "\"\xED\xA0\x80\"", false}, /* a surrogate in UTF-8 */
        {"{\"type\":\"string\"}", "\"\xC0\x80\"", false},
        {"{\"type\":\"string\"}", "\"\xF4\x8F\xBF\xBF\"", true},
        {"{\"type\":\"string\"}", "\"\xF4\x90\x80\x80\"", false},
        {"{\"type\":\"string\",\"nullable\":true}", "null", true},
        /* a list of values has null itself, or it is not allowed */
        {"{\"type\":\"string\",\"enum\":[\"a\"],\"nullable\":true}", "null", false},
        {"{\"type\":\"string\",\"enum\":[\"a\"],\"nullable\":true}", "\"a\"", true},
        {"{\"type\":\"string\",\"enum\":[\"a\",null],\"nullable\":true}", "null", true},
        {"{\"type\":\"string\",\"enum\":[\"a\",null],\"nullable\":false}", "null", false},
        {"{\"enum\":[\"a\",null],\"nullable\":false}", "null", true},
        {"{\"const\":\"a\",\"nullable\":true}", "null", false},
        {"{\"const\":null,\"type\":\"string\",\"nullable\":true}", "null", true},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\",\"nullable\":true}},\"required\":[\"k\"]},"
         "{\"properties\":{\"k\":{\"const\":\"b\",\"nullable\":true}},\"required\":[\"k\"]}]}",
         "{\"k\":null}", false},
        /* 1.0 is an integer, and the same as 1 */
        {"{\"const\":1.0,\"type\":\"integer\"}", "1", true},
        {"{\"const\":1.0,\"type\":\"integer\"}", "1.0", false},
        {"{\"enum\":[-2e2,0.5,1.5],\"type\":\"integer\"}", "-200", true},
        {"{\"enum\":[-2e2,0.5,1.5],\"type\":\"integer\"}", "0.5", false},
        {"{\"const\":{\"a\":[-0.0,1e300,2.5]}}", "{\"a\":[0,1e+300,2.5]}", true},
        {"{\"properties\":{\"a\":{}}}", "{\"a\":1,\"b\":2}", false}, /* nothing undeclared, unless it is said */
        {"{\"required\":[\"a\",\"b\"],\"properties\":{\"b\":{\"type\":\"null\"}}}", "{\"b\":null,\"a\":[]}", true},
        {"{\"type\":\"object\",\"properties\":{\"a "
         "b\\\"é\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a b\\\"é\": null, \"a b\": null, \"a b\\\\\": null}", false}, /* an escape on the way of a name */
        {"{\"type\":\"object\",\"properties\":{\"a "
         "b\\\"é\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a b\\\"é\": null, \"a b\": null, \"a c\\\\\": null}", true},
        /* no name ends, or leaves those that are declared, within a character or an escape */
        {"{\"type\":\"object\",\"properties\":{}}", "{}", true},
        {"{\"type\":\"object\",\"properties\":{}}", "{\"a\": 1}", false},
        {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":true}", "{\"a\": 1}", true},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"\xC3\": 1}", false},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"\xC3z\": 1}", false},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"x\\\": 1}", false},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"x\\q\": 1}", false},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"x\\\"z\": 1}", true},
        {"{\"properties\":{\"é\":{},\"x\\\"y\":{}},\"additionalProperties\":{}}", "{\"éz\": 1}", true},
        {"{\"properties\":{\"\\u007f\":{\"type\":\"null\"}},\"additionalProperties\":{}}", "{\"\x7F\": 1}", false},
        {"{\"properties\":{\"\\u0001\":{}},\"additionalProperties\":{}}", "{\"\\u0002\": 1}", false},
        {"{\"properties\":{\"\\u0001\":{}},\"additionalProperties\":{}}", "{\"\\ua\": 1}", false},
        {"{\"properties\":{\"\\u0001\":{}},\"additionalProperties\":{}}", "{\"\\u0001a\": 1}", true},
        {"{\"allOf\":[{\"type\":\"null\"}]}", "null", true},
        /* constants of any type tell alternatives apart */
        {"{\"oneOf\":[{\"const\":1},{\"const\":2.5},{\"const\":null},{\"const\":true},{\"const\":false}]}", "2.5",
         true},
        {"{\"oneOf\":[{\"const\":1},{\"const\":2.5},{\"const\":null},{\"const\":true},{\"const\":false}]}", "2", false},
        {"{\"oneOf\":[{\"enum\":[1,\"a\"]},{\"enum\":[true,2]},{\"type\":\"array\"}]}", "true", true},
        {"{\"oneOf\":[{\"properties\":{\"v\":{\"const\":1}},\"required\":[\"v\"]},"
         "{\"properties\":{\"v\":{\"const\":2},\"w\":{}},\"required\":[\"v\"]}]}",
         "{\"v\":2,\"w\":1}", true},
        /* lengths that an expression has anyway; pydantic writes such for URLs */
        {"{\"type\":\"string\",\"pattern\":\"^(a|bc){2}d?$\",\"minLength\":2,\"maxLength\":5}", "\"bcbcd\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[^a]+$\",\"minLength\":1}", "\"é\"", true},
        {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
         "\"https://example.org:8080/a/b%20c?q=1&r=/#top\"", true},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"mailto:a@example.org\"", true},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"http://example.org/a#b#c\"", false},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"http://example.org/%2\"", false},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"//example.org\"", false},
        {"{\"type\":\"string\",\"format\":\"uri\"}", "\"http:///a b\"", false},
        {"{\"type\":\"string\",\"format\":\"password\",\"maxLength\":3}", "\"a b\"", true},
        {"{\"type\":\"string\",\"format\":\"password\",\"maxLength\":3}", "\"abcd\"", false},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"const\":1}}}", "1", true},
        {"{\"$id\":\"http://example.org/a\",\"anyOf\":[{\"const\":1},{\"$ref\":\"#/$defs/"
         "a\"}],\"$defs\":{\"a\":{\"type\":"
         "\"array\",\"items\":{\"$ref\":\"#\"}}}}",
         "[[1]]", true},
        {"{\"properties\":{\"$id\":{\"const\":1},\"b\":{\"$ref\":\"#/properties/$id\"}}}", "{\"$id\":1,\"b\":1}", true},
        /* bytes of a "$ref" as URIs have them, before "~0" and "~1" */
        {"{\"$ref\":\"#/$defs/a%20b\",\"$defs\":{\"a b\":{\"const\":1}}}", "1", true},
        {"{\"$ref\":\"#/%24defs%2Fa%7e1%C3%a9%25\",\"$defs\":{\"a/é%\":{\"const\":1}}}", "1", true},
        {"{\"$ref\":\"#%2F$defs/a~01\",\"$defs\":{\"a~1\":{\"const\":1},\"a/\":{\"const\":2}}}", "1", true},
        {"{\"$ref\":\"#/$defs/a%257E1\",\"$defs\":{\"a%7E1\":{\"const\":1},\"a/\":{\"const\":2}}}", "1", true},
        {"true", "[{}]", true},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "0", false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.0", false},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "0.001", true},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0}", "7.25", true},
        {"{\"type\":\"number\",\"minimum\":0.5}", "0.5", true},
        {"{\"type\":\"number\",\"minimum\":0.5}", "0.500", true},
        {"{\"type\":\"number\",\"minimum\":0.5}", "0.49999", false},
        {"{\"type\":\"number\",\"minimum\":0.5}", "123456789012345.5", true},
        {"{\"type\":\"number\",\"exclusiveMaximum\":999999.000000001}", "999999", true},
        {"{\"type\":\"number\",\"exclusiveMaximum\":999999.000000001}", "999999.000000001", false},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", "1", true},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", "0", false},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", "2", true},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":2.5}", "3", false},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":-0.5}", "-2", true},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":-0.5}", "-1", true},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":-0.5}", "0", false},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":-0.5}", "-3", false},
        {"{\"type\":\"number\",\"maximum\":-2}", "-2.0", true},
        {"{\"type\":\"number\",\"maximum\":-2}", "-1.9", false},
        {"{\"type\":\"string\",\"pattern\":\"^(?:a|b){2}$\"}", "\"ab\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^a{2}?b*?$\"}", "\"aabb\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^x{,a}$\"}", "\"x{,a}\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^{x}$\"}", "\"{x}\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^(a*)*$\"}", "\"aaa\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\\w.-]+@\\\\S$\"}", "\"a.b-c@d\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\ud83d\\\\uDE00{2}$\"}", "\"\U0001F600\U0001F600\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\\ud83d\\\\ude00-\\\\ud83d\\\\ude03x]$\"}", "\"\U0001F602\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\\ud83d\\\\ude00-\\\\ud83d\\\\ude03x]$\"}", "\"\U0001F604\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^[^\\\\ud83d\\\\ude00]$\"}", "\"\U0001F600\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^[^\\\\ud83d\\\\ude00]$\"}", "\"\U0001F601\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\ud800\\\\udc00\\\\udbff\\\\udfff$\"}", "\"\U00010000\U0010FFFF\"",
         true},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-02-03T04:05:06.7Z\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-12-31\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-04-30\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-04-31\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-02-28\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-02-29\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"1900-02-29\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2000-02-29\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-30\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-00-10\"", false},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P1Y2M3DT4H5M6S\"", true},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P2W\"", true},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"PT36H\"", true},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P1M\"", true},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P1YT1S\"", true},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P\"", false},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P1YT\"", false},
        {"{\"type\":\"string\",\"format\":\"duration\"}", "\"P1D2M\"", false},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"255.1.20.0\"", true},
        {"{\"type\":\"string\",\"format\":\"ipv4\"}", "\"256.1.20.0\"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qr_grammar *grammar = make(cases[i].schema);
        size_t n_read;
        if (grammar == NULL) { continue; }
        CHECK_MSG(fits(&grammar->automaton, cases[i].text, strlen(cases[i].text), &n_read) == cases[i].fits, "%s: %s",
                  cases[i].schema, cases[i].text);
        qr_grammar_destroy(grammar);
    }
}

/* Limits with fractions: of all numbers with two digits after the point, those that lie between. */
static void check_between(double low, bool excludes_low, double high, bool excludes_high) {
    char schema[256], text[32];
    (void)snprintf(schema, sizeof schema, "{\"type\":\"number\",\"%s\":%g,\"%s\":%g}",
                   excludes_low ? "exclusiveMinimum" : "minimum", low, excludes_high ? "exclusiveMaximum" : "maximum",
                   high);
    const bool is_empty = low > high || (low == high && (excludes_low || excludes_high));
    qr_grammar *grammar = NULL;
    qr_error err = {0};
    const qrun_status status = qr_grammar_create(schema, strlen(schema), &grammar, &err);
    CHECK_MSG((status == QRUN_OK) != is_empty, "%s: %s", schema, err.message);
    for (int k = -400; k <= 400 && grammar != NULL; k++) {
        const double value = k / 100.0;
        const bool is_between =
            (excludes_low ? value > low : value >= low) && (excludes_high ? value < high : value <= high);
        size_t n_read;
        (void)snprintf(text, sizeof text, "%.2f", value);
        CHECK_MSG(fits(&grammar->automaton, text, strlen(text), &n_read) == is_between, "%s: %s", schema, text);
        if (k % 10 != 0) { continue; }
        (void)snprintf(text, sizeof text, "%.1f", value);
        CHECK_MSG(fits(&grammar->automaton, text, strlen(text), &n_read) == is_between, "%s: %s", schema, text);
    }
    qr_grammar_destroy(grammar);
}

static void test_limits_with_fractions(void) {
    static const double limits[] = {-3.07, -2, -1.25, -0.5, -0.04, 0, 0.3, 0.35, 0.36, 1, 2.5, 3.99};
    const size_t n = sizeof limits / sizeof limits[0];
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i; k < n; k++) {
            for (int kind = 0; kind < 4; kind++) {
                check_between(limits[i], (kind & 1) != 0, limits[k], (kind & 2) != 0);
            }
        }
    }
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    static const struct {
        const char *schema, *message;
    } cases[] = {
        {"", "the schema"},
        {"{", "the schema"},
        {"[]", "#: a schema must be an object, true or false"},
        {"{\"type\":\"text\"}", "\"type\" must be object"},
        {"{\"type\":[\"string\",3]}", "\"type\" must be object"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"not\":{}}}}}",
         "#/properties/a/items: \"not\" is not supported"},
        {"{\"$defs\":{\"n\":{\"if\":{}}},\"$ref\":\"#/$defs/n\"}", "\"if\" is not supported"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "\"uniqueItems\" is not supported"},
        {"{\"type\":\"number\",\"multipleOf\":0.5}", "\"multipleOf\" must be a whole number"},
        {"{\"type\":\"integer\",\"multipleOf\":300}", "\"multipleOf\" is supported up to 128"},
        {"{\"type\":\"integer\",\"multipleOf\":3,\"minimum\":0,\"maximum\":99999}", "at most 4096 values"},
        {"{\"type\":\"object\",\"patternProperties\":{}}", "\"patternProperties\" is not supported"},
        {"{\"minlength\":3}", "\"minlength\" is not supported"},
        {"{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"null\"}", "\"type\" beside \"anyOf\" is not supported"},
        {"{\"anyOf\":[]}", "\"anyOf\" must be a list of schemas"},
        {"{\"allOf\":[{},{}]}", "#/allOf: \"allOf\" of several schemas"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "use \"anyOf\""},
        /* without "type" the first accepts every text too, and then every list */
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},{\"type\":\"string\"}]}",
         "use \"anyOf\""},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"],\"minItems\":1},"
         "{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"],\"minItems\":1}]}",
         "use \"anyOf\""},
        {"{\"$defs\":{\"t\":{\"type\":\"string\"}},\"oneOf\":[{\"$ref\":\"#/$defs/t\",\"nullable\":true},"
         "{\"type\":\"null\"}]}",
         "use \"anyOf\""},
        {"{\"enum\":[]}", "\"enum\" must be a list"},
        {"{\"enum\":[1],\"minimum\":0}", "\"minimum\" beside \"enum\""},
        {"{\"$ref\":\"#/$defs/none\"}", "the schema has no \"#/$defs/none\""},
        {"{\"$ref\":\"http://example.org\"}", "must be a place in this schema"},
        /* within a schema with a "$id" of its own, "#" would be that schema */
        {"{\"properties\":{\"a\":{\"$id\":\"http://example.org/a\",\"$ref\":\"#/$defs/"
         "n\",\"$defs\":{\"n\":{\"const\":1}}}},"
         "\"$defs\":{\"n\":{\"const\":2}}}",
         "#/properties/a: \"$id\" below the root is not supported"},
        {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"$id\":\"n\",\"type\":\"null\"}}}",
         "#/$defs/n: \"$id\" below the root"},
        {"{\"$ref\":\"#/$defs/n/properties/a\",\"$defs\":{\"n\":{\"$id\":\"n\",\"properties\":{\"a\":{}}}}}",
         "\"#/$defs/n/properties/a\" leads into a schema with an \"$id\""},
        {"{\"$anchor\":\"a\"}", "#: \"$anchor\" is not supported"},
        {"{\"$ref\":\"#a\",\"$defs\":{\"a\":{\"$anchor\":\"a\"}}}", "must be a place in this schema"},
        {"{\"$dynamicRef\":\"#a\"}", "\"$dynamicRef\" is not supported"},
        {"{\"$dynamicAnchor\":\"a\"}", "\"$dynamicAnchor\" is not supported"},
        {"{\"$recursiveRef\":\"#\"}", "\"$recursiveRef\" is not supported"},
        {"{\"$recursiveAnchor\":true}", "\"$recursiveAnchor\" is not supported"},
        {"{\"properties\":{\"a\":{\"id\":\"http://example.org/a\"}}}", "#/properties/a: \"id\" is not supported"},
        {"{\"$ref\":\"#/$defs/a%2\",\"$defs\":{\"a%2\":{}}}", "two hexadecimal digits"},
        {"{\"$ref\":\"#/$defs/a%g0\",\"$defs\":{\"a%g0\":{}}}", "two hexadecimal digits"},
        {"{\"$ref\":\"#/$defs/a%00b\",\"$defs\":{\"a\":{}}}", "not 00"},
        {"{\"$ref\":\"#/$defs/a%20c\",\"$defs\":{\"a b\":{}}}", "the schema has no \"#/$defs/a%20c\""},
        {"{\"$ref\":\"#\"}", "leads back to itself"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/b\"}]},"
         "\"b\":{\"$ref\":\"#/$defs/a\"}}}",
         "leads back to itself"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no finite JSON value"},
        {"false", "no finite JSON value"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no finite JSON value"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "\"minLength\" is more than"},
        {"{\"type\":\"string\",\"maxLength\":-1}", "whole number"},
        {"{\"type\":\"string\",\"maxLength\":100000}", "the schema is too large"},
        {"{\"type\":\"array\",\"maxItems\":2000000000}", "the schema is too large"},
        {"{\"type\":\"array\",\"maxItems\":2147483647,\"items\":{\"type\":\"null\"}}", "the schema is too large"},
        {"{\"type\":\"array\",\"minItems\":2147483647,\"items\":{\"type\":\"null\"}}", "the schema is too large"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "no list fits"},
        {"{\"type\":\"number\",\"minimum\":0.12345678901}", "at most 9 digits after the point"},
        {"{\"type\":\"integer\",\"minimum\":1000000.5}", "whole number of at most 15 digits"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":true}", "draft 4"},
        {"{\"type\":\"string\",\"format\":\"regex\"}", "\"format\": \"regex\" is not supported"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "\"maxLength\" beside \"pattern\""},
        {"{\"type\":\"string\",\"pattern\":\"^(a|bc){2}d?$\",\"maxLength\":4}", "allow no longer texts"},
        {"{\"type\":\"string\",\"pattern\":\"^(a|bc){2}d?$\",\"minLength\":3}", "allow no shorter texts"},
        {"{\"type\":\"string\",\"pattern\":\"^a$|^b\",\"maxLength\":9}", "allow no longer texts"},
        {"{\"type\":\"string\",\"pattern\":\"^a*$\",\"maxLength\":2147483647}", "allow no longer texts"},
        {"{\"type\":\"string\",\"pattern\":\"^((a{0,9999}){9999}){9999}$\",\"maxLength\":2147483647}",
         "allow no longer texts"},
        {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":4}", "allow no shorter texts"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"minLength\":3,\"maxLength\":2}", "\"minLength\" is more than"},
        {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "may have values in common"},
        {"{\"oneOf\":[{\"enum\":[1,\"a\"]},{\"enum\":[true,\"a\"]}]}", "may have values in common"},
        {"{\"oneOf\":[{\"const\":[1]},{\"const\":[2]}]}", "may have values in common"},
        {"{\"oneOf\":[{\"const\":1},{\"type\":\"integer\"}]}", "may have values in common"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "groups with ?"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "of escapes"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\ud83d\"}", "\\ud83d is half of a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\uD83Dx\"}", "\\ud83d is half of a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\ud83d\\\\u0041\"}", "\\ud83d is half of a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\ud83d\\\\ude0\"}", "hexadecimal digits"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\ude00\\\\ud83d\"}", "\\ude00 is half of a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"[\\\\ud800-\\\\udfff]\"}", "\\ud800 is half of a surrogate pair"},
        {"{\"type\":\"string\",\"pattern\":\"a(\"}", "a group has no end"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "closes nothing"},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", "nothing to repeat"},
        {"{\"type\":\"string\",\"pattern\":\"[b-a]\"}", "ends before it begins"},
        {"{\"type\":\"string\",\"pattern\":\"^x{,2}$\"}", "write {0,m}"},
        {"{\"type\":\"string\",\"pattern\":\"^{2}$\"}", "nothing to repeat"},
        {"{\"type\":\"string\",\"pattern\":\"(a^)\"}", "^ and $ can stand"},
        {"{\"type\":\"string\",\"pattern\":\"((a{1000}){1000}){1000}\"}", "the schema is too large"},
        {"{\"type\":\"string\",\"pattern\":\"((((|){9999}){9999}){9999}){9999}\"}", "the schema is too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qr_grammar *grammar = NULL;
        qr_error err = {0};
        const qrun_status status = qr_grammar_create(cases[i].schema, strlen(cases[i].schema), &grammar, &err);
        CHECK_MSG(status != QRUN_OK && grammar == NULL && strstr(err.message, cases[i].message) != NULL, "%s: %s",
                  cases[i].schema, err.message);
        qr_grammar_destroy(grammar);
    }
}

/* Long lists of values that many alternatives refer to are not compared without end. */
static void test_long_lists(void) {
    qr_buffer schema = {0};
    qr_buffer_append_text(&schema, "{\"$defs\":{");
    for (int list = 0; list < 2; list++) {
        qr_buffer_append_format(&schema, "%s\"%c\":{\"type\":\"string\",\"enum\":[", list > 0 ? "," : "", 'a' + list);
        for (int i = 0; i < 9000; i++) {
            qr_buffer_append_format(&schema, "%s\"%c%d\"", i > 0 ? "," : "", 'a' + list, i);
        }
        qr_buffer_append_text(&schema, "]}");
    }
    qr_buffer_append_text(&schema, "},\"anyOf\":[");
    for (int i = 0; i < 1800; i++) {
        qr_buffer_append_format(&schema, "%s{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}",
                                i > 0 ? "," : "");
    }
    qr_buffer_append_text(&schema, "]}");
    qr_grammar *grammar = NULL;
    qr_error err = {0};
    CHECK(schema.size < QR_GRAMMAR_MAX_SCHEMA_BYTES);
    CHECK(qr_grammar_create(schema.data, schema.size, &grammar, &err) == QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "may have values in common") != NULL, "%s", err.message);
    qr_grammar_destroy(grammar);
    qr_buffer_free(&schema);
}

/* As many alternatives as are compared, told apart by their last member. */
static void test_many_alternatives(void) {
    qr_buffer schema = {0};
    qr_buffer_append_text(&schema, "{\"oneOf\":[");
    for (int i = 0; i < 256; i++) {
        qr_buffer_append_format(&schema,
                                "%s{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":{},\"k\":"
                                "{\"const\":\"v%d\"}},\"required\":[\"k\"]}",
                                i > 0 ? "," : "", i);
    }
    qr_buffer_append_text(&schema, "]}");
    qr_grammar *grammar = make(schema.data);
    size_t n_read;
    static const char text[] = "{\"a\":1,\"k\":\"v17\"}";
    CHECK(grammar != NULL && fits(&grammar->automaton, text, strlen(text), &n_read));
    qr_grammar_destroy(grammar);
    qr_buffer_free(&schema);
}

/* Classes that name their characters over and over, from the last to the first. */
static void test_long_classes(void) {
    qr_buffer schema = {0};
    qr_buffer_append_text(&schema, "{\"type\":\"string\",\"pattern\":\"^");
    for (int class = 0; class < 31; class ++) {
        qr_buffer_append_char(&schema, '[');
        for (int i = 0; i < 8000; i++) { qr_buffer_append_char(&schema, (char)('z' - i / 320)); }
        qr_buffer_append_char(&schema, ']');
    }
    qr_buffer_append_text(&schema, "$\"}");
    qr_grammar *grammar = make(schema.data);
    static const char text[] = "\"abcdefghijklmnopqrstuvwxyzbcdef\"";
    size_t n_read;
    CHECK(grammar != NULL && !fits(&grammar->automaton, text, strlen(text), &n_read) && n_read == 1); /* no a */
    CHECK(grammar != NULL && fits(&grammar->automaton, "\"bcdefghijklmnopqrstuvwxyzbcdefg\"", 33, &n_read));
    qr_grammar_destroy(grammar);
    qr_buffer_free(&schema);
}

/* Deep recursion ends where the text may not be nested any further, and there still is a way to the end. */
static void test_depth(void) {
    qr_grammar *grammar =
        make("{\"type\":\"object\",\"properties\":{\"n\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
             "\"required\":[\"n\"]}");
    qr_buffer text = {0};
    size_t n_read;
    REQUIRE(grammar != NULL);
    for (int i = 0; i < 200; i++) { qr_buffer_append_text(&text, "{\"n\":"); }
    CHECK(!fits(&grammar->automaton, text.data, text.size, &n_read));
    const int depth = (int)(n_read / 5);
    CHECK_MSG(depth >= QR_GRAMMAR_MAX_DEPTH - 2 && depth <= QR_GRAMMAR_MAX_DEPTH + 1, "%d", depth);
    text.size = (size_t)depth * 5;
    qr_buffer_append_text(&text, "null");
    for (int i = 0; i < depth; i++) { qr_buffer_append_char(&text, '}'); }
    CHECK(fits(&grammar->automaton, text.data, text.size, &n_read));
    qr_buffer_free(&text);
    qr_grammar_destroy(grammar);
}

/* As many members as there may be, none of them required. */
static void test_members(void) {
    qr_buffer schema = {0};
    qr_buffer_append_text(&schema, "{\"properties\":{");
    for (int i = 0; i < 1000; i++) { qr_buffer_append_format(&schema, "%s\"p%d\":{}", i > 0 ? "," : "", i); }
    qr_buffer_append_text(&schema, "},\"additionalProperties\":{}}");
    qr_grammar *grammar = make(schema.data);
    size_t n_read;
    REQUIRE(grammar != NULL);
    static const char text[] = "{\"p0\": 1, \"p7\": [], \"p998\": {\"p1\": 2}, \"p1000\": 3, \"q\": 4}";
    CHECK(fits(&grammar->automaton, text, strlen(text), &n_read));
    static const char back[] = "{\"p7\": 1, \"p0\": 1}";
    CHECK(!fits(&grammar->automaton, back, strlen(back), &n_read));
    CHECK_INT(n_read, strlen("{\"p7\": 1, \"p0"));
    qr_buffer_free(&schema);
    qr_grammar_destroy(grammar);
}

/* ---- Forms ------------------------------------------------------------------------------------------------------- */

static qr_grammar *make_forms(const qr_grammar_form *forms, size_t n, qr_error *err) {
    qr_tokenizer *tokenizer = NULL;
    qr_grammar *grammar = NULL;
    CHECK(qr_tokenizer_open(EXAMPLE, &tokenizer, NULL) == QRUN_OK);
    if (tokenizer == NULL) { return NULL; }
    const qrun_status status = qr_grammar_create_forms(tokenizer, forms, n, &grammar, err);
    CHECK((status == QRUN_OK) == (grammar != NULL) && (status == QRUN_OK) == (err->message[0] == '\0'));
    qr_tokenizer_destroy(tokenizer);
    return grammar;
}

static void check_texts(const qr_grammar *grammar, const char *const *texts, bool expected) {
    for (size_t n_read; *texts != NULL; texts++) {
        CHECK_MSG(fits(&grammar->automaton, *texts, strlen(*texts), &n_read) == expected, "%s", *texts);
    }
}

/* One of several forms; references stay in their own schema, and special tokens are not their names. */
static void test_forms(void) {
    static const char list[] =
        "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/b\"}"
        ",\"maxItems\":2},\"b\":{\"const\":1}}}";
    static const char word[] = "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"enum\":[\"b\"]}}}";
    const qr_grammar_form forms[] = {{.name = "list", .before = "call <|user|>a:", .schema = list, .after = ""},
                                     {.name = "word", .before = "call <|user|>b:", .schema = word, .after = "<|end|>!"},
                                     {.name = "bare", .before = "", .schema = "{\"type\":\"integer\"}", .after = ";"}};
    static const char *const good[] = {"call \xFF<|user|>a:[1, 1]", "call \xFF<|user|>b:\"b\"\xFF<|end|>!", "12;",
                                       NULL};
    static const char *const bad[] = {"call <|user|>a:[1]",
                                      "call \xFF<|user|>a:\"b\"",
                                      "12",
                                      "[1]",
                                      "call \xFF<|user|>b:[1]\xFF<|end|>!",
                                      "call \xFF<|user|>a:[2]",
                                      NULL};
    qr_error err = {0};
    qr_grammar *grammar = make_forms(forms, 3, &err);
    REQUIRE(grammar != NULL);
    check_texts(grammar, good, true);
    check_texts(grammar, bad, false);
    qr_grammar_destroy(grammar);
    const qr_grammar_form refused = {
        .name = "the second", .before = "", .schema = "{\"properties\":{\"a\":{\"not\":{}}}}", .after = ""};
    const qr_grammar_form both[] = {forms[0], refused};
    CHECK(make_forms(both, 2, &err) == NULL);
    CHECK(strstr(err.message, "the second: #/properties/a: \"not\"") != NULL);
}

static const qr_schema_tags qwen_tags = {"<parameter=", ">\n", "\n</parameter>\n"};

/* Members between tags. */
static void test_tags(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\",\"description\":\"d\"},\"e\":{\"type\":"
        "\"string\",\"enum\":[\"x y\",\"\"]},\"n\":{\"type\":[\"string\",\"integer\"]}},\"required\":[\"t\",\"u\"]}";
    const qr_grammar_form form = {.name = "f",
                                  .before = "<f>\n",
                                  .schema = schema,
                                  .after = "</function></tool_call>",
                                  .is_tagged = true,
                                  .tags = qwen_tags};
#define TAG(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
    static const char *const good[] = {
        "<f>\n" TAG("t", "a <b> </param </ </<\n \"\\") TAG("u", "null") "</function></tool_call>",
        "<f>\n" TAG("t", "") TAG("e", "") TAG("n", "\"12\"") TAG("u", "[1]") "</function></tool_call>",
        "<f>\n" TAG("t", "</toot></parametes></functio></tool_cal\u00e9") TAG("e", "x y") TAG("n", "12")
            TAG("u", "1") "</function></tool_call>",
        NULL};
    static const char *const bad[] = {"<f>\n" TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "a</parameter>") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "<</function") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "</</tool_call>") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "a") TAG("e", "z") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "a") TAG("n", "b") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "a\x01") TAG("u", "null") "</function></tool_call>",
                                      "<f>\n" TAG("t", "a") TAG("u", "null") TAG("v", "1") "</function></tool_call>",
                                      NULL};
    qr_error err = {0};
    qr_grammar *grammar = make_forms(&form, 1, &err);
    REQUIRE(grammar != NULL);
    check_texts(grammar, good, true);
    check_texts(grammar, bad, false);
    qr_grammar_destroy(grammar);
    static const char *const refused[][2] = {
        {"{\"type\":\"array\"}", "#: must be an object"},
        {"{\"anyOf\":[{\"type\":\"object\"}]}", "#: must be an object"},
        {"{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"a\"}}}",
         "#/properties/a: \"pattern\" is not supported"},
        {"{\"properties\":{\"a\":{\"type\":\"string\",\"const\":\"</function>\"}}}", "would end the call"},
        {"{\"properties\":{\"a>\":{}}}", "\"a>\" cannot stand in a tag"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const qr_grammar_form wrong = {.name = "f",
                                       .before = "",
                                       .schema = refused[i][0],
                                       .after = "</function>",
                                       .is_tagged = true,
                                       .tags = qwen_tags};
        err = (qr_error){0};
        CHECK(make_forms(&wrong, 1, &err) == NULL);
        CHECK_MSG(strstr(err.message, refused[i][1]) != NULL, "%s: %s", refused[i][0], err.message);
    }
}

/* Tags of a form's own: a special token, and ends of tags that begin alike. */
static void test_other_tags(void) {
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}";
    qr_grammar_form form = {.name = "f",
                            .before = "f",
                            .schema = schema,
                            .after = "</call>",
                            .is_tagged = true,
                            .tags = {"<|user|><key>", "</key><value>", "</value></valid></val></va></values>"}};
#define MEMBER(name, value) "\xFF<|user|><key>" name "</key><value>" value "</value></valid></val></va></values>"
    static const char *const good[] = {"f</call>", "f" MEMBER("t", "a\n<|user|></v</c</b>") MEMBER("n", "12") "</call>",
                                       "f" MEMBER("t", "<</v</v") "</call>", NULL};
    static const char *const bad[] = {"f" MEMBER("t", "</va") "</call>",
                                      "f" MEMBER("t", "a</values") "</call>",
                                      "f" MEMBER("t", "</v</call") "</call>",
                                      "f" MEMBER("n", "a") "</call>",
                                      "f<|user|><key>n</key><value>1</value></valid></val></va></values></call>",
                                      NULL};
    qr_error err = {0};
    qr_grammar *grammar = make_forms(&form, 1, &err);
    REQUIRE(grammar != NULL);
    check_texts(grammar, good, true);
    check_texts(grammar, bad, false);
    qr_grammar_destroy(grammar);
    form.tags.after_value = "\n";
    CHECK(make_forms(&form, 1, &err) == NULL);
    CHECK_MSG(strstr(err.message, "has to end a tag") != NULL, "%s", err.message);
}

/* ---- Sharing ----------------------------------------------------------------------------------------------------- */

static qr_grammar *shelved(qr_grammar_shelf *shelf, const char *schema) {
    qr_buffer key = {0};
    qr_buffer_append_text(&key, schema);
    qr_grammar *found = qr_grammar_shelf_find(shelf, &key);
    qr_buffer_free(&key);
    return found;
}

static void shelve(qr_grammar_shelf *shelf, const char *schema, qr_grammar *grammar) {
    qr_buffer key = {0};
    qr_buffer_append_text(&key, schema);
    qr_grammar_shelf_keep(shelf, &key, grammar);
    qr_buffer_free(&key);
}

/* The last few are kept, up to so many bytes, and live as long as somebody has them. */
static void test_shelf(void) {
    static qr_grammar_shelf shelf;
    char schema[64];
    qr_grammar *first = make("{\"const\":0}");
    REQUIRE(first != NULL);
    qr_grammar_shelf_init(&shelf);
    CHECK(shelved(&shelf, "{\"const\":0}") == NULL);
    shelve(&shelf, "{\"const\":0}", first);
    shelve(&shelf, "{\"const\":0}", first); /* once */
    for (int i = 1; i < QR_SHELF_GRAMMARS + 3; i++) {
        snprintf(schema, sizeof schema, "{\"const\":%d}", i);
        qr_grammar *made = make(schema), *found = shelved(&shelf, "{\"const\":0}");
        REQUIRE(made != NULL);
        CHECK(found == first); /* asked for each time, so it stays */
        qr_grammar_destroy(found);
        shelve(&shelf, schema, made);
        qr_grammar_destroy(made);
    }
    CHECK_INT(first->n_users, 2);
    for (int i = 1; i < QR_SHELF_GRAMMARS + 3; i++) {
        snprintf(schema, sizeof schema, "{\"const\":%d}", i);
        qr_grammar *found = shelved(&shelf, schema);
        CHECK_MSG((found != NULL) == (i >= 4), "%d", i);
        qr_grammar_destroy(found);
    }
    static const char *const large[] = {"{\"type\":\"string\",\"minLength\":30000}",
                                        "{\"type\":\"string\",\"minLength\":30001}",
                                        "{\"type\":\"string\",\"minLength\":30002}"};
    int64_t n_bytes = 0;
    for (int i = 0; i < 3; i++) {
        qr_grammar *made = make(large[i]);
        REQUIRE(made != NULL);
        shelve(&shelf, large[i], made);
        n_bytes += qr_grammar_bytes(made);
        qr_grammar_destroy(made);
    }
    qr_grammar *oldest = shelved(&shelf, large[0]), *newest = shelved(&shelf, large[2]);
    CHECK_MSG((oldest != NULL) == (n_bytes < QR_SHELF_BYTES) && newest != NULL, "%lld bytes", (long long)n_bytes);
    printf("  three large grammars have %lld bytes\n", (long long)n_bytes);
    qr_grammar_destroy(oldest);
    qr_grammar_destroy(newest);
    qr_grammar_shelf_free(&shelf);
    CHECK_INT(first->n_users, 1);
    qr_grammar_destroy(first);
}

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

static const char *const masked[] = {
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"tags\":{\"type\":\"array\",\"items\":{"
    "\"enum\":["
    "\"a\",\"bc\"]}},\"n\":{\"type\":\"number\"}},\"required\":[\"name\"],\"additionalProperties\":{\"type\":"
    "\"string\"}}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z ]+(, [^0-9]+)?$\"}",
    "{\"type\":\"integer\",\"minimum\":5,\"maximum\":12345}",
    "{\"type\":\"number\",\"minimum\":-0.07,\"exclusiveMaximum\":12.5}",
    "{\"type\":\"string\",\"maxLength\":9}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"minLength\":2,\"maxLength\":7}]}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"enum\":[\"the dog and the "
    "cat\",\"\u00e9\u00e9\u00e9\u00e9\"]}]}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^[a-z\u00c0-\u00ff ]*$\"}]}",
    "{}",
};

/* A mask has a token if and only if its bytes lead on from the place. */
static void check_mask(qr_grammar *grammar, const qr_grammar_room *room, const qr_match_place *place,
                       const uint32_t *mask, const qr_grammar_ends *ends) {
    for (int32_t id = 0; id < room->trie.vocab; id++) {
        size_t n_bytes;
        const char *bytes = qr_token_trie_bytes(&room->trie, id, &n_bytes);
        qr_match_set set = qr_match_restore(&arena, &grammar->automaton, place);
        bool leads = n_bytes > 0;
        for (size_t i = 0; i < n_bytes && leads; i++) {
            set = qr_match_step(&arena, &set, (uint8_t)bytes[i]);
            leads = set.begin < set.end || (set.is_complete && i + 1 == n_bytes);
        }
        if (id == ends->ids[0][0]) { leads = place->is_complete; }
        CHECK_MSG((mask[id / 32] >> (id % 32) & 1) == leads, "token %d", id);
    }
}

/* An answer of tokens that are chosen at random among those of each mask; with the next two as drafts now and then. */
static void answer_at_random(qr_grammar *grammar, const qr_grammar_room *room, bool has_all_bytes, uint64_t seed) {
    enum { MOST_TOKENS = 60 };
    const int32_t eos = 1;
    const qr_grammar_ends ends = {{&eos, NULL}, {1, 0}};
    qr_grammar_worker *worker = &room->workers[0];
    qr_match_place place;
    REQUIRE(qr_match_place_create(&place, NULL) == QRUN_OK && qr_grammar_begin(grammar, worker, &place));
    for (int i = 0; i < MOST_TOKENS && !qr_grammar_is_over(&place); i++) {
        const uint32_t *mask;
        int32_t ids[4096], n = 0;
        REQUIRE(qr_grammar_mask(grammar, room, worker, &place, NULL, 0, &ends, &mask) == QR_GRAMMAR_OK);
        if (i % 7 == 0) { check_mask(grammar, room, &place, mask, &ends); }
        for (int32_t id = 0; id < room->trie.vocab; id++) {
            if ((mask[id / 32] >> (id % 32) & 1) != 0) { ids[n++] = id; }
        }
        CHECK(n > 0 || !has_all_bytes);
        if (n == 0) { break; }
        const int32_t token = ids[(int32_t)(qr_random_uniform(seed, 0, (uint64_t)i) * n)];
        if (token == eos) { break; }
        uint32_t *after = qr_alloc((size_t)room->trie.mask_words * sizeof *after);
        REQUIRE(qr_grammar_mask(grammar, room, worker, &place, &token, 1, &ends, &mask) == QR_GRAMMAR_OK);
        memcpy(after, mask, (size_t)room->trie.mask_words * sizeof *after);
        REQUIRE(qr_grammar_advance(grammar, room, worker, token, &place) == QR_GRAMMAR_OK);
        REQUIRE(qr_grammar_mask(grammar, room, worker, &place, NULL, 0, &ends, &mask) == QR_GRAMMAR_OK);
        CHECK(memcmp(after, mask, (size_t)room->trie.mask_words * sizeof *after) == 0);
        qr_free(after);
    }
    qr_match_place_free(&place);
}

/* Tokenizers of fixtures lack some of the 256 bytes, so that a text may have no way on. */
static void check_masks_of(const char *folder, bool has_all_bytes) {
    qr_tokenizer *tokenizer = NULL;
    qr_grammar_room *room = NULL;
    qr_error err = {0};
    REQUIRE(qr_tokenizer_open(folder, &tokenizer, NULL) == QRUN_OK);
    const int64_t vocab = qr_tokenizer_vocab_size(tokenizer);
    CHECK_MSG(qr_grammar_room_create(tokenizer, vocab, 1, &room, &err) == QRUN_OK, "%s: %s", folder, err.message);
    for (size_t i = 0; room != NULL && i < sizeof masked / sizeof masked[0]; i++) {
        qr_grammar *grammar = make(masked[i]);
        REQUIRE(grammar != NULL && qr_grammar_start(grammar, vocab, NULL) == QRUN_OK);
        for (uint64_t seed = 0; seed < 3; seed++) { answer_at_random(grammar, room, has_all_bytes, seed); }
        qr_grammar_destroy(grammar);
    }
    qr_grammar_room_destroy(room);
    qr_tokenizer_destroy(tokenizer);
}

static void test_masks(void) {
    check_masks_of(EXAMPLE, true);
    check_masks_of(FIXTURES "tokenizers/llama2", false);
    check_masks_of(FIXTURES "tokenizers/qwen2", false);
    check_masks_of(FIXTURES "tokenizers/gemma", false);
    check_masks_of(FIXTURES "tokenizers/unigram_bytes", false);
}

/* The longest token of a mask. */
static int32_t longest_of(const qr_grammar_room *room, const uint32_t *mask) {
    size_t most = 0;
    int32_t found = -1;
    for (int32_t id = 0; id < room->trie.vocab; id++) {
        size_t n_bytes;
        (void)qr_token_trie_bytes(&room->trie, id, &n_bytes);
        if ((mask[id / 32] >> (id % 32) & 1) != 0 && n_bytes > most) { most = n_bytes, found = id; }
    }
    return found;
}

/* Where a text can be read in many ways, drafts leave as much room for its next token as tokens do. */
static void test_many_drafts(void) {
    enum { N_DRAFTS = 8 };
    const qr_grammar_ends ends = {{NULL, NULL}, {0, 0}};
    qr_tokenizer *tokenizer = NULL;
    qr_grammar_room *room = NULL;
    qr_match_place place;
    const uint32_t *mask;
    int32_t drafts[N_DRAFTS];
    REQUIRE(qr_tokenizer_open(EXAMPLE, &tokenizer, NULL) == QRUN_OK);
    const int64_t vocab = qr_tokenizer_vocab_size(tokenizer);
    REQUIRE(qr_grammar_room_create(tokenizer, vocab, 1, &room, NULL) == QRUN_OK);
    qr_grammar_worker *worker = &room->workers[0];
    qr_grammar *grammar = make("{\"type\":\"string\",\"pattern\":\"^([a-z ]?){600}[a-z ]*$\"}");
    REQUIRE(grammar != NULL && qr_grammar_start(grammar, vocab, NULL) == QRUN_OK);
    REQUIRE(qr_match_place_create(&place, NULL) == QRUN_OK && qr_grammar_begin(grammar, worker, &place));
    REQUIRE(qr_grammar_mask(grammar, room, worker, &place, NULL, 0, &ends, &mask) == QR_GRAMMAR_OK);
    REQUIRE(qr_grammar_advance(grammar, room, worker, longest_of(room, mask), &place) == QR_GRAMMAR_OK);
    REQUIRE(qr_grammar_mask(grammar, room, worker, &place, NULL, 0, &ends, &mask) == QR_GRAMMAR_OK);
    for (int i = 0; i < N_DRAFTS; i++) { drafts[i] = longest_of(room, mask); }
    CHECK(qr_grammar_mask(grammar, room, worker, &place, drafts, N_DRAFTS, &ends, &mask) == QR_GRAMMAR_OK);
    for (int i = 0; i < N_DRAFTS; i++) {
        CHECK(qr_grammar_advance(grammar, room, worker, drafts[i], &place) == QR_GRAMMAR_OK);
    }
    CHECK(qr_grammar_mask(grammar, room, worker, &place, NULL, 0, &ends, &mask) == QR_GRAMMAR_OK);
    qr_match_place_free(&place);
    qr_grammar_destroy(grammar);
    qr_grammar_room_destroy(room);
    qr_tokenizer_destroy(tokenizer);
}

/* What tokens add to a text is what decoding makes of them. */
static void check_bytes_of(const char *folder) {
    enum { N = 40 };
    qr_tokenizer *tokenizer = NULL;
    REQUIRE(qr_tokenizer_open(folder, &tokenizer, NULL) == QRUN_OK);
    const int32_t vocab = qr_tokenizer_vocab_size(tokenizer);
    for (uint64_t round = 0; round < 50; round++) {
        qr_buffer together = {0}, alone = {0};
        int32_t ids[N];
        for (uint64_t i = 0; i < N; i++) { ids[i] = (int32_t)(qr_random_uniform(7, round, i) * vocab); }
        for (int i = 0; i < N; i++) {
            size_t n_bytes;
            if (qr_tokenizer_token(tokenizer, ids[i], &n_bytes) == NULL) { ids[i] = ids[0]; }
            CHECK(qr_tokenizer_token_bytes(tokenizer, ids[i], &alone, NULL) == QRUN_OK);
        }
        if (qr_tokenizer_token(tokenizer, ids[0], &(size_t){0}) != NULL && alone.size > 0 &&
            qr_utf8_valid_prefix(alone.data, alone.size) == alone.size) {
            CHECK(qr_tokenizer_decode(tokenizer, ids, N, true, &together, NULL) == QRUN_OK);
            /* the first one's space may go */
            const size_t n_off = alone.size - together.size;
            CHECK(n_off <= 1 && memcmp(alone.data + n_off, together.data, together.size) == 0);
        }
        qr_buffer_free(&together);
        qr_buffer_free(&alone);
    }
    qr_tokenizer_destroy(tokenizer);
}

static void test_token_bytes(void) {
    check_bytes_of(EXAMPLE);
    check_bytes_of(FIXTURES "tokenizers/llama2");
    check_bytes_of(FIXTURES "tokenizers/qwen2");
    check_bytes_of(FIXTURES "tokenizers/gemma");
    check_bytes_of(FIXTURES "tokenizers/llama3");
    qr_tokenizer *tokenizer = NULL;
    qr_grammar_room *room = NULL;
    qr_error err = {0};
    REQUIRE(qr_tokenizer_open(FIXTURES "tokenizers/bert", &tokenizer, NULL) == QRUN_OK);
    CHECK(qr_grammar_room_create(tokenizer, 100, 1, &room, &err) == QRUN_ERROR_UNSUPPORTED && room == NULL);
    CHECK(strstr(err.message, "neighbours") != NULL);
    qr_tokenizer_destroy(tokenizer);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_match_arena_create(&arena, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_goldens);
    CHECK_RUN(test_form);
    CHECK_RUN(test_limits_with_fractions);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_long_lists);
    CHECK_RUN(test_many_alternatives);
    CHECK_RUN(test_long_classes);
    CHECK_RUN(test_depth);
    CHECK_RUN(test_members);
    CHECK_RUN(test_forms);
    CHECK_RUN(test_tags);
    CHECK_RUN(test_other_tags);
    CHECK_RUN(test_shelf);
    CHECK_RUN(test_masks);
    CHECK_RUN(test_many_drafts);
    CHECK_RUN(test_token_bytes);
    qr_match_arena_free(&arena);
    return check_end();
}

/* JSON: what is refused and where, what the tree says, the public conformance suite, speed on large objects. */
#include "check.h"

#include <math.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/files/json.h"
#include "loaders/files/json_edit.h"
#include "locales.h"
#include "temporary.h"

static qr_json *parse(const char *text, qr_error *err) {
    qr_json *root = NULL;
    const qrun_status status = qr_json_parse(text, strlen(text), "t", &root, err);
    CHECK_MSG((status == QRUN_OK) == (root != NULL), "status %d and tree disagree", (int)status);
    return root;
}

static void test_values(void) {
    qr_error err = {0};
    qr_json *root =
        parse("{\"a\": [1, -2.5e1, true, false, null], \"text\": \"x\\n\\u20ac\\ud83d\\ude00\\/\", \"\": {}}", &err);
    REQUIRE(root != NULL);
    const qr_json *item = qr_json_first(qr_json_get(root, "a"));
    CHECK(cJSON_IsNumber(item) && item->valuedouble == 1 && item->valueint == 1);
    item = item->next;
    CHECK(item->valuedouble == -25);
    CHECK(cJSON_IsTrue(item->next) && cJSON_IsFalse(item->next->next) && cJSON_IsNull(item->next->next->next));
    CHECK(item->next->next->next->next == NULL);
    CHECK_INT(cJSON_GetArraySize(qr_json_get(root, "a")), 5);
    CHECK_STR(qr_json_get(root, "text")->valuestring, "x\n\xE2\x82\xAC\xF0\x9F\x98\x80/");
    CHECK(cJSON_IsObject(qr_json_get(root, "")) && qr_json_first(qr_json_get(root, "")) == NULL);
    CHECK(qr_json_get(root, "A") == NULL && qr_json_get(NULL, "a") == NULL);
    CHECK(qr_json_get(qr_json_get(root, "a"), "a") == NULL);
    qr_json_free(root);
    qr_json_free(NULL);
}

static void test_typed_members(void) {
    qr_error err = {0};
    qr_json *root = parse("{\"i\": 7, \"f\": 2.5e1, \"h\": 2.5, \"s\": \"v\", \"n\": null, \"b\": true}", &err);
    REQUIRE(root != NULL);
    int64_t integer = 42;
    CHECK(qr_json_get_int(root, "absent", 0, 9, &integer, "w", &err) == QRUN_OK && integer == 42);
    CHECK(qr_json_get_int(root, "n", 0, 9, &integer, "w", &err) == QRUN_OK && integer == 42);
    CHECK(qr_json_get_int(root, "i", 0, 9, &integer, "w", &err) == QRUN_OK && integer == 7);
    double number = 0;
    CHECK(qr_json_get_double(root, "h", 0, 9, &number, "w", &err) == QRUN_OK && number == 2.5);
    bool flag = false;
    CHECK(qr_json_get_bool(root, "b", &flag, "w", &err) == QRUN_OK && flag);
    const char *text = NULL;
    CHECK(qr_json_get_string(root, "s", &text, "w", &err) == QRUN_OK);
    CHECK_STR(text, "v");
    CHECK_INT(err.status, QRUN_OK);

    CHECK_INT(qr_json_get_int(root, "h", 0, 9, &integer, "w", &err), QRUN_ERROR_INPUT);
    CHECK_STR(err.message, "w: \"h\" is 2.5 and should be an integer");
    qr_error_clear(&err);
    CHECK_INT(qr_json_get_int(root, "i", 0, 6, &integer, "w", &err), QRUN_ERROR_INPUT);
    CHECK_STR(err.message, "w: \"i\" is 7, outside 0 to 6");
    qr_error_clear(&err);
    CHECK_INT(qr_json_get_bool(root, "s", &flag, "w", &err), QRUN_ERROR_INPUT);
    CHECK_STR(err.message, "w: \"s\" should be true or false and is a string");
    CHECK_INT(qr_json_get_double(root, "s", 0, 1, &number, "w", NULL), QRUN_ERROR_INPUT);
    CHECK_INT(qr_json_get_string(root, "i", &text, "w", NULL), QRUN_ERROR_INPUT);
    CHECK_INT(integer, 7);
    qr_json_free(root);
}

static void test_integers_are_written_as_such(void) {
    static const struct {
        const char *text;
        bool is_integer;
        int64_t value;
    } cases[] = {{"0", true, 0},
                 {"7", true, 7},
                 {"-7", true, -7},
                 {"9007199254740992", true, INT64_C(1) << 53},
                 {"-9007199254740992", true, -(INT64_C(1) << 53)},
                 {"7.0", false, 0},
                 {"7e0", false, 0},
                 {"70e-1", false, 0},
                 {"1e3", false, 0},
                 {"-0", false, 0},
                 {"-0.0", false, 0},
                 {"9007199254740994", false, 0}, /* even, so the tree holds it, but beyond 2^53 */
                 {"9223372036854775808", false, 0},
                 {"1000000000000000019884624838656", false, 0}, /* "no limit" in many configs */
                 {"true", false, 0},
                 {"\"7\"", false, 0},
                 {"[7]", false, 0}};
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_json *root = parse(cases[i].text, NULL);
        int64_t value = 42;
        CHECK_MSG(qr_json_as_int(root, INT64_MIN, INT64_MAX, &value) == cases[i].is_integer, "%s", cases[i].text);
        CHECK_INT(value, cases[i].is_integer ? cases[i].value : 42);
        qr_json_free(root);
    }
    int64_t value = 42;
    qr_json *root = parse("{\"a\": 7, \"f\": 2.0}", NULL);
    qr_error err = {0};
    CHECK(!qr_json_as_int(qr_json_get(root, "a"), 0, 6, &value) &&
          !qr_json_as_int(qr_json_get(root, "a"), 8, 9, &value));
    CHECK(!qr_json_as_int(NULL, 0, 6, &value));
    CHECK_INT(qr_json_get_int(root, "f", 0, 9, &value, "w", &err), QRUN_ERROR_INPUT);
    CHECK_STR(err.message, "w: \"f\" should be an integer in digits, without point, exponent or \"-0\"");
    CHECK_INT(value, 42);
    qr_json_free(root);
}

static void test_refusals_say_where(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "t:1:1: the text ends where a value should be"},
        {"[1,\n 2,]", "t:2:4: ']' where a value should be"},
        {"{\"a\": 1,\n\"b\": 2, \"a\": 3}", "t:2:9: key \"a\" occurs twice in one object"},
        {"{\"ab\": 1, \"\\u0061b\": 3}", "t:1:11: key \"ab\" occurs twice in one object"},
        {"[\"\xE2\x82\xAC\", \"\\ud800x\"]", "t:1:8: \\ud800 is half of a surrogate pair"},
        {"\"\\ude00\"", "t:1:2: \\ude00 is half of a surrogate pair"},
        {"\"\\ude00\\udc00\"", "t:1:2: \\ude00 is half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "t:1:2: \\ud800 is half of a surrogate pair"},
        {"\"a\\u0000\"", "t:1:3: \\u0000 in a string: text with NUL characters is not supported"},
        {"\"\\x\"", "t:1:2: unknown escape in a string"},
        {"\"a\tb\"", "t:1:3: control character 0x09 in a string; write it as \\u0009"},
        {"\"\xC0\xAF\"", "t:1:2: byte 0xc0 is not valid UTF-8 here"},
        {"\"abc", "t:1:1: this string has no closing quote"},
        {"[9007199254740993]", "t:1:2: the integer 9007199254740993 does not fit 53 bits"},
        {"[-9007199254740993]", "t:1:2: the integer -9007199254740993 does not fit 53 bits"},
        {"1e999", "t:1:1: the number 1e999 is too large"},
        {"01", "t:1:1: a number cannot begin with 0"},
        {"1.", "t:1:3: a number needs a digit after its point"},
        {"-", "t:1:2: a number needs a digit here"},
        {"1e+", "t:1:4: a number needs a digit in its exponent"},
        {"tru", "t:1:1: 't' where a value should be"},
        {"NaN", "t:1:1: 'N' where a value should be"},
        {"{} {}", "t:1:4: '{' where the end of the text should be"},
        {"{1: 2}", "t:1:2: '1' where a key in quotes should be"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n",
         "t:1:1: is a pointer of Git LFS in the place of the file; fetch the file with: git lfs pull"},
        {"\xEF\xBB\xBF{}", "t:1:1: begins with a byte-order mark; save it as UTF-8 without one"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_error err = {0};
        qr_json *root = parse(cases[i].text, &err);
        CHECK_MSG(root == NULL, "accepted: %s", cases[i].text);
        CHECK_INT(err.status, QRUN_ERROR_INPUT);
        CHECK_STR(err.message, cases[i].message);
        qr_json_free(root);
    }
    qr_json *root = NULL;
    qr_error err = {0};
    CHECK_INT(qr_json_parse("[\0]", 3, "t", &root, &err), QRUN_ERROR_INPUT);
    CHECK_STR(err.message, "t:1:2: byte 0x00 where a value should be");
}

static void test_limits_are_accepted(void) {
    static const char *const texts[] = {"9007199254740992",
                                        "-9007199254740992",
                                        "1e22",
                                        "9007199254740993.0",
                                        "-0",
                                        "0.00000000000000000000000000000000000000000000000000000000000000000000000001",
                                        "\" \x7F\xF4\x8F\xBF\xBF\"",
                                        " \t\r\n[ ] "};
    for (size_t i = 0; i < QR_COUNT_OF(texts); i++) {
        qr_error err = {0};
        qr_json *root = parse(texts[i], &err);
        CHECK_MSG(root != NULL, "%s", err.message);
        qr_json_free(root);
    }
}

static void test_depth(void) {
    for (int depth = QR_JSON_MAX_DEPTH; depth <= QR_JSON_MAX_DEPTH + 1; depth++) {
        qr_buffer text = {0};
        for (int i = 0; i < depth; i++) { qr_buffer_append_char(&text, '['); }
        for (int i = 0; i < depth; i++) { qr_buffer_append_char(&text, ']'); }
        qr_error err = {0};
        qr_json *root = parse(text.data, &err);
        CHECK((root != NULL) == (depth == QR_JSON_MAX_DEPTH));
        qr_json_free(root);
        qr_buffer_free(&text);
    }
    qr_buffer siblings = {0}; /* only what is open counts */
    qr_buffer_append_text(&siblings, "[0");
    for (int i = 0; i < 2 * QR_JSON_MAX_DEPTH; i++) { qr_buffer_append_text(&siblings, ", [[]]"); }
    qr_buffer_append_char(&siblings, ']');
    qr_json *root = parse(siblings.data, NULL);
    CHECK(root != NULL);
    qr_json_free(root);
    qr_buffer_free(&siblings);
}

/* Numbers must not follow the host program's locale. */
static void test_decimal_comma(void) {
    if (!locales_begin("de_DE")) { return; }
    qr_buffer out = {0};
    qr_json *root = parse(
        "[1.5, -2e-9, 1E300, 12, 9007199254740992, 3.0, -0.0, {\"a \\\"b\\\"\": [true, null, \"\\n\"]}, {}, []]", NULL);
    REQUIRE(root != NULL);
    CHECK(qr_json_first(root)->valuedouble == 1.5);
    qr_json_append(&out, root);
    locales_end();
    CHECK_STR(out.data, "[1.5,-2e-09,1e+300,12,9007199254740992,3.0,-0.0,{\"a \\\"b\\\"\":[true,null,\"\\n\"]},{},[]]");
    qr_buffer_free(&out);
    qr_json_free(root);
}

static void test_large_objects_are_quick(void) {
    qr_buffer text = {0};
    qr_buffer_append_char(&text, '{');
    for (int i = 0; i < 130000; i++) {
        qr_buffer_append_format(&text, "%s\"token %d with some length to it, as in a vocabulary\": %d",
                                i > 0 ? ", " : "", i * 7919 % 130000, i);
    }
    qr_buffer_append_char(&text, '}');
    REQUIRE(qr_buffer_ok(&text));
    struct timespec begin, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    qr_json *root = parse(text.data, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    printf("  130,000 keys, %zu bytes: %.3f s\n", text.size, seconds);
    CHECK(root != NULL);
    CHECK_MSG(seconds < 3.0, "%.3f s", seconds); /* roomy for sanitizers; a quadratic check needs minutes */
    CHECK_INT(cJSON_GetArraySize(root), 130000);
    qr_json_free(root);

    text.data[text.size - 1] = ',';
    qr_buffer_append_text(&text, "\"token 65000 with some length to it, as in a vocabulary\": 1}");
    CHECK(parse(text.data, NULL) == NULL);
    qr_buffer_free(&text);
}

static qrun_status attempt_parse(void *context, qr_error *err) {
    qr_json *root;
    const qrun_status status = qr_json_parse(context, strlen(context), "t", &root, err);
    qr_json_free(root);
    return status;
}

static void test_any_allocation_may_fail(void) {
    qr_buffer text = {0}; /* long enough to need a second block */
    qr_buffer_append_text(&text, "{\"a\": [1, 2.5, \"text\"], \"b\": {\"c\": null}");
    for (int i = 0; i < 100; i++) { qr_buffer_append_format(&text, ", \"key %d\": \"value %d\"", i, i); }
    qr_buffer_append_char(&text, '}');
    REQUIRE(qr_buffer_ok(&text));
    check_failing_allocations(attempt_parse, text.data, false);
    qr_buffer_free(&text);
}

static void test_read_names_the_file(void) {
    char path[] = "/tmp/qrun_test_json_XXXXXX";
    const int descriptor = mkstemp(path);
    REQUIRE(descriptor >= 0);
    FILE *file = fdopen(descriptor, "w");
    fputs("{\"a\":\n  ?}", file);
    fclose(file);
    qr_error err = {0};
    qr_json *root;
    CHECK_INT(qr_json_read(path, 1000, &root, &err), QRUN_ERROR_INPUT);
    char expected[128];
    snprintf(expected, sizeof expected, "%s:2:3: '?' where a value should be", path);
    CHECK_STR(err.message, expected);
    CHECK_INT(qr_json_read(path, 5, &root, NULL), QRUN_ERROR_INPUT);
    remove(path);
    CHECK_INT(qr_json_read(path, 1000, &root, NULL), QRUN_ERROR_NOT_FOUND);
}

/* Valid JSON that is refused on purpose. */
static bool is_refused_by_policy(const char *name) {
    static const char *const names[] = {
        "y_object_duplicated_key.json", /* the second value would silently win */
        "y_object_duplicated_key_and_value.json",
        "y_object_escaped_null_in_key.json", /* \u0000 */
        "y_string_null_escape.json",
    };
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return false;
}

static void check_suite_file(const char *folder, const char *name) {
    char *path = qr_path_join(folder, name);
    qr_error err = {0};
    qr_json *root;
    const bool accepted = qr_json_read(path, (size_t)1 << 24, &root, &err) == QRUN_OK;
    if (name[0] == 'y') {
        CHECK_MSG(accepted != is_refused_by_policy(name), "%s: %s", name, accepted ? "accepted" : err.message);
    } else if (name[0] == 'n') {
        CHECK_MSG(!accepted, "%s: accepted", name);
    }
    CHECK_MSG(accepted || (err.status == QRUN_ERROR_INPUT && err.message[0] != '\0'), "%s: no message", name);
    qr_json_free(root);
    qr_free(path);
}

/* Python's numbers that are not JSON. */
static void test_infinity(void) {
    const char *const text = "{\"limits\": [-Infinity, Infinity]}";
    qr_json *root;
    qr_error err = {0};
    qr_buffer written = {0};
    CHECK_INT(qr_json_parse(text, strlen(text), "t", &root, &err), QRUN_ERROR_INPUT);
    REQUIRE(qr_json_parse_python(text, strlen(text), "t", &root, &err) == QRUN_OK);
    const qr_json *low = qr_json_first(qr_json_get(root, "limits"));
    CHECK(low->valuedouble == -(double)INFINITY && low->next->valuedouble == (double)INFINITY);
    qr_json_append(&written, root);
    CHECK_STR(written.data, "{\"limits\":[-Infinity,Infinity]}");
    qr_json_free(root);
    qr_buffer_free(&written);
    CHECK_INT(qr_json_parse_python("[Infinit]", 9, "t", &root, &err), QRUN_ERROR_INPUT);
}

static void test_conformance_suite(void) {
    const char *found = check_shared_data("malformed/JSONTestSuite");
    if (found == NULL) {
        check_skip("the conformance suite is not there");
        return;
    }
    char *root = qr_strdup(found);
    const char *const folders[] = {"", "test_parsing"};
    int n_files = 0;
    for (size_t i = 0; i < QR_COUNT_OF(folders); i++) {
        char *folder = qr_path_join(root, folders[i]);
        DIR *listing = opendir(folder);
        for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
            if (strchr("yni", entry->d_name[0]) == NULL || entry->d_name[1] != '_') { continue; }
            check_suite_file(folder, entry->d_name);
            n_files++;
        }
        if (listing != NULL) { closedir(listing); }
        qr_free(folder);
    }
    CHECK_MSG(n_files > 300, "only %d files", n_files);
    qr_free(root);
}

static void check_edit(const char *text, const char *key, const char *value, const char *expected) {
    qr_buffer out = {0};
    qr_error err = {0};
    CHECK_MSG(qr_json_edit_set(text, strlen(text), "t", key, value, &out, &err) == QRUN_OK, "%s: %s", text,
              err.message);
    CHECK_STR(out.data, expected);
    qr_buffer_free(&out);
}

static void test_editing_a_text(void) {
    check_edit("{\n  \"a\": 1e-05,\n  \"b\": [2]\n}\n", "a", "7", "{\n  \"a\": 7,\n  \"b\": [2]\n}\n");
    check_edit("{\n  \"a\": 1,\n  \"b\": {\"c\": 2}\n}\n", "b", "true", "{\n  \"a\": 1,\n  \"b\": true\n}\n");
    check_edit("{\n  \"a\": 1\n}\n", "b", "\"x\"", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}\n");
    check_edit("{}", "b", "1", "{\n  \"b\": 1\n}");
    check_edit("{\n  \"a\": 1,\n  \"b\": {\"a\": \"},\"},\n  \"c\": 3\n}\n", "b", NULL,
               "{\n  \"a\": 1,\n  \"c\": 3\n}\n");
    check_edit("{\n  \"a\": 1,\n  \"b\": 2\n}\n", "b", NULL, "{\n  \"a\": 1\n}\n");
    check_edit("{\n  \"a\": 1,\n  \"b\": 2\n}\n", "a", NULL, "{\n  \"b\": 2\n}\n");
    check_edit("{\"b\": 2}", "b", NULL, "{}");
    check_edit("{\"b\": 2}", "c", NULL, "{\"b\": 2}");
    size_t begin = 0, end = 0;
    const char *text = "{\"a\": 1, \"b\" : {\"c\": [3]}}";
    REQUIRE(qr_json_edit_find(text, strlen(text), "a test", "b", &begin, &end, NULL) == QRUN_OK);
    CHECK(end - begin == 11 && memcmp(text + begin, " {\"c\": [3]}", 11) == 0);
    CHECK(qr_json_edit_find(text, strlen(text), "a test", "c", &begin, &end, NULL) == QRUN_OK && end == 0);
    CHECK(qr_json_edit_find("[1]", 3, "a test", "c", &begin, &end, NULL) == QRUN_OK && end == 0);
    CHECK(qr_json_edit_find("{", 1, "a test", "c", &begin, &end, NULL) == QRUN_ERROR_INPUT);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_values);
    CHECK_RUN(test_typed_members);
    CHECK_RUN(test_integers_are_written_as_such);
    CHECK_RUN(test_refusals_say_where);
    CHECK_RUN(test_limits_are_accepted);
    CHECK_RUN(test_depth);
    CHECK_RUN(test_decimal_comma);
    CHECK_RUN(test_large_objects_are_quick);
    CHECK_RUN(test_any_allocation_may_fail);
    CHECK_RUN(test_read_names_the_file);
    CHECK_RUN(test_infinity);
    CHECK_RUN(test_conformance_suite);
    CHECK_RUN(test_editing_a_text);
    return check_end();
}

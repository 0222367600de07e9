/* The template language: cases whose results Jinja2 itself gave, errors with their lines, hostile templates, and
 * failing allocations. */
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "check.h"
#include "loaders/template/jinja.h"
#include "temporary.h"

/* Cases that real template runs recorded after the template had changed its own arguments, which the sandbox of
 * today's transformers forbids. */
static bool is_recorded_after_change(const char *name) {
    return strcmp(name, "array.pop() last") == 0 || strcmp(name, "array.pop() with index") == 0;
}

static qrun_status render_with(const char *text, const qr_json *context, qr_buffer *out, qr_error *err) {
    qr_jinja_template *parsed = NULL;
    qr_jinja_variable variables[64];
    size_t n = 0;
    for (const qr_json *item = qr_json_first(context); item != NULL && n < 64; item = item->next) {
        variables[n++] = (qr_jinja_variable){.name = item->string, .kind = QR_JINJA_GIVE_JSON, .json = item};
    }
    qrun_status status = qr_jinja_parse(text, strlen(text), "t", &parsed, err);
    if (status == QRUN_OK) { status = qr_jinja_render(parsed, variables, n, 1752150600, out, err); }
    qr_jinja_free(parsed);
    return status;
}

/* Renders without variables; the text or the message, valid until the next call. */
static const char *rendered(const char *text) {
    static qr_buffer out;
    static qr_error err;
    qr_buffer_clear(&out);
    qr_error_clear(&err);
    if (text == NULL) {
        qr_buffer_free(&out);
        return NULL;
    }
    return render_with(text, NULL, &out, &err) != QRUN_OK ? err.message : out.data != NULL ? out.data : "";
}

/* One case of a file: "template", its "context" or the file's, and "expected" text or "error": true. */
static bool case_holds(const qr_json *item, const qr_json *common) {
    const char *name = "", *text = NULL, *expected = NULL;
    bool fails = false;
    qr_error err = {0};
    (void)qr_json_get_string(item, "name", &name, "case", &err);
    (void)qr_json_get_string(item, "template", &text, "case", &err);
    (void)qr_json_get_string(item, "expected", &expected, "case", &err);
    (void)qr_json_get_bool(item, "error", &fails, "case", &err);
    qr_buffer out = {0};
    const qr_json *own = qr_json_get(item, "context");
    const qrun_status status = render_with(text, own != NULL ? own : common, &out, &err);
    const char *got = out.data != NULL ? out.data : "";
    const bool holds = fails ? status == QRUN_ERROR_INPUT : status == QRUN_OK && strcmp(got, expected) == 0;
    if (!holds) {
        printf("  differs: %s: %.200s\n    expected %s\n    got      %s\n", name, text, fails ? "an error" : expected,
               status == QRUN_OK ? got : err.message);
    }
    qr_buffer_free(&out);
    return holds;
}

/* Runs all cases of a file that Jinja2 agrees with, and says how many. */
static void run_cases(const char *path, int n_least) {
    qr_json *root = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_json_read(path, 64 << 20, &root, &err) == QRUN_OK, "%s", err.message);
    int n_cases = 0, n_held = 0, n_left = 0;
    for (const qr_json *item = qr_json_first(qr_json_get(root, "cases")); item != NULL; item = item->next) {
        bool agrees = true;
        const char *name = "";
        (void)qr_json_get_bool(item, "jinja2_agrees", &agrees, path, &err);
        (void)qr_json_get_string(item, "name", &name, path, &err);
        if (!agrees || is_recorded_after_change(name)) {
            n_left++;
            continue;
        }
        n_cases++;
        n_held += case_holds(item, qr_json_get(root, "context"));
    }
    printf("  %s: %d of %d cases exact, %d left out\n", strrchr(path, '/') + 1, n_held, n_cases, n_left);
    CHECK_INT(n_held, n_cases);
    CHECK_MSG(n_cases >= n_least, "%d cases, expected at least %d", n_cases, n_least);
    qr_json_free(root);
}

static void test_own_cases(void) { run_cases(QRUN_SOURCE_DIR "/tests/fixtures/templates/cases.json", 120); }

static void test_real_templates(void) {
    const char *path = check_shared_data("chat-templates/real-templates.json");
    if (path == NULL) {
        check_skip("the real data are absent");
        return;
    }
    run_cases(path, 50);
}

static void test_engine_cases(void) {
    const char *path = check_shared_data("chat-templates/engine-cases.json");
    if (path == NULL) {
        check_skip("the real data are absent");
        return;
    }
    run_cases(path, 275);
}

/* Every message names the template, the line and the construct. */
static void test_errors(void) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a\nb\n{{ x | nofilter }}", "t: line 3: unknown filter 'nofilter'"},
        {"{% if true %}\n{{ 1 | nofilter }}{% endif %}", "t: line 2: unknown filter 'nofilter'"},
        {"\n{{ x is nothing }}", "t: line 2: unknown test 'nothing'"},
        {"\n\n{% frobnicate x %}", "t: line 3: unknown tag 'frobnicate'"},
        {"{% include 'x' %}", "t: line 1: the tag 'include' is not supported in chat templates"},
        {"{% endfor %}", "t: line 1: the tag 'endfor' closes nothing that is open"},
        {"\n{% if x %}\n\n", "t: line 2: {% if %} has no end: {% endif %} is missing"},
        {"{% for x in y %}\n{% endif %}", "t: line 2: the tag 'endif' closes nothing that is open"},
        {"{{ nosuch() }}", "t: line 1: 'nosuch' is undefined"},
        {"{{\n1 +\n}}", "t: line 3: found }} where an expression should be"},
        {"{{ a b }}", "t: line 1: found 'b' where the end of the print, }}, should be"},
        {"{% set 1 = 2 %}", "t: line 1: found '1' where the name of a variable to assign to should be"},
        {"\n{{ 'abc }}", "t: line 2: a string has no end: the closing quote is missing"},
        {"{# x", "t: line 1: the comment has no end: #} is missing"},
        {"{{ (1] }}", "t: line 1: unexpected ']'"},
        {"{{ 1 $ 2 }}", "t: line 1: unexpected character '$'"},
        {"{{ 10 ** 9999 }}", "t: line 1: an integer of more than 14336 bits is not supported"},
        {"{{ 10 ** 4300 }}", "t: line 1: an integer of more than 4300 digits is not written out"},
        {"{{ 'x'.encode() }}", "t: line 1: the method 'encode' is not supported"},
        {"{{ '&eacute;'|striptags }}", "t: line 1: striptags: the character reference '&eacute;' is not supported"},
        {"{{ '{:012,}'.format(5) }}", "t: line 1: a format with both ',' and leading zeros is not supported"},
        {"{% set d = {'a': 1} %}\n{{ d.b.c }}", "t: line 2: 'dict object' has no attribute 'b'"},
        {"{{ [1][5].x }}", "t: line 1: list object has no element 5"},
        {"{{ [1].append(2) }}",
         "t: line 1: access to attribute 'append' of 'list' object is unsafe: templates cannot change values"},
        {"{{ 'a' + 1 }}", "t: line 1: can only concatenate str (not \"int\") to str"},
        {"{{ 'a'|replace('b') }}", "t: line 1: the filter 'replace' needs the argument 'new'"},
        {"{{ 'a'.upper(1) }}", "t: line 1: the method 'upper' takes at most 0 arguments, not 1"},
        {"{{ 'a'|indent(nope=1) }}",
         "t: line 1: the filter 'indent' got an argument that it does not know (it takes: width first blank)"},
        {"{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}", "t: line 2: macro 'm' takes not more than 1 argument(s)"},
        {"{% break %}", "t: line 1: {% break %} outside of a loop"},
        {"{{ 1\n/ 0 }}", "t: line 2: division by zero"},
        {"{{ raise_exception('roles must alternate') }}", "roles must alternate"},
        {"\xff", "t: byte 0 is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *message = rendered(cases[i].text);
        CHECK_MSG(strcmp(message, cases[i].message) == 0, "%s\n    expected %s\n    got      %s", cases[i].text,
                  cases[i].message, message);
    }
}

/* before + middle × n + after, to be freed. */
static char *repeated(const char *before, const char *middle, size_t n, const char *after) {
    qr_buffer text = {0};
    qr_buffer_append_text(&text, before);
    for (size_t i = 0; i < n; i++) { qr_buffer_append_text(&text, middle); }
    qr_buffer_append_text(&text, after);
    return qr_buffer_take(&text);
}

static void expect_refusal(const char *text, const char *part) {
    const char *message = rendered(text);
    CHECK_MSG(strstr(message, part) != NULL, "%.60s…: expected \"%s\", got %.200s", text, part, message);
}

static void test_hostile_templates(void) {
    expect_refusal("{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", "steps");
    expect_refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper");
    expect_refusal("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
                   "steps");
    expect_refusal("{% set l = range(99999)|list %}{% for i in l %}{% set x = l[1:] %}{% endfor %}", "MiB");
    expect_refusal("{{ 'x' * 9000000000000000000 }}", "t: line 1: the t");
    expect_refusal("{{ [0] * 9000000000000000000 }}", "t: line 1: the template");
    expect_refusal("{{ range(9223372036854775807) }}", "range too big");
    expect_refusal("{{ range(-9223372036854775807, 9223372036854775807, 3) }}", "range too big");
    expect_refusal("{{ 'x'.center(9000000000000000000) }}", "t: line 1: the t");
    expect_refusal("{{ '%999999999d' % 1 }}", "a format asks for more than");
    expect_refusal("{{ '{:99999999999999999999}'.format(1) }}", "a format asks for more than");
    expect_refusal("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
                   "nested deeper");
    expect_refusal("{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}{% endfor %}"
                   "{{ n.l|tojson }}",
                   "nested deeper");
    expect_refusal("{% set n = namespace(l=[], m=[]) %}{% for i in range(9999) %}{% set n.l = [n.l] %}"
                   "{% set n.m = [n.m] %}{% endfor %}{{ n.l == n.m }}",
                   "nested deeper");
    expect_refusal("{% set n = namespace() %}{% set n.n = n %}{{ n }}", "nested deeper");
    expect_refusal("{% set n = namespace(x=3) %}{% for i in range(64) %}{% set n.x = n.x * n.x %}{% endfor %}", "bits");
    expect_refusal("{{ 2 ** (10 ** 9) }}", "bits");
    expect_refusal("{{ 1 ** (2 ** 99999) }}", "bits");
    expect_refusal("{{ range(2 ** 70) }}", "beyond 64 bits");
    expect_refusal("{{ 'x' * 2 ** 70 }}", "unsupported operand");
    expect_refusal("{{ 'x'.ljust(2 ** 70) }}", "beyond 64 bits");
    expect_refusal("{{ 5|round(-9223372036854775807 - 1) }}", "bits");
    CHECK_STR(rendered("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
    CHECK_STR(rendered("{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}"), "a");
    CHECK_STR(rendered("{{ '1e999'|float }}"), "inf");
    expect_refusal("{{ 10.0 ** 400 }}", "too large");
}

/* Few steps that each walk far: what runs for hours must be refused in the time that the steps allow. */
static void test_long_walks(void) {
    static const char *const bodies[] = {
        "s.rfind('b')", "s.rsplit('b', 1)", "s.strip('a')",   "s|length",     "s.count('b')",
        "'b' in s",     "s == t",           "[s, t, s]|sort", "s[5:9999999]", "s.find(h)",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char text[640];
        snprintf(
            text, sizeof text,
            "{%% set s = 'a' * 2000000 %%}{%% set t = 'a' * 2000000 %%}{%% set h = 'a' * 1000000 ~ 'b' %%}"
            "{%% for i in range(99999) %%}{%% for j in range(99999) %%}{%% set x = %s %%}{%% endfor %%}{%% endfor %%}",
            bodies[i]);
        const clock_t before = clock();
        const char *message = rendered(text);
        const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
        CHECK_MSG(strstr(message, "steps to render") != NULL, "%s: %.200s", bodies[i], message);
        CHECK_MSG(seconds < 20.0, "%s: %.1f s", bodies[i], seconds);
    }
}

/* Nesting in the text itself: refused while it is parsed, however it is written. */
static void test_deep_nesting(void) {
    static const struct {
        const char *before, *middle, *after;
    } cases[] = {
        {"{{ ", "(", ""},           {"{{ ", "[", ""},
        {"{{ ", "- ", "1 }}"},      {"{{ ", "not ", "1 }}"},
        {"{{ 1", " + 1", " }}"},    {"{{ 1", " ** 1", " }}"},
        {"{{ 1", " and 1", " }}"},  {"{{ 1", " if 1", " }}"},
        {"{{ 1", "|abs", " }}"},    {"{{ x", ".y", " }}"},
        {"{{ x", "[0]", " }}"},     {"{{ x", "()", " }}"},
        {"", "{% if 1 %}", ""},     {"", "{% for x in y %}", ""},
        {"{{ 1", " is odd", " }}"}, {"{{ 1", " if 1 else 1", " }}"},
        {"{% set ", "(", ""},       {"{{ ", "{1:", ""},
        {"{{ x(", "x(", ""},        {"{% filter abs", "|abs", " %}{% endfilter %}"},
        {"{{ 1 is in ", "x[", ""},  {"{% if 0 %}", "{% elif 0 %}", "{% endif %}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = repeated(cases[i].before, cases[i].middle, 100000, cases[i].after);
        const char *message = rendered(text);
        const bool is_flat = strstr(cases[i].middle, "elif") != NULL;
        CHECK_MSG(is_flat ? message[0] == '\0' : strncmp(message, "t: line 1: ", 11) == 0, "%s%s…: %.100s",
                  cases[i].before, cases[i].middle, message);
        qr_free(text);
    }
    char *flat = repeated("{{ ''", " ~ 1", 5000, " }}");
    CHECK_INT(strlen(rendered(flat)), 5000);
    qr_free(flat);
}

static void test_time(void) {
    CHECK_STR(rendered("{{ strftime_now('%Y-%m-%d %H:%M:%S|%d %B %Y|%-d %b|%A|%j|%Z%z|%f|%%|é%') }}"),
              "2025-07-10 12:30:00|10 July 2025|10 Jul|Thursday|191||000000|%|é%");
}

static qrun_status render_everything(void *context, qr_error *err) {
    qr_buffer out = {0};
    const qrun_status status = render_with(
        "{% macro m(a, b=[1, 2]) %}{{ a }}{{ caller() }}{{ kwargs }}{% endmacro %}"
        "{% for k, v in d|dictsort if v %}{{ loop.index }}{{ k ~ v|tojson(indent=1) }}{% endfor %}"
        "{% call m('é'.upper(), z=1) %}{{ '%s{}'.format(1) % 'x' }}{% endcall %}{% set b %}{{ d }}{% endset %}"
        "{{ b|replace('a', 'b')|indent }}{{ 'a b'.split()|map('upper')|join }}{{ strftime_now('%d') }}"
        "{% set n = namespace(x={1: 2, 3: 4, 5: 6, 7: 8, 9: 10, 11: 12, 13: 14, 15: 16, 17: 18, 19: 20}) %}"
        "{{ n.x[19] }}{{ 'x' * 40000 }}{{ [3, 1, 2]|sort|list }}",
        (const qr_json *)context, &out, err);
    qr_buffer_free(&out);
    return status;
}

static void test_failing_allocations(void) {
    static const char json[] = "{\"d\": {\"a\": [1, 2.5, null, \"x\"], \"b\": {\"c\": true}}}";
    qr_json *context = NULL;
    REQUIRE(qr_json_parse(json, sizeof json - 1, "context", &context, NULL) == QRUN_OK);
    check_failing_allocations(render_everything, context, false);
    qr_json_free(context);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    setenv("TZ", "UTC", 1);
    tzset();
    CHECK_RUN(test_own_cases);
    CHECK_RUN(test_real_templates);
    CHECK_RUN(test_engine_cases);
    CHECK_RUN(test_errors);
    CHECK_RUN(test_hostile_templates);
    CHECK_RUN(test_long_walks);
    CHECK_RUN(test_deep_nesting);
    CHECK_RUN(test_time);
    CHECK_RUN(test_failing_allocations);
    (void)rendered(NULL);
    return check_end();
}

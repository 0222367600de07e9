/* The steps of a rendering bound its time: every builtin and operator of the language is called with inputs of several
 * kinds and sizes, and none may take much longer for a step than a plain loop does. So no template runs longer than
 * some times a plain loop of as many steps. */
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "base/sizes.h"
#include "check.h"
#include "loaders/template/jinja.h"
#include "loaders/template/jinja_run.h"

enum { SMALL = 24, MIDDLE = 1000, LARGE = 9000, MOST_TIMES = 20, MOST_CALLS = 65536 };

static const double enough_seconds = 0.0002;

/* What expressions are about: long texts s, t, h, w and u; lists l, m, x and p; dicts d and e; a large number b. */
static const char *const names[] = {"s", "t", "h", "w", "u", "l", "m", "x", "p", "d", "e"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static const char *const subjects[] = {"s", "w", "u", "l", "x", "p", "d", "b"};
static const char *const small_subjects[] = {"1.5", "'7'", "(1, 2)"}; /* for what takes none of the others */
static const char *const arguments[] = {"h", "'a'", "3", "l"};

typedef struct cost {
    double seconds;
    double steps;
    bool ran; /* to the end, or to the end of its steps */
} cost;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void append_repeated(qr_buffer *json, const char *name, const char *piece, int n, const char *end) {
    qr_buffer_append_format(json, "\"%s\": \"", name);
    for (int i = 0; i < n; i++) { qr_buffer_append_text(json, piece); }
    qr_buffer_append_format(json, "%s\", ", end);
}

/* The variables for a size, made once. */
static const qr_json *inputs_of(int size) {
    static qr_json *made[LARGE + 1];
    if (made[size] != NULL) { return made[size]; }
    qr_buffer json = {0};
    qr_error err = {0};
    const int n_items = size / 8;
    qr_buffer_append_text(&json, "{");
    append_repeated(&json, "s", "a", size, "");
    append_repeated(&json, "t", "a", size, "");
    append_repeated(&json, "h", "a", size / 2, "b");
    append_repeated(&json, "w", "<a> &amp; B1\\t\\n", size / 12, "");
    append_repeated(&json, "u", "éß日", size / 7, "");
    for (int twice = 0; twice < 2; twice++) {
        qr_buffer_append_format(&json, "\"%s\": [", twice ? "m" : "l");
        for (int i = 0; i < n_items; i++) { qr_buffer_append_format(&json, "%s%d", i > 0 ? ", " : "", i); }
        qr_buffer_append_format(&json, "], \"%s\": {", twice ? "e" : "d");
        for (int i = 0; i < n_items; i++) { qr_buffer_append_format(&json, "%s\"k%d\": %d", i > 0 ? ", " : "", i, i); }
        qr_buffer_append_text(&json, "}, ");
    }
    qr_buffer_append_text(&json, "\"p\": [");
    for (int i = 0; i < n_items; i++) { qr_buffer_append_format(&json, "%s[%d, 1]", i > 0 ? ", " : "", i); }
    qr_buffer_append_text(&json, "], \"x\": [");
    for (int i = 0; i < 3; i++) {
        qr_buffer_append_text(&json, i > 0 ? ", \"" : "\"");
        for (int k = 0; k < size; k++) { qr_buffer_append_char(&json, 'a'); }
        qr_buffer_append_char(&json, '"');
    }
    qr_buffer_append_text(&json, "]}");
    CHECK_MSG(qr_json_parse(json.data, json.size, "inputs", &made[size], &err) == QRUN_OK, "%s", err.message);
    qr_buffer_free(&json);
    return made[size];
}

/* Whether the expression uses the variable: a name of one letter on its own. */
static bool uses(const char *expression, char name) {
    bool quoted = false, in_word = false;
    for (const char *at = expression; *at != '\0'; at++) {
        quoted = quoted != (*at == '\'');
        const bool word = (*at >= 'a' && *at <= 'z') || *at == '_' || *at == '.';
        const bool next = (at[1] >= 'a' && at[1] <= 'z') || at[1] == '_';
        if (!quoted && *at == name && !in_word && !next) { return true; }
        in_word = word;
    }
    return false;
}

static cost measure(const char *expression, int size, int n_calls) {
    qr_jinja_variable variables[N_NAMES];
    size_t n = 0;
    for (size_t i = 0; i < N_NAMES; i++) {
        if (!uses(expression, names[i][0])) { continue; }
        variables[n++] = (qr_jinja_variable){
            .name = names[i], .kind = QR_JINJA_GIVE_JSON, .json = qr_json_get(inputs_of(size), names[i])};
    }
    qr_buffer text = {0}, out = {0};
    qr_error err = {0};
    qr_jinja_template *parsed = NULL;
    if (uses(expression, 'b')) { qr_buffer_append_format(&text, "{%% set b = 3 ** %d %%}", size / 8); }
    qr_buffer_append_format(&text, "{%% for i in range(%d) %%}{%% set y = %s %%}{%% endfor %%}", n_calls, expression);
    cost result = {0};
    if (qr_jinja_parse(text.data, text.size, "t", &parsed, &err) == QRUN_OK) {
        int64_t n_steps = 0;
        const double before = now();
        const qrun_status status = qr_jinja_render_counted(parsed, variables, n, 0, &out, &n_steps, &err);
        result = (cost){now() - before, (double)n_steps,
                        status == QRUN_OK || strstr(err.message, "steps to render") != NULL ||
                            strstr(err.message, "MiB to render") != NULL};
    }
    qr_jinja_free(parsed);
    qr_buffer_free(&text);
    qr_buffer_free(&out);
    return result;
}

static double plain; /* seconds for a step of a plain loop */

/* Seconds for a step of the expression itself, what it needs left out; 0 where it does not apply. Another program may
 * be in the way, so what seems slow is measured again. */
static double seconds_per_step(const char *expression, int size) {
    double least = 0;
    int n_calls = 1;
    for (int again = 0; again < 6; again++) {
        const cost none = measure(expression, size, 0);
        cost some = measure(expression, size, n_calls);
        while (some.ran && some.seconds - none.seconds < enough_seconds && n_calls < MOST_CALLS) {
            n_calls *= 16;
            some = measure(expression, size, n_calls);
        }
        if (!some.ran) { return 0; }
        const double seconds = (some.seconds - none.seconds) / (some.steps - none.steps);
        least = again == 0 || seconds < least ? seconds : least;
        if (least < MOST_TIMES * plain / 2) { break; }
    }
    return least;
}

static double worst;
static char worst_expression[320];

static void hold_at(const char *expression, int size) {
    if (CHECK_SANITIZED) {
        (void)measure(expression, size, 1);
        return;
    }
    const double seconds = seconds_per_step(expression, size);
    CHECK_MSG(seconds < MOST_TIMES * plain, "%s takes %.0f ns for a step at size %d, a plain loop %.0f", expression,
              seconds * 1e9, size, plain * 1e9);
    if (seconds <= worst) { return; }
    worst = seconds;
    snprintf(worst_expression, sizeof worst_expression, "%.200s at %d", expression, size);
}

/* False where the expression is refused whatever the size. */
static bool hold(const char *expression) {
    if (!measure(expression, SMALL, 1).ran) { return false; }
    hold_at(expression, LARGE);
    return true;
}

/* before + `n` arguments + ")"; n = 0: before as it is. */
static bool hold_call(const char *before, const char *argument, int n) {
    char expression[256];
    static const char *const formats[] = {"%s()", "%s(%s)", "%s(%s, %s)", "%s(%s, %s, %s)"};
    switch (n) {
        case 0: snprintf(expression, sizeof expression, formats[0], before); break;
        case 1: snprintf(expression, sizeof expression, formats[1], before, argument); break;
        case 2: snprintf(expression, sizeof expression, formats[2], before, argument, argument); break;
        default: snprintf(expression, sizeof expression, formats[3], before, argument, argument, argument); break;
    }
    return hold(expression);
}

static int count_parameters(const char *params) {
    int n = params != NULL && params[0] != '\0';
    for (const char *at = params; params != NULL && *at != '\0'; at++) { n += *at == ' '; }
    return n;
}

static bool hold_calls(const char *before, const qr_jinja_builtin *builtin) {
    const int most = builtin->params == NULL ? 2 : count_parameters(builtin->params);
    bool any = builtin->n_required == 0 && hold_call(before, NULL, 0);
    for (int n = builtin->n_required > 0 ? builtin->n_required : 1; n <= most && n <= 2; n++) {
        const size_t n_kinds = n == 1 ? QR_COUNT_OF(arguments) : 2; /* several of one kind are most often texts */
        for (size_t i = 0; i < n_kinds; i++) { any = hold_call(before, arguments[i], n) || any; }
    }
    return any;
}

/* Calls it on the subjects; `joint` is what stands between subject and name, NULL for a function. */
static bool hold_row(const qr_jinja_builtin *row, const char *const *on, size_t n, const char *joint) {
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        char before[128];
        snprintf(before, sizeof before, "%s%s%s", on[i], joint, row->name);
        any = hold_calls(before, row) || any;
    }
    return any;
}

/* Every row on every subject, with every kind of argument. */
static void hold_table(const qr_jinja_table *table, const char *joint) {
    static const char *const no_subject[] = {""};
    for (size_t i = 0; i < table->n; i++) {
        const qr_jinja_builtin *row = &table->rows[i];
        const bool ends_at_once = row->call == NULL || strcmp(row->name, "raise_exception") == 0;
        const bool is_word = row->name[0] >= 'a' && row->name[0] <= 'z'; /* "==" needs select: below */
        if (ends_at_once || !is_word) { continue; }
        const bool any = joint[0] == '\0' ? hold_row(row, no_subject, 1, joint)
                                          : hold_row(row, subjects, QR_COUNT_OF(subjects), joint) ||
                                                hold_row(row, small_subjects, QR_COUNT_OF(small_subjects), joint);
        /* What takes any arguments may want a name among them: test_operators calls those. */
        CHECK_MSG(any || row->params == NULL, "%s was never called", row->name);
    }
}

static void test_filters(void) {
    hold_table(&qr_jinja_value_filters, "|");
    hold_table(&qr_jinja_sequence_filters, "|");
}

static void test_tests(void) { hold_table(&qr_jinja_tests, " is "); }
static void test_globals(void) { hold_table(&qr_jinja_globals, ""); }

static void test_methods(void) {
    static const int types[] = {QR_JINJA_STRING, QR_JINJA_DICT, QR_JINJA_LIST, QR_JINJA_TUPLE};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) { hold_table(&qr_jinja_methods[types[i]], "."); }
}

/* Operators, and the calls that need more than arguments of one kind. */
static void test_operators(void) {
    static const char *const expressions[] = {
        "s + t",
        "s ~ t",
        "s * 3",
        "l + m",
        "l * 3",
        "s == t",
        "s != t",
        "s < t",
        "s <= t",
        "s > h",
        "l == m",
        "l < m",
        "d == e",
        "x == x",
        "s in t",
        "h in s",
        "h in x",
        "9 in l",
        "9 not in l",
        "s in d",
        "9 in d",
        "s and t",
        "s or t",
        "not l",
        "s[9]",
        "s[-9]",
        "u[9]",
        "u[-9]",
        "u[5:]",
        "s[::-1]",
        "s[9:-9]",
        "s[::2]",
        "l[::-1]",
        "l[9:]",
        "d[9]",
        "{s: t}[t]",
        "{s ~ 'x': 1}",
        "[s, t]",
        "(s, t) == (t, s)",
        "{(s, t): 1}",
        "-b",
        "b + b",
        "b - 1",
        "b * b",
        "b // 7",
        "b // (b // 5 + 1)",
        "b % (b // 3 + 1)",
        "b / 3",
        "b ** 2",
        "2 ** 999",
        "b ~ ''",
        "b == b",
        "b < 1.5",
        "'%s' % s",
        "'%d' % b",
        "'%x' % b",
        "'%.300f' % 1e300",
        "'%9999d' % 1",
        "'%r' % s",
        "(s ~ '%s') % 1",
        "(w ~ '%s') % 1",
        "'{}{}'.format(s, t)",
        "'{:d}{:,}{:b}'.format(b, b, b)",
        "'{!r}'.format(u)",
        "s.format()",
        "w.format()",
        "('{}' * 3).format(*l)",
        "l|map('string')",
        "l|map('upper')",
        "x|map('upper')",
        "x|map('length')",
        "x|map('replace', 'a', 'b')",
        "x|map(attribute='y')",
        "p|map(attribute=0)",
        "p|map('first')",
        "l|select('odd')",
        "l|reject('odd')",
        "x|select('in', x)",
        "x|select('equalto', s)",
        "x|select('==', s)",
        "x|select('!=', s)",
        "x|select('<', s)",
        "x|select('<=', s)",
        "x|select('>', s)",
        "x|select('>=', s)",
        "p|selectattr(0, 'odd')",
        "p|rejectattr('0', 'odd')",
        "x|select",
        "p|sum(start=[])",
        "p|groupby(0)",
        "p|sort(attribute='0,1')",
        "p|join(',', attribute=0)",
        "x|sort(case_sensitive=true)",
        "x|unique(true)",
        "x|max(true)",
        "x|groupby(0)",
        "[l, m]|sort",
        "[l, m]|max",
        "l|batch(3)",
        "l|slice(3)",
        "x|join(s)",
        "s|truncate(9)",
        "s|truncate(99, true)",
        "u|truncate(9)",
        "s|indent(3, true)",
        "w|indent(w)",
        "w|tojson(true)",
        "d|tojson(indent=2)",
        "d|tojson(sort_keys=true)",
        "p|tojson(indent=w)",
        "1.5|round(9)",
        "1e20|round(2)",
        "b|round(-9)",
        "s|int(0, 36)",
        "('1' * 4000)|int",
        "('9' * 500)|float",
        "strftime_now(w)",
        "strftime_now('%c%A%B%p%z' * 99)",
        "cycler(*l)",
        "namespace(d)",
        "dict(p)",
        "range(99999)",
        "joiner(s)()",
        "w.split('<', 99)",
        "w.rsplit('<', 99)",
        "w.strip(w)",
        "s.strip(h)",
        "w.split('\t')",
        "w.splitlines(true)",
        "s.replace('a', 'bb')",
        "s.replace('', 'b')",
        "s.replace(h, '')",
        "w.find('zz', 9)",
        "u.rfind('z', 3, -3)",
        "s.startswith((h, h, h))",
        "s.startswith(t, 3)",
        "x.index(h) if h in x else 1",
        "s.ljust(99999)",
        "s.join(['b', 'c'])",
        "','.join(x)",
        "'a'.zfill(99999)",
        "w.expandtabs(99)",
        "w.title()",
        "u.swapcase()",
        "'%c' % 'a'",
        "w|striptags",
        "w|e",
        "('&' * 99)|forceescape",
        "d.items()|list",
        "d.get(s)",
        "d|items|list",
    };
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++) {
        CHECK_MSG(hold(expressions[i]), "%s is refused", expressions[i]);
        hold_at(expressions[i], MIDDLE);
    }
}

/* Before the cases, so that each can run alone. */
static void measure_plain_loop(void) {
    plain = 1;
    for (int again = 0; again < 5; again++) {
        const cost none = measure("i * 2 + 1", 1, 0), many = measure("i * 2 + 1", 1, 60000);
        const double seconds = (many.seconds - none.seconds) / (many.steps - none.steps);
        plain = seconds < plain ? seconds : plain;
    }
    printf("  a plain step takes %.0f ns, all of them %.1f s\n", plain * 1e9, plain * QR_JINJA_MAX_STEPS);
}

/* What is not hostile is far from the limit: 2 MB in 2,000 messages through what real templates do with each. */
static void test_long_conversation(void) {
    static const char text[] =
        "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% if m.role == 'user' and m.content is string "
        "and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}{% set ns.last "
        "= (messages|length - 1) - loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.content is "
        "string %}{% set c = m.content %}{% else %}{% set c = '' %}{% endif %}{% if '</think>' in c %}{% set c = "
        "c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ '<|im_start|>' + m.role + '\\n' + c|trim + '<|im_end|>' "
        "}}{% if loop.last or not loop.last and messages[loop.index0 + 1].role != 'tool' %}\n{% endif %}{% endfor %}";
    qr_buffer json = {0}, out = {0};
    qr_error err = {0};
    qr_json *messages = NULL;
    qr_jinja_template *parsed = NULL;
    qr_buffer_append_text(&json, "[");
    for (int i = 0; i < 2000; i++) {
        qr_buffer_append_format(&json, "%s{\"role\": \"%s\", \"content\": \"", i > 0 ? ", " : "", i % 2 ? "a" : "user");
        for (int k = 0; k < 100; k++) { qr_buffer_append_text(&json, "some words "); }
        qr_buffer_append_text(&json, "\"}");
    }
    qr_buffer_append_text(&json, "]");
    REQUIRE(qr_json_parse(json.data, json.size, "m", &messages, &err) == QRUN_OK);
    REQUIRE(qr_jinja_parse(text, sizeof text - 1, "t", &parsed, &err) == QRUN_OK);
    const qr_jinja_variable variable = {.name = "messages", .kind = QR_JINJA_GIVE_JSON, .json = messages};
    int64_t n_steps = 0;
    CHECK_MSG(qr_jinja_render_counted(parsed, &variable, 1, 0, &out, &n_steps, &err) == QRUN_OK, "%s", err.message);
    CHECK_MSG(n_steps < QR_JINJA_MAX_STEPS / 4, "%lld steps", (long long)n_steps);
    printf("  2,000 messages of 1,100 bytes take %lld steps\n", (long long)n_steps);
    qr_jinja_free(parsed);
    qr_json_free(messages);
    qr_buffer_free(&json);
    qr_buffer_free(&out);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_long_conversation);
    measure_plain_loop();
    CHECK_RUN(test_filters);
    CHECK_RUN(test_methods);
    CHECK_RUN(test_tests);
    CHECK_RUN(test_globals);
    CHECK_RUN(test_operators);
    if (worst > 0) {
        printf("  the slowest step takes %.0f ns: %s; all of them %.1f s\n", worst * 1e9, worst_expression,
               worst * QR_JINJA_MAX_STEPS);
    }
    return check_end();
}

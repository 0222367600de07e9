/* The template language: cases whose results Jinja2 itself gave, errors with their lines, hostile templates, and
 * failing allocations. */
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "check.h"
#include "loaders/jinja.h"

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

int main(int argc, char **argv) {
    check_begin(argc, argv);
    setenv("TZ", "UTC", 1);
    tzset();
    CHECK_RUN(test_own_cases);
    CHECK_RUN(test_real_templates);
    CHECK_RUN(test_engine_cases);
    (void)rendered(NULL);
    return check_end();
}

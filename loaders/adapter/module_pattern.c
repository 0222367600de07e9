#include "loaders/adapter/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

/* Far more than any sensible pattern needs on a name of a few hundred characters. */
enum { MAX_MATCH_STEPS = 100000, MAX_HEAP_KIB = 16 << 10, MAX_PATTERN_BYTES = 1 << 16 };

struct qr_module_pattern {
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *code;
    bool has_layer;
    char *text; /* as written, for messages */
};

static void *take(size_t size, void *unused) {
    (void)unused;
    return qr_alloc(size);
}

static void give(void *block, void *unused) {
    (void)unused;
    qr_free(block);
}

static void append_wrapped(qr_module_pattern_form form, const char *text, qr_buffer *regex) {
    switch (form) {
        case QR_PATTERN_WHOLE: qr_buffer_append_format(regex, "(?:%s)\\z", text); break;
        case QR_PATTERN_SUFFIX: qr_buffer_append_format(regex, "(?:.*\\.)?(?:%s)$", text); break;
        case QR_PATTERN_CONTAINER: qr_buffer_append_format(regex, ".*%s(?:$|\\..*)", text); break;
        case QR_PATTERN_LAYER_INDEX:
            if (text != NULL) {
                qr_buffer_append_format(regex, "(?:^|.*?\\.)%s\\.(?<qrlayer>[0-9]+)\\.", text);
            } else {
                qr_buffer_append_text(regex, ".*?\\.[^.]*\\.(?<qrlayer>[0-9]+)\\.");
            }
            break;
    }
}

static qrun_status compile(qr_module_pattern *p, qr_module_pattern_form form, const char *what, qr_error *err) {
    qr_buffer regex = {0};
    append_wrapped(form, p->text, &regex);
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    qrun_status status = QRUN_OK;
    if (!qr_buffer_ok(&regex) || context == NULL) { QR_TRY(qr_fail_memory(err, what, regex.size)); }
    int code;
    size_t offset;
    p->code = pcre2_compile((PCRE2_SPTR)regex.data, regex.size, PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, context);
    if (p->code == NULL && code == PCRE2_ERROR_HEAP_FAILED) {
        status = qr_fail_memory(err, what, regex.size);
    } else if (p->code == NULL) {
        char reason[128] = "";
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        status = qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%.200s\" is not a valid regular expression: %s", what,
                         p->text != NULL ? p->text : "", reason);
    }
out:
    pcre2_compile_context_free(context);
    qr_buffer_free(&regex);
    return status;
}

qrun_status qr_module_pattern_create(qr_module_pattern_form form, const char *text, const char *what,
                                     qr_module_pattern **pattern, qr_error *err) {
    *pattern = NULL;
    if (text != NULL && strlen(text) > MAX_PATTERN_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds a regular expression of more than %d bytes", what,
                       MAX_PATTERN_BYTES);
    }
    qr_module_pattern *p = qr_alloc_zeroed(sizeof *p);
    if (p == NULL) { return qr_fail_memory(err, what, sizeof *p); }
    p->has_layer = form == QR_PATTERN_LAYER_INDEX;
    p->text = text != NULL ? qr_strdup(text) : NULL;
    p->memory = pcre2_general_context_create(take, give, NULL);
    p->limits = p->memory != NULL ? pcre2_match_context_create(p->memory) : NULL;
    qrun_status status;
    if (p->limits == NULL || (text != NULL && p->text == NULL)) {
        status = qr_fail_memory(err, what, sizeof *p);
    } else {
        pcre2_set_match_limit(p->limits, MAX_MATCH_STEPS);
        pcre2_set_heap_limit(p->limits, MAX_HEAP_KIB);
        status = compile(p, form, what, err);
    }
    if (status == QRUN_OK) {
        *pattern = p;
    } else {
        qr_module_pattern_destroy(p);
    }
    return status;
}

void qr_module_pattern_destroy(qr_module_pattern *p) {
    if (p == NULL) { return; }
    pcre2_code_free(p->code);
    pcre2_match_context_free(p->limits);
    pcre2_general_context_free(p->memory);
    qr_free(p->text);
    qr_free(p);
}

/* The number of the named group; digits beyond any layer count give -1. */
static int64_t layer_of(const qr_module_pattern *p, const char *module, pcre2_match_data *match) {
    const int group = pcre2_substring_number_from_name(p->code, (PCRE2_SPTR) "qrlayer");
    const size_t *ends = pcre2_get_ovector_pointer(match);
    if (group <= 0 || ends[2 * group] == PCRE2_UNSET || ends[2 * group + 1] - ends[2 * group] > 9) { return -1; }
    int64_t layer = 0;
    for (size_t i = ends[2 * group]; i < ends[2 * group + 1]; i++) { layer = layer * 10 + (module[i] - '0'); }
    return layer;
}

qrun_status qr_module_pattern_match(const qr_module_pattern *p, const char *module, bool *matches, int64_t *layer,
                                    qr_error *err) {
    *matches = false;
    if (layer != NULL) { *layer = -1; }
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(p->code, p->memory);
    if (match == NULL) { return qr_fail_memory(err, module, strlen(module)); }
    const int result = pcre2_match(p->code, (PCRE2_SPTR)module, strlen(module), 0, 0, match, p->limits);
    qrun_status status = QRUN_OK;
    if (result >= 0) {
        *matches = true;
        if (layer != NULL && p->has_layer) { *layer = layer_of(p, module, match); }
    } else if (result == PCRE2_ERROR_NOMEMORY) {
        status = qr_fail_memory(err, module, strlen(module));
    } else if (result != PCRE2_ERROR_NOMATCH) {
        status = qr_fail(err, QRUN_ERROR_INPUT,
                         "the regular expression \"%.200s\" cannot be matched against \"%.200s\" "
                         "within %d steps; write a simpler one",
                         p->text != NULL ? p->text : "", module, MAX_MATCH_STEPS);
    }
    pcre2_match_data_free(match);
    return status;
}

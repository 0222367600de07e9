#include "loaders/files/json_edit.h"

#include <string.h>

/* Offsets in the text: of the name (or the space before it), of the value (one past the colon), and of the comma or
 * brace after it. */
typedef struct member_range {
    size_t name, value, end;
} member_range;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static size_t skip_space(const char *text, size_t at) {
    while (is_space(text[at])) { at++; }
    return at;
}

/* The position of the comma or brace after the value at `at`, which is inside an object. The text is known to be
 * well-formed. */
static size_t skip_value(const char *text, size_t at) {
    int depth = 0;
    for (bool quoted = false;; at++) {
        const char c = text[at];
        if (quoted) {
            if (c == '\\') {
                at++;
            } else if (c == '"') {
                quoted = false;
            }
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == '}' || c == ':')) {
            return at;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
}

static member_range find_member(const char *text, int index) {
    size_t at = skip_space(text, 0) + 1; /* past the brace */
    for (int i = 0;; i++) {
        member_range range = {.name = at};
        range.value = skip_value(text, at) + 1;
        range.end = skip_value(text, range.value);
        if (i == index) { return range; }
        at = range.end + 1;
    }
}

static int member_index(const qr_json *root, const char *key) {
    int index = 0;
    for (const qr_json *item = qr_json_first(root); item != NULL; item = item->next, index++) {
        if (strcmp(item->string, key) == 0) { return index; }
    }
    return -1;
}

static size_t last_brace(const char *text, size_t n_bytes) {
    while (text[n_bytes - 1] != '}') { n_bytes--; }
    return n_bytes - 1;
}

static void replace_member(const char *text, size_t n_bytes, const member_range *range, const char *value,
                           qr_buffer *out) {
    qr_buffer_append(out, text, range->value);
    qr_buffer_append_char(out, ' ');
    qr_buffer_append_text(out, value);
    size_t end = range->end;
    while (is_space(text[end - 1])) { end--; }
    qr_buffer_append(out, text + end, n_bytes - end);
}

/* With the comma after the member, or else the one before it. */
static void remove_member(const char *text, size_t n_bytes, const member_range *range, qr_buffer *out) {
    const bool is_last = text[range->end] == '}';
    const bool is_only = is_last && text[range->name - 1] == '{';
    qr_buffer_append(out, text, is_last && !is_only ? range->name - 1 : range->name);
    size_t rest = is_last ? range->end : range->end + 1;
    while (is_last && !is_only && is_space(text[rest - 1])) { rest--; } /* the brace keeps its line */
    qr_buffer_append(out, text + rest, n_bytes - rest);
}

static void add_member(const char *text, size_t n_bytes, bool is_first, const char *key, const char *value,
                       qr_buffer *out) {
    const size_t brace = last_brace(text, n_bytes);
    size_t end = brace;
    while (end > 0 && is_space(text[end - 1])) { end--; }
    qr_buffer_append(out, text, end);
    qr_buffer_append_text(out, is_first ? "\n  " : ",\n  ");
    qr_buffer_append_json_string(out, key, strlen(key));
    qr_buffer_append_text(out, ": ");
    qr_buffer_append_text(out, value);
    qr_buffer_append_char(out, '\n');
    qr_buffer_append(out, text + brace, n_bytes - brace);
}

qrun_status qr_json_edit_set(const char *text, size_t n_bytes, const char *what, const char *key, const char *value,
                             qr_buffer *out, qr_error *err) {
    qr_json *root = NULL;
    qrun_status status = qr_json_parse_python(text, n_bytes, what, &root, err);
    if (status != QRUN_OK) { goto out; }
    if (!cJSON_IsObject(root)) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what)); }
    const int index = member_index(root, key);
    const member_range range = index >= 0 ? find_member(text, index) : (member_range){0};
    if (index >= 0 && value != NULL) {
        replace_member(text, n_bytes, &range, value, out);
    } else if (index >= 0) {
        remove_member(text, n_bytes, &range, out);
    } else if (value != NULL) {
        add_member(text, n_bytes, qr_json_first(root) == NULL, key, value, out);
    } else {
        qr_buffer_append(out, text, n_bytes);
    }
    if (!qr_buffer_ok(out)) { status = qr_fail_memory(err, what, n_bytes); }
out:
    qr_json_free(root);
    return status;
}

qrun_status qr_json_edit_find(const char *text, size_t n_bytes, const char *what, const char *key, size_t *begin,
                              size_t *end, qr_error *err) {
    qr_json *root = NULL;
    *begin = *end = 0;
    QR_RETURN_IF_ERROR(qr_json_parse_python(text, n_bytes, what, &root, err));
    const int index = cJSON_IsObject(root) ? member_index(root, key) : -1;
    if (index >= 0) {
        const member_range range = find_member(text, index);
        *begin = range.value, *end = range.end;
    }
    qr_json_free(root);
    return QRUN_OK;
}

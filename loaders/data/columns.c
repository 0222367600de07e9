#include "loaders/data/columns.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/data/dataset.h"

static const char *const names[] = {"prompt",        "completion", "response", "instruction", "input",
                                    "output",        "question",   "answer",   "text",        "messages",
                                    "conversations", "system",     "tools",    "chosen",      "rejected"};

static qrun_status fail_name(const char *name, qr_error *err) {
    qr_buffer list = {0};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        qr_buffer_append_format(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_ARGUMENT, "`columns`: no format has \"%.60s\"; on the left of '=' may be %s", name,
                list.data != NULL ? list.data : "");
    qr_buffer_free(&list);
    return status;
}

/* "ours=theirs" in place. */
static qrun_status add_pair(qr_columns *columns, char *pair, qr_error *err) {
    char *theirs = strchr(pair, '=');
    bool known = false;
    if (theirs == NULL || theirs == pair || theirs[1] == '\0') {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`columns`: \"%.60s\" is not NAME=COLUMN, as in prompt=question,completion=answer", pair);
    }
    *theirs++ = '\0';
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) { known |= strcmp(names[i], pair) == 0; }
    if (!known) { return fail_name(pair, err); }
    for (int i = 0; i < columns->n; i++) {
        if (strcmp(columns->ours[i], pair) == 0) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "`columns` names \"%s\" twice", pair);
        }
    }
    columns->ours[columns->n] = pair;
    columns->theirs[columns->n++] = theirs;
    return QRUN_OK;
}

qrun_status qr_columns_parse(const char *text, qr_columns *columns, qr_error *err) {
    *columns = (qr_columns){0};
    if (text == NULL) { return QRUN_OK; }
    columns->text = qr_strdup(text);
    if (columns->text == NULL) { return qr_fail_memory(err, "the columns", strlen(text)); }
    for (char *pair = columns->text; pair != NULL;) {
        char *next = strchr(pair, ',');
        if (next != NULL) { *next++ = '\0'; }
        QR_RETURN_IF_ERROR(add_pair(columns, pair, err)); /* at most as many as there are names: none twice */
        pair = next;
    }
    return QRUN_OK;
}

void qr_columns_free(qr_columns *columns) {
    qr_free(columns->text);
    *columns = (qr_columns){0};
}

qrun_status qr_dataset_columns_check(const char *text, qr_error *err) {
    qr_columns columns;
    const qrun_status status = qr_columns_parse(text, &columns, err);
    qr_columns_free(&columns);
    return status;
}

void qr_columns_list(const qr_json *root, qr_buffer *out) {
    enum { SHOWN = 8, NAME_BYTES = 40 };
    int n = 0;
    for (const qr_json *member = qr_json_first(root); member != NULL; member = member->next, n++) {
        if (n == SHOWN) {
            qr_buffer_append_text(out, " …");
            return;
        }
        const char *before = n == 0 ? "" : member->next == NULL ? " and " : ", ";
        qr_buffer_append_format(out, "%s\"%.*s\"", before, NAME_BYTES, member->string);
    }
    if (n == 0) { qr_buffer_append_text(out, "none"); }
}

static qrun_status fail_missing(const char *theirs, const qr_json *root, qr_error *err) {
    qr_buffer list = {0};
    qr_columns_list(root, &list);
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_INPUT, "has no \"%.60s\", which `columns` names; its members are %s", theirs,
                list.data != NULL ? list.data : "");
    qr_buffer_free(&list);
    return status;
}

qrun_status qr_columns_apply(const qr_columns *columns, const qr_json *root, qr_json *nodes, qr_json *view,
                             qr_error *err) {
    *view = *root;
    if (columns->n == 0 || !cJSON_IsObject(root)) { return QRUN_OK; }
    for (int i = 0; i < columns->n; i++) {
        const qr_json *member = qr_json_get(root, columns->theirs[i]);
        if (member == NULL) { return fail_missing(columns->theirs[i], root, err); }
        nodes[i] = *member;
        nodes[i].string = (char *)(uintptr_t)columns->ours[i]; /* nodes are read only; cJSON's type has no const */
        nodes[i].prev = NULL;
        nodes[i].next = i + 1 < columns->n ? &nodes[i + 1] : NULL;
    }
    view->child = nodes;
    return QRUN_OK;
}

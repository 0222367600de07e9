#include "loaders/data/csv.h"

#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

/* ---- Records ----------------------------------------------------------------------------------------------------- */

bool qr_csv_find_end(const char *text, size_t size, char separator, size_t *n_bytes, int64_t *n_lines) {
    const size_t most = size < QR_CSV_RECORD_BYTES ? size : QR_CSV_RECORD_BYTES;
    bool in_quotes = false, field_begins = true;
    *n_lines = 0;
    for (size_t at = 0; at < most; at++) {
        const char c = text[at];
        if (in_quotes) {
            in_quotes = c != '"'; /* of two in a row the second begins it again */
            *n_lines += c == '\n';
            field_begins = c == '"' && at + 1 < most && text[at + 1] == '"';
        } else if (c == '"' && field_begins) {
            in_quotes = true;
        } else if (c == '\n') {
            *n_bytes = at > 0 && text[at - 1] == '\r' ? at - 1 : at;
            return true;
        } else {
            field_begins = c == separator;
        }
    }
    *n_bytes = most > 0 && most == size && text[most - 1] == '\r' ? most - 1 : most;
    return most == size && !in_quotes;
}

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

/* A position in a record. */
typedef struct fields {
    const char *text;
    size_t n_bytes, at;
    char separator;
    size_t n; /* fields so far */
} fields;

/* A quoted field into a cleared *field; f->at is at its first quote. */
static qrun_status take_quoted(fields *f, qr_buffer *field, qr_error *err) {
    for (f->at++;;) {
        const char *from = f->text + f->at, *quote = memchr(from, '"', f->n_bytes - f->at);
        if (quote == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "field %zu has no closing quote", f->n + 1); }
        qr_buffer_append(field, from, (size_t)(quote - from));
        f->at += (size_t)(quote - from) + 1;
        if (f->at == f->n_bytes || f->text[f->at] != '"') { break; }
        qr_buffer_append_char(field, '"');
        f->at++;
    }
    if (f->at == f->n_bytes || f->text[f->at] == f->separator) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "field %zu has text after its closing quote; inside a quoted field a quote is written twice",
                   f->n + 1);
}

/* The next field into a cleared *field; *found is false after the last. */
static qrun_status take_field(fields *f, qr_buffer *field, bool *found, qr_error *err) {
    qr_buffer_clear(field);
    *found = f->at <= f->n_bytes;
    if (!*found) { return QRUN_OK; }
    if (f->at < f->n_bytes && f->text[f->at] == '"') {
        QR_RETURN_IF_ERROR(take_quoted(f, field, err));
    } else {
        const char *from = f->text + f->at, *end = memchr(from, f->separator, f->n_bytes - f->at);
        const size_t n = end != NULL ? (size_t)(end - from) : f->n_bytes - f->at;
        qr_buffer_append(field, from, n);
        f->at += n;
    }
    f->n++;
    f->at++; /* past the separator, or past the end */
    return qr_buffer_ok(field) ? QRUN_OK : qr_fail_memory(err, "a field", field->size);
}

/* What JSON would refuse too. */
static qrun_status check_text(const char *text, size_t n_bytes, qr_error *err) {
    const size_t valid = qr_utf8_valid_prefix(text, n_bytes);
    if (valid < n_bytes) {
        return qr_fail(err, QRUN_ERROR_INPUT, "byte 0x%02x is not valid UTF-8 here; save the table as UTF-8",
                       (unsigned)(unsigned char)text[valid]);
    }
    if (n_bytes > 0 && memchr(text, 0, n_bytes) != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "a field holds a zero byte");
    }
    return QRUN_OK;
}

/* ---- Header ------------------------------------------------------------------------------------------------------ */

static bool has_name(const qr_csv_header *header, const char *name) {
    for (size_t i = 0; i < header->n_names; i++) {
        if (strcmp(header->names[i], name) == 0) { return true; }
    }
    return false;
}

static qrun_status add_name(qr_csv_header *header, size_t *capacity, const qr_buffer *field, qr_error *err) {
    const char *name = field->size > 0 ? field->data : "";
    if (header->n_names == QR_CSV_MAX_COLUMNS) {
        return qr_fail(err, QRUN_ERROR_INPUT, "the header has more than %d columns", QR_CSV_MAX_COLUMNS);
    }
    if (name[0] != '\0' && has_name(header, name)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "the header has two columns \"%.60s\"; give each its own name", name);
    }
    QR_RETURN_IF_ERROR(
        qr_array_grow(&header->names, capacity, header->n_names + 1, sizeof *header->names, "the header", err));
    char *copy = qr_strdup(name);
    if (copy == NULL) { return qr_fail_memory(err, "the header", field->size); }
    header->names[header->n_names++] = copy;
    return QRUN_OK;
}

qrun_status qr_csv_header_parse(const char *text, size_t n_bytes, char separator, qr_csv_header *header,
                                qr_error *err) {
    *header = (qr_csv_header){.separator = separator};
    fields f = {.text = text, .n_bytes = n_bytes, .separator = separator};
    qr_buffer field = {0};
    size_t capacity = 0;
    bool found = true;
    qrun_status status;
    QR_TRY(check_text(text, n_bytes, err));
    for (;;) {
        QR_TRY(take_field(&f, &field, &found, err));
        if (!found) { break; }
        QR_TRY(add_name(header, &capacity, &field, err));
    }
out:
    qr_buffer_free(&field);
    return status;
}

void qr_csv_header_free(qr_csv_header *header) {
    for (size_t i = 0; i < header->n_names; i++) { qr_free(header->names[i]); }
    qr_free(header->names);
    *header = (qr_csv_header){0};
}

/* ---- Objects ----------------------------------------------------------------------------------------------------- */

static void append_member(qr_buffer *object, const char *name, const qr_buffer *field) {
    if (name[0] == '\0') { return; }
    qr_buffer_append_text(object, object->size > 1 ? "," : "");
    qr_buffer_append_json_string(object, name, strlen(name));
    qr_buffer_append_char(object, ':');
    qr_buffer_append_json_string(object, field->size > 0 ? field->data : "", field->size);
}

static qrun_status fail_count(const qr_csv_header *header, const fields *f, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "the header has %zu columns, and this record %s; was a separator not quoted?",
                   header->n_names, f->n > header->n_names ? "has more" : "has fewer");
}

qrun_status qr_csv_record_parse(const qr_csv_header *header, const char *text, size_t n_bytes, qr_json **root,
                                qr_error *err) {
    fields f = {.text = text, .n_bytes = n_bytes, .separator = header->separator};
    qr_buffer field = {0}, object = {0};
    bool found = true;
    qrun_status status;
    *root = NULL;
    QR_TRY(check_text(text, n_bytes, err));
    qr_buffer_append_char(&object, '{');
    for (;;) {
        QR_TRY(take_field(&f, &field, &found, err));
        if (!found) { break; }
        if (f.n > header->n_names) { QR_TRY(fail_count(header, &f, err)); }
        append_member(&object, header->names[f.n - 1], &field);
    }
    if (f.n < header->n_names) { QR_TRY(fail_count(header, &f, err)); }
    qr_buffer_append_char(&object, '}');
    if (!qr_buffer_ok(&object)) { QR_TRY(qr_fail_memory(err, "a record", object.size)); }
    QR_TRY(qr_json_parse(object.data, object.size, "a record", root, err));
out:
    qr_buffer_free(&field);
    qr_buffer_free(&object);
    return status;
}

#include "cli/terminal/json_view.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/terminal/printable.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/text.h"

enum { MAX_COLUMNS = 12 };

static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* "weight_bytes" is shown as "weight", "n_layers" as "layers", other underscores as spaces. */
static void label(const char *name, text_buffer *out) {
    text_clear(out);
    const char *begin = strncmp(name, "n_", 2) == 0 ? name + 2 : name;
    const size_t length = strlen(begin), cut = ends_with(begin, "_bytes") ? 6 : 0;
    text_append(out, begin, length - cut);
    for (size_t i = 0; i < out->size; i++) {
        if (out->data[i] == '_') { out->data[i] = ' '; }
    }
}

static void put_number(double value, bool is_size, text_buffer *out) {
    if (is_size) {
        text_puts(out, size_text((int64_t)value).text);
    } else if (value == floor(value) && fabs(value) < 1e15) {
        text_format(out, "%.0f", value);
    } else {
        text_format(out, "%.6g", value);
    }
}

/* A text of a file keeps to its place in the line. */
static void put_string(const char *value, text_buffer *out) {
    const size_t begin = out->size;
    text_puts(out, value);
    printable_line(out->data + begin);
    out->size = begin + strlen(out->data + begin);
}

static void put_value(const cJSON *value, const char *name, text_buffer *out) {
    if (cJSON_IsArray(value)) {
        bool first = true;
        for (const cJSON *item = value->child; item != NULL; item = item->next) {
            if (!first) { text_puts(out, name != NULL && strcmp(name, "shape") == 0 ? " x " : ", "); }
            put_value(item, NULL, out);
            first = false;
        }
        if (first) { text_puts(out, "none"); }
    } else if (cJSON_IsNumber(value)) {
        put_number(value->valuedouble, name != NULL && ends_with(name, "_bytes"), out);
    } else if (cJSON_IsBool(value)) {
        text_puts(out, cJSON_IsTrue(value) ? "yes" : "no");
    } else if (cJSON_IsString(value)) {
        put_string(value->valuestring, out);
    } else if (cJSON_IsObject(value)) {
        text_puts(out, "…");
    } else {
        text_puts(out, "none");
    }
}

static bool is_table(const cJSON *value) { return cJSON_IsArray(value) && cJSON_IsObject(value->child); }

static int columns_of(const text_buffer *t) { return text_columns(t->data, t->size); }

static void print_cell(const text_buffer *cell, int width, bool right) {
    const int padding = width - columns_of(cell);
    if (right) { printf("%*s", padding > 0 ? padding : 0, ""); }
    printf("%s", cell->data != NULL ? cell->data : "");
    if (!right) { printf("%*s", padding > 0 ? padding : 0, ""); }
}

/* Columns are the members of the first row. */
static void print_table(const cJSON *rows, int indent) {
    const char *names[MAX_COLUMNS];
    int widths[MAX_COLUMNS], n_columns = 0;
    bool numeric[MAX_COLUMNS];
    text_buffer cell = {0};
    for (const cJSON *member = rows->child->child; member != NULL && n_columns < MAX_COLUMNS; member = member->next) {
        label(member->string, &cell);
        names[n_columns] = member->string;
        numeric[n_columns] = cJSON_IsNumber(member);
        widths[n_columns++] = columns_of(&cell);
    }
    for (const cJSON *row = rows->child; row != NULL; row = row->next) {
        for (int i = 0; i < n_columns; i++) {
            text_clear(&cell);
            put_value(cJSON_GetObjectItemCaseSensitive(row, names[i]), names[i], &cell);
            if (columns_of(&cell) > widths[i]) { widths[i] = columns_of(&cell); }
        }
    }
    for (const cJSON *row = NULL, *next = rows->child;; row = next, next = next->next) {
        printf("%*s", indent, "");
        for (int i = 0; i < n_columns; i++) {
            text_clear(&cell);
            if (row == NULL) {
                label(names[i], &cell);
            } else {
                put_value(cJSON_GetObjectItemCaseSensitive(row, names[i]), names[i], &cell);
            }
            print_cell(&cell, i + 1 < n_columns || numeric[i] ? widths[i] : 0, numeric[i]);
            printf("%s", i + 1 < n_columns ? "  " : "\n");
        }
        if (next == NULL) { break; }
    }
    text_free(&cell);
}

static void print_members(const cJSON *object, int indent, const json_view_title *titles);

/* A heading, and under it an object or an array of objects. */
static void print_section(const cJSON *member, int indent, const json_view_title *titles) {
    text_buffer name = {0};
    label(member->string, &name);
    for (const json_view_title *t = titles; t->name != NULL; t++) {
        if (strcmp(t->name, member->string) != 0) { continue; }
        text_clear(&name);
        text_puts(&name, t->title);
    }
    printf("\n%*s", indent, "");
    terminal_put_style(stdout, STYLE_BOLD);
    printf("%s", name.data);
    terminal_put_style(stdout, STYLE_PLAIN);
    printf("\n");
    if (is_table(member)) {
        print_table(member, indent + 2);
    } else {
        print_members(member, indent + 2, titles);
    }
    text_free(&name);
}

static bool is_section(const cJSON *member) { return cJSON_IsObject(member) || is_table(member); }

/* Plain members first, so that none is under another's heading. */
static void print_members(const cJSON *object, int indent, const json_view_title *titles) {
    text_buffer name = {0}, value = {0};
    int width = 0;
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        label(member->string, &name);
        if (!is_section(member) && columns_of(&name) > width) { width = columns_of(&name); }
    }
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        if (is_section(member)) { continue; }
        label(member->string, &name);
        text_clear(&value);
        put_value(member, member->string, &value);
        printf("%*s", indent, "");
        print_cell(&name, width, false);
        printf("  %s\n", value.data != NULL ? value.data : "");
    }
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        if (is_section(member)) { print_section(member, indent, titles); }
    }
    text_free(&name);
    text_free(&value);
}

bool json_view_print(const char *json, const json_view_title *titles) {
    cJSON *root = cJSON_Parse(json);
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return false;
    }
    print_members(root, 0, titles);
    cJSON_Delete(root);
    return true;
}

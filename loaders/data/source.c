#include "loaders/data/source.h"

#include <stdio.h>
#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static qrun_status fail_line(const qr_dataset_source *source, int64_t line, const char *problem, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s:%lld: %s", source->path, (long long)line, problem);
}

static void skip_space(qr_dataset_source *source) {
    const char *text = (const char *)source->map.data;
    for (; source->at < source->map.size && is_space(text[source->at]); source->at++) {
        if (text[source->at] == '\n') { source->line++; }
    }
}

/* What kind of file this is by its first bytes, where it is not text, and what to do with it. */
static const char *name_binary(const qr_file_map *map) {
    static const struct {
        const char *start, *name;
    } kinds[] = {
        {"PAR1", "is a Parquet file; write its rows as JSON Lines (datasets.Dataset.to_json in Python)"},
        {"ARROW1", "is an Arrow file; write its rows as JSON Lines (datasets.Dataset.to_json in Python)"},
        {"\x1F\x8B", "is compressed; unpack it with gunzip first"},
        {"\x28\xB5\x2F\xFD", "is compressed; unpack it with unzstd first"},
        {"\xFD"
         "7zXZ",
         "is compressed; unpack it with unxz first"},
        {"BZh", "is compressed; unpack it with bunzip2 first"},
        {"PK\x03\x04", "is an archive; unpack it with unzip first"},
        {"\xFF\xFE", "is UTF-16; save it as UTF-8"},
        {"\xFE\xFF", "is UTF-16; save it as UTF-8"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const size_t n = strlen(kinds[i].start);
        if (map->size > n && memcmp(map->data, kinds[i].start, n) == 0) { return kinds[i].name; }
    }
    return "is not text: it holds zero bytes; give JSON Lines or a JSON array in UTF-8";
}

/* A first line with nothing but "{": JSON laid out for people, or a file that is not a data set at all. */
static bool begins_over_several_lines(const qr_dataset_source *source) {
    const char *text = (const char *)source->map.data;
    size_t at = source->at;
    if (text[at++] != '{') { return false; }
    while (at < source->map.size && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r')) { at++; }
    return at < source->map.size && text[at] == '\n';
}

qrun_status qr_dataset_source_open(qr_dataset_source *source, const char *path, qr_error *err) {
    enum { PROBE_BYTES = 1 << 16 };
    *source = (qr_dataset_source){.path = path, .line = 1};
    QR_RETURN_IF_ERROR(qr_file_map_open(path, &source->map, err));
    const qr_file_map *map = &source->map;
    if (map->size >= 3 && memcmp(map->data, "\xEF\xBB\xBF", 3) == 0) { source->at = 3; }
    if (map->size > 0 && memchr(map->data, 0, map->size < PROBE_BYTES ? map->size : PROBE_BYTES) != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s", path, name_binary(map));
    }
    skip_space(source);
    if (source->at == map->size) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is empty; give one example per line", path);
    }
    if (begins_over_several_lines(source)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s:%lld: is a JSON object over several lines; give one example per "
                       "line (jq -c . does that), or one JSON array of them",
                       path, (long long)source->line);
    }
    source->is_array = map->data[source->at] == '[';
    if (source->is_array) { source->at++; }
    return QRUN_OK;
}

void qr_dataset_source_close(qr_dataset_source *source) {
    qr_file_map_close(&source->map);
    *source = (qr_dataset_source){0};
}

static void take_line(qr_dataset_source *source, qr_dataset_piece *piece) {
    const char *text = (const char *)source->map.data;
    const size_t left = source->map.size - source->at;
    const char *end = memchr(text + source->at, '\n', left);
    const size_t n_bytes = end != NULL ? (size_t)(end - text) - source->at : left;
    *piece = (qr_dataset_piece){text + source->at, n_bytes, source->line};
    source->at += piece->n_bytes;
}

/* The end of the JSON value at text[at], found by brackets and quotes alone: what is wrong inside, its parser says. */
static size_t find_value_end(const qr_dataset_source *source, size_t at, int64_t *n_lines) {
    const char *text = (const char *)source->map.data;
    size_t depth = 0;
    bool in_string = false;
    for (; at < source->map.size; at++) {
        const char c = text[at];
        if (c == '\n') { (*n_lines)++; }
        if (in_string) {
            if (c == '\\' && at + 1 < source->map.size && text[at + 1] != '\n') {
                at++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            return at;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            return at + 1;
        }
    }
    return at;
}

static qrun_status take_element(qr_dataset_source *source, qr_dataset_piece *piece, bool *found, qr_error *err) {
    const char *text = (const char *)source->map.data;
    const size_t size = source->map.size;
    if (source->n_pieces > 0 && source->at < size && text[source->at] == ',') {
        source->at++;
        skip_space(source);
    } else if (source->at < size && text[source->at] == ']') {
        source->at++;
        skip_space(source);
        source->is_done = true;
        *found = false;
        return source->at == size ? QRUN_OK : fail_line(source, source->line, "text after the end of the array", err);
    } else if (source->n_pieces > 0 && source->at < size) {
        return fail_line(source, source->line, "',' or ']' should be here, between the examples of the array", err);
    }
    int64_t n_lines = 0;
    const size_t end = find_value_end(source, source->at, &n_lines);
    if (end == size) { return fail_line(source, source->line, "the array is not closed; was the file cut off?", err); }
    *piece = (qr_dataset_piece){text + source->at, end - source->at, source->line};
    source->at = end;
    source->line += n_lines;
    return QRUN_OK;
}

qrun_status qr_dataset_source_next(qr_dataset_source *source, qr_dataset_piece *piece, bool *found, qr_error *err) {
    skip_space(source);
    *found = !source->is_done && (source->is_array || source->at < source->map.size);
    if (!*found) { return QRUN_OK; }
    if (source->is_array) {
        QR_RETURN_IF_ERROR(take_element(source, piece, found, err));
    } else {
        take_line(source, piece);
    }
    source->n_pieces++;
    return QRUN_OK;
}

qrun_status qr_dataset_piece_parse(const char *path, const qr_dataset_piece *piece, qr_json **root, qr_error *err) {
    qr_error detail = {0};
    const qrun_status status = qr_json_parse(piece->text, piece->n_bytes, "", root, &detail);
    unsigned long long line, column;
    int n_read = 0;
    if (status != QRUN_ERROR_INPUT) { return status == QRUN_OK ? status : qr_fail(err, status, "%s", detail.message); }
    if (sscanf(detail.message, ":%llu:%llu: %n", &line, &column, &n_read) != 2) { line = column = 1; }
    return qr_fail(err, status, "%s:%llu:%llu: %s", path, (unsigned long long)piece->line + line - 1, column,
                   detail.message + n_read);
}

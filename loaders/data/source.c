#include "loaders/data/source.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "loaders/data/contents.h"
#include "loaders/files/suffix.h"

qr_file_form qr_file_form_of(const char *path) {
    static const struct {
        const char *ending;
        qr_file_form form;
    } endings[] = {{".csv", QR_FORM_CSV}, {".tsv", QR_FORM_TSV}, {".txt", QR_FORM_TEXT}, {".md", QR_FORM_TEXT}};
    char name[64];
    size_t length = strlen(path);
    if (qr_ends_with(path, ".gz")) { length -= 3; }
    if (qr_ends_with(path, ".zst")) { length -= 4; }
    const size_t first = length < sizeof name ? 0 : length - sizeof name + 1;
    (void)snprintf(name, sizeof name, "%.*s", (int)(length - first), path + first);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (qr_ends_with(name, endings[i].ending)) { return endings[i].form; }
    }
    return QR_FORM_JSON;
}

/* ---- What a file is ---------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static qrun_status fail_line(const qr_dataset_source *source, int64_t line, const char *problem, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s:%lld: %s", source->path, (long long)line, problem);
}

static void skip_space(qr_dataset_source *source) {
    for (; source->at < source->size && is_space(source->text[source->at]); source->at++) {
        if (source->text[source->at] == '\n') { source->line++; }
    }
}

/* Whether a shell takes the path as one word, also between single quotes. */
static bool is_plain_word(const char *path) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=@%+-";
    return strspn(path, plain) == strlen(path) && path[0] != '-';
}

/* A file that is not text, by its first bytes, and what to do with it. */
static qrun_status refuse_binary(const qr_dataset_source *source, qr_error *err) {
    static const struct {
        const char *start, *name;
    } kinds[] = {
        {"ARROW1", "is an Arrow file; write its rows as JSON Lines (datasets.Dataset.to_json in Python)"},
        {"\xFF\xFF\xFF\xFF", "is an Arrow file; write its rows as JSON Lines (datasets.Dataset.to_json in Python)"},
        {"\x1F\x8B", "is compressed twice; unpack it once with gunzip"},
        {"\x28\xB5\x2F\xFD", "is compressed twice; unpack it once with unzstd"},
        {"\xFD"
         "7zXZ",
         "is compressed; unpack it with unxz first, or give it in gzip or Zstandard"},
        {"BZh", "is compressed; unpack it with bunzip2 first, or give it in gzip or Zstandard"},
        {"PK\x03\x04", "is an archive; unpack it with unzip first"},
        {"\xFF\xFE", "is UTF-16; save it as UTF-8"},
        {"\xFE\xFF", "is UTF-16; save it as UTF-8"},
    };
    if (source->size > 4 && memcmp(source->text, "PAR1", 4) == 0) {
        const char *name = is_plain_word(source->path) ? source->path : "FILE.parquet";
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: is a Parquet file; convert it with: python3 -c \"import pandas; "
                       "pandas.read_parquet('%s').to_json('%s.jsonl', orient='records', lines=True)\" (pandas and "
                       "pyarrow)",
                       source->path, name, name);
    }
    if (qr_ends_with(source->path, ".xlsx") || qr_ends_with(source->path, ".ods")) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is a spreadsheet; save it as CSV, in UTF-8", source->path);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const size_t n = strlen(kinds[i].start);
        if (source->size > n && memcmp(source->text, kinds[i].start, n) == 0) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s", source->path, kinds[i].name);
        }
    }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: is not text: it holds zero bytes; give JSON Lines, a table or plain text in UTF-8",
                   source->path);
}

/* A first line with nothing but "{": JSON laid out for people, or a file that is not a data set at all. */
static bool begins_over_several_lines(const qr_dataset_source *source) {
    const char *text = source->text;
    size_t at = source->at;
    if (text[at++] != '{') { return false; }
    while (at < source->size && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r')) { at++; }
    return at < source->size && text[at] == '\n';
}

/* Text that no JSON value begins with: shows what was seen, and what would be taken. */
static qrun_status refuse_first_line(const qr_dataset_source *source, qr_error *err) {
    enum { SHOWN_BYTES = 40 };
    const char *text = source->text + source->at;
    size_t n = 0;
    while (n < SHOWN_BYTES && n < source->size - source->at && text[n] != '\n' && text[n] != '\r') { n++; }
    n = qr_utf8_valid_prefix(text, n);
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s:%lld: begins with '%.*s', which is not JSON; a line should be like {\"prompt\": \"Hello!\", "
                   "\"completion\": \" Ahoy!\"}. `format=csv` reads a table, and `format=text` plain text",
                   source->path, (long long)source->line, (int)n, text);
}

static qrun_status open_json(qr_dataset_source *source, qr_error *err) {
    if (begins_over_several_lines(source)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s:%lld: is a JSON object over several lines; give one example per "
                       "line (jq -c . does that), or one JSON array of them",
                       source->path, (long long)source->line);
    }
    if (strchr("{[\"-0123456789tfn", source->text[source->at]) == NULL) { return refuse_first_line(source, err); }
    source->is_array = source->text[source->at] == '[';
    if (source->is_array) { source->at++; }
    return QRUN_OK;
}

static qrun_status take_record(qr_dataset_source *source, qr_dataset_piece *piece, qr_error *err);

/* A header of one column that has another separator in it: spreadsheets write ';' where the comma is the decimal
 * point. */
static qrun_status refuse_other_separator(const qr_dataset_source *source, int64_t line, qr_error *err) {
    const qr_csv_header *header = &source->header;
    if (source->form != QR_FORM_CSV || header->n_names != 1) { return QRUN_OK; }
    const char *found = strpbrk(header->names[0], ";\t|");
    if (found == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s:%lld: the header is one column, \"%.60s\"; columns are separated by commas, here "
                   "apparently by %s; save the table with commas, or with tabs as .tsv",
                   source->path, (long long)line, header->names[0],
                   *found == ';'    ? "';'"
                   : *found == '\t' ? "tabs"
                                    : "'|'");
}

static qrun_status open_table(qr_dataset_source *source, qr_error *err) {
    const char separator = source->form == QR_FORM_TSV ? '\t' : ',';
    qr_dataset_piece first;
    qr_error detail = {0};
    source->header.separator = separator;
    QR_RETURN_IF_ERROR(take_record(source, &first, err));
    const qrun_status status = qr_csv_header_parse(first.text, first.n_bytes, separator, &source->header, &detail);
    if (status != QRUN_OK) {
        return qr_fail(err, status, "%s:%lld: %s", source->path, (long long)first.line, detail.message);
    }
    return refuse_other_separator(source, first.line, err);
}

qrun_status qr_dataset_source_open_text(qr_dataset_source *source, const char *path, const char *text, size_t size,
                                        qr_error *err) {
    enum { PROBE_BYTES = 1 << 16 };
    source->path = path;
    source->text = text;
    source->size = size;
    source->line = 1;
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) { source->at = 3; }
    const bool is_utf16 = size >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0);
    if (is_utf16 || (size > 0 && memchr(text, 0, size < PROBE_BYTES ? size : PROBE_BYTES) != NULL)) {
        return refuse_binary(source, err);
    }
    const size_t begin = source->at;
    skip_space(source);
    if (source->at == size) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is empty; give one example per line", path); }
    if (source->form <= QR_FORM_JSON) { return open_json(source, err); }
    source->at = begin;
    source->line = 1;
    return source->form == QR_FORM_CSV || source->form == QR_FORM_TSV ? open_table(source, err) : QRUN_OK;
}

qrun_status qr_dataset_source_open(qr_dataset_source *source, const qr_dataset_options *options, const char *path,
                                   qr_error *err) {
    *source = (qr_dataset_source){.form = options->form};
    if (source->form == QR_FORM_AUTO) { source->form = qr_file_form_of(path); }
    QR_RETURN_IF_ERROR(qr_contents_open(options, path, &source->map, err));
    return qr_dataset_source_open_text(source, path, (const char *)source->map.data, source->map.size, err);
}

void qr_dataset_source_close(qr_dataset_source *source) {
    qr_file_map_close(&source->map);
    qr_csv_header_free(&source->header);
    *source = (qr_dataset_source){0};
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static void take_line(qr_dataset_source *source, qr_dataset_piece *piece) {
    const char *text = source->text;
    const size_t left = source->size - source->at;
    const char *end = memchr(text + source->at, '\n', left);
    const size_t n_bytes = end != NULL ? (size_t)(end - text) - source->at : left;
    *piece = (qr_dataset_piece){.text = text + source->at, .n_bytes = n_bytes, .line = source->line};
    source->at += piece->n_bytes;
}

/* The end of the JSON value at text[at], found by brackets and quotes alone: what is wrong inside, its parser says. */
static size_t find_value_end(const qr_dataset_source *source, size_t at, int64_t *n_lines) {
    const char *text = source->text;
    size_t depth = 0;
    bool in_string = false;
    for (; at < source->size; at++) {
        const char c = text[at];
        if (c == '\n') { (*n_lines)++; }
        if (in_string) {
            if (c == '\\' && at + 1 < source->size && text[at + 1] != '\n') {
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
    const char *text = source->text;
    const size_t size = source->size;
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
    *piece = (qr_dataset_piece){.text = text + source->at, .n_bytes = end - source->at, .line = source->line};
    source->at = end;
    source->line += n_lines;
    return QRUN_OK;
}

/* Skips lines that hold nothing but characters of `nothing`. */
static void skip_empty_lines(qr_dataset_source *source, const char *nothing) {
    for (size_t at = source->at; at < source->size; at++) {
        const char c = source->text[at];
        if (c == '\n') {
            source->at = at + 1;
            source->line++;
        } else if (c == '\0' || strchr(nothing, c) == NULL) {
            return;
        }
    }
    source->at = source->size;
}

static qrun_status take_record(qr_dataset_source *source, qr_dataset_piece *piece, qr_error *err) {
    int64_t n_lines;
    skip_empty_lines(source, "\r");
    *piece = (qr_dataset_piece){.text = source->text + source->at, .line = source->line};
    if (!qr_csv_find_end(piece->text, source->size - source->at, source->header.separator, &piece->n_bytes, &n_lines)) {
        return fail_line(source, source->line, "a quoted field that begins in this record is not closed", err);
    }
    source->at += piece->n_bytes;
    source->line += n_lines;
    return QRUN_OK;
}

static bool is_blank_line(const char *line, size_t n_bytes) {
    while (n_bytes > 0 && is_space(*line)) { line++, n_bytes--; }
    return n_bytes == 0;
}

/* Lines up to the next one of white space. */
static void take_paragraph(qr_dataset_source *source, qr_dataset_piece *piece) {
    const char *begin = source->text + source->at, *end = source->text + source->size, *at = begin;
    *piece = (qr_dataset_piece){.text = begin, .line = source->line, .begins_text = true, .ends_text = true};
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (line_end == NULL) { line_end = end; }
        if (is_blank_line(at, (size_t)(line_end - at))) { break; }
        piece->n_bytes = (size_t)(line_end - begin);
        source->line++;
        at = line_end < end ? line_end + 1 : end;
    }
    while (piece->n_bytes > 0 && is_space(begin[piece->n_bytes - 1])) { piece->n_bytes--; }
    source->at = (size_t)(at - source->text);
}

/* The last place of text[0, n) to cut at: after an empty line, else after a line, else between characters. */
static size_t find_cut(const char *text, size_t n) {
    size_t line = 0;
    for (size_t at = n; at > n / 2; at--) {
        if (text[at - 1] != '\n') { continue; }
        if (line == 0) { line = at; }
        if (at >= 2 && (text[at - 2] == '\n' || (at >= 3 && text[at - 2] == '\r' && text[at - 3] == '\n'))) {
            return at;
        }
    }
    if (line > 0) { return line; }
    size_t at = n;
    while (at > n - 4 && ((unsigned char)text[at] & 0xC0U) == 0x80U) { at--; }
    return at;
}

/* As much of a text that runs on as is read at a time. */
static void take_stretch(qr_dataset_source *source, qr_dataset_piece *piece) {
    const size_t left = source->size - source->at;
    const char *text = source->text + source->at;
    *piece = (qr_dataset_piece){.text = text,
                                .n_bytes = left > QR_STRETCH_BYTES ? find_cut(text, QR_STRETCH_BYTES) : left,
                                .line = source->line,
                                .begins_text = source->n_pieces == 0};
    for (size_t i = 0; i < piece->n_bytes; i++) { source->line += text[i] == '\n'; }
    source->at += piece->n_bytes;
    piece->ends_text = source->at == source->size;
}

qrun_status qr_dataset_source_next(qr_dataset_source *source, qr_dataset_piece *piece, bool *found, qr_error *err) {
    if (source->form <= QR_FORM_JSON) {
        skip_space(source);
    } else if (source->form != QR_FORM_TEXT) {
        /* Spreadsheets end tables with rows of separators. */
        skip_empty_lines(source, source->form == QR_FORM_CSV ? "\r," : source->form == QR_FORM_TSV ? "\r\t" : "\r \t");
    }
    *found = !source->is_done && (source->is_array || source->at < source->size);
    if (!*found) { return QRUN_OK; }
    switch (source->form) {
        case QR_FORM_AUTO:
        case QR_FORM_JSON:
            if (source->is_array) {
                QR_RETURN_IF_ERROR(take_element(source, piece, found, err));
            } else {
                take_line(source, piece);
            }
            break;
        case QR_FORM_CSV:
        case QR_FORM_TSV: QR_RETURN_IF_ERROR(take_record(source, piece, err)); break;
        case QR_FORM_PARAGRAPHS: take_paragraph(source, piece); break;
        case QR_FORM_TEXT: take_stretch(source, piece); break;
    }
    source->n_pieces++;
    return QRUN_OK;
}

/* ---- What is in a piece ------------------------------------------------------------------------------------------ */

static qrun_status parse_record(const qr_dataset_source *source, const qr_dataset_piece *piece, qr_json **root,
                                qr_error *err) {
    qr_error detail = {0};
    const qrun_status status = qr_csv_record_parse(&source->header, piece->text, piece->n_bytes, root, &detail);
    if (status == QRUN_OK) { return QRUN_OK; }
    if (status != QRUN_ERROR_INPUT) { return qr_fail(err, status, "%s", detail.message); }
    return fail_line(source, piece->line, detail.message, err);
}

qrun_status qr_dataset_piece_parse(const qr_dataset_source *source, const qr_dataset_piece *piece, qr_json **root,
                                   qr_error *err) {
    if (source->form == QR_FORM_CSV || source->form == QR_FORM_TSV) { return parse_record(source, piece, root, err); }
    qr_error detail = {0};
    const qrun_status status = qr_json_parse(piece->text, piece->n_bytes, "", root, &detail);
    unsigned long long line, column;
    int n_read = 0;
    if (status != QRUN_ERROR_INPUT) { return status == QRUN_OK ? status : qr_fail(err, status, "%s", detail.message); }
    if (sscanf(detail.message, ":%llu:%llu: %n", &line, &column, &n_read) != 2) { line = column = 1; }
    return qr_fail(err, status, "%s:%llu:%llu: %s", source->path, (unsigned long long)piece->line + line - 1, column,
                   detail.message + n_read);
}

qrun_status qr_dataset_piece_text(const qr_dataset_source *source, const qr_dataset_piece *piece, qr_buffer *text,
                                  qr_error *err) {
    const size_t valid = qr_utf8_valid_prefix(piece->text, piece->n_bytes);
    const char *at = piece->text, *end = at + piece->n_bytes;
    if (valid < piece->n_bytes || memchr(at, 0, piece->n_bytes) != NULL) {
        int64_t line = piece->line;
        for (size_t i = 0; i < valid; i++) { line += at[i] == '\n'; }
        return fail_line(source, line, "the text is not valid UTF-8, or holds a zero byte; save it as UTF-8", err);
    }
    while (at < end) {
        const char *crlf = memchr(at, '\r', (size_t)(end - at));
        const size_t n = (size_t)((crlf != NULL ? crlf : end) - at);
        qr_buffer_append(text, at, n);
        at += n;
        if (at == end) { break; }
        at++;
        if (at == end || *at != '\n') { qr_buffer_append_char(text, '\r'); }
    }
    return qr_buffer_ok(text) ? QRUN_OK : qr_fail_memory(err, "a text", piece->n_bytes);
}

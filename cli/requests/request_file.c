#include "cli/requests/request_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/requests/request_line.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"

/* ---- How long a request may be ----------------------------------------------------------------------------------- */

enum { BASE_BYTES = 1 << 20, TOKEN_BYTES = 64 };

size_t request_text_limit(const engine *e) { return BASE_BYTES + (size_t)e->info.context_tokens * TOKEN_BYTES; }

void request_text_too_long(const char *what, size_t max_bytes, text_buffer *out) {
    text_format(out, "%s has more than %zu bytes, the limit for a context of %zu tokens; shorten it", what, max_bytes,
                (max_bytes - BASE_BYTES) / TOKEN_BYTES);
}

int complain_text_too_long(const char *what, size_t max_bytes) {
    text_buffer why = {0};
    request_text_too_long(what, max_bytes, &why);
    const int code = complain(EXIT_USAGE, "%s", why.data);
    text_free(&why);
    return code;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static bool is_blank_line(const line_reader *r) {
    for (size_t i = 0; i < r->line.size; i++) {
        if (!is_blank(r->line.data[i])) { return false; }
    }
    return !r->too_long;
}

static int complain_read(const request_file *file) {
    return complain(EXIT_FILE, "cannot read '%s': %s", file->path, strerror(errno));
}

static void count_and_hash(request_file *file) {
    char chunk[16384];
    size_t n_read;
    bool blank = true; /* the line so far */
    file->hash = HASH_START;
    while ((n_read = fread(chunk, 1, sizeof chunk, file->reader.stream)) > 0) {
        file->hash = hash_bytes(file->hash, chunk, n_read);
        for (size_t i = 0; i < n_read; i++) {
            if (chunk[i] != '\n') {
                blank = blank && is_blank(chunk[i]);
                continue;
            }
            file->n_requests += !blank;
            blank = true;
        }
    }
    file->n_requests += !blank;
}

int request_file_open(request_file *file, const char *path) {
    FILE *stream;
    *file = (request_file){.path = path, .reader = {.stream = stdin}, .index = -1, .n_requests = -1};
    if (strcmp(path, "-") == 0) { return EXIT_OK; }
    stream = file->reader.stream = fopen(path, "rb");
    if (stream == NULL) { return complain(EXIT_FILE, "cannot open '%s': %s", path, strerror(errno)); }
    struct stat info;
    if (fstat(fileno(stream), &info) == 0 && S_ISDIR(info.st_mode)) {
        return complain(EXIT_FILE, "'%s' is a folder; --prompts takes a JSONL file", path);
    }
    if (!S_ISREG(info.st_mode)) { return EXIT_OK; }
    file->n_requests = 0;
    errno = 0;
    count_and_hash(file);
    return request_file_rewind(file);
}

int request_file_rewind(request_file *file) {
    file->reader.line_number = 0;
    file->index = -1;
    return ferror(file->reader.stream) || fseeko(file->reader.stream, 0, SEEK_SET) != 0 ? complain_read(file) : EXIT_OK;
}

bool request_file_next(request_file *file, bool *read_failed) {
    *read_failed = false;
    errno = 0;
    while (line_reader_next(&file->reader)) {
        if (is_blank_line(&file->reader)) { continue; }
        file->index++;
        text_clear(&file->id);
        request_line_take_id(&file->reader.line, &file->id);
        return true;
    }
    if (ferror(file->reader.stream) && errno != EINTR) {
        complain_read(file);
        *read_failed = true;
    }
    return false;
}

void request_file_close(request_file *file) {
    FILE *stream = file->reader.stream;
    if (stream != NULL && stream != stdin) { fclose(stream); }
    text_free(&file->reader.line);
    text_free(&file->id);
    *file = (request_file){0};
}

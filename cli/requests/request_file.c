#include "cli/requests/request_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"

static bool is_blank(const char *line, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        if (strchr(" \t\r\n", line[i]) == NULL || line[i] == '\0') { return false; }
    }
    return true;
}

static int complain_read(const request_file *file) {
    return complain(EXIT_FILE, "cannot read '%s': %s", file->path, strerror(errno));
}

static void count_and_hash(request_file *file) {
    ssize_t length;
    file->hash = HASH_START;
    while ((length = getline(&file->line, &file->capacity, file->stream)) > 0) {
        if (!is_blank(file->line, (size_t)length)) { file->n_requests++; }
        file->hash = hash_bytes(file->hash, file->line, (size_t)length);
    }
}

int request_file_open(request_file *file, const char *path) {
    *file = (request_file){.path = path, .stream = stdin, .index = -1, .n_requests = -1};
    if (strcmp(path, "-") == 0) { return EXIT_OK; }
    file->stream = fopen(path, "rb");
    if (file->stream == NULL) { return complain(EXIT_FILE, "cannot open '%s': %s", path, strerror(errno)); }
    struct stat info;
    if (fstat(fileno(file->stream), &info) == 0 && S_ISDIR(info.st_mode)) {
        return complain(EXIT_FILE, "'%s' is a folder; --prompts takes a JSONL file", path);
    }
    if (!S_ISREG(info.st_mode)) { return EXIT_OK; }
    file->n_requests = 0;
    errno = 0;
    count_and_hash(file);
    if (ferror(file->stream) || fseeko(file->stream, 0, SEEK_SET) != 0) { return complain_read(file); }
    return EXIT_OK;
}

bool request_file_next(request_file *file, const char **line, size_t *n_bytes, bool *read_failed) {
    ssize_t length;
    *read_failed = false;
    errno = 0;
    while ((length = getline(&file->line, &file->capacity, file->stream)) > 0) {
        file->line_number++;
        if (is_blank(file->line, (size_t)length)) { continue; }
        while (length > 0 && (file->line[length - 1] == '\n' || file->line[length - 1] == '\r')) { length--; }
        *line = file->line;
        *n_bytes = (size_t)length;
        file->index++;
        return true;
    }
    if (ferror(file->stream) && errno != EINTR) {
        complain_read(file);
        *read_failed = true;
    }
    return false;
}

void request_file_close(request_file *file) {
    if (file->stream != NULL && file->stream != stdin) { fclose(file->stream); }
    free(file->line);
    *file = (request_file){0};
}

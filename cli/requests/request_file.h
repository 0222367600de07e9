/* The lines of a JSONL file of requests. Blank lines are skipped; the others are requests 0, 1, 2 … */
#ifndef QRUN_CLI_REQUESTS_REQUEST_FILE_H
#define QRUN_CLI_REQUESTS_REQUEST_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct request_file {
    const char *path;
    FILE *stream;
    char *line;
    size_t capacity;
    int64_t line_number; /* of `line`, from 1 */
    int64_t index;       /* of the request in `line`, from 0 */
    int64_t n_requests;  /* in the whole file; −1 for stdin and pipes, which can be read once only */
    uint64_t hash;       /* of the file's bytes (FNV-1a, 64 bits); 0 for stdin and pipes */
} request_file;

/* Opens the file ("-": stdin) and, where it is a regular file, reads it once to count and hash. 0 or an exit code. */
int request_file_open(request_file *file, const char *path);
/* The next request, without its newline, lent until the next call; false at the end. *read_failed tells a failure
 * (already reported) from the end. */
bool request_file_next(request_file *file, const char **line, size_t *n_bytes, bool *read_failed);
void request_file_close(request_file *file);

#endif

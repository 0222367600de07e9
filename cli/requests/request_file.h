/* The lines of a JSONL file of requests. Blank lines are skipped; the others are requests 0, 1, 2 … */
#ifndef QRUN_CLI_REQUESTS_REQUEST_FILE_H
#define QRUN_CLI_REQUESTS_REQUEST_FILE_H

#include "cli/options/engine.h"
#include "cli/terminal/line_reader.h"

typedef struct request_file {
    const char *path;
    line_reader reader; /* at the line of the request, without its ids */
    text_buffer id;     /* of the request: see request_line.h */
    int64_t index;      /* of that request, from 0 */
    int64_t n_requests; /* in the whole file; −1 for stdin and pipes, which can be read once only */
    uint64_t hash;      /* of the file's bytes (FNV-1a, 64 bits); 0 for stdin and pipes */
} request_file;

/* What a request's text may have in bytes: 1 MiB, and 64 for each token of the model's context, where 4 are usual. So
 * what cannot fit is refused before it is read whole. */
size_t request_text_limit(const engine *e);
/* Why a text of more than max_bytes is refused, as one line; `what` names it: "line 3". */
void request_text_too_long(const char *what, size_t max_bytes, text_buffer *out);
int complain_text_too_long(const char *what, size_t max_bytes); /* says so; returns the exit code */

/* Opens the file ("-": stdin) and, where it is a regular file, reads it once to count and hash. 0 or an exit code. */
int request_file_open(request_file *file, const char *path);
/* The next request; false at the end. Its line is in the reader until the next call, or is too long.
 * *read_failed tells a failure (already reported) from the end. */
bool request_file_next(request_file *file, bool *read_failed);
/* Before the first request again; of a regular file. 0 or an exit code. */
int request_file_rewind(request_file *file);
void request_file_close(request_file *file);

#endif

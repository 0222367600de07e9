/* Where answers go: stdout, or a file that appears under its name only when it is whole.
 *
 * While a job runs, its answers are in FILE.partial, each request's lines written at once when it is finished, and
 * FILE.partial.job says which job this is: a hash of the prompts file and the options that shape the answers. An
 * interrupted job leaves both. Resuming checks that the job is the same, reads FILE.partial line by line, drops what
 * was torn at its end, and skips the requests that are answered. A target that is no regular file (a device, a pipe)
 * is written to directly and cannot be resumed. */
#ifndef QRUN_CLI_REQUESTS_ANSWER_FILE_H
#define QRUN_CLI_REQUESTS_ANSWER_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/terminal/text.h"

typedef struct answer_file {
    const char *path; /* NULL: stdout */
    text_buffer partial_path, job_path;
    FILE *stream;
    bool aside;          /* written under partial_path until it is whole */
    uint8_t *done;       /* [n_done_bits / 8]: bit i: request i was answered before */
    int64_t n_done_bits; /* a multiple of 8 */
    int64_t n_done, n_done_failed;
} answer_file;

/* `job` is the JSON text that identifies the job. Returns 0 or an exit code. *already_whole is set (and nothing else
 * done) when there is nothing to resume because `path` is there and no partial file is. */
int answer_file_open(answer_file *file, const char *path, bool resume, const text_buffer *job, bool *already_whole);
bool answer_file_has(const answer_file *file, int64_t index);
/* Writes one request's lines. 0 or an exit code, after telling the user. */
int answer_file_write(answer_file *file, const text_buffer *lines);
/* Ends a whole file: on disk, under its name. 0 or an exit code. */
int answer_file_finish(answer_file *file);
/* Ends a file that is not whole; what was written stays for --resume (nothing stays where nothing was written). */
void answer_file_abandon(answer_file *file);

#endif

/* Where answers go: stdout, or a file that appears under its name only when it is whole.
 *
 * While a job runs, its answers are in FILE.partial, each request's lines written at once when it is finished.
 * FILE.partial.job says which job this is: a hash of the prompts file and the options that shape the answers. An
 * interrupted job leaves both. Resuming checks that the job is the same, reads FILE.partial line by line, drops what
 * was torn at its end, and skips the requests that are answered. A target that is no regular file (a device, a pipe) is
 * written to directly and cannot be resumed. FILE is what a link that the user names leads to. A FILE with errors in it
 * keeps FILE.partial.job beside it, so that those can be tried again. */
#ifndef QRUN_CLI_REQUESTS_ANSWER_FILE_H
#define QRUN_CLI_REQUESTS_ANSWER_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/terminal/text.h"

typedef struct answer_file {
    const char *path; /* NULL: stdout */
    text_buffer target, partial_path, job_path;
    FILE *stream;
    bool aside;          /* written under partial_path until it is whole */
    bool replaces;       /* a file of that name may be there when it is whole */
    uint8_t *done;       /* [n_done_bits / 8]: bit i: request i was answered before */
    int64_t n_done_bits; /* a multiple of 8 */
    int64_t n_done, n_done_failed;
} answer_file;

typedef struct answer_file_options {
    const char *path;
    bool resume;       /* continue a partial file */
    bool retry_errors; /* what it, or the whole file, answers with an error counts as not answered */
    bool force;        /* a whole file that is there already may be replaced */
} answer_file_options;

/* `job` is the JSON text that identifies the job. Returns 0 or an exit code. *already_whole is set (and nothing else
 * done) when there is nothing to resume because `path` is there and no partial file is. */
int answer_file_open(answer_file *file, const answer_file_options *options, const text_buffer *job,
                     bool *already_whole);
bool answer_file_has(const answer_file *file, int64_t index);
/* Writes one request's lines. 0 or an exit code, after telling the user. */
int answer_file_write(answer_file *file, const text_buffer *lines);
/* Ends a whole file: on disk, under its name; has_errors: of this run. 0 or an exit code. */
int answer_file_finish(answer_file *file, bool has_errors);
/* Ends a file that is not whole; what was written stays for --resume (nothing stays where nothing was written). */
void answer_file_abandon(answer_file *file);

#endif

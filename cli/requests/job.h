/* A batch job: requests from a file (or one from the command line) into a session, answers into an answer file. At
 * most a few hundred requests are in the session at a time, so that a file of any length takes bounded memory. */
#ifndef QRUN_CLI_REQUESTS_JOB_H
#define QRUN_CLI_REQUESTS_JOB_H

#include "cli/options/engine.h"
#include "cli/requests/answer_file.h"
#include "cli/requests/request_file.h"

struct job_request;

typedef struct job {
    /* Set by the caller. */
    const engine *engine;
    request_file *requests; /* NULL: the one request that `defaults` is */
    answer_file *output;
    qrun_request_params defaults; /* of every request, without callbacks */
    bool chat;
    const char *system;
    const char *prompt; /* of the one request, where answers repeat their prompts; else NULL */
    bool with_prompt;   /* answers repeat what they answer */
    bool is_replica;    /* an empty line follows the lines of an answer (replicas.h) */
    int64_t max_in_flight;

    /* The job's own; zero at first. */
    struct job_request *in_flight; /* list of submitted, unfinished requests */
    int64_t n_in_flight, n_answered, n_failed, n_resumed;
    bool has_line; /* the line that was read last is not taken by the session yet */
    bool all_read;
    int stop_code;     /* why the job cannot continue */
    text_buffer lines; /* of the request being written */
    char first_failure[512];
    double begin_seconds, rate_seconds, tokens_per_second;
    int64_t rate_tokens;
    int64_t n_answer_tokens; /* of the answers that are finished */
} job;

/* Runs to the end, to an interruption (EXIT_INTERRUPTED) or to a failure that ends it; requests that fail alone do
 * not (n_failed counts them). Returns 0 or an exit code, after telling the user. The caller ends the output. */
int job_run(job *j);
void job_free(job *j); /* after the session is destroyed */

#endif

/* What qrun bench measures with --speculate and --prefix-cache: drafts, and prefixes that come back. */
#ifndef QRUN_CLI_COMMANDS_BENCH_REUSE_H
#define QRUN_CLI_COMMANDS_BENCH_REUSE_H

#include "cli/commands/measure.h"
#include "cli/terminal/text.h"

/* Answers that are known beforehand, so that any model writes them, even one with random weights. Editing: a text with
 * every twelfth token changed, after that text. Prose: one that repeats a pair of tokens now and then, with another
 * sequel. */
typedef enum bench_workload { BENCH_EDITING, BENCH_PROSE, N_BENCH_WORKLOADS } bench_workload;

typedef struct bench_drafts_result {
    double off, on; /* tokens per second, medians */
    int64_t n_drafted, n_right;
} bench_drafts_result;

typedef struct bench_reuse_result {
    const char *speculate; /* NULL: not measured */
    bench_drafts_result drafts[N_BENCH_WORKLOADS];
    int64_t prefix_tokens; /* 0: not measured */
    int64_t restored_tokens;
    double computed_seconds, restored_seconds; /* to the first token, medians */
} bench_reuse_result;

/* The model must be open, and no session. `params` are those of the command line. 0 or an exit code, after telling the
 * user. */
int bench_drafts_measure(engine *e, const qrun_session_params *params, int n_repeat, bench_reuse_result *result);
int bench_prefix_measure(engine *e, const qrun_session_params *params, int32_t prompt_tokens, int n_repeat,
                         bench_reuse_result *result);

void bench_reuse_print(const bench_reuse_result *result);
/* Members of an object, each followed by a comma. */
void bench_reuse_json(const bench_reuse_result *result, text_buffer *out);

#endif

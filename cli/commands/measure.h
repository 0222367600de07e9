/* What qrun bench measures: prefill and decode of random tokens, through an ordinary session. */
#ifndef QRUN_CLI_COMMANDS_MEASURE_H
#define QRUN_CLI_COMMANDS_MEASURE_H

#include "cli/options/engine.h"

enum { MEASURE_REPEAT_MAX = 64 };

typedef struct measure_result {
    double tokens_per_second;   /* median of the repetitions */
    double least, most;         /* of the repetitions */
    double first_token_seconds; /* prefill: median */
} measure_result;

/* Of `count` values, which are sorted by it. */
double measure_median(double *values, int count);
void measure_summarise(double *rates, int count, measure_result *result); /* tokens per second only */

/* Tokens per second of reading prompts of n_tokens, one at a time. 0 or an exit code, after telling the user. */
int measure_prefill(const engine *e, int32_t n_tokens, int n_repeat, measure_result *result);

/* What a run of requests has reported so far. */
typedef struct measure_counts {
    int64_t n_tokens;
    uint64_t last_started; /* requests get rising numbers, and begin in that order */
    int32_t n_started, n_over;
    double first_token_seconds;
    bool failed;
} measure_counts;

/* Requests of random tokens at once, to be run step by step: n_tokens are written in each of n_sequences, whose prompts
 * have n_prompt. Begin from the first four fields; it must not move until it has ended. */
typedef struct measure_work {
    const engine *e;
    int32_t n_sequences, n_prompt, n_tokens;
    uint64_t state;
    measure_counts counts;
} measure_work;

enum { MEASURE_OPS_TOKENS = 4 };

/* 0 or an exit code, after telling the user. */
int measure_work_begin(measure_work *work);
int measure_work_step(measure_work *work);
int measure_work_until_written(measure_work *work, int32_t n); /* in each sequence, on average */
int measure_work_end(measure_work *work);                      /* runs what is left */

/* Tokens per second of writing n_tokens in each of n_sequences at once, counted from the step after the one in which
 * the last of them began. Their prompts have n_prompt tokens. */
int measure_decode(const engine *e, int32_t n_sequences, int32_t n_prompt, int32_t n_tokens, int n_repeat,
                   measure_result *result);

#endif

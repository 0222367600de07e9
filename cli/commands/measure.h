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

enum { MEASURE_DECODE_PROMPT_TOKENS = 16 };

/* Tokens per second of writing n_tokens in each of n_sequences at once, counted from the step after the one in which
 * the last of them began. Their prompts have MEASURE_DECODE_PROMPT_TOKENS tokens. */
int measure_decode(const engine *e, int32_t n_sequences, int32_t n_tokens, int n_repeat, measure_result *result);

#endif

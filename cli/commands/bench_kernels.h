/* qrun bench --kernels: the time of every op of a prompt, a decode step and a training step. */
#ifndef QRUN_CLI_COMMANDS_BENCH_KERNELS_H
#define QRUN_CLI_COMMANDS_BENCH_KERNELS_H

#include "cli/commands/measure.h"
#include "cli/terminal/text.h"

/* The ops of one piece of work, the longest first. */
typedef struct bench_ops {
    char what[64]; /* "a decode step of 8 sequences at 64" */
    qrun_op_time *ops;
    int32_t n_ops;
} bench_ops;

enum { BENCH_MOST_PHASES = 2 };

typedef struct bench_kernels_result {
    bench_ops phases[BENCH_MOST_PHASES];
    int32_t n_phases;
} bench_kernels_result;

void bench_kernels_free(bench_kernels_result *result);

/* Begins to time, and takes what was timed as the next phase. 0 or an exit code, after telling the user. */
int bench_ops_begin(const engine *e);
int bench_ops_end(const engine *e, bench_kernels_result *result, const char *what);

/* A prompt of n_prompt tokens, then a step that writes a token in each of n_sequences of n_context tokens. The session
 * must be open. */
int bench_kernels_measure(const engine *e, int32_t n_prompt, int32_t n_sequences, int32_t n_context,
                          bench_kernels_result *result);

/* peaks: of the machine; peak: of matrix products in the type of computation. */
void bench_kernels_print(const bench_kernels_result *result, const qrun_peaks *peaks, double peak);
void bench_kernels_json(const bench_kernels_result *result, const qrun_peaks *peaks, double peak, text_buffer *out);

#endif

/* qrun bench --train: steps of fine-tuning on full rows of random tokens, compared with the machine's peaks. */
#ifndef QRUN_CLI_COMMANDS_BENCH_TRAIN_H
#define QRUN_CLI_COMMANDS_BENCH_TRAIN_H

#include "cli/commands/bench_kernels.h"
#include "cli/commands/measure.h"
#include "cli/options/train.h"
#include "cli/terminal/text.h"

typedef struct bench_train_options {
    bool train;
    qrun_train_params params;
    int offload;
} bench_train_options;

/* A constant learning rate, so that no step is one that changes nothing. */
#define BENCH_TRAIN_OPTIONS_INIT                             \
    {                                                        \
        .params = {                                          \
            .struct_size = sizeof(qrun_train_params),        \
            .data.random_tokens = true,                      \
            .optimization.schedule = QRUN_SCHEDULE_CONSTANT, \
            .memory.checkpointing = "full"                   \
        }                                                    \
    }

enum { N_BENCH_TRAIN_OPTIONS = 10 };
extern const option bench_train_option_table[N_BENCH_TRAIN_OPTIONS];

/* The name of an option that was given although --train was not; NULL: none. */
const char *bench_train_stray_option(const bench_train_options *options, const command_line *line);

typedef struct bench_train_result {
    qrun_train_info info;   /* its texts went with the trainer */
    char checkpointing[32]; /* as chosen */
    int32_t seq_len, n_repeat;
    int64_t step_tokens;
    measure_result speed; /* tokens per second */
    double step_seconds, first_step_seconds;
    int64_t peak_rss_bytes; /* of the process, since bench_train_forget_peak */
} bench_train_result;

/* The most that the process held so far does not count: measuring the machine takes memory that training does not. */
void bench_train_forget_peak(void);

/* The model must be open. 0 or an exit code, after telling the user. */
int bench_train_measure(const engine *e, const bench_train_options *options, int64_t memory_bytes, int32_t n_repeat,
                        bench_train_result *result);

/* In place of bench_train_measure: the ops of one step after a first one. */
int bench_train_kernels(const engine *e, const bench_train_options *options, int64_t memory_bytes,
                        bench_kernels_result *result);

/* peak: of matrix products in the model's type, operations a second. */
void bench_train_print(const engine *e, const bench_train_result *result, double peak);
void bench_train_json(const engine *e, const bench_train_result *result, double peak, text_buffer *out);

#endif

/* The options of qrun finetune, and what qrun bench --train shares with them. */
#ifndef QRUN_CLI_OPTIONS_TRAIN_H
#define QRUN_CLI_OPTIONS_TRAIN_H

#include "cli/options/engine.h"
#include "cli/terminal/text.h"

extern const option_choice train_optimizers[];

/* What is held in host memory: a sum of these. */
enum { TRAIN_OFFLOAD_OPTIMIZER = 1, TRAIN_OFFLOAD_ACTIVATIONS = 2 };
extern const option_choice train_offloads[];
void train_set_offload(qrun_train_params *params, int offload);

typedef struct finetune_options {
    engine_options engine;
    qrun_train_params train;
    bool train_head;
    int offload;
    int64_t show_mask; /* examples; 0: none */
    bool plan, json, verbose, quiet;
} finetune_options;

extern const finetune_options finetune_defaults;
enum { N_FINETUNE_GROUPS = 9 };
extern const option_group finetune_groups[N_FINETUNE_GROUPS];

/* What the library gets. Lends from `options`, and from `modules`, which has room for --modules-to-save and
 * --train-head together. */
qrun_train_params finetune_train_params(const finetune_options *options, text_buffer *modules);
qrun_model_params finetune_model_params(const finetune_options *options);

#endif

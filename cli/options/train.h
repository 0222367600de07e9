/* The options of qrun finetune, and what qrun bench --train shares with them. */
#ifndef QRUN_CLI_OPTIONS_TRAIN_H
#define QRUN_CLI_OPTIONS_TRAIN_H

#include "cli/options/engine.h"
#include "cli/terminal/text.h"

extern const option_choice train_optimizers[];

/* What is not held on the device: a sum of these. */
enum {
    TRAIN_OFFLOAD_OPTIMIZER = 1,
    TRAIN_OFFLOAD_ACTIVATIONS = 2,
    TRAIN_OFFLOAD_PARAMETERS = 4,
    TRAIN_OFFLOAD_AUTO = 8, /* parameters, where they do not fit otherwise */
    TRAIN_OFFLOAD_GRADIENTS = 16
};
extern const option_choice train_offloads[];
void train_set_offload(qrun_train_params *params, int offload);
qrun_offload train_offload_of_model(int offload);

enum { FIT_NOTHING = -1, FIT_MODEL = QRUN_FIT_RANK + 1 }; /* in place of a qrun_fit */
extern const option_choice fit_choices[];                 /* of qrun_fit, and FIT_MODEL */

typedef struct finetune_options {
    engine_options engine;
    qrun_train_params train;
    option_texts data, eval_data;
    option_numbers data_weights;
    bool train_head;
    int offload;
    const char *sample_prompts;
    const char *profile; /* a folder; NULL: none */
    int64_t show_mask;   /* examples; 0: none */
    int fit;             /* a qrun_fit, FIT_MODEL or FIT_NOTHING */
    int64_t bandwidth;   /* bytes that a rank sends in a second; 0: not given */
    double tflops;       /* that it computes; 0: not given */
    bool plan, compare, measure, json, verbose, quiet;
} finetune_options;

/* Of finetune_options; qrun plan has some of them too. */
enum {
    N_TRAIN_ADAPTER_OPTIONS = 12,
    N_TRAIN_FULL_OPTIONS = 3,
    N_TRAIN_OBJECTIVE_OPTIONS = 3,
    N_TRAIN_BATCH_OPTIONS = 9,
    N_TRAIN_OPTIMIZER_OPTIONS = 13,
    N_TRAIN_POLICY_OPTIONS = 2,
    N_TRAIN_RANKS_OPTIONS = 5
};
extern const option train_adapter_table[N_TRAIN_ADAPTER_OPTIONS];
extern const option train_full_table[N_TRAIN_FULL_OPTIONS];
extern const option train_objective_table[N_TRAIN_OBJECTIVE_OPTIONS];
extern const option train_batch_table[N_TRAIN_BATCH_OPTIONS];
extern const option train_optimizer_table[N_TRAIN_OPTIMIZER_OPTIONS];
extern const option train_policy_table[N_TRAIN_POLICY_OPTIONS];
extern const option train_ranks_table[N_TRAIN_RANKS_OPTIONS];

extern const finetune_options finetune_defaults;
enum { N_FINETUNE_GROUPS = 12 };
extern const option_group finetune_groups[N_FINETUNE_GROUPS];

/* What the library gets. Lends from `options`, and from `modules`, which has room for --modules-to-save and
 * --train-head together. */
qrun_train_params finetune_train_params(const finetune_options *options, text_buffer *modules);
/* The options with what the library made of those that were left to the defaults; a model given by id with its commit.
 * Lends from the model and the trainer. */
int finetune_settle(const finetune_options *options, const engine *e, const qrun_trainer *trainer,
                    finetune_options *settled);
qrun_model_params finetune_model_params(const finetune_options *options);

#endif

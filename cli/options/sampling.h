/* The options that say how tokens are chosen, shared by generate and chat. */
#ifndef QRUN_CLI_OPTIONS_SAMPLING_H
#define QRUN_CLI_OPTIONS_SAMPLING_H

#include "cli/options/options.h"
#include "qrun.h"

enum { MAX_TOKENS_DEFAULT = 256 };

typedef struct sampling_options {
    option_number temperature, top_p, min_p;
    option_number repetition_penalty, presence_penalty, frequency_penalty;
    option_int top_k, max_tokens, n, logprobs;
    option_seed seed;
    option_texts stop;
    bool ignore_eos;
} sampling_options;

enum { N_SAMPLING_OPTIONS = 10, N_SAMPLE_SHAPE_OPTIONS = 3 };
extern const option sampling_option_table[N_SAMPLING_OPTIONS];
extern const option sample_shape_option_table[N_SAMPLE_SHAPE_OPTIONS]; /* --n, --logprobs, --ignore-eos */

/* Fills `params` (from QRUN_REQUEST_PARAMS_INIT) with the model's generation_config.json and then with what was given.
 * `params` lends from `options`. Returns 0 or an exit code. */
int sampling_apply(const sampling_options *options, const qrun_model *model, qrun_request_params *params);

#endif

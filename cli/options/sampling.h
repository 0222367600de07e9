/* The options that say how tokens are chosen, shared by generate and chat. */
#ifndef QRUN_CLI_OPTIONS_SAMPLING_H
#define QRUN_CLI_OPTIONS_SAMPLING_H

#include "cli/options/options.h"
#include "qrun.h"

typedef struct sampling_options {
    qrun_request_params request;
    option_texts stop;
    option_ints stop_token_ids;
} sampling_options;

/* The longest answer, in tokens, where --max-tokens is not given; 0: as far as the context allows. */
#define SAMPLING_OPTIONS_INIT(max_tokens_)                                                                            \
    {                                                                                                                 \
        .request = {.struct_size = sizeof(qrun_request_params), .max_tokens = (max_tokens_), .n = 1, .logprobs = -1 } \
    }

enum { N_SAMPLING_OPTIONS = 12, N_SAMPLE_SHAPE_OPTIONS = 3 };
extern const option sampling_option_table[N_SAMPLING_OPTIONS];
extern const option sample_shape_option_table[N_SAMPLE_SHAPE_OPTIONS]; /* --n, --logprobs, --ignore-eos */

/* What a request gets: the model's generation_config.json, then what was given. *params lends from `options`. Returns 0
 * or an exit code. */
int sampling_apply(const sampling_options *options, const command_line *line, const qrun_model *model,
                   qrun_request_params *params);

#endif

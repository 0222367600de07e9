#include "cli/options/sampling.h"

#include <limits.h>
#include <stddef.h>

#include "cli/options/command.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/terminal.h"

#define REQUEST(field) INTO(sampling_options, request.field)

/* clang-format off */
const option sampling_option_table[N_SAMPLING_OPTIONS] = {
    {.name = "max-tokens", .kind = OPTION_INT, .value_name = "N", .low = 0, .high = INT_MAX, REQUEST(max_tokens),
     .help = "Longest answer in tokens; 0: as far as the context allows. Default: that of the model's "
             "generation_config.json, else 256."},
    {.name = "temperature", .kind = OPTION_NUMBER, .value_name = "X", .low = 0, .high = 100, REQUEST(temperature),
     .help = "0 always takes the most likely token (greedy); higher is more varied. Default for this and the next "
             "four: the model's generation_config.json; greedy where that has no \"do_sample\": true."},
    {.name = "top-k", .kind = OPTION_INT, .value_name = "N", .low = -1, .high = INT_MAX, REQUEST(top_k),
     .help = "Sample from the N most likely tokens only; 0 or -1: all."},
    {.name = "top-p", .kind = OPTION_NUMBER, .value_name = "P", .low = 0, .high = 1, REQUEST(top_p),
     .help = "Sample from the most likely tokens that make up probability P; 1: all."},
    {.name = "min-p", .kind = OPTION_NUMBER, .value_name = "P", .low = 0, .high = 1, REQUEST(min_p),
     .help = "Leave out tokens less likely than P times the most likely one; 0: none."},
    {.name = "repetition-penalty", .kind = OPTION_NUMBER, .value_name = "X", .low = 0.01, .high = 100,
     REQUEST(repetition_penalty),
     .help = "Above 1: makes tokens of the prompt and the answer so far less likely. 1: off."},
    {.name = "presence-penalty", .kind = OPTION_NUMBER, .value_name = "X", .low = -100, .high = 100,
     REQUEST(presence_penalty),
     .help = "Subtracted from the logits of tokens that the answer already has. Default: 0."},
    {.name = "frequency-penalty", .kind = OPTION_NUMBER, .value_name = "X", .low = -100, .high = 100,
     REQUEST(frequency_penalty), .help = "The same, once for each time the answer has the token. Default: 0."},
    {.name = "seed", .kind = OPTION_SEED, .value_name = "N", REQUEST(seed),
     .help = "Seed of the sampling. Default: made from the request itself, so that the same command gives the same "
             "answer again; give different seeds for different answers. `qrun serve` draws one for each request."},
    {.name = "stop", .kind = OPTION_TEXTS, .value_name = "TEXT", INTO(sampling_options, stop),
     .help = "End the answer before this text. May be given several times."},
    {.name = "stop-token-ids", .kind = OPTION_INTS, .value_name = "N,N…", .low = 0, .high = INT_MAX,
     INTO(sampling_options, stop_token_ids),
     .help = "End the answer before any of these tokens, as before the model's end-of-text token."},
    {.name = "min-tokens", .kind = OPTION_INT, .value_name = "N", .low = 0, .high = INT_MAX, REQUEST(min_tokens),
     .help = "No token ends the answer before it has N tokens; a --stop text may. Default: 0."},
};

const option sample_shape_option_table[N_SAMPLE_SHAPE_OPTIONS] = {
    {.name = "n", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 256, REQUEST(n),
     .help = "Answers per prompt. Default: 1."},
    {.name = "logprobs", .kind = OPTION_INT, .value_name = "K", .low = 0, .high = 20, REQUEST(logprobs),
     .help = "Report the log-probability of every token and of the K most likely at its position (JSON output only)."},
    {.name = "ignore-eos", .kind = OPTION_FLAG, REQUEST(ignore_eos),
     .help = "Continue after the end-of-text token, up to --max-tokens."},
};
/* clang-format on */

static void tell_what_is_not_obeyed(const qrun_model *model) {
    qrun_model_info info = QRUN_MODEL_INFO_INIT;
    if (qrun_model_get_info(model, &info, NULL) != QRUN_OK || info.not_obeyed == NULL) { return; }
    notify("note: qrun does not obey these members of the model's generation_config.json: %s", info.not_obeyed);
}

int sampling_apply(const sampling_options *options, const command_line *line, const qrun_model *model,
                   qrun_request_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    sampling_options made = {.request = QRUN_REQUEST_PARAMS_INIT};
    if (qrun_request_params_from_model(model, &made.request, &error) != QRUN_OK) { return complain_error(&error); }
    options_copy_given(line, sampling_option_table, N_SAMPLING_OPTIONS, options, &made);
    options_copy_given(line, sample_shape_option_table, N_SAMPLE_SHAPE_OPTIONS, options, &made);
    *params = made.request;
    if (option_given(line, "max-tokens")) {
        params->max_length = 0;
    } else if (params->max_tokens == 0 && params->max_length == 0) {
        params->max_tokens = options->request.max_tokens;
    }
    tell_what_is_not_obeyed(model);
    params->has_seed = option_given(line, "seed");
    params->stop = options->stop.count > 0 ? options->stop.values : NULL;
    params->n_stop = options->stop.count;
    params->stop_token_ids = options->stop_token_ids.count > 0 ? options->stop_token_ids.values : NULL;
    params->n_stop_token_ids = options->stop_token_ids.count;
    const bool wants_variety = option_given(line, "top-k") || option_given(line, "top-p") ||
                               option_given(line, "min-p") || params->has_seed || params->n > 1;
    if (wants_variety && params->temperature <= 0.0F && terminal_is(stderr)) {
        notify("note: at temperature 0 the most likely token is always taken; add --temperature 0.8 or so for variety");
    }
    return EXIT_OK;
}

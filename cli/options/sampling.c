#include "cli/options/sampling.h"

#include <limits.h>
#include <stddef.h>

#include "cli/options/command.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/terminal.h"

#define AT(field) .offset = offsetof(sampling_options, field)

const option sampling_option_table[N_SAMPLING_OPTIONS] = {
    {.name = "max-tokens",
     .kind = OPTION_INT,
     .value_name = "N",
     AT(max_tokens),
     .low = 0,
     .high = INT_MAX,
     .help = "Longest answer in tokens; 0: as far as the context allows. Default: 256."},
    {.name = "temperature",
     .kind = OPTION_NUMBER,
     .value_name = "X",
     AT(temperature),
     .low = 0,
     .high = 100,
     .help = "0 always takes the likeliest token (greedy); higher is more varied. Default for this and the next four: "
             "the model's generation_config.json; greedy where that has no \"do_sample\": true."},
    {.name = "top-k",
     .kind = OPTION_INT,
     .value_name = "N",
     AT(top_k),
     .low = 0,
     .high = INT_MAX,
     .help = "Choose among the N likeliest tokens only; 0: all."},
    {.name = "top-p",
     .kind = OPTION_NUMBER,
     .value_name = "P",
     AT(top_p),
     .low = 0,
     .high = 1,
     .help = "Choose among the likeliest tokens that make up probability P; 1: all."},
    {.name = "min-p",
     .kind = OPTION_NUMBER,
     .value_name = "P",
     AT(min_p),
     .low = 0,
     .high = 1,
     .help = "Leave out tokens less likely than P times the likeliest; 0: none."},
    {.name = "repetition-penalty",
     .kind = OPTION_NUMBER,
     .value_name = "X",
     AT(repetition_penalty),
     .low = 0.01,
     .high = 100,
     .help = "Above 1: makes tokens of the prompt and the answer so far less likely. 1: off."},
    {.name = "presence-penalty",
     .kind = OPTION_NUMBER,
     .value_name = "X",
     AT(presence_penalty),
     .low = -100,
     .high = 100,
     .help = "Taken off the logits of tokens that the answer has already. Default: 0."},
    {.name = "frequency-penalty",
     .kind = OPTION_NUMBER,
     .value_name = "X",
     AT(frequency_penalty),
     .low = -100,
     .high = 100,
     .help = "The same, once for each time the answer has the token. Default: 0."},
    {.name = "seed",
     .kind = OPTION_SEED,
     .value_name = "N",
     AT(seed),
     .help = "Seed of the sampling. Default: made from the request itself, so that running the same command again "
             "gives the same answer; give different seeds for different answers."},
    {.name = "stop",
     .kind = OPTION_TEXTS,
     .value_name = "TEXT",
     AT(stop),
     .help = "End the answer before this text. May be given several times."},
};

const option sample_shape_option_table[N_SAMPLE_SHAPE_OPTIONS] = {
    {.name = "n",
     .kind = OPTION_INT,
     .value_name = "N",
     AT(n),
     .low = 1,
     .high = 256,
     .help = "Answers per prompt. Default: 1."},
    {.name = "logprobs",
     .kind = OPTION_INT,
     .value_name = "K",
     AT(logprobs),
     .low = 0,
     .high = 20,
     .help = "Report the log-probability of every token and of the K likeliest in its place (JSON output only)."},
    {.name = "ignore-eos",
     .kind = OPTION_FLAG,
     AT(ignore_eos),
     .help = "Go on after the end-of-text token, up to --max-tokens."},
};

static void take_number(float *target, option_number number) {
    if (number.given) { *target = (float)number.value; }
}

int sampling_apply(const sampling_options *options, const qrun_model *model, qrun_request_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    if (qrun_request_params_from_model(model, params, &error) != QRUN_OK) { return complain_error(&error); }
    take_number(&params->temperature, options->temperature);
    take_number(&params->top_p, options->top_p);
    take_number(&params->min_p, options->min_p);
    take_number(&params->repetition_penalty, options->repetition_penalty);
    take_number(&params->presence_penalty, options->presence_penalty);
    take_number(&params->frequency_penalty, options->frequency_penalty);
    if (options->top_k.given) { params->top_k = (int32_t)options->top_k.value; }
    if (options->n.given) { params->n = (int32_t)options->n.value; }
    if (options->logprobs.given) { params->logprobs = (int32_t)options->logprobs.value; }
    params->max_tokens = options->max_tokens.given ? (int32_t)options->max_tokens.value : MAX_TOKENS_DEFAULT;
    params->has_seed = options->seed.given;
    params->seed = options->seed.value;
    params->stop = options->stop.count > 0 ? options->stop.values : NULL;
    params->n_stop = options->stop.count;
    params->ignore_eos = options->ignore_eos;
    const bool wants_variety =
        options->top_k.given || options->top_p.given || options->min_p.given || options->seed.given || params->n > 1;
    if (wants_variety && params->temperature <= 0.0F && terminal_is(stderr)) {
        notify("note: at temperature 0 the likeliest token is always taken; add --temperature 0.8 or so for variety");
    }
    return EXIT_OK;
}

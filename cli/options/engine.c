#include "cli/options/engine.h"

#include <limits.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

/* clang-format off */
const option_choice quant_choices[] = {
    {"auto", QRUN_QUANT_AUTO}, {"nf4", QRUN_QUANT_NF4}, {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"int8", QRUN_QUANT_INT8},
    {"bf16", QRUN_QUANT_BF16}, {"f16", QRUN_QUANT_F16}, {"f32", QRUN_QUANT_F32}, {NULL, 0}};
static const option_choice heads[] = {{"keep", false}, {"int8", true}, {NULL, 0}};
static const option_choice dtypes[] = {
    {"bf16", QRUN_DTYPE_BF16}, {"f16", QRUN_DTYPE_F16}, {"f32", QRUN_DTYPE_F32}, {NULL, 0}};
static const option_choice devices[] = {{"auto", 0}, {"cpu", 0}, {"cuda", 0}, {NULL, 0}};
static const option_choice kvs[] = {
    {"auto", QRUN_KV_AUTO}, {"bf16", QRUN_KV_BF16}, {"f16", QRUN_KV_F16}, {"int8", QRUN_KV_INT8},
    {"f32", QRUN_KV_F32}, {NULL, 0}};

const option model_option_table[N_MODEL_OPTIONS] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", INTO(engine_options, model.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model: a Hugging Face folder (config.json, *.safetensors, tokenizer.json), or the id of a model that "
             "is in the Hugging Face cache already, such as Qwen/Qwen3-0.6B. Nothing is downloaded."},
    {.name = "quant", .kind = OPTION_CHOICE, .choices = quant_choices, INTO(engine_options, model.quant),
     .help = "Format of the linear layers in memory. Default: auto, which keeps a folder quantised by bitsandbytes as "
             "it is and otherwise uses nf4-dq (4.13 bits per weight)."},
    {.name = "quant-head", .kind = OPTION_CHOICE, .choices = heads, INTO(engine_options, model.quant_head_int8),
     .help = "The output head (and an embedding tied to it): kept in its own type, or held in INT8, which makes "
             "decoding of small models faster. Default: keep."},
    {.name = "dtype", .kind = OPTION_CHOICE, .choices = dtypes, INTO(engine_options, model.dtype),
     .help = "Compute type. Default: bf16. f16 is finer, but overflows at 65504 and is slower on CPUs; f32 is slower "
             "and exact."},
};

#define ADAPTER_ROW(value_name_, help_)                                                                    \
    {.name = "adapter", .kind = OPTION_TEXTS, .value_name = value_name_, INTO(engine_options, adapters), \
     .completion = COMPLETE_FOLDER, .help = help_}

const option adapter_option_table[N_ADAPTER_OPTIONS] = {
    ADAPTER_ROW("[NAME=]DIR",
                "A PEFT LoRA folder to run with the model, unmerged. May be given several times; a line of --prompts "
                "selects one by its NAME (\"adapter\": \"NAME\"; without NAME=, it is the name of the folder), or none "
                "(\"adapter\": \"\"). Requests that name no adapter use the first one."),
};

const option one_adapter_option_table[N_ADAPTER_OPTIONS] = {
    ADAPTER_ROW("DIR", "A PEFT LoRA folder to run with the model, unmerged."),
};

const option machine_option_table[N_MACHINE_OPTIONS] = {
    {.name = "threads", .letter = 't', .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1024,
     INTO(engine_options, context.n_threads),
     .help = "Threads. Default: one for each CPU this process may use. Results do not depend on it."},
    {.name = "device", .neutral = true, .kind = OPTION_CHOICE, .choices = devices, INTO(engine_options, context.device),
     .help = "Where to run. Default: auto, an NVIDIA GPU that libqrun_cuda.so can use, otherwise the CPU."},
    {.name = "memory", .neutral = true, .kind = OPTION_BYTES, .value_name = "SIZE",
     INTO(engine_options, model.memory_bytes),
     .help = "Budget for everything, weights and K/V cache together: 6GiB, 500MB … Default: what the machine has free. "
             "What cannot fit is refused before it starts."},
};

const option session_option_table[N_SESSION_OPTIONS] = {
    {.name = "context", .kind = OPTION_INT, .value_name = "N", .low = 1, .high = INT_MAX,
     INTO(engine_options, session.context_tokens),
     .help = "Longest sequence in tokens, prompt and answer together. Default: the model's own, as far as memory "
             "allows."},
    {.name = "max-sequences", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 4096,
     INTO(engine_options, session.max_sequences),
     .help = "The most sequences that run at once. Default: 64."},
    {.name = "max-step-tokens", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1 << 20,
     INTO(engine_options, session.max_step_tokens),
     .help = "The most tokens of one step; longer prompts are read in chunks. Default: 512."},
    {.name = "kv", .kind = OPTION_CHOICE, .choices = kvs, INTO(engine_options, session.kv),
     .help = "Type of the K/V cache; int8 halves it. Default: auto, the compute type."},
    {.name = "no-prefix-sharing", .neutral = true, .kind = OPTION_FLAG, INTO(engine_options, session.no_prefix_sharing),
     .help = "Compute every prompt from its beginning, even where another one began with the same tokens."},
};
/* clang-format on */

qrun_model_params engine_model_params(const engine_options *options) {
    qrun_model_params params = options->model;
    if (options->shape != NULL) {
        params.path = options->shape;
        params.random_weights = true;
    }
    return params;
}

qrun_session_params engine_session_params(const engine_options *options) {
    qrun_session_params params = options->session;
    params.memory_bytes = options->model.memory_bytes;
    return params;
}

bool engine_show_bytes(void *user, int64_t done, int64_t total) {
    if (progress_due()) {
        progress_draw((double)done, (double)total, "%s %s of %s", (const char *)user, size_text(done).text,
                      size_text(total).text);
    }
    return !interrupted();
}

int engine_open_context(engine *e, const qrun_context_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    return complain_unless_ok(qrun_context_create(params, &e->context, &error), &error);
}

/* Opens "NAME=DIR" or "DIR". A path with "=" in it needs a "/" before that, as in ./a=b. */
static int open_adapter(engine *e, const char *argument) {
    qrun_error error = QRUN_ERROR_INIT;
    char name[256] = "";
    const char *path = argument;
    const size_t length = strcspn(argument, "=/");
    if (argument[length] == '=') {
        if (length == 0 || length >= sizeof name) {
            return complain(EXIT_USAGE, "--adapter '%s' has no usable name before '='", argument);
        }
        memcpy(name, argument, length);
        name[length] = '\0';
        path = argument + length + 1;
    }
    if (qrun_adapter_open(e->model, path, name[0] != '\0' ? name : NULL, &e->adapters[e->n_adapters], &error) !=
        QRUN_OK) {
        return complain_error(&error);
    }
    e->n_adapters++;
    return EXIT_OK;
}

int engine_require_model(const engine_options *options) {
    if (options->model.path != NULL || options->shape != NULL) { return EXIT_OK; }
    return complain(EXIT_USAGE, "no model: give --model DIR, a Hugging Face folder or the id of one in its cache");
}

int engine_require_one_adapter(const engine_options *options) {
    if (options->adapters.count <= 1) { return EXIT_OK; }
    return complain(EXIT_USAGE, "one --adapter at a time; 'qrun generate' chooses among several for each request");
}

int engine_open_model(engine *e, const engine_options *options) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params params = engine_model_params(options);
    params.progress = engine_show_bytes;
    params.progress_user = params.random_weights ? "initialising weights" : "loading";
    const qrun_status status = qrun_model_open(e->context, &params, &e->model, &error);
    progress_clear();
    if (status != QRUN_OK) { return complain_error(&error); }
    for (int i = 0; i < options->adapters.count; i++) {
        RETURN_IF_FAILED(open_adapter(e, options->adapters.values[i]));
    }
    e->info = (qrun_model_info)QRUN_MODEL_INFO_INIT;
    return complain_unless_ok(qrun_model_get_info(e->model, &e->info, &error), &error);
}

int engine_open_session(engine *e, const qrun_session_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    return complain_unless_ok(qrun_session_create(e->model, params, &e->session, &error), &error);
}

int engine_open(engine *e, const engine_options *options) {
    const qrun_session_params params = engine_session_params(options);
    RETURN_IF_FAILED(engine_require_model(options));
    RETURN_IF_FAILED(engine_open_context(e, &options->context));
    RETURN_IF_FAILED(engine_open_model(e, options));
    return engine_open_session(e, &params);
}

void engine_close(engine *e) {
    qrun_session_destroy(e->session);
    e->session = NULL;
    for (int i = e->n_adapters; i-- > 0;) { (void)qrun_adapter_close(e->adapters[i], NULL); }
    qrun_model_destroy(e->model);
    qrun_context_destroy(e->context);
    *e = (engine){0};
}

const qrun_adapter *engine_default_adapter(const engine *e) { return e->n_adapters > 0 ? e->adapters[0] : NULL; }

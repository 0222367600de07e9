#include "cli/options/engine.h"

#include <limits.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

const char *const quant_names[] = {"auto", "nf4", "nf4-dq", "int8", "bf16", "f16", "f32", NULL};
static const qrun_quant quant_values[] = {QRUN_QUANT_AUTO, QRUN_QUANT_NF4, QRUN_QUANT_NF4_DQ, QRUN_QUANT_INT8,
                                          QRUN_QUANT_BF16, QRUN_QUANT_F16, QRUN_QUANT_F32};
static const char *const head_names[] = {"keep", "int8", NULL};
static const char *const device_names[] = {"auto", "cpu", "cuda", NULL};
static const char *const dtype_names[] = {"bf16", "f16", "f32", NULL};
static const qrun_dtype dtype_values[] = {QRUN_DTYPE_BF16, QRUN_DTYPE_F16, QRUN_DTYPE_F32};
static const char *const kv_names[] = {"auto", "bf16", "f16", "int8", "f32", NULL};
static const qrun_kv kv_values[] = {QRUN_KV_AUTO, QRUN_KV_BF16, QRUN_KV_F16, QRUN_KV_INT8, QRUN_KV_F32};

#define AT(field) .offset = offsetof(engine_options, field)

const option model_option_table[N_MODEL_OPTIONS] = {
    {.name = "model",
     .letter = 'm',
     .kind = OPTION_TEXT,
     .value_name = "DIR",
     AT(model),
     .completion = COMPLETE_FOLDER,
     .help = "The model: a Hugging Face folder (config.json, *.safetensors, tokenizer.json), or the id of a model that "
             "is in the Hugging Face cache already, such as Qwen/Qwen3-0.6B. Nothing is downloaded."},
    {.name = "quant",
     .kind = OPTION_CHOICE,
     AT(quant),
     .choices = quant_names,
     .help = "How linear layers are held. Default: auto, which keeps a folder quantised by bitsandbytes as it is and "
             "otherwise takes nf4-dq (4.13 bits a weight)."},
    {.name = "quant-head",
     .kind = OPTION_CHOICE,
     AT(quant_head),
     .choices = head_names,
     .help = "The output head (and an embedding tied to it): kept in its own type, or held in INT8, which makes "
             "decoding of small models faster. Default: keep."},
    {.name = "dtype",
     .kind = OPTION_CHOICE,
     AT(dtype),
     .choices = dtype_names,
     .help = "Type of computation. Default: bf16; f16 is finer but overflows at 65504 and is slower on processors; f32 "
             "is slower and exact."},
};

const option adapter_option_table[N_ADAPTER_OPTIONS] = {
    {.name = "adapter",
     .kind = OPTION_TEXTS,
     .value_name = "[NAME=]DIR",
     AT(adapters),
     .completion = COMPLETE_FOLDER,
     .help = "A PEFT LoRA folder to run with the model, unmerged. May be given several times; a line of --prompts "
             "chooses one by its NAME (\"adapter\": \"NAME\"; without NAME=, it is the name of the folder), or none "
             "(\"adapter\": \"\"). The first one serves the requests that do not choose."},
};

const option one_adapter_option_table[N_ADAPTER_OPTIONS] = {
    {.name = "adapter",
     .kind = OPTION_TEXTS,
     .value_name = "DIR",
     AT(adapters),
     .completion = COMPLETE_FOLDER,
     .help = "A PEFT LoRA folder to run with the model, unmerged."},
};

const option machine_option_table[N_MACHINE_OPTIONS] = {
    {.name = "threads",
     .neutral = true,
     .letter = 't',
     .kind = OPTION_INT,
     .value_name = "N",
     AT(threads),
     .low = 1,
     .high = 1024,
     .help = "Threads. Default: all processors this process may use. Results do not depend on it."},
    {.name = "device",
     .neutral = true,
     .kind = OPTION_CHOICE,
     AT(device),
     .choices = device_names,
     .help = "Where to run. Default: auto, an NVIDIA GPU that libqrun_cuda.so can use, else the processor."},
    {.name = "memory",
     .neutral = true,
     .kind = OPTION_BYTES,
     .value_name = "SIZE",
     AT(memory),
     .help = "Budget for everything, weights and K/V cache together: 6GiB, 500MB … Default: what the machine has free. "
             "What cannot fit is refused before it starts."},
};

const option session_option_table[N_SESSION_OPTIONS] = {
    {.name = "context",
     .kind = OPTION_INT,
     .value_name = "N",
     AT(context),
     .low = 1,
     .high = INT_MAX,
     .help = "Longest sequence in tokens, prompt and answer together. Default: the model's own, as far as memory "
             "allows."},
    {.name = "max-batch",
     .neutral = true,
     .kind = OPTION_INT,
     .value_name = "N",
     AT(max_batch),
     .low = 1,
     .high = 4096,
     .help = "Sequences that run at once. Default: 64."},
    {.name = "step-tokens",
     .neutral = true,
     .kind = OPTION_INT,
     .value_name = "N",
     AT(step_tokens),
     .low = 1,
     .high = 1 << 20,
     .help = "Tokens of one step; longer prompts are read in chunks. Default: 512."},
    {.name = "kv",
     .kind = OPTION_CHOICE,
     AT(kv),
     .choices = kv_names,
     .help = "Type of the K/V cache; int8 halves it. Default: auto, the type of computation."},
    {.name = "no-prefix-sharing",
     .neutral = true,
     .kind = OPTION_FLAG,
     AT(no_prefix_sharing),
     .help = "Compute every prompt from its beginning, even where another one began with the same tokens."},
};

qrun_model_params engine_model_params(const engine_options *options) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = options->model;
    if (options->shape != NULL) {
        params.path = options->shape;
        params.random_weights = true;
    }
    if (options->unread) { params.random_weights = true; }
    params.trainable = options->trainable;
    params.quant = quant_values[options->quant.value];
    params.quant_head_int8 = options->quant_head.value == 1;
    params.dtype = dtype_values[options->dtype.value];
    params.memory_bytes = options->memory.value;
    return params;
}

qrun_session_params engine_session_params(const engine_options *options) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.memory_bytes = options->memory.value;
    params.context_tokens = (int32_t)options->context.value;
    params.max_sequences = (int32_t)options->max_batch.value;
    params.max_step_tokens = (int32_t)options->step_tokens.value;
    params.kv = kv_values[options->kv.value];
    params.no_prefix_sharing = options->no_prefix_sharing;
    return params;
}

bool engine_show_bytes(void *user, int64_t done, int64_t total) {
    if (progress_due()) {
        char have[SIZE_TEXT_BYTES], whole[SIZE_TEXT_BYTES];
        progress_draw((double)done, (double)total, "%s %s of %s", (const char *)user, size_text(done, have),
                      size_text(total, whole));
    }
    return !interrupted();
}

int engine_open_context(engine *e, const engine_options *options) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    params.n_threads = (int32_t)options->threads.value;
    params.device = device_names[options->device.value];
    return qrun_context_create(&params, &e->context, &error) == QRUN_OK ? EXIT_OK : complain_error(&error);
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
    if (options->model != NULL || options->shape != NULL) { return EXIT_OK; }
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
    params.progress_user = params.random_weights ? "making weights" : "loading";
    const qrun_status status = qrun_model_open(e->context, &params, &e->model, &error);
    progress_clear();
    if (status != QRUN_OK) { return complain_error(&error); }
    for (int i = 0; i < options->adapters.count; i++) {
        const int code = open_adapter(e, options->adapters.values[i]);
        if (code != EXIT_OK) { return code; }
    }
    e->info = (qrun_model_info)QRUN_MODEL_INFO_INIT;
    return qrun_model_get_info(e->model, &e->info, &error) == QRUN_OK ? EXIT_OK : complain_error(&error);
}

int engine_open_session(engine *e, const qrun_session_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    return qrun_session_create(e->model, params, &e->session, &error) == QRUN_OK ? EXIT_OK : complain_error(&error);
}

int engine_open(engine *e, const engine_options *options) {
    int code = engine_require_model(options);
    if (code == EXIT_OK) { code = engine_open_context(e, options); }
    if (code == EXIT_OK) { code = engine_open_model(e, options); }
    const qrun_session_params params = engine_session_params(options);
    if (code == EXIT_OK) { code = engine_open_session(e, &params); }
    return code;
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

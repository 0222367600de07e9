#include "cli/options/engine.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

/* clang-format off */
const option_choice quant_choices[] = {
    {"auto", QRUN_QUANT_AUTO}, {"nf4", QRUN_QUANT_NF4}, {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"int8", QRUN_QUANT_INT8},
    {"bf16", QRUN_QUANT_BF16}, {"f16", QRUN_QUANT_F16}, {"f32", QRUN_QUANT_F32},
    {"mxfp4", QRUN_QUANT_MXFP4}, {"mixed", QRUN_QUANT_MIXED}, {NULL, 0}};
static const option_choice heads[] = {{"keep", false}, {"int8", true}, {NULL, 0}};
static const option_choice dtypes[] = {
    {"bf16", QRUN_DTYPE_BF16}, {"f16", QRUN_DTYPE_F16}, {"f32", QRUN_DTYPE_F32}, {NULL, 0}};
static const option_choice kept_sizes[] = {{"RAM", QRUN_PREFIX_CACHE_RAM}, {NULL, 0}};
static const option_choice devices[] = {{"auto", 0}, {"cpu", 0}, {"cuda", 1}, {NULL, 0}};
static const option_choice numerics[] = {
    {"fastest", QRUN_NUMERICS_FASTEST}, {"portable", QRUN_NUMERICS_PORTABLE}, {NULL, 0}};
static const option_choice kvs[] = {
    {"auto", QRUN_KV_AUTO}, {"bf16", QRUN_KV_BF16}, {"f16", QRUN_KV_F16}, {"int8", QRUN_KV_INT8},
    {"f32", QRUN_KV_F32}, {NULL, 0}};

static const option_choice places[] = {
    {"device", QRUN_OFFLOAD_NONE}, {"host", QRUN_OFFLOAD_ALL}, {"auto", QRUN_OFFLOAD_AUTO}, {NULL, 0}};
static const option_choice expert_computes[] = {{"device", QRUN_EXPERT_COMPUTE_DEVICE},
                                                {"host", QRUN_EXPERT_COMPUTE_HOST},
                                                {"auto", QRUN_EXPERT_COMPUTE_AUTO},
                                                {NULL, 0}};

const option model_option_table[N_MODEL_OPTIONS] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", INTO(engine_options, model.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model: its folder, its GGUF file, or its id in the Hugging Face cache. A folder has config.json, "
             "*.safetensors and tokenizer.json. An id is like Qwen/Qwen3-0.6B or Qwen/Qwen3-0.6B@main; nothing is "
             "downloaded."},
    {.name = "quant", .kind = OPTION_CHOICE, .choices = quant_choices, INTO(engine_options, model.quant),
     .help = "Format of the linear layers in memory. Default: auto, which keeps a folder that is stored quantised "
             "as it is (mxfp4 of gpt-oss, too) and otherwise uses nf4-dq (4.13 bits per weight). mixed: of folders "
             "that 'qrun quantize' wrote so."},
    {.name = "quant-head", .kind = OPTION_CHOICE, .choices = heads, INTO(engine_options, model.quant_head_int8),
     .help = "The output head (and an embedding tied to it): kept in its own type, or held in INT8, which makes "
             "decoding of small models faster. Default: keep."},
    {.name = "quant-embedding", .kind = OPTION_CHOICE, .choices = heads,
     INTO(engine_options, model.quant_embedding_int8),
     .help = "The embeddings of tokens (and a head tied to them): kept in their own type, or held in INT8 with a scale "
             "for each token, which takes half the memory. Default: keep."},
    {.name = "dtype", .kind = OPTION_CHOICE, .choices = dtypes, INTO(engine_options, model.dtype),
     .help = "Compute type. Default: bf16. f16 is finer, but overflows at 65504 and is slower on CPUs; f32 is slower "
             "and exact."},
    {.name = "experts", .neutral = true, .kind = OPTION_CHOICE, .choices = places,
     INTO(engine_options, model.offload_experts),
     .help = "Of a mixture of experts on a GPU: on the device, or in host memory, where --expert-compute says how they "
             "are computed. auto: where they do not fit otherwise. Slower. Default: device."},
    {.name = "expert-compute", .neutral = true, .kind = OPTION_CHOICE, .choices = expert_computes,
     INTO(engine_options, model.expert_compute),
     .help = "Where experts in host memory are computed. device: those that tokens go to are fetched for each layer; "
             "the answers are those of experts on the device, and training needs it. host: the processor computes them "
             "where they are, with answers that are rounded elsewhere. auto: the faster one by what is measured at the "
             "start, so another start may round elsewhere. Default: device."},
};

#define ADAPTER_ROW(value_name_, help_)                                                                    \
    {.name = "adapter", .kind = OPTION_TEXTS, .value_name = value_name_, INTO(engine_options, adapters), \
     .completion = COMPLETE_FOLDER, .help = help_}

static const option_choice offloads[] = {
    {"none", QRUN_OFFLOAD_NONE}, {"parameters", QRUN_OFFLOAD_ALL}, {"auto", QRUN_OFFLOAD_AUTO}, {NULL, 0}};

const option adapter_option_table[N_ADAPTER_OPTIONS] = {
    ADAPTER_ROW("[NAME=]DIR",
                "A PEFT LoRA folder, or an id in the Hugging Face cache, to run with the model, unmerged. May be given "
                "several times, and a request selects one by its NAME (without NAME=, the name of the folder): a line "
                "of --prompts as its \"adapter\" (\"\": none; without it, the first), a client of the server as its "
                "\"model\" (without it, none)."),
};

const option one_adapter_option_table[N_ADAPTER_OPTIONS] = {
    ADAPTER_ROW("DIR", "A PEFT LoRA folder to run with the model, unmerged."),
};

const option machine_option_table[N_MACHINE_OPTIONS] = {
    {.name = "threads", .letter = 't', .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 256,
     INTO(engine_options, context.n_threads),
     .help = "Threads. Default: one for each CPU this process may use. Results do not depend on it."},
    {.name = "device", .neutral = true, .kind = OPTION_CHOICE, .choices = devices, INTO(engine_options, context.device),
     .help = "Where to run. Default: auto, an NVIDIA GPU that libqrun_cuda.so can use, otherwise the CPU. cuda:1 is "
             "the second of several GPUs."},
    {.name = "numerics", .kind = OPTION_CHOICE, .choices = numerics, INTO(engine_options, context.numerics),
     .help = "Order of sums: fastest, that of this CPU's instruction set, or portable, which gives the same bits on "
             "every x86-64 CPU and is slower. Default: fastest."},
    {.name = "memory", .neutral = true, .kind = OPTION_BYTES, .value_name = "SIZE",
     INTO(engine_options, model.memory_bytes),
     .help = "Budget for everything, weights and K/V cache together: 6GiB, 500MB … (G alone is GiB). Default: what the "
             "machine has free. What cannot fit is refused before it starts."},
    {.name = "offload", .neutral = true, .kind = OPTION_CHOICE, .choices = offloads,
     INTO(engine_options, model.offload_parameters),
     .help = "parameters: hold the layers in host memory, or on the CPU leave them in the folder, which must be "
             "quantised already; two are on the device at a time. auto: where they do not fit otherwise. Slower, with "
             "the same answers. Default: none."},
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

const option speed_option_table[N_SPEED_OPTIONS] = {
    {.name = "speculate", .neutral = true, .kind = OPTION_TEXT, .value_name = "ngram|DIR|off",
     INTO(engine_options, session.speculate), .completion = COMPLETE_FOLDER,
     .help = "Guess the next tokens, and check them in one step: fewer steps, the same answers to the bit. ngram "
             "guesses from the text so far. DIR names a smaller model with the same tokenizer, which guesses. Default: "
             "ngram, where few sequences run and memory allows."},
    {.name = "prefix-cache", .neutral = true, .kind = OPTION_BYTES, .value_name = "RAM[:SIZE]", .choices = kept_sizes,
     INTO(engine_options, session.prefix_cache_bytes),
     .help = "Memory of the machine for K/V pages that no longer fit into the K/V cache. A prompt that begins with the "
             "same tokens again gets them back, instead of being computed. RAM alone is a quarter of what is free; "
             "SIZE alone is RAM:SIZE. Default: none."},
    {.name = "cache-dir", .neutral = true, .kind = OPTION_TEXT, .value_name = "DIR",
     INTO(engine_options, session.cache_dir), .completion = COMPLETE_FOLDER,
     .help = "A folder for such pages, so that later runs get them back too. Several runs may use it at once; files "
             "that do not fit the model, its adapter or its options are not used. Default: none."},
    {.name = "cache-dir-size", .neutral = true, .kind = OPTION_BYTES, .value_name = "SIZE",
     INTO(engine_options, session.cache_dir_bytes),
     .help = "The most that the files in --cache-dir may take together; those not used for longest are removed first. "
             "Default: 8GiB."},
};

const option devices_option_table[N_DEVICES_OPTIONS] = {
    {.name = "tensor-parallel", .neutral = true, .kind = OPTION_INT, .value_name = "N", .low = 1, .high = 1024,
     INTO(engine_options, model.tensor_parallel),
     .help = "Share every layer among N ranks: each has a part of the heads, with their K/V cache, and of the other "
             "matrices. Answers are those of one, to the bit. N processes are started here, unless mpirun, srun or "
             "torchrun has started them. Sizes, such as --memory, are each rank's. Default: 1."},
    {.name = "collective-timeout", .neutral = true, .kind = OPTION_NUMBER, .value_name = "SECONDS", .low = 1,
     .high = 1e6, INTO(engine_options, context.collective_timeout),
     .help = "With several ranks: how long one may be silent while another waits for it, before all end. Default: "
             "1800."},
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

static bool is_shared(const engine_options *options) { return options->model.tensor_parallel > 1; }

static int open_ranks(engine *e, const engine_options *options) {
    qrun_context_params params = options->context;
    qrun_device_info device = QRUN_DEVICE_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    params.ranks = true;
    if (params.n_threads == 0) { params.n_threads = local_ranks_threads(); }
    RETURN_IF_FAILED(engine_open_context(e, &params));
    RETURN_IF_FAILED(complain_unless_ok(qrun_context_device_info(e->context, &device, &error), &error));
    e->rank = device.rank;
    e->n_ranks = device.n_ranks;
    return EXIT_OK;
}

int engine_meet(engine *e, const engine_options *options) {
    if (!is_shared(options)) { return EXIT_OK; }
    RETURN_IF_FAILED(open_ranks(e, options));
    messages_are_of_rank(e->rank);
    if (e->rank > 0) { progress_silence(); }
    return EXIT_OK;
}

int engine_open_ranks(engine *e, const engine_options *options) {
    if (!is_shared(options)) { return engine_open_context(e, &options->context); }
    if (e->n_ranks > 1) { return EXIT_OK; }
    qrun_context_destroy(e->context);
    e->context = NULL;
    RETURN_IF_FAILED(local_ranks_start(&e->others, options->model.tensor_parallel));
    return open_ranks(e, options);
}

int engine_follow(engine *e, const engine_options *options) {
    const qrun_session_params params = engine_session_params(options);
    qrun_error error = QRUN_ERROR_INIT;
    RETURN_IF_FAILED(engine_open_model(e, options));
    RETURN_IF_FAILED(engine_open_session(e, &params));
    interrupt_hold(); /* rank 0 hears of signals, and ends all */
    return complain_unless_ok(qrun_session_run(e->session, &error), &error);
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
        if (path[0] == '\0') { return complain(EXIT_USAGE, "--adapter '%s' has no folder after '='", argument); }
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
    RETURN_IF_FAILED(complain_unless_ok(qrun_model_get_info(e->model, &e->info, &error), &error));
    if (e->rank > 0 || e->is_copy) { return EXIT_OK; }
    if (e->info.left_out != NULL) {
        notify("note: text needs none of these parts of the model, and they are left out: %s", e->info.left_out);
    }
    if (e->info.expert_note != NULL && options->model.expert_compute == QRUN_EXPERT_COMPUTE_AUTO) {
        notify("note: experts in host memory: %s", e->info.expert_note);
    }
    if (e->info.packed_as != NULL && e->info.n_quantized_parameters > 0) {
        notify("note: the weights are stored as %s, and %s rounds them a second time; --quant bf16 loses less",
               e->info.packed_as, e->info.quant);
    }
    return EXIT_OK;
}

int engine_open_session(engine *e, const qrun_session_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    e->keeps_prefixes = params->cache_dir != NULL;
    return complain_unless_ok(qrun_session_create(e->model, params, &e->session, &error), &error);
}

void engine_keep_prefixes(engine *e) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    if (e->session == NULL || !e->keeps_prefixes) { return; }
    (void)qrun_session_keep_prefixes(e->session, NULL); /* what is not kept is computed again */
    if (qrun_session_get_stats(e->session, &stats, NULL) != QRUN_OK || stats.cache_note[0] == '\0') { return; }
    if (!e->told_note) { notify("note: %s", stats.cache_note); }
    e->told_note = true;
}

int engine_open(engine *e, const engine_options *options) {
    const qrun_session_params params = engine_session_params(options);
    RETURN_IF_FAILED(engine_require_model(options));
    RETURN_IF_FAILED(engine_open_ranks(e, options));
    RETURN_IF_FAILED(engine_open_model(e, options));
    return engine_open_session(e, &params);
}

void engine_close(engine *e) {
    qrun_session_destroy(e->session);
    e->session = NULL;
    for (int i = e->n_adapters; i-- > 0;) { (void)qrun_adapter_close(e->adapters[i], NULL); }
    qrun_model_destroy(e->model);
    qrun_context_destroy(e->context);
    local_ranks_end(&e->others);
    *e = (engine){0};
}

const qrun_adapter *engine_default_adapter(const engine *e) { return e->n_adapters > 0 ? e->adapters[0] : NULL; }

gpu_text engine_gpu(const engine *e) {
    gpu_text out = {""};
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    if (qrun_context_device_info(e->context, &info, NULL) == QRUN_OK && strcmp(info.backend, "cpu") != 0) {
        snprintf(out.text, sizeof out.text, "%s (%s)", info.backend, info.isa);
    }
    return out;
}

parameters_text engine_parameters(const qrun_model_info *info) {
    parameters_text out;
    if (info->n_active_parameters == info->n_parameters) {
        snprintf(out.text, sizeof out.text, "%s parameters", large_text(info->n_parameters).text);
    } else {
        snprintf(out.text, sizeof out.text, "%s parameters, %s of them active", large_text(info->n_parameters).text,
                 large_text(info->n_active_parameters).text);
    }
    return out;
}

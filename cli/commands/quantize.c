/* qrun quantize: writes a folder that transformers with bitsandbytes loads unchanged. */
#include <stdio.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct quantize_options {
    const char *model, *out;
    option_int quant, shard_size, threads;
} quantize_options;

#define AT(field) .offset = offsetof(quantize_options, field)

static const char *const written_quants[] = {"nf4-dq", "nf4", "int8", NULL};
static const qrun_quant written_values[] = {QRUN_QUANT_NF4_DQ, QRUN_QUANT_NF4, QRUN_QUANT_INT8};

/* clang-format off */
static const option quantize_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(model), .completion = COMPLETE_FOLDER,
     .help = "The model to quantise: a Hugging Face folder, or the id of one in the Hugging Face cache."},
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", AT(out), .completion = COMPLETE_FOLDER,
     .help = "The folder to write. It must not exist yet, and appears whole or not at all."},
    {.name = "quant", .kind = OPTION_CHOICE, AT(quant), .choices = written_quants,
     .help = "Number format of the linear layers. Default: nf4-dq (4.13 bits a weight)."},
    {.name = "shard-size", .kind = OPTION_BYTES, .value_name = "SIZE", AT(shard_size),
     .help = "Largest file to write. Default: 5GB."},
    {.name = "threads", .letter = 't', .kind = OPTION_INT, .value_name = "N", AT(threads), .low = 1, .high = 1024,
     .help = "Threads. Default: all processors this process may use."},
};
/* clang-format on */

static const option_group groups[] = {OPTION_GROUP("Options", quantize_table, 0)};

static int quantize(const quantize_options *o, qrun_context *context) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_quantize_params params = QRUN_QUANTIZE_PARAMS_INIT;
    params.path = o->model;
    params.out = o->out;
    params.quant = written_values[o->quant.value];
    params.max_shard_bytes = o->shard_size.value;
    params.progress = engine_show_bytes;
    params.progress_user = "quantising";
    const double begin = clock_seconds();
    const qrun_status status = qrun_quantize_folder(context, &params, &error);
    progress_clear();
    if (status != QRUN_OK) { return complain_error(&error); }
    printf("%s: %s, in %.1f s\n", o->out, written_quants[o->quant.value], clock_seconds() - begin);
    return EXIT_OK;
}

static int run(const void *options, const option_texts *arguments) {
    const quantize_options *o = options;
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = NULL;
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    (void)arguments;
    if (o->model == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->out == NULL) { return complain(EXIT_USAGE, "no place for the result: give --out DIR"); }
    params.n_threads = (int32_t)o->threads.value;
    if (qrun_context_create(&params, &context, &error) != QRUN_OK) { return complain_error(&error); }
    const int code = quantize(o, context);
    qrun_context_destroy(context);
    return code;
}

const command command_quantize = {
    .name = "quantize",
    .summary = "write a quantised copy of a model folder",
    .usage = "--model DIR --out DIR [OPTIONS]",
    .description =
        "The folder has bitsandbytes' own format: transformers loads it unchanged, and qrun opens it "
        "without quantising again. Tokenizer and other small files are copied. (Not needed before 'generate', which "
        "quantises while it loads.)",
    .examples = "  qrun quantize --model path/to/model --out path/to/model-nf4\n"
                "  qrun quantize --model path/to/model --out path/to/model-int8 --quant int8",
    .groups = groups,
    .n_groups = N_GROUPS(groups),
    .options_bytes = sizeof(quantize_options),
    .run = run,
};

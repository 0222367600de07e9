/* qrun quantize: writes a folder that transformers with bitsandbytes loads unchanged. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/next_steps.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct quantize_options {
    qrun_context_params context;
    qrun_quantize_params quantize;
} quantize_options;

#define AT(field) INTO(quantize_options, field)

/* clang-format off */
static const option_choice quants[] = {
    {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"nf4", QRUN_QUANT_NF4}, {"int8", QRUN_QUANT_INT8}, {NULL, 0}};

static const option quantize_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(quantize.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model to quantise: a Hugging Face folder, or the id of one in the Hugging Face cache."},
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", AT(quantize.out),
     .completion = COMPLETE_FOLDER,
     .help = "The folder to write. It must not exist yet, and appears whole or not at all."},
    {.name = "quant", .kind = OPTION_CHOICE, AT(quantize.quant), .choices = quants,
     .help = "Number format of the linear layers. Default: nf4-dq (4.13 bits per weight)."},
    {.name = "max-shard-size", .kind = OPTION_BYTES, .value_name = "SIZE", AT(quantize.max_shard_bytes),
     .help = "Largest file to write. Default: 5GB."},
    {.name = "threads", .letter = 't', .kind = OPTION_INT, .value_name = "N", AT(context.n_threads), .low = 1,
     .high = 1024,
     .help = "Threads. Default: one for each CPU this process may use."},
};
/* clang-format on */

static const option_group groups[] = {OPTION_GROUP("Options", quantize_table, 0)};

/* Weights that were rounded before are rounded again. Says so of a folder that could be quantised: one that
 * bitsandbytes quantised cannot. */
static int note_second_rounding(const qrun_quantize_params *params, qrun_context *context) {
    qrun_error error = QRUN_ERROR_INIT;
    char *text = NULL;
    RETURN_IF_FAILED(complain_unless_ok(qrun_folder_inspect(context, params->path, false, &text, &error), &error));
    cJSON *root = cJSON_Parse(text);
    const char *packed_as = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "stored_quantization"));
    if (packed_as != NULL && strcmp(packed_as, "none") != 0) {
        notify("note: the weights are stored as %s, and %s rounds them a second time; quantising the original model "
               "loses less",
               packed_as, option_choice_name(quants, (int64_t)params->quant));
    }
    cJSON_Delete(root);
    qrun_free(text);
    return EXIT_OK;
}

static int quantize(const quantize_options *o, qrun_context *context) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_quantize_params params = o->quantize;
    params.progress = engine_show_bytes;
    params.progress_user = "quantising";
    const double begin = clock_seconds();
    const qrun_status status = qrun_quantize_folder(context, &params, &error);
    progress_clear();
    if (status != QRUN_OK) { return complain_error(&error); }
    printf("%s: %s, in %.1f s\n", params.out, option_choice_name(quants, (int64_t)params.quant),
           clock_seconds() - begin);
    return note_second_rounding(&params, context);
}

static int run(const void *options, const command_line *line, engine *e) {
    const quantize_options *o = options;
    (void)line;
    if (o->quantize.path == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->quantize.out == NULL) { return complain(EXIT_USAGE, "no folder for the result: give --out DIR"); }
    if (complain_file_ending("quantize", o->quantize.out, o->quantize.path, NULL)) { return EXIT_USAGE; }
    RETURN_IF_FAILED(engine_open_context(e, &o->context));
    return quantize(o, e->context);
}

static const quantize_options defaults = {
    .context = QRUN_CONTEXT_PARAMS_INIT,
    .quantize = {.struct_size = sizeof(qrun_quantize_params), .quant = QRUN_QUANT_NF4_DQ},
};

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
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};

/* qrun quantize: writes a folder that transformers with bitsandbytes loads unchanged, or one of mixed formats. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/next_steps.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/text.h"

typedef struct quantize_options {
    qrun_context_params context;
    qrun_quantize_params quantize;
    qrun_mixed_params measure;
    const char *text;
    bool json;
} quantize_options;

#define AT(field) INTO(quantize_options, field)

/* clang-format off */
static const option_choice quants[] = {
    {"nf4-dq", QRUN_QUANT_NF4_DQ}, {"nf4", QRUN_QUANT_NF4}, {"int8", QRUN_QUANT_INT8}, {"mixed", QRUN_QUANT_MIXED},
    {"mxfp4", QRUN_QUANT_MXFP4}, {NULL, 0}};
static const option_choice tables[] = {{"keep", false}, {"int8", true}, {NULL, 0}};
static const option_choice dtypes[] = {
    {"bf16", QRUN_DTYPE_BF16}, {"f16", QRUN_DTYPE_F16}, {"f32", QRUN_DTYPE_F32}, {NULL, 0}};

static const option quantize_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(quantize.path),
     .completion = COMPLETE_FOLDER,
     .help = "The model to quantise: a Hugging Face folder, or the id of one in the Hugging Face cache."},
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", AT(quantize.out),
     .completion = COMPLETE_FOLDER,
     .help = "The folder to write. It must not exist yet, and appears whole or not at all."},
    {.name = "quant", .kind = OPTION_CHOICE, AT(quantize.quant), .choices = quants,
     .help = "Number format of the linear layers. mixed: nf4-dq, and int8 or bf16 for those that lose most by it. "
             "mxfp4: a copy of a folder that is stored so. Default: nf4-dq (4.13 bits per weight)."},
    {.name = "quant-embedding", .kind = OPTION_CHOICE, .choices = tables, AT(quantize.quant_embedding_int8),
     .help = "The embeddings of tokens (and a head tied to them): kept in their own type, or in INT8 with a scale for "
             "each token. Only qrun reads such a folder. Default: keep."},
    {.name = "max-shard-size", .kind = OPTION_BYTES, .value_name = "SIZE", AT(quantize.max_shard_bytes),
     .help = "Largest file to write. Default: 5GB."},
    {.name = "threads", .letter = 't', .kind = OPTION_INT, .value_name = "N", AT(context.n_threads), .low = 1,
     .high = 1024,
     .help = "Threads. Default: one for each CPU this process may use."},
};

static const option_choice raised[] = {{"int8", QRUN_QUANT_INT8}, {"bf16", QRUN_QUANT_BF16}, {NULL, 0}};

static const option mixed_table[] = {
    {.name = "text", .kind = OPTION_TEXT, .value_name = "FILE", AT(text), .completion = COMPLETE_FILE,
     .help = "What is measured on, UTF-8 (\"-\": stdin): a text like those that the model will read."},
    {.name = "budget", .kind = OPTION_BYTES, .value_name = "SIZE", AT(measure.budget_bytes),
     .help = "What the weights of the whole model may take. Default: a tenth more than with --quant nf4-dq."},
    {.name = "raise-to", .kind = OPTION_CHOICE, AT(measure.raise_to), .choices = raised,
     .help = "Format of those that lose most. bf16 (f16 where the model is): transformers with bitsandbytes then loads "
             "the folder unchanged. Default: int8, for twice as many of them."},
    {.name = "max-tokens", .kind = OPTION_INT, .value_name = "N", AT(measure.max_tokens), .low = 2, .high = 1e9,
     .help = "Tokens of the text to measure on, from its beginning. The model reads them once for each matrix. "
             "Default: 512."},
    {.name = "dtype", .kind = OPTION_CHOICE, AT(measure.dtype), .choices = dtypes,
     .help = "Compute type of the measurement; the model is held in it. Default: bf16."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print what was measured as one JSON object."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Options", quantize_table, 0),
    OPTION_GROUP("With --quant mixed", mixed_table, 0),
};

/* ---- Mixed formats ----------------------------------------------------------------------------------------------- */

static bool show_measured(void *user, int64_t done, int64_t total) {
    (void)user;
    if (total > 0 && progress_due()) {
        progress_draw((double)done, (double)total, "measuring  %lld of %lld tokens", (long long)done, (long long)total);
    }
    return !interrupted();
}

static int measure(const quantize_options *o, qrun_context *context, const text_buffer *text, qrun_mixed **mixed) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_mixed_params params = o->measure;
    params.path = o->quantize.path;
    params.text = text->data;
    params.text_bytes = text->size;
    params.progress = show_measured;
    const qrun_status status = qrun_mixed_measure(context, &params, mixed, &error);
    progress_clear();
    return complain_unless_ok(status, &error);
}

/* What was written, on the same text. */
static qrun_status compare_written(const quantize_options *o, qrun_context *context, const text_buffer *text,
                                   int32_t n_tokens, qrun_difference *difference, qrun_error *error) {
    qrun_model_params model = QRUN_MODEL_PARAMS_INIT, written = QRUN_MODEL_PARAMS_INIT;
    qrun_compare_params params = QRUN_COMPARE_PARAMS_INIT;
    model.path = o->quantize.path;
    model.dtype = written.dtype = o->measure.dtype;
    model.quant = model.dtype == QRUN_DTYPE_F32   ? QRUN_QUANT_F32
                  : model.dtype == QRUN_DTYPE_F16 ? QRUN_QUANT_F16
                                                  : QRUN_QUANT_BF16;
    written.path = o->quantize.out;
    params.model = &model;
    params.other = &written;
    params.text = text->data;
    params.text_bytes = text->size;
    params.max_tokens = n_tokens;
    params.progress = show_measured;
    const qrun_status status = qrun_compare_outputs(context, &params, difference, error);
    progress_clear();
    return status;
}

static int name_columns(const qrun_mixed *mixed) {
    int columns = (int)strlen("all in nf4-dq");
    const qrun_mixed_matrix *matrix;
    for (int32_t i = 0; (matrix = qrun_mixed_get_matrix(mixed, i)) != NULL; i++) {
        const int n = (int)strlen(matrix->name);
        columns = n > columns ? n : columns;
    }
    return columns;
}

/* written: NULL where what was written could not be compared. */
static void print_table(const qrun_mixed *mixed, const qrun_mixed_info *info, const qrun_difference *written) {
    const qrun_mixed_matrix *matrix;
    const int columns = name_columns(mixed);
    printf("%-*s  %10s  %10s  %-7s %10s\n", columns, "in nf4-dq alone", "KL", "loss", "held", "bytes");
    for (int32_t i = 0; (matrix = qrun_mixed_get_matrix(mixed, i)) != NULL; i++) {
        printf("%-*s  %10.3g  %+10.2g  %-7s %10s\n", columns, matrix->name, matrix->kl, matrix->loss_difference,
               option_choice_name(quant_choices, (int64_t)matrix->quant), size_text(matrix->weight_bytes).text);
    }
    printf("%-*s  %10.3g  %+10.2g  %-7s %10s\n", columns, "all in nf4-dq", info->nf4_kl, info->nf4_loss - info->loss,
           "", size_text(info->least_bytes).text);
    char mean_kl[16] = "";
    if (written != NULL) { (void)snprintf(mean_kl, sizeof mean_kl, "%.3g", written->mean_kl); }
    printf("%-*s  %10s  %10s  %-7s %10s\n", columns, "as written", mean_kl, "", "mixed",
           size_text(info->weight_bytes).text);
    printf("measured on %d tokens, whose loss is %.4g; KL and loss in nats a token\n", (int)info->n_tokens, info->loss);
    printf("%d of %d are raised: the weights take %s of %s\n", (int)info->n_raised, (int)info->n_matrices,
           size_text(info->weight_bytes).text, size_text(info->budget_bytes).text);
}

static int check_mixed_options(const quantize_options *o, const command_line *line) {
    const bool is_mixed = o->quantize.quant == QRUN_QUANT_MIXED;
    for (size_t i = 0; !is_mixed && i < sizeof mixed_table / sizeof mixed_table[0]; i++) {
        if (!option_given(line, mixed_table[i].name)) { continue; }
        return complain(EXIT_USAGE, "--%s goes with --quant mixed", mixed_table[i].name);
    }
    if (!is_mixed || o->text != NULL) { return EXIT_OK; }
    return complain(EXIT_USAGE, "--quant mixed measures what quantising each matrix costs: give --text FILE, a text "
                                "like those that the model will read");
}

/* Weights that were rounded before are rounded again. Says so of a folder that has been quantised, which one that
 * bitsandbytes quantised cannot be. What else is wrong with it, such as its tokenizer, is not said here. And experts
 * are no linear layers to transformers, so it does not read quantised ones. */
static void note_what_is_lost(const qrun_quantize_params *params, qrun_context *context) {
    char *text = NULL;
    if (params->quant == QRUN_QUANT_MXFP4) { return; } /* copied */
    if (qrun_folder_inspect(context, params->path, false, &text, NULL) != QRUN_OK) { return; }
    cJSON *root = cJSON_Parse(text);
    const char *packed_as = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "stored_quantization"));
    if (packed_as != NULL && strcmp(packed_as, "none") != 0) {
        notify("note: the weights are stored as %s, and %s rounds them a second time; quantising the original model "
               "loses less",
               packed_as, option_choice_name(quants, (int64_t)params->quant));
    }
    if (params->quant != QRUN_QUANT_MIXED && cJSON_GetObjectItemCaseSensitive(root, "n_active_parameters") != NULL) {
        notify("note: the experts are quantised too, which qrun reads and transformers 5 does not");
    }
    cJSON_Delete(root);
    qrun_free(text);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static int quantize(const quantize_options *o, qrun_context *context, const qrun_mixed *mixed) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_quantize_params params = o->quantize;
    params.mixed = mixed;
    params.progress = engine_show_bytes;
    params.progress_user = "quantising";
    const qrun_status status = qrun_quantize_folder(context, &params, &error);
    progress_clear();
    return complain_unless_ok(status, &error);
}

static int report_mixed(const quantize_options *o, qrun_context *context, const text_buffer *text,
                        const qrun_mixed *mixed) {
    qrun_mixed_info info = QRUN_MIXED_INFO_INIT;
    qrun_difference written = QRUN_DIFFERENCE_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    if (o->json) {
        printf("%s\n", qrun_mixed_json(mixed));
        return EXIT_OK;
    }
    (void)qrun_mixed_get_info(mixed, &info, NULL);
    const qrun_status status = compare_written(o, context, text, info.n_tokens, &written, &error);
    print_table(mixed, &info, status == QRUN_OK ? &written : NULL);
    if (status == QRUN_OK) { return EXIT_OK; }
    if (status != QRUN_ERROR_UNSUPPORTED && status != QRUN_ERROR_MEMORY) { return complain_error(&error); }
    char why_not[API_NAMES_TEXT_BYTES];
    (void)api_names_to_options(error.message, why_not);
    notify("what was written could not be compared with the model: %s", why_not);
    return EXIT_OK;
}

static int quantize_mixed(const quantize_options *o, qrun_context *context) {
    text_buffer text = {0};
    qrun_mixed *mixed = NULL;
    int code = file_read_text(&text, o->text);
    if (code == EXIT_OK && text.size == 0) { code = complain(EXIT_USAGE, "%s: is empty", o->text); }
    if (code == EXIT_OK) { code = measure(o, context, &text, &mixed); }
    if (code == EXIT_OK) { code = quantize(o, context, mixed); }
    if (code == EXIT_OK) { code = report_mixed(o, context, &text, mixed); }
    qrun_mixed_destroy(mixed);
    text_free(&text);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    const quantize_options *o = options;
    const bool is_mixed = o->quantize.quant == QRUN_QUANT_MIXED;
    if (o->quantize.path == NULL) { return complain(EXIT_USAGE, "no model: give --model DIR"); }
    if (o->quantize.out == NULL) { return complain(EXIT_USAGE, "no folder for the result: give --out DIR"); }
    if (complain_file_ending("quantize", o->quantize.out, o->quantize.path, NULL)) { return EXIT_USAGE; }
    RETURN_IF_FAILED(check_mixed_options(o, line));
    RETURN_IF_FAILED(engine_open_context(e, &o->context));
    const double begin = clock_seconds();
    RETURN_IF_FAILED(is_mixed ? quantize_mixed(o, e->context) : quantize(o, e->context, NULL));
    note_what_is_lost(&o->quantize, e->context);
    if (o->json) { return EXIT_OK; }
    printf("%s: %s, in %.1f s\n", o->quantize.out, option_choice_name(quants, (int64_t)o->quantize.quant),
           clock_seconds() - begin);
    return EXIT_OK;
}

static const quantize_options defaults = {
    .context = QRUN_CONTEXT_PARAMS_INIT,
    .quantize = {.struct_size = sizeof(qrun_quantize_params), .quant = QRUN_QUANT_NF4_DQ},
    .measure = {.struct_size = sizeof(qrun_mixed_params), .raise_to = QRUN_QUANT_INT8},
};

const command command_quantize = {
    .name = "quantize",
    .summary = "write a quantised copy of a model folder",
    .usage = "--model DIR --out DIR [OPTIONS]",
    .description =
        "The folder has bitsandbytes' own format: transformers loads it unchanged (but experts in 4 or 8 "
        "bits, which qrun alone reads), and qrun opens it without quantising again. Tokenizer and other small files "
        "are copied. (Not needed before 'generate', which "
        "quantises while it loads.) With --quant mixed it runs the model over a text once for each matrix, says which "
        "lose most by four bits, and holds those in int8, in a folder that qrun alone reads; or in bf16.",
    .examples = "  qrun quantize --model path/to/model --out path/to/model-nf4\n"
                "  qrun quantize --model path/to/model --out path/to/model-int8 --quant int8\n"
                "  qrun quantize --model path/to/model --out path/to/model-mixed --quant mixed --text wiki.test.raw",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};

/* qrun inspect: what a model folder holds and what it would take. */
#include <stdio.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/api_names.h"
#include "cli/terminal/json_view.h"
#include "cli/terminal/messages.h"

typedef struct inspect_options {
    const char *model;
    bool json, tensors;
} inspect_options;

#define AT(field) INTO(inspect_options, field)

/* clang-format off */
static const option inspect_table[] = {
    {.name = "model", .letter = 'm', .kind = OPTION_TEXT, .value_name = "DIR", AT(model),
     .completion = COMPLETE_FOLDER, .help = "The folder, as the other commands take it."},
    {.name = "tensors", .kind = OPTION_FLAG, AT(tensors), .help = "List every tensor: name, type, shape, size."},
    {.name = "json", .kind = OPTION_FLAG, AT(json), .help = "Print one JSON object."},
};
/* clang-format on */

static const option_group groups[] = {OPTION_GROUP("Options", inspect_table, 0)};

static const json_view_title titles[] = {{"holds", "weights in memory, by --quant"},
                                         {"kv_per_token", "K/V cache per token, by --kv"},
                                         {"tensor_types", "tensors in the files"},
                                         {"generation", "sampling defaults"},
                                         {NULL, NULL}};

/* The memory of a run with default options; a folder that cannot run was described all the same. */
static void print_default_plan(qrun_context *context, const char *path) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_model_params model_params = QRUN_MODEL_PARAMS_INIT;
    const qrun_session_params session_params = QRUN_SESSION_PARAMS_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    model_params.path = path;
    if (qrun_plan_session(context, &model_params, &session_params, &entries, &n_entries, NULL, &error) == QRUN_OK) {
        printf("\nmemory of 'qrun generate' with its default options (see 'qrun plan')\n");
        plan_table_print(entries, n_entries);
    } else {
        printf("\nit cannot run here: %s\n", api_names_to_options(error.message, (char[API_NAMES_TEXT_BYTES]){0}));
    }
    qrun_free(entries);
}

static int inspect(const inspect_options *o, qrun_context *context, const char *path) {
    qrun_error error = QRUN_ERROR_INIT;
    char *json = NULL;
    int code = EXIT_OK;
    if (qrun_folder_inspect(context, path, o->tensors, &json, &error) != QRUN_OK) { return complain_error(&error); }
    if (o->json) {
        printf("%s\n", json);
    } else if (json_view_print(json, titles)) {
        print_default_plan(context, path);
    } else {
        code = complain(EXIT_ENGINE, "the description of '%s' is not JSON", path);
    }
    qrun_free(json);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    const inspect_options *o = options;
    if ((o->model != NULL) == (line->arguments.count > 0)) {
        return complain(EXIT_USAGE, o->model != NULL ? "give one folder: DIR or --model DIR"
                                                     : "no model: give a folder, as in 'qrun inspect DIR'");
    }
    RETURN_IF_FAILED(engine_open_context(e, NULL));
    return inspect(o, e->context, o->model != NULL ? o->model : line->arguments.values[0]);
}

static const inspect_options defaults;

const command command_inspect = {
    .name = "inspect",
    .summary = "show what a model folder holds and what it would take",
    .usage = "DIR [OPTIONS]",
    .description = "Reads the descriptions only, no weights: family, sizes, tensors by type, quantisation, tokenizer "
                   "and chat template, and the memory that each way of holding the model takes.",
    .examples = "  qrun inspect path/to/model\n"
                "  qrun inspect Qwen/Qwen3-0.6B\n"
                "  qrun inspect path/to/model --tensors --json",
    COMMAND_OPTIONS(groups, defaults),
    .max_arguments = 1,
    .run = run,
};

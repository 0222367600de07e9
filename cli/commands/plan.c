/* qrun plan: what a run would take, before it takes anything. */
#include <stdio.h>

#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/messages.h"

typedef struct plan_options {
    engine_options engine;
    bool json;
} plan_options;

/* clang-format off */
static const option shape_table[] = {
    {.name = "shape", .kind = OPTION_TEXT, .value_name = "CONFIG.json", INTO(engine_options, shape),
     .completion = COMPLETE_FILE, .help = "In place of --model: only a model's config.json."},
};
/* clang-format on */

/* clang-format off */
static const option output_table[] = {
    {.name = "json", .kind = OPTION_FLAG, INTO(plan_options, json), .help = "Print one JSON object."},
};
/* clang-format on */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Shape", shape_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Machine", machine_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Output", output_table, 0),
};

static void print_plan(const plan_options *o, const qrun_plan_entry *entries, int32_t n_entries) {
    if (!o->json) {
        plan_table_print(entries, n_entries);
        return;
    }
    text_buffer out = {0};
    plan_table_json(entries, n_entries, &out);
    printf("%s\n", out.data);
    text_free(&out);
}

static int run(const void *options, const command_line *line, engine *e) {
    const plan_options *o = options;
    const qrun_model_params model_params = engine_model_params(&o->engine);
    const qrun_session_params session_params = engine_session_params(&o->engine);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    (void)line;
    if (o->engine.model.path == NULL && o->engine.shape == NULL) {
        return complain(EXIT_USAGE, "no model: give --model DIR, or --shape CONFIG.json");
    }
    if (o->engine.model.path != NULL && o->engine.shape != NULL) {
        return complain(EXIT_USAGE, "--model and --shape exclude each other");
    }
    RETURN_IF_FAILED(engine_open_context(e, &o->engine.context));
    RETURN_IF_FAILED(complain_unless_ok(
        qrun_plan_session(e->context, &model_params, &session_params, &entries, &n_entries, &error), &error));
    print_plan(o, entries, n_entries);
    qrun_free(entries);
    return EXIT_OK;
}

static const plan_options defaults = {.engine = ENGINE_OPTIONS_INIT};

const command command_plan = {
    .name = "plan",
    .summary = "show the memory that a run would take, by category",
    .usage = "--model DIR [OPTIONS]",
    .description = "Every byte that 'generate' would use with these options, computed from the model's description "
                   "before anything is allocated. No weights are read.",
    .examples = "  qrun plan --model path/to/model\n"
                "  qrun plan --model path/to/model --memory 6GiB --max-sequences 32 --context 8192\n"
                "  qrun plan --shape path/to/config.json --quant int8 --json",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};

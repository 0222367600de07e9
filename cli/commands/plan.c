/* qrun plan: what a run would take, before it takes anything. */
#include <stdio.h>

#include "cli/commands/finetune_plan.h"
#include "cli/commands/fit_models.h"
#include "cli/options/command.h"
#include "cli/options/train.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/messages.h"

typedef struct plan_options {
    engine_options engine;
    finetune_options training; /* with --ranks: of a fine-tuning run instead of a session */
    int fit;                   /* a qrun_fit, FIT_MODEL or FIT_NOTHING */
    bool json;
} plan_options;

static const option_choice fits[] = {
    {"context", QRUN_FIT_CONTEXT}, {"batch", QRUN_FIT_BATCH}, {"model", FIT_MODEL}, {NULL, 0}};

/* clang-format off */
static const option shape_table[] = {
    {.name = "shape", .kind = OPTION_TEXT, .value_name = "CONFIG.json", INTO(engine_options, shape),
     .completion = COMPLETE_FILE,
     .help = "In place of --model: only a model's config.json, or the name of a known model, such as llama-3.1-8b."},
};
/* clang-format on */

/* clang-format off */
static const option backwards_table[] = {
    {.name = "fit", .kind = OPTION_CHOICE, .choices = fits, INTO(plan_options, fit),
     .help = "The longest --context that fits into --memory, exactly; or how many sequences of --context run at once "
             "(batch); or the largest model: of those known by name or, with --shape, of a list with commas, where the "
             "beginning of a name (qwen3) stands for all that begin so. 'qrun finetune --plan --fit' answers the same "
             "of a run."},
    {.name = "device-memory", .kind = OPTION_TEXT, .value_name = "GPU",
     INTO(plan_options, engine.context.device_memory),
     .help = "Plan for a GPU that need not be there, such as rtx-4090 or h100. Its ops' workspace is counted as on "
             "--device."},
};

static const option output_table[] = {
    {.name = "json", .kind = OPTION_FLAG, INTO(plan_options, json), .help = "Print one JSON object."},
};
/* clang-format on */

/* Of the tables that qrun finetune has, the rows that memory or sending depend on. */
enum { FIRST_TARGET = 1, N_TARGETS = 4, FIRST_SIZE = 2, N_SIZES = 6, N_PLANNED_RANKS = N_TRAIN_RANKS_OPTIONS - 1 };

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Shape", shape_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Machine", machine_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Session", session_option_table, offsetof(plan_options, engine)),
    OPTION_GROUP("Speed", speed_option_table, offsetof(plan_options, engine)),
    {"Several devices", devices_option_table, 1, offsetof(plan_options, engine)},
    {"Fine-tuning on several ranks", train_ranks_table, N_PLANNED_RANKS, offsetof(plan_options, training)},
    {"What it trains, with --ranks", train_adapter_table + FIRST_TARGET, N_TARGETS, offsetof(plan_options, training)},
    {"Full fine-tuning, with --ranks", train_full_table, 1, offsetof(plan_options, training)},
    {"Its batches, with --ranks", train_batch_table + FIRST_SIZE, N_SIZES, offsetof(plan_options, training)},
    {"Its optimiser, with --ranks", train_optimizer_table, 1, offsetof(plan_options, training)},
    OPTION_GROUP("Recomputing, with --ranks", train_policy_table, offsetof(plan_options, training)),
    OPTION_GROUP("Planning backwards", backwards_table, 0),
    OPTION_GROUP("Output", output_table, 0),
};

/* What --fit found: a size, or a model. */
typedef struct fit_answer {
    qrun_fit_result size;
    fit_models models;
} fit_answer;

static void print_fit(const plan_options *o, const fit_answer *answer) {
    const char *what = option_choice_name(fits, o->fit);
    if (o->fit == FIT_NOTHING) { return; }
    if (o->fit == FIT_MODEL) {
        (o->json ? fit_models_print_json : fit_models_print)(&answer->models);
    } else {
        (o->json ? plan_report_print_fit_json : plan_report_print_fit)(what, &answer->size);
    }
}

/* ranks: what to add of them. */
static void print_plan(const plan_options *o, const plan_report *report, const fit_answer *answer,
                       const text_buffer *ranks) {
    if (!o->json) {
        print_fit(o, answer);
        plan_report_print(report);
        printf("%s", ranks->data != NULL ? ranks->data : "");
        return;
    }
    text_buffer out = {0};
    plan_report_json(report, &out);
    printf("{");
    print_fit(o, answer);
    printf("%s%s}\n", out.data, ranks->data != NULL ? ranks->data : "");
    text_free(&out);
}

/* ---- Ranks that share each layer --------------------------------------------------------------------------------- */

/* One rank's plan of all. */
typedef struct rank_plan {
    qrun_plan_entry *entries;
    int32_t n_entries;
    qrun_plan_info info;
} rank_plan;

static void put_rank_json(const rank_plan *plan, text_buffer *out) {
    text_format(out, "%s{\"rank\":%d,\"sent_bytes\":%lld,\"plan\":", plan->info.rank > 0 ? "," : "",
                (int)plan->info.rank, (long long)plan->info.sent_bytes);
    plan_table_json(plan->entries, plan->n_entries, out);
    text_puts(out, "}");
}

static void put_rank_row(const rank_plan *plan, text_buffer *out) {
    if (plan->info.rank == 0) { text_format(out, "\n  %6s %14s %14s\n", "rank", "in all", "sent a token"); }
    text_format(out, "  %6d %14s %14s\n", (int)plan->info.rank, size_text(plan->info.total_bytes).text,
                size_text(plan->info.sent_bytes).text);
}

/* What each takes, and sends for a token: rows of a table, or a member of the object. */
static int describe_ranks(const plan_options *o, const engine *e, const qrun_model_params *model,
                          const qrun_session_params *session, text_buffer *out) {
    const int32_t n_ranks = model->tensor_parallel;
    if (n_ranks <= 1) { return EXIT_OK; }
    if (o->json) { text_format(out, ",\"n_ranks\":%d,\"ranks\":[", (int)n_ranks); }
    for (int32_t r = 0; r < n_ranks; r++) {
        qrun_error error = QRUN_ERROR_INIT;
        qrun_model_params wanted = *model;
        rank_plan plan = {.info = QRUN_PLAN_INFO_INIT};
        wanted.tensor_rank = r;
        (void)qrun_plan_session(e->context, &wanted, session, &plan.entries, &plan.n_entries, &plan.info, &error);
        if (plan.entries == NULL) { return complain_error(&error); }
        (o->json ? put_rank_json : put_rank_row)(&plan, out);
        qrun_free(plan.entries);
    }
    if (o->json) { text_puts(out, "]"); }
    return EXIT_OK;
}

static bool is_in(const option *o, const option *table, size_t n) { return o >= table && o < table + n; }

/* Whether it is of fine-tuning runs alone, or of sessions alone. */
static bool is_of_training(const option *o) {
    return is_in(o, train_ranks_table, N_TRAIN_RANKS_OPTIONS) ||
           is_in(o, train_adapter_table, N_TRAIN_ADAPTER_OPTIONS) || is_in(o, train_full_table, N_TRAIN_FULL_OPTIONS) ||
           is_in(o, train_batch_table, N_TRAIN_BATCH_OPTIONS) ||
           is_in(o, train_optimizer_table, N_TRAIN_OPTIMIZER_OPTIONS) ||
           is_in(o, train_policy_table, N_TRAIN_POLICY_OPTIONS);
}

static bool is_of_sessions(const option *o) {
    return is_in(o, session_option_table, N_SESSION_OPTIONS) || is_in(o, speed_option_table, N_SPEED_OPTIONS) ||
           is_in(o, devices_option_table, N_DEVICES_OPTIONS);
}

static int check_options(const plan_options *o, const command_line *line) {
    const bool trains = o->training.train.ranks.n_ranks > 0;
    for (int i = 0; i < line->n_given; i++) {
        const option *given = line->given[i];
        if (!trains && is_of_training(given)) {
            return complain(EXIT_USAGE, "--%s is of a fine-tuning run, which is planned with --ranks N", given->name);
        }
        if (trains && is_of_sessions(given)) {
            return complain(EXIT_USAGE, "--%s is of a session; with --ranks a fine-tuning run is planned", given->name);
        }
    }
    if (o->fit == FIT_MODEL && o->engine.model.path != NULL) {
        return complain(EXIT_USAGE, "--fit model looks for a model, so --model does not go with it; --shape may list "
                                    "those to choose from");
    }
    if (o->fit == FIT_MODEL) { return EXIT_OK; }
    if (o->engine.model.path == NULL && o->engine.shape == NULL) {
        return complain(EXIT_USAGE, "no model: give --model DIR, or --shape CONFIG.json");
    }
    if (o->engine.model.path == NULL || o->engine.shape == NULL) { return EXIT_OK; }
    return complain(EXIT_USAGE, "--model and --shape exclude each other");
}

typedef struct session_plan {
    qrun_context *context;
    const qrun_session_params *session;
} session_plan;

static qrun_status plan_model(const void *arg, const qrun_model_params *model, qrun_plan_entry **entries,
                              int32_t *n_entries, qrun_plan_info *info, qrun_error *error) {
    const session_plan *p = arg;
    return qrun_plan_session(p->context, model, p->session, entries, n_entries, info, error);
}

/* The plan is then that of the answer or, where nothing fits, of the smallest. */
static int fit(const plan_options *o, const engine *e, qrun_model_params *model, qrun_session_params *session,
               fit_answer *answer) {
    qrun_error error = QRUN_ERROR_INIT;
    if (o->fit == FIT_NOTHING) { return EXIT_OK; }
    if (o->fit == FIT_MODEL) {
        const session_plan plan = {e->context, session};
        return fit_models_find(o->engine.shape, plan_model, &plan, model, &answer->models);
    }
    if (qrun_fit_session(e->context, model, session, (qrun_fit)o->fit, &answer->size, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    const int32_t n = answer->size.largest > 0 ? (int32_t)answer->size.largest : 1;
    *(o->fit == QRUN_FIT_BATCH ? &session->max_sequences : &session->context_tokens) = n;
    return EXIT_OK;
}

/* With --ranks. */
static int plan_training(const plan_options *o, const engine *e) {
    finetune_options training = o->training;
    training.engine = o->engine;
    training.plan = true;
    training.fit = o->fit;
    training.json = o->json;
    training.offload = o->engine.model.offload_parameters == QRUN_OFFLOAD_ALL    ? TRAIN_OFFLOAD_PARAMETERS
                       : o->engine.model.offload_parameters == QRUN_OFFLOAD_AUTO ? TRAIN_OFFLOAD_AUTO
                                                                                 : 0;
    RETURN_IF_FAILED(finetune_check_ranks(&training));
    return finetune_show_plan(&training, e);
}

static int run(const void *options, const command_line *line, engine *e) {
    const plan_options *o = options;
    qrun_model_params model_params = engine_model_params(&o->engine);
    qrun_session_params session_params = engine_session_params(&o->engine);
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    fit_answer answer = {.size = QRUN_FIT_RESULT_INIT};
    text_buffer ranks = {0};
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    RETURN_IF_FAILED(check_options(o, line));
    RETURN_IF_FAILED(engine_open_context(e, &o->engine.context));
    if (o->training.train.ranks.n_ranks > 0) { return plan_training(o, e); }
    int code = fit(o, e, &model_params, &session_params, &answer);
    if (code == EXIT_OK) {
        (void)qrun_plan_session(e->context, &model_params, &session_params, &entries, &n_entries, &info, &error);
        if (entries == NULL) { code = complain_error(&error); }
    }
    if (code == EXIT_OK) { code = describe_ranks(o, e, &model_params, &session_params, &ranks); }
    if (code == EXIT_OK) {
        const plan_report report = {entries, n_entries, o->engine.model.memory_bytes, &info, &error};
        print_plan(o, &report, &answer, &ranks);
        code = plan_report_code(&report);
    }
    text_free(&ranks);
    qrun_free(entries);
    fit_models_free(&answer.models);
    return code;
}

static const plan_options defaults = {
    .engine = ENGINE_OPTIONS_INIT,
    .training = {.train = {.struct_size = sizeof(qrun_train_params), .optimization.max_grad_norm = 1}},
    .fit = FIT_NOTHING,
};

const command command_plan = {
    .name = "plan",
    .summary = "show the memory that a run would take, by category",
    .usage = "--model DIR | --shape CONFIG.json [OPTIONS]",
    .description = "Every byte that 'generate' would use with these options, computed from the model's description "
                   "before anything is allocated. It shows the longest sequence, the size of the K/V pool, how many "
                   "sequences run at once, and the memory that is free. A line says whether it fits; if it does not, "
                   "the exit code is 6. No weights are read.\n\n"
                   "With --tensor-parallel the plan is rank 0's, with a line for each rank after it: what it takes in "
                   "all, and what it sends for a token.\n\n"
                   "With --ranks it plans a fine-tuning run on N processes, none of which need to be there: what each "
                   "takes by category, and what it sends in a step.",
    .examples = "  qrun plan --model path/to/model\n"
                "  qrun plan --model path/to/model --memory 6GiB --max-sequences 32 --context 8192\n"
                "  qrun plan --shape path/to/config.json --quant int8 --json\n"
                "  qrun plan --model path/to/model --device-memory rtx-4090 --fit context\n"
                "  qrun plan --shape llama-3.1-8b --tensor-parallel 4 --memory 8GiB\n"
                "  qrun plan --model path/to/model --ranks 8 --zero 3 --grad-accum 8 --bandwidth 25GB --tflops 400\n"
                "  qrun plan --device-memory rtx-4090 --fit model",
    .first_options = "model shape quant memory context max-sequences kv fit device-memory ranks zero json",
    COMMAND_OPTIONS(groups, defaults),
    .run = run,
};

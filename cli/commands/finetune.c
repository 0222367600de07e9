/* qrun finetune: a LoRA adapter from examples, by QLoRA; or every weight of a model. */
#include <stdio.h>
#include <string.h>

#include "cli/commands/finetune_summary.h"
#include "cli/commands/training.h"
#include "cli/options/command.h"
#include "cli/options/train.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

/* What is wrong with the options as such, told before a model is loaded. */
static int check_options(const finetune_options *o) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0};
    if (o->engine.shape != NULL && !o->plan) {
        return complain(EXIT_USAGE, "--shape has no weights to train: it goes with --plan; give --model DIR");
    }
    if (o->train.weights.full && (o->engine.model.quant != QRUN_QUANT_AUTO || o->engine.model.quant_head_int8)) {
        return complain(EXIT_USAGE, "--full changes every weight, so the model is held in the type of --dtype: leave "
                                    "--quant and --quant-head away");
    }
    int code = engine_require_model(&o->engine);
    qrun_train_params params = finetune_train_params(o, &modules);
    params.data.random_tokens = o->plan;               /* it reads no data and writes nothing */
    if (o->show_mask > 0) { params.saving.out = "/"; } /* nor does this to --out */
    if (code == EXIT_OK) { code = complain_unless_ok(qrun_train_params_check(&params, &error), &error); }
    text_free(&modules);
    return code;
}

static int show_masks(const finetune_options *o, const training *t) {
    const int64_t n = o->show_mask < t->info.n_examples ? o->show_mask : t->info.n_examples;
    for (int64_t i = 0; i < n; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        char *text = NULL;
        if (qrun_trainer_show_example(t->trainer, i, &text, &error) != QRUN_OK) { return complain_error(&error); }
        printf("--- example %lld of %lld\n%s\n", (long long)i + 1, (long long)t->info.n_examples, text);
        qrun_free(text);
    }
    return EXIT_OK;
}

static int show_plan(const finetune_options *o, const engine *e) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0}, out = {0};
    const qrun_train_params params = finetune_train_params(o, &modules);
    const qrun_model_params model_params = finetune_model_params(o);
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    char *policy = NULL;
    const int code = complain_unless_ok(
        qrun_plan_training(e->context, &model_params, &params, &entries, &n_entries, &policy, &error), &error);
    text_free(&modules);
    if (code != EXIT_OK) { return code; }
    if (o->json) {
        text_format(&out, "{\"checkpointing\": \"%s\", \"plan\": ", policy);
        plan_table_json(entries, n_entries, &out);
        printf("%s}\n", out.data);
    } else {
        printf("activation checkpointing: %s\n", policy);
        plan_table_print(entries, n_entries);
    }
    text_free(&out);
    qrun_free(entries);
    qrun_free(policy);
    return EXIT_OK;
}

static int open_trainer(const finetune_options *o, const engine *e, const char *out, training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0};
    qrun_train_params params = finetune_train_params(o, &modules);
    params.saving.out = out;
    params.callbacks.progress = training_show_progress;
    params.callbacks.progress_user = t;
    progress_draw(0, 0, "reading the data");
    const qrun_status status = qrun_trainer_create(e->model, &params, &t->trainer, &error);
    progress_clear();
    text_free(&modules);
    if (status == QRUN_ERROR_CANCELLED) {
        return complain(EXIT_INTERRUPTED, "interrupted while reading the data; nothing is kept");
    }
    t->info = (qrun_train_info)QRUN_TRAIN_INFO_INIT;
    if (status != QRUN_OK || qrun_trainer_get_info(t->trainer, &t->info, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    return EXIT_OK;
}

static int train(const finetune_options *o, const engine *e, const command_line *line, training *t) {
    text_buffer given = {0};
    options_describe(&command_finetune, o, line, &given);
    t->verbose = o->verbose && !progress_enabled();
    t->facts = (train_facts){.options = o, .options_json = given.data, .model = &e->info, .info = &t->info};
    t->chat = e->info.has_chat_template && strcmp(t->info.data_format, "text") != 0 &&
              strcmp(t->info.data_format, "prompt/completion") != 0;
    t->facts.plan = qrun_trainer_plan(t->trainer, &t->facts.n_plan);
    if (o->json) {
        finetune_print_start_json(t);
    } else if (!o->quiet) {
        finetune_print_start(t);
    }
    const int code = training_run(t);
    if (code == EXIT_OK && o->json) {
        finetune_print_result_json(t);
    } else if (code == EXIT_OK && !o->quiet) {
        finetune_print_result(t);
    }
    text_free(&given);
    return code;
}

/* In a scratch folder: --out is neither needed nor touched. */
static int show_data(const finetune_options *o, const engine *e, training *t) {
    text_buffer folder = {0};
    int code = scratch_folder_make(&folder);
    if (code == EXIT_OK) {
        code = open_trainer(o, e, folder.data, t);
        if (code == EXIT_OK) { code = show_masks(o, t); }
        scratch_folder_remove(folder.data);
    }
    text_free(&folder);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    const finetune_options *o = options;
    engine_options wanted = o->engine;
    training t = {0};
    wanted.model = finetune_model_params(o);
    if (o->quiet) { progress_silence(); }
    RETURN_IF_FAILED(check_options(o));
    RETURN_IF_FAILED(engine_open_context(e, &wanted.context));
    if (o->plan) { return show_plan(o, e); }
    RETURN_IF_FAILED(engine_open_model(e, &wanted));
    int code = o->show_mask > 0 ? show_data(o, e, &t) : open_trainer(o, e, o->train.saving.out, &t);
    if (code == EXIT_OK && o->show_mask == 0) { code = train(o, e, line, &t); }
    qrun_trainer_destroy(t.trainer);
    training_free(&t);
    return code;
}

const command command_finetune = {
    .name = "finetune",
    .summary = "train a LoRA adapter on examples, over a model in 4 or 8 bits, or the whole model",
    .usage = "--model DIR --data FILE.jsonl --out DIR [OPTIONS]",
    .description =
        "QLoRA: the model's weights stay as they are, in 4 or 8 bits, and a small adapter learns. The memory of a run "
        "is planned, printed by category and kept to. --full trains every weight instead, from the model's or from "
        "random ones, and writes a model.\n\n"
        "Ctrl-C (or SIGTERM) finishes the step, writes a checkpoint, and says how to resume: with the same command. "
        "A resumed run ends with the same result, to the bit, as one that was never stopped. A second Ctrl-C ends the "
        "program at once. If a checkpoint is damaged, it is named together with the one before it: remove it to resume "
        "from there.\n\n"
        "A step whose loss or gradient is not finite is skipped, and the first such tensor is named; five in a row end "
        "the run.\n\n"
        "The output folder has metrics.jsonl (a line per step), trainer_state.json (as the Hugging Face Trainer writes "
        "it), and report.html, a page with loss, learning rate, gradient norm, speed and memory over time.",
    .examples = "  qrun finetune --model path/to/model --data train.jsonl --out my-adapter\n"
                "  qrun finetune --model path/to/model --data train.jsonl --show-mask 3\n"
                "  qrun finetune --model path/to/model --data train.jsonl --eval-split 0.1 --eval-every 50 \\\n"
                "                --epochs 3 --batch-size 4 --learning-rate 1e-4 --warmup 0.03 --memory 6GiB \\\n"
                "                --out my-adapter\n"
                "  qrun finetune --model path/to/model --seq-len 4096 --memory 8GiB --plan\n"
                "  qrun generate --model path/to/model --adapter my-adapter --chat --prompt \"Hello!\"\n"
                "  qrun finetune --model path/to/model --data train.jsonl --full --learning-rate 1e-5 --out my-model\n"
                "\n"
                "  # two lines of a train.jsonl:\n"
                "  {\"prompt\": \"Hello!\", \"completion\": \" Ahoy!\"}\n"
                "  {\"prompt\": \"Who are you?\", \"completion\": \" A sailor, matey.\"}",
    COMMAND_OPTIONS(finetune_groups, finetune_defaults),
    .run = run,
};

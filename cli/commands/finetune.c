/* qrun finetune: a LoRA adapter from examples, by QLoRA; or every weight of a model. */
#include <stdio.h>
#include <string.h>

#include "cli/commands/finetune_plan.h"
#include "cli/commands/finetune_summary.h"
#include "cli/commands/samples.h"
#include "cli/commands/training.h"
#include "cli/options/command.h"
#include "cli/options/train.h"
#include "cli/report/next_steps.h"
#include "cli/terminal/files.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

/* What is wrong with the options as such, told before a model is loaded. */
static int check_options(const finetune_options *o) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0};
    if (o->engine.shape != NULL && !o->plan) {
        return complain(EXIT_USAGE, "--shape has no weights to train: it goes with --plan; give --model DIR");
    }
    if (!o->plan && (o->fit != FIT_NOTHING || o->compare || o->engine.context.device_memory != NULL)) {
        return complain(EXIT_USAGE, "--fit, --compare and --device-memory go with --plan");
    }
    if (!o->plan && o->train.ranks.n_ranks > 0) {
        return complain(EXIT_USAGE, "--ranks goes with --plan; a run has the ranks that mpirun, srun or torchrun "
                                    "launch");
    }
    if (o->profile != NULL && (o->plan || o->show_mask > 0)) {
        return complain(EXIT_USAGE, "--profile is for a run; it does not go with --plan or --show-mask");
    }
    if (o->measure && (!o->compare || o->engine.context.device_memory != NULL || o->train.ranks.n_ranks > 0)) {
        return complain(EXIT_USAGE, "--measure goes with --plan --compare, of one rank on a device that is there");
    }
    if (o->plan && o->fit == FIT_MODEL && o->engine.model.path != NULL) {
        return complain(EXIT_USAGE, "--fit model looks for a model, so --model does not go with it; --shape may list "
                                    "those to choose from");
    }
    if (o->fit != FIT_NOTHING && o->compare) { return complain(EXIT_USAGE, "--fit and --compare exclude each other"); }
    RETURN_IF_FAILED(finetune_check_ranks(o));
    const qrun_model_params *held = &o->engine.model;
    if (o->train.weights.full &&
        (held->quant != QRUN_QUANT_AUTO || held->quant_head_int8 || held->quant_embedding_int8)) {
        return complain(EXIT_USAGE, "--full changes every weight, so the model is held in the type of --dtype: leave "
                                    "--quant, --quant-head and --quant-embedding away");
    }
    if (complain_file_ending("finetune", o->train.saving.out, o->engine.model.path, "DIR")) { return EXIT_USAGE; }
    int code = o->fit == FIT_MODEL ? EXIT_OK : engine_require_model(&o->engine);
    qrun_train_params params = finetune_train_params(o, &modules);
    params.data.random_tokens = o->plan;               /* it reads no data and writes nothing */
    if (o->show_mask > 0) { params.saving.out = "/"; } /* nor does this to --out */
    if (code == EXIT_OK) { code = complain_unless_ok(qrun_train_params_check(&params, &error), &error); }
    text_free(&modules);
    return code;
}

static int show_masks(const finetune_options *o, const training *t) {
    const int64_t n = o->show_mask < t->info.n_examples ? o->show_mask : t->info.n_examples;
    finetune_print_unknown_members(t);
    for (int64_t i = 0; i < n; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        char *text = NULL;
        if (qrun_trainer_show_example(t->trainer, i, &text, &error) != QRUN_OK) { return complain_error(&error); }
        printf("--- example %lld of %lld\n%s\n", (long long)i + 1, (long long)t->info.n_examples, text);
        qrun_free(text);
    }
    return EXIT_OK;
}

static int open_trainer(const finetune_options *o, const engine *e, const char *out, training *t) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0};
    qrun_train_params params = finetune_train_params(o, &modules);
    params.saving.out = out;
    params.callbacks.progress = training_show_progress;
    params.callbacks.progress_user = t;
    params.callbacks.on_metrics = training_note_metrics;
    params.callbacks.metrics_user = t;
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

static int train(const finetune_options *o, const engine *e, training *t) {
    finetune_options settled;
    text_buffer list = {0}, run_file = {0};
    RETURN_IF_FAILED(finetune_settle(o, e, t->trainer, &settled));
    options_describe(&command_finetune, &settled, NULL, &list);
    text_format(&run_file, RUN_FILE_MARK " of qrun %s: every option as it was settled\n", qrun_version());
    options_write_config(&command_finetune, &settled, &run_file);
    t->verbose = o->verbose && !progress_enabled();
    t->facts = (train_facts){.options = o,
                             .options_json = list.data,
                             .config = run_file.data,
                             .model = &e->info,
                             .info = &t->info,
                             .profile = o->profile != NULL ? &t->profile : NULL};
    t->chat = e->info.has_chat_template && strcmp(t->info.data_format, "text") != 0 &&
              strcmp(t->info.data_format, "prompt/completion") != 0; /* taken as they are */
    t->facts.plan = qrun_trainer_plan(t->trainer, &t->facts.n_plan);
    if (o->json) {
        finetune_print_start_json(t);
    } else if (!o->quiet) {
        const gpu_text gpu = engine_gpu(e);
        if (gpu.text[0] != '\0') { printf("device      %s\n", gpu.text); }
        finetune_print_start(t);
    }
    const int code = training_run(t);
    if (code == EXIT_OK && o->json) {
        finetune_print_result_json(t);
    } else if (code == EXIT_OK && !o->quiet) {
        finetune_print_result(t, &settled, e->context);
    }
    text_free(&list);
    text_free(&run_file);
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

/* A rank other than 0 computes its share and says nothing. Rank 0 hears of signals, and ends the run for all. */
static int follow(const finetune_options *o, engine *e, const engine_options *wanted) {
    qrun_error error = QRUN_ERROR_INIT;
    RETURN_IF_FAILED(engine_open_model(e, wanted));
    text_buffer modules = {0};
    const qrun_train_params params = finetune_train_params(o, &modules);
    qrun_trainer *trainer = NULL;
    qrun_status status = qrun_trainer_create(e->model, &params, &trainer, &error);
    text_free(&modules);
    interrupt_hold();
    if (status == QRUN_OK) { status = qrun_trainer_run(trainer, &error); }
    qrun_trainer_destroy(trainer);
    return complain_unless_ok(status, &error);
}

/* No rank has the whole model. */
static bool is_shared_out(const finetune_options *o, const training *t) {
    return o->train.ranks.zero == 3 && t->n_ranks > 1;
}

/* Before this rank opens its share of the model: both would take memory. */
static int sample_before(const finetune_options *o, const training *t, text_buffer *answers) {
    if (o->sample_prompts == NULL || o->show_mask > 0 || !is_shared_out(o, t)) { return EXIT_OK; }
    return samples_take_whole(o, NULL, o->train.lora.adapter, answers);
}

static int sample_after(const finetune_options *o, engine *e, const training *t, text_buffer *answers) {
    const char *out = o->train.saving.out, *adapter = o->train.weights.full ? NULL : out;
    if (!is_shared_out(o, t)) { return samples_take(o, e, adapter, answers); }
    qrun_model_destroy(e->model);
    e->model = NULL;
    return samples_take_whole(o, o->train.weights.full ? out : NULL, adapter, answers);
}

/* The run, between what the model answers before it (there may be answers already) and after it. */
static int train_and_sample(const finetune_options *o, engine *e, training *t, text_buffer *before) {
    text_buffer after = {0};
    const bool samples = o->sample_prompts != NULL;
    int code = EXIT_OK;
    if (samples && !is_shared_out(o, t)) { code = samples_take(o, e, o->train.lora.adapter, before); }
    if (code == EXIT_OK) { code = profile_begin(&t->profile, o->profile, e); }
    if (code == EXIT_OK) { code = open_trainer(o, e, o->train.saving.out, t); }
    if (code == EXIT_OK) { code = train(o, e, t); }
    qrun_trainer_destroy(t->trainer); /* its memory is needed for the answers */
    t->trainer = NULL;
    profile_end(&t->profile);
    if (code == EXIT_OK && samples) {
        code = sample_after(o, e, t, &after);
        if (code == EXIT_OK) { code = samples_publish(o, before, &after); }
    }
    text_free(&after);
    return code;
}

static int run(const void *options, const command_line *line, engine *e) {
    (void)line;
    const finetune_options *o = options;
    engine_options wanted = o->engine;
    training t = {0};
    qrun_device_info device = QRUN_DEVICE_INFO_INIT;
    qrun_error error = QRUN_ERROR_INIT;
    wanted.model = finetune_model_params(o);
    wanted.context.ranks = !o->plan && o->show_mask == 0;
    if (o->quiet) { progress_silence(); }
    RETURN_IF_FAILED(check_options(o));
    RETURN_IF_FAILED(engine_open_context(e, &wanted.context));
    if (o->plan) { return finetune_show_plan(o, e); }
    RETURN_IF_FAILED(complain_unless_ok(qrun_context_device_info(e->context, &device, &error), &error));
    messages_are_of_rank(device.rank);
    if (device.rank > 0) { progress_silence(); }
    t.n_ranks = device.n_ranks;
    t.features = device.features;
    if (device.rank > 0) { return follow(o, e, &wanted); }
    text_buffer before = {0};
    int code = sample_before(o, &t, &before);
    if (code == EXIT_OK) { code = engine_open_model(e, &wanted); }
    if (code == EXIT_OK) { code = o->show_mask > 0 ? show_data(o, e, &t) : train_and_sample(o, e, &t, &before); }
    qrun_trainer_destroy(t.trainer);
    training_free(&t);
    text_free(&before);
    return code;
}

const command command_finetune = {
    .name = "finetune",
    .summary = "train a LoRA adapter on examples, over a model in 4 or 8 bits, or the whole model",
    .usage = "--model DIR --data FILE --out DIR [OPTIONS]",
    .description =
        "QLoRA: the model's weights stay as they are, in 4 or 8 bits, and a small adapter learns. The memory of a run "
        "is planned, printed by category and kept to. --full trains every weight instead, from the model's or from "
        "random ones, and writes a model.\n\n"
        "Ctrl-C (or SIGTERM, or SIGHUP) drops the step that runs, writes a checkpoint of the last finished one, and "
        "says how to resume: with the same command. "
        "A resumed run ends with the same result, to the bit, as one that was never stopped. A second Ctrl-C ends the "
        "program at once. If a checkpoint is damaged, it is named together with the one before it: remove it to resume "
        "from there.\n\n"
        "A step whose loss or gradient is not finite is skipped, and the first such tensor is named; five in a row end "
        "the run.\n\n"
        "The output folder has metrics.jsonl (a line per step), trainer_state.json (as the Hugging Face Trainer writes "
        "it), and report.html, a page with loss, learning rate, gradient norm, speed and memory over time.",
    .examples = "  # two lines of a train.jsonl:\n"
                "  {\"prompt\": \"Hello!\", \"completion\": \" Ahoy!\"}\n"
                "  {\"prompt\": \"Who are you?\", \"completion\": \" A sailor, matey.\"}\n"
                "  # what is learned of them; the run; its adapter in use:\n"
                "  qrun finetune --model path/to/model --data train.jsonl --show-mask 2\n"
                "  qrun finetune --model path/to/model --data train.jsonl --out my-adapter\n"
                "  qrun generate --model path/to/model --adapter my-adapter --prompt \"Hello!\"\n"
                "\n"
                "  qrun finetune --model path/to/model --data train.jsonl --eval-split 0.1 --eval-every 50 \\\n"
                "                --epochs 3 --batch-size 4 --learning-rate 1e-4 --warmup 0.03 --memory 6GiB \\\n"
                "                --out my-adapter\n"
                "  qrun finetune --config my-adapter/run.yaml --out again\n"
                "  qrun finetune --model path/to/model --seq-len 4096 --memory 8GiB --plan\n"
                "  qrun finetune --model path/to/model --data notes --format text --full --out my-model",
    .first_options = "model data out show-mask epochs max-steps seq-len batch-size learning-rate rank eval-split "
                     "eval-every memory full plan config",
    COMMAND_OPTIONS(finetune_groups, finetune_defaults),
    .run = run,
};

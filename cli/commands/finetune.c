/* qrun finetune: a LoRA adapter from examples, by QLoRA; or every weight of a model. */
#include <stdio.h>
#include <string.h>

#include "cli/commands/finetune_summary.h"
#include "cli/commands/scratch_folder.h"
#include "cli/commands/training.h"
#include "cli/options/command.h"
#include "cli/options/engine.h"
#include "cli/options/train_choices.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

typedef struct finetune_options {
    engine_options engine;
    const char *data, *eval_data, *out;
    option_number eval_split;
    bool skip_bad;
    option_int show_mask;
    const char *targets, *modules;
    bool train_head, full;
    option_int init;
    option_number init_embedding_std;
    option_int rank;
    option_number alpha;
    bool rslora, dora;
    const char *adapter;
    option_number lora_dropout;
    option_int optimizer, schedule;
    bool decay_all;
    option_int offload;
    option_number loraplus_lr_ratio;
    option_number lr, warmup, weight_decay, max_grad_norm, epochs;
    option_int seq_len, batching, batch_size, batch_tokens, grad_accum, max_steps;
    option_seed seed;
    const char *checkpointing;
    option_int eval_every, early_stopping, save_every, keep;
    option_number early_stopping_threshold;
    bool plan, load_best, restart, json, verbose, quiet;
} finetune_options;

#define AT(field) .offset = offsetof(finetune_options, field)

static const char *const init_names[] = {"model", "random", NULL};
static const char *const schedule_names[] = {"linear", "cosine", "constant", NULL}; /* by qrun_schedule */
static const char *const batching_names[] = {"pack", "group", NULL};                /* by qrun_batching */

/* clang-format off */
static const option data_table[] = {
    {.name = "data", .letter = 'd', .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(data),
     .completion = COMPLETE_FILE,
     .help = "The examples: JSON Lines or one JSON array. Each is {\"messages\": [{\"role\", \"content\"}, …]}, "
             "{\"prompt\", \"completion\"}, {\"instruction\", \"input\", \"output\"} (alpaca), {\"question\", "
             "\"answer\"}, {\"conversations\": [{\"from\", \"value\"}, …]} (ShareGPT) or {\"text\"}; the first "
             "one decides. The loss counts what the assistant says (of a text, everything)."},
    {.name = "eval-data", .kind = OPTION_TEXT, .value_name = "FILE.jsonl", AT(eval_data), .completion = COMPLETE_FILE,
     .help = "Examples to evaluate on, never trained on."},
    {.name = "eval-split", .kind = OPTION_NUMBER, .value_name = "SHARE", AT(eval_split), .low = 0, .high = 0.5,
     .help = "In place of --eval-data: the share of --data to set aside for evaluation, such as 0.1."},
    {.name = "skip-bad", .kind = OPTION_FLAG, AT(skip_bad),
     .help = "Pass over lines that are no example and count them. Without it the first one ends the run and is named."},
    {.name = "show-mask", .kind = OPTION_INT, .value_name = "N", AT(show_mask), .low = 1, .high = 1000000,
     .neutral = true,
     .help = "Print the first N examples as the model is trained on them, the tokens that count in the loss between "
             "«…», and exit. Needs no --out, and leaves nothing there."},
};
/* clang-format on */

/* clang-format off */
static const option adapter_table[] = {
    {.name = "out", .letter = 'o', .kind = OPTION_TEXT, .value_name = "DIR", AT(out), .completion = COMPLETE_FOLDER,
     .help = "The folder for the adapter (as PEFT and 'qrun generate --adapter' read it), or with --full for the new "
             "model, with checkpoints, metrics.jsonl, trainer_state.json and report.html."},
    {.name = "lora-targets", .kind = OPTION_TEXT, .value_name = "WHICH", AT(targets),
     .help = "Linear layers that get LoRA: all, attn, mlp, or names such as q_proj,v_proj. Default: all."},
    {.name = "rank", .letter = 'r', .kind = OPTION_INT, .value_name = "N", AT(rank), .low = 1, .high = 512,
     .help = "Rank of the update of each layer. Default: 16."},
    {.name = "alpha", .kind = OPTION_NUMBER, .value_name = "X", AT(alpha), .low = 1e-6, .high = 1e6,
     .help = "The update is scaled by alpha / rank. Default: twice the rank."},
    {.name = "train-head", .kind = OPTION_FLAG, AT(train_head),
     .help = "Train the output head too, whole: --modules-to-save lm_head."},
    {.name = "modules-to-save", .kind = OPTION_TEXT, .value_name = "NAMES", AT(modules),
     .help = "Modules that are trained whole beside the adapter and stored in it, as PEFT calls it: such as "
             "lm_head,embed_tokens. These two get rows for tokens that were added to the tokenizer, where the examples "
             "have such tokens; so does --full."},
    {.name = "rslora", .kind = OPTION_FLAG, AT(rslora), .help = "Scale by alpha / √rank instead."},
    {.name = "adapter", .kind = OPTION_TEXT, .value_name = "DIR", AT(adapter), .completion = COMPLETE_FOLDER,
     .help = "Go on from this PEFT LoRA adapter instead of from nothing. Its rank, alpha, targets and kind are kept; "
             "options that say otherwise are refused."},
    {.name = "dora", .kind = OPTION_FLAG, AT(dora),
     .help = "DoRA: train the length of every row of the adapted matrices beside LoRA. Takes a third more time."},
    {.name = "lora-dropout", .kind = OPTION_NUMBER, .value_name = "P", AT(lora_dropout), .low = 0, .high = 0.99,
     .help = "While training, drop each number that enters an adapter with this probability. Results do not depend on "
             "how examples are batched. Default: 0."},
};
/* clang-format on */

/* clang-format off */
static const option full_table[] = {
    {.name = "full", .kind = OPTION_FLAG, AT(full),
     .help = "Train every weight instead of an adapter. The model is held in the compute type (--dtype), and --out "
             "becomes a model folder of its own. Takes about 18 bytes a weight with adamw, 12 with adamw8bit."},
    {.name = "init", .kind = OPTION_CHOICE, AT(init), .choices = init_names,
     .help = "With --full: begin from the model's weights, or from random ones as its family begins with. random needs "
             "no weights in --model, only config.json and the tokenizer. Default: model."},
    {.name = "init-embedding-std", .kind = OPTION_NUMBER, .value_name = "X", AT(init_embedding_std), .low = 1e-6,
     .high = 100,
     .help = "With --init random: standard deviation of the embeddings. Default: that of the other matrices, "
             "initializer_range in config.json."},
};
/* clang-format on */

/* clang-format off */
static const option training_table[] = {
    {.name = "epochs", .kind = OPTION_NUMBER, .value_name = "X", AT(epochs), .low = 1e-6, .high = 1e6,
     .help = "How often to go through the data. Default: 1."},
    {.name = "max-steps", .kind = OPTION_INT, .value_name = "N", AT(max_steps), .low = 1, .high = 1e15,
     .help = "Train for so many steps, whatever --epochs says."},
    {.name = "seq-len", .kind = OPTION_INT, .value_name = "N", AT(seq_len), .low = 2, .high = 1 << 20,
     .help = "Longest example in tokens; a longer one is cut. Shorter ones are packed together into rows of this "
             "length, and do not see each other. Default: 1024, or the model's context where that is less."},
    {.name = "batching", .kind = OPTION_CHOICE, AT(batching), .choices = batching_names,
     .help = "Which examples are computed together: packed into --batch-size rows as they come, or grouped by length, "
             "as many as --batch-tokens has room for. Default: pack."},
    {.name = "batch-size", .letter = 'b', .kind = OPTION_INT, .value_name = "N", AT(batch_size), .low = 1,
     .high = 4096,
     .help = "Rows computed at a time. Default: 1."},
    {.name = "batch-tokens", .kind = OPTION_INT, .value_name = "N", AT(batch_tokens), .low = 2, .high = INT32_MAX,
     .help = "With --batching group: the most tokens computed at a time; the number of examples follows from their "
             "lengths. Default: --batch-size times --seq-len."},
    {.name = "grad-accum", .kind = OPTION_INT, .value_name = "N", AT(grad_accum), .low = 1, .high = 1 << 20,
     .help = "Batches that make one step: the memory of one, the gradient of all. Default: 1."},
    {.name = "seed", .kind = OPTION_SEED, .value_name = "N", AT(seed),
     .help = "Order of the data and first values of the adapter. The same seed gives the same adapter. Default: 0."},
};
/* clang-format on */

/* clang-format off */
static const option optimizer_table[] = {
    {.name = "optimizer", .kind = OPTION_CHOICE, AT(optimizer), .choices = train_optimizer_names,
     .help = "adamw8bit holds its states in 8 bits as bitsandbytes does; sgd has momentum. Default: adamw."},
    {.name = "lr", .kind = OPTION_NUMBER, .value_name = "X", AT(lr), .low = 1e-12, .high = 100,
     .help = "Highest learning rate. Default: 2e-4; with --full 2e-5, from random weights 1e-3."},
    {.name = "schedule", .kind = OPTION_CHOICE, AT(schedule), .choices = schedule_names,
     .help = "How the learning rate falls after the warm-up. Default: linear, to 0."},
    {.name = "warmup", .kind = OPTION_NUMBER, .value_name = "X", AT(warmup), .low = 0, .high = 1e9,
     .help = "Steps in which the learning rate rises from 0; below 1, a share of all steps. Default: 0."},
    {.name = "weight-decay", .kind = OPTION_NUMBER, .value_name = "X", AT(weight_decay), .low = 0, .high = 1,
     .help = "Decoupled from the gradient; norms and biases do not decay, as in the Hugging Face Trainer. Default: 0."},
    {.name = "decay-all", .kind = OPTION_FLAG, AT(decay_all), .help = "Let norms and biases decay too."},
    {.name = "loraplus-lr-ratio", .kind = OPTION_NUMBER, .value_name = "X", AT(loraplus_lr_ratio), .low = 1e-6,
     .high = 1e6, .help = "LoRA+: the learning rate of B over that of A, such as 16. Default: 1."},
    {.name = "max-grad-norm", .kind = OPTION_NUMBER, .value_name = "X", AT(max_grad_norm), .low = 0, .high = 1e9,
     .help = "Scale a gradient whose norm is larger; 0: never. Default: 1."},
};
/* clang-format on */

/* clang-format off */
static const option memory_table[] = {
    {.name = "memory", .neutral = true, .kind = OPTION_BYTES, .value_name = "SIZE",
     .offset = offsetof(finetune_options, engine.memory),
     .help = "Budget for everything: 6GiB, 500MB … Default: what the machine has free. What cannot fit is refused "
             "before it starts."},
    {.name = "offload", .neutral = true, .kind = OPTION_CHOICE, AT(offload), .choices = train_offload_names,
     .help = "optimizer: hold its states in host memory and bring them to the device piece by piece in the update. "
             "activations: hold the inputs of layers that are computed again (see --checkpointing) there, from the "
             "forward to the backward pass. Copies run beside computing. Results do not depend on it. On the CPU both "
             "are the same memory. Default: none."},
    {.name = "checkpointing", .neutral = true, .kind = OPTION_TEXT, .value_name = "POLICY", AT(checkpointing),
     .help = "Which activations are kept for the backward pass and which are computed again: none (all are kept), full "
             "(as few as possible), every:N (layers), attn, mlp, or auto. Results do not depend on it. Default: auto, "
             "which keeps as many as --memory allows."},
    {.name = "plan", .neutral = true, .kind = OPTION_FLAG, AT(plan),
     .help = "Show what the run would take, by category, and end: nothing is read but the model's description, and "
             "--data and --out need not be there."},
    {.name = "shape", .neutral = true, .kind = OPTION_TEXT, .value_name = "CONFIG.json",
     .offset = offsetof(finetune_options, engine.shape), .completion = COMPLETE_FILE,
     .help = "With --plan, in place of --model: only a model's config.json."},
};
/* clang-format on */

/* clang-format off */
static const option course_table[] = {
    {.name = "eval-every", .neutral = true, .kind = OPTION_INT, .value_name = "N", AT(eval_every), .low = 1,
     .high = 1e15, .help = "Evaluate every N steps, and at the end. Default: only at the end."},
    {.name = "early-stopping", .kind = OPTION_INT, .value_name = "PATIENCE", AT(early_stopping), .low = 1, .high = 1e9,
     .help = "End the run after so many evaluations in a row that were not better than the best. Needs --eval-every; "
             "the adapter is then that of the best evaluation."},
    {.name = "early-stopping-threshold", .kind = OPTION_NUMBER, .value_name = "X", AT(early_stopping_threshold),
     .low = 0, .high = 1e9, .help = "How much lower than the best a loss has to be to count as better. Default: 0."},
    {.name = "load-best", .kind = OPTION_FLAG, AT(load_best),
     .help = "Write the adapter of the best evaluation at the end, not that of the last step. The checkpoint of the "
             "best evaluation stays in --out in either case."},
    {.name = "save-every", .neutral = true, .kind = OPTION_INT, .value_name = "N", AT(save_every), .low = 1,
     .high = 1e15, .help = "Write a checkpoint every N steps, and at the end. Default: only at the end."},
    {.name = "keep", .neutral = true, .kind = OPTION_INT, .value_name = "N", AT(keep), .low = 1, .high = 1000000,
     .help = "The last checkpoints to keep, beside that of the best evaluation; older ones are removed. Default: 2."},
    {.name = "restart", .neutral = true, .kind = OPTION_FLAG, AT(restart),
     .help = "Begin anew. Without it, training goes on from the last checkpoint in --out."},
    {.name = "json", .neutral = true, .kind = OPTION_FLAG, AT(json),
     .help = "Write JSON lines to stdout and nothing else: {\"start\"} with data and plan, the lines of metrics.jsonl, "
             "and {\"result\"}."},
    {.name = "verbose", .neutral = true, .letter = 'v', .kind = OPTION_FLAG, AT(verbose),
     .help = "About twenty lines on the way to the end, on stderr, where there is no progress bar."},
    {.name = "quiet", .neutral = true, .letter = 'q', .kind = OPTION_FLAG, AT(quiet),
     .help = "No progress, no tables."},
};
/* clang-format on */

enum { N_THREAD_OPTIONS = 2 }; /* --threads and --device: the table's others have words of their own here */

static const option_group groups[] = {
    OPTION_GROUP("Model", model_option_table, offsetof(finetune_options, engine)),
    OPTION_GROUP("Data", data_table, 0),
    OPTION_GROUP("Adapter", adapter_table, 0),
    OPTION_GROUP("Full fine-tuning", full_table, 0),
    OPTION_GROUP("Training", training_table, 0),
    OPTION_GROUP("Optimiser", optimizer_table, 0),
    OPTION_GROUP("Memory", memory_table, 0),
    OPTION_GROUP("Course", course_table, 0),
    {"Machine", machine_option_table, N_THREAD_OPTIONS, offsetof(finetune_options, engine)},
};

static int check_full(const finetune_options *o) {
    const bool of_adapters = o->targets != NULL || o->rank.given || o->alpha.given || o->rslora || o->train_head ||
                             o->modules != NULL || o->lora_dropout.given || o->dora;
    if (o->full && of_adapters) {
        return complain(EXIT_USAGE, "--full trains every weight, so options of adapters do not go with it");
    }
    if (o->full && (o->engine.quant.given || o->engine.quant_head.given)) {
        return complain(EXIT_USAGE, "--full changes every weight, so the model is held in the type of --dtype: leave "
                                    "--quant and --quant-head away");
    }
    if (!o->full && o->init.value == 1) { return complain(EXIT_USAGE, "--init random needs --full"); }
    if (o->init_embedding_std.given && o->init.value != 1) {
        return complain(EXIT_USAGE, "--init-embedding-std needs --init random");
    }
    return EXIT_OK;
}

static int check_combination(const finetune_options *o) {
    if (o->engine.shape != NULL && !o->plan) {
        return complain(EXIT_USAGE, "--shape has no weights to train: it goes with --plan; give --model DIR");
    }
    const int code = engine_require_model(&o->engine);
    if (code != EXIT_OK) { return code; }
    if (o->data == NULL && !o->plan) { return complain(EXIT_USAGE, "no data: give --data FILE.jsonl"); }
    if (o->out == NULL && !o->plan && !o->show_mask.given) {
        return complain(EXIT_USAGE, "no place for the result: give --out DIR");
    }
    if (o->eval_data != NULL && o->eval_split.given) {
        return complain(EXIT_USAGE, "--eval-data and --eval-split exclude each other");
    }
    if (o->eval_every.given && o->eval_data == NULL && o->eval_split.value <= 0) {
        return complain(EXIT_USAGE, "--eval-every needs --eval-data FILE.jsonl or --eval-split SHARE");
    }
    if (o->early_stopping.given && !o->eval_every.given) {
        return complain(EXIT_USAGE, "--early-stopping needs --eval-every N: how often to evaluate");
    }
    if (o->early_stopping_threshold.given && !o->early_stopping.given) {
        return complain(EXIT_USAGE, "--early-stopping-threshold needs --early-stopping PATIENCE");
    }
    if (o->load_best && o->eval_data == NULL && o->eval_split.value <= 0) {
        return complain(EXIT_USAGE, "--load-best needs --eval-data FILE.jsonl or --eval-split SHARE");
    }
    if (o->batch_tokens.given && o->batching.value != QRUN_BATCHING_GROUP) {
        return complain(EXIT_USAGE, "--batch-tokens needs --batching group");
    }
    if (o->batch_tokens.given && o->batch_size.given) {
        return complain(EXIT_USAGE, "--batch-size and --batch-tokens exclude each other: the budget in tokens decides");
    }
    return check_full(o);
}

/* modules: room for --modules-to-save and --train-head together. */
static qrun_train_params train_params(const finetune_options *o, text_buffer *modules) {
    qrun_train_params p = QRUN_TRAIN_PARAMS_INIT;
    p.data.train_data = o->data;
    p.data.eval_data = o->eval_data;
    p.data.eval_split = o->eval_split.value;
    p.data.skip_bad = o->skip_bad;
    p.saving.out = o->out;
    p.lora.target_modules = o->targets;
    p.lora.rank = (int32_t)o->rank.value;
    p.lora.alpha = (float)o->alpha.value;
    p.lora.rslora = o->rslora;
    p.lora.dora = o->dora;
    p.lora.adapter = o->adapter;
    if (o->train_head || o->modules != NULL) {
        text_format(modules, "%s%s%s", o->train_head ? "lm_head" : "", o->train_head && o->modules != NULL ? "," : "",
                    o->modules != NULL ? o->modules : "");
        p.lora.modules_to_save = modules->data;
    }
    p.weights.full = o->full;
    p.weights.init_random = o->init.value == 1;
    p.weights.init_embedding_std = o->init_embedding_std.value;
    p.lora.lora_dropout = o->lora_dropout.value;
    p.optimization.optimizer = (qrun_optimizer)o->optimizer.value;
    p.optimization.schedule = (qrun_schedule)o->schedule.value;
    p.optimization.learning_rate = o->lr.value;
    p.optimization.warmup = o->warmup.value;
    p.optimization.weight_decay = o->weight_decay.value;
    p.optimization.decay_all = o->decay_all;
    p.optimization.loraplus_lr_ratio = o->loraplus_lr_ratio.value;
    train_set_offload(&p, o->offload.value);
    p.optimization.max_grad_norm = o->max_grad_norm.given && o->max_grad_norm.value <= 0 ? -1 : o->max_grad_norm.value;
    p.batches.seq_len = (int32_t)o->seq_len.value;
    p.batches.batching = (qrun_batching)o->batching.value;
    p.batches.batch_size = (int32_t)o->batch_size.value;
    p.batches.batch_tokens = o->batch_tokens.value;
    p.batches.grad_accum = (int32_t)o->grad_accum.value;
    p.batches.epochs = o->epochs.value;
    p.batches.max_steps = o->max_steps.value;
    p.batches.seed = o->seed.value;
    p.memory.checkpointing = o->checkpointing;
    p.memory.memory_bytes = o->engine.memory.value;
    p.evaluation.eval_every = o->eval_every.value;
    p.evaluation.early_stopping_patience = (int32_t)o->early_stopping.value;
    p.evaluation.early_stopping_threshold = o->early_stopping_threshold.value;
    p.evaluation.load_best = o->load_best;
    p.saving.keep = (int32_t)o->keep.value;
    p.saving.restart = o->restart;
    return p; /* save_every stays 0: training.c saves, once the metrics of the step are on file */
}

static int show_masks(const finetune_options *o, const training *t) {
    const int64_t n = o->show_mask.value < t->info.n_examples ? o->show_mask.value : t->info.n_examples;
    for (int64_t i = 0; i < n; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        char *text = NULL;
        if (qrun_trainer_show_example(t->trainer, i, &text, &error) != QRUN_OK) { return complain_error(&error); }
        printf("--- example %lld of %lld\n%s\n", (long long)i + 1, (long long)t->info.n_examples, text);
        qrun_free(text);
    }
    return EXIT_OK;
}

static int show_plan(const finetune_options *o, const engine_options *wanted, const engine *e) {
    qrun_error error = QRUN_ERROR_INIT;
    text_buffer modules = {0}, out = {0};
    const qrun_train_params params = train_params(o, &modules);
    const qrun_model_params model_params = engine_model_params(wanted);
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    char *policy = NULL;
    const qrun_status status =
        qrun_plan_training(e->context, &model_params, &params, &entries, &n_entries, &policy, &error);
    text_free(&modules);
    if (status != QRUN_OK) { return complain_error(&error); }
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
    qrun_train_params params = train_params(o, &modules);
    params.saving.out = out;
    params.callbacks.progress = training_show_progress;
    params.callbacks.progress_user = t;
    progress_draw(0, 0, "reading the data");
    const qrun_status status = qrun_trainer_create(e->model, &params, &t->trainer, &error);
    progress_clear();
    text_free(&modules);
    if (status == QRUN_ERROR_CANCELLED) {
        return complain(EXIT_INTERRUPTED, "interrupted while the data were read; nothing of it is kept");
    }
    t->info = (qrun_train_info)QRUN_TRAIN_INFO_INIT;
    if (status != QRUN_OK || qrun_trainer_get_info(t->trainer, &t->info, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    return EXIT_OK;
}

static int train(const finetune_options *o, const engine *e, training *t, text_buffer *options) {
    options_describe(&command_finetune, o, options);
    t->out = o->out;
    t->load_best = o->load_best || o->early_stopping.given;
    t->full = o->full;
    t->save_every = o->save_every.value;
    t->json = o->json;
    t->verbose = o->verbose && !progress_enabled();
    t->state = (train_state_facts){.total_steps = t->info.total_steps,
                                   .save_steps = o->save_every.value,
                                   .eval_steps = o->eval_every.value,
                                   .n_parameters = e->info.n_parameters,
                                   .epochs = o->epochs.given ? o->epochs.value : 1,
                                   .batch_size = o->batch_size.given ? (int32_t)o->batch_size.value : 1,
                                   .out = o->out,
                                   .n_eval_examples = t->info.n_eval_examples,
                                   .patience = o->early_stopping.value,
                                   .threshold = o->early_stopping_threshold.value};
    t->facts = (train_report_facts){.model = o->engine.model,
                                    .data = o->data,
                                    .out = o->out,
                                    .model_info = &e->info,
                                    .options_json = options->data};
    t->chat = e->info.has_chat_template && strcmp(t->info.data_format, "text") != 0 &&
              strcmp(t->info.data_format, "prompt/completion") != 0;
    t->facts.plan = qrun_trainer_plan(t->trainer, &t->facts.n_plan);
    if (o->json) {
        finetune_print_start_json(t);
    } else if (!o->quiet) {
        finetune_print_start(t);
    }
    const int code = training_run(t);
    if (code != EXIT_OK) { return code; }
    if (o->json) {
        finetune_print_result_json(t);
    } else if (!o->quiet) {
        finetune_print_result(t);
    }
    return EXIT_OK;
}

/* From a folder of their own: neither what belongs to --out nor its place matters to them. */
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

static int run(const void *options, const option_texts *arguments) {
    const finetune_options *o = options;
    engine_options wanted = o->engine;
    engine e = {0};
    training t = {0};
    text_buffer given = {0};
    (void)arguments;
    if (o->quiet) { progress_silence(); }
    int code = check_combination(o);
    wanted.trainable = o->full;
    wanted.unread = o->init.value == 1;
    if (code == EXIT_OK) { code = engine_open_context(&e, &wanted); }
    if (code == EXIT_OK && o->plan) {
        code = show_plan(o, &wanted, &e);
        engine_close(&e);
        return code;
    }
    if (code == EXIT_OK) { code = engine_open_model(&e, &wanted); }
    if (code == EXIT_OK && o->show_mask.given) {
        code = show_data(o, &e, &t);
    } else if (code == EXIT_OK) {
        code = open_trainer(o, &e, o->out, &t);
        if (code == EXIT_OK) { code = train(o, &e, &t, &given); }
    }
    qrun_trainer_destroy(t.trainer);
    training_free(&t);
    text_free(&given);
    engine_close(&e);
    return code;
}

const command command_finetune = {
    .name = "finetune",
    .summary = "train a LoRA adapter on examples, over a model in 4 or 8 bits, or the whole model",
    .usage = "--model DIR --data FILE.jsonl --out DIR [OPTIONS]",
    .description =
        "QLoRA: the model's weights stay as they are, in 4 or 8 bits, and a small adapter beside them learns. The "
        "memory that a run takes is known, printed by category, and kept to before the first step. --full trains every "
        "weight instead, from the model's or from random ones, and writes a model.\n\n"
        "Ctrl-C (or SIGTERM) finishes the step, writes a checkpoint, and says how to go on: with the same command. "
        "Training that was stopped, or killed, ends with the same result, to the bit, as training that was not. A "
        "second Ctrl-C ends the program at once. A checkpoint that was damaged since is named, with the one before it: "
        "remove it to go on from there.\n\n"
        "A step whose loss or gradient is no finite number is skipped and named, with the first tensor that it was "
        "found "
        "in; five in a row end the run.\n\n"
        "The output folder has metrics.jsonl (a line a step), trainer_state.json (as the Hugging Face Trainer writes "
        "it), and report.html, a page with loss, learning rate, gradient norm, speed and memory over time.",
    .examples = "  qrun finetune --model path/to/model --data train.jsonl --out my-adapter\n"
                "  qrun finetune --model path/to/model --data train.jsonl --show-mask 3\n"
                "  qrun finetune --model path/to/model --data train.jsonl --eval-split 0.1 --eval-every 50 \\\n"
                "                --epochs 3 --batch-size 4 --lr 1e-4 --warmup 0.03 --memory 6GiB --out my-adapter\n"
                "  qrun finetune --model path/to/model --seq-len 4096 --memory 8GiB --plan\n"
                "  qrun generate --model path/to/model --adapter my-adapter --chat --prompt \"Hello!\"\n"
                "  qrun finetune --model path/to/model --data train.jsonl --full --lr 1e-5 --out my-model\n"
                "\n"
                "  # two lines of a train.jsonl:\n"
                "  {\"prompt\": \"Hello!\", \"completion\": \" Ahoy!\"}\n"
                "  {\"prompt\": \"Who are you?\", \"completion\": \" A sailor, matey.\"}",
    .groups = groups,
    .n_groups = N_GROUPS(groups),
    .options_bytes = sizeof(finetune_options),
    .run = run,
};

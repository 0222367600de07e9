#include "cli/commands/finetune_compare.h"

#include <stdio.h>
#include <string.h>

#include "cli/report/plan_table.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

typedef struct saving {
    const char *name; /* as it is given */
    const char *checkpointing;
    qrun_optimizer optimizer;
    int offload;
    int32_t tile_rows;
} saving;

enum { TILE_ROWS = 512, LEAVES_OUT_TILES = 1 << 30 }; /* the flag beside those of train_offloads */

static const saving savings[] = {
    {"nothing", "none", QRUN_OPTIMIZER_ADAMW, 0, 0},
    {"--checkpointing full", "full", QRUN_OPTIMIZER_ADAMW, 0, 0},
    {"… and --offload activations", "full", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_ACTIVATIONS, 0},
    {"… and --tile-rows 512", "full", QRUN_OPTIMIZER_ADAMW, 0, TILE_ROWS},
    {"--optimizer adamw8bit", "none", QRUN_OPTIMIZER_ADAMW8BIT, 0, 0},
    {"--offload optimizer", "none", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_OPTIMIZER, 0},
    {"--offload gradients", "none", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_GRADIENTS, 0},
    {"--offload parameters", "none", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_PARAMETERS, 0},
    {"--offload gradients,parameters", "none", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_GRADIENTS + TRAIN_OFFLOAD_PARAMETERS,
     0},
    {"all of these", "full", QRUN_OPTIMIZER_ADAMW8BIT,
     TRAIN_OFFLOAD_ACTIVATIONS + TRAIN_OFFLOAD_OPTIMIZER + TRAIN_OFFLOAD_GRADIENTS + TRAIN_OFFLOAD_PARAMETERS,
     TILE_ROWS},
};
enum { NOT_ALWAYS = TRAIN_OFFLOAD_GRADIENTS + TRAIN_OFFLOAD_PARAMETERS }; /* all weights, or those that can be */
enum { N_SAVINGS = sizeof savings / sizeof savings[0], MAX_CATEGORIES = 16 };
static const int64_t ANY_BYTES = INT64_C(1) << 60; /* nothing is refused */

typedef struct measured {
    bool ran; /* else it would take more than is free */
    int64_t peak_bytes;
    double step_seconds;
} measured;

typedef struct compared {
    qrun_plan_entry *entries[N_SAVINGS];
    qrun_plan_info info[N_SAVINGS];
    measured runs[N_SAVINGS];
    bool measures;
    int32_t n_entries;
    int64_t grad_accum;
} compared;

static void take_saving(qrun_model_params *model, qrun_train_params *params, int i, int left_out) {
    const int offload = savings[i].offload & ~left_out;
    params->memory.checkpointing = savings[i].checkpointing;
    params->memory.tile_rows = (left_out & LEAVES_OUT_TILES) == 0 ? savings[i].tile_rows : 0;
    params->optimization.optimizer = savings[i].optimizer;
    train_set_offload(params, offload);
    model->offload_parameters = train_offload_of_model(offload);
}

static qrun_status plan_saving(const engine *e, qrun_model_params *model, qrun_train_params *params, int i,
                               int left_out, compared *c, qrun_error *error) {
    take_saving(model, params, i, left_out);
    params->memory.memory_bytes = ANY_BYTES;
    c->info[i] = (qrun_plan_info)QRUN_PLAN_INFO_INIT;
    return qrun_plan_training(e->context, model, params, &c->entries[i], &c->n_entries, NULL, &c->info[i], error);
}

/* ---- Measured ---------------------------------------------------------------------------------------------------- */

/* Steps on random tokens: a first one that warms up, and one that counts. */
enum { N_STEPS = 2 };

static qrun_status run_steps(qrun_trainer *trainer, measured *run, qrun_error *error) {
    qrun_train_metrics metrics = QRUN_TRAIN_METRICS_INIT;
    qrun_train_info info = QRUN_TRAIN_INFO_INIT;
    qrun_status status = QRUN_OK;
    bool done = false;
    for (int i = 0; i < N_STEPS && status == QRUN_OK; i++) {
        status = qrun_trainer_step(trainer, &metrics, &done, error);
    }
    if (status == QRUN_OK) { status = qrun_trainer_get_info(trainer, &info, error); }
    *run = (measured){.ran = true, .peak_bytes = info.peak_bytes, .step_seconds = metrics.seconds};
    return status;
}

/* In a context of its own, whose peak is that of this run. The memory is what the plan says, to the byte. */
static int measure_saving(const finetune_options *o, qrun_model_params *model, const qrun_train_params *params, int i,
                          int left_out, compared *c) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_train_params run = *params;
    engine own = {0};
    qrun_trainer *trainer = NULL;
    if (c->info[i].total_bytes > c->info[i].available_bytes) { return EXIT_OK; }
    if (interrupted()) { return complain(EXIT_INTERRUPTED, "interrupted"); }
    progress_draw(i, N_SAVINGS, "measuring: %s", savings[i].name);
    take_saving(model, &run, i, left_out);
    run.data = (qrun_train_data){.random_tokens = true};
    run.evaluation = (qrun_train_evaluation){0};
    run.saving = (qrun_train_saving){0};
    run.batches.max_steps = N_STEPS;
    run.memory.memory_bytes = model->memory_bytes = c->info[i].total_bytes;
    int code = engine_open_context(&own, &o->engine.context);
    qrun_status status = QRUN_OK;
    if (code == EXIT_OK) {
        status = qrun_model_open(own.context, model, &own.model, &error);
        if (status == QRUN_OK) { status = qrun_trainer_create(own.model, &run, &trainer, &error); }
        if (status == QRUN_OK) { status = run_steps(trainer, &c->runs[i], &error); }
    }
    progress_clear();
    qrun_trainer_destroy(trainer);
    engine_close(&own);
    return code == EXIT_OK ? complain_unless_ok(status, &error) : code;
}

/* ---- For people and programs ------------------------------------------------------------------------------------- */

/* Of one step. */
static int64_t copied_bytes(const compared *c, int i) {
    return c->info[i].copied_bytes * c->grad_accum + c->info[i].update_copied_bytes;
}

static bool is_used(const compared *c, int32_t category) {
    for (int i = 0; i < N_SAVINGS; i++) {
        if (c->entries[i] != NULL && c->entries[i][category].bytes > 0) { return true; }
    }
    return false;
}

static void print_measured(const compared *c, int i) {
    if (!c->measures) { return; }
    if (c->runs[i].ran) {
        printf(" %12s %10.3f s", size_text(c->runs[i].peak_bytes).text, c->runs[i].step_seconds);
    } else {
        printf("   not run: more than is free");
    }
}

static void print_comparison(const compared *c) {
    printf("%-28s %12s", "", "in all");
    for (int32_t k = 0; k < c->n_entries; k++) {
        if (is_used(c, k)) { printf(" %12s", c->entries[0][k].category); }
    }
    printf(" %12s %12s", "operations", "copied");
    if (c->measures) { printf(" %12s %12s", "used at most", "a step"); }
    printf("\n");
    for (int i = 0; i < N_SAVINGS; i++) {
        if (c->entries[i] == NULL) { continue; }
        printf("%s%*s %12s", savings[i].name, 28 - text_columns(savings[i].name, strlen(savings[i].name)), "",
               size_text(c->info[i].total_bytes).text);
        for (int32_t k = 0; k < c->n_entries; k++) {
            if (is_used(c, k)) { printf(" %12s", size_text(c->entries[i][k].bytes).text); }
        }
        printf(" %8.2f T   %12s", c->info[i].flops * (double)c->grad_accum * 1e-12, size_text(copied_bytes(c, i)).text);
        print_measured(c, i);
        printf("\n");
    }
    printf("\nOf one step of full rows. Results do not depend on the options, but for adamw8bit.\n");
}

static void print_comparison_json(const compared *c) {
    printf("{\"compare\":[");
    for (int i = 0; i < N_SAVINGS; i++) {
        text_buffer out = {0};
        if (c->entries[i] == NULL) { continue; }
        text_puts(&out, i > 0 ? ",{\"options\":" : "{\"options\":");
        text_json_string(&out, savings[i].name, strlen(savings[i].name));
        text_format(&out, ",\"flops\":%.17g,\"copied_bytes\":%lld,\"plan\":", c->info[i].flops * (double)c->grad_accum,
                    (long long)copied_bytes(c, i));
        plan_table_json(c->entries[i], c->n_entries, &out);
        if (c->runs[i].ran) {
            text_format(&out, ",\"measured\":{\"peak_bytes\":%lld,\"step_seconds\":%.6f}",
                        (long long)c->runs[i].peak_bytes, c->runs[i].step_seconds);
        } else if (c->measures) {
            text_puts(&out, ",\"measured\":null");
        }
        printf("%s}", out.data);
        text_free(&out);
    }
    printf("]}\n");
}

int finetune_compare(const finetune_options *o, const engine *e, qrun_model_params *model, qrun_train_params *params) {
    compared c = {.grad_accum = params->batches.grad_accum > 0 ? params->batches.grad_accum : 1,
                  .measures = o->measure};
    int code = EXIT_OK, left_out = 0, possible = 0;
    for (int i = 0; i < N_SAVINGS && code == EXIT_OK; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        if (i + 1 == N_SAVINGS) { left_out |= NOT_ALWAYS & ~possible; }
        const qrun_status status = plan_saving(e, model, params, i, left_out, &c, &error);
        possible |= c.entries[i] != NULL ? savings[i].offload : 0;
        if (c.entries[i] != NULL) { continue; }
        /* What this model cannot do, the table does without. */
        const bool not_always = savings[i].offload != 0 && (savings[i].offload & ~NOT_ALWAYS) == 0;
        if (not_always && status != QRUN_ERROR_MEMORY) {
            continue;
        } else if (savings[i].tile_rows > 0 && status == QRUN_ERROR_UNSUPPORTED) {
            left_out |= LEAVES_OUT_TILES;
        } else {
            code = complain_error(&error);
        }
    }
    for (int i = 0; i < N_SAVINGS && code == EXIT_OK && o->measure; i++) {
        if (c.entries[i] != NULL) { code = measure_saving(o, model, params, i, left_out, &c); }
    }
    if (code == EXIT_OK && o->json) {
        print_comparison_json(&c);
    } else if (code == EXIT_OK) {
        print_comparison(&c);
    }
    for (int i = 0; i < N_SAVINGS; i++) { qrun_free(c.entries[i]); }
    return code;
}

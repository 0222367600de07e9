#include "cli/commands/finetune_plan.h"

#include <stdio.h>
#include <string.h>

#include "cli/options/command.h"
#include "cli/report/plan_table.h"
#include "cli/terminal/messages.h"

/* ---- One plan, or the largest ------------------------------------------------------------------------------------ */

static void set_fitted(qrun_train_params *params, qrun_fit what, int64_t n) {
    switch (what) {
        case QRUN_FIT_CONTEXT: params->batches.seq_len = (int32_t)n; return;
        case QRUN_FIT_BATCH: params->batches.batch_size = (int32_t)n; return;
        case QRUN_FIT_RANK: params->lora.rank = (int32_t)n; return;
    }
}

/* The plan is then that of the answer or, where nothing fits, of the smallest. */
static int fit(const finetune_options *o, const engine *e, const qrun_model_params *model, qrun_train_params *params,
               qrun_fit_result *result) {
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_fit what = (qrun_fit)o->fit;
    if (o->fit == FIT_NOTHING) { return EXIT_OK; }
    if (qrun_fit_training(e->context, model, params, what, result, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    set_fitted(params, what, result->largest > 0 ? result->largest : what == QRUN_FIT_CONTEXT ? 2 : 1);
    return EXIT_OK;
}

static void print(const finetune_options *o, const plan_report *report, const char *policy,
                  const qrun_fit_result *fitted, const text_buffer *ranks) {
    text_buffer out = {0};
    if (!o->json) {
        if (o->fit != FIT_NOTHING) { plan_report_print_fit(option_choice_name(fit_choices, o->fit), fitted); }
        printf("activation checkpointing: %s\n", policy);
        plan_report_print(report);
        if (ranks->size > 0) { printf("%s", ranks->data); }
        return;
    }
    plan_report_json(report, &out);
    printf("{");
    if (o->fit != FIT_NOTHING) { plan_report_print_fit_json(option_choice_name(fit_choices, o->fit), fitted); }
    printf("\"checkpointing\": \"%s\", \"plan\": {%s}%s}\n", policy, out.data, ranks->size > 0 ? ranks->data : "");
    text_free(&out);
}

/* ---- Of several ranks -------------------------------------------------------------------------------------------- */

/* Of more, only the one that needs the most is planned. */
enum { MOST_RANKS_LISTED = 64 };

typedef struct rank_plan {
    qrun_plan_entry *entries;
    int32_t n_entries;
    qrun_plan_info info;
} rank_plan;

int finetune_check_ranks(const finetune_options *o) {
    if (o->train.ranks.zero == 3 && train_offload_of_model(o->offload) != QRUN_OFFLOAD_NONE) {
        return complain(EXIT_USAGE, "--zero 3 holds no layer on a device: leave parameters out of --offload");
    }
    if (o->bandwidth > 0 && o->train.ranks.n_ranks == 0) {
        return complain(EXIT_USAGE, "--bandwidth is of a plan with --ranks N");
    }
    if (o->tflops > 0 && o->bandwidth == 0) { return complain(EXIT_USAGE, "--tflops needs --bandwidth beside it"); }
    return EXIT_OK;
}

/* Seconds of a step in which a rank sends, and in which it computes the rounds of the step's batches. */
typedef struct step_times {
    double sends, computes;
} step_times;

static step_times times_of(const finetune_options *o, const qrun_plan_info *info) {
    const int32_t n_batches = o->train.batches.grad_accum > 0 ? o->train.batches.grad_accum : 1;
    const int32_t n_ranks = o->train.ranks.n_ranks, n_rounds = n_batches / n_ranks + (n_batches % n_ranks > 0);
    const double operations = info->flops * n_rounds;
    return (step_times){.sends = o->bandwidth > 0 ? (double)info->sent_bytes / (double)o->bandwidth : 0,
                        .computes = o->tflops > 0 ? operations / (o->tflops * 1e12) : 0};
}

/* The share of a step's time that sending takes if nothing is computed meanwhile. */
static double share_of(step_times times) { return times.sends / (times.sends + times.computes); }

static void put_rank_json(const finetune_options *o, const rank_plan *plan, text_buffer *out) {
    const step_times times = times_of(o, &plan->info);
    text_format(out, "{\"rank\":%d,\"sent_bytes\":%lld,\"ring_bytes\":%lld,", (int)plan->info.rank,
                (long long)plan->info.sent_bytes, (long long)plan->info.ring_bytes);
    if (o->bandwidth > 0) { text_format(out, "\"sending_seconds\":%.6g,", times.sends); }
    if (o->tflops > 0) {
        text_format(out, "\"computing_seconds\":%.6g,\"sending_share\":%.6g,", times.computes, share_of(times));
    }
    text_puts(out, "\"plan\":");
    plan_table_json(plan->entries, plan->n_entries, out);
    text_puts(out, "}");
}

static void put_rank_heading(const finetune_options *o, const rank_plan *plan, text_buffer *out) {
    text_format(out, "\n  %6s", "rank");
    for (int32_t i = 0; i < plan->n_entries; i++) {
        if (plan->entries[i].bytes > 0) { text_format(out, " %14s", plan->entries[i].category); }
    }
    text_format(out, " %14s %14s", "sent a step", "around a ring");
    if (o->bandwidth > 0) { text_format(out, " %10s", "sending"); }
    if (o->tflops > 0) { text_format(out, " %10s %8s", "computing", "share"); }
    text_puts(out, "\n");
}

static void put_rank_row(const finetune_options *o, const rank_plan *plan, text_buffer *out) {
    const step_times times = times_of(o, &plan->info);
    text_format(out, "  %6d", (int)plan->info.rank);
    for (int32_t i = 0; i < plan->n_entries; i++) {
        if (plan->entries[i].bytes > 0) { text_format(out, " %14s", size_text(plan->entries[i].bytes).text); }
    }
    text_format(out, " %14s", size_text(plan->info.sent_bytes).text);
    text_format(out, " %14s", size_text(plan->info.ring_bytes).text);
    if (o->bandwidth > 0) { text_format(out, " %8.3g s", times.sends); }
    if (o->tflops > 0) { text_format(out, " %8.3g s %6.1f %%", times.computes, 100 * share_of(times)); }
    text_puts(out, "\n");
}

/* What each rank takes by category, and sends in a step: a table, or a member of the object. */
static int describe_ranks(const finetune_options *o, const engine *e, const qrun_model_params *model,
                          const qrun_train_params *params, text_buffer *out) {
    const int32_t n_ranks = params->ranks.n_ranks;
    const bool all = n_ranks <= MOST_RANKS_LISTED;
    if (n_ranks == 0) { return EXIT_OK; }
    if (o->json) { text_format(out, ", \"n_ranks\": %d, \"ranks\": [", (int)n_ranks); }
    for (int32_t r = 0; r < (all ? n_ranks : 1); r++) {
        qrun_error error = QRUN_ERROR_INIT;
        rank_plan plan = {.info = QRUN_PLAN_INFO_INIT};
        qrun_train_params wanted = *params;
        wanted.ranks.plan_rank = all ? r : QRUN_AUTO;
        (void)qrun_plan_training(e->context, model, &wanted, &plan.entries, &plan.n_entries, NULL, &plan.info, &error);
        if (plan.entries == NULL) { return complain_error(&error); }
        if (o->json) {
            if (r > 0) { text_puts(out, ","); }
            put_rank_json(o, &plan, out);
        } else {
            if (r == 0) { put_rank_heading(o, &plan, out); }
            put_rank_row(o, &plan, out);
        }
        qrun_free(plan.entries);
    }
    if (o->json) { text_puts(out, "]"); }
    if (!o->json && !all) { text_format(out, "  Of %d ranks, the one that needs the most.\n", (int)n_ranks); }
    if (!o->json && o->tflops > 0) {
        text_puts(out, "  The share is as if nothing were computed while bytes travel.\n");
    }
    return EXIT_OK;
}

static int show_one(const finetune_options *o, const engine *e, const qrun_model_params *model,
                    qrun_train_params *params) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    qrun_fit_result fitted = QRUN_FIT_RESULT_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    char *policy = NULL;
    text_buffer ranks = {0};
    if (params->ranks.n_ranks > 0) { params->ranks.plan_rank = QRUN_AUTO; }
    RETURN_IF_FAILED(fit(o, e, model, params, &fitted));
    (void)qrun_plan_training(e->context, model, params, &entries, &n_entries, &policy, &info, &error);
    if (entries == NULL) { return complain_error(&error); }
    const plan_report report = {entries, n_entries, o->engine.model.memory_bytes, &info, &error};
    int code = describe_ranks(o, e, model, params, &ranks);
    if (code == EXIT_OK) {
        print(o, &report, policy, &fitted, &ranks);
        code = plan_report_code(&report);
    }
    text_free(&ranks);
    qrun_free(entries);
    qrun_free(policy);
    return code;
}

/* ---- Each option alone, and all together ------------------------------------------------------------------------- */

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
    {"--offload parameters", "none", QRUN_OPTIMIZER_ADAMW, TRAIN_OFFLOAD_PARAMETERS, 0},
    {"all of these", "full", QRUN_OPTIMIZER_ADAMW8BIT,
     TRAIN_OFFLOAD_ACTIVATIONS + TRAIN_OFFLOAD_OPTIMIZER + TRAIN_OFFLOAD_PARAMETERS, TILE_ROWS},
};
enum { N_SAVINGS = sizeof savings / sizeof savings[0], MAX_CATEGORIES = 16 };
static const int64_t ANY_BYTES = INT64_C(1) << 60; /* nothing is refused */

typedef struct compared {
    qrun_plan_entry *entries[N_SAVINGS];
    qrun_plan_info info[N_SAVINGS];
    int32_t n_entries;
    int64_t grad_accum;
} compared;

static qrun_status plan_saving(const engine *e, qrun_model_params *model, qrun_train_params *params, int i,
                               int left_out, compared *c, qrun_error *error) {
    const int offload = savings[i].offload & ~left_out;
    params->memory.memory_bytes = ANY_BYTES;
    params->memory.checkpointing = savings[i].checkpointing;
    params->memory.tile_rows = (left_out & LEAVES_OUT_TILES) == 0 ? savings[i].tile_rows : 0;
    params->optimization.optimizer = savings[i].optimizer;
    train_set_offload(params, offload);
    model->offload_parameters = train_offload_of_model(offload);
    c->info[i] = (qrun_plan_info)QRUN_PLAN_INFO_INIT;
    return qrun_plan_training(e->context, model, params, &c->entries[i], &c->n_entries, NULL, &c->info[i], error);
}

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

static void print_comparison(const compared *c) {
    printf("%-28s %12s", "", "in all");
    for (int32_t k = 0; k < c->n_entries; k++) {
        if (is_used(c, k)) { printf(" %12s", c->entries[0][k].category); }
    }
    printf(" %12s %12s\n", "operations", "copied");
    for (int i = 0; i < N_SAVINGS; i++) {
        if (c->entries[i] == NULL) { continue; }
        printf("%s%*s %12s", savings[i].name, 28 - text_columns(savings[i].name, strlen(savings[i].name)), "",
               size_text(c->info[i].total_bytes).text);
        for (int32_t k = 0; k < c->n_entries; k++) {
            if (is_used(c, k)) { printf(" %12s", size_text(c->entries[i][k].bytes).text); }
        }
        printf(" %8.2f T   %12s\n", c->info[i].flops * (double)c->grad_accum * 1e-12,
               size_text(copied_bytes(c, i)).text);
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
        printf("%s}", out.data);
        text_free(&out);
    }
    printf("]}\n");
}

static int compare(const finetune_options *o, const engine *e, qrun_model_params *model, qrun_train_params *params) {
    compared c = {.grad_accum = params->batches.grad_accum > 0 ? params->batches.grad_accum : 1};
    int code = EXIT_OK, left_out = 0;
    for (int i = 0; i < N_SAVINGS && code == EXIT_OK; i++) {
        qrun_error error = QRUN_ERROR_INIT;
        const qrun_status status = plan_saving(e, model, params, i, left_out, &c, &error);
        if (c.entries[i] != NULL) { continue; }
        /* What this model cannot do, the table does without. */
        if (savings[i].offload == TRAIN_OFFLOAD_PARAMETERS && status != QRUN_ERROR_MEMORY) {
            left_out |= TRAIN_OFFLOAD_PARAMETERS;
        } else if (savings[i].tile_rows > 0 && status == QRUN_ERROR_UNSUPPORTED) {
            left_out |= LEAVES_OUT_TILES;
        } else {
            code = complain_error(&error);
        }
    }
    if (code == EXIT_OK && o->json) {
        print_comparison_json(&c);
    } else if (code == EXIT_OK) {
        print_comparison(&c);
    }
    for (int i = 0; i < N_SAVINGS; i++) { qrun_free(c.entries[i]); }
    return code;
}

int finetune_show_plan(const finetune_options *o, const engine *e) {
    text_buffer modules = {0};
    qrun_train_params params = finetune_train_params(o, &modules);
    qrun_model_params model = finetune_model_params(o);
    const int code = o->compare ? compare(o, e, &model, &params) : show_one(o, e, &model, &params);
    text_free(&modules);
    return code;
}

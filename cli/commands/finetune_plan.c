#include "cli/commands/finetune_plan.h"

#include <stdio.h>

#include "cli/commands/finetune_compare.h"
#include "cli/commands/fit_models.h"
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

/* What --fit found: a size, or a model. */
typedef struct fit_answer {
    qrun_fit_result size;
    fit_models models;
} fit_answer;

typedef struct training_plan {
    qrun_context *context;
    const qrun_train_params *params;
} training_plan;

static qrun_status plan_model(const void *arg, const qrun_model_params *model, qrun_plan_entry **entries,
                              int32_t *n_entries, qrun_plan_info *info, qrun_error *error) {
    const training_plan *p = arg;
    return qrun_plan_training(p->context, model, p->params, entries, n_entries, NULL, info, error);
}

/* The plan is then that of the answer or, where nothing fits, of the smallest. */
static int fit(const finetune_options *o, const engine *e, qrun_model_params *model, qrun_train_params *params,
               fit_answer *answer) {
    qrun_error error = QRUN_ERROR_INIT;
    const qrun_fit what = (qrun_fit)o->fit;
    if (o->fit == FIT_NOTHING) { return EXIT_OK; }
    if (o->fit == FIT_MODEL) {
        const training_plan plan = {e->context, params};
        return fit_models_find(o->engine.shape, plan_model, &plan, model, &answer->models);
    }
    if (qrun_fit_training(e->context, model, params, what, &answer->size, &error) != QRUN_OK) {
        return complain_error(&error);
    }
    const int64_t largest = answer->size.largest;
    set_fitted(params, what, largest > 0 ? largest : what == QRUN_FIT_CONTEXT ? 2 : 1);
    return EXIT_OK;
}

static void print_fit(const finetune_options *o, const fit_answer *answer) {
    const char *what = option_choice_name(fit_choices, o->fit);
    if (o->fit == FIT_NOTHING) { return; }
    if (o->fit == FIT_MODEL) {
        (o->json ? fit_models_print_json : fit_models_print)(&answer->models);
    } else {
        (o->json ? plan_report_print_fit_json : plan_report_print_fit)(what, &answer->size);
    }
}

static void print(const finetune_options *o, const plan_report *report, const char *policy, const fit_answer *answer,
                  const text_buffer *ranks) {
    text_buffer out = {0};
    if (!o->json) {
        print_fit(o, answer);
        printf("activation checkpointing: %s\n", policy);
        plan_report_print(report);
        if (ranks->size > 0) { printf("%s", ranks->data); }
        return;
    }
    plan_report_json(report, &out);
    printf("{");
    print_fit(o, answer);
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

/* The plan of the rank that needs the most; its entries are not kept. */
static bool plan_fullest(const engine *e, const qrun_model_params *model, const qrun_train_params *params,
                         qrun_plan_info *info) {
    qrun_plan_entry *entries = NULL;
    int32_t n_entries;
    qrun_train_params wanted = *params;
    wanted.ranks.plan_rank = QRUN_AUTO;
    *info = (qrun_plan_info)QRUN_PLAN_INFO_INIT;
    (void)qrun_plan_training(e->context, model, &wanted, &entries, &n_entries, NULL, info, NULL);
    qrun_free(entries);
    return entries != NULL;
}

/* Where ranks send the gradients of each batch, and sums of neighbouring ones would be fewer: what that would save.
 * Those are for numbers of ranks that are powers of two. */
static void advise_sums(const finetune_options *o, const engine *e, const qrun_model_params *model,
                        const qrun_train_params *params, text_buffer *out) {
    const int32_t n_ranks = params->ranks.n_ranks;
    qrun_train_params summed = *params;
    qrun_plan_info now, then;
    if (n_ranks < 2 || (n_ranks & (n_ranks - 1)) != 0 || params->batches.grad_sums > 1 ||
        params->batches.grad_accum <= n_ranks) {
        return;
    }
    summed.batches.grad_sums = n_ranks;
    if (!plan_fullest(e, model, params, &now) || !plan_fullest(e, model, &summed, &then)) { return; }
    if (then.sent_bytes >= now.sent_bytes) { return; }
    if (o->json) {
        text_format(out, ", \"with_grad_sums\": {\"grad_sums\": %d, \"sent_bytes\": %lld, \"total_bytes\": %lld}",
                    (int)n_ranks, (long long)then.sent_bytes, (long long)then.total_bytes);
        return;
    }
    text_format(
        out,
        "  With --grad-sums %d a rank would send %s a step, and take %s in all. The result differs in its last bits.\n",
        (int)n_ranks, size_text(then.sent_bytes).text, size_text(then.total_bytes).text);
}

static int show_planned(const finetune_options *o, const engine *e, const qrun_model_params *model,
                        const qrun_train_params *params, const fit_answer *answer) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries = 0;
    char *policy = NULL;
    text_buffer ranks = {0};
    (void)qrun_plan_training(e->context, model, params, &entries, &n_entries, &policy, &info, &error);
    if (entries == NULL) { return complain_error(&error); }
    const plan_report report = {entries, n_entries, o->engine.model.memory_bytes, &info, &error};
    int code = describe_ranks(o, e, model, params, &ranks);
    if (code == EXIT_OK) {
        advise_sums(o, e, model, params, &ranks);
        print(o, &report, policy, answer, &ranks);
        code = plan_report_code(&report);
    }
    text_free(&ranks);
    qrun_free(entries);
    qrun_free(policy);
    return code;
}

static int show_one(const finetune_options *o, const engine *e, qrun_model_params *model, qrun_train_params *params) {
    fit_answer answer = {.size = QRUN_FIT_RESULT_INIT};
    if (params->ranks.n_ranks > 0) { params->ranks.plan_rank = QRUN_AUTO; }
    int code = fit(o, e, model, params, &answer);
    if (code == EXIT_OK) { code = show_planned(o, e, model, params, &answer); }
    fit_models_free(&answer.models);
    return code;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

int finetune_show_plan(const finetune_options *o, const engine *e) {
    text_buffer modules = {0};
    qrun_train_params params = finetune_train_params(o, &modules);
    qrun_model_params model = finetune_model_params(o);
    const int code = o->compare ? finetune_compare(o, e, &model, &params) : show_one(o, e, &model, &params);
    text_free(&modules);
    return code;
}

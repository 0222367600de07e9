/* Planning backwards: the sizes of a run that are made as large as its memory allows. What fits is what the plan of the
 * run says, so an answer is as exact as the plan. */
#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/model/model_open.h"
#include "runtime/train/trainer.h"

enum { MIN_SEQ_TOKENS = 2, MAX_SEQ_TOKENS = 1 << 20, MAX_BATCH_ROWS = 4096 };

/* ---- Any run ----------------------------------------------------------------------------------------------------- */

typedef struct run_search {
    qrun_context *context;
    const qrun_model_params *model_params;
    qrun_train_params params;
    qrun_fit what;
} run_search;

static void set_size(run_search *search, int64_t n) {
    switch (search->what) {
        case QRUN_FIT_CONTEXT: search->params.batches.seq_len = (int32_t)n; return;
        case QRUN_FIT_BATCH: search->params.batches.batch_size = (int32_t)n; return;
        case QRUN_FIT_RANK: search->params.lora.rank = (int32_t)n; return;
    }
}

/* The plan is made once more with the error where it is no question of memory: without one, it is spared the search for
 * what would fit. */
static qrun_status run_fits(void *arg, int64_t n, bool *fits, qr_error *err) {
    run_search *search = arg;
    qrun_plan_entry *entries = NULL;
    int32_t n_entries;
    set_size(search, n);
    qrun_status status = qrun_plan_training(search->context, search->model_params, &search->params, &entries,
                                            &n_entries, NULL, NULL, NULL);
    qrun_free(entries);
    *fits = status == QRUN_OK;
    if (status == QRUN_OK || status == QRUN_ERROR_MEMORY) { return QRUN_OK; }
    status = qrun_plan_training(search->context, search->model_params, &search->params, &entries, &n_entries, NULL,
                                NULL, err);
    qrun_free(entries);
    return status;
}

qrun_status qrun_fit_training(qrun_context *context, const qrun_model_params *model_params,
                              const qrun_train_params *params, qrun_fit what, qrun_fit_result *result,
                              qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_fit_result, result, error));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_train_params, params, error));
    const qr_range range = {.name = "what to fit", .value = (double)what, .high = QRUN_FIT_RANK};
    QR_RETURN_IF_ERROR(qr_check_ranges(&range, 1, error));
    run_search search = {context, model_params, *params, what};
    int64_t low = 1;
    result->limit = what == QRUN_FIT_BATCH ? MAX_BATCH_ROWS : QR_MAX_LORA_RANK;
    if (what == QRUN_FIT_CONTEXT) {
        QR_RETURN_IF_ERROR(qr_model_read_context(context, model_params, &result->limit, error));
        result->limit = qr_min(result->limit, MAX_SEQ_TOKENS);
        low = MIN_SEQ_TOKENS;
    }
    QR_RETURN_IF_ERROR(qr_plan_largest(low, result->limit, run_fits, &search, &result->largest, error));
    if (result->largest < low) { result->largest = 0; }
    return QRUN_OK;
}

/* ---- A run that begins ------------------------------------------------------------------------------------------- */

typedef struct size_search {
    qrun_trainer *probe; /* only planned with */
    const qrun_train_params *params;
    bool rows; /* else tokens of a row */
} size_search;

static void set_sizes(qr_train_settings *s, int64_t seq_tokens, int64_t batch_size) {
    s->seq_tokens = seq_tokens;
    s->batch_size = batch_size;
    if (!s->has_batch_tokens) { s->batch_tokens = seq_tokens * batch_size; }
}

static qrun_status size_fits(void *arg, int64_t n, bool *fits, qr_error *err) {
    const size_search *search = arg;
    qr_train_settings *s = &search->probe->settings;
    set_sizes(s, search->rows ? s->seq_tokens : n, search->rows ? n : s->batch_size);
    qrun_status status = qr_trainer_plan_memory(search->probe, search->params, NULL);
    *fits = status == QRUN_OK;
    if (status != QRUN_OK && status != QRUN_ERROR_MEMORY) {
        status = qr_trainer_plan_memory(search->probe, search->params, err);
    }
    return status == QRUN_ERROR_MEMORY ? QRUN_OK : status;
}

/* From `low` to `high`, whichever fits; `low` where none does, and the run's own plan refuses it then. */
static qrun_status choose_size(qrun_trainer *trainer, const qrun_train_params *params, bool rows, int64_t low,
                               int64_t high, int64_t *n, qr_error *err) {
    qrun_trainer *probe = qr_alloc_zeroed(sizeof *probe);
    if (probe == NULL) { return qr_fail_memory(err, "the plan", sizeof *probe); }
    probe->model = trainer->model;
    probe->settings = trainer->settings;
    probe->dataset = trainer->dataset;
    probe->eval_dataset = trainer->eval_dataset;
    size_search search = {probe, params, rows};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_trainer_describe_parameters(probe, err));
    QR_TRY(qr_plan_largest(low, qr_max(low, high), size_fits, &search, n, err));
    *n = qr_max(*n, low);
out:
    qr_parameters_destroy(&probe->parameters);
    qr_free(probe);
    return status;
}

qrun_status qr_trainer_choose_seq_tokens(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    qr_train_settings *s = &trainer->settings;
    if (!s->auto_seq_tokens) { return QRUN_OK; }
    const int64_t high = qr_min(trainer->model->shape.context_tokens, MAX_SEQ_TOKENS);
    int64_t n;
    QR_RETURN_IF_ERROR(choose_size(trainer, params, false, MIN_SEQ_TOKENS, high, &n, err));
    set_sizes(s, n, s->batch_size);
    return QRUN_OK;
}

static int64_t longest_example(const qrun_trainer *trainer) {
    const qr_dataset *eval = trainer->eval_dataset;
    const int64_t trained = qr_dataset_get_info(trainer->dataset)->longest_tokens;
    return eval != NULL ? qr_max(trained, qr_dataset_get_info(eval)->longest_tokens) : trained;
}

/* Rows that the first epoch has for a micro-batch: nothing would fill more. */
static qrun_status count_useful_rows(const qrun_trainer *trainer, int64_t *n_rows, qr_error *err) {
    qr_batch_options options = qr_trainer_batch_options(trainer, true);
    qr_epoch_batches *batches = NULL;
    *n_rows = MAX_BATCH_ROWS;
    if (trainer->dataset == NULL) { return QRUN_OK; }
    options.batch_rows = options.n_accumulate = 1;
    QR_RETURN_IF_ERROR(qr_epoch_batches_create(&trainer->view, &options, 0, &batches, err));
    *n_rows = qr_min(MAX_BATCH_ROWS, qr_ceil_div(qr_epoch_batches_count_steps(batches), trainer->settings.grad_accum));
    qr_epoch_batches_destroy(batches);
    return QRUN_OK;
}

qrun_status qr_trainer_choose_batch(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    qr_train_settings *s = &trainer->settings;
    if (s->auto_seq_tokens && trainer->dataset != NULL) { /* no longer than anything needs */
        set_sizes(s, qr_max(MIN_SEQ_TOKENS, qr_min(s->seq_tokens, longest_example(trainer))), s->batch_size);
    }
    if (!s->auto_batch_size) { return QRUN_OK; }
    int64_t n, n_useful;
    QR_RETURN_IF_ERROR(count_useful_rows(trainer, &n_useful, err));
    QR_RETURN_IF_ERROR(choose_size(trainer, params, true, 1, n_useful, &n, err));
    set_sizes(s, s->seq_tokens, n);
    return QRUN_OK;
}

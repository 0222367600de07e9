/* The examples of a run: its data sets, the part set aside for evaluation, the batches of an epoch, and the number of
 * steps. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

static qrun_status open_dataset(qrun_trainer *trainer, const qrun_train_params *params, const char *path,
                                qr_dataset **dataset, qr_error *err) {
    const qrun_model *model = trainer->model;
    char *cache = params->data.cache_folder != NULL ? qr_strdup(params->data.cache_folder)
                                                    : qr_path_join(trainer->settings.out, QR_TOKENS_FOLDER);
    if (cache == NULL) { return qr_fail_memory(err, "a path", strlen(path)); }
    const qr_dataset_options options = {.path = path,
                                        .cache_folder = cache,
                                        .model_folder = model->folder,
                                        .seq_len = trainer->settings.seq_tokens,
                                        .skip_bad = params->data.skip_bad,
                                        .now = trainer->settings.now,
                                        .threads = model->context->threads,
                                        .progress = trainer->progress,
                                        .progress_user = trainer->progress_user};
    const qrun_status status =
        qr_dataset_open(&options, model->tokenizer->tokenizer, model->tokenizer->chat_template, dataset, err);
    qr_free(cache);
    return status;
}

qr_batch_options qr_trainer_batch_options(const qrun_trainer *trainer, bool shuffle) {
    const qr_train_settings *s = &trainer->settings;
    return (qr_batch_options){.mode = s->batching,
                              .row_tokens = s->seq_tokens,
                              .batch_rows = s->batch_size,
                              .batch_tokens = s->batch_tokens,
                              .n_accumulate = s->grad_accum,
                              .shuffle = shuffle,
                              .seed = s->seed};
}

qrun_status qr_trainer_plan_epoch(qrun_trainer *trainer, int64_t epoch, qr_error *err) {
    if (trainer->epoch_plan != NULL && trainer->planned_epoch == epoch) { return QRUN_OK; }
    const qr_batch_options options = qr_trainer_batch_options(trainer, true);
    qr_batch_plan *plan;
    QR_RETURN_IF_ERROR(trainer->loader != NULL
                           ? qr_train_loader_plan_epoch(trainer->loader, &trainer->view, &options, epoch, &plan, err)
                           : qr_batch_plan_create(&trainer->view, &options, epoch, &plan, err));
    qr_batch_plan_destroy(trainer->epoch_plan);
    trainer->epoch_plan = plan;
    trainer->planned_epoch = epoch;
    return QRUN_OK;
}

/* Steps in n_epochs; a fraction counts by its share of the last epoch's steps. */
static qrun_status count_steps(qrun_trainer *trainer, double n_epochs, int64_t *n_steps, qr_error *err) {
    const int64_t whole = (int64_t)n_epochs;
    *n_steps = 0;
    for (int64_t epoch = 0; epoch <= whole; epoch++) {
        QR_RETURN_IF_ERROR(qr_trainer_plan_epoch(trainer, epoch, err));
        const int64_t n = qr_batch_plan_windows(trainer->epoch_plan);
        *n_steps += epoch < whole ? n : (int64_t)((n_epochs - (double)whole) * (double)n + 0.5);
    }
    *n_steps = qr_max(*n_steps, 1);
    return QRUN_OK;
}

static qrun_status choose_views(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    trainer->view = qr_dataset_view_all(trainer->dataset);
    if (s->eval_fraction > 0) {
        return qr_dataset_split(trainer->dataset, s->eval_fraction, s->seed, &trainer->view, &trainer->eval_view, err);
    }
    if (params->data.eval_data == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(open_dataset(trainer, params, params->data.eval_data, &trainer->eval_dataset, err));
    trainer->eval_view = qr_dataset_view_all(trainer->eval_dataset);
    return QRUN_OK;
}

/* Every example fits a micro-batch. */
static qrun_status check_room(const qrun_trainer *trainer, const qr_dataset *dataset, qr_error *err) {
    const int64_t longest = dataset != NULL ? qr_dataset_get_info(dataset)->longest_tokens : 0;
    if (longest <= trainer->settings.batch_tokens) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "an example has %lld tokens and a batch has room for %lld; give a larger `batch_tokens`, or a "
                   "`seq_len` of at most %lld to cut examples",
                   (long long)longest, (long long)trainer->settings.batch_tokens,
                   (long long)trainer->settings.batch_tokens);
}

qrun_status qr_trainer_open_data(qrun_trainer *trainer, const qrun_train_params *params, qr_error *err) {
    const qr_train_settings *s = &trainer->settings;
    if (!params->data.random_tokens && trainer->model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so it cannot be trained on text",
                       trainer->model->folder);
    }
    if (params->data.random_tokens) {
        QR_RETURN_IF_ERROR(qr_dataset_create_random(s->batch_size * s->grad_accum, s->seq_tokens,
                                                    trainer->model->shape.vocab, s->seed, &trainer->dataset, err));
        trainer->view = qr_dataset_view_all(trainer->dataset);
    } else {
        QR_RETURN_IF_ERROR(open_dataset(trainer, params, params->data.train_data, &trainer->dataset, err));
        QR_RETURN_IF_ERROR(choose_views(trainer, params, err));
        QR_RETURN_IF_ERROR(check_room(trainer, trainer->dataset, err));
        QR_RETURN_IF_ERROR(check_room(trainer, trainer->eval_dataset, err));
    }
    trainer->total_steps = s->max_steps;
    if (s->max_steps == 0) { QR_RETURN_IF_ERROR(count_steps(trainer, s->epochs, &trainer->total_steps, err)); }
    trainer->warmup_steps =
        s->warmup < 1.0 ? (int64_t)ceil(s->warmup * (double)trainer->total_steps) : (int64_t)s->warmup;
    return QRUN_OK;
}

/* The examples of a run: its data sets, the part set aside for evaluation, the batches of an epoch, and the number of
 * steps. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

static qrun_status open_file(qrun_trainer *trainer, const qrun_train_params *params, const char *path,
                             qr_dataset **dataset, qr_error *err) {
    const qrun_model *model = trainer->model;
    char *cache = params->data.cache_folder != NULL ? qr_strdup(params->data.cache_folder)
                                                    : qr_path_join(trainer->settings.out, QR_TOKENS_FOLDER);
    if (cache == NULL) { return qr_fail_memory(err, "a path", strlen(path)); }
    static const qr_file_form forms[] = {
        [QRUN_FORMAT_AUTO] = QR_FORM_AUTO, [QRUN_FORMAT_JSON] = QR_FORM_JSON,
        [QRUN_FORMAT_CSV] = QR_FORM_CSV,   [QRUN_FORMAT_TSV] = QR_FORM_TSV,
        [QRUN_FORMAT_TEXT] = QR_FORM_TEXT, [QRUN_FORMAT_PARAGRAPHS] = QR_FORM_PARAGRAPHS};
    const qr_dataset_options options = {.path = path,
                                        .form = forms[params->data.format],
                                        .columns = params->data.columns,
                                        .cache_folder = cache,
                                        .model_folder = model->folder,
                                        .seq_len = trainer->settings.seq_tokens,
                                        .preferences = qr_preference_has_pairs(&trainer->settings.preference),
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

static qrun_status open_files(qrun_trainer *trainer, const qrun_train_params *params, const char *const *paths,
                              int32_t n_paths, qr_dataset **dataset, qr_error *err) {
    for (int32_t i = 0; i < n_paths; i++) {
        qr_dataset *file = NULL;
        QR_RETURN_IF_ERROR(open_file(trainer, params, paths[i], &file, err));
        const qrun_status status = i > 0 ? qr_dataset_append(*dataset, file, err) : QRUN_OK;
        if (i == 0) { *dataset = file; }
        if (status != QRUN_OK) {
            qr_dataset_close(file);
            return status;
        }
    }
    return QRUN_OK;
}

qr_batch_options qr_trainer_batch_options(const qrun_trainer *trainer, bool trains) {
    const qr_train_settings *s = &trainer->settings;
    return (qr_batch_options){.mode = s->batching,
                              .row_tokens = s->seq_tokens,
                              .batch_rows = s->batch_size,
                              .batch_tokens = s->batch_tokens,
                              .n_accumulate = s->grad_accum,
                              .shuffle = trains,
                              .seed = s->seed,
                              .shares = trains ? trainer->shares : NULL};
}

qrun_status qr_trainer_make_batches(qrun_trainer *trainer, int64_t epoch, qr_error *err) {
    if (trainer->epoch_batches != NULL && trainer->batches_epoch == epoch) { return QRUN_OK; }
    const qr_batch_options options = qr_trainer_batch_options(trainer, true);
    qr_epoch_batches *batches;
    QR_RETURN_IF_ERROR(trainer->loader != NULL
                           ? qr_train_loader_take_epoch(trainer->loader, &trainer->view, &options, epoch, &batches, err)
                           : qr_epoch_batches_create(&trainer->view, &options, epoch, &batches, err));
    qr_epoch_batches_destroy(trainer->epoch_batches);
    trainer->epoch_batches = batches;
    trainer->batches_epoch = epoch;
    return QRUN_OK;
}

/* Steps in n_epochs; a fraction counts by its share of the last epoch's steps. */
static qrun_status count_steps(qrun_trainer *trainer, double n_epochs, int64_t *n_steps, qr_error *err) {
    const int64_t whole = (int64_t)n_epochs;
    *n_steps = 0;
    for (int64_t epoch = 0; epoch <= whole; epoch++) {
        QR_RETURN_IF_ERROR(qr_trainer_make_batches(trainer, epoch, err));
        const int64_t n = qr_epoch_batches_count_steps(trainer->epoch_batches);
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
    if (params->data.n_eval_data == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        open_files(trainer, params, params->data.eval_data, params->data.n_eval_data, &trainer->eval_dataset, err));
    trainer->eval_view = qr_dataset_view_all(trainer->eval_dataset);
    return QRUN_OK;
}

/* What the files and the first epoch have. Needs the view and the shares. */
static qrun_status describe_files(qrun_trainer *trainer, qr_error *err) {
    const qr_dataset *dataset = trainer->dataset;
    const int64_t n_files = qr_dataset_count_files(dataset);
    trainer->files = qr_alloc_array_zeroed((size_t)n_files, sizeof *trainer->files);
    if (trainer->files == NULL) { return qr_fail_memory(err, "the files", (size_t)n_files * sizeof *trainer->files); }
    for (int64_t k = 0; k < trainer->view.n; k++) {
        trainer->files[qr_dataset_file_of(dataset, qr_dataset_view_index(&trainer->view, k))].n_examples++;
    }
    for (int64_t f = 0; f < n_files; f++) {
        const qr_dataset_file file = qr_dataset_get_file(dataset, f);
        qrun_train_file *described = &trainer->files[f];
        described->path = file.path;
        described->data_format = qr_dataset_format_name((qr_dataset_format)file.info->format);
        described->n_epoch_examples =
            trainer->shares != NULL ? qr_shares_count_of(trainer->shares, f) : described->n_examples;
        described->unknown_members = file.info->unknown_members;
        described->unknown_line = file.info->unknown_line;
    }
    const int64_t n = trainer->shares != NULL ? qr_shares_count(trainer->shares) : trainer->view.n;
    for (int64_t k = 0; k < n; k++) {
        const qr_example example =
            qr_dataset_get(dataset, trainer->shares != NULL ? qr_shares_index(trainer->shares, 0, k)
                                                            : qr_dataset_view_index(&trainer->view, k));
        trainer->n_epoch_tokens += example.n_tokens;
        trainer->n_epoch_targets += example.n_targets;
    }
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
    QR_RETURN_IF_ERROR(qr_trainer_choose_seq_tokens(trainer, params, err));
    if (!params->data.random_tokens && trainer->model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so it cannot be trained on text",
                       trainer->model->folder);
    }
    if (params->data.random_tokens) {
        QR_RETURN_IF_ERROR(qr_trainer_choose_batch(trainer, params, err));
        QR_RETURN_IF_ERROR(qr_dataset_create_random(s->batch_size * s->grad_accum, s->seq_tokens,
                                                    trainer->model->shape.vocab, s->seed,
                                                    qr_preference_has_pairs(&s->preference), &trainer->dataset, err));
        trainer->view = qr_dataset_view_all(trainer->dataset);
    } else {
        QR_RETURN_IF_ERROR(
            open_files(trainer, params, params->data.train_data, params->data.n_train_data, &trainer->dataset, err));
        QR_RETURN_IF_ERROR(choose_views(trainer, params, err));
        if (params->data.n_data_weights > 0) {
            QR_RETURN_IF_ERROR(
                qr_shares_create(&trainer->view, params->data.data_weights, s->seed, &trainer->shares, err));
        }
        QR_RETURN_IF_ERROR(qr_trainer_choose_batch(trainer, params, err));
        QR_RETURN_IF_ERROR(check_room(trainer, trainer->dataset, err));
        QR_RETURN_IF_ERROR(check_room(trainer, trainer->eval_dataset, err));
    }
    QR_RETURN_IF_ERROR(describe_files(trainer, err));
    trainer->total_steps = s->max_steps;
    if (s->max_steps == 0) { QR_RETURN_IF_ERROR(count_steps(trainer, s->epochs, &trainer->total_steps, err)); }
    trainer->warmup_steps = qr_trainer_warmup_steps(trainer, trainer->total_steps);
    return QRUN_OK;
}

int64_t qr_trainer_warmup_steps(const qrun_trainer *trainer, int64_t n_steps) {
    const double warmup = trainer->settings.warmup;
    return warmup < 1.0 ? (int64_t)ceil(warmup * (double)n_steps) : (int64_t)warmup;
}

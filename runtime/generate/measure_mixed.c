/* How much the quantisation of each matrix moves a model's predictions: the text is run through the unquantised model,
 * then again for each matrix, with this one replaced by what its NF4_DQ codes decode to. The op `linear` rounds weights
 * to the compute type after it has decoded them, so these values, held in that type, give what the codes would.
 *
 * What is told of a matrix is the mean Kullback-Leibler divergence of the predictions, and the difference of the loss.
 * The divergence is the difference that the loss would have on average over all continuations, each as likely as the
 * model says. It is never negative, and of second order in the error. The difference on one text is that plus a term of
 * first order, whose mean is near zero where a model was trained, and whose spread is larger: see docs/formats.md. */
#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/source/model_source.h"
#include "quant/nf4.h"
#include "runtime/generate/scored_text.h"
#include "runtime/model/mixed_formats.h"
#include "runtime/model/model_open.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/vocabulary.h"
#include "runtime/model/weight_writer.h"
#include "runtime/sampling/penalties.h"

enum { DEFAULT_TOKENS = 512, STEP_TOKENS = 128, TASK_ROWS = 16 };

typedef struct measurement {
    const qrun_mixed_params *params;
    qrun_mixed *mixed;
    qrun_model *model; /* every matrix in the compute type */
    qr_safetensors *source;
    qrun_session *session;
    int64_t n, vocab;
    int32_t *ids;               /* [n] */
    float *logits;              /* [n, vocab] of the unquantised model */
    double *log_sum, *kl, *nll; /* [n]; log_sum of `logits`, the others of the pass that runs */
    float *values;              /* of a matrix that is decoded, as large as the largest */
    bool is_reference;          /* the pass is that of the unquantised model */
    const qr_mixed_unit *unit;  /* whose matrices are exchanged; NULL: all */
    bool quantises;             /* they are decoded from their codes, or read again */
    int64_t n_done, n_total;    /* tokens, for progress */
} measurement;

/* ---- Exchanging matrices ----------------------------------------------------------------------------------------- */

typedef struct decode_job {
    const qr_host_weight *host;
    float *values;
} decode_job;

static void decode_task(void *arg, int64_t index, int worker) {
    (void)worker;
    const decode_job *job = arg;
    const qr_weight_desc *desc = &job->host->desc;
    const int64_t first = index * TASK_ROWS * desc->cols;
    const int64_t n = qr_min(TASK_ROWS * desc->cols, qr_weight_elements(desc) - first);
    qr_nf4_dequantize(job->host->codes, job->host->absmax, desc->block, first, n, job->values + first);
}

/* The values of a matrix in NF4_DQ, in m->values. */
static qrun_status decode(const measurement *m, const qr_module *module, const qr_row_source *rows, const char *name,
                          qr_error *err) {
    qr_backend *backend = m->model->context->backend;
    const qr_weight_desc desc = {.format = QR_WEIGHT_NF4_DQ,
                                 .block = QR_NF4_BLOCK,
                                 .rows = module->matrix->desc.rows,
                                 .cols = module->matrix->desc.cols};
    qr_host_weight host = {0};
    QR_RETURN_IF_ERROR(qr_weight_quantize_host(backend, &desc, rows, name, &host, err));
    qr_nf4_unnest(host.absmax_codes, host.nested_absmax, host.nested_offset, 0, qr_weight_blocks(&desc), host.absmax);
    decode_job job = {.host = &host, .values = m->values};
    qr_threads_run(backend->threads, qr_ceil_div(desc.rows, TASK_ROWS), decode_task, &job);
    qr_host_weight_free(&host);
    return QRUN_OK;
}

static qrun_status exchange_matrix(void *arg, const qr_module *module, qr_error *err) {
    const measurement *m = arg;
    const qr_mixed_unit *unit = m->unit;
    if (module->matrix == NULL || !qr_role_is_quantised(module->role)) { return QRUN_OK; }
    if (unit != NULL && (module->role != unit->role || module->layer != unit->layer)) { return QRUN_OK; }
    qr_stored_weight stored;
    QR_RETURN_IF_ERROR(qr_module_find_stored(m->model, m->source, module, &stored, err));
    qr_row_source rows = qr_stored_rows(&stored, qr_model_is_transposed(m->model, module->role));
    if (m->quantises) {
        QR_RETURN_IF_ERROR(decode(m, module, &rows, stored.codes->name, err));
        rows = (qr_row_source){.src = (const unsigned char *)m->values, .dtype = QR_DTYPE_F32};
    }
    return qr_weight_write(m->model->context->backend, module->matrix, &rows, stored.codes->name, err);
}

static qrun_status exchange(measurement *m, const qr_mixed_unit *unit, bool quantises, qr_error *err) {
    qr_backend *backend = m->model->context->backend;
    m->unit = unit;
    m->quantises = quantises;
    if (backend->loading_begin != NULL) { QR_RETURN_IF_ERROR(backend->loading_begin(backend, err)); }
    const qrun_status status = qr_model_each_module(m->model, exchange_matrix, m, err);
    if (backend->loading_end != NULL) { backend->loading_end(backend); }
    return status == QRUN_OK ? qr_safetensors_check(m->source, err) : status;
}

/* ---- A pass over the text ---------------------------------------------------------------------------------------- */

typedef struct rows_job {
    measurement *m;
    const float *logits; /* of the pass that runs, [n, vocab] from token `first` on */
    int64_t first;
} rows_job;

static void score_row(void *arg, int64_t index, int worker) {
    (void)worker;
    const rows_job *job = arg;
    measurement *m = job->m;
    const int64_t at = job->first + index;
    const float *row = job->logits + index * m->vocab;
    const double log_sum = qr_log_sum_exp(row, m->vocab);
    if (m->is_reference) { m->log_sum[at] = log_sum; }
    m->nll[at] = at + 1 < m->n ? log_sum - (double)row[m->ids[at + 1]] : 0;
    m->kl[at] = m->is_reference ? 0 : qr_logits_kl(m->logits + at * m->vocab, m->log_sum[at], row, log_sum, m->vocab);
}

static qrun_status take_pass(void *arg, qrun_session *session, int64_t first, int64_t n, qr_error *err) {
    measurement *m = arg;
    const int64_t most = session->sizes.forward.max_logit_rows;
    for (int64_t at = 0; at < n; at += most) {
        const int64_t n_rows = qr_min(most, n - at);
        float *logits = m->is_reference ? m->logits + (first + at) * m->vocab : session->logits;
        QR_RETURN_IF_ERROR(qr_forward_logits(session->forward, at, n_rows, logits, err));
        if (!qr_logits_are_finite(logits, n_rows * m->vocab)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: computes non-finite values; are its weights intact?",
                           m->model->folder);
        }
        rows_job job = {.m = m, .logits = logits, .first = first + at};
        qr_threads_run(m->model->context->backend->threads, n_rows, score_row, &job);
    }
    m->n_done += n;
    return qr_scored_text_progress(m->params->progress, m->params->progress_user, m->n_done, m->n_total, err);
}

static qrun_status run(measurement *m, double *loss, double *kl, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_scored_text_run(m->session, NULL, m->ids, m->n, m->n, take_pass, m, err));
    double sum_nll = 0, sum_kl = 0;
    for (int64_t i = 0; i < m->n; i++) {
        sum_nll += m->nll[i];
        sum_kl += m->kl[i];
    }
    *loss = sum_nll / (double)(m->n - 1);
    *kl = sum_kl / (double)m->n;
    return QRUN_OK;
}

static qrun_status run_all(measurement *m, qr_error *err) {
    qrun_mixed_info *info = &m->mixed->info;
    double none;
    m->n_total = m->n * (info->n_matrices + 2);
    m->is_reference = true;
    QR_RETURN_IF_ERROR(run(m, &info->loss, &none, err));
    m->is_reference = false;
    for (int32_t i = 0; i < info->n_matrices; i++) {
        qr_mixed_unit *unit = &m->mixed->units[i];
        double loss;
        QR_RETURN_IF_ERROR(exchange(m, unit, true, err));
        QR_RETURN_IF_ERROR(run(m, &loss, &unit->matrix.kl, err));
        unit->matrix.loss_difference = loss - info->loss;
        QR_RETURN_IF_ERROR(exchange(m, unit, false, err));
    }
    QR_RETURN_IF_ERROR(exchange(m, NULL, true, err));
    return run(m, &info->nf4_loss, &info->nf4_kl, err);
}

/* ---- What it needs ----------------------------------------------------------------------------------------------- */

static qrun_status check_params(const qrun_mixed_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_mixed_params, params, err));
    if (params->path == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "no model path was given"); }
    if (params->max_tokens < 0 || params->budget_bytes < 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`max_tokens` and `budget_bytes` cannot be negative");
    }
    if (params->text != NULL || params->token_ids != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "`quant=mixed` needs `text`, one like those that the model will read: what quantising each matrix "
                   "costs is measured on it");
}

/* A tenth of the least is what an eighth or so of all matrices take besides. */
static qrun_status choose_budget(qrun_mixed *mixed, int64_t asked, qr_error *err) {
    qrun_mixed_info *info = &mixed->info;
    info->budget_bytes = asked > 0 ? asked : info->least_bytes + info->least_bytes / 10;
    if (info->budget_bytes >= info->least_bytes) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: `budget_bytes` is %s, and with every linear layer in nf4-dq its weights take %s; those of "
                   "`quant=mixed` take more",
                   mixed->folder, qr_format_bytes(info->budget_bytes).text, qr_format_bytes(info->least_bytes).text);
}

/* What there is to measure, from the description of the model alone. */
static qrun_status describe(measurement *m, qrun_context *context, qr_error *err) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = m->params->path;
    qrun_model model;
    qr_safetensors *source = NULL;
    qrun_status status = qr_model_prepare(context, &params, &model, &source, err);
    if (status != QRUN_OK) { goto out; }
    QR_TRY(qr_source_require_folder(model.folder, "measuring mixed formats", err));
    if (qr_quantization_is_kept(&model.config.quantization)) {
        QR_TRY(qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: is already quantised; measure the original model instead",
                       model.folder));
    }
    if (model.prequantized) { /* MXFP4, which is decoded for this */
        qr_safetensors_close(source);
        qr_model_release(&model);
        source = NULL;
        params.quant = QRUN_QUANT_NF4_DQ;
        QR_TRY(qr_model_prepare(context, &params, &model, &source, err));
    }
    QR_TRY(qr_mixed_create(&model, m->params->raise_to, &m->mixed, err));
    QR_TRY(choose_budget(m->mixed, m->params->budget_bytes, err));
out:
    qr_safetensors_close(source);
    qr_model_release(&model);
    return status;
}

static bool report_loading(void *user, int64_t done, int64_t total) {
    const qrun_mixed_params *params = user;
    (void)done, (void)total;
    return params->progress == NULL || params->progress(params->progress_user, 0, 0);
}

static qrun_status open_model(measurement *m, qrun_context *context, qr_error *err) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = m->params->path;
    params.dtype = m->params->dtype;
    params.quant = params.dtype == QRUN_DTYPE_F32   ? QRUN_QUANT_F32
                   : params.dtype == QRUN_DTYPE_F16 ? QRUN_QUANT_F16
                                                    : QRUN_QUANT_BF16;
    params.progress = report_loading;
    params.progress_user = (void *)(uintptr_t)m->params;
    QR_RETURN_IF_ERROR(qrun_model_open(context, &params, &m->model, err));
    return qr_source_open_tensors(m->model->folder, &m->source, err);
}

static qrun_status take_ids(measurement *m, const int32_t *ids, int64_t n, qr_error *err) {
    const qrun_model *model = m->model;
    const int64_t asked = m->params->max_tokens > 0 ? m->params->max_tokens : DEFAULT_TOKENS;
    m->n = qr_min(n, qr_min(asked, model->shape.context_tokens));
    if (m->n < 2) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "there is nothing to measure on: a text needs at least two tokens");
    }
    m->ids = qr_alloc_array((size_t)m->n, sizeof *m->ids);
    if (m->ids == NULL) { return qr_fail_memory(err, "the text's tokens", (unsigned long long)m->n * sizeof *m->ids); }
    for (int64_t i = 0; i < m->n; i++) {
        m->ids[i] = ids[i];
        QR_RETURN_IF_ERROR(qr_token_id_check(model, ids[i], i, "text", err));
    }
    m->mixed->info.n_tokens = (int32_t)m->n;
    return QRUN_OK;
}

static qrun_status make_ids(measurement *m, qr_error *err) {
    const qrun_mixed_params *params = m->params;
    if (params->token_ids != NULL) { return take_ids(m, params->token_ids, params->n_token_ids, err); }
    qr_tokens tokens = {0};
    qrun_status status = qr_scored_text_encode(m->model, params->text, params->text_bytes, &tokens, err);
    if (status == QRUN_OK) { status = take_ids(m, tokens.ids, (int64_t)tokens.n, err); }
    qr_tokens_free(&tokens);
    return status;
}

static qrun_status find_largest(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    int64_t *largest = arg;
    if (module->matrix == NULL || !qr_role_is_quantised(module->role)) { return QRUN_OK; }
    *largest = qr_max(*largest, qr_weight_elements(&module->matrix->desc));
    return QRUN_OK;
}

static qrun_status make_buffers(measurement *m, qr_error *err) {
    int64_t largest = 0;
    (void)qr_model_each_module(m->model, find_largest, &largest, NULL);
    m->vocab = m->model->shape.vocab;
    m->logits = qr_alloc_array((size_t)m->n, (size_t)m->vocab * sizeof *m->logits);
    m->log_sum = qr_alloc_array((size_t)m->n, 3 * sizeof *m->log_sum);
    m->values = qr_alloc_array((size_t)largest, sizeof *m->values);
    if (m->logits == NULL || m->log_sum == NULL || m->values == NULL) {
        return qr_fail_memory(err, "the text's logits and a matrix",
                              (unsigned long long)(m->n * m->vocab + largest) * sizeof *m->logits);
    }
    m->kl = m->log_sum + m->n;
    m->nll = m->kl + m->n;
    return QRUN_OK;
}

static qrun_status open_session(measurement *m, qr_error *err) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 1;
    params.speculate = "off";
    params.no_prefix_sharing = true; /* of passes with other weights */
    params.max_step_tokens = (int32_t)qr_min(STEP_TOKENS, m->n);
    params.context_tokens = (int32_t)m->n;
    return qrun_session_create(m->model, &params, &m->session, err);
}

static qrun_status measure(measurement *m, qrun_context *context, qr_error *err) {
    QR_RETURN_IF_ERROR(describe(m, context, err));
    QR_RETURN_IF_ERROR(open_model(m, context, err));
    QR_RETURN_IF_ERROR(make_ids(m, err));
    QR_RETURN_IF_ERROR(make_buffers(m, err));
    QR_RETURN_IF_ERROR(open_session(m, err));
    QR_RETURN_IF_ERROR(qr_scored_text_begin(m->session, err));
    const qrun_status status = run_all(m, err);
    qr_scored_text_end(m->session);
    return status == QRUN_OK ? qr_mixed_choose(m->mixed, err) : status;
}

qrun_status qrun_mixed_measure(qrun_context *context, const qrun_mixed_params *params, qrun_mixed **mixed,
                               qrun_error *error) {
    *mixed = NULL;
    QR_RETURN_IF_ERROR(check_params(params, error));
    measurement m = {.params = params};
    const qrun_status status = measure(&m, context, error);
    qrun_session_destroy(m.session);
    qrun_model_destroy(m.model);
    qr_safetensors_close(m.source);
    qr_free(m.ids);
    qr_free(m.logits);
    qr_free(m.log_sum);
    qr_free(m.values);
    if (status == QRUN_OK) {
        *mixed = m.mixed;
    } else {
        qrun_mixed_destroy(m.mixed);
    }
    return status;
}

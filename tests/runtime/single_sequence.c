#include "single_sequence.h"

#include "base/sizes.h"
#include "runtime/layers/layer_recurrent.h"

qrun_status single_sequence_create(qrun_model *model, int64_t max_tokens, int64_t n_tokens, qr_kv_format kv_format,
                                   single_sequence *single, qr_error *err) {
    *single = (single_sequence){.model = model, .max_tokens = max_tokens, .adapter = -1};
    const int64_t n_blocks = qr_ceil_div(max_tokens, QR_KV_PAGE_TOKENS);
    int32_t windows[256];
    for (int32_t g = 0; g < model->n_kv_groups; g++) { windows[g] = model->kv_groups[g].window; }
    const qr_kv_cache_options options = {
        .n_pages = (int32_t)(n_blocks * model->n_kv_groups), .n_groups = model->n_kv_groups, .windows = windows};
    const qr_forward_limits limits = {.max_tokens = max_tokens,
                                      .max_sequences = 1,
                                      .max_blocks = n_blocks,
                                      .max_logit_rows = 1,
                                      .n_rope_slots = 1,
                                      .kv_format = kv_format};
    qr_backend *backend = model->context->backend;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_kv_cache_create(&options, &single->cache, err));
    QR_TRY(qr_kv_sequence_create(single->cache, max_tokens, (qr_kv_key){0}, &single->sequence, err));
    single->pages_bytes = (size_t)options.n_pages * qr_page_bytes(model, kv_format);
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, single->pages_bytes, &single->pages, err));
    single->state_bytes = (size_t)qr_recurrent_state_floats(&model->shape) * sizeof(float);
    if (single->state_bytes > 0) {
        QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, single->state_bytes, &single->state, err));
    }
    QR_TRY(qr_forward_create(model, &limits, single->pages, single->state, &single->forward, err));
    QR_TRY(qr_forward_set_rope(single->forward, 0, n_tokens, max_tokens, err));
out:
    if (status != QRUN_OK) { single_sequence_destroy(single); }
    return status;
}

void single_sequence_destroy(single_sequence *single) {
    if (single->cache != NULL) { qr_kv_sequence_destroy(single->cache, &single->sequence); }
    qr_kv_cache_destroy(single->cache);
    qr_forward_destroy(single->forward);
    qr_backend *backend = single->model->context->backend;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, single->pages, single->pages_bytes);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, single->state, single->state_bytes);
}

qrun_status single_sequence_feed(single_sequence *single, const int32_t *ids, int64_t n, qr_error *err) {
    qr_kv_copy copies[256];
    int32_t n_copies;
    if (!qr_kv_reserve(single->cache, &single->sequence, n, copies, &n_copies)) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "the test's pool is too small");
    }
    const qr_batch_sizes sizes = {.n_tokens = n, .n_sequences = 1, .table_stride = single->sequence.n_blocks};
    qr_batch *batch;
    qrun_status status = qr_forward_begin(single->forward, &sizes, &batch, err);
    if (status != QRUN_OK) { return status; }
    qr_batch_add(batch, &single->sequence, ids, single->sequence.n_tokens, n, 0, single->adapter, 0);
    status = qr_forward_run(single->forward, err);
    if (status == QRUN_OK) { qr_kv_commit(single->cache, &single->sequence, ids, n); }
    return status;
}

qrun_status single_sequence_logits(single_sequence *single, int64_t row, float *logits, qr_error *err) {
    return qr_forward_logits(single->forward, row, 1, logits, err);
}

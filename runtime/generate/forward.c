#include "runtime/generate/forward_internal.h"

#include <stdatomic.h>
#include <string.h>

#include "base/sizes.h"
#include "runtime/layers/layer_recurrent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/rope.h"

/* ---- Host memory that the device reads --------------------------------------------------------------------------- */

static bool *reading_now(qr_forward *f) { return &f->is_reading[f->n_begun % f->n_host]; }

static qrun_status copy_in(qr_forward *f, void *device, const void *host, size_t n_bytes, qr_error *err) {
    *reading_now(f) = true;
    return f->backend->copy_in_async(f->backend, device, host, n_bytes, err);
}

static qrun_status copy_out(qr_forward *f, void *host, const void *device, size_t n_bytes, qr_error *err) {
    const qrun_status status = f->backend->copy_out(f->backend, host, device, n_bytes, err);
    if (status == QRUN_OK) { f->is_reading[0] = f->is_reading[1] = false; }
    return status;
}

static qrun_status sync(qr_forward *f, qr_error *err) {
    const qrun_status status = f->backend->sync(f->backend, err);
    if (status == QRUN_OK) { f->is_reading[0] = f->is_reading[1] = false; }
    return status;
}

/* Until the device has read what host memory holds: what steps do not have in turn is about to be written. */
static qrun_status wait(qr_forward *f, qr_error *err) {
    return f->is_reading[0] || f->is_reading[1] ? sync(f, err) : QRUN_OK;
}

qrun_status qr_forward_set_rope(qr_forward *f, int64_t slot, int64_t n_tokens, int64_t most_tokens, qr_error *err) {
    QR_RETURN_IF_ERROR(wait(f, err));
    for (int kind = 0; kind < f->model->shape.n_rope_kinds; kind++) {
        qr_rope_frequencies(&f->model->config, kind, n_tokens, most_tokens,
                            f->b.host.inv_freq[kind] + slot * f->model->shape.rope_half[kind],
                            f->b.host.rope_factor[kind] + slot);
    }
    const bool none = f->rope_begin == f->rope_end;
    f->rope_begin = none ? slot : qr_min(f->rope_begin, slot);
    f->rope_end = none ? slot + 1 : qr_max(f->rope_end, slot + 1);
    return QRUN_OK;
}

/* The slots set since the last step; those between them are as they were. */
static qrun_status copy_rope(qr_forward *f, qr_error *err) {
    const int64_t first = f->rope_begin, n = f->rope_end - f->rope_begin;
    for (int k = 0; n > 0 && k < f->model->shape.n_rope_kinds; k++) {
        const int64_t half = f->model->shape.rope_half[k];
        QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.inv_freq[k] + first * half, f->b.host.inv_freq[k] + first * half,
                                   (size_t)(n * half) * sizeof(float), err));
        QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.rope_factor[k] + first, f->b.host.rope_factor[k] + first,
                                   (size_t)n * sizeof(float), err));
    }
    f->rope_begin = f->rope_end = 0;
    return QRUN_OK;
}

qrun_status qr_forward_begin(qr_forward *f, const qr_batch_sizes *sizes, qr_batch **batch, qr_error *err) {
    *batch = NULL;
    f->n_begun++;
    /* The step before may be under way: it has the other tables. Who reads the tokens of a step before issuing the
     * second one after it never waits here. */
    if (*reading_now(f)) { QR_RETURN_IF_ERROR(sync(f, err)); }
    (void)qr_batch_lay(sizes, f->model->n_kv_groups, f->b.host_batches[f->n_begun % f->n_host], &f->host);
    (void)qr_batch_lay(sizes, f->model->n_kv_groups, f->b.tables.batch, &f->device);
    *batch = &f->host;
    return QRUN_OK;
}

/* ---- The layers -------------------------------------------------------------------------------------------------- */

qrun_status qr_forward_attend(void *arg, const qr_layer *layer, const qr_heads *heads, qr_error *err) {
    const qr_forward *f = arg;
    const qr_model_shape *s = &f->model->shape;
    const qr_batch *batch = &f->device;
    const qr_batch_sizes *sizes = &batch->sizes;
    const qr_kv_layout layout = qr_kv_group_layout(&f->model->kv_groups[layer->kv_group], f->limits.kv_format);
    unsigned char *pages = f->pages + (size_t)layer->kv_index * qr_kv_layer_bytes(&layout);
    const qr_kv_write_args write = {.layout = layout,
                                    .k = heads->k,
                                    .v = heads->v,
                                    .n_tokens = sizes->n_tokens,
                                    .k_stride = heads->kv_stride,
                                    .v_stride = heads->kv_stride,
                                    .token_page = batch->token_page + layer->kv_group * sizes->n_tokens,
                                    .position = batch->position,
                                    .pages = pages,
                                    .page_stride_bytes = f->page_bytes};
    const qr_attention_args args = {
        .layout = layout,
        .q = heads->q,
        .dst = heads->dst,
        .dst_dtype = f->model->act_dtype,
        .n_tokens = sizes->n_tokens,
        .q_stride = heads->q_stride,
        .n_heads = (int32_t)layer->n_heads,
        .n_seqs = (int32_t)sizes->n_sequences,
        .q_start = batch->q_start,
        .first_position = batch->first_position,
        .block_table = batch->block_table + layer->kv_group * sizes->n_sequences * sizes->table_stride,
        .table_stride = sizes->table_stride,
        .pages = pages,
        .page_stride_bytes = f->page_bytes,
        .scale = s->attn_scale,
        .softcap = s->attn_softcap,
        .window = layer->window,
        .sinks = layer->sinks.weight,
    };
    if (!layer->reads_shared_kv) { QR_RETURN_IF_ERROR(qr_layer_op_kv_write(&f->pass, &write, err)); }
    return qr_layer_op_attention(&f->pass, &args, err);
}

qr_layer_adapters qr_forward_adapters(const qr_forward *f, const qr_lora_factor *table) {
    return (qr_layer_adapters){.table = table,
                               .n_adapters = QR_MAX_ADAPTERS,
                               .max_rank = QR_MAX_LORA_RANK,
                               .row_adapter = f->device.row_adapter};
}

/* The adapters of the step; tells the rows of DoRA from the others, where there are any. */
static void choose_adapters(qr_forward *f) {
    const uint64_t dora = atomic_load(&f->model->dora_adapters);
    int64_t n_dora = 0, n_plain = 0;
    f->pass.adapters = qr_forward_adapters(f, f->host.has_adapters ? f->model->lora_table : NULL);
    if (f->pass.adapters.table == NULL || dora == 0) { return; }
    for (int64_t i = 0; i < f->host.sizes.n_tokens; i++) {
        const int32_t adapter = f->host.row_adapter[i];
        const bool is_dora = adapter >= 0 && (dora >> adapter & 1) != 0, is_plain = adapter >= 0 && !is_dora;
        f->host.row_dora[i] = is_dora ? adapter : -1;
        f->host.row_plain[i] = is_plain ? adapter : -1;
        n_dora += is_dora;
        n_plain += is_plain;
    }
    if (n_dora == 0) { return; }
    f->pass.adapters.row_dora = f->device.row_dora;
    f->pass.adapters.row_plain = n_plain > 0 ? f->device.row_plain : NULL;
}

static qrun_status copy_batch(qr_forward *f, qr_error *err) {
    qr_batch batch;
    const size_t n_bytes = qr_batch_lay(&f->host.sizes, f->model->n_kv_groups, NULL, &batch);
    return copy_in(f, f->b.tables.batch, f->b.host_batches[f->n_begun % f->n_host], n_bytes, err);
}

/* Of the ops so far, none waits for another any more. */
static qrun_status end_ops(qr_forward *f, qr_error *err) {
    return qr_op_list_end(&f->ops, f->backend, f->pass.workspace, err);
}

qrun_status qr_forward_run_layers(qr_forward *f, qr_error *err) {
    qr_layer_pass *pass = &f->pass;
    f->ops.n = 0; /* of a step that failed */
    pass->n_tokens = f->host.sizes.n_tokens;
    pass->sequences = (qr_recurrence){.n_seqs = (int32_t)f->host.sizes.n_sequences,
                                      .start = f->device.q_start,
                                      .first_position = f->device.first_position,
                                      .slot = f->device.state_slot,
                                      .states = f->states,
                                      .state_stride = qr_recurrent_state_floats(&f->model->shape)};
    qr_timeline_part(f->backend, QR_PART_NONE);
    QR_RETURN_IF_ERROR(qr_layer_embed(pass, f->device.ids, f->device.position, err));
    const qr_rope_positions rope = {.inv_freq = f->b.tables.inv_freq,
                                    .factor = f->b.tables.rope_factor,
                                    .slot = f->device.rope_slot,
                                    .position = f->device.position};
    QR_RETURN_IF_ERROR(qr_layer_streams_enter(pass, err));
    QR_RETURN_IF_ERROR(qr_layer_rope_tables(pass, &rope, err));
    for (int64_t l = 0; l < f->model->shape.n_layers; l++) {
        qr_timeline_layer(f->backend, l);
        QR_RETURN_IF_ERROR(qr_layer_stream_use(f->model, f->backend, l, l + 1, err));
        QR_RETURN_IF_ERROR(qr_layer_streams_predict(pass, &f->model->layers[l], err));
        QR_RETURN_IF_ERROR(qr_layer_attention(pass, &f->model->layers[l], err));
        QR_RETURN_IF_ERROR(qr_layer_mlp(pass, &f->model->layers[l], err));
        QR_RETURN_IF_ERROR(qr_layer_streams_correct(pass, &f->model->layers[l], err));
    }
    QR_RETURN_IF_ERROR(qr_layer_streams_leave(pass, err));
    qr_timeline_layer(f->backend, -1);
    qr_timeline_part(f->backend, QR_PART_HEAD);
    return end_ops(f, err);
}

/* The tables of a step that ranks have in common: rank 0's, in host memory. */
static qrun_status share_tables(qr_forward *f, qr_error *err) {
    qr_batch batch;
    const int64_t first = f->rope_begin, n = f->rope_end - f->rope_begin;
    const size_t n_bytes = qr_batch_lay(&f->host.sizes, f->model->n_kv_groups, NULL, &batch);
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, f->b.host_batches[f->n_begun % f->n_host], n_bytes, err));
    for (int k = 0; n > 0 && k < f->model->shape.n_rope_kinds; k++) {
        const int64_t half = f->model->shape.rope_half[k];
        QR_RETURN_IF_ERROR(
            qr_split_share(&f->split, f->b.host.inv_freq[k] + first * half, (size_t)(n * half) * sizeof(float), err));
        QR_RETURN_IF_ERROR(qr_split_share(&f->split, f->b.host.rope_factor[k] + first, (size_t)n * sizeof(float), err));
    }
    return QRUN_OK;
}

qrun_status qr_forward_run(qr_forward *f, qr_error *err) {
    const qr_batch_sizes *sizes = &f->host.sizes;
    const qr_split_command command = {
        .action = QR_SPLIT_RUN,
        .sizes = {sizes->n_tokens, sizes->n_sequences, sizes->n_rows, sizes->n_samples, sizes->table_stride},
        .has_adapters = f->host.has_adapters,
        .first = f->rope_begin,
        .n = f->rope_end - f->rope_begin};
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(share_tables(f, err));
    choose_adapters(f);
    QR_RETURN_IF_ERROR(copy_rope(f, err));
    QR_RETURN_IF_ERROR(copy_batch(f, err));
    return qr_forward_run_layers(f, err);
}

qrun_status qr_forward_copy_pages(qr_forward *f, qr_kv_copy *copies, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_COPY_PAGES, .n = n};
    if (n == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, copies, (size_t)n * sizeof *copies, err));
    for (int64_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(f->backend->copy_within(f->backend, f->pages + (size_t)copies[i].dst * f->page_bytes,
                                                   f->pages + (size_t)copies[i].src * f->page_bytes, f->page_bytes,
                                                   err));
    }
    return QRUN_OK;
}

qrun_status qr_forward_copy_states(qr_forward *f, qr_state_copy *copies, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_COPY_STATES, .n = n};
    const int64_t n_floats = qr_recurrent_state_floats(&f->model->shape);
    if (n == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, copies, (size_t)n * sizeof *copies, err));
    for (int64_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(f->backend->copy_within(f->backend, f->states + copies[i].dst * n_floats,
                                                   f->states + copies[i].src * n_floats,
                                                   (size_t)n_floats * sizeof(float), err));
    }
    return QRUN_OK;
}

/* ---- The output head --------------------------------------------------------------------------------------------- */

qrun_status qr_forward_run_head(qr_forward *f, const float *x, int64_t n, qr_error *err) {
    const qr_model_shape *s = &f->model->shape;
    const bool leads = qr_split_leads(f->model);
    if (!leads && f->model->head_share.all == 0) { return QRUN_OK; } /* rank 0 has the whole head */
    QR_RETURN_IF_ERROR(qr_layer_head(&f->pass, x, n, f->b.selected_normed, f->b.logits, err));
    if (!leads || s->logit_softcap <= 0) { return end_ops(f, err); }
    const qr_softcap_args args = {.x = f->b.logits, .n = n * s->vocab, .cap = s->logit_softcap};
    return qr_layer_op_softcap(&f->pass, &args, err);
}

/* Where ranks share the output head, the others compute their rows of it too. */
static qrun_status lead_head(const qr_forward *f, qr_split_action action, int64_t first, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = action, .first = first, .n = n};
    return f->model->head_share.all > 0 ? qr_split_lead(&f->split, &command, err) : QRUN_OK;
}

qrun_status qr_forward_head(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_ROWS, first, n, err));
    const qr_gather_rows_args args = {.src = f->b.x,
                                      .rows = f->device.rows + first,
                                      .dst = f->b.selected,
                                      .n_rows = n,
                                      .dim = f->model->shape.hidden};
    QR_RETURN_IF_ERROR(qr_layer_op_gather_rows(&f->pass, &args, err));
    return qr_forward_run_head(f, f->b.selected, n, err);
}

qrun_status qr_forward_sample(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    const qr_sample_args args = {.logits = f->b.logits,
                                 .samples = f->device.samples + first,
                                 .dst = f->b.tables.sampled + first,
                                 .n_samples = n,
                                 .vocab = f->model->shape.vocab};
    qr_timeline_phase(f->backend, QR_PHASE_sample);
    return qr_layer_op_sample(&f->pass, &args, err);
}

qrun_status qr_forward_sampled(qr_forward *f, int64_t n, const qr_sampled **sampled, qr_error *err) {
    *sampled = f->b.host.sampled;
    return copy_out(f, f->b.host.sampled, f->b.tables.sampled, (size_t)n * sizeof **sampled, err);
}

bool qr_forward_can_go_ahead(const qr_forward *f) {
    return f->n_host > 1 && !qr_replay_is_timed(&f->replay) && f->model->split.n_ranks == 0 &&
           f->model->stream == NULL && f->processor == NULL;
}

qrun_status qr_forward_sampled_begin(qr_forward *f, int64_t n, qr_sampled_copy *copy, qr_error *err) {
    *copy = (qr_sampled_copy){.sampled = f->b.host_sampled[++f->n_copies_out % f->n_host], .step = f->n_begun};
    return f->backend->copy_out_begin(f->backend, f->b.host_sampled[f->n_copies_out % f->n_host], f->b.tables.sampled,
                                      (size_t)n * sizeof *f->b.tables.sampled, &copy->ticket, err);
}

/* What has been copied in with a step has been read by then. */
qrun_status qr_forward_sampled_end(qr_forward *f, const qr_sampled_copy *copy, qr_error *err) {
    QR_RETURN_IF_ERROR(f->backend->copy_out_end(f->backend, copy->ticket, err));
    if (f->n_begun - copy->step < f->n_host) { f->is_reading[copy->step % f->n_host] = false; }
    return QRUN_OK;
}

qrun_status qr_forward_copy_logits(qr_forward *f, int64_t first, int64_t n, float *logits, qr_error *err) {
    const int64_t vocab = f->model->shape.vocab;
    return copy_out(f, logits, f->b.logits + first * vocab, (size_t)(n * vocab) * sizeof(float), err);
}

qrun_status qr_forward_logits(qr_forward *f, int64_t first, int64_t n, float *logits, qr_error *err) {
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_TOKENS, first, n, err));
    const qrun_status status = qr_forward_run_head(f, f->b.x + first * f->model->shape.hidden, n, err);
    return status == QRUN_OK ? qr_forward_copy_logits(f, 0, n, logits, err) : status;
}

qrun_status qr_forward_run_nll(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    const qr_nll_args args = {.logits = f->b.logits,
                              .target = f->b.tables.targets,
                              .dst = f->b.nll,
                              .n_rows = n,
                              .vocab = f->model->shape.vocab};
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_TOKENS, first, n, err));
    QR_RETURN_IF_ERROR(qr_forward_run_head(f, f->b.x + first * f->model->shape.hidden, n, err));
    return qr_layer_op_nll(&f->pass, &args, err);
}

qrun_status qr_forward_nll(qr_forward *f, int64_t first, const int32_t *targets, int64_t n, float *nll, qr_error *err) {
    const size_t n_bytes = (size_t)n * sizeof(int32_t);
    QR_RETURN_IF_ERROR(wait(f, err));
    memcpy(f->b.host.targets, targets, n_bytes);
    QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.targets, f->b.host.targets, n_bytes, err));
    QR_RETURN_IF_ERROR(qr_forward_run_nll(f, first, n, err));
    return copy_out(f, nll, f->b.nll, (size_t)n * sizeof(float), err);
}

qrun_status qr_forward_hidden(qr_forward *f, int64_t first, int64_t n, float *hidden, qr_error *err) {
    const int64_t dim = f->model->shape.hidden;
    QR_RETURN_IF_ERROR(qr_layer_final_norm(&f->pass, f->b.x + first * dim, n, f->b.selected, QR_DTYPE_F32, err));
    QR_RETURN_IF_ERROR(end_ops(f, err));
    return copy_out(f, hidden, f->b.selected, (size_t)(n * dim) * sizeof(float), err);
}

/* ---- Following rank 0 -------------------------------------------------------------------------------------------- */

/* Sizes are rank 0's, which has made the same forward pass. */
static qrun_status follow_run(qr_forward *f, const qr_split_command *command, qr_error *err) {
    const int64_t *n = command->sizes;
    const qr_batch_sizes sizes = {n[0], n[1], n[2], n[3], n[4]};
    qr_batch *batch;
    QR_RETURN_IF_ERROR(qr_forward_begin(f, &sizes, &batch, err));
    batch->has_adapters = command->has_adapters != 0;
    f->rope_begin = command->first;
    f->rope_end = command->first + command->n;
    return qr_forward_run(f, err);
}

static qrun_status follow_copies(qr_forward *f, int64_t n, qr_error *err) {
    if (n > f->n_copies) { return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 copies more pages than a step has"); }
    return qr_forward_copy_pages(f, f->copies, n, err);
}

static qrun_status follow_state_copies(qr_forward *f, int64_t n, qr_error *err) {
    if (n > f->n_state_copies) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 copies more states than a step has");
    }
    return qr_forward_copy_states(f, f->state_copies, n, err);
}

static qrun_status follow_kept_page(const qr_forward *f, qr_error *err) {
    qr_page_task task = {0};
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, &task, sizeof task, err));
    if (f->store == NULL) { return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 keeps pages, and this rank does not"); }
    return qr_page_store_follow(f->store, &task, err);
}

/* A tell of qr_page_ranks; arg: the forward pass. */
static qrun_status tell_kept_page(void *arg, const qr_page_task *task, qr_error *err) {
    const qr_forward *f = arg;
    const qr_split_command command = {.action = QR_SPLIT_KEEP_PAGE};
    qr_page_task told = *task;
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    return qr_split_share(&f->split, &told, sizeof told, err);
}

void qr_forward_set_store(qr_forward *f, qr_page_store *store) { f->store = store; }

qr_page_ranks qr_forward_page_ranks(const qr_forward *f) {
    return (qr_page_ranks){.ranks = f->split.ranks, .tell = tell_kept_page, .arg = (void *)(uintptr_t)f};
}

qrun_status qr_forward_follow(qr_forward *f, bool *ends, qr_error *err) {
    qr_split_command command = {0};
    *ends = false;
    QR_RETURN_IF_ERROR(qr_broadcast(f->split.ranks, &command, sizeof command, 0, err));
    switch ((qr_split_action)command.action) {
        case QR_SPLIT_RUN: return follow_run(f, &command, err);
        case QR_SPLIT_COPY_PAGES: return follow_copies(f, command.n, err);
        case QR_SPLIT_COPY_STATES: return follow_state_copies(f, command.n, err);
        case QR_SPLIT_HEAD_ROWS: return qr_forward_head(f, command.first, command.n, err);
        case QR_SPLIT_HEAD_TOKENS:
            return qr_forward_run_head(f, f->b.x + command.first * f->model->shape.hidden, command.n, err);
        case QR_SPLIT_KEEP_PAGE: return follow_kept_page(f, err);
        case QR_SPLIT_IDLE: return qr_barrier(f->split.ranks, err);
        case QR_SPLIT_END: *ends = true; return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 announced what does not exist");
}

qrun_status qr_forward_idle(const qr_forward *f, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_IDLE};
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    return f->split.ranks != NULL ? qr_barrier(f->split.ranks, err) : QRUN_OK;
}

void qr_forward_end(const qr_forward *f) {
    const qr_split_command command = {.action = QR_SPLIT_END};
    if (f->split.ranks == NULL || f->split.ranks->lost) { return; }
    (void)qr_split_lead(&f->split, &command, NULL);
    if (f->split.ranks->rank == 0) { qr_collectives_settle(f->split.ranks); }
}

/* ---- Decode steps ------------------------------------------------------------------------------------------------ */

int64_t qr_forward_bucket(int64_t n, int64_t most) {
    const int64_t step = n <= 32 ? 8 : n <= 64 ? 16 : 32;
    const int64_t bucket = n <= 2 ? n : n <= 4 ? 4 : qr_round_up(n, step);
    return qr_min(bucket, most);
}

static int64_t bucket_of_stride(int64_t n, int64_t most) {
    int64_t bucket = 1;
    while (bucket < n) { bucket *= 2; }
    return qr_min(bucket, most);
}

bool qr_forward_decode_sizes(const qr_forward *f, qr_batch_sizes *sizes) {
    const qr_forward_limits *limits = &f->limits;
    const int64_t most = qr_min(limits->max_logit_rows, limits->max_sequences), n = sizes->n_tokens;
    if (!qr_replay_is_possible(&f->replay) || n > most) { return false; }
    const int64_t n_rows = qr_forward_bucket(n, most);
    *sizes =
        (qr_batch_sizes){n_rows, n_rows, n_rows, n_rows, bucket_of_stride(sizes->table_stride, limits->max_blocks)};
    return true;
}

/* All that a replay repeats: not the copy of the tables, which comes from the one or the other place. The rows of the
 * head are those of the layers. */
static qrun_status issue_decode(void *arg, qr_error *err) {
    qr_forward *f = arg;
    const int64_t n = f->host.sizes.n_tokens;
    QR_RETURN_IF_ERROR(qr_forward_run_layers(f, err));
    QR_RETURN_IF_ERROR(qr_forward_run_head(f, f->b.x, n, err));
    return qr_forward_sample(f, 0, n, err);
}

qrun_status qr_forward_decode(qr_forward *f, qr_error *err) {
    choose_adapters(f);
    const qr_layer_adapters *adapters = &f->pass.adapters;
    const int32_t kinds = adapters->table == NULL       ? 0
                          : adapters->row_dora == NULL  ? 1
                          : adapters->row_plain == NULL ? 2
                                                        : 3;
    const qr_replay_key key = {(int32_t)f->host.sizes.n_tokens, (int32_t)f->host.sizes.table_stride, kinds};
    QR_RETURN_IF_ERROR(qr_layer_stream_write_late(f->model, f->backend, f->model->shape.n_layers - 1, err));
    QR_RETURN_IF_ERROR(copy_rope(f, err));
    QR_RETURN_IF_ERROR(copy_batch(f, err));
    return qr_replay_step(&f->replay, &key, issue_decode, f, err);
}

const qr_replay_stats *qr_forward_replays(const qr_forward *f) { return &f->replay.stats; }

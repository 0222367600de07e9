/* The forward part of a training pass, and the pass as a whole. */
#include "runtime/pass/pass_state.h"

#include "base/sizes.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/rope.h"
#include "runtime/pass/lora_parameters.h"

qr_attention_packed_args qr_pass_attention_args(const qr_train_pass *pass, const qr_layer *layer) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_kept_layer *kept = pass->current;
    float *qkv = kept->buffers.qkv;
    return (qr_attention_packed_args){
        .q = qkv,
        .k = qkv + layer->n_heads * layer->head_dim,
        .v = qkv + (layer->n_heads + layer->n_kv_heads) * layer->head_dim,
        .dst = s->attn_gated || qr_model_pads_values(s) ? kept->buffers.ungated : kept->buffers.attended,
        .dst_dtype = pass->model->act_dtype,
        .lse = kept->lse,
        .seq_start = pass->b.seq_start,
        .n_tokens = pass->n_tokens,
        .qkv_stride = qr_qkv_columns(layer),
        .n_heads = (int32_t)layer->n_heads,
        .n_kv_heads = (int32_t)layer->n_kv_heads,
        .head_dim = (int32_t)layer->head_dim,
        .n_seqs = (int32_t)pass->n_sequences,
        .max_seq_tokens = pass->longest,
        .scale = s->attn_scale,
        .softcap = s->attn_softcap,
        .window = layer->window,
        .sinks = layer->sinks.weight,
        .round_kv = pass->model->act_dtype != QR_DTYPE_F32,
        /* Not in F16, whose scaled gradients would lose small values. */
        .bf16_products = pass->model->act_dtype == QR_DTYPE_BF16,
    };
}

qrun_status qr_pass_copy_shared_kv(qr_train_pass *pass, const qr_layer *layer, float *qkv, float *shared,
                                   bool to_shared, bool accumulate, qr_error *err) {
    float *own = qkv + layer->n_heads * layer->head_dim;
    const int64_t kv = 2 * layer->n_kv_heads * layer->head_dim, columns = qr_qkv_columns(layer);
    const qr_copy_heads_args args = {.src = to_shared ? own : shared,
                                     .dst = to_shared ? shared : own,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = kv,
                                     .src_stride = to_shared ? columns : kv,
                                     .src_head_stride = kv,
                                     .dst_stride = to_shared ? kv : columns,
                                     .dst_head_stride = kv,
                                     .accumulate = accumulate};
    if (!layer->reads_shared_kv && !layer->is_read_by_others) { return QRUN_OK; }
    return qr_copy_heads(pass->backend, &args, pass->workspace, err);
}

/* K/V of a layer that others read are kept for them; a layer that reads them has them beside its queries. */
static qrun_status share_kv(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    return qr_pass_copy_shared_kv(pass, layer, pass->current->buffers.qkv, pass->b.shared_kv[layer->window > 0],
                                  !layer->reads_shared_kv, false, err);
}

static qrun_status attend_packed(void *arg, const qr_layer *layer, const qr_heads *heads, qr_error *err) {
    (void)heads; /* those that attention_args names */
    qr_train_pass *pass = arg;
    const qr_attention_packed_args args = qr_pass_attention_args(pass, layer);
    QR_RETURN_IF_ERROR(share_kv(pass, layer, err));
    return qr_attention_packed(pass->backend, &args, pass->workspace, err);
}

qr_layer_pass qr_pass_layer(qr_train_pass *pass) {
    const qr_pass_buffers *b = &pass->b;
    qr_layer_buffers buffers = pass->current != NULL ? pass->current->buffers : (qr_layer_buffers){0};
    buffers.dora = b->dora;
    buffers.sparse_gate = b->sparse_gate;
    buffers.recalled_normed = b->gate_work;
    buffers.by_head = b->by_head;
    buffers.delta_latent = b->delta_latent;
    buffers.kv_up = buffers.values = b->kv_up;
    const qr_lora_layers *lora = &pass->parameters->lora;
    return (qr_layer_pass){
        .model = pass->model,
        .backend = pass->backend,
        .workspace = pass->workspace,
        .n_tokens = pass->n_tokens,
        .any_order = true,
        .x = b->x,
        .streams = b->streams,
        .stream_work = b->stream_work,
        .stream_x = b->stream_x,
        .stream_coefs = b->stream_coefs,
        .cos_table = {b->cos_table[0], b->cos_table[1]},
        .sin_table = {b->sin_table[0], b->sin_table[1]},
        .inputs = b->inputs,
        .inputs_x = b->inputs_x,
        .sequences = {.n_seqs = (int32_t)pass->n_sequences, .max_seq_tokens = pass->longest, .start = b->seq_start},
        .buffers = buffers,
        .adapters = {.table = lora->table,
                     .n_adapters = 1,
                     .max_rank = lora->rank,
                     .row_adapter = b->row_adapter,
                     .row_dora = lora->dora ? b->row_adapter : NULL,
                     .pair_of_slot = lora->pair_of_slot},
        .dropout = pass->dropout,
        .attend = attend_packed,
        .attend_arg = pass};
}

qrun_status qr_pass_copy_stream(qr_train_pass *pass, float *dst, const float *src, qr_error *err) {
    const size_t n_bytes = (size_t)(pass->n_tokens * pass->model->shape.hidden) * sizeof(float);
    return pass->backend->copy_within(pass->backend, dst, src, n_bytes, err);
}

void qr_train_pass_watch(qr_train_pass *pass, const atomic_bool *flag) { pass->cancelled = flag; }

void qr_train_pass_on_layer(qr_train_pass *pass, qr_train_layer_fn fn, void *user) {
    pass->on_layer = fn;
    pass->on_layer_user = user;
}

static void begin_part(const qr_train_pass *pass, qr_pass_parts *parts) {
    parts->n_rows = qr_min(parts->most, parts->n - parts->first);
    if (qr_backend_plans(pass->backend)) { parts->before = *qr_backend_planned(pass->backend); }
}

qr_pass_parts qr_pass_parts_begin(const qr_train_pass *pass, int64_t n, int64_t most) {
    qr_pass_parts parts = {.n = n, .most = most};
    begin_part(pass, &parts);
    return parts;
}

void qr_pass_parts_next(qr_train_pass *pass, qr_pass_parts *parts) {
    int64_t n_parts = 1;
    if (qr_backend_plans(pass->backend)) {
        n_parts = (parts->n - parts->first) / parts->n_rows;
        qr_backend_plan_again(pass->backend, &parts->before, n_parts - 1);
    }
    parts->first += n_parts * parts->n_rows;
    begin_part(pass, parts);
}

qrun_status qr_pass_check_cancelled(const qr_train_pass *pass, qr_error *err) {
    if (pass->cancelled == NULL || !atomic_load_explicit(pass->cancelled, memory_order_relaxed)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled");
}

static size_t input_bytes(const qr_train_pass *pass) {
    return (size_t)(pass->n_tokens * qr_stream_columns(&pass->model->shape)) * sizeof(float);
}

qrun_status qr_pass_keep_status(qr_train_pass *pass, qrun_status status) {
    const qr_collectives *ranks = pass->model->context->ranks;
    if (status == QRUN_OK || !qr_layer_stream_is_sharded(pass->model) || (ranks != NULL && ranks->lost)) {
        return status;
    }
    pass->follows = true;
    pass->status = status;
    return QRUN_OK;
}

qrun_status qr_pass_keep_input(qr_train_pass *pass, qr_error *err) {
    const qr_kept_layer *kept = pass->current;
    if (kept->streams_in == NULL) { return qr_pass_copy_stream(pass, kept->x_in, pass->b.x, err); }
    return pass->backend->copy_within(pass->backend, kept->streams_in, pass->b.streams, input_bytes(pass), err);
}

qrun_status qr_pass_take_input(qr_train_pass *pass, const qr_kept_layer *kept, qr_error *err) {
    if (kept->streams_in == NULL) { return qr_pass_copy_stream(pass, pass->b.x, kept->x_in, err); }
    return pass->backend->copy_within(pass->backend, pass->b.streams, kept->streams_in, input_bytes(pass), err);
}

qrun_status qr_pass_streams_correct(qr_train_pass *pass, const qr_layer_pass *blocks, const qr_layer *layer,
                                    qr_error *err) {
    if (pass->model->shape.n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->current->x_out, pass->b.x, err));
    return qr_layer_streams_correct(blocks, layer, err);
}

static qrun_status run_layer(qr_train_pass *pass, int64_t l, bool buffers_only, qr_error *err) {
    if (qr_pass_has_tiles(pass)) { return qr_pass_run_in_tiles(pass, l, err); }
    const qr_layer *layer = &pass->model->layers[l];
    pass->current = &pass->activations.layers[l];
    qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
    qr_timeline_part(pass->backend, QR_PART_NONE);
    QR_RETURN_IF_ERROR(qr_pass_keep_input(pass, err));
    if (pass->model->shape.n_streams > 0) {
        QR_RETURN_IF_ERROR(qr_layer_streams_predict(&blocks, layer, err));
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->current->x_in, pass->b.x, err));
    }
    blocks.buffers_only = buffers_only && !layer->has_mlp;
    QR_RETURN_IF_ERROR(qr_layer_attention(&blocks, layer, err));
    if (!layer->has_mlp) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
    if (!layer->is_parallel && pass->current->x_mid != pass->current->x_in) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(pass, pass->current->x_mid, pass->b.x, err));
    }
    blocks.buffers_only = buffers_only;
    QR_RETURN_IF_ERROR(qr_layer_mlp(&blocks, layer, err));
    return qr_pass_streams_correct(pass, &blocks, layer, err);
}

qrun_status qr_pass_run_layer(qr_train_pass *pass, int64_t l, bool buffers_only, qr_error *err) {
    qr_timeline_layer(pass->backend, l);
    QR_RETURN_IF_ERROR(qr_layer_stream_use(pass->model, pass->backend, l, buffers_only ? l - 1 : l + 1, err));
    QR_PASS_COMPUTE(pass, qr_lora_parameters_refresh_layer(pass->parameters, l, pass->workspace, err));
    QR_PASS_COMPUTE(pass, run_layer(pass, l, buffers_only, err));
    return QRUN_OK;
}

qrun_status qr_pass_copy_ints(qr_train_pass *pass, int32_t *device, const int32_t *host, int64_t n, qr_error *err) {
    return pass->backend->copy_in(pass->backend, device, host, (size_t)n * sizeof *host, err);
}

/* ---- Rotary frequencies ------------------------------------------------------------------------------------------ */

qrun_status qr_pass_set_rope(qr_train_pass *pass, int64_t slot, int64_t n_tokens, qr_error *err) {
    const qrun_model *model = pass->model;
    for (int32_t k = 0; k < model->shape.n_rope_kinds; k++) {
        const int64_t half = model->shape.rope_half[k];
        float factor;
        qr_rope_frequencies(&model->config, k, n_tokens, n_tokens, pass->host_rope, &factor);
        QR_RETURN_IF_ERROR(pass->backend->copy_in(pass->backend, pass->b.inv_freq[k] + slot * half, pass->host_rope,
                                                  (size_t)half * sizeof(float), err));
        QR_RETURN_IF_ERROR(
            pass->backend->copy_in(pass->backend, pass->b.rope_factor[k] + slot, &factor, sizeof factor, err));
    }
    return QRUN_OK;
}

/* Where the frequencies depend on the length, every sequence has those of its own, so a token's gradient does not
 * depend on what else is in the micro-batch. */
static qrun_status choose_rope_slots(qr_train_pass *pass, const qr_train_batch *batch, qr_error *err) {
    const int64_t short_tokens = qr_rope_short_tokens(&pass->model->config);
    int32_t n_slots = 1;
    if (pass->n_rope_slots == 1) { return QRUN_OK; }
    for (int64_t s = 0; s < batch->n_sequences; s++) {
        const int32_t begin = batch->seq_start[s], end = batch->seq_start[s + 1];
        const int32_t slot = end - begin > short_tokens ? n_slots++ : 0;
        if (slot > 0) { QR_RETURN_IF_ERROR(qr_pass_set_rope(pass, slot, end - begin, err)); }
        for (int32_t i = begin; i < end; i++) { pass->host_slot[i] = slot; }
    }
    return qr_pass_copy_ints(pass, pass->b.slot, pass->host_slot, batch->n_tokens, err);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static qrun_status embed(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_layer_embed(&blocks, pass->b.ids, pass->b.position, err));
    return qr_layer_streams_enter(&blocks, err);
}

/* What is left of residual streams after the last layer. */
static qrun_status leave(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    return qr_layer_streams_leave(&blocks, err);
}

static qrun_status enter(qr_train_pass *pass, const qr_train_batch *batch, bool backward, qr_error *err) {
    pass->dropout = (qr_layer_dropout){.p = backward ? pass->parameters->lora.dropout : 0,
                                       .key = batch->dropout_key,
                                       .row_key = pass->b.row_key,
                                       .dropped = pass->b.dropped};
    pass->n_tokens = batch->n_tokens;
    pass->n_sequences = batch->n_sequences;
    pass->longest = 0;
    for (int64_t s = 0; s < batch->n_sequences; s++) {
        pass->longest = (int32_t)qr_max(pass->longest, batch->seq_start[s + 1] - batch->seq_start[s]);
    }
    pass->current = NULL;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.ids, batch->ids, batch->n_tokens, err));
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.position, batch->position, batch->n_tokens, err));
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.seq_start, batch->seq_start, batch->n_sequences + 1, err));
    if (pass->dropout.p > 0) {
        const size_t n_bytes = (size_t)batch->n_tokens * sizeof *batch->row_key;
        QR_RETURN_IF_ERROR(pass->backend->copy_in(pass->backend, pass->b.row_key, batch->row_key, n_bytes, err));
    }
    QR_RETURN_IF_ERROR(choose_rope_slots(pass, batch, err));
    const qr_rope_positions rope = {.inv_freq = pass->b.inv_freq,
                                    .factor = pass->b.rope_factor,
                                    .slot = pass->b.slot,
                                    .position = pass->b.position};
    QR_RETURN_IF_ERROR(qr_layer_rope_tables(&blocks, &rope, err));
    QR_RETURN_IF_ERROR(qr_lora_parameters_refresh(pass->parameters, pass->workspace, err));
    return qr_pass_for_tiles(pass, NULL, embed, err);
}

/* ---- Inputs of segments in host memory --------------------------------------------------------------------------- */

/* Inputs of segments that are held in host memory. The forward pass sends each there from one of two stages on the
 * device, which take turns. It is fetched back to its stage while the next segment runs backward. A stage is used again
 * only when its last use is over: transfers begin after the ops issued before them, and ops wait for the stage's
 * transfer. */

static qrun_status await_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->stage < 0) { return QRUN_OK; }
    return pass->backend->transfer_wait(pass->backend, pass->stage_tickets[segment->stage], err);
}

static qrun_status send_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->x_host == NULL) { return QRUN_OK; }
    const float *stage = qr_kept_input(&pass->activations.layers[segment->first]);
    return pass->backend->transfer_out(pass->backend, segment->x_host, stage, input_bytes(pass),
                                       &pass->stage_tickets[segment->stage], err);
}

static qrun_status fetch_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->x_host == NULL) { return QRUN_OK; }
    float *stage = qr_kept_input(&pass->activations.layers[segment->first]);
    return pass->backend->transfer_in(pass->backend, stage, segment->x_host, input_bytes(pass),
                                      &pass->stage_tickets[segment->stage], err);
}

/* ---- The pass ---------------------------------------------------------------------------------------------------- */

static qrun_status run_forward(qr_train_pass *pass, bool backward, qr_error *err) {
    for (int64_t s = 0; s < pass->activations.n_segments; s++) {
        const qr_segment *segment = &pass->activations.segments[s];
        QR_PASS_COMPUTE(pass, await_input(pass, segment, err));
        for (int64_t i = 0; i < segment->n; i++) {
            QR_RETURN_IF_ERROR(qr_pass_run_layer(pass, segment->first + i, false, err));
        }
        if (backward) { QR_PASS_COMPUTE(pass, send_input(pass, segment, err)); }
    }
    return QRUN_OK;
}

/* Gradients that several layers add to. */
static qrun_status clear_shared_gradients(qr_train_pass *pass, qr_error *err) {
    for (int i = 0; i < 2; i++) {
        const size_t n_bytes = (size_t)(pass->n_tokens * qr_pass_shared_kv_columns(pass->model, i)) * sizeof(float);
        if (n_bytes == 0) { continue; }
        QR_RETURN_IF_ERROR(pass->backend->fill_zero(pass->backend, pass->b.dshared_kv[i], n_bytes, err));
    }
    return QRUN_OK;
}

/* What is done with the gradients of a layer, of those that have none. */
static qrun_status pass_by(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    for (int64_t i = segment->n; pass->on_layer != NULL && i-- > 0;) {
        QR_RETURN_IF_ERROR(pass->on_layer(pass->on_layer_user, segment->first + i, err));
    }
    return QRUN_OK;
}

/* The input of the segment before each is fetched while that one runs backward. */
static qrun_status run_backward(qr_train_pass *pass, qr_error *err) {
    QR_PASS_COMPUTE(pass, clear_shared_gradients(pass, err));
    QR_PASS_COMPUTE(pass, qr_pass_for_tiles(pass, NULL, qr_pass_streams_leave_backward, err));
    for (int64_t s = pass->activations.n_segments; s-- > 0;) {
        const qr_segment *segment = &pass->activations.segments[s];
        if (segment->untrained) {
            QR_RETURN_IF_ERROR(pass_by(pass, segment, err));
            continue;
        }
        if (s > 0) { QR_PASS_COMPUTE(pass, fetch_input(pass, segment - 1, err)); }
        QR_PASS_COMPUTE(pass, await_input(pass, segment, err));
        QR_RETURN_IF_ERROR(qr_pass_segment_backward(pass, segment, err));
    }
    qr_timeline_layer(pass->backend, -1);
    qr_timeline_part(pass->backend, QR_PART_NONE);
    QR_PASS_COMPUTE(pass, qr_pass_embed_backward(pass, err));
    return QRUN_OK;
}

/* Outside of layers. */
static void mark_phase(const qr_train_pass *pass, qr_phase phase) {
    qr_timeline_phase(pass->backend, phase);
    qr_timeline_layer(pass->backend, -1);
    qr_timeline_part(pass->backend, QR_PART_NONE);
}

static qrun_status forward(qr_train_pass *pass, const qr_train_batch *batch, bool backward, qr_error *err) {
    qr_layer_stream_begin(pass->model, pass->backend);
    mark_phase(pass, QR_PHASE_forward);
    QR_PASS_COMPUTE(pass, enter(pass, batch, backward, err));
    QR_RETURN_IF_ERROR(run_forward(pass, backward, err));
    QR_PASS_COMPUTE(pass, qr_pass_for_tiles(pass, NULL, leave, err));
    mark_phase(pass, QR_PHASE_loss);
    qr_timeline_part(pass->backend, QR_PART_HEAD);
    return QRUN_OK;
}

static qrun_status note_reference(qr_train_pass *pass, const qr_train_batch *batch, qr_error *err) {
    QR_PASS_COMPUTE(pass, qr_pass_note_reference(pass, batch, err));
    return QRUN_OK;
}

static qrun_status run_reference(qr_train_pass *pass, const qr_train_batch *batch, qr_error *err) {
    if (!qr_preference_has_reference(&pass->limits.preference)) { return QRUN_OK; }
    qr_parameters *trained = pass->parameters, reference = qr_lora_parameters_of_reference(trained);
    pass->parameters = &reference;
    qrun_status status = forward(pass, batch, false, err);
    if (status == QRUN_OK) { status = note_reference(pass, batch, err); }
    pass->parameters = trained;
    return status;
}

/* Returns an error where the pass has not come to its end; how it fared is pass->status. */
static qrun_status run_all(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                           double *sums, qr_error *err) {
    QR_RETURN_IF_ERROR(run_reference(pass, batch, err));
    QR_RETURN_IF_ERROR(forward(pass, batch, backward, err));
    QR_PASS_COMPUTE(pass, qr_pass_run_loss(pass, batch, loss_scale, backward, sums, err));
    mark_phase(pass, QR_PHASE_backward);
    if (backward) { QR_RETURN_IF_ERROR(run_backward(pass, err)); }
    mark_phase(pass, QR_PHASE_other);
    QR_PASS_COMPUTE(pass, pass->backend->sync(pass->backend, err));
    return QRUN_OK;
}

/* What stops a pass whose layers ranks share out has failed in bringing a layer together. */
static qrun_status leave_stopped(const qr_train_pass *pass, qrun_status status, const qr_error *err) {
    const bool is_shared = qr_layer_stream_is_sharded(pass->model) && !qr_backend_plans(pass->backend);
    return is_shared ? qr_collectives_leave(pass->model->context->ranks, status, err) : status;
}

qrun_status qr_train_pass_run(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                              double *sums, qr_error *err) {
    pass->follows = false;
    pass->status = QRUN_OK;
    const qrun_status status = run_all(pass, batch, loss_scale, backward, sums, err);
    return status != QRUN_OK ? leave_stopped(pass, status, err) : pass->status;
}

qrun_status qr_train_pass_put_magnitudes(qr_train_pass *pass, qr_error *err) {
    return qr_lora_parameters_put_magnitudes(pass->parameters, pass->workspace, err);
}

static qrun_status follow_all(qr_train_pass *pass, bool backward, qr_error *err) {
    QR_RETURN_IF_ERROR(run_reference(pass, NULL, err));
    QR_RETURN_IF_ERROR(forward(pass, NULL, backward, err));
    mark_phase(pass, QR_PHASE_backward);
    if (backward) { QR_RETURN_IF_ERROR(run_backward(pass, err)); }
    mark_phase(pass, QR_PHASE_other);
    return QRUN_OK;
}

qrun_status qr_train_pass_follow(qr_train_pass *pass, bool backward, qr_error *err) {
    if (!qr_layer_stream_is_sharded(pass->model)) { return QRUN_OK; }
    pass->follows = true;
    pass->status = QRUN_OK;
    const qrun_status status = follow_all(pass, backward, err);
    return leave_stopped(pass, status, err);
}

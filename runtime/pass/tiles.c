/* Tiles: a layer that is computed again may have all of its parts but attention run on some rows at a time, forward and
 * backward, so that a layer takes attention's q, k, v, its output and their gradients for all rows, and everything else
 * for the rows of one tile. In a layer with a state, what runs along sequences is what takes all.
 *
 * A row of those parts depends on that row alone, and dropout's choices on the row's key. Sums over rows (the gradients
 * of parameters) add a tile after the other, in the order of the rows. Where a backend's sums go on from what is there,
 * row by row, as the CPU's do, every tile size has the bits of no tiles. In BF16 on AMX they do so by 32 rows, and tile
 * sizes of a multiple of 32 have these bits. */
#include "runtime/pass/pass_state.h"

#include "base/sizes.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_recurrent.h"
#include "runtime/layers/layer_streams.h"

/* ---- Some rows of a pass ----------------------------------------------------------------------------------------- */

typedef struct part {
    qr_train_pass pass;
    qr_kept_layer kept; /* pass.current */
} part;

static void skip(float **rows, int64_t n, int64_t columns) {
    if (*rows != NULL) { *rows += n * columns; }
}

static void skip_ints(int32_t **rows, int64_t n) {
    if (*rows != NULL) { *rows += n; }
}

static void skip_act(void **rows, int64_t n, int64_t columns, qr_dtype dtype) {
    if (*rows != NULL) { *rows = (unsigned char *)*rows + (size_t)(n * columns) * qr_dtype_bytes(dtype); }
}

/* Buffers of all rows that no layer has of its own. */
static void skip_common(const qrun_model *model, int64_t n, qr_pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t inputs = s->n_layers * s->layer_input;
    skip(&b->x, n, s->hidden);
    skip(&b->dx, n, s->hidden);
    skip(&b->streams, n, qr_stream_columns(s));
    skip(&b->dstreams, n, qr_stream_columns(s));
    skip(&b->stream_work, n, qr_stream_columns(s));
    skip(&b->inputs, n, inputs);
    skip(&b->dinputs, n, inputs);
    skip_act(&b->inputs_x, n, s->hidden, model->act_dtype);
    skip_ints(&b->ids, n);
    skip_ints(&b->position, n);
    skip_ints(&b->slot, n);
    skip_ints(&b->row_adapter, n);
    if (b->row_key != NULL) { b->row_key += n; }
    for (int i = 0; i < 2; i++) {
        skip(&b->cos_table[i], n, s->rope_half[i]);
        skip(&b->sin_table[i], n, s->rope_half[i]);
        skip(&b->shared_kv[i], n, qr_pass_shared_kv_columns(model, i));
        skip(&b->dshared_kv[i], n, qr_pass_shared_kv_columns(model, i));
    }
}

/* Those of the layer: what attention reads and writes, and their gradients, whose rows are as wide as the layer's. */
static void skip_of_layer(const qrun_model *model, const qr_layer *layer, int64_t n, qr_pass_buffers *b,
                          qr_kept_layer *kept) {
    const qr_model_shape *s = &model->shape;
    const int64_t heads = layer->is_recurrent ? s->recurrent.values : layer->n_heads * layer->head_dim;
    const int64_t attended = layer->is_recurrent ? heads : qr_attended_columns(s, layer);
    const int64_t qkv = layer->is_recurrent ? s->recurrent.columns : qr_qkv_columns(layer);
    skip(&b->dattended, n, heads);
    skip(&b->dqkv, n, qkv);
    skip(&kept->x_in, n, s->hidden);
    skip(&kept->streams_in, n, qr_stream_columns(s));
    skip(&kept->buffers.qkv, n, qkv);
    skip_act(&kept->buffers.attended, n, attended, model->act_dtype);
    if (layer->is_recurrent || layer->beside != NULL) { skip(&kept->buffers.recalled, n, s->recurrent.values); }
    if (layer->is_recurrent) {
        skip_act(&kept->buffers.z_latent, n, s->recurrent.gate_rank, model->act_dtype);
        skip_act(&kept->buffers.a_latent, n, s->recurrent.gate_rank, model->act_dtype);
        return;
    }
    if (layer->beside != NULL) {
        skip(&b->dqkv_beside, n, s->recurrent.columns);
        skip(&kept->buffers.beside_qkv, n, s->recurrent.columns);
        skip_act(&kept->buffers.beside_attended, n, s->recurrent.values, model->act_dtype);
    }
    skip(&b->dq_gate, n, qr_gate_columns(s, layer->n_heads));
    skip(&kept->buffers.qk_raw, n, qr_raw_columns(layer));
    skip(&kept->buffers.q_gate, n, qr_gate_columns(s, layer->n_heads));
    skip_act(&kept->buffers.ungated, n, heads, model->act_dtype);
    skip(&kept->buffers.latent, n, qr_latent_columns(s));
    skip_act(&kept->buffers.q_latent, n, s->latent.query_rank, model->act_dtype);
    skip_act(&kept->buffers.kv_latent, n, s->latent.kv_rank, model->act_dtype);
}

static void cut(const qr_train_pass *pass, const qr_layer *layer, int64_t first, int64_t n, part *t) {
    t->pass = *pass;
    t->pass.n_tokens = n;
    skip_common(pass->model, first, &t->pass.b);
    if (pass->dropout.row_key != NULL) { t->pass.dropout.row_key = pass->dropout.row_key + first; }
    if (layer == NULL) { return; }
    t->kept = *pass->current;
    t->pass.current = &t->kept;
    skip_of_layer(pass->model, layer, first, &t->pass.b, &t->kept);
}

qrun_status qr_pass_for_tiles(qr_train_pass *pass, const qr_layer *layer, qr_pass_tile_fn run, qr_error *err) {
    if (!qr_pass_has_tiles(pass)) { return run(pass, layer, err); }
    qr_pass_parts tiles = qr_pass_parts_begin(pass, pass->n_tokens, pass->limits.policy.tile_rows);
    for (; tiles.n_rows > 0; qr_pass_parts_next(pass, &tiles)) {
        part t;
        cut(pass, layer, tiles.first, tiles.n_rows, &t);
        QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
        QR_RETURN_IF_ERROR(run(&t.pass, layer, err));
    }
    return QRUN_OK;
}

/* ---- A layer ----------------------------------------------------------------------------------------------------- */

/* What attention or the recurrence reads. */
static qrun_status heads(qr_train_pass *tile, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(tile), beside = qr_layer_pass_beside(&blocks);
    QR_RETURN_IF_ERROR(qr_layer_attention_norm(&blocks, layer, err));
    if (layer->beside != NULL) { QR_RETURN_IF_ERROR(qr_layer_recurrent_project(&beside, layer->beside, err)); }
    return layer->is_recurrent ? qr_layer_recurrent_project(&blocks, layer, err)
                               : qr_layer_attention_heads(&blocks, layer, err);
}

/* buffers.attended of all rows, from the residual stream; of a layer with a state buffers.recalled. */
static qrun_status attend(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass), beside = qr_layer_pass_beside(&blocks);
    if (!layer->mixes) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, layer, heads, err));
    if (layer->beside != NULL) { QR_RETURN_IF_ERROR(qr_layer_recurrent_recall(&beside, layer->beside, err)); }
    return layer->is_recurrent ? qr_layer_recurrent_recall(&blocks, layer, err) : qr_layer_attend(&blocks, layer, err);
}

/* From there the residual stream after attention. */
static qrun_status attention_out(const qr_layer_pass *blocks, const qr_layer *layer, qr_error *err) {
    if (!layer->mixes) { return QRUN_OK; }
    if (layer->beside != NULL) {
        const qr_layer_pass beside = qr_layer_pass_beside(blocks);
        QR_RETURN_IF_ERROR(attention_out(&beside, layer->beside, err));
    }
    if (layer->is_recurrent) { QR_RETURN_IF_ERROR(qr_layer_recurrent_gate(blocks, layer, err)); }
    if (qr_layer_has_residual(layer)) { QR_RETURN_IF_ERROR(qr_layer_attention_norm(blocks, layer, err)); }
    return qr_layer_attention_out(blocks, layer, err);
}

/* The residual stream after the layer. */
static qrun_status rest(qr_train_pass *tile, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(tile);
    QR_RETURN_IF_ERROR(attention_out(&blocks, layer, err));
    QR_RETURN_IF_ERROR(qr_layer_mlp(&blocks, layer, err));
    return qr_pass_streams_correct(tile, &blocks, layer, err);
}

/* What the layer computes with, of several residual streams. */
static qrun_status predict(qr_train_pass *tile, const qr_layer *layer, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(tile);
    if (tile->model->shape.n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_streams_predict(&blocks, layer, err));
    return qr_pass_copy_stream(tile, tile->current->x_in, tile->b.x, err);
}

qrun_status qr_pass_run_in_tiles(qr_train_pass *pass, int64_t l, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    pass->current = &pass->activations.layers[l];
    qr_timeline_part(pass->backend, QR_PART_NONE);
    QR_RETURN_IF_ERROR(qr_pass_keep_input(pass, err));
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, layer, predict, err));
    QR_RETURN_IF_ERROR(attend(pass, layer, err));
    return qr_pass_for_tiles(pass, layer, rest, err);
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* The rest of the layer is computed again, and at once run backward, to dx between the blocks and dattended. */
static qrun_status rest_backward(qr_train_pass *tile, const qr_layer *layer, qr_error *err) {
    qr_layer_pass blocks = qr_pass_layer(tile);
    qr_timeline_phase(tile->backend, QR_PHASE_recompute);
    QR_RETURN_IF_ERROR(attention_out(&blocks, layer, err));
    if (layer->has_mlp && !layer->is_parallel) {
        QR_RETURN_IF_ERROR(qr_pass_copy_stream(tile, tile->current->x_mid, tile->b.x, err));
    }
    blocks.buffers_only = true;
    QR_RETURN_IF_ERROR(qr_layer_mlp(&blocks, layer, err));
    QR_RETURN_IF_ERROR(qr_pass_streams_correct(tile, &blocks, layer, err));
    qr_timeline_phase(tile->backend, QR_PHASE_backward);
    return qr_pass_outputs_backward(tile, layer, err);
}

/* From dqkv to dx. The normed input is that of another tile by now, and computed once more. */
static qrun_status heads_backward(qr_train_pass *tile, const qr_layer *layer, qr_error *err) {
    qr_layer_pass blocks = qr_pass_layer(tile);
    blocks.x = tile->current->x_in;
    qr_timeline_phase(tile->backend, QR_PHASE_recompute);
    QR_RETURN_IF_ERROR(qr_layer_attention_norm(&blocks, layer, err));
    if (qr_layer_has_residual(layer)) { QR_RETURN_IF_ERROR(qr_layer_residual_make(&blocks, layer, err)); }
    qr_timeline_phase(tile->backend, QR_PHASE_backward);
    QR_RETURN_IF_ERROR(layer->is_recurrent ? qr_pass_recurrent_project_backward(tile, layer, false, err)
                                           : qr_pass_attention_heads_backward(tile, layer, err));
    if (layer->beside != NULL) {
        qr_kept_layer kept;
        qr_train_pass beside = qr_pass_beside(tile, &kept);
        QR_RETURN_IF_ERROR(qr_pass_recurrent_project_backward(&beside, layer->beside, true, err));
    }
    QR_RETURN_IF_ERROR(qr_pass_attention_norm_backward(tile, layer, err));
    return qr_pass_streams_predict_backward(tile, layer, err);
}

/* From dattended to dqkv, of all rows. The gradient of the last gate is among dqkv, whose place the MLP has had until
 * now. */
static qrun_status attend_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    if (!layer->is_recurrent) { return qr_pass_attend_backward(pass, layer, err); }
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, layer, qr_pass_recurrent_gate_backward, err));
    return qr_pass_recurrent_recall_backward(pass, layer, err);
}

/* The same of what is beside attention, from dx between the blocks, which is as it was: dattended has been read. */
static qrun_status beside_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    qr_kept_layer kept;
    qr_train_pass beside = qr_pass_beside(pass, &kept);
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(&beside, layer, qr_pass_attention_out_backward, err));
    return attend_backward(&beside, layer, err);
}

qrun_status qr_pass_backward_in_tiles(qr_train_pass *pass, int64_t l, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    pass->current = &pass->activations.layers[l];
    qr_timeline_part(pass->backend, QR_PART_NONE);
    qr_timeline_phase(pass->backend, QR_PHASE_recompute);
    QR_RETURN_IF_ERROR(qr_pass_take_input(pass, pass->current, err));
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, layer, predict, err));
    QR_RETURN_IF_ERROR(attend(pass, layer, err));
    QR_RETURN_IF_ERROR(qr_pass_for_tiles(pass, layer, rest_backward, err));
    qr_timeline_phase(pass->backend, QR_PHASE_backward);
    if (!layer->mixes) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(attend_backward(pass, layer, err));
    if (layer->beside != NULL) { QR_RETURN_IF_ERROR(beside_backward(pass, layer->beside, err)); }
    return qr_pass_for_tiles(pass, layer, heads_backward, err);
}

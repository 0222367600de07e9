#include "runtime/ranks/split_ranks.h"

#include <string.h>

#include "base/sizes.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/model/split.h"

enum { MOST_STAGE_BYTES = 4 << 20 };

/* What of this rank others need for norms: queries and keys, where they are over all heads, or the values of a state
 * space, where ranks share groups. */
static int64_t norm_columns(const qrun_model *model) {
    const qr_model_shape *s = &model->shape;
    if (qr_split_shares_groups(model)) { return s->recurrent.values; }
    return qr_model_gathers_heads(model) ? (s->n_heads + s->n_kv_heads) * s->head_dim : 0;
}

size_t qr_split_stage_bytes(const qrun_model *model, int64_t max_tokens) {
    const qr_model_shape *s = &model->shape;
    const int64_t act = (int64_t)qr_dtype_bytes(model->act_dtype), f32 = sizeof(float);
    if (model->split.n_ranks == 0) { return 0; }
    const int64_t gated = qr_max(qr_model_mlp_size(model), s->experts_per_token * s->expert_mlp);
    const int64_t normed = norm_columns(model) * model->split.n_ranks * f32;
    const int64_t sparse = model->config.gate_parts != NULL ? qr_model_mlp_size(model) * f32 : 0;
    const int64_t wide = qr_max(qr_max(s->hidden * f32, normed), sparse);
    const int64_t in_layer = qr_max(wide, qr_max(s->widest_attended, gated) * act);
    const int64_t row = qr_max(in_layer, model->head_share.all * f32);
    return (size_t)qr_max(row, qr_min(max_tokens * in_layer, MOST_STAGE_BYTES));
}

/* What goes through the activations of a layer, of a dense MLP and of a token's experts. */
static int64_t gated_columns(const qrun_model *model, const qr_layer *layer) {
    const qr_model_shape *s = &model->shape;
    const int64_t of_experts = s->experts_per_token * qr_split_own(&model->split, s->expert_mlp);
    return qr_layer_own_mlp_size(model, layer) + (qr_layer_has_experts(layer) ? of_experts : 0);
}

/* Heads, what goes through activations, and the residual stream after each block. */
static int64_t layer_bytes(const qrun_model *model, const qr_layer *layer) {
    const int64_t act = (int64_t)qr_dtype_bytes(model->act_dtype), f32 = sizeof(float);
    const int64_t n_mlps = layer->has_mlp ? qr_layer_experts_beside_mlp(layer) ? 2 : 1 : 0;
    const int64_t n_blocks = (layer->mixes ? 1 : 0) + n_mlps;
    const bool shares_groups = qr_split_shares_groups(model), is_normed = layer->is_recurrent == shares_groups;
    const int64_t heads = layer->attn_out.weight.desc.cols / model->split.n_ranks;
    const int64_t stream = qr_split_own(&model->split, model->shape.hidden);
    const int64_t sparse = layer->gate_is_sparse ? qr_layer_own_mlp_size(model, layer) : 0;
    return (layer->is_recurrent && shares_groups ? 0 : heads * act) + gated_columns(model, layer) * act +
           (sparse + n_blocks * stream + (is_normed ? norm_columns(model) : 0)) * f32;
}

int64_t qr_split_sent_bytes(const qrun_model *model, int64_t n_tokens, int64_t n_logit_rows) {
    int64_t n_bytes = 0;
    if (model->split.n_ranks == 0) { return 0; }
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        n_bytes += layer_bytes(model, layer) + (layer->beside != NULL ? layer_bytes(model, layer->beside) : 0);
    }
    const bool sends_logits = model->head_share.all > 0 && model->split.rank > 0;
    const int64_t logits = sends_logits ? model->head.desc.rows * (int64_t)sizeof(float) : 0;
    return n_tokens * n_bytes * (model->split.n_ranks - 1) + n_logit_rows * logits;
}

qrun_status qr_split_lead(const qr_split_ranks *s, const qr_split_command *command, qr_error *err) {
    qr_split_command announced = *command;
    if (s->ranks == NULL || s->ranks->rank != 0) { return QRUN_OK; }
    return qr_broadcast(s->ranks, &announced, sizeof announced, 0, err);
}

qrun_status qr_split_share(const qr_split_ranks *s, void *memory, size_t n_bytes, qr_error *err) {
    if (s->ranks == NULL || n_bytes == 0) { return QRUN_OK; }
    return qr_broadcast(s->ranks, memory, n_bytes, 0, err);
}

/* ---- Gathering columns ------------------------------------------------------------------------------------------- */

/* Rows that are gathered at once. In `parts`, the part of rank r begins at n_rows · begin[r]. */
typedef struct piece {
    const qr_gather *gather;
    int64_t first_row, n_rows;
    size_t row_bytes;
    size_t begin[QR_MAX_RANKS + 1]; /* in bytes of a row */
} piece;

static unsigned char *part_of(const qr_split_ranks *s, const piece *p, int32_t rank) {
    return s->parts + (size_t)p->n_rows * p->begin[rank];
}

static size_t width_of(const piece *p, int32_t rank) { return p->begin[rank + 1] - p->begin[rank]; }

static unsigned char *device_rows(const piece *p, size_t row_bytes) {
    return (unsigned char *)p->gather->memory + (size_t)p->first_row * row_bytes;
}

/* Between whole rows and the part of a rank. */
static void move_part(const qr_split_ranks *s, const piece *p, int32_t rank, bool into_rows) {
    const size_t width = width_of(p, rank);
    for (int64_t i = 0; i < p->n_rows; i++) {
        unsigned char *row = s->rows + (size_t)i * p->row_bytes + p->begin[rank];
        unsigned char *part = part_of(s, p, rank) + (size_t)i * width;
        memcpy(into_rows ? row : part, into_rows ? part : row, width);
    }
}

static qrun_status take_own(const qr_split_ranks *s, const piece *p, qr_error *err) {
    const int32_t own = s->ranks->rank;
    const size_t width = width_of(p, own), n = (size_t)p->n_rows;
    if (!p->gather->in_place) {
        return s->backend->copy_out(s->backend, part_of(s, p, own), device_rows(p, width), n * width, err);
    }
    QR_RETURN_IF_ERROR(s->backend->copy_out(s->backend, s->rows, device_rows(p, p->row_bytes), n * p->row_bytes, err));
    move_part(s, p, own, false);
    return QRUN_OK;
}

static qrun_status exchange(const qr_split_ranks *s, const piece *p, qr_error *err) {
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    const int32_t own = s->ranks->rank;
    for (int32_t r = 0; r < s->ranks->n_ranks; r++) {
        const bool gets = !p->gather->to_leader || r == 0, takes = !p->gather->to_leader || own == 0;
        const size_t n = (size_t)p->n_rows;
        sent[r] = (qr_parcel){part_of(s, p, own), gets ? n * width_of(p, own) : 0};
        received[r] = (qr_parcel){part_of(s, p, r), takes ? n * width_of(p, r) : 0};
    }
    return qr_all_to_all(s->ranks, sent, received, err);
}

static qrun_status gather_piece(const qr_split_ranks *s, const piece *p, qr_error *err) {
    QR_RETURN_IF_ERROR(take_own(s, p, err));
    QR_RETURN_IF_ERROR(exchange(s, p, err));
    if (p->gather->to_leader && s->ranks->rank != 0) { return QRUN_OK; }
    for (int32_t r = 0; r < s->ranks->n_ranks; r++) { move_part(s, p, r, true); }
    return s->backend->copy_in(s->backend, device_rows(p, p->row_bytes), s->rows, (size_t)p->n_rows * p->row_bytes,
                               err);
}

/* The last rows first: whole ones take the place of parts that have been read. */
qrun_status qr_split_gather(void *arg, const qr_gather *gather, qr_error *err) {
    const qr_split_ranks *s = arg;
    const size_t element = qr_dtype_bytes(gather->dtype);
    piece p = {.gather = gather, .row_bytes = (size_t)gather->n_columns * element};
    if (s->ranks == NULL) { return QRUN_OK; }
    const qr_split *split = &s->model->split;
    for (int32_t r = 0; r <= split->n_ranks; r++) {
        p.begin[r] = (size_t)qr_split_begin(split, gather->n_columns, gather->unit, r) * element;
    }
    const int64_t most = (int64_t)(s->stage_bytes / p.row_bytes);
    for (int64_t end = gather->n_rows; end > 0; end = p.first_row) {
        p.first_row = (end - 1) / most * most;
        p.n_rows = end - p.first_row;
        QR_RETURN_IF_ERROR(gather_piece(s, &p, err));
    }
    return QRUN_OK;
}

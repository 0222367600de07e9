#include "runtime/pass/activations.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/engine/plan.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_streams.h"

/* ---- Policies ---------------------------------------------------------------------------------------------------- */

qrun_status qr_recompute_policy_parse(const char *text, int64_t n_layers, qr_recompute_policy *policy, qr_error *err) {
    static const struct {
        const char *name;
        qr_recompute_kind kind;
    } names[] = {{"none", QR_RECOMPUTE_NONE},
                 {"full", QR_RECOMPUTE_FULL},
                 {"attn", QR_RECOMPUTE_ATTN},
                 {"mlp", QR_RECOMPUTE_MLP},
                 {"auto", QR_RECOMPUTE_AUTO}};
    *policy = (qr_recompute_policy){.kind = QR_RECOMPUTE_NONE};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(text, names[i].name) == 0) {
            policy->kind = names[i].kind;
            return QRUN_OK;
        }
    }
    if (strncmp(text, "every:", 6) == 0) {
        char *end;
        const long n = strtol(text + 6, &end, 10);
        if (*end == '\0' && end != text + 6 && n >= 1 && n <= n_layers) {
            *policy = (qr_recompute_policy){.kind = QR_RECOMPUTE_EVERY, .n = n};
            return QRUN_OK;
        }
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "checkpointing \"%s\" is none of none, full, attn, mlp, auto and every:N with N from 1 to %lld",
                   text, (long long)n_layers);
}

bool qr_recompute_policy_has_inputs(const qr_recompute_policy *policy) {
    return policy->kind == QR_RECOMPUTE_FULL || policy->kind == QR_RECOMPUTE_EVERY || policy->kind == QR_RECOMPUTE_AUTO;
}

bool qr_recompute_policy_takes_tiles(const qr_recompute_policy *policy) {
    return policy->kind == QR_RECOMPUTE_FULL || policy->kind == QR_RECOMPUTE_AUTO;
}

int64_t qr_recompute_policy_rows(const qr_recompute_policy *policy, int64_t n_tokens) {
    return policy->tile_rows > 0 ? qr_min(policy->tile_rows, n_tokens) : n_tokens;
}

static int64_t segment_layers(const qr_recompute_policy *policy, int64_t layer, int64_t n_layers) {
    switch (policy->kind) {
        case QR_RECOMPUTE_FULL: return 1;
        case QR_RECOMPUTE_EVERY: return qr_min(policy->n, n_layers - layer);
        case QR_RECOMPUTE_AUTO: return layer < n_layers - policy->n ? 1 : n_layers - layer;
        default: return n_layers - layer;
    }
}

/* AUTO keeps the last layers: the backward pass frees them first. */
static bool segment_is_kept(const qr_recompute_policy *policy, int64_t layer, int64_t n_layers) {
    return policy->kind == QR_RECOMPUTE_NONE || policy->kind == QR_RECOMPUTE_ATTN || policy->kind == QR_RECOMPUTE_MLP ||
           (policy->kind == QR_RECOMPUTE_AUTO && layer >= n_layers - policy->n);
}

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

/* What layers take of buffers: one, or the most of any where all take the same in turn. */
typedef struct layer_kinds {
    bool attention, recurrent; /* both: of one after the other, unless they are beside each other */
    bool beside;
    int64_t heads, qkv, raw; /* H · HD, (H + 2 KV) · HD, and what of it is kept before it is normed */
} layer_kinds;

static layer_kinds kind_of(const qr_layer *layer) {
    if (layer->is_recurrent) { return (layer_kinds){.recurrent = true}; }
    return (layer_kinds){.attention = true,
                         .recurrent = layer->beside != NULL,
                         .beside = layer->beside != NULL,
                         .heads = layer->n_heads * layer->head_dim,
                         .qkv = qr_qkv_columns(layer),
                         .raw = qr_raw_columns(layer)};
}

static layer_kinds kinds_of(const qrun_model *model) {
    layer_kinds kinds = {.attention = true, .recurrent = model->shape.recurrent.n_layers > 0};
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const layer_kinds kind = kind_of(&model->layers[l]);
        kinds.beside |= kind.beside;
        kinds.heads = qr_max(kinds.heads, kind.heads);
        kinds.qkv = qr_max(kinds.qkv, kind.qkv);
        kinds.raw = qr_max(kinds.raw, kind.raw);
    }
    return kinds;
}

static void lay_heads(qr_layout *layout, const qrun_model *model, const layer_kinds *kinds, int64_t t,
                      qr_kept_layer *layer) {
    const qr_model_shape *s = &model->shape;
    QR_LAY(layout, layer->lse, t * s->n_heads, sizeof(float));
    const bool has_head_norms = model->family->modules[QR_ROLE_Q_NORM] != NULL && !model->config.without_head_norms;
    if (has_head_norms || model->config.norms_heads) {
        QR_LAY(layout, layer->buffers.qk_raw, t * kinds->raw, sizeof(float));
    }
    const size_t act = qr_dtype_bytes(model->act_dtype);
    if (s->attn_gated) { QR_LAY(layout, layer->buffers.q_gate, t * qr_gate_columns(s, s->n_heads), sizeof(float)); }
    if (s->attn_gated || qr_model_pads_values(s)) { QR_LAY(layout, layer->buffers.ungated, t * kinds->heads, act); }
    if (s->latent.kv_rank == 0) { return; }
    QR_LAY(layout, layer->buffers.latent, t * qr_latent_columns(s), sizeof(float));
    QR_LAY(layout, layer->buffers.q_latent, t * s->latent.query_rank, act);
    QR_LAY(layout, layer->buffers.kv_latent, t * s->latent.kv_rank, act);
}

/* Of t tokens, `rows` of which have all but attention at a time. */
static void lay_attention(qr_layout *layout, const qrun_model *model, layer_kinds kinds, int64_t t, int64_t rows,
                          qr_kept_layer *layer) {
    const qr_model_shape *s = &model->shape;
    const size_t act = qr_dtype_bytes(model->act_dtype);
    const int64_t columns = kinds.recurrent ? s->recurrent.columns : 0,
                  values = kinds.recurrent ? s->recurrent.values : 0;
    QR_LAY(layout, layer->buffers.attn_normed, rows * s->hidden, act);
    QR_LAY(layout, layer->buffers.qkv, t * (kinds.beside ? kinds.qkv : qr_max(kinds.qkv, columns)), sizeof(float));
    QR_LAY(layout, layer->buffers.attended, t * (kinds.beside ? kinds.heads : qr_max(kinds.heads, values)), act);
    if (kinds.beside) {
        QR_LAY(layout, layer->buffers.beside_qkv, t * columns, sizeof(float));
        QR_LAY(layout, layer->buffers.beside_attended, t * values, act);
        lay_heads(layout, model, &kinds, t, layer);
    }
    qr_layout recurrent = *layout; /* in the same place: a layer is of one kind, or has all of attention's before */
    recurrent.part = qr_recurrent_part(model);
    if (kinds.attention && !kinds.beside) { lay_heads(layout, model, &kinds, t, layer); }
    if (kinds.recurrent) {
        QR_LAY(&recurrent, layer->buffers.conved, t * s->recurrent.channels, sizeof(float));
        QR_LAY(&recurrent, layer->buffers.recalled, t * values, sizeof(float));
        QR_LAY(&recurrent, layer->buffers.z_latent, t * s->recurrent.gate_rank, act);
        QR_LAY(&recurrent, layer->buffers.a_latent, t * s->recurrent.gate_rank, act);
    }
    layout->offset = recurrent.offset > layout->offset ? recurrent.offset : layout->offset;
    if (qr_model_has_post_norm(model, QR_ROLE_POST_ATTN_NORM)) {
        QR_LAY(layout, layer->buffers.attn_branch, rows * s->hidden, sizeof(float));
    }
    if (s->residual_rank > 0) {
        QR_LAY(layout, layer->buffers.residual, rows * s->residual_rank, sizeof(float));
        QR_LAY(layout, layer->buffers.residual_x, rows * s->residual_rank, act);
        QR_LAY(layout, layer->buffers.residual_branch, rows * s->hidden, sizeof(float));
    }
}

static void lay_beside_dense(qr_layout *layout, const qrun_model *model, int64_t t, qr_expert_buffers *b) {
    const size_t act = qr_dtype_bytes(model->act_dtype);
    QR_LAY(layout, b->router_normed, t * model->shape.hidden, act);
    QR_LAY(layout, b->normed, t * model->shape.hidden, act);
    QR_LAY(layout, b->dense_branch, t * model->shape.hidden, sizeof(float));
    QR_LAY(layout, b->branch, t * model->shape.hidden, sizeof(float));
}

static void lay_mlp(qr_layout *layout, const qrun_model *model, int64_t t, qr_kept_layer *layer) {
    const qr_model_shape *s = &model->shape;
    const size_t act = qr_dtype_bytes(model->act_dtype);
    QR_LAY(layout, layer->buffers.mlp_normed, t * s->hidden, act);
    QR_LAY(layout, layer->buffers.mlp, t * qr_model_mlp_columns(model), sizeof(float));
    QR_LAY(layout, layer->buffers.gated, t * qr_model_mlp_size(model), act);
    if (qr_model_has_experts(model)) {
        const int64_t n_slots = t * s->experts_per_token;
        qr_expert_routing_lay(s, t, layout, &layer->buffers.experts);
        QR_LAY(layout, layer->buffers.experts.mlp, n_slots * qr_expert_columns(model, s->expert_mlp), sizeof(float));
        QR_LAY(layout, layer->buffers.experts.gated, n_slots * s->expert_mlp, act);
        if (model->config.experts.beside_dense) { lay_beside_dense(layout, model, t, &layer->buffers.experts); }
    }
    if (s->layer_input > 0) {
        QR_LAY(layout, layer->buffers.input_x, t * s->hidden, act);
        QR_LAY(layout, layer->buffers.input, 2 * t * s->layer_input, sizeof(float));
        QR_LAY(layout, layer->buffers.input_gated, t * s->layer_input, act);
        QR_LAY(layout, layer->buffers.input_branch, t * s->hidden, sizeof(float));
    }
    if (qr_model_has_post_norm(model, QR_ROLE_POST_MLP_NORM)) {
        QR_LAY(layout, layer->buffers.mlp_branch, t * s->hidden, sizeof(float));
    }
}

/* Of the segments that are computed again, all but the last two send their inputs away. */
enum { N_STAGES = 2 };

/* The places of inputs of segments: each its own, or the stages in turn. */
typedef struct input_places {
    qr_layout layout, host;
    float *stages[N_STAGES];
    int64_t n, n_done; /* of segments that are computed again */
    bool offload;
} input_places;

static float *place_input(input_places *places, int64_t elements, qr_segment *segment) {
    const int64_t number = places->n_done++;
    float *x_in;
    places->layout.layer = places->offload ? -1 : segment->first;
    if (!places->offload) { return QR_LAY(&places->layout, x_in, elements, sizeof(float)); }
    segment->stage = (int)(number % N_STAGES);
    if (number < N_STAGES) { places->stages[number] = QR_LAY(&places->layout, x_in, elements, sizeof(float)); }
    if (number < places->n - N_STAGES) { QR_LAY(&places->host, segment->x_host, elements, sizeof(float)); }
    return places->stages[segment->stage];
}

/* Of one layer that is of any kind. */
static void lay_set(qr_layout *layout, const qrun_model *model, int64_t t, int64_t rows, qr_kept_layer *set) {
    layout->layer = -1;
    lay_attention(layout, model, kinds_of(model), t, rows, set);
    lay_mlp(layout, model, rows, set);
    if (!qr_model_is_parallel(model)) { QR_LAY(layout, set->x_mid, rows * model->shape.hidden, sizeof(float)); }
}

/* A layer's input, unless it has a place already, and where there are several residual streams what comes with them. */
static void lay_streams(qr_layout *layout, const qrun_model *model, int64_t t, int64_t rows, bool has_input,
                        qr_kept_layer *layer) {
    const qr_model_shape *s = &model->shape;
    if (has_input || s->n_streams > 0) { QR_LAY(layout, layer->x_in, t * s->hidden, sizeof(float)); }
    if (s->n_streams == 0) { return; }
    if (has_input) { QR_LAY(layout, layer->streams_in, t * qr_stream_columns(s), sizeof(float)); }
    QR_LAY(layout, layer->x_out, rows * s->hidden, sizeof(float));
}

/* Layers before the first trained one all take one set, and one place for their inputs. They are done before any other
 * layer begins, so others' buffers are in the same place. Returns the bytes up to its end. */
static size_t lay_untrained(qr_layout layout, const qrun_model *model, int64_t t, int64_t rows,
                            const qr_segment *segment, qr_kept_layer *layers) {
    qr_kept_layer set = {0};
    lay_set(&layout, model, t, rows, &set);
    lay_streams(&layout, model, t, rows, true, &set);
    for (int64_t i = 0; i < segment->n; i++) { layers[segment->first + i] = set; }
    return layout.offset;
}

/* Layers of a segment that is computed again take the sets of buffers in turn: the i-th layer of every segment the i-th
 * set. */
static void lay_recomputed(input_places *places, const qrun_model *model, int64_t t, int64_t rows, qr_segment *segment,
                           qr_kept_layer *layers, qr_kept_layer *sets, int64_t *n_sets) {
    qr_layout *layout = &places->layout;
    for (int64_t i = 0; i < segment->n; i++) {
        qr_kept_layer *layer = &layers[segment->first + i];
        if (i == *n_sets) {
            lay_set(layout, model, t, rows, &sets[i]);
            lay_streams(layout, model, t, rows, i > 0, &sets[i]);
            ++*n_sets;
        }
        *layer = sets[i];
        if (i > 0) { continue; }
        float *input = place_input(places, t * qr_stream_columns(&model->shape), segment);
        if (model->shape.n_streams > 0) {
            layer->streams_in = input;
        } else {
            layer->x_in = input;
        }
    }
}

/* A block that is computed again has its buffers in the set that all layers of the segment share. */
static void lay_kept(qr_layout *layout, const qrun_model *model, int64_t t, const qr_recompute_policy *policy,
                     const qr_segment *segment, qr_kept_layer *layers) {
    qr_kept_layer set = {.attn_kept = policy->kind != QR_RECOMPUTE_ATTN, .mlp_kept = policy->kind != QR_RECOMPUTE_MLP};
    layout->layer = -1;
    if (!set.attn_kept) { lay_attention(layout, model, kinds_of(model), t, t, &set); }
    if (!set.mlp_kept) { lay_mlp(layout, model, t, &set); }
    for (int64_t l = segment->first; l < segment->first + segment->n; l++) {
        qr_kept_layer *layer = &layers[l];
        *layer = set;
        layout->layer = l;
        lay_streams(layout, model, t, t, true, layer);
        const qr_layer *of = &model->layers[l];
        layer->x_mid = of->is_parallel ? NULL : layer->x_in;
        if (of->mixes && of->has_mlp && !of->is_parallel) {
            QR_LAY(layout, layer->x_mid, t * model->shape.hidden, sizeof(float));
        }
        if (set.attn_kept && of->mixes) { lay_attention(layout, model, kind_of(of), t, t, layer); }
        if (set.mlp_kept && of->has_mlp) { lay_mlp(layout, model, t, layer); }
    }
}

/* Returns the number of segments that are computed again. */
static int64_t divide(const qr_recompute_policy *policy, int64_t first_trained, int64_t n_layers,
                      qr_activations *activations) {
    int64_t n_recomputed = 0;
    if (first_trained > 0) {
        activations->segments[activations->n_segments++] =
            (qr_segment){.n = first_trained, .untrained = true, .stage = -1};
    }
    for (int64_t layer = first_trained; layer < n_layers;) {
        qr_segment *segment = &activations->segments[activations->n_segments++];
        *segment = (qr_segment){.first = layer,
                                .n = segment_layers(policy, layer, n_layers),
                                .kept = segment_is_kept(policy, layer, n_layers),
                                .stage = -1};
        n_recomputed += !segment->kept;
        layer += segment->n;
    }
    return n_recomputed;
}

qrun_status qr_activations_lay_out(const qrun_model *model, const qr_recompute_policy *policy, int64_t first_trained,
                                   int64_t n_tokens, qr_backend *names, void *memory, void *host,
                                   qr_activations *activations, qr_error *err) {
    const int64_t n_layers = model->shape.n_layers, rows = qr_recompute_policy_rows(policy, n_tokens);
    *activations = (qr_activations){0};
    activations->layers = qr_alloc_array_zeroed((size_t)n_layers, sizeof *activations->layers);
    activations->segments = qr_alloc_array_zeroed((size_t)n_layers, sizeof *activations->segments);
    qr_kept_layer *sets = qr_alloc_array_zeroed((size_t)n_layers, sizeof *sets);
    if (activations->layers == NULL || activations->segments == NULL || sets == NULL) {
        qr_free(sets);
        qr_activations_free(activations);
        return qr_fail_memory(err, "the table of activations", (unsigned long long)n_layers * sizeof *sets);
    }
    input_places places = {.layout = {.base = memory, .names = names, .category = QR_PLAN_ACTIVATIONS, .layer = -1},
                           .host = {.base = host},
                           .offload = policy->offload};
    int64_t n_sets = 0;
    size_t untrained = 0;
    places.n = divide(policy, first_trained, n_layers, activations);
    for (int64_t s = 0; s < activations->n_segments; s++) {
        qr_segment *segment = &activations->segments[s];
        if (segment->untrained) {
            untrained = lay_untrained(places.layout, model, n_tokens, rows, segment, activations->layers);
        } else if (segment->kept) {
            lay_kept(&places.layout, model, n_tokens, policy, segment, activations->layers);
        } else {
            lay_recomputed(&places, model, n_tokens, rows, segment, activations->layers, sets, &n_sets);
        }
    }
    places.layout.offset = places.layout.offset > untrained ? places.layout.offset : untrained;
    const int64_t slot_elements =
        qr_model_has_experts(model) ? model->shape.experts_per_token * model->shape.hidden : 0;
    float *slots, *branch_normed = NULL;
    places.layout.layer = -1;
    QR_LAY(&places.layout, slots, rows * slot_elements, sizeof(float));
    if (qr_model_has_branches(model)) {
        QR_LAY(&places.layout, branch_normed, rows * model->shape.hidden, sizeof(float));
    }
    for (int64_t l = 0; l < n_layers; l++) {
        activations->layers[l].buffers.branch_normed = branch_normed;
        activations->layers[l].buffers.residual_normed = branch_normed;
        activations->layers[l].buffers.experts.slots = slots;
        activations->layers[l].buffers.experts.branch_normed = branch_normed;
    }
    activations->bytes = places.layout.offset;
    activations->host_bytes = places.host.offset;
    qr_free(sets);
    return QRUN_OK;
}

void qr_activations_free(qr_activations *activations) {
    qr_free(activations->layers);
    qr_free(activations->segments);
    *activations = (qr_activations){0};
}

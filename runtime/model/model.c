/* The description of a model: what config.json and the types of the stored tensors say, before any weight is read. */
#include "runtime/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/model/host_experts.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/rope.h"
#include "runtime/model/split.h"

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

/* √hidden in the type that the model computes in, as Gemma has it. */
static float embedding_scale(int64_t hidden, qr_dtype act_dtype) {
    const float scale = sqrtf((float)hidden);
    if (act_dtype == QR_DTYPE_BF16) { return qr_bf16_to_f32(qr_f32_to_bf16(scale)); }
    return act_dtype == QR_DTYPE_F16 ? qr_f16_to_f32(qr_f32_to_f16(scale)) : scale;
}

static qr_act_fn activation(const qr_model_config *config) {
    static const qr_act_fn fns[] = {[QR_ACTIVATION_SILU] = QR_ACT_SILU,
                                    [QR_ACTIVATION_GELU_TANH] = QR_ACT_GELU_TANH,
                                    [QR_ACTIVATION_GELU_ERF] = QR_ACT_GELU_ERF,
                                    [QR_ACTIVATION_RELU2] = QR_ACT_RELU2,
                                    [QR_ACTIVATION_XIELU] = QR_ACT_NONE /* an op of its own */};
    return fns[config->activation];
}

qr_recurrent_shape qr_recurrent_shape_of(const qr_model_config *config) {
    const qr_recurrent_config *c = &config->recurrent;
    if (c->layers == NULL) { return (qr_recurrent_shape){0}; }
    qr_recurrent_shape shape = {.kind = c->kind,
                                .activation = config->blocks != NULL ? QR_ACT_SILU : activation(config),
                                .kernel = c->conv_kernel,
                                .n_key_heads = c->n_key_heads,
                                .n_value_heads = c->n_value_heads,
                                .key_dim = c->key_dim,
                                .value_dim = c->value_dim,
                                .norm_eps = (float)(c->norm_eps > 0 ? c->norm_eps : config->norm_eps),
                                .doubles_beta = c->doubles_beta,
                                .decays_channels = c->decays_channels,
                                .gate_rank = c->gate_rank,
                                .has_norm = !c->without_norm};
    for (size_t i = 0; i < QR_SPACE_PARTS; i++) {
        shape.scales[i] = (float)c->multipliers[i];
        shape.is_scaled |= shape.scales[i] != 1.0F;
    }
    if (c->kind == QR_RECURRENT_CONV) {
        shape.channels = shape.values = config->hidden_size;
        shape.columns = 3 * config->hidden_size;
    } else {
        const int64_t n_decays = c->decays_channels ? c->key_dim : 1;
        const int64_t n_gates = c->kind == QR_RECURRENT_DELTA ? 1 + n_decays : 1; /* of a head: b and a, or its step */
        shape.values = c->n_value_heads * c->value_dim;
        shape.channels = 2 * c->n_key_heads * c->key_dim + shape.values;
        shape.columns = shape.channels + shape.values + n_gates * c->n_value_heads;
    }
    for (int64_t l = 0; l < config->n_layers; l++) { shape.n_layers += c->layers[l]; }
    return shape;
}

qrun_status qr_model_shape_from_config(const qr_model_config *config, qr_dtype act_dtype, qr_model_shape *shape,
                                       const qr_family **family, qr_error *err) {
    *family = qr_family_find(config->family);
    if (*family == NULL) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "model family %d has no description", (int)config->family);
    }
    *shape = (qr_model_shape){
        .hidden = config->hidden_size,
        .n_layers = config->n_layers,
        .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .head_dim = config->head_dim,
        .value_dim = config->latent.kv_rank > 0 ? config->latent.value_dim : config->value_dim,
        .mlp = config->intermediate_size,
        .vocab = config->vocab_size,
        .n_experts = config->experts.n_experts,
        .experts_per_token = config->experts.n_per_token,
        .expert_mlp = config->experts.intermediate_size,
        .shared_mlp = config->experts.shared_intermediate_size,
        .context_tokens = qr_rope_context_tokens(config),
        .norm_eps = (float)config->norm_eps,
        .attn_scale = (float)((config->attention_multiplier > 0 ? config->attention_multiplier
                                                                : 1.0 / sqrt(config->query_pre_attn_scalar)) *
                              qr_rope_score_factor(config)),
        .attn_softcap = (float)config->attn_logit_softcapping,
        .logit_softcap = (float)config->final_logit_softcapping,
        .embedding_scale = (float)config->embedding_multiplier,
        .gate_scale = (float)config->gate_multiplier,
        .logit_scale = (float)(1.0 / config->logits_scaling),
        .norm_offset = config->norm_adds_one ? 1.0F : 0.0F,
        .activation = activation(config),
        .tied_head = config->tie_word_embeddings,
        .rope_half = {qr_rope_half(config, 0), qr_rope_half(config, 1)},
        .n_rope_kinds = qr_rope_kinds(config),
        .rope_interleaved = config->rope.interleaved,
        .latent = config->latent,
        .temperature_beta = (float)config->attn_temperature_beta,
        .temperature_tokens = (int32_t)config->attn_temperature_tokens,
    };
    shape->router_scale = config->experts.beside_dense ? (float)(1.0 / sqrt((double)config->hidden_size)) : 1.0F;
    shape->attn_gated = config->attn_output_gate || config->attn_gate_apart;
    shape->attn_gate_apart = config->attn_gate_apart;
    shape->attn_gate_by_head = config->attn_gate_by_head;
    shape->attn_gate_by_softplus = config->attn_gate_by_softplus;
    shape->gate_alpha = (float)config->experts.gate_alpha;
    shape->gate_limit = (float)config->experts.gate_limit;
    const qr_layer_heads *const kinds[] = {&config->attention.full, &config->attention.sliding};
    for (size_t i = 0; i < QR_COUNT_OF(kinds); i++) {
        const int64_t heads = kinds[i]->n_heads * kinds[i]->head_dim;
        shape->widest_attended = qr_max(shape->widest_attended, heads);
        shape->widest_qkv = qr_max(shape->widest_qkv, heads + 2 * kinds[i]->n_kv_heads * kinds[i]->head_dim);
    }
    if (config->recurrent.layers != NULL) {
        shape->recurrent = qr_recurrent_shape_of(config);
        shape->widest_attended = qr_max(shape->widest_attended, shape->recurrent.values);
        shape->recurrent.by_key_head = (*family)->modules[QR_ROLE_DELTA_QKVZ] != NULL;
    }
    shape->n_streams = (int32_t)config->streams.n;
    shape->scales_stream = config->streams.scales;
    shape->residual_rank = config->streams.residual_rank;
    shape->layer_input = config->layer_inputs.size;
    shape->input_scale = embedding_scale(shape->layer_input, act_dtype);
    if (config->scale_embeddings) { shape->embedding_scale = embedding_scale(config->hidden_size, act_dtype); }
    return QRUN_OK;
}

float qr_model_norm_offset(const qrun_model *model, qr_tensor_role role) {
    return role == QR_ROLE_FINAL_NORM && model->config.final_norm_is_plain ? 0.0F : model->shape.norm_offset;
}

/* ---- The linear layers, by role ---------------------------------------------------------------------------------- */

/* A layer's heads for keys and values, also where ranks share them. */
static int64_t all_kv_heads(const qrun_model *model, const qr_layer *layer) {
    return qr_model_config_heads(&model->config, layer - model->layers).n_kv_heads;
}

/* Of the whole matrix, also where ranks share it. */
static void linear_shape(const qrun_model *model, const qr_layer *layer, qr_tensor_role role, int64_t *rows,
                         int64_t *cols) {
    const qr_model_shape *s = &model->shape;
    const int64_t n_ranks = qr_max(model->split.n_ranks, 1);
    const int64_t n_heads = layer->n_heads * n_ranks;
    const int64_t q = n_heads * layer->head_dim, kv = all_kv_heads(model, layer) * layer->head_dim;
    const qr_recurrent_shape recurrent = qr_recurrent_shape_of(&model->config);
    const int64_t channels = recurrent.channels, values = recurrent.values, value_heads = recurrent.n_value_heads;
    const qr_latent_config *latent = &s->latent;
    const bool reads_gate_latent = recurrent.gate_rank > 0 && (role == QR_ROLE_DELTA_Z || role == QR_ROLE_DELTA_A);
    *cols = role == QR_ROLE_ATTN_OUT        ? qr_attended_columns(s, layer) * n_ranks
            : role == QR_ROLE_Q_UP          ? latent->query_rank
            : role == QR_ROLE_KV_UP         ? latent->kv_rank
            : role == QR_ROLE_RECURRENT_OUT ? values
            : reads_gate_latent             ? recurrent.gate_rank
            : role == QR_ROLE_INPUT_OUT     ? s->layer_input
            : role == QR_ROLE_RESIDUAL_UP   ? s->residual_rank
            : role == QR_ROLE_MLP_OUT       ? layer->mlp
            : role == QR_ROLE_SHARED_OUT    ? s->shared_mlp
            : role == QR_ROLE_EXPERT_OUT    ? s->expert_mlp
                                            : s->hidden;
    switch (role) {
        case QR_ROLE_Q: *rows = s->attn_gated && !s->attn_gate_apart ? 2 * q : q; break;
        case QR_ROLE_Q_DOWN: *rows = latent->query_rank; break;
        case QR_ROLE_Q_UP: *rows = q; break;
        case QR_ROLE_KV_DOWN: *rows = latent->kv_rank + latent->rotated_dim; break;
        case QR_ROLE_KV_UP: *rows = n_heads * (latent->plain_dim + latent->value_dim); break;
        case QR_ROLE_DELTA_Q:
        case QR_ROLE_DELTA_K: *rows = recurrent.n_key_heads * recurrent.key_dim; break;
        case QR_ROLE_DELTA_QKV: *rows = channels; break;
        case QR_ROLE_DELTA_V:
        case QR_ROLE_DELTA_Z: *rows = values; break;
        case QR_ROLE_DELTA_B: *rows = value_heads; break;
        case QR_ROLE_DELTA_A: *rows = value_heads * qr_recurrent_decays(&recurrent); break;
        case QR_ROLE_DELTA_Z_DOWN:
        case QR_ROLE_DELTA_A_DOWN: *rows = recurrent.gate_rank; break;
        case QR_ROLE_DELTA_QKVZ: *rows = channels + values; break;
        case QR_ROLE_DELTA_BA: *rows = 2 * value_heads; break;
        case QR_ROLE_CONV_IN:
        case QR_ROLE_SPACE_IN: *rows = recurrent.columns; break;
        case QR_ROLE_ATTN_GATE: *rows = s->attn_gate_by_head ? n_heads : q; break;
        case QR_ROLE_K: *rows = kv; break;
        case QR_ROLE_V: *rows = all_kv_heads(model, layer) * qr_value_dim(s, layer); break;
        case QR_ROLE_QKV: *rows = q + 2 * kv; break;
        case QR_ROLE_GATE:
        case QR_ROLE_UP: *rows = layer->mlp; break;
        case QR_ROLE_GATE_UP: *rows = 2 * layer->mlp; break;
        case QR_ROLE_INPUTS: *rows = s->n_layers * s->layer_input; break;
        case QR_ROLE_INPUT_GATE: *rows = s->layer_input; break;
        case QR_ROLE_RESIDUAL_DOWN: *rows = s->residual_rank; break;
        case QR_ROLE_SHARED_GATE:
        case QR_ROLE_SHARED_UP: *rows = s->shared_mlp; break;
        case QR_ROLE_SHARED_GATE_UP: *rows = 2 * s->shared_mlp; break;
        case QR_ROLE_SHARED_SHARE: *rows = 1; break;
        case QR_ROLE_ROUTER: *rows = s->n_experts; break;
        case QR_ROLE_EXPERT_GATE:
        case QR_ROLE_EXPERT_UP: *rows = s->expert_mlp; break;
        default: *rows = s->hidden; break;
    }
}

static qr_linear_layer *stream_end(qrun_model *model, qr_tensor_role role) {
    qr_linear_layer *ends = role < QR_ROLE_STREAM_OUT_1 ? model->stream_ends.in : model->stream_ends.out;
    return &ends[qr_role_stream(role) - 1];
}

/* Roles are numbered in slot order, siblings in the order of their arrays. */
qrun_status qr_model_each_linear(qrun_model *model, qr_linear_visitor visit, void *arg, qr_error *err) {
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l], *recurrent = layer->beside != NULL ? layer->beside : layer;
        qr_linear_layer *attn_in = layer->attn_in, *mlp_in = layer->mlp_in;
        for (qr_tensor_role role = QR_ROLE_Q; role <= QR_ROLE_ROUTER; role++) {
            if (!qr_family_layer_has(model->family, &model->config, l, role)) { continue; }
            const bool is_mlp_out = role == QR_ROLE_MLP_OUT || role == QR_ROLE_SHARED_OUT;
            if (role == QR_ROLE_SPACE_IN) { attn_in = recurrent->attn_in; } /* it has no siblings */
            qr_linear_layer *linear = role == QR_ROLE_ATTN_OUT        ? &layer->attn_out
                                      : role == QR_ROLE_RECURRENT_OUT ? &recurrent->attn_out
                                      : role == QR_ROLE_Q_DOWN        ? &layer->latent.q_down
                                      : role == QR_ROLE_Q_UP          ? &layer->latent.q_up
                                      : role == QR_ROLE_KV_DOWN       ? &layer->latent.kv_down
                                      : role == QR_ROLE_KV_UP         ? &layer->latent.kv_up
                                      : role == QR_ROLE_ATTN_GATE     ? &layer->attn_gate
                                      : role == QR_ROLE_DELTA_Z_DOWN  ? &layer->delta_down[0]
                                      : role == QR_ROLE_DELTA_A_DOWN  ? &layer->delta_down[1]
                                      : role == QR_ROLE_INPUTS        ? &model->inputs.linear
                                      : role == QR_ROLE_INPUT_GATE    ? &layer->input_gate
                                      : role == QR_ROLE_INPUT_OUT     ? &layer->input_out
                                      : role == QR_ROLE_RESIDUAL_DOWN ? &layer->residual_down
                                      : role == QR_ROLE_RESIDUAL_UP   ? &layer->residual_up
                                      : qr_role_is_stream_end(role)   ? stream_end(model, role)
                                      : is_mlp_out                    ? &layer->mlp_out
                                      : role == QR_ROLE_ROUTER        ? &layer->router
                                      : role == QR_ROLE_SHARED_SHARE  ? &layer->shared_share
                                      : role < QR_ROLE_RECURRENT_OUT  ? attn_in++
                                                                      : mlp_in++;
            QR_RETURN_IF_ERROR(visit(arg, linear, l, role, err));
        }
    }
    return QRUN_OK;
}

qrun_status qr_model_each_expert(qrun_model *model, qr_expert_visitor visit, void *arg, qr_error *err) {
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        for (int64_t e = 0; layer->expert_gate != NULL && e < model->shape.n_experts; e++) {
            QR_RETURN_IF_ERROR(visit(arg, &layer->expert_gate[e], l, QR_ROLE_EXPERT_GATE, e, err));
            if (layer->expert_up != NULL) {
                QR_RETURN_IF_ERROR(visit(arg, &layer->expert_up[e], l, QR_ROLE_EXPERT_UP, e, err));
            }
            QR_RETURN_IF_ERROR(visit(arg, &layer->expert_out[e], l, QR_ROLE_EXPERT_OUT, e, err));
        }
    }
    return QRUN_OK;
}

/* ---- K/V groups -------------------------------------------------------------------------------------------------- */

/* The layers that have K/V of one kind, with a window or without. */
typedef struct kv_kind {
    int64_t n_layers, layer_elements; /* of K and V of a token in one of them */
    int64_t group_layers;             /* in a group */
} kv_kind;

static int64_t n_groups_of(const kv_kind *kind, int64_t group_layers) {
    return kind->n_layers > 0 ? qr_ceil_div(kind->n_layers, group_layers) : 0;
}

/* Elements that a token takes in pages of page_elements, and how many layers of either kind such a page then holds; 0
 * where it holds not even one. */
static int64_t count_elements(const kv_kind kinds[2], int64_t page_elements, int64_t group_layers[2]) {
    int64_t n_groups = 0;
    for (int i = 0; i < 2; i++) {
        group_layers[i] = kinds[i].n_layers > 0 ? page_elements / kinds[i].layer_elements : 1;
        if (group_layers[i] == 0) { return 0; }
        n_groups += n_groups_of(&kinds[i], group_layers[i]);
    }
    return n_groups * page_elements;
}

/* The size of pages, one for all groups, at which all layers of a token take least; the largest of those. */
static void choose_group_layers(kv_kind kinds[2]) {
    int64_t least = INT64_MAX, largest = 0;
    for (int of = 0; of < 2; of++) {
        for (int64_t n = 1; n <= kinds[of].n_layers; n++) {
            int64_t group_layers[2];
            const int64_t page = n * kinds[of].layer_elements, all = count_elements(kinds, page, group_layers);
            if (all == 0 || all > least || (all == least && page <= largest)) { continue; }
            least = all;
            largest = page;
            for (int i = 0; i < 2; i++) { kinds[i].group_layers = group_layers[i]; }
        }
    }
}

/* What a layer keeps of a token; its group's window and layers are left out. */
static qr_kv_group kept_of(const qrun_model *model, const qr_layer *layer) {
    const qr_latent_config *latent = &model->shape.latent;
    if (latent->kv_rank == 0) { return (qr_kv_group){.n_kv_heads = layer->n_kv_heads, .head_dim = layer->head_dim}; }
    return (qr_kv_group){.n_kv_heads = 1, .head_dim = latent->kv_rank + latent->rotated_dim, .keys_are_values = true};
}

static bool has_kv(const qr_layer *layer) { return layer->mixes && !layer->is_recurrent && !layer->reads_shared_kv; }

static void fill_groups(qrun_model *model, const kv_kind kinds[2]) {
    int32_t group = -1;
    for (int windowed = 0; windowed < 2; windowed++) {
        int64_t filled = kinds[windowed].group_layers;
        for (int64_t l = 0; l < model->shape.n_layers; l++) {
            qr_layer *layer = &model->layers[l];
            if (!has_kv(layer) || (layer->window > 0) != (windowed == 1)) { continue; }
            if (filled == kinds[windowed].group_layers) {
                group++;
                filled = 0;
            }
            layer->kv_group = group;
            layer->kv_index = (int32_t)filled++;
            model->kv_groups[group] = kept_of(model, layer);
            model->kv_groups[group].window = layer->window;
            model->kv_groups[group].n_layers = (int32_t)filled;
        }
    }
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        qr_layer *owner = &model->layers[qr_model_config_kv_owner(&model->config, l)];
        if (!layer->reads_shared_kv) { continue; }
        owner->is_read_by_others = true;
        layer->kv_group = owner->kv_group;
        layer->kv_index = owner->kv_index;
    }
}

/* Groups of layers of one kind that fill pages of one size, so that one pool serves them all. */
static qrun_status describe_kv_groups(qrun_model *model, qr_error *err) {
    kv_kind kinds[2] = {{.group_layers = 1}, {.group_layers = 1}};
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        if (!has_kv(layer)) { continue; }
        kv_kind *kind = &kinds[layer->window > 0];
        kind->n_layers++;
        const qr_kv_group kept = kept_of(model, layer);
        kind->layer_elements = kept.n_kv_heads * kept.head_dim;
    }
    choose_group_layers(kinds);
    for (int i = 0; i < 2; i++) { model->n_kv_groups += (int32_t)n_groups_of(&kinds[i], kinds[i].group_layers); }
    assert(model->n_kv_groups > 0); /* there is a layer */
    model->kv_groups = qr_alloc_array_zeroed((size_t)model->n_kv_groups, sizeof *model->kv_groups);
    if (model->kv_groups == NULL) { return qr_fail_memory(err, "the K/V groups", 0); }
    fill_groups(model, kinds);
    return QRUN_OK;
}

/* ---- Formats ----------------------------------------------------------------------------------------------------- */

typedef struct describe_state {
    qrun_model *model;
    const struct qr_model_options *options;
    const qr_safetensors *source; /* NULL: random weights */
    int64_t out_offset;           /* of the next sibling */
} describe_state;

static void set_format(qr_weight_desc *desc, qr_weight_format format, int block) {
    desc->format = format;
    desc->block = qr_weight_is_nf4(format) ? block : 0;
}

/* Only experts are held in MXFP4. */
static qr_weight_format format_of_linear(const struct qr_model_options *options, qr_tensor_role role) {
    const bool is_quantised = qr_role_is_quantised(role) && options->linear_format != QR_WEIGHT_MXFP4;
    return is_quantised ? options->linear_format : options->table_format;
}

static qrun_status shape_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)err;
    describe_state *state = arg;
    qrun_model *model = state->model;
    qr_weight_desc *desc = &linear->weight.desc;
    linear_shape(model, &model->layers[layer], role, &desc->rows, &desc->cols);
    desc->rows = qr_split_rows(model, layer, role, desc->rows, &linear->share);
    set_format(desc, format_of_linear(state->options, role), QR_NF4_BLOCK);
    linear->slot = model->n_slots++;
    linear->has_bias = qr_family_has_bias(&model->config, role);
    const bool has_siblings = role == QR_ROLE_K || role == QR_ROLE_V || role == QR_ROLE_UP ||
                              role == QR_ROLE_SHARED_UP || role == QR_ROLE_DELTA_BA || role == QR_ROLE_DELTA_K ||
                              role == QR_ROLE_DELTA_V || role == QR_ROLE_DELTA_A_DOWN ||
                              (role > QR_ROLE_DELTA_QKV && role <= QR_ROLE_DELTA_A);
    const bool is_out = role == QR_ROLE_ATTN_OUT || role == QR_ROLE_RECURRENT_OUT || role == QR_ROLE_MLP_OUT ||
                        role == QR_ROLE_SHARED_OUT;
    linear->out_offset = has_siblings ? state->out_offset : is_out ? linear->share.ranges[0].first : 0;
    state->out_offset = is_out || role == QR_ROLE_ROUTER ? 0 : linear->out_offset + desc->rows;
    /* Short values are made in a place of their own; what queries bring along, gates, is not in their columns. */
    if (role == QR_ROLE_V && model->shape.value_dim > 0) { linear->out_offset = 0; }
    if (role == QR_ROLE_Q) { state->out_offset = model->layers[layer].n_heads * model->layers[layer].head_dim; }
    return QRUN_OK;
}

static qrun_status shape_expert(void *arg, qr_weight *matrix, int64_t layer, qr_tensor_role role, int64_t expert,
                                qr_error *err) {
    (void)expert, (void)err;
    const describe_state *state = arg;
    const qrun_model *model = state->model;
    qr_layer *of = &model->layers[layer];
    linear_shape(model, of, role, &matrix->desc.rows, &matrix->desc.cols);
    matrix->desc.rows = qr_split_rows(model, layer, role, matrix->desc.rows, qr_expert_share(of, role));
    set_format(&matrix->desc, state->options->linear_format, QR_NF4_BLOCK);
    return QRUN_OK;
}

static void shape_table(const describe_state *state, qr_tensor_role role, int64_t rows, int64_t cols,
                        qr_weight *table) {
    if (state->model->family->modules[role] == NULL || cols == 0) { return; }
    table->desc = (qr_weight_desc){.rows = rows, .cols = cols};
    set_format(&table->desc, state->options->table_format, 0);
}

/* Of all ranks together. Where a vector has a part for each expert: of one part. */
static int64_t norm_dim(const qrun_model *model, const qr_layer *layer, qr_tensor_role role) {
    const qr_model_shape *s = &model->shape;
    const qr_recurrent_shape recurrent = qr_recurrent_shape_of(&model->config);
    const int64_t n_ranks = qr_max(model->split.n_ranks, 1);
    if (role == QR_ROLE_LAYER_SCALAR || qr_role_is_xielu(role)) { return 1; }
    if (role == QR_ROLE_Q_DOWN_NORM) { return s->latent.query_rank; }
    if (role == QR_ROLE_KV_DOWN_NORM) { return s->latent.kv_rank; }
    if (role == QR_ROLE_RECURRENT_NORM) {
        return recurrent.kind == QR_RECURRENT_SPACE ? recurrent.values : recurrent.value_dim;
    }
    if (role == QR_ROLE_CONV_BIAS) { return recurrent.channels; }
    if (role == QR_ROLE_CONV) { return recurrent.channels * recurrent.kernel; }
    if (role == QR_ROLE_RECURRENT_DT_BIAS) { return recurrent.n_value_heads * qr_recurrent_decays(&recurrent); }
    if (role == QR_ROLE_RECURRENT_A_LOG || role == QR_ROLE_SKIP) { return recurrent.n_value_heads; }
    if (role == QR_ROLE_SINKS) { return layer->n_heads * n_ranks; }
    if (role == QR_ROLE_STREAM_ROUTER) { return s->n_streams * s->hidden; }
    if (role == QR_ROLE_STREAM_PREDICT) { return s->n_streams * s->n_streams * s->n_streams; }
    if (role == QR_ROLE_STREAM_CORRECT) { return s->n_streams * s->n_streams; }
    if (role == QR_ROLE_EXPERT_SCALE || role == QR_ROLE_CHOICE_BIAS) { return s->n_experts; }
    if (role == QR_ROLE_EXPERT_OUT_BIAS) { return s->hidden; }
    if (qr_role_is_expert_bias(role)) { return s->expert_mlp; }
    if (role != QR_ROLE_Q_NORM && role != QR_ROLE_K_NORM) { return s->hidden; }
    if (!model->family->norms_all_heads) { return layer->head_dim; }
    return layer->head_dim * (role == QR_ROLE_Q_NORM ? layer->n_heads * n_ranks : all_kv_heads(model, layer));
}

bool qr_model_is_parallel(const qrun_model *model) {
    return model->family->is_parallel && !model->config.blocks_in_turn;
}

/* As in transformers and DeepSeek's own code, whatever rms_norm_eps says. */
static const float LATENT_NORM_EPS = 1e-6F;

static bool has_layer_norms(const qrun_model *model) {
    return model->family->layer_norm && !model->config.has_rms_norms;
}

static qr_norm norm_of(const qrun_model *model, qr_tensor_role role, int64_t dim) {
    const bool is_post = role == QR_ROLE_POST_ATTN_NORM || role == QR_ROLE_POST_MLP_NORM;
    const bool is_of_latent = role == QR_ROLE_Q_DOWN_NORM || role == QR_ROLE_KV_DOWN_NORM;
    return (qr_norm){.dim = dim,
                     .eps = is_of_latent ? LATENT_NORM_EPS
                            : is_post    ? (float)model->config.post_norm_eps
                                         : model->shape.norm_eps,
                     .offset = qr_model_norm_offset(model, role),
                     .is_layer_norm = has_layer_norms(model)};
}

/* This rank's of a layer's norm, or other vector. */
static void shape_norm(const qrun_model *model, qr_layer *layer, qr_tensor_role role) {
    qr_norm *norm = qr_norm_of_layer(layer, role);
    *norm = norm_of(model, role, norm_dim(model, layer, role));
    norm->dim = qr_split_rows(model, layer - model->layers, role, norm->dim, &norm->share);
    if (qr_role_is_expert_bias(role)) { norm->dim *= model->shape.n_experts; }
}

/* Without a weight: of the model's ones. */
static qr_norm plain_norm(qrun_model *model, int64_t dim) {
    model->n_ones = qr_max(model->n_ones, dim);
    return (qr_norm){.dim = dim, .eps = model->shape.norm_eps, .is_layer_norm = has_layer_norms(model)};
}

/* Of the standard normal distribution, by bisection: it is asked for once a layer. */
static double normal_quantile(double part) {
    double low = -40.0, high = 40.0;
    for (int i = 0; i < 200; i++) {
        const double middle = 0.5 * (low + high);
        if (0.5 * erfc(-middle / sqrt(2.0)) < part) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return 0.5 * (low + high);
}

/* What config.json says of a layer as a whole. */
static void shape_layer(qrun_model *model, int64_t l, int32_t *n_recurrent) {
    const qr_model_config *config = &model->config;
    const qr_layer_heads heads = qr_model_config_heads(config, l);
    qr_layer *layer = &model->layers[l];
    layer->mixes = qr_model_config_mixes(config, l);
    layer->has_mlp = qr_model_config_has_mlp(config, l);
    layer->is_parallel = qr_model_is_parallel(model);
    layer->is_recurrent = config->recurrent.layers != NULL && config->recurrent.layers[l] && layer->beside == NULL;
    layer->out_scale = (float)(config->residual_multiplier * config->attention_out_multiplier);
    layer->mlp_scale = (float)(config->residual_multiplier * config->mlp_out_multiplier);
    if (layer->beside != NULL) {
        *layer->beside = (qr_layer){.mixes = true,
                                    .is_recurrent = true,
                                    .out_scale = (float)(config->residual_multiplier * config->space_out_multiplier),
                                    .state_index = (*n_recurrent)++};
    }
    if (layer->is_recurrent) { layer->state_index = (*n_recurrent)++; }
    if (layer->expert_gate != NULL) {
        layer->expert_slot = model->n_slots;
        model->n_slots += 2;
    }
    layer->n_heads = heads.n_heads / qr_max(model->split.n_ranks, 1);
    layer->n_kv_heads = qr_split_kv_heads(&model->split, heads.n_kv_heads);
    layer->head_dim = heads.head_dim;
    layer->mlp = qr_model_config_mlp_size(config, l);
    layer->gate_is_sparse = config->gate_parts != NULL && config->gate_parts[l] > 0;
    if (layer->gate_is_sparse) { layer->gate_quantile = (float)normal_quantile((double)config->gate_parts[l]); }
    layer->values_are_keys = heads.values_are_keys;
    layer->reads_shared_kv = qr_model_config_kv_owner(config, l) != l;
    if (config->attention.norms_values && !layer->reads_shared_kv) {
        layer->v_norm = plain_norm(model, heads.head_dim);
    }
    if (config->norms_layers) { layer->attn_norm = layer->mlp_norm = plain_norm(model, config->hidden_size); }
    if (config->norms_heads) { layer->q_norm = layer->k_norm = plain_norm(model, heads.head_dim); }
    layer->window = config->layer_slides[l] ? (int32_t)config->sliding_window : 0;
    layer->key_rope_kind = qr_rope_key_kind(config, l);
    layer->query_rope_kind = qr_rope_query_kind(config, l);
    for (qr_tensor_role role = QR_ROLE_ATTN_NORM; role < QR_ROLE_Q; role++) {
        if (!qr_family_layer_has(model->family, config, l, role)) { continue; }
        shape_norm(model, layer, role);
    }
}

/* What config.json says of every module. */
static void shape_modules(describe_state *state) {
    qrun_model *model = state->model;
    const qr_model_shape *shape = &model->shape;
    int32_t n_recurrent = 0;
    for (int64_t l = 0; l < shape->n_layers; l++) { shape_layer(model, l, &n_recurrent); }
    shape_table(state, QR_ROLE_EMBEDDING, model->config.embedding_rows, shape->hidden, &model->embedding);
    shape_table(state, QR_ROLE_POSITION_EMBEDDING, shape->context_tokens, shape->hidden, &model->position_embedding);
    if (!shape->tied_head) {
        shape_table(state, QR_ROLE_HEAD, shape->vocab, shape->hidden, &model->head);
        model->head.desc.rows = qr_split_rows(model, 0, QR_ROLE_HEAD, model->head.desc.rows, &model->head_share);
    }
    shape_table(state, QR_ROLE_INPUTS_EMBEDDING, model->config.layer_inputs.vocab_size,
                shape->n_layers * shape->layer_input, &model->inputs.embedding);
    model->inputs.norm = norm_of(model, QR_ROLE_INPUTS_NORM, shape->layer_input);
    if (model->config.norms_embeddings) { model->embedding_norm = plain_norm(model, shape->hidden); }
    (void)qr_model_each_linear(model, shape_linear, state, NULL);
    (void)qr_model_each_expert(model, shape_expert, state, NULL);
    model->final_norm = model->config.norms_layers ? plain_norm(model, shape->hidden)
                                                   : norm_of(model, QR_ROLE_FINAL_NORM, shape->hidden);
}

/* The experts of a layer are one op's, which takes matrices of one description. */
static qrun_status check_alike(const qrun_model *model, const qr_module *module, const qr_stored_weight *stored,
                               qr_error *err) {
    if (!qr_role_is_expert(module->role) || module->expert == 0) { return QRUN_OK; }
    const qr_weight_desc *desc = &module->matrix->desc, *first = &module->matrix[-module->expert].desc;
    const qr_weight_format format = qr_module_is_part(module) ? module->share->whole_format : first->format;
    if (desc->format == format && desc->block == first->block) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s is stored as %s, and expert 0 as %s; all should be alike",
                   model->folder, stored->codes->name, qr_weight_format_name(desc->format),
                   qr_weight_format_name(format));
}

/* Tables of tokens are read in INT8, which rows can be taken of one by one. */
static qrun_status check_quantised_table(const describe_state *state, const qr_module *module,
                                         const qr_stored_weight *stored, qr_error *err) {
    const bool is_of_tokens = module->role == QR_ROLE_EMBEDDING || module->role == QR_ROLE_INPUTS_EMBEDDING;
    if (!is_of_tokens || stored->desc.format != QR_WEIGHT_INT8) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is stored as %s; embeddings can be read in INT8, with a scale for each token, or "
                       "unquantised",
                       stored->codes->name, qr_weight_format_name(stored->desc.format));
    }
    if (!state->options->trainable) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is stored as int8, and full fine-tuning changes every weight; take the original model",
                   stored->codes->name);
}

/* A linear layer keeps the format that a prequantised folder stores it in: quantised, or plain where the folder did not
 * quantise it (its llm_int8_skip_modules, or all but experts in MXFP4). Tables and routers keep their own type. */
static qrun_status describe_matrix(const describe_state *state, const qr_module *module, qr_error *err) {
    qrun_model *model = state->model;
    qr_weight_desc *desc = &module->matrix->desc;
    const bool is_linear = qr_role_is_quantised(module->role);
    QR_RETURN_IF_ERROR(qr_weight_desc_check(desc, model->family->modules[module->role], err));
    if (state->source != NULL) {
        qr_stored_weight stored;
        QR_RETURN_IF_ERROR(qr_module_find_stored(model, state->source, module, &stored, err));
        const bool is_plain = qr_weight_is_plain(stored.desc.format);
        if (!is_plain && module->role < QR_ROLE_Q && module->role != QR_ROLE_HEAD) {
            QR_RETURN_IF_ERROR(check_quantised_table(state, module, &stored, err));
        }
        if (is_linear ? !qr_stored_can_decode(&stored) || model->prequantized : !state->options->trainable) {
            set_format(desc, stored.desc.format, stored.desc.block);
        }
        QR_RETURN_IF_ERROR(check_alike(model, module, &stored, err));
    }
    const int64_t n_elements = qr_module_stored_n(module) * desc->cols;
    model->n_parameters += n_elements;
    if (is_linear && !qr_weight_is_plain(desc->format)) { model->n_quantized_parameters += n_elements; }
    return qr_split_format(model, module, err);
}

static qrun_status describe_vector(const describe_state *state, const qr_module *module, const char *suffix,
                                   qr_error *err) {
    qrun_model *model = state->model;
    qr_stored_vector stored;
    const int64_t n = qr_module_stored_n(module);
    model->n_parameters += n;
    return state->source != NULL
               ? qr_module_find_vector(model, state->source, module->role, module->layer, suffix, n, &stored, err)
               : QRUN_OK;
}

static qrun_status describe_module(void *arg, const qr_module *module, qr_error *err) {
    const describe_state *state = arg;
    if (module->matrix != NULL) { QR_RETURN_IF_ERROR(describe_matrix(state, module, err)); }
    if (module->weight != NULL) { QR_RETURN_IF_ERROR(describe_vector(state, module, "weight", err)); }
    return module->bias != NULL ? describe_vector(state, module, "bias", err) : QRUN_OK;
}

int64_t qr_model_expert_matrices(const qrun_model *model) {
    const bool *has_experts = model->config.experts.layer_has_experts;
    int64_t n_layers = 0;
    for (int64_t l = 0; has_experts != NULL && l < model->shape.n_layers; l++) { n_layers += has_experts[l]; }
    return n_layers * model->shape.n_experts * (qr_family_experts_in(model->family) + 1);
}

qr_expert_counts qr_model_count_experts(const qrun_model *model) {
    const qr_backend *backend = qr_host_experts_backend(model);
    const int64_t n_active = model->shape.experts_per_token, n_idle = model->shape.n_experts - n_active;
    qr_expert_counts counts = {0};
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        const qr_weight *const matrices[] = {layer->expert_gate, layer->expert_up, layer->expert_out};
        for (size_t i = 0; i < QR_COUNT_OF(matrices); i++) {
            if (matrices[i] == NULL) { continue; }
            const qr_weight_desc *desc = &matrices[i]->desc;
            const int64_t n = qr_max(layer->expert_share[i].all, desc->rows) * desc->cols;
            counts.n_active_parameters += n_active * n;
            counts.n_idle_parameters += n_idle * n;
            counts.idle_bytes += n_idle * (int64_t)backend->weight_bytes(backend, &matrices[i]->desc);
        }
    }
    return counts;
}

static qrun_status make_layers(qrun_model *model, qr_error *err) {
    const int64_t n = model->shape.n_layers, n_each = model->config.recurrent.beside_attention ? 2 : 1;
    model->layers = qr_alloc_array_zeroed((size_t)(n * n_each), sizeof *model->layers);
    if (model->layers == NULL) { return qr_fail_memory(err, "the table of layers", 0); }
    for (int64_t l = n; l < n * n_each; l++) { model->layers[l - n].beside = &model->layers[l]; }
    return QRUN_OK;
}

static qrun_status make_expert_tables(qrun_model *model, qr_error *err) {
    const bool *has_experts = model->config.experts.layer_has_experts;
    const int64_t n_experts = model->shape.n_experts, n_in = qr_family_experts_in(model->family);
    const size_t n = (size_t)qr_model_expert_matrices(model);
    if (n == 0) { return QRUN_OK; }
    model->expert_weights = qr_alloc_array_zeroed(n, sizeof *model->expert_weights);
    if (model->expert_weights == NULL) { return qr_fail_memory(err, "the table of experts", n * sizeof(qr_weight)); }
    qr_weight *next = model->expert_weights;
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        if (!has_experts[l]) { continue; }
        layer->expert_gate = next;
        layer->expert_up = n_in > 1 ? next + n_experts : NULL;
        layer->expert_out = next + n_in * n_experts;
        next += (n_in + 1) * n_experts;
    }
    return QRUN_OK;
}

/* Whether a folder has matrices in INT8 where its config says NF4, or the other way round; or unquantised ones. */
static qrun_status note_mixed(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    qrun_model *model = arg;
    if (module->matrix == NULL || !qr_role_is_quantised(module->role)) { return QRUN_OK; }
    const qr_weight_format format = module->matrix->desc.format;
    const bool is_other = qr_weight_is_nf4(model->linear_format) ? format == QR_WEIGHT_INT8 : qr_weight_is_nf4(format);
    if (is_other) { model->is_mixed = true; }
    if (qr_weight_is_plain(format)) { model->is_partly_plain = true; }
    return QRUN_OK;
}

const char *qr_model_quant_name(const qrun_model *model) {
    return model->is_mixed || model->is_partly_plain ? "mixed" : qr_weight_format_name(model->linear_format);
}

static void hold_in_int8(qr_weight *table) {
    if (qr_weight_is_plain(table->desc.format)) { set_format(&table->desc, QR_WEIGHT_INT8, 0); }
}

qrun_status qr_model_describe(qrun_model *model, const struct qr_model_options *options, const qr_safetensors *source,
                              qr_error *err) {
    QR_RETURN_IF_ERROR(make_layers(model, err));
    QR_RETURN_IF_ERROR(make_expert_tables(model, err));
    describe_state state = {.model = model, .options = options, .source = source};
    shape_modules(&state);
    QR_RETURN_IF_ERROR(describe_kv_groups(model, err));
    QR_RETURN_IF_ERROR(qr_model_each_module(model, describe_module, &state, err));
    model->is_mixed = model->is_partly_plain = false;
    const bool has_format = model->prequantized && model->linear_format != QR_WEIGHT_MXFP4; /* of linear layers */
    if (has_format) { (void)qr_model_each_module(model, note_mixed, model, NULL); }
    if (options->head_int8) { hold_in_int8(model->shape.tied_head ? &model->embedding : &model->head); }
    model->head_share.whole_format = model->head.desc.format;
    if (options->embedding_int8) {
        hold_in_int8(&model->embedding);
        hold_in_int8(&model->inputs.embedding);
    }
    model->weight_bytes = qr_model_place_weights(model, NULL);
    return QRUN_OK;
}

qr_options_text qr_model_smaller_options(const qrun_model *model) {
    const struct {
        bool helps;
        const char *name;
    } options[] = {
        {!model->prequantized && model->linear_format != QR_WEIGHT_NF4_DQ, "`quant=nf4-dq`"},
        {model->head.desc.format != QR_WEIGHT_INT8, "`quant_head_int8`"},
        {!model->shape.tied_head && model->embedding.desc.format != QR_WEIGHT_INT8, "`quant_embedding_int8`"},
    };
    qr_options_text fields = {""};
    size_t n = 0;
    for (size_t i = 0; i < QR_COUNT_OF(options); i++) {
        if (!options[i].helps) { continue; }
        n += (size_t)snprintf(fields.text + n, sizeof fields.text - n, "%s%s", n > 0 ? ", " : "", options[i].name);
    }
    return fields;
}

void qr_model_free_tables(qrun_model *model) {
    qr_free(model->layers);
    qr_free(model->expert_weights);
    qr_free(model->kv_groups);
    model->layers = NULL;
    model->expert_weights = NULL;
    model->kv_groups = NULL;
}

qr_weight_format qr_model_compute_format(const qrun_model *model) { return qr_weight_plain_format(model->act_dtype); }

int32_t qr_model_count_sessions(qrun_model *model, int32_t change) {
    pthread_mutex_lock(&model->lock);
    const int32_t before = model->n_sessions;
    model->n_sessions += change;
    pthread_mutex_unlock(&model->lock);
    return before;
}

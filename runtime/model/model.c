#include "runtime/model/model.h"

#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/modules.h"
#include "runtime/model/rope.h"

/* √hidden in the type that the model computes in, as Gemma has it. */
static float embedding_scale(int64_t hidden, qr_dtype act_dtype) {
    const float scale = sqrtf((float)hidden);
    if (act_dtype == QR_DTYPE_BF16) { return qr_bf16_to_f32(qr_f32_to_bf16(scale)); }
    return act_dtype == QR_DTYPE_F16 ? qr_f16_to_f32(qr_f32_to_f16(scale)) : scale;
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
        .mlp = config->intermediate_size,
        .vocab = config->vocab_size,
        .context_tokens = qr_rope_context_tokens(config),
        .norm_eps = (float)config->norm_eps,
        .attn_scale = (float)(1.0 / sqrt(config->query_pre_attn_scalar)),
        .attn_softcap = (float)config->attn_logit_softcapping,
        .logit_softcap = (float)config->final_logit_softcapping,
        .embedding_scale = 1.0F,
        .norm_offset = config->norm_adds_one ? 1.0F : 0.0F,
        .activation = config->activation == QR_ACTIVATION_SILU        ? QR_ACT_SILU
                      : config->activation == QR_ACTIVATION_GELU_TANH ? QR_ACT_GELU_TANH
                                                                      : QR_ACT_GELU_ERF,
        .tied_head = config->tie_word_embeddings,
        .rope_half = qr_rope_half(config),
        .n_rope_kinds = qr_rope_kinds(config),
    };
    if (config->scale_embeddings) { shape->embedding_scale = embedding_scale(config->hidden_size, act_dtype); }
    return QRUN_OK;
}

/* ---- The linear layers, by role ---------------------------------------------------------------------------------- */

static void linear_shape(const qr_model_shape *s, qr_tensor_role role, int64_t *rows, int64_t *cols) {
    const int64_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    *cols = role == QR_ROLE_ATTN_OUT ? q : role == QR_ROLE_MLP_OUT ? s->mlp : s->hidden;
    switch (role) {
        case QR_ROLE_Q: *rows = q; break;
        case QR_ROLE_K:
        case QR_ROLE_V: *rows = kv; break;
        case QR_ROLE_QKV: *rows = q + 2 * kv; break;
        case QR_ROLE_GATE:
        case QR_ROLE_UP: *rows = s->mlp; break;
        case QR_ROLE_GATE_UP: *rows = 2 * s->mlp; break;
        default: *rows = s->hidden; break;
    }
}

/* First column of a projection's output in the buffer it shares with its siblings: [q | k | v] and [gate | up]. */
static int64_t linear_out_offset(const qrun_model *model, qr_tensor_role role) {
    const qr_model_shape *s = &model->shape;
    const int64_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const bool gated = model->family->modules[QR_ROLE_GATE] != NULL;
    return role == QR_ROLE_K ? q : role == QR_ROLE_V ? q + kv : role == QR_ROLE_UP && gated ? s->mlp : 0;
}

static const qr_tensor_role attn_in_roles[] = {QR_ROLE_Q, QR_ROLE_K, QR_ROLE_V, QR_ROLE_QKV};
static const qr_tensor_role mlp_in_roles[] = {QR_ROLE_GATE, QR_ROLE_UP, QR_ROLE_GATE_UP};

static qrun_status visit_siblings(qrun_model *model, qr_linear_layer *linears, int64_t layer,
                                  const qr_tensor_role *roles, size_t n_roles, qr_linear_visitor visit, void *arg,
                                  qr_error *err) {
    qrun_status status = QRUN_OK;
    for (size_t i = 0, n = 0; i < n_roles && status == QRUN_OK; i++) {
        if (model->family->modules[roles[i]] != NULL) { status = visit(arg, &linears[n++], layer, roles[i], err); }
    }
    return status;
}

qrun_status qr_model_each_linear(qrun_model *model, qr_linear_visitor visit, void *arg, qr_error *err) {
    qrun_status status = QRUN_OK;
    for (int64_t l = 0; l < model->shape.n_layers && status == QRUN_OK; l++) {
        qr_layer *layer = &model->layers[l];
        QR_RETURN_IF_ERROR(
            visit_siblings(model, layer->attn_in, l, attn_in_roles, QR_COUNT_OF(attn_in_roles), visit, arg, err));
        QR_RETURN_IF_ERROR(visit(arg, &layer->attn_out, l, QR_ROLE_ATTN_OUT, err));
        QR_RETURN_IF_ERROR(
            visit_siblings(model, layer->mlp_in, l, mlp_in_roles, QR_COUNT_OF(mlp_in_roles), visit, arg, err));
        QR_RETURN_IF_ERROR(visit(arg, &layer->mlp_out, l, QR_ROLE_MLP_OUT, err));
    }
    return status;
}

/* ---- Description ------------------------------------------------------------------------------------------------- */

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Groups of equally many layers of one window, so that one pool of equal pages serves them all. */
static qrun_status describe_kv_groups(qrun_model *model, qr_error *err) {
    const int64_t n_layers = model->shape.n_layers;
    int64_t n_windowed = 0;
    for (int64_t l = 0; l < n_layers; l++) { n_windowed += model->layers[l].window > 0; }
    const int64_t size = greatest_common_divisor(n_windowed, n_layers - n_windowed);
    model->group_layers = (int32_t)size;
    model->n_kv_groups = (int32_t)(n_layers / size);
    model->kv_groups = qr_alloc_array_zeroed((size_t)model->n_kv_groups, sizeof *model->kv_groups);
    if (model->kv_groups == NULL) { return qr_fail_memory(err, "the K/V groups", 0); }
    int32_t group = 0, filled = 0;
    for (int windowed = 0; windowed < 2; windowed++) {
        for (int64_t l = 0; l < n_layers; l++) {
            qr_layer *layer = &model->layers[l];
            if ((layer->window > 0) != (windowed == 1)) { continue; }
            layer->kv_group = group;
            layer->kv_index = filled;
            model->kv_groups[group].window = layer->window;
            filled = (filled + 1) % (int32_t)size;
            group += filled == 0;
        }
    }
    return QRUN_OK;
}

typedef struct describe_state {
    qrun_model *model;
    const struct qr_model_options *options;
    const qr_safetensors *source;
} describe_state;

static bool is_plain(qr_weight_format format) { return format <= QR_WEIGHT_BF16; }

static void set_format(qr_weight_desc *desc, qr_weight_format format, int block) {
    desc->format = format;
    desc->block = format == QR_WEIGHT_NF4 || format == QR_WEIGHT_NF4_DQ ? block : 0;
}

/* Checkpoints that put a prefix before the modules of the base model have the head beside it, or inside as well. */
static bool is_head_without_prefix(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role) {
    char name[QR_STORED_NAME_BYTES];
    if (role != QR_ROLE_HEAD || model->prefix[0] == '\0') { return false; }
    (void)snprintf(name, sizeof name, "%s%s.weight", model->prefix, model->family->modules[role]);
    return qr_safetensors_find(source, name) == NULL;
}

qrun_status qr_model_find_stored(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                 int64_t layer, const qr_weight_desc *desc, qr_stored_weight *stored, qr_error *err) {
    char module[QR_STORED_NAME_BYTES];
    const char *prefix = is_head_without_prefix(model, source, role) ? "" : model->prefix;
    qr_family_module_name(model->family, prefix, role, layer, module, sizeof module);
    const bool transposed = model->family->transposed && role >= QR_ROLE_Q;
    return qr_stored_weight_find(source, module, desc->rows, desc->cols, transposed, stored, err);
}

/* A matrix that a bitsandbytes folder stores quantised stays as it is; one that such a folder left alone (its
 * llm_int8_skip_modules) keeps its own type. */
static qrun_status describe_from_source(const describe_state *state, qr_tensor_role role, int64_t layer,
                                        qr_weight_desc *desc, qr_error *err) {
    qr_stored_weight stored;
    QR_RETURN_IF_ERROR(qr_model_find_stored(state->model, state->source, role, layer, desc, &stored, err));
    if (!is_plain(stored.desc.format) || state->model->prequantized) {
        set_format(desc, stored.desc.format, stored.desc.block);
    }
    return QRUN_OK;
}

/* A norm's weight or a bias: found in the source, where there is one. */
static qrun_status describe_vector(const describe_state *state, qr_tensor_role role, int64_t layer, const char *suffix,
                                   int64_t n, qr_error *err) {
    qrun_model *model = state->model;
    const qr_safetensors_tensor *tensor;
    model->n_parameters += n;
    return state->source != NULL ? qr_module_find_vector(model, state->source, role, layer, suffix, n, &tensor, err)
                                 : QRUN_OK;
}

static qrun_status describe_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                   qr_error *err) {
    const describe_state *state = arg;
    qrun_model *model = state->model;
    qr_weight_desc *desc = &linear->weight.desc;
    linear_shape(&model->shape, role, &desc->rows, &desc->cols);
    set_format(desc, state->options->linear_format, QR_NF4_BLOCK);
    linear->slot = model->n_slots++;
    linear->out_offset = linear_out_offset(model, role);
    linear->has_bias = qr_family_has_bias(&model->config, role);
    qrun_status status = qr_weight_desc_check(desc, model->family->modules[role], err);
    if (status == QRUN_OK && state->source != NULL) { status = describe_from_source(state, role, layer, desc, err); }
    if (status == QRUN_OK && linear->has_bias) {
        status = describe_vector(state, role, layer, "bias", desc->rows, err);
    }
    model->n_parameters += desc->rows * desc->cols;
    if (!is_plain(desc->format)) { model->n_quantized_parameters += desc->rows * desc->cols; }
    return status;
}

/* Embedding, positions and head keep the type they are stored in, unless the head is asked for in INT8. */
static qrun_status describe_table(const describe_state *state, qr_tensor_role role, int64_t rows, qr_weight *weight,
                                  qr_error *err) {
    qrun_model *model = state->model;
    qr_weight_desc *desc = &weight->desc;
    desc->rows = rows;
    desc->cols = model->shape.hidden;
    set_format(desc, state->options->table_format, 0);
    qrun_status status = qr_weight_desc_check(desc, model->family->modules[role], err);
    if (status == QRUN_OK && state->source != NULL) {
        qr_stored_weight stored;
        status = qr_model_find_stored(model, state->source, role, 0, desc, &stored, err);
        if (status == QRUN_OK && !state->options->trainable) {
            set_format(desc, stored.desc.format, stored.desc.block);
        }
        if (status == QRUN_OK && role != QR_ROLE_HEAD && !is_plain(stored.desc.format)) {
            status =
                qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: a quantised embedding cannot be read", stored.codes->name);
        }
    }
    model->n_parameters += desc->rows * desc->cols;
    return status;
}

static qrun_status describe_tables(const describe_state *state, qr_error *err) {
    qrun_model *model = state->model;
    const qr_model_shape *shape = &model->shape;
    qrun_status status = describe_table(state, QR_ROLE_EMBEDDING, shape->vocab, &model->embedding, err);
    if (status == QRUN_OK && model->family->modules[QR_ROLE_POSITION_EMBEDDING] != NULL) {
        status =
            describe_table(state, QR_ROLE_POSITION_EMBEDDING, shape->context_tokens, &model->position_embedding, err);
    }
    if (status == QRUN_OK && !shape->tied_head) {
        status = describe_table(state, QR_ROLE_HEAD, shape->vocab, &model->head, err);
    }
    if (status != QRUN_OK) { return status; }
    qr_weight *head = shape->tied_head ? &model->embedding : &model->head;
    if (state->options->head_int8 && is_plain(head->desc.format)) { set_format(&head->desc, QR_WEIGHT_INT8, 0); }
    return QRUN_OK;
}

static qrun_status describe_norms(const describe_state *state, qr_error *err) {
    static const struct {
        qr_tensor_role role;
        bool per_head, once;
    } norms[] = {{QR_ROLE_FINAL_NORM, false, true},      {QR_ROLE_ATTN_NORM, false, false},
                 {QR_ROLE_POST_ATTN_NORM, false, false}, {QR_ROLE_MLP_NORM, false, false},
                 {QR_ROLE_POST_MLP_NORM, false, false},  {QR_ROLE_Q_NORM, true, false},
                 {QR_ROLE_K_NORM, true, false}};
    const qrun_model *model = state->model;
    for (size_t i = 0; i < QR_COUNT_OF(norms); i++) {
        if (model->family->modules[norms[i].role] == NULL) { continue; }
        const int64_t n = norms[i].per_head ? model->shape.head_dim : model->shape.hidden;
        for (int64_t l = 0; l < (norms[i].once ? 1 : model->shape.n_layers); l++) {
            QR_RETURN_IF_ERROR(describe_vector(state, norms[i].role, l, "weight", n, err));
            if (model->family->layer_norm) {
                QR_RETURN_IF_ERROR(describe_vector(state, norms[i].role, l, "bias", n, err));
            }
        }
    }
    return QRUN_OK;
}

qrun_status qr_model_describe(qrun_model *model, const struct qr_model_options *options, const qr_safetensors *source,
                              qr_error *err) {
    model->layers = qr_alloc_array_zeroed((size_t)model->shape.n_layers, sizeof *model->layers);
    if (model->layers == NULL) { return qr_fail_memory(err, "the table of layers", 0); }
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        model->layers[l].window = model->config.layer_slides[l] ? (int32_t)model->config.sliding_window : 0;
        model->layers[l].rope_kind = qr_rope_kind(&model->config, l);
    }
    qrun_status status = describe_kv_groups(model, err);
    describe_state state = {model, options, source};
    if (status == QRUN_OK) { status = describe_tables(&state, err); }
    if (status == QRUN_OK) { status = qr_model_each_linear(model, describe_linear, &state, err); }
    if (status == QRUN_OK) { status = describe_norms(&state, err); }
    if (status != QRUN_OK) { return status; }
    model->weight_bytes = qr_model_place_weights(model, NULL);
    return QRUN_OK;
}

qr_options_text qr_model_smaller_options(const qrun_model *model) {
    const bool quant = !model->prequantized && model->linear_format != QR_WEIGHT_NF4_DQ;
    const bool head = model->head.desc.format != QR_WEIGHT_INT8;
    qr_options_text options;
    (void)snprintf(options.text, sizeof options.text, "%s%s%s", quant ? "--quant nf4-dq" : "",
                   quant && head ? ", " : "", head ? "--quant-head int8" : "");
    return options;
}

void qr_model_free_tables(qrun_model *model) {
    qr_free(model->layers);
    qr_free(model->kv_groups);
    model->layers = NULL;
    model->kv_groups = NULL;
}

/* ---- Placement --------------------------------------------------------------------------------------------------- */

typedef struct placement {
    const qr_backend *backend;
    qr_layout layout;
} placement;

static void place_weight(placement *p, qr_weight *weight) {
    if (weight->desc.rows > 0) {
        weight->data = qr_layout_take(&p->layout, 1, p->backend->weight_bytes(p->backend, &weight->desc));
    }
}

static void place_norm(placement *p, const qrun_model *model, qr_tensor_role role, int64_t dim, qr_norm *norm) {
    if (model->family->modules[role] == NULL) { return; }
    norm->dim = dim;
    norm->weight = qr_layout_take(&p->layout, dim, sizeof(float));
    if (model->family->layer_norm) { norm->bias = qr_layout_take(&p->layout, dim, sizeof(float)); }
}

static qrun_status place_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)layer, (void)role, (void)err;
    placement *p = arg;
    place_weight(p, &linear->weight);
    if (linear->has_bias) { linear->bias = qr_layout_take(&p->layout, linear->weight.desc.rows, sizeof(float)); }
    return QRUN_OK;
}

size_t qr_model_place_weights(qrun_model *model, void *memory) {
    placement p = {model->context->backend, {memory, 0}};
    const int64_t hidden = model->shape.hidden, head_dim = model->shape.head_dim;
    place_weight(&p, &model->embedding);
    place_weight(&p, &model->position_embedding);
    if (model->shape.tied_head) {
        model->head = model->embedding;
    } else {
        place_weight(&p, &model->head);
    }
    place_norm(&p, model, QR_ROLE_FINAL_NORM, hidden, &model->final_norm);
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        place_norm(&p, model, QR_ROLE_ATTN_NORM, hidden, &layer->attn_norm);
        place_norm(&p, model, QR_ROLE_POST_ATTN_NORM, hidden, &layer->post_attn_norm);
        place_norm(&p, model, QR_ROLE_MLP_NORM, hidden, &layer->mlp_norm);
        place_norm(&p, model, QR_ROLE_POST_MLP_NORM, hidden, &layer->post_mlp_norm);
        place_norm(&p, model, QR_ROLE_Q_NORM, head_dim, &layer->q_norm);
        place_norm(&p, model, QR_ROLE_K_NORM, head_dim, &layer->k_norm);
    }
    (void)qr_model_each_linear(model, place_linear, &p, NULL);
    return p.layout.offset;
}

static bool is_only_described(const qrun_model *model) { return model->layers != NULL && model->weight_memory == NULL; }

qrun_status qr_model_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err) {
    void *memory;
    if (!is_only_described(model)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        planner->memory_create(planner, QR_MEMORY_DEVICE, qr_model_place_weights(model, NULL), &memory, err));
    (void)qr_model_place_weights(model, memory);
    return QRUN_OK;
}

void qr_model_plan_end(qrun_model *model) {
    if (is_only_described(model)) { (void)qr_model_place_weights(model, NULL); }
}

qr_weight_format qr_model_compute_format(const qrun_model *model) {
    return model->act_dtype == QR_DTYPE_F32   ? QR_WEIGHT_F32
           : model->act_dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16
                                              : QR_WEIGHT_BF16;
}

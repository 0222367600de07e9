/* The description of a model: what config.json and the types of the stored tensors say, before any weight is read. */
#include "runtime/model/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/modules.h"
#include "runtime/model/rope.h"

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

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

/* Roles are numbered in slot order, siblings in the order of their arrays. */
qrun_status qr_model_each_linear(qrun_model *model, qr_linear_visitor visit, void *arg, qr_error *err) {
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        qr_linear_layer *attn_in = layer->attn_in, *mlp_in = layer->mlp_in;
        for (qr_tensor_role role = QR_ROLE_Q; role < QR_ROLE_COUNT; role++) {
            if (model->family->modules[role] == NULL) { continue; }
            qr_linear_layer *linear = role == QR_ROLE_ATTN_OUT  ? &layer->attn_out
                                      : role == QR_ROLE_MLP_OUT ? &layer->mlp_out
                                      : role < QR_ROLE_ATTN_OUT ? attn_in++
                                                                : mlp_in++;
            QR_RETURN_IF_ERROR(visit(arg, linear, l, role, err));
        }
    }
    return QRUN_OK;
}

/* ---- K/V groups -------------------------------------------------------------------------------------------------- */

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
    assert(size > 0); /* there is a layer */
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

static qrun_status shape_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)layer, (void)err;
    describe_state *state = arg;
    qrun_model *model = state->model;
    qr_weight_desc *desc = &linear->weight.desc;
    linear_shape(&model->shape, role, &desc->rows, &desc->cols);
    set_format(desc, state->options->linear_format, QR_NF4_BLOCK);
    linear->slot = model->n_slots++;
    linear->has_bias = qr_family_has_bias(&model->config, role);
    const bool has_siblings = role == QR_ROLE_K || role == QR_ROLE_V || role == QR_ROLE_UP;
    linear->out_offset = has_siblings ? state->out_offset : 0;
    state->out_offset = role == QR_ROLE_ATTN_OUT ? 0 : linear->out_offset + desc->rows;
    return QRUN_OK;
}

static void shape_table(const describe_state *state, qr_tensor_role role, int64_t rows, qr_weight *table) {
    if (state->model->family->modules[role] == NULL) { return; }
    table->desc = (qr_weight_desc){.rows = rows, .cols = state->model->shape.hidden};
    set_format(&table->desc, state->options->table_format, 0);
}

/* What config.json says of every module. */
static void shape_modules(describe_state *state) {
    qrun_model *model = state->model;
    const qr_model_shape *shape = &model->shape;
    const char *const *modules = model->family->modules;
    shape_table(state, QR_ROLE_EMBEDDING, shape->vocab, &model->embedding);
    shape_table(state, QR_ROLE_POSITION_EMBEDDING, shape->context_tokens, &model->position_embedding);
    if (!shape->tied_head) { shape_table(state, QR_ROLE_HEAD, shape->vocab, &model->head); }
    (void)qr_model_each_linear(model, shape_linear, state, NULL);
    model->final_norm.dim = shape->hidden;
    for (int64_t l = 0; l < shape->n_layers; l++) {
        qr_layer *layer = &model->layers[l];
        layer->window = model->config.layer_slides[l] ? (int32_t)model->config.sliding_window : 0;
        layer->rope_kind = qr_rope_kind(&model->config, l);
        for (qr_tensor_role role = QR_ROLE_ATTN_NORM; role <= QR_ROLE_K_NORM; role++) {
            const int64_t dim = role >= QR_ROLE_Q_NORM ? shape->head_dim : shape->hidden;
            if (modules[role] != NULL) { qr_norm_of_layer(layer, role)->dim = dim; }
        }
    }
}

/* A linear layer keeps the format that a bitsandbytes folder stores it in: quantised, or plain where the folder did not
 * quantise it (its llm_int8_skip_modules). Tables keep their own type. */
static qrun_status describe_matrix(const describe_state *state, const qr_module *module, qr_error *err) {
    qrun_model *model = state->model;
    qr_weight_desc *desc = &module->matrix->desc;
    const bool is_linear = module->role >= QR_ROLE_Q;
    QR_RETURN_IF_ERROR(qr_weight_desc_check(desc, model->family->modules[module->role], err));
    if (state->source != NULL) {
        qr_stored_weight stored;
        QR_RETURN_IF_ERROR(qr_model_find_stored(model, state->source, module->role, module->layer, desc, &stored, err));
        const bool is_plain = qr_weight_is_plain(stored.desc.format);
        if (!is_plain && !is_linear && module->role != QR_ROLE_HEAD) {
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: a quantised embedding cannot be read", stored.codes->name);
        }
        if (is_linear ? !is_plain || model->prequantized : !state->options->trainable) {
            set_format(desc, stored.desc.format, stored.desc.block);
        }
    }
    const int64_t n_elements = desc->rows * desc->cols;
    model->n_parameters += n_elements;
    if (is_linear && !qr_weight_is_plain(desc->format)) { model->n_quantized_parameters += n_elements; }
    return QRUN_OK;
}

static qrun_status describe_vector(const describe_state *state, const qr_module *module, const char *suffix,
                                   qr_error *err) {
    qrun_model *model = state->model;
    const qr_safetensors_tensor *tensor;
    model->n_parameters += module->n;
    return state->source != NULL ? qr_module_find_vector(model, state->source, module->role, module->layer, suffix,
                                                         module->n, &tensor, err)
                                 : QRUN_OK;
}

static qrun_status describe_module(void *arg, const qr_module *module, qr_error *err) {
    const describe_state *state = arg;
    if (module->matrix != NULL) { QR_RETURN_IF_ERROR(describe_matrix(state, module, err)); }
    if (module->weight != NULL) { QR_RETURN_IF_ERROR(describe_vector(state, module, "weight", err)); }
    return module->bias != NULL ? describe_vector(state, module, "bias", err) : QRUN_OK;
}

qrun_status qr_model_describe(qrun_model *model, const struct qr_model_options *options, const qr_safetensors *source,
                              qr_error *err) {
    model->layers = qr_alloc_array_zeroed((size_t)model->shape.n_layers, sizeof *model->layers);
    if (model->layers == NULL) { return qr_fail_memory(err, "the table of layers", 0); }
    describe_state state = {.model = model, .options = options, .source = source};
    shape_modules(&state);
    QR_RETURN_IF_ERROR(describe_kv_groups(model, err));
    QR_RETURN_IF_ERROR(qr_model_each_module(model, describe_module, &state, err));
    qr_weight *head = model->shape.tied_head ? &model->embedding : &model->head;
    if (options->head_int8 && qr_weight_is_plain(head->desc.format)) { set_format(&head->desc, QR_WEIGHT_INT8, 0); }
    model->weight_bytes = qr_model_place_weights(model, NULL);
    return QRUN_OK;
}

qr_options_text qr_model_smaller_options(const qrun_model *model) {
    const bool quant = !model->prequantized && model->linear_format != QR_WEIGHT_NF4_DQ;
    const bool head = model->head.desc.format != QR_WEIGHT_INT8;
    qr_options_text fields;
    (void)snprintf(fields.text, sizeof fields.text, "%s%s%s", quant ? "`quant=nf4-dq`" : "", quant && head ? ", " : "",
                   head ? "`quant_head_int8`" : "");
    return fields;
}

void qr_model_free_tables(qrun_model *model) {
    qr_free(model->layers);
    qr_free(model->kv_groups);
    model->layers = NULL;
    model->kv_groups = NULL;
}

/* ---- Placement --------------------------------------------------------------------------------------------------- */

typedef struct placement {
    const qrun_model *model;
    qr_layout layout;
} placement;

static qrun_status place_module(void *arg, const qr_module *module, qr_error *err) {
    (void)err;
    placement *p = arg;
    const qr_backend *backend = p->model->context->backend;
    if (qr_module_is_tied_head(p->model, module)) { return QRUN_OK; }
    if (module->matrix != NULL) {
        module->matrix->data = qr_layout_take(&p->layout, 1, backend->weight_bytes(backend, &module->matrix->desc));
    }
    if (module->weight != NULL) { *module->weight = qr_layout_take(&p->layout, module->n, sizeof(float)); }
    if (module->bias != NULL) { *module->bias = qr_layout_take(&p->layout, module->n, sizeof(float)); }
    return QRUN_OK;
}

size_t qr_model_place_weights(qrun_model *model, void *memory) {
    placement p = {.model = model, .layout = {.base = memory}};
    (void)qr_model_each_module(model, place_module, &p, NULL);
    if (model->shape.tied_head) { model->head = model->embedding; }
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

qr_weight_format qr_model_compute_format(const qrun_model *model) { return qr_weight_plain_format(model->act_dtype); }

int32_t qr_model_count_sessions(qrun_model *model, int32_t change) {
    pthread_mutex_lock(&model->lock);
    const int32_t before = model->n_sessions;
    model->n_sessions += change;
    pthread_mutex_unlock(&model->lock);
    return before;
}

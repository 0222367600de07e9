/* What a training pass holds: its buffers laid out, the workspace that its ops ask for, its plan and creation. */
#include "runtime/train/pass_state.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"
#include "runtime/model/rope.h"
#include "runtime/train/adapter_backward.h"

static const int64_t LOGIT_BYTES = INT64_C(64) << 20;

int64_t qr_pass_logit_rows(const qrun_model *model, const qr_train_limits *limits) {
    return qr_max(1, qr_min(LOGIT_BYTES / (model->shape.vocab * (int64_t)sizeof(float)), limits->max_tokens));
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int64_t widest_output(const qrun_model *model) {
    return qr_max(model->shape.hidden, qr_max(qr_qkv_columns(&model->shape), qr_mlp_columns(model)));
}

static int64_t widest_adapted_input(const qr_parameters *parameters) {
    int64_t most = 0;
    for (int64_t i = 0; i < parameters->lora.n_pairs; i++) { most = qr_max(most, parameters->lora.pairs[i].in); }
    return most;
}

static int64_t widest_adapted_output(const qr_parameters *parameters) {
    int64_t most = 0;
    for (int64_t i = 0; i < parameters->lora.n_pairs; i++) { most = qr_max(most, parameters->lora.pairs[i].out); }
    return most;
}

static size_t lay_gradients(const qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits,
                            void *base, qr_pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = qr_pass_logit_rows(model, limits);
    const size_t act = qr_dtype_bytes(model->act_dtype), f32 = sizeof(float);
    qr_layout layout = {base, 0};
    b->x = qr_layout_take(&layout, t * s->hidden, f32);
    b->dx = qr_layout_take(&layout, t * s->hidden, f32);
    b->dbranch = qr_layout_take(&layout, t * s->hidden, f32);
    b->dnormed = qr_layout_take(&layout, t * s->hidden, f32);
    qr_layout mlp = layout; /* in the same place: a layer's MLP is done before its attention begins */
    b->dattended = qr_layout_take(&layout, t * s->n_heads * s->head_dim, f32);
    b->dqkv = qr_layout_take(&layout, t * qr_qkv_columns(s), f32);
    b->dgated = qr_layout_take(&mlp, t * s->mlp, f32);
    layout.offset = mlp.offset > layout.offset ? mlp.offset : layout.offset;
    b->dy = qr_layout_take(&layout, t * widest_output(model), act);
    for (int k = 0; k < s->n_rope_kinds; k++) {
        b->cos_table[k] = qr_layout_take(&layout, t * s->rope_half, f32);
        b->sin_table[k] = qr_layout_take(&layout, t * s->rope_half, f32);
    }
    b->picked = qr_layout_take(&layout, r * s->hidden, f32);
    b->picked_normed = qr_layout_take(&layout, r * s->hidden, act);
    b->dpicked_normed = qr_layout_take(&layout, r * s->hidden, f32);
    b->dpicked = qr_layout_take(&layout, t * s->hidden, f32);
    if (parameters->lora.dropout > 0) {
        b->dropped = qr_layout_take(&layout, t * widest_adapted_input(parameters), act);
        b->ddropped = qr_layout_take(&layout, t * widest_adapted_input(parameters), f32);
    }
    if (parameters->lora.dora) { b->dora = qr_layout_take(&layout, t * widest_adapted_output(parameters), f32); }
    return layout.offset;
}

static size_t lay_tables(const qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits,
                         void *base, qr_pass_buffers *b) {
    const int64_t t = limits->max_tokens;
    qr_layout layout = {base, 0};
    b->ids = qr_layout_take(&layout, t, sizeof(int32_t));
    b->position = qr_layout_take(&layout, t, sizeof(int32_t));
    b->slot = qr_layout_take(&layout, t, sizeof(int32_t));
    b->row_adapter = qr_layout_take(&layout, t, sizeof(int32_t));
    b->target = qr_layout_take(&layout, t, sizeof(int32_t));
    b->rows = qr_layout_take(&layout, t, sizeof(int32_t));
    b->seq_start = qr_layout_take(&layout, limits->max_sequences + 1, sizeof(int32_t));
    if (parameters->lora.dropout > 0) { b->row_key = qr_layout_take(&layout, t, sizeof(int64_t)); }
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        b->inv_freq[k] = qr_layout_take(&layout, model->shape.rope_half, sizeof(float));
        b->rope_factor[k] = qr_layout_take(&layout, 1, sizeof(float));
    }
    return layout.offset;
}

static size_t lay_logits(const qrun_model *model, const qr_train_limits *limits, void *base, qr_pass_buffers *b) {
    const int64_t r = qr_pass_logit_rows(model, limits), vocab = model->shape.vocab;
    qr_layout layout = {base, 0};
    b->logits = qr_layout_take(&layout, r * vocab, sizeof(float));
    b->dlogits = model->act_dtype == QR_DTYPE_F32
                     ? b->logits
                     : qr_layout_take(&layout, r * vocab, qr_dtype_bytes(model->act_dtype));
    b->loss = qr_layout_take(&layout, r, sizeof(float));
    return layout.offset;
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

static void raise_to(size_t *most, size_t n_bytes) { *most = n_bytes > *most ? n_bytes : *most; }

typedef struct workspace_visit {
    const qr_train_pass *pass;
    size_t most;
} workspace_visit;

static void weight_workspace(const qr_train_pass *pass, const qr_linear_layer *linear, int64_t n_rows, size_t *most) {
    const int64_t out = linear->weight.desc.rows;
    qr_linear_args forward = qr_layer_linear_args(pass->model, linear, NULL, NULL, out, n_rows, false);
    forward.any_order = true;
    raise_to(most, qr_linear_workspace(pass->backend, &forward));
    const qr_linear_backward_args backward =
        qr_linear_backward_args_of(pass->model, &linear->weight, NULL, out, NULL, n_rows, false);
    raise_to(most, qr_linear_backward_workspace(pass->backend, &backward));
    if (pass->parameters->whole.n == 0) { return; }
    const qr_weight_backward_args weight =
        qr_pass_weight_backward_args(pass->model, &linear->weight, NULL, NULL, out, NULL, NULL, n_rows);
    raise_to(most, qr_weight_backward_workspace(pass->backend, &weight));
}

static qrun_status visit_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)layer, (void)role, (void)err;
    workspace_visit *visit = arg;
    const qr_train_pass *pass = visit->pass;
    weight_workspace(pass, linear, pass->n_tokens, &visit->most);
    const qr_lora_pair *pair = qr_lora_pair_of(pass->parameters, linear);
    const qr_layer_adapters adapters = qr_pass_adapters(pass);
    qr_lora_args forward = qr_layer_lora_args(&adapters, pass->model->act_dtype, linear, NULL, NULL,
                                              linear->weight.desc.rows, pass->n_tokens);
    forward.in_pairs = true;
    raise_to(&visit->most, qr_lora_workspace(pass->backend, &forward));
    if (pair == NULL) { return QRUN_OK; }
    const qr_lora_backward_args backward =
        qr_lora_backward_args_of(pass->parameters, pair, NULL, NULL, pair->out, NULL, pass->n_tokens);
    raise_to(&visit->most, qr_lora_backward_workspace(pass->backend, &backward));
    return QRUN_OK;
}

/* Norms backward, over rows and over heads. */
static void norm_workspace(const qr_train_pass *pass, size_t *most) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_norm_backward_args layer = {.n_rows = pass->n_tokens, .dim = s->hidden};
    raise_to(most, qr_layer_norm_backward_workspace(pass->backend, &layer));
    const qr_rms_norm_backward_args rows = {.n_rows = pass->n_tokens,
                                            .n_groups = 1,
                                            .dim = s->hidden,
                                            .x_stride = s->hidden,
                                            .dy_stride = s->hidden,
                                            .dx_stride = s->hidden};
    raise_to(most, qr_rms_norm_backward_workspace(pass->backend, &rows));
    const int64_t stride = qr_qkv_columns(s);
    const qr_rms_norm_backward_args heads = {.n_rows = pass->n_tokens,
                                             .n_groups = s->n_heads,
                                             .dim = s->head_dim,
                                             .x_stride = stride,
                                             .dy_stride = stride,
                                             .dx_stride = stride};
    raise_to(most, qr_rms_norm_backward_workspace(pass->backend, &heads));
}

static size_t workspace_bytes(qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits) {
    qr_parameters lent = *parameters;
    const qr_train_pass pass = {.model = model,
                                .backend = model->context->backend,
                                .parameters = &lent,
                                .limits = *limits,
                                .n_tokens = limits->max_tokens,
                                .n_sequences = limits->max_sequences,
                                .longest = (int32_t)limits->max_tokens};
    workspace_visit visit = {&pass, 64};
    (void)qr_model_each_linear(model, visit_linear, &visit, NULL);
    norm_workspace(&pass, &visit.most);
    const qr_embedding_backward_args table =
        qr_pass_embedding_backward_args(&pass, &model->embedding, NULL, NULL, 1.0F);
    raise_to(&visit.most, qr_embedding_backward_workspace(pass.backend, &table));
    const int64_t r = qr_pass_logit_rows(model, limits);
    const qr_linear_layer head = {.weight = model->head};
    weight_workspace(&pass, &head, r, &visit.most);
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_attention_packed_args forward = qr_pass_attention_args(&pass, &model->layers[l]);
        raise_to(&visit.most, qr_attention_packed_workspace(pass.backend, &forward));
        const qr_attention_packed_backward_args backward = {.forward = forward,
                                                            .dqkv_stride = qr_qkv_columns(&model->shape)};
        raise_to(&visit.most, qr_attention_packed_backward_workspace(pass.backend, &backward));
    }
    const qr_cross_entropy_args loss = {
        .n_rows = r, .vocab = model->shape.vocab, .softcap = model->shape.logit_softcap};
    raise_to(&visit.most, qr_cross_entropy_workspace(pass.backend, &loss));
    raise_to(&visit.most, qr_lora_parameters_workspace(parameters));
    return visit.most;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

qrun_status qr_train_pass_plan(qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits,
                               qr_plan *plan, qr_error *err) {
    qr_pass_buffers b = {0};
    qr_activations activations;
    const qrun_status status =
        qr_activations_lay_out(model, &limits->policy, limits->max_tokens, NULL, NULL, &activations, err);
    if (status != QRUN_OK) { return status; }
    plan->entries[QR_PLAN_ACTIVATIONS].bytes +=
        (int64_t)(lay_gradients(model, parameters, limits, NULL, &b) + activations.bytes);
    plan->entries[QR_PLAN_HOST].bytes += (int64_t)activations.host_bytes;
    plan->entries[QR_PLAN_TABLES].bytes += (int64_t)lay_tables(model, parameters, limits, NULL, &b);
    plan->entries[QR_PLAN_LOGITS].bytes += (int64_t)lay_logits(model, limits, NULL, &b);
    plan->entries[QR_PLAN_WORKSPACE].bytes += (int64_t)workspace_bytes(model, parameters, limits);
    qr_activations_free(&activations);
    return QRUN_OK;
}

static qr_memory_kind kind_of(int category) { return category == QR_PLAN_HOST ? QR_MEMORY_HOST : QR_MEMORY_DEVICE; }

static qrun_status make_memory(qr_train_pass *pass, qr_error *err) {
    static const qr_plan_category made[] = {QR_PLAN_ACTIVATIONS, QR_PLAN_TABLES, QR_PLAN_LOGITS, QR_PLAN_WORKSPACE,
                                            QR_PLAN_HOST};
    qr_plan plan;
    qr_plan_init(&plan);
    qrun_status status = qr_train_pass_plan(pass->model, pass->parameters, &pass->limits, &plan, err);
    for (size_t i = 0; i < QR_COUNT_OF(made) && status == QRUN_OK; i++) {
        const size_t n_bytes = (size_t)plan.entries[made[i]].bytes;
        if (n_bytes == 0) { continue; }
        status = pass->backend->memory_create(pass->backend, kind_of(made[i]), n_bytes, &pass->memory[made[i]], err);
        if (status == QRUN_OK) { pass->memory_bytes[made[i]] = n_bytes; }
    }
    if (status != QRUN_OK) { return status; }
    const qrun_model *model = pass->model;
    unsigned char *activations = pass->memory[QR_PLAN_ACTIVATIONS];
    const size_t offset = lay_gradients(model, pass->parameters, &pass->limits, activations, &pass->b);
    (void)lay_tables(model, pass->parameters, &pass->limits, pass->memory[QR_PLAN_TABLES], &pass->b);
    (void)lay_logits(model, &pass->limits, pass->memory[QR_PLAN_LOGITS], &pass->b);
    pass->workspace = pass->memory[QR_PLAN_WORKSPACE];
    return qr_activations_lay_out(model, &pass->limits.policy, pass->limits.max_tokens, activations + offset,
                                  pass->memory[QR_PLAN_HOST], &pass->activations, err);
}

static qrun_status make_host(qr_train_pass *pass, qr_error *err) {
    const size_t t = (size_t)pass->limits.max_tokens;
    pass->host_loss = qr_alloc_array((size_t)qr_pass_logit_rows(pass->model, &pass->limits), sizeof(float));
    pass->host_rows = qr_alloc_array(t, sizeof(int32_t));
    pass->host_targets = qr_alloc_array(t, sizeof(int32_t));
    pass->host_rope = qr_alloc_array((size_t)qr_max(pass->model->shape.rope_half, 1), sizeof(float));
    const bool made =
        pass->host_loss != NULL && pass->host_rows != NULL && pass->host_targets != NULL && pass->host_rope != NULL;
    return made ? QRUN_OK : qr_fail_memory(err, "the tables of a training step", t * 12);
}

/* Rotary frequencies of sequences as long as a micro-batch can hold: one set, so that a token's gradient does not
 * depend on how examples were put together. */
static qrun_status set_rope(qr_train_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    for (int32_t k = 0; k < model->shape.n_rope_kinds; k++) {
        float factor;
        qr_rope_frequencies(&model->config, k, pass->limits.max_tokens, pass->host_rope, &factor);
        QR_RETURN_IF_ERROR(pass->backend->copy_in(pass->backend, pass->b.inv_freq[k], pass->host_rope,
                                                  (size_t)model->shape.rope_half * sizeof(float), err));
        QR_RETURN_IF_ERROR(pass->backend->copy_in(pass->backend, pass->b.rope_factor[k], &factor, sizeof factor, err));
    }
    return QRUN_OK;
}

qrun_status qr_train_pass_create(qrun_model *model, qr_parameters *parameters, const qr_train_limits *limits,
                                 qr_train_pass **pass, qr_error *err) {
    *pass = NULL;
    qr_train_pass *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the training pass", sizeof *made); }
    made->model = model;
    made->backend = model->context->backend;
    made->parameters = parameters;
    made->limits = *limits;
    qrun_status status = QRUN_OK;
    QR_TRY(make_memory(made, err));
    QR_TRY(make_host(made, err));
    QR_TRY(set_rope(made, err)); /* slots and adapter indices stay zero, as the memory was made */
out:
    if (status == QRUN_OK) {
        *pass = made;
    } else {
        qr_train_pass_destroy(made);
    }
    return status;
}

void qr_train_pass_destroy(qr_train_pass *pass) {
    if (pass == NULL) { return; }
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        pass->backend->memory_destroy(pass->backend, kind_of(i), pass->memory[i], pass->memory_bytes[i]);
    }
    qr_activations_free(&pass->activations);
    qr_free(pass->host_loss);
    qr_free(pass->host_rows);
    qr_free(pass->host_targets);
    qr_free(pass->host_rope);
    qr_free(pass);
}

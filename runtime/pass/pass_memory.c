/* What a training pass holds: its buffers laid out, its creation, and its plan, which is a run of it on a backend that
 * plans. */
#include "runtime/pass/pass_state.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/plan/plan.h"
#include "runtime/engine/layout.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/rope.h"
#include "runtime/pass/planned_parameters.h"

static const int64_t LOGIT_BYTES = INT64_C(64) << 20;

/* A device that dequantises the head for a product does so again for every so many rows. Tiles are for runs that have
 * no memory to spare: there it does so more often. */
enum { DEVICE_LOGIT_ROWS = 512 };

/* Products take rows in eights: some more cost as much as eight. */
enum { LOGIT_ROW_STEP = 8 };

static bool is_on_device(const qrun_model *model) {
    return model->context->backend->memory_info != NULL || model->context->plans_for != NULL;
}

int64_t qr_pass_logit_rows(const qrun_model *model, const qr_train_limits *limits) {
    const int64_t fit = LOGIT_BYTES / (model->shape.vocab * (int64_t)sizeof(float));
    const bool has_memory = is_on_device(model) && limits->policy.tile_rows == 0;
    const int64_t whole = fit > LOGIT_ROW_STEP ? fit - fit % LOGIT_ROW_STEP : fit;
    const int64_t usual = qr_max(whole, has_memory ? DEVICE_LOGIT_ROWS : 1);
    return qr_min(limits->logit_rows > 0 ? limits->logit_rows : usual, limits->max_tokens);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int64_t widest_output(const qrun_model *model) {
    const qr_model_shape *s = &model->shape;
    const int64_t gated_queries = s->attn_gated ? qr_gate_columns(s, s->n_heads) : 0;
    const int64_t attention = qr_max(gated_queries, qr_widest_qkv(s));
    const int64_t inputs = s->n_layers * s->layer_input;
    return qr_max(qr_max(qr_max(s->hidden, s->n_experts), inputs), qr_max(attention, qr_model_mlp_columns(model)));
}

/* Elements of a token's MLP before its last matrix, at most: of a dense one, or of its experts. */
static int64_t mlp_elements(const qrun_model *model) {
    const qr_model_shape *s = &model->shape;
    const int64_t experts = qr_model_has_experts(model) ? s->experts_per_token * s->expert_mlp : 0;
    return qr_max(qr_max(qr_model_mlp_size(model), s->layer_input), experts);
}

/* Elements of a row of b.dy. */
static int64_t dy_columns(const qrun_model *model) { return qr_max(widest_output(model), mlp_elements(model)); }

/* On a device for the adapter. A processor reads rows in place where no power of two lies between them. */
int64_t qr_pass_dy_room(const qr_train_pass *pass, int64_t out) {
    enum { CACHE_LINE = 32 };
    const int64_t room = is_on_device(pass->model) ? qr_lora_room(pass->parameters->lora.rank) : CACHE_LINE;
    return out + room <= dy_columns(pass->model) ? room : 0;
}

int64_t qr_pass_shared_kv_columns(const qrun_model *model, int windowed) {
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_layer *layer = &model->layers[l];
        if (!layer->is_read_by_others || (layer->window > 0) != (windowed != 0)) { continue; }
        return 2 * layer->n_kv_heads * layer->head_dim;
    }
    return 0;
}

static size_t widest(size_t a, size_t b) { return a > b ? a : b; }

/* What more than one layer reads or adds to. */
static void lay_across_layers(const qrun_model *model, int64_t t, qr_layout *layout, qr_pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t inputs = s->n_layers * s->layer_input;
    QR_LAY(layout, b->inputs, t * inputs, sizeof(float));
    QR_LAY(layout, b->dinputs, t * inputs, sizeof(float));
    if (inputs > 0) { QR_LAY(layout, b->inputs_x, t * s->hidden, qr_dtype_bytes(model->act_dtype)); }
    for (int i = 0; i < 2; i++) {
        QR_LAY(layout, b->shared_kv[i], t * qr_pass_shared_kv_columns(model, i), sizeof(float));
        QR_LAY(layout, b->dshared_kv[i], t * qr_pass_shared_kv_columns(model, i), sizeof(float));
    }
}

/* Of several residual streams, and of what comes with them. */
static void lay_streams(const qrun_model *model, int64_t t, int64_t rows, qr_layout *layout, qr_pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    if (s->n_streams > 0) {
        QR_LAY(layout, b->streams, t * qr_stream_columns(s), sizeof(float));
        QR_LAY(layout, b->dstreams, t * qr_stream_columns(s), sizeof(float));
        QR_LAY(layout, b->stream_work, t * qr_stream_columns(s), sizeof(float));
        QR_LAY(layout, b->stream_x, rows * s->hidden, qr_dtype_bytes(model->act_dtype));
        QR_LAY(layout, b->stream_coefs, rows * qr_stream_coef_columns(s), sizeof(float));
        QR_LAY(layout, b->dcoefs, rows * qr_stream_coef_columns(s), sizeof(float));
    }
    QR_LAY(layout, b->dresidual, rows * s->residual_rank, sizeof(float));
    if (model->config.gate_parts != NULL) {
        QR_LAY(layout, b->sparse_gate, rows * qr_model_mlp_size(model), sizeof(float));
    }
}

/* What adapters need of `rows` rows. */
static void lay_adapters(const qr_parameters *parameters, int64_t rows, size_t act, qr_layout *layout,
                         qr_pass_buffers *b) {
    int64_t widest_in = 0, widest_out = 0;
    for (int64_t i = 0; i < parameters->lora.n_pairs; i++) {
        widest_in = qr_max(widest_in, parameters->lora.pairs[i].in);
        widest_out = qr_max(widest_out, parameters->lora.pairs[i].out);
    }
    if (parameters->lora.dropout > 0) {
        QR_LAY(layout, b->dropped, rows * widest_in, act);
        QR_LAY(layout, b->ddropped, rows * widest_in, sizeof(float));
    }
    if (parameters->lora.dora) { QR_LAY(layout, b->dora, rows * widest_out, sizeof(float)); }
}

/* What is computed again before a layer's last gate, or its gradient: of the delta rule a norm; of a state space the
 * gate, which is before the norm, and its gradient. */
static int64_t gate_work_parts(const qr_recurrent_shape *shape) {
    switch (shape->kind) {
        case QR_RECURRENT_DELTA: return 1;
        case QR_RECURRENT_SPACE: return shape->has_norm ? 2 : 0;
        default: return 0;
    }
}

static size_t lay_gradients(const qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits,
                            qr_layout layout, qr_pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = qr_pass_logit_rows(model, limits);
    const int64_t rows = qr_recompute_policy_rows(&limits->policy, t);
    const size_t act = qr_dtype_bytes(model->act_dtype), f32 = sizeof(float);
    QR_LAY(&layout, b->x, t * s->hidden, f32);
    QR_LAY(&layout, b->dx, t * s->hidden, f32);
    QR_LAY(&layout, b->dbranch, rows * s->hidden, f32);
    QR_LAY(&layout, b->dnormed, rows * s->hidden, f32);
    qr_layout loss = layout, mlp = layout; /* in the same place: each is done before a layer's attention begins */
    loss.part = QR_PART_HEAD;
    QR_LAY(&loss, b->dselected, t * s->hidden, f32);
    QR_LAY(&layout, b->dattended, t * s->widest_attended, f32);
    /* dattended is there already: of other tiles, or where blocks are parallel */
    if (limits->policy.tile_rows > 0 || qr_model_is_parallel(model)) { mlp = layout; }
    const bool has_beside = model->config.recurrent.beside_attention;
    QR_LAY(&layout, b->dqkv, t * (has_beside ? s->widest_qkv : qr_widest_qkv(s)), f32);
    if (has_beside) { QR_LAY(&layout, b->dqkv_beside, t * s->recurrent.columns, f32); }
    qr_layout recurrent = layout; /* in the same place too: a layer is of one kind, and what is beside attention comes
                                   * after it */
    recurrent.part = qr_recurrent_part(model);
    mlp.part = QR_PART_MLP;
    if (s->attn_gated) { QR_LAY(&layout, b->dq_gate, t * qr_gate_columns(s, s->n_heads), f32); }
    const int64_t short_columns = qr_model_pads_values(s) ? s->n_heads * s->value_dim : 0;
    if (model->family->qkv_by_head) { QR_LAY(&layout, b->by_head, rows * qr_widest_qkv(s), f32); }
    QR_LAY(&layout, b->kv_up, rows * qr_max(qr_latent_up_columns(s), short_columns), f32);
    QR_LAY(&layout, b->dlatent, rows * qr_pass_latent_work_columns(s), f32);
    QR_LAY(&recurrent, b->dconved, t * s->recurrent.channels, f32);
    QR_LAY(&recurrent, b->gate_work, gate_work_parts(&s->recurrent) * rows * s->recurrent.values, f32);
    if (s->recurrent.by_key_head) { QR_LAY(&recurrent, b->by_head, rows * s->recurrent.columns, f32); }
    QR_LAY(&recurrent, b->delta_latent, rows * QR_DELTA_LATENTS * s->recurrent.gate_rank, f32);
    QR_LAY(&mlp, b->dgated, rows * mlp_elements(model), f32);
    if (qr_model_has_experts(model)) { QR_LAY(&mlp, b->dshare, rows * s->experts_per_token, f32); }
    layout.offset = widest(widest(layout.offset, loss.offset), widest(recurrent.offset, mlp.offset));
    QR_LAY(&layout, b->dy, rows * dy_columns(model), act);
    for (int k = 0; k < s->n_rope_kinds; k++) {
        QR_LAY(&layout, b->cos_table[k], t * s->rope_half[k], f32);
        QR_LAY(&layout, b->sin_table[k], t * s->rope_half[k], f32);
    }
    lay_across_layers(model, t, &layout, b);
    lay_streams(model, t, rows, &layout, b);
    QR_LAY(&layout, b->selected, r * s->hidden, f32);
    QR_LAY(&layout, b->selected_normed, r * s->hidden, act);
    QR_LAY(&layout, b->dselected_normed, r * s->hidden, f32);
    lay_adapters(parameters, rows, act, &layout, b);
    return layout.offset;
}

/* One for short sequences, and one for each longer one that a micro-batch can hold. */
static int64_t count_rope_slots(const qrun_model *model, const qr_train_limits *limits) {
    const int64_t short_tokens = qr_rope_short_tokens(&model->config);
    return limits->max_tokens <= short_tokens ? 1 : 1 + limits->max_tokens / (short_tokens + 1);
}

static size_t lay_tables(const qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits,
                         void *base, qr_pass_buffers *b) {
    const int64_t t = limits->max_tokens;
    qr_layout layout = {.base = base};
    int32_t **const of_tokens[] = {&b->ids, &b->position, &b->slot, &b->row_adapter, &b->target, &b->rows};
    for (size_t i = 0; i < QR_COUNT_OF(of_tokens); i++) { *of_tokens[i] = qr_layout_take(&layout, t, sizeof(int32_t)); }
    QR_LAY(&layout, b->seq_start, limits->max_sequences + 1, sizeof(int32_t));
    if (parameters->lora.dropout > 0) { QR_LAY(&layout, b->row_key, t, sizeof(int64_t)); }
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        const int64_t n_slots = count_rope_slots(model, limits);
        QR_LAY(&layout, b->inv_freq[k], n_slots * model->shape.rope_half[k], sizeof(float));
        QR_LAY(&layout, b->rope_factor[k], n_slots, sizeof(float));
    }
    return layout.offset;
}

static size_t lay_logits(const qrun_model *model, const qr_train_limits *limits, qr_layout layout, qr_pass_buffers *b) {
    const int64_t r = qr_pass_logit_rows(model, limits), vocab = model->shape.vocab;
    QR_LAY(&layout, b->logits, r * vocab, sizeof(float));
    b->dlogits = b->logits;
    if (model->act_dtype != QR_DTYPE_F32) { QR_LAY(&layout, b->dlogits, r * vocab, qr_dtype_bytes(model->act_dtype)); }
    QR_LAY(&layout, b->loss, limits->max_tokens, sizeof(float));
    if (qr_preference_has_pairs(&limits->preference)) { QR_LAY(&layout, b->weight, limits->max_tokens, sizeof(float)); }
    return layout.offset;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* Of a category, whose buffers the backend's timeline learns. */
static qr_layout named_layout(const qr_train_pass *pass, qr_plan_category category) {
    return (qr_layout){
        .base = pass->memory.at[category], .names = pass->backend, .category = (int32_t)category, .layer = -1};
}

/* The first layer that a gradient is for: none before it needs one. Layers that come to the device in turn all do. */
static int64_t first_trained_layer(const qr_parameters *p) {
    int64_t first = p->model->shape.n_layers;
    if (p->model->stream != NULL) { return 0; }
    for (int64_t i = 0; i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        const bool is_after = parameter->role == QR_ROLE_FINAL_NORM || parameter->role == QR_ROLE_HEAD;
        if (parameter->layer < 0 && !is_after) { return 0; } /* what the layers read */
        if (parameter->layer >= 0) { first = qr_min(first, parameter->layer); }
    }
    return first;
}

/* Lays all buffers out in the pass's memory (NULL: only counts), and gives the bytes of every category. */
static qrun_status lay_out(qr_train_pass *pass, size_t n_bytes[QR_PLAN_COUNT], qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_train_limits *limits = &pass->limits;
    unsigned char *memory = pass->memory.at[QR_PLAN_ACTIVATIONS];
    const qr_layout activations = named_layout(pass, QR_PLAN_ACTIVATIONS), logits = named_layout(pass, QR_PLAN_LOGITS);
    const size_t offset = lay_gradients(model, pass->parameters, limits, activations, &pass->b);
    qr_activations_free(&pass->activations);
    const int64_t first_trained = first_trained_layer(pass->parameters);
    QR_RETURN_IF_ERROR(qr_activations_lay_out(model, &limits->policy, first_trained, limits->max_tokens, pass->backend,
                                              memory != NULL ? memory + offset : NULL, pass->memory.at[QR_PLAN_HOST],
                                              &pass->activations, err));
    n_bytes[QR_PLAN_ACTIVATIONS] = offset + pass->activations.bytes;
    n_bytes[QR_PLAN_HOST] = pass->activations.host_bytes;
    n_bytes[QR_PLAN_TABLES] = lay_tables(model, pass->parameters, limits, pass->memory.at[QR_PLAN_TABLES], &pass->b);
    n_bytes[QR_PLAN_LOGITS] = lay_logits(model, limits, logits, &pass->b);
    return QRUN_OK;
}

static qrun_status make_memory(qr_train_pass *pass, size_t workspace_bytes, qr_error *err) {
    size_t n_bytes[QR_PLAN_COUNT] = {[QR_PLAN_WORKSPACE] = workspace_bytes};
    QR_RETURN_IF_ERROR(lay_out(pass, n_bytes, err));
    QR_RETURN_IF_ERROR(qr_plan_memory_create(pass->backend, n_bytes, &pass->memory, err));
    pass->workspace = (qr_workspace){pass->memory.at[QR_PLAN_WORKSPACE], workspace_bytes};
    qr_timeline_set_workspace(pass->backend, pass->workspace.memory, workspace_bytes);
    return lay_out(pass, n_bytes, err);
}

static qrun_status make_host(qr_train_pass *pass, qr_error *err) {
    const size_t t = (size_t)pass->limits.max_tokens;
    pass->host_loss = qr_alloc_array(t, sizeof(float));
    pass->host_rows = qr_alloc_array(t, sizeof(int32_t));
    pass->host_targets = qr_alloc_array(t, sizeof(int32_t));
    pass->host_slot = qr_alloc_array(t, sizeof(int32_t));
    if (qr_preference_has_pairs(&pass->limits.preference)) {
        pass->host_weight = qr_alloc_array_zeroed(t, sizeof(float));
        pass->answers = qr_alloc_array_zeroed((size_t)pass->limits.max_sequences, sizeof *pass->answers);
        if (pass->host_weight == NULL || pass->answers == NULL) { return qr_fail_memory(err, "the pairs", t * 12); }
    }
    const int64_t *half = pass->model->shape.rope_half;
    pass->host_rope = qr_alloc_array((size_t)qr_max(qr_max(half[0], half[1]), 1), sizeof(float));
    const bool made = pass->host_loss != NULL && pass->host_rows != NULL && pass->host_targets != NULL &&
                      pass->host_slot != NULL && pass->host_rope != NULL;
    return made ? QRUN_OK : qr_fail_memory(err, "the tables of a training step", t * 12);
}

static qrun_status create(qr_parameters *parameters, const qr_train_limits *limits, size_t workspace_bytes,
                          qr_train_pass **pass, qr_error *err) {
    *pass = NULL;
    qr_train_pass *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the training pass", sizeof *made); }
    made->model = parameters->model;
    made->backend = parameters->backend;
    made->parameters = parameters;
    made->limits = *limits;
    made->n_rope_slots = count_rope_slots(made->model, limits);
    qrun_status status = QRUN_OK;
    QR_TRY(make_memory(made, workspace_bytes, err));
    QR_TRY(make_host(made, err));
    QR_TRY(qr_pass_set_rope(made, 0, 1, err)); /* slots and adapter indices are zero, as the memory was made */
    *pass = made;
    return QRUN_OK;
out:
    qr_train_pass_destroy(made);
    return status;
}

/* Runs the largest micro-batch on a pass that plans: as many sequences as there may be, the first with all the tokens,
 * and every token a target. */
static qrun_status run_largest(qr_train_pass *pass, qr_train_cost *cost, qr_error *err) {
    const int64_t n_tokens = pass->limits.max_tokens, n_sequences = pass->limits.max_sequences;
    int32_t *target = qr_alloc_array_zeroed((size_t)n_tokens, sizeof *target);
    int32_t *seq_start = qr_alloc_array((size_t)n_sequences + 1, sizeof *seq_start);
    const qr_train_batch batch = {
        .n_tokens = n_tokens, .n_sequences = n_sequences, .target = target, .seq_start = seq_start};
    double sums[QR_MOST_LOSS_SUMS];
    qrun_status status = QRUN_OK;
    if (target == NULL || seq_start == NULL) { QR_TRY(qr_fail_memory(err, "a plan", (size_t)n_tokens * 4)); }
    for (int64_t s = 0; s <= n_sequences; s++) { seq_start[s] = s == 0 ? 0 : (int32_t)n_tokens; }
    QR_TRY(qr_train_pass_run(pass, &batch, 1.0F, true, sums, err));
    const qr_planned *planned = qr_backend_planned(pass->backend);
    *cost = (qr_train_cost){.flops = planned->flops,
                            .copied_bytes = planned->copied_bytes,
                            .gathered = qr_layer_stream_planned(pass->model)};
    QR_TRY(qr_train_pass_run(pass, &batch, 1.0F, false, sums, err)); /* as an evaluation: without dropout */
out:
    qr_free(target);
    qr_free(seq_start);
    return status;
}

qrun_status qr_train_pass_plan(const qr_parameters *parameters, const qr_train_limits *limits, qr_plan *plan,
                               qr_train_cost *cost, qr_error *err) {
    qr_parameters planned;
    qr_train_pass *pass = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_planned_parameters_begin(parameters, &planned, err));
    QR_TRY(create(&planned, limits, QR_PLAN_ANY_BYTES, &pass, err));
    QR_TRY(run_largest(pass, cost, err));
    qr_plan_add(plan, &pass->memory, qr_backend_planned(planned.backend)->workspace_bytes);
out:
    qr_train_pass_destroy(pass);
    qr_planned_parameters_end(&planned);
    return status;
}

qrun_status qr_train_pass_create(qr_parameters *parameters, const qr_train_limits *limits, qr_train_pass **pass,
                                 qr_error *err) {
    qr_plan plan;
    qr_train_cost cost;
    qr_plan_init(&plan);
    *pass = NULL;
    QR_RETURN_IF_ERROR(qr_train_pass_plan(parameters, limits, &plan, &cost, err));
    return create(parameters, limits, (size_t)plan.entries[QR_PLAN_WORKSPACE].bytes, pass, err);
}

void qr_train_pass_destroy(qr_train_pass *pass) {
    if (pass == NULL) { return; }
    qr_plan_memory_destroy(pass->backend, &pass->memory);
    qr_activations_free(&pass->activations);
    qr_free(pass->host_loss);
    qr_free(pass->host_weight);
    qr_free(pass->answers);
    qr_free(pass->host_rows);
    qr_free(pass->host_targets);
    qr_free(pass->host_slot);
    qr_free(pass->host_rope);
    qr_free(pass);
}

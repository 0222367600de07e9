/* What a forward pass takes: its buffers, its plan, and creation. The plan runs the steps that there can be on a
 * backend that records sizes. */
#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/plan/plan.h"
#include "runtime/engine/layout.h"
#include "runtime/generate/forward_internal.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/layers/layer_latent.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/model/split.h"

static size_t widest(size_t a, size_t b) { return a > b ? a : b; }

qr_kv_format qr_kv_format_of_model(const qrun_model *model) {
    switch (model->act_dtype) {
        case QR_DTYPE_F32: return QR_KV_F32;
        case QR_DTYPE_F16: return QR_KV_F16;
        default: return QR_KV_BF16;
    }
}

qr_kv_format qr_kv_smallest_format(const qrun_model *model) {
    return model->shape.latent.kv_rank > 0 ? QR_KV_BF16 : QR_KV_INT8;
}

size_t qr_page_bytes(const qrun_model *model, qr_kv_format format) {
    size_t n_bytes = 0;
    for (int32_t g = 0; g < model->n_kv_groups; g++) {
        const qr_kv_group *group = &model->kv_groups[g];
        const qr_kv_layout layout = qr_kv_group_layout(group, format);
        n_bytes = widest(n_bytes, (size_t)group->n_layers * qr_kv_layer_bytes(&layout));
    }
    return n_bytes;
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

/* Of the products of experts. */
static void lay_slots(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_expert_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t n_slots = n_tokens * s->experts_per_token;
    qr_expert_routing_lay(s, n_tokens, layout, b);
    QR_LAY(layout, b->mlp, n_slots * qr_expert_columns(model, qr_split_own(&model->split, s->expert_mlp)),
           sizeof(float));
    QR_LAY(layout, b->gated, n_slots * s->expert_mlp, qr_dtype_bytes(model->act_dtype));
    QR_LAY(layout, b->slots, n_slots * qr_split_own(&model->split, s->hidden), sizeof(float));
}

static void lay_experts(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_expert_buffers *b) {
    const qr_model_shape *s = &model->shape;
    if (model->host_experts.computed) {
        QR_LAY(layout, b->logits, n_tokens * s->n_experts, sizeof *b->logits);
        QR_LAY(layout, b->slots, n_tokens * s->hidden, sizeof *b->slots);
        if (s->shared_mlp > 0) { QR_LAY(layout, b->shared_share, n_tokens, sizeof *b->shared_share); }
    } else {
        lay_slots(model, n_tokens, layout, b);
    }
    if (!model->config.experts.beside_dense) { return; }
    QR_LAY(layout, b->router_normed, n_tokens * s->hidden, qr_dtype_bytes(model->act_dtype));
    QR_LAY(layout, b->dense_branch, n_tokens * s->hidden, sizeof(float));
    b->branch = QR_LAY(layout, b->branch_normed, n_tokens * s->hidden, sizeof(float));
}

static void lay_latents(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const size_t act = qr_dtype_bytes(model->act_dtype);
    if (s->latent.kv_rank == 0) { return; }
    QR_LAY(layout, b->latent, n_tokens * qr_latent_columns(s), sizeof(float));
    QR_LAY(layout, b->q_latent, n_tokens * s->latent.query_rank, act);
    QR_LAY(layout, b->absorbed, n_tokens * qr_latent_attended_columns(s), sizeof(float));
    QR_LAY(layout, b->weighed, n_tokens * qr_latent_attended_columns(s), act);
}

/* Of values that are shorter than keys, where pages hold no latents. */
static void lay_short_values(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    if (s->latent.kv_rank > 0 || !qr_model_pads_values(s)) { return; }
    QR_LAY(layout, b->values, n_tokens * s->n_heads * s->value_dim, sizeof(float));
    QR_LAY(layout, b->weighed, n_tokens * s->widest_attended, qr_dtype_bytes(model->act_dtype));
}

/* Of buffers.qkv. */
static int64_t qkv_columns(const qr_model_shape *s) {
    return s->latent.kv_rank > 0 ? qr_max(qr_latent_query_columns(s), s->recurrent.columns) : qr_widest_qkv(s);
}

/* Of residual streams, and of what comes with them. */
static void lay_streams(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    if (s->n_streams > 0) {
        QR_LAY(layout, b->streams, n_tokens * qr_stream_columns(s), sizeof(float));
        QR_LAY(layout, b->stream_coefs, n_tokens * qr_stream_coef_columns(s), sizeof(float));
    }
    if (s->residual_rank > 0) {
        QR_LAY(layout, b->residual, n_tokens * s->residual_rank, sizeof(float));
        QR_LAY(layout, b->residual_x, n_tokens * s->residual_rank, qr_dtype_bytes(model->act_dtype));
        QR_LAY(layout, b->residual_branch, n_tokens * s->hidden, sizeof(float));
    }
}

static size_t lay_activations(const qrun_model *model, const qr_forward_limits *limits, qr_layout layout,
                              qr_forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = limits->max_logit_rows;
    const size_t act = qr_dtype_bytes(model->act_dtype);
    QR_LAY(&layout, b->x, t * s->hidden, sizeof(float));
    lay_streams(model, t, &layout, b);
    QR_LAY(&layout, b->normed, t * s->hidden, act);
    QR_LAY(&layout, b->qkv, t * qkv_columns(s), sizeof(float));
    QR_LAY(&layout, b->attended, t * s->widest_attended, act);
    qr_layout attention = layout, recurrent = layout; /* in the same place: a block is done before the next begins */
    attention.part = QR_PART_ATTENTION;
    recurrent.part = qr_recurrent_part(model);
    layout.part = QR_PART_MLP;
    if (s->attn_gated) { QR_LAY(&attention, b->q_gate, t * qr_gate_columns(s, s->n_heads), sizeof(float)); }
    if (model->family->qkv_by_head) { QR_LAY(&attention, b->by_head, t * qkv_columns(s), sizeof(float)); }
    lay_latents(model, t, &attention, b);
    lay_short_values(model, t, &attention, b);
    if (qr_model_gathers_heads(model)) {
        const int64_t n_ranks = model->split.n_ranks, all = (s->n_heads + s->n_kv_heads) * s->head_dim * n_ranks;
        QR_LAY(&attention, b->all_heads, t * all, sizeof(float));
        QR_LAY(&attention, b->whole_row, t * s->widest_attended, sizeof(float));
    }
    if (qr_split_shares_groups(model)) { QR_LAY(&recurrent, b->whole_row, t * s->widest_attended, sizeof(float)); }
    if (s->recurrent.by_key_head) { QR_LAY(&recurrent, b->by_head, t * s->recurrent.columns, sizeof(float)); }
    QR_LAY(&recurrent, b->delta_latent, t * QR_DELTA_LATENTS * s->recurrent.gate_rank, sizeof(float));
    QR_LAY(&recurrent, b->z_latent, t * s->recurrent.gate_rank, act);
    QR_LAY(&recurrent, b->a_latent, t * s->recurrent.gate_rank, act);
    QR_LAY(&recurrent, b->conved, t * s->recurrent.channels, sizeof(float));
    QR_LAY(&recurrent, b->recalled, t * s->recurrent.values, sizeof(float));
    QR_LAY(&layout, b->mlp, t * qr_max(qr_model_mlp_columns(model), 2 * s->layer_input), sizeof(float));
    QR_LAY(&layout, b->gated, t * qr_max(qr_model_mlp_size(model), s->layer_input), act);
    if (model->config.gate_parts != NULL && model->split.n_ranks > 0) {
        QR_LAY(&layout, b->sparse_gate, t * qr_model_mlp_size(model), sizeof(float));
    }
    if (qr_model_has_experts(model)) { lay_experts(model, t, &layout, &b->experts); }
    b->experts.normed = b->normed;
    layout.offset = widest(layout.offset, widest(attention.offset, recurrent.offset));
    layout.part = QR_PART_NONE;
    b->dora = qkv_columns(s) >= s->hidden ? b->qkv : qr_layout_take(&layout, t * s->hidden, sizeof(float));
    QR_LAY(&layout, b->inputs, t * s->n_layers * s->layer_input, sizeof(float));
    if (qr_model_has_branches(model)) { QR_LAY(&layout, b->branch, t * s->hidden, sizeof(float)); }
    for (int k = 0; k < s->n_rope_kinds; k++) {
        QR_LAY(&layout, b->cos_table[k], t * s->rope_half[k], sizeof(float));
        QR_LAY(&layout, b->sin_table[k], t * s->rope_half[k], sizeof(float));
    }
    QR_LAY(&layout, b->selected, r * s->hidden, sizeof(float));
    QR_LAY(&layout, b->selected_normed, r * s->hidden, act);
    return layout.offset;
}

static size_t lay_tables(const qrun_model *model, const qr_forward_limits *limits, void *base, qr_step_tables *tables) {
    const int64_t s = limits->max_sequences;
    const qr_batch_sizes most = {limits->max_tokens, s, s, s, limits->max_blocks};
    qr_batch batch;
    qr_layout layout = {.base = base};
    QR_LAY(&layout, tables->batch, (int64_t)qr_batch_lay(&most, model->n_kv_groups, NULL, &batch), 1);
    QR_LAY(&layout, tables->targets, limits->max_logit_rows, sizeof(int32_t));
    QR_LAY(&layout, tables->sampled, s, sizeof(qr_sampled));
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        QR_LAY(&layout, tables->inv_freq[k], limits->n_rope_slots * model->shape.rope_half[k], sizeof(float));
        QR_LAY(&layout, tables->rope_factor[k], limits->n_rope_slots, sizeof(float));
    }
    return layout.offset;
}

/* Host memory of experts that the processor computes, after the n_bytes that are taken. */
static void lay_on_processor(qr_forward *f, void *memory, size_t *n_bytes) {
    const qrun_model *model = f->model;
    const int64_t t = f->limits.max_tokens, hidden = model->shape.hidden;
    qr_forward_buffers *b = &f->b;
    qr_layout layout = {.base = memory, .offset = *n_bytes};
    if (f->processor == NULL) { return; }
    lay_slots(model, t, &layout, &b->on_processor);
    QR_LAY(&layout, b->processor_x, t * hidden, qr_dtype_bytes(model->act_dtype));
    QR_LAY(&layout, b->processor_sum, t * hidden, sizeof *b->processor_sum);
    QR_LAY(&layout, b->processor_workspace, (int64_t)f->processor_workspace_bytes, 1);
    *n_bytes = layout.offset;
}

/* Of a model that is split, rank 0 has all logits, and the others those of their rows of the head. */
static size_t lay_logits(const qrun_model *model, const qr_forward_limits *limits, qr_layout layout,
                         qr_forward_buffers *b) {
    const bool leads = qr_split_leads(model), is_split = model->head_share.all > 0;
    const int64_t columns = leads ? model->shape.vocab : is_split ? model->head.desc.rows : 0;
    QR_LAY(&layout, b->logits, limits->max_logit_rows * columns, sizeof(float));
    QR_LAY(&layout, b->nll, leads ? limits->max_logit_rows : 0, sizeof(float));
    return layout.offset;
}

/* ---- The plan, and creation -------------------------------------------------------------------------------------- */

/* What ranks need of host memory for each other, after the n_bytes that are taken. */
static void lay_split(qr_forward *f, void *memory, size_t *n_bytes) {
    qr_layout layout = {.base = memory, .offset = *n_bytes};
    f->split.stage_bytes = qr_split_stage_bytes(f->model, f->limits.max_tokens);
    const bool is_split = f->split.stage_bytes > 0, has_states = f->model->shape.recurrent.n_layers > 0;
    f->n_copies = is_split ? f->limits.max_sequences * f->model->n_kv_groups : 0;
    f->n_state_copies = is_split && has_states ? f->limits.max_sequences * QR_STATE_COPIES : 0;
    QR_LAY(&layout, f->split.rows, (int64_t)f->split.stage_bytes, 1);
    QR_LAY(&layout, f->split.parts, (int64_t)f->split.stage_bytes, 1);
    QR_LAY(&layout, f->copies, f->n_copies, sizeof *f->copies);
    QR_LAY(&layout, f->state_copies, f->n_state_copies, sizeof *f->state_copies);
    *n_bytes = layout.offset;
}

/* Where steps go ahead, the tables of two are in host memory, after the n_bytes that are taken: the device may not have
 * read those of the one when the next is filled in, and what it sampled arrives when the next has been issued. */
static void lay_second(qr_forward *f, void *memory, size_t *n_bytes) {
    const int64_t s = f->limits.max_sequences;
    const qr_batch_sizes most = {f->limits.max_tokens, s, s, s, f->limits.max_blocks};
    qr_batch batch;
    qr_layout layout = {.base = memory, .offset = *n_bytes};
    f->n_host = f->backend->copy_out_begin != NULL ? 2 : 1;
    f->b.host_batches[0] = f->b.host.batch;
    f->b.host_sampled[0] = f->b.host.sampled;
    if (f->n_host == 1) { return; }
    QR_LAY(&layout, f->b.host_batches[1], (int64_t)qr_batch_lay(&most, f->model->n_kv_groups, NULL, &batch), 1);
    QR_LAY(&layout, f->b.host_sampled[1], s, sizeof(qr_sampled));
    *n_bytes = layout.offset;
}

/* Lays all buffers out in the memory of their categories (NULL: only counts), and gives their bytes. */
static void lay_out(qr_forward *f, void *const memory[QR_PLAN_COUNT], size_t n_bytes[QR_PLAN_COUNT]) {
    qr_layout activations = {
        .base = memory[QR_PLAN_ACTIVATIONS], .names = f->backend, .category = QR_PLAN_ACTIVATIONS, .layer = -1};
    qr_layout logits = activations;
    logits.base = memory[QR_PLAN_LOGITS];
    logits.category = QR_PLAN_LOGITS;
    n_bytes[QR_PLAN_ACTIVATIONS] = lay_activations(f->model, &f->limits, activations, &f->b);
    n_bytes[QR_PLAN_TABLES] = lay_tables(f->model, &f->limits, memory[QR_PLAN_TABLES], &f->b.tables);
    n_bytes[QR_PLAN_LOGITS] = lay_logits(f->model, &f->limits, logits, &f->b);
    n_bytes[QR_PLAN_HOST] = lay_tables(f->model, &f->limits, memory[QR_PLAN_HOST], &f->b.host);
    lay_second(f, memory[QR_PLAN_HOST], &n_bytes[QR_PLAN_HOST]);
    lay_split(f, memory[QR_PLAN_HOST], &n_bytes[QR_PLAN_HOST]);
    lay_on_processor(f, memory[QR_PLAN_HOST], &n_bytes[QR_PLAN_HOST]);
}

static qrun_status make_memory(qr_forward *f, size_t workspace_bytes, qr_error *err) {
    size_t n_bytes[QR_PLAN_COUNT] = {[QR_PLAN_WORKSPACE] = workspace_bytes};
    lay_out(f, f->memory.at, n_bytes);
    QR_RETURN_IF_ERROR(qr_plan_memory_create(f->backend, n_bytes, &f->memory, err));
    qr_timeline_set_workspace(f->backend, f->memory.at[QR_PLAN_WORKSPACE], workspace_bytes);
    lay_out(f, f->memory.at, n_bytes);
    return QRUN_OK;
}

/* What ops of experts run with on the processor, whose workspace a plan does not lay out. */
static void set_pass_on_processor(qr_forward *f, bool is_plan) {
    const qr_forward_buffers *b = &f->b;
    void *workspace = is_plan ? b->processor_sum : b->processor_workspace;
    const size_t workspace_bytes = is_plan ? QR_PLAN_ANY_BYTES : f->processor_workspace_bytes;
    f->on_processor = (qr_layer_pass){.model = f->model,
                                      .backend = f->processor,
                                      .workspace = {workspace, workspace_bytes},
                                      .x = b->processor_sum,
                                      .buffers = {.mlp_normed = b->processor_x, .experts = b->on_processor}};
    f->pass.processor = &f->on_processor;
}

static void set_pass(qr_forward *f) {
    const qr_forward_buffers *b = &f->b;
    const bool has_latents = f->model->shape.latent.kv_rank > 0;
    const bool is_padded = has_latents || qr_model_pads_values(&f->model->shape);
    f->pass = (qr_layer_pass){.model = f->model,
                              .keeps_latents = has_latents,
                              .backend = f->backend,
                              .workspace = {f->memory.at[QR_PLAN_WORKSPACE], f->memory.bytes[QR_PLAN_WORKSPACE]},
                              /* None waits where a layer's weights come and go, or ranks exchange between ops. */
                              .ops = f->model->stream == NULL && f->model->split.n_ranks == 0 ? &f->ops : NULL,
                              .sampled = b->tables.sampled,
                              .n_sampled = f->limits.max_sequences,
                              .x = b->x,
                              .streams = b->streams,
                              .stream_work = b->streams,
                              .stream_x = b->normed,
                              .stream_coefs = b->stream_coefs,
                              .cos_table = {b->cos_table[0], b->cos_table[1]},
                              .sin_table = {b->sin_table[0], b->sin_table[1]},
                              .inputs = b->inputs,
                              .inputs_x = b->normed,
                              .buffers = {.attn_normed = b->normed,
                                          .qkv = b->qkv,
                                          .q_gate = b->q_gate,
                                          .all_heads = b->all_heads,
                                          .whole_row = b->whole_row,
                                          .values = b->values,
                                          .ungated = is_padded ? b->weighed : b->attended,
                                          .latent = b->latent,
                                          .q_latent = b->q_latent,
                                          .absorbed = b->absorbed,
                                          .attended = b->attended,
                                          .beside_qkv = b->qkv,
                                          .beside_attended = b->attended,
                                          .by_head = b->by_head,
                                          .delta_latent = b->delta_latent,
                                          .z_latent = b->z_latent,
                                          .a_latent = b->a_latent,
                                          .conved = b->conved,
                                          .recalled = b->recalled,
                                          .recalled_normed = b->recalled,
                                          .attn_branch = b->branch,
                                          .mlp_branch = b->branch,
                                          .branch_normed = b->branch,
                                          .residual = b->residual,
                                          .residual_x = b->residual_x,
                                          .residual_branch = b->residual_branch,
                                          .residual_normed = b->branch,
                                          .mlp_normed = b->normed,
                                          .mlp = b->mlp,
                                          .sparse_gate = b->sparse_gate,
                                          .gated = b->gated,
                                          .input_x = b->normed,
                                          .input = b->mlp,
                                          .input_gated = b->gated,
                                          .input_branch = b->branch,
                                          .experts = b->experts,
                                          .dora = b->dora},
                              .attend = qr_forward_attend,
                              .attend_arg = f,
                              .gather = qr_split_gather,
                              .gather_arg = &f->split};
}

/* What a forward pass runs on: the model's backend, or one that plans for it; and where the processor computes experts,
 * that or its plan. */
typedef struct run_on {
    qr_backend *backend, *processor;
    size_t workspace_bytes, processor_workspace_bytes;
} run_on;

static qrun_status create_on(const run_on *on, qrun_model *model, const qr_forward_limits *limits, void *pages,
                             float *states, qr_forward **forward, qr_error *err) {
    qr_backend *backend = on->backend;
    qr_forward *f = qr_alloc_zeroed(sizeof *f);
    *forward = NULL;
    if (f == NULL) { return qr_fail_memory(err, "the forward pass", sizeof *f); }
    *f = (qr_forward){.model = model,
                      .backend = backend,
                      .limits = *limits,
                      .pages = pages,
                      .page_bytes = qr_page_bytes(model, limits->kv_format),
                      .states = states,
                      .processor = on->processor,
                      .processor_workspace_bytes = on->processor_workspace_bytes,
                      .split = {.model = model, .backend = backend},
                      .replay.backend = backend};
    const bool is_plan = backend != model->context->backend;
    if (model->split.n_ranks > 0 && !is_plan) { f->split.ranks = model->context->ranks; }
    if (model->split.n_ranks > 0) { qr_replay_refuse(&f->replay, "ranks share each layer"); }
    if (model->stream != NULL) { qr_replay_refuse(&f->replay, "layers are offloaded"); }
    if (on->processor != NULL) { qr_replay_refuse(&f->replay, "the processor computes experts"); }
    const qrun_status status = make_memory(f, on->workspace_bytes, err);
    if (status != QRUN_OK) {
        qr_forward_destroy(f);
        return status;
    }
    set_pass(f);
    if (on->processor != NULL) { set_pass_on_processor(f, is_plan); }
    *forward = f;
    return QRUN_OK;
}

void qr_forward_destroy(qr_forward *f) {
    if (f == NULL) { return; }
    qr_replay_clear(&f->replay);
    qr_plan_memory_destroy(f->backend, &f->memory);
    qr_free(f);
}

/* The layers of a step of these sizes, with rows of no adapter, of LoRA, of DoRA, and of both. */
static qrun_status plan_layers(qr_forward *f, const qr_batch_sizes *sizes, const qr_lora_factor *table, qr_error *err) {
    qr_batch *batch;
    QR_RETURN_IF_ERROR(qr_forward_begin(f, sizes, &batch, err));
    f->pass.adapters = qr_forward_adapters(f, NULL);
    QR_RETURN_IF_ERROR(qr_forward_run_layers(f, err));
    f->pass.adapters = qr_forward_adapters(f, table);
    QR_RETURN_IF_ERROR(qr_forward_run_layers(f, err));
    f->pass.adapters.row_dora = f->device.row_dora;
    QR_RETURN_IF_ERROR(qr_forward_run_layers(f, err));
    f->pass.adapters.row_plain = f->device.row_plain;
    return qr_forward_run_layers(f, err);
}

/* The output head and the samples of a decode step, which rank 0 takes. */
static qrun_status plan_head(qr_forward *f, int64_t n, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_forward_run_head(f, f->b.x, n, err));
    return qr_split_leads(f->model) ? qr_forward_sample(f, 0, n, err) : QRUN_OK;
}

/* The largest step, and decode steps of every number of rows: a backend may split the work of few. */
static qrun_status plan_steps(qr_forward *f, const qr_lora_factor *table, qr_error *err) {
    const qr_forward_limits *limits = &f->limits;
    const int64_t s = limits->max_sequences, r = limits->max_logit_rows, most = qr_min(r, s);
    const qr_batch_sizes largest = {limits->max_tokens, s, s, s, limits->max_blocks};
    QR_RETURN_IF_ERROR(plan_layers(f, &largest, table, err));
    QR_RETURN_IF_ERROR(qr_forward_head(f, 0, r, err));
    if (qr_split_leads(f->model)) {
        QR_RETURN_IF_ERROR(qr_forward_sample(f, 0, s, err));
        QR_RETURN_IF_ERROR(qr_forward_run_nll(f, 0, r, err));
    }
    QR_RETURN_IF_ERROR(qr_layer_final_norm(&f->pass, f->b.x, r, f->b.selected, QR_DTYPE_F32, err));
    for (int64_t n = 1; n <= most; n = n < most ? qr_forward_bucket(n + 1, most) : most + 1) {
        const qr_batch_sizes decode = {n, n, n, n, limits->max_blocks};
        QR_RETURN_IF_ERROR(plan_layers(f, &decode, table, err));
        QR_RETURN_IF_ERROR(plan_head(f, n, err));
    }
    return QRUN_OK;
}

/* Adds what a forward pass takes to the plan; *made: what to create it on. */
static qrun_status plan_forward(qrun_model *model, const qr_forward_limits *limits, qr_plan *plan, run_on *made,
                                qr_error *err) {
    qr_backend *planner = NULL, *processor = NULL;
    qr_forward *f = NULL;
    void *pages, *table, *states;
    run_on planned = {.workspace_bytes = QR_PLAN_ANY_BYTES};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_backend_plan_create(model->context->backend, &planner, err));
    if (model->host_experts.computed) { QR_TRY(qr_backend_plan_create(model->context->processor, &processor, err)); }
    QR_TRY(qr_model_plan_begin(model, planner, err));
    QR_TRY(planner->memory_create(planner, QR_MEMORY_DEVICE, QR_PLAN_ANY_BYTES, &pages, err));
    QR_TRY(planner->memory_create(planner, QR_MEMORY_DEVICE, 1, &table, err));
    QR_TRY(planner->memory_create(planner, QR_MEMORY_DEVICE, 1, &states, err));
    planned.backend = planner;
    planned.processor = processor;
    QR_TRY(create_on(&planned, model, limits, pages, states, &f, err));
    QR_TRY(plan_steps(f, table, err));
    *made =
        (run_on){.backend = model->context->backend, .workspace_bytes = qr_backend_planned(planner)->workspace_bytes};
    if (processor != NULL) {
        made->processor = model->context->processor;
        made->processor_workspace_bytes = qr_backend_planned(processor)->workspace_bytes;
    }
    qr_plan_add(plan, &f->memory, made->workspace_bytes);
    plan->entries[QR_PLAN_HOST].bytes += (int64_t)qr_round_up((int64_t)made->processor_workspace_bytes, 64);
out:
    qr_model_plan_end(model);
    qr_forward_destroy(f);
    qr_backend_destroy(processor);
    qr_backend_destroy(planner);
    return status;
}

qrun_status qr_forward_plan(qrun_model *model, const qr_forward_limits *limits, qr_plan *plan, qr_error *err) {
    run_on made;
    return plan_forward(model, limits, plan, &made, err);
}

qrun_status qr_forward_create(qrun_model *model, const qr_forward_limits *limits, void *pages, float *states,
                              qr_forward **forward, qr_error *err) {
    qr_plan plan;
    run_on made;
    qr_plan_init(&plan);
    *forward = NULL;
    QR_RETURN_IF_ERROR(plan_forward(model, limits, &plan, &made, err));
    return create_on(&made, model, limits, pages, states, forward, err);
}

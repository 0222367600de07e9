#include "runtime/generate/forward.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/plan/plan.h"
#include "runtime/engine/layout.h"
#include "runtime/layers/layer_delta.h"
#include "runtime/layers/layer_experts.h"
#include "runtime/model/layer_stream.h"
#include "runtime/model/rope.h"
#include "runtime/model/split.h"
#include "runtime/ranks/split_ranks.h"

/* The tables of a step, in device memory and in the host memory that they are copied from. */
typedef struct step_tables {
    void *batch;           /* qr_batch at its largest */
    int32_t *targets;      /* [R] */
    qr_sampled *sampled;   /* [S] */
    float *inv_freq[2];    /* [n_rope_slots, half] per rope kind */
    float *rope_factor[2]; /* [n_rope_slots] */
} step_tables;

/* The buffers of a forward pass: device memory in three allocations (activations, tables, logits), the ops'
 * workspace, and one of host memory that copies come from. A buffer is named for what it holds at its widest. */
typedef struct forward_buffers {
    /* activations */
    float *x;       /* [T, D] residual stream */
    void *normed;   /* [T, D] act */
    float *qkv;     /* [T, (H + 2 KV) · HD] */
    void *attended; /* [T, H · HD] act */
    float *q_gate;  /* [T, H, 2, HD] or [T, H, HD]; where mlp is when its turn has come, as the next three */
    float *all_heads, *whole_row;   /* [T, (H + KV) · HD] and [T, H · HD] of all ranks */
    float *by_head;                 /* [T, columns] */
    float *conved;                  /* [T, channels] */
    float *recalled;                /* [T, values] */
    float *mlp;                     /* [T, 2 M], or [T, M] ungated */
    void *gated;                    /* [T, M] act */
    qr_expert_buffers experts;      /* where the processor computes them: slots [T, D], and no routing */
    qr_expert_buffers on_processor; /* host; only there, as the next two */
    void *processor_x;              /* host, [T, D] act: what they read */
    float *processor_sum;           /* host, [T, D] */
    void *processor_workspace;      /* host */
    float *inputs;                  /* [T, L, P] */
    float *branch;                  /* [T, D]: output of a block that is normed before it is added */
    float *dora;                    /* [T, D]: qkv, which nothing reads after attention, where that is wide enough */
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    float *selected;                    /* [R, D]: rows that want logits */
    void *selected_normed;              /* [R, D] act */
    step_tables tables, host;           /* batch and sampled of `host`: the first of those below */
    void *host_batches[2];              /* of steps in turn; one where steps do not go ahead */
    qr_sampled *host_sampled[2];
    /* logits */
    float *logits; /* [R, V] */
    float *nll;    /* [R] */
} forward_buffers;

struct qr_forward {
    qrun_model *model;
    qr_backend *backend;
    qr_forward_limits limits;
    forward_buffers b;
    unsigned char *pages;
    size_t page_bytes;
    float *states;
    qr_plan_memory memory;      /* of the categories made here */
    qr_layer_pass pass;         /* what the ops run with; n_tokens and adapters are the step's */
    qr_layer_pass on_processor; /* the same for experts that the processor computes */
    qr_backend *processor;      /* NULL: it computes none */
    size_t processor_workspace_bytes;
    qr_op_list ops;        /* empty between the calls below */
    qr_batch host, device; /* the step's tables in either memory */
    qr_replay replay;
    qr_split_ranks split;
    qr_kv_copy *copies; /* host, [n_copies]: of pages, as rank 0 announces them; the next of states */
    qr_state_copy *state_copies;
    int64_t n_copies, n_state_copies;
    qr_page_store *store;          /* lent; NULL: none */
    int64_t rope_begin, rope_end;  /* slots that the device does not have yet */
    int64_t n_host;                /* of host_batches */
    int64_t n_begun, n_copies_out; /* steps, and copies of what they sampled */
    bool is_reading[2]; /* the device may not have read that of host_batches yet, or what was copied in with it */
};

static qr_kv_layout kv_layout(const qr_kv_group *group, qr_kv_format format) {
    return (qr_kv_layout){format, (int32_t)group->n_kv_heads, (int32_t)group->head_dim};
}

static size_t widest(size_t a, size_t b) { return a > b ? a : b; }

qr_kv_format qr_kv_format_of_model(const qrun_model *model) {
    switch (model->act_dtype) {
        case QR_DTYPE_F32: return QR_KV_F32;
        case QR_DTYPE_F16: return QR_KV_F16;
        default: return QR_KV_BF16;
    }
}

size_t qr_page_bytes(const qrun_model *model, qr_kv_format format) {
    size_t n_bytes = 0;
    for (int32_t g = 0; g < model->n_kv_groups; g++) {
        const qr_kv_group *group = &model->kv_groups[g];
        const qr_kv_layout layout = kv_layout(group, format);
        n_bytes = widest(n_bytes, (size_t)group->n_layers * qr_kv_layer_bytes(&layout));
    }
    return n_bytes;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Of the products of experts. */
static void lay_slots(const qrun_model *model, int64_t n_tokens, qr_layout *layout, qr_expert_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t n_slots = n_tokens * s->experts_per_token;
    qr_expert_routing_lay(s, n_tokens, layout, b);
    QR_LAY(layout, b->mlp, n_slots * 2 * qr_split_own(&model->split, s->expert_mlp), sizeof(float));
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

static size_t lay_activations(const qrun_model *model, const qr_forward_limits *limits, qr_layout layout,
                              forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = limits->max_logit_rows;
    const size_t act = qr_dtype_bytes(model->act_dtype);
    QR_LAY(&layout, b->x, t * s->hidden, sizeof(float));
    QR_LAY(&layout, b->normed, t * s->hidden, act);
    QR_LAY(&layout, b->qkv, t * qr_widest_qkv(s), sizeof(float));
    QR_LAY(&layout, b->attended, t * s->widest_attended, act);
    qr_layout attention = layout, delta = layout; /* in the same place: a block is done before the next begins */
    attention.part = QR_PART_ATTENTION;
    delta.part = QR_PART_DELTA;
    layout.part = QR_PART_MLP;
    if (s->attn_gated) { QR_LAY(&attention, b->q_gate, t * qr_gate_columns(s), sizeof(float)); }
    if (qr_model_gathers_heads(model)) {
        const int64_t n_ranks = model->split.n_ranks, all = (s->n_heads + s->n_kv_heads) * s->head_dim * n_ranks;
        QR_LAY(&attention, b->all_heads, t * all, sizeof(float));
        QR_LAY(&attention, b->whole_row, t * s->widest_attended, sizeof(float));
    }
    if (s->delta.by_key_head) { QR_LAY(&delta, b->by_head, t * s->delta.columns, sizeof(float)); }
    QR_LAY(&delta, b->conved, t * s->delta.channels, sizeof(float));
    QR_LAY(&delta, b->recalled, t * s->delta.values, sizeof(float));
    QR_LAY(&layout, b->mlp, t * qr_max(qr_model_mlp_columns(model), 2 * s->layer_input), sizeof(float));
    QR_LAY(&layout, b->gated, t * qr_max(qr_model_mlp_size(model), s->layer_input), act);
    if (qr_model_has_experts(model)) { lay_experts(model, t, &layout, &b->experts); }
    b->experts.normed = b->normed;
    layout.offset = widest(layout.offset, widest(attention.offset, delta.offset));
    layout.part = QR_PART_NONE;
    b->dora = qr_widest_qkv(s) >= s->hidden ? b->qkv : qr_layout_take(&layout, t * s->hidden, sizeof(float));
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

static size_t lay_tables(const qrun_model *model, const qr_forward_limits *limits, void *base, step_tables *tables) {
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
    forward_buffers *b = &f->b;
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
                         forward_buffers *b) {
    const bool leads = qr_split_leads(model), is_split = model->head_share.all > 0;
    const int64_t columns = leads ? model->shape.vocab : is_split ? model->head.desc.rows : 0;
    QR_LAY(&layout, b->logits, limits->max_logit_rows * columns, sizeof(float));
    QR_LAY(&layout, b->nll, leads ? limits->max_logit_rows : 0, sizeof(float));
    return layout.offset;
}

/* ---- Host memory that the device reads --------------------------------------------------------------------------- */

static bool *reading_now(qr_forward *f) { return &f->is_reading[f->n_begun % f->n_host]; }

static qrun_status copy_in(qr_forward *f, void *device, const void *host, size_t n_bytes, qr_error *err) {
    *reading_now(f) = true;
    return f->backend->copy_in_async(f->backend, device, host, n_bytes, err);
}

static qrun_status copy_out(qr_forward *f, void *host, const void *device, size_t n_bytes, qr_error *err) {
    const qrun_status status = f->backend->copy_out(f->backend, host, device, n_bytes, err);
    if (status == QRUN_OK) { f->is_reading[0] = f->is_reading[1] = false; }
    return status;
}

static qrun_status sync(qr_forward *f, qr_error *err) {
    const qrun_status status = f->backend->sync(f->backend, err);
    if (status == QRUN_OK) { f->is_reading[0] = f->is_reading[1] = false; }
    return status;
}

/* Until the device has read what host memory holds: what steps do not have in turn is about to be written. */
static qrun_status wait(qr_forward *f, qr_error *err) {
    return f->is_reading[0] || f->is_reading[1] ? sync(f, err) : QRUN_OK;
}

qrun_status qr_forward_set_rope(qr_forward *f, int64_t slot, int64_t n_tokens, int64_t most_tokens, qr_error *err) {
    QR_RETURN_IF_ERROR(wait(f, err));
    for (int kind = 0; kind < f->model->shape.n_rope_kinds; kind++) {
        qr_rope_frequencies(&f->model->config, kind, n_tokens, most_tokens,
                            f->b.host.inv_freq[kind] + slot * f->model->shape.rope_half[kind],
                            f->b.host.rope_factor[kind] + slot);
    }
    const bool none = f->rope_begin == f->rope_end;
    f->rope_begin = none ? slot : qr_min(f->rope_begin, slot);
    f->rope_end = none ? slot + 1 : qr_max(f->rope_end, slot + 1);
    return QRUN_OK;
}

/* The slots set since the last step; those between them are as they were. */
static qrun_status copy_rope(qr_forward *f, qr_error *err) {
    const int64_t first = f->rope_begin, n = f->rope_end - f->rope_begin;
    for (int k = 0; n > 0 && k < f->model->shape.n_rope_kinds; k++) {
        const int64_t half = f->model->shape.rope_half[k];
        QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.inv_freq[k] + first * half, f->b.host.inv_freq[k] + first * half,
                                   (size_t)(n * half) * sizeof(float), err));
        QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.rope_factor[k] + first, f->b.host.rope_factor[k] + first,
                                   (size_t)n * sizeof(float), err));
    }
    f->rope_begin = f->rope_end = 0;
    return QRUN_OK;
}

qrun_status qr_forward_begin(qr_forward *f, const qr_batch_sizes *sizes, qr_batch **batch, qr_error *err) {
    *batch = NULL;
    f->n_begun++;
    /* The step before may be under way: it has the other tables. Who reads the tokens of a step before issuing the
     * second one after it never waits here. */
    if (*reading_now(f)) { QR_RETURN_IF_ERROR(sync(f, err)); }
    (void)qr_batch_lay(sizes, f->model->n_kv_groups, f->b.host_batches[f->n_begun % f->n_host], &f->host);
    (void)qr_batch_lay(sizes, f->model->n_kv_groups, f->b.tables.batch, &f->device);
    *batch = &f->host;
    return QRUN_OK;
}

/* ---- The layers -------------------------------------------------------------------------------------------------- */

static qrun_status attend_paged(void *arg, const qr_layer *layer, const float *q, const float *k, const float *v,
                                void *dst, qr_error *err) {
    const qr_forward *f = arg;
    const qr_model_shape *s = &f->model->shape;
    const qr_batch *batch = &f->device;
    const qr_batch_sizes *sizes = &batch->sizes;
    const qr_kv_layout layout = kv_layout(&f->model->kv_groups[layer->kv_group], f->limits.kv_format);
    unsigned char *pages = f->pages + (size_t)layer->kv_index * qr_kv_layer_bytes(&layout);
    const qr_kv_write_args write = {.layout = layout,
                                    .k = k,
                                    .v = v,
                                    .n_tokens = sizes->n_tokens,
                                    .k_stride = qr_qkv_columns(s, layer),
                                    .v_stride = qr_qkv_columns(s, layer),
                                    .token_page = batch->token_page + layer->kv_group * sizes->n_tokens,
                                    .position = batch->position,
                                    .pages = pages,
                                    .page_stride_bytes = f->page_bytes};
    const qr_attention_args args = {
        .layout = layout,
        .q = q,
        .dst = dst,
        .dst_dtype = f->model->act_dtype,
        .n_tokens = sizes->n_tokens,
        .q_stride = qr_qkv_columns(s, layer),
        .n_heads = (int32_t)s->n_heads,
        .n_seqs = (int32_t)sizes->n_sequences,
        .q_start = batch->q_start,
        .first_position = batch->first_position,
        .block_table = batch->block_table + layer->kv_group * sizes->n_sequences * sizes->table_stride,
        .table_stride = sizes->table_stride,
        .pages = pages,
        .page_stride_bytes = f->page_bytes,
        .scale = s->attn_scale,
        .softcap = s->attn_softcap,
        .window = layer->window,
        .sinks = layer->sinks.weight,
    };
    if (!layer->reads_shared_kv) { QR_RETURN_IF_ERROR(qr_layer_op_kv_write(&f->pass, &write, err)); }
    return qr_layer_op_attention(&f->pass, &args, err);
}

static qr_layer_adapters adapters_of(const qr_forward *f, const qr_lora_factor *table) {
    return (qr_layer_adapters){.table = table,
                               .n_adapters = QR_MAX_ADAPTERS,
                               .max_rank = QR_MAX_LORA_RANK,
                               .row_adapter = f->device.row_adapter};
}

/* The adapters of the step; tells the rows of DoRA from the others, where there are any. */
static void choose_adapters(qr_forward *f) {
    const uint64_t dora = atomic_load(&f->model->dora_adapters);
    int64_t n_dora = 0, n_plain = 0;
    f->pass.adapters = adapters_of(f, f->host.has_adapters ? f->model->lora_table : NULL);
    if (f->pass.adapters.table == NULL || dora == 0) { return; }
    for (int64_t i = 0; i < f->host.sizes.n_tokens; i++) {
        const int32_t adapter = f->host.row_adapter[i];
        const bool is_dora = adapter >= 0 && (dora >> adapter & 1) != 0, is_plain = adapter >= 0 && !is_dora;
        f->host.row_dora[i] = is_dora ? adapter : -1;
        f->host.row_plain[i] = is_plain ? adapter : -1;
        n_dora += is_dora;
        n_plain += is_plain;
    }
    if (n_dora == 0) { return; }
    f->pass.adapters.row_dora = f->device.row_dora;
    f->pass.adapters.row_plain = n_plain > 0 ? f->device.row_plain : NULL;
}

static qrun_status copy_batch(qr_forward *f, qr_error *err) {
    qr_batch batch;
    const size_t n_bytes = qr_batch_lay(&f->host.sizes, f->model->n_kv_groups, NULL, &batch);
    return copy_in(f, f->b.tables.batch, f->b.host_batches[f->n_begun % f->n_host], n_bytes, err);
}

/* Of the ops so far, none waits for another any more. */
static qrun_status end_ops(qr_forward *f, qr_error *err) {
    return qr_op_list_end(&f->ops, f->backend, f->pass.workspace, err);
}

static qrun_status run_layers(qr_forward *f, qr_error *err) {
    qr_layer_pass *pass = &f->pass;
    f->ops.n = 0; /* of a step that failed */
    pass->n_tokens = f->host.sizes.n_tokens;
    pass->sequences = (qr_recurrence){.n_seqs = (int32_t)f->host.sizes.n_sequences,
                                      .start = f->device.q_start,
                                      .first_position = f->device.first_position,
                                      .slot = f->device.state_slot,
                                      .states = f->states,
                                      .state_stride = qr_delta_state_floats(&f->model->shape)};
    qr_timeline_part(f->backend, QR_PART_NONE);
    QR_RETURN_IF_ERROR(qr_layer_embed(pass, f->device.ids, f->device.position, err));
    const qr_rope_positions rope = {.inv_freq = f->b.tables.inv_freq,
                                    .factor = f->b.tables.rope_factor,
                                    .slot = f->device.rope_slot,
                                    .position = f->device.position};
    QR_RETURN_IF_ERROR(qr_layer_rope_tables(pass, &rope, err));
    for (int64_t l = 0; l < f->model->shape.n_layers; l++) {
        qr_timeline_layer(f->backend, l);
        QR_RETURN_IF_ERROR(qr_layer_stream_use(f->model, f->backend, l, l + 1, err));
        QR_RETURN_IF_ERROR(qr_layer_attention(pass, &f->model->layers[l], err));
        QR_RETURN_IF_ERROR(qr_layer_mlp(pass, &f->model->layers[l], err));
    }
    qr_timeline_layer(f->backend, -1);
    qr_timeline_part(f->backend, QR_PART_HEAD);
    return end_ops(f, err);
}

/* The tables of a step that ranks have in common: rank 0's, in host memory. */
static qrun_status share_tables(qr_forward *f, qr_error *err) {
    qr_batch batch;
    const int64_t first = f->rope_begin, n = f->rope_end - f->rope_begin;
    const size_t n_bytes = qr_batch_lay(&f->host.sizes, f->model->n_kv_groups, NULL, &batch);
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, f->b.host_batches[f->n_begun % f->n_host], n_bytes, err));
    for (int k = 0; n > 0 && k < f->model->shape.n_rope_kinds; k++) {
        const int64_t half = f->model->shape.rope_half[k];
        QR_RETURN_IF_ERROR(
            qr_split_share(&f->split, f->b.host.inv_freq[k] + first * half, (size_t)(n * half) * sizeof(float), err));
        QR_RETURN_IF_ERROR(qr_split_share(&f->split, f->b.host.rope_factor[k] + first, (size_t)n * sizeof(float), err));
    }
    return QRUN_OK;
}

qrun_status qr_forward_run(qr_forward *f, qr_error *err) {
    const qr_batch_sizes *sizes = &f->host.sizes;
    const qr_split_command command = {
        .action = QR_SPLIT_RUN,
        .sizes = {sizes->n_tokens, sizes->n_sequences, sizes->n_rows, sizes->n_samples, sizes->table_stride},
        .has_adapters = f->host.has_adapters,
        .first = f->rope_begin,
        .n = f->rope_end - f->rope_begin};
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(share_tables(f, err));
    choose_adapters(f);
    QR_RETURN_IF_ERROR(copy_rope(f, err));
    QR_RETURN_IF_ERROR(copy_batch(f, err));
    return run_layers(f, err);
}

qrun_status qr_forward_copy_pages(qr_forward *f, qr_kv_copy *copies, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_COPY_PAGES, .n = n};
    if (n == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, copies, (size_t)n * sizeof *copies, err));
    for (int64_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(f->backend->copy_within(f->backend, f->pages + (size_t)copies[i].dst * f->page_bytes,
                                                   f->pages + (size_t)copies[i].src * f->page_bytes, f->page_bytes,
                                                   err));
    }
    return QRUN_OK;
}

qrun_status qr_forward_copy_states(qr_forward *f, qr_state_copy *copies, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_COPY_STATES, .n = n};
    const int64_t n_floats = qr_delta_state_floats(&f->model->shape);
    if (n == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, copies, (size_t)n * sizeof *copies, err));
    for (int64_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(f->backend->copy_within(f->backend, f->states + copies[i].dst * n_floats,
                                                   f->states + copies[i].src * n_floats,
                                                   (size_t)n_floats * sizeof(float), err));
    }
    return QRUN_OK;
}

/* ---- The output head --------------------------------------------------------------------------------------------- */

/* Logits of n rows of x [n, D]. */
static qrun_status run_head(qr_forward *f, const float *x, int64_t n, qr_error *err) {
    const qr_model_shape *s = &f->model->shape;
    const bool leads = qr_split_leads(f->model);
    if (!leads && f->model->head_share.all == 0) { return QRUN_OK; } /* rank 0 has the whole head */
    QR_RETURN_IF_ERROR(qr_layer_head(&f->pass, x, n, f->b.selected_normed, f->b.logits, err));
    if (!leads || s->logit_softcap <= 0) { return end_ops(f, err); }
    const qr_softcap_args args = {.x = f->b.logits, .n = n * s->vocab, .cap = s->logit_softcap};
    return qr_layer_op_softcap(&f->pass, &args, err);
}

/* Where ranks share the output head, the others compute their rows of it too. */
static qrun_status lead_head(const qr_forward *f, qr_split_action action, int64_t first, int64_t n, qr_error *err) {
    const qr_split_command command = {.action = action, .first = first, .n = n};
    return f->model->head_share.all > 0 ? qr_split_lead(&f->split, &command, err) : QRUN_OK;
}

qrun_status qr_forward_head(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_ROWS, first, n, err));
    const qr_gather_rows_args args = {.src = f->b.x,
                                      .rows = f->device.rows + first,
                                      .dst = f->b.selected,
                                      .n_rows = n,
                                      .dim = f->model->shape.hidden};
    QR_RETURN_IF_ERROR(qr_layer_op_gather_rows(&f->pass, &args, err));
    return run_head(f, f->b.selected, n, err);
}

qrun_status qr_forward_sample(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    const qr_sample_args args = {.logits = f->b.logits,
                                 .samples = f->device.samples + first,
                                 .dst = f->b.tables.sampled + first,
                                 .n_samples = n,
                                 .vocab = f->model->shape.vocab};
    qr_timeline_phase(f->backend, QR_PHASE_sample);
    return qr_layer_op_sample(&f->pass, &args, err);
}

qrun_status qr_forward_sampled(qr_forward *f, int64_t n, const qr_sampled **sampled, qr_error *err) {
    *sampled = f->b.host.sampled;
    return copy_out(f, f->b.host.sampled, f->b.tables.sampled, (size_t)n * sizeof **sampled, err);
}

bool qr_forward_can_go_ahead(const qr_forward *f) {
    return f->n_host > 1 && !qr_replay_is_timed(&f->replay) && f->model->split.n_ranks == 0 &&
           f->model->stream == NULL && f->processor == NULL;
}

qrun_status qr_forward_sampled_begin(qr_forward *f, int64_t n, qr_sampled_copy *copy, qr_error *err) {
    *copy = (qr_sampled_copy){.sampled = f->b.host_sampled[++f->n_copies_out % f->n_host], .step = f->n_begun};
    return f->backend->copy_out_begin(f->backend, f->b.host_sampled[f->n_copies_out % f->n_host], f->b.tables.sampled,
                                      (size_t)n * sizeof *f->b.tables.sampled, &copy->ticket, err);
}

/* What has been copied in with a step has been read by then. */
qrun_status qr_forward_sampled_end(qr_forward *f, const qr_sampled_copy *copy, qr_error *err) {
    QR_RETURN_IF_ERROR(f->backend->copy_out_end(f->backend, copy->ticket, err));
    if (f->n_begun - copy->step < f->n_host) { f->is_reading[copy->step % f->n_host] = false; }
    return QRUN_OK;
}

qrun_status qr_forward_copy_logits(qr_forward *f, int64_t first, int64_t n, float *logits, qr_error *err) {
    const int64_t vocab = f->model->shape.vocab;
    return copy_out(f, logits, f->b.logits + first * vocab, (size_t)(n * vocab) * sizeof(float), err);
}

qrun_status qr_forward_logits(qr_forward *f, int64_t first, int64_t n, float *logits, qr_error *err) {
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_TOKENS, first, n, err));
    const qrun_status status = run_head(f, f->b.x + first * f->model->shape.hidden, n, err);
    return status == QRUN_OK ? qr_forward_copy_logits(f, 0, n, logits, err) : status;
}

/* Of n tokens of the last run, against f->b.tables.targets. */
static qrun_status run_nll(qr_forward *f, int64_t first, int64_t n, qr_error *err) {
    const qr_nll_args args = {.logits = f->b.logits,
                              .target = f->b.tables.targets,
                              .dst = f->b.nll,
                              .n_rows = n,
                              .vocab = f->model->shape.vocab};
    QR_RETURN_IF_ERROR(lead_head(f, QR_SPLIT_HEAD_TOKENS, first, n, err));
    QR_RETURN_IF_ERROR(run_head(f, f->b.x + first * f->model->shape.hidden, n, err));
    return qr_layer_op_nll(&f->pass, &args, err);
}

qrun_status qr_forward_nll(qr_forward *f, int64_t first, const int32_t *targets, int64_t n, float *nll, qr_error *err) {
    const size_t n_bytes = (size_t)n * sizeof(int32_t);
    QR_RETURN_IF_ERROR(wait(f, err));
    memcpy(f->b.host.targets, targets, n_bytes);
    QR_RETURN_IF_ERROR(copy_in(f, f->b.tables.targets, f->b.host.targets, n_bytes, err));
    QR_RETURN_IF_ERROR(run_nll(f, first, n, err));
    return copy_out(f, nll, f->b.nll, (size_t)n * sizeof(float), err);
}

qrun_status qr_forward_hidden(qr_forward *f, int64_t first, int64_t n, float *hidden, qr_error *err) {
    const int64_t dim = f->model->shape.hidden;
    QR_RETURN_IF_ERROR(qr_layer_final_norm(&f->pass, f->b.x + first * dim, n, f->b.selected, QR_DTYPE_F32, err));
    QR_RETURN_IF_ERROR(end_ops(f, err));
    return copy_out(f, hidden, f->b.selected, (size_t)(n * dim) * sizeof(float), err);
}

/* ---- Following rank 0 -------------------------------------------------------------------------------------------- */

/* Sizes are rank 0's, which has made the same forward pass. */
static qrun_status follow_run(qr_forward *f, const qr_split_command *command, qr_error *err) {
    const int64_t *n = command->sizes;
    const qr_batch_sizes sizes = {n[0], n[1], n[2], n[3], n[4]};
    qr_batch *batch;
    QR_RETURN_IF_ERROR(qr_forward_begin(f, &sizes, &batch, err));
    batch->has_adapters = command->has_adapters != 0;
    f->rope_begin = command->first;
    f->rope_end = command->first + command->n;
    return qr_forward_run(f, err);
}

static qrun_status follow_copies(qr_forward *f, int64_t n, qr_error *err) {
    if (n > f->n_copies) { return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 copies more pages than a step has"); }
    return qr_forward_copy_pages(f, f->copies, n, err);
}

static qrun_status follow_state_copies(qr_forward *f, int64_t n, qr_error *err) {
    if (n > f->n_state_copies) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 copies more states than a step has");
    }
    return qr_forward_copy_states(f, f->state_copies, n, err);
}

static qrun_status follow_kept_page(const qr_forward *f, qr_error *err) {
    qr_page_task task = {0};
    QR_RETURN_IF_ERROR(qr_split_share(&f->split, &task, sizeof task, err));
    if (f->store == NULL) { return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 keeps pages, and this rank does not"); }
    return qr_page_store_follow(f->store, &task, err);
}

/* A tell of qr_page_ranks; arg: the forward pass. */
static qrun_status tell_kept_page(void *arg, const qr_page_task *task, qr_error *err) {
    const qr_forward *f = arg;
    const qr_split_command command = {.action = QR_SPLIT_KEEP_PAGE};
    qr_page_task told = *task;
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    return qr_split_share(&f->split, &told, sizeof told, err);
}

void qr_forward_set_store(qr_forward *f, qr_page_store *store) { f->store = store; }

qr_page_ranks qr_forward_page_ranks(const qr_forward *f) {
    return (qr_page_ranks){.ranks = f->split.ranks, .tell = tell_kept_page, .arg = (void *)(uintptr_t)f};
}

qrun_status qr_forward_follow(qr_forward *f, bool *ends, qr_error *err) {
    qr_split_command command = {0};
    *ends = false;
    QR_RETURN_IF_ERROR(qr_broadcast(f->split.ranks, &command, sizeof command, 0, err));
    switch ((qr_split_action)command.action) {
        case QR_SPLIT_RUN: return follow_run(f, &command, err);
        case QR_SPLIT_COPY_PAGES: return follow_copies(f, command.n, err);
        case QR_SPLIT_COPY_STATES: return follow_state_copies(f, command.n, err);
        case QR_SPLIT_HEAD_ROWS: return qr_forward_head(f, command.first, command.n, err);
        case QR_SPLIT_HEAD_TOKENS: return run_head(f, f->b.x + command.first * f->model->shape.hidden, command.n, err);
        case QR_SPLIT_KEEP_PAGE: return follow_kept_page(f, err);
        case QR_SPLIT_IDLE: return qr_barrier(f->split.ranks, err);
        case QR_SPLIT_END: *ends = true; return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 announced what does not exist");
}

qrun_status qr_forward_idle(const qr_forward *f, qr_error *err) {
    const qr_split_command command = {.action = QR_SPLIT_IDLE};
    QR_RETURN_IF_ERROR(qr_split_lead(&f->split, &command, err));
    return f->split.ranks != NULL ? qr_barrier(f->split.ranks, err) : QRUN_OK;
}

void qr_forward_end(const qr_forward *f) {
    const qr_split_command command = {.action = QR_SPLIT_END};
    if (f->split.ranks != NULL && !f->split.ranks->lost) { (void)qr_split_lead(&f->split, &command, NULL); }
}

/* ---- Decode steps ------------------------------------------------------------------------------------------------ */

/* The next larger of few numbers of rows: a kernel's tile is eight. */
static int64_t bucket_of_rows(int64_t n, int64_t most) {
    const int64_t step = n <= 32 ? 8 : n <= 64 ? 16 : 32;
    const int64_t bucket = n <= 2 ? n : n <= 4 ? 4 : qr_round_up(n, step);
    return qr_min(bucket, most);
}

static int64_t bucket_of_stride(int64_t n, int64_t most) {
    int64_t bucket = 1;
    while (bucket < n) { bucket *= 2; }
    return qr_min(bucket, most);
}

bool qr_forward_decode_sizes(const qr_forward *f, qr_batch_sizes *sizes) {
    const qr_forward_limits *limits = &f->limits;
    const int64_t most = qr_min(limits->max_logit_rows, limits->max_sequences), n = sizes->n_tokens;
    if (!qr_replay_is_possible(&f->replay) || n > most) { return false; }
    const int64_t n_rows = bucket_of_rows(n, most);
    *sizes =
        (qr_batch_sizes){n_rows, n_rows, n_rows, n_rows, bucket_of_stride(sizes->table_stride, limits->max_blocks)};
    return true;
}

/* All that a replay repeats: not the copy of the tables, which comes from the one or the other place. The rows of the
 * head are those of the layers. */
static qrun_status issue_decode(void *arg, qr_error *err) {
    qr_forward *f = arg;
    const int64_t n = f->host.sizes.n_tokens;
    QR_RETURN_IF_ERROR(run_layers(f, err));
    QR_RETURN_IF_ERROR(run_head(f, f->b.x, n, err));
    return qr_forward_sample(f, 0, n, err);
}

qrun_status qr_forward_decode(qr_forward *f, qr_error *err) {
    choose_adapters(f);
    const qr_layer_adapters *adapters = &f->pass.adapters;
    const int32_t kinds = adapters->table == NULL       ? 0
                          : adapters->row_dora == NULL  ? 1
                          : adapters->row_plain == NULL ? 2
                                                        : 3;
    const qr_replay_key key = {(int32_t)f->host.sizes.n_tokens, (int32_t)f->host.sizes.table_stride, kinds};
    QR_RETURN_IF_ERROR(qr_layer_stream_write_late(f->model, f->backend, f->model->shape.n_layers - 1, err));
    QR_RETURN_IF_ERROR(copy_rope(f, err));
    QR_RETURN_IF_ERROR(copy_batch(f, err));
    return qr_replay_step(&f->replay, &key, issue_decode, f, err);
}

const qr_replay_stats *qr_forward_replays(const qr_forward *f) { return &f->replay.stats; }

/* ---- The plan, and creation -------------------------------------------------------------------------------------- */

/* What ranks need of host memory for each other, after the n_bytes that are taken. */
static void lay_split(qr_forward *f, void *memory, size_t *n_bytes) {
    qr_layout layout = {.base = memory, .offset = *n_bytes};
    f->split.stage_bytes = qr_split_stage_bytes(f->model, f->limits.max_tokens);
    const bool is_split = f->split.stage_bytes > 0, has_states = f->model->shape.delta.n_layers > 0;
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
    const forward_buffers *b = &f->b;
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
    const forward_buffers *b = &f->b;
    f->pass = (qr_layer_pass){.model = f->model,
                              .backend = f->backend,
                              .workspace = {f->memory.at[QR_PLAN_WORKSPACE], f->memory.bytes[QR_PLAN_WORKSPACE]},
                              /* None waits where a layer's weights come and go, or ranks exchange between ops. */
                              .ops = f->model->stream == NULL && f->model->split.n_ranks == 0 ? &f->ops : NULL,
                              .sampled = b->tables.sampled,
                              .n_sampled = f->limits.max_sequences,
                              .x = b->x,
                              .cos_table = {b->cos_table[0], b->cos_table[1]},
                              .sin_table = {b->sin_table[0], b->sin_table[1]},
                              .inputs = b->inputs,
                              .inputs_x = b->normed,
                              .buffers = {.attn_normed = b->normed,
                                          .qkv = b->qkv,
                                          .q_gate = b->q_gate,
                                          .all_heads = b->all_heads,
                                          .whole_row = b->whole_row,
                                          .ungated = b->attended,
                                          .attended = b->attended,
                                          .by_head = b->by_head,
                                          .conved = b->conved,
                                          .recalled = b->recalled,
                                          .recalled_normed = b->recalled,
                                          .attn_branch = b->branch,
                                          .mlp_branch = b->branch,
                                          .branch_normed = b->branch,
                                          .mlp_normed = b->normed,
                                          .mlp = b->mlp,
                                          .gated = b->gated,
                                          .input_x = b->normed,
                                          .input = b->mlp,
                                          .input_gated = b->gated,
                                          .input_branch = b->branch,
                                          .experts = b->experts,
                                          .dora = b->dora},
                              .attend = attend_paged,
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
    f->pass.adapters = adapters_of(f, NULL);
    QR_RETURN_IF_ERROR(run_layers(f, err));
    f->pass.adapters = adapters_of(f, table);
    QR_RETURN_IF_ERROR(run_layers(f, err));
    f->pass.adapters.row_dora = f->device.row_dora;
    QR_RETURN_IF_ERROR(run_layers(f, err));
    f->pass.adapters.row_plain = f->device.row_plain;
    return run_layers(f, err);
}

/* The output head and the samples of a decode step, which rank 0 takes. */
static qrun_status plan_head(qr_forward *f, int64_t n, qr_error *err) {
    QR_RETURN_IF_ERROR(run_head(f, f->b.x, n, err));
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
        QR_RETURN_IF_ERROR(run_nll(f, 0, r, err));
    }
    QR_RETURN_IF_ERROR(qr_layer_final_norm(&f->pass, f->b.x, r, f->b.selected, QR_DTYPE_F32, err));
    for (int64_t n = 1; n <= most; n = n < most ? bucket_of_rows(n + 1, most) : most + 1) {
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

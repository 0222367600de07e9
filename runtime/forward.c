#include "runtime/forward.h"

#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/layer.h"
#include "runtime/layout.h"
#include "runtime/rope.h"

/* The buffers of a forward pass, all device memory, in three allocations (activations, tables, logits) beside the ops'
 * workspace. A buffer is named for what it holds at its widest. */
typedef struct forward_buffers {
    /* activations */
    float *x;         /* [T, D] residual stream */
    void *normed;     /* [T, D] act */
    float *qkv;       /* [T, (H + 2 KV) · HD] */
    void *attended;   /* [T, H · HD] act */
    float *mlp;       /* [T, 2 M], or [T, M] ungated */
    void *gated;      /* [T, M] act */
    float *branch;    /* [T, D]: output of a block that is normed before it is added */
    float *dora;      /* [T, D]: qkv, which nothing reads behind attention, where that is wide enough */
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    float *picked;    /* [R, D]: rows that want logits */
    void *picked_normed; /* [R, D] act */
    /* tables */
    int32_t *ids, *position, *rope_slot, *row_adapter, *row_dora, *row_plain; /* [T] */
    int32_t *q_start;        /* [S + 1] */
    int32_t *first_position; /* [S] */
    int32_t *token_page;     /* [n_kv_groups, T] */
    int32_t *block_table;    /* [n_kv_groups, S · max_blocks] */
    int32_t *rows, *targets; /* [R] */
    float *inv_freq[2];      /* [n_rope_slots, half] per rope kind */
    float *rope_factor[2];   /* [n_rope_slots] */
    /* logits */
    float *logits;           /* [R, V] */
    float *nll;              /* [R] */
} forward_buffers;

struct qr_forward {
    qrun_model *model;
    qr_backend *backend;
    qr_forward_limits limits;
    forward_buffers b;
    unsigned char *pages;
    size_t page_bytes;
    void *memory[QR_PLAN_COUNT]; /* of the categories made here */
    size_t memory_bytes[QR_PLAN_COUNT];
    void *workspace;
    float *host_rope; /* [half]: one row of frequencies on its way */
    int32_t *host_rows; /* [2, T]: row_dora and row_plain */
};

static size_t act_bytes(const qrun_model *model) { return qr_dtype_bytes(model->act_dtype); }

static qr_kv_layout kv_layout(const qrun_model *model, qr_kv_format format) {
    return (qr_kv_layout){format, (int32_t)model->shape.n_kv_heads, (int32_t)model->shape.head_dim};
}

size_t qr_page_bytes(const qrun_model *model, qr_kv_format format) {
    const qr_kv_layout layout = kv_layout(model, format);
    return (size_t)model->group_layers * qr_kv_layer_bytes(&layout);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static size_t lay_activations(const qrun_model *model, const qr_forward_limits *limits, void *base,
                              forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = limits->max_logit_rows;
    const size_t act = act_bytes(model);
    qr_layout layout = {base, 0};
    b->x = qr_layout_take(&layout, t * s->hidden, sizeof(float));
    b->normed = qr_layout_take(&layout, t * s->hidden, act);
    b->qkv = qr_layout_take(&layout, t * qr_qkv_columns(s), sizeof(float));
    b->attended = qr_layout_take(&layout, t * s->n_heads * s->head_dim, act);
    b->mlp = qr_layout_take(&layout, t * qr_mlp_columns(model), sizeof(float));
    b->gated = qr_layout_take(&layout, t * s->mlp, act);
    b->dora = qr_qkv_columns(s) >= s->hidden ? b->qkv : qr_layout_take(&layout, t * s->hidden, sizeof(float));
    if (qr_model_has_post_norms(model)) { b->branch = qr_layout_take(&layout, t * s->hidden, sizeof(float)); }
    for (int k = 0; k < s->n_rope_kinds; k++) {
        b->cos_table[k] = qr_layout_take(&layout, t * s->rope_half, sizeof(float));
        b->sin_table[k] = qr_layout_take(&layout, t * s->rope_half, sizeof(float));
    }
    b->picked = qr_layout_take(&layout, r * s->hidden, sizeof(float));
    b->picked_normed = qr_layout_take(&layout, r * s->hidden, act);
    return layout.offset;
}

static size_t lay_tables(const qrun_model *model, const qr_forward_limits *limits, void *base, forward_buffers *b) {
    const int64_t t = limits->max_tokens, s = limits->max_sequences;
    qr_layout layout = {base, 0};
    b->ids = qr_layout_take(&layout, t, sizeof(int32_t));
    b->position = qr_layout_take(&layout, t, sizeof(int32_t));
    b->rope_slot = qr_layout_take(&layout, t, sizeof(int32_t));
    b->row_adapter = qr_layout_take(&layout, t, sizeof(int32_t));
    b->row_dora = qr_layout_take(&layout, t, sizeof(int32_t));
    b->row_plain = qr_layout_take(&layout, t, sizeof(int32_t));
    b->q_start = qr_layout_take(&layout, s + 1, sizeof(int32_t));
    b->first_position = qr_layout_take(&layout, s, sizeof(int32_t));
    b->token_page = qr_layout_take(&layout, model->n_kv_groups * t, sizeof(int32_t));
    b->block_table = qr_layout_take(&layout, model->n_kv_groups * s * limits->max_blocks, sizeof(int32_t));
    b->rows = qr_layout_take(&layout, limits->max_logit_rows, sizeof(int32_t));
    b->targets = qr_layout_take(&layout, limits->max_logit_rows, sizeof(int32_t));
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        b->inv_freq[k] = qr_layout_take(&layout, limits->n_rope_slots * model->shape.rope_half, sizeof(float));
        b->rope_factor[k] = qr_layout_take(&layout, limits->n_rope_slots, sizeof(float));
    }
    return layout.offset;
}

static size_t lay_logits(const qrun_model *model, const qr_forward_limits *limits, void *base, forward_buffers *b) {
    qr_layout layout = {base, 0};
    b->logits = qr_layout_take(&layout, limits->max_logit_rows * model->shape.vocab, sizeof(float));
    b->nll = qr_layout_take(&layout, limits->max_logit_rows, sizeof(float));
    return layout.offset;
}

/* ---- The ops' arguments and workspace ---------------------------------------------------------------------------- */

static qr_layer_adapters adapters_of(const qr_forward *f, bool wanted) {
    return (qr_layer_adapters){.table = wanted ? f->model->lora_table : NULL, .n_adapters = QR_MAX_ADAPTERS,
                               .max_rank = QR_MAX_LORA_RANK, .row_adapter = f->b.row_adapter};
}

static qr_attention_args attention_args(const qr_forward *f, const qr_batch *batch, const qr_layer *layer) {
    const qr_model_shape *s = &f->model->shape;
    const qr_kv_layout layout = kv_layout(f->model, f->limits.kv_format);
    return (qr_attention_args){
        .layout = layout,
        .q = f->b.qkv,
        .dst = f->b.attended,
        .dst_dtype = f->model->act_dtype,
        .n_tokens = batch->n_tokens,
        .q_stride = qr_qkv_columns(s),
        .n_heads = (int32_t)s->n_heads,
        .n_seqs = (int32_t)batch->n_sequences,
        .q_start = f->b.q_start,
        .first_position = f->b.first_position,
        .block_table = f->b.block_table + layer->kv_group * batch->n_sequences * batch->table_stride,
        .table_stride = batch->table_stride,
        .pages = f->pages + (size_t)layer->kv_index * qr_kv_layer_bytes(&layout),
        .page_stride_bytes = f->page_bytes,
        .scale = s->attn_scale,
        .softcap = s->attn_softcap,
        .window = layer->window,
    };
}

static void raise_to(size_t *most, size_t n_bytes) { *most = n_bytes > *most ? n_bytes : *most; }

static void linear_workspace(const qr_forward *f, const qr_linear_layer *linear, int64_t n_rows, size_t *most) {
    const qr_weight_desc *desc = &linear->weight.desc;
    const qr_linear_args args = qr_layer_linear_args(f->model, linear, NULL, NULL, desc->rows, n_rows, false);
    raise_to(most, qr_linear_workspace(f->backend, &args));
    const qr_layer_adapters adapters = adapters_of(f, false);
    const qr_lora_args lora =
        qr_layer_lora_args(&adapters, f->model->act_dtype, linear, NULL, NULL, desc->rows, n_rows);
    raise_to(most, qr_lora_workspace(f->backend, &lora));
}

typedef struct workspace_visit {
    const qr_forward *forward;
    size_t most;
} workspace_visit;

static qrun_status visit_workspace(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                   qr_error *err) {
    (void)layer, (void)role, (void)err;
    workspace_visit *visit = arg;
    linear_workspace(visit->forward, linear, visit->forward->limits.max_tokens, &visit->most);
    return QRUN_OK;
}

static size_t workspace_bytes(qrun_model *model, const qr_forward_limits *limits) {
    const qr_forward f = {.model = model, .backend = model->context->backend, .limits = *limits,
                          .page_bytes = qr_page_bytes(model, limits->kv_format)};
    workspace_visit visit = {&f, 64};
    (void)qr_model_each_linear(model, visit_workspace, &visit, NULL);
    const qr_linear_layer head = {.weight = model->head};
    linear_workspace(&f, &head, limits->max_logit_rows, &visit.most);
    const qr_batch batch = {.n_tokens = limits->max_tokens, .n_sequences = limits->max_sequences,
                            .table_stride = limits->max_blocks};
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_attention_args args = attention_args(&f, &batch, &model->layers[l]);
        raise_to(&visit.most, qr_attention_workspace(f.backend, &args));
    }
    const qr_nll_args nll = {.n_rows = limits->max_logit_rows, .vocab = model->shape.vocab};
    raise_to(&visit.most, qr_nll_workspace(f.backend, &nll));
    return visit.most;
}

void qr_forward_plan(qrun_model *model, const qr_forward_limits *limits, qr_plan *plan) {
    forward_buffers b = {0};
    plan->entries[QR_PLAN_ACTIVATIONS].bytes += (int64_t)lay_activations(model, limits, NULL, &b);
    plan->entries[QR_PLAN_TABLES].bytes += (int64_t)lay_tables(model, limits, NULL, &b);
    plan->entries[QR_PLAN_LOGITS].bytes += (int64_t)lay_logits(model, limits, NULL, &b);
    plan->entries[QR_PLAN_WORKSPACE].bytes += (int64_t)workspace_bytes(model, limits);
}

static qrun_status make_memory(qr_forward *f, const qr_plan *plan, qr_error *err) {
    static const qr_plan_category made[] = {QR_PLAN_ACTIVATIONS, QR_PLAN_TABLES, QR_PLAN_LOGITS, QR_PLAN_WORKSPACE};
    for (size_t i = 0; i < QR_COUNT_OF(made); i++) {
        const size_t n_bytes = (size_t)plan->entries[made[i]].bytes;
        const qrun_status status =
            f->backend->memory_create(f->backend, QR_MEMORY_DEVICE, n_bytes, &f->memory[made[i]], err);
        if (status != QRUN_OK) { return status; }
        f->memory_bytes[made[i]] = n_bytes;
    }
    (void)lay_activations(f->model, &f->limits, f->memory[QR_PLAN_ACTIVATIONS], &f->b);
    (void)lay_tables(f->model, &f->limits, f->memory[QR_PLAN_TABLES], &f->b);
    (void)lay_logits(f->model, &f->limits, f->memory[QR_PLAN_LOGITS], &f->b);
    f->workspace = f->memory[QR_PLAN_WORKSPACE];
    return QRUN_OK;
}

qrun_status qr_forward_create(qrun_model *model, const qr_forward_limits *limits, void *pages, qr_forward **forward,
                              qr_error *err) {
    qr_forward *f = qr_alloc_zeroed(sizeof *f);
    *forward = NULL;
    if (f == NULL) { return qr_fail_memory(err, "the forward pass", sizeof *f); }
    *f = (qr_forward){.model = model, .backend = model->context->backend, .limits = *limits, .pages = pages,
                      .page_bytes = qr_page_bytes(model, limits->kv_format)};
    qr_plan plan;
    qr_plan_init(&plan);
    qr_forward_plan(model, limits, &plan);
    qrun_status status = make_memory(f, &plan, err);
    if (status == QRUN_OK) {
        f->host_rope = qr_alloc_array((size_t)qr_max(model->shape.rope_half, 1), sizeof(float));
        f->host_rows = qr_alloc_array((size_t)(2 * limits->max_tokens), sizeof(int32_t));
        if (f->host_rope == NULL || f->host_rows == NULL) { status = qr_fail_memory(err, "the tables of a step", 0); }
    }
    if (status != QRUN_OK) {
        qr_forward_destroy(f);
        return status;
    }
    *forward = f;
    return QRUN_OK;
}

void qr_forward_destroy(qr_forward *f) {
    if (f == NULL) { return; }
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        f->backend->memory_destroy(f->backend, QR_MEMORY_DEVICE, f->memory[i], f->memory_bytes[i]);
    }
    qr_free(f->host_rope);
    qr_free(f->host_rows);
    qr_free(f);
}

qrun_status qr_forward_set_rope(qr_forward *f, int64_t slot, int64_t total_tokens, qr_error *err) {
    const int64_t half = f->model->shape.rope_half;
    for (int kind = 0; kind < f->model->shape.n_rope_kinds; kind++) {
        float factor;
        qr_rope_frequencies(&f->model->config, kind, total_tokens, f->host_rope, &factor);
        qrun_status status = f->backend->copy_in(f->backend, f->b.inv_freq[kind] + slot * half, f->host_rope,
                                                 (size_t)half * sizeof(float), err);
        if (status == QRUN_OK) {
            status = f->backend->copy_in(f->backend, f->b.rope_factor[kind] + slot, &factor, sizeof factor, err);
        }
        if (status != QRUN_OK) { return status; }
    }
    return QRUN_OK;
}

/* ---- The layers -------------------------------------------------------------------------------------------------- */

typedef struct paged_attention {
    qr_forward *forward;
    const qr_batch *batch;
} paged_attention;

static qrun_status attend_paged(void *arg, const qr_layer *layer, const float *q, const float *k, const float *v,
                                void *dst, qr_error *err) {
    const paged_attention *paged = arg;
    qr_forward *f = paged->forward;
    (void)q, (void)dst; /* both are the buffers that attention_args names */
    const qr_attention_args args = attention_args(f, paged->batch, layer);
    const qr_kv_write_args write = {.layout = args.layout, .k = k, .v = v, .n_tokens = args.n_tokens,
                                    .k_stride = args.q_stride, .v_stride = args.q_stride,
                                    .token_page = f->b.token_page + layer->kv_group * args.n_tokens,
                                    .position = f->b.position,
                                    .pages = f->pages + (size_t)layer->kv_index * qr_kv_layer_bytes(&args.layout),
                                    .page_stride_bytes = f->page_bytes};
    const qrun_status status = qr_kv_write(f->backend, &write, f->workspace, err);
    return status == QRUN_OK ? qr_attention(f->backend, &args, f->workspace, err) : status;
}

static qrun_status copy_ints(qr_forward *f, int32_t *device, const int32_t *host, int64_t n, qr_error *err) {
    return f->backend->copy_in(f->backend, device, host, (size_t)n * sizeof(int32_t), err);
}

static qrun_status copy_batch(qr_forward *f, const qr_batch *batch, qr_error *err) {
    const int64_t n = batch->n_tokens, n_table = batch->n_sequences * batch->table_stride;
    qrun_status status = QRUN_OK;
    QR_TRY(copy_ints(f, f->b.ids, batch->ids, n, err));
    QR_TRY(copy_ints(f, f->b.position, batch->position, n, err));
    QR_TRY(copy_ints(f, f->b.rope_slot, batch->rope_slot, n, err));
    QR_TRY(copy_ints(f, f->b.row_adapter, batch->row_adapter, n, err));
    QR_TRY(copy_ints(f, f->b.q_start, batch->q_start, batch->n_sequences + 1, err));
    QR_TRY(copy_ints(f, f->b.first_position, batch->first_position, batch->n_sequences, err));
    for (int32_t g = 0; g < f->model->n_kv_groups; g++) {
        QR_TRY(copy_ints(f, f->b.token_page + g * n, batch->token_page[g], n, err));
        QR_TRY(copy_ints(f, f->b.block_table + g * n_table, batch->block_table[g], n_table, err));
    }
out:
    return status;
}

/* Tells the rows of DoRA adapters from the others, where there are any. */
static qrun_status split_rows(qr_forward *f, const qr_batch *batch, qr_layer_adapters *adapters, qr_error *err) {
    const uint64_t dora = atomic_load(&f->model->dora_adapters);
    const int64_t n = batch->n_tokens;
    int64_t n_dora = 0, n_plain = 0;
    if (adapters->table == NULL || dora == 0) { return QRUN_OK; }
    for (int64_t i = 0; i < n; i++) {
        const int32_t adapter = batch->row_adapter[i];
        const bool is_dora = adapter >= 0 && (dora >> adapter & 1) != 0, is_plain = adapter >= 0 && !is_dora;
        f->host_rows[i] = is_dora ? adapter : -1;
        f->host_rows[n + i] = is_plain ? adapter : -1;
        n_dora += is_dora;
        n_plain += is_plain;
    }
    if (n_dora == 0) { return QRUN_OK; }
    adapters->row_dora = f->b.row_dora;
    adapters->row_plain = n_plain > 0 ? f->b.row_plain : NULL;
    const qrun_status status = copy_ints(f, f->b.row_dora, f->host_rows, n, err);
    return status == QRUN_OK ? copy_ints(f, f->b.row_plain, f->host_rows + n, n, err) : status;
}

qrun_status qr_forward_run(qr_forward *f, const qr_batch *batch, qr_error *err) {
    paged_attention paged = {f, batch};
    qr_layer_pass pass = {
        .model = f->model,
        .workspace = f->workspace,
        .n_tokens = batch->n_tokens,
        .x = f->b.x,
        .cos_table = {f->b.cos_table[0], f->b.cos_table[1]},
        .sin_table = {f->b.sin_table[0], f->b.sin_table[1]},
        .buffers = {.attn_normed = f->b.normed, .qkv = f->b.qkv, .attended = f->b.attended, .attn_branch = f->b.branch,
                    .mlp_branch = f->b.branch, .branch_normed = f->b.branch, .mlp_normed = f->b.normed, .mlp = f->b.mlp,
                    .gated = f->b.gated, .dora = f->b.dora},
        .adapters = adapters_of(f, batch->has_adapters),
        .attend = attend_paged,
        .attend_arg = &paged,
    };
    qrun_status status = QRUN_OK;
    QR_TRY(copy_batch(f, batch, err));
    QR_TRY(split_rows(f, batch, &pass.adapters, err));
    QR_TRY(qr_layer_embed(&pass, f->b.ids, f->b.position, err));
    for (int k = 0; k < f->model->shape.n_rope_kinds; k++) {
        const qr_rope_table_args args = {f->b.inv_freq[k], f->b.rope_factor[k],      f->b.rope_slot,
                                         f->b.position,    f->b.cos_table[k],        f->b.sin_table[k],
                                         batch->n_tokens,  f->model->shape.rope_half};
        QR_TRY(qr_rope_table(f->backend, &args, f->workspace, err));
    }
    for (int64_t l = 0; l < f->model->shape.n_layers; l++) {
        QR_TRY(qr_layer_attention(&pass, &f->model->layers[l], err));
        QR_TRY(qr_layer_mlp(&pass, &f->model->layers[l], err));
    }
out:
    return status;
}

/* ---- The output head --------------------------------------------------------------------------------------------- */

static qrun_status run_head(qr_forward *f, const int32_t *rows, int64_t n_rows, qr_error *err) {
    const qrun_model *model = f->model;
    const int64_t hidden = model->shape.hidden, vocab = model->shape.vocab;
    qrun_status status = QRUN_OK;
    QR_TRY(copy_ints(f, f->b.rows, rows, n_rows, err));
    const qr_gather_rows_args gather = {f->b.x, f->b.rows, f->b.picked, n_rows, hidden};
    QR_TRY(qr_gather_rows(f->backend, &gather, f->workspace, err));
    QR_TRY(qr_layer_norm_rows(model, f->workspace, &model->final_norm, f->b.picked, f->b.picked_normed,
                              model->act_dtype, n_rows, err));
    const qr_linear_layer head = {.weight = model->head};
    const qr_linear_args args =
        qr_layer_linear_args(model, &head, f->b.picked_normed, f->b.logits, vocab, n_rows, false);
    QR_TRY(qr_linear(f->backend, &args, f->workspace, err));
    if (model->shape.logit_softcap > 0) {
        const qr_softcap_args softcap = {f->b.logits, n_rows * vocab, model->shape.logit_softcap};
        QR_TRY(qr_softcap(f->backend, &softcap, f->workspace, err));
    }
out:
    return status;
}

qrun_status qr_forward_logits(qr_forward *f, const int32_t *rows, int64_t n_rows, float *logits, qr_error *err) {
    const qrun_status status = run_head(f, rows, n_rows, err);
    if (status != QRUN_OK) { return status; }
    const size_t n_bytes = (size_t)(n_rows * f->model->shape.vocab) * sizeof(float);
    return f->backend->copy_out(f->backend, logits, f->b.logits, n_bytes, err);
}

qrun_status qr_forward_nll(qr_forward *f, const int32_t *rows, const int32_t *targets, int64_t n_rows, float *nll,
                           qr_error *err) {
    qrun_status status = QRUN_OK;
    QR_TRY(run_head(f, rows, n_rows, err));
    QR_TRY(copy_ints(f, f->b.targets, targets, n_rows, err));
    const qr_nll_args args = {f->b.logits, f->b.targets, f->b.nll, n_rows, f->model->shape.vocab};
    QR_TRY(qr_nll(f->backend, &args, f->workspace, err));
    QR_TRY(f->backend->copy_out(f->backend, nll, f->b.nll, (size_t)n_rows * sizeof(float), err));
out:
    return status;
}

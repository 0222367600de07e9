#include "runtime/forward.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
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
    float *cos_table[2], *sin_table[2]; /* [T, half] per rope kind */
    float *picked;    /* [R, D]: rows that want logits */
    void *picked_normed; /* [R, D] act */
    /* tables */
    int32_t *ids, *position, *rope_slot, *row_adapter; /* [T] */
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
};

static size_t act_bytes(const qrun_model *model) { return qr_dtype_bytes(model->act_dtype); }

static qr_kv_layout kv_layout(const qrun_model *model, qr_kv_format format) {
    return (qr_kv_layout){format, (int32_t)model->shape.n_kv_heads, (int32_t)model->shape.head_dim};
}

size_t qr_page_bytes(const qrun_model *model, qr_kv_format format) {
    const qr_kv_layout layout = kv_layout(model, format);
    return (size_t)model->group_layers * qr_kv_layer_bytes(&layout);
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

/* Lays buffers out one after the other; with base NULL it only counts. */
typedef struct layout_cursor {
    unsigned char *base;
    size_t offset;
} layout_cursor;

static void *lay(layout_cursor *cursor, int64_t n, size_t element_bytes) {
    void *address = cursor->base != NULL ? cursor->base + cursor->offset : NULL;
    cursor->offset += ((size_t)n * element_bytes + 63) / 64 * 64;
    return address;
}

static bool has_post_norms(const qrun_model *model) {
    return model->family->modules[QR_ROLE_POST_ATTN_NORM] != NULL;
}

static bool is_gated(const qrun_model *model) {
    return model->family->modules[QR_ROLE_GATE] != NULL || model->family->modules[QR_ROLE_GATE_UP] != NULL;
}

static int64_t qkv_columns(const qr_model_shape *s) { return (s->n_heads + 2 * s->n_kv_heads) * s->head_dim; }
static int64_t mlp_columns(const qrun_model *model) { return model->shape.mlp * (is_gated(model) ? 2 : 1); }

static size_t lay_activations(const qrun_model *model, const qr_forward_limits *limits, void *base, forward_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = limits->max_logit_rows;
    const size_t act = act_bytes(model);
    layout_cursor cursor = {base, 0};
    b->x = lay(&cursor, t * s->hidden, sizeof(float));
    b->normed = lay(&cursor, t * s->hidden, act);
    b->qkv = lay(&cursor, t * qkv_columns(s), sizeof(float));
    b->attended = lay(&cursor, t * s->n_heads * s->head_dim, act);
    b->mlp = lay(&cursor, t * mlp_columns(model), sizeof(float));
    b->gated = lay(&cursor, t * s->mlp, act);
    if (has_post_norms(model)) { b->branch = lay(&cursor, t * s->hidden, sizeof(float)); }
    for (int k = 0; k < s->n_rope_kinds; k++) {
        b->cos_table[k] = lay(&cursor, t * s->rope_half, sizeof(float));
        b->sin_table[k] = lay(&cursor, t * s->rope_half, sizeof(float));
    }
    b->picked = lay(&cursor, r * s->hidden, sizeof(float));
    b->picked_normed = lay(&cursor, r * s->hidden, act);
    return cursor.offset;
}

static size_t lay_tables(const qrun_model *model, const qr_forward_limits *limits, void *base, forward_buffers *b) {
    const int64_t t = limits->max_tokens, s = limits->max_sequences;
    layout_cursor cursor = {base, 0};
    b->ids = lay(&cursor, t, sizeof(int32_t));
    b->position = lay(&cursor, t, sizeof(int32_t));
    b->rope_slot = lay(&cursor, t, sizeof(int32_t));
    b->row_adapter = lay(&cursor, t, sizeof(int32_t));
    b->q_start = lay(&cursor, s + 1, sizeof(int32_t));
    b->first_position = lay(&cursor, s, sizeof(int32_t));
    b->token_page = lay(&cursor, model->n_kv_groups * t, sizeof(int32_t));
    b->block_table = lay(&cursor, model->n_kv_groups * s * limits->max_blocks, sizeof(int32_t));
    b->rows = lay(&cursor, limits->max_logit_rows, sizeof(int32_t));
    b->targets = lay(&cursor, limits->max_logit_rows, sizeof(int32_t));
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        b->inv_freq[k] = lay(&cursor, limits->n_rope_slots * model->shape.rope_half, sizeof(float));
        b->rope_factor[k] = lay(&cursor, limits->n_rope_slots, sizeof(float));
    }
    return cursor.offset;
}

static size_t lay_logits(const qrun_model *model, const qr_forward_limits *limits, void *base, forward_buffers *b) {
    layout_cursor cursor = {base, 0};
    b->logits = lay(&cursor, limits->max_logit_rows * model->shape.vocab, sizeof(float));
    b->nll = lay(&cursor, limits->max_logit_rows, sizeof(float));
    return cursor.offset;
}

/* ---- Arguments of the ops -------------------------------------------------------------------------------------------- */

static qr_linear_args linear_args(const qrun_model *model, const qr_linear_layer *linear, const void *x, int64_t x_stride,
                                  float *y, int64_t y_stride, int64_t n_rows, bool accumulate) {
    return (qr_linear_args){.weight = &linear->weight, .bias = linear->bias, .x = x, .x_dtype = model->act_dtype,
                            .y = y + (y != NULL ? linear->out_offset : 0), .n_rows = n_rows, .x_stride = x_stride,
                            .y_stride = y_stride, .accumulate = accumulate};
}

static qr_lora_args lora_args(const qrun_model *model, const qr_linear_layer *linear, const int32_t *row_adapter,
                              const void *x, int64_t x_stride, float *y, int64_t y_stride, int64_t n_rows) {
    return (qr_lora_args){.factors = model->lora_table + (int64_t)linear->slot * QR_MAX_ADAPTERS,
                          .row_adapter = row_adapter, .x = x, .x_dtype = model->act_dtype,
                          .y = y + linear->out_offset, .n_rows = n_rows, .in = linear->weight.desc.cols,
                          .out = linear->weight.desc.rows, .x_stride = x_stride, .y_stride = y_stride,
                          .n_adapters = QR_MAX_ADAPTERS, .max_rank = QR_MAX_LORA_RANK};
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
        .q_stride = qkv_columns(s),
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

/* ---- The ops' workspace: the most that any op asks for at the limits ------------------------------------------------- */

static void raise_to(size_t *most, size_t n_bytes) { *most = n_bytes > *most ? n_bytes : *most; }

static void linear_workspace(const qr_forward *f, const qr_linear_layer *linear, int64_t n_rows, size_t *most) {
    const qrun_model *model = f->model;
    const qr_linear_args args =
        linear_args(model, linear, NULL, linear->weight.desc.cols, NULL, linear->weight.desc.rows, n_rows, false);
    raise_to(most, qr_linear_workspace(f->backend, &args));
    const qr_lora_args lora = {.x_dtype = model->act_dtype, .n_rows = n_rows, .in = linear->weight.desc.cols,
                               .out = linear->weight.desc.rows, .x_stride = linear->weight.desc.cols,
                               .y_stride = linear->weight.desc.rows, .n_adapters = QR_MAX_ADAPTERS,
                               .max_rank = QR_MAX_LORA_RANK};
    raise_to(most, qr_lora_workspace(f->backend, &lora));
}

typedef struct workspace_visit {
    const qr_forward *forward;
    size_t most;
} workspace_visit;

static qrun_status visit_workspace(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
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
        const qrun_status status = f->backend->memory_create(f->backend, QR_MEMORY_DEVICE, n_bytes, &f->memory[made[i]], err);
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
        if (f->host_rope == NULL) { status = qr_fail_memory(err, "rotary frequencies", 0); }
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

/* ---- The layers ------------------------------------------------------------------------------------------------------ */

static qrun_status run_norm(qr_forward *f, const qr_norm *norm, const float *src, void *dst, qr_dtype dst_dtype, int64_t n,
                            qr_error *err) {
    if (norm->bias != NULL) {
        const qr_layer_norm_args args = {src, norm->weight, norm->bias, dst, dst_dtype, n, norm->dim,
                                         f->model->shape.norm_eps};
        return qr_layer_norm(f->backend, &args, f->workspace, err);
    }
    const qr_rms_norm_args args = {.src = src, .weight = norm->weight, .dst = dst, .dst_dtype = dst_dtype, .n_rows = n,
                                   .n_groups = 1, .dim = norm->dim, .src_stride = norm->dim, .dst_stride = norm->dim,
                                   .eps = f->model->shape.norm_eps, .weight_offset = f->model->shape.norm_offset};
    return qr_rms_norm(f->backend, &args, f->workspace, err);
}

static qrun_status run_head_norm(qr_forward *f, const qr_norm *norm, float *heads, int64_t n_heads, int64_t n, qr_error *err) {
    if (norm->weight == NULL) { return QRUN_OK; }
    const int64_t stride = qkv_columns(&f->model->shape);
    const qr_rms_norm_args args = {.src = heads, .weight = norm->weight, .dst = heads, .dst_dtype = QR_DTYPE_F32,
                                   .n_rows = n, .n_groups = n_heads, .dim = norm->dim, .src_stride = stride,
                                   .dst_stride = stride, .eps = f->model->shape.norm_eps,
                                   .weight_offset = f->model->shape.norm_offset};
    return qr_rms_norm(f->backend, &args, f->workspace, err);
}

static qrun_status run_linear(qr_forward *f, const qr_batch *batch, const qr_linear_layer *linear, const void *x, float *y,
                              int64_t y_stride, bool accumulate, qr_error *err) {
    const int64_t cols = linear->weight.desc.cols;
    const qr_linear_args args = linear_args(f->model, linear, x, cols, y, y_stride, batch->n_tokens, accumulate);
    const qrun_status status = qr_linear(f->backend, &args, f->workspace, err);
    if (status != QRUN_OK || !batch->has_adapters) { return status; }
    const qr_lora_args lora = lora_args(f->model, linear, f->b.row_adapter, x, cols, y, y_stride, batch->n_tokens);
    return qr_lora(f->backend, &lora, f->workspace, err);
}

/* x += block(…), through the norm that some families put behind a block. */
static qrun_status run_block_output(qr_forward *f, const qr_batch *batch, const qr_linear_layer *linear, const void *src,
                                    const qr_norm *post_norm, qr_error *err) {
    const int64_t hidden = f->model->shape.hidden;
    if (post_norm->weight == NULL) { return run_linear(f, batch, linear, src, f->b.x, hidden, true, err); }
    qrun_status status = run_linear(f, batch, linear, src, f->b.branch, hidden, false, err);
    if (status == QRUN_OK) {
        status = run_norm(f, post_norm, f->b.branch, f->b.branch, QR_DTYPE_F32, batch->n_tokens, err);
    }
    if (status != QRUN_OK) { return status; }
    const qr_add_args args = {f->b.x, f->b.branch, batch->n_tokens * hidden};
    return qr_add(f->backend, &args, f->workspace, err);
}

static qrun_status rotate(qr_forward *f, const qr_batch *batch, const qr_layer *layer, float *heads, int64_t n_heads,
                          qr_error *err) {
    const qr_model_shape *s = &f->model->shape;
    const qr_rope_args args = {heads, f->b.cos_table[layer->rope_kind], f->b.sin_table[layer->rope_kind], batch->n_tokens,
                               n_heads, s->head_dim, s->rope_half, qkv_columns(s)};
    return qr_rope(f->backend, &args, f->workspace, err);
}

static qrun_status write_kv(qr_forward *f, const qr_batch *batch, const qr_layer *layer, const float *k, const float *v,
                            qr_error *err) {
    const qr_attention_args pages = attention_args(f, batch, layer);
    const int64_t stride = qkv_columns(&f->model->shape);
    const qr_kv_write_args args = {.layout = pages.layout, .k = k, .v = v, .n_tokens = batch->n_tokens, .k_stride = stride,
                                   .v_stride = stride,
                                   .token_page = f->b.token_page + layer->kv_group * batch->n_tokens,
                                   .position = f->b.position,
                                   .pages = f->pages + (size_t)layer->kv_index * qr_kv_layer_bytes(&pages.layout),
                                   .page_stride_bytes = f->page_bytes};
    return qr_kv_write(f->backend, &args, f->workspace, err);
}

static qrun_status run_attention(qr_forward *f, const qr_batch *batch, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &f->model->shape;
    const int64_t n = batch->n_tokens;
    float *q = f->b.qkv, *k = q + s->n_heads * s->head_dim, *v = k + s->n_kv_heads * s->head_dim;
    qrun_status status = QRUN_OK;
    QR_TRY(run_norm(f, &layer->attn_norm, f->b.x, f->b.normed, f->model->act_dtype, n, err));
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        QR_TRY(run_linear(f, batch, &layer->attn_in[i], f->b.normed, f->b.qkv, qkv_columns(s), false, err));
    }
    QR_TRY(run_head_norm(f, &layer->q_norm, q, s->n_heads, n, err));
    QR_TRY(run_head_norm(f, &layer->k_norm, k, s->n_kv_heads, n, err));
    if (s->rope_half > 0) {
        QR_TRY(rotate(f, batch, layer, q, s->n_heads, err));
        QR_TRY(rotate(f, batch, layer, k, s->n_kv_heads, err));
    }
    QR_TRY(write_kv(f, batch, layer, k, v, err));
    const qr_attention_args args = attention_args(f, batch, layer);
    QR_TRY(qr_attention(f->backend, &args, f->workspace, err));
    QR_TRY(run_block_output(f, batch, &layer->attn_out, f->b.attended, &layer->post_attn_norm, err));
out:
    return status;
}

static qrun_status run_mlp(qr_forward *f, const qr_batch *batch, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = f->model;
    const int64_t n = batch->n_tokens, columns = mlp_columns(model);
    qrun_status status = QRUN_OK;
    QR_TRY(run_norm(f, &layer->mlp_norm, f->b.x, f->b.normed, model->act_dtype, n, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        QR_TRY(run_linear(f, batch, &layer->mlp_in[i], f->b.normed, f->b.mlp, columns, false, err));
    }
    if (is_gated(model)) {
        const qr_gate_args args = {model->shape.activation, f->b.mlp, f->b.mlp + model->shape.mlp, f->b.gated,
                                   model->act_dtype, n, model->shape.mlp, columns, columns};
        QR_TRY(qr_gate(f->backend, &args, f->workspace, err));
    } else {
        const qr_activation_args args = {model->shape.activation, f->b.mlp, f->b.gated, model->act_dtype, n,
                                         model->shape.mlp, columns};
        QR_TRY(qr_activation(f->backend, &args, f->workspace, err));
    }
    QR_TRY(run_block_output(f, batch, &layer->mlp_out, f->b.gated, &layer->post_mlp_norm, err));
out:
    return status;
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

static qrun_status embed(qr_forward *f, const qr_batch *batch, qr_error *err) {
    const qrun_model *model = f->model;
    const int64_t n = batch->n_tokens;
    const qr_embedding_args tokens = {&model->embedding, f->b.ids, f->b.x, n, model->shape.embedding_scale, false};
    qrun_status status = qr_embedding(f->backend, &tokens, f->workspace, err);
    if (status == QRUN_OK && model->position_embedding.desc.rows > 0) {
        const qr_embedding_args positions = {&model->position_embedding, f->b.position, f->b.x, n, 1.0F, true};
        status = qr_embedding(f->backend, &positions, f->workspace, err);
    }
    for (int k = 0; k < model->shape.n_rope_kinds && status == QRUN_OK; k++) {
        const qr_rope_table_args args = {f->b.inv_freq[k], f->b.rope_factor[k], f->b.rope_slot, f->b.position,
                                         f->b.cos_table[k], f->b.sin_table[k], n, model->shape.rope_half};
        status = qr_rope_table(f->backend, &args, f->workspace, err);
    }
    return status;
}

qrun_status qr_forward_run(qr_forward *f, const qr_batch *batch, qr_error *err) {
    qrun_status status = QRUN_OK;
    QR_TRY(copy_batch(f, batch, err));
    QR_TRY(embed(f, batch, err));
    for (int64_t l = 0; l < f->model->shape.n_layers; l++) {
        QR_TRY(run_attention(f, batch, &f->model->layers[l], err));
        QR_TRY(run_mlp(f, batch, &f->model->layers[l], err));
    }
out:
    return status;
}

/* ---- The output head ------------------------------------------------------------------------------------------------- */

static qrun_status run_head(qr_forward *f, const int32_t *rows, int64_t n_rows, qr_error *err) {
    const qrun_model *model = f->model;
    const int64_t hidden = model->shape.hidden, vocab = model->shape.vocab;
    qrun_status status = QRUN_OK;
    QR_TRY(copy_ints(f, f->b.rows, rows, n_rows, err));
    const qr_gather_rows_args gather = {f->b.x, f->b.rows, f->b.picked, n_rows, hidden};
    QR_TRY(qr_gather_rows(f->backend, &gather, f->workspace, err));
    QR_TRY(run_norm(f, &model->final_norm, f->b.picked, f->b.picked_normed, model->act_dtype, n_rows, err));
    const qr_linear_layer head = {.weight = model->head};
    const qr_linear_args args = linear_args(model, &head, f->b.picked_normed, hidden, f->b.logits, vocab, n_rows, false);
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

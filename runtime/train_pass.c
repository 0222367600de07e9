#include "runtime/train_pass.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/adapter_backward.h"
#include "runtime/layout.h"
#include "runtime/rope.h"
#include "runtime/whole_parameters.h"

static const int64_t LOGIT_BYTES = INT64_C(64) << 20;

/* Device buffers beside the kept activations; R rows go through the output head at once. d… is the gradient with
 * respect to …, F32. */
typedef struct pass_buffers {
    float *x, *dx;        /* [T, D] residual stream */
    float *dbranch;       /* [T, D] into a block's output, behind its post-norm */
    float *dnormed;       /* [T, D] of a block's normed input */
    float *dattended;     /* [T, H · HD] */
    float *dqkv;          /* [T, (H + 2 KV) · HD] */
    float *dgated;        /* [T, M] */
    float *dmlp;          /* [T, 2 M], or [T, M] ungated */
    void *dy;             /* [T, widest output] act: a gradient on its way into a product with weights */
    float *cos_table[2], *sin_table[2]; /* [T, half] */
    float *picked;        /* [R, D] rows whose next token is a target */
    void *picked_normed;  /* [R, D] act */
    float *dpicked_normed; /* [R, D] */
    float *dpicked;       /* [T, D] of all such rows, in order */
    int32_t *ids, *position, *slot, *row_adapter, *target, *rows; /* [T] */
    int32_t *seq_start;   /* [S + 1] */
    int64_t *row_key;     /* [T], with dropout */
    void *dropped;        /* [T, widest input] act: what dropout leaves of an adapter's input */
    float *ddropped;      /* [T, widest input] */
    float *dora;          /* [T, widest adapted output], with DoRA */
    float *inv_freq[2], *rope_factor[2]; /* [half], [1] */
    float *logits;        /* [R, V], then their gradient */
    void *dlogits;        /* [R, V] act */
    float *loss;          /* [R] */
} pass_buffers;

struct qr_train_pass {
    qrun_model *model;
    qr_backend *backend;
    qr_parameters *parameters;
    qr_train_limits limits;
    pass_buffers b;
    qr_activations activations;
    size_t activation_offset; /* of the kept activations in their category */
    void *memory[QR_PLAN_COUNT];
    size_t memory_bytes[QR_PLAN_COUNT];
    void *workspace;
    float *host_loss;                  /* [R] */
    int32_t *host_rows, *host_targets; /* [T] */
    float *host_rope;                  /* [half] */
    /* the batch that runs */
    int64_t n_tokens, n_sequences;
    int32_t longest;
    const qr_kept_layer *current; /* the layer whose blocks run */
    const atomic_bool *cancelled; /* lent; NULL: never */
    qr_layer_dropout dropout;
};

static int64_t logit_rows(const qrun_model *model, const qr_train_limits *limits) {
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

static size_t lay_gradients(const qrun_model *model, const qr_parameters *parameters,
                            const qr_train_limits *limits, void *base, pass_buffers *b) {
    const qr_model_shape *s = &model->shape;
    const int64_t t = limits->max_tokens, r = logit_rows(model, limits);
    const size_t act = qr_dtype_bytes(model->act_dtype), f32 = sizeof(float);
    qr_layout layout = {base, 0};
    b->x = qr_layout_take(&layout, t * s->hidden, f32);
    b->dx = qr_layout_take(&layout, t * s->hidden, f32);
    b->dbranch = qr_layout_take(&layout, t * s->hidden, f32);
    b->dnormed = qr_layout_take(&layout, t * s->hidden, f32);
    b->dattended = qr_layout_take(&layout, t * s->n_heads * s->head_dim, f32);
    b->dqkv = qr_layout_take(&layout, t * qr_qkv_columns(s), f32);
    b->dgated = qr_layout_take(&layout, t * s->mlp, f32);
    b->dmlp = qr_layout_take(&layout, t * qr_mlp_columns(model), f32);
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
                         void *base, pass_buffers *b) {
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

static size_t lay_logits(const qrun_model *model, const qr_train_limits *limits, void *base, pass_buffers *b) {
    const int64_t r = logit_rows(model, limits), vocab = model->shape.vocab;
    qr_layout layout = {base, 0};
    b->logits = qr_layout_take(&layout, r * vocab, sizeof(float));
    b->dlogits = model->act_dtype == QR_DTYPE_F32
                     ? b->logits
                     : qr_layout_take(&layout, r * vocab, qr_dtype_bytes(model->act_dtype));
    b->loss = qr_layout_take(&layout, r, sizeof(float));
    return layout.offset;
}

/* ---- The ops' arguments ------------------------------------------------------------------------------------------ */

static qr_layer_adapters adapters_of(const qr_train_pass *pass) {
    return (qr_layer_adapters){.table = pass->parameters->lora.table, .n_adapters = 1,
                               .max_rank = pass->parameters->lora.rank,
                               .row_adapter = pass->b.row_adapter,
                               .row_dora = pass->parameters->lora.dora ? pass->b.row_adapter : NULL,
                               .pair_of_slot = pass->parameters->lora.pair_of_slot};
}

static qr_attention_packed_args attention_args(const qr_train_pass *pass, const qr_layer *layer) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_kept_layer *kept = pass->current;
    float *qkv = kept != NULL ? kept->buffers.qkv : NULL;
    return (qr_attention_packed_args){
        .q = qkv,
        .k = qkv != NULL ? qkv + s->n_heads * s->head_dim : NULL,
        .v = qkv != NULL ? qkv + (s->n_heads + s->n_kv_heads) * s->head_dim : NULL,
        .dst = kept != NULL ? kept->buffers.attended : NULL,
        .dst_dtype = pass->model->act_dtype,
        .lse = kept != NULL ? kept->lse : NULL,
        .seq_start = pass->b.seq_start,
        .n_tokens = pass->n_tokens,
        .qkv_stride = qr_qkv_columns(s),
        .n_heads = (int32_t)s->n_heads,
        .n_kv_heads = (int32_t)s->n_kv_heads,
        .head_dim = (int32_t)s->head_dim,
        .n_seqs = (int32_t)pass->n_sequences,
        .max_seq_tokens = pass->longest,
        .scale = s->attn_scale,
        .softcap = s->attn_softcap,
        .window = layer->window,
        .round_kv = pass->model->act_dtype != QR_DTYPE_F32,
    };
}

/* dw += dyᵀ x of a matrix that is trained, and the sums of its bias. */
static qr_weight_backward_args weight_backward_args(const qrun_model *model, const qr_weight *weight, const void *x,
                                                    const float *dy, int64_t dy_stride, float *dw, float *dbias,
                                                    int64_t n_rows) {
    return (qr_weight_backward_args){.x = x, .x_dtype = model->act_dtype, .dy = dy, .dw = dw, .dbias = dbias,
                                     .n_rows = n_rows, .in = weight->desc.cols, .out = weight->desc.rows,
                                     .x_stride = weight->desc.cols, .dy_stride = dy_stride};
}

/* ---- Workspace --------------------------------------------------------------------------------------------------- */

static void raise_to(size_t *most, size_t n_bytes) { *most = n_bytes > *most ? n_bytes : *most; }

typedef struct workspace_visit {
    const qr_train_pass *pass;
    size_t most;
} workspace_visit;

static void weight_workspace(const qr_train_pass *pass, const qr_linear_layer *linear, int64_t n_rows, size_t *most) {
    const int64_t out = linear->weight.desc.rows;
    const qr_linear_args forward = qr_layer_linear_args(pass->model, linear, NULL, NULL, out, n_rows, false);
    raise_to(most, qr_linear_workspace(pass->backend, &forward));
    const qr_linear_backward_args backward =
        qr_linear_backward_args_of(pass->model, &linear->weight, NULL, out, NULL, n_rows, false);
    raise_to(most, qr_linear_backward_workspace(pass->backend, &backward));
    if (pass->parameters->whole.n == 0) { return; }
    const qr_weight_backward_args weight =
        weight_backward_args(pass->model, &linear->weight, NULL, NULL, out, NULL, NULL, n_rows);
    raise_to(most, qr_weight_backward_workspace(pass->backend, &weight));
}

static qr_embedding_backward_args embedding_backward_args(const qr_train_pass *pass, const qr_weight *table,
                                                          const int32_t *ids, float *dtable, float scale) {
    return (qr_embedding_backward_args){.ids = ids, .dy = pass->b.dx, .dtable = dtable, .n_tokens = pass->n_tokens,
                                        .dim = table->desc.cols, .vocab = table->desc.rows, .scale = scale};
}

static qrun_status visit_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role, qr_error *err) {
    (void)layer, (void)role, (void)err;
    workspace_visit *visit = arg;
    const qr_train_pass *pass = visit->pass;
    weight_workspace(pass, linear, pass->n_tokens, &visit->most);
    const qr_lora_pair *pair = qr_lora_pair_of(pass->parameters, linear);
    const qr_layer_adapters adapters = adapters_of(pass);
    const qr_lora_args forward = qr_layer_lora_args(&adapters, pass->model->act_dtype, linear, NULL, NULL,
                                                    linear->weight.desc.rows, pass->n_tokens);
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
    const qr_rms_norm_backward_args rows = {.n_rows = pass->n_tokens, .n_groups = 1, .dim = s->hidden,
                                            .x_stride = s->hidden, .dy_stride = s->hidden, .dx_stride = s->hidden};
    raise_to(most, qr_rms_norm_backward_workspace(pass->backend, &rows));
    const int64_t stride = qr_qkv_columns(s);
    const qr_rms_norm_backward_args heads = {.n_rows = pass->n_tokens, .n_groups = s->n_heads, .dim = s->head_dim,
                                             .x_stride = stride, .dy_stride = stride, .dx_stride = stride};
    raise_to(most, qr_rms_norm_backward_workspace(pass->backend, &heads));
}

static size_t workspace_bytes(qrun_model *model, const qr_parameters *parameters, const qr_train_limits *limits) {
    qr_parameters lent = *parameters;
    const qr_train_pass pass = {.model = model, .backend = model->context->backend, .parameters = &lent,
                                .limits = *limits, .n_tokens = limits->max_tokens,
                                .n_sequences = limits->max_sequences, .longest = (int32_t)limits->max_tokens};
    workspace_visit visit = {&pass, 64};
    (void)qr_model_each_linear(model, visit_linear, &visit, NULL);
    norm_workspace(&pass, &visit.most);
    const qr_embedding_backward_args table = embedding_backward_args(&pass, &model->embedding, NULL, NULL, 1.0F);
    raise_to(&visit.most, qr_embedding_backward_workspace(pass.backend, &table));
    const int64_t r = logit_rows(model, limits);
    const qr_linear_layer head = {.weight = model->head};
    weight_workspace(&pass, &head, r, &visit.most);
    for (int64_t l = 0; l < model->shape.n_layers; l++) {
        const qr_attention_packed_args forward = attention_args(&pass, &model->layers[l]);
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
    pass_buffers b = {0};
    qr_activations activations;
    const qrun_status status =
        qr_activations_lay_out(model, &limits->policy, limits->max_tokens, NULL, &activations, err);
    if (status != QRUN_OK) { return status; }
    plan->entries[QR_PLAN_ACTIVATIONS].bytes +=
        (int64_t)(lay_gradients(model, parameters, limits, NULL, &b) + activations.bytes);
    plan->entries[QR_PLAN_TABLES].bytes += (int64_t)lay_tables(model, parameters, limits, NULL, &b);
    plan->entries[QR_PLAN_LOGITS].bytes += (int64_t)lay_logits(model, limits, NULL, &b);
    plan->entries[QR_PLAN_WORKSPACE].bytes += (int64_t)workspace_bytes(model, parameters, limits);
    qr_activations_free(&activations);
    return QRUN_OK;
}

static qrun_status make_memory(qr_train_pass *pass, qr_error *err) {
    static const qr_plan_category made[] = {QR_PLAN_ACTIVATIONS, QR_PLAN_TABLES, QR_PLAN_LOGITS, QR_PLAN_WORKSPACE};
    qr_plan plan;
    qr_plan_init(&plan);
    qrun_status status = qr_train_pass_plan(pass->model, pass->parameters, &pass->limits, &plan, err);
    for (size_t i = 0; i < QR_COUNT_OF(made) && status == QRUN_OK; i++) {
        const size_t n_bytes = (size_t)plan.entries[made[i]].bytes;
        status = pass->backend->memory_create(pass->backend, QR_MEMORY_DEVICE, n_bytes, &pass->memory[made[i]], err);
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
                                  &pass->activations, err);
}

static qrun_status make_host(qr_train_pass *pass, qr_error *err) {
    const size_t t = (size_t)pass->limits.max_tokens;
    pass->host_loss = qr_alloc_array((size_t)logit_rows(pass->model, &pass->limits), sizeof(float));
    pass->host_rows = qr_alloc_array(t, sizeof(int32_t));
    pass->host_targets = qr_alloc_array(t, sizeof(int32_t));
    pass->host_rope = qr_alloc_array((size_t)qr_max(pass->model->shape.rope_half, 1), sizeof(float));
    const bool made = pass->host_loss != NULL && pass->host_rows != NULL && pass->host_targets != NULL &&
                      pass->host_rope != NULL;
    return made ? QRUN_OK : qr_fail_memory(err, "the tables of a training step", t * 12);
}

/* Rotary frequencies of sequences as long as a micro-batch can hold: one set, so that a token's gradient does not
 * depend on how examples were put together. */
static qrun_status set_rope(qr_train_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    qrun_status status = QRUN_OK;
    for (int32_t k = 0; k < model->shape.n_rope_kinds; k++) {
        float factor;
        qr_rope_frequencies(&model->config, k, pass->limits.max_tokens, pass->host_rope, &factor);
        QR_TRY(pass->backend->copy_in(pass->backend, pass->b.inv_freq[k], pass->host_rope,
                                      (size_t)model->shape.rope_half * sizeof(float), err));
        QR_TRY(pass->backend->copy_in(pass->backend, pass->b.rope_factor[k], &factor, sizeof factor, err));
    }
out:
    return status;
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
        pass->backend->memory_destroy(pass->backend, QR_MEMORY_DEVICE, pass->memory[i], pass->memory_bytes[i]);
    }
    qr_activations_free(&pass->activations);
    qr_free(pass->host_loss);
    qr_free(pass->host_rows);
    qr_free(pass->host_targets);
    qr_free(pass->host_rope);
    qr_free(pass);
}

/* ---- Forward ----------------------------------------------------------------------------------------------------- */

static qrun_status attend_packed(void *arg, const qr_layer *layer, const float *q, const float *k, const float *v,
                                 void *dst, qr_error *err) {
    (void)q, (void)k, (void)v, (void)dst; /* the views that attention_args names */
    qr_train_pass *pass = arg;
    const qr_attention_packed_args args = attention_args(pass, layer);
    return qr_attention_packed(pass->backend, &args, pass->workspace, err);
}

static qr_layer_pass layer_pass(qr_train_pass *pass) {
    const pass_buffers *b = &pass->b;
    qr_layer_buffers buffers = pass->current != NULL ? pass->current->buffers : (qr_layer_buffers){0};
    buffers.dora = b->dora;
    return (qr_layer_pass){.model = pass->model, .workspace = pass->workspace, .n_tokens = pass->n_tokens, .x = b->x,
                           .cos_table = {b->cos_table[0], b->cos_table[1]},
                           .sin_table = {b->sin_table[0], b->sin_table[1]},
                           .buffers = buffers,
                           .adapters = adapters_of(pass), .dropout = pass->dropout, .attend = attend_packed,
                           .attend_arg = pass};
}

static qrun_status copy_stream(qr_train_pass *pass, float *dst, const float *src, qr_error *err) {
    const size_t n_bytes = (size_t)(pass->n_tokens * pass->model->shape.hidden) * sizeof(float);
    return pass->backend->copy_within(pass->backend, dst, src, n_bytes, err);
}

/* A layer from the residual stream, its input and the point between its blocks noted. buffers_only: nothing reads the
 * stream behind it. */
void qr_train_pass_watch(qr_train_pass *pass, const atomic_bool *flag) { pass->cancelled = flag; }

static qrun_status check_cancelled(const qr_train_pass *pass, qr_error *err) {
    if (pass->cancelled == NULL || !atomic_load_explicit(pass->cancelled, memory_order_relaxed)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_CANCELLED, "cancelled");
}

static qrun_status run_layer(qr_train_pass *pass, int64_t l, bool buffers_only, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    qrun_status status = QRUN_OK;
    pass->current = &pass->activations.layers[l];
    qr_layer_pass blocks = layer_pass(pass);
    QR_TRY(check_cancelled(pass, err));
    QR_TRY(copy_stream(pass, pass->current->x_in, pass->b.x, err));
    QR_TRY(qr_layer_attention(&blocks, layer, err));
    QR_TRY(copy_stream(pass, pass->current->x_mid, pass->b.x, err));
    blocks.buffers_only = buffers_only;
    QR_TRY(qr_layer_mlp(&blocks, layer, err));
out:
    return status;
}

static qrun_status copy_ints(qr_train_pass *pass, int32_t *device, const int32_t *host, int64_t n, qr_error *err) {
    return pass->backend->copy_in(pass->backend, device, host, (size_t)n * sizeof *host, err);
}

static qrun_status enter(qr_train_pass *pass, const qr_train_batch *batch, bool backward, qr_error *err) {
    const qrun_model *model = pass->model;
    qrun_status status = QRUN_OK;
    pass->dropout = (qr_layer_dropout){.p = backward ? pass->parameters->lora.dropout : 0, .key = batch->dropout_key,
                                       .row_key = pass->b.row_key, .dropped = pass->b.dropped};
    pass->n_tokens = batch->n_tokens;
    pass->n_sequences = batch->n_sequences;
    pass->longest = 0;
    for (int64_t s = 0; s < batch->n_sequences; s++) {
        pass->longest = (int32_t)qr_max(pass->longest, batch->seq_start[s + 1] - batch->seq_start[s]);
    }
    pass->current = NULL;
    const qr_layer_pass blocks = layer_pass(pass);
    QR_TRY(copy_ints(pass, pass->b.ids, batch->ids, batch->n_tokens, err));
    QR_TRY(copy_ints(pass, pass->b.position, batch->position, batch->n_tokens, err));
    QR_TRY(copy_ints(pass, pass->b.seq_start, batch->seq_start, batch->n_sequences + 1, err));
    if (pass->dropout.p > 0) {
        const size_t n_bytes = (size_t)batch->n_tokens * sizeof *batch->row_key;
        QR_TRY(pass->backend->copy_in(pass->backend, pass->b.row_key, batch->row_key, n_bytes, err));
    }
    for (int k = 0; k < model->shape.n_rope_kinds; k++) {
        const qr_rope_table_args args = {pass->b.inv_freq[k], pass->b.rope_factor[k], pass->b.slot, pass->b.position,
                                         pass->b.cos_table[k], pass->b.sin_table[k], batch->n_tokens,
                                         model->shape.rope_half};
        QR_TRY(qr_rope_table(pass->backend, &args, pass->workspace, err));
    }
    QR_TRY(qr_lora_parameters_refresh(pass->parameters, pass->workspace, err));
    QR_TRY(qr_layer_embed(&blocks, pass->b.ids, pass->b.position, err));
out:
    return status;
}

/* ---- Loss -------------------------------------------------------------------------------------------------------- */

static int64_t find_targets(qr_train_pass *pass, const qr_train_batch *batch) {
    int64_t n = 0;
    for (int64_t t = 0; t < batch->n_tokens; t++) {
        if (batch->target[t] < 0) { continue; }
        pass->host_rows[n] = (int32_t)t;
        pass->host_targets[n++] = batch->target[t];
    }
    return n;
}

static qrun_status norm_backward(qr_train_pass *pass, const qr_norm *norm, const float *x, const float *dy, float *dx,
                                 int64_t n_rows, bool accumulate, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (norm->bias != NULL) {
        const qr_layer_norm_backward_args args = {.x = x, .weight = norm->weight, .dy = dy, .dx = dx,
                                                  .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                                  .dbias = qr_parameters_gradient(pass->parameters, norm->bias),
                                                  .n_rows = n_rows, .dim = norm->dim, .eps = s->norm_eps,
                                                  .accumulate = accumulate};
        return qr_layer_norm_backward(pass->backend, &args, pass->workspace, err);
    }
    const qr_rms_norm_backward_args args = {.x = x, .weight = norm->weight, .dy = dy, .dx = dx,
                                            .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                            .n_rows = n_rows, .n_groups = 1, .dim = norm->dim, .x_stride = norm->dim,
                                            .dy_stride = norm->dim, .dx_stride = norm->dim, .eps = s->norm_eps,
                                            .weight_offset = s->norm_offset, .accumulate = accumulate};
    return qr_rms_norm_backward(pass->backend, &args, pass->workspace, err);
}

/* The gradient of a matrix from what it was fed, where it is trained. dy: [n_rows, out], F32. */
static qrun_status whole_backward(qr_train_pass *pass, const qr_weight *weight, const float *bias, const void *x,
                                  const float *dy, int64_t dy_stride, int64_t n_rows, qr_error *err) {
    float *dw = qr_whole_gradient(pass->parameters, weight);
    if (dw == NULL) { return QRUN_OK; }
    const qr_weight_backward_args args = weight_backward_args(pass->model, weight, x, dy, dy_stride, dw,
                                                              qr_parameters_gradient(pass->parameters, bias), n_rows);
    return qr_weight_backward(pass->backend, &args, pass->workspace, err);
}

/* Gradient of the rows of a chunk, from the gradient of their logits into dpicked. */
static qrun_status head_backward(qr_train_pass *pass, int64_t first, int64_t n, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t hidden = model->shape.hidden, vocab = model->shape.vocab;
    qrun_status status = QRUN_OK;
    if (pass->b.dlogits != pass->b.logits) {
        const qr_round_act_args round = {pass->b.logits, pass->b.dlogits, model->act_dtype, n, vocab, vocab};
        QR_TRY(qr_round_act(pass->backend, &round, pass->workspace, err));
    }
    const qr_linear_backward_args args =
        qr_linear_backward_args_of(model, &model->head, pass->b.dlogits, vocab, pass->b.dpicked_normed, n, false);
    QR_TRY(qr_linear_backward(pass->backend, &args, pass->workspace, err));
    QR_TRY(whole_backward(pass, &pass->model->head, NULL, pass->b.picked_normed, pass->b.logits, vocab, n, err));
    QR_TRY(norm_backward(pass, &model->final_norm, pass->b.picked, pass->b.dpicked_normed,
                         pass->b.dpicked + first * hidden, n, false, err));
out:
    return status;
}

static qrun_status loss_of_chunk(qr_train_pass *pass, int64_t first, int64_t n, float loss_scale, double *sum,
                                 qr_error *err) {
    const qrun_model *model = pass->model;
    qrun_status status = QRUN_OK;
    const qr_gather_rows_args gather = {pass->b.x, pass->b.rows + first, pass->b.picked, n, model->shape.hidden};
    QR_TRY(qr_gather_rows(pass->backend, &gather, pass->workspace, err));
    QR_TRY(qr_layer_norm_rows(model, pass->workspace, &model->final_norm, pass->b.picked, pass->b.picked_normed,
                              model->act_dtype, n, err));
    const qr_linear_layer head = {.weight = model->head};
    const qr_linear_args linear =
        qr_layer_linear_args(model, &head, pass->b.picked_normed, pass->b.logits, model->shape.vocab, n, false);
    QR_TRY(qr_linear(pass->backend, &linear, pass->workspace, err));
    const qr_cross_entropy_args loss = {pass->b.logits, pass->b.target + first, pass->b.loss, n, model->shape.vocab,
                                        model->shape.logit_softcap, loss_scale};
    QR_TRY(qr_cross_entropy(pass->backend, &loss, pass->workspace, err));
    QR_TRY(pass->backend->copy_out(pass->backend, pass->host_loss, pass->b.loss, (size_t)n * sizeof(float), err));
    for (int64_t i = 0; i < n; i++) { *sum += (double)pass->host_loss[i]; }
out:
    return status;
}

/* Loss over the targets, chunk by chunk; with backward, the gradient of the last layer's output in dx. */
static qrun_status run_loss(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                            double *sum, qr_error *err) {
    const int64_t n_targets = find_targets(pass, batch), most = logit_rows(pass->model, &pass->limits);
    qrun_status status = QRUN_OK;
    *sum = 0;
    QR_TRY(copy_ints(pass, pass->b.rows, pass->host_rows, n_targets, err));
    QR_TRY(copy_ints(pass, pass->b.target, pass->host_targets, n_targets, err));
    for (int64_t first = 0; first < n_targets; first += most) {
        const int64_t n = qr_min(most, n_targets - first);
        QR_TRY(loss_of_chunk(pass, first, n, loss_scale, sum, err));
        if (backward) { QR_TRY(head_backward(pass, first, n, err)); }
    }
    if (backward) {
        const qr_scatter_rows_args scatter = {pass->b.dpicked, pass->b.rows, pass->b.dx, n_targets, pass->n_tokens,
                                              pass->model->shape.hidden};
        QR_TRY(qr_scatter_rows(pass->backend, &scatter, pass->workspace, err));
    }
out:
    return status;
}

/* ---- Backward ---------------------------------------------------------------------------------------------------- */

/* dx (+)= dy through a matrix and its adapter; their gradients grow. x is what the forward pass fed it. */
static qrun_status linear_backward(qr_train_pass *pass, const qr_linear_layer *linear, const void *x, const float *dy,
                                   int64_t dy_stride, float *dx, bool accumulate, qr_error *err) {
    const qr_adapter_backward backward = {.pass = layer_pass(pass), .parameters = pass->parameters, .dy = pass->b.dy,
                                          .ddropped = pass->b.ddropped};
    const qr_lora_pair *pair = qr_lora_pair_of(pass->parameters, linear);
    const qrun_status status = whole_backward(pass, &linear->weight, linear->bias, x, dy, dy_stride, pass->n_tokens,
                                              err);
    if (status != QRUN_OK) { return status; }
    return pair != NULL ? qr_adapter_dx(&backward, linear, pair, x, dy, dy_stride, dx, accumulate, err)
                        : qr_linear_dx(&backward, linear, dy, dy_stride, dx, accumulate, err);
}

/* The gradient into a block's last matrix: dx itself, or what comes back through the block's post-norm. */
static qrun_status branch_gradient(qr_train_pass *pass, const qr_norm *post_norm, const float *branch,
                                   const float **dbranch, qr_error *err) {
    *dbranch = pass->b.dx;
    if (post_norm->weight == NULL) { return QRUN_OK; }
    *dbranch = pass->b.dbranch;
    return norm_backward(pass, post_norm, branch, pass->b.dx, pass->b.dbranch, pass->n_tokens, false, err);
}

static qrun_status activation_backward(qr_train_pass *pass, const qr_kept_layer *kept, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t m = model->shape.mlp, columns = qr_mlp_columns(model);
    if (qr_model_is_gated(model)) {
        const qr_gate_backward_args args = {model->shape.activation, kept->buffers.mlp, kept->buffers.mlp + m,
                                            pass->b.dgated, pass->b.dmlp, pass->b.dmlp + m, pass->n_tokens, m, columns,
                                            columns};
        return qr_gate_backward(pass->backend, &args, pass->workspace, err);
    }
    const qr_activation_backward_args args = {model->shape.activation, kept->buffers.mlp, pass->b.dgated, pass->b.dmlp,
                                              pass->n_tokens, m, columns, m, columns};
    return qr_activation_backward(pass->backend, &args, pass->workspace, err);
}

static qrun_status mlp_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_kept_layer *kept = pass->current;
    const float *dbranch;
    qrun_status status = QRUN_OK;
    QR_TRY(branch_gradient(pass, &layer->post_mlp_norm, kept->buffers.mlp_branch, &dbranch, err));
    QR_TRY(linear_backward(pass, &layer->mlp_out, kept->buffers.gated, dbranch, model->shape.hidden, pass->b.dgated,
                           false, err));
    QR_TRY(activation_backward(pass, kept, err));
    for (int i = 0; i < QR_MAX_MLP_IN && layer->mlp_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->mlp_in[i];
        QR_TRY(linear_backward(pass, linear, kept->buffers.mlp_normed, pass->b.dmlp + linear->out_offset,
                               qr_mlp_columns(model), pass->b.dnormed, i > 0, err));
    }
    QR_TRY(norm_backward(pass, &layer->mlp_norm, kept->x_mid, pass->b.dnormed, pass->b.dx, pass->n_tokens, true, err));
out:
    return status;
}

static qrun_status heads_backward(qr_train_pass *pass, const qr_layer *layer, const qr_norm *norm, int64_t first_column,
                                  int64_t n_heads, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t stride = qr_qkv_columns(s), raw_stride = (s->n_heads + s->n_kv_heads) * s->head_dim;
    float *dheads = pass->b.dqkv + first_column;
    qrun_status status = QRUN_OK;
    if (s->rope_half > 0) {
        const qr_rope_backward_args rope = {dheads, pass->b.cos_table[layer->rope_kind],
                                            pass->b.sin_table[layer->rope_kind], pass->n_tokens, n_heads, s->head_dim,
                                            s->rope_half, stride};
        QR_TRY(qr_rope_backward(pass->backend, &rope, pass->workspace, err));
    }
    if (norm->weight != NULL) {
        const qr_rms_norm_backward_args args = {.x = pass->current->buffers.qk_raw + first_column,
                                                .weight = norm->weight,
                                                .dy = dheads,
                                                .dx = dheads,
                                                .dweight = qr_parameters_gradient(pass->parameters, norm->weight),
                                                .n_rows = pass->n_tokens,
                                                .n_groups = n_heads,
                                                .dim = norm->dim,
                                                .x_stride = raw_stride,
                                                .dy_stride = stride,
                                                .dx_stride = stride,
                                                .eps = s->norm_eps,
                                                .weight_offset = s->norm_offset};
        QR_TRY(qr_rms_norm_backward(pass->backend, &args, pass->workspace, err));
    }
out:
    return status;
}

static qrun_status attention_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_kept_layer *kept = pass->current;
    const int64_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const float *dbranch;
    qrun_status status = QRUN_OK;
    QR_TRY(branch_gradient(pass, &layer->post_attn_norm, kept->buffers.attn_branch, &dbranch, err));
    QR_TRY(linear_backward(pass, &layer->attn_out, kept->buffers.attended, dbranch, s->hidden, pass->b.dattended, false,
                           err));
    const qr_attention_packed_backward_args args = {.forward = attention_args(pass, layer), .dout = pass->b.dattended,
                                                    .dq = pass->b.dqkv, .dk = pass->b.dqkv + q,
                                                    .dv = pass->b.dqkv + q + kv, .dqkv_stride = qr_qkv_columns(s)};
    QR_TRY(qr_attention_packed_backward(pass->backend, &args, pass->workspace, err));
    QR_TRY(heads_backward(pass, layer, &layer->q_norm, 0, s->n_heads, err));
    QR_TRY(heads_backward(pass, layer, &layer->k_norm, q, s->n_kv_heads, err));
    for (int i = 0; i < QR_MAX_ATTN_IN && layer->attn_in[i].weight.desc.rows > 0; i++) {
        const qr_linear_layer *linear = &layer->attn_in[i];
        QR_TRY(linear_backward(pass, linear, kept->buffers.attn_normed, pass->b.dqkv + linear->out_offset,
                               qr_qkv_columns(s), pass->b.dnormed, i > 0, err));
    }
    QR_TRY(norm_backward(pass, &layer->attn_norm, kept->x_in, pass->b.dnormed, pass->b.dx, pass->n_tokens, true, err));
out:
    return status;
}

/* Both blocks of a layer, computing again what was not kept. */
static qrun_status layer_backward(qr_train_pass *pass, int64_t l, bool kept_segment, qr_error *err) {
    const qr_layer *layer = &pass->model->layers[l];
    qrun_status status = QRUN_OK;
    pass->current = &pass->activations.layers[l];
    qr_layer_pass blocks = layer_pass(pass);
    blocks.buffers_only = true;
    QR_TRY(check_cancelled(pass, err));
    if (kept_segment && !pass->current->mlp_kept) {
        QR_TRY(copy_stream(pass, pass->b.x, pass->current->x_mid, err));
        QR_TRY(qr_layer_mlp(&blocks, layer, err));
    }
    QR_TRY(mlp_backward(pass, layer, err));
    if (kept_segment && !pass->current->attn_kept) {
        QR_TRY(copy_stream(pass, pass->b.x, pass->current->x_in, err));
        QR_TRY(qr_layer_attention(&blocks, layer, err));
    }
    QR_TRY(attention_backward(pass, layer, err));
out:
    return status;
}

static qrun_status segment_backward(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    qrun_status status = QRUN_OK;
    if (!segment->kept) {
        QR_TRY(copy_stream(pass, pass->b.x, pass->activations.layers[segment->first].x_in, err));
        for (int64_t i = 0; i < segment->n; i++) {
            QR_TRY(run_layer(pass, segment->first + i, i + 1 == segment->n, err));
        }
    }
    for (int64_t i = segment->n; i-- > 0;) { QR_TRY(layer_backward(pass, segment->first + i, segment->kept, err)); }
out:
    return status;
}

/* From the gradient of the first layer's input into the tables that it was looked up in. */
static qrun_status embed_backward(qr_train_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    float *dtable = qr_whole_gradient(pass->parameters, &model->embedding);
    float *dpositions = qr_whole_gradient(pass->parameters, &model->position_embedding);
    qrun_status status = QRUN_OK;
    if (dtable != NULL) {
        const qr_embedding_backward_args args =
            embedding_backward_args(pass, &model->embedding, pass->b.ids, dtable, model->shape.embedding_scale);
        QR_TRY(qr_embedding_backward(pass->backend, &args, pass->workspace, err));
    }
    if (dpositions != NULL) {
        const qr_embedding_backward_args args =
            embedding_backward_args(pass, &model->position_embedding, pass->b.position, dpositions, 1.0F);
        QR_TRY(qr_embedding_backward(pass->backend, &args, pass->workspace, err));
    }
out:
    return status;
}

qrun_status qr_train_pass_run(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                              double *loss_sum, qr_error *err) {
    qrun_status status = QRUN_OK;
    QR_TRY(enter(pass, batch, backward, err));
    for (int64_t l = 0; l < pass->model->shape.n_layers; l++) { QR_TRY(run_layer(pass, l, false, err)); }
    QR_TRY(run_loss(pass, batch, loss_scale, backward, loss_sum, err));
    for (int64_t i = pass->activations.n_segments; backward && i-- > 0;) {
        QR_TRY(segment_backward(pass, &pass->activations.segments[i], err));
    }
    if (backward) { QR_TRY(embed_backward(pass, err)); }
    QR_TRY(pass->backend->sync(pass->backend, err));
out:
    return status;
}

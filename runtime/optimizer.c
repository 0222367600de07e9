#include "runtime/optimizer.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/layout.h"

enum { STATE_BLOCK = 256, SMALLEST_8BIT = 4096 };

/* The defaults of torch.optim and of the HF Trainer. */
static const float BETA1 = 0.9F, BETA2 = 0.999F, ADAM_EPS = 1e-8F, SGD_MOMENTUM = 0.9F;
static const float ADAFACTOR_EPS = 1e-30F, ADAFACTOR_CLIP = 1.0F, ADAFACTOR_DECAY = -0.8F;

/* The states of one tensor; which are used depends on the optimiser. */
typedef struct tensor_state {
    int64_t offset, rows, cols; /* in the parameter arena */
    float *m, *v;               /* AdamW, SGD (m), small tensors of 8-bit AdamW; Adafactor: row and column moments */
    uint8_t *m_codes, *v_codes; /* 8-bit AdamW */
    float *m_absmax, *v_absmax;
} tensor_state;

struct qr_optimizer {
    qr_parameters *parameters;
    qr_optimizer_options options;
    tensor_state *states; /* [parameters->n] */
    float *update;         /* Adafactor's scratch, the largest tensor */
    void *memory;
    size_t n_bytes;
};

static void place_adam8bit(qr_layout *layout, int64_t n, tensor_state *f) {
    if (n < SMALLEST_8BIT) {
        f->m = qr_layout_take(layout, n, sizeof(float));
        f->v = qr_layout_take(layout, n, sizeof(float));
        return;
    }
    const int64_t n_blocks = qr_ceil_div(n, STATE_BLOCK);
    f->m_codes = qr_layout_take(layout, n, 1);
    f->v_codes = qr_layout_take(layout, n, 1);
    f->m_absmax = qr_layout_take(layout, n_blocks, sizeof(float));
    f->v_absmax = qr_layout_take(layout, n_blocks, sizeof(float));
}

static void place_tensor(qr_layout *layout, qrun_optimizer kind, tensor_state *f) {
    const int64_t n = f->rows * f->cols;
    switch (kind) {
        case QRUN_OPTIMIZER_ADAMW8BIT: place_adam8bit(layout, n, f); break;
        case QRUN_OPTIMIZER_ADAFACTOR:
            f->m = qr_layout_take(layout, f->rows > 1 ? f->rows : f->cols, sizeof(float));
            f->v = qr_layout_take(layout, f->cols, sizeof(float));
            break;
        case QRUN_OPTIMIZER_SGD: f->m = qr_layout_take(layout, n, sizeof(float)); break;
        default:
            f->m = qr_layout_take(layout, n, sizeof(float));
            f->v = qr_layout_take(layout, n, sizeof(float));
    }
}

/* Fills states [p->n] with places in memory (NULL: only counts). */
static size_t place(const qr_parameters *p, qrun_optimizer kind, void *memory, tensor_state *states,
                    float **update) {
    qr_layout layout = {memory, 0};
    int64_t largest = 0;
    for (int64_t i = 0; i < p->n; i++) {
        tensor_state f = {.offset = p->list[i].offset, .rows = p->list[i].rows, .cols = p->list[i].cols};
        place_tensor(&layout, kind, &f);
        largest = qr_max(largest, f.rows * f.cols);
        if (states != NULL) { states[i] = f; }
    }
    if (kind == QRUN_OPTIMIZER_ADAFACTOR) {
        float *scratch = qr_layout_take(&layout, largest, sizeof(float));
        if (update != NULL) { *update = scratch; }
    }
    return layout.offset;
}

size_t qr_optimizer_bytes(const qr_parameters *parameters, qrun_optimizer kind) {
    return place(parameters, kind, NULL, NULL, NULL);
}

qrun_status qr_optimizer_create(qr_parameters *parameters, const qr_optimizer_options *options,
                                qr_optimizer **optimizer, qr_error *err) {
    *optimizer = NULL;
    qr_optimizer *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the optimiser", sizeof *made); }
    made->parameters = parameters;
    made->options = *options;
    made->states = qr_alloc_array((size_t)parameters->n, sizeof *made->states);
    qr_backend *backend = parameters->model->context->backend;
    qrun_status status = QRUN_OK;
    if (made->states == NULL) { QR_TRY(qr_fail_memory(err, "the optimiser", sizeof *made->states)); }
    const size_t n_bytes = qr_optimizer_bytes(parameters, options->kind);
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &made->memory, err));
    made->n_bytes = n_bytes;
    (void)place(parameters, options->kind, made->memory, made->states, &made->update);
out:
    if (status == QRUN_OK) {
        *optimizer = made;
    } else {
        qr_optimizer_destroy(made);
    }
    return status;
}

void qr_optimizer_destroy(qr_optimizer *optimizer) {
    if (optimizer == NULL) { return; }
    qr_backend *backend = optimizer->parameters->model->context->backend;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, optimizer->memory, optimizer->n_bytes);
    qr_free(optimizer->states);
    qr_free(optimizer);
}

/* ---- The ops' arguments ------------------------------------------------------------------------------------------ */

/* What every op is told: where in the arenas, and this step's numbers. p NULL: sizes only. */
typedef struct step_numbers {
    int64_t step;
    float lr, grad_scale, weight_decay;
    float *p;
    const float *g;
} step_numbers;

static qr_adamw_args adamw_args(const tensor_state *f, const step_numbers *s, bool of_8bit) {
    return (qr_adamw_args){.p = s->p, .g = s->g, .m = f->m, .v = f->v, .n = f->rows * f->cols, .step = s->step,
                           .grad_scale = s->grad_scale, .lr = s->lr, .beta1 = BETA1, .beta2 = BETA2, .eps = ADAM_EPS,
                           .weight_decay = s->weight_decay, .of_8bit = of_8bit};
}

static qr_adamw8bit_args adamw8bit_args(const tensor_state *f, const step_numbers *s) {
    return (qr_adamw8bit_args){.p = s->p,
                               .g = s->g,
                               .m = f->m_codes,
                               .v = f->v_codes,
                               .m_absmax = f->m_absmax,
                               .v_absmax = f->v_absmax,
                               .n = f->rows * f->cols,
                               .step = s->step,
                               .grad_scale = s->grad_scale,
                               .lr = s->lr,
                               .beta1 = BETA1,
                               .beta2 = BETA2,
                               .eps = ADAM_EPS,
                               .weight_decay = s->weight_decay};
}

static qr_adafactor_args adafactor_args(const tensor_state *f, const step_numbers *s, float *update) {
    return (qr_adafactor_args){.p = s->p, .g = s->g, .row_moment = f->m, .col_moment = f->v, .update = update,
                               .rows = f->rows, .cols = f->cols, .step = s->step, .grad_scale = s->grad_scale,
                               .lr = s->lr, .eps1 = ADAFACTOR_EPS, .clip_threshold = ADAFACTOR_CLIP,
                               .decay_rate = ADAFACTOR_DECAY, .weight_decay = s->weight_decay};
}

static qr_sgd_args sgd_args(const tensor_state *f, const step_numbers *s) {
    return (qr_sgd_args){.p = s->p, .g = s->g, .m = f->m, .n = f->rows * f->cols, .step = s->step,
                         .grad_scale = s->grad_scale, .lr = s->lr, .momentum = SGD_MOMENTUM,
                         .weight_decay = s->weight_decay};
}

static bool is_8bit(qrun_optimizer kind, const tensor_state *f) {
    return kind == QRUN_OPTIMIZER_ADAMW8BIT && f->rows * f->cols >= SMALLEST_8BIT;
}

static size_t tensor_workspace(const qr_backend *backend, qrun_optimizer kind, const tensor_state *f) {
    const step_numbers sizes = {.step = 1};
    if (is_8bit(kind, f)) {
        const qr_adamw8bit_args args = adamw8bit_args(f, &sizes);
        return qr_adamw8bit_workspace(backend, &args);
    }
    if (kind == QRUN_OPTIMIZER_ADAFACTOR) {
        const qr_adafactor_args args = adafactor_args(f, &sizes, NULL);
        return qr_adafactor_workspace(backend, &args);
    }
    if (kind == QRUN_OPTIMIZER_SGD) {
        const qr_sgd_args args = sgd_args(f, &sizes);
        return qr_sgd_workspace(backend, &args);
    }
    const qr_adamw_args args = adamw_args(f, &sizes, kind == QRUN_OPTIMIZER_ADAMW8BIT);
    return qr_adamw_workspace(backend, &args);
}

size_t qr_optimizer_workspace(const qr_parameters *p, qrun_optimizer kind) {
    size_t most = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const tensor_state f = {.rows = p->list[i].rows, .cols = p->list[i].cols};
        const size_t n_bytes = tensor_workspace(p->model->context->backend, kind, &f);
        most = n_bytes > most ? n_bytes : most;
    }
    return most;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static qrun_status step_tensor(qr_optimizer *o, const tensor_state *f, const step_numbers *s, void *workspace,
                               qr_error *err) {
    qr_backend *backend = o->parameters->model->context->backend;
    if (is_8bit(o->options.kind, f)) {
        const qr_adamw8bit_args args = adamw8bit_args(f, s);
        return qr_adamw8bit(backend, &args, workspace, err);
    }
    if (o->options.kind == QRUN_OPTIMIZER_ADAFACTOR) {
        const qr_adafactor_args args = adafactor_args(f, s, o->update);
        return qr_adafactor(backend, &args, workspace, err);
    }
    if (o->options.kind == QRUN_OPTIMIZER_SGD) {
        const qr_sgd_args args = sgd_args(f, s);
        return qr_sgd(backend, &args, workspace, err);
    }
    const qr_adamw_args args = adamw_args(f, s, o->options.kind == QRUN_OPTIMIZER_ADAMW8BIT);
    return qr_adamw(backend, &args, workspace, err);
}

qrun_status qr_optimizer_step(qr_optimizer *o, int64_t step, float learning_rate, float grad_scale, void *workspace,
                              qr_error *err) {
    const qr_parameters *p = o->parameters;
    qrun_status status = QRUN_OK;
    for (int64_t i = 0; i < p->n && status == QRUN_OK; i++) {
        const tensor_state *f = &o->states[i];
        const step_numbers numbers = {step, learning_rate, grad_scale, o->options.weight_decay, p->values + f->offset,
                                      p->gradients + f->offset};
        status = step_tensor(o, f, &numbers, workspace, err);
    }
    return status;
}

void *qr_optimizer_states(qr_optimizer *optimizer, size_t *n_bytes) {
    *n_bytes = optimizer->n_bytes;
    return optimizer->memory;
}

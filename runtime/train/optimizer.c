#include "runtime/train/optimizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"

enum { N_STAGES = 2 };

static const int64_t DEFAULT_STAGE_ELEMENTS = INT64_C(1) << 20;

/* The defaults of torch.optim and of the HF Trainer. */
static const float BETA1 = 0.9F, BETA2 = 0.999F, ADAM_EPS = 1e-8F, SGD_MOMENTUM = 0.9F;
static const float ADAFACTOR_EPS = 1e-30F, ADAFACTOR_CLIP = 1.0F, ADAFACTOR_DECAY = -0.8F;

/* ---- States: the arrays of each tensor, their layout in memory, and pieces of them ------------------------------- */

typedef enum state_array {
    STATE_M,       /* F32 [n]: AdamW, SGD's momentum; Adafactor: the row moment [rows], or [cols] of a vector */
    STATE_V,       /* F32 [n]; Adafactor: the column moment [cols] */
    STATE_M_CODES, /* [n] in blocks of STATE_BLOCK: 8-bit AdamW */
    STATE_V_CODES,
    STATE_M_ABSMAX, /* F32, one a block */
    STATE_V_ABSMAX,
    STATE_ARRAYS
} state_array;

enum { STATE_BLOCK = 256 };

/* The states of a tensor, or of a piece of it. */
typedef struct tensor_states {
    const qr_parameter *parameter;
    int64_t first;              /* element of the tensor */
    int64_t rows, cols;         /* of the piece; rows is 1 unless it is the whole tensor */
    bool in_8bit;               /* has the codes of 8-bit AdamW, whose small tensors have M and V */
    void *arrays[STATE_ARRAYS]; /* NULL: it has none */
} tensor_states;

static int64_t n_elements(const tensor_states *states) { return states->rows * states->cols; }

enum { SMALLEST_8BIT = 4096 };

/* The states of a whole tensor, without memory. */
static tensor_states whole_states(qrun_optimizer kind, const qr_parameter *parameter) {
    const int64_t n = parameter->rows * parameter->cols;
    return (tensor_states){.parameter = parameter,
                           .rows = parameter->rows,
                           .cols = parameter->cols,
                           .in_8bit = kind == QRUN_OPTIMIZER_ADAMW8BIT && n >= SMALLEST_8BIT};
}

/* Elements of an array of the states; 0: they have none. */
static int64_t array_elements(qrun_optimizer kind, const tensor_states *s, state_array array) {
    const int64_t n = s->rows * s->cols;
    if (s->in_8bit) {
        return array == STATE_M || array == STATE_V               ? 0
               : array == STATE_M_CODES || array == STATE_V_CODES ? n
                                                                  : qr_ceil_div(n, STATE_BLOCK);
    }
    if (array != STATE_M && array != STATE_V) { return 0; }
    if (kind == QRUN_OPTIMIZER_ADAFACTOR) { return array == STATE_M && s->rows > 1 ? s->rows : s->cols; }
    return kind == QRUN_OPTIMIZER_SGD && array == STATE_V ? 0 : n;
}

static size_t element_bytes(state_array array) {
    return array == STATE_M_CODES || array == STATE_V_CODES ? 1 : sizeof(float);
}

static size_t array_bytes(qrun_optimizer kind, const tensor_states *states, state_array array) {
    return (size_t)array_elements(kind, states, array) * element_bytes(array);
}

/* Takes the memory of every array from the layout (NULL while that counts). */
static void place_arrays(qrun_optimizer kind, tensor_states *states, qr_layout *layout) {
    for (int a = 0; a < STATE_ARRAYS; a++) {
        const int64_t n = array_elements(kind, states, (state_array)a);
        states->arrays[a] = n > 0 ? qr_layout_take(layout, n, element_bytes((state_array)a)) : NULL;
    }
}

/* Elements [first, first + n) of a whole tensor, n at most `most`. `most` and `first` are multiples of STATE_BLOCK.
 * Adafactor has states of whole rows and columns, so a tensor is one piece. */
static tensor_states piece_of(qrun_optimizer kind, const tensor_states *whole, int64_t first, int64_t most) {
    const int64_t n = qr_min(n_elements(whole) - first, most);
    if (kind == QRUN_OPTIMIZER_ADAFACTOR || n == n_elements(whole)) { return *whole; }
    tensor_states piece = *whole;
    piece.first = first;
    piece.rows = 1;
    piece.cols = n;
    for (int a = 0; a < STATE_ARRAYS; a++) {
        const bool by_block = a == STATE_M_ABSMAX || a == STATE_V_ABSMAX;
        const size_t offset = (size_t)(by_block ? first / STATE_BLOCK : first) * element_bytes((state_array)a);
        if (piece.arrays[a] != NULL) { piece.arrays[a] = (unsigned char *)piece.arrays[a] + offset; }
    }
    return piece;
}

struct qr_optimizer {
    qr_parameters *parameters;
    qr_optimizer_options options;
    tensor_states *tensors; /* [parameters->n] */
    void *states;           /* device memory, or host memory with offload */
    size_t states_bytes;
    void *device; /* the rest: stages and scratch */
    size_t device_bytes;
    void *stages[N_STAGES]; /* offload */
    float *update;          /* Adafactor's scratch, the largest tensor */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Lays out the states of all tensors in memory (NULL: only counts); tensors [p->n] may be NULL too. */
static size_t place_states(const qr_parameters *p, qrun_optimizer kind, void *memory, tensor_states *tensors) {
    qr_layout layout = {memory, 0};
    for (int64_t i = 0; i < p->n; i++) {
        tensor_states states = whole_states(kind, &p->list[i]);
        place_arrays(kind, &states, &layout);
        if (tensors != NULL) { tensors[i] = states; }
    }
    return layout.offset;
}

static int64_t stage_elements(const qr_optimizer_options *options) {
    return options->stage_elements > 0 ? options->stage_elements : DEFAULT_STAGE_ELEMENTS;
}

/* Bytes that the largest piece of any tensor takes. */
static size_t stage_bytes(const qr_parameters *p, const qr_optimizer_options *options) {
    size_t most = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const tensor_states whole = whole_states(options->kind, &p->list[i]);
        tensor_states piece = piece_of(options->kind, &whole, 0, stage_elements(options));
        qr_layout layout = {NULL, 0};
        place_arrays(options->kind, &piece, &layout);
        most = layout.offset > most ? layout.offset : most;
    }
    return most;
}

/* Stages and scratch. */
static size_t place_device(const qr_parameters *p, const qr_optimizer_options *options, void *memory,
                           qr_optimizer *optimizer) {
    qr_layout layout = {memory, 0};
    const size_t n_bytes = options->offload ? stage_bytes(p, options) : 0;
    int64_t largest = 0;
    for (int64_t i = 0; i < p->n; i++) { largest = qr_max(largest, p->list[i].rows * p->list[i].cols); }
    const int64_t scratch = options->kind == QRUN_OPTIMIZER_ADAFACTOR ? largest : 0;
    for (int i = 0; i < N_STAGES; i++) {
        void *stage = qr_layout_take(&layout, (int64_t)n_bytes, 1);
        if (optimizer != NULL) { optimizer->stages[i] = stage; }
    }
    float *update = qr_layout_take(&layout, scratch, sizeof(float));
    if (optimizer != NULL) { optimizer->update = update; }
    return layout.offset;
}

size_t qr_optimizer_bytes(const qr_parameters *parameters, const qr_optimizer_options *options) {
    const size_t states = options->offload ? 0 : place_states(parameters, options->kind, NULL, NULL);
    return states + place_device(parameters, options, NULL, NULL);
}

size_t qr_optimizer_host_bytes(const qr_parameters *parameters, const qr_optimizer_options *options) {
    return options->offload ? place_states(parameters, options->kind, NULL, NULL) : 0;
}

static qr_memory_kind memory_kind(const qr_optimizer_options *options) {
    return options->offload ? QR_MEMORY_HOST : QR_MEMORY_DEVICE;
}

static qrun_status make_memory(qr_optimizer *o, qr_error *err) {
    qr_backend *backend = o->parameters->backend;
    const size_t states_bytes = place_states(o->parameters, o->options.kind, NULL, NULL);
    const size_t device_bytes = place_device(o->parameters, &o->options, NULL, NULL);
    QR_RETURN_IF_ERROR(backend->memory_create(backend, memory_kind(&o->options), states_bytes, &o->states, err));
    o->states_bytes = states_bytes;
    if (device_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, device_bytes, &o->device, err));
        o->device_bytes = device_bytes;
    }
    (void)place_states(o->parameters, o->options.kind, o->states, o->tensors);
    (void)place_device(o->parameters, &o->options, o->device, o);
    return QRUN_OK;
}

qrun_status qr_optimizer_create(qr_parameters *parameters, const qr_optimizer_options *options,
                                qr_optimizer **optimizer, qr_error *err) {
    *optimizer = NULL;
    qr_optimizer *made = qr_alloc_zeroed(sizeof *made);
    qrun_status status;
    if (made == NULL) { return qr_fail_memory(err, "the optimiser", sizeof *made); }
    made->parameters = parameters;
    made->options = *options;
    made->tensors = qr_alloc_array((size_t)parameters->n, sizeof *made->tensors);
    if (made->tensors == NULL) {
        QR_TRY(qr_fail_memory(err, "the optimiser", (size_t)parameters->n * sizeof *made->tensors));
    }
    QR_TRY(make_memory(made, err));
    *optimizer = made;
    made = NULL;
out:
    qr_optimizer_destroy(made);
    return status;
}

void qr_optimizer_destroy(qr_optimizer *optimizer) {
    if (optimizer == NULL) { return; }
    qr_backend *backend = optimizer->parameters->backend;
    backend->memory_destroy(backend, memory_kind(&optimizer->options), optimizer->states, optimizer->states_bytes);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, optimizer->device, optimizer->device_bytes);
    qr_free(optimizer->tensors);
    qr_free(optimizer);
}

size_t qr_optimizer_states_bytes(const qr_optimizer *optimizer) { return optimizer->states_bytes; }

/* Between a copy in host memory and the states; those in host memory may still be in transfer. */
static qrun_status copy_states(const qr_optimizer *optimizer, void *to, const void *from, size_t n_bytes, bool writes,
                               qr_error *err) {
    qr_backend *backend = optimizer->parameters->backend;
    if (!optimizer->options.offload) {
        return writes ? backend->copy_in(backend, to, from, n_bytes, err)
                      : backend->copy_out(backend, to, from, n_bytes, err);
    }
    QR_RETURN_IF_ERROR(backend->sync(backend, err));
    memcpy(to, from, n_bytes);
    return QRUN_OK;
}

qrun_status qr_optimizer_states_read(const qr_optimizer *optimizer, size_t offset, size_t n_bytes, void *host,
                                     qr_error *err) {
    return copy_states(optimizer, host, (const unsigned char *)optimizer->states + offset, n_bytes, false, err);
}

qrun_status qr_optimizer_states_write(qr_optimizer *optimizer, size_t offset, size_t n_bytes, const void *host,
                                      qr_error *err) {
    return copy_states(optimizer, (unsigned char *)optimizer->states + offset, host, n_bytes, true, err);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* As in the Hugging Face Trainer, everything decays but biases, dt_bias among them, and the weights of norms. */
static float decay_of(const qr_optimizer_options *options, const qr_parameter *parameter) {
    const bool is_norm = parameter->kind == QR_PARAMETER_NORM && parameter->role != QR_ROLE_DELTA_CONV &&
                         parameter->role != QR_ROLE_DELTA_A_LOG;
    const bool exempt = is_norm || parameter->kind == QR_PARAMETER_BIAS;
    const bool decays = options->decay_all || !exempt;
    return decays ? options->weight_decay : 0.0F;
}

/* LoRA+ as PEFT's create_loraplus_optimizer groups it: B, and every vector with it. */
static float rate_of(const qr_optimizer_options *options, const qr_parameter *parameter, float learning_rate) {
    const bool is_slow = parameter->kind == QR_PARAMETER_LORA_A || parameter->kind == QR_PARAMETER_MATRIX;
    return is_slow || options->lr_ratio_b <= 0 ? learning_rate : learning_rate * options->lr_ratio_b;
}

/* This step's numbers. */
typedef struct step_numbers {
    int64_t step;
    float lr, grad_scale;
} step_numbers;

/* Updates a piece of a tensor, whose states are where they are now. */
static qrun_status step_piece(qr_optimizer *o, const tensor_states *piece, const step_numbers *s,
                              qr_workspace workspace, qr_error *err) {
    const qr_parameters *parameters = o->parameters;
    const qr_parameter *parameter = piece->parameter;
    const float lr = rate_of(&o->options, parameter, s->lr), weight_decay = decay_of(&o->options, parameter);
    const int64_t n = piece->rows * piece->cols;
    float *m = piece->arrays[STATE_M], *v = piece->arrays[STATE_V];
    float *p = parameters->values + parameter->offset + piece->first;
    const float *g = parameters->gradients + parameter->offset + piece->first;
#define COMMON .p = p, .g = g, .step = s->step, .grad_scale = s->grad_scale, .lr = lr, .weight_decay = weight_decay
#define ADAMW COMMON, .n = n, .beta1 = BETA1, .beta2 = BETA2, .eps = ADAM_EPS
    if (piece->in_8bit) {
        const qr_adamw8bit_args args = {ADAMW, .m = piece->arrays[STATE_M_CODES], .v = piece->arrays[STATE_V_CODES],
                                        .m_absmax = piece->arrays[STATE_M_ABSMAX],
                                        .v_absmax = piece->arrays[STATE_V_ABSMAX]};
        return qr_adamw8bit(parameters->backend, &args, workspace, err);
    }
    if (o->options.kind == QRUN_OPTIMIZER_ADAFACTOR) {
        const qr_adafactor_args args = {COMMON,
                                        .row_moment = m,
                                        .col_moment = v,
                                        .update = o->update,
                                        .rows = piece->rows,
                                        .cols = piece->cols,
                                        .eps1 = ADAFACTOR_EPS,
                                        .clip_threshold = ADAFACTOR_CLIP,
                                        .decay_rate = ADAFACTOR_DECAY};
        return qr_adafactor(parameters->backend, &args, workspace, err);
    }
    if (o->options.kind == QRUN_OPTIMIZER_SGD) {
        const qr_sgd_args args = {COMMON, .m = m, .n = n, .momentum = SGD_MOMENTUM};
        return qr_sgd(parameters->backend, &args, workspace, err);
    }
    const qr_adamw_args args = {ADAMW, .m = m, .v = v, .of_8bit = o->options.kind == QRUN_OPTIMIZER_ADAMW8BIT};
    return qr_adamw(parameters->backend, &args, workspace, err);
#undef ADAMW
#undef COMMON
}

/* The piece after `last` (NULL: the first of all), in host memory; false where there is none. */
static bool next_piece(const qr_optimizer *o, const tensor_states *last, tensor_states *next) {
    int64_t i = last != NULL ? last->parameter - o->parameters->list : 0;
    int64_t first = last != NULL ? last->first + n_elements(last) : 0;
    if (i < o->parameters->n && first == n_elements(&o->tensors[i])) { i++, first = 0; }
    if (i == o->parameters->n) { return false; }
    *next = piece_of(o->options.kind, &o->tensors[i], first, stage_elements(&o->options));
    return true;
}

/* Begins the transfer of a piece's states between host memory and its stage; *ticket is its end. */
static qrun_status transfer_states(qr_optimizer *o, const tensor_states *held, const tensor_states *staged,
                                   bool to_stage, uint64_t *ticket, qr_error *err) {
    qr_backend *backend = o->parameters->backend;
    for (int a = 0; a < STATE_ARRAYS; a++) {
        const size_t n_bytes = array_bytes(o->options.kind, held, (state_array)a);
        if (n_bytes == 0) { continue; }
        QR_RETURN_IF_ERROR(
            to_stage ? backend->transfer_in(backend, staged->arrays[a], held->arrays[a], n_bytes, ticket, err)
                     : backend->transfer_out(backend, held->arrays[a], staged->arrays[a], n_bytes, ticket, err));
    }
    return QRUN_OK;
}

static qrun_status stage_in(qr_optimizer *o, const tensor_states *held, void *stage, tensor_states *staged,
                            uint64_t *ticket, qr_error *err) {
    qr_layout layout = {stage, 0};
    *staged = *held;
    place_arrays(o->options.kind, staged, &layout);
    return transfer_states(o, held, staged, true, ticket, err);
}

/* The next piece is transferred while one is updated. It uses the stage of the piece before, whose states are sent back
 * first: transfers keep their order. */
static qrun_status step_offloaded(qr_optimizer *o, const step_numbers *numbers, qr_workspace workspace, qr_error *err) {
    qr_backend *backend = o->parameters->backend;
    tensor_states held[N_STAGES], staged[N_STAGES];
    uint64_t arrival[N_STAGES] = {0};
    int at = 0;
    bool has_next = next_piece(o, NULL, &held[0]);
    if (has_next) { QR_RETURN_IF_ERROR(stage_in(o, &held[0], o->stages[0], &staged[0], &arrival[0], err)); }
    while (has_next) {
        const int next = (at + 1) % N_STAGES;
        has_next = next_piece(o, &held[at], &held[next]);
        if (has_next) {
            QR_RETURN_IF_ERROR(stage_in(o, &held[next], o->stages[next], &staged[next], &arrival[next], err));
        }
        QR_RETURN_IF_ERROR(backend->transfer_wait(backend, arrival[at], err));
        QR_RETURN_IF_ERROR(step_piece(o, &staged[at], numbers, workspace, err));
        QR_RETURN_IF_ERROR(transfer_states(o, &held[at], &staged[at], false, &arrival[at], err));
        at = next;
    }
    return QRUN_OK;
}

qrun_status qr_optimizer_step(qr_optimizer *o, int64_t step, float learning_rate, float grad_scale,
                              qr_workspace workspace, qr_error *err) {
    const step_numbers numbers = {.step = step, .lr = learning_rate, .grad_scale = grad_scale};
    if (o->options.offload) { return step_offloaded(o, &numbers, workspace, err); }
    for (int64_t i = 0; i < o->parameters->n; i++) {
        QR_RETURN_IF_ERROR(step_piece(o, &o->tensors[i], &numbers, workspace, err));
    }
    return QRUN_OK;
}

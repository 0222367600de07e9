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

enum { STATE_BLOCK = QR_SHARD_BLOCK };

/* The states of a tensor, or of a piece of it. */
typedef struct tensor_states {
    const qr_parameter *parameter;
    int64_t first;              /* element of the tensor */
    int64_t place;              /* of `first` among the floats that this rank has; once memory is made */
    int64_t rows, cols;         /* of the piece; rows is 1 unless it is the whole tensor, 0 of an empty one */
    bool in_8bit;               /* has the codes of 8-bit AdamW, whose small tensors and tables have M and V */
    void *arrays[STATE_ARRAYS]; /* NULL: it has none */
} tensor_states;

static int64_t n_elements(const tensor_states *states) { return states->rows * states->cols; }

enum { SMALLEST_8BIT = 4096 };

/* A row of a table has gradients only where its token occurs. In 8 bits its small second moments would become zero, and
 * its next update tens of times the learning rate: so the HF Trainer too keeps 32 bits for every nn.Embedding. */
static bool is_table(const qr_parameter *parameter) {
    return parameter->kind == QR_PARAMETER_MATRIX &&
           (parameter->role == QR_ROLE_EMBEDDING || parameter->role == QR_ROLE_POSITION_EMBEDDING ||
            parameter->role == QR_ROLE_INPUTS_EMBEDDING);
}

/* The states of a whole tensor, without memory. */
static tensor_states whole_states(qrun_optimizer kind, const qr_parameter *parameter) {
    const int64_t n = parameter->rows * parameter->cols;
    return (tensor_states){.parameter = parameter,
                           .rows = parameter->rows,
                           .cols = parameter->cols,
                           .in_8bit = kind == QRUN_OPTIMIZER_ADAMW8BIT && n >= SMALLEST_8BIT && !is_table(parameter)};
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

/* Bytes before element `first` of a tensor in one of its arrays. */
static size_t array_offset(state_array array, int64_t first) {
    const bool by_block = array == STATE_M_ABSMAX || array == STATE_V_ABSMAX;
    return (size_t)(by_block ? first / STATE_BLOCK : first) * element_bytes(array);
}

/* n elements from `first` on, of a tensor or of a part of it. `first` is a multiple of STATE_BLOCK, in the tensor too.
 * Adafactor has states of whole rows and columns, so a tensor is one piece. */
static tensor_states part_of(const tensor_states *states, int64_t first, int64_t n) {
    if (n == n_elements(states)) { return *states; }
    tensor_states part = *states;
    part.first = states->first + first;
    part.place = states->place + first;
    part.rows = n > 0 ? 1 : 0;
    part.cols = n;
    for (int a = 0; a < STATE_ARRAYS; a++) {
        if (part.arrays[a] == NULL) { continue; }
        part.arrays[a] = (unsigned char *)part.arrays[a] + array_offset((state_array)a, first);
    }
    return part;
}

/* The same with at most `most` elements, a multiple of STATE_BLOCK. */
static tensor_states piece_of(qrun_optimizer kind, const tensor_states *states, int64_t first, int64_t most) {
    const int64_t n = kind == QRUN_OPTIMIZER_ADAFACTOR ? n_elements(states) : n_elements(states) - first;
    return part_of(states, first, kind == QRUN_OPTIMIZER_ADAFACTOR ? n : qr_min(n, most));
}

/* The states that a rank has of a tensor, without memory. */
static tensor_states states_of_rank(const qr_optimizer_options *options, const qr_parameter *parameter, int32_t rank) {
    const tensor_states whole = whole_states(options->kind, parameter);
    const qr_shards *shards = options->shards;
    int64_t first;
    if (shards == NULL) { return whole; }
    const int64_t n = qr_shards_common(shards, rank, parameter->offset, parameter->offset + n_elements(&whole), &first);
    return part_of(&whole, n > 0 ? first - parameter->offset : 0, n);
}

/* Where they begin in what this rank has. */
static int64_t place_of(const qr_optimizer_options *options, const tensor_states *own) {
    const int64_t position = own->parameter->offset + own->first;
    const bool is_all = options->shards == NULL || n_elements(own) == 0;
    return is_all ? position : qr_shards_place(options->shards, options->shards->rank, position);
}

/* Of this rank. */
static tensor_states own_states(const qr_optimizer_options *options, const qr_parameter *parameter) {
    return states_of_rank(options, parameter, options->shards != NULL ? options->shards->rank : 0);
}

struct qr_optimizer {
    qr_parameters *parameters;
    qr_optimizer_options options;
    tensor_states *tensors; /* [parameters->n]: what this rank has of them */
    void *states;           /* device memory, or host memory with offload */
    size_t states_bytes;
    void *scratch; /* the rest: stages and Adafactor's scratch; where the values are */
    size_t scratch_bytes;
    void *stages[N_STAGES]; /* offload */
    float *update;          /* Adafactor's scratch, the largest tensor */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Lays out this rank's states of all tensors in memory (NULL: only counts); tensors [p->n] may be NULL too. */
static size_t place_states(const qr_parameters *p, const qr_optimizer_options *options, void *memory,
                           tensor_states *tensors) {
    qr_layout layout = {.base = memory};
    for (int64_t i = 0; i < p->n; i++) {
        tensor_states states = own_states(options, &p->list[i]);
        place_arrays(options->kind, &states, &layout);
        if (tensors == NULL) { continue; }
        tensors[i] = states;
        tensors[i].place = place_of(options, &states);
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
        const tensor_states own = own_states(options, &p->list[i]);
        tensor_states piece = piece_of(options->kind, &own, 0, stage_elements(options));
        qr_layout layout = {.base = NULL};
        place_arrays(options->kind, &piece, &layout);
        most = layout.offset > most ? layout.offset : most;
    }
    return most;
}

/* Stages and scratch. */
static size_t place_scratch(const qr_parameters *p, const qr_optimizer_options *options, void *memory,
                            qr_optimizer *optimizer) {
    qr_layout layout = {.base = memory};
    const size_t n_bytes = options->offload && p->processor == NULL ? stage_bytes(p, options) : 0;
    int64_t largest = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const tensor_states own = own_states(options, &p->list[i]);
        largest = qr_max(largest, n_elements(&own));
    }
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
    const size_t states = options->offload ? 0 : place_states(parameters, options, NULL, NULL);
    const bool on_host = parameters->processor != NULL;
    return states + (on_host ? 0 : place_scratch(parameters, options, NULL, NULL));
}

size_t qr_optimizer_host_bytes(const qr_parameters *parameters, const qr_optimizer_options *options) {
    const size_t states = options->offload ? place_states(parameters, options, NULL, NULL) : 0;
    const bool on_host = parameters->processor != NULL;
    return states + (on_host ? place_scratch(parameters, options, NULL, NULL) : 0);
}

static qr_memory_kind memory_kind(const qr_optimizer_options *options) {
    return options->offload ? QR_MEMORY_HOST : QR_MEMORY_DEVICE;
}

static qrun_status make_memory(qr_optimizer *o, qr_error *err) {
    qr_backend *backend = o->parameters->backend;
    const size_t states_bytes = place_states(o->parameters, &o->options, NULL, NULL);
    const size_t scratch_bytes = place_scratch(o->parameters, &o->options, NULL, NULL);
    if (states_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, memory_kind(&o->options), states_bytes, &o->states, err));
        o->states_bytes = states_bytes;
    }
    if (scratch_bytes > 0) {
        QR_RETURN_IF_ERROR(
            backend->memory_create(backend, qr_parameters_memory(o->parameters), scratch_bytes, &o->scratch, err));
        o->scratch_bytes = scratch_bytes;
    }
    (void)place_states(o->parameters, &o->options, o->states, o->tensors);
    (void)place_scratch(o->parameters, &o->options, o->scratch, o);
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
    backend->memory_destroy(backend, qr_parameters_memory(optimizer->parameters), optimizer->scratch,
                            optimizer->scratch_bytes);
    qr_free(optimizer->tensors);
    qr_free(optimizer);
}

const qr_shards *qr_optimizer_shards(const qr_optimizer *optimizer) { return optimizer->options.shards; }

/* ---- The states as bytes ----------------------------------------------------------------------------------------- */

size_t qr_optimizer_states_bytes(const qr_optimizer *optimizer) {
    qr_optimizer_options all = optimizer->options;
    all.shards = NULL;
    return place_states(optimizer->parameters, &all, NULL, NULL);
}

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

/* Bytes [offset, offset + n_bytes) of the states of all ranks, and what is done with a rank's among them. */
typedef struct states_walk {
    const qr_optimizer *optimizer;
    int32_t rank;
    size_t offset, n_bytes;
    qrun_status (*visit)(const struct states_walk *walk, size_t at, size_t n_bytes, void *held, qr_error *err);
    unsigned char *host;   /* of `offset` */
    unsigned char *packed; /* of the next part; moves on */
    size_t n_found;
} states_walk;

/* The part that the walk's range has of an array of n_bytes that begins at `at`. */
static qrun_status visit_array(states_walk *walk, size_t at, size_t n_bytes, unsigned char *held, qr_error *err) {
    const size_t begin = at > walk->offset ? at : walk->offset, range_end = walk->offset + walk->n_bytes;
    const size_t end = at + n_bytes < range_end ? at + n_bytes : range_end;
    if (begin >= end) { return QRUN_OK; }
    if (walk->visit != NULL) {
        QR_RETURN_IF_ERROR(walk->visit(walk, begin, end - begin, held != NULL ? held + (begin - at) : NULL, err));
    }
    if (walk->packed != NULL) { walk->packed += end - begin; }
    walk->n_found += end - begin;
    return QRUN_OK;
}

/* In the order of their places in the whole. */
static qrun_status walk_states(states_walk *walk, qr_error *err) {
    const qr_optimizer_options *options = &walk->optimizer->options;
    const qr_parameters *p = walk->optimizer->parameters;
    const bool own = options->shards == NULL || walk->rank == options->shards->rank;
    qr_layout layout = {.base = NULL};
    for (int64_t i = 0; i < p->n && layout.offset < walk->offset + walk->n_bytes; i++) {
        const tensor_states whole = whole_states(options->kind, &p->list[i]);
        const tensor_states held = own ? walk->optimizer->tensors[i] : states_of_rank(options, &p->list[i], walk->rank);
        for (int a = 0; a < STATE_ARRAYS; a++) {
            const state_array array = (state_array)a;
            const size_t at = layout.offset + array_offset(array, held.first);
            (void)qr_layout_take(&layout, array_elements(options->kind, &whole, array), element_bytes(array));
            QR_RETURN_IF_ERROR(visit_array(walk, at, array_bytes(options->kind, &held, array), held.arrays[a], err));
        }
    }
    return QRUN_OK;
}

static states_walk walk_own(const qr_optimizer *optimizer, size_t offset, size_t n_bytes) {
    const qr_shards *shards = optimizer->options.shards;
    return (states_walk){
        .optimizer = optimizer, .rank = shards != NULL ? shards->rank : 0, .offset = offset, .n_bytes = n_bytes};
}

static qrun_status visit_read(const states_walk *walk, size_t at, size_t n_bytes, void *held, qr_error *err) {
    return copy_states(walk->optimizer, walk->host + (at - walk->offset), held, n_bytes, false, err);
}

static qrun_status visit_write(const states_walk *walk, size_t at, size_t n_bytes, void *held, qr_error *err) {
    return copy_states(walk->optimizer, held, walk->host + (at - walk->offset), n_bytes, true, err);
}

static qrun_status visit_pack(const states_walk *walk, size_t at, size_t n_bytes, void *held, qr_error *err) {
    (void)at;
    return copy_states(walk->optimizer, walk->packed, held, n_bytes, false, err);
}

static qrun_status visit_unpack(const states_walk *walk, size_t at, size_t n_bytes, void *held, qr_error *err) {
    (void)held, (void)err;
    memcpy(walk->host + (at - walk->offset), walk->packed, n_bytes);
    return QRUN_OK;
}

qrun_status qr_optimizer_states_read(const qr_optimizer *optimizer, size_t offset, size_t n_bytes, void *host,
                                     qr_error *err) {
    states_walk walk = walk_own(optimizer, offset, n_bytes);
    walk.visit = visit_read;
    walk.host = host;
    memset(host, 0, n_bytes);
    return walk_states(&walk, err);
}

qrun_status qr_optimizer_states_write(qr_optimizer *optimizer, size_t offset, size_t n_bytes, const void *host,
                                      qr_error *err) {
    states_walk walk = walk_own(optimizer, offset, n_bytes);
    walk.visit = visit_write;
    walk.host = (unsigned char *)(uintptr_t)host; /* only read */
    return walk_states(&walk, err);
}

size_t qr_optimizer_states_count(const qr_optimizer *optimizer, int32_t rank, size_t offset, size_t n_bytes) {
    states_walk walk = walk_own(optimizer, offset, n_bytes);
    walk.rank = rank;
    (void)walk_states(&walk, NULL);
    return walk.n_found;
}

qrun_status qr_optimizer_states_pack(const qr_optimizer *optimizer, size_t offset, size_t n_bytes, void *packed,
                                     qr_error *err) {
    states_walk walk = walk_own(optimizer, offset, n_bytes);
    walk.visit = visit_pack;
    walk.packed = packed;
    return walk_states(&walk, err);
}

void qr_optimizer_states_unpack(const qr_optimizer *optimizer, int32_t rank, size_t offset, size_t n_bytes,
                                const void *packed, void *host) {
    states_walk walk = walk_own(optimizer, offset, n_bytes);
    walk.rank = rank;
    walk.visit = visit_unpack;
    walk.packed = (unsigned char *)(uintptr_t)packed; /* only read */
    walk.host = host;
    (void)walk_states(&walk, NULL);
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Vectors that decay: the Trainer exempts what is called a bias or a norm, which none of these is. */
static bool is_like_matrix(qr_tensor_role role) {
    switch (role) {
        case QR_ROLE_CONV:
        case QR_ROLE_RECURRENT_A_LOG:
        case QR_ROLE_SKIP:
        case QR_ROLE_SINKS:
        case QR_ROLE_STREAM_ROUTER:
        case QR_ROLE_STREAM_PREDICT:
        case QR_ROLE_STREAM_CORRECT:
        case QR_ROLE_STREAM_SCALE:
        case QR_ROLE_XIELU_ALPHA_P:
        case QR_ROLE_XIELU_ALPHA_N:
        case QR_ROLE_ROUTER_NORM: /* "router.scale" */
        case QR_ROLE_EXPERT_SCALE: return true;
        default: return false;
    }
}

/* As in the Hugging Face Trainer, everything decays but biases, dt_bias among them, and the weights of norms. */
static float decay_of(const qr_optimizer_options *options, const qr_parameter *parameter) {
    const bool is_norm = parameter->kind == QR_PARAMETER_NORM && !is_like_matrix(parameter->role);
    const bool exempt = is_norm || parameter->kind == QR_PARAMETER_BIAS;
    const bool decays = options->decay_all || !exempt;
    return decays ? options->weight_decay : 0.0F;
}

/* LoRA+ as PEFT's create_loraplus_optimizer groups it: B, and every vector with it. */
static float rate_of(const qr_optimizer_options *options, const qr_parameter *parameter, float learning_rate) {
    const bool is_slow = parameter->kind == QR_PARAMETER_LORA_A || parameter->kind == QR_PARAMETER_MATRIX;
    return is_slow || options->lr_ratio_b <= 0 ? learning_rate : learning_rate * options->lr_ratio_b;
}

static const float *gradient_of(const tensor_states *piece, const qr_optimizer_numbers *numbers) {
    const int64_t position = piece->parameter->offset + piece->first;
    return numbers->gradients + (numbers->of_all ? position : piece->place);
}

/* Updates a piece of a tensor, whose states are where they are now. */
static qrun_status step_piece(qr_optimizer *o, const tensor_states *piece, const qr_optimizer_numbers *s,
                              qr_workspace workspace, qr_error *err) {
    const qr_parameters *parameters = o->parameters;
    qr_backend *updater = qr_parameters_updater(parameters);
    const qr_parameter *parameter = piece->parameter;
    const float lr = rate_of(&o->options, parameter, s->learning_rate), weight_decay = decay_of(&o->options, parameter);
    const int64_t n = piece->rows * piece->cols;
    float *m = piece->arrays[STATE_M], *v = piece->arrays[STATE_V];
    float *p = parameters->values + (parameters->shards != NULL ? piece->place : parameter->offset + piece->first);
    const float *g = gradient_of(piece, s);
#define COMMON .p = p, .g = g, .step = s->step, .grad_scale = s->grad_scale, .lr = lr, .weight_decay = weight_decay
#define ADAMW COMMON, .n = n, .beta1 = BETA1, .beta2 = BETA2, .eps = ADAM_EPS
    if (piece->in_8bit) {
        const qr_adamw8bit_args args = {ADAMW, .m = piece->arrays[STATE_M_CODES], .v = piece->arrays[STATE_V_CODES],
                                        .m_absmax = piece->arrays[STATE_M_ABSMAX],
                                        .v_absmax = piece->arrays[STATE_V_ABSMAX]};
        return qr_adamw8bit(updater, &args, workspace, err);
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
        return qr_adafactor(updater, &args, workspace, err);
    }
    if (o->options.kind == QRUN_OPTIMIZER_SGD) {
        const qr_sgd_args args = {COMMON, .m = m, .n = n, .momentum = SGD_MOMENTUM};
        return qr_sgd(updater, &args, workspace, err);
    }
    const qr_adamw_args args = {ADAMW, .m = m, .v = v, .of_8bit = o->options.kind == QRUN_OPTIMIZER_ADAMW8BIT};
    return qr_adamw(updater, &args, workspace, err);
#undef ADAMW
#undef COMMON
}

/* The piece after `last` (NULL: the first of all), in host memory; false where there is none. */
static bool next_piece(const qr_optimizer *o, const tensor_states *last, tensor_states *next) {
    int64_t i = last != NULL ? last->parameter - o->parameters->list : 0;
    int64_t first = last != NULL ? last->first - o->tensors[i].first + n_elements(last) : 0; /* of what is held */
    while (i < o->parameters->n && first == n_elements(&o->tensors[i])) { i++, first = 0; }
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
    qr_layout layout = {.base = stage};
    *staged = *held;
    place_arrays(o->options.kind, staged, &layout);
    return transfer_states(o, held, staged, true, ticket, err);
}

/* The next piece is transferred while one is updated. It uses the stage of the piece before, whose states are sent back
 * first: transfers keep their order. */
static qrun_status step_offloaded(qr_optimizer *o, const qr_optimizer_numbers *numbers, qr_workspace workspace,
                                  qr_error *err) {
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

static qrun_status step_tensor(qr_optimizer *o, int64_t i, const qr_optimizer_numbers *numbers, qr_workspace workspace,
                               qr_error *err) {
    return n_elements(&o->tensors[i]) > 0 ? step_piece(o, &o->tensors[i], numbers, workspace, err) : QRUN_OK;
}

qrun_status qr_optimizer_step(qr_optimizer *o, const qr_optimizer_numbers *numbers, qr_workspace workspace,
                              qr_error *err) {
    const bool staged = o->options.offload && o->parameters->processor == NULL;
    if (staged) { return step_offloaded(o, numbers, workspace, err); }
    for (int64_t i = 0; i < o->parameters->n; i++) { QR_RETURN_IF_ERROR(step_tensor(o, i, numbers, workspace, err)); }
    return QRUN_OK;
}

qrun_status qr_optimizer_step_layer(qr_optimizer *o, const qr_optimizer_numbers *numbers, int64_t l,
                                    qr_workspace workspace, qr_error *err) {
    for (int64_t i = 0; i < o->parameters->n; i++) {
        if (qr_parameter_layer(&o->parameters->list[i]) != l) { continue; }
        QR_RETURN_IF_ERROR(step_tensor(o, i, numbers, workspace, err));
    }
    return QRUN_OK;
}

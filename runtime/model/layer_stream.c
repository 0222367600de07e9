#include "runtime/model/layer_stream.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"
#include "runtime/engine/device_memory.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/split.h"
#include "runtime/model/weight_writer.h"

enum { N_STAGES = 2, NO_LAYER = -1 };

typedef struct stage {
    int64_t layer; /* whose matrices it holds, or is about to; NO_LAYER: nobody's */
    uint64_t ticket;
    bool on_its_way;
} stage;

/* A matrix in the folder, and its place in a stage. */
typedef struct mapped_matrix {
    qr_weight weight;
    qr_stored_weight stored; /* of the whole matrix */
    qr_row_share share;      /* what this rank has of its rows, where it is split */
} mapped_matrix;

/* What the stages hold, and of shards which layer is on its way from the ranks. */
typedef struct progress {
    stage stages[N_STAGES];
    int64_t coming;         /* NO_LAYER: none */
    qr_layer_source source; /* of a trainable model in shards; find_part NULL: there is none */
    qr_gathered gathered;
} progress;

struct qr_layer_stream {
    bool from_map;
    size_t host_bytes;
    unsigned char *host; /* the layers one after the other, or this rank's parts of them */
    bool sharded;
    bool between_devices;  /* sharded: "host" and "incoming" are device memory, and parts go from device to device */
    qr_collectives *ranks; /* sharded; NULL: a plan alone */
    int32_t rank, n_ranks;
    unsigned char *incoming; /* sharded: host, [incoming_bytes], of one layer */
    size_t incoming_bytes;
    qr_safetensors *source;
    mapped_matrix *matrices; /* of the layers one after the other */
    int64_t *first_matrix;   /* [L + 1] */
    void *scales;            /* room for those of one matrix, or of this rank's rows of it */
    size_t scales_bytes;
    progress now, planned; /* planned: of a pass that is planned */
};

static void empty(progress *p) {
    for (int i = 0; i < N_STAGES; i++) { p->stages[i] = (stage){.layer = NO_LAYER}; }
    p->coming = NO_LAYER;
}

static progress *progress_of(const qrun_model *model, const qr_backend *backend) {
    return backend != model->context->backend ? &model->stream->planned : &model->stream->now;
}

bool qr_layer_stream_has(const qrun_model *model, const qr_module *module) {
    return model->stream != NULL && module->matrix != NULL && module->role >= QR_ROLE_Q &&
           !qr_role_is_of_model(module->role);
}

size_t qr_layer_stream_host_bytes(const qrun_model *model) {
    return model->stream != NULL && !model->stream->between_devices ? model->stream->host_bytes : 0;
}

size_t qr_layer_stream_device_bytes(const qrun_model *model) {
    return model->stream != NULL && model->stream->between_devices ? model->stream->host_bytes : 0;
}

size_t qr_layer_stream_bytes(const qrun_model *model) {
    size_t n_bytes = 0;
    for (int64_t l = 0; l < model->shape.n_layers; l++) { n_bytes += model->layers[l].staged_bytes; }
    return n_bytes;
}

/* ---- Whether, and from where ------------------------------------------------------------------------------------- */

typedef struct stored_check {
    const qrun_model *model;
    const qr_safetensors *source;
    const char *other; /* a matrix that is stored in another format than it is held in; NULL: there is none */
} stored_check;

/* Whether the rows of a matrix lie one after the other as they are. */
static bool is_as_held(const qr_stored_weight *stored) {
    return stored->packed.kind == QR_PACKING_NONE && stored->wide_rows == 0 && stored->first_row == 0 &&
           stored->row_step <= 1 && qr_row_order_is_usual(&stored->codes->rows) &&
           qr_row_order_is_usual(&stored->codes->columns) && !qr_dtype_is_blocks(stored->codes->dtype);
}

static qrun_status check_stored(void *arg, const qr_module *module, qr_error *err) {
    stored_check *check = arg;
    qr_stored_weight stored;
    if (!qr_layer_stream_has(check->model, module) || check->other != NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_module_find_stored(check->model, check->source, module, &stored, err));
    const qr_weight_format format =
        qr_module_is_part(module) ? module->share->whole_format : module->matrix->desc.format;
    const bool same =
        stored.desc.format == format && is_as_held(&stored) && !qr_model_is_transposed(check->model, module->role);
    if (!same) { check->other = stored.codes->name; }
    return QRUN_OK;
}

static bool is_separate(const qrun_model *model) {
    return model->context->backend->memory_info != NULL || model->context->plans_for != NULL;
}

/* Weights of a shape alone, for measuring, have no folder to stay in. */
static qrun_status choose_place(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    qr_layer_stream *stream = model->stream;
    stream->host_bytes = qr_layer_stream_bytes(model);
    if (is_separate(model) || source == NULL || model->trainable) { return QRUN_OK; }
    stored_check check = {.model = model, .source = source};
    QR_RETURN_IF_ERROR(qr_model_each_module(model, check_stored, &check, err));
    if (check.other != NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "`offload_parameters` reads layers from the folder as they are held, and %s: %s is stored "
                       "otherwise; quantise the folder first",
                       model->folder, check.other);
    }
    stream->from_map = true;
    stream->host_bytes = 0;
    return QRUN_OK;
}

static qrun_status offload(qrun_model *model, const qr_safetensors *source, qr_error *err) {
    model->stream = qr_alloc_zeroed(sizeof *model->stream);
    if (model->stream == NULL) { return qr_fail_memory(err, "the stages of layers", sizeof *model->stream); }
    empty(&model->stream->now);
    empty(&model->stream->planned);
    model->n_stages = N_STAGES;
    model->weight_bytes = qr_model_place_weights(model, NULL);
    return choose_place(model, source, err);
}

/* A folder whose layers cannot be streamed is left resident, and refused by who looks for room for it. */
static qrun_status offload_if_needed(qrun_model *model, const qrun_model_params *params, const qr_safetensors *source,
                                     qr_error *err) {
    qr_device_memory memory;
    QR_RETURN_IF_ERROR(qr_device_memory_now(model->context, &memory, err));
    qr_split_memory(model, &memory);
    const int64_t limit = qr_device_memory_for_weights(&memory, params->memory_bytes);
    if ((int64_t)model->weight_bytes <= limit || offload(model, source, NULL) == QRUN_OK) { return QRUN_OK; }
    qr_layer_stream_destroy(model);
    model->weight_bytes = qr_model_place_weights(model, NULL);
    return QRUN_OK;
}

qrun_status qr_layer_stream_describe(qrun_model *model, const qrun_model_params *params, const qr_safetensors *source,
                                     qr_error *err) {
    if (params->shard_parameters && params->offload_parameters != QRUN_OFFLOAD_NONE) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`shard_parameters` holds no layer on the device, so `offload_parameters` has nothing to do; "
                       "leave one out");
    }
    if (params->shard_parameters && model->context->ranks != NULL) {
        return qr_layer_stream_shard(model, model->context->ranks, model->context->ranks->n_ranks, err);
    }
    if (params->offload_parameters == QRUN_OFFLOAD_NONE) { return QRUN_OK; }
    return params->offload_parameters == QRUN_OFFLOAD_AUTO ? offload_if_needed(model, params, source, err)
                                                           : offload(model, source, err);
}

/* ---- Shards ------------------------------------------------------------------------------------------------------ */

enum { PART_ALIGNMENT = 64 };

/* Where a rank's part of a layer begins. */
static size_t part_begin(const qrun_model *model, const progress *p, int64_t l, int32_t rank) {
    const qr_layer_stream *stream = model->stream;
    if (p->source.find_part != NULL) { return p->source.find_part(p->source.user, l, rank); }
    const size_t n_blocks = model->layers[l].staged_bytes / PART_ALIGNMENT, n = (size_t)stream->n_ranks;
    if (rank == stream->n_ranks) { return model->layers[l].staged_bytes; }
    return (n_blocks / n * (size_t)rank + n_blocks % n * (size_t)rank / n) * PART_ALIGNMENT;
}

static size_t part_bytes(const qrun_model *model, const progress *p, int64_t l, int32_t rank) {
    return part_begin(model, p, l, rank + 1) - part_begin(model, p, l, rank);
}

/* What is gathered of a layer of a trainable model, and rows of the tables: at most. */
typedef struct room_search {
    const qrun_model *model;
    int64_t layer;
    size_t layer_bytes, most;
} room_search;

static qrun_status add_room(void *arg, const qr_module *module, qr_error *err) {
    room_search *search = arg;
    const size_t vector_bytes = (size_t)qr_round_up(module->n, PART_ALIGNMENT) * sizeof(float);
    (void)err;
    if (module->matrix != NULL && qr_role_is_of_model(module->role)) {
        const size_t n_bytes = (size_t)module->matrix->desc.cols * QR_WEIGHT_ROW_GROUP * sizeof(float);
        search->most = n_bytes > search->most ? n_bytes : search->most;
    }
    if (module->matrix == NULL && qr_role_is_of_model(module->role)) {
        search->most = vector_bytes > search->most ? vector_bytes : search->most;
    }
    if (qr_role_is_of_model(module->role) || module->layer != search->layer) { return QRUN_OK; }
    search->layer_bytes += (module->weight != NULL ? vector_bytes : 0) + (module->bias != NULL ? vector_bytes : 0);
    return QRUN_OK;
}

static size_t find_room(qrun_model *model) {
    room_search search = {.model = model, .most = model->stage_bytes};
    for (search.layer = 0; search.layer < model->shape.n_layers && model->trainable; search.layer++) {
        search.layer_bytes = model->layers[search.layer].staged_bytes;
        (void)qr_model_each_module(model, add_room, &search, NULL);
        search.most = search.layer_bytes > search.most ? search.layer_bytes : search.most;
    }
    return search.most;
}

size_t qr_layer_stream_kept_bytes(const qrun_model *model, int64_t l) {
    if (!model->stream->sharded) { return model->layers[l].staged_bytes; }
    return model->trainable ? 0 : part_bytes(model, &model->stream->now, l, model->stream->rank);
}

bool qr_layer_stream_is_sharded(const qrun_model *model) { return model->stream != NULL && model->stream->sharded; }

void qr_layer_stream_set_source(qrun_model *model, const qr_backend *backend, const qr_layer_source *source) {
    if (!qr_layer_stream_is_sharded(model)) { return; }
    progress_of(model, backend)->source = source != NULL ? *source : (qr_layer_source){0};
}

unsigned char *qr_layer_stream_room(const qrun_model *model, size_t *n_bytes) {
    *n_bytes = model->stream->incoming_bytes;
    return model->stream->incoming;
}

void qr_layer_stream_plan_rank(qrun_model *model, int32_t rank) {
    qr_layer_stream *stream = model->stream;
    if (!qr_layer_stream_is_sharded(model) || stream->host != NULL) { return; }
    stream->rank = rank;
    stream->incoming_bytes = find_room(model);
    stream->host_bytes = stream->incoming_bytes;
    for (int64_t l = 0; l < model->shape.n_layers; l++) { stream->host_bytes += qr_layer_stream_kept_bytes(model, l); }
}

qrun_status qr_layer_stream_shard(qrun_model *model, qr_collectives *ranks, int32_t n_ranks, qr_error *err) {
    qr_layer_stream *stream = model->stream;
    if (stream == NULL) {
        model->stream = stream = qr_alloc_zeroed(sizeof *stream);
        if (stream == NULL) { return qr_fail_memory(err, "the stages of layers", sizeof *stream); }
        empty(&stream->now);
        empty(&stream->planned);
    }
    stream->sharded = true;
    /* Where all is trained, parts are made in host memory: their rounding is the CPU's. */
    stream->between_devices =
        !model->trainable && n_ranks > 1 && qr_collectives_are_linked(model->context->ranks, model->context->backend);
    stream->ranks = ranks;
    stream->rank = ranks != NULL ? ranks->rank : 0;
    stream->n_ranks = n_ranks;
    model->n_stages = 1;
    model->weight_bytes = qr_model_place_weights(model, NULL);
    qr_layer_stream_plan_rank(model, stream->rank);
    return QRUN_OK;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

typedef struct matrix_list {
    qrun_model *model;
    int64_t *next; /* [L]: where the layer's next matrix goes */
} matrix_list;

static qrun_status count_matrix(void *arg, const qr_module *module, qr_error *err) {
    const matrix_list *list = arg;
    (void)err;
    if (qr_layer_stream_has(list->model, module)) { list->model->stream->first_matrix[module->layer + 1]++; }
    return QRUN_OK;
}

static qrun_status add_matrix(void *arg, const qr_module *module, qr_error *err) {
    const matrix_list *list = arg;
    qr_layer_stream *stream = list->model->stream;
    if (!qr_layer_stream_has(list->model, module)) { return QRUN_OK; }
    mapped_matrix *matrix = &stream->matrices[list->next[module->layer]++];
    QR_RETURN_IF_ERROR(qr_module_find_stored(list->model, stream->source, module, &matrix->stored, err));
    module->matrix->nested_offset = matrix->stored.nested_offset;
    matrix->weight = *module->matrix;
    const bool is_part = qr_module_is_part(module);
    if (is_part) { matrix->share = *module->share; }
    const size_t n_bytes = is_part ? qr_weight_share_room(&matrix->weight.desc, &matrix->stored.desc, &matrix->share)
                                   : qr_stored_scales_bytes(&matrix->stored);
    if (n_bytes > stream->scales_bytes) { stream->scales_bytes = n_bytes; }
    return QRUN_OK;
}

static qrun_status list_matrices(qrun_model *model, qr_error *err) {
    qr_layer_stream *stream = model->stream;
    const int64_t n_layers = model->shape.n_layers;
    qrun_status status = QRUN_OK;
    matrix_list list = {.model = model, .next = qr_alloc_array_zeroed((size_t)n_layers, sizeof(int64_t))};
    stream->first_matrix = qr_alloc_array_zeroed((size_t)n_layers + 1, sizeof(int64_t));
    if (list.next == NULL || stream->first_matrix == NULL) { QR_TRY(qr_fail_memory(err, "the list of matrices", 0)); }
    QR_TRY(qr_model_each_module(model, count_matrix, &list, err));
    for (int64_t l = 0; l < n_layers; l++) {
        list.next[l] = stream->first_matrix[l];
        stream->first_matrix[l + 1] += stream->first_matrix[l];
    }
    stream->matrices = qr_alloc_array_zeroed((size_t)stream->first_matrix[n_layers], sizeof *stream->matrices);
    if (stream->matrices == NULL) { QR_TRY(qr_fail_memory(err, "the list of matrices", 0)); }
    QR_TRY(qr_model_each_module(model, add_matrix, &list, err));
    stream->scales = qr_alloc(stream->scales_bytes);
    if (stream->scales == NULL) { QR_TRY(qr_fail_memory(err, "the scales of a weight", stream->scales_bytes)); }
out:
    qr_free(list.next);
    return status;
}

static qr_memory_kind kind_of(const qr_layer_stream *stream) {
    return stream->between_devices ? QR_MEMORY_DEVICE : QR_MEMORY_HOST;
}

qrun_status qr_layer_stream_create(qrun_model *model, qr_safetensors **source, qr_error *err) {
    qr_layer_stream *stream = model->stream;
    qr_backend *backend = model->context->backend;
    void *host = NULL;
    if (stream == NULL) { return QRUN_OK; }
    if (!stream->from_map) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, kind_of(stream), stream->host_bytes, &host, err));
        stream->host = host;
        if (stream->sharded) { stream->incoming = stream->host + (stream->host_bytes - stream->incoming_bytes); }
        return QRUN_OK;
    }
    stream->source = *source;
    *source = NULL;
    return list_matrices(model, err);
}

void qr_layer_stream_destroy(qrun_model *model) {
    qr_layer_stream *stream = model->stream;
    qr_backend *backend = model->context->backend;
    if (stream == NULL) { return; }
    if (stream->ranks != NULL) { /* into memory that goes now */
        (void)qr_all_to_all_end(stream->ranks, NULL);
        (void)qr_devices_all_to_all_end(stream->ranks, NULL);
    }
    if (stream->host != NULL) { backend->memory_destroy(backend, kind_of(stream), stream->host, stream->host_bytes); }
    qr_safetensors_close(stream->source);
    qr_free(stream->matrices);
    qr_free(stream->first_matrix);
    qr_free(stream->scales);
    qr_free(stream);
    model->stream = NULL;
}

static unsigned char *host_of(const qrun_model *model, int64_t l) {
    return model->stream->host + model->layers[l].host_offset;
}

bool qr_layer_stream_is_loaded(const qrun_model *model) {
    return !model->stream->from_map && !(model->stream->sharded && model->trainable);
}

qrun_status qr_layer_stream_keep(qrun_model *model, int64_t l, const qr_weight *matrix, qr_error *err) {
    const qr_layer_stream *stream = model->stream;
    qr_backend *backend = model->context->backend;
    const unsigned char *first = qr_model_stage(model, l), *data = matrix->data;
    const size_t kept = stream->sharded ? part_begin(model, &stream->now, l, stream->rank) : 0;
    const size_t kept_end = kept + qr_layer_stream_kept_bytes(model, l), at = (size_t)(data - first);
    const size_t at_end = at + backend->weight_bytes(backend, &matrix->desc);
    const size_t begin = at > kept ? at : kept, end = at_end < kept_end ? at_end : kept_end;
    if (begin >= end) { return QRUN_OK; }
    unsigned char *to = host_of(model, l) + (begin - kept);
    if (stream->between_devices) { return backend->copy_within(backend, to, first + begin, end - begin, err); }
    return backend->copy_out(backend, to, first + begin, end - begin, err);
}

/* A layer that was on its way there has arrived, and is no longer wanted. */
qrun_status qr_layer_stream_rewrite(const qrun_model *model, qr_backend *backend, int64_t l, qr_error *err) {
    if (model->stream == NULL || model->stream->sharded) { return QRUN_OK; }
    stage *s = &progress_of(model, backend)->stages[l % N_STAGES];
    if (s->on_its_way) { QR_RETURN_IF_ERROR(backend->transfer_wait(backend, s->ticket, err)); }
    *s = (stage){.layer = l};
    return QRUN_OK;
}

/* ---- Use --------------------------------------------------------------------------------------------------------- */

static qrun_status read_layer(const qr_layer_stream *stream, qr_backend *backend, int64_t l, qr_error *err) {
    for (int64_t i = stream->first_matrix[l]; i < stream->first_matrix[l + 1]; i++) {
        mapped_matrix *matrix = &stream->matrices[i];
        const qr_row_share *share = &matrix->share;
        QR_RETURN_IF_ERROR(
            qr_row_share_is_part(share)
                ? qr_weight_write_stored_rows(backend, &matrix->weight, share, &matrix->stored, stream->scales, err)
                : qr_weight_write_stored(backend, &matrix->weight, &matrix->stored, stream->scales, err));
    }
    return qr_safetensors_check(stream->source, err);
}

/* Brings a layer to its stage, unless it is there; on its way, where it comes from host memory. Of a plan only the
 * bytes count. */
static qrun_status fetch(const qrun_model *model, qr_backend *backend, int64_t l, bool plans, qr_error *err) {
    qr_layer_stream *stream = model->stream;
    stage *s = &progress_of(model, backend)->stages[l % N_STAGES];
    if (s->layer == l) { return QRUN_OK; }
    s->layer = NO_LAYER;
    if (plans || !stream->from_map) {
        QR_RETURN_IF_ERROR(backend->transfer_in(backend, qr_model_stage(model, l), plans ? NULL : host_of(model, l),
                                                model->layers[l].staged_bytes, &s->ticket, err));
        s->on_its_way = true;
    } else {
        QR_RETURN_IF_ERROR(read_layer(stream, backend, l, err));
    }
    s->layer = l;
    return QRUN_OK;
}

/* Of scales the pages of the whole matrix: other ranks of the machine want theirs, and they are few. */
static void ask_for(const qr_layer_stream *stream, int64_t l) {
    for (int64_t i = stream->first_matrix[l]; i < stream->first_matrix[l + 1]; i++) {
        const qr_stored_weight *stored = &stream->matrices[i].stored;
        const qr_row_share *share = &stream->matrices[i].share;
        if (!qr_row_share_is_part(share)) {
            qr_safetensors_want(stream->source, stored->codes, stored->data, stored->n_bytes);
        }
        for (int32_t k = 0; k < share->n_ranges; k++) {
            const size_t first = qr_weight_row_offset(&stored->desc, share->ranges[k].first);
            const size_t end = qr_weight_row_offset(&stored->desc, share->ranges[k].first + share->ranges[k].n);
            qr_safetensors_want(stream->source, stored->codes, stored->data + first, end - first);
        }
        const qr_safetensors_tensor *const scales[] = {stored->row_absmax, stored->absmax, stored->nested_absmax};
        for (size_t k = 0; k < QR_COUNT_OF(scales); k++) {
            if (scales[k] != NULL) {
                qr_safetensors_want(stream->source, scales[k], scales[k]->data, scales[k]->n_bytes);
            }
        }
    }
}

/* The ranks begin to send each other their parts of a layer. Of a plan only the bytes count. */
static qrun_status begin_gather(const qrun_model *model, progress *p, int64_t l, qr_error *err) {
    const qr_layer_stream *stream = model->stream;
    qr_backend *backend = model->context->backend;
    const size_t n_own = part_bytes(model, p, l, stream->rank);
    qr_parcel sent[QR_MAX_RANKS], received[QR_MAX_RANKS];
    p->coming = l;
    p->gathered.bytes += (int64_t)part_begin(model, p, l, stream->n_ranks);
    p->gathered.sent_bytes += (int64_t)n_own * (stream->n_ranks - 1);
    if (p == &stream->planned) { return QRUN_OK; }
    unsigned char *own = stream->incoming + part_begin(model, p, l, stream->rank);
    if (p->source.read_part != NULL) {
        QR_RETURN_IF_ERROR(p->source.read_part(p->source.user, l, stream->incoming, err));
    } else if (stream->between_devices) {
        QR_RETURN_IF_ERROR(backend->copy_within(backend, own, host_of(model, l), n_own, err));
    } else {
        memcpy(own, host_of(model, l), n_own);
    }
    for (int32_t r = 0; r < stream->n_ranks; r++) {
        sent[r] = (qr_parcel){own, n_own};
        received[r] = (qr_parcel){stream->incoming + part_begin(model, p, l, r), part_bytes(model, p, l, r)};
    }
    sent[stream->rank] = received[stream->rank] = (qr_parcel){0};
    return stream->between_devices ? qr_devices_all_to_all_begin(stream->ranks, sent, received, err)
                                   : qr_all_to_all_begin(stream->ranks, sent, received, err);
}

/* Brings a layer that has been gathered to the stage. Its bytes may be overwritten afterwards. */
static qrun_status end_gather(const qrun_model *model, qr_backend *backend, progress *p, qr_error *err) {
    const qr_layer_stream *stream = model->stream;
    const int64_t l = p->coming;
    p->coming = p->stages[0].layer = NO_LAYER;
    if (p == &stream->now) {
        if (stream->between_devices) {
            QR_RETURN_IF_ERROR(qr_devices_all_to_all_end(stream->ranks, err));
            p->stages[0].layer = l;
            return backend->copy_within(backend, qr_model_stage(model, l), stream->incoming,
                                        model->layers[l].staged_bytes, err);
        }
        QR_RETURN_IF_ERROR(qr_all_to_all_end(stream->ranks, err));
        QR_RETURN_IF_ERROR(p->source.deliver != NULL
                               ? p->source.deliver(p->source.user, l, stream->incoming, err)
                               : backend->copy_in(backend, qr_model_stage(model, l), stream->incoming,
                                                  model->layers[l].staged_bytes, err));
    }
    p->stages[0].layer = l;
    return QRUN_OK;
}

/* A layer that is on its way and not wanted makes room for the one that is. */
static qrun_status use_shards(const qrun_model *model, qr_backend *backend, int64_t l, int64_t next, qr_error *err) {
    progress *p = progress_of(model, backend);
    if (p->stages[0].layer != l) {
        if (p->coming != l) { QR_RETURN_IF_ERROR(begin_gather(model, p, l, err)); }
        QR_RETURN_IF_ERROR(end_gather(model, backend, p, err));
    }
    const bool has_next = next >= 0 && next < model->shape.n_layers && next != l && next != p->coming;
    return has_next ? begin_gather(model, p, next, err) : QRUN_OK;
}

void qr_layer_stream_begin(const qrun_model *model, qr_backend *backend) {
    if (qr_layer_stream_is_sharded(model)) { empty(progress_of(model, backend)); }
}

qrun_status qr_layer_stream_write_late(const qrun_model *model, const qr_backend *backend, int64_t l, qr_error *err) {
    qr_late_layers *late = model->late;
    if (late == NULL || backend != model->context->backend) { return QRUN_OK; }
    for (; late->first <= l; late->first++) { QR_RETURN_IF_ERROR(late->write(late->user, late->first, err)); }
    return QRUN_OK;
}

static bool is_late(const qrun_model *model, int64_t l) { return model->late != NULL && l >= model->late->first; }

qrun_status qr_layer_stream_use(const qrun_model *model, qr_backend *backend, int64_t l, int64_t next, qr_error *err) {
    const qr_layer_stream *stream = model->stream;
    QR_RETURN_IF_ERROR(qr_layer_stream_write_late(model, backend, l, err));
    if (stream == NULL) { return QRUN_OK; }
    if (stream->sharded) { return use_shards(model, backend, l, next, err); }
    const bool plans = backend != model->context->backend;
    stage *stages = progress_of(model, backend)->stages, *s = &stages[l % N_STAGES];
    QR_RETURN_IF_ERROR(fetch(model, backend, l, plans, err));
    if (s->on_its_way) {
        QR_RETURN_IF_ERROR(backend->transfer_wait(backend, s->ticket, err));
        s->on_its_way = false;
    }
    const bool has_next = next >= 0 && next < model->shape.n_layers && next % N_STAGES != l % N_STAGES;
    if (!has_next || (!plans && is_late(model, next))) { return QRUN_OK; }
    if (!stream->from_map) { return fetch(model, backend, next, plans, err); }
    if (!plans && stages[next % N_STAGES].layer != next) { ask_for(stream, next); }
    return QRUN_OK;
}

qrun_status qr_layer_stream_use_linear(const qrun_model *model, qr_backend *backend, const qr_linear_layer *linear,
                                       qr_error *err) {
    if (linear == &model->inputs.linear) { return QRUN_OK; } /* of no layer */
    const ptrdiff_t bytes = (const unsigned char *)linear - (const unsigned char *)model->layers;
    const int64_t l = bytes / (ptrdiff_t)sizeof *model->layers % model->shape.n_layers; /* or beside it */
    return qr_layer_stream_use(model, backend, l, NO_LAYER, err);
}

void qr_layer_stream_plan_begin(const qrun_model *model) {
    if (model->stream == NULL) { return; }
    empty(&model->stream->planned);
    model->stream->planned.gathered = (qr_gathered){0};
}

qr_gathered qr_layer_stream_planned(const qrun_model *model) {
    return model->stream != NULL ? model->stream->planned.gathered : (qr_gathered){0};
}

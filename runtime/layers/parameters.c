#include "runtime/layers/parameters.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/layers/shards.h"
#include "runtime/model/expert_adapters.h"
#include "runtime/model/model_tensors.h"

int64_t qr_parameter_layer(const qr_parameter *parameter) {
    return qr_role_is_of_model(parameter->role) ? -1 : parameter->layer;
}

/* Floats that all sections of a layer have so far. */
static int64_t floats_of_layer(const qr_parameters *p, int64_t layer) {
    for (int64_t i = 0; i < p->n_sections && layer >= 0; i++) {
        if (p->sections[i].layer == layer) { return p->sections[i].all_floats; }
    }
    return 0;
}

/* The last section has n floats more, or a new one has. */
static bool extend_sections(qr_parameters *p, int64_t layer, int64_t n_floats) {
    if (p->n_sections == 0 || p->sections[p->n_sections - 1].layer != layer) {
        if (!qr_array_reserve(&p->sections, &p->section_capacity, (size_t)p->n_sections + 1, sizeof *p->sections)) {
            return false;
        }
        const int64_t before = floats_of_layer(p, layer);
        p->sections[p->n_sections++] = (qr_section){layer, p->n_floats, before, before};
    }
    for (int64_t i = 0; i < p->n_sections; i++) {
        const bool is_last = i + 1 == p->n_sections;
        if (is_last || (layer >= 0 && p->sections[i].layer == layer)) { p->sections[i].all_floats += n_floats; }
    }
    return true;
}

qrun_status qr_parameters_add(qr_parameters *p, qr_parameter parameter, int64_t *offset, qr_error *err) {
    const int64_t n_floats = qr_round_up(parameter.rows * parameter.cols, QR_PARAMETER_ALIGNMENT);
    if (!qr_array_reserve(&p->list, &p->capacity, (size_t)p->n + 1, sizeof *p->list) ||
        !extend_sections(p, qr_parameter_layer(&parameter), n_floats)) {
        return qr_fail_memory(err, "the table of trained tensors", (size_t)p->n * sizeof *p->list);
    }
    parameter.offset = parameter.gradient = p->n_floats;
    p->list[p->n++] = parameter;
    p->n_floats += n_floats;
    p->n_gradient_floats = p->n_values = p->n_floats;
    *offset = parameter.offset;
    return QRUN_OK;
}

/* Places the gradients of a layer (−1: of none) from `begin` on, and returns where they end. */
static int64_t place_gradients(qr_parameters *p, int64_t layer, int64_t begin) {
    for (int64_t i = 0; i < p->n; i++) {
        if (qr_parameter_layer(&p->list[i]) != layer) { continue; }
        p->list[i].gradient = begin;
        begin += qr_round_up(p->list[i].rows * p->list[i].cols, QR_PARAMETER_ALIGNMENT);
    }
    return begin;
}

void qr_parameters_share_gradients(qr_parameters *p, int32_t n_places) {
    const int64_t n_layers = p->model->shape.n_layers;
    p->shares_gradients = true;
    p->n_places = n_places;
    p->place_floats = 0;
    p->shared_begin = place_gradients(p, -1, 0);
    for (int64_t l = 0; l < n_layers; l++) { p->place_floats = qr_max(p->place_floats, place_gradients(p, l, 0)); }
    for (int64_t l = 0; l < n_layers; l++) {
        (void)place_gradients(p, l, p->shared_begin + l % n_places * p->place_floats);
    }
    p->n_gradient_floats = p->shared_begin + qr_min(n_layers, n_places) * p->place_floats;
}

void qr_parameters_hold_on_host(qr_parameters *p, qr_backend *processor) {
    enum { N_PLACES = 2 };
    p->processor = processor;
    qr_parameters_share_gradients(p, N_PLACES);
}

bool qr_parameters_next_run(const qr_parameters *p, int64_t layer, int64_t *i, qr_parameter_run *run) {
    while (*i < p->n && qr_parameter_layer(&p->list[*i]) != layer) { (*i)++; }
    if (*i == p->n) { return false; }
    const qr_parameter *first = &p->list[*i];
    while (*i < p->n && qr_parameter_layer(&p->list[*i]) == layer) { (*i)++; }
    *run = (qr_parameter_run){first->offset, *i < p->n ? p->list[*i].offset : p->n_floats, first->gradient};
    return true;
}

void qr_parameters_shard_values(qr_parameters *p, const qr_shards *shards) {
    p->shards = shards;
    p->n_values = qr_shards_floats(shards, shards->rank);
}

float *qr_parameters_at(const qr_parameters *p, int64_t position) {
    return p->values + (p->shards == NULL ? position : qr_shards_place(p->shards, p->shards->rank, position));
}

/* The last of n numbers, so many bytes apart and ascending, that is at most `position`. */
static int64_t last_at_most(const int64_t *numbers, size_t distance, int64_t n, int64_t position) {
    const unsigned char *bytes = (const unsigned char *)numbers;
    int64_t low = 0, high = n;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (*(const int64_t *)(const void *)(bytes + (size_t)middle * distance) <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t qr_parameters_find(const qr_parameters *p, int64_t position) {
    return last_at_most(&p->list[0].offset, sizeof *p->list, p->n, position);
}

int64_t qr_parameters_section(const qr_parameters *p, int64_t position) {
    return last_at_most(&p->sections[0].begin, sizeof *p->sections, p->n_sections, position);
}

/* One block of memory: norms, then ratios. */
size_t qr_lora_norms_bytes(const qr_parameters *p) { return 2 * (size_t)p->lora.n_outputs * sizeof(float); }

size_t qr_lora_reference_bytes(const qr_parameters *p) {
    return p->lora.has_reference ? qr_parameters_bytes(p) + p->lora.table_bytes : 0;
}

size_t qr_parameters_bytes(const qr_parameters *p) { return (size_t)p->n_floats * sizeof(float); }

/* A shard may be empty, and memory is not. */
size_t qr_parameters_held_bytes(const qr_parameters *p) { return (size_t)qr_max(p->n_values, 1) * sizeof(float); }

size_t qr_parameters_gradient_bytes(const qr_parameters *p) { return (size_t)p->n_gradient_floats * sizeof(float); }

int64_t qr_parameters_count(const qr_parameters *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) { n += p->list[i].rows * p->list[i].cols; }
    return n;
}

/* Room for a piece of every matrix: enough rows that the call takes no time, or a group of them. */
size_t qr_parameters_codes_bytes(const qr_parameters *p) {
    enum { PIECE_BYTES = 1 << 20 };
    size_t most = 0;
    if (p->processor == NULL || p->model->act_dtype == QR_DTYPE_F32) { return 0; } /* the values are the codes */
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_parameter *parameter = &p->list[p->whole.tensors[i].parameter];
        if (p->whole.tensors[i].matrix == NULL) { continue; }
        const size_t row_bytes = (size_t)parameter->cols * qr_dtype_bytes(p->model->act_dtype);
        const size_t group_bytes = QR_WEIGHT_ROW_GROUP * row_bytes, all_bytes = (size_t)parameter->rows * row_bytes;
        const size_t n_bytes = group_bytes > PIECE_BYTES ? group_bytes : PIECE_BYTES;
        const size_t needed = n_bytes < all_bytes ? n_bytes : all_bytes;
        most = needed > most ? needed : most;
    }
    return most;
}

qrun_status qr_parameters_create(qr_parameters *p, qr_error *err) {
    qr_backend *backend = p->backend;
    const size_t codes_bytes = qr_parameters_codes_bytes(p);
    void *memory;
    QR_RETURN_IF_ERROR(
        backend->memory_create(backend, qr_parameters_memory(p), qr_parameters_held_bytes(p), &memory, err));
    p->values = memory;
    if (codes_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_HOST, codes_bytes, &p->codes, err));
    }
    QR_RETURN_IF_ERROR(
        backend->memory_create(backend, QR_MEMORY_DEVICE, qr_parameters_gradient_bytes(p), &memory, err));
    p->gradients = memory;
    return QRUN_OK;
}

/* Once the overrides are undone, `embedding` and `head` being the trained ones with rows for new tokens: a fully
 * trained model keeps them and their memory; any other has its original vocabulary again. */
static void end_tables(qr_parameters *p, const qr_weight *embedding, const qr_weight *head) {
    qrun_model *model = p->model;
    qr_whole_modules *whole = &p->whole;
    qr_backend *backend = p->backend;
    if (whole->original_vocab == 0) { return; }
    if (!whole->full || !whole->refreshed) {
        model->shape.vocab = model->embedding.desc.rows = model->head.desc.rows = whole->original_vocab;
        return;
    }
    model->embedding = *embedding;
    model->head = *head;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, model->table_memory, model->table_bytes);
    model->table_memory = whole->override_memory;
    model->table_bytes = whole->override_bytes;
    whole->override_memory = NULL;
}

static void end_whole(qr_parameters *p) {
    qr_whole_modules *whole = &p->whole;
    if (p->model == NULL) { return; }
    qr_backend *backend = p->backend;
    for (int64_t i = 0; i < whole->n && whole->full; i++) {
        const qr_whole_tensor *tensor = &whole->tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        if (tensor->original_vector == NULL) { continue; }
        (void)backend->copy_within(backend, (void *)(uintptr_t)tensor->original_vector, p->values + parameter->offset,
                                   (size_t)parameter->cols * sizeof(float), NULL);
    }
    const qr_weight embedding = p->model->embedding, head = p->model->head;
    qr_weight_overrides_undo(&whole->overrides);
    end_tables(p, &embedding, &head);
    const size_t n_bytes = whole->override_memory != NULL ? whole->override_bytes : 0;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, whole->override_memory, n_bytes);
    qr_free(whole->tensors);
    *whole = (qr_whole_modules){0};
}

void qr_parameters_destroy(qr_parameters *p) {
    const size_t codes_bytes = p->codes != NULL ? qr_parameters_codes_bytes(p) : 0;
    end_whole(p);
    if (p->model != NULL) {
        qr_backend *backend = p->backend;
        backend->memory_destroy(backend, qr_parameters_memory(p), p->values, qr_parameters_held_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_HOST, p->codes, codes_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->gradients, qr_parameters_gradient_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.table, p->lora.table_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.norms, qr_lora_norms_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.reference_values, qr_parameters_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.reference_table, p->lora.table_bytes);
    }
    qr_free(p->list);
    qr_free(p->sections);
    qr_free(p->lora.pairs);
    qr_free(p->lora.pair_of_slot);
    *p = (qr_parameters){0};
}

/* Where values are in shards or in host memory, the model has vectors in memory of its own. */
static float *gradient_of_vector(const qr_parameters *p, const float *vector) {
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        if (tensor->vector == NULL || *tensor->vector != vector) { continue; }
        return p->gradients + p->list[tensor->parameter].gradient;
    }
    return NULL;
}

float *qr_parameters_gradient(const qr_parameters *p, const float *value) {
    if (value != NULL && (p->shards != NULL || p->processor != NULL)) { return gradient_of_vector(p, value); }
    const uintptr_t first = (uintptr_t)p->values, at = (uintptr_t)value;
    if (value == NULL || at < first || at >= first + qr_parameters_bytes(p)) { return NULL; }
    const int64_t offset = (int64_t)((at - first) / sizeof *value);
    const qr_parameter *parameter = &p->list[qr_parameters_find(p, offset)];
    return p->gradients + parameter->gradient + (offset - parameter->offset);
}

/* PEFT's paths are those of the model object, which has its prefix also where a checkpoint leaves it out. */
static const char *prefix_of_object(const qrun_model *model) {
    return model->family->has_frame ? model->family->prefixes[0] : model->prefix;
}

void qr_parameters_module_name(const qr_parameters *p, qr_tensor_role role, int64_t layer, char *name,
                               size_t name_bytes) {
    const char *prefix = prefix_of_object(p->model);
    if (qr_role_is_expert(role)) {
        const int32_t slot = p->model->layers[layer].expert_slot;
        const bool has_outer = p->lora.pair_of_slot != NULL && p->lora.pair_of_slot[slot + 1] >= 0;
        const bool is_inner = role == QR_ROLE_EXPERT_GATE && has_outer;
        qr_expert_pair_module_name(p->model, prefix, layer, is_inner, name, name_bytes);
        return;
    }
    qr_family_module_name(p->model->family, prefix, role, layer, name, name_bytes);
}

void qr_parameter_name(const qr_parameters *p, const qr_parameter *parameter, char *name, size_t name_bytes) {
    static const char *const parts[] = {[QR_PARAMETER_LORA_A] = "lora_A.weight",
                                        [QR_PARAMETER_LORA_B] = "lora_B.weight",
                                        [QR_PARAMETER_LORA_MAGNITUDE] = "lora_magnitude_vector",
                                        [QR_PARAMETER_MATRIX] = "weight",
                                        [QR_PARAMETER_NORM] = "weight",
                                        [QR_PARAMETER_BIAS] = "bias"};
    if (parameter->kind == QR_PARAMETER_MATRIX && qr_role_is_expert(parameter->role)) {
        qr_family_write_name(prefix_of_object(p->model), p->model->family->modules[parameter->role], parameter->layer,
                             parameter->expert, name, name_bytes);
    } else {
        qr_parameters_module_name(p, parameter->role, parameter->layer, name, name_bytes);
    }
    if (parameter->kind >= QR_PARAMETER_MATRIX) { qr_family_name_in_files(p->model->family, name, name_bytes); }
    const size_t length = strlen(name);
    if (qr_role_is_bare(parameter->role)) { return; }
    (void)snprintf(name + length, name_bytes - length, ".%s", parts[parameter->kind]);
}

bool qr_parameter_is_transposed(const qrun_model *model, const qr_parameter *parameter) {
    return parameter->kind == QR_PARAMETER_MATRIX && qr_model_is_transposed(model, parameter->role);
}

int qr_parameter_file_dims(const qrun_model *model, const qr_parameter *parameter, int64_t dims[QR_MAX_DIMS]) {
    const bool transposed = qr_parameter_is_transposed(model, parameter);
    dims[0] = transposed ? parameter->cols : parameter->rows;
    dims[1] = transposed ? parameter->rows : parameter->cols;
    if (parameter->kind == QR_PARAMETER_MATRIX) { return 2; }
    if (parameter->role == QR_ROLE_CONV) { return qr_model_conv_dims(model, dims); }
    if (qr_role_is_stream_mix(parameter->role)) {
        return qr_stream_mix_dims(model, parameter->role, parameter->cols, dims);
    }
    if (parameter->role == QR_ROLE_RECURRENT_A_LOG && model->family->a_log_is_wide) {
        return qr_wide_a_log_dims(parameter->cols, dims);
    }
    if (qr_role_is_expert_bias(parameter->role)) {
        dims[0] = model->shape.n_experts;
        dims[1] = parameter->cols / dims[0];
        return 2;
    }
    dims[0] = parameter->cols;
    return 1;
}

qrun_status qr_parameters_read(const qr_parameters *p, int64_t first, int64_t n, float *values, qr_error *err) {
    qr_backend *updater = qr_parameters_updater(p);
    return updater->copy_out(updater, values, qr_parameters_at(p, first), (size_t)n * sizeof *values, err);
}

qrun_status qr_parameters_write(const qr_parameters *p, int64_t first, int64_t n, const float *values, qr_error *err) {
    qr_backend *updater = qr_parameters_updater(p);
    return updater->copy_in(updater, qr_parameters_at(p, first), values, (size_t)n * sizeof *values, err);
}

/* Floats [first, first + n) of the arena, wherever they are. */
static qrun_status read_floats(const qr_parameters *p, int64_t first, int64_t n, float *values, qr_error *err) {
    if (p->read_values != NULL) { return p->read_values(p->read_values_user, first, n, values, err); }
    return qr_parameters_read(p, first, n, values, err);
}

qrun_status qr_parameter_read(const qr_parameters *p, const qr_parameter *parameter, int64_t first, int64_t n,
                              float *values, qr_error *err) {
    if (!qr_parameter_is_transposed(p->model, parameter)) {
        return read_floats(p, parameter->offset + first, n, values, err);
    }
    const int64_t rows = parameter->rows, cols = parameter->cols;
    const size_t n_bytes = (size_t)(rows * cols) * sizeof *values;
    float *matrix = qr_alloc(n_bytes);
    if (matrix == NULL) { return qr_fail_memory(err, "a trained matrix", n_bytes); }
    const qrun_status status = read_floats(p, parameter->offset, rows * cols, matrix, err);
    for (int64_t i = 0; i < n && status == QRUN_OK; i++) {
        values[i] = matrix[(first + i) % rows * cols + (first + i) / rows];
    }
    qr_free(matrix);
    return status;
}

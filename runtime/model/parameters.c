#include "runtime/model/parameters.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

enum { TENSOR_ALIGNMENT = 16, FIRST_CAPACITY = 64 };

static qrun_status make_room(qr_parameters *p, qr_error *err) {
    if (p->n < p->capacity) { return QRUN_OK; }
    const int64_t capacity = p->capacity > 0 ? 2 * p->capacity : FIRST_CAPACITY;
    qr_parameter *list = qr_alloc_array((size_t)capacity, sizeof *list);
    if (list == NULL) { return qr_fail_memory(err, "the table of trained tensors", (size_t)capacity * sizeof *list); }
    if (p->n > 0) { memcpy(list, p->list, (size_t)p->n * sizeof *list); }
    qr_free(p->list);
    p->list = list;
    p->capacity = capacity;
    return QRUN_OK;
}

qrun_status qr_parameters_add(qr_parameters *p, qr_parameter parameter, int64_t *offset, qr_error *err) {
    QR_RETURN_IF_ERROR(make_room(p, err));
    parameter.offset = p->n_floats;
    p->list[p->n++] = parameter;
    p->n_floats += qr_round_up(parameter.rows * parameter.cols, TENSOR_ALIGNMENT);
    *offset = parameter.offset;
    return QRUN_OK;
}

/* One block of memory: norms, then ratios. */
size_t qr_lora_norms_bytes(const qr_parameters *p) { return 2 * (size_t)p->lora.n_outputs * sizeof(float); }

size_t qr_parameters_bytes(const qr_parameters *p) { return (size_t)p->n_floats * sizeof(float); }

int64_t qr_parameters_count(const qr_parameters *p) {
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++) { n += p->list[i].rows * p->list[i].cols; }
    return n;
}

qrun_status qr_parameters_create(qr_parameters *p, qr_error *err) {
    qr_backend *backend = p->backend;
    void *memory;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, qr_parameters_bytes(p), &memory, err));
    p->values = memory;
    QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, qr_parameters_bytes(p), &memory, err));
    p->gradients = memory;
    return QRUN_OK;
}

/* After the weights that stood in: the model with grown tables keeps them where it keeps all that was trained, and has
 * its own vocabulary again where not. */
static void end_tables(qr_parameters *p, const qr_weight *embedding, const qr_weight *head) {
    qrun_model *model = p->model;
    qr_whole_modules *whole = &p->whole;
    qr_backend *backend = p->backend;
    if (whole->own_vocab == 0) { return; }
    if (!whole->full || !whole->refreshed) {
        model->shape.vocab = model->embedding.desc.rows = model->head.desc.rows = whole->own_vocab;
        return;
    }
    model->embedding = *embedding;
    model->head = *head;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, model->table_memory, model->table_bytes);
    model->table_memory = whole->held;
    model->table_bytes = whole->held_bytes;
    whole->held = NULL;
}

static void end_whole(qr_parameters *p) {
    qr_whole_modules *whole = &p->whole;
    if (p->model == NULL) { return; }
    qr_backend *backend = p->backend;
    for (int64_t i = 0; i < whole->n && whole->full; i++) {
        const qr_whole_tensor *tensor = &whole->tensors[i];
        const qr_parameter *parameter = &p->list[tensor->parameter];
        if (tensor->own_vector == NULL) { continue; }
        (void)backend->copy_within(backend, (void *)(uintptr_t)tensor->own_vector, p->values + parameter->offset,
                                   (size_t)parameter->cols * sizeof(float), NULL);
    }
    const qr_weight embedding = p->model->embedding, head = p->model->head;
    qr_stand_ins_end(&whole->stand_ins);
    end_tables(p, &embedding, &head);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, whole->held, whole->held != NULL ? whole->held_bytes : 0);
    qr_free(whole->tensors);
    *whole = (qr_whole_modules){0};
}

void qr_parameters_destroy(qr_parameters *p) {
    end_whole(p);
    if (p->model != NULL) {
        qr_backend *backend = p->backend;
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->values, qr_parameters_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->gradients, qr_parameters_bytes(p));
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.table, p->lora.table_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->lora.norms, qr_lora_norms_bytes(p));
    }
    qr_free(p->list);
    qr_free(p->lora.pairs);
    qr_free(p->lora.pair_of_slot);
    *p = (qr_parameters){0};
}

float *qr_parameters_gradient(const qr_parameters *p, const float *value) {
    const uintptr_t first = (uintptr_t)p->values, at = (uintptr_t)value;
    if (value == NULL || at < first || at >= first + qr_parameters_bytes(p)) { return NULL; }
    return p->gradients + (at - first) / sizeof *value;
}

void qr_parameters_module_name(const qr_parameters *p, qr_tensor_role role, int64_t layer, char *name,
                               size_t name_bytes) {
    /* PEFT's paths are those of the model object; where a checkpoint leaves a prefix out, the object still has it. */
    const qr_family *family = p->model->family;
    const bool has_frame = family->family == QR_FAMILY_GPT2;
    qr_family_module_name(family, has_frame ? family->prefixes[0] : p->model->prefix, role, layer, name, name_bytes);
}

void qr_parameter_name(const qr_parameters *p, const qr_parameter *parameter, char *name, size_t name_bytes) {
    static const char *const parts[] = {[QR_PARAMETER_LORA_A] = "lora_A.weight",
                                        [QR_PARAMETER_LORA_B] = "lora_B.weight",
                                        [QR_PARAMETER_LORA_MAGNITUDE] = "lora_magnitude_vector",
                                        [QR_PARAMETER_MATRIX] = "weight",
                                        [QR_PARAMETER_NORM] = "weight",
                                        [QR_PARAMETER_BIAS] = "bias"};
    qr_parameters_module_name(p, parameter->role, parameter->layer, name, name_bytes);
    const size_t length = strlen(name);
    (void)snprintf(name + length, name_bytes - length, ".%s", parts[parameter->kind]);
}

bool qr_parameter_is_transposed(const qrun_model *model, const qr_parameter *parameter) {
    return model->family->transposed && parameter->role >= QR_ROLE_Q && parameter->kind == QR_PARAMETER_MATRIX;
}

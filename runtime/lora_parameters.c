#include "runtime/lora_parameters.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/stored_weight.h"
#include "runtime/adapter.h"

enum { FACTOR_ALIGNMENT = 16 };

/* ---- Which layers ------------------------------------------------------------------------------------------------ */

static bool is_attention(qr_tensor_role role) { return role >= QR_ROLE_Q && role <= QR_ROLE_ATTN_OUT; }

/* "q_proj" of "model.layers.%d.self_attn.q_proj". */
static const char *last_component(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot != NULL ? dot + 1 : module;
}

static bool is_listed(const char *targets, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = targets; *at != '\0';) {
        const char *comma = strchr(at, ',');
        const size_t n = comma != NULL ? (size_t)(comma - at) : strlen(at);
        if (n == length && memcmp(at, name, n) == 0) { return true; }
        at += n + (comma != NULL);
    }
    return false;
}

static bool is_target(const qrun_model *model, const char *targets, qr_tensor_role role) {
    if (strcmp(targets, "all") == 0) { return true; }
    if (strcmp(targets, "attn") == 0) { return is_attention(role); }
    if (strcmp(targets, "mlp") == 0) { return !is_attention(role); }
    return is_listed(targets, last_component(model->family->modules[role]));
}

typedef struct choose_state {
    qr_lora_parameters *parameters;
    const qr_lora_options *options;
} choose_state;

static int64_t take_floats(qr_lora_parameters *parameters, int64_t n) {
    const int64_t offset = parameters->n_floats;
    parameters->n_floats += qr_round_up(n, FACTOR_ALIGNMENT);
    return offset;
}

static qrun_status choose_linear(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                 qr_error *err) {
    (void)err;
    choose_state *state = arg;
    qr_lora_parameters *p = state->parameters;
    p->pair_of_slot[linear->slot] = -1;
    if (!is_target(p->model, state->options->targets, role)) { return QRUN_OK; }
    qr_lora_pair *pair = &p->pairs[p->n_pairs];
    *pair = (qr_lora_pair){.linear = linear, .layer = layer, .role = role, .in = linear->weight.desc.cols,
                           .out = linear->weight.desc.rows};
    pair->a_offset = take_floats(p, p->rank * pair->in);
    pair->b_offset = take_floats(p, p->rank * pair->out);
    p->pair_of_slot[linear->slot] = p->n_pairs++;
    return QRUN_OK;
}

qrun_status qr_lora_parameters_describe(qrun_model *model, const qr_lora_options *options,
                                        qr_lora_parameters *parameters, qr_error *err) {
    if (options->rank < 1 || options->rank > QR_MAX_LORA_RANK) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "rank must be 1 to %d, not %d", QR_MAX_LORA_RANK, options->rank);
    }
    *parameters = (qr_lora_parameters){.model = model, .rank = options->rank};
    parameters->scale = options->alpha / (options->rslora ? sqrtf((float)options->rank) : (float)options->rank);
    parameters->pairs = qr_alloc_array((size_t)model->n_slots, sizeof *parameters->pairs);
    parameters->pair_of_slot = qr_alloc_array((size_t)model->n_slots, sizeof *parameters->pair_of_slot);
    if (parameters->pairs == NULL || parameters->pair_of_slot == NULL) {
        qr_lora_parameters_destroy(parameters);
        return qr_fail_memory(err, "the table of adapted layers", (unsigned)model->n_slots * sizeof(qr_lora_pair));
    }
    choose_state state = {parameters, options};
    (void)qr_model_each_linear(model, choose_linear, &state, NULL);
    parameters->table_bytes = (size_t)model->n_slots * sizeof(qr_lora_factor);
    if (parameters->n_pairs > 0) { return QRUN_OK; }
    qr_lora_parameters_destroy(parameters);
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "no linear layer of this %s model is called \"%s\"; use all, attn, mlp, or names such as %s",
                   model->family->name, options->targets, last_component(model->family->modules[QR_ROLE_ATTN_OUT]));
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static qrun_status put_initial(qr_lora_parameters *p, const qr_lora_pair *pair, uint64_t seed, float *staging,
                               qr_error *err) {
    /* kaiming_uniform with a = √5: uniform in ±√(6 / ((1 + 5) · fan_in)) = ±1/√in. */
    qr_backend *backend = p->model->context->backend;
    const double bound = 1.0 / sqrt((double)pair->in);
    for (int64_t i = 0; i < p->rank * pair->in; i++) {
        staging[i] = (float)((2.0 * qr_random_uniform(seed, (uint64_t)pair->linear->slot, (uint64_t)i) - 1.0) * bound);
    }
    const qr_lora_factor factor = {p->values + pair->a_offset, p->values + pair->b_offset, p->rank, p->scale};
    qrun_status status = backend->copy_in(backend, p->values + pair->a_offset, staging,
                                          (size_t)(p->rank * pair->in) * sizeof(float), err);
    if (status != QRUN_OK) { return status; }
    return backend->copy_in(backend, p->table + pair->linear->slot, &factor, sizeof factor, err);
}

qrun_status qr_lora_parameters_create(qr_lora_parameters *p, uint64_t seed, qr_error *err) {
    qr_backend *backend = p->model->context->backend;
    const size_t n_bytes = (size_t)p->n_floats * sizeof(float);
    void *memory;
    float *staging = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &memory, err));
    p->values = memory;
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &memory, err));
    p->gradients = memory;
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, p->table_bytes, &memory, err));
    p->table = memory;
    int64_t most = 0;
    for (int64_t i = 0; i < p->n_pairs; i++) { most = qr_max(most, p->pairs[i].in); }
    staging = qr_alloc_array((size_t)(most * p->rank), sizeof *staging);
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "an adapter", (unsigned long long)(most * p->rank) * 4)); }
    for (int64_t i = 0; i < p->n_pairs; i++) { QR_TRY(put_initial(p, &p->pairs[i], seed, staging, err)); }
out:
    qr_free(staging);
    return status;
}

void qr_lora_parameters_destroy(qr_lora_parameters *p) {
    if (p->model != NULL) {
        qr_backend *backend = p->model->context->backend;
        const size_t n_bytes = (size_t)p->n_floats * sizeof(float);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->values, n_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->gradients, n_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, p->table, p->table_bytes);
    }
    qr_free(p->pairs);
    qr_free(p->pair_of_slot);
    *p = (qr_lora_parameters){0};
}

void qr_lora_pair_name(const qr_lora_parameters *p, const qr_lora_pair *pair, char *name, size_t name_bytes) {
    /* PEFT's paths are those of the model object; where a checkpoint leaves a prefix out, the object still has it. */
    const qr_family *family = p->model->family;
    const bool has_frame = family->family == QR_FAMILY_GPT2;
    qr_family_module_name(family, has_frame ? family->prefixes[0] : p->model->prefix, pair->role, pair->layer, name,
                          name_bytes);
}

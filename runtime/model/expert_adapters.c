#include "runtime/model/expert_adapters.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/model/weight_writer.h"

qr_expert_pair_shape qr_expert_pair_shape_of(const qrun_model *model, const qr_layer *layer, qr_tensor_role role) {
    const qr_model_shape *s = &model->shape;
    if (role == QR_ROLE_EXPERT_OUT) { return (qr_expert_pair_shape){s->expert_mlp, s->hidden, layer->expert_slot + 1}; }
    return (qr_expert_pair_shape){s->hidden, 2 * s->expert_mlp, layer->expert_slot};
}

int64_t qr_expert_pair_turns(const qrun_model *model, qr_tensor_role role) {
    return model->family->stacks_in_turn && role != QR_ROLE_EXPERT_OUT ? 2 : 1;
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

/* Older checkpoints of a family may have other names; PEFT's are those of transformers 5. */
static const char *stack_name(const qrun_model *model, qr_tensor_role role) {
    const qr_family *family = model->family;
    if (family->stacked_out == NULL) { family = qr_family_renamed(family); }
    if (family == NULL) { return NULL; }
    return role == QR_ROLE_EXPERT_OUT ? family->stacked_out : family->stacked_gate_up;
}

const char *qr_expert_parameter_name(const qrun_model *model, qr_tensor_role role) {
    const char *name = model->expert_weights != NULL ? stack_name(model, role) : NULL;
    return name != NULL ? qr_family_name_in_layer(name) : NULL;
}

void qr_expert_pair_module_name(const qrun_model *model, const char *prefix, int64_t layer, bool is_inner, char *name,
                                size_t name_bytes) {
    const char *stack = stack_name(model, QR_ROLE_EXPERT_OUT);
    qr_family_write_name(prefix, stack != NULL ? stack : "", layer, 0, name, name_bytes);
    char *dot = strrchr(name, '.');
    if (dot == NULL) { return; }
    (void)snprintf(dot, name_bytes - (size_t)(dot - name), "%s", is_inner ? ".base_layer" : "");
}

const qr_adapter_module *qr_expert_pair_find(const qrun_model *model, const qr_adapter *adapter, int64_t layer,
                                             qr_tensor_role role) {
    const int64_t hidden = model->shape.hidden;
    const char *prefix;
    if (stack_name(model, role) == NULL) { return NULL; }
    for (size_t i = 0; (prefix = qr_family_prefix(model->family, i)) != NULL; i++) {
        for (int inner = 0; inner < 2; inner++) {
            char name[QR_STORED_NAME_BYTES];
            qr_expert_pair_module_name(model, prefix, layer, inner == 1, name, sizeof name);
            const qr_adapter_module *module = qr_adapter_find(adapter, name);
            if (module == NULL) { continue; }
            /* An outer one that is alone may be of either; an inner one is of gate and up. */
            const bool is_out = inner == 0 && (module->in_features != hidden || module->out_features == hidden);
            if (is_out == (role == QR_ROLE_EXPERT_OUT)) { return module; }
        }
    }
    return NULL;
}

/* ---- Shapes and values ------------------------------------------------------------------------------------------- */

qrun_status qr_expert_pair_check(const qrun_model *model, const qr_adapter_module *module, const qr_layer *layer,
                                 qr_tensor_role role, qr_error *err) {
    const qr_expert_pair_shape shape = qr_expert_pair_shape_of(model, layer, role);
    const int64_t n_experts = model->shape.n_experts;
    if (module->in_features == shape.in && module->out_features == shape.out && module->n_stacked == n_experts) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: the adapter is made for %lld experts of [%lld, %lld], and the model's layer has %lld of [%lld, "
                   "%lld]",
                   module->name, (long long)module->n_stacked, (long long)module->out_features,
                   (long long)module->in_features, (long long)n_experts, (long long)shape.out, (long long)shape.in);
}

/* Where element i of a file's [out, rank] is in that of an expert. */
static int64_t inner_index(int64_t i, int64_t out, int64_t rank, int64_t turns) {
    const int64_t row = i / rank;
    return (row % turns * (out / turns) + row / turns) * rank + i % rank;
}

void qr_expert_b_from_file(const float *file, int64_t n_experts, int64_t out, int64_t rank, int64_t turns, float *b) {
    for (int64_t i = 0; i < out * rank; i++) {
        const int64_t at = inner_index(i, out, rank, turns);
        for (int64_t e = 0; e < n_experts; e++) { b[e * out * rank + at] = file[i * n_experts + e]; }
    }
}

void qr_expert_b_to_file(const float *b, int64_t n_experts, int64_t out, int64_t rank, int64_t turns, float *file) {
    for (int64_t i = 0; i < out * rank; i++) {
        const int64_t at = inner_index(i, out, rank, turns);
        for (int64_t e = 0; e < n_experts; e++) { file[i * n_experts + e] = b[e * out * rank + at]; }
    }
}

qrun_status qr_expert_pair_put(qr_backend *backend, const qr_adapter_module *module, int64_t turns, float *a, float *b,
                               qr_error *err) {
    const int64_t n = qr_tensor_elements(module->b);
    QR_RETURN_IF_ERROR(qr_weight_write_floats(backend, a, module->a, err));
    float *values = qr_alloc_array((size_t)n * 2, sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, module->name, (size_t)n * 2 * sizeof *values); }
    qr_elements_to_f32(module->b->dtype, module->b->data, 0, n, values);
    qr_expert_b_from_file(values, module->n_stacked, module->out_features, module->rank, turns, values + n);
    const qrun_status status = backend->copy_in(backend, b, values + n, (size_t)n * sizeof *values, err);
    qr_free(values);
    return status;
}

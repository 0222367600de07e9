#include "runtime/model/expert_adapters.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/model/weight_writer.h"

qr_expert_pair_shape qr_expert_pair_shape_of(const qrun_model *model, const qr_layer *layer, qr_tensor_role role) {
    const qr_model_shape *s = &model->shape;
    const qr_row_share share = qr_expert_pair_share(model, layer, role);
    const int64_t out = qr_row_share_rows(&share);
    if (role == QR_ROLE_EXPERT_OUT) { return (qr_expert_pair_shape){s->expert_mlp, out, layer->expert_slot + 1}; }
    return (qr_expert_pair_shape){s->hidden, out, layer->expert_slot};
}

/* Appends the rows of one matrix, which begin at `first` in B: those of its share, or all n. */
static void add_rows(const qr_row_share *of, int64_t first, int64_t n, qr_row_share *share) {
    share->all += n;
    if (!qr_row_share_is_part(of)) { share->ranges[share->n_ranges++] = (qr_row_range){first, n}; }
    for (int32_t i = 0; i < of->n_ranges; i++) {
        share->ranges[share->n_ranges++] = (qr_row_range){first + of->ranges[i].first, of->ranges[i].n};
    }
}

qr_row_share qr_expert_pair_share(const qrun_model *model, const qr_layer *layer, qr_tensor_role role) {
    const qr_model_shape *s = &model->shape;
    const qr_row_share *gate_up_out = layer->expert_share;
    qr_row_share share = {0};
    if (role == QR_ROLE_EXPERT_OUT) {
        add_rows(&gate_up_out[2], 0, s->hidden, &share);
        return share;
    }
    add_rows(&gate_up_out[0], 0, s->expert_mlp, &share);
    if (layer->expert_up != NULL) { add_rows(&gate_up_out[1], s->expert_mlp, s->expert_mlp, &share); }
    return share;
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
    const int64_t in = qr_expert_pair_shape_of(model, layer, role).in, n_experts = model->shape.n_experts;
    const int64_t out = qr_expert_pair_share(model, layer, role).all;
    if (module->in_features == in && module->out_features == out && module->n_stacked == n_experts) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: the adapter is made for %lld experts of [%lld, %lld], and the model's layer has %lld of [%lld, "
                   "%lld]",
                   module->name, (long long)module->n_stacked, (long long)module->out_features,
                   (long long)module->in_features, (long long)n_experts, (long long)out, (long long)in);
}

/* Where row r of an expert's [out, rank] is in a file's. */
static int64_t file_row(int64_t r, int64_t out, int64_t turns) {
    const int64_t n = out / turns;
    return r % n * turns + r / n;
}

void qr_expert_b_from_file(const float *file, int64_t n_experts, const qr_row_share *share, int64_t rank, int64_t turns,
                           float *b) {
    const int64_t expert_stride = qr_row_share_rows(share) * rank;
    for (int32_t k = 0; k < share->n_ranges; k++) {
        const qr_row_range *rows = &share->ranges[k];
        for (int64_t r = rows->first; r < rows->first + rows->n; r++, b += rank) {
            const float *src = file + file_row(r, share->all, turns) * rank * n_experts;
            for (int64_t i = 0; i < rank; i++) {
                for (int64_t e = 0; e < n_experts; e++) { b[e * expert_stride + i] = src[i * n_experts + e]; }
            }
        }
    }
}

void qr_expert_b_to_file(const float *b, int64_t n_experts, int64_t out, int64_t rank, int64_t turns, float *file) {
    for (int64_t r = 0; r < out; r++, b += rank) {
        float *dst = file + file_row(r, out, turns) * rank * n_experts;
        for (int64_t i = 0; i < rank; i++) {
            for (int64_t e = 0; e < n_experts; e++) { dst[i * n_experts + e] = b[e * out * rank + i]; }
        }
    }
}

qrun_status qr_expert_pair_put(qr_backend *backend, const qr_adapter_module *module, const qr_row_share *share,
                               int64_t turns, float *a, float *b, qr_error *err) {
    const int64_t n = qr_tensor_elements(module->b);
    const int64_t n_own = module->n_stacked * qr_row_share_rows(share) * module->rank;
    QR_RETURN_IF_ERROR(qr_weight_write_floats(backend, a, module->a, err));
    float *values = qr_alloc_array((size_t)n * 2, sizeof *values);
    if (values == NULL) { return qr_fail_memory(err, module->name, (size_t)n * 2 * sizeof *values); }
    qr_elements_to_f32(module->b->dtype, module->b->data, 0, n, values);
    qr_expert_b_from_file(values, module->n_stacked, share, module->rank, turns, values + n);
    const qrun_status status = backend->copy_in(backend, b, values + n, (size_t)n_own * sizeof *values, err);
    qr_free(values);
    return status;
}

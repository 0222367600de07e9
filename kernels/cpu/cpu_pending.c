/* The ops of training that have no kernel of this backend yet: the reference's loops, on this backend's memory. */
#include "kernels/cpu/cpu.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"

#define CPU_PENDING_OPS(X)       \
    X(weight_backward)           \
    X(lora_backward)             \
    X(rms_norm_backward)         \
    X(layer_norm_backward)       \
    X(rope_backward)             \
    X(attention_packed)          \
    X(attention_packed_backward) \
    X(activation_backward)       \
    X(gate_backward)             \
    X(cross_entropy)             \
    X(embedding_backward)        \
    X(scatter_rows)              \
    X(dropout)                   \
    X(round_act)                 \
    X(sum_squares)               \
    X(adamw)                     \
    X(adamw8bit)                 \
    X(sgd)                       \
    X(adafactor)

#define QR_X(name)                                                                                          \
    static bool supports_##name(const qr_backend *backend, const void *args, qr_error *err) {               \
        (void)backend;                                                                                      \
        return qr_check_##name(args, err);                                                                  \
    }                                                                                                       \
    static size_t workspace_##name(const qr_backend *backend, const void *args) {                           \
        (void)backend;                                                                                      \
        return qr_ref_##name##_workspace(args);                                                             \
    }                                                                                                       \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) {  \
        (void)backend, (void)err;                                                                           \
        qr_ref_##name(args, workspace);                                                                     \
        return QRUN_OK;                                                                                     \
    }                                                                                                       \
    const qr_op_impl qr_cpu_op_##name = {supports_##name, workspace_##name, run_##name};
CPU_PENDING_OPS(QR_X)
#undef QR_X

/* linear_backward reads weights: they are brought into the reference's layout, at the front of the workspace, whose
 * codes are canonical and come first. The scales pass through the space behind it. */

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~(size_t)63; }

static qr_backend weight_functions_of_ref(void) {
    qr_backend ref = {.name = "ref"};
    qr_ref_set_weight_functions(&ref);
    return ref;
}

static bool supports_linear_backward(const qr_backend *backend, const void *args, qr_error *err) {
    (void)backend;
    return qr_check_linear_backward(args, err);
}

static size_t nested_bytes(const qr_weight_desc *desc) {
    return align64((size_t)(qr_weight_blocks(desc) / QR_NESTED_BLOCK + 1) * sizeof(float));
}

/* Room for the scales of any format: nested ones first, then as many floats as there are blocks or rows. */
static size_t scale_bytes(const qr_weight_desc *desc) {
    const int64_t n = qr_weight_is_nf4(desc->format) ? qr_weight_blocks(desc) : desc->rows;
    return nested_bytes(desc) + align64((size_t)n * sizeof(float));
}

static size_t workspace_linear_backward(const qr_backend *backend, const void *untyped) {
    (void)backend;
    const qr_linear_backward_args *args = untyped;
    const qr_backend ref = weight_functions_of_ref();
    const size_t run = qr_ref_linear_backward_workspace(args), scales = scale_bytes(&args->weight->desc);
    return ref.weight_bytes(&ref, &args->weight->desc) + align64(run > scales ? run : scales);
}

static qrun_status run_linear_backward(qr_backend *backend, const void *untyped, void *workspace, qr_error *err) {
    qr_linear_backward_args args = *(const qr_linear_backward_args *)untyped;
    qr_backend ref = weight_functions_of_ref();
    qr_weight weight = *args.weight;
    weight.data = workspace;
    unsigned char *behind = (unsigned char *)workspace + ref.weight_bytes(&ref, &weight.desc);
    qrun_status status = backend->weight_get_rows(backend, args.weight, 0, weight.desc.rows, weight.data, err);
    if (status != QRUN_OK) { return status; }
    float *floats = (float *)(void *)behind;
    uint8_t *codes = behind + nested_bytes(&weight.desc);
    status = backend->weight_get_scales(backend, args.weight, floats, floats, codes, floats, err);
    if (status != QRUN_OK) { return status; }
    const qr_weight_scales scales = {.row_absmax = floats, .absmax = floats, .absmax_codes = codes,
                                     .nested_absmax = floats, .nested_offset = weight.nested_offset};
    status = ref.weight_put_scales(&ref, &weight, &scales, err);
    if (status != QRUN_OK) { return status; }
    args.weight = &weight;
    qr_ref_linear_backward(&args, behind);
    return QRUN_OK;
}

const qr_op_impl qr_cpu_op_linear_backward = {supports_linear_backward, workspace_linear_backward, run_linear_backward};

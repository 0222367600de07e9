/* The vtable and memory of the reference backend. */
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "kernels/int16_sum.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"

enum { ALIGNMENT = 64 };

float qr_ref_load(const void *src, qr_dtype dtype, int64_t index) {
    switch (dtype) {
        case QR_DTYPE_F16: return qr_f16_to_f32(((const qr_f16 *)src)[index]);
        case QR_DTYPE_BF16: return qr_bf16_to_f32(((const qr_bf16 *)src)[index]);
        default: return ((const float *)src)[index];
    }
}

void qr_ref_store(void *dst, qr_dtype dtype, int64_t index, double value) {
    switch (dtype) {
        case QR_DTYPE_F16: ((qr_f16 *)dst)[index] = qr_f32_to_f16((float)value); break;
        case QR_DTYPE_BF16: ((qr_bf16 *)dst)[index] = qr_f32_to_bf16((float)value); break;
        default: ((float *)dst)[index] = (float)value; break;
    }
}

float qr_ref_round(float value, qr_dtype dtype) {
    switch (dtype) {
        case QR_DTYPE_F16: return qr_f16_to_f32(qr_f32_to_f16(value));
        case QR_DTYPE_BF16: return qr_bf16_to_f32(qr_f32_to_bf16(value));
        default: return value;
    }
}

/* The block from qr_alloc is remembered before the aligned memory. */
static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    (void)kind;
    size_t total;
    *memory = NULL;
    void *block = qr_size_add(n_bytes, ALIGNMENT + sizeof(void *), &total) ? qr_alloc_zeroed(total) : NULL;
    if (block == NULL) { return qr_fail_memory(err, "memory of the reference backend", n_bytes); }
    const uintptr_t first = (uintptr_t)block + sizeof(void *);
    unsigned char *aligned = (unsigned char *)block + sizeof(void *) + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT;
    memcpy(aligned - sizeof(void *), &block, sizeof block);
    *memory = aligned;
    qr_host_memory_taken(backend, n_bytes);
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    (void)kind;
    if (memory == NULL) { return; }
    void *block;
    memcpy(&block, (unsigned char *)memory - sizeof(void *), sizeof block);
    qr_free(block);
    qr_host_memory_released(backend, n_bytes);
}

#define QR_X(name)                                                                \
    static size_t workspace_##name(const qr_backend *backend, const void *args) { \
        (void)backend;                                                            \
        return qr_ref_##name##_workspace(args);                                   \
    }
QR_REF_WORKSPACE_OPS(QR_X)
#undef QR_X

#define QR_X(name)                                                                                         \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        (void)backend;                                                                                     \
        if (!qr_check_##name(args, err)) { return QRUN_ERROR_ARGUMENT; }                                   \
        qr_ref_##name(args, workspace);                                                                    \
        return QRUN_OK;                                                                                    \
    }
QR_OPS(QR_X)
#undef QR_X

static const qr_op_impl ops[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = {qr_op_supports_##name, qr_host_no_workspace, run_##name},
    QR_OPS(QR_X)
#undef QR_X
};

static qrun_status run_linear_portable(qr_backend *backend, const void *untyped, void *workspace, qr_error *err) {
    const qr_linear_args *args = untyped;
    if (args->x_dtype != QR_DTYPE_BF16) { return run_linear(backend, args, workspace, err); }
    if (!qr_check_linear(args, err)) { return QRUN_ERROR_ARGUMENT; }
    qr_ref_linear_in_tile_order(args, workspace);
    return QRUN_OK;
}

/* linear and expert_linear by integers, where these take x and the weights. */
#define QR_X(name, matrix)                                                                                             \
    static size_t workspace_##name##_int16(const qr_backend *backend, const void *args) {                              \
        (void)backend;                                                                                                 \
        return qr_ref_##name##_in_int16_workspace(args);                                                               \
    }                                                                                                                  \
    static qrun_status run_##name##_int16(qr_backend * backend, const void *untyped, void *workspace, qr_error *err) { \
        const qr_##name##_args *args = untyped;                                                                        \
        if (!qr_check_##name(args, err)) { return QRUN_ERROR_ARGUMENT; }                                               \
        if (args->x_dtype != QR_DTYPE_BF16 || !qr_int16_takes(&args->matrix->desc)) {                                  \
            return run_##name(backend, args, workspace, err);                                                          \
        }                                                                                                              \
        qr_ref_##name##_in_int16(args, workspace);                                                                     \
        return QRUN_OK;                                                                                                \
    }
QR_X(linear, weight)
QR_X(expert_linear, weights)
#undef QR_X

qrun_status qr_backend_ref_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    qr_host_backend *ref = qr_alloc_zeroed(sizeof *ref);
    if (ref == NULL) { return qr_fail_memory(err, "the reference backend", sizeof *ref); }
    ref->base = (qr_backend){
        .version = QR_BACKEND_VERSION,
        .name = "ref",
        .isa = "c",
        .threads = threads,
        .memory_create = memory_create,
        .memory_destroy = memory_destroy,
        .measure_peaks = qr_ref_measure_peaks,
    };
    qr_host_memory_set_functions(ref, &qr_ref_weights);
    memcpy(ref->base.ops, ops, sizeof ops);
#define QR_X(name) ref->base.ops[QR_OP_##name].workspace_bytes = workspace_##name;
    QR_REF_WORKSPACE_OPS(QR_X)
#undef QR_X
    *backend = &ref->base;
    return QRUN_OK;
}

qrun_status qr_backend_ref_create_portable(qr_threads *threads, qr_backend **backend, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_backend_ref_create(threads, backend, err));
    (*backend)->ops[QR_OP_linear].run = run_linear_portable;
    return QRUN_OK;
}

qrun_status qr_backend_ref_create_int16(qr_threads *threads, qr_backend **backend, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_backend_ref_create(threads, backend, err));
    qr_op_impl *linear = &(*backend)->ops[QR_OP_linear], *expert_linear = &(*backend)->ops[QR_OP_expert_linear];
    linear->workspace_bytes = workspace_linear_int16;
    linear->run = run_linear_int16;
    expert_linear->workspace_bytes = workspace_expert_linear_int16;
    expert_linear->run = run_expert_linear_int16;
    return QRUN_OK;
}

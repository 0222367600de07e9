/* The vtable, memory and copies of the reference backend. */
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
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

/* The block that qr_alloc gave is remembered in front of the aligned memory. */
static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    (void)kind;
    qr_ref_backend *ref = (qr_ref_backend *)backend;
    size_t total;
    *memory = NULL;
    void *block = qr_size_add(n_bytes, ALIGNMENT + sizeof(void *), &total) ? qr_alloc_zeroed(total) : NULL;
    if (block == NULL) { return qr_fail_memory(err, "memory of the reference backend", n_bytes); }
    const uintptr_t first = (uintptr_t)block + sizeof(void *);
    unsigned char *aligned = (unsigned char *)block + sizeof(void *) + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT;
    memcpy(aligned - sizeof(void *), &block, sizeof block);
    *memory = aligned;
    ref->bytes_held += n_bytes;
    if (ref->bytes_held > ref->bytes_peak) { ref->bytes_peak = ref->bytes_held; }
    return QRUN_OK;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    (void)kind;
    if (memory == NULL) { return; }
    void *block;
    memcpy(&block, (unsigned char *)memory - sizeof(void *), sizeof block);
    qr_free(block);
    ((qr_ref_backend *)backend)->bytes_held -= n_bytes;
}

static void memory_held(const qr_backend *backend, size_t *now, size_t *peak) {
    const qr_ref_backend *ref = (const qr_ref_backend *)backend;
    *now = ref->bytes_held;
    *peak = ref->bytes_peak;
}

static qrun_status copy(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    (void)backend;
    (void)err;
    if (n_bytes > 0) { memmove(dst, src, n_bytes); }
    return QRUN_OK;
}

/* There is nothing that a copy could run beside. */
static qrun_status transfer(qr_backend *backend, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    *ticket = 0;
    return copy(backend, dst, src, n_bytes, err);
}

static qrun_status transfer_wait(qr_backend *backend, uint64_t ticket, qr_error *err) {
    (void)backend, (void)ticket, (void)err;
    return QRUN_OK;
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    (void)backend;
    (void)err;
    if (n_bytes > 0) { memset(device, 0, n_bytes); }
    return QRUN_OK;
}

static qrun_status sync(qr_backend *backend, qr_error *err) {
    (void)backend;
    (void)err;
    return QRUN_OK;
}

static void destroy(qr_backend *backend) { qr_free(backend); }

#define QR_X(name)                                                                                         \
    static bool supports_##name(const qr_backend *backend, const void *args, qr_error *err) {              \
        (void)backend;                                                                                     \
        return qr_check_##name(args, err);                                                                 \
    }                                                                                                      \
    static size_t workspace_##name(const qr_backend *backend, const void *args) {                          \
        (void)backend;                                                                                     \
        return qr_ref_##name##_workspace(args);                                                            \
    }                                                                                                      \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        (void)backend;                                                                                     \
        if (!qr_check_##name(args, err)) { return QRUN_ERROR_ARGUMENT; }                                   \
        qr_ref_##name(args, workspace);                                                                    \
        return QRUN_OK;                                                                                    \
    }
QR_OPS(QR_X)
#undef QR_X

static const qr_op_impl ops[QR_OP_COUNT] = {
#define QR_X(name) [QR_OP_##name] = {supports_##name, workspace_##name, run_##name},
    QR_OPS(QR_X)
#undef QR_X
};

qrun_status qr_backend_ref_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    qr_ref_backend *ref = qr_alloc_zeroed(sizeof *ref);
    if (ref == NULL) { return qr_fail_memory(err, "the reference backend", sizeof *ref); }
    ref->base = (qr_backend){
        .version = QR_BACKEND_VERSION,
        .name = "ref",
        .isa = "c",
        .threads = threads,
        .destroy = destroy,
        .memory_create = memory_create,
        .memory_destroy = memory_destroy,
        .memory_held = memory_held,
        .copy_in = copy,
        .copy_in_async = copy,
        .copy_out = copy,
        .copy_within = copy,
        .fill_zero = fill_zero,
        .sync = sync,
        .transfer_in = transfer,
        .transfer_out = transfer,
        .transfer_wait = transfer_wait,
        .measure_limits = qr_ref_measure_limits,
    };
    qr_ref_set_weight_functions(&ref->base);
    memcpy(ref->base.ops, ops, sizeof ops);
    *backend = &ref->base;
    return QRUN_OK;
}

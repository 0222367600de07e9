/* The ops of training that have no kernel of this backend yet: the reference's loops, on this backend's memory. */
#include "kernels/cpu/cpu.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"

#define CPU_PENDING_OPS(X)       \
    X(attention_packed)          \
    X(attention_packed_backward)

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

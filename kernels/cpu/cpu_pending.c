/* Ops without kernels of their own run the reference's loops: device memory is ordinary memory here too. */
#include "kernels/cpu/cpu.h"
#include "kernels/op_check.h"
#include "kernels/ref/ref.h"

#define PENDING_OPS(X) \
    X(quantize) X(embedding) X(gather_rows) X(rms_norm) X(layer_norm) X(rope_table) X(rope) X(kv_write) X(attention) \
    X(activation) X(gate) X(add) X(softcap) X(nll)

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
    }                                                                                                      \
    const qr_op_impl qr_cpu_op_##name = {supports_##name, workspace_##name, run_##name};
PENDING_OPS(QR_X)
#undef QR_X

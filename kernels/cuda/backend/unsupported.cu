/* Entries of the ops that this backend lacks: they refuse, by name. */
#include "kernels/cuda/backend/unsupported.h"

#include "kernels/cuda/cuda.h"

#define QR_X(name)                                                                                                 \
    static qrun_status refuse_##name(qr_error *err) {                                                              \
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s is not in the cuda backend yet; use `device=cpu`", #name); \
    }                                                                                                              \
    const qr_op_impl qr_cuda_op_##name = {                                                                         \
        [](const qr_backend *, const void *, qr_error *err) { return refuse_##name(err) == QRUN_OK; },             \
        [](const qr_backend *, const void *) -> size_t { return 0; },                                              \
        [](qr_backend *, const void *, void *, qr_error *err) { return refuse_##name(err); }};
QR_CUDA_UNSUPPORTED_OPS(QR_X)
#undef QR_X

/* Entries of the ops that are not here: they refuse, by name. */
#include "kernels/cuda/backend/unsupported.h"

#include "kernels/cuda/cuda.h"

#define QR_X(name)                                                                                                     \
    const qr_op_impl qr_cuda_op_##name = {                                                                             \
        [](const qr_backend *, const void *, qr_error *err) {                                                          \
            qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s is not in the cuda backend yet; use --device cpu", #name);        \
            return false;                                                                                              \
        },                                                                                                             \
        [](const qr_backend *, const void *) -> size_t { return 0; },                                                  \
        [](qr_backend *, const void *, void *, qr_error *err) -> qrun_status {                                         \
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s is not in the cuda backend yet; use --device cpu", #name); \
        }};
QR_CUDA_UNSUPPORTED_OPS(QR_X)
#undef QR_X

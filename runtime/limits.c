/* What the machine can do at most, for speeds to be held against. */
#include <math.h>

#include "runtime/model.h"

qrun_status qrun_context_measure_limits(qrun_context *context, double seconds, qrun_limits *limits, qrun_error *error) {
    if (limits->struct_size != sizeof *limits) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "qrun_limits has an unknown size; begin with QRUN_LIMITS_INIT");
    }
    if (!isfinite(seconds) || seconds < 0.0 || seconds > 3600.0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "measuring for %g seconds is not possible; 0 to 3600 are", seconds);
    }
    qr_backend *backend = context->backend;
    qr_backend_limits measured = {0};
    pthread_mutex_lock(&context->compute_lock);
    const qrun_status status = backend->measure_limits(backend, seconds, &measured, error);
    pthread_mutex_unlock(&context->compute_lock);
    limits->read_bytes_per_second = measured.read_bytes_per_second;
    limits->bf16_flops = measured.bf16_flops;
    limits->f32_flops = measured.f32_flops;
    limits->f16_flops = measured.f16_flops > 0 ? measured.f16_flops : measured.bf16_flops;
    return status;
}

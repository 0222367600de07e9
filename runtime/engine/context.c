#include "runtime/engine/context.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/engine/device_memory.h"

#define QR_TEXT(x) #x
#define QR_VERSION_TEXT(major, minor, patch) QR_TEXT(major) "." QR_TEXT(minor) "." QR_TEXT(patch)

const char *qrun_version(void) { return QR_VERSION_TEXT(QRUN_VERSION_MAJOR, QRUN_VERSION_MINOR, QRUN_VERSION_PATCH); }

const char *qrun_status_name(qrun_status status) {
    switch (status) {
#define QRUN_X(name, value, message) \
    case QRUN_##name: return "QRUN_" #name;
        QRUN_STATUS_LIST(QRUN_X)
#undef QRUN_X
    }
    return "QRUN_UNKNOWN";
}

const char *qrun_status_message(qrun_status status) {
    switch (status) {
#define QRUN_X(name, value, message) \
    case QRUN_##name: return message;
        QRUN_STATUS_LIST(QRUN_X)
#undef QRUN_X
    }
    return "a status this library does not know";
}

void qrun_free(void *memory) { qr_free(memory); }

/* The GPU where it is asked for, or where "auto" finds a usable one; else the CPU, with the reason kept for
 * qrun_context_device_info. */
static qrun_status create_backend(qrun_context *context, const char *device, qr_error *err) {
    const bool is_auto = device == NULL || strcmp(device, "auto") == 0;
    if (!is_auto && strcmp(device, "cpu") != 0) { /* "cuda" */
        return qr_backend_cuda_create(context->threads, &context->backend, err);
    }
    if (is_auto) {
        qr_error refused = {0};
        if (qr_backend_cuda_create(context->threads, &context->backend, &refused) == QRUN_OK) { return QRUN_OK; }
        memcpy(context->device_note, refused.message, sizeof context->device_note);
    }
    return qr_backend_cpu_create(NULL, context->threads, &context->backend, err);
}

static qrun_status check_device(const char *device, qr_error *err) {
    static const char *const names[] = {"auto", "cpu", "cuda"};
    if (device == NULL) { return QRUN_OK; }
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(device, names[i]) == 0) { return QRUN_OK; }
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "there is no device \"%s\"; it is one of: auto, cpu, cuda", device);
}

qrun_status qrun_context_create(const qrun_context_params *params, qrun_context **context, qrun_error *error) {
    const qrun_context_params defaults = QRUN_CONTEXT_PARAMS_INIT;
    if (params == NULL) { params = &defaults; }
    *context = NULL;
    QR_RETURN_IF_ERROR(check_device(params->device, error));
    qrun_context *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the context", sizeof *made); }
    pthread_mutex_init(&made->compute_lock, NULL);
    qrun_status status = QRUN_OK;
    QR_TRY(qr_threads_create(params->n_threads, &made->threads, error));
    QR_TRY(create_backend(made, params->device, error));
    *context = made;
    return QRUN_OK;
out:
    qrun_context_destroy(made);
    return status;
}

void qrun_context_destroy(qrun_context *context) {
    if (context == NULL) { return; }
    qr_backend_destroy(context->backend);
    qr_threads_destroy(context->threads);
    pthread_mutex_destroy(&context->compute_lock);
    qr_free(context);
}

qrun_status qrun_context_device_info(const qrun_context *context, qrun_device_info *info, qrun_error *error) {
    qr_device_memory memory;
    const qrun_status status = qr_device_memory_now(context->backend, &memory, error);
    info->backend = context->backend->name;
    info->isa = context->backend->isa;
    info->note = context->device_note[0] != '\0' ? context->device_note : NULL;
    info->n_threads = qr_threads_count(context->threads);
    info->memory_bytes = memory.total_bytes;
    info->memory_available_bytes = memory.free_bytes;
    info->context_bytes = memory.context_bytes;
    return status;
}

qrun_status qrun_context_measure_limits(qrun_context *context, double seconds, qrun_limits *limits, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_limits, limits, error));
    if (!isfinite(seconds) || seconds < 0.0 || seconds > 3600.0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "measuring takes 0 to 3600 seconds, not %g", seconds);
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

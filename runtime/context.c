/* Contexts, statuses and what the machine is. */
#include <string.h>

#include "base/alloc.h"
#include "runtime/machine.h"
#include "runtime/model.h"

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

static qrun_status check_device(const char *device, qr_error *err) {
    if (device == NULL || strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "device \"%s\" is not in this build; use \"cpu\" or \"auto\"", device);
}

qrun_status qrun_context_create(const qrun_context_params *params, qrun_context **context, qrun_error *error) {
    const qrun_context_params defaults = QRUN_CONTEXT_PARAMS_INIT;
    if (params == NULL) { params = &defaults; }
    *context = NULL;
    qrun_status status = check_device(params->device, error);
    if (status != QRUN_OK) { return status; }
    qrun_context *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the context", sizeof *made); }
    pthread_mutex_init(&made->compute_lock, NULL);
    QR_TRY(qr_threads_create(params->n_threads, &made->threads, error));
    QR_TRY(qr_backend_cpu_create(NULL, made->threads, &made->backend, error));
out:
    if (status == QRUN_OK) {
        *context = made;
    } else {
        qrun_context_destroy(made);
    }
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
    (void)error;
    info->backend = context->backend->name;
    info->isa = context->backend->isa;
    info->n_threads = qr_threads_count(context->threads);
    qr_machine_memory(&info->memory_bytes, &info->memory_available_bytes);
    return QRUN_OK;
}

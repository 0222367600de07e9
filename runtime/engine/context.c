#include "runtime/engine/context.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/sizes.h"
#include "kernels/device_links.h"
#include "kernels/profile.h"
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

/* Portable numerics are of the CPU alone. */
static qrun_status create_portable_backend(qrun_context *context, const char *device, qr_error *err) {
    if (device != NULL && strncmp(device, "cuda", 4) == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "`numerics=portable` is not available on GPUs; use `device=cpu`, or leave `numerics` alone");
    }
    if (device == NULL || strcmp(device, "auto") == 0) {
        (void)snprintf(context->device_note, sizeof context->device_note, "`numerics=portable` runs on the CPU");
    }
    return qr_backend_cpu_create_portable(NULL, context->threads, &context->backend, err);
}

/* Of "cuda:N", N; of "cuda" and "auto" −1; of what is no device −2. */
static int32_t gpu_of(const char *device) {
    enum { MOST_DIGITS = 3 };
    int32_t number = 0;
    if (strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0) { return -1; }
    const char *digits = device + strlen("cuda:");
    if (strncmp(device, "cuda:", strlen("cuda:")) != 0 || *digits == '\0' || strlen(digits) > MOST_DIGITS) {
        return -2;
    }
    for (; *digits >= '0' && *digits <= '9'; digits++) { number = number * 10 + (*digits - '0'); }
    return *digits == '\0' ? number : -2;
}

/* The GPU where it is asked for, or where "auto" finds a usable one; else the CPU, with the reason kept for
 * qrun_context_device_info. */
static qrun_status create_backend(qrun_context *context, const char *device, qr_error *err) {
    const qr_gpu_choice gpu = {.ordinal = device != NULL ? gpu_of(device) : -1,
                               .local_rank = context->ranks != NULL ? context->ranks->local_rank : 0};
    const bool is_auto = device == NULL || strcmp(device, "auto") == 0;
    if (context->numerics == QRUN_NUMERICS_PORTABLE) { return create_portable_backend(context, device, err); }
    if (!is_auto && strcmp(device, "cpu") != 0) { /* "cuda", "cuda:1" */
        return qr_backend_cuda_create_for(&gpu, context->threads, &context->backend, err);
    }
    if (is_auto) {
        qr_error refused = {0};
        if (qr_backend_cuda_create_for(&gpu, context->threads, &context->backend, &refused) == QRUN_OK) {
            return QRUN_OK;
        }
        memcpy(context->device_note, refused.message, sizeof context->device_note);
    }
    return qr_backend_cpu_create(NULL, context->threads, &context->backend, err);
}

static qrun_status create_processor(qrun_context *context, qr_error *err) {
    context->processor = context->backend;
    if (context->backend->memory_info == NULL) { return QRUN_OK; }
    return qr_backend_cpu_create(NULL, context->threads, &context->processor, err);
}

static qrun_status check_device(const char *device, qr_error *err) {
    if (device == NULL || gpu_of(device) >= -1) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "there is no device \"%s\"; it is one of: auto, cpu, cuda, cuda:0, cuda:1 …", device);
}

/* Threads and the device. */
static qrun_status make_parts(qrun_context *context, const qrun_context_params *params, qr_error *err) {
    if (params->device_memory != NULL) {
        QR_RETURN_IF_ERROR(qr_named_device_find(params->device_memory, &context->plans_for, err));
    }
    QR_RETURN_IF_ERROR(qr_threads_create(params->n_threads, &context->threads, err));
    return create_backend(context, params->device, err);
}

qrun_status qrun_context_create(const qrun_context_params *params, qrun_context **context, qrun_error *error) {
    const qrun_context_params defaults = QRUN_CONTEXT_PARAMS_INIT;
    if (params == NULL) { params = &defaults; }
    *context = NULL;
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_context_params, params, error));
    QR_RETURN_IF_ERROR(check_device(params->device, error));
    const qr_range ranges[] = {
        {.name = "`numerics`", .value = (double)params->numerics, .high = QRUN_NUMERICS_PORTABLE},
        {.name = "`collective_timeout`", .value = params->collective_timeout, .high = 1e6}};
    QR_RETURN_IF_ERROR(qr_check_ranges(ranges, QR_COUNT_OF(ranges), error));
    qrun_context *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(error, "the context", sizeof *made); }
    made->numerics = params->numerics;
    pthread_mutex_init(&made->compute_lock, NULL);
    pthread_mutex_init(&made->compute_turn, NULL);
    qrun_status status = QRUN_OK;
    if (params->ranks) { QR_TRY(qr_collectives_open(params->collective_timeout, &made->ranks, error)); }
    status = make_parts(made, params, error);
    if (made->ranks != NULL) { status = qr_agree(made->ranks, status, error); }
    if (status != QRUN_OK) { goto out; }
    if (made->ranks != NULL) { QR_TRY(qr_collectives_link_devices(made->ranks, made->backend, error)); }
    QR_TRY(create_processor(made, error));
    *context = made;
    return QRUN_OK;
out:
    qrun_context_destroy(made);
    return status;
}

void qrun_context_destroy(qrun_context *context) {
    if (context == NULL) { return; }
    qr_collectives_destroy(context->ranks);
    if (context->backend != NULL) { qrun_context_timeline_end(context); }
    if (context->processor != context->backend) { qr_backend_destroy(context->processor); }
    qr_backend_destroy(context->backend);
    qr_threads_destroy(context->threads);
    pthread_mutex_destroy(&context->compute_turn);
    pthread_mutex_destroy(&context->compute_lock);
    qr_free(context);
}

/* A mutex alone would go to the thread that has just let go of it, because it is still running. */
void qr_compute_lock(qrun_context *context) {
    pthread_mutex_lock(&context->compute_turn);
    pthread_mutex_lock(&context->compute_lock);
    pthread_mutex_unlock(&context->compute_turn);
}

void qr_compute_unlock(qrun_context *context) { pthread_mutex_unlock(&context->compute_lock); }

qrun_status qrun_context_device_info(const qrun_context *context, qrun_device_info *info, qrun_error *error) {
    qr_device_memory memory;
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_device_info, info, error));
    const qrun_status status = qr_device_memory_now(context, &memory, error);
    info->backend = context->backend->name;
    info->isa = context->backend->isa;
    info->note = context->device_note[0] != '\0' ? context->device_note : NULL;
    info->numerics = context->numerics == QRUN_NUMERICS_PORTABLE ? "portable" : "fastest";
    info->rank = context->ranks != NULL ? context->ranks->rank : 0;
    info->n_ranks = context->ranks != NULL ? context->ranks->n_ranks : 1;
    info->n_threads = qr_threads_count(context->threads);
    info->memory_bytes = memory.total_bytes;
    info->memory_available_bytes = memory.free_bytes;
    info->context_bytes = memory.context_bytes;
    info->features[0] = '\0';
    if (context->backend->features != NULL) {
        context->backend->features(context->backend, info->features, sizeof info->features);
    }
    if (context->ranks != NULL && context->ranks->devices_note[0] != '\0') {
        const size_t used = strlen(info->features);
        (void)snprintf(info->features + used, sizeof info->features - used, "; ranks by %s",
                       context->ranks->devices_note);
    }
    return status;
}

qrun_status qrun_context_measure_peaks(qrun_context *context, double seconds, qrun_peaks *peaks, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_peaks, peaks, error));
    if (!isfinite(seconds) || seconds < 0.0 || seconds > 3600.0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "measuring takes 0 to 3600 seconds, not %g", seconds);
    }
    qr_backend *backend = context->backend;
    qr_backend_peaks measured = {0};
    qr_compute_lock(context);
    const qrun_status status = backend->measure_peaks(backend, seconds, &measured, error);
    qr_compute_unlock(context);
    peaks->read_bytes_per_second = measured.read_bytes_per_second;
    peaks->bf16_flops = measured.bf16_flops;
    peaks->f32_flops = measured.f32_flops;
    peaks->f16_flops = measured.f16_flops > 0 ? measured.f16_flops : measured.bf16_flops;
    return status;
}

qrun_status qrun_context_profile_begin(qrun_context *context, qrun_error *error) {
    qr_compute_lock(context);
    const qrun_status status = qr_profile_begin(context->backend, error);
    qr_compute_unlock(context);
    return status;
}

qrun_status qrun_context_profile_end(qrun_context *context, qrun_op_time **ops, int32_t *n_ops, qrun_error *error) {
    qr_op_time *times = NULL;
    int32_t n = 0;
    *ops = NULL;
    *n_ops = 0;
    qr_compute_lock(context);
    const qrun_status status = qr_profile_end(context->backend, &times, &n, error);
    qr_compute_unlock(context);
    if (status != QRUN_OK) { return status; }
    *ops = qr_alloc_zeroed((size_t)n * sizeof **ops + 1);
    for (int32_t i = 0; i < n && *ops != NULL; i++) {
        const qr_op_time *time = &times[i];
        (*ops)[i] = (qrun_op_time){.op = qr_op_name(time->op),
                                   .n_calls = time->n_calls,
                                   .seconds = time->seconds,
                                   .bytes = time->bytes,
                                   .flops = time->flops};
        memcpy((*ops)[i].shape, time->shape, sizeof time->shape);
    }
    qr_free(times);
    if (*ops == NULL) { return qr_fail_memory(error, "times of ops", (size_t)n * sizeof **ops); }
    *n_ops = n;
    return QRUN_OK;
}

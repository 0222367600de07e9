#include "runtime/engine/device_memory.h"

#include <unistd.h>

#include "base/sizes.h"
#include "runtime/engine/cgroup_memory.h"

/* Bytes of the machine, or of the container where that is less, and how many are free now. */
static void machine_memory(int64_t *total, int64_t *available) {
    *total = qr_read_number("/proc/meminfo", "MemTotal:") * 1024;
    *available = qr_read_number("/proc/meminfo", "MemAvailable:") * 1024;
    if (*total <= 0) { *total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }
    if (*available <= 0) { *available = *total; }
    const qr_cgroup_memory container = qr_cgroup_memory_now("");
    *total = qr_min(*total, container.limit_bytes);
    *available = qr_min(*available, container.available_bytes);
}

static qr_device_memory memory_of_named(const qr_named_device *device) {
    return (qr_device_memory){.total_bytes = device->total_bytes,
                              .free_bytes = device->total_bytes - QR_NAMED_DEVICE_CONTEXT_BYTES,
                              .context_bytes = QR_NAMED_DEVICE_CONTEXT_BYTES,
                              .is_separate = true,
                              .host_free_bytes = INT64_MAX};
}

qrun_status qr_device_memory_now(const qrun_context *context, qr_device_memory *memory, qr_error *err) {
    const qr_backend *backend = context->backend;
    int64_t total, available;
    if (context->plans_for != NULL) {
        *memory = memory_of_named(context->plans_for);
        return QRUN_OK;
    }
    machine_memory(&total, &available);
    *memory = (qr_device_memory){.total_bytes = total, .free_bytes = available};
    if (backend->memory_info == NULL) { return QRUN_OK; }
    qr_backend_memory own;
    const qrun_status status = backend->memory_info(backend, &own, err);
    *memory = (qr_device_memory){.total_bytes = own.total_bytes,
                                 .free_bytes = own.free_bytes,
                                 .context_bytes = own.context_bytes,
                                 .is_separate = true,
                                 .host_free_bytes = available};
    return status;
}

/* What is missing is missing whole. */
static int64_t tenths(int64_t free_bytes, int64_t n) { return free_bytes > 0 ? free_bytes / 10 * n : free_bytes; }

int64_t qr_device_memory_for_training(const qr_device_memory *memory) { return tenths(memory->free_bytes, 9); }

int64_t qr_device_memory_for_session(const qr_device_memory *memory) {
    return tenths(memory->free_bytes, memory->is_separate ? 9 : 5);
}

int64_t qr_device_memory_for_weights(const qr_device_memory *memory, int64_t budget) {
    const int64_t given = budget - qr_device_memory_context(memory);
    if (budget == 0) { return qr_device_memory_for_training(memory); }
    return memory->is_separate ? qr_min(given, memory->free_bytes) : given;
}

int64_t qr_device_memory_peak(const qr_backend *backend) {
    size_t now, peak;
    qr_backend_memory own = {0};
    backend->memory_held(backend, &now, &peak);
    if (backend->memory_info != NULL) { (void)backend->memory_info(backend, &own, NULL); }
    return (int64_t)peak + qr_max(own.context_bytes, 0);
}

int64_t qr_device_memory_host_peak(const qr_backend *backend) {
    qr_backend_memory own = {0};
    if (backend->memory_info != NULL) { (void)backend->memory_info(backend, &own, NULL); }
    return own.host_peak_bytes;
}

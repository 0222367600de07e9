#include "runtime/engine/device_memory.h"

#include "base/sizes.h"
#include "runtime/engine/machine.h"

qrun_status qr_device_memory_now(const qr_backend *backend, qr_device_memory *memory, qr_error *err) {
    int64_t total, available;
    qr_machine_memory(&total, &available);
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

int64_t qr_device_memory_for_training(const qr_device_memory *memory) { return memory->free_bytes / 10 * 9; }

int64_t qr_device_memory_for_session(const qr_device_memory *memory) {
    return memory->is_separate ? memory->free_bytes / 10 * 9 : memory->free_bytes / 2;
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

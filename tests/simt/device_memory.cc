/* kernels/cuda/device/memory.h with the sizes that device_state.h is told. */
#include "kernels/cuda/device/memory.h"

#include <stdlib.h>
#include <string.h>

#include "device_state.h"

void qr_device_memory_before_context(qr_device *device) { device->context_bytes = 0; }

qrun_status qr_device_memory_measure_context(qr_device *device, qr_error *err) {
    const char *text = getenv("QRUN_SIMT_CONTEXT");
    const bool known = text == NULL || strcmp(text, "unknown") != 0;
    device->context_bytes = !known ? -1 : text != NULL ? strtoll(text, NULL, 10) : 0;
    return qr_device_use(device, err);
}

qrun_status qr_device_memory_info(const qr_device *device, int64_t *total_bytes, int64_t *free_bytes,
                                  int64_t *context_bytes, qr_error *err) {
    qr_device *own = const_cast<qr_device *>(device);
    const qrun_status status = qr_device_use(own, err);
    const std::lock_guard<std::mutex> held(own->lock);
    *total_bytes = device->memory_bytes;
    *context_bytes = device->context_bytes;
    *free_bytes = device->memory_bytes - (device->context_bytes > 0 ? device->context_bytes : 0) - device->held_bytes;
    return status;
}

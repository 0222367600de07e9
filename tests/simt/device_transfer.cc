/* kernels/cuda/device_transfer.h over host memory. */
#include "kernels/cuda/device_transfer.h"

#include <string.h>

#include "device_state.h"

struct qr_device_event {
    uint64_t after; /* copies issued before it */
};

qrun_status qr_device_event_create(qr_device *device, qr_device_event **event, qr_error *err) {
    *event = new qr_device_event();
    return qr_device_use(device, err);
}

void qr_device_event_destroy(qr_device *, qr_device_event *event) { delete event; }

qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err) {
    const std::lock_guard<std::mutex> held(device->lock);
    event->after = device->n_copies;
    return qr_device_use(device, err);
}

qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err) {
    qr_device_settle(device, event->after);
    return qr_device_use(device, err);
}

/* What is there now arrives at the wait; until then the destination holds nothing of use. */
qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    if (status != QRUN_OK || n_bytes == 0) { return status; }
    const unsigned char *first = static_cast<const unsigned char *>(src);
    const std::lock_guard<std::mutex> held(device->lock);
    device->pending.push_back({static_cast<unsigned char *>(host), std::vector<unsigned char>(first, first + n_bytes),
                               ++device->n_copies, true});
    memset(host, 0xFF, n_bytes);
    return QRUN_OK;
}

size_t qr_device_piece_bytes(const qr_device *) { return 64 << 10; }

/* kernels/cuda/device/transfer.h over host memory. */
#include "kernels/cuda/device/transfer.h"

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

/* What is there now arrives at the wait; until then the destination is poisoned. */
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

/* --- In a second stream --- */

void qr_device_do_transfers(qr_device *device, uint64_t number) {
    const std::lock_guard<std::mutex> held(device->lock);
    size_t n_done = 0;
    for (; n_done < device->transfers.size() && device->transfers[n_done].number <= number; n_done++) {
        const pending_transfer &one = device->transfers[n_done];
        if (one.n_bytes > 0) { memcpy(one.dst, one.src, one.n_bytes); }
    }
    device->transfers.erase(device->transfers.begin(), device->transfers.begin() + static_cast<ptrdiff_t>(n_done));
}

/* As late as the wait, or now: both are what a device may do. */
static qrun_status transfer(qr_device *device, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    qrun_status status = qr_device_refuse_recording(device, "a transfer", err);
    if (status == QRUN_OK) { status = qr_device_use(device, err); }
    if (status != QRUN_OK) { return status; }
    {
        const std::lock_guard<std::mutex> held(device->lock);
        *ticket = ++device->n_transfers;
        device->transfers.push_back({dst, src, n_bytes, *ticket});
    }
    device->transfer_seed = device->transfer_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (device->transfer_seed >> 62 == 0) { qr_device_do_transfers(device); }
    return QRUN_OK;
}

qrun_status qr_device_transfer_in(qr_device *device, void *dst, const void *host, size_t n_bytes, uint64_t *ticket,
                                  qr_error *err) {
    return transfer(device, dst, host, n_bytes, ticket, err);
}

qrun_status qr_device_transfer_out(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                   qr_error *err) {
    return transfer(device, host, src, n_bytes, ticket, err);
}

qrun_status qr_device_transfer_wait(qr_device *device, uint64_t ticket, qr_error *err) {
    const qrun_status refused = qr_device_refuse_recording(device, "a transfer", err);
    if (refused != QRUN_OK) { return refused; }
    qr_device_do_transfers(device, ticket);
    return qr_device_use(device, err);
}

size_t qr_device_piece_bytes(const qr_device *) { return 64 << 10; }

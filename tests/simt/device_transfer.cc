/* kernels/cuda/device/transfer.h over host memory. */
#include "kernels/cuda/device/transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_state.h"
#include "early_launch.h"

struct qr_device_event {
    uint64_t after; /* copies issued before it */
};

qrun_status qr_device_event_create(qr_device *device, qr_device_event **event, qr_error *err) {
    *event = new qr_device_event();
    return qr_device_use(device, err);
}

void qr_device_event_destroy(qr_device *, qr_device_event *event) { delete event; }

qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    const std::lock_guard<std::mutex> held(device->lock);
    event->after = device->n_copies;
    return status;
}

qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err) {
    qr_device_settle(device, event->after);
    return qr_device_use(device, err);
}

/* What is there now arrives at the wait; until then the destination is poisoned. */
qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    if (status != QRUN_OK || n_bytes == 0) { return status; }
    simt::early_order_all();
    const unsigned char *first = static_cast<const unsigned char *>(src);
    const std::lock_guard<std::mutex> held(device->lock);
    device->pending.push_back({static_cast<unsigned char *>(host), std::vector<unsigned char>(first, first + n_bytes),
                               ++device->n_copies, true});
    memset(host, 0xFF, n_bytes);
    return QRUN_OK;
}

/* The number of the copy names it: waiting for it waits for all before. */
qrun_status qr_device_copy_out_begin(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                     qr_error *err) {
    qrun_status status = qr_device_refuse_recording(device, "a copy that is waited for", err);
    if (status == QRUN_OK) { status = qr_device_copy_out_async(device, host, src, n_bytes, err); }
    const std::lock_guard<std::mutex> held(device->lock);
    *ticket = device->n_copies;
    return status;
}

qrun_status qr_device_copy_out_end(qr_device *device, uint64_t ticket, qr_error *err) {
    const qrun_status refused = qr_device_refuse_recording(device, "a wait", err);
    if (refused != QRUN_OK) { return refused; }
    qr_device_settle(device, ticket);
    return qr_device_use(device, err);
}

/* --- In a second stream: one after the other, at any time from being issued until somebody waits --- */

static uint64_t random_below(qr_device *device, uint64_t n) {
    device->transfer_seed = device->transfer_seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (device->transfer_seed >> 33) % n;
}

/* Nobody may read what will be overwritten, nor write what will be read. */
static void begin(pending_transfer &one) {
    one.is_under_way = true;
    one.bytes.assign(one.src, one.src + one.n_bytes);
    if (one.n_bytes > 0) { memset(one.dst, 0xFF, one.n_bytes); }
}

/* Copies up to the byte n_done of it. */
static void go_on(pending_transfer &one, size_t n_done) {
    const size_t n_bytes = n_done - one.n_done;
    if (n_bytes > 0 && memcmp(one.src + one.n_done, one.bytes.data() + one.n_done, n_bytes) != 0) {
        fprintf(stderr, "simt: the source of transfer %llu was changed before anybody waited for it\n",
                static_cast<unsigned long long>(one.number));
        abort();
    }
    if (n_bytes > 0) { memcpy(one.dst + one.n_done, one.bytes.data() + one.n_done, n_bytes); }
    one.n_done = n_done;
}

/* The first of the queue ends, and the next one begins. */
static void end_first(qr_device *device) {
    pending_transfer &first = device->transfers.front();
    go_on(first, first.n_bytes);
    device->transfers.erase(device->transfers.begin());
    if (!device->transfers.empty()) { begin(device->transfers.front()); }
}

void qr_device_do_transfers(qr_device *device, uint64_t number) {
    const std::lock_guard<std::mutex> held(device->lock);
    while (!device->transfers.empty() && device->transfers.front().number <= number) { end_first(device); }
}

void qr_device_go_on_transferring(qr_device *device) {
    const std::lock_guard<std::mutex> held(device->lock);
    while (!device->transfers.empty()) {
        pending_transfer &first = device->transfers.front();
        switch (random_below(device, 4)) {
            case 0: end_first(device); break; /* and the next one may end too */
            case 1: go_on(first, first.n_done + random_below(device, first.n_bytes - first.n_done + 1)); return;
            default: return;
        }
    }
}

static qrun_status transfer(qr_device *device, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    qrun_status status = qr_device_refuse_recording(device, "a transfer", err);
    if (status == QRUN_OK) { status = qr_device_use(device, err); }
    if (status != QRUN_OK) { return status; }
    const std::lock_guard<std::mutex> held(device->lock);
    *ticket = ++device->n_transfers;
    device->transfers.push_back(
        {static_cast<unsigned char *>(dst), static_cast<const unsigned char *>(src), n_bytes, *ticket, false, 0, {}});
    if (device->transfers.size() == 1) { begin(device->transfers.front()); }
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
    simt::early_order_all(); /* a stream that waits for an event launches nothing before it */
    return qr_device_use(device, err);
}

size_t qr_device_piece_bytes(const qr_device *) { return 64 << 10; }

/* device/transfer.h over CUDA's runtime. */
#include "kernels/cuda/device/transfer.h"

#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/alloc.h"
}

struct qr_device_event {
    cudaEvent_t event;
};

qrun_status qr_device_event_create(qr_device *device, qr_device_event **event, qr_error *err) {
    *event = NULL;
    qr_device_event *made = static_cast<qr_device_event *>(qr_alloc_zeroed(sizeof *made));
    if (made == NULL) { return qr_fail_memory(err, "the cuda backend", sizeof *made); }
    /* A thread that waits sleeps: others have rows to read meanwhile. */
    const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_enter(device, err));
    QR_TRY(qr_device_make_event(device, &made->event, flags, err));
    *event = made;
    return QRUN_OK;
out:
    qr_free(made);
    return status;
}

void qr_device_event_destroy(qr_device *device, qr_device_event *event) {
    if (event == NULL) { return; }
    if (cudaSetDevice(device->index) == cudaSuccess) { cudaEventDestroy(event->event); }
    qr_free(event);
}

qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_record_event(device, event->event, device->stream, err);
}

qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_check(device, cudaEventSynchronize(event->event), "waiting for the GPU", err);
}

qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_enter(device, err);
    if (status != QRUN_OK || n_bytes == 0) { return status; }
    return qr_device_check(device, cudaMemcpyAsync(host, src, n_bytes, cudaMemcpyDeviceToHost, device->stream),
                           "copying", err);
}

qrun_status qr_device_copy_out_begin(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                     qr_error *err) {
    const uint64_t number = device->n_copies_out + 1;
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a copy that is waited for", err));
    QR_RETURN_IF_ERROR(qr_device_copy_out_async(device, host, src, n_bytes, err));
    QR_RETURN_IF_ERROR(
        qr_device_record_event(device, device->copied_out[number % QR_DEVICE_COPIES_OUT], device->stream, err));
    device->n_copies_out = number;
    *ticket = number;
    return QRUN_OK;
}

qrun_status qr_device_copy_out_end(qr_device *device, uint64_t ticket, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a wait", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_check(device, cudaEventSynchronize(device->copied_out[ticket % QR_DEVICE_COPIES_OUT]),
                           "waiting for the GPU", err);
}

/* --- In a second stream --- */

qrun_status qr_device_transfers_open(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaStreamCreateWithFlags(&device->transfers, cudaStreamNonBlocking),
                                       "creating a stream", err));
    QR_RETURN_IF_ERROR(qr_device_make_event(device, &device->issued, cudaEventDisableTiming, err));
    for (cudaEvent_t &event : device->arrived) {
        QR_RETURN_IF_ERROR(qr_device_make_event(device, &event, cudaEventDisableTiming, err));
    }
    for (cudaEvent_t &event : device->copied_out) {
        QR_RETURN_IF_ERROR(qr_device_make_event(device, &event, cudaEventDisableTiming, err));
    }
    return QRUN_OK;
}

void qr_device_transfers_close(qr_device *device) {
    if (device->transfers == NULL) { return; }
    cudaStreamSynchronize(device->transfers);
    if (device->issued != NULL) { cudaEventDestroy(device->issued); }
    for (cudaEvent_t event : device->arrived) {
        if (event != NULL) { cudaEventDestroy(event); }
    }
    for (cudaEvent_t event : device->copied_out) {
        if (event != NULL) { cudaEventDestroy(event); }
    }
    cudaStreamDestroy(device->transfers);
}

/* A stream waits for the position that an event had when it was told to wait, so recording the event again for the next
 * transfer does not affect this one. */
static qrun_status transfer(qr_device *device, void *dst, const void *src, size_t n_bytes, cudaMemcpyKind kind,
                            uint64_t *ticket, qr_error *err) {
    const uint64_t number = device->n_transfers + 1;
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a transfer", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(qr_device_record_event(device, device->issued, device->stream, err));
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaStreamWaitEvent(device->transfers, device->issued, 0), "ordering a copy", err));
    if (n_bytes > 0) {
        QR_RETURN_IF_ERROR(
            qr_device_check(device, cudaMemcpyAsync(dst, src, n_bytes, kind, device->transfers), "copying", err));
    }
    QR_RETURN_IF_ERROR(
        qr_device_record_event(device, device->arrived[number % QR_DEVICE_TICKETS], device->transfers, err));
    device->n_transfers = number;
    *ticket = number;
    return QRUN_OK;
}

qrun_status qr_device_transfer_in(qr_device *device, void *dst, const void *host, size_t n_bytes, uint64_t *ticket,
                                  qr_error *err) {
    return transfer(device, dst, host, n_bytes, cudaMemcpyHostToDevice, ticket, err);
}

qrun_status qr_device_transfer_out(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                   qr_error *err) {
    return transfer(device, host, src, n_bytes, cudaMemcpyDeviceToHost, ticket, err);
}

qrun_status qr_device_transfer_wait(qr_device *device, uint64_t ticket, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a transfer", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    if (ticket == 0) { return QRUN_OK; }
    return qr_device_check(device, cudaStreamWaitEvent(device->stream, device->arrived[ticket % QR_DEVICE_TICKETS], 0),
                           "ordering an op", err);
}

size_t qr_device_piece_bytes(const qr_device *) { return static_cast<size_t>(4) << 20; }

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
    qrun_status status = qr_device_enter(device, err);
    if (status == QRUN_OK) {
        status = qr_device_check(device, cudaEventCreateWithFlags(&made->event, flags), "creating an event", err);
    }
    if (status == QRUN_OK) {
        *event = made;
    } else {
        qr_free(made);
    }
    return status;
}

void qr_device_event_destroy(qr_device *device, qr_device_event *event) {
    if (event == NULL) { return; }
    if (cudaSetDevice(device->index) == cudaSuccess) { cudaEventDestroy(event->event); }
    qr_free(event);
}

qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_check(device, cudaEventRecord(event->event, device->stream), "recording an event", err);
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

/* --- Beside the stream --- */

qrun_status qr_device_transfers_open(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaStreamCreateWithFlags(&device->transfers, cudaStreamNonBlocking),
                                       "creating a stream", err));
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaEventCreateWithFlags(&device->issued, cudaEventDisableTiming),
                                       "creating an event", err));
    for (cudaEvent_t &event : device->arrived) {
        QR_RETURN_IF_ERROR(qr_device_check(device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                           "creating an event", err));
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
    cudaStreamDestroy(device->transfers);
}

/* An event holds back a stream at the place that it had when the stream was told to wait, so recording it anew for the
 * next transfer changes nothing for this one. */
static qrun_status transfer(qr_device *device, void *dst, const void *src, size_t n_bytes, cudaMemcpyKind kind,
                            uint64_t *ticket, qr_error *err) {
    const uint64_t number = device->n_transfers + 1;
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a transfer", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaEventRecord(device->issued, device->stream), "recording an event", err));
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaStreamWaitEvent(device->transfers, device->issued, 0), "ordering a copy", err));
    if (n_bytes > 0) {
        QR_RETURN_IF_ERROR(
            qr_device_check(device, cudaMemcpyAsync(dst, src, n_bytes, kind, device->transfers), "copying", err));
    }
    QR_RETURN_IF_ERROR(qr_device_check(device,
                                       cudaEventRecord(device->arrived[number % QR_DEVICE_TICKETS], device->transfers),
                                       "recording an event", err));
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
    qrun_status status = qr_device_refuse_recording(device, "a transfer", err);
    if (status == QRUN_OK) { status = qr_device_enter(device, err); }
    if (status != QRUN_OK || ticket == 0) { return status; }
    return qr_device_check(device, cudaStreamWaitEvent(device->stream, device->arrived[ticket % QR_DEVICE_TICKETS], 0),
                           "ordering an op", err);
}

size_t qr_device_piece_bytes(const qr_device *) { return static_cast<size_t>(4) << 20; }

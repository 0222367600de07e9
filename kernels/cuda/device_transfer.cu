/* device_transfer.h over CUDA's runtime. */
#include "kernels/cuda/device_transfer.h"

#include "kernels/cuda/device_state.cuh"

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
    const qrun_status status = qr_device_enter(device, err);
    if (status != QRUN_OK) { return status; }
    return qr_device_check(device, cudaEventRecord(event->event, device->stream), "recording an event", err);
}

qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err) {
    const qrun_status status = qr_device_enter(device, err);
    if (status != QRUN_OK) { return status; }
    return qr_device_check(device, cudaEventSynchronize(event->event), "waiting for the GPU", err);
}

qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_enter(device, err);
    if (status != QRUN_OK || n_bytes == 0) { return status; }
    return qr_device_check(device, cudaMemcpyAsync(host, src, n_bytes, cudaMemcpyDeviceToHost, device->stream),
                           "copying", err);
}

size_t qr_device_piece_bytes(const qr_device *) { return static_cast<size_t>(4) << 20; }

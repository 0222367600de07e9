/* device/marks.h over CUDA's events. Where the device is kept busy first, what is timed is issued while it waits: then
 * there is no launch between two events, only work. */
#include "kernels/cuda/device/marks.h"

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/alloc.h"
}

#define QR_GPU_ONLY

enum { HOLD_NANOSECONDS = 30 * 1000 * 1000 };

struct qr_device_marks {
    int32_t n;
    cudaEvent_t events[]; /* NULL: not made yet */
};

QR_GPU_ONLY __global__ void hold_kernel(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
}

void qr_device_marks_destroy(qr_device_marks *marks) {
    for (int32_t i = 0; marks != NULL && i < marks->n; i++) {
        if (marks->events[i] != NULL) { cudaEventDestroy(marks->events[i]); }
    }
    qr_free(marks);
}

qrun_status qr_device_marks_begin(qr_device *device, int32_t n_marks, bool hold, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    if (device->marks == NULL || device->marks->n < n_marks) {
        const size_t n_bytes = sizeof(qr_device_marks) + static_cast<size_t>(n_marks) * sizeof(cudaEvent_t);
        qr_device_marks_destroy(device->marks);
        device->marks = static_cast<qr_device_marks *>(qr_alloc_zeroed(n_bytes));
        if (device->marks == NULL) { return qr_fail_memory(err, "times of ops", n_bytes); }
        device->marks->n = n_marks;
        for (int32_t i = 0; i < n_marks; i++) {
            QR_RETURN_IF_ERROR(qr_device_make_event(device, &device->marks->events[i], cudaEventDefault, err));
        }
    }
    if (!hold) { return QRUN_OK; }
    return QR_LAUNCH(device, err, hold_kernel, dim3(1), WARP_LANES, 0,
                     static_cast<unsigned long long>(HOLD_NANOSECONDS));
}

qrun_status qr_device_mark(qr_device *device, int32_t mark, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_record_event(device, device->marks->events[mark], device->stream, err);
}

qrun_status qr_device_mark_seconds(qr_device *device, int32_t from, int32_t to, double *seconds, qr_error *err) {
    float milliseconds = 0.0F;
    const cudaEvent_t begin = device->marks->events[from], end = device->marks->events[to];
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaEventSynchronize(end), "waiting for the GPU", err));
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaEventElapsedTime(&milliseconds, begin, end), "reading a timer", err));
    *seconds = static_cast<double>(milliseconds) * 1e-3;
    return QRUN_OK;
}

/* Recording on a device: what one thread issues is kept, and can be replayed as a whole (qr_backend.record_begin and
 * what follows it). device/graph_capture.cu captures a stream into a CUDA graph; tests/simt keeps closures. */
#ifndef QR_KERNELS_CUDA_DEVICE_GRAPH_CAPTURE_H
#define QR_KERNELS_CUDA_DEVICE_GRAPH_CAPTURE_H

#include <atomic>
#include <thread>

#include "kernels/cuda/device/api.h"

/* Which thread is recording; where none is, an id of no thread. */
typedef std::atomic<std::thread::id> qr_device_recorder;

qrun_status qr_device_record_begin(qr_device *device, qr_error *err);
/* Where `recording` is NULL, what was recorded is dropped. */
qrun_status qr_device_record_end(qr_device *device, qr_recording **recording, qr_error *err);
qrun_status qr_device_replay(qr_device *device, qr_recording *recording, qr_error *err);
void qr_device_recording_destroy(qr_device *device, qr_recording *recording); /* NULL is fine */

/* Whether the calling thread is recording on this device. */
bool qr_device_is_recording(const qr_device *device);

/* For calls that cannot be recorded because they wait or allocate memory. */
static inline qrun_status qr_device_refuse_recording(const qr_device *device, const char *what, qr_error *err) {
    if (!qr_device_is_recording(device)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INTERNAL, "cuda: %s cannot be recorded", what);
}

#endif

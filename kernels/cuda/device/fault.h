/* The first failure of a device. An error of a kernel or the bus breaks CUDA's context for good and shows in whatever
 * call comes next. So the first message is kept, and every later call fails with the same line. */
#ifndef QR_KERNELS_CUDA_DEVICE_FAULT_H
#define QR_KERNELS_CUDA_DEVICE_FAULT_H

#include <string.h>

#include <atomic>
#include <mutex>

extern "C" {
#include "base/status.h"
}

struct qr_device_fault {
    std::atomic<bool> is_set{false};
    std::mutex lock;
    char message[256]; /* of the first failure */
};

/* The failure that was kept; QRUN_OK where there was none. */
static inline qrun_status qr_device_fault_check(const qr_device_fault *fault, qr_error *err) {
    if (!fault->is_set.load()) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_DEVICE, "%s", fault->message);
}

/* Keeps `message` unless there is one, and fails with what is kept. From any thread. */
static inline qrun_status qr_device_fault_set(qr_device_fault *fault, const char *message, qr_error *err) {
    const std::lock_guard<std::mutex> held(fault->lock);
    if (!fault->is_set.load()) {
        strncpy(fault->message, message, sizeof fault->message - 1);
        fault->message[sizeof fault->message - 1] = '\0';
        fault->is_set.store(true);
    }
    return qr_device_fault_check(fault, err);
}

#endif

/* What this process knows of each GPU, whatever opens it: how many devices have it open, and what broke it before.
 * CUDA has one context of a GPU for all of them. */
#ifndef QR_KERNELS_CUDA_DEVICE_GPUS_H
#define QR_KERNELS_CUDA_DEVICE_GPUS_H

#include <mutex>

extern "C" {
#include "base/number.h"
}

enum { QR_MOST_GPUS = 64, QR_GPU_FAULT_BYTES = 256 };

struct qr_gpus {
    std::mutex lock;
    struct {
        int n_open;
        char fault[QR_GPU_FAULT_BYTES]; /* of opening it; "": none */
    } gpu[QR_MOST_GPUS];                /* the last one is all from there on */

    static int index(int ordinal) { return ordinal < QR_MOST_GPUS ? ordinal : QR_MOST_GPUS - 1; }
};
inline qr_gpus qr_gpus_of_process;

/* Member of an open device. */
struct qr_gpu_hold {
    int ordinal = -1;

    void take(int gpu) {
        const std::lock_guard<std::mutex> held(qr_gpus_of_process.lock);
        ordinal = gpu;
        qr_gpus_of_process.gpu[qr_gpus::index(gpu)].n_open++;
    }

    ~qr_gpu_hold() {
        if (ordinal < 0) { return; }
        const std::lock_guard<std::mutex> held(qr_gpus_of_process.lock);
        qr_gpus_of_process.gpu[qr_gpus::index(ordinal)].n_open--;
    }
};

/* Does it while no device has the GPU, nor takes it; else returns false. */
template <typename F> bool qr_gpu_while_closed(int ordinal, const F &body) {
    const std::lock_guard<std::mutex> held(qr_gpus_of_process.lock);
    if (qr_gpus_of_process.gpu[qr_gpus::index(ordinal)].n_open > 0) { return false; }
    body();
    return true;
}

static inline void qr_gpu_set_fault(int ordinal, const char *message) {
    const std::lock_guard<std::mutex> held(qr_gpus_of_process.lock);
    qr_format(qr_gpus_of_process.gpu[qr_gpus::index(ordinal)].fault, QR_GPU_FAULT_BYTES, "%s", message);
}

/* "" where there was none. */
static inline void qr_gpu_get_fault(int ordinal, char message[QR_GPU_FAULT_BYTES]) {
    const std::lock_guard<std::mutex> held(qr_gpus_of_process.lock);
    qr_format(message, QR_GPU_FAULT_BYTES, "%s", qr_gpus_of_process.gpu[qr_gpus::index(ordinal)].fault);
}

#endif

/* kernels/cuda/device/link_stream.h over host memory. Kernels have run when they are issued, so the stand-in for the
 * library may begin at once. */
#include "kernels/cuda/device/link_stream.h"

#include <unistd.h>

#include "device_state.h"
#include "early_launch.h"

extern "C" {
#include "base/random.h"
}

/* A real NCCL, if this machine has one, knows nothing of such streams. */
bool qr_device_link_searches(const qr_device *) { return false; }

uint64_t qr_device_link_id(const qr_device *device) {
    return qr_hash_mix(device->index >= 0 ? static_cast<uint64_t>(device->index)
                                          : static_cast<uint64_t>(getpid()) << 8);
}

qr_cuda_nccl *&qr_device_link_state(qr_device *device) { return device->link_state; }

qrun_status qr_device_link_begin(qr_device *device, void **stream, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "an exchange", err));
    QR_RETURN_IF_ERROR(qr_device_use(device, err));
    simt::early_others_write(true);
    *stream = &device->links;
    return QRUN_OK;
}

qrun_status qr_device_link_mark(qr_device *device, qr_error *err) { return qr_device_use(device, err); }

qrun_status qr_device_link_is_done(qr_device *device, bool *done, qr_error *err) {
    *done = __atomic_load_n(&device->links.n_done, __ATOMIC_ACQUIRE) ==
            __atomic_load_n(&device->links.n_begun, __ATOMIC_ACQUIRE);
    if (*done) { simt::early_others_write(false); }
    return qr_device_use(device, err);
}

void qr_device_link_close(qr_device *) {}

/* device/link_stream.h over CUDA's runtime. */
#include "kernels/cuda/device/link_stream.h"

#include <unistd.h>

#include "kernels/cuda/device/state.cuh"

bool qr_device_link_searches(const qr_device *) { return true; }

/* FNV-1a, as base/random.h has it, which nvcc does not take. */
static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text != '\0'; text++) { hash = (hash ^ static_cast<unsigned char>(*text)) * UINT64_C(0x100000001B3); }
    return hash;
}

/* The bus is named alike in all processes, whatever CUDA_VISIBLE_DEVICES leaves of it. */
uint64_t qr_device_link_id(const qr_device *device) {
    char place[128] = "", bus_id[32] = "";
    (void)gethostname(place, sizeof place - 1);
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device->index) != cudaSuccess) { cudaGetLastError(); }
    return hash_text(hash_text(UINT64_C(0xCBF29CE484222325), place), bus_id);
}

qr_cuda_nccl *&qr_device_link_state(qr_device *device) { return device->link_state; }

static qrun_status open_stream(qr_device *device, qr_error *err) {
    if (device->links != NULL) { return QRUN_OK; }
    if (device->links_issued == NULL) {
        QR_RETURN_IF_ERROR(qr_device_make_event(device, &device->links_issued, cudaEventDisableTiming, err));
    }
    if (device->links_done == NULL) {
        QR_RETURN_IF_ERROR(qr_device_make_event(device, &device->links_done, cudaEventDisableTiming, err));
    }
    return qr_device_check(device, cudaStreamCreateWithFlags(&device->links, cudaStreamNonBlocking),
                           "creating a stream", err);
}

qrun_status qr_device_link_begin(qr_device *device, void **stream, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "an exchange", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(open_stream(device, err));
    QR_RETURN_IF_ERROR(qr_device_record_event(device, device->links_issued, device->stream, err));
    *stream = device->links;
    return qr_device_check(device, cudaStreamWaitEvent(device->links, device->links_issued, 0), "ordering an exchange",
                           err);
}

qrun_status qr_device_link_mark(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    return qr_device_record_event(device, device->links_done, device->links, err);
}

qrun_status qr_device_link_is_done(qr_device *device, bool *done, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    const cudaError_t result = cudaEventQuery(device->links_done);
    *done = result == cudaSuccess;
    if (result == cudaErrorNotReady) {
        cudaGetLastError();
        return QRUN_OK;
    }
    return qr_device_check(device, result, "waiting for an exchange", err);
}

void qr_device_link_close(qr_device *device) {
    if (device->links != NULL) { cudaStreamDestroy(device->links); }
    if (device->links_issued != NULL) { cudaEventDestroy(device->links_issued); }
    if (device->links_done != NULL) { cudaEventDestroy(device->links_done); }
}

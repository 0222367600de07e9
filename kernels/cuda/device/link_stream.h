/* The stream that a library of NVIDIA's sends and receives in, beside the ops. device/link_stream.cu is CUDA's;
 * tests/simt/device_link_stream.cc has one that the stand-in for the library runs on a thread of its own. */
#ifndef QR_KERNELS_CUDA_DEVICE_LINK_STREAM_H
#define QR_KERNELS_CUDA_DEVICE_LINK_STREAM_H

#include "kernels/cuda/device/api.h"

extern "C" {
#include "kernels/device_links.h"
}

/* qr_device_open of a GPU that is chosen. */
qrun_status qr_device_open_for(const qr_gpu_choice &choice, qr_device **device, qr_error *err);

/* Whether libraries are looked for, or only one that a variable names is opened. */
bool qr_device_link_searches(const qr_device *device);
/* The same for all processes that have this GPU. */
uint64_t qr_device_link_id(const qr_device *device);
/* What the backend keeps of its links: its own, NULL at first. */
struct qr_cuda_nccl *&qr_device_link_state(qr_device *device);

/* What is put into *stream from now on, as the library takes it, runs when all that has been issued to the device is
 * done. */
qrun_status qr_device_link_begin(qr_device *device, void **stream, qr_error *err);
/* What has been put there until now is one piece of work: */
qrun_status qr_device_link_mark(qr_device *device, qr_error *err);
/* whether the last of them is done. */
qrun_status qr_device_link_is_done(qr_device *device, bool *done, qr_error *err);
void qr_device_link_close(qr_device *device);

#endif

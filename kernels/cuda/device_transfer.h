/* Copies that nobody waits for at once, and events that tell when they are done. device_transfer.cu is CUDA's;
 * tests/simt/device_transfer.cc has copies out arrive at the wait, and checks there that nobody touched what copies in
 * were still reading. */
#ifndef QR_KERNELS_CUDA_DEVICE_TRANSFER_H
#define QR_KERNELS_CUDA_DEVICE_TRANSFER_H

#include "kernels/cuda/device_api.h"

/* A place in the stream. */
struct qr_device_event;

qrun_status qr_device_event_create(qr_device *device, qr_device_event **event, qr_error *err);
void qr_device_event_destroy(qr_device *device, qr_device_event *event); /* NULL is fine */
/* Behind everything issued so far. */
qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err);
/* Until the stream has come there. */
qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err);

/* To HOST memory, in the stream's order: the bytes are there after a wait for an event recorded later, or a sync. */
qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err);

/* Bytes to move in one piece: enough that the bus, not the call, takes the time. */
size_t qr_device_piece_bytes(const qr_device *device);

#endif

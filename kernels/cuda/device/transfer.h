/* Asynchronous copies: in the stream, with events that tell when they are complete, and in a second stream.
 * device/transfer.cu is CUDA's. In tests/simt/device_transfer.cc copies out of the stream arrive at the wait, which
 * also checks that the sources of copies in did not change. A transfer is done in pieces at any time between its issue
 * and the wait, as a seed decides; until then its destination is poison, and its source must stay as it is. */
#ifndef QR_KERNELS_CUDA_DEVICE_TRANSFER_H
#define QR_KERNELS_CUDA_DEVICE_TRANSFER_H

#include "kernels/cuda/device/api.h"

/* A position in the stream. */
struct qr_device_event;

qrun_status qr_device_event_create(qr_device *device, qr_device_event **event, qr_error *err);
void qr_device_event_destroy(qr_device *device, qr_device_event *event); /* NULL is fine */
/* After everything issued so far. */
qrun_status qr_device_event_record(qr_device *device, qr_device_event *event, qr_error *err);
/* Until the stream has reached it. */
qrun_status qr_device_event_wait(qr_device *device, qr_device_event *event, qr_error *err);

/* To HOST memory, in the stream's order: the bytes have arrived after a wait for an event recorded later, or a sync. */
qrun_status qr_device_copy_out_async(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err);

/* As in qr_backend: copy_out_async with an event of its own. A thread that waits does not sleep, as with
 * qr_device_sync.
 */
qrun_status qr_device_copy_out_begin(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                     qr_error *err);
qrun_status qr_device_copy_out_end(qr_device *device, uint64_t ticket, qr_error *err);

/* As in qr_backend. qr_device_sync waits for them. */
qrun_status qr_device_transfer_in(qr_device *device, void *dst, const void *host, size_t n_bytes, uint64_t *ticket,
                                  qr_error *err);
qrun_status qr_device_transfer_out(qr_device *device, void *host, const void *src, size_t n_bytes, uint64_t *ticket,
                                   qr_error *err);
qrun_status qr_device_transfer_wait(qr_device *device, uint64_t ticket, qr_error *err);

/* Bytes to move in one piece: enough that the bus, not the call, takes the time. */
size_t qr_device_piece_bytes(const qr_device *device);

#endif

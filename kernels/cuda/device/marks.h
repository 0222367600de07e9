/* Positions in the stream whose times the device notes (qr_backend.mark). device/marks.cu uses CUDA's events;
 * tests/simt the host's clock. */
#ifndef QR_KERNELS_CUDA_DEVICE_MARKS_H
#define QR_KERNELS_CUDA_DEVICE_MARKS_H

#include "kernels/cuda/device/api.h"

struct qr_device_marks; /* NULL: none so far */

qrun_status qr_device_marks_begin(qr_device *device, int32_t n_marks, bool hold, qr_error *err);
qrun_status qr_device_mark(qr_device *device, int32_t mark, qr_error *err);
qrun_status qr_device_mark_seconds(qr_device *device, int32_t from, int32_t to, double *seconds, qr_error *err);
void qr_device_marks_destroy(qr_device_marks *marks); /* NULL is fine */

#endif

/* Whether a backend computes what the reference does, on this machine, now: a few small products and an attention, as
 * generation uses them. Takes milliseconds. What it guards against are a driver, a GPU or a build on which nobody has
 * run the tests. */
#ifndef QR_KERNELS_SELF_CHECK_H
#define QR_KERNELS_SELF_CHECK_H

#include "kernels/backend.h"

/* QRUN_ERROR_DEVICE names the op and the first number that is wrong, or two rows that should have the same bits. */
qrun_status qr_backend_self_check(qr_backend *backend, qr_error *err);

#endif

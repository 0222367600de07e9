/* Whether a backend computes what the reference does on this machine: a few small products and an attention, as
 * generation uses them. Takes milliseconds. It guards against a driver, a GPU or a build that the tests have not run
 * on. */
#ifndef QR_KERNELS_SELF_CHECK_H
#define QR_KERNELS_SELF_CHECK_H

#include "kernels/backend.h"

/* QRUN_ERROR_DEVICE names the op and the first wrong value, or the rows that should have the same bits. */
qrun_status qr_backend_self_check(qr_backend *backend, qr_error *err);

#endif

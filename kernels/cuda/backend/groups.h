/* qr_backend.run_group of the CUDA backend: which neighbouring ops one kernel computes. With few rows a launch costs as
 * much as what it does, so a layer of a decode step is five or six of them:
 *   - rms_norm and the products of what it makes (one or two rows), or the products alone;
 *   - of q, k and v (up to eight rows) rope and kv_write too, where heads have no norms and pages are not INT8;
 *   - the same of two products and their gate;
 *   - rope of q and of k, with their norms of heads where there are any, and kv_write. */
#ifndef QR_KERNELS_CUDA_BACKEND_GROUPS_H
#define QR_KERNELS_CUDA_BACKEND_GROUPS_H

extern "C" {
#include "kernels/backend.h"
}

qrun_status qr_cuda_run_group(qr_backend *backend, const qr_op_call *calls, int32_t n_calls, int32_t *n_taken,
                              qr_error *err);

#endif

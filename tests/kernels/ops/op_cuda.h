/* What the tests of the CUDA backend share: on the GPU (test_ops_cuda.c) and on the host (test_ops_simt.c). */
#ifndef QR_TESTS_OP_CUDA_H
#define QR_TESTS_OP_CUDA_H

#include "op_harness.h"

typedef qrun_status (*op_cuda_create_fn)(qr_threads *threads, qr_backend **backend, qr_error *err);

/* Adds two backends: what is repeated must give the same bits. */
bool op_cuda_add_devices(op_cuda_create_fn create, qr_error *err);

/* The tests of memory, weights and limits, and of every op; ops that the backend lacks are listed. The limits are
 * measured for limit_seconds. */
void op_cuda_run_tests(double limit_seconds);

/* op_check_workspaces of the ops that the backend has. */
void op_cuda_check_workspaces(void);

/* op_linear_same_bits on the backends there are and on backends without wgmma. */
void op_cuda_linear_without_wgmma(op_cuda_create_fn create, int64_t n_outputs, bool alone);

#endif

/* The ops that this backend does not have yet: a new op of ops.h starts here, as a line X(name). Their `supports` says
 * so (QRUN_ERROR_UNSUPPORTED), and the tests list them. */
#ifndef QR_KERNELS_CUDA_BACKEND_UNSUPPORTED_H
#define QR_KERNELS_CUDA_BACKEND_UNSUPPORTED_H

#define QR_CUDA_UNSUPPORTED_OPS(X) /* none */

#endif

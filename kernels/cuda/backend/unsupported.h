/* The ops that this backend does not have yet: a new op of ops.h starts here, as a line X(name). Their `supports` says
 * so (QRUN_ERROR_UNSUPPORTED), and the tests list them. */
#ifndef QR_KERNELS_CUDA_BACKEND_UNSUPPORTED_H
#define QR_KERNELS_CUDA_BACKEND_UNSUPPORTED_H

#define QR_CUDA_UNSUPPORTED_OPS(X) \
    X(route)                       \
    X(expert_linear)               \
    X(expert_bias)                 \
    X(expert_sum)                  \
    X(expert_lora)                 \
    X(expert_lora_backward)        \
    X(share_rows)                  \
    X(share_rows_backward)         \
    X(expert_linear_backward)      \
    X(expert_share_backward)       \
    X(expert_bias_backward)        \
    X(clamped_gate)                \
    X(clamped_gate_backward)       \
    X(route_backward)

#endif

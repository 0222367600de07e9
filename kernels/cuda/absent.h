/* The ops that this backend does not have yet: a new op of ops.h begins here. Their `supports` says so
 * (QRUN_ERROR_UNSUPPORTED), and the tests list them. */
#ifndef QR_KERNELS_CUDA_ABSENT_H
#define QR_KERNELS_CUDA_ABSENT_H

#define QR_CUDA_ABSENT_OPS(X)    \
    X(dora_norm)                 \
    X(dora)                      \
    X(dora_backward)             \
    X(store_weight)              \
    X(linear_backward)           \
    X(weight_backward)           \
    X(lora_backward)             \
    X(rms_norm_backward)         \
    X(layer_norm_backward)       \
    X(rope_backward)             \
    X(attention_packed)          \
    X(attention_packed_backward) \
    X(activation_backward)       \
    X(gate_backward)             \
    X(cross_entropy)             \
    X(embedding_backward)        \
    X(scatter_rows)              \
    X(dropout)                   \
    X(round_act)                 \
    X(sum_squares)               \
    X(adamw)                     \
    X(adamw8bit)                 \
    X(sgd)                       \
    X(adafactor)

#endif

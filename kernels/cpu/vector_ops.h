/* The ops that are written once on qr_vec (vec.h) and compiled for each instruction set, and the table of what one
 * instruction set has. The sources are those of qr_cpu_vector_ops() in kernels/CMakeLists.txt.
 * backend/ops.c makes the backend's ops of them. None of them can fail once qr_check_<op> accepts the arguments. */
#ifndef QR_KERNELS_CPU_VECTOR_OPS_H
#define QR_KERNELS_CPU_VECTOR_OPS_H

#include "kernels/backend.h"

#define QR_CPU_VECTOR_OPS(X)     \
    X(quantize)                  \
    X(embedding)                 \
    X(gather_rows)               \
    X(rms_norm)                  \
    X(layer_norm)                \
    X(dora)                      \
    X(rope_table)                \
    X(rope)                      \
    X(kv_write)                  \
    X(attention)                 \
    X(activation)                \
    X(gate)                      \
    X(add)                       \
    X(softcap)                   \
    X(nll)                       \
    X(dora_backward)             \
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
    X(store_weight)              \
    X(sum_squares)               \
    X(adamw)                     \
    X(adamw8bit)                 \
    X(sgd)                       \
    X(adafactor)

typedef struct qr_cpu_vector_ops {
#define QR_X(name) void (*name)(const qr_backend *backend, const qr_##name##_args *args, void *workspace);
    QR_CPU_VECTOR_OPS(QR_X)
#undef QR_X
} qr_cpu_vector_ops;

extern const qr_cpu_vector_ops qr_cpu_vector_ops_c;
extern const qr_cpu_vector_ops qr_cpu_vector_ops_avx2;
extern const qr_cpu_vector_ops qr_cpu_vector_ops_avx512;

/* Scratch of the ops of attention; that of others is in train_scratch.h, or none. */
size_t qr_cpu_attention_workspace(const qr_backend *backend, const qr_attention_args *args);
size_t qr_cpu_attention_packed_workspace(const qr_backend *backend, const qr_attention_packed_args *args);
size_t qr_cpu_attention_packed_backward_workspace(const qr_backend *backend,
                                                  const qr_attention_packed_backward_args *args);

/* Calls fn(args, begin, end) over [0, n) cut into ranges, in parallel where n · cost is worth it. cost is that of one
 * index, in elements that an elementwise op touches. fn's results must not depend on the cuts. */
typedef void (*qr_range_fn)(const void *args, int64_t begin, int64_t end);
void qr_cpu_run_ranges(const qr_backend *backend, int64_t n, int64_t cost, qr_range_fn fn, const void *args);

#endif

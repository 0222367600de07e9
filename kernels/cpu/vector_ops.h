/* The ops that are written once on qr_vec (vec.h) and compiled for each instruction set, and the table of what one
 * instruction set has. The sources are those of qr_cpu_vector_ops() in kernels/CMakeLists.txt.
 * backend/ops.c makes the backend's ops from them. None of them can fail once qr_check_<op> accepts the arguments. */
#ifndef QR_KERNELS_CPU_VECTOR_OPS_H
#define QR_KERNELS_CPU_VECTOR_OPS_H

#include "kernels/backend.h"

/* PLAIN ops need no workspace. */
#define QR_CPU_VECTOR_OPS(PLAIN, SCRATCH) \
    PLAIN(quantize)                       \
    PLAIN(embedding)                      \
    PLAIN(gather_rows)                    \
    PLAIN(route)                          \
    PLAIN(expert_fetch)                   \
    PLAIN(expert_bias)                    \
    PLAIN(expert_sum)                     \
    PLAIN(expert_lora)                    \
    PLAIN(expert_lora_backward)           \
    PLAIN(share_rows)                     \
    PLAIN(share_rows_backward)            \
    PLAIN(rms_norm)                       \
    PLAIN(layer_norm)                     \
    PLAIN(dora)                           \
    PLAIN(rope_table)                     \
    PLAIN(rope)                           \
    PLAIN(kv_write)                       \
    SCRATCH(attention)                    \
    PLAIN(copy_heads)                     \
    PLAIN(head_gate)                      \
    PLAIN(conv1d_causal)                  \
    SCRATCH(gated_delta)                  \
    SCRATCH(state_space)                  \
    PLAIN(activation)                     \
    PLAIN(gate)                           \
    PLAIN(clamped_gate)                   \
    PLAIN(xielu)                          \
    PLAIN(gaussian_topk)                  \
    PLAIN(stream_coefs)                   \
    PLAIN(stream_predict)                 \
    PLAIN(stream_correct)                 \
    PLAIN(stream_level)                   \
    PLAIN(add)                            \
    PLAIN(scale)                          \
    PLAIN(scale_columns)                  \
    PLAIN(softcap)                        \
    PLAIN(nll)                            \
    PLAIN(route_backward)                 \
    PLAIN(expert_share_backward)          \
    PLAIN(expert_bias_backward)           \
    PLAIN(dora_backward)                  \
    SCRATCH(rms_norm_backward)            \
    SCRATCH(layer_norm_backward)          \
    PLAIN(rope_backward)                  \
    SCRATCH(attention_packed)             \
    SCRATCH(attention_packed_backward)    \
    PLAIN(head_gate_backward)             \
    PLAIN(conv1d_causal_backward)         \
    SCRATCH(gated_delta_backward)         \
    SCRATCH(state_space_backward)         \
    PLAIN(activation_backward)            \
    PLAIN(gate_backward)                  \
    PLAIN(clamped_gate_backward)          \
    SCRATCH(xielu_backward)               \
    PLAIN(gaussian_topk_backward)         \
    SCRATCH(stream_coefs_backward)        \
    PLAIN(stream_predict_backward)        \
    PLAIN(stream_correct_backward)        \
    PLAIN(stream_level_backward)          \
    PLAIN(cross_entropy)                  \
    PLAIN(embedding_backward)             \
    PLAIN(scatter_rows)                   \
    PLAIN(dropout)                        \
    PLAIN(round_act)                      \
    PLAIN(store_weight)                   \
    PLAIN(sum_squares)                    \
    PLAIN(adamw)                          \
    PLAIN(adamw8bit)                      \
    PLAIN(sgd)                            \
    SCRATCH(adafactor)

typedef struct qr_cpu_vector_ops {
#define QR_PLAIN(name) void (*name)(const qr_backend *backend, const qr_##name##_args *args);
#define QR_SCRATCH(name) void (*name)(const qr_backend *backend, const qr_##name##_args *args, void *workspace);
    QR_CPU_VECTOR_OPS(QR_PLAIN, QR_SCRATCH)
#undef QR_PLAIN
#undef QR_SCRATCH
    bool codes_in_blocks; /* how kernels of this instruction set read NF4_GROUPS (cpu.h); else in words */
} qr_cpu_vector_ops;

extern const qr_cpu_vector_ops qr_cpu_vector_ops_c, qr_cpu_vector_ops_avx2, qr_cpu_vector_ops_avx512;
extern const qr_cpu_vector_ops qr_cpu_vector_ops_neon;
extern const qr_cpu_vector_ops qr_cpu_vector_ops_wide_c, qr_cpu_vector_ops_wide_avx2;

/* Scratch of the ops of attention; that of others is in train_scratch.h, or none. */
size_t qr_cpu_attention_workspace(const qr_backend *backend, const qr_attention_args *args);
size_t qr_cpu_attention_packed_workspace(const qr_backend *backend, const qr_attention_packed_args *args);
size_t qr_cpu_attention_packed_backward_workspace(const qr_backend *backend,
                                                  const qr_attention_packed_backward_args *args);

/* Calls fn(args, begin, end) over [0, n) cut into ranges, in parallel where n · cost is worth it. cost is that of one
 * index, in elements that an elementwise op touches. fn's results must not depend on the cuts. */
typedef void (*qr_range_fn)(const void *args, int64_t begin, int64_t end);
void qr_cpu_run_ranges(const qr_backend *backend, int64_t n, int64_t cost, qr_range_fn fn, const void *args);

/* Defines the op `name` for an instruction set (vec.h) as a call of qr_cpu_run_ranges; n and cost may use `args`. */
#define QR_CPU_RANGE_OP(name, n, cost, fn)                                                \
    void QR_ISA(qr_cpu_##name)(const qr_backend *backend, const qr_##name##_args *args) { \
        qr_cpu_run_ranges(backend, n, cost, fn, args);                                    \
    }

#endif

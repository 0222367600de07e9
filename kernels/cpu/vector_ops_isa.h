/* The vector ops of the instruction set that a source is being compiled for, by name, for ops that call others.
 */
#ifndef QR_KERNELS_CPU_VECTOR_OPS_ISA_H
#define QR_KERNELS_CPU_VECTOR_OPS_ISA_H

#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/vector_ops.h"

#define QR_PLAIN(name) void QR_ISA(qr_cpu_##name)(const qr_backend *backend, const qr_##name##_args *args);
#define QR_SCRATCH(name) \
    void QR_ISA(qr_cpu_##name)(const qr_backend *backend, const qr_##name##_args *args, void *workspace);
QR_CPU_VECTOR_OPS(QR_PLAIN, QR_SCRATCH)
#undef QR_PLAIN
#undef QR_SCRATCH

/* attention, and the lse [n_tokens, n_heads] of every query: log of the sum of exp of its scores. NULL: not wanted. */
void QR_ISA(qr_cpu_attention_lse)(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                  void *workspace);

#endif

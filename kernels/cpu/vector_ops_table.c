/* The table of the instruction set this is compiled for. */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vector_ops.h"

#define QR_X(name) void QR_ISA(qr_cpu_##name)(const qr_backend *backend, const qr_##name##_args *args, void *workspace);
QR_CPU_VECTOR_OPS(QR_X)
#undef QR_X

const qr_cpu_vector_ops QR_ISA(qr_cpu_vector_ops) = {
#define QR_X(name) .name = QR_ISA(qr_cpu_##name),
    QR_CPU_VECTOR_OPS(QR_X)
#undef QR_X
};

/* The table of the instruction set this is compiled for. */
#include "kernels/cpu/vector_ops_isa.h"

const qr_cpu_vector_ops QR_ISA(qr_cpu_vector_ops) = {
#define QR_X(name) .name = QR_ISA(qr_cpu_##name),
    QR_CPU_VECTOR_OPS(QR_X, QR_X)
#undef QR_X
#ifdef QR_CPU_CODES_IN_BLOCKS
        .codes_in_blocks = true,
#endif
};

/* Names of what a source has once for each instruction set. */
#ifndef QR_KERNELS_CPU_SIMD_ISA_NAME_H
#define QR_KERNELS_CPU_SIMD_ISA_NAME_H

/* QR_CPU_ISA (avx512, avx2, c) is what a source is being compiled for; its symbols carry it. */
#ifndef QR_CPU_ISA
#error "compile with QR_CPU_ISA defined"
#endif
#define QR_ISA_JOIN2(name, isa) name##_##isa
#define QR_ISA_JOIN(name, isa) QR_ISA_JOIN2(name, isa)
#define QR_ISA(name) QR_ISA_JOIN(name, QR_CPU_ISA)

#endif

/* Names of the eight matrix tiles: C0 … C3 are C [n_rows][n_cols] in F32, A0 and A1 are A [n_rows][2 n_pairs], B0 and
 * B1 are B [n_pairs][n_cols][2], in BF16. */
#ifndef QR_KERNELS_CPU_SIMD_TILES_NAMES_H
#define QR_KERNELS_CPU_SIMD_TILES_NAMES_H

/* Macros, because the compiler's intrinsics need a literal tile number. */
#define TILES_C0 0
#define TILES_C1 1
#define TILES_C2 2
#define TILES_C3 3
#define TILES_A0 4
#define TILES_A1 5
#define TILES_B0 6
#define TILES_B1 7

/* Keeps vector stores before tile loads, and tile stores before vector loads: the compiler knows nothing of the memory
 * that tile instructions read and write. */
#define TILES_BARRIER() __asm__ volatile("" ::: "memory")

#endif

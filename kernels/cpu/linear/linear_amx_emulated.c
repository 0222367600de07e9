/* linear_tiles_template.h on tiles emulated with AVX-512, for tests, with the bits of the instruction: FMAs that treat
 * subnormals as AMX does, because the CPU is told to (MXCSR). kernels/tile_sum.h has the definition. */
#include "kernels/cpu/simd/tiles_emulated.h"

#include "kernels/cpu/linear/linear_tiles_template.h"

const qr_cpu_tiles_kernel qr_cpu_tiles_amx_emulated = TILES_KERNEL;
static const qr_cpu_gemm_kernel gemm_emulated = TILES_GEMM;
const qr_cpu_matmul qr_cpu_matmul_bf16_amx_emulated =
    TILES_MATMUL(.tiles = &qr_cpu_tiles_amx_emulated, .gemm_backward = &gemm_emulated);

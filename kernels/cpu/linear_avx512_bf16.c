/* linear in AVX-512 with vdpbf16ps: x and weights in BF16, 32 k an instruction. */
#include <stdbool.h>

#include "base/sizes.h"
#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_bf16_fetch.h"

typedef uint16_t tile_element;
typedef __m512bh tile_vector;
#define TILE_STEP 32
static inline __m512bh tile_load(const uint16_t *src) { return (__m512bh)_mm512_loadu_si512(src); }
static inline __m512 tile_dot(__m512 acc, __m512bh w, __m512bh x) { return _mm512_dpbf16_ps(acc, w, x); }

#include "kernels/cpu/linear_tile_body.h"

const qr_cpu_matmul qr_cpu_matmul_bf16_avx512_bf16 = {
    .element_bytes = 2,
    .k_block = 1024,
    .rounds_bf16 = true,
    .fetch = qr_cpu_fetch_bf16,
    .multiply = multiply,
};

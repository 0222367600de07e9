/* attention_tiles_template.h on tiles emulated with AVX-512, for tests, with the bits of the instruction. */
#include "kernels/cpu/simd/tiles_emulated.h"

#include "kernels/cpu/attention/attention_product_tiles.h"

#include "kernels/cpu/attention/attention_tiles_template.h"

const qr_cpu_packed_tiles qr_cpu_packed_tiles_amx_emulated = PACKED_TILES;

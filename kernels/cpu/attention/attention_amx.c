/* Packed attention on the tiles of AMX-BF16. Tested by attention_amx_emulated.c, the same code on emulated tiles. */
#include "kernels/cpu/simd/tiles_amx.h"

#include "kernels/cpu/attention/attention_product_tiles.h"

#include "kernels/cpu/attention/attention_tiles_template.h"

const qr_cpu_packed_tiles qr_cpu_packed_tiles_amx = PACKED_TILES;

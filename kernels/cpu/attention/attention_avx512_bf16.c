/* Packed attention by products of BF16 with AVX-512-BF16. */
#include "kernels/cpu/attention/attention_product_avx512_bf16.h"

#include "kernels/cpu/attention/attention_tiles_template.h"

const qr_cpu_packed_tiles qr_cpu_packed_tiles_avx512_bf16 = PACKED_TILES;

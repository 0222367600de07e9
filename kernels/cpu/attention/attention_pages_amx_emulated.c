/* attention over pages on tiles emulated with AVX-512, for tests, with the bits of the instruction. */
#include "kernels/cpu/simd/tiles_emulated.h"

#include "kernels/cpu/attention/attention_blocks_tiles.h"

#include "kernels/cpu/attention/attention_pages_template.h"

void qr_cpu_attention_amx_emulated(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                   void *workspace) {
    attend_pages(backend, args, lse, workspace);
}

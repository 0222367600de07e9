/* attention over pages on the tiles of AMX-BF16. Tested by attention_pages_amx_emulated.c, the same code on emulated
 * tiles. */
#include "kernels/cpu/simd/tiles_amx.h"

#include "kernels/cpu/attention/attention_blocks_tiles.h"

#include "kernels/cpu/attention/attention_pages_template.h"

void qr_cpu_attention_amx(const qr_backend *backend, const qr_attention_args *args, float *lse, void *workspace) {
    attend_pages(backend, args, lse, workspace);
}

/* attention over pages on vectors, or on matrix tiles where there are any. */
#include "kernels/cpu/attention/attention_blocks_vectors.h"

#include "kernels/cpu/attention/attention_pages_template.h"
#include "kernels/cpu/vector_ops_isa.h"

void QR_ISA(qr_cpu_attention_lse)(const qr_backend *backend, const qr_attention_args *args, float *lse,
                                  void *workspace) {
    const qr_attention_on_tiles on_tiles = qr_attention_on_tiles_of(backend, args);
    if (on_tiles != NULL) {
        on_tiles(backend, args, lse, workspace);
        return;
    }
    attend_pages(backend, args, lse, workspace);
}

void QR_ISA(qr_cpu_attention)(const qr_backend *backend, const qr_attention_args *args, void *workspace) {
    QR_ISA(qr_cpu_attention_lse)(backend, args, NULL, workspace);
}

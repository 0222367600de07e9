/* sample: kernels/sample.h is scalar C with F64 sums already, one row after the other. */
#include "kernels/sample.h"
#include "kernels/ref/ref.h"

size_t qr_ref_sample_workspace(const qr_sample_args *args) { return qr_sample_scratch_bytes(args->vocab); }

void qr_ref_sample(const qr_sample_args *args, void *workspace) {
    const qr_sample_scratch scratch = qr_sample_scratch_at(workspace, args->vocab);
    for (int64_t i = 0; i < args->n_draws; i++) {
        const qr_sample_draw *draw = &args->draws[i];
        args->dst[i] = qr_sample_row(draw, args->logits + draw->row * args->vocab, args->vocab, &scratch);
    }
}

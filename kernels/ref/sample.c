/* sample: kernels/top_k_top_p.h is scalar C with F64 sums already, one row after the other. */
#include "kernels/ref/ref.h"
#include "kernels/top_k_top_p.h"

size_t qr_ref_sample_workspace(const qr_sample_args *args) { return qr_sample_scratch_bytes(args->vocab); }

void qr_ref_sample(const qr_sample_args *args, void *workspace) {
    const qr_sample_scratch scratch = qr_sample_scratch_at(workspace, args->vocab);
    for (int64_t i = 0; i < args->n_samples; i++) {
        const qr_sample_params *params = &args->samples[i];
        args->dst[i] = qr_sample_row(params, args->logits + params->row * args->vocab, args->vocab, &scratch);
    }
}

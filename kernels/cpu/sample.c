/* sample: kernels/top_k_top_p.h, one task for each row. */
#include "kernels/top_k_top_p.h"

#include "base/sizes.h"
#include "kernels/cpu/cpu.h"

typedef struct sample_run {
    const qr_sample_args *args;
    unsigned char *scratch; /* scratch_bytes a worker */
    size_t scratch_bytes;
} sample_run;

static size_t workspace_bytes(const qr_backend *backend, const void *args) {
    const qr_sample_args *a = args;
    return (size_t)qr_threads_count(backend->threads) * qr_sample_scratch_bytes(a->vocab);
}

static void sample_row(void *arg, int64_t index, int worker) {
    const sample_run *run = arg;
    const qr_sample_args *a = run->args;
    const qr_sample_params *params = &a->samples[index];
    const qr_sample_scratch scratch =
        qr_sample_scratch_at(run->scratch + (size_t)worker * run->scratch_bytes, a->vocab);
    a->dst[index] = qr_sample_row(params, a->logits + params->row * a->vocab, a->vocab, &scratch);
}

static qrun_status run_sample(qr_backend *backend, const void *args, void *workspace, qr_error *err) {
    (void)err;
    const qr_sample_args *a = args;
    sample_run run = {.args = a, .scratch = workspace, .scratch_bytes = qr_sample_scratch_bytes(a->vocab)};
    qr_threads_run(backend->threads, a->n_samples, sample_row, &run);
    return QRUN_OK;
}

const qr_op_impl qr_cpu_op_sample = {
    .supports = qr_op_supports_sample,
    .workspace_bytes = workspace_bytes,
    .run = run_sample,
};

/* nll: a block a row. Exponentials of differences from the largest logit in F32, their sums in F64. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP_LANES };

struct row_scratch {
    double sums[WARPS];
    float largest[WARPS];
};

__global__ void nll_kernel(qr_nll_args a) {
    row_scratch *scratch = shared_memory<row_scratch>();
    const float *logits = a.logits + blockIdx.x * a.vocab;
    float largest = -INFINITY;
    for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) { largest = fmaxf(largest, logits[v]); }
    largest = block_max(largest, scratch->largest);
    double sum = 0.0;
    for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) { sum += static_cast<double>(expf(logits[v] - largest)); }
    sum = block_sum(sum, scratch->sums);
    if (threadIdx.x == 0) {
        const float target = logits[a.target[blockIdx.x]];
        a.dst[blockIdx.x] = static_cast<float>(log(sum) + (static_cast<double>(largest) - static_cast<double>(target)));
    }
}

static qrun_status run_nll(qr_cuda_backend &cuda, const qr_nll_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, nll_kernel, dim3(static_cast<unsigned>(args.n_rows)), THREADS,
                     sizeof(row_scratch), args);
}

QR_CUDA_OP(nll, no_workspace<qr_nll_args>, run_nll)

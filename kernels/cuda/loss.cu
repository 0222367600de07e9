/* nll, cross_entropy and sum_squares. The first two take a block a row: exponentials of differences from the largest
 * logit in F32, their sums in F64. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"

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

static __device__ __forceinline__ float capped(float x, float cap) { return cap > 0.0F ? softcap_value(x, cap) : x; }

__global__ void cross_entropy_kernel(qr_cross_entropy_args a) {
    row_scratch *scratch = shared_memory<row_scratch>();
    float *logits = a.logits + blockIdx.x * a.vocab;
    const int32_t target = a.target[blockIdx.x];
    if (target < 0) {
        for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) { logits[v] = 0.0F; }
        if (threadIdx.x == 0) { a.loss[blockIdx.x] = 0.0F; }
        return;
    }
    float largest = -INFINITY;
    for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) { largest = fmaxf(largest, capped(logits[v], a.softcap)); }
    largest = block_max(largest, scratch->largest);
    double sum = 0.0;
    for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) {
        sum += static_cast<double>(expf(capped(logits[v], a.softcap) - largest));
    }
    sum = block_sum(sum, scratch->sums);
    if (threadIdx.x == 0) {
        const double at_target = static_cast<double>(capped(logits[target], a.softcap));
        a.loss[blockIdx.x] = static_cast<float>(log(sum) + (static_cast<double>(largest) - at_target));
    }
    __syncthreads(); /* the target's logit has been read */
    for (int64_t v = threadIdx.x; v < a.vocab; v += THREADS) {
        const float x = capped(logits[v], a.softcap), share = a.softcap > 0.0F ? x / a.softcap : 0.0F;
        const float p = static_cast<float>(static_cast<double>(expf(x - largest)) / sum);
        logits[v] = a.dloss * (p - (v == target ? 1.0F : 0.0F)) * (1.0F - share * share);
    }
}

/* --- sum_squares: blocks of a fixed number of elements, then their sums in order --- */

enum { SQUARES = 1 << 16 }; /* elements a block */

struct squares {
    double sum;
    int64_t n_nonfinite;
};

struct squares_scratch {
    double sums[WARPS];
    int64_t counts[WARPS];
};

__global__ void sum_squares_kernel(const float *x, int64_t n, squares *parts) {
    squares_scratch *scratch = shared_memory<squares_scratch>();
    const int64_t first = blockIdx.x * static_cast<int64_t>(SQUARES);
    const int64_t end = n - first < SQUARES ? n : first + SQUARES;
    double sum = 0.0;
    int64_t n_nonfinite = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        n_nonfinite += isfinite(x[i]) ? 0 : 1;
    }
    sum = block_sum(sum, scratch->sums);
    n_nonfinite = block_sum(n_nonfinite, scratch->counts);
    if (threadIdx.x == 0) { parts[blockIdx.x] = {sum, n_nonfinite}; }
}

__global__ void sum_parts_kernel(const squares *parts, int64_t n, double *dst, int64_t *n_nonfinite) {
    squares_scratch *scratch = shared_memory<squares_scratch>();
    squares mine = {0.0, 0};
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        mine.sum += parts[i].sum;
        mine.n_nonfinite += parts[i].n_nonfinite;
    }
    mine.sum = block_sum(mine.sum, scratch->sums);
    mine.n_nonfinite = block_sum(mine.n_nonfinite, scratch->counts);
    if (threadIdx.x == 0) {
        *dst = mine.sum;
        *n_nonfinite = mine.n_nonfinite;
    }
}

static size_t sum_squares_workspace(const qr_sum_squares_args &args) {
    return static_cast<size_t>(qr_ceil_div(args.n, SQUARES)) * sizeof(squares);
}

static qrun_status run_sum_squares(qr_cuda_backend &cuda, const qr_sum_squares_args &args, void *workspace,
                                   qr_error *err) {
    squares *parts = static_cast<squares *>(workspace);
    const int64_t n_parts = qr_ceil_div(args.n, SQUARES);
    const qrun_status status = QR_LAUNCH(cuda.device, err, sum_squares_kernel, blocks_for(args.n, SQUARES), THREADS,
                                         sizeof(squares_scratch), args.x, args.n, parts);
    if (status != QRUN_OK) { return status; }
    return QR_LAUNCH(cuda.device, err, sum_parts_kernel, dim3(1), THREADS, sizeof(squares_scratch), parts, n_parts,
                     args.dst, args.n_nonfinite);
}

static qrun_status run_cross_entropy(qr_cuda_backend &cuda, const qr_cross_entropy_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, cross_entropy_kernel, dim3(static_cast<unsigned>(args.n_rows)), THREADS,
                     sizeof(row_scratch), args);
}

QR_CUDA_OP(cross_entropy, no_workspace<qr_cross_entropy_args>, run_cross_entropy)
QR_CUDA_OP(sum_squares, sum_squares_workspace, run_sum_squares)

static qrun_status run_nll(qr_cuda_backend &cuda, const qr_nll_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, nll_kernel, dim3(static_cast<unsigned>(args.n_rows)), THREADS,
                     sizeof(row_scratch), args);
}

QR_CUDA_OP(nll, no_workspace<qr_nll_args>, run_nll)

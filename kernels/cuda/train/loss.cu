/* nll, cross_entropy and sum_squares. The first two take a block a row: exponentials of differences from the largest
 * logit in F32, their sums in F64. The row is read three times: for its largest logit, for the sum and for the
 * gradient. A vocabulary's logits do not fit shared memory, but stay in the L2 cache. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP_LANES, ROW_THREADS = 512, ROW_WARPS = ROW_THREADS / WARP_LANES };

struct row_scratch {
    double sums[ROW_WARPS];
    float largest[ROW_WARPS];
};

static QR_DEVICE float capped(float x, float cap) { return cap > 0.0F ? softcap_value(x, cap) : x; }

/* body(v, x) for the logits x [v, v + 4) of a row that are this thread's; −∞ after its end. */
template <typename F>
static QR_DEVICE void for_logits(const float *logits, int64_t vocab, bool aligned, float cap, const F &body) {
    for (int64_t v = threadIdx.x * VEC4; v < vocab; v += ROW_THREADS * VEC4) {
        float x[VEC4];
        load_vec4(x, logits, v, vocab, aligned);
#pragma unroll
        for (int k = 0; k < VEC4; k++) { x[k] = v + k < vocab ? capped(x[k], cap) : -INFINITY; }
        body(v, x);
    }
}

/* The largest logit of a row, and the sum of exp(logit − largest). */
struct row_softmax {
    float largest;
    double sum;
};

static QR_DEVICE row_softmax row_softmax_of(const float *logits, int64_t vocab, bool aligned, float cap) {
    row_scratch *scratch = shared_memory<row_scratch>();
    row_softmax row = {-INFINITY, 0.0};
    for_logits(logits, vocab, aligned, cap, [&](int64_t, const float *x) {
        row.largest = fmaxf(row.largest, fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
    });
    row.largest = block_max(row.largest, scratch->largest);
    for_logits(logits, vocab, aligned, cap, [&](int64_t, const float *x) {
        for (int k = 0; k < VEC4; k++) { row.sum += static_cast<double>(expf(x[k] - row.largest)); }
    });
    row.sum = block_sum(row.sum, scratch->sums);
    return row;
}

static QR_DEVICE float loss_of(const row_softmax &row, float target) {
    return static_cast<float>(log(row.sum) + (static_cast<double>(row.largest) - static_cast<double>(target)));
}

__global__ void nll_kernel(qr_nll_args a, bool aligned) {
    const float *logits = a.logits + blockIdx.x * a.vocab;
    const row_softmax row = row_softmax_of(logits, a.vocab, aligned, 0.0F);
    if (threadIdx.x == 0) { a.dst[blockIdx.x] = loss_of(row, logits[a.target[blockIdx.x]]); }
}

__global__ void cross_entropy_kernel(qr_cross_entropy_args a, bool aligned) {
    float *logits = a.logits + blockIdx.x * a.vocab;
    const int32_t target = a.target[blockIdx.x];
    if (target < 0) {
        const float zeros[VEC4] = {};
        for_logits(logits, a.vocab, aligned, 0.0F,
                   [&](int64_t v, const float *) { store_vec4(logits, v, a.vocab, aligned, zeros); });
        if (threadIdx.x == 0) { a.loss[blockIdx.x] = 0.0F; }
        return;
    }
    const row_softmax row = row_softmax_of(logits, a.vocab, aligned, a.softcap);
    if (threadIdx.x == 0) { a.loss[blockIdx.x] = loss_of(row, capped(logits[target], a.softcap)); }
    __syncthreads(); /* the target's logit has been read */
    const float dloss = a.weight != nullptr ? a.dloss * a.weight[blockIdx.x] : a.dloss;
    const float inverse = static_cast<float>(1.0 / row.sum), share = a.softcap > 0.0F ? 1.0F / a.softcap : 0.0F;
    for_logits(logits, a.vocab, aligned, a.softcap, [&](int64_t v, const float *x) {
        float gradient[VEC4];
        for (int k = 0; k < VEC4; k++) {
            const float p = expf(x[k] - row.largest) * inverse, of_cap = x[k] * share;
            gradient[k] = dloss * (p - (v + k == target ? 1.0F : 0.0F)) * (1.0F - of_cap * of_cap);
        }
        store_vec4(logits, v, a.vocab, aligned, gradient);
    });
}

/* --- sum_squares: a block a chunk --- */

struct squares_scratch {
    double sums[WARPS];
    int64_t counts[WARPS];
};

__global__ void sum_squares_kernel(const qr_sum_squares_args a) {
    squares_scratch *scratch = shared_memory<squares_scratch>();
    const int64_t first = blockIdx.x * static_cast<int64_t>(QR_SQUARES_CHUNK);
    const int64_t end = a.n - first < QR_SQUARES_CHUNK ? a.n : first + QR_SQUARES_CHUNK;
    double sum = 0.0;
    int64_t n_nonfinite = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        sum += static_cast<double>(a.x[i]) * static_cast<double>(a.x[i]);
        n_nonfinite += isfinite(a.x[i]) ? 0 : 1;
    }
    sum = block_sum(sum, scratch->sums);
    n_nonfinite = block_sum(n_nonfinite, scratch->counts);
    if (threadIdx.x == 0) { a.dst[blockIdx.x] = sum, a.n_nonfinite[blockIdx.x] = n_nonfinite; }
}

static qrun_status run_sum_squares(qr_cuda_backend &cuda, const qr_sum_squares_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, sum_squares_kernel, blocks_for(args.n, QR_SQUARES_CHUNK), THREADS,
                     sizeof(squares_scratch), args);
}

static qrun_status run_cross_entropy(qr_cuda_backend &cuda, const qr_cross_entropy_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, cross_entropy_kernel, dim3(static_cast<unsigned>(args.n_rows)), ROW_THREADS,
                     sizeof(row_scratch), args, vec4_aligned(args.logits, args.vocab));
}

QR_CUDA_OP(cross_entropy, no_workspace<qr_cross_entropy_args>, run_cross_entropy)
QR_CUDA_OP(sum_squares, no_workspace<qr_sum_squares_args>, run_sum_squares)

static qrun_status run_nll(qr_cuda_backend &cuda, const qr_nll_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, nll_kernel, dim3(static_cast<unsigned>(args.n_rows)), ROW_THREADS,
                     sizeof(row_scratch), args, vec4_aligned(args.logits, args.vocab));
}

QR_CUDA_OP(nll, no_workspace<qr_nll_args>, run_nll)

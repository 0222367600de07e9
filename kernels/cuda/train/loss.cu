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
    const float inverse = static_cast<float>(1.0 / row.sum), share = a.softcap > 0.0F ? 1.0F / a.softcap : 0.0F;
    for_logits(logits, a.vocab, aligned, a.softcap, [&](int64_t v, const float *x) {
        float gradient[VEC4];
        for (int k = 0; k < VEC4; k++) {
            const float p = expf(x[k] - row.largest) * inverse, of_cap = x[k] * share;
            gradient[k] = a.dloss * (p - (v + k == target ? 1.0F : 0.0F)) * (1.0F - of_cap * of_cap);
        }
        store_vec4(logits, v, a.vocab, aligned, gradient);
    });
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

/* Writes the block's sums by its first thread. */
static QR_DEVICE void store_squares(const squares &mine, double *sum, int64_t *n_nonfinite) {
    squares_scratch *scratch = shared_memory<squares_scratch>();
    const squares all = {block_sum(mine.sum, scratch->sums), block_sum(mine.n_nonfinite, scratch->counts)};
    if (threadIdx.x == 0) { *sum = all.sum, *n_nonfinite = all.n_nonfinite; }
}

__global__ void sum_squares_kernel(const float *x, int64_t n, squares *parts) {
    const int64_t first = blockIdx.x * static_cast<int64_t>(SQUARES);
    const int64_t end = n - first < SQUARES ? n : first + SQUARES;
    squares mine = {0.0, 0};
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        mine.sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        mine.n_nonfinite += isfinite(x[i]) ? 0 : 1;
    }
    store_squares(mine, &parts[blockIdx.x].sum, &parts[blockIdx.x].n_nonfinite);
}

__global__ void sum_parts_kernel(const squares *parts, int64_t n, double *dst, int64_t *n_nonfinite) {
    squares mine = {0.0, 0};
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        mine.sum += parts[i].sum;
        mine.n_nonfinite += parts[i].n_nonfinite;
    }
    store_squares(mine, dst, n_nonfinite);
}

static size_t sum_squares_workspace(const qr_sum_squares_args &args) {
    return static_cast<size_t>(qr_ceil_div(args.n, SQUARES)) * sizeof(squares);
}

static qrun_status run_sum_squares(qr_cuda_backend &cuda, const qr_sum_squares_args &args, void *workspace,
                                   qr_error *err) {
    squares *parts = static_cast<squares *>(workspace);
    const int64_t n_parts = qr_ceil_div(args.n, SQUARES);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, sum_squares_kernel, blocks_for(args.n, SQUARES), THREADS,
                                 sizeof(squares_scratch), args.x, args.n, parts));
    return QR_LAUNCH(cuda.device, err, sum_parts_kernel, dim3(1), THREADS, sizeof(squares_scratch), parts, n_parts,
                     args.dst, args.n_nonfinite);
}

static qrun_status run_cross_entropy(qr_cuda_backend &cuda, const qr_cross_entropy_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, cross_entropy_kernel, dim3(static_cast<unsigned>(args.n_rows)), ROW_THREADS,
                     sizeof(row_scratch), args, vec4_aligned(args.logits, args.vocab));
}

QR_CUDA_OP(cross_entropy, no_workspace<qr_cross_entropy_args>, run_cross_entropy)
QR_CUDA_OP(sum_squares, sum_squares_workspace, run_sum_squares)

static qrun_status run_nll(qr_cuda_backend &cuda, const qr_nll_args &args, void *, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, nll_kernel, dim3(static_cast<unsigned>(args.n_rows)), ROW_THREADS,
                     sizeof(row_scratch), args, vec4_aligned(args.logits, args.vocab));
}

QR_CUDA_OP(nll, no_workspace<qr_nll_args>, run_nll)

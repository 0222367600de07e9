/* attention over pages in F32, for any pages and heads: a block of four warps for one query head of one token. Warp w
 * takes the pages whose number in the sequence is w modulo 4, in order, with a running softmax (Milakov and Gimelshein,
 * "Online normalizer calculation for softmax", 2018); the four results are then joined in the order of the warps. What
 * a query sees, and in which order, follows from its position and the window alone. */
#include "kernels/cuda/act_fn.cuh"
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/kv_page.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP_LANES, PAGE = QR_KV_PAGE_TOKENS };

/* Shared memory: the query [head_dim], the weights of a page for each warp [WARPS, 16], the largest score and the sum
 * of each warp, then what each warp gathered [WARPS, head_dim]. */
struct attention_scratch {
    float *q, *weights, *largest, *total, *sums;
};

static inline size_t scratch_bytes(int32_t head_dim) {
    return static_cast<size_t>(head_dim + WARPS * PAGE + 2 * WARPS + WARPS * head_dim) * sizeof(float);
}

static __device__ attention_scratch scratch_of(int32_t head_dim) {
    attention_scratch s;
    s.q = shared_memory<float>();
    s.weights = s.q + head_dim;
    s.largest = s.weights + WARPS * PAGE;
    s.total = s.largest + WARPS;
    s.sums = s.total + WARPS;
    return s;
}

/* The scores of a page: lanes 2i and 2i + 1 take a half of the key at position i; −∞ outside [first, last]. Both lanes
 * of a pair return the score. */
template <qr_kv_format format>
static __device__ float page_score(const qr_attention_args &a, const kv_offsets &o, const unsigned char *page,
                                   int64_t kv_head, const float *q, bool seen) {
    const unsigned key = lane_index() / 2, half = lane_index() % 2;
    float sum = 0.0F;
    kv_vector k = {};
    if (seen) {
        k = kv_vector_at(o, page, kv_head, key);
        const int32_t middle = o.head_dim / 2, end = half == 0 ? middle : o.head_dim;
        for (int32_t j = half == 0 ? 0 : middle; j < end; j++) {
            sum = fmaf(q[j], kv_element<format>(k.elements, j), sum);
        }
    }
    sum += warp_shuffle_xor(sum, 1);
    if (!seen) { return -INFINITY; }
    const float score = sum * k.scale * a.scale;
    return a.softcap > 0.0F ? softcap_value(score, a.softcap) : score;
}

/* sums [head_dim] of this warp: scaled down to the new largest score, then the page's values added, lane j of every 32
 * elements. weights [16] are shared memory of this warp and hold exp(score − largest), times the value's scale. */
template <qr_kv_format format>
static __device__ void add_values(const kv_offsets &o, const unsigned char *page, int64_t kv_head, const float *weights,
                                  int first, int last, float rescale, float *sums) {
    const unsigned char *values = kv_vector_at(o, page + o.v, kv_head, 0).elements;
    for (int32_t j = static_cast<int32_t>(lane_index()); j < o.head_dim; j += WARP_LANES) {
        float sum = sums[j] * rescale;
        for (int i = first; i <= last; i++) {
            sum = fmaf(weights[i], kv_element<format>(values + i * static_cast<int64_t>(o.head_bytes), j), sum);
        }
        sums[j] = sum;
    }
}

template <qr_kv_format format> __global__ void attention_kernel(qr_attention_args a, kv_offsets o) {
    const attention_scratch s = scratch_of(o.head_dim);
    const int64_t index = blockIdx.x, head = index % a.n_heads, token = index / a.n_heads;
    const int32_t seq =
        last_at_or_before(a.n_seqs, static_cast<int32_t>(token), [&](int32_t i) { return a.q_start[i]; });
    const int64_t last = a.first_position[seq] + (token - a.q_start[seq]);
    const int64_t first = a.window > 0 && last >= a.window ? last - a.window + 1 : 0;
    const int64_t kv_head = head / (a.n_heads / a.layout.n_kv_heads);
    const int32_t *table = a.block_table + seq * a.table_stride;
    for (unsigned j = threadIdx.x; j < static_cast<unsigned>(o.head_dim); j += THREADS) {
        s.q[j] = a.q[token * a.q_stride + head * o.head_dim + j];
    }
    float *sums = s.sums + warp_index() * static_cast<unsigned>(o.head_dim);
    float *weights = s.weights + warp_index() * PAGE;
    for (unsigned j = lane_index(); j < static_cast<unsigned>(o.head_dim); j += WARP_LANES) { sums[j] = 0.0F; }
    __syncthreads();

    float largest = -INFINITY, total = 0.0F;
    const int64_t first_page = first / PAGE;
    const int64_t mine = first_page + (warp_index() + WARPS - first_page % WARPS) % WARPS;
    for (int64_t p = mine; p <= last / PAGE; p += WARPS) {
        const unsigned char *page = a.pages + static_cast<size_t>(table[p]) * a.page_stride_bytes;
        const int64_t position = p * PAGE + lane_index() / 2;
        const float score = page_score<format>(a, o, page, kv_head, s.q, position >= first && position <= last);
        const float now_largest = fmaxf(largest, warp_max(score));
        const float weight = expf(score - now_largest), rescale = expf(largest - now_largest);
        total = total * rescale + warp_sum(lane_index() % 2 == 0 ? weight : 0.0F);
        largest = now_largest;
        if (lane_index() % 2 == 0) {
            const kv_vector v = kv_vector_at(o, page + o.v, kv_head, lane_index() / 2);
            weights[lane_index() / 2] = weight * v.scale;
        }
        warp_sync();
        const int begin = first > p * PAGE ? static_cast<int>(first - p * PAGE) : 0;
        const int end = last < p * PAGE + PAGE - 1 ? static_cast<int>(last - p * PAGE) : PAGE - 1;
        add_values<format>(o, page, kv_head, weights, begin, end, rescale, sums);
        warp_sync();
    }
    if (lane_index() == 0) {
        s.largest[warp_index()] = largest;
        s.total[warp_index()] = total;
    }
    __syncthreads();

    const float sink = a.sinks != NULL ? a.sinks[head] : -INFINITY;
    float joined_largest = sink, joined_total = 0.0F;
    for (int w = 0; w < WARPS; w++) { joined_largest = fmaxf(joined_largest, s.largest[w]); }
    for (int w = 0; w < WARPS; w++) { joined_total += s.total[w] * expf(s.largest[w] - joined_largest); }
    joined_total += expf(sink - joined_largest);
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < o.head_dim; j += THREADS) {
        float sum = 0.0F;
        for (int w = 0; w < WARPS; w++) { sum += s.sums[w * o.head_dim + j] * expf(s.largest[w] - joined_largest); }
        store_from_f32(a.dst, a.dst_dtype, (token * a.n_heads + head) * o.head_dim + j, sum / joined_total);
    }
}

template <qr_kv_format format>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_args &args, qr_error *err) {
    return QR_LAUNCH(cuda.device, err, attention_kernel<format>,
                     dim3(static_cast<unsigned>(args.n_tokens * args.n_heads)), THREADS,
                     scratch_bytes(args.layout.head_dim), args, kv_offsets_of(&args.layout));
}

qrun_status qr_cuda_attention_scalar(qr_cuda_backend &cuda, const qr_attention_args &args, qr_error *err) {
    switch (args.layout.format) {
        case QR_KV_INT8: return launch<QR_KV_INT8>(cuda, args, err);
        case QR_KV_BF16: return launch<QR_KV_BF16>(cuda, args, err);
        case QR_KV_F16: return launch<QR_KV_F16>(cuda, args, err);
        default: return launch<QR_KV_F32>(cuda, args, err);
    }
}

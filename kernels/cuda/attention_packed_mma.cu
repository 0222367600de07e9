/* attention_packed on the tensor cores: a block takes 64 queries of one head, 16 a warp, over the tiles of keys that
 * any of them sees, with a running softmax in registers. Scores are in units of log 2, so that a weight is one 2^x. */
#include "kernels/cuda/attention_packed_mma.cuh"

template <int DIM, bool exact> struct forward_shape : packed_shape<DIM, exact> {
    using shape = packed_shape<DIM, exact>;
    enum {
        THREADS = shape::FORWARD_WARPS * WARP_LANES,
        QUERIES = shape::FORWARD_WARPS * 16,
        KEYS = shape::KEYS_AT_ONCE,
        Q_SIZE = pair_tile_size(QUERIES, DIM, true),
        KV_SIZE = shape::STAGES * 2 * pair_tile_size(KEYS, DIM, !exact),
        KV_OFFSET = shape::Q_IN_REGISTERS ? 0 : Q_SIZE, /* q is lent the place of k and v on its way to registers */
        SHARED_BYTES = (KV_OFFSET + KV_SIZE) * sizeof(uint16_t),
    };
    static_assert(!shape::Q_IN_REGISTERS || KV_SIZE >= Q_SIZE, "q has room there");
};

/* The running softmax of a lane's two rows: largest score, and the lane's part of the sum of weights. */
struct running_softmax {
    float largest[2], total[2];
};

static __device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, warp_shuffle_xor(value, 1));
    return fmaxf(value, warp_shuffle_xor(value, 2));
}

static __device__ __forceinline__ float quad_sum(float value) {
    value += warp_shuffle_xor(value, 1);
    return value + warp_shuffle_xor(value, 2);
}

/* Dot products to scores in units of log 2, −∞ where a query does not see a key. */
template <int N>
static __device__ __forceinline__ void make_scores(const qr_attention_packed_args &a, int first_query, int first_key,
                                                   float (*scores)[4]) {
    if (a.softcap > 0.0F) {
        const float inside = a.scale / a.softcap;
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { scores[n][i] = tanhf(scores[n][i] * inside); }
        }
    }
    const float scale2 = (a.softcap > 0.0F ? a.softcap : a.scale) * PACKED_LOG2E;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { scores[n][i] *= scale2; }
    }
    if (all_seen(a, first_query, 16, first_key, 8 * N)) { return; }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool seen = sees_key(a, first_query + row_of(i), first_key + 8 * n + column_of(i));
            scores[n][i] = seen ? scores[n][i] : -INFINITY;
        }
    }
}

/* Scores to weights; what was summed before is scaled to the new largest score, where there is one. */
template <int N, int DIM>
static __device__ __forceinline__ void make_weights(float (*scores)[4], running_softmax &softmax, float (*sums)[4]) {
    float rescale[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = softmax.largest[half], total = 0.0F;
#pragma unroll
        for (int n = 0; n < N; n++) { largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1])); }
        largest = quad_max(largest);
        const float base = largest == -INFINITY ? 0.0F : largest; /* a row that has seen nothing yet: weights of 0 */
        rescale[half] = exp2_flushed(softmax.largest[half] - base);
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                scores[n][i] = exp2_flushed(scores[n][i] - base);
                total += scores[n][i];
            }
        }
        softmax.largest[half] = largest;
        softmax.total[half] = fmaf(softmax.total[half], rescale[half], total);
    }
    if (warp_all(rescale[0] == 1.0F && rescale[1] == 1.0F)) { return; } /* of most tiles */
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) { sums[n][i] *= rescale[i / 2]; }
    }
}

static __device__ __forceinline__ uint32_t two_of_dst(qr_dtype dtype, float first, float second) {
    return dtype == QR_DTYPE_F16 ? f32_to_f16x2(first, second) : f32_to_bf16x2(first, second);
}

template <int DIM>
static __device__ __forceinline__ void store_results(const qr_attention_packed_args &a, const packed_tile &tile,
                                                     int head, int first_query, const running_softmax &softmax,
                                                     const float (*sums)[4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = quad_sum(softmax.total[half]), inverse = 1.0F / total;
        const int query = first_query + row_of(2 * half);
        if (query >= tile.end) { continue; }
        const int64_t index = static_cast<int64_t>(query) * a.n_heads + head;
        if (column_of(0) == 0) { a.lse[index] = (softmax.largest[half] + log2f(total)) * PACKED_LN2; }
        uint16_t *dst = static_cast<uint16_t *>(a.dst) + index * a.head_dim;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const int j = 8 * n + column_of(0);
            if (j >= a.head_dim) { break; }
            const uint32_t two = two_of_dst(a.dst_dtype, sums[n][2 * half] * inverse, sums[n][2 * half + 1] * inverse);
            if (a.head_dim % 2 == 0) {
                *reinterpret_cast<uint32_t *>(dst + j) = two;
                continue;
            }
            dst[j] = static_cast<uint16_t>(two);
            if (j + 1 < a.head_dim) { dst[j + 1] = static_cast<uint16_t>(two >> 16); }
        }
    }
}

/* Shared memory: q where it is not in registers, then k and v. */
template <int DIM, bool exact>
__global__ void __launch_bounds__(forward_shape<DIM, exact>::THREADS, forward_shape<DIM, exact>::BLOCKS)
    attention_packed_mma_kernel(qr_attention_packed_args a, packed_planes planes) {
    using shape = forward_shape<DIM, exact>;
    enum { KEYS = shape::KEYS, QUERIES = shape::QUERIES, THREADS = shape::THREADS };
    const query_block block = query_block_of<QUERIES>(a);
    const packed_tile &tile = block.tile;
    if (tile.first >= tile.end) { return; }
    const int first_query = tile.first + static_cast<int>(warp_index()) * 16;
    uint16_t *shared = shared_memory<uint16_t>();
    left_rows<DIM, true, shape::Q_IN_REGISTERS> q;
    q.tile = pair_tile_at<DIM, true>(shared, QUERIES);
    q.row = warp_index() * 16;
    copy_pairs<DIM, QUERIES, THREADS, true>(q.tile, planes.q, block.head * a.n_tokens + tile.first,
                                            tile.end - tile.first);
    copy_async_commit();
    if (shape::Q_IN_REGISTERS) {
        copy_async_wait<0>();
        __syncthreads();
        q.keep();
        __syncthreads();
    }
    const key_tiles<DIM, KEYS, THREADS, exact> tiles = {shared + shape::KV_OFFSET};
    const key_range keys = keys_seen<QUERIES, KEYS>(a, tile);
    float sums[DIM / 8][4] = {};
    running_softmax softmax = {{-INFINITY, -INFINITY}, {0.0F, 0.0F}};
    through_tiles<shape::STAGES>(
        keys.n_tiles,
        [&](int i, int stage) {
            const int key = keys.first + i * KEYS;
            tiles.copy(stage, planes, block.kv_head * a.n_tokens + key, tile.end - key);
        },
        [&](int i, int stage) {
            const int key = keys.first + i * KEYS;
            if (first_query >= tile.end || !any_seen(a, first_query, 16, key, KEYS)) { return; }
            float scores[KEYS / 8][4] = {};
            add_dots<DIM, KEYS, true, !exact>(scores, q, tiles.k(stage));
            make_scores<KEYS / 8>(a, first_query, key, scores);
            make_weights<KEYS / 8, DIM>(scores, softmax, sums);
            add_weighted_rows<DIM, KEYS, !exact>(sums, scores, tiles.v(stage));
        });
    store_results<DIM>(a, tile, block.head, first_query, softmax, sums);
}

template <int DIM, bool exact>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_args &args, const packed_planes &planes,
                          qr_error *err) {
    using shape = forward_shape<DIM, exact>;
    const dim3 grid(packed_tiles(args, shape::QUERIES) * static_cast<unsigned>(args.n_heads));
    return QR_LAUNCH(cuda.device, err, (attention_packed_mma_kernel<DIM, exact>), grid, shape::THREADS,
                     shape::SHARED_BYTES, args, planes);
}

qrun_status qr_cuda_packed_forward(qr_cuda_backend &cuda, const qr_attention_packed_args &args, void *workspace,
                                   qr_error *err) {
    packed_planes planes;
    const qrun_status status = qr_cuda_packed_forward_planes(cuda, args, workspace, &planes, err);
    return status != QRUN_OK ? status : QR_PACKED_MMA_DISPATCH(args, launch, cuda, args, planes, err);
}

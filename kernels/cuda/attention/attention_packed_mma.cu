/* attention_packed on the tensor cores: a block takes 64 queries of one head (128 in BF16, where a head is not larger
 * than that) over the tiles of keys that any of them sees, with a running softmax in registers. Scores are in units of
 * log 2, so that a weight is one 2^x. */
#include "kernels/cuda/attention/attention_packed_mma.cuh"

template <int DIM, packed_form form> struct forward_shape : packed_shape<DIM, form> {
    using shape = packed_shape<DIM, form>;
    enum {
        THREADS = shape::FORWARD_WARPS * WARP_LANES,
        SIXTEENS = shape::FORWARD_SIXTEENS,
        QUERIES = shape::FORWARD_WARPS * SIXTEENS * 16,
        KEYS = shape::FORWARD_KEYS,
        Q_SIZE = split_tile_size(QUERIES, DIM, shape::PAIRS),
        KV_SIZE = split_tile_size(KEYS, DIM, shape::KV_SPLIT), /* of k, and of v */
        /* q that is moved to registers first uses the memory of k and v. */
        KV_OFFSET = shape::FORWARD_KEEPS_Q ? 0 : Q_SIZE,
        SIZE = shape::FORWARD_KEEPS_Q && Q_SIZE > 2 * KV_SIZE ? Q_SIZE : KV_OFFSET + 2 * KV_SIZE,
        SHARED_BYTES = SIZE * sizeof(uint16_t),
    };
};

/* The running softmax of a lane's two rows: largest score, and the lane's part of the sum of weights. */
struct running_softmax {
    float largest[2], total[2];
};

static QR_DEVICE float quad_max(float value) {
    value = fmaxf(value, warp_shuffle_xor(value, 1));
    return fmaxf(value, warp_shuffle_xor(value, 2));
}

static QR_DEVICE float quad_sum(float value) {
    value += warp_shuffle_xor(value, 1);
    return value + warp_shuffle_xor(value, 2);
}

/* Dot products to scores in units of log 2, −∞ where a query does not see a key. */
template <int N>
static QR_DEVICE void make_scores(const qr_attention_packed_args &a, int first_query, int first_key,
                                  float (*scores)[4]) {
    if (a.softcap > 0.0F) {
        const float inside = a.scale / a.softcap;
        for_each_sum<N>([&](int n, int i) { scores[n][i] = tanhf(scores[n][i] * inside); });
    }
    const float scale2 = (a.softcap > 0.0F ? a.softcap : a.scale) * PACKED_LOG2E;
    for_each_sum<N>([&](int n, int i) { scores[n][i] *= scale2; });
    if (all_seen(a, first_query, 16, first_key, 8 * N)) { return; }
    for_each_sum<N>([&](int n, int i) {
        const bool seen = sees_key(a, first_query + row_of(i), first_key + 8 * n + column_of(i));
        scores[n][i] = seen ? scores[n][i] : -INFINITY;
    });
}

/* Scores to weights; what was summed before is scaled to the new largest score, where there is one. */
template <int N, int DIM>
static QR_DEVICE void make_weights(float (*scores)[4], running_softmax &softmax, float (*sums)[4]) {
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
    for_each_sum<DIM / 8>([&](int n, int i) { sums[n][i] *= rescale[i / 2]; });
}

static QR_DEVICE uint32_t two_of_dst(qr_dtype dtype, float first, float second) {
    return dtype == QR_DTYPE_F16 ? f32_to_f16x2(first, second) : f32_to_bf16x2(first, second);
}

template <int DIM>
static QR_DEVICE void store_results(const qr_attention_packed_args &a, const packed_tile &tile, int head,
                                    int first_query, const running_softmax &softmax, const float (*sums)[4]) {
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

/* Shared memory: q where it is not in registers, then k, v. While scores are made v comes, and while values are summed
 * the next k. */
template <int DIM, packed_form form>
__global__ void __launch_bounds__(forward_shape<DIM, form>::THREADS, forward_shape<DIM, form>::FORWARD_BLOCKS)
    attention_packed_mma_kernel(qr_attention_packed_args a, packed_operands operands) {
    using shape = forward_shape<DIM, form>;
    constexpr bool split = shape::PAIRS, kv_split = shape::KV_SPLIT;
    enum { KEYS = shape::KEYS, QUERIES = shape::QUERIES, THREADS = shape::THREADS, M = shape::SIXTEENS };
    const query_block block = query_block_of<QUERIES>(a);
    const packed_tile &tile = block.tile;
    if (tile.first >= tile.end) { return; }
    const int first_query = tile.first + static_cast<int>(warp_index()) * 16 * M;
    uint16_t *shared = shared_memory<uint16_t>();
    left_rows<DIM, split, shape::FORWARD_KEEPS_Q, M> q;
    q.tile = split_tile_at<DIM, split>(shared, QUERIES);
    q.row = warp_index() * 16 * M;
    copy_split_tile<DIM, QUERIES, THREADS, split>(q.tile, operands.q, block.head * a.n_tokens + tile.first,
                                                  tile.end - tile.first);
    copy_async_commit();
    if (shape::FORWARD_KEEPS_Q) {
        copy_async_wait<0>();
        __syncthreads();
        q.keep();
        __syncthreads();
    }
    const split_tile k = split_tile_at<DIM, kv_split>(shared + shape::KV_OFFSET, KEYS);
    const split_tile v = split_tile_at<DIM, kv_split>(shared + shape::KV_OFFSET + shape::KV_SIZE, KEYS);
    const key_range keys = keys_seen<QUERIES, KEYS>(a, tile);
    const auto copy = [&](const split_tile &dst, const split_rows &src, int i) {
        const int key = keys.first + i * KEYS;
        copy_split_tile<DIM, KEYS, THREADS, kv_split>(dst, src, block.kv_head * a.n_tokens + key, tile.end - key);
    };
    const auto sees_any = [&](int i) {
        return first_query < tile.end && any_seen(a, first_query, 16 * M, keys.first + i * KEYS, KEYS);
    };
    float sums[M][DIM / 8][4] = {}, scores[M][KEYS / 8][4];
    running_softmax softmax[M];
    /* A sink is a score that is seen first, without a value; its weight is the first lane's part. */
    const float sink = a.sinks != NULL ? a.sinks[block.head] * PACKED_LOG2E : -INFINITY;
    const float weight = sink > -INFINITY && column_of(0) == 0 ? 1.0F : 0.0F;
#pragma unroll
    for (int m = 0; m < M; m++) { softmax[m] = {{sink, sink}, {weight, weight}}; }
    through_two_tiles(
        keys.n_tiles, [&](int i) { copy(k, operands.k, i); }, [&](int i) { copy(v, operands.v, i); },
        [&](int i) {
            if (!sees_any(i)) { return; }
            for_each_sum<M *(KEYS / 8)>([&](int n, int j) { scores[n / (KEYS / 8)][n % (KEYS / 8)][j] = 0.0F; });
            add_dots<kv_split>(scores, q, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                make_scores<KEYS / 8>(a, first_query + 16 * m, keys.first + i * KEYS, scores[m]);
                make_weights<KEYS / 8, DIM>(scores[m], softmax[m], sums[m]);
            }
        },
        [&](int i) {
            if (sees_any(i)) { add_weighted_rows<split, kv_split>(sums, scores, v); }
        });
#pragma unroll
    for (int m = 0; m < M; m++) { store_results<DIM>(a, tile, block.head, first_query + 16 * m, softmax[m], sums[m]); }
}

template <int DIM, packed_form form>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_args &args, const packed_operands &operands,
                          qr_error *err) {
    using shape = forward_shape<DIM, form>;
    const dim3 grid(packed_tiles(args, shape::QUERIES) * static_cast<unsigned>(args.n_heads));
    return QR_LAUNCH(cuda.device, err, (attention_packed_mma_kernel<DIM, form>), grid, shape::THREADS,
                     shape::SHARED_BYTES, args, operands);
}

qrun_status qr_cuda_packed_forward(qr_cuda_backend &cuda, const qr_attention_packed_args &args, void *workspace,
                                   qr_error *err) {
    packed_operands operands;
    QR_RETURN_IF_ERROR(qr_cuda_packed_forward_operands(cuda, args, workspace, &operands, err));
    return QR_PACKED_MMA_DISPATCH(args, launch, cuda, args, operands, err);
}

/* attention_packed: a block for a tile of queries of one head of one sequence, over the tiles of keys that any of them
 * sees, with a running softmax (Dao et al., "FlashAttention", 2022). Scores, weights and sums are F32. */
#include "kernels/cuda/attention/attention_packed_mma.cuh"

/* Shared memory, in floats: q and k or v [TILE][pitch], weights [TILE][TILE + 1], and of each query the largest score,
 * the sum of weights and what older sums are scaled by. */
template <int PER> struct forward_scratch {
    enum { TILE = PER * SIDE };
    float *q, *kv, *weights, *largest, *total, *rescale;

    __device__ explicit forward_scratch(int32_t dim) {
        q = shared_memory<float>();
        kv = q + TILE * tile_pitch(dim);
        weights = kv + TILE * tile_pitch(dim);
        largest = weights + TILE * (TILE + 1);
        total = largest + TILE;
        rescale = total + TILE;
    }
    static size_t bytes(int32_t dim) {
        return (2 * TILE * static_cast<size_t>(tile_pitch(dim)) + TILE * (TILE + 1) + 3 * TILE) * sizeof(float);
    }
};

/* Scores of a tile into shared memory; −∞ where a query does not see a key. */
template <int PER>
static __device__ void store_scores(const qr_attention_packed_args &a, const packed_rows &rows,
                                    const forward_scratch<PER> &s, int64_t first_query, int64_t first_key) {
    enum { TILE = PER * SIDE };
    float dots[PER][PER];
    tile_dots<PER>(s.q, s.kv, a.head_dim, dots);
#pragma unroll
    for (int i = 0; i < PER; i++) {
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const unsigned row = thread_y() + i * SIDE, col = thread_x() + j * SIDE;
            float score = dots[i][j] * a.scale;
            if (a.softcap > 0.0F) { score = softcap_value(score, a.softcap); }
            s.weights[row * (TILE + 1) + col] = sees(a, rows, first_query + row, first_key + col) ? score : -INFINITY;
        }
    }
}

/* Scores to weights, a warp for a query at a time, a lane for a key; a query that has seen nothing yet keeps total
 * 0. */
template <int PER> static __device__ void make_weights(const forward_scratch<PER> &s) {
    enum { TILE = PER * SIDE, WARPS = PACKED_THREADS / WARP_LANES };
    for (unsigned row = warp_index(); row < TILE; row += WARPS) {
        float *weights = s.weights + row * (TILE + 1);
        const float score = lane_index() < TILE ? weights[lane_index()] : -INFINITY;
        const float before = s.largest[row], largest = fmaxf(before, warp_max(score));
        const float weight = score > -INFINITY ? expf(score - largest) : 0.0F;
        const float rescale = before > -INFINITY ? expf(before - largest) : 0.0F;
        const float sum = warp_sum(weight);
        if (lane_index() < TILE) { weights[lane_index()] = weight; }
        if (lane_index() == 0) {
            s.largest[row] = largest;
            s.rescale[row] = rescale;
            s.total[row] = s.total[row] * rescale + sum;
        }
    }
}

template <int PER, int COLS>
static __device__ void store_results(const qr_attention_packed_args &a, const packed_rows &rows,
                                     const forward_scratch<PER> &s, int64_t first_query, int64_t head,
                                     float sums[PER][COLS]) {
    for (int i = 0; i < PER; i++) {
        const unsigned row = thread_y() + i * SIDE;
        if (first_query + row >= rows.end) { continue; }
        const int64_t index = (first_query + row) * a.n_heads + head;
        if (thread_x() == 0) { a.lse[index] = s.largest[row] + logf(s.total[row]); }
        for (int c = 0; c < COLS; c++) {
            const int32_t j = static_cast<int32_t>(thread_x()) + c * SIDE;
            if (j >= a.head_dim) { continue; }
            store_from_f32(a.dst, a.dst_dtype, index * a.head_dim + j, sums[i][c] / s.total[row]);
        }
    }
}

template <int PER, int COLS> __global__ void attention_packed_kernel(qr_attention_packed_args a) {
    enum { TILE = PER * SIDE };
    const packed_rows rows = rows_of(a, blockIdx.z);
    const int64_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
    const int64_t first_query = rows.begin + static_cast<int64_t>(blockIdx.x) * TILE;
    if (first_query >= rows.end) { return; }
    const forward_scratch<PER> s(a.head_dim);
    const float sink = a.sinks != NULL ? a.sinks[head] : -INFINITY; /* a score that is seen first, without a value */
    load_rows<TILE, false>(a, s.q, a.q + head * a.head_dim, a.qkv_stride, first_query, rows.end);
    for (unsigned row = threadIdx.x; row < TILE; row += PACKED_THREADS) {
        s.largest[row] = sink;
        s.total[row] = sink > -INFINITY ? 1.0F : 0.0F;
    }
    float sums[PER][COLS] = {};
    const int64_t seen = (first_seen(a, rows, first_query) - rows.begin) / TILE * TILE + rows.begin;
    for (int64_t first_key = seen; first_key <= first_query; first_key += TILE) {
        const int64_t behind = rows.end - first_key;
        const int n_keys = behind < TILE ? static_cast<int>(behind) : static_cast<int>(TILE);
        load_rows<TILE, true>(a, s.kv, a.k + kv_head * a.head_dim, a.qkv_stride, first_key, rows.end);
        __syncthreads();
        store_scores<PER>(a, rows, s, first_query, first_key);
        __syncthreads();
        load_rows<TILE, true>(a, s.kv, a.v + kv_head * a.head_dim, a.qkv_stride, first_key, rows.end);
        make_weights<PER>(s);
        __syncthreads();
        for (int i = 0; i < PER; i++) {
            const float rescale = s.rescale[thread_y() + i * SIDE];
            for (int c = 0; c < COLS; c++) { sums[i][c] *= rescale; }
        }
        add_weighted<PER, COLS, false>(s.weights, s.kv, a.head_dim, n_keys, sums);
        __syncthreads();
    }
    store_results<PER, COLS>(a, rows, s, first_query, head, sums);
}

template <int PER, int COLS>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_args &args, qr_error *err) {
    dim3 grid = blocks_for(args.max_seq_tokens, PER * SIDE);
    grid.y = static_cast<unsigned>(args.n_heads);
    grid.z = static_cast<unsigned>(args.n_seqs);
    return QR_LAUNCH(cuda.device, err, (attention_packed_kernel<PER, COLS>), grid, PACKED_THREADS,
                     forward_scratch<PER>::bytes(args.head_dim), args);
}

static size_t packed_workspace(const qr_attention_packed_args &args) {
    return args.dst_dtype != QR_DTYPE_F32 ? qr_cuda_packed_operands_bytes(args, false) : 0;
}

/* The z dimension of a grid ends at 65535. */
static qrun_status run_attention_packed(qr_cuda_backend &cuda, const qr_attention_packed_args &args, void *workspace,
                                        qr_error *err) {
    enum { LAUNCH_SEQS = 65535 };
    if (args.dst_dtype != QR_DTYPE_F32) { return qr_cuda_packed_forward(cuda, args, workspace, err); }
    qr_attention_packed_args part = args;
    for (int32_t seq = 0; seq < args.n_seqs; seq += LAUNCH_SEQS) {
        part.seq_start = args.seq_start + seq;
        part.n_seqs = static_cast<int32_t>(qr_min(LAUNCH_SEQS, args.n_seqs - seq));
        QR_RETURN_IF_ERROR(QR_PACKED_DISPATCH(args.head_dim, launch, cuda, part, err));
    }
    return QRUN_OK;
}

static bool supports_attention_packed(const qr_attention_packed_args &args, qr_error *err) {
    return supports_packed("attention_packed", args, err);
}

QR_CUDA_OP_IF(attention_packed, supports_attention_packed, packed_workspace, run_attention_packed)

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
                                    const forward_scratch<PER> &s, int64_t first_query, int64_t first_key,
                                    const float dots[PER][PER]) {
    enum { TILE = PER * SIDE };
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
                                     const head_chunk &chunk, float sums[PER][COLS]) {
    for (int i = 0; i < PER; i++) {
        const unsigned row = thread_y() + i * SIDE;
        if (first_query + row >= rows.end) { continue; }
        const int64_t index = (first_query + row) * a.n_heads + head;
        if (thread_x() == 0) { a.lse[index] = s.largest[row] + logf(s.total[row]); }
        for (int c = 0; c < COLS; c++) {
            const int32_t j = static_cast<int32_t>(thread_x()) + c * SIDE;
            if (j >= chunk.n) { continue; }
            store_from_f32(a.dst, a.dst_dtype, index * a.head_dim + chunk.first + j, sums[i][c] / s.total[row]);
        }
    }
}

/* dots = a tile of queries times one of keys. Queries of one chunk are in shared memory already. */
template <int PER, int CHUNKS>
static __device__ void score_tile(const qr_attention_packed_args &a, const packed_rows &rows,
                                  const forward_scratch<PER> &s, const float *q, const float *k, int64_t first_query,
                                  int64_t first_key, float dots[PER][PER]) {
    enum { TILE = PER * SIDE };
    for (int part = 0; part < CHUNKS; part++) {
        const head_chunk chunk = chunk_of(a, part);
        if (CHUNKS > 1) { load_rows<TILE, false>(a, chunk, s.q, q, a.qkv_stride, first_query, rows.end); }
        load_rows<TILE, true>(a, chunk, s.kv, k, a.qkv_stride, first_key, rows.end);
        __syncthreads();
        add_tile_dots<PER>(s.q, s.kv, chunk.n, tile_pitch(a.head_dim), dots);
        if (part + 1 < CHUNKS) { __syncthreads(); }
    }
}

template <int PER, int COLS, int CHUNKS> __global__ void attention_packed_kernel(qr_attention_packed_args a) {
    enum { TILE = PER * SIDE };
    const packed_rows rows = rows_of(a, blockIdx.z);
    const int64_t head = blockIdx.y, kv_head = head / (a.n_heads / a.n_kv_heads);
    const int64_t first_query = rows.begin + static_cast<int64_t>(blockIdx.x) * TILE;
    if (first_query >= rows.end) { return; }
    const forward_scratch<PER> s(a.head_dim);
    const float sink = a.sinks != NULL ? a.sinks[head] : -INFINITY; /* a score that is seen first, without a value */
    const float *q = a.q + head * a.head_dim, *k = a.k + kv_head * a.head_dim, *v = a.v + kv_head * a.head_dim;
    if (CHUNKS == 1) { load_rows<TILE, false>(a, chunk_of(a, 0), s.q, q, a.qkv_stride, first_query, rows.end); }
    for (unsigned row = threadIdx.x; row < TILE; row += PACKED_THREADS) {
        s.largest[row] = sink;
        s.total[row] = sink > -INFINITY ? 1.0F : 0.0F;
    }
    float sums[CHUNKS][PER][COLS] = {};
    const int64_t seen = (first_seen(a, rows, first_query) - rows.begin) / TILE * TILE + rows.begin;
    for (int64_t first_key = seen; first_key <= first_query; first_key += TILE) {
        const int64_t behind = rows.end - first_key;
        const int n_keys = behind < TILE ? static_cast<int>(behind) : static_cast<int>(TILE);
        float dots[PER][PER] = {};
        score_tile<PER, CHUNKS>(a, rows, s, q, k, first_query, first_key, dots);
        store_scores<PER>(a, rows, s, first_query, first_key, dots);
        __syncthreads();
        make_weights<PER>(s);
#pragma unroll
        for (int part = 0; part < CHUNKS; part++) {
            const head_chunk chunk = chunk_of(a, part);
            load_rows<TILE, true>(a, chunk, s.kv, v, a.qkv_stride, first_key, rows.end);
            __syncthreads();
            for (int i = 0; i < PER; i++) {
                const float rescale = s.rescale[thread_y() + i * SIDE];
                for (int c = 0; c < COLS; c++) { sums[part][i][c] *= rescale; }
            }
            add_weighted<PER, COLS, false>(s.weights, s.kv, chunk.n, tile_pitch(a.head_dim), n_keys, sums[part]);
            __syncthreads();
        }
    }
#pragma unroll
    for (int part = 0; part < CHUNKS; part++) {
        store_results<PER, COLS>(a, rows, s, first_query, head, chunk_of(a, part), sums[part]);
    }
}

template <int PER, int COLS, int CHUNKS>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_args &args, qr_error *err) {
    dim3 grid = blocks_for(args.max_seq_tokens, PER * SIDE);
    grid.y = static_cast<unsigned>(args.n_heads);
    grid.z = static_cast<unsigned>(args.n_seqs);
    return QR_LAUNCH(cuda.device, err, (attention_packed_kernel<PER, COLS, CHUNKS>), grid, PACKED_THREADS,
                     forward_scratch<PER>::bytes(args.head_dim), args);
}

static size_t packed_workspace(const qr_attention_packed_args &args) {
    return packed_on_tensor_cores(args) ? qr_cuda_packed_operands_bytes(args, false) : 0;
}

/* The z dimension of a grid ends at 65535. */
static qrun_status run_attention_packed(qr_cuda_backend &cuda, const qr_attention_packed_args &args, void *workspace,
                                        qr_error *err) {
    enum { LAUNCH_SEQS = 65535 };
    if (packed_on_tensor_cores(args)) { return qr_cuda_packed_forward(cuda, args, workspace, err); }
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

/* attention_packed_backward, probabilities recomputed from q, k and lse. delta is computed by a warp a query and head,
 * and dq by a block for a tile of queries, over the keys. dk and dv are computed by a block for a tile of keys, over
 * the queries that see them and the query heads of the group, in order. There are no atomic additions, so the bits are
 * always the same. */
#include "kernels/cuda/attention/attention_packed_mma.cuh"

enum { DELTA_THREADS = 128, DELTA_WARPS = DELTA_THREADS / WARP_LANES };

/* delta[t, h] = sum over head_dim of dout · out. */
__global__ void attention_delta_kernel(qr_attention_packed_backward_args a, float *delta) {
    const qr_attention_packed_args &f = a.forward;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * DELTA_WARPS + warp_index();
    if (index >= f.n_tokens * f.n_heads) { return; }
    float sum = 0.0F;
    for (int64_t j = lane_index(); j < f.head_dim; j += WARP_LANES) {
        const int64_t at = index * f.head_dim + j;
        sum = fmaf(a.dout[at], load_as_f32(f.dst, f.dst_dtype, at), sum);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) { delta[index] = sum; }
}

/* Shared memory, in floats: q, dout, k and v [TILE][pitch], then the probabilities and the gradients of q · k
 * [TILE][TILE + 1], queries by rows. */
template <int PER> struct backward_scratch {
    enum { TILE = PER * SIDE };
    float *q, *dout, *k, *v, *p, *ds;

    __device__ explicit backward_scratch(int32_t dim) {
        q = shared_memory<float>();
        dout = q + TILE * tile_pitch(dim);
        k = dout + TILE * tile_pitch(dim);
        v = k + TILE * tile_pitch(dim);
        p = v + TILE * tile_pitch(dim);
        ds = p + TILE * (TILE + 1);
    }
    static size_t bytes(int32_t dim) {
        return (4 * TILE * static_cast<size_t>(tile_pitch(dim)) + 2 * TILE * (TILE + 1)) * sizeof(float);
    }
};

template <int PER>
static __device__ void load_queries(const qr_attention_packed_backward_args &a, const packed_rows &rows,
                                    const head_chunk &chunk, const backward_scratch<PER> &s, int64_t head,
                                    int64_t first_query) {
    const qr_attention_packed_args &f = a.forward;
    enum { TILE = PER * SIDE };
    load_rows<TILE, false>(f, chunk, s.q, f.q + head * f.head_dim, f.qkv_stride, first_query, rows.end);
    load_rows<TILE, false>(f, chunk, s.dout, a.dout + head * f.head_dim, static_cast<int64_t>(f.n_heads) * f.head_dim,
                           first_query, rows.end);
}

template <int PER>
static __device__ void load_keys(const qr_attention_packed_args &f, const packed_rows &rows, const head_chunk &chunk,
                                 const backward_scratch<PER> &s, int64_t kv_head, int64_t first_key) {
    enum { TILE = PER * SIDE };
    load_rows<TILE, true>(f, chunk, s.k, f.k + kv_head * f.head_dim, f.qkv_stride, first_key, rows.end);
    load_rows<TILE, true>(f, chunk, s.v, f.v + kv_head * f.head_dim, f.qkv_stride, first_key, rows.end);
}

/* A tile of queries of a head and a tile of keys. */
struct tile_pair {
    int64_t head, kv_head, first_query, first_key;
};

/* The products of both: q · k, and dout · v. Of heads of one chunk everything is in shared memory already. */
template <int PER, int CHUNKS>
static __device__ void backward_dots(const qr_attention_packed_backward_args &a, const packed_rows &rows,
                                     const backward_scratch<PER> &s, const tile_pair &pair, float scores[PER][PER],
                                     float dp[PER][PER]) {
    const qr_attention_packed_args &f = a.forward;
    const int32_t pitch = tile_pitch(f.head_dim);
    for (int part = 0; part < CHUNKS; part++) {
        const head_chunk chunk = chunk_of(f, part);
        if (CHUNKS > 1) {
            load_queries<PER>(a, rows, chunk, s, pair.head, pair.first_query);
            load_keys<PER>(f, rows, chunk, s, pair.kv_head, pair.first_key);
        }
        __syncthreads();
        add_tile_dots<PER>(s.q, s.k, chunk.n, pitch, scores);
        add_tile_dots<PER>(s.dout, s.v, chunk.n, pitch, dp);
        if (CHUNKS > 1) { __syncthreads(); }
    }
}

/* p and ds of a tile of queries and a tile of keys; zeros where a query does not see a key. */
template <int PER, int CHUNKS>
static __device__ void store_gradients(const qr_attention_packed_backward_args &a, const packed_rows &rows,
                                       const backward_scratch<PER> &s, const float *delta, const tile_pair &pair) {
    enum { TILE = PER * SIDE };
    const qr_attention_packed_args &f = a.forward;
    const int64_t head = pair.head, first_query = pair.first_query, first_key = pair.first_key;
    float scores[PER][PER] = {}, dp[PER][PER] = {};
    backward_dots<PER, CHUNKS>(a, rows, s, pair, scores, dp);
#pragma unroll
    for (int i = 0; i < PER; i++) {
#pragma unroll
        for (int j = 0; j < PER; j++) {
            const unsigned row = thread_y() + i * SIDE, col = thread_x() + j * SIDE;
            const int64_t query = first_query + row;
            float p = 0.0F, ds = 0.0F;
            if (sees(f, rows, query, first_key + col)) {
                float score = scores[i][j] * f.scale, slope = 1.0F;
                if (f.softcap > 0.0F) {
                    score = softcap_value(score, f.softcap);
                    slope = 1.0F - score / f.softcap * (score / f.softcap);
                }
                p = expf(score - f.lse[query * f.n_heads + head]);
                ds = p * (dp[i][j] - delta[query * f.n_heads + head]) * slope * f.scale;
            }
            s.p[row * (TILE + 1) + col] = p;
            s.ds[row * (TILE + 1) + col] = ds;
        }
    }
}

/* Rows y + i · SIDE after `first` of a view, elements x + c · SIDE of every chunk of a head. */
template <int PER, int COLS, int CHUNKS>
static __device__ void store_gradient(const qr_attention_packed_args &f, float *dst, int64_t stride, int64_t first,
                                      int64_t end, float sums[CHUNKS][PER][COLS]) {
#pragma unroll
    for (int part = 0; part < CHUNKS; part++) {
        const head_chunk chunk = chunk_of(f, part);
        for (int i = 0; i < PER; i++) {
            const int64_t row = first + thread_y() + i * SIDE;
            for (int c = 0; c < COLS && row < end; c++) {
                const int32_t j = static_cast<int32_t>(thread_x()) + c * SIDE;
                if (j < chunk.n) { dst[row * stride + chunk.first + j] = sums[part][i][c]; }
            }
        }
    }
}

static QR_DEVICE int tile_rows(int64_t first, int64_t end, int tile) {
    return end - first < tile ? static_cast<int>(end - first) : tile;
}

template <int PER, int COLS, int CHUNKS>
__global__ void attention_packed_dq_kernel(qr_attention_packed_backward_args a, const float *delta) {
    enum { TILE = PER * SIDE };
    const qr_attention_packed_args &f = a.forward;
    const packed_rows rows = rows_of(f, blockIdx.z);
    const int64_t head = blockIdx.y, kv_head = head / (f.n_heads / f.n_kv_heads);
    const int64_t first_query = rows.begin + static_cast<int64_t>(blockIdx.x) * TILE;
    if (first_query >= rows.end) { return; }
    const backward_scratch<PER> s(f.head_dim);
    if (CHUNKS == 1) { load_queries<PER>(a, rows, chunk_of(f, 0), s, head, first_query); }
    float dq[CHUNKS][PER][COLS] = {};
    const int64_t seen = (first_seen(f, rows, first_query) - rows.begin) / TILE * TILE + rows.begin;
    for (int64_t first_key = seen; first_key <= first_query; first_key += TILE) {
        if (CHUNKS == 1) { load_keys<PER>(f, rows, chunk_of(f, 0), s, kv_head, first_key); }
        store_gradients<PER, CHUNKS>(a, rows, s, delta, {head, kv_head, first_query, first_key});
        __syncthreads();
#pragma unroll
        for (int part = 0; part < CHUNKS; part++) {
            const head_chunk chunk = chunk_of(f, part);
            if (CHUNKS > 1) {
                load_keys<PER>(f, rows, chunk, s, kv_head, first_key);
                __syncthreads();
            }
            add_weighted<PER, COLS, false>(s.ds, s.k, chunk.n, tile_pitch(f.head_dim),
                                           tile_rows(first_key, rows.end, TILE), dq[part]);
            __syncthreads();
        }
    }
    store_gradient<PER, COLS, CHUNKS>(f, a.dq + head * f.head_dim, a.dqkv_stride, first_query, rows.end, dq);
}

template <int PER, int COLS, int CHUNKS>
__global__ void attention_packed_dkv_kernel(qr_attention_packed_backward_args a, const float *delta) {
    enum { TILE = PER * SIDE };
    const qr_attention_packed_args &f = a.forward;
    const packed_rows rows = rows_of(f, blockIdx.z);
    const int64_t kv_head = blockIdx.y, group = f.n_heads / f.n_kv_heads;
    const int64_t first_key = rows.begin + static_cast<int64_t>(blockIdx.x) * TILE;
    if (first_key >= rows.end) { return; }
    const backward_scratch<PER> s(f.head_dim);
    if (CHUNKS == 1) { load_keys<PER>(f, rows, chunk_of(f, 0), s, kv_head, first_key); }
    float dk[CHUNKS][PER][COLS] = {}, dv[CHUNKS][PER][COLS] = {};
    /* With a window, the last key of the tile is seen by the queries before last + window. */
    const int64_t last_key = first_key + TILE - 1;
    const int64_t end = f.window > 0 && last_key + f.window < rows.end ? last_key + f.window : rows.end;
    for (int64_t first_query = first_key; first_query < end; first_query += TILE) {
        const int n_queries = tile_rows(first_query, rows.end, TILE);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            if (CHUNKS == 1) { load_queries<PER>(a, rows, chunk_of(f, 0), s, head, first_query); }
            store_gradients<PER, CHUNKS>(a, rows, s, delta, {head, kv_head, first_query, first_key});
            __syncthreads();
#pragma unroll
            for (int part = 0; part < CHUNKS; part++) {
                const head_chunk chunk = chunk_of(f, part);
                if (CHUNKS > 1) {
                    load_queries<PER>(a, rows, chunk, s, head, first_query);
                    __syncthreads();
                }
                add_weighted<PER, COLS, true>(s.ds, s.q, chunk.n, tile_pitch(f.head_dim), n_queries, dk[part]);
                add_weighted<PER, COLS, true>(s.p, s.dout, chunk.n, tile_pitch(f.head_dim), n_queries, dv[part]);
                __syncthreads();
            }
        }
    }
    store_gradient<PER, COLS, CHUNKS>(f, a.dk + kv_head * f.head_dim, a.dqkv_stride, first_key, rows.end, dk);
    store_gradient<PER, COLS, CHUNKS>(f, a.dv + kv_head * f.head_dim, a.dqkv_stride, first_key, rows.end, dv);
}

template <int PER, int COLS, int CHUNKS>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args, const float *delta,
                          qr_error *err) {
    const qr_attention_packed_args &f = args.forward;
    const size_t shared_bytes = backward_scratch<PER>::bytes(f.head_dim);
    dim3 grid = blocks_for(f.max_seq_tokens, PER * SIDE);
    grid.y = static_cast<unsigned>(f.n_heads);
    grid.z = static_cast<unsigned>(f.n_seqs);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, (attention_packed_dq_kernel<PER, COLS, CHUNKS>), grid,
                                 PACKED_THREADS, shared_bytes, args, delta));
    grid.y = static_cast<unsigned>(f.n_kv_heads);
    return QR_LAUNCH(cuda.device, err, (attention_packed_dkv_kernel<PER, COLS, CHUNKS>), grid, PACKED_THREADS,
                     shared_bytes, args, delta);
}

static size_t backward_workspace(const qr_attention_packed_backward_args &args) {
    if (packed_on_tensor_cores(args.forward)) { return qr_cuda_packed_operands_bytes(args.forward, true); }
    return static_cast<size_t>(args.forward.n_tokens * args.forward.n_heads) * sizeof(float);
}

/* A block for a head; a warp computes delta of every eighth token, and adds them up in order. */
__global__ void attention_dsinks_kernel(qr_attention_packed_backward_args a) {
    const qr_attention_packed_args &f = a.forward;
    const int64_t head = blockIdx.x;
    float sum = 0.0F;
    for (int64_t token = warp_index(); token < f.n_tokens; token += PACKED_THREADS / WARP_LANES) {
        const int64_t index = token * f.n_heads + head;
        float delta = 0.0F;
        for (int64_t j = lane_index(); j < f.head_dim; j += WARP_LANES) {
            const int64_t at = index * f.head_dim + j;
            delta = fmaf(a.dout[at], load_as_f32(f.dst, f.dst_dtype, at), delta);
        }
        sum += expf(f.sinks[head] - f.lse[index]) * warp_sum(delta);
    }
    sum = block_reduce(
        sum, shared_memory<float>(), [](float x) { return x; }, [](float x, float y) { return x + y; });
    if (threadIdx.x == 0) { a.dsinks[head] -= sum; }
}

static qrun_status run_on_tensor_cores(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                                       void *workspace, qr_error *err) {
    packed_operands operands;
    QR_RETURN_IF_ERROR(qr_cuda_packed_backward_operands(cuda, args, workspace, &operands, err));
    QR_RETURN_IF_ERROR(qr_cuda_packed_dq(cuda, args, operands, err));
    return qr_cuda_packed_dkv(cuda, args, operands, err);
}

static qrun_status run_attention_packed_backward(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                                                 void *workspace, qr_error *err) {
    enum { LAUNCH_SEQS = 65535 }; /* the z dimension of a grid */
    const qr_attention_packed_args &f = args.forward;
    if (args.dsinks != NULL) {
        const dim3 grid(static_cast<unsigned>(f.n_heads));
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, attention_dsinks_kernel, grid, PACKED_THREADS,
                                     PACKED_THREADS / WARP_LANES * sizeof(float), args));
    }
    if (packed_on_tensor_cores(f)) { return run_on_tensor_cores(cuda, args, workspace, err); }
    float *delta = static_cast<float *>(workspace);
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, attention_delta_kernel,
                                 blocks_for(f.n_tokens * f.n_heads, DELTA_WARPS), DELTA_THREADS, 0, args, delta));
    qr_attention_packed_backward_args part = args;
    for (int32_t seq = 0; seq < f.n_seqs; seq += LAUNCH_SEQS) {
        part.forward.seq_start = f.seq_start + seq;
        part.forward.n_seqs = static_cast<int32_t>(qr_min(LAUNCH_SEQS, f.n_seqs - seq));
        QR_RETURN_IF_ERROR(QR_PACKED_DISPATCH(f.head_dim, launch, cuda, part, delta, err));
    }
    return QRUN_OK;
}

static bool supports_attention_packed_backward(const qr_attention_packed_backward_args &args, qr_error *err) {
    return supports_packed("attention_packed_backward", args.forward, err);
}

QR_CUDA_OP_IF(attention_packed_backward, supports_attention_packed_backward, backward_workspace,
              run_attention_packed_backward)

/* dk and dv of attention_packed: a block takes 64 keys of one K/V head (32 where operands are split and a head is
 * larger than 128), 16 a warp, over the queries that see any of them, head by head of the group. Everything is the
 * other way round than in the other kernels, keys by rows: probabilities and gradients of q · k are then the left
 * operands of the sums over queries, and go there in registers. Heads larger than 128 have no room for both sums in
 * registers: a launch each.
 *
 * Longest first: the first keys of a sequence, which most queries see. */
#include "kernels/cuda/attention/attention_packed_gradients.cuh"

template <int DIM, packed_form form> struct dkv_shape : packed_shape<DIM, form> {
    using shape = packed_shape<DIM, form>;
    enum {
        THREADS = shape::BACKWARD_WARPS * WARP_LANES,
        KEYS = shape::BACKWARD_WARPS * 16,
        QUERIES = shape::DKV_QUERIES,
        KV_SIZE = split_tile_size(KEYS, DIM, shape::KV_SPLIT),
        Q_SIZE = split_tile_size(QUERIES, DIM, shape::PAIRS), /* of q, and of dout */
        STATS_BYTES = shape::STAGES * QUERIES * sizeof(query_stats),
        SHARED_BYTES = STATS_BYTES + (2 * KV_SIZE + shape::STAGES * 2 * Q_SIZE) * sizeof(uint16_t),
    };
};

/* Shared memory: for each stage the queries' stats; k, v; then for each stage q and dout. */
template <int DIM, packed_form form, bool wants_dk, bool wants_dv>
__global__ void __launch_bounds__(dkv_shape<DIM, form>::THREADS, dkv_shape<DIM, form>::BACKWARD_BLOCKS)
    attention_packed_dkv_mma_kernel(qr_attention_packed_backward_args a, packed_operands operands) {
    using shape = dkv_shape<DIM, form>;
    constexpr bool split = shape::PAIRS, kv_split = shape::KV_SPLIT;
    enum { KEYS = shape::KEYS, QUERIES = shape::QUERIES, THREADS = shape::THREADS };
    const qr_attention_packed_args &f = a.forward;
    const int kv_head = static_cast<int>(blockIdx.x) % f.n_kv_heads, group = f.n_heads / f.n_kv_heads;
    const packed_tile tile = packed_tile_of<KEYS>(f, static_cast<int>(blockIdx.x) / f.n_kv_heads);
    if (tile.first >= tile.end) { return; }
    const int first_key = tile.first + static_cast<int>(warp_index()) * 16;
    uint16_t *shared = shared_memory<uint16_t>() + shape::STATS_BYTES / sizeof(uint16_t);
    const staged_tiles<DIM, QUERIES, THREADS, split> tiles = {shared + 2 * shape::KV_SIZE};
    query_stats *stats = shared_memory<query_stats>();
    left_rows<DIM, kv_split, false> k, v;
    k.tile = split_tile_at<DIM, kv_split>(shared, KEYS);
    v.tile = split_tile_at<DIM, kv_split>(shared + shape::KV_SIZE, KEYS);
    k.row = v.row = warp_index() * 16;
    const int64_t first_row = kv_head * f.n_tokens + tile.first;
    copy_split_tile<DIM, KEYS, THREADS, kv_split>(k.tile, operands.k, first_row, tile.end - tile.first);
    if (wants_dk) {
        copy_split_tile<DIM, KEYS, THREADS, kv_split>(v.tile, operands.v, first_row, tile.end - tile.first);
    }
    /* With a window, the last key of the tile is seen by the queries before last + window. */
    const int last = tile.first + KEYS - 1;
    const int end = f.window > 0 && tile.end - last > f.window ? last + f.window : tile.end;
    const int n_tiles = (end - tile.first + QUERIES - 1) / QUERIES;
    float dk[1][wants_dk ? DIM / 8 : 1][4] = {}, dv[1][wants_dv ? DIM / 8 : 1][4] = {};
    through_tiles<shape::STAGES>(
        n_tiles * group,
        [&](int i, int stage) {
            const int head = kv_head * group + i / n_tiles, query = tile.first + i % n_tiles * QUERIES;
            const int64_t row = head * f.n_tokens + query;
            const int at = static_cast<int>(threadIdx.x), n_rows = tile.end - query;
            if (at < QUERIES) {
                copy_async_8(&stats[stage * QUERIES + at], &operands.stats[row + at], at < n_rows ? 8 : 0);
            }
            tiles.copy(stage, operands.q, operands.dout, row, n_rows);
        },
        [&](int i, int stage) {
            const int query = tile.first + i % n_tiles * QUERIES;
            if (first_key >= tile.end || !any_seen(f, query, QUERIES, first_key, 16)) { return; }
            float p[1][QUERIES / 8][4] = {}, ds[1][QUERIES / 8][4] = {};
            add_dots<split>(p, k, tiles.first(stage));
            if (wants_dk) { add_dots<split>(ds, v, tiles.second(stage)); }
            const bool whole = all_seen(f, query, QUERIES, first_key, 16) && query + QUERIES <= tile.end;
            make_gradients<QUERIES / 8>(
                f, whole, p[0], ds[0], [&](int n, int j) { return stats[stage * QUERIES + 8 * n + column_of(j)]; },
                [&](int n, int j) {
                    const int column = query + 8 * n + column_of(j);
                    return column < tile.end && sees_key(f, column, first_key + row_of(j));
                });
            if constexpr (wants_dv) { add_weighted_rows<split, split>(dv, p, tiles.second(stage)); }
            if constexpr (wants_dk) { add_weighted_rows<split, split>(dk, ds, tiles.first(stage)); }
        });
    if (wants_dk) {
        store_gradient_rows<DIM>(a.dk + kv_head * f.head_dim, a.dqkv_stride, f.head_dim, first_key, tile.end, dk[0],
                                 f.scale);
    }
    if (wants_dv) {
        store_gradient_rows<DIM>(a.dv + kv_head * f.head_dim, a.dqkv_stride, f.head_dim, first_key, tile.end, dv[0],
                                 1.0F);
    }
}

template <int DIM, packed_form form, bool wants_dk, bool wants_dv>
static qrun_status launch_sums(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                               const packed_operands &operands, qr_error *err) {
    using shape = dkv_shape<DIM, form>;
    const dim3 grid(packed_tiles(args.forward, shape::KEYS) * static_cast<unsigned>(args.forward.n_kv_heads));
    return QR_LAUNCH(cuda.device, err, (attention_packed_dkv_mma_kernel<DIM, form, wants_dk, wants_dv>), grid,
                     shape::THREADS, shape::SHARED_BYTES, args, operands);
}

template <int DIM, packed_form form>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                          const packed_operands &operands, qr_error *err) {
    if constexpr (DIM <= 128) {
        return launch_sums<DIM, form, true, true>(cuda, args, operands, err);
    } else {
        QR_RETURN_IF_ERROR((launch_sums<DIM, form, true, false>(cuda, args, operands, err)));
        return launch_sums<DIM, form, false, true>(cuda, args, operands, err);
    }
}

qrun_status qr_cuda_packed_dkv(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                               const packed_operands &operands, qr_error *err) {
    return QR_PACKED_MMA_DISPATCH(args.forward, launch, cuda, args, operands, err);
}

/* dq of attention_packed: a block takes 64 queries of one head (32 where operands are split and a head is larger than
 * 128), 16 a warp, over the tiles of keys that any of them sees. The gradients of q · k go from one product's sums to
 * the next one's operand in registers. */
#include "kernels/cuda/attention/attention_packed_gradients.cuh"

template <int DIM, packed_form form> struct dq_shape : packed_shape<DIM, form> {
    using shape = packed_shape<DIM, form>;
    enum {
        THREADS = shape::BACKWARD_WARPS * WARP_LANES,
        QUERIES = shape::BACKWARD_WARPS * 16,
        KEYS = shape::DQ_KEYS,
        Q_SIZE = split_tile_size(QUERIES, DIM, shape::PAIRS), /* of q, and of dout */
        KV_SIZE = shape::STAGES * 2 * split_tile_size(KEYS, DIM, shape::KV_SPLIT),
        KV_OFFSET = (shape::DQ_KEEPS_Q ? 1 : 2) * Q_SIZE, /* q first uses the memory of k and v, as in the forward
                                                           * kernel */
        SHARED_BYTES = (KV_OFFSET + KV_SIZE) * sizeof(uint16_t),
    };
    static_assert(!shape::DQ_KEEPS_Q || KV_SIZE >= Q_SIZE, "q has room there");
};

/* Shared memory: dout, q where it is not in registers, then k and v. */
template <int DIM, packed_form form>
__global__ void __launch_bounds__(dq_shape<DIM, form>::THREADS, dq_shape<DIM, form>::BACKWARD_BLOCKS)
    attention_packed_dq_mma_kernel(qr_attention_packed_backward_args a, packed_operands operands) {
    using shape = dq_shape<DIM, form>;
    constexpr bool split = shape::PAIRS, kv_split = shape::KV_SPLIT;
    enum { KEYS = shape::KEYS, QUERIES = shape::QUERIES, THREADS = shape::THREADS };
    const qr_attention_packed_args &f = a.forward;
    const query_block block = query_block_of<QUERIES>(f);
    const packed_tile &tile = block.tile;
    if (tile.first >= tile.end) { return; }
    const int first_query = tile.first + static_cast<int>(warp_index()) * 16;
    const int64_t first_row = block.head * f.n_tokens;
    uint16_t *shared = shared_memory<uint16_t>();
    left_rows<DIM, split, false> dout;
    left_rows<DIM, split, shape::DQ_KEEPS_Q> q;
    dout.tile = split_tile_at<DIM, split>(shared, QUERIES);
    q.tile = split_tile_at<DIM, split>(shared + shape::Q_SIZE, QUERIES);
    dout.row = q.row = warp_index() * 16;
    copy_split_tile<DIM, QUERIES, THREADS, split>(dout.tile, operands.dout, first_row + tile.first,
                                                  tile.end - tile.first);
    copy_split_tile<DIM, QUERIES, THREADS, split>(q.tile, operands.q, first_row + tile.first, tile.end - tile.first);
    copy_async_commit();
    query_stats stats[2];
    for (int half = 0; half < 2; half++) {
        const int query = first_query + row_of(2 * half);
        stats[half] = query < tile.end ? operands.stats[first_row + query] : query_stats{0.0F, 0.0F};
    }
    if (shape::DQ_KEEPS_Q) {
        copy_async_wait<0>();
        __syncthreads();
        q.keep();
        __syncthreads();
    }
    const staged_tiles<DIM, KEYS, THREADS, kv_split> tiles = {shared + shape::KV_OFFSET};
    const key_range keys = keys_seen<QUERIES, KEYS>(f, tile);
    float dq[1][DIM / 8][4] = {};
    through_tiles<shape::STAGES>(
        keys.n_tiles,
        [&](int i, int stage) {
            const int key = keys.first + i * KEYS;
            tiles.copy(stage, operands.k, operands.v, block.kv_head * f.n_tokens + key, tile.end - key);
        },
        [&](int i, int stage) {
            const int key = keys.first + i * KEYS;
            if (first_query >= tile.end || !any_seen(f, first_query, 16, key, KEYS)) { return; }
            float scores[1][KEYS / 8][4] = {}, ds[1][KEYS / 8][4] = {};
            add_dots<kv_split>(scores, q, tiles.first(stage));
            add_dots<kv_split>(ds, dout, tiles.second(stage));
            const bool whole = all_seen(f, first_query, 16, key, KEYS) && first_query + 16 <= tile.end;
            make_gradients<KEYS / 8>(
                f, whole, scores[0], ds[0], [&](int, int j) { return stats[j / 2]; },
                [&](int n, int j) {
                    const int query = first_query + row_of(j);
                    return query < tile.end && sees_key(f, query, key + 8 * n + column_of(j));
                });
            add_weighted_rows<split, kv_split>(dq, ds, tiles.first(stage));
        });
    store_gradient_rows<DIM>(a.dq + block.head * f.head_dim, a.dqkv_stride, f.head_dim, first_query, tile.end, dq[0],
                             f.scale);
}

template <int DIM, packed_form form>
static qrun_status launch(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                          const packed_operands &operands, qr_error *err) {
    using shape = dq_shape<DIM, form>;
    const dim3 grid(packed_tiles(args.forward, shape::QUERIES) * static_cast<unsigned>(args.forward.n_heads));
    return QR_LAUNCH(cuda.device, err, (attention_packed_dq_mma_kernel<DIM, form>), grid, shape::THREADS,
                     shape::SHARED_BYTES, args, operands);
}

qrun_status qr_cuda_packed_dq(qr_cuda_backend &cuda, const qr_attention_packed_backward_args &args,
                              const packed_operands &operands, qr_error *err) {
    return QR_PACKED_MMA_DISPATCH(args.forward, launch, cuda, args, operands, err);
}

/* attention over pages on the tensor cores. A block takes a tile of rows (attention_tiles.cuh) of one K/V head and
 * walks over blocks of 64 keys, in order, with a running softmax (Milakov and Gimelshein, 2018); at the end of a split
 * the results are joined to those of the splits before (attention_splits.cuh), or left for attention_join_kernel.
 *
 * ROW_WARPS · KEY_WARPS warps. The KEY_WARPS warps that share 16 rows each take a part of the keys of a block for the
 * scores and a part of the dims of the values for the sums; the weights meet in shared memory. So a chunk (4 · 1: 64
 * rows, nothing to exchange) and a single token (1 · 4: 16 rows, four warps to load and to multiply) compute every
 * value by the same operations in the same order, and give the same bits.
 *
 * q and the weights are cut into two values of 16 bits, a product each; K and V are as stored. A lane of four adds up a
 * row's weights a page, then the pages of a block in order; the lanes are added at the end of a split.
 *
 * K of the next block arrives while the values of this one are multiplied, V while its scores are computed. For heads
 * of 128 in BF16 and sm_90a, a block of a chunk has 246 registers a thread and 85 KiB of shared memory (two blocks a
 * multiprocessor), one of a single token 167 and 40 KiB (three). Nothing spills. */
#ifndef QR_KERNELS_CUDA_ATTENTION_MMA_CUH
#define QR_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention/attention_warp.cuh"

/* A tile's way over its keys, from block to block. */
template <typename shape> struct key_walk {
    typedef typename shape::kv kv;
    const qr_attention_args &a;
    const kv_offsets &offsets;
    const int32_t *table;
    int32_t first, last;                               /* positions that the tile sees */
    int32_t first_of_all = 0, last_of_all = INT32_MAX; /* that all its rows see */
    unsigned char *shared;

    QR_DEVICE key_walk(const qr_attention_args &a_, const kv_offsets &offsets_, int32_t seq, int32_t first_,
                       int32_t last_)
        : a(a_), offsets(offsets_), table(a_.block_table + seq * a_.table_stride), first(first_), last(last_) {
        shared = shared_memory<unsigned char>();
    }

    /* Whether some row of the tile sees what another does not, in the block of keys at `position`. */
    QR_DEVICE bool rows_differ_at(int32_t position) const {
        return position < first_of_all || position + KEYS - 1 > last_of_all;
    }

    /* Of this K/V head in K or V: its elements, and its scales. */
    QR_DEVICE size_t head() const { return blockIdx.y * PAGE * offsets.head_bytes; }
    QR_DEVICE size_t scales() const { return offsets.scales + blockIdx.y * PAGE * sizeof(float); }

    /* The block of keys at `position`. Pages that hold no key of the tile are not looked up. */
    QR_DEVICE key_block at(int32_t position) const {
        key_block block;
        block.first = first - position;
        block.last = last - position;
#pragma unroll
        for (int p = 0; p < KEY_PAGES; p++) {
            const bool wanted = PAGE * p <= block.last && PAGE * (p + 1) > block.first;
            block.page[p] = wanted ? table[position / PAGE + p] : 0;
        }
        return block;
    }

    QR_DEVICE page_array pages() const { return {a.pages, a.page_stride_bytes}; }

    QR_DEVICE float *value_scales(int32_t position) const {
        return reinterpret_cast<float *>(shared + shape::VALUE_SCALES) + position / KEYS % 2 * KEYS;
    }

    QR_DEVICE void load_keys(const key_block &block, int32_t position) const {
        const int chunks = static_cast<int>(offsets.head_bytes / 16);
        load_key_tile<kv, shape::DIM, shape::THREADS>(shared, block, pages(), head(), chunks);
        if (kv::SCALED) {
            load_scales(reinterpret_cast<float *>(shared + shape::KEY_SCALES), block, pages(), scales());
            load_scales(value_scales(position), block, pages(), offsets.v + scales());
        }
    }
    QR_DEVICE void load_values(const key_block &block) const {
        const int chunks = static_cast<int>(offsets.head_bytes / 16);
        load_key_tile<kv, shape::DIM, shape::THREADS>(shared + shape::VALUES, block, pages(), offsets.v + head(),
                                                      chunks);
    }

    QR_DEVICE int32_t begin() const { return first / KEYS * KEYS; }

    /* Sets the first block of keys under way: a group of copies for K, one for V. */
    QR_DEVICE void start() const {
        const key_block block = at(begin());
        load_keys(block, begin());
        copy_async_commit();
        load_values(block);
        copy_async_commit();
    }
};

/* Walks from the block of `walk.first`, which is under way, to that of `walk.last`, joining all splits but the last. */
template <typename shape>
static QR_DEVICE void walk_keys(attention_warp<shape> &warp, const key_walk<shape> &walk,
                                const joined_splits<shape> &joined) {
    int32_t position = walk.begin(), split_last = last_of_split(position);
    key_block block;
    for (;; position += KEYS) {
        const bool more = walk.last - position >= KEYS;
        if (more) { block = walk.at(position + KEYS); }
        const bool sees = warp.sees(position);
        float scores[shape::KEY_TILES][4], largest[2];
        copy_async_wait<1>();
        __syncthreads(); /* keys are there */
        if (sees) {
            warp.score(walk.shared, position, scores);
            largest_scores<shape>(scores, largest);
            warp.show_largest(walk.shared, largest);
        }
        __syncthreads(); /* keys are done with, the largest scores there */
        if (more) { walk.load_keys(block, position + KEYS); }
        copy_async_commit();
        if (sees) { warp.weigh_keys(walk.shared, walk.value_scales(position), largest, scores); }
        copy_async_wait<1>();
        const bool hide = !shape::kv::SCALED && walk.rows_differ_at(position);
        if (hide) {
            hide_values<typename shape::kv, shape::DIM, shape::THREADS>(walk.shared + shape::VALUES,
                                                                        walk.shared + shape::HIDDEN);
        }
        __syncthreads(); /* values and weights are there */
        if (sees) {
            warp.gather_totals(walk.shared);
            warp.add_values(walk.shared, walk.value_scales(position), scores);
            if (hide) { warp.mark_hidden(walk.shared, position); }
        }
        __syncthreads(); /* values are done with */
        if (!more) { break; }
        walk.load_values(block);
        copy_async_commit();
        if (position + KEYS <= split_last) { continue; }
        warp.join(joined);
        split_last = last_of_split(position + KEYS);
    }
}

/* grid: tiles, the long ones of a chunk first; K/V heads; splits, or 1. Shared memory: attention_shape. */
template <typename shape>
__global__ void __launch_bounds__(shape::THREADS)
    attention_mma_kernel(qr_attention_args a, kv_offsets offsets, attention_tiling tiling) {
    await_previous();
    admit_next();
    row_tile tile;
    if (!find_tile<shape::ROWS>(a, tiling, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x), tile)) { return; }
    const query_row front = row_at(tiling, tile, tile.first), back = row_at(tiling, tile, tile.end - 1);
    int32_t first = first_seen(a, front.position), last = back.position;
    const bool one_split = tiling.sums != NULL;
    if (one_split) {
        const int32_t split = split_of(first) + static_cast<int32_t>(blockIdx.z);
        if (split > split_of(last)) { return; }
        if (first < split_begin(split)) { first = static_cast<int32_t>(split_begin(split)); }
        if (last >= split_begin(split + 1)) { last = static_cast<int32_t>(split_begin(split + 1) - 1); }
    }
    key_walk<shape> walk(a, offsets, tile.seq, first, last);
    if (front.position != back.position) {
        walk.first_of_all = first_seen(a, back.position);
        walk.last_of_all = front.position;
    }
    walk.start();
    unsigned char *shared = shared_memory<unsigned char>();
    row_tile *kept = reinterpret_cast<row_tile *>(shared + shape::TILE); /* needed again at the end: not in registers */
    if (threadIdx.x == 0) { *kept = tile; }
    attention_warp<shape> warp(a, tiling, tile, shared);
    const joined_splits<shape> joined(shared);
    if (!one_split) { joined.clear(); }
    walk_keys<shape>(warp, walk, joined);
    if (one_split) {
        warp.store_partial(*kept, split_of(walk.first));
    } else {
        warp.join(joined);
        warp.store(*kept, joined);
    }
}

template <typename shape>
static qrun_status launch_shape(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_tiling &tiling,
                                qr_error *err) {
    const dim3 grid(static_cast<unsigned>(count_tiles(args, tiling.part, tiling.group, shape::ROWS)),
                    static_cast<unsigned>(args.layout.n_kv_heads),
                    tiling.sums != NULL ? static_cast<unsigned>(tiling.n_slots) : 1);
    const size_t shared_bytes = tiling.sums != NULL ? shape::SPLIT_BYTES : shape::WALK_BYTES;
    return QR_LAUNCH_EARLY(cuda.device, err, attention_mma_kernel<shape>, grid, shape::THREADS, shared_bytes, args,
                           kv_offsets_of(&args.layout), tiling);
}

/* Large tiles where there are chunks, and a thread can hold 16 rows of sums. */
template <typename kv, int DIM>
static qrun_status launch_dim(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_tiling &tiling,
                              bool large, qr_error *err) {
    typedef attention_shape<kv, DIM, (DIM <= 128 ? 4 : 1), (DIM <= 128 ? 1 : 4)> chunk;
    typedef attention_shape<kv, DIM, 1, 4> token;
    return large ? launch_shape<chunk>(cuda, args, tiling, err) : launch_shape<token>(cuda, args, tiling, err);
}

template <typename kv>
qrun_status qr_cuda_attention_mma(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_tiling &tiling,
                                  bool large, qr_error *err) {
    enum { MIDDLE = kv::SCALED ? 128 : 96 }; /* a quarter of 96 is no whole load of INT8 values */
    if (args.layout.head_dim <= 64) { return launch_dim<kv, 64>(cuda, args, tiling, large, err); }
    if (args.layout.head_dim <= MIDDLE) { return launch_dim<kv, MIDDLE>(cuda, args, tiling, large, err); }
    if (args.layout.head_dim <= 128) { return launch_dim<kv, 128>(cuda, args, tiling, large, err); }
    return launch_dim<kv, 256>(cuda, args, tiling, large, err);
}

#endif

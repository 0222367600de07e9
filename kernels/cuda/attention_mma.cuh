/* attention over pages on the tensor cores. A block takes a tile of rows (attention_tiles.cuh) of one K/V head and walks
 * over blocks of 64 keys, in order, with a running softmax; at the end of a split the results are joined to those of the
 * splits before (attention_splits.cuh), or left for attention_join_kernel.
 *
 * ROW_WARPS · KEY_WARPS warps. The KEY_WARPS warps that share 16 rows each take a part of the keys of a block for the
 * scores and a part of the dims of the values for the sums; the weights meet in shared memory. So a chunk (4 · 1: 64
 * rows, nothing to exchange) and a single token (1 · 4: 16 rows, four warps to load and to multiply) compute every
 * number by the same operations in the same order, and bits do not say which it was.
 *
 * q and the weights are cut into two numbers of 16 bits, a product each; K and V are as stored. A lane of
 * four adds up a row's weights a page, then the pages of a block in order; the lanes are added at the end of a split.
 *
 * K of the next block arrives while the values of this one are multiplied, V while its scores are computed. */
#ifndef QR_KERNELS_CUDA_ATTENTION_MMA_CUH
#define QR_KERNELS_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_scores.cuh"

/* Fragments of the weights of 16 keys, from their warp to the others of its rows: [32][8]. */
static __device__ __forceinline__ void store_weights(uint32_t *shared, const uint32_t upper[4], const uint32_t lower[4]) {
    uint4 *dst = reinterpret_cast<uint4 *>(shared) + 2 * lane_index();
    dst[0] = make_uint4(upper[0], upper[1], upper[2], upper[3]);
    dst[1] = make_uint4(lower[0], lower[1], lower[2], lower[3]);
}

static __device__ __forceinline__ void load_weights(const uint32_t *shared, uint32_t upper[4], uint32_t lower[4]) {
    const uint4 *src = reinterpret_cast<const uint4 *>(shared) + 2 * lane_index();
    const uint4 first = src[0], second = src[1];
    upper[0] = first.x, upper[1] = first.y, upper[2] = first.z, upper[3] = first.w;
    lower[0] = second.x, lower[1] = second.y, lower[2] = second.z, lower[3] = second.w;
}

/* The weights of keys [32 pair, 32 pair + 32): two products. */
struct weight_pair {
    uint32_t upper[2][4], lower[2][4];
};

/* Adds SUM_GROUP runs of sums, from run `group` on, and two products of keys. */
template <typename shape>
static __device__ __forceinline__ void add_products(const weight_pair &weights, uint32_t b[shape::SUM_GROUP][2][2],
                                                    float sums[shape::SUM_GROUP][4]) {
    typedef typename shape::kv kv;
#pragma unroll
    for (int step = 0; step < 2; step++) {
#pragma unroll
        for (int i = 0; i < shape::SUM_GROUP; i++) { kv::mma(sums[i], weights.upper[step], b[i][step]); }
#pragma unroll
        for (int i = 0; i < shape::SUM_GROUP; i++) { kv::mma(sums[i], weights.lower[step], b[i][step]); }
    }
}

/* This warp's values of runs [group, group + SUM_GROUP), keys [32 pair, 32 pair + 32). */
template <typename shape>
static __device__ __forceinline__ void load_values(const unsigned char *mine, int group, int pair,
                                                   uint32_t b[shape::SUM_GROUP][2][2]) {
    typedef typename shape::kv kv;
    typedef key_tile<kv, shape::DIM> layout;
#pragma unroll
    for (int i = 0; i < shape::SUM_GROUP; i += kv::VALUE_TILES) {
        uint32_t r[4];
        load_matrices_transposed(r, mine + pair * 32 * layout::PITCH + (group + i) / kv::VALUE_TILES * 16);
#pragma unroll
        for (int tile = 0; tile < kv::VALUE_TILES; tile++) {
#pragma unroll
            for (int step = 0; step < 2; step++) { kv::value_fragment(b[i + tile][step], r, tile, step); }
        }
    }
}

/* Whether hide_values found any. */
template <typename shape> static __device__ __forceinline__ bool any_hidden(const unsigned char *hidden) {
    unsigned found = 0;
#pragma unroll 1
    for (unsigned i = lane_index(); i < KEYS * (shape::DIM / 8) / 4; i += WARP_LANES) {
        found |= reinterpret_cast<const uint32_t *>(hidden)[i];
    }
    return warp_sum(found != 0 ? 1 : 0) != 0;
}

/* What a thread knows of the splits before this one, in shared memory: needed once a split. */
template <typename shape> struct joined_splits {
    float *mine; /* numbers [4 · SUM_TILES + 4], THREADS apart */

    __device__ __forceinline__ explicit joined_splits(unsigned char *shared)
        : mine(reinterpret_cast<float *>(shared + shape::JOINED) + threadIdx.x) {}

    __device__ __forceinline__ float *sum(int tile, int i) const { return mine + (4 * tile + i) * shape::THREADS; }
    __device__ __forceinline__ float *largest(int row) const { return sum(shape::SUM_TILES, row); }
    __device__ __forceinline__ float *total(int row) const { return sum(shape::SUM_TILES, 2 + row); }

    __device__ __forceinline__ void clear() const {
#pragma unroll
        for (int tile = 0; tile <= shape::SUM_TILES; tile++) {
            for (int i = 0; i < 4; i++) { *sum(tile, i) = tile == shape::SUM_TILES && i < 2 ? -INFINITY : 0.0F; }
        }
    }
};

/* One warp of a block: its rows and its share. */
template <typename shape> struct attention_warp {
    typedef typename shape::kv kv;
    enum { KEY_WARPS = shape::KEY_WARPS };
    const qr_attention_args &a;
    const attention_plan &plan;
    unsigned row_warp, key_warp;
    int32_t own[2];      /* positions of this lane's rows, g and g + 8 */
    attention_queries<shape> q;
    attention_state<shape> state;

    __device__ __forceinline__ attention_warp(const qr_attention_args &a_, const attention_plan &plan_,
                                              const row_tile &tile, unsigned char *shared)
        : a(a_), plan(plan_) {
        row_warp = warp_index() / KEY_WARPS;
        key_warp = warp_index() % KEY_WARPS;
        const float *src[2];
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            own[i] = row.position;
            src[i] = a.q + row.token * a.q_stride + static_cast<int64_t>(row.head) * a.layout.head_dim;
        }
        if (plan.q_pairs) {
            load_queries<shape, true>(shared, src, a.layout.head_dim, q);
        } else {
            load_queries<shape, false>(shared, src, a.layout.head_dim, q);
        }
        state.clear();
    }

    __device__ __forceinline__ query_row row_of(const row_tile &tile, unsigned row) const {
        return row_at(plan, tile, tile.first + static_cast<int32_t>(16 * row_warp + row));
    }

    /* Scores of this warp's keys of the block at `position`. */
    __device__ __forceinline__ void score(unsigned char *shared, int32_t position,
                                          float scores[shape::KEY_TILES][4]) const {
        const int first_key = static_cast<int>(key_warp) * (KEYS / KEY_WARPS);
        multiply_keys<shape>(q, shared, first_key, scores);
        finish_scores<shape>(plan, reinterpret_cast<const float *>(shared + shape::KEY_SCALES) + first_key, scores);
        if (masked(position)) { mask_scores<shape>(a, own, position + first_key, scores); }
    }

    /* Positions of the warp's first and last row. */
    __device__ __forceinline__ int32_t front() const { return warp_shuffle(own[0], 0); }
    __device__ __forceinline__ int32_t back() const { return warp_shuffle(own[1], WARP_LANES - 1); }

    __device__ __forceinline__ bool sees(int32_t position) const {
        return position <= back() && position + KEYS > first_seen(a, front());
    }
    __device__ __forceinline__ bool masked(int32_t position) const {
        return position + KEYS - 1 > front() || position < first_seen(a, back());
    }

    __device__ __forceinline__ uint32_t *shared_weights(unsigned char *shared, unsigned page) const {
        return reinterpret_cast<uint32_t *>(shared + shape::WEIGHTS) + (row_warp * KEY_PAGES + page) * WARP_LANES * 8;
    }
    __device__ __forceinline__ float *shared_largest(unsigned char *shared, unsigned of_key_warp, unsigned row) const {
        return reinterpret_cast<float *>(shared + shape::LARGEST) + (row_warp * KEY_WARPS + of_key_warp) * 16 + row;
    }

    __device__ __forceinline__ float *shared_totals(unsigned char *shared, unsigned page) const {
        return reinterpret_cast<float *>(shared + shape::TOTALS) + (row_warp * KEY_PAGES + page) * 2 * WARP_LANES +
               lane_index();
    }

    /* For the warps that share these rows. */
    __device__ __forceinline__ void show_largest(unsigned char *shared, const float largest[2]) const {
        if (KEY_WARPS > 1 && lane_index() % 4 == 0) {
#pragma unroll
            for (unsigned i = 0; i < 2; i++) { *shared_largest(shared, key_warp, lane_index() / 4 + 8 * i) = largest[i]; }
        }
    }

    /* Scores become weights; those of warps that share rows, and their sums a page, go to shared memory. */
    __device__ __forceinline__ void weigh_keys(unsigned char *shared, const float *value_scales, float largest[2],
                                               float scores[shape::KEY_TILES][4]) {
#pragma unroll
        for (unsigned w = 0; KEY_WARPS > 1 && w < KEY_WARPS; w++) {
#pragma unroll
            for (unsigned i = 0; i < 2; i++) {
                largest[i] = fmaxf(largest[i], *shared_largest(shared, w, lane_index() / 4 + 8 * i));
            }
        }
        float of_page[shape::KEY_STEPS][2];
        weigh<shape>(largest, scores, state, of_page);
        if constexpr (KEY_WARPS == 1) {
            add_totals(of_page);
        } else {
#pragma unroll
            for (unsigned i = 0; i < shape::KEY_STEPS; i++) {
                const unsigned page = key_warp * shape::KEY_STEPS + i;
                uint32_t upper[4], lower[4];
                cut_weights<kv>(scores + 2 * i, value_scales + page * PAGE, upper, lower);
                store_weights(shared_weights(shared, page), upper, lower);
                shared_totals(shared, page)[0] = of_page[i][0];
                shared_totals(shared, page)[WARP_LANES] = of_page[i][1];
            }
        }
    }

    /* A lane's sums of weights of the pages of a block of keys, in order. */
    __device__ __forceinline__ void add_totals(const float of_page[KEY_PAGES][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            state.total[i] += of_page[0][i] + of_page[1][i] + of_page[2][i] + of_page[3][i];
        }
    }

    /* Where warps share rows: those of all of them. */
    __device__ __forceinline__ void gather_totals(unsigned char *shared) {
        if constexpr (KEY_WARPS > 1) {
            float of_page[KEY_PAGES][2];
#pragma unroll
            for (unsigned page = 0; page < KEY_PAGES; page++) {
                of_page[page][0] = shared_totals(shared, page)[0];
                of_page[page][1] = shared_totals(shared, page)[WARP_LANES];
            }
            add_totals(of_page);
        }
    }

    __device__ __forceinline__ void weights_of(unsigned char *shared, const float *value_scales,
                                               const float scores[shape::KEY_TILES][4], int pair,
                                               weight_pair &weights) const {
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const int page = 2 * pair + step;
            if (KEY_WARPS > 1) {
                load_weights(shared_weights(shared, static_cast<unsigned>(page)), weights.upper[step],
                             weights.lower[step]);
            } else {
                cut_weights<kv>(scores + 2 * page, value_scales + page * PAGE, weights.upper[step],
                                weights.lower[step]);
            }
        }
    }

    /* Adds weights times values. */
    __device__ __forceinline__ void add_values(unsigned char *shared, const float *value_scales,
                                               const float scores[shape::KEY_TILES][4]) {
        const unsigned char *mine = shared + shape::VALUES + lane_index() * key_tile<kv, shape::DIM>::PITCH +
                                    key_warp * (shape::SUM_TILES / kv::VALUE_TILES * 16);
#pragma unroll
        for (int pair = 0; pair < KEYS / 32; pair++) {
            weight_pair weights;
            weights_of(shared, value_scales, scores, pair, weights);
#pragma unroll
            for (int group = 0; group < shape::SUM_TILES; group += shape::SUM_GROUP) {
                uint32_t b[shape::SUM_GROUP][2][2];
                load_values<shape>(mine, group, pair, b);
                add_products<shape>(weights, b, state.sums + group);
            }
        }
    }

    /* Makes NaN the sums of rows that see a value that hide_values took out. */
    __device__ __forceinline__ void mark_hidden(const unsigned char *shared, int32_t position) {
        const unsigned char *hidden = shared + shape::HIDDEN;
        if (!any_hidden<shape>(hidden)) { return; }
        const unsigned shift = 2 * (lane_index() % 4);
#pragma unroll
        for (int tile = 0; tile < shape::SUM_TILES; tile++) {
            const unsigned char *bits = hidden + static_cast<int>(key_warp) * shape::SUM_TILES + tile;
            unsigned found[2] = {0, 0};
#pragma unroll 1
            for (int32_t key = 0; key < KEYS; key++) {
                const unsigned two = static_cast<unsigned>(bits[key * (shape::DIM / 8)]) >> shift;
                for (int i = 0; i < 2; i++) {
                    const bool seen = position + key <= own[i] && position + key >= first_seen(a, own[i]);
                    found[i] |= seen ? two : 0;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if ((found[i / 2] >> i % 2 & 1U) != 0) { state.sums[tile][i] = NAN; }
            }
        }
    }

    /* The two rows' sums of weights over the split, in every warp that shares them. */
    __device__ __forceinline__ void finish_totals(float total[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float two = state.total[i] + warp_shuffle_xor(state.total[i], 1);
            total[i] = two + warp_shuffle_xor(two, 2);
        }
    }

    __device__ __forceinline__ bool sees_split(int32_t split, unsigned row) const {
        return own[row] >= split_begin(split) && first_seen(a, own[row]) < split_begin(split + 1);
    }

    __device__ __forceinline__ int dim_of(int sum_tile, int odd) const {
        return kv::value_dim(static_cast<int>(key_warp) * shape::SUM_TILES + sum_tile, lane_index() % 4, odd);
    }

    /* Joins the split that ends here to those before it; for a row that sees nothing of it that changes nothing. */
    __device__ __forceinline__ void join(const joined_splits<shape> &joined) {
        float total[2];
        join_factors factors[2];
        finish_totals(total);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            softmax_state before = {*joined.largest(i), *joined.total(i)};
            factors[i] = join_split(before, softmax_state{state.largest[i], total[i]});
            *joined.largest(i) = before.largest;
            *joined.total(i) = before.total;
        }
#pragma unroll
        for (int s = 0; s < shape::SUM_TILES; s++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                *joined.sum(s, i) = join_sum(*joined.sum(s, i), state.sums[s][i], factors[i / 2]);
            }
            warp_sync(); /* so that not all are read, into registers that are not there, before the first is written */
        }
        state.clear();
    }

    __device__ __forceinline__ void store_partial(const row_tile &tile, int32_t split) const {
        float total[2];
        finish_totals(total);
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            if (!row.stored || !sees_split(split, i)) { continue; }
            const int64_t at = partial_at(a, plan, tile.seq, row.token, row.head, split);
            float *sums = plan.sums + at * a.layout.head_dim;
#pragma unroll
            for (int s = 0; s < shape::SUM_TILES; s++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (dim_of(s, odd) < a.layout.head_dim) { sums[dim_of(s, odd)] = state.sums[s][2 * i + odd]; }
                }
            }
            if (key_warp == 0 && lane_index() % 4 == 0) {
                plan.states[at] = softmax_state{state.largest[i], total[i]};
            }
        }
    }

    __device__ __forceinline__ void store(const row_tile &tile, const joined_splits<shape> &joined) const {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            const int64_t at = static_cast<int64_t>(row.token * a.n_heads + row.head) * a.layout.head_dim;
            const float total = *joined.total(static_cast<int>(i));
#pragma unroll 4
            for (int s = 0; s < shape::SUM_TILES; s++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (!row.stored || dim_of(s, odd) >= a.layout.head_dim) { continue; }
                    store_from_f32(a.dst, a.dst_dtype, at + dim_of(s, odd),
                                   attention_value(*joined.sum(s, 2 * static_cast<int>(i) + odd), total,
                                                   kv::WEIGHT_SCALE));
                }
            }
        }
    }
};

/* A tile's way over its keys, from block to block. */
template <typename shape> struct key_walk {
    typedef typename shape::kv kv;
    const qr_attention_args &a;
    const kv_offsets &offsets;
    const int32_t *table;
    int32_t first, last; /* positions that the tile sees */
    int32_t first_of_all = 0, last_of_all = INT32_MAX; /* that all its rows see */
    unsigned char *shared;

    __device__ __forceinline__ key_walk(const qr_attention_args &a_, const kv_offsets &offsets_, int32_t seq,
                                        int32_t first_, int32_t last_)
        : a(a_), offsets(offsets_), table(a_.block_table + seq * a_.table_stride), first(first_), last(last_) {
        shared = shared_memory<unsigned char>();
    }

    /* Whether some row of the tile sees what another does not, in the block of keys at `position`. */
    __device__ __forceinline__ bool rows_differ_at(int32_t position) const {
        return position < first_of_all || position + KEYS - 1 > last_of_all;
    }

    /* Of this K/V head in K or V: its elements, and its scales. */
    __device__ __forceinline__ size_t head() const { return blockIdx.y * PAGE * offsets.head_bytes; }
    __device__ __forceinline__ size_t scales() const { return offsets.scales + blockIdx.y * PAGE * sizeof(float); }

    /* The block of keys at `position`. Pages that hold no key of the tile are not looked up. */
    __device__ __forceinline__ key_block at(int32_t position) const {
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

    __device__ __forceinline__ page_array pages() const { return {a.pages, a.page_stride_bytes}; }

    __device__ __forceinline__ float *value_scales(int32_t position) const {
        return reinterpret_cast<float *>(shared + shape::VALUE_SCALES) + position / KEYS % 2 * KEYS;
    }

    __device__ __forceinline__ void load_keys(const key_block &block, int32_t position) const {
        const int chunks = static_cast<int>(offsets.head_bytes / 16);
        load_key_tile<kv, shape::DIM, shape::THREADS>(shared, block, pages(), head(), chunks);
        if (kv::SCALED) {
            load_scales(reinterpret_cast<float *>(shared + shape::KEY_SCALES), block, pages(), scales());
            load_scales(value_scales(position), block, pages(), offsets.v + scales());
        }
    }
    __device__ __forceinline__ void load_values(const key_block &block) const {
        const int chunks = static_cast<int>(offsets.head_bytes / 16);
        load_key_tile<kv, shape::DIM, shape::THREADS>(shared + shape::VALUES, block, pages(), offsets.v + head(), chunks);
    }
};

/* Walks from the block of `walk.first` to that of `walk.last`, joining all splits but the last. */
template <typename shape>
static __device__ __forceinline__ void walk_keys(attention_warp<shape> &warp, const key_walk<shape> &walk,
                                                 const joined_splits<shape> &joined) {
    int32_t position = walk.first / KEYS * KEYS, split_last = last_of_split(position);
    key_block block = walk.at(position);
    walk.load_keys(block, position);
    copy_async_commit();
    walk.load_values(block);
    copy_async_commit();
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
            hide_values<typename shape::kv, shape::DIM, shape::THREADS>(walk.shared + shape::VALUES, walk.shared + shape::HIDDEN);
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
    attention_mma_kernel(qr_attention_args a, kv_offsets offsets, attention_plan plan) {
    row_tile tile;
    if (!find_tile<shape::ROWS>(a, plan, static_cast<int32_t>(gridDim.x - 1 - blockIdx.x), tile)) { return; }
    const query_row front = row_at(plan, tile, tile.first), back = row_at(plan, tile, tile.end - 1);
    int32_t first = first_seen(a, front.position), last = back.position;
    const bool one_split = plan.sums != NULL;
    if (one_split) {
        const int32_t split = split_of(first) + static_cast<int32_t>(blockIdx.z);
        if (split > split_of(last)) { return; }
        if (first < split_begin(split)) { first = static_cast<int32_t>(split_begin(split)); }
        if (last >= split_begin(split + 1)) { last = static_cast<int32_t>(split_begin(split + 1) - 1); }
    }
    unsigned char *shared = shared_memory<unsigned char>();
    row_tile *kept = reinterpret_cast<row_tile *>(shared + shape::TILE); /* needed again at the end: not in registers */
    if (threadIdx.x == 0) { *kept = tile; }
    attention_warp<shape> warp(a, plan, tile, shared);
    const joined_splits<shape> joined(shared);
    if (!one_split) { joined.clear(); }
    key_walk<shape> walk(a, offsets, tile.seq, first, last);
    if (front.position != back.position) {
        walk.first_of_all = first_seen(a, back.position);
        walk.last_of_all = front.position;
    }
    walk_keys<shape>(warp, walk, joined);
    if (one_split) {
        warp.store_partial(*kept, split_of(walk.first));
    } else {
        warp.join(joined);
        warp.store(*kept, joined);
    }
}

template <typename shape>
static qrun_status launch_shape(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_plan &plan,
                                qr_error *err) {
    const dim3 grid(static_cast<unsigned>(count_tiles(args, plan.part, plan.group, shape::ROWS)),
                    static_cast<unsigned>(args.layout.n_kv_heads),
                    plan.sums != NULL ? static_cast<unsigned>(plan.n_slots) : 1);
    const size_t shared_bytes = plan.sums != NULL ? shape::SPLIT_BYTES : shape::WALK_BYTES;
    return QR_LAUNCH(cuda.device, err, attention_mma_kernel<shape>, grid, shape::THREADS, shared_bytes, args,
                     kv_offsets_of(&args.layout), plan);
}

/* Large tiles where there are chunks, and a thread can hold 16 rows of sums. */
template <typename kv, int DIM>
static qrun_status launch_dim(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_plan &plan,
                              bool large, qr_error *err) {
    typedef attention_shape<kv, DIM, (DIM <= 128 ? 4 : 1), (DIM <= 128 ? 1 : 4)> chunk;
    typedef attention_shape<kv, DIM, 1, 4> token;
    return large ? launch_shape<chunk>(cuda, args, plan, err) : launch_shape<token>(cuda, args, plan, err);
}

template <typename kv>
static qrun_status launch_attention(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_plan &plan,
                                    bool large, qr_error *err) {
    enum { MIDDLE = kv::SCALED ? 128 : 96 }; /* a quarter of 96 is no whole load of INT8 values */
    if (args.layout.head_dim <= 64) { return launch_dim<kv, 64>(cuda, args, plan, large, err); }
    if (args.layout.head_dim <= MIDDLE) { return launch_dim<kv, MIDDLE>(cuda, args, plan, large, err); }
    if (args.layout.head_dim <= 128) { return launch_dim<kv, 128>(cuda, args, plan, large, err); }
    return launch_dim<kv, 256>(cuda, args, plan, large, err);
}

#endif

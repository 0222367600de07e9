/* One warp of attention on the tensor cores (attention_mma.cuh): its scores, its weights, its sums of weight times
 * value, and what becomes of them at the end of a split. */
#ifndef QR_KERNELS_CUDA_ATTENTION_WARP_CUH
#define QR_KERNELS_CUDA_ATTENTION_WARP_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_scores.cuh"

/* Fragments of the weights of 16 keys, from their warp to the others of its rows: [32][8]. */
static QR_DEVICE void store_weights(uint32_t *shared, const uint32_t upper[4], const uint32_t lower[4]) {
    uint4 *dst = reinterpret_cast<uint4 *>(shared) + 2 * lane_index();
    dst[0] = pack_words(upper);
    dst[1] = pack_words(lower);
}

static QR_DEVICE void load_weights(const uint32_t *shared, uint32_t upper[4], uint32_t lower[4]) {
    const uint4 *src = reinterpret_cast<const uint4 *>(shared) + 2 * lane_index();
    unpack_words(upper, src[0]);
    unpack_words(lower, src[1]);
}

/* The weights of keys [32 · pair, 32 · pair + 32): two products. */
struct weight_pair {
    uint32_t upper[2][4], lower[2][4];
};

/* Adds weights times values to SUM_GROUP runs of sums. */
template <typename shape>
static QR_DEVICE void add_products(const weight_pair &weights, uint32_t b[shape::SUM_GROUP][2][2],
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
static QR_DEVICE void load_values(const unsigned char *mine, int group, int pair, uint32_t b[shape::SUM_GROUP][2][2]) {
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
template <typename shape> static QR_DEVICE bool any_hidden(const unsigned char *hidden) {
    unsigned found = 0;
#pragma unroll 1
    for (unsigned i = lane_index(); i < KEYS * (shape::DIM / 8) / 4; i += WARP_LANES) {
        found |= reinterpret_cast<const uint32_t *>(hidden)[i];
    }
    return warp_sum(found != 0 ? 1 : 0) != 0;
}

/* What a thread knows of the splits before this one, in shared memory: needed once a split. */
template <typename shape> struct joined_splits {
    float *mine; /* [4 · SUM_TILES + 4] floats, THREADS apart */

    QR_DEVICE explicit joined_splits(unsigned char *shared)
        : mine(reinterpret_cast<float *>(shared + shape::JOINED) + threadIdx.x) {}

    QR_DEVICE float *sum(int tile, int i) const { return mine + (4 * tile + i) * shape::THREADS; }
    QR_DEVICE float *largest(int row) const { return sum(shape::SUM_TILES, row); }
    QR_DEVICE float *total(int row) const { return sum(shape::SUM_TILES, 2 + row); }

    QR_DEVICE void clear() const {
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
    const attention_tiling &tiling;
    unsigned row_warp, key_warp;
    int32_t own[2]; /* positions of this lane's rows, g and g + 8 */
    attention_queries<shape> q;
    attention_state<shape> state;

    QR_DEVICE attention_warp(const qr_attention_args &a_, const attention_tiling &tiling_, const row_tile &tile,
                             unsigned char *shared)
        : a(a_), tiling(tiling_) {
        row_warp = warp_index() / KEY_WARPS;
        key_warp = warp_index() % KEY_WARPS;
        const float *src[2];
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            own[i] = row.position;
            src[i] = a.q + row.token * a.q_stride + static_cast<int64_t>(row.head) * a.layout.head_dim;
        }
        if (tiling.q_pairs) {
            load_queries<shape, true>(shared, src, a.layout.head_dim, q);
        } else {
            load_queries<shape, false>(shared, src, a.layout.head_dim, q);
        }
        state.clear();
    }

    QR_DEVICE query_row row_of(const row_tile &tile, unsigned row) const {
        return row_at(tiling, tile, tile.first + static_cast<int32_t>(16 * row_warp + row));
    }

    /* Scores of this warp's keys of the block at `position`. */
    QR_DEVICE void score(unsigned char *shared, int32_t position, float scores[shape::KEY_TILES][4]) const {
        const int first_key = static_cast<int>(key_warp) * (KEYS / KEY_WARPS);
        multiply_keys<shape>(q, shared, first_key, scores);
        finish_scores<shape>(tiling, reinterpret_cast<const float *>(shared + shape::KEY_SCALES) + first_key, scores);
        if (masked(position)) { mask_scores<shape>(a, own, position + first_key, scores); }
    }

    /* Positions of the warp's first and last row. */
    QR_DEVICE int32_t front() const { return warp_shuffle(own[0], 0); }
    QR_DEVICE int32_t back() const { return warp_shuffle(own[1], WARP_LANES - 1); }

    /* Of the block of keys at `position`: whether some row sees some key, and whether some row does not see some key.
     */
    QR_DEVICE bool sees(int32_t position) const {
        return position <= back() && position + KEYS > first_seen(a, front());
    }
    QR_DEVICE bool masked(int32_t position) const {
        return position + KEYS - 1 > front() || position < first_seen(a, back());
    }

    QR_DEVICE uint32_t *shared_weights(unsigned char *shared, unsigned page) const {
        return reinterpret_cast<uint32_t *>(shared + shape::WEIGHTS) + (row_warp * KEY_PAGES + page) * WARP_LANES * 8;
    }
    QR_DEVICE float *shared_largest(unsigned char *shared, unsigned of_key_warp, unsigned row) const {
        return reinterpret_cast<float *>(shared + shape::LARGEST) + (row_warp * KEY_WARPS + of_key_warp) * 16 + row;
    }

    QR_DEVICE float *shared_totals(unsigned char *shared, unsigned page) const {
        return reinterpret_cast<float *>(shared + shape::TOTALS) + (row_warp * KEY_PAGES + page) * 2 * WARP_LANES +
               lane_index();
    }

    /* The largest scores of the two rows, for the warps that share them. */
    QR_DEVICE void show_largest(unsigned char *shared, const float largest[2]) const {
        if (KEY_WARPS > 1 && lane_index() % 4 == 0) {
#pragma unroll
            for (unsigned i = 0; i < 2; i++) {
                *shared_largest(shared, key_warp, lane_index() / 4 + 8 * i) = largest[i];
            }
        }
    }

    /* Scores become weights; those of warps that share rows, and their sums a page, go to shared memory. */
    QR_DEVICE void weigh_keys(unsigned char *shared, const float *value_scales, float largest[2],
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
    QR_DEVICE void add_totals(const float of_page[KEY_PAGES][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) { state.total[i] += of_page[0][i] + of_page[1][i] + of_page[2][i] + of_page[3][i]; }
    }

    /* Where warps share rows: what all of them have summed. */
    QR_DEVICE void gather_totals(unsigned char *shared) {
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

    /* The weights of a pair of pages, cut in two. */
    QR_DEVICE void weights_of(unsigned char *shared, const float *value_scales, const float scores[shape::KEY_TILES][4],
                              int pair, weight_pair &weights) const {
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
    QR_DEVICE void add_values(unsigned char *shared, const float *value_scales,
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
    QR_DEVICE void mark_hidden(const unsigned char *shared, int32_t position) {
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
    QR_DEVICE void finish_totals(float total[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float two = state.total[i] + warp_shuffle_xor(state.total[i], 1);
            total[i] = two + warp_shuffle_xor(two, 2);
        }
    }

    /* Whether the lane's row g or g + 8 sees something of a split. */
    QR_DEVICE bool sees_split(int32_t split, unsigned row) const {
        return own[row] >= split_begin(split) && first_seen(a, own[row]) < split_begin(split + 1);
    }

    /* The dim of a lane's column 2t + odd of a run of sums. */
    QR_DEVICE int dim_of(int sum_tile, int odd) const {
        return kv::value_dim(static_cast<int>(key_warp) * shape::SUM_TILES + sum_tile, lane_index() % 4, odd);
    }

    /* Joins the split that ends here to those before it; for a row that sees nothing of it that changes nothing. */
    QR_DEVICE void join(const joined_splits<shape> &joined) {
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

    /* Leaves the split that ends here to attention_join_kernel. */
    QR_DEVICE void store_partial(const row_tile &tile, int32_t split) const {
        float total[2];
        finish_totals(total);
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            if (!row.stored || !sees_split(split, i)) { continue; }
            const int64_t at = partial_at(a, tiling, tile.seq, row.token, row.head, split);
            float *sums = tiling.sums + at * a.layout.head_dim;
#pragma unroll
            for (int s = 0; s < shape::SUM_TILES; s++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (dim_of(s, odd) < a.layout.head_dim) { sums[dim_of(s, odd)] = state.sums[s][2 * i + odd]; }
                }
            }
            if (key_warp == 0 && lane_index() % 4 == 0) {
                tiling.states[at] = softmax_state{state.largest[i], total[i]};
            }
        }
    }

    QR_DEVICE void store(const row_tile &tile, const joined_splits<shape> &joined) const {
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const query_row row = row_of(tile, lane_index() / 4 + 8 * i);
            const int64_t at = static_cast<int64_t>(row.token * a.n_heads + row.head) * a.layout.head_dim;
            softmax_state state_of_row = {*joined.largest(static_cast<int>(i)), *joined.total(static_cast<int>(i))};
            const float factor = join_sink(a, row.head, state_of_row);
#pragma unroll 4
            for (int s = 0; s < shape::SUM_TILES; s++) {
#pragma unroll
                for (int odd = 0; odd < 2; odd++) {
                    if (!row.stored || dim_of(s, odd) >= a.layout.head_dim) { continue; }
                    store_from_f32(a.dst, a.dst_dtype, at + dim_of(s, odd),
                                   attention_value(*joined.sum(s, 2 * static_cast<int>(i) + odd) * factor,
                                                   state_of_row.total, kv::WEIGHT_SCALE));
                }
            }
        }
    }
};

#endif

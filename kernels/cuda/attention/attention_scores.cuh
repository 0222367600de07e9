/* The first half of attention on the tensor cores (attention_mma.cuh): q in registers, its products with a block of
 * keys, scores, and the weights they become. */
#ifndef QR_KERNELS_CUDA_ATTENTION_SCORES_CUH
#define QR_KERNELS_CUDA_ATTENTION_SCORES_CUH

#include "kernels/cuda/attention/attention_kv.cuh"
#include "kernels/cuda/attention/attention_tiles.cuh"

static_assert(sizeof(float) == 4 && sizeof(row_tile) <= 32, "offsets in shared memory");

template <typename kv_type, int DIM_, int ROW_WARPS_, int KEY_WARPS_> struct attention_shape {
    typedef kv_type kv;
    enum {
        DIM = DIM_, /* head_dim, or the next larger that there is a kernel for */
        ROW_WARPS = ROW_WARPS_,
        KEY_WARPS = KEY_WARPS_,
        ROWS = 16 * ROW_WARPS,
        THREADS = ROW_WARPS * KEY_WARPS * WARP_LANES,
        STEPS = DIM / 16,                               /* products over dims */
        KEY_TILES = KEYS / 8 / KEY_WARPS,               /* runs of 8 keys of a warp */
        KEY_STEPS = KEYS / 16 / KEY_WARPS,              /* pages of a warp */
        SUM_TILES = DIM / 8 / KEY_WARPS,                /* runs of 8 dims of a warp */
        SUM_GROUP = SUM_TILES % 4 == 0 ? 4 : SUM_TILES, /* multiplied in turn, so that none waits for itself */
        KEY_GROUP = KEY_TILES % 4 == 0 ? 4 : KEY_TILES,
        /* Shared memory: K; V; the scales of K [KEYS] and V [2][KEYS] (INT8; those of the next V come while these are
         * in use); the lower halves of q; what hide_values took out; the row_tile; of warps that share rows the largest
         * scores [ROW_WARPS][KEY_WARPS][16], the totals of pages [ROW_WARPS][KEY_PAGES][2][32] and the weights
         * [ROW_WARPS][KEY_PAGES][32][8]; of a walk, joined_splits. */
        VALUES = key_tile<kv, DIM>::BYTES,
        KEY_SCALES = 2 * VALUES,
        VALUE_SCALES = KEY_SCALES + (kv::SCALED ? KEYS * 4 : 0),
        LOWER = VALUE_SCALES + (kv::SCALED ? 2 * KEYS * 4 : 0),
        LOWER_SHARED = DIM * ROW_WARPS >= 512,
        HIDDEN = LOWER + (LOWER_SHARED ? STEPS * THREADS * 16 : 0),
        TILE = HIDDEN + (kv::SCALED ? 0 : KEYS * DIM / 8),
        LARGEST = TILE + 32,
        TOTALS = LARGEST + (KEY_WARPS > 1 ? ROW_WARPS * KEY_WARPS * 64 : 0),
        WEIGHTS = TOTALS + (KEY_WARPS > 1 ? ROW_WARPS * KEY_PAGES * 2 * WARP_LANES * 4 : 0),
        JOINED = WEIGHTS + (KEY_WARPS > 1 ? ROW_WARPS * KEY_PAGES * WARP_LANES * 32 : 0),
        SPLIT_BYTES = JOINED,
        WALK_BYTES = JOINED + 4 * (SUM_TILES + 1) * THREADS * 4,
    };
    static_assert(SUM_TILES % kv::VALUE_TILES == 0 && STEPS % kv::KEY_STEPS == 0, "whole loads");
    static_assert(SUM_GROUP % kv::VALUE_TILES == 0, "whole loads");
};

/* A thread's part of what a warp knows of its 16 rows: rows g and g + 8, g = lane / 4. */
template <typename shape> struct attention_state {
    float largest[2];
    float total[2]; /* of the keys in this lane's columns */
    float sums[shape::SUM_TILES][4];

    QR_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            largest[i] = -INFINITY;
            total[i] = 0.0F;
        }
        for_each_sum<shape::SUM_TILES>([&](int tile, int i) { sums[tile][i] = 0.0F; });
    }
};

/* The left operands. Where registers are short the lower halves are in shared memory, each its thread's own. */
template <typename shape> struct attention_queries {
    uint32_t upper[shape::STEPS][4], lower[shape::LOWER_SHARED ? 1 : shape::STEPS][4];
};

template <typename shape> static QR_DEVICE uint4 *shared_lower(unsigned char *shared, int step) {
    return reinterpret_cast<uint4 *>(shared + shape::LOWER) + step * shape::THREADS + threadIdx.x;
}

/* Rows g and g + 8 of the left operands, from q at src[0] and src[1]; zeros from head_dim on. */
template <typename shape, bool pairs>
static QR_DEVICE void load_queries(unsigned char *shared, const float *const src[2], int head_dim,
                                   attention_queries<shape> &q) {
    typedef typename shape::kv kv;
#pragma unroll
    for (int step = 0; step < shape::STEPS; step++) {
        uint32_t lower[4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const float *row = src[i % 2] + kv::q_dim(step, lane_index() % 4, i >= 2);
            float first = 0.0F, second = 0.0F;
            if (pairs && 16 * step < head_dim) {
                const uint2 two = *reinterpret_cast<const uint2 *>(row);
                first = f32_from_bits(two.x), second = f32_from_bits(two.y);
            } else if (16 * step < head_dim) {
                first = row[0], second = row[1];
            }
            kv::cut(first, second, q.upper[step][i], lower[i]);
        }
        if constexpr (shape::LOWER_SHARED) {
            *shared_lower<shape>(shared, step) = pack_words(lower);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) { q.lower[step][i] = lower[i]; }
        }
    }
}

template <typename shape>
static QR_DEVICE void lower_of(unsigned char *shared, const attention_queries<shape> &q, int step, uint32_t lower[4]) {
    if constexpr (shape::LOWER_SHARED) {
        unpack_words(lower, *shared_lower<shape>(shared, step));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) { lower[i] = q.lower[step][i]; }
    }
}

/* Products of queries and this warp's keys. Row `first_key` + 8 · tile + lane % 8 of the shared K, chunk lane / 8 of
 * four, is what a lane names of a load: 8 keys of KEY_STEPS products. */
template <typename shape>
static QR_DEVICE void multiply_keys(const attention_queries<shape> &q, unsigned char *shared, int first_key,
                                    float scores[shape::KEY_TILES][4]) {
    typedef typename shape::kv kv;
    typedef key_tile<kv, shape::DIM> layout;
    const int lane = static_cast<int>(lane_index());
    const unsigned char *mine = shared + (first_key + lane % 8) * layout::PITCH + lane / 8 * 16;
    for_each_sum<shape::KEY_TILES>([&](int key, int i) { scores[key][i] = 0.0F; });
#pragma unroll
    for (int begin = 0; begin < shape::STEPS; begin += kv::KEY_STEPS) {
#pragma unroll
        for (int group = 0; group < shape::KEY_TILES; group += shape::KEY_GROUP) {
            uint32_t r[shape::KEY_GROUP][4], b[shape::KEY_GROUP][2];
#pragma unroll
            for (int i = 0; i < shape::KEY_GROUP; i++) {
                load_matrices(r[i], mine + (group + i) * 8 * layout::PITCH + begin / kv::KEY_STEPS * 64);
            }
#pragma unroll
            for (int step = 0; step < kv::KEY_STEPS; step++) {
                uint32_t lower[4];
                lower_of<shape>(shared, q, begin + step, lower);
#pragma unroll
                for (int i = 0; i < shape::KEY_GROUP; i++) { kv::key_fragment(b[i], r[i], step); }
#pragma unroll
                for (int i = 0; i < shape::KEY_GROUP; i++) { kv::mma(scores[group + i], q.upper[begin + step], b[i]); }
#pragma unroll
                for (int i = 0; i < shape::KEY_GROUP; i++) { kv::mma(scores[group + i], lower, b[i]); }
            }
        }
    }
}

/* tanh within 2^-21, absolutely, which is what a score needs: 1 − 2 / (1 + e^2x). */
QR_DEVICE float score_tanh(float x) {
    return fmaf(-2.0F, reciprocal_flushed(1.0F + exp2_flushed(x * (2.0F * LOG2_E))), 1.0F);
}

/* Scores in powers of two. `key_scale` is that of the warp's first key. */
template <typename shape>
static QR_DEVICE void finish_scores(const attention_tiling &tiling, const float *key_scale,
                                    float scores[shape::KEY_TILES][4]) {
    const unsigned column = 2 * (lane_index() % 4);
    for_each_sum<shape::KEY_TILES>([&](int key, int i) {
        if (shape::kv::SCALED) { scores[key][i] *= key_scale[8 * key + static_cast<int>(column) + i % 2]; }
        scores[key][i] *= tiling.score_factor;
    });
    if (!(tiling.score_cap > 0.0F)) { return; }
    for_each_sum<shape::KEY_TILES>(
        [&](int key, int i) { scores[key][i] = tiling.score_cap * score_tanh(scores[key][i]); });
}

/* −∞ where a row, at position own[i], does not see a key. `position` is that of the warp's first key. */
template <typename shape>
static QR_DEVICE void mask_scores(const qr_attention_args &a, const int32_t own[2], int32_t position,
                                  float scores[shape::KEY_TILES][4]) {
    const int32_t column = static_cast<int32_t>(2 * (lane_index() % 4));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t here = position + column + i % 2, last = own[i / 2] - here;
        const int32_t first = first_seen(a, own[i / 2]) - here;
#pragma unroll
        for (int key = 0; key < shape::KEY_TILES; key++) {
            if (8 * key < first || 8 * key > last) { scores[key][i] = -INFINITY; }
        }
    }
}

/* The largest score of each of the two rows over this warp's keys, in all lanes of the four. */
template <typename shape>
static QR_DEVICE void largest_scores(const float scores[shape::KEY_TILES][4], float largest[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY;
#pragma unroll
        for (int key = 0; key < shape::KEY_TILES; key++) {
            most = fmaxf(most, fmaxf(scores[key][2 * i], scores[key][2 * i + 1]));
        }
        most = fmaxf(most, warp_shuffle_xor(most, 1));
        largest[i] = fmaxf(most, warp_shuffle_xor(most, 2));
    }
}

/* Scores become weights; what was summed is taken down to the new largest score. `largest` is that of the whole block
 * of keys. `of_page`: this lane's sums of weights of each page. */
template <typename shape>
static QR_DEVICE void weigh(const float largest[2], float scores[shape::KEY_TILES][4], attention_state<shape> &state,
                            float of_page[shape::KEY_STEPS][2]) {
    float base[2], rescale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float most = fmaxf(state.largest[i], largest[i]);
        base[i] = softmax_base(most);
        rescale[i] = exp2_flushed(state.largest[i] - base[i]);
        state.largest[i] = most;
        state.total[i] *= rescale[i];
    }
#pragma unroll
    for (int page = 0; page < shape::KEY_STEPS; page++) {
#pragma unroll
        for (int key = 2 * page; key < 2 * page + 2; key++) {
#pragma unroll
            for (int i = 0; i < 4; i++) { scores[key][i] = exp2_flushed(scores[key][i] - base[i / 2]); }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float first = scores[2 * page][2 * i] + scores[2 * page][2 * i + 1];
            const float second = scores[2 * page + 1][2 * i] + scores[2 * page + 1][2 * i + 1];
            of_page[page][i] = first + second;
        }
    }
    for_each_sum<shape::SUM_TILES>([&](int tile, int i) { state.sums[tile][i] *= rescale[i / 2]; });
}

/* The weights of 16 keys as the left operand of a product, cut in two: fragments of scores are those of weights. A
 * weight of 0 stays 0 whatever the value's scale is: it may be that of a position nobody has written. */
template <typename kv>
static QR_DEVICE void cut_weights(const float scores[2][4], const float *value_scale, uint32_t upper[4],
                                  uint32_t lower[4]) {
    const unsigned column = 2 * (lane_index() % 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float two[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float weight = scores[i / 2][2 * (i % 2) + j];
            two[j] = weight * kv::WEIGHT_SCALE;
            if (kv::SCALED && weight != 0.0F) { two[j] = weight * value_scale[8 * (i / 2) + column + j]; }
        }
        kv::cut(two[0], two[1], upper[i], lower[i]);
    }
}

#endif

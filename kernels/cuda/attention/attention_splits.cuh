/* How attention over pages cuts the positions of a sequence, and how the results of the pieces are joined. Both follow
 * from absolute positions alone, so a token's bits are the same whether one block walks all the splits or each has a
 * block of its own.
 *
 * A split has 256 positions up to position 8192; after it every octave [2^e, 2^(e + 1)) has 16. So one sequence of 8192
 * tokens is 32 blocks a K/V head, which fills a GPU with 8 of them, and one of 131072 is 96, not 512: the partial
 * results of the splits, and the workspace for them, grow with the logarithm of the context. */
#ifndef QR_KERNELS_CUDA_ATTENTION_SPLITS_CUH
#define QR_KERNELS_CUDA_ATTENTION_SPLITS_CUH

#include "kernels/cuda/device/device.cuh"

enum {
    SPLIT_TOKENS = 256,
    EVEN_SPLITS = 32, /* of SPLIT_TOKENS */
    OCTAVE_SPLITS = 16,
    EVEN_SHIFT = 13, /* log2(EVEN_SPLITS · SPLIT_TOKENS) */
};

/* The first position of a split: a multiple of SPLIT_TOKENS. */
static __host__ __device__ inline int64_t split_begin(int32_t split) {
    if (split <= EVEN_SPLITS) { return static_cast<int64_t>(split) * SPLIT_TOKENS; }
    const int32_t octave = (split - EVEN_SPLITS) / OCTAVE_SPLITS, index = (split - EVEN_SPLITS) % OCTAVE_SPLITS;
    return (static_cast<int64_t>(OCTAVE_SPLITS + index) << octave) * (2 * SPLIT_TOKENS);
}

/* The split of a position. */
static __host__ __device__ inline int32_t split_of(int64_t position) {
    if (position >> EVEN_SHIFT == 0) { return static_cast<int32_t>(position / SPLIT_TOKENS); }
    int32_t octave = 0;
    while (position >> (EVEN_SHIFT + octave + 1) != 0) { octave++; }
    const int64_t index = (position >> octave) / (2 * SPLIT_TOKENS) - OCTAVE_SPLITS;
    return EVEN_SPLITS + octave * OCTAVE_SPLITS + static_cast<int32_t>(index);
}

/* The last position of the split of `position`. */
QR_DEVICE int32_t last_of_split(int32_t position) {
    return static_cast<int32_t>(split_begin(split_of(position) + 1) - 1);
}

/* Weights, at most 1, are multiplied by this before F16 pages' kernels cut them: F16 keeps nothing below 2^-25. */
static constexpr float F16_WEIGHT_SCALE = 32768.0F;

/* Sums over keys: the largest score (in powers of two), the sum of weights 2^(score − largest), both of one row. The
 * sums of weight times value go with them. */
struct softmax_state {
    float largest, total;
};

/* What a score is taken relative to: nothing seen yet gives weights of 0, not of NaN. */
QR_DEVICE float softmax_base(float largest) { return largest == -INFINITY ? 0.0F : largest; }

/* What the sums so far, and those of the next split, are multiplied with. */
struct join_factors {
    float before, next;
};

/* Joins the next split to those before it. Splits are joined in order, those in which a row sees nothing left out. */
QR_DEVICE join_factors join_split(softmax_state &before, softmax_state next) {
    const float largest = fmaxf(before.largest, next.largest), base = softmax_base(largest);
    const join_factors factors = {exp2_flushed(before.largest - base), exp2_flushed(next.largest - base)};
    before.total = fmaf(before.total, factors.before, next.total * factors.next);
    before.largest = largest;
    return factors;
}

QR_DEVICE float join_sum(float before, float next, join_factors factors) {
    return fmaf(before, factors.before, next * factors.next);
}

/* The result from the joined sums: NaN where they are not finite. A zero is positive, so that adding zeros, or not,
 * gives the same bits. */
QR_DEVICE float attention_value(float sum, float total, float weight_scale) {
    const float value = sum / total / weight_scale + 0.0F;
    return fabsf(sum) < INFINITY && value == value ? value : NAN;
}

#endif

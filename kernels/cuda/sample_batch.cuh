/* Samples under top_k, top_p or min_p: ids in falling order, in batches of at most BATCH that a block sorts in shared
 * memory. One thread walks them and adds their weights in the order that the op's description gives. Part of sample.cu.
 */
#ifndef QR_KERNELS_CUDA_SAMPLE_BATCH_CUH
#define QR_KERNELS_CUDA_SAMPLE_BATCH_CUH

#include "kernels/cuda/device/vec4.cuh"

/* A thread of the first two launches looks at eight ids. BATCH keys and weights take 64 KiB. A batch is sorted in full,
 * so the first asks for few. */
enum {
    PER_THREAD = 8,
    BATCH = 4096,
    WANTED_FIRST = 64,
    WANTED = BATCH / 2,
    LADDER_RUNGS = 8,
    LADDER_WORDS = LADDER_RUNGS / 4
};

static QR_DEVICE bool sample_is_filtered(const qr_sample_params &params) {
    return params.temperature > 0.0F && (params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F);
}

static QR_DEVICE double sample_weight(float logit, double highest, double inverse_temperature) {
    return exp((static_cast<double>(logit) - highest) * inverse_temperature);
}

/* --- The ladder: how many logits of a chunk are within so many temperatures of the largest, a count of 16 bits a
 * rung --- */

struct sample_ladder {
    uint64_t words[LADDER_WORDS];
};

static QR_DEVICE float rung_value(float highest, float temperature, int rung) {
    const float steps =
        rung < 4 ? static_cast<float>(rung + 1) : static_cast<float>((rung & 1 ? 4 : 3) << (rung / 2 - 1));
    return highest - temperature * steps; /* 1, 2, 3, 4, 6, 8, 12, 16 */
}

static QR_DEVICE unsigned rung_count(const sample_ladder &ladder, int rung) {
    return static_cast<unsigned>(ladder.words[rung / 4] >> rung % 4 * 16 & 0xFFFFU);
}

static __device__ sample_ladder count_rungs(const float *values, int n, float highest, float temperature) {
    sample_ladder ladder = {};
#pragma unroll
    for (int rung = 0; rung < LADDER_RUNGS; rung++) {
        const float bound = rung_value(highest, temperature, rung);
        unsigned count = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; i++) { count += i < n && values[i] >= bound ? 1U : 0U; }
        ladder.words[rung / 4] += static_cast<uint64_t>(count) << rung % 4 * 16;
    }
    return ladder;
}

/* --- Keys: a logit and its id as one number that grows towards the front of the order. 0 is last. --- */

static const uint64_t KEY_TOP = ~static_cast<uint64_t>(0);

static QR_DEVICE uint64_t key_of_value(float value) {
    const uint32_t bits = __float_as_uint(value == 0.0F ? 0.0F : value); /* −0 equals 0 */
    return static_cast<uint64_t>(bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFU : 0x80000000U)) << 32;
}

static QR_DEVICE uint64_t key_of(float value, int64_t id) {
    return key_of_value(value) | (0xFFFFFFFFU - static_cast<uint32_t>(id));
}

static QR_DEVICE float value_of_key(uint64_t key) {
    const uint32_t bits = static_cast<uint32_t>(key >> 32);
    return __uint_as_float(bits ^ (bits >> 31 != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

static QR_DEVICE int32_t id_of_key(uint64_t key) {
    return static_cast<int32_t>(0xFFFFFFFFU - static_cast<uint32_t>(key));
}

/* --- A batch --- */

/* One sample, the same in every thread. */
struct filtered_sample {
    const float *row;
    int64_t vocab;
    qr_sample_params params;
    float highest;
    double total; /* of all weights */
};

enum walk_phase { WALK_TOTAL, WALK_KEEP, WALK_SAMPLE, WALK_DONE };

/* Shared memory. */
struct sample_batch {
    uint64_t keys[BATCH]; /* falling */
    double weights[BATCH];
    unsigned rungs[LADDER_RUNGS]; /* the row's ladder */
    unsigned counts[32];          /* a warp each */
    unsigned n;
    uint64_t begin, end; /* the batch is all keys in [end, begin) */
    /* The walk: where its next batch begins and how many ids lie before that; ids walked in this phase, and at most. */
    walk_phase phase;
    uint64_t next;
    int64_t n_before, n_walked, most;
    double sum, total;
    int32_t token;
};

/* Calls visit(key) for every key of this thread's part of the row. A block alone has a whole row to read, so eight
 * loads of 16 bytes are under way in every thread. */
template <typename F> static QR_DEVICE void each_key(const filtered_sample &f, F visit) {
    enum { AHEAD = 8 };
    const int64_t n_vectors = vec4_aligned(f.row, 0) ? f.vocab / 4 : 0, n_threads = blockDim.x;
    for (int64_t first = threadIdx.x; first < n_vectors; first += AHEAD * n_threads) {
        float values[AHEAD][4];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t at = first + k * n_threads;
            if (at < n_vectors) { load_vec4(values[k], f.row + at * VEC4); }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t at = first + k * n_threads;
            for (int i = 0; i < 4 && at < n_vectors; i++) { visit(key_of(values[k][i], at * 4 + i)); }
        }
    }
    for (int64_t id = n_vectors * 4 + threadIdx.x; id < f.vocab; id += n_threads) { visit(key_of(f.row[id], id)); }
}

static __device__ unsigned count_keys(const filtered_sample &f, uint64_t begin, uint64_t end, sample_batch *batch) {
    unsigned n = 0;
    each_key(f, [&](uint64_t key) { n += key >= end && key < begin ? 1U : 0U; });
    return block_sum(n, batch->counts);
}

/* The end of the batch from `begin` on, of n_left keys in all: at least `wanted` of them and at most BATCH. Keys are
 * distinct, so a bound that fits always lies between one with too many and one with too few. */
static __device__ uint64_t find_end(const filtered_sample &f, uint64_t begin, int64_t n_left, sample_batch *batch) {
    if (n_left <= BATCH) { return 0; }
    unsigned wanted = WANTED;
    uint64_t too_many = 0, too_few = begin;
    if (begin == KEY_TOP) {
        const int32_t top_k = f.params.top_k;
        if (top_k < WANTED) { wanted = top_k > 0 ? static_cast<unsigned>(top_k) : static_cast<unsigned>(WANTED_FIRST); }
        for (int rung = 0; rung < LADDER_RUNGS; rung++) {
            const uint64_t bound = key_of_value(rung_value(f.highest, f.params.temperature, rung));
            if (batch->rungs[rung] > BATCH) {
                too_many = bound;
                break;
            }
            if (batch->rungs[rung] >= wanted) { return bound; }
            too_few = bound;
        }
    }
    for (;;) {
        const uint64_t middle = too_many + (too_few - too_many) / 2;
        const unsigned n = count_keys(f, begin, middle, batch);
        if (n < wanted) {
            too_few = middle;
        } else if (n > BATCH) {
            too_many = middle;
        } else {
            return middle;
        }
    }
}

/* Batcher's bitonic network over the next power of two; positions from n on count as 0. */
static __device__ void sort_keys(sample_batch *batch) {
    unsigned n = 2;
    while (n < batch->n) { n *= 2; }
    for (unsigned i = batch->n + threadIdx.x; i < n; i += blockDim.x) { batch->keys[i] = 0; }
    __syncthreads();
    for (unsigned size = 2; size <= n; size *= 2) {
        for (unsigned stride = size / 2; stride > 0; stride /= 2) {
            for (unsigned pair = threadIdx.x; pair < n / 2; pair += blockDim.x) {
                const unsigned low = pair / stride * stride * 2 + pair % stride, high = low + stride;
                const uint64_t a = batch->keys[low], b = batch->keys[high];
                if ((a < b) == ((low & size) == 0)) {
                    batch->keys[low] = b;
                    batch->keys[high] = a;
                }
            }
            __syncthreads();
        }
    }
}

static __device__ void load_batch(const filtered_sample &f, uint64_t begin, int64_t n_left, sample_batch *batch) {
    const uint64_t end = find_end(f, begin, n_left, batch);
    __syncthreads(); /* all have seen what the last batch was */
    if (threadIdx.x == 0) {
        batch->n = 0;
        batch->begin = begin;
        batch->end = end;
    }
    __syncthreads();
    each_key(f, [&](uint64_t key) {
        if (key >= end && key < begin) { batch->keys[count_up(&batch->n)] = key; }
    });
    __syncthreads();
    sort_keys(batch);
    const double highest = static_cast<double>(f.highest), inverse = 1.0 / static_cast<double>(f.params.temperature);
    for (unsigned i = threadIdx.x; i < batch->n; i += blockDim.x) {
        batch->weights[i] = sample_weight(value_of_key(batch->keys[i]), highest, inverse);
    }
    __syncthreads();
}

/* --- The walk of one thread: the total of what top_k leaves, what of it is kept, then the sample. True when the phase
 * ends within this batch. --- */

static __device__ bool walk_batch(const filtered_sample &f, sample_batch *batch) {
    const walk_phase phase = batch->phase;
    const double share = static_cast<double>(f.params.top_p) * batch->total,
                 least = static_cast<double>(f.params.min_p);
    const int64_t most = batch->most;
    int64_t n = batch->n_walked;
    double sum = batch->sum;
    bool ends = batch->end == 0;
    for (unsigned i = 0; i < batch->n; i++) {
        const double weight = batch->weights[i];
        const bool beyond = phase == WALK_KEEP && n > 0 && (sum >= share || weight < least);
        if (beyond || weight == 0.0) {
            ends = true;
            break;
        }
        n++;
        sum = phase == WALK_SAMPLE ? sum - weight : sum + weight;
        if (n == most || (phase == WALK_SAMPLE && sum < 0.0)) {
            batch->token = id_of_key(batch->keys[i]);
            ends = true;
            break;
        }
    }
    batch->n_walked = n;
    batch->sum = sum;
    return ends;
}

static __device__ void begin_phase(walk_phase phase, int64_t most, double sum, sample_batch *batch) {
    batch->phase = phase;
    batch->next = KEY_TOP;
    batch->n_before = batch->n_walked = 0;
    batch->most = most;
    batch->sum = sum;
}

static __device__ void advance(const filtered_sample &f, sample_batch *batch) {
    if (!walk_batch(f, batch)) {
        batch->next = batch->end;
        batch->n_before += batch->n;
    } else if (batch->phase == WALK_TOTAL) {
        batch->total = batch->sum;
        begin_phase(WALK_KEEP, batch->n_walked, 0.0, batch);
    } else if (batch->phase == WALK_KEEP) {
        begin_phase(WALK_SAMPLE, batch->n_walked, f.params.uniform * batch->sum, batch);
    } else {
        batch->phase = WALK_DONE;
    }
}

/* All threads call it and get the token. A batch that is already loaded is kept. */
static __device__ int32_t sample_filtered(const filtered_sample &f, sample_batch *batch) {
    if (threadIdx.x == 0) {
        const bool limited = f.params.top_k > 0 && f.params.top_k < f.vocab;
        batch->begin = 0;
        batch->total = f.total;
        begin_phase(limited ? WALK_TOTAL : WALK_KEEP, limited ? f.params.top_k : f.vocab, 0.0, batch);
    }
    __syncthreads();
    while (batch->phase != WALK_DONE) {
        const uint64_t next = batch->next;
        if (batch->begin != next) { load_batch(f, next, f.vocab - batch->n_before, batch); }
        __syncthreads(); /* all have read the walk's state before it continues */
        if (threadIdx.x == 0) { advance(f, batch); }
        __syncthreads();
    }
    return batch->token;
}

#endif

/* sample: three launches for all samples. In the first two a block takes a chunk of the vocabulary, so that one sample
 * keeps many multiprocessors busy: the largest logit of each chunk, then the sum of its weights. In the third a block
 * takes a sample and chooses.
 *
 * All sums are F64: eight neighbours by one thread, threads by a butterfly, chunks in order. Under top_k, top_p or
 * min_p ids are taken in falling order, in batches that are sorted in shared memory, and one thread adds up their
 * weights as the reference does. A batch holds the keys above a bound on logit and id, and the bound is found by
 * counting. The first bound to try comes from the second launch, which counts the logits within a few temperatures of
 * the largest: for a usual distribution the first batch is the only one. */
#include <limits.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sample_batch.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP_LANES, CHUNK = THREADS * PER_THREAD };

/* What a chunk of a row holds. */
struct chunk_part {
    double weights; /* sum of exp((logit − largest) / temperature) */
    double plain;   /* the same at temperature 1 */
    sample_ladder counts;
    float highest;
    int32_t best;   /* the lowest id that has it */
    unsigned n_bad; /* not finite */
};

static inline int64_t chunks_of(int64_t vocab) { return qr_ceil_div(vocab, static_cast<int64_t>(CHUNK)); }

static size_t sample_workspace(const qr_sample_args &args) {
    return static_cast<size_t>(args.n_samples * chunks_of(args.vocab)) * sizeof(chunk_part);
}

/* --- The largest logit --- */

/* Of two logits with their ids, the one that comes first. */
struct ranked {
    float value;
    int32_t id;
};

static QR_DEVICE ranked first_of(ranked a, ranked b) {
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

static QR_DEVICE ranked warp_first(ranked mine) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) {
        mine = first_of(mine, {warp_shuffle_xor(mine.value, mask), warp_shuffle_xor(mine.id, mask)});
    }
    return mine;
}

static __device__ ranked block_first(ranked mine, ranked *scratch) {
    return block_reduce(
        mine, scratch, [](ranked one) { return warp_first(one); }, [](ranked a, ranked b) { return first_of(a, b); });
}

struct scan_scratch {
    ranked first[WARPS];
    unsigned counts[WARPS];
};

/* The values of this thread of a chunk: ids [first, first + n). */
struct span {
    float values[PER_THREAD];
    int64_t first;
    int n;
};

static __device__ span span_of(const float *row, int64_t chunk, int64_t vocab, unsigned thread) {
    span s;
    s.first = chunk * CHUNK + static_cast<int64_t>(thread) * PER_THREAD;
    const int64_t left = vocab - s.first;
    s.n = left >= PER_THREAD ? static_cast<int>(PER_THREAD) : left > 0 ? static_cast<int>(left) : 0;
    if (s.n == PER_THREAD && vec4_aligned(row, 0)) {
        load_vec4(s.values, row + s.first);
        load_vec4(s.values + VEC4, row + s.first + VEC4);
        return s;
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) { s.values[i] = i < s.n ? row[s.first + i] : 0.0F; }
    return s;
}

__global__ void sample_scan_kernel(qr_sample_args a, int64_t n_chunks, chunk_part *parts) {
    scan_scratch *scratch = shared_memory<scan_scratch>();
    const int64_t sample = blockIdx.x / n_chunks, chunk = blockIdx.x % n_chunks;
    const span s = span_of(a.logits + a.samples[sample].row * a.vocab, chunk, a.vocab, threadIdx.x);
    ranked mine = {-INFINITY, INT_MAX};
    unsigned n_bad = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (i >= s.n) { continue; }
        mine = first_of(mine, {s.values[i], static_cast<int32_t>(s.first + i)});
        n_bad += isfinite(s.values[i]) ? 0U : 1U;
    }
    mine = block_first(mine, scratch->first);
    n_bad = block_sum(n_bad, scratch->counts);
    if (threadIdx.x > 0) { return; }
    chunk_part *part = &parts[blockIdx.x];
    part->highest = mine.value;
    part->best = mine.id;
    part->n_bad = n_bad;
}

/* --- Weights --- */

struct row_summary {
    ranked best;
    unsigned n_bad;
};

/* Over all chunks of a sample, in every thread. */
static __device__ row_summary summarize(const chunk_part *parts, int64_t n_chunks, scan_scratch *scratch) {
    ranked best = {-INFINITY, INT_MAX};
    unsigned n_bad = 0;
    for (int64_t c = threadIdx.x; c < n_chunks; c += THREADS) {
        best = first_of(best, {parts[c].highest, parts[c].best});
        n_bad += parts[c].n_bad;
    }
    return {block_first(best, scratch->first), block_sum(n_bad, scratch->counts)};
}

static __device__ double span_weights(const span &s, double highest, double inverse_temperature) {
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        if (i < s.n) { sum += sample_weight(s.values[i], highest, inverse_temperature); }
    }
    return sum;
}

struct weigh_scratch {
    scan_scratch scan;
    double sums[WARPS];
    uint64_t counts[WARPS];
};

__global__ void __launch_bounds__(THREADS) sample_weigh_kernel(qr_sample_args a, int64_t n_chunks, chunk_part *parts) {
    weigh_scratch *scratch = shared_memory<weigh_scratch>();
    const int64_t index = blockIdx.x / n_chunks, chunk = blockIdx.x % n_chunks;
    const qr_sample_params params = a.samples[index];
    const bool is_sampled = params.temperature > 0.0F, is_filtered = sample_is_filtered(params);
    if (!is_sampled && params.wants_logprob == 0) { return; }
    const row_summary row = summarize(parts + index * n_chunks, n_chunks, &scratch->scan);
    if (row.n_bad > 0) { return; }
    const span s = span_of(a.logits + params.row * a.vocab, chunk, a.vocab, threadIdx.x);
    const double highest = static_cast<double>(row.best.value);
    chunk_part *part = &parts[blockIdx.x];
    if (is_sampled) {
        const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
        const double sum = block_sum(span_weights(s, highest, inverse_temperature), scratch->sums);
        if (threadIdx.x == 0) { part->weights = sum; }
    }
    if (params.wants_logprob != 0) {
        const double sum = block_sum(span_weights(s, highest, 1.0), scratch->sums);
        if (threadIdx.x == 0) { part->plain = sum; }
    }
    if (!is_filtered) { return; }
    sample_ladder counts = count_rungs(s.values, s.n, row.best.value, params.temperature);
#pragma unroll
    for (int i = 0; i < LADDER_WORDS; i++) { counts.words[i] = block_sum(counts.words[i], scratch->counts); }
    if (threadIdx.x == 0) { part->counts = counts; }
}

/* --- The choice --- */

struct choose_scratch {
    weigh_scratch weigh;
    double sums[THREADS];
    double rest;
    int64_t chunk;
    int32_t token;
    sample_batch batch; /* where a sample is filtered */
};

/* Takes the chunks' sums off `rest` until one has more: thread 0's walk, 256 sums at a time. */
static __device__ void find_chunk(const chunk_part *parts, int64_t n_chunks, choose_scratch *scratch) {
    for (int64_t first = 0; first < n_chunks && scratch->chunk < 0; first += THREADS) {
        const int64_t c = first + threadIdx.x;
        scratch->sums[threadIdx.x] = c < n_chunks ? parts[c].weights : 0.0;
        __syncthreads();
        if (threadIdx.x == 0) {
            const int64_t end = n_chunks - first < THREADS ? n_chunks - first : static_cast<int64_t>(THREADS);
            for (int64_t i = 0; i < end && scratch->chunk < 0; i++) {
                if (scratch->rest < scratch->sums[i]) {
                    scratch->chunk = first + i;
                } else {
                    scratch->rest -= scratch->sums[i];
                }
            }
        }
        __syncthreads();
    }
}

/* The same among the threads' sums of the chunk, then among the eight weights of one. What rounding leaves over falls
 * to the last id that has a weight. */
static __device__ int32_t find_in_chunk(const qr_sample_args &a, const qr_sample_params &params, double highest,
                                        choose_scratch *scratch) {
    const double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
    const float *row = a.logits + params.row * a.vocab;
    const span mine = span_of(row, scratch->chunk, a.vocab, threadIdx.x);
    scratch->sums[threadIdx.x] = span_weights(mine, highest, inverse_temperature);
    __syncthreads();
    if (threadIdx.x == 0) {
        double rest = scratch->rest;
        unsigned thread = 0;
        for (unsigned t = 0; t < THREADS; t++) {
            if (scratch->sums[t] == 0.0) { continue; }
            thread = t;
            if (rest < scratch->sums[t]) { break; }
            rest -= scratch->sums[t];
        }
        const int64_t first = scratch->chunk * CHUNK + static_cast<int64_t>(thread) * PER_THREAD;
        for (int64_t id = first; id < a.vocab && id < first + PER_THREAD; id++) {
            const double weight = sample_weight(row[id], highest, inverse_temperature);
            if (weight > 0.0) { scratch->token = static_cast<int32_t>(id); }
            rest -= weight;
            if (rest < 0.0) { break; }
        }
    }
    __syncthreads();
    return scratch->token;
}

static __device__ double sum_of_chunks(const chunk_part *parts, int64_t n_chunks, double chunk_part::*member,
                                       choose_scratch *scratch) {
    double sum = 0.0;
    for (int64_t c = threadIdx.x; c < n_chunks; c += THREADS) { sum += parts[c].*member; }
    return block_sum(sum, scratch->weigh.sums);
}

/* The ladder of the whole row. */
static __device__ void sum_rungs(const chunk_part *parts, int64_t n_chunks, choose_scratch *scratch) {
    for (int rung = 0; rung < LADDER_RUNGS; rung++) {
        unsigned count = 0;
        for (int64_t c = threadIdx.x; c < n_chunks; c += THREADS) { count += rung_count(parts[c].counts, rung); }
        count = block_sum(count, scratch->weigh.scan.counts);
        if (threadIdx.x == 0) { scratch->batch.rungs[rung] = count; }
    }
}

static __device__ int32_t choose(const qr_sample_args &a, const qr_sample_params &params, const chunk_part *parts,
                                 int64_t n_chunks, ranked best, choose_scratch *scratch) {
    if (params.temperature <= 0.0F) { return best.id; }
    const double total = sum_of_chunks(parts, n_chunks, &chunk_part::weights, scratch);
    const float *row = a.logits + params.row * a.vocab;
    if (sample_is_filtered(params)) {
        sum_rungs(parts, n_chunks, scratch);
        return sample_filtered({row, a.vocab, params, best.value, total}, &scratch->batch);
    }
    if (threadIdx.x == 0) {
        scratch->rest = params.uniform * total;
        scratch->chunk = -1;
    }
    __syncthreads();
    find_chunk(parts, n_chunks, scratch);
    if (scratch->chunk < 0) { return best.id; } /* rounding left a remainder */
    return find_in_chunk(a, params, static_cast<double>(best.value), scratch);
}

/* One block of 120 registers a thread (110 on sm_80) and 68 KB a multiprocessor is enough: there are no more samples
 * than that. */
__global__ void __launch_bounds__(THREADS, 1)
    sample_choose_kernel(qr_sample_args a, int64_t n_chunks, const chunk_part *all_parts) {
    choose_scratch *scratch = shared_memory<choose_scratch>();
    const qr_sample_params params = a.samples[blockIdx.x];
    const chunk_part *parts = all_parts + blockIdx.x * n_chunks;
    const row_summary row = summarize(parts, n_chunks, &scratch->weigh.scan);
    qr_sampled result = {0, 0, 0.0F};
    if (row.n_bad == 0) {
        result = {choose(a, params, parts, n_chunks, row.best, scratch), 1, 0.0F};
        if (params.wants_logprob != 0) {
            const double sum = sum_of_chunks(parts, n_chunks, &chunk_part::plain, scratch);
            const double logit = static_cast<double>(a.logits[params.row * a.vocab + result.token]);
            result.logprob = static_cast<float>(logit - (static_cast<double>(row.best.value) + log(sum)));
        }
    }
    if (threadIdx.x == 0) { a.dst[blockIdx.x] = result; }
}

static qrun_status run_sample(qr_cuda_backend &cuda, const qr_sample_args &args, void *workspace, qr_error *err) {
    chunk_part *parts = static_cast<chunk_part *>(workspace);
    const int64_t n_chunks = chunks_of(args.vocab);
    const dim3 chunks(static_cast<unsigned>(args.n_samples * n_chunks)), samples(static_cast<unsigned>(args.n_samples));
    QR_RETURN_IF_ERROR(
        QR_LAUNCH(cuda.device, err, sample_scan_kernel, chunks, THREADS, sizeof(scan_scratch), args, n_chunks, parts));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, sample_weigh_kernel, chunks, THREADS, sizeof(weigh_scratch), args,
                                 n_chunks, parts));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, sample_choose_kernel, samples, THREADS, sizeof(choose_scratch), args,
                                 n_chunks, parts));
    return QRUN_OK;
}

QR_CUDA_OP(sample, sample_workspace, run_sample)

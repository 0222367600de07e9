/* route and its gradient: a warp for a row, whose lanes have the logits of every 32nd expert. Slots are then placed by
 * a block an expert, in the order of the pairs; what comes before an expert is counted, not waited for. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

enum { ROW_THREADS = 128, ROW_WARPS = ROW_THREADS / WARP_LANES, PLACE_THREADS = 256 };

/* What routing orders by: NaN is less than anything. */
static QR_DEVICE float rank_of(float logit) { return isnan(logit) ? -INFINITY : logit; }

/* An expert and what it is ordered by; expert INT32_MAX: none. */
struct ranked_expert {
    float rank;
    int32_t expert;

    /* By falling rank, the lower expert first among equals. */
    QR_DEVICE bool is_before(const ranked_expert &other) const {
        return rank > other.rank || (rank == other.rank && expert < other.expert);
    }
};

static QR_DEVICE ranked_expert first_of_warp(ranked_expert best) {
    for (unsigned mask = WARP_LANES / 2; mask > 0; mask /= 2) {
        const ranked_expert other = {warp_shuffle_xor(best.rank, mask), warp_shuffle_xor(best.expert, mask)};
        if (other.expert != INT32_MAX && (best.expert == INT32_MAX || other.is_before(best))) { best = other; }
    }
    return best;
}

static QR_DEVICE float sigmoid_of(float logit) { return 1.0F / (1.0F + expf(-logit)); }

/* What a row's shares are of: e^(logit − highest), or the sigmoid of the logit, · factor / divisor. */
struct share_scale {
    bool is_sigmoid;
    float highest, factor, divisor;
    QR_DEVICE float of(float logit) const {
        return (is_sigmoid ? sigmoid_of(logit) : expf(logit - highest)) * factor / divisor;
    }
};

/* Of the logits of `among` (NULL: the first n). */
static QR_DEVICE share_scale softmax_scale(const float *logits, const int32_t *among, int32_t n) {
    const int32_t first = static_cast<int32_t>(lane_index());
    float highest = -INFINITY, sum = 0.0F;
    for (int32_t k = first; k < n; k += WARP_LANES) { highest = fmaxf(highest, logits[among != NULL ? among[k] : k]); }
    highest = warp_max(highest);
    for (int32_t k = first; k < n; k += WARP_LANES) { sum += expf(logits[among != NULL ? among[k] : k] - highest); }
    return {false, highest, 1.0F, warp_sum(sum)};
}

static QR_DEVICE share_scale share_scale_of(const qr_routing &r, const qr_router &router, const float *logits,
                                            const int32_t *chosen) {
    if (!router.is_sigmoid) {
        share_scale scale =
            router.normalize ? softmax_scale(logits, chosen, r.top_k) : softmax_scale(logits, NULL, r.n_experts);
        scale.factor = router.factor;
        return scale;
    }
    float sum = 0.0F;
    for (int32_t k = static_cast<int32_t>(lane_index()); k < r.top_k; k += WARP_LANES) {
        sum += sigmoid_of(logits[chosen[k]]);
    }
    sum = warp_sum(sum);
    return {true, 0.0F, router.factor, router.normalize ? sum + router.eps : 1.0F};
}

/* What expert e is chosen by; `all`: the softmax over all experts, where there is a choice_bias. */
static QR_DEVICE float rank_of_expert(const qr_route_args &a, const share_scale &all, const float *logits, int32_t e) {
    if (!a.router.is_sigmoid && a.choice_bias == NULL) { return rank_of(logits[e]); }
    const float score = a.router.chooses_by_logits ? logits[e]
                        : a.router.is_sigmoid      ? sigmoid_of(logits[e])
                                                   : all.of(logits[e]);
    return rank_of(score + (a.choice_bias != NULL ? a.choice_bias[e] : 0.0F));
}

/* What a group of experts is chosen by. */
static QR_DEVICE float rank_of_group(const qr_route_args &a, const share_scale &all, const float *logits, int32_t size,
                                     int32_t group) {
    float best = -INFINITY, second = -INFINITY;
    for (int32_t e = group * size; e < (group + 1) * size; e++) {
        const float rank = rank_of_expert(a, all, logits, e);
        second = fmaxf(second, fminf(rank, best));
        best = fmaxf(best, rank);
    }
    return a.router.is_sigmoid ? best + second : best;
}

/* A bit for each group that experts may be chosen from, in every lane. A lane has the ranks of every 32nd group. */
static QR_DEVICE uint64_t best_groups(const qr_route_args &a, const share_scale &all, const float *logits) {
    enum { MOST = QR_MAX_EXPERT_GROUPS / WARP_LANES };
    const int32_t n_groups = a.router.n_groups, lane = static_cast<int32_t>(lane_index());
    if (n_groups <= 1) { return UINT64_MAX; }
    const int32_t size = a.routing.n_experts / n_groups;
    float rank[MOST] = {};
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int32_t group = i * WARP_LANES + lane;
        if (group < n_groups) { rank[i] = rank_of_group(a, all, logits, size, group); }
    }
    uint64_t groups = 0;
    for (int32_t k = 0; k < a.router.top_groups; k++) {
        ranked_expert best = {-INFINITY, INT32_MAX};
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            const int32_t group = i * WARP_LANES + lane;
            const ranked_expert here = {rank[i], group};
            const bool is_left = group < n_groups && (groups >> group & 1) == 0;
            if (is_left && (best.expert == INT32_MAX || here.is_before(best))) { best = here; }
        }
        groups |= UINT64_C(1) << first_of_warp(best).expert;
    }
    return groups;
}

/* The first expert after `last` in these groups, in every lane. */
static QR_DEVICE ranked_expert next_expert(const qr_route_args &a, const share_scale &all, const float *logits,
                                           uint64_t groups, int32_t group_size, const ranked_expert &last) {
    ranked_expert best = {-INFINITY, INT32_MAX};
    for (int32_t e = static_cast<int32_t>(lane_index()); e < a.routing.n_experts; e += WARP_LANES) {
        if ((groups >> (e / group_size) & 1) == 0) { continue; }
        const ranked_expert here = {rank_of_expert(a, all, logits, e), e};
        if (last.is_before(here) && (best.expert == INT32_MAX || here.is_before(best))) { best = here; }
    }
    return first_of_warp(best);
}

static QR_DEVICE float expert_scale(const float *scale, int32_t expert) { return scale != NULL ? scale[expert] : 1.0F; }

/* share [n_rows, top_k], by pairs. */
__global__ void route_choose_kernel(qr_route_args a, float *share) {
    await_previous();
    admit_next();
    const qr_routing &r = a.routing;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + warp_index();
    if (row >= r.n_rows) { return; }
    const float *logits = a.logits + row * r.n_experts;
    int32_t *chosen = r.expert + row * r.top_k;
    const bool needs_softmax = a.choice_bias != NULL && !a.router.is_sigmoid;
    const share_scale all = needs_softmax ? softmax_scale(logits, NULL, r.n_experts) : share_scale{};
    const uint64_t groups = best_groups(a, all, logits);
    const int32_t group_size = a.router.n_groups > 1 ? r.n_experts / a.router.n_groups : r.n_experts;
    ranked_expert last = {INFINITY, -1};
    for (int32_t k = 0; k < r.top_k; k++) {
        last = next_expert(a, all, logits, groups, group_size, last);
        if (lane_index() == 0) { chosen[k] = last.expert; }
    }
    warp_sync();
    const share_scale scale = share_scale_of(r, a.router, logits, chosen);
    for (int32_t k = static_cast<int32_t>(lane_index()); k < r.top_k; k += WARP_LANES) {
        share[row * r.top_k + k] = scale.of(logits[chosen[k]]) * expert_scale(a.scale, chosen[k]);
    }
}

/* How many lanes before this one have `value`, and how many lanes have it. */
static QR_DEVICE void count_lanes(bool value, int32_t *before, int32_t *all) {
    int32_t sum = value ? 1 : 0;
    for (unsigned distance = 1; distance < WARP_LANES; distance *= 2) {
        const int32_t left = warp_shuffle(sum, (lane_index() - distance) % WARP_LANES);
        sum += lane_index() >= distance ? left : 0;
    }
    *before = sum - (value ? 1 : 0);
    *all = warp_shuffle(sum, WARP_LANES - 1);
}

/* A block for an expert, and one more for the end of the last one's slots. */
__global__ void route_place_kernel(qr_routing r, const float *share) {
    enum { WARPS = PLACE_THREADS / WARP_LANES };
    await_previous();
    admit_next();
    int32_t *counts = shared_memory<int32_t>(); /* [WARPS] */
    const int32_t expert = static_cast<int32_t>(blockIdx.x), n_pairs = static_cast<int32_t>(r.n_rows) * r.top_k;
    int32_t smaller = 0;
    for (int32_t pair = static_cast<int32_t>(threadIdx.x); pair < n_pairs; pair += PLACE_THREADS) {
        smaller += r.expert[pair] < expert ? 1 : 0;
    }
    int32_t next = block_sum(smaller, counts);
    if (threadIdx.x == 0) { r.expert_start[expert] = next; }
    if (expert == r.n_experts) { return; }
    for (int32_t first = 0; first < n_pairs; first += PLACE_THREADS) {
        const int32_t pair = first + static_cast<int32_t>(threadIdx.x);
        const bool mine = pair < n_pairs && r.expert[pair] == expert;
        int32_t before, of_warp;
        count_lanes(mine, &before, &of_warp);
        if (lane_index() == 0) { counts[warp_index()] = of_warp; }
        __syncthreads();
        int32_t total = 0;
        for (unsigned w = 0; w < WARPS; w++) {
            before += w < warp_index() ? counts[w] : 0;
            total += counts[w];
        }
        __syncthreads();
        if (mine) {
            const int32_t slot = next + before;
            r.slot[pair] = slot;
            r.slot_row[slot] = pair / r.top_k;
            r.share[slot] = share[pair];
        }
        next += total;
    }
}

static size_t route_workspace(const qr_route_args &args) {
    return static_cast<size_t>(qr_routing_slots(&args.routing)) * sizeof(float);
}

static qrun_status run_route(qr_cuda_backend &cuda, const qr_route_args &args, void *workspace, qr_error *err) {
    float *share = static_cast<float *>(workspace);
    QR_RETURN_IF_ERROR(QR_LAUNCH_EARLY(cuda.device, err, route_choose_kernel,
                                       blocks_for(args.routing.n_rows, ROW_WARPS), ROW_THREADS, 0, args, share));
    const dim3 grid(static_cast<unsigned>(args.routing.n_experts) + 1);
    return QR_LAUNCH_EARLY(cuda.device, err, route_place_kernel, grid, PLACE_THREADS,
                           PLACE_THREADS / WARP_LANES * sizeof(int32_t), args.routing, share);
}

/* dlogits may be logits, so what is read of the chosen experts is read before anything is written. */
__global__ void route_backward_kernel(qr_route_backward_args a) {
    enum { MOST = QR_MAX_EXPERTS_PER_TOKEN / WARP_LANES }; /* chosen experts of a lane */
    const qr_routing &r = a.routing;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + warp_index();
    if (row >= r.n_rows) { return; }
    const float *logits = a.logits + row * r.n_experts;
    float *dlogits = a.dlogits + row * r.n_experts;
    const int32_t *chosen = r.expert + row * r.top_k, *slot = r.slot + row * r.top_k;
    const share_scale scale = share_scale_of(r, a.router, logits, chosen);
    float share[MOST] = {}, d[MOST] = {}, slope[MOST] = {}, mean = 0.0F;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int32_t k = i * WARP_LANES + static_cast<int32_t>(lane_index());
        if (k >= r.top_k) { continue; }
        share[i] = scale.of(logits[chosen[k]]);
        slope[i] = a.router.is_sigmoid ? sigmoid_of(-logits[chosen[k]]) : 1.0F;
        d[i] = a.dshare[slot[k]] * expert_scale(a.scale, chosen[k]);
        mean = fmaf(share[i], d[i], mean);
    }
    mean = warp_sum(mean);
    mean = a.router.is_sigmoid && !a.router.normalize ? 0.0F : mean / scale.factor;
    const bool is_over_all = !a.router.is_sigmoid && !a.router.normalize;
    for (int32_t e = static_cast<int32_t>(lane_index()); e < r.n_experts; e += WARP_LANES) {
        dlogits[e] = is_over_all ? -scale.of(logits[e]) * mean : 0.0F;
    }
    warp_sync();
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        const int32_t k = i * WARP_LANES + static_cast<int32_t>(lane_index());
        if (k < r.top_k) { dlogits[chosen[k]] = share[i] * slope[i] * (d[i] - mean); }
    }
}

/* A warp an expert, over its slots in order. Before dlogits, which may be logits. */
__global__ void route_scale_backward_kernel(qr_route_backward_args a) {
    const qr_routing &r = a.routing;
    const int64_t e = static_cast<int64_t>(blockIdx.x) * ROW_WARPS + warp_index();
    if (e >= r.n_experts) { return; }
    float sum = a.dscale[e];
    for (int32_t p = r.expert_start[e]; p < r.expert_start[e + 1]; p++) {
        const int64_t row = r.slot_row[p];
        const float *logits = a.logits + row * r.n_experts;
        const share_scale scale = share_scale_of(r, a.router, logits, r.expert + row * r.top_k);
        sum = fmaf(scale.of(logits[e]), a.dshare[p], sum);
    }
    if (lane_index() == 0) { a.dscale[e] = sum; }
}

static qrun_status run_route_backward(qr_cuda_backend &cuda, const qr_route_backward_args &args, void *,
                                      qr_error *err) {
    if (args.dscale != NULL) {
        QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, route_scale_backward_kernel,
                                     blocks_for(args.routing.n_experts, ROW_WARPS), ROW_THREADS, 0, args));
    }
    return QR_LAUNCH(cuda.device, err, route_backward_kernel, blocks_for(args.routing.n_rows, ROW_WARPS), ROW_THREADS,
                     0, args);
}

QR_CUDA_OP(route, route_workspace, run_route)
QR_CUDA_OP(route_backward, no_workspace<qr_route_backward_args>, run_route_backward)

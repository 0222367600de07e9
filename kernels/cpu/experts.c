/* route, expert_fetch, expert_sum, and what is backward of them. */
#include <assert.h>

#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/vector_ops.h"

enum { LIBM_COST = 32, CHOICE_COST = 4 };

/* --- The router --- */

/* What routing orders by: NaN is less than anything. */
QR_INLINE float rank_of(float logit) { return isnan(logit) ? -INFINITY : logit; }

QR_INLINE double sigmoid(float logit) { return 1.0 / (1.0 + exp(-(double)logit)); }

/* What a row's shares are of: e^(logit − highest), or the sigmoid of the logit, · factor / divisor. */
typedef struct share_scale {
    bool is_sigmoid;
    float highest;
    double factor, divisor;
} share_scale;

static share_scale sigmoid_scale(const qr_routing *r, const qr_router *router, const float *logits,
                                 const int32_t *chosen) {
    share_scale scale = {.is_sigmoid = true, .factor = (double)router->factor, .divisor = 1.0};
    if (!router->normalize) { return scale; }
    scale.divisor = (double)router->eps;
    for (int32_t k = 0; k < r->top_k; k++) { scale.divisor += sigmoid(logits[chosen[k]]); }
    return scale;
}

/* Of the logits of `among` (NULL: the first n). */
static share_scale softmax_scale(const float *logits, const int32_t *among, int32_t n) {
    share_scale scale = {.highest = -INFINITY, .factor = 1.0};
    for (int32_t k = 0; k < n; k++) { scale.highest = fmaxf(scale.highest, logits[among != NULL ? among[k] : k]); }
    for (int32_t k = 0; k < n; k++) {
        scale.divisor += exp((double)logits[among != NULL ? among[k] : k] - (double)scale.highest);
    }
    return scale;
}

static share_scale scale_of(const qr_routing *r, const qr_router *router, const float *logits, const int32_t *chosen) {
    if (router->is_sigmoid) { return sigmoid_scale(r, router, logits, chosen); }
    share_scale scale =
        router->normalize ? softmax_scale(logits, chosen, r->top_k) : softmax_scale(logits, NULL, r->n_experts);
    scale.factor = (double)router->factor;
    return scale;
}

QR_INLINE double share_of(const share_scale *scale, float logit) {
    const double part = scale->is_sigmoid ? sigmoid(logit) : exp((double)logit - (double)scale->highest);
    return part * scale->factor / scale->divisor;
}

static bool is_chosen_by_logit(const qr_route_args *a) { return !a->router.is_sigmoid && a->choice_bias == NULL; }

/* What expert e is chosen by; `all`: the shares of all experts. */
QR_INLINE float rank_of_expert(const qr_route_args *a, const share_scale *all, const float *logits, int32_t e) {
    if (is_chosen_by_logit(a)) { return rank_of(logits[e]); }
    const float score = a->router.chooses_by_logits ? logits[e] : (float)share_of(all, logits[e]);
    return rank_of(score + (a->choice_bias != NULL ? a->choice_bias[e] : 0.0F));
}

/* A bit for each group that experts may be chosen from. */
static uint64_t best_groups(const qr_route_args *a, const share_scale *all, const float *logits) {
    const int32_t n_groups = a->router.n_groups;
    if (n_groups <= 1) { return UINT64_MAX; }
    const int32_t size = a->routing.n_experts / n_groups;
    float ranks[QR_MAX_EXPERT_GROUPS];
    assert(n_groups <= QR_MAX_EXPERT_GROUPS);
    for (int32_t g = 0; g < n_groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            const float rank = rank_of_expert(a, all, logits, e);
            second = fmaxf(second, fminf(rank, best));
            best = fmaxf(best, rank);
        }
        ranks[g] = a->router.is_sigmoid ? best + second : best;
    }
    uint64_t groups = 0;
    for (int32_t g = 0; g < n_groups; g++) {
        int32_t n_before = 0;
        for (int32_t o = 0; o < n_groups; o++) { n_before += ranks[o] > ranks[g] || (ranks[o] == ranks[g] && o < g); }
        if (n_before < a->router.top_groups) { groups |= UINT64_C(1) << g; }
    }
    return groups;
}

/* Keeps the best so far in order; an expert goes after its equals. */
static void choose_experts(const qr_route_args *a, const float *logits, int32_t *chosen) {
    const int32_t top_k = a->routing.top_k, n_experts = a->routing.n_experts;
    const bool needs_softmax = a->choice_bias != NULL && !a->router.is_sigmoid;
    const share_scale all = needs_softmax ? softmax_scale(logits, NULL, n_experts)
                                          : (share_scale){.is_sigmoid = true, .factor = 1.0, .divisor = 1.0};
    const uint64_t groups = best_groups(a, &all, logits);
    const int32_t group_size = a->router.n_groups > 1 ? n_experts / a->router.n_groups : n_experts;
    float ranks[QR_MAX_EXPERTS_PER_TOKEN];
    int32_t n = 0;
    assert(top_k > 0 && top_k <= QR_MAX_EXPERTS_PER_TOKEN);
    for (int32_t e = 0; e < n_experts; e++) {
        if ((groups >> (e / group_size) & 1) == 0) { continue; }
        const float rank = rank_of_expert(a, &all, logits, e);
        if (n == top_k && !(rank > ranks[n - 1])) { continue; }
        int32_t k = n < top_k ? n++ : n - 1;
        for (; k > 0 && rank > ranks[k - 1]; k--) {
            chosen[k] = chosen[k - 1];
            ranks[k] = ranks[k - 1];
        }
        chosen[k] = e;
        ranks[k] = rank;
    }
}

/* What an expert's share is multiplied by. */
QR_INLINE double expert_scale(const float *scale, int32_t expert) {
    return scale != NULL ? (double)scale[expert] : 1.0;
}

static void choose_rows(const void *args, int64_t begin, int64_t end) {
    const qr_route_args *a = args;
    const qr_routing *r = &a->routing;
    for (int64_t i = begin; i < end; i++) { choose_experts(a, a->logits + i * r->n_experts, r->expert + i * r->top_k); }
}

/* Counts, then places: the pairs of an expert in the order of their rows. */
static void place_slots(const qr_routing *r) {
    const int64_t n_slots = qr_routing_slots(r);
    memset(r->expert_start, 0, (size_t)(r->n_experts + 1) * sizeof *r->expert_start);
    for (int64_t pair = 0; pair < n_slots; pair++) { r->expert_start[r->expert[pair] + 1]++; }
    for (int32_t e = 0; e < r->n_experts; e++) { r->expert_start[e + 1] += r->expert_start[e]; }
    for (int64_t pair = 0; pair < n_slots; pair++) {
        const int32_t slot = r->expert_start[r->expert[pair]]++;
        r->slot[pair] = slot;
        r->slot_row[slot] = (int32_t)(pair / r->top_k);
    }
    memmove(r->expert_start + 1, r->expert_start, (size_t)r->n_experts * sizeof *r->expert_start);
    r->expert_start[0] = 0;
}

static void put_shares(const void *args, int64_t begin, int64_t end) {
    const qr_route_args *a = args;
    const qr_routing *r = &a->routing;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = a->logits + i * r->n_experts;
        const int32_t *chosen = r->expert + i * r->top_k, *slot = r->slot + i * r->top_k;
        const share_scale scale = scale_of(r, &a->router, logits, chosen);
        for (int32_t k = 0; k < r->top_k; k++) {
            r->share[slot[k]] = (float)(share_of(&scale, logits[chosen[k]]) * expert_scale(a->scale, chosen[k]));
        }
    }
}

void QR_ISA(qr_cpu_route)(const qr_backend *backend, const qr_route_args *args) {
    const qr_routing *r = &args->routing;
    const bool is_of_few = args->router.is_sigmoid || args->router.normalize;
    qr_cpu_run_ranges(backend, r->n_rows, (is_chosen_by_logit(args) ? CHOICE_COST : LIBM_COST) * r->n_experts,
                      choose_rows, args);
    place_slots(r);
    qr_cpu_run_ranges(backend, r->n_rows, LIBM_COST * (is_of_few ? r->top_k : r->n_experts), put_shares, args);
}

/* dlogits may be logits, so what the chosen experts need is read first. */
static void route_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_route_backward_args *a = args;
    const qr_routing *r = &a->routing;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = a->logits + i * r->n_experts;
        float *dlogits = a->dlogits + i * r->n_experts;
        const int32_t *chosen = r->expert + i * r->top_k, *slot = r->slot + i * r->top_k;
        const share_scale scale = scale_of(r, &a->router, logits, chosen);
        const bool is_over_all = !a->router.is_sigmoid && !a->router.normalize;
        double share[QR_MAX_EXPERTS_PER_TOKEN], d[QR_MAX_EXPERTS_PER_TOKEN], slope[QR_MAX_EXPERTS_PER_TOKEN];
        double mean = 0.0;
        for (int32_t k = 0; k < r->top_k; k++) {
            slope[k] = a->router.is_sigmoid ? sigmoid(-logits[chosen[k]]) : 1.0;
            share[k] = share_of(&scale, logits[chosen[k]]);
            d[k] = (double)a->dshare[slot[k]] * expert_scale(a->scale, chosen[k]);
            mean += share[k] * d[k];
        }
        mean = a->router.is_sigmoid && !a->router.normalize ? 0.0 : mean / scale.factor;
        for (int32_t e = 0; e < r->n_experts; e++) {
            dlogits[e] = is_over_all ? (float)(-share_of(&scale, logits[e]) * mean) : 0.0F;
        }
        for (int32_t k = 0; k < r->top_k; k++) { dlogits[chosen[k]] = (float)(share[k] * slope[k] * (d[k] - mean)); }
    }
}

/* Of each expert by itself, slots ascending. */
static void add_scale_gradients(const void *args, int64_t begin, int64_t end) {
    const qr_route_backward_args *a = args;
    const qr_routing *r = &a->routing;
    for (int64_t e = begin; e < end; e++) {
        for (int64_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            const float *logits = a->logits + (int64_t)r->slot_row[p] * r->n_experts;
            const int32_t *chosen = r->expert + (int64_t)r->slot_row[p] * r->top_k;
            const share_scale scale = scale_of(r, &a->router, logits, chosen);
            a->dscale[e] += (float)(share_of(&scale, logits[e]) * (double)a->dshare[p]);
        }
    }
}

void QR_ISA(qr_cpu_route_backward)(const qr_backend *backend, const qr_route_backward_args *args) {
    const qr_routing *r = &args->routing;
    const int64_t cost = LIBM_COST * r->n_experts;
    if (args->dscale != NULL) { qr_cpu_run_ranges(backend, r->n_experts, cost * r->top_k, add_scale_gradients, args); }
    qr_cpu_run_ranges(backend, r->n_rows, cost, route_backward_rows, args);
}

/* --- From host memory --- */

static void expert_fetch_range(const void *args, int64_t begin, int64_t end) {
    const qr_expert_fetch_args *a = args;
    for (int64_t e = begin; e < end; e++) {
        const int64_t at = e * a->n_bytes;
        if (a->routing.expert_start[e] == a->routing.expert_start[e + 1]) { continue; }
        memcpy((char *)a->device + at, (const char *)a->host + at, (size_t)a->n_bytes);
    }
}

QR_CPU_RANGE_OP(expert_fetch, args->routing.n_experts, args->n_bytes / (int64_t)sizeof(float), expert_fetch_range)

/* --- Sums over a token's experts --- */

static void expert_sum_rows(const void *args, int64_t begin, int64_t end) {
    const qr_expert_sum_args *a = args;
    const qr_routing *r = &a->routing;
    for (int64_t i = begin; i < end; i++) {
        const int32_t *slot = r->slot + i * r->top_k;
        float *dst = a->dst + i * a->dst_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            qr_vec sum = qr_vec_zero();
            for (int32_t k = 0; k < r->top_k; k++) {
                const qr_vec x = qr_vec_load_n(a->src + slot[k] * a->dim + j, n);
                sum = a->by_share ? qr_vec_fma(x, qr_vec_set1(r->share[slot[k]]), sum) : qr_vec_add(sum, x);
            }
            qr_vec_store_n(dst + j, a->accumulate ? qr_vec_add(qr_vec_load_n(dst + j, n), sum) : sum, n);
        }
    }
}

QR_CPU_RANGE_OP(expert_sum, args->routing.n_rows, args->routing.top_k * args->dim, expert_sum_rows)

/* The experts' slots follow each other, so the expert of a range's first slot is found once. */
QR_INLINE int32_t expert_of_slot(const qr_routing *r, int64_t slot) {
    int32_t e = 0;
    while (slot >= r->expert_start[e + 1]) { e++; }
    return e;
}

static void expert_bias_slots(const void *args, int64_t begin, int64_t end) {
    const qr_expert_bias_args *a = args;
    int32_t e = expert_of_slot(&a->routing, begin);
    for (int64_t p = begin; p < end; p++) {
        while (p >= a->routing.expert_start[e + 1]) { e++; }
        float *y = a->y + p * a->y_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec bias = qr_vec_load_n(a->bias + e * a->dim + j, a->dim - j);
            qr_vec_store_n(y + j, qr_vec_add(qr_vec_load_n(y + j, a->dim - j), bias), a->dim - j);
        }
    }
}

QR_CPU_RANGE_OP(expert_bias, qr_routing_slots(&args->routing), args->dim, expert_bias_slots)

static void expert_bias_backward_slots(const void *args, int64_t begin, int64_t end) {
    const qr_expert_bias_backward_args *a = args;
    int32_t e = expert_of_slot(&a->routing, begin);
    for (int64_t p = begin; p < end; p++) {
        while (p >= a->routing.expert_start[e + 1]) { e++; }
        const float *dy = a->dy + a->routing.slot_row[p] * a->dim;
        qr_vec_f64 sums = {.lanes = {0.0}};
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec bias = qr_vec_load_n(a->bias + e * a->dim + j, a->dim - j);
            qr_vec_f64_add(&sums, qr_vec_mul(qr_vec_load_n(dy + j, a->dim - j), bias));
        }
        a->dshare[p] = (float)((double)a->dshare[p] + qr_vec_f64_total(&sums));
    }
}

QR_CPU_RANGE_OP(expert_bias_backward, qr_routing_slots(&args->routing), 2 * args->dim, expert_bias_backward_slots)

static void share_backward_slots(const void *args, int64_t begin, int64_t end) {
    const qr_expert_share_backward_args *a = args;
    for (int64_t p = begin; p < end; p++) {
        const qr_vec share = qr_vec_set1(a->routing.share[p]);
        qr_vec_f64 sums = {.lanes = {0.0}};
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            const qr_vec dh = qr_vec_load_n(a->dh + p * a->dim + j, n);
            qr_vec_f64_add(&sums, qr_vec_mul(dh, qr_vec_load_act_n(a->h, a->h_dtype, p * a->dim + j, n)));
            qr_vec_store_n(a->dh + p * a->dim + j, qr_vec_mul(dh, share), n);
        }
        a->dshare[p] = (float)qr_vec_f64_total(&sums);
    }
}

QR_CPU_RANGE_OP(expert_share_backward, qr_routing_slots(&args->routing), 2 * args->dim, share_backward_slots)

/* --- An expert that every token goes to --- */

/* 1 − share of a large g is that of −g: no digits are lost. */
QR_INLINE double share_of_gate(float g) { return 1.0 / (1.0 + exp(-(double)g)); }

static void share_rows(const void *args, int64_t begin, int64_t end) {
    const qr_share_rows_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const qr_vec share = qr_vec_set1((float)share_of_gate(a->g[i]));
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            const qr_vec x = qr_vec_load_act_n(a->x, a->x_dtype, i * a->dim + j, n);
            qr_vec_store_act_n(a->x, a->x_dtype, i * a->dim + j, qr_vec_mul(x, share), n);
        }
    }
}

QR_CPU_RANGE_OP(share_rows, args->n_rows, LIBM_COST + args->dim, share_rows)

static void share_rows_backward(const void *args, int64_t begin, int64_t end) {
    const qr_share_rows_backward_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const qr_vec share = qr_vec_set1((float)share_of_gate(a->g[i]));
        const double rest = share_of_gate(-a->g[i]);
        qr_vec_f64 sums = {.lanes = {0.0}};
        for (int64_t j = i * a->dim; j < (i + 1) * a->dim; j += QR_VEC) {
            const int64_t n = (i + 1) * a->dim - j;
            const qr_vec dx = qr_vec_load_n(a->dx + j, n);
            qr_vec_f64_add(&sums, qr_vec_mul(dx, qr_vec_load_act_n(a->x, a->x_dtype, j, n)));
            qr_vec_store_n(a->dx + j, qr_vec_mul(dx, share), n);
        }
        a->dg[i] = (float)(rest * qr_vec_f64_total(&sums));
    }
}

QR_CPU_RANGE_OP(share_rows_backward, args->n_rows, LIBM_COST + 2 * args->dim, share_rows_backward)

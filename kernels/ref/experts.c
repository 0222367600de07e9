/* The ops of ops_experts.h. */
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

/* --- The router --- */

/* What routing orders by: NaN is less than anything. */
static double rank_of(float logit) { return isnan(logit) ? -INFINITY : (double)logit; }

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

static bool is_chosen(const int32_t *chosen, int32_t n, int32_t expert) {
    for (int32_t k = 0; k < n; k++) {
        if (chosen[k] == expert) { return true; }
    }
    return false;
}

/* Softmax of the logits of `among` (NULL: the first n), one of which is `expert`. */
static double softmax(const float *logits, const int32_t *among, int32_t n, int32_t expert) {
    double largest = -INFINITY, sum = 0.0;
    for (int32_t k = 0; k < n; k++) { largest = fmax(largest, (double)logits[among != NULL ? among[k] : k]); }
    for (int32_t k = 0; k < n; k++) { sum += exp((double)logits[among != NULL ? among[k] : k] - largest); }
    return exp((double)logits[expert] - largest) / sum;
}

/* What expert e is chosen by. */
static double rank_of_expert(const qr_route_args *args, const float *logits, int32_t e) {
    if (!args->router.is_sigmoid && args->choice_bias == NULL) { return rank_of(logits[e]); }
    const double share = args->router.chooses_by_logits ? (double)logits[e]
                         : args->router.is_sigmoid      ? sigmoid((double)logits[e])
                                                        : softmax(logits, NULL, args->routing.n_experts, e);
    return rank_of((float)share + (args->choice_bias != NULL ? args->choice_bias[e] : 0.0F));
}

/* What a group of experts is chosen by. */
static double rank_of_group(const qr_route_args *args, const float *logits, int32_t group) {
    const int32_t size = args->routing.n_experts / args->router.n_groups;
    double best = -INFINITY, second = -INFINITY;
    for (int32_t e = group * size; e < (group + 1) * size; e++) {
        const double rank = rank_of_expert(args, logits, e);
        second = fmax(second, fmin(rank, best));
        best = fmax(best, rank);
    }
    return args->router.is_sigmoid ? (double)((float)best + (float)second) : best;
}

/* Whether expert e may be chosen: fewer groups than may be are before its own. */
static bool is_in_best_group(const qr_route_args *args, const float *logits, int32_t e) {
    const int32_t n_groups = args->router.n_groups;
    if (n_groups <= 1) { return true; }
    const int32_t own = e / (args->routing.n_experts / n_groups);
    const double rank = rank_of_group(args, logits, own);
    int32_t n_before = 0;
    for (int32_t g = 0; g < n_groups; g++) {
        const double other = rank_of_group(args, logits, g);
        n_before += other > rank || (other == rank && g < own);
    }
    return n_before < args->router.top_groups;
}

static void choose_experts(const qr_route_args *args, const float *logits, int32_t *chosen) {
    for (int32_t k = 0; k < args->routing.top_k; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < args->routing.n_experts; e++) {
            if (is_chosen(chosen, k, e) || !is_in_best_group(args, logits, e)) { continue; }
            if (best < 0 || rank_of_expert(args, logits, e) > rank_of_expert(args, logits, best)) { best = e; }
        }
        chosen[k] = best;
    }
}

/* What the sigmoids of those chosen are divided by. */
static double sigmoid_divisor(const qr_routing *r, const qr_router *router, const float *logits,
                              const int32_t *chosen) {
    double sum = (double)router->eps;
    for (int32_t k = 0; k < r->top_k; k++) { sum += sigmoid((double)logits[chosen[k]]); }
    return router->normalize ? sum : 1.0;
}

static double share_of(const qr_routing *r, const qr_router *router, const float *logits, const int32_t *chosen,
                       int32_t expert) {
    if (router->is_sigmoid) {
        return (double)router->factor * sigmoid((double)logits[expert]) / sigmoid_divisor(r, router, logits, chosen);
    }
    return (double)router->factor * (router->normalize ? softmax(logits, chosen, r->top_k, expert)
                                                       : softmax(logits, NULL, r->n_experts, expert));
}

void qr_ref_route(const qr_route_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int64_t i = 0; i < r->n_rows; i++) {
        choose_experts(args, args->logits + i * r->n_experts, r->expert + i * r->top_k);
    }
    int32_t n_slots = 0;
    for (int32_t e = 0; e < r->n_experts; e++) {
        r->expert_start[e] = n_slots;
        for (int64_t pair = 0; pair < qr_routing_slots(r); pair++) {
            if (r->expert[pair] != e) { continue; }
            const int64_t i = pair / r->top_k;
            const float *logits = args->logits + i * r->n_experts;
            r->slot[pair] = n_slots;
            r->slot_row[n_slots] = (int32_t)i;
            const double scale = args->scale != NULL ? (double)args->scale[e] : 1.0;
            r->share[n_slots] = (float)(share_of(r, &args->router, logits, r->expert + i * r->top_k, e) * scale);
            n_slots++;
        }
    }
    r->expert_start[r->n_experts] = n_slots;
}

/* The gradient of the softmax, over all experts or those chosen, or of the sigmoids of those chosen. */
size_t qr_ref_route_backward_workspace(const qr_route_backward_args *args) {
    return 2 * (size_t)args->routing.n_experts * sizeof(double);
}

void qr_ref_route_backward(const qr_route_backward_args *args, void *workspace) {
    const qr_routing *r = &args->routing;
    double *p = workspace, *d = p + r->n_experts; /* [n_experts] */
    for (int64_t i = 0; i < r->n_rows; i++) {
        const float *logits = args->logits + i * r->n_experts;
        const int32_t *chosen = r->expert + i * r->top_k, *slot = r->slot + i * r->top_k;
        double mean = 0.0;
        for (int32_t e = 0; e < r->n_experts; e++) {
            const bool is_over_all = !args->router.is_sigmoid && !args->router.normalize;
            const bool counts = is_over_all || is_chosen(chosen, r->top_k, e);
            p[e] = counts ? share_of(r, &args->router, logits, chosen, e) : 0.0;
            d[e] = 0.0;
        }
        for (int32_t k = 0; k < r->top_k; k++) {
            const double scale = args->scale != NULL ? (double)args->scale[chosen[k]] : 1.0;
            const double dshare = (double)args->dshare[slot[k]];
            if (args->dscale != NULL) { args->dscale[chosen[k]] += (float)(p[chosen[k]] * dshare); }
            d[chosen[k]] = dshare * scale;
        }
        for (int32_t e = 0; e < r->n_experts; e++) { mean += p[e] * d[e]; }
        mean = args->router.is_sigmoid && !args->router.normalize ? 0.0 : mean / (double)args->router.factor;
        for (int32_t e = 0; e < r->n_experts; e++) {
            const double slope = args->router.is_sigmoid ? sigmoid(-(double)logits[e]) : 1.0;
            args->dlogits[i * r->n_experts + e] = (float)(p[e] * slope * (d[e] - mean));
        }
    }
}

/* --- The experts --- */

size_t qr_ref_expert_linear_workspace(const qr_expert_linear_args *args) {
    const qr_linear_args row = {.weight = args->weights, .n_rows = 1};
    return qr_ref_linear_workspace(&row);
}

size_t qr_ref_expert_linear_in_int16_workspace(const qr_expert_linear_args *args) {
    const qr_linear_args row = {.weight = args->weights, .n_rows = 1};
    return qr_ref_linear_in_int16_workspace(&row);
}

static void by_slots(const qr_expert_linear_args *args, void (*product)(const qr_linear_args *args, void *workspace),
                     void *workspace) {
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int32_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            const int64_t row = args->gathers ? r->slot_row[p] : p;
            const size_t offset = (size_t)(row * args->x_stride) * qr_dtype_bytes(args->x_dtype);
            const qr_linear_args linear = {.weight = &args->weights[e],
                                           .x = (const unsigned char *)args->x + offset,
                                           .x_dtype = args->x_dtype,
                                           .y = args->y + p * args->y_stride,
                                           .n_rows = 1,
                                           .x_stride = args->x_stride,
                                           .y_stride = args->y_stride};
            product(&linear, workspace);
        }
    }
}

void qr_ref_expert_linear(const qr_expert_linear_args *args, void *workspace) {
    by_slots(args, qr_ref_linear, workspace);
}

void qr_ref_expert_linear_in_int16(const qr_expert_linear_args *args, void *workspace) {
    by_slots(args, qr_ref_linear_in_int16, workspace);
}

size_t qr_ref_expert_linear_backward_workspace(const qr_expert_linear_backward_args *args) {
    const qr_linear_backward_args row = {.weight = args->weights, .n_rows = 1};
    return qr_ref_linear_backward_workspace(&row);
}

void qr_ref_expert_linear_backward(const qr_expert_linear_backward_args *args, void *workspace) {
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int32_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            const int64_t row = args->gathers ? r->slot_row[p] : p;
            const size_t offset = (size_t)(row * args->dy_stride) * qr_dtype_bytes(args->dy_dtype);
            const qr_linear_backward_args linear = {.weight = &args->weights[e],
                                                    .dy = (const unsigned char *)args->dy + offset,
                                                    .dy_dtype = args->dy_dtype,
                                                    .dx = args->dx + p * args->dx_stride,
                                                    .n_rows = 1,
                                                    .dy_stride = args->dy_stride,
                                                    .dx_stride = args->dx_stride,
                                                    .accumulate = args->accumulate};
            qr_ref_linear_backward(&linear, workspace);
        }
    }
}

void qr_ref_expert_fetch(const qr_expert_fetch_args *args, void *workspace) {
    (void)workspace;
    for (int64_t e = 0; e < args->routing.n_experts; e++) {
        if (args->routing.expert_start[e] == args->routing.expert_start[e + 1]) { continue; }
        const int64_t at = e * args->n_bytes;
        memcpy((char *)args->device + at, (const char *)args->host + at, (size_t)args->n_bytes);
    }
}

void qr_ref_expert_sum(const qr_expert_sum_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int64_t i = 0; i < r->n_rows; i++) {
        for (int64_t j = 0; j < args->dim; j++) {
            double sum = 0.0;
            for (int32_t k = 0; k < r->top_k; k++) {
                const int64_t p = r->slot[i * r->top_k + k];
                sum += (args->by_share ? (double)r->share[p] : 1.0) * (double)args->src[p * args->dim + j];
            }
            float *dst = &args->dst[i * args->dst_stride + j];
            *dst = (float)(sum + (args->accumulate ? (double)*dst : 0.0));
        }
    }
}

void qr_ref_expert_bias(const qr_expert_bias_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int64_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            for (int64_t j = 0; j < args->dim; j++) {
                args->y[p * args->y_stride + j] += args->bias[e * args->dim + j];
            }
        }
    }
}

void qr_ref_expert_bias_backward(const qr_expert_bias_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int64_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
            const float *bias = args->bias + e * args->dim, *dy = args->dy + r->slot_row[p] * args->dim;
            double sum = (double)args->dshare[p];
            for (int64_t j = 0; j < args->dim; j++) { sum += (double)dy[j] * (double)bias[j]; }
            args->dshare[p] = (float)sum;
        }
    }
}

void qr_ref_expert_share_backward(const qr_expert_share_backward_args *args, void *workspace) {
    (void)workspace;
    const qr_routing *r = &args->routing;
    for (int64_t p = 0; p < qr_routing_slots(r); p++) {
        double sum = 0.0;
        for (int64_t j = p * args->dim; j < (p + 1) * args->dim; j++) {
            sum += (double)args->dh[j] * (double)qr_ref_load(args->h, args->h_dtype, j);
            args->dh[j] *= r->share[p];
        }
        args->dshare[p] = (float)sum;
    }
}

/* Sums of an expert's slots; c −1: of its bias, as if x were 1. */
static double weight_sum(const qr_expert_weight_backward_args *args, int32_t e, int64_t o, int64_t c) {
    const qr_routing *r = &args->routing;
    double sum = 0.0;
    for (int64_t p = r->expert_start[e]; p < r->expert_start[e + 1]; p++) {
        const int64_t dy_row = args->shares ? r->slot_row[p] : p, x_row = args->gathers ? r->slot_row[p] : p;
        const double share = args->shares ? (double)r->share[p] : 1.0;
        const double x = c < 0 ? 1.0 : (double)qr_ref_load(args->x, args->x_dtype, x_row * args->x_stride + c);
        sum += share * (double)args->dy[dy_row * args->dy_stride + o] * x;
    }
    return sum;
}

static void add_to(float *dst, double value) { *dst = (float)((double)*dst + value); }

void qr_ref_expert_weight_backward(const qr_expert_weight_backward_args *args, void *workspace) {
    (void)workspace;
    for (int32_t e = 0; e < args->routing.n_experts; e++) {
        float *dw = args->dw + e * args->dw_stride;
        for (int64_t o = 0; o < args->out; o++) {
            for (int64_t c = 0; c < args->in; c++) { add_to(&dw[o * args->in + c], weight_sum(args, e, o, c)); }
            if (args->dbias != NULL) { add_to(&args->dbias[e * args->out + o], weight_sum(args, e, o, -1)); }
        }
    }
}

/* --- An expert that every token goes to --- */

void qr_ref_share_rows(const qr_share_rows_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const double share = sigmoid((double)args->g[i]);
        for (int64_t j = i * args->dim; j < (i + 1) * args->dim; j++) {
            qr_ref_store(args->x, args->x_dtype, j, share * (double)qr_ref_load(args->x, args->x_dtype, j));
        }
    }
}

void qr_ref_share_rows_backward(const qr_share_rows_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const double share = sigmoid((double)args->g[i]);
        double sum = 0.0;
        for (int64_t j = i * args->dim; j < (i + 1) * args->dim; j++) {
            sum += (double)args->dx[j] * (double)qr_ref_load(args->x, args->x_dtype, j);
            args->dx[j] = (float)(share * (double)args->dx[j]);
        }
        args->dg[i] = (float)((1.0 - share) * sum);
    }
}

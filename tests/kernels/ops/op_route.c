/* route and its gradient. As in op_experts.c, what the op has in slots is read in the order of each token's choices. */
#include "op_routing.h"

#include "check.h"

#include "base/alloc.h"

/* What experts' shares are multiplied by, at most 2, and what their scores rise by in a choice; some are equal. */
static float expert_scales[MOST_EXPERTS], choice_biases[MOST_EXPERTS];

static void fill_scales(void) {
    for (int e = 0; e < MOST_EXPERTS; e++) {
        expert_scales[e] = 0.5F + (float)(e * 7 % 11) / 8.0F;
        choice_biases[e] = (float)(e * 5 % 9) / 7.0F - 0.6F;
    }
}

/* How a router chooses and shares. */
typedef struct router_kind {
    const char *name;
    qr_router rule;
    const float *choice_bias;
} router_kind;

static const router_kind softmax = {"softmax", {.factor = 1.0F}, NULL};
static const router_kind softmax_of_chosen = {"softmax, normalised", {.normalize = true, .factor = 1.0F}, NULL};
static const router_kind others[] = {
    {"softmax, times 2.5", {.factor = 2.5F}, NULL},
    {"softmax with a bias", {.factor = 1.0F}, choice_biases},
    {"softmax with a bias, normalised", {.normalize = true, .factor = 1.0F}, choice_biases},
    {"softmax with a bias, normalised, times 0.3", {.normalize = true, .factor = 0.3F}, choice_biases},
    {"sigmoid", {.is_sigmoid = true, .factor = 1.0F}, NULL},
    {"sigmoid with a bias, normalised", {true, true, 1e-6F, 1.0F, 0, 0, false}, choice_biases},
    {"sigmoid, normalised, times 2.5", {true, true, 1e-2F, 2.5F, 0, 0, false}, NULL},
    {"sigmoid with a bias, times 0.3", {.is_sigmoid = true, .factor = 0.3F}, choice_biases},
    {"sigmoid by logits with a bias", {true, true, 1e-6F, 1.0F, 0, 0, true}, choice_biases},
    {"sigmoid by logits", {.is_sigmoid = true, .factor = 1.5F, .chooses_by_logits = true}, NULL},
};
/* In groups: of 8 experts, 12 and 70. */
static const router_kind groups[][3] = {
    {{"softmax, groups", {.factor = 1.0F, .n_groups = 4, .top_groups = 2}, NULL},
     {"softmax, groups, times 16", {.factor = 16.0F, .n_groups = 6, .top_groups = 3}, NULL},
     {"softmax, groups", {.factor = 1.0F, .n_groups = 35, .top_groups = 21}, NULL}},
    {{"sigmoid with a bias, groups", {true, true, 1e-20F, 2.5F, 2, 1, false}, choice_biases},
     {"sigmoid with a bias, groups", {true, true, 1e-20F, 1.0F, 6, 2, false}, choice_biases},
     {"sigmoid, groups", {true, false, 0.0F, 1.0F, 35, 34, false}, NULL}},
};

static double factor_of(const router_kind *router) { return (double)router->rule.factor; }

/* --- route ------------------------------------------------------------------------------------------------------- */

typedef struct route_case {
    int32_t n_experts, top_k;
    const router_kind *router;
    const float *logits; /* [n_rows, n_experts] */
    const float *scale;  /* [n_experts] or NULL */
} route_case;

/* The slots are those of the choices: sorted by expert, then by row. */
static void check_slots(const op_run *run, const route_case *c, const host_routing *r, int64_t n_rows) {
    choices chosen = {.n_rows = n_rows, .n_experts = c->n_experts, .top_k = c->top_k};
    bool in_range = true;
    for (int64_t pair = 0; pair < r->n_slots; pair++) {
        chosen.expert[pair] = r->expert[pair];
        in_range &= r->expert[pair] >= 0 && r->expert[pair] < c->n_experts;
    }
    CHECK_MSG(in_range, "%s: %s: chose an expert that is not there", run->backend->isa, run->label);
    if (!in_range) { return; }
    const host_routing expected = routing_of(&chosen, 0, n_rows);
    const size_t n_bytes = (size_t)r->n_slots * sizeof(int32_t);
    CHECK_MSG(memcmp(expected.slot, r->slot, n_bytes) == 0 && memcmp(expected.slot_row, r->slot_row, n_bytes) == 0 &&
                  memcmp(expected.expert_start, r->expert_start, (size_t)(c->n_experts + 1) * sizeof(int32_t)) == 0,
              "%s: %s: slots are not sorted by expert", run->backend->isa, run->label);
}

/* Row: the experts, then their shares. */
static void exec_route(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    (void)dtype;
    const route_case *c = data;
    host_routing r = {.n_slots = n_rows * c->top_k};
    const size_t n_bytes = (size_t)r.n_slots * sizeof(int32_t);
    const size_t start_bytes = (size_t)(c->n_experts + 1) * sizeof(int32_t);
    const qr_route_args args = {
        .logits = op_input(run, c->logits + first * c->n_experts, (size_t)(n_rows * c->n_experts) * F32_BYTES),
        .scale = c->scale != NULL ? op_input(run, c->scale, (size_t)c->n_experts * F32_BYTES) : NULL,
        .routing = {.expert = op_output(run, NULL, 1, n_bytes, n_bytes),
                    .slot = op_output(run, NULL, 1, n_bytes, n_bytes),
                    .slot_row = op_output(run, NULL, 1, n_bytes, n_bytes),
                    .share = op_output(run, NULL, 1, n_bytes, n_bytes),
                    .expert_start = op_output(run, NULL, 1, start_bytes, start_bytes),
                    .n_rows = n_rows,
                    .n_experts = c->n_experts,
                    .top_k = c->top_k},
        .router = c->router->rule,
        .choice_bias = c->router->choice_bias != NULL
                           ? op_input(run, c->router->choice_bias, (size_t)c->n_experts * F32_BYTES)
                           : NULL,
    };
    op_call(run, QR_OP_route, &args);
    op_read(run, args.routing.expert, r.expert);
    op_read(run, args.routing.slot, r.slot);
    op_read(run, args.routing.slot_row, r.slot_row);
    op_read(run, args.routing.share, r.share);
    op_read(run, args.routing.expert_start, r.expert_start);
    check_slots(run, c, &r, n_rows);
    for (int64_t pair = 0; pair < r.n_slots; pair++) {
        float *row = (float *)out + pair / c->top_k * 2 * c->top_k;
        row[pair % c->top_k] = (float)(r.expert[pair] + 1);
        row[c->top_k + pair % c->top_k] = r.share[r.slot[pair]];
    }
}

/* Exponentials and their sum are F64 or exact to a unit in the last place of F32, in sums of n_experts. */
static void check_route(int64_t n_rows, int32_t n_experts, int32_t top_k, const router_kind *router, bool odd) {
    float *logits = op_normals(n_rows * n_experts, (uint64_t)(n_rows + n_experts), 2.0);
    for (int64_t i = 0; odd && i < n_rows * n_experts; i++) {
        logits[i] = rintf(logits[i]); /* many equals */
        if (op_below(7, i, 40) == 0) { logits[i] = -INFINITY; }
        if (op_below(8, i, 60) == 0) { logits[i] = NAN; }
    }
    route_case data = {n_experts, top_k, router, logits, NULL};
    double *bound = op_doubles(n_rows * 2 * top_k);
    for (int64_t i = 0; i < n_rows; i++) {
        for (int32_t k = 0; k < top_k; k++) {
            bound[(2 * i + 1) * top_k + k] = factor_of(router) * (double)(n_experts + 8) * OP_U; /* of 1 */
        }
    }
    op_case c = {.n_rows = n_rows, .row = 2 * top_k, .exec = exec_route, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "route rows %lld, %d of %d, %s%s", (long long)n_rows, (int)top_k, (int)n_experts,
             router->name, odd ? ", equals and NaN" : "");
    op_check_case(&c, QR_DTYPE_F32);
    data.scale = expert_scales;
    for (int64_t i = 0; i < n_rows * 2 * top_k; i++) { bound[i] *= 2.0; }
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(logits);
    qr_free(bound);
}

void test_op_route(void) {
    fill_scales();
    check_route(1, 1, 1, &softmax_of_chosen, false);
    check_route(1, 7, 3, &softmax, false);
    check_route(65, 7, 3, &softmax_of_chosen, false);
    check_route(150, 13, 4, &softmax, false);
    check_route(9, 70, 40, &softmax, false);
    check_route(41, 13, 4, &softmax_of_chosen, true);
    check_route(40, 7, 3, &softmax, true);
    for (size_t i = 0; i < QR_COUNT_OF(others); i++) {
        check_route(1, 1, 1, &others[i], false);
        check_route(65, 7, 3, &others[i], false);
        check_route(150, 13, 4, &others[i], false);
        check_route(9, 70, 40, &others[i], false);
        check_route(41, 13, 4, &others[i], true);
        check_route(40, 70, 3, &others[i], true);
    }
    for (size_t i = 0; i < QR_COUNT_OF(groups); i++) {
        check_route(65, 8, 3, &groups[i][0], false);
        check_route(150, 12, 4, &groups[i][1], false);
        check_route(9, 70, 40, &groups[i][2], false);
    }
    check_route(40, 8, 3, &groups[0][0], true); /* equal sums of two depend on their last bits */
    check_route(40, 12, 4, &groups[0][1], true);
}

/* --- route_backward ---------------------------------------------------------------------------------------------- */

typedef struct scale_case {
    const choices *choices;
    const router_kind *router;
    const float *logits, *dshare; /* as of gradient_case */
    const float *dscale;          /* [n_experts]: what is added to */
} scale_case;

static void exec_scale_gradient(op_run *run, const void *data, int64_t first, int64_t one, qr_dtype dtype, void *out) {
    (void)dtype, (void)one;
    const scale_case *c = data;
    const int64_t n_rows = c->choices->n_rows;
    const host_routing r = routing_of(c->choices, first, n_rows);
    const size_t row_bytes = (size_t)c->choices->n_experts * F32_BYTES;
    float dshare[MOST_SLOTS];
    by_slots(&r, c->dshare, F32_BYTES, dshare);
    float *logits = op_output(run, c->logits, n_rows, row_bytes, row_bytes);
    const qr_route_backward_args args = {
        .logits = logits,
        .scale = op_input(run, expert_scales, row_bytes),
        .routing = put_routing(run, c->choices, &r),
        .dshare = op_input(run, dshare, (size_t)r.n_slots * F32_BYTES),
        .dlogits = logits,
        .dscale = op_output(run, c->dscale, 1, row_bytes, row_bytes),
        .router = c->router->rule,
    };
    op_call(run, QR_OP_route_backward, &args);
    op_read(run, args.dscale, out);
    op_run_end(run);
}

/* A share without its scale. */
static double share_of(const router_kind *router, const choices *chosen, const float *logits, int64_t pair) {
    const int32_t *experts = chosen->expert + pair / chosen->top_k * chosen->top_k;
    const double logit = (double)logits[chosen->expert[pair]];
    double sum = 0.0;
    if (!router->rule.is_sigmoid) {
        for (int32_t k = 0; k < (router->rule.normalize ? chosen->top_k : chosen->n_experts); k++) {
            sum += exp((double)logits[router->rule.normalize ? experts[k] : k] - logit);
        }
        return factor_of(router) / sum;
    }
    for (int32_t k = 0; k < chosen->top_k; k++) { sum += 1.0 / (1.0 + exp(-(double)logits[experts[k]])); }
    return factor_of(router) / (1.0 + exp(-logit)) / (router->rule.normalize ? sum + (double)router->rule.eps : 1.0);
}

/* A share is at most 1, times factor; its own error is that of a softmax. */
static void check_scale_gradient(int64_t n_rows, int32_t n_experts, int32_t top_k, const router_kind *router) {
    const uint64_t stream = (uint64_t)(n_rows * 31 + n_experts);
    const choices chosen = choose(n_rows, n_experts, top_k, stream);
    float *logits = op_normals(n_rows * n_experts, stream + 1, 2.0);
    float *dshare = op_normals(n_rows * top_k, stream + 2, 1.0), *dscale = op_normals(n_experts, stream + 3, 1.0);
    double *bound = op_doubles(n_experts);
    for (int32_t e = 0; e < n_experts; e++) { bound[e] = OP_U * (double)n_rows * fabs((double)dscale[e]); }
    for (int64_t pair = 0; pair < n_rows * top_k; pair++) {
        const double share = share_of(router, &chosen, logits + pair / top_k * n_experts, pair);
        bound[chosen.expert[pair]] += OP_U * (double)(n_rows + n_experts + 16) * fabs((double)dshare[pair]) * share;
    }
    const scale_case data = {&chosen, router, logits, dshare, dscale};
    op_case c = {.n_rows = 1, .row = n_experts, .exec = exec_scale_gradient, .data = &data, .bound = bound};
    c.whole = true;
    snprintf(c.label, sizeof c.label, "route_backward's dscale rows %lld, %d of %d, %s", (long long)n_rows, (int)top_k,
             (int)n_experts, router->name);
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(logits);
    qr_free(dshare);
    qr_free(dscale);
    qr_free(bound);
}

typedef struct gradient_case {
    const choices *choices;
    const router_kind *router;
    bool in_place;
    const float *logits; /* [n_rows, n_experts] */
    const float *dshare; /* [pairs] */
    const float *scale;  /* [n_experts] or NULL */
} gradient_case;

static void exec_route_backward(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype,
                                void *out) {
    (void)dtype;
    const gradient_case *c = data;
    const host_routing r = routing_of(c->choices, first, n_rows);
    const size_t row_bytes = (size_t)c->choices->n_experts * F32_BYTES;
    const float *logits = c->logits + first * c->choices->n_experts;
    float dshare[MOST_SLOTS];
    by_slots(&r, c->dshare + first * c->choices->top_k, F32_BYTES, dshare);
    float *dlogits = op_output(run, c->in_place ? logits : NULL, n_rows, row_bytes, row_bytes);
    const qr_route_backward_args args = {
        .logits = c->in_place ? dlogits : op_input(run, logits, (size_t)n_rows * row_bytes),
        .scale = c->scale != NULL ? op_input(run, c->scale, row_bytes) : NULL,
        .routing = put_routing(run, c->choices, &r),
        .dshare = op_input(run, dshare, (size_t)r.n_slots * F32_BYTES),
        .dlogits = dlogits,
        .router = c->router->rule,
    };
    op_call(run, QR_OP_route_backward, &args);
    op_read(run, dlogits, out);
    op_run_end(run);
}

static void check_route_backward(int64_t n_rows, int32_t n_experts, int32_t top_k, const router_kind *router,
                                 bool in_place) {
    const uint64_t stream = (uint64_t)(n_rows * 13 + n_experts);
    const choices chosen = choose(n_rows, n_experts, top_k, stream);
    float *logits = op_normals(n_rows * n_experts, stream + 1, 2.0);
    float *dshare = op_normals(n_rows * top_k, stream + 2, 1.0);
    double *bound = op_doubles(n_rows * n_experts);
    for (int64_t i = 0; i < n_rows * n_experts; i++) {
        double largest = 0.0;
        for (int32_t k = 0; k < top_k; k++) {
            largest = fmax(largest, fabs((double)dshare[i / n_experts * top_k + k]));
        }
        bound[i] = 2.0 * factor_of(router) * (double)(n_experts + 8) * OP_U * largest;
    }
    gradient_case data = {&chosen, router, in_place, logits, dshare, NULL};
    op_case c = {.n_rows = n_rows, .row = n_experts, .exec = exec_route_backward, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "route_backward rows %lld, %d of %d, %s%s", (long long)n_rows, (int)top_k,
             (int)n_experts, router->name, in_place ? ", in place" : "");
    op_check_case(&c, QR_DTYPE_F32);
    data.scale = expert_scales;
    for (int64_t i = 0; i < n_rows * n_experts; i++) { bound[i] *= 2.0; }
    op_check_case(&c, QR_DTYPE_F32);
    qr_free(logits);
    qr_free(dshare);
    qr_free(bound);
}

void test_op_route_backward(void) {
    fill_scales();
    check_route_backward(2, 7, 3, &softmax_of_chosen, false);
    check_route_backward(65, 7, 3, &softmax_of_chosen, true);
    check_route_backward(33, 13, 4, &softmax, false);
    check_route_backward(150, 5, 2, &softmax, true);
    check_route_backward(9, 70, 40, &softmax, true);
    check_scale_gradient(3, 7, 3, &softmax_of_chosen);
    check_scale_gradient(65, 13, 4, &softmax);
    for (size_t i = 0; i < QR_COUNT_OF(others); i++) {
        check_route_backward(2, 7, 3, &others[i], false);
        check_route_backward(65, 13, 4, &others[i], true);
        check_route_backward(9, 70, 40, &others[i], i % 2 == 0);
        check_scale_gradient(65, 13, 4, &others[i]);
    }
}

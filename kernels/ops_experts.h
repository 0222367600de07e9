/* The ops of a mixture of experts: a router gives every token top_k experts, each of which is an MLP of its own. They
 * belong to ops.h and keep its promises: a token's bits do not depend on what the others choose.
 *
 * A pair of a token and one of its experts has a slot. Slots are sorted by expert, so that an expert's matrices are
 * read once for all its tokens, and not at all where it has none. A block runs as
 *     linear (the router), route, expert_linear (gate, up), gate, expert_linear (down), expert_sum,
 * and backward as
 *     expert_linear_backward (down), expert_share_backward, gate_backward, expert_linear_backward (up, gate),
 *     expert_sum, route_backward, linear_backward (the router).
 * Where the matrices change, expert_weight_backward runs before the gradient of what they were fed. An expert whose
 * matrices have biases runs expert_bias after each. Where experts are in host memory, expert_fetch runs before the
 * products, forward and backward. */
#ifndef QR_KERNELS_OPS_EXPERTS_H
#define QR_KERNELS_OPS_EXPERTS_H

#include "kernels/ops.h"

enum { QR_MAX_EXPERTS_PER_TOKEN = 64, QR_MAX_EXPERT_GROUPS = 64 };

/* Where the tokens of a batch go: n_rows · top_k slots. Written by route; the other ops read it. */
typedef struct qr_routing {
    int32_t *expert;       /* [n_rows, top_k]: by falling logit, or what else route chooses by, the lower expert first
                            * among equals; NaN is the least */
    int32_t *slot;         /* [n_rows, top_k]: where these pairs are */
    int32_t *slot_row;     /* [n_rows · top_k]: the row of a slot; rows ascend within an expert */
    float *share;          /* [n_rows · top_k]: of a slot, what its expert's output counts for */
    int32_t *expert_start; /* [n_experts + 1]: expert e has slots [expert_start[e], expert_start[e + 1]) */
    int64_t n_rows;
    int32_t n_experts, top_k; /* top_k ≤ n_experts */
} qr_routing;

static inline int64_t qr_routing_slots(const qr_routing *routing) { return routing->n_rows * routing->top_k; }

/* How the shares of a row's experts follow from its logits. */
typedef struct qr_router {
    bool is_sigmoid; /* false: the softmax of the logits, over all experts or, with `normalize`, over those chosen.
                      * true: the sigmoid of each, divided, with `normalize`, by (their sum over those chosen + eps),
                      * as LFM2-MoE has it */
    bool normalize;
    float eps;                    /* of sigmoids alone */
    float factor;                 /* that shares are multiplied by; > 0 */
    int32_t n_groups, top_groups; /* n_groups > 1: of so many groups of experts, equally large and one after the other,
                                   * a row's are in the top_groups best, the lower group first among equals. A group
                                   * is as good as its best expert, or where shares are sigmoids the F32 sum of its two
                                   * best (DeepSeek-V2, V3) */
    bool chooses_by_logits;       /* of sigmoids: what counts in the choice is the logit in place of the sigmoid */
} qr_router;

/* route: the top_k experts of each row, and their shares, times the expert's scale, where there are scales. Experts are
 * chosen by their logits, but of sigmoids, and where there is a choice_bias, by the F32 sum of that and the sigmoid or
 * the softmax over all experts; with `chooses_by_logits` of that and the logit. */
typedef struct qr_route_args {
    const float *logits;      /* [n_rows, n_experts] contiguous */
    const float *scale;       /* [n_experts]; NULL: all 1 */
    const float *choice_bias; /* [n_experts]; NULL: all 0 */
    qr_routing routing;
    qr_router router;
} qr_route_args;

/* expert_fetch: brings the matrices of experts that have slots from host memory: for each such expert e, the n_bytes
 * at host + e · n_bytes go to device + e · n_bytes. What is there of other experts stays. */
typedef struct qr_expert_fetch_args {
    qr_routing routing;
    const void *host; /* QR_MEMORY_HOST, [n_experts, n_bytes], 64-byte aligned; stays as it is until the op is done */
    void *device;     /* [n_experts, n_bytes], 64-byte aligned */
    int64_t n_bytes;  /* of one expert: a multiple of 64 */
} qr_expert_fetch_args;

/* expert_linear: for slot p of expert e: y[p, o] = sum over c of x[r, c] · w_e[o, c], with the bits that linear gives
 * that row. With `gathers`, r is the slot's row, else x has a row for each slot and r = p. */
typedef struct qr_expert_linear_args {
    const qr_weight *weights; /* host, [n_experts]: [out, in] each, of one description */
    qr_routing routing;
    const void *x;    /* [n_rows or n_slots, in], rows x_stride apart */
    qr_dtype x_dtype; /* act */
    float *y;         /* [n_slots, out], rows y_stride apart */
    int64_t x_stride, y_stride;
    bool gathers;
} qr_expert_linear_args;

/* expert_bias: for slot p of expert e: y[p, :] += bias[e, :]. */
typedef struct qr_expert_bias_args {
    qr_routing routing;
    const float *bias; /* [n_experts, dim] contiguous */
    float *y;          /* [n_slots, dim], rows y_stride apart */
    int64_t dim, y_stride;
} qr_expert_bias_args;

/* expert_sum: dst[i, :] = sum over k ascending of share · src[slot[i, k], :], or without the share; with `accumulate`
 * that sum is added to dst. */
typedef struct qr_expert_sum_args {
    qr_routing routing;
    const float *src; /* [n_slots, dim] contiguous */
    float *dst;       /* [n_rows, dim], rows dst_stride apart */
    int64_t dim, dst_stride;
    bool by_share, accumulate;
} qr_expert_sum_args;

/* expert_linear_backward: for slot p of expert e: dx[p, c] = sum over o of dy[r, o] · w_e[o, c], added to dx when
 * accumulate; r as in expert_linear, and rounding as in linear_backward. */
typedef struct qr_expert_linear_backward_args {
    const qr_weight *weights; /* host, [n_experts]: [out, in] each, of one description */
    qr_routing routing;
    const void *dy;    /* [n_rows or n_slots, out], rows dy_stride apart */
    qr_dtype dy_dtype; /* act */
    float *dx;         /* [n_slots, in], rows dx_stride apart */
    int64_t dy_stride, dx_stride;
    bool gathers, accumulate;
} qr_expert_linear_backward_args;

/* expert_share_backward: an expert's output is linear in h, so the gradient of a slot's share is that of its unshared
 * output through the matrix, times h: dshare[p] = sum over j of dh[p, j] · h[p, j]; then dh[p, :] *= share[p]. */
typedef struct qr_expert_share_backward_args {
    qr_routing routing;
    const void *h; /* [n_slots, dim] contiguous */
    qr_dtype h_dtype;
    float *dh;     /* [n_slots, dim] contiguous */
    float *dshare; /* [n_slots] */
    int64_t dim;
} qr_expert_share_backward_args;

enum { QR_MAX_EXPERT_LORA_RANK = 512 };

/* expert_lora: LoRA on every expert's matrix: for slot p of expert e whose row's adapter a = row_adapter[slot_row[p]]
 * is not −1 and has this module (rank > 0): y[p, :] += scale_a · B_a,e (A_a,e x[r, :]), r as in expert_linear. The
 * factors of all experts follow each other: a [n_experts, rank, in], b [n_experts, out, rank]. */
typedef struct qr_expert_lora_args {
    const qr_lora_factor *factors; /* [n_adapters] */
    const int32_t *row_adapter;    /* [n_rows of the routing] */
    qr_routing routing;
    const void *x;    /* [n_rows or n_slots, in], rows x_stride apart */
    qr_dtype x_dtype; /* act */
    float *y;         /* [n_slots, out], rows y_stride apart */
    int64_t in, out, x_stride, y_stride;
    int32_t n_adapters;
    bool gathers;
} qr_expert_lora_args;

/* expert_lora_backward: of expert_lora with one adapter for all rows, for slot p of expert e:
 *     h = A_e x[r], dh = scale · B_eᵀ dy[q], dx[p, :] += A_eᵀ dh,
 *     dB_e += scale · share · dy[q] hᵀ, dA_e += share · dh x[r]ᵀ,
 * r as in expert_linear. With `shares`, dy has a row for each token, q is the slot's row and share that of the slot:
 * the gradient of a token's output, as what comes before expert_share_backward needs it. Else q = p and share = 1. */
typedef struct qr_expert_lora_backward_args {
    const float *a, *b; /* as the factors */
    float *da, *db;     /* the same shapes; added to */
    qr_routing routing;
    const void *x;    /* [n_rows or n_slots, in], rows x_stride apart */
    qr_dtype x_dtype; /* act */
    const float *dy;  /* [n_rows or n_slots, out], rows dy_stride apart */
    float *dx;        /* [n_slots, in], rows dx_stride apart; added to */
    int64_t in, out, x_stride, dy_stride, dx_stride;
    int32_t rank;
    float scale;
    bool gathers, shares;
} qr_expert_lora_backward_args;

/* expert_weight_backward: the gradients of the matrices of all experts, each from the slots that it has, ascending:
 *     dw_e[o, c] += sum over slots p of e of share · dy[q, o] · x[r, c], and
 *     dbias[e, o] += sum over slots p of e of share · dy[q, o] where dbias is not NULL,
 * r as in expert_linear, q and share as in expert_lora_backward. An expert without slots keeps what it has. */
typedef struct qr_expert_weight_backward_args {
    float *dw;    /* [n_experts]: [out, in] contiguous each, dw_stride apart */
    float *dbias; /* [n_experts, out] contiguous, or NULL */
    qr_routing routing;
    const void *x;    /* [n_rows or n_slots, in], rows x_stride apart */
    qr_dtype x_dtype; /* act */
    const float *dy;  /* [n_rows or n_slots, out], rows dy_stride apart */
    int64_t in, out, dw_stride, x_stride, dy_stride;
    bool gathers, shares;
} qr_expert_weight_backward_args;

/* expert_bias_backward: what the bias of an expert's output adds to the gradient of a slot's share: with r the slot's
 * row, dshare[p] += sum over j of dy[r, j] · bias[e, j]. */
typedef struct qr_expert_bias_backward_args {
    qr_routing routing;
    const float *bias; /* [n_experts, dim] contiguous */
    const float *dy;   /* [n_rows, dim] contiguous */
    float *dshare;     /* [n_slots] */
    int64_t dim;
} qr_expert_bias_backward_args;

/* route_backward: dlogits from dshare. With p the softmax that the shares are of, d[e] the gradient of the share of a
 * chosen expert, times the expert's scale, and 0 for the others: dlogits[e] = p[e] · (d[e] − sum over e' of p[e'] ·
 * d[e']); with `normalize` 0 for experts that are not chosen. With p the shares that sigmoids s give, of chosen experts
 * p[e] · (1 − s[e]) · (d[e] − m), where m is 0 or, with `normalize`, the sum over those chosen of p[e'] · d[e'] /
 * factor; 0 for the others. dlogits may be logits. Of scales that change, dscale[e] += sum over slots of e, ascending,
 * of p[e] · dshare. */
typedef struct qr_route_backward_args {
    const float *logits; /* [n_rows, n_experts] contiguous */
    const float *scale;  /* as in qr_route_args */
    qr_routing routing;
    const float *dshare; /* [n_slots] */
    float *dlogits;      /* [n_rows, n_experts] contiguous */
    float *dscale;       /* [n_experts], or NULL; only where there are scales */
    qr_router router;
} qr_route_backward_args;

/* share_rows: x[i, :] *= 1 / (1 + e^−g[i]), in place: what enters the last matrix of an expert that every token goes
 * to.
 */
typedef struct qr_share_rows_args {
    const float *g; /* [n_rows] */
    void *x;        /* [n_rows, dim] contiguous */
    qr_dtype x_dtype;
    int64_t n_rows, dim;
} qr_share_rows_args;

/* share_rows_backward, with s = 1 / (1 + e^−g[i]) and x what share_rows left: dg[i] = (1 − s) · sum over j of dx[i, j]
 * · x[i, j]; then dx[i, :] *= s. dg may be g. */
typedef struct qr_share_rows_backward_args {
    const float *g; /* [n_rows] */
    const void *x;  /* [n_rows, dim] contiguous */
    qr_dtype x_dtype;
    float *dx; /* [n_rows, dim] contiguous */
    float *dg; /* [n_rows] */
    int64_t n_rows, dim;
} qr_share_rows_backward_args;

#endif

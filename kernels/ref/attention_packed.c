/* attention_packed and attention_packed_backward: plain sums over the positions a token sees, everything recomputed
 * where it is needed. */
#include <math.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/ref/ref.h"

/* A token and one of its query heads. */
typedef struct packed_query {
    int64_t token, head, kv_head;
    int64_t first; /* the first row it sees; the last is its own */
} packed_query;

static packed_query query_at(const qr_attention_packed_args *args, int64_t seq, int64_t token, int64_t head) {
    const int64_t window_first = args->window > 0 ? token - args->window + 1 : args->seq_start[seq];
    return (packed_query){
        .token = token,
        .head = head,
        .kv_head = head / (args->n_heads / args->n_kv_heads),
        .first = qr_max(args->seq_start[seq], window_first),
    };
}

static const float *q_of(const qr_attention_packed_args *args, const packed_query *query) {
    return args->q + query->token * args->qkv_stride + query->head * args->head_dim;
}

/* Element j of row `token` of k or v, as a cache would hold it. */
static double kv_value(const qr_attention_packed_args *args, const float *kv, int64_t token, int64_t kv_head,
                       int64_t j) {
    const float value = kv[token * args->qkv_stride + kv_head * args->head_dim + j];
    if (!args->round_kv) { return (double)value; }
    return (double)qr_ref_round(value, args->dst_dtype == QR_DTYPE_F16 ? QR_DTYPE_F16 : QR_DTYPE_BF16);
}

static double score(const qr_attention_packed_args *args, const packed_query *query, int64_t token) {
    const float *q = q_of(args, query);
    double sum = 0.0;
    for (int64_t j = 0; j < args->head_dim; j++) {
        sum += (double)q[j] * kv_value(args, args->k, token, query->kv_head, j);
    }
    sum *= (double)args->scale;
    return args->softcap > 0.0F ? qr_ref_softcap_value(sum, (double)args->softcap) : sum;
}

size_t qr_ref_attention_packed_workspace(const qr_attention_packed_args *args) {
    return (size_t)args->head_dim * sizeof(double);
}

/* sums [head_dim] is scratch. */
static void attend(const qr_attention_packed_args *args, const packed_query *query, double *sums) {
    const double sink = args->sinks != NULL ? (double)args->sinks[query->head] : -INFINITY;
    double largest = sink, total = 0.0;
    for (int64_t t = query->first; t <= query->token; t++) { largest = fmax(largest, score(args, query, t)); }
    for (int64_t j = 0; j < args->head_dim; j++) { sums[j] = 0.0; }
    if (args->sinks != NULL) { total = exp(sink - largest); }
    for (int64_t t = query->first; t <= query->token; t++) {
        const double weight = exp(score(args, query, t) - largest);
        total += weight;
        for (int64_t j = 0; j < args->head_dim; j++) {
            sums[j] += weight * kv_value(args, args->v, t, query->kv_head, j);
        }
    }
    const int64_t index = query->token * args->n_heads + query->head;
    args->lse[index] = (float)(largest + log(total));
    for (int64_t j = 0; j < args->head_dim; j++) {
        qr_ref_store(args->dst, args->dst_dtype, index * args->head_dim + j, sums[j] / total);
    }
}

void qr_ref_attention_packed(const qr_attention_packed_args *args, void *workspace) {
    for (int64_t s = 0; s < args->n_seqs; s++) {
        for (int64_t t = args->seq_start[s]; t < args->seq_start[s + 1]; t++) {
            for (int64_t h = 0; h < args->n_heads; h++) {
                const packed_query query = query_at(args, s, t, h);
                attend(args, &query, workspace);
            }
        }
    }
}

/* --- Backward --- */

size_t qr_ref_attention_packed_backward_workspace(const qr_attention_packed_backward_args *args) {
    return 2 * (size_t)args->forward.head_dim * sizeof(double);
}

/* The sum over head_dim of dout · out, which the softmax subtracts from every dp. */
static double delta_of(const qr_attention_packed_backward_args *args, const packed_query *query) {
    const qr_attention_packed_args *forward = &args->forward;
    const int64_t at = (query->token * forward->n_heads + query->head) * forward->head_dim;
    double sum = 0.0;
    for (int64_t j = 0; j < forward->head_dim; j++) {
        sum += (double)args->dout[at + j] * (double)qr_ref_load(forward->dst, forward->dst_dtype, at + j);
    }
    return sum;
}

/* What one pair of a query and a token it sees needs: the probability, and the gradient of q · k. */
typedef struct packed_pair {
    double p, ds;
} packed_pair;

static packed_pair pair_of(const qr_attention_packed_backward_args *args, const packed_query *query, int64_t token) {
    const qr_attention_packed_args *forward = &args->forward;
    const int64_t index = query->token * forward->n_heads + query->head;
    const double a = score(forward, query, token), p = exp(a - (double)forward->lse[index]);
    double dp = 0.0;
    for (int64_t j = 0; j < forward->head_dim; j++) {
        dp +=
            (double)args->dout[index * forward->head_dim + j] * kv_value(forward, forward->v, token, query->kv_head, j);
    }
    const double capped = forward->softcap > 0.0F ? a / (double)forward->softcap : 0.0;
    return (packed_pair){p, p * (dp - delta_of(args, query)) * (1.0 - capped * capped) * (double)forward->scale};
}

static void store_sums(float *dst, const double *sums, int64_t n) {
    for (int64_t j = 0; j < n; j++) { dst[j] = (float)sums[j]; }
}

static void write_dq(const qr_attention_packed_backward_args *args, const packed_query *query, double *dq) {
    const qr_attention_packed_args *forward = &args->forward;
    for (int64_t j = 0; j < forward->head_dim; j++) { dq[j] = 0.0; }
    for (int64_t t = query->first; t <= query->token; t++) {
        const packed_pair pair = pair_of(args, query, t);
        for (int64_t j = 0; j < forward->head_dim; j++) {
            dq[j] += pair.ds * kv_value(forward, forward->k, t, query->kv_head, j);
        }
    }
    store_sums(args->dq + query->token * args->dqkv_stride + query->head * forward->head_dim, dq, forward->head_dim);
}

/* dk and dv of one row and K/V head: sums over the later tokens of the sequence that see it, and over the query heads
 * of the group. */
static void write_dkv(const qr_attention_packed_backward_args *args, int64_t seq, int64_t token, int64_t kv_head,
                      double *dk) {
    const qr_attention_packed_args *forward = &args->forward;
    const int64_t dim = forward->head_dim, group = forward->n_heads / forward->n_kv_heads;
    double *dv = dk + dim;
    for (int64_t j = 0; j < 2 * dim; j++) { dk[j] = 0.0; }
    for (int64_t t = token; t < forward->seq_start[seq + 1]; t++) {
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            const packed_query query = query_at(forward, seq, t, h);
            if (token < query.first) { continue; }
            const packed_pair pair = pair_of(args, &query, token);
            const float *q = q_of(forward, &query);
            for (int64_t j = 0; j < dim; j++) {
                dk[j] += pair.ds * (double)q[j];
                dv[j] += pair.p * (double)args->dout[(t * forward->n_heads + h) * dim + j];
            }
        }
    }
    const int64_t at = token * args->dqkv_stride + kv_head * dim;
    store_sums(args->dk + at, dk, dim);
    store_sums(args->dv + at, dv, dim);
}

/* A sink takes its share of the weights and gives no value. */
static void add_dsinks(const qr_attention_packed_backward_args *args) {
    const qr_attention_packed_args *forward = &args->forward;
    for (int64_t h = 0; h < forward->n_heads; h++) {
        double sum = 0.0;
        for (int64_t t = 0; t < forward->n_tokens; t++) {
            const packed_query query = {.token = t, .head = h};
            const double lse = (double)forward->lse[t * forward->n_heads + h];
            sum += exp((double)forward->sinks[h] - lse) * delta_of(args, &query);
        }
        args->dsinks[h] -= (float)sum;
    }
}

void qr_ref_attention_packed_backward(const qr_attention_packed_backward_args *args, void *workspace) {
    const qr_attention_packed_args *forward = &args->forward;
    for (int64_t s = 0; s < forward->n_seqs; s++) {
        for (int64_t t = forward->seq_start[s]; t < forward->seq_start[s + 1]; t++) {
            for (int64_t h = 0; h < forward->n_heads; h++) {
                const packed_query query = query_at(forward, s, t, h);
                write_dq(args, &query, workspace);
            }
            for (int64_t h = 0; h < forward->n_kv_heads; h++) { write_dkv(args, s, t, h, workspace); }
        }
    }
    if (args->dsinks != NULL) { add_dsinks(args); }
}

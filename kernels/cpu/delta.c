/* copy_heads, head_gate, conv1d_causal, gated_delta. */
#include "kernels/cpu/delta_step.h"
#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/recurrence.h"

enum { FUNCTION_COST = 4 };

static void copy_heads_rows(const void *args, int64_t begin, int64_t end) {
    const qr_copy_heads_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t h = 0; h < a->n_heads; h++) {
            const int64_t from = i * a->src_stride + h * a->src_head_stride;
            const int64_t to = i * a->dst_stride + h * a->dst_head_stride;
            for (int64_t j = 0; j < a->dim; j += QR_VEC) {
                const int64_t n = a->dim - j;
                qr_vec x = a->src != NULL ? qr_vec_load_act_n(a->src, a->dtype, from + j, n) : qr_vec_set1(0.0F);
                if (a->accumulate) { x = qr_vec_add(qr_vec_load_act_n(a->dst, a->dtype, to + j, n), x); }
                qr_vec_store_act_n(a->dst, a->dtype, to + j, x, n);
            }
        }
    }
}

static void head_gate_rows(const void *args, int64_t begin, int64_t end) {
    const qr_head_gate_args *a = args;
    for (int64_t i = begin * a->n_heads; i < end * a->n_heads; i++) {
        const float *gate = a->gate + i / a->n_heads * a->gate_stride + i % a->n_heads * a->gate_head_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t at = i * a->dim + j, n = a->dim - j;
            qr_vec rest;
            const qr_vec g = a->gate_dim == 1 ? qr_vec_set1(gate[0]) : qr_vec_load_n(gate + j, n);
            const qr_vec open = a->by_softplus ? qr_vec_softplus(g) : qr_vec_sigmoid(g, &rest);
            qr_vec_store_act_n(a->dst, a->dtype, at, qr_vec_mul(qr_vec_load_act_n(a->x, a->dtype, at, n), open), n);
        }
    }
}

QR_CPU_RANGE_OP(copy_heads, args->n_rows, args->n_heads * args->dim, copy_heads_rows)
QR_CPU_RANGE_OP(head_gate, args->n_rows, FUNCTION_COST * args->n_heads * args->dim, head_gate_rows)

/* ---- Sequences --------------------------------------------------------------------------------------------------- */

/* ---- conv1d_causal ----------------------------------------------------------------------------------------------- */

/* n channels from c on, of sequence s. The rows before each token stay in registers. */
QR_INLINE void conv_channels(const qr_conv1d_causal_args *a, int64_t s, int64_t c, int64_t n, int kernel) {
    const qr_recurrence *r = &a->sequences;
    float *state = qr_recurrence_state(r, s), columns[QR_CONV_MAX_KERNEL][QR_VEC] = {{0}};
    qr_vec weight[QR_CONV_MAX_KERNEL], rows[QR_CONV_MAX_KERNEL];
    for (int64_t i = 0; i < qr_min(n, QR_VEC); i++) {
        for (int j = 0; j < kernel; j++) { columns[j][i] = a->weight[(c + i) * kernel + j]; }
    }
    for (int j = 0; j < kernel; j++) { weight[j] = qr_vec_load(columns[j]); }
    const qr_vec bias = a->bias != NULL ? qr_vec_load_n(a->bias + c, n) : qr_vec_zero();
    for (int j = 0; j < kernel - 1; j++) {
        rows[j] = qr_recurrence_begins(r, s) ? qr_vec_zero() : qr_vec_load_n(state + j * a->dim + c, n);
    }
    for (int64_t t = r->start[s]; t < r->start[s + 1]; t++) {
        rows[kernel - 1] = qr_vec_load_n(a->x + t * a->x_stride + c, n);
        qr_vec sum = a->bias != NULL ? qr_vec_fma(weight[0], rows[0], bias) : qr_vec_mul(weight[0], rows[0]);
        for (int j = 1; j < kernel; j++) { sum = qr_vec_fma(weight[j], rows[j], sum); }
        qr_vec_store_n(a->dst + t * a->dim + c, qr_vec_act(a->fn, sum), n);
        for (int j = 0; j < kernel - 1; j++) { rows[j] = rows[j + 1]; }
    }
    for (int j = 0; state != NULL && j < kernel - 1; j++) { qr_vec_store_n(state + j * a->dim + c, rows[j], n); }
}

/* Index i: vector i % (vectors of a row) of sequence i / that. */
static void conv_range(const void *args, int64_t begin, int64_t end) {
    const qr_conv1d_causal_args *a = args;
    const int64_t n_vectors = qr_ceil_div(a->dim, QR_VEC);
    for (int64_t i = begin; i < end; i++) {
        const int64_t s = i / n_vectors, c = i % n_vectors * QR_VEC;
        if (a->sequences.start[s] == a->sequences.start[s + 1]) { continue; }
        if (a->kernel == 4) {
            conv_channels(a, s, c, a->dim - c, 4);
        } else {
            conv_channels(a, s, c, a->dim - c, a->kernel);
        }
    }
}

void QR_ISA(qr_cpu_conv1d_causal)(const qr_backend *backend, const qr_conv1d_causal_args *args) {
    const int64_t n = args->sequences.n_seqs * qr_ceil_div(args->dim, QR_VEC);
    const int64_t tokens = qr_ceil_div(args->n_tokens, args->sequences.n_seqs);
    qr_cpu_run_ranges(backend, n, (tokens + args->kernel) * (FUNCTION_COST + args->kernel) * QR_VEC, conv_range, args);
}

/* ---- gated_delta ------------------------------------------------------------------------------------------------- */

struct prepare {
    const qr_gated_delta_args *args;
    const qr_delta_tokens *tokens;
};

/* dst = x · factor / sqrt(sum x² + eps). */
static void normalise(const float *x, int64_t n, float factor, float *dst) {
    const qr_vec scale = qr_vec_set1(factor / sqrtf(sum_row(x, n, 0.0F, true) + QR_DELTA_EPS));
    for (int64_t j = 0; j < n; j += QR_VEC) {
        qr_vec_store_n(dst + j, qr_vec_mul(qr_vec_load_n(x + j, n - j), scale), n - j);
    }
}

static float dot(const float *x, const float *y, int64_t n) {
    qr_vec sum = qr_vec_zero();
    for (int64_t j = 0; j < n; j += QR_VEC) {
        sum = qr_vec_fma(qr_vec_load_n(x + j, n - j), qr_vec_load_n(y + j, n - j), sum);
    }
    return qr_vec_sum(sum);
}

/* The decays of a value head's channels. */
static void prepare_channels(const qr_gated_delta_args *a, int64_t token, int64_t head, float *decays) {
    const int64_t dim = a->key_dim, first = head * dim;
    const float *x = a->a + token * a->ab_stride + first, *bias = a->dt_bias + first;
    const qr_vec rate = qr_vec_set1(-expf(a->a_log[head]));
    for (int64_t j = 0; j < dim; j += QR_VEC) {
        const qr_vec sum = qr_vec_add(qr_vec_load_n(x + j, dim - j), qr_vec_load_n(bias + j, dim - j));
        qr_vec_store_n(decays + j, qr_vec_exp(qr_vec_mul(rate, qr_vec_softplus(sum))), dim - j);
    }
}

static void prepare_range(const void *arg, int64_t begin, int64_t end) {
    const struct prepare *p = arg;
    const qr_gated_delta_args *a = p->args;
    const qr_delta_tokens *out = p->tokens;
    const int64_t dim = a->key_dim;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t h = 0; h < a->n_key_heads; h++) {
            const float *q = a->qkv + t * a->qkv_stride + h * dim;
            const int64_t at = t * a->n_key_heads + h;
            normalise(q, dim, 1.0F / sqrtf((float)dim), out->q + at * dim);
            normalise(q + a->n_key_heads * dim, dim, 1.0F, out->k + at * dim);
            out->qk[at] = dot(out->q + at * dim, out->k + at * dim, dim);
        }
        for (int64_t h = 0; h < a->n_value_heads; h++) {
            if (a->decays_channels) {
                prepare_channels(a, t, h, out->decay + (t * a->n_value_heads + h) * dim);
            } else {
                const float softplus = recurrence_softplus(a->a[t * a->ab_stride + h] + a->dt_bias[h]);
                out->decay[t * a->n_value_heads + h] = expf(-expf(a->a_log[h]) * softplus);
            }
            const float beta = recurrence_sigmoid(a->b[t * a->ab_stride + h]);
            out->beta[t * a->n_value_heads + h] = a->doubles_beta ? 2.0F * beta : beta;
        }
    }
}

void QR_ISA(qr_cpu_delta_prepare)(const qr_backend *backend, const qr_gated_delta_args *args,
                                  const qr_delta_tokens *tokens) {
    const struct prepare p = {args, tokens};
    const int64_t of_decays = args->decays_channels ? 4 * (int64_t)FUNCTION_COST * args->key_dim : 0;
    const int64_t cost =
        4 * (int64_t)args->n_key_heads * args->key_dim + (64 + of_decays) * (int64_t)args->n_value_heads;
    qr_cpu_run_ranges(backend, args->n_tokens, cost, prepare_range, &p);
}

struct delta_call {
    const qr_gated_delta_args *args;
    qr_delta_tokens tokens;
    float *columns;   /* [n_threads, key_dim, QR_DELTA_COLUMNS] */
    int64_t n_blocks; /* of columns, a head */
};

/* A block of columns of a head of a sequence. */
static void run_columns(void *arg, int64_t index, int worker) {
    const struct delta_call *call = arg;
    const qr_gated_delta_args *a = call->args;
    const qr_recurrence *r = &a->sequences;
    const int64_t first = index % call->n_blocks * QR_DELTA_COLUMNS, s = index / call->n_blocks / a->n_value_heads;
    const int32_t head = (int32_t)(index / call->n_blocks % a->n_value_heads);
    const int64_t n = qr_min(a->value_dim - first, QR_DELTA_COLUMNS), key_dim = a->key_dim;
    if (r->start[s] == r->start[s + 1]) { return; }
    float *state = qr_recurrence_state(r, s), *columns = call->columns + worker * qr_delta_column_floats(a);
    const int64_t stride = state != NULL ? a->value_dim : QR_DELTA_COLUMNS;
    if (state != NULL) { columns = state + head * key_dim * a->value_dim + first; }
    for (int64_t i = 0; qr_recurrence_begins(r, s) && i < key_dim; i++) {
        memset(columns + i * stride, 0, (size_t)n * sizeof *columns);
    }
    const int64_t v_at = 2 * (int64_t)a->n_key_heads * key_dim + (int64_t)head * a->value_dim + first;
    for (int64_t t = r->start[s]; t < r->start[s + 1]; t++) {
        const delta_token in = delta_token_at(a, &call->tokens, t, head);
        float *dst = a->dst + (t * a->n_value_heads + head) * a->value_dim + first;
        delta_columns(&in, key_dim, columns, columns, stride, a->qkv + t * a->qkv_stride + v_at, dst, NULL, n);
    }
}

void QR_ISA(qr_cpu_gated_delta)(const qr_backend *backend, const qr_gated_delta_args *args, void *workspace) {
    struct delta_call call = {.args = args, .n_blocks = qr_ceil_div(args->value_dim, QR_DELTA_COLUMNS)};
    const size_t n_bytes = qr_delta_tokens_lay(args, workspace, &call.tokens);
    call.columns = (float *)(void *)((unsigned char *)workspace + n_bytes);
    QR_ISA(qr_cpu_delta_prepare)(backend, args, &call.tokens);
    qr_threads_run(backend->threads, args->sequences.n_seqs * args->n_value_heads * call.n_blocks, run_columns, &call);
}

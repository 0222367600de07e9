/* head_gate_backward, conv1d_causal_backward. */
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/vector_ops.h"

enum { FUNCTION_COST = 4 };

/* What a gate lets through, and the slope of that. */
QR_INLINE qr_vec open_gate(const qr_head_gate_args *f, qr_vec gate, qr_vec *slope) {
    qr_vec shut;
    const qr_vec sigmoid = qr_vec_sigmoid(gate, &shut);
    *slope = f->by_softplus ? sigmoid : qr_vec_mul(sigmoid, shut);
    return f->by_softplus ? qr_vec_softplus(gate) : sigmoid;
}

/* Head i of all rows, with one gate. */
static void whole_head_backward(const qr_head_gate_backward_args *a, int64_t i, int64_t gate_at) {
    const qr_head_gate_args *f = &a->forward;
    qr_vec slope, sum = qr_vec_zero();
    const qr_vec open = open_gate(f, qr_vec_set1(f->gate[gate_at]), &slope);
    for (int64_t j = 0; j < f->dim; j += QR_VEC) {
        const int64_t at = i * f->dim + j, n = f->dim - j;
        const qr_vec dy = qr_vec_load_n(a->dy + at, n);
        sum = qr_vec_fma(dy, qr_vec_load_act_n(f->x, f->dtype, at, n), sum);
        qr_vec_store_n(a->dx + at, qr_vec_mul(dy, open), n);
    }
    qr_vec_store_n(a->dgate + gate_at, qr_vec_mul(qr_vec_set1(qr_vec_sum(sum)), slope), 1);
}

static void head_gate_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_head_gate_backward_args *a = args;
    const qr_head_gate_args *f = &a->forward;
    for (int64_t i = begin * f->n_heads; i < end * f->n_heads; i++) {
        const int64_t gate_at = i / f->n_heads * f->gate_stride + i % f->n_heads * f->gate_head_stride;
        if (f->gate_dim == 1) {
            whole_head_backward(a, i, gate_at);
            continue;
        }
        for (int64_t j = 0; j < f->dim; j += QR_VEC) {
            const int64_t at = i * f->dim + j, n = f->dim - j;
            qr_vec slope;
            const qr_vec open = open_gate(f, qr_vec_load_n(f->gate + gate_at + j, n), &slope);
            const qr_vec dy = qr_vec_load_n(a->dy + at, n), x = qr_vec_load_act_n(f->x, f->dtype, at, n);
            qr_vec_store_n(a->dgate + gate_at + j, qr_vec_mul(qr_vec_mul(dy, x), slope), n);
            qr_vec_store_n(a->dx + at, qr_vec_mul(dy, open), n);
        }
    }
}

QR_CPU_RANGE_OP(head_gate_backward, args->forward.n_rows, FUNCTION_COST * args->forward.n_heads * args->forward.dim,
                head_gate_backward_rows)

/* ---- conv1d_causal_backward -------------------------------------------------------------------------------------- */

/* A vector of channels, c on. rows: x of the kernel tokens up to the one that runs; dsums: the gradients of their sums.
 * Both are kept oldest first. */
struct channels {
    const qr_conv1d_causal_backward_args *args;
    int64_t c, n;
    qr_vec weight[QR_CONV_MAX_KERNEL], dweight[QR_CONV_MAX_KERNEL], bias, dbias;
    qr_vec rows[QR_CONV_MAX_KERNEL], dsums[QR_CONV_MAX_KERNEL];
};

static void load_weight(struct channels *ch) {
    const qr_conv1d_causal_args *f = &ch->args->forward;
    float columns[QR_CONV_MAX_KERNEL][QR_VEC] = {{0}};
    for (int64_t i = 0; i < qr_min(ch->n, QR_VEC); i++) {
        for (int j = 0; j < f->kernel; j++) { columns[j][i] = f->weight[(ch->c + i) * f->kernel + j]; }
    }
    for (int j = 0; j < f->kernel; j++) {
        ch->weight[j] = qr_vec_load(columns[j]);
        ch->dweight[j] = qr_vec_zero();
    }
    ch->bias = f->bias != NULL ? qr_vec_load_n(f->bias + ch->c, ch->n) : qr_vec_zero();
    ch->dbias = qr_vec_zero();
}

/* Token t, if it is before the sequence's end, gives the gradient of its sum; with it that of row t − kernel + 1 is
 * complete. */
static void advance(struct channels *ch, int64_t t, int64_t begin, int64_t end) {
    const qr_conv1d_causal_args *f = &ch->args->forward;
    const int kernel = f->kernel;
    for (int j = 0; j < kernel - 1; j++) {
        ch->rows[j] = ch->rows[j + 1];
        ch->dsums[j] = ch->dsums[j + 1];
    }
    ch->rows[kernel - 1] = ch->dsums[kernel - 1] = qr_vec_zero();
    if (t < end) {
        ch->rows[kernel - 1] = qr_vec_load_n(f->x + t * f->x_stride + ch->c, ch->n);
        qr_vec sum =
            f->bias != NULL ? qr_vec_fma(ch->weight[0], ch->rows[0], ch->bias) : qr_vec_mul(ch->weight[0], ch->rows[0]);
        qr_vec value;
        for (int j = 1; j < kernel; j++) { sum = qr_vec_fma(ch->weight[j], ch->rows[j], sum); }
        const qr_vec dy = qr_vec_load_n(ch->args->dy + t * f->dim + ch->c, ch->n);
        ch->dsums[kernel - 1] = qr_vec_mul(dy, qr_vec_act_slope(f->fn, sum, &value));
        ch->dbias = qr_vec_add(ch->dbias, ch->dsums[kernel - 1]);
        for (int j = 0; j < kernel; j++) {
            ch->dweight[j] = qr_vec_fma(ch->dsums[kernel - 1], ch->rows[j], ch->dweight[j]);
        }
    }
    const int64_t done = t - kernel + 1;
    if (done < begin) { return; }
    qr_vec dx = qr_vec_mul(ch->weight[kernel - 1], ch->dsums[0]);
    for (int j = 1; j < kernel; j++) { dx = qr_vec_fma(ch->weight[kernel - 1 - j], ch->dsums[j], dx); }
    qr_vec_store_n(ch->args->dx + done * ch->args->dx_stride + ch->c, dx, ch->n);
}

static void add_sums(const struct channels *ch) {
    const int kernel = ch->args->forward.kernel;
    float *dbias = ch->args->dbias != NULL ? ch->args->dbias + ch->c : NULL;
    if (dbias != NULL) { qr_vec_store_n(dbias, qr_vec_add(qr_vec_load_n(dbias, ch->n), ch->dbias), ch->n); }
    for (int j = 0; ch->args->dweight != NULL && j < kernel; j++) {
        float column[QR_VEC];
        qr_vec_store(column, ch->dweight[j]);
        for (int64_t i = 0; i < qr_min(ch->n, QR_VEC); i++) {
            ch->args->dweight[(ch->c + i) * kernel + j] += column[i];
        }
    }
}

static void conv_backward_range(const void *arg, int64_t range_begin, int64_t range_end) {
    const qr_conv1d_causal_backward_args *a = arg;
    const qr_recurrence *r = &a->forward.sequences;
    for (int64_t i = range_begin; i < range_end; i++) {
        struct channels ch = {.args = a, .c = i * QR_VEC, .n = a->forward.dim - i * QR_VEC};
        load_weight(&ch);
        for (int32_t s = 0; s < r->n_seqs; s++) {
            for (int j = 0; j < a->forward.kernel; j++) { ch.rows[j] = ch.dsums[j] = qr_vec_zero(); }
            const int64_t begin = r->start[s], end = r->start[s + 1];
            for (int64_t t = begin; t < end + a->forward.kernel - 1; t++) { advance(&ch, t, begin, end); }
        }
        add_sums(&ch);
    }
}

void QR_ISA(qr_cpu_conv1d_causal_backward)(const qr_backend *backend, const qr_conv1d_causal_backward_args *args) {
    const qr_conv1d_causal_args *f = &args->forward;
    qr_cpu_run_ranges(backend, qr_ceil_div(f->dim, QR_VEC), f->n_tokens * 4 * f->kernel * QR_VEC, conv_backward_range,
                      args);
}

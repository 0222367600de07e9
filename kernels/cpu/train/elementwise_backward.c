/* activation_backward, gate_backward, xielu_backward, dropout, round_act, store_weight. */
#include "base/random.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/cpu/xielu.h"

/* As in elementwise.c; Philox too costs as much as several elements. */
enum { FUNCTION_COST = 4, PHILOX_COST = 4 };

static void activation_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_activation_backward_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->x_stride, *dy = a->dy + i * a->dy_stride;
        float *dx = a->dx + i * a->dx_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            qr_vec value;
            const qr_vec slope = qr_vec_act_slope(a->fn, qr_vec_load_n(x + j, n), &value);
            qr_vec_store_n(dx + j, qr_vec_mul(qr_vec_load_n(dy + j, n), slope), n);
        }
    }
}

static void gate_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_gate_backward_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *g = a->g + i * a->g_stride, *u = a->u + i * a->u_stride, *dy = a->dy + i * a->dim;
        float *dg = a->dg + i * a->dg_stride, *du = a->du + i * a->du_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            qr_vec value;
            const qr_vec slope = qr_vec_act_slope(a->fn, qr_vec_load_n(g + j, n), &value);
            const qr_vec gradient = qr_vec_load_n(dy + j, n);
            const qr_vec through_u = qr_vec_mul(gradient, qr_vec_load_n(u + j, n));
            qr_vec_store_n(dg + j, qr_vec_mul(through_u, slope), n);
            qr_vec_store_n(du + j, qr_vec_mul(gradient, value), n);
        }
    }
}

static void clamped_gate_backward_rows(const void *args, int64_t begin, int64_t end) {
    const qr_clamped_gate_backward_args *a = args;
    const qr_clamped_gate_args *f = &a->forward;
    const qr_vec alpha = qr_vec_set1(f->alpha), limit = qr_vec_set1(f->limit), one = qr_vec_set1(1.0F);
    const qr_vec zero = qr_vec_zero();
    for (int64_t i = begin; i < end; i++) {
        float *dg = a->dg + i * a->dgu_stride, *du = a->du + i * a->dgu_stride;
        for (int64_t j = 0; j < f->dim; j += QR_VEC) {
            const int64_t n = f->dim - j;
            qr_vec shut;
            const qr_vec g = qr_vec_load_n(f->g + i * f->stride + j, n), u = qr_vec_load_n(f->u + i * f->stride + j, n);
            const qr_vec held_g = qr_vec_at_most(g, f->limit), dy = qr_vec_load_n(a->dy + i * f->dim + j, n);
            const qr_vec steep = qr_vec_mul(alpha, held_g), open = qr_vec_sigmoid(steep, &shut);
            const qr_vec slope = qr_vec_mul(open, qr_vec_fma(qr_vec_held(steep, 128.0F), shut, one));
            const qr_vec factor = qr_vec_add(qr_vec_held(u, f->limit), one);
            const qr_vec to_g = qr_vec_mul(qr_vec_mul(dy, factor), slope),
                         to_u = qr_vec_mul(dy, qr_vec_mul(held_g, open));
            qr_vec_store_n(dg + j, qr_vec_select_less(limit, g, zero, to_g), n);
            qr_vec_store_n(du + j, qr_vec_select_less(limit, qr_vec_abs(u), zero, to_u), n);
        }
    }
}

typedef struct xielu_sums {
    double p, n;
} xielu_sums;

typedef struct xielu_pass {
    const qr_xielu_backward_args *args;
    qr_xielu_factors factors;
    xielu_sums *rows; /* [n_rows]; NULL: not wanted */
} xielu_pass;

/* Of vectors at the end of a row, only what is of it. */
QR_INLINE qr_vec first_of(qr_vec v, int64_t n) {
    return n < QR_VEC ? qr_vec_select_range(v, qr_vec_zero(), 0, (int)n) : v;
}

static void xielu_backward_rows(const void *args, int64_t begin, int64_t end) {
    const xielu_pass *pass = args;
    const qr_xielu_backward_args *a = pass->args;
    const qr_xielu_args *f = &a->forward;
    const qr_xielu_factors *factors = &pass->factors;
    const qr_vec zero = qr_vec_zero(), one = qr_vec_set1(1.0F);
    const qr_vec eps = qr_vec_set1(factors->eps), beta = qr_vec_set1(factors->beta);
    for (int64_t i = begin; i < end; i++) {
        qr_vec sum_p = zero, sum_n = zero;
        for (int64_t j = 0; j < f->dim; j += QR_VEC) {
            const int64_t n = f->dim - j;
            const qr_vec x = qr_vec_load_n(f->x + i * f->x_stride + j, n);
            const qr_vec dy = qr_vec_load_n(a->dy + i * a->dy_stride + j, n);
            const qr_vec above = qr_vec_mul(qr_vec_set1(2.0F * factors->p), x);
            const qr_vec level = qr_vec_sub(qr_vec_sub(x, x), one); /* −1; NaN stays */
            const qr_vec grows = qr_vec_select_less(x, eps, qr_vec_expm1_below(x), level);
            const qr_vec below = qr_vec_mul(qr_vec_set1(factors->n), grows);
            const qr_vec slope = qr_vec_add(qr_vec_select_less(zero, x, above, below), beta);
            const qr_vec to_p = qr_vec_mul(dy, qr_vec_mul(x, x)), to_n = qr_vec_mul(dy, qr_xielu_below(factors, x));
            sum_p = qr_vec_add(sum_p, first_of(qr_vec_select_less(zero, x, to_p, zero), n));
            sum_n = qr_vec_add(sum_n, first_of(qr_vec_select_less(zero, x, zero, to_n), n));
            qr_vec_store_n(a->dx + i * a->dx_stride + j, qr_vec_mul(dy, slope), n);
        }
        if (pass->rows != NULL) { pass->rows[i] = (xielu_sums){(double)qr_vec_sum(sum_p), (double)qr_vec_sum(sum_n)}; }
    }
}

/* Row after row, so that rows in several calls have the bits of one. */
void QR_ISA(qr_cpu_xielu_backward)(const qr_backend *backend, const qr_xielu_backward_args *args, void *workspace) {
    const qr_xielu_args *f = &args->forward;
    const bool wants_sums = args->dalpha_p != NULL || args->dalpha_n != NULL;
    const xielu_pass pass = {.args = args, .factors = qr_xielu_factors_of(f), .rows = wants_sums ? workspace : NULL};
    const double to_p = 1.0 / (1.0 + exp(-(double)f->alpha_p[0])), to_n = 1.0 / (1.0 + exp(-(double)f->alpha_n[0]));
    qr_cpu_run_ranges(backend, f->n_rows, FUNCTION_COST * f->dim, xielu_backward_rows, &pass);
    for (int64_t i = 0; wants_sums && i < f->n_rows; i++) {
        if (args->dalpha_p != NULL) { args->dalpha_p[0] += (float)(pass.rows[i].p * to_p); }
        if (args->dalpha_n != NULL) { args->dalpha_n[0] += (float)(pass.rows[i].n * to_n); }
    }
}

enum { DROPOUT_BLOCK = 256 };

/* marks[c] = −1 where column first + c is dropped, else 1; DROPOUT_BLOCK columns. */
static void make_marks(const qr_dropout_args *a, int64_t row, int64_t first, uint32_t threshold, float *marks) {
    const uint64_t key = a->key, row_key = (uint64_t)a->row_key[row];
    uint32_t words[DROPOUT_BLOCK];
    for (uint32_t i = 0; i < DROPOUT_BLOCK / 4; i++) {
        const uint32_t counter[4] = {(uint32_t)(first / 4) + i, (uint32_t)row_key, (uint32_t)(row_key >> 32), 0};
        qr_philox(key, counter, words + 4 * i);
    }
    for (int c = 0; c < DROPOUT_BLOCK; c++) { marks[c] = words[c] < threshold ? -1.0F : 1.0F; }
}

static void dropout_rows(const void *args, int64_t begin, int64_t end) {
    const qr_dropout_args *a = args;
    const uint32_t threshold = (uint32_t)ceil((double)a->p * 0x1p32); /* p < 1 */
    const qr_vec kept = qr_vec_set1((float)(1.0 - (double)a->p)), zero = qr_vec_zero();
    for (int64_t i = begin; i < end; i++) {
        for (int64_t first = 0; first < a->dim; first += DROPOUT_BLOCK) {
            float marks[DROPOUT_BLOCK];
            make_marks(a, i, first, threshold, marks);
            for (int64_t c = 0; c < qr_min(DROPOUT_BLOCK, a->dim - first); c += QR_VEC) {
                const int64_t j = first + c, n = a->dim - j;
                const qr_vec x = qr_vec_load_act_n(a->x, a->x_dtype, i * a->x_stride + j, n);
                const qr_vec y = qr_vec_select_less(qr_vec_load(marks + c), zero, zero, qr_vec_div(x, kept));
                qr_vec_store_act_n(a->dst, a->x_dtype, i * a->dst_stride + j, y, n);
            }
        }
    }
}

static void round_act_rows(const void *args, int64_t begin, int64_t end) {
    const qr_round_act_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec x = qr_vec_load_n(a->src + i * a->src_stride + j, a->dim - j);
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dst_stride + j, x, a->dim - j);
        }
    }
}

struct store_weight {
    const qr_store_weight_args *args;
    qr_cpu_layout layout;
};

/* The padding of a row stays zero: products read it. */
static void store_weight_rows(const void *args, int64_t begin, int64_t end) {
    const struct store_weight *s = args;
    const qr_weight_desc *desc = &s->args->weight->desc;
    for (int64_t i = begin; i < end; i++) {
        unsigned char *row = (unsigned char *)s->args->weight->data + (size_t)i * s->layout.row_bytes;
        const float *src = s->args->src + i * desc->cols;
        memset(row + s->layout.row_bytes - 64, 0, 64);
        for (int64_t j = 0; j < desc->cols; j += QR_VEC) {
            const qr_vec x = qr_vec_load_n(src + j, desc->cols - j);
            switch (desc->format) {
                case QR_WEIGHT_F16: qr_vec_store_f16_n((uint16_t *)(void *)row + j, x, desc->cols - j); break;
                case QR_WEIGHT_BF16: qr_vec_store_bf16_n((uint16_t *)(void *)row + j, x, desc->cols - j); break;
                default: qr_vec_store_n((float *)(void *)row + j, x, desc->cols - j); break;
            }
        }
    }
}

QR_CPU_RANGE_OP(activation_backward, args->n_rows, FUNCTION_COST * args->dim, activation_backward_rows)
QR_CPU_RANGE_OP(clamped_gate_backward, args->forward.n_rows, FUNCTION_COST * args->forward.dim,
                clamped_gate_backward_rows)
QR_CPU_RANGE_OP(gate_backward, args->n_rows, FUNCTION_COST * args->dim, gate_backward_rows)
QR_CPU_RANGE_OP(dropout, args->n_rows, PHILOX_COST * args->dim, dropout_rows)
QR_CPU_RANGE_OP(round_act, args->n_rows, args->dim, round_act_rows)

void QR_ISA(qr_cpu_store_weight)(const qr_backend *backend, const qr_store_weight_args *args) {
    struct store_weight s = {.args = args};
    qr_cpu_layout_of(&args->weight->desc, &s.layout);
    qr_cpu_run_ranges(backend, args->weight->desc.rows, args->weight->desc.cols, store_weight_rows, &s);
}

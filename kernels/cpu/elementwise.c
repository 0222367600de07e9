/* activation, gate, xielu, add, scale, scale_columns, softcap. */
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/simd/vec_slopes.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/cpu/xielu.h"

/* A transcendental function costs as much as several elements moved. */
enum { FUNCTION_COST = 4 };

static void activation_rows(const void *args, int64_t begin, int64_t end) {
    const qr_activation_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->x_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec y = qr_vec_act(a->fn, qr_vec_load_n(x + j, a->dim - j));
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, y, a->dim - j);
        }
    }
}

static void gate_rows(const void *args, int64_t begin, int64_t end) {
    const qr_gate_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *g = a->g + i * a->g_stride, *u = a->u + i * a->u_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec y = qr_vec_act(a->fn, qr_vec_load_n(g + j, a->dim - j));
            const qr_vec product = qr_vec_mul(y, qr_vec_load_n(u + j, a->dim - j));
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, product, a->dim - j);
        }
    }
}

static void clamped_gate_rows(const void *args, int64_t begin, int64_t end) {
    const qr_clamped_gate_args *a = args;
    const qr_vec alpha = qr_vec_set1(a->alpha), one = qr_vec_set1(1.0F);
    for (int64_t i = begin; i < end; i++) {
        const float *g = a->g + i * a->stride, *u = a->u + i * a->stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            qr_vec rest;
            const qr_vec held_g = qr_vec_at_most(qr_vec_load_n(g + j, a->dim - j), a->limit);
            const qr_vec held_u = qr_vec_held(qr_vec_load_n(u + j, a->dim - j), a->limit);
            const qr_vec open = qr_vec_sigmoid(qr_vec_mul(alpha, held_g), &rest);
            const qr_vec y = qr_vec_mul(qr_vec_mul(held_g, open), qr_vec_add(held_u, one));
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, y, a->dim - j);
        }
    }
}

static void xielu_rows(const void *args, int64_t begin, int64_t end) {
    const qr_xielu_args *a = args;
    const qr_xielu_factors f = qr_xielu_factors_of(a);
    for (int64_t i = begin; i < end; i++) {
        const float *x = a->x + i * a->x_stride;
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const qr_vec at = qr_vec_load_n(x + j, a->dim - j);
            const qr_vec above = qr_vec_mul(qr_vec_mul(qr_vec_set1(f.p), at), at);
            const qr_vec below = qr_vec_mul(qr_vec_set1(f.n), qr_xielu_below(&f, at));
            const qr_vec curve = qr_vec_select_less(qr_vec_zero(), at, above, below);
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, qr_vec_fma(qr_vec_set1(f.beta), at, curve),
                               a->dim - j);
        }
    }
}

static void add_range(const void *args, int64_t begin, int64_t end) {
    const qr_add_args *a = args;
    for (int64_t i = begin; i < end; i += QR_VEC) {
        const qr_vec sum = qr_vec_add(qr_vec_load_n(a->x + i, end - i), qr_vec_load_n(a->y + i, end - i));
        qr_vec_store_n(a->x + i, sum, end - i);
    }
}

static void scale_range(const void *args, int64_t begin, int64_t end) {
    const qr_scale_args *a = args;
    const qr_vec factor = qr_vec_set1(a->by != NULL ? a->factor * a->by[0] : a->factor);
    for (int64_t i = begin; i < end; i += QR_VEC) {
        qr_vec_store_n(a->x + i, qr_vec_mul(qr_vec_load_n(a->x + i, end - i), factor), end - i);
    }
}

static void scale_columns_rows(const void *args, int64_t begin, int64_t end) {
    const qr_scale_columns_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        float *x = a->x + i * a->x_stride;
        for (int p = 0; p < QR_MAX_SCALED_PARTS; p++) {
            const int64_t n = a->parts[p].n;
            const qr_vec factor = qr_vec_set1(a->parts[p].factor);
            for (int64_t j = 0; j < n; j += QR_VEC) {
                qr_vec_store_n(x + j, qr_vec_mul(qr_vec_load_n(x + j, n - j), factor), n - j);
            }
            x += n;
        }
    }
}

static void softcap_range(const void *args, int64_t begin, int64_t end) {
    const qr_softcap_args *a = args;
    for (int64_t i = begin; i < end; i += QR_VEC) {
        qr_vec_store_n(a->x + i, qr_vec_softcap(qr_vec_load_n(a->x + i, end - i), a->cap), end - i);
    }
}

QR_CPU_RANGE_OP(activation, args->n_rows, FUNCTION_COST * args->dim, activation_rows)
QR_CPU_RANGE_OP(gate, args->n_rows, FUNCTION_COST * args->dim, gate_rows)
QR_CPU_RANGE_OP(clamped_gate, args->n_rows, FUNCTION_COST * args->dim, clamped_gate_rows)
QR_CPU_RANGE_OP(xielu, args->n_rows, FUNCTION_COST * args->dim, xielu_rows)
QR_CPU_RANGE_OP(add, args->n, 1, add_range)
QR_CPU_RANGE_OP(scale, args->n, 1, scale_range)
QR_CPU_RANGE_OP(scale_columns, args->n_rows, args->x_stride, scale_columns_rows)
QR_CPU_RANGE_OP(softcap, args->n, FUNCTION_COST, softcap_range)

/* sum_squares, adamw, sgd. What depends on the step alone is computed once, in F64. */
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

/* --- sum_squares: the squares of F32 are exact in F64 and cannot overflow it, so a sum that is not finite says that an
 * element is not, and only then are they counted --- */

static double squares_of(const float *x, int64_t n) {
    enum { N_SUMS = 4 };
    qr_vec_f64 sums[N_SUMS] = {{.lanes = {0.0}}, {.lanes = {0.0}}, {.lanes = {0.0}}, {.lanes = {0.0}}};
    for (int64_t i = 0; i < n; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= n) { break; }
            qr_vec_f64_add_squares(&sums[k], qr_vec_load_n(x + j, n - j));
        }
    }
    return (qr_vec_f64_total(&sums[0]) + qr_vec_f64_total(&sums[1])) +
           (qr_vec_f64_total(&sums[2]) + qr_vec_f64_total(&sums[3]));
}

static void squares_chunks(const void *args, int64_t begin, int64_t end) {
    const qr_sum_squares_args *a = args;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        const float *x = a->x + chunk * QR_SQUARES_CHUNK;
        const int64_t n = qr_min(QR_SQUARES_CHUNK, a->n - chunk * QR_SQUARES_CHUNK);
        a->dst[chunk] = squares_of(x, n);
        a->n_nonfinite[chunk] = 0;
        if (isfinite(a->dst[chunk])) { continue; }
        for (int64_t i = 0; i < n; i++) { a->n_nonfinite[chunk] += !isfinite(x[i]); }
    }
}

QR_CPU_RANGE_OP(sum_squares, qr_ceil_div(args->n, QR_SQUARES_CHUNK), QR_SQUARES_CHUNK, squares_chunks)

/* --- adamw --- */

struct adamw {
    const qr_adamw_args *args;
    float keep_m, add_m, keep_v, add_v; /* β and 1 − β */
    float decay;                        /* 1 − lr · wd */
    float step_size;                    /* lr / (1 − β1^t) */
    float root_scale;                   /* 1 / sqrt(1 − β2^t) */
};

static void adamw_range(const void *args, int64_t begin, int64_t end) {
    const struct adamw *s = args;
    const qr_adamw_args *a = s->args;
    const qr_vec grad_scale = qr_vec_set1(a->grad_scale), eps = qr_vec_set1(a->eps);
    const qr_vec keep_m = qr_vec_set1(s->keep_m), keep_v = qr_vec_set1(s->keep_v), decay = qr_vec_set1(s->decay);
    const qr_vec add_m = qr_vec_set1(s->add_m), add_v = qr_vec_set1(s->add_v);
    const qr_vec back = qr_vec_set1(-s->step_size), root_scale = qr_vec_set1(s->root_scale);
    for (int64_t i = begin; i < end; i += QR_VEC) {
        const int64_t n = end - i;
        const qr_vec g = qr_vec_mul(qr_vec_load_n(a->g + i, n), grad_scale);
        const qr_vec m = qr_vec_fma(keep_m, qr_vec_load_n(a->m + i, n), qr_vec_mul(add_m, g));
        const qr_vec v = qr_vec_fma(keep_v, qr_vec_load_n(a->v + i, n), qr_vec_mul(qr_vec_mul(add_v, g), g));
        const qr_vec root = qr_vec_fma(qr_vec_sqrt(v), root_scale, eps);
        const qr_vec decayed = qr_vec_mul(qr_vec_load_n(a->p + i, n), decay);
        qr_vec_store_n(a->p + i, qr_vec_fma(qr_vec_div(m, root), back, decayed), n);
        qr_vec_store_n(a->m + i, m, n);
        qr_vec_store_n(a->v + i, v, n);
    }
}

/* The same of 8-bit AdamW's small tensors: step_size, root_scale (of eps) and decay are bitsandbytes', and nothing is
 * fused, as in adamw8bit.c. */
static void adamw_of_8bit_range(const void *args, int64_t begin, int64_t end) {
    const struct adamw *s = args;
    const qr_adamw_args *a = s->args;
    const qr_vec grad_scale = qr_vec_set1(a->grad_scale), eps = qr_vec_set1(s->root_scale * a->eps);
    const qr_vec keep_m = qr_vec_set1(s->keep_m), keep_v = qr_vec_set1(s->keep_v), decay = qr_vec_set1(s->decay);
    const qr_vec add_m = qr_vec_set1(s->add_m), add_v = qr_vec_set1(s->add_v), step_size = qr_vec_set1(s->step_size);
    for (int64_t i = begin; i < end; i += QR_VEC) {
        const int64_t n = end - i;
        const qr_vec g = qr_vec_mul(qr_vec_load_n(a->g + i, n), grad_scale);
        const qr_vec m = qr_vec_add(qr_vec_mul(qr_vec_load_n(a->m + i, n), keep_m), qr_vec_mul(add_m, g));
        const qr_vec v =
            qr_vec_add(qr_vec_mul(qr_vec_load_n(a->v + i, n), keep_v), qr_vec_mul(add_v, qr_vec_mul(g, g)));
        const qr_vec root = qr_vec_add(qr_vec_sqrt(v), eps);
        const qr_vec moved = qr_vec_add(qr_vec_load_n(a->p + i, n), qr_vec_mul(step_size, qr_vec_div(m, root)));
        qr_vec_store_n(a->p + i, a->weight_decay > 0.0F ? qr_vec_mul(moved, decay) : moved, n);
        qr_vec_store_n(a->m + i, m, n);
        qr_vec_store_n(a->v + i, v, n);
    }
}

static void run_adamw_of_8bit(const qr_backend *backend, const qr_adamw_args *args, int64_t cost) {
    const float correction1 = 1.0F - (float)pow((double)args->beta1, (double)args->step);
    const float correction2 = sqrtf(1.0F - (float)pow((double)args->beta2, (double)args->step));
    const struct adamw s = {
        .args = args,
        .keep_m = args->beta1,
        .add_m = 1.0F - args->beta1,
        .keep_v = args->beta2,
        .add_v = 1.0F - args->beta2,
        .decay = 1.0F - args->lr * args->weight_decay,
        .step_size = -args->lr * correction2 / correction1,
        .root_scale = correction2,
    };
    qr_cpu_run_ranges(backend, args->n, cost, adamw_of_8bit_range, &s);
}

void QR_ISA(qr_cpu_adamw)(const qr_backend *backend, const qr_adamw_args *args) {
    enum { COST = 4 };
    if (args->of_8bit) {
        run_adamw_of_8bit(backend, args, COST);
        return;
    }
    const double beta1 = (double)args->beta1, beta2 = (double)args->beta2, lr = (double)args->lr;
    const struct adamw s = {
        .args = args,
        .keep_m = args->beta1,
        .add_m = (float)(1.0 - beta1),
        .keep_v = args->beta2,
        .add_v = (float)(1.0 - beta2),
        .decay = (float)(1.0 - lr * (double)args->weight_decay),
        .step_size = (float)(lr / (1.0 - pow(beta1, (double)args->step))),
        .root_scale = (float)(1.0 / sqrt(1.0 - pow(beta2, (double)args->step))),
    };
    qr_cpu_run_ranges(backend, args->n, COST, adamw_range, &s);
}

/* --- sgd --- */

static void sgd_range(const void *args, int64_t begin, int64_t end) {
    const qr_sgd_args *a = args;
    const qr_vec grad_scale = qr_vec_set1(a->grad_scale), weight_decay = qr_vec_set1(a->weight_decay);
    const qr_vec momentum = qr_vec_set1(a->momentum), back = qr_vec_set1(-a->lr);
    for (int64_t i = begin; i < end; i += QR_VEC) {
        const int64_t n = end - i;
        const qr_vec p = qr_vec_load_n(a->p + i, n);
        const qr_vec g = qr_vec_fma(weight_decay, p, qr_vec_mul(qr_vec_load_n(a->g + i, n), grad_scale));
        const qr_vec m = a->step == 1 ? g : qr_vec_fma(momentum, qr_vec_load_n(a->m + i, n), g);
        qr_vec_store_n(a->p + i, qr_vec_fma(m, back, p), n);
        qr_vec_store_n(a->m + i, m, n);
    }
}

QR_CPU_RANGE_OP(sgd, args->n, 2, sgd_range)

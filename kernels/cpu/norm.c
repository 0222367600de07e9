/* rms_norm, layer_norm. Sums run in four vectors side by side, an order that depends on `dim` only. */
#include "kernels/cpu/vec_math.h"
#include "kernels/cpu/vector_ops.h"

enum { N_SUMS = 4 };

QR_INLINE float sums_total(const qr_vec sums[N_SUMS]) {
    return qr_vec_sum(qr_vec_add(qr_vec_add(sums[0], sums[1]), qr_vec_add(sums[2], sums[3])));
}

/* Sum of (x − centre)^2, or of x where `squared` is false. */
QR_INLINE float sum_row(const float *x, int64_t n, float centre, bool squared) {
    qr_vec sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    const qr_vec shift = qr_vec_set1(centre);
    for (int64_t i = 0; i < n; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= n) { break; }
            qr_vec v = qr_vec_sub(qr_vec_load_n(x + j, n - j), shift);
            if (n - j < QR_VEC) { v = qr_vec_select_range(v, qr_vec_zero(), 0, (int)(n - j)); }
            sums[k] = squared ? qr_vec_fma(v, v, sums[k]) : qr_vec_add(sums[k], v);
        }
    }
    return sums_total(sums);
}

static void rms_norm_group(const qr_rms_norm_args *a, const float *src, int64_t dst_index) {
    const float mean = sum_row(src, a->dim, 0.0F, true) / (float)a->dim;
    const qr_vec scale = qr_vec_set1(1.0F / sqrtf(mean + a->eps)), offset = qr_vec_set1(a->weight_offset);
    for (int64_t j = 0; j < a->dim; j += QR_VEC) {
        const qr_vec weight = qr_vec_add(qr_vec_load_n(a->weight + j, a->dim - j), offset);
        const qr_vec y = qr_vec_mul(qr_vec_mul(qr_vec_load_n(src + j, a->dim - j), scale), weight);
        qr_vec_store_act_n(a->dst, a->dst_dtype, dst_index + j, y, a->dim - j);
    }
}

static void rms_norm_rows(const void *args, int64_t begin, int64_t end) {
    const qr_rms_norm_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t group = 0; group < a->n_groups; group++) {
            rms_norm_group(a, a->src + i * a->src_stride + group * a->dim, i * a->dst_stride + group * a->dim);
        }
    }
}

static void layer_norm_rows(const void *args, int64_t begin, int64_t end) {
    const qr_layer_norm_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        const float *src = a->src + i * a->dim;
        const float mean = sum_row(src, a->dim, 0.0F, false) / (float)a->dim;
        const float variance = sum_row(src, a->dim, mean, true) / (float)a->dim;
        const qr_vec scale = qr_vec_set1(1.0F / sqrtf(variance + a->eps)), shift = qr_vec_set1(mean);
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            const qr_vec bias = a->bias != NULL ? qr_vec_load_n(a->bias + j, n) : qr_vec_zero();
            const qr_vec x = qr_vec_mul(qr_vec_sub(qr_vec_load_n(src + j, n), shift), scale);
            const qr_vec y = qr_vec_fma(x, qr_vec_load_n(a->weight + j, n), bias);
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, y, n);
        }
    }
}

void QR_ISA(qr_cpu_rms_norm)(const qr_backend *backend, const qr_rms_norm_args *args, void *workspace) {
    (void)workspace;
    qr_cpu_run_ranges(backend, args->n_rows, args->n_groups * args->dim, rms_norm_rows, args);
}

void QR_ISA(qr_cpu_layer_norm)(const qr_backend *backend, const qr_layer_norm_args *args, void *workspace) {
    (void)workspace;
    qr_cpu_run_ranges(backend, args->n_rows, args->dim, layer_norm_rows, args);
}

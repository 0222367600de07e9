/* rms_norm, layer_norm. */
#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/vector_ops.h"

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
        const qr_vec offset = qr_vec_set1(a->weight_offset);
        for (int64_t j = 0; j < a->dim; j += QR_VEC) {
            const int64_t n = a->dim - j;
            const qr_vec bias = a->bias != NULL ? qr_vec_load_n(a->bias + j, n) : qr_vec_zero();
            const qr_vec x = qr_vec_mul(qr_vec_sub(qr_vec_load_n(src + j, n), shift), scale);
            const qr_vec y = qr_vec_fma(x, qr_vec_add(qr_vec_load_n(a->weight + j, n), offset), bias);
            qr_vec_store_act_n(a->dst, a->dst_dtype, i * a->dim + j, y, n);
        }
    }
}

QR_CPU_RANGE_OP(rms_norm, args->n_rows, args->n_groups * args->dim, rms_norm_rows)
QR_CPU_RANGE_OP(layer_norm, args->n_rows, args->dim, layer_norm_rows)

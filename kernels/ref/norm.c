/* rms_norm and layer_norm. */
#include <math.h>

#include "kernels/ref/ref.h"

void qr_ref_rms_norm(const qr_rms_norm_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        for (int64_t g = 0; g < args->n_groups; g++) {
            const float *x = args->src + i * args->src_stride + g * args->dim;
            const int64_t first = i * args->dst_stride + g * args->dim;
            double sum = 0.0;
            for (int64_t j = 0; j < args->dim; j++) { sum += (double)x[j] * (double)x[j]; }
            const double inverse = 1.0 / sqrt(sum / (double)args->dim + (double)args->eps);
            for (int64_t j = 0; j < args->dim; j++) {
                const double weight = (double)args->weight[j] + (double)args->weight_offset;
                qr_ref_store(args->dst, args->dst_dtype, first + j, (double)x[j] * inverse * weight);
            }
        }
    }
}

void qr_ref_layer_norm(const qr_layer_norm_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        const float *x = args->src + i * args->dim;
        double mean = 0.0, variance = 0.0;
        for (int64_t j = 0; j < args->dim; j++) { mean += (double)x[j]; }
        mean /= (double)args->dim;
        for (int64_t j = 0; j < args->dim; j++) { variance += ((double)x[j] - mean) * ((double)x[j] - mean); }
        const double inverse = 1.0 / sqrt(variance / (double)args->dim + (double)args->eps);
        for (int64_t j = 0; j < args->dim; j++) {
            const double bias = args->bias != NULL ? (double)args->bias[j] : 0.0;
            const double weight = (double)args->weight[j] + (double)args->weight_offset;
            const double value = ((double)x[j] - mean) * inverse * weight + bias;
            qr_ref_store(args->dst, args->dst_dtype, i * args->dim + j, value);
        }
    }
}

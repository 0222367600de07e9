/* dora_norm, dora and dora_backward. */
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

size_t qr_ref_dora_norm_workspace(const qr_dora_norm_args *args) {
    return (size_t)args->weight->desc.cols * sizeof(float);
}

void qr_ref_dora_norm(const qr_dora_norm_args *args, void *workspace) {
    const int64_t in = args->weight->desc.cols;
    float *w = workspace; /* [in], one row at a time */
    for (int64_t o = 0; o < args->weight->desc.rows; o++) {
        double squares = 0.0;
        qr_ref_weight_row(args->weight, o, w);
        for (int64_t c = 0; c < in; c++) {
            double update = 0.0;
            for (int32_t r = 0; r < args->rank; r++) {
                update += (double)args->b[o * args->rank + r] * (double)args->a[r * in + c];
            }
            const double element = (double)w[c] + (double)args->scale * update;
            squares += element * element;
        }
        const double norm = sqrt(squares);
        if (args->magnitude != NULL) { args->ratio[o] = (float)((double)args->magnitude[o] / norm); }
        if (args->norm != NULL) { args->norm[o] = (float)norm; }
    }
}

void qr_ref_dora(const qr_dora_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        assert(args->row_adapter[i] < args->n_adapters);
        const float *ratio = args->row_adapter[i] >= 0 ? args->factors[args->row_adapter[i]].ratio : NULL;
        for (int64_t o = 0; ratio != NULL && o < args->dim; o++) {
            float *dst = &args->dst[i * args->dst_stride + o];
            const double src = (double)args->src[i * args->src_stride + o];
            const double bias = args->bias != NULL ? (double)args->bias[o] : 0.0;
            const double before = args->accumulate ? (double)*dst : 0.0;
            *dst = (float)(before + ((double)ratio[o] - (double)args->minus) * (src - bias));
        }
    }
}

void qr_ref_dora_backward(const qr_dora_backward_args *args, void *workspace) {
    (void)workspace;
    for (int64_t o = 0; o < args->dim; o++) {
        double sum = 0.0;
        for (int64_t i = 0; i < args->n_rows; i++) {
            sum += (double)args->dy[i * args->dy_stride + o] * (double)args->z[i * args->z_stride + o];
        }
        args->dmagnitude[o] = (float)((double)args->dmagnitude[o] + sum / (double)args->norm[o]);
    }
}

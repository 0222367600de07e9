/* embedding and gather_rows. */
#include <assert.h>
#include <string.h>

#include "kernels/ref/ref.h"

size_t qr_ref_embedding_workspace(const qr_embedding_args *args) {
    return (size_t)args->table->desc.cols * sizeof(float);
}

void qr_ref_embedding(const qr_embedding_args *args, void *workspace) {
    const int64_t dim = args->table->desc.cols;
    float *row = workspace;
    for (int64_t i = 0; i < args->n_tokens; i++) {
        assert(args->ids[i] >= -args->n_sampled);
        const int32_t token = args->ids[i] >= 0 ? args->ids[i] : args->sampled[-1 - args->ids[i]].token;
        const int32_t id = args->first_beyond && token >= args->table->desc.rows ? 0 : token;
        assert(id >= 0 && id < args->table->desc.rows);
        qr_ref_weight_row(args->table, id, row);
        for (int64_t j = 0; j < dim; j++) {
            const float value = row[j] * args->scale;
            float *dst = &args->dst[i * dim + j];
            *dst = args->accumulate ? *dst + value : value;
        }
    }
}

void qr_ref_gather_rows(const qr_gather_rows_args *args, void *workspace) {
    (void)workspace;
    for (int64_t i = 0; i < args->n_rows; i++) {
        assert(args->rows[i] >= 0);
        memcpy(args->dst + i * args->dim, args->src + args->rows[i] * args->dim, (size_t)args->dim * sizeof(float));
    }
}

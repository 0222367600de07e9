/* embedding, gather_rows, and their gradients. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/vec_math.h"
#include "kernels/cpu/vector_ops.h"

struct embedding {
    const qr_embedding_args *args;
    qr_cpu_layout layout;
};

/* Elements [j, j + n) of a row of the table, dequantised as quant/int8.h does. */
QR_INLINE qr_vec load_elements(const struct embedding *e, const void *row, qr_vec row_absmax, int64_t j, int64_t n) {
    switch (e->args->table->desc.format) {
        case QR_WEIGHT_F16: return qr_vec_load_f16_n((const uint16_t *)row + j, n);
        case QR_WEIGHT_BF16: return qr_vec_load_bf16_n((const uint16_t *)row + j, n);
        case QR_WEIGHT_INT8: {
            const qr_vec scaled = qr_vec_mul(qr_vec_load_i8_n((const int8_t *)row + j, n), row_absmax);
            return qr_vec_mul(scaled, qr_vec_set1(1.0F / 127.0F));
        }
        default: return qr_vec_load_n((const float *)row + j, n);
    }
}

static void embedding_rows(const void *args, int64_t begin, int64_t end) {
    const struct embedding *e = args;
    const qr_embedding_args *a = e->args;
    const int64_t dim = a->table->desc.cols;
    const bool is_int8 = a->table->desc.format == QR_WEIGHT_INT8;
    for (int64_t i = begin; i < end; i++) {
        const int32_t token = a->ids[i] >= 0 ? a->ids[i] : a->sampled[-1 - a->ids[i]].token;
        const int32_t id = a->first_beyond && token >= a->table->desc.rows ? 0 : token;
        const void *row = qr_cpu_row(a->table, &e->layout, id);
        const qr_vec row_absmax = qr_vec_set1(is_int8 ? qr_cpu_scales(a->table, &e->layout)[id] : 0.0F);
        float *dst = a->dst + i * dim;
        for (int64_t j = 0; j < dim; j += QR_VEC) {
            const qr_vec x = qr_vec_mul(load_elements(e, row, row_absmax, j, dim - j), qr_vec_set1(a->scale));
            const qr_vec y = a->accumulate ? qr_vec_add(qr_vec_load_n(dst + j, dim - j), x) : x;
            qr_vec_store_n(dst + j, y, dim - j);
        }
    }
}

static void gather_rows(const void *args, int64_t begin, int64_t end) {
    const qr_gather_rows_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        memcpy(a->dst + i * a->dim, a->src + a->rows[i] * a->dim, (size_t)a->dim * sizeof *a->dst);
    }
}

void QR_ISA(qr_cpu_embedding)(const qr_backend *backend, const qr_embedding_args *args) {
    struct embedding e = {.args = args};
    qr_cpu_layout_of(&args->table->desc, &e.layout);
    qr_cpu_run_ranges(backend, args->n_tokens, args->table->desc.cols, embedding_rows, &e);
}

QR_CPU_RANGE_OP(gather_rows, args->n_rows, args->dim, gather_rows)

/* A token may occur many times, so the columns are cut: every task adds all tokens, in order. */
enum { COLUMN_BLOCK = 64 };

static void embedding_backward_columns(const void *args, int64_t begin, int64_t end) {
    const qr_embedding_backward_args *a = args;
    const int64_t first = begin * COLUMN_BLOCK, last = qr_min(a->dim, end * COLUMN_BLOCK);
    const qr_vec scale = qr_vec_set1(a->scale);
    for (int64_t i = 0; i < a->n_tokens; i++) {
        const float *dy = a->dy + i * a->dim;
        const int32_t id = a->first_beyond && a->ids[i] >= a->vocab ? 0 : a->ids[i];
        float *dst = a->dtable + id * a->dim;
        for (int64_t j = first; j < last; j += QR_VEC) {
            const qr_vec old = qr_vec_load_n(dst + j, last - j);
            qr_vec_store_n(dst + j, qr_vec_fma(qr_vec_load_n(dy + j, last - j), scale, old), last - j);
        }
    }
}

static int64_t first_at_or_above(const int32_t *rows, int64_t n_rows, int64_t row) {
    int64_t low = 0, high = n_rows;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (rows[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void scatter_range(const void *args, int64_t begin, int64_t end) {
    const qr_scatter_rows_args *a = args;
    int64_t i = first_at_or_above(a->rows, a->n_rows, begin);
    for (int64_t row = begin; row < end; row++) {
        float *dst = a->dst + row * a->dim;
        if (i < a->n_rows && a->rows[i] == row) {
            memcpy(dst, a->src + i++ * a->dim, (size_t)a->dim * sizeof *dst);
        } else {
            memset(dst, 0, (size_t)a->dim * sizeof *dst);
        }
    }
}

QR_CPU_RANGE_OP(embedding_backward, qr_ceil_div(args->dim, COLUMN_BLOCK), COLUMN_BLOCK * args->n_tokens,
                embedding_backward_columns)
QR_CPU_RANGE_OP(scatter_rows, args->n_dst_rows, args->dim, scatter_range)

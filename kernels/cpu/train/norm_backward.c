/* rms_norm_backward, layer_norm_backward. With n = (x − mean) · scale the normalised group and g = dy · weight:
 *     dx = scale · (g − mean(g) − n · mean(g · n)), dweight = sum of dy · n, dbias = sum of dy,
 * where RMSNorm has neither of the first two means. Sums over dim are those of norm_sums.h; sums over rows run in
 * order, each column in a lane of its own. */
#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

typedef struct norm {
    const float *x, *weight, *dy;
    float *dx, *dweight, *dbias;
    int64_t n_rows, n_groups, dim, x_stride, dy_stride, dx_stride;
    float eps, weight_offset;
    bool accumulate;
    qr_norm_moments *moments; /* [n_rows, n_groups] */
} norm;

QR_INLINE qr_vec weighted(const norm *a, const float *dy, int64_t j) {
    const qr_vec weight = qr_vec_add(qr_vec_load_n(a->weight + j, a->dim - j), qr_vec_set1(a->weight_offset));
    return qr_vec_mul(qr_vec_load_n(dy + j, a->dim - j), weight);
}

QR_INLINE qr_vec normalised(const norm *a, const qr_norm_moments *m, const float *x, int64_t j) {
    const qr_vec difference = qr_vec_sub(qr_vec_load_n(x + j, a->dim - j), qr_vec_set1(m->mean));
    return qr_vec_mul(difference, qr_vec_set1(m->scale));
}

/* Sums of g and of g · n. Lanes behind the end hold zeros: those of g are. */
QR_INLINE void gradient_moments(const norm *a, const float *x, const float *dy, qr_norm_moments *m, bool is_centred) {
    qr_vec g_sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    qr_vec gn_sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    for (int64_t i = 0; i < a->dim; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= a->dim) { break; }
            const qr_vec g = weighted(a, dy, j);
            if (is_centred) { g_sums[k] = qr_vec_add(g_sums[k], g); }
            gn_sums[k] = qr_vec_fma(g, normalised(a, m, x, j), gn_sums[k]);
        }
    }
    m->mean_g = is_centred ? sums_total(g_sums) / (float)a->dim : 0.0F;
    m->mean_gn = sums_total(gn_sums) / (float)a->dim;
}

QR_INLINE void find_moments(const norm *a, const float *x, const float *dy, qr_norm_moments *m, bool is_centred) {
    m->mean = is_centred ? sum_row(x, a->dim, 0.0F, false) / (float)a->dim : 0.0F;
    m->scale = 1.0F / sqrtf(sum_row(x, a->dim, m->mean, true) / (float)a->dim + a->eps);
    gradient_moments(a, x, dy, m, is_centred);
}

static void write_dx(const norm *a, const float *x, const float *dy, float *dx, const qr_norm_moments *m) {
    const qr_vec scale = qr_vec_set1(m->scale), mean_g = qr_vec_set1(m->mean_g), mean_gn = qr_vec_set1(m->mean_gn);
    for (int64_t j = 0; j < a->dim; j += QR_VEC) {
        const qr_vec along = qr_vec_mul(normalised(a, m, x, j), mean_gn);
        const qr_vec rest = qr_vec_sub(qr_vec_sub(weighted(a, dy, j), mean_g), along);
        const qr_vec old = a->accumulate ? qr_vec_load_n(dx + j, a->dim - j) : qr_vec_zero();
        qr_vec_store_n(dx + j, qr_vec_fma(rest, scale, old), a->dim - j);
    }
}

QR_INLINE void run_rows(const norm *a, int64_t begin, int64_t end, bool wants_moments, bool wants_dx, bool is_centred) {
    for (int64_t i = begin; i < end; i++) {
        for (int64_t group = 0; group < a->n_groups; group++) {
            const int64_t at = group * a->dim;
            const float *x = a->x + i * a->x_stride + at, *dy = a->dy + i * a->dy_stride + at;
            qr_norm_moments *m = &a->moments[i * a->n_groups + group];
            if (wants_moments) { find_moments(a, x, dy, m, is_centred); }
            if (wants_dx) { write_dx(a, x, dy, a->dx + i * a->dx_stride + at, m); }
        }
    }
}

static void rms_moments(const void *args, int64_t begin, int64_t end) {
    run_rows(args, begin, end, true, false, false);
}

static void rms_rows(const void *args, int64_t begin, int64_t end) { run_rows(args, begin, end, true, true, false); }

static void layer_moments(const void *args, int64_t begin, int64_t end) {
    run_rows(args, begin, end, true, false, true);
}

static void layer_rows(const void *args, int64_t begin, int64_t end) { run_rows(args, begin, end, true, true, true); }

static void dx_rows(const void *args, int64_t begin, int64_t end) { run_rows(args, begin, end, false, true, false); }

/* --- Gradients of the weights: blocks of columns, all rows in order --- */

enum { COLUMN_VECTORS = 4, COLUMN_BLOCK = COLUMN_VECTORS * QR_VEC };

static void add_columns(float *dst, const qr_vec *sums, int64_t first, int64_t dim) {
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
        const int64_t j = first + v * QR_VEC;
        if (dst == NULL || j >= dim) { break; }
        qr_vec_store_n(dst + j, qr_vec_add(qr_vec_load_n(dst + j, dim - j), sums[v]), dim - j);
    }
}

static void weight_column_block(const norm *a, int64_t first) {
    qr_vec weight_sums[COLUMN_VECTORS], bias_sums[COLUMN_VECTORS];
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) { weight_sums[v] = bias_sums[v] = qr_vec_zero(); }
    for (int64_t i = 0; i < a->n_rows; i++) {
        for (int64_t group = 0; group < a->n_groups; group++) {
            const float *x = a->x + i * a->x_stride + group * a->dim, *dy = a->dy + i * a->dy_stride + group * a->dim;
            const qr_norm_moments *m = &a->moments[i * a->n_groups + group];
            QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
                const int64_t j = first + v * QR_VEC;
                if (j >= a->dim) { break; }
                const qr_vec gradient = qr_vec_load_n(dy + j, a->dim - j);
                weight_sums[v] = qr_vec_fma(gradient, normalised(a, m, x, j), weight_sums[v]);
                bias_sums[v] = qr_vec_add(bias_sums[v], gradient);
            }
        }
    }
    add_columns(a->dweight, weight_sums, first, a->dim);
    add_columns(a->dbias, bias_sums, first, a->dim);
}

static void weight_columns(const void *args, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) { weight_column_block(args, block * COLUMN_BLOCK); }
}

/* dx may be dy: the gradients of the weights are taken before it is written. */
static void run_norm(const qr_backend *backend, const norm *a, qr_range_fn moments, qr_range_fn rows) {
    enum { PASSES = 3 };
    const int64_t row_cost = PASSES * a->n_groups * a->dim;
    if (a->dweight == NULL && a->dbias == NULL) {
        qr_cpu_run_ranges(backend, a->n_rows, row_cost, rows, a);
        return;
    }
    qr_cpu_run_ranges(backend, a->n_rows, row_cost, moments, a);
    const int64_t block_cost = 2 * a->n_rows * a->n_groups * COLUMN_BLOCK;
    qr_cpu_run_ranges(backend, qr_ceil_div(a->dim, COLUMN_BLOCK), block_cost, weight_columns, a);
    qr_cpu_run_ranges(backend, a->n_rows, row_cost, dx_rows, a);
}

void QR_ISA(qr_cpu_rms_norm_backward)(const qr_backend *backend, const qr_rms_norm_backward_args *args,
                                      void *workspace) {
    const norm a = {
        .x = args->x,
        .weight = args->weight,
        .dy = args->dy,
        .dx = args->dx,
        .dweight = args->dweight,
        .n_rows = args->n_rows,
        .n_groups = args->n_groups,
        .dim = args->dim,
        .x_stride = args->x_stride,
        .dy_stride = args->dy_stride,
        .dx_stride = args->dx_stride,
        .eps = args->eps,
        .weight_offset = args->weight_offset,
        .accumulate = args->accumulate,
        .moments = workspace,
    };
    run_norm(backend, &a, rms_moments, rms_rows);
}

void QR_ISA(qr_cpu_layer_norm_backward)(const qr_backend *backend, const qr_layer_norm_backward_args *args,
                                        void *workspace) {
    const norm a = {
        .x = args->x,
        .weight = args->weight,
        .dy = args->dy,
        .dx = args->dx,
        .dweight = args->dweight,
        .dbias = args->dbias,
        .n_rows = args->n_rows,
        .n_groups = 1,
        .dim = args->dim,
        .x_stride = args->dim,
        .dy_stride = args->dim,
        .dx_stride = args->dim,
        .eps = args->eps,
        .accumulate = args->accumulate,
        .moments = workspace,
    };
    run_norm(backend, &a, layer_moments, layer_rows);
}

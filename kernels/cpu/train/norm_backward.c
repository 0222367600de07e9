/* rms_norm_backward, layer_norm_backward. With n = (x − mean) · scale the normalised group and g = dy · weight:
 *     dx = scale · (g − mean(g) − n · mean(g · n)), dweight = sum of dy · n, dbias = sum of dy,
 * where RMSNorm has neither of the first two means. Sums over dim are those of norm_sums.h; sums over rows go on from
 * what is there, row by row, each column in a lane of its own: rows in several calls have the bits of one. */
#include "kernels/cpu/norm_sums.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

/* Either op in the terms of rms_norm_backward. */
typedef struct norm {
    qr_rms_norm_backward_args args;
    float *dbias;             /* layer_norm_backward: NULL: not wanted */
    qr_norm_moments *moments; /* [n_rows, n_groups] */
} norm;

QR_INLINE qr_vec weighted(const norm *n, const float *dy, int64_t j) {
    const qr_vec weight =
        qr_vec_add(qr_vec_load_n(n->args.weight + j, n->args.dim - j), qr_vec_set1(n->args.weight_offset));
    return qr_vec_mul(qr_vec_load_n(dy + j, n->args.dim - j), weight);
}

QR_INLINE qr_vec normalised(const norm *n, const qr_norm_moments *m, const float *x, int64_t j) {
    const qr_vec difference = qr_vec_sub(qr_vec_load_n(x + j, n->args.dim - j), qr_vec_set1(m->mean));
    return qr_vec_mul(difference, qr_vec_set1(m->scale));
}

/* Sums of g and of g · n. Lanes past the end hold zeros, because those of g do. */
QR_INLINE void gradient_moments(const norm *n, const float *x, const float *dy, qr_norm_moments *m, bool is_centred) {
    qr_vec g_sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    qr_vec gn_sums[N_SUMS] = {qr_vec_zero(), qr_vec_zero(), qr_vec_zero(), qr_vec_zero()};
    for (int64_t i = 0; i < n->args.dim; i += N_SUMS * QR_VEC) {
        QR_UNROLL for (int k = 0; k < N_SUMS; k++) {
            const int64_t j = i + k * QR_VEC;
            if (j >= n->args.dim) { break; }
            const qr_vec g = weighted(n, dy, j);
            if (is_centred) { g_sums[k] = qr_vec_add(g_sums[k], g); }
            gn_sums[k] = qr_vec_fma(g, normalised(n, m, x, j), gn_sums[k]);
        }
    }
    m->mean_g = is_centred ? sums_total(g_sums) / (float)n->args.dim : 0.0F;
    m->mean_gn = sums_total(gn_sums) / (float)n->args.dim;
}

QR_INLINE void find_moments(const norm *n, const float *x, const float *dy, qr_norm_moments *m, bool is_centred) {
    m->mean = is_centred ? sum_row(x, n->args.dim, 0.0F, false) / (float)n->args.dim : 0.0F;
    m->scale = 1.0F / sqrtf(sum_row(x, n->args.dim, m->mean, true) / (float)n->args.dim + n->args.eps);
    gradient_moments(n, x, dy, m, is_centred);
}

static void write_dx(const norm *n, const float *x, const float *dy, float *dx, const qr_norm_moments *m) {
    const qr_vec scale = qr_vec_set1(m->scale), mean_g = qr_vec_set1(m->mean_g), mean_gn = qr_vec_set1(m->mean_gn);
    for (int64_t j = 0; j < n->args.dim; j += QR_VEC) {
        const qr_vec along = qr_vec_mul(normalised(n, m, x, j), mean_gn);
        const qr_vec rest = qr_vec_sub(qr_vec_sub(weighted(n, dy, j), mean_g), along);
        const qr_vec old = n->args.accumulate ? qr_vec_load_n(dx + j, n->args.dim - j) : qr_vec_zero();
        qr_vec_store_n(dx + j, qr_vec_fma(rest, scale, old), n->args.dim - j);
    }
}

QR_INLINE void run_rows(const norm *n, int64_t begin, int64_t end, bool wants_moments, bool wants_dx, bool is_centred) {
    for (int64_t i = begin; i < end; i++) {
        for (int64_t group = 0; group < n->args.n_groups; group++) {
            const int64_t at = group * n->args.dim;
            const float *x = n->args.x + i * n->args.x_stride + at, *dy = n->args.dy + i * n->args.dy_stride + at;
            qr_norm_moments *m = &n->moments[i * n->args.n_groups + group];
            if (wants_moments) { find_moments(n, x, dy, m, is_centred); }
            if (wants_dx) { write_dx(n, x, dy, n->args.dx + i * n->args.dx_stride + at, m); }
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

QR_INLINE void load_columns(qr_vec *sums, const float *src, int64_t first, int64_t dim) {
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
        const int64_t j = first + v * QR_VEC;
        sums[v] = src != NULL && j < dim ? qr_vec_load_n(src + j, dim - j) : qr_vec_zero();
    }
}

QR_INLINE void store_columns(float *dst, const qr_vec *sums, int64_t first, int64_t dim) {
    QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
        const int64_t j = first + v * QR_VEC;
        if (dst == NULL || j >= dim) { break; }
        qr_vec_store_n(dst + j, sums[v], dim - j);
    }
}

static void weight_column_block(const norm *n, int64_t first) {
    qr_vec weight_sums[COLUMN_VECTORS], bias_sums[COLUMN_VECTORS];
    load_columns(weight_sums, n->args.dweight, first, n->args.dim);
    load_columns(bias_sums, n->dbias, first, n->args.dim);
    for (int64_t i = 0; i < n->args.n_rows; i++) {
        for (int64_t group = 0; group < n->args.n_groups; group++) {
            const float *x = n->args.x + i * n->args.x_stride + group * n->args.dim,
                        *dy = n->args.dy + i * n->args.dy_stride + group * n->args.dim;
            const qr_norm_moments *m = &n->moments[i * n->args.n_groups + group];
            QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
                const int64_t j = first + v * QR_VEC;
                if (j >= n->args.dim) { break; }
                const qr_vec gradient = qr_vec_load_n(dy + j, n->args.dim - j);
                weight_sums[v] = qr_vec_fma(gradient, normalised(n, m, x, j), weight_sums[v]);
                bias_sums[v] = qr_vec_add(bias_sums[v], gradient);
            }
        }
    }
    store_columns(n->args.dweight, weight_sums, first, n->args.dim);
    store_columns(n->dbias, bias_sums, first, n->args.dim);
}

static void weight_columns(const void *args, int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++) { weight_column_block(args, block * COLUMN_BLOCK); }
}

/* dx may be dy: the gradients of the weights are taken before it is written. */
static void run_norm(const qr_backend *backend, const norm *n, qr_range_fn moments, qr_range_fn rows) {
    enum { PASSES = 3 };
    const int64_t row_cost = PASSES * n->args.n_groups * n->args.dim;
    if (n->args.dweight == NULL && n->dbias == NULL) {
        qr_cpu_run_ranges(backend, n->args.n_rows, row_cost, rows, n);
        return;
    }
    qr_cpu_run_ranges(backend, n->args.n_rows, row_cost, moments, n);
    const int64_t block_cost = 2 * n->args.n_rows * n->args.n_groups * COLUMN_BLOCK;
    qr_cpu_run_ranges(backend, qr_ceil_div(n->args.dim, COLUMN_BLOCK), block_cost, weight_columns, n);
    qr_cpu_run_ranges(backend, n->args.n_rows, row_cost, dx_rows, n);
}

void QR_ISA(qr_cpu_rms_norm_backward)(const qr_backend *backend, const qr_rms_norm_backward_args *args,
                                      void *workspace) {
    const norm n = {.args = *args, .moments = workspace};
    run_norm(backend, &n, rms_moments, rms_rows);
}

void QR_ISA(qr_cpu_layer_norm_backward)(const qr_backend *backend, const qr_layer_norm_backward_args *args,
                                        void *workspace) {
    const norm n = {
        .args = {.x = args->x,
                 .weight = args->weight,
                 .dy = args->dy,
                 .dx = args->dx,
                 .dweight = args->dweight,
                 .n_rows = args->n_rows,
                 .n_groups = 1,
                 .dim = args->dim,
                 .x_stride = args->dim,
                 .dy_stride = args->dim,
                 .dx_stride = args->dim,
                 .eps = args->eps,
                 .weight_offset = args->weight_offset,
                 .accumulate = args->accumulate},
        .dbias = args->dbias,
        .moments = workspace,
    };
    run_norm(backend, &n, layer_moments, layer_rows);
}

/* adafactor. Sums over a row and over a column run in F64; a column's, over the rows in order. */
#include "kernels/cpu/simd/vec.h"
#include "kernels/cpu/train/train_scratch.h"
#include "kernels/cpu/vector_ops.h"

struct adafactor {
    const qr_adafactor_args *args;
    double keep;            /* of the old moments */
    double row_mean;        /* of row_moment */
    double *update_squares; /* [rows] */
    float *col_scale;       /* [cols]: 1 / sqrt(col_moment) */
    float decay, back;      /* p = p · decay + update · back */
};

QR_INLINE qr_vec gradient(const qr_adafactor_args *a, int64_t row, int64_t col) {
    return qr_vec_mul(qr_vec_load_n(a->g + row * a->cols + col, a->cols - col), qr_vec_set1(a->grad_scale));
}

/* A moment after a mean of squares; every square has eps1 added. */
static float moved(const struct adafactor *s, float old, double mean) {
    return (float)(s->keep * (double)old + (1.0 - s->keep) * (mean + (double)s->args->eps1));
}

static void row_moments(const void *args, int64_t begin, int64_t end) {
    const struct adafactor *s = args;
    const qr_adafactor_args *a = s->args;
    for (int64_t row = begin; row < end; row++) {
        qr_vec_f64 sums = {.lanes = {0.0}};
        for (int64_t j = 0; j < a->cols; j += QR_VEC) { qr_vec_f64_add_squares(&sums, gradient(a, row, j)); }
        a->row_moment[row] = moved(s, a->row_moment[row], qr_vec_f64_total(&sums) / (double)a->cols);
    }
}

/* Blocks of columns: col_moment, or row_moment where there is one row, and col_scale. */
enum { COLUMN_VECTORS = 4, COLUMN_BLOCK = COLUMN_VECTORS * QR_VEC };

static void col_moments(const void *args, int64_t begin, int64_t end) {
    const struct adafactor *s = args;
    const qr_adafactor_args *a = s->args;
    float *moment = a->rows == 1 ? a->row_moment : a->col_moment;
    for (int64_t first = begin * COLUMN_BLOCK; first < qr_min(a->cols, end * COLUMN_BLOCK); first += COLUMN_BLOCK) {
        qr_vec_f64 sums[COLUMN_VECTORS] = {{.lanes = {0.0}}, {.lanes = {0.0}}, {.lanes = {0.0}}, {.lanes = {0.0}}};
        for (int64_t row = 0; row < a->rows; row++) {
            QR_UNROLL for (int v = 0; v < COLUMN_VECTORS; v++) {
                const int64_t j = first + v * QR_VEC;
                if (j >= a->cols) { break; }
                qr_vec_f64_add_squares(&sums[v], gradient(a, row, j));
            }
        }
        for (int64_t j = first; j < qr_min(a->cols, first + COLUMN_BLOCK); j++) {
            const double sum = sums[(j - first) / QR_VEC].lanes[(j - first) % QR_VEC];
            moment[j] = moved(s, moment[j], sum / (double)a->rows);
            s->col_scale[j] = (float)(1.0 / sqrt((double)moment[j]));
        }
    }
}

static void write_update(const void *args, int64_t begin, int64_t end) {
    const struct adafactor *s = args;
    const qr_adafactor_args *a = s->args;
    for (int64_t row = begin; row < end; row++) {
        const double row_scale = a->rows == 1 ? 1.0 : 1.0 / sqrt((double)a->row_moment[row] / s->row_mean);
        const qr_vec scale = qr_vec_set1((float)row_scale);
        qr_vec_f64 sums = {.lanes = {0.0}};
        for (int64_t j = 0; j < a->cols; j += QR_VEC) {
            const qr_vec by_row = qr_vec_mul(gradient(a, row, j), scale);
            const qr_vec update = qr_vec_mul(by_row, qr_vec_load_n(s->col_scale + j, a->cols - j));
            qr_vec_f64_add_squares(&sums, update);
            qr_vec_store_n(a->update + row * a->cols + j, update, a->cols - j);
        }
        s->update_squares[row] = qr_vec_f64_total(&sums);
    }
}

static void move_parameters(const void *args, int64_t begin, int64_t end) {
    const struct adafactor *s = args;
    const qr_vec decay = qr_vec_set1(s->decay), back = qr_vec_set1(s->back);
    for (int64_t i = begin; i < end; i += QR_VEC) {
        float *p = s->args->p + i;
        const qr_vec decayed = qr_vec_mul(qr_vec_load_n(p, end - i), decay);
        qr_vec_store_n(p, qr_vec_fma(qr_vec_load_n(s->args->update + i, end - i), back, decayed), end - i);
    }
}

void QR_ISA(qr_cpu_adafactor)(const qr_backend *backend, const qr_adafactor_args *args, void *workspace) {
    const int64_t rows = args->rows, cols = args->cols, n_blocks = qr_ceil_div(cols, COLUMN_BLOCK);
    struct adafactor s = {.args = args, .keep = 1.0 - pow((double)args->step, (double)args->decay_rate)};
    s.update_squares = workspace;
    s.col_scale = (float *)(void *)(s.update_squares + rows);
    if (rows > 1) { qr_cpu_run_ranges(backend, rows, cols, row_moments, &s); }
    qr_cpu_run_ranges(backend, n_blocks, rows * COLUMN_BLOCK, col_moments, &s);
    for (int64_t row = 0; row < rows && rows > 1; row++) { s.row_mean += (double)args->row_moment[row] / (double)rows; }
    qr_cpu_run_ranges(backend, rows, 2 * cols, write_update, &s);
    double squares = 0.0;
    for (int64_t row = 0; row < rows; row++) { squares += s.update_squares[row]; }
    const double rms = sqrt(squares / ((double)rows * (double)cols)), lr = (double)args->lr;
    s.decay = (float)(1.0 - lr * (double)args->weight_decay);
    s.back = (float)(-lr / fmax(1.0, rms / (double)args->clip_threshold));
    qr_cpu_run_ranges(backend, rows * cols, 2, move_parameters, &s);
}

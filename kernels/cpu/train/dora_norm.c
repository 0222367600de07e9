/* dora_norm: a panel of weights at a time, dequantised K block by K block as in linear for F32; the second kernel of
 * lora adds the update B A, 64 columns at a time. Squares are added in an order fixed by the number of columns. */
#include <math.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"

enum { CHUNK_COLS = QR_CPU_PANEL_ROWS, N_SUMS = 16 }; /* chunk: what qr_cpu_matmul.combine gives at once */

typedef struct dora_norm_run {
    const qr_dora_norm_args *args;
    const qr_cpu_matmul *matmul;
    qr_cpu_layout layout;
    unsigned char *workspace; /* worker_bytes a worker */
    size_t worker_bytes;
} dora_norm_run;

/* The panel's weights of a K block, and a chunk of the rows of A side by side. */
static size_t panel_elements(const qr_cpu_matmul *matmul) { return (size_t)(QR_CPU_PANEL_ROWS * matmul->k_block); }

static size_t worker_bytes(const qr_cpu_matmul *matmul, const qr_dora_norm_args *args) {
    return (panel_elements(matmul) + (size_t)args->rank * CHUNK_COLS) * sizeof(float);
}

static size_t dora_norm_workspace(const qr_backend *backend, const void *untyped) {
    const size_t n_workers = (size_t)qr_threads_count(backend->threads);
    return n_workers * worker_bytes(qr_cpu(backend)->kernels->matmul_f32, untyped);
}

/* Sum of the squares of factor · w + scale · update over a chunk of n columns, both padded with zeros. */
static double squares_of(const float *w, float factor, const float *update, float scale, int64_t n) {
    float sums[N_SUMS] = {0};
    double total = 0.0;
    for (int64_t c = 0; c < n; c += N_SUMS) {
        for (int i = 0; i < N_SUMS; i++) {
            const float element = factor * w[c + i] + scale * update[c + i];
            sums[i] += element * element;
        }
    }
    for (int i = 0; i < N_SUMS; i++) { total += (double)sums[i]; }
    return total;
}

/* Adds the squares of a K block of the panel to those of its rows. */
static void add_block(const dora_norm_run *run, const qr_cpu_panel *panel, float *chunk, double *squares) {
    const qr_dora_norm_args *args = run->args;
    const float *absmax = qr_cpu_scales(args->weight, &run->layout);
    const bool int8 = args->weight->desc.format == QR_WEIGHT_INT8;
    for (int64_t c = 0; c < panel->n_k; c += CHUNK_COLS) {
        const int64_t n_cols = qr_min(args->weight->desc.cols - panel->k - c, CHUNK_COLS);
        qr_cpu_lora_fetch(args->a, args->weight->desc.cols, 0, args->rank, panel->k + c, n_cols, CHUNK_COLS, chunk,
                          CHUNK_COLS);
        for (int64_t o = 0; o < panel->n_rows; o++) {
            float update[CHUNK_COLS];
            const qr_cpu_combined combined = {.rows = chunk,
                                              .row_stride = CHUNK_COLS,
                                              .n_rows = args->rank,
                                              .factors = args->b + (panel->row + o) * args->rank,
                                              .n_sums = 1,
                                              .sums = update};
            run->matmul->combine(&combined);
            squares[o] += squares_of((const float *)panel->dst + o * panel->dst_stride + c,
                                     int8 ? absmax[panel->row + o] / 127.0F : 1.0F, update, args->scale,
                                     qr_min(panel->n_k - c, CHUNK_COLS));
        }
    }
}

static void run_panel(void *untyped, int64_t index, int worker) {
    const dora_norm_run *run = untyped;
    const qr_dora_norm_args *args = run->args;
    const qr_weight_desc *desc = &args->weight->desc;
    float *weights = (float *)(void *)(run->workspace + (size_t)worker * run->worker_bytes);
    double squares[QR_CPU_PANEL_ROWS] = {0};
    qr_cpu_panel panel = {.weight = args->weight,
                          .layout = &run->layout,
                          .row = index * QR_CPU_PANEL_ROWS,
                          .k_block = run->matmul->k_block,
                          .dst = weights,
                          .dst_stride = run->matmul->k_block};
    panel.n_rows = qr_min(desc->rows - panel.row, QR_CPU_PANEL_ROWS);
    for (panel.k = 0; panel.k < desc->cols; panel.k += run->matmul->k_block) {
        panel.n_k = qr_min(desc->cols - panel.k, run->matmul->k_block);
        panel.n_k_padded = qr_round_up(panel.n_k, QR_CPU_VECTOR_BYTES / (int64_t)sizeof(float));
        run->matmul->fetch(&panel);
        add_block(run, &panel, weights + panel_elements(run->matmul), squares);
    }
    for (int64_t o = 0; o < panel.n_rows; o++) {
        const double norm = sqrt(squares[o]);
        const int64_t row = panel.row + o;
        if (args->magnitude != NULL) { args->ratio[row] = (float)((double)args->magnitude[row] / norm); }
        if (args->norm != NULL) { args->norm[row] = (float)norm; }
    }
}

static void run_dora_norm(qr_backend *backend, const qr_dora_norm_args *args, void *workspace) {
    dora_norm_run run = {.args = args, .matmul = qr_cpu(backend)->kernels->matmul_f32, .workspace = workspace};
    run.worker_bytes = worker_bytes(run.matmul, args);
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    qr_threads_run(backend->threads, qr_ceil_div(args->weight->desc.rows, QR_CPU_PANEL_ROWS), run_panel, &run);
}

QR_CPU_CHECKED_OP(dora_norm, dora_norm_workspace, run_dora_norm)

/* head_linear: a task has some rows of x, one head, and some of its outputs. The weights of a head are dequantised to
 * F32 for each task. By row, products are linear's F32 kernel's, over the same blocks of columns; by column, lanes run
 * along the columns, and every output adds its products in order. Either way an output's sum has one order, whatever
 * the number of rows. Adapters are a row's own: their products are added row by row. */
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear.h"

enum {
    CHUNK = 64,                         /* rows of x of a task */
    OUTPUTS_BY_ROW = QR_CPU_PANEL_ROWS, /* outputs of a task: rows of the head */
    COMBINED = QR_CPU_PANEL_ROWS,       /* columns that qr_cpu_matmul.combine gives at once */
    OUTPUTS_BY_COLUMN = 2 * COMBINED,   /* a run of codes */
    PIECE_BY_COLUMN = 32,               /* rows that are dequantised before they are multiplied: 16 KiB, which stay in
                                         * L1 */
    LANES = 16,                         /* partial sums of a product of vectors */
};

/* One worker's. */
typedef struct head_scratch {
    float *x;     /* [CHUNK, x_stride]: of the head, x' in F32, followed by zeros */
    float *panel; /* weights: [PIECE_BY_COLUMN, OUTPUTS_BY_COLUMN], or [OUTPUTS_BY_ROW, k_block] */
    float *sums;  /* [CHUNK, OUTPUTS_BY_ROW], or of each COMBINED columns [CHUNK, COMBINED] */
    float *t;     /* [CHUNK, max_rank]: A x, or Bᵀ x' */
} head_scratch;

typedef struct head_run {
    const qr_head_linear_args *args;
    const qr_cpu_matmul *matmul;
    qr_cpu_layout layout;
    int64_t x_dim, x_stride, n_chunks, n_parts; /* parts of a head's outputs */
    size_t scratch_bytes;
    unsigned char *workspace;
} head_run;

static int64_t outputs_of(const head_run *run) { return run->args->by_column ? OUTPUTS_BY_COLUMN : OUTPUTS_BY_ROW; }

static float *take(unsigned char *base, size_t *used, int64_t n) {
    float *taken = (float *)(void *)(base + *used);
    *used += (size_t)qr_round_up(n, LANES) * sizeof(float);
    return taken;
}

/* Lays one worker's scratch out from `base` and returns its size. */
static size_t lay_out(const head_run *run, unsigned char *base, head_scratch *scratch) {
    const qr_head_linear_args *args = run->args;
    const int64_t n_x = qr_min(args->n_rows, CHUNK), block = qr_min(run->x_stride, run->matmul->k_block);
    size_t used = 0;
    scratch->x = take(base, &used, n_x * run->x_stride);
    scratch->panel = take(base, &used, args->by_column ? PIECE_BY_COLUMN * OUTPUTS_BY_COLUMN : OUTPUTS_BY_ROW * block);
    scratch->sums = take(base, &used, n_x * outputs_of(run));
    scratch->t = take(base, &used, args->factors != NULL ? n_x * args->max_rank : 0);
    return used;
}

static head_run run_of(const qr_backend *backend, const qr_head_linear_args *args) {
    static unsigned char nowhere[1];
    head_scratch scratch;
    const int64_t cols = args->weight->desc.cols;
    head_run run = {.args = args,
                    .matmul = qr_cpu(backend)->kernels->matmul_f32,
                    .x_dim = args->by_column ? args->dim : cols,
                    .n_chunks = qr_ceil_div(args->n_rows, CHUNK)};
    run.x_stride = qr_round_up(run.x_dim, LANES);
    run.n_parts = qr_ceil_div(args->by_column ? cols : args->dim, outputs_of(&run));
    run.scratch_bytes = lay_out(&run, nowhere, &scratch);
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    return run;
}

static size_t head_linear_workspace(const qr_backend *backend, const void *args) {
    return (size_t)qr_threads_count(backend->threads) * run_of(backend, args).scratch_bytes;
}

typedef struct head_task {
    const head_run *run;
    head_scratch scratch;
    int64_t head, first_row;   /* its first row in the matrix */
    int64_t first, n_x;        /* rows of x */
    int64_t output, n_outputs; /* of the head */
} head_task;

/* The adapter of row i of the task; NULL: none has this matrix. */
static const qr_lora_factor *factor_of(const head_task *t, int64_t i) {
    const qr_head_linear_args *args = t->run->args;
    const int32_t adapter = args->factors != NULL ? args->row_adapter[t->first + i] : -1;
    return adapter >= 0 && args->factors[adapter].rank > 0 ? &args->factors[adapter] : NULL;
}

/* What multiplies row o of the head, of x or of the sum; NULL: 1. */
static const float *ratio_of(const head_task *t, const qr_lora_factor *factor) {
    return factor != NULL && factor->ratio != NULL ? factor->ratio + t->first_row : NULL;
}

static void fetch_x(const head_task *t) {
    const head_run *run = t->run;
    const qr_head_linear_args *args = run->args;
    for (int64_t i = 0; i < t->n_x; i++) {
        const int64_t index = (t->first + i) * args->x_stride + t->head * args->x_head_stride;
        const void *src = (const unsigned char *)args->x + (size_t)index * qr_dtype_bytes(args->x_dtype);
        float *dst = t->scratch.x + i * run->x_stride;
        const float *ratio = args->by_column ? ratio_of(t, factor_of(t, i)) : NULL;
        run->matmul->gemm_backward->pack(src, args->x_dtype, ratio, run->x_dim, dst);
        memset(dst + run->x_dim, 0, (size_t)(run->x_stride - run->x_dim) * sizeof *dst);
    }
}

static float product_of(const float *a, const float *b, int64_t n) {
    float sums[LANES] = {0.0F}, total = 0.0F;
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        for (int i = 0; i < LANES; i++) { sums[i] += a[c + i] * b[c + i]; }
    }
    for (; c < n; c++) { sums[c % LANES] += a[c] * b[c]; }
    for (int i = 0; i < LANES; i++) { total += sums[i]; }
    return total;
}

static void add_scaled(float *y, float factor, const float *x, int64_t n) {
    for (int64_t c = 0; c < n; c++) { y[c] += factor * x[c]; }
}

/* --- By row --- */

/* Rows of a panel, a few at a time, so that they stay in L1. */
static void multiply_piece(const head_run *run, qr_cpu_panel *panel, qr_cpu_product *product, const float *x) {
    const int64_t n_k = run->args->weight->desc.cols;
    product->n_w = panel->n_rows;
    for (panel->k = 0; panel->k < n_k; panel->k += panel->k_block) {
        panel->n_k = qr_min(n_k - panel->k, panel->k_block);
        panel->n_k_padded = qr_round_up(panel->n_k, LANES);
        run->matmul->fetch(panel);
        product->x = x + panel->k;
        product->n_k = panel->n_k_padded;
        product->first = panel->k == 0;
        run->matmul->multiply(product);
    }
}

/* From the codes, with the bits of all other ways: few rows of x, where groups of rows begin. */
static bool decode(const head_run *run, const qr_cpu_panel *panel, qr_cpu_product product, const float *x) {
    if (run->matmul->decode == NULL || product.n_x > QR_CPU_DECODE_ROWS || panel->row % QR_CPU_NF4_GROUP_ROWS != 0) {
        return false;
    }
    product.x = x;
    product.n_k = run->x_stride;
    return run->matmul->decode(panel, &product);
}

static void multiply_by_row(const head_task *t) {
    const head_run *run = t->run;
    const qr_weight_desc *desc = &run->args->weight->desc;
    const int64_t stride = qr_min(run->x_stride, run->matmul->k_block), piece_rows = run->matmul->piece_rows;
    const qr_cpu_panel panel = {.weight = run->args->weight,
                                .layout = &run->layout,
                                .row = t->first_row + t->output,
                                .n_rows = t->n_outputs,
                                .k_block = run->matmul->k_block,
                                .dst = t->scratch.panel,
                                .dst_stride = stride};
    const qr_cpu_product product = {.w = panel.dst,
                                    .w_stride = stride,
                                    .x_stride = run->x_stride,
                                    .n_w = t->n_outputs,
                                    .n_x = t->n_x,
                                    .sums = t->scratch.sums,
                                    .sum_stride = OUTPUTS_BY_ROW,
                                    .format = desc->format};
    const bool decoded = decode(run, &panel, product, t->scratch.x);
    for (int64_t r = 0; !decoded && r < t->n_outputs; r += piece_rows) {
        qr_cpu_panel piece = panel;
        qr_cpu_product of_piece = product;
        piece.row += r;
        piece.n_rows = qr_min(t->n_outputs - r, piece_rows);
        of_piece.sums += r;
        multiply_piece(run, &piece, &of_piece, t->scratch.x);
    }
    if (desc->format != QR_WEIGHT_INT8) { return; }
    const float *scales = qr_cpu_scales(run->args->weight, &run->layout) + panel.row;
    for (int64_t i = 0; i < t->n_x; i++) {
        for (int64_t o = 0; o < t->n_outputs; o++) { t->scratch.sums[i * OUTPUTS_BY_ROW + o] *= scales[o] / 127.0F; }
    }
}

/* sums of row i: with its adapter. */
static void adapt_by_row(const head_task *t, int64_t i) {
    const int64_t cols = t->run->args->weight->desc.cols, row = t->first_row + t->output;
    const qr_lora_factor *factor = factor_of(t, i);
    const float *x = t->scratch.x + i * t->run->x_stride;
    float *down = t->scratch.t, *sums = t->scratch.sums + i * OUTPUTS_BY_ROW;
    if (factor == NULL) { return; }
    for (int32_t j = 0; j < factor->rank; j++) { down[j] = product_of(factor->a + j * cols, x, cols); }
    for (int64_t o = 0; o < t->n_outputs; o++) {
        sums[o] += factor->scale * product_of(factor->b + (row + o) * factor->rank, down, factor->rank);
        if (factor->ratio != NULL) { sums[o] *= factor->ratio[row + o]; }
    }
}

/* --- By column --- */

/* t of every row that has an adapter, before x takes what INT8 multiplies its codes by. */
static void make_t_by_column(const head_task *t) {
    const qr_head_linear_args *args = t->run->args;
    for (int64_t i = 0; i < t->n_x; i++) {
        const qr_lora_factor *factor = factor_of(t, i);
        const float *x = t->scratch.x + i * t->run->x_stride;
        float *down = t->scratch.t + i * args->max_rank;
        if (factor == NULL) { continue; }
        memset(down, 0, (size_t)factor->rank * sizeof *down);
        for (int64_t o = 0; o < args->dim; o++) {
            add_scaled(down, x[o], factor->b + (t->first_row + o) * factor->rank, factor->rank);
        }
    }
}

static void scale_x(const head_task *t) {
    const head_run *run = t->run;
    if (run->args->weight->desc.format != QR_WEIGHT_INT8) { return; }
    const float *scales = qr_cpu_scales(run->args->weight, &run->layout) + t->first_row;
    for (int64_t i = 0; i < t->n_x; i++) {
        for (int64_t o = 0; o < run->x_dim; o++) { t->scratch.x[i * run->x_stride + o] *= scales[o] / 127.0F; }
    }
}

static void multiply_by_column(const head_task *t) {
    const head_run *run = t->run;
    qr_cpu_panel panel = {.weight = run->args->weight,
                          .layout = &run->layout,
                          .k = t->output,
                          .n_k = t->n_outputs,
                          .n_k_padded = OUTPUTS_BY_COLUMN,
                          .dst = t->scratch.panel,
                          .dst_stride = OUTPUTS_BY_COLUMN};
    for (int64_t o = 0; o < run->args->dim; o += PIECE_BY_COLUMN) {
        panel.row = t->first_row + o;
        panel.n_rows = qr_min(run->args->dim - o, PIECE_BY_COLUMN);
        run->matmul->fetch(&panel);
        for (int64_t c = 0; c < t->n_outputs; c += COMBINED) {
            const qr_cpu_combined combined = {.rows = t->scratch.panel + c,
                                              .row_stride = OUTPUTS_BY_COLUMN,
                                              .n_rows = panel.n_rows,
                                              .factors = t->scratch.x + o,
                                              .factor_stride = run->x_stride,
                                              .n_sums = t->n_x,
                                              .sums = t->scratch.sums + c * t->n_x,
                                              .accumulate = o > 0};
            run->matmul->combine(&combined);
        }
    }
}

static void adapt_by_column(const head_task *t, int64_t i) {
    const qr_head_linear_args *args = t->run->args;
    const qr_lora_factor *factor = factor_of(t, i);
    if (factor == NULL) { return; }
    for (int64_t c = 0; c < t->n_outputs; c += COMBINED) {
        float *sums = t->scratch.sums + c * t->n_x + i * COMBINED;
        const int64_t n = qr_min(t->n_outputs - c, COMBINED);
        for (int32_t j = 0; j < factor->rank; j++) {
            const float *a = factor->a + j * args->weight->desc.cols + t->output + c;
            add_scaled(sums, factor->scale * t->scratch.t[i * args->max_rank + j], a, n);
        }
    }
}

/* --- Tasks --- */

/* n sums of row i to its outputs from `output` on. */
static void store(const head_task *t, int64_t i, int64_t output, const float *sums, int64_t n) {
    const qr_head_linear_args *args = t->run->args;
    const int64_t first = (t->first + i) * args->y_stride + t->head * args->y_head_stride + output;
    unsigned char *dst = (unsigned char *)args->y + (size_t)first * qr_dtype_bytes(args->y_dtype);
    qr_elements_from_f32(args->y_dtype, sums, n, dst);
}

static void run_by_row(const head_task *t) {
    multiply_by_row(t);
    for (int64_t i = 0; i < t->n_x; i++) {
        adapt_by_row(t, i);
        store(t, i, t->output, t->scratch.sums + i * OUTPUTS_BY_ROW, t->n_outputs);
    }
}

static void run_by_column(const head_task *t) {
    make_t_by_column(t);
    scale_x(t);
    multiply_by_column(t);
    for (int64_t i = 0; i < t->n_x; i++) {
        adapt_by_column(t, i);
        for (int64_t c = 0; c < t->n_outputs; c += COMBINED) {
            store(t, i, t->output + c, t->scratch.sums + c * t->n_x + i * COMBINED, qr_min(t->n_outputs - c, COMBINED));
        }
    }
}

static void run_task(void *untyped, int64_t index, int worker) {
    const head_run *run = untyped;
    const qr_head_linear_args *args = run->args;
    const int64_t of_head = index / run->n_chunks, first = index % run->n_chunks * CHUNK;
    const int64_t output = of_head % run->n_parts * outputs_of(run), head = of_head / run->n_parts;
    const int64_t all = args->by_column ? args->weight->desc.cols : args->dim;
    head_task task = {.run = run,
                      .head = head,
                      .first_row = args->first_row + head * args->row_stride,
                      .first = first,
                      .n_x = qr_min(args->n_rows - first, CHUNK),
                      .output = output,
                      .n_outputs = qr_min(all - output, outputs_of(run))};
    (void)lay_out(run, run->workspace + (size_t)worker * run->scratch_bytes, &task.scratch);
    fetch_x(&task);
    if (args->by_column) {
        run_by_column(&task);
    } else {
        run_by_row(&task);
    }
}

static void run_head_linear(qr_backend *backend, const qr_head_linear_args *args, void *workspace) {
    head_run run = run_of(backend, args);
    run.workspace = workspace;
    qr_threads_run(backend->threads, run.n_chunks * run.n_parts * args->n_heads, run_task, &run);
}

QR_CPU_CHECKED_OP(head_linear, head_linear_workspace, run_head_linear)

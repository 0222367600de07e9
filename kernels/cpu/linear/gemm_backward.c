/* Tasks and operands of gemm_backward.h; the products are the instruction set's.
 *
 * Measured with bench_backward on two cores of an AMD Zen 5 server, 1,024 rows, dy in BF16, NF4 double-quantised:
 * linear_backward 0.92 TFLOP/s for 8192 x 2048 (93 % of the peak), 0.88 for 2048 x 8192 (89 %); weight_backward in F32
 * 0.43 (80 %). Reading dy in place, and asking for what comes next beside the products, is 8 % of it. */
#include "kernels/cpu/linear/gemm_backward.h"

#include <string.h>

#include "base/sizes.h"

enum {
    COL_STEP = 16,                      /* columns are padded with zeros to a multiple of it */
    FETCH_ROWS = QR_CPU_NF4_GROUP_ROWS, /* weight rows that are dequantised before they are paired */
    FETCH_STRIDE = QR_CPU_GEMM_COLS + 32,
    MAX_K = 2 * QR_CPU_GEMM_UNITS,
    A_UNITS = QR_CPU_GEMM_ROWS * QR_CPU_GEMM_A_STRIDE,
    A_BY_K_UNITS = QR_CPU_GEMM_UNITS * QR_CPU_GEMM_A_BY_K_STRIDE,
    B_UNITS = QR_CPU_GEMM_UNITS * QR_CPU_GEMM_B_STRIDE,
};

/* One worker's. */
typedef struct gemm_scratch {
    float a[A_UNITS > A_BY_K_UNITS ? A_UNITS : A_BY_K_UNITS];
    float b[B_UNITS];
    float c[QR_CPU_GEMM_ROWS * QR_CPU_GEMM_C_STRIDE];
    float factors[MAX_K];
    uint16_t fetched[FETCH_ROWS * FETCH_STRIDE];
} gemm_scratch;

_Static_assert(sizeof(gemm_scratch) % 64 == 0, "each worker's scratch begins at a cache line");

typedef struct gemm_run {
    const qr_cpu_gemm_args *args;
    const qr_cpu_gemm_kernel *kernel;
    qr_cpu_layout layout;     /* of the weight */
    qr_cpu_row_groups groups; /* of C */
    int64_t task_rows, n_col_blocks;
    bool a_in_place;
    gemm_scratch *scratch; /* [workers] */
} gemm_run;

/* The block that a task is at. */
typedef struct gemm_block {
    const qr_weight *weight;
    int64_t row, n_rows, col, n_cols, k, n_k;
} gemm_block;

size_t qr_cpu_gemm_backward_workspace(const qr_backend *backend) {
    return (size_t)qr_threads_count(backend->threads) * sizeof(gemm_scratch);
}

static const void *element(const qr_cpu_gemm_operand *x, int64_t index) {
    return (const unsigned char *)x->data + (size_t)index * qr_dtype_bytes(x->dtype);
}

/* The lines of n elements of each of n_rows rows. */
static qr_cpu_ahead ahead_of(const qr_cpu_gemm_operand *x, int64_t index, int64_t n_rows, int64_t n) {
    const int64_t element_bytes = (int64_t)qr_dtype_bytes(x->dtype);
    return (qr_cpu_ahead){
        .row = element(x, index),
        .stride = (size_t)(x->stride * element_bytes),
        .n_rows = n > 0 ? n_rows : 0,
        .n_lines = qr_ceil_div(n * element_bytes, 64),
    };
}

/* Prefetches n elements that the next block will read. */
static void prefetch(const qr_cpu_gemm_operand *x, int64_t index, int64_t n) {
    const unsigned char *begin = element(x, index);
    const int64_t n_bytes = n * (int64_t)qr_dtype_bytes(x->dtype);
    for (int64_t i = 0; i < n_bytes; i += 64) { __builtin_prefetch(begin + i, 0, 2); }
}

/* --- Parts ------------------------------------------------------------------------------------------------------- */

const qr_cpu_gemm_parts qr_cpu_gemm_pair_by_exact = {.n_products = 2, .a = {0, 1}, .b = {0, 0}};
const qr_cpu_gemm_parts qr_cpu_gemm_pair_by_pair = {.n_products = 3, .a = {0, 1, 0}, .b = {0, 0, 1}};
const qr_cpu_gemm_parts qr_cpu_gemm_triple_by_exact = {.n_products = 3, .a = {0, 1, 2}, .b = {0, 0, 0}};

/* Of k in a block. */
static int64_t block_k(const gemm_run *run) {
    const qr_cpu_gemm_parts *parts = run->args->parts;
    const int64_t most = QR_CPU_GEMM_UNITS * run->kernel->unit_k;
    return parts == NULL ? most : most / parts->n_products / QR_CPU_GEMM_PARTS_K * QR_CPU_GEMM_PARTS_K;
}

bool qr_cpu_gemm_fits_one_block(const qr_cpu_gemm_parts *parts, int64_t k) {
    return k <= 2 * QR_CPU_GEMM_UNITS / parts->n_products / QR_CPU_GEMM_PARTS_K * QR_CPU_GEMM_PARTS_K;
}

static int64_t units_of(const gemm_run *run, int64_t n_k) {
    const qr_cpu_gemm_parts *parts = run->args->parts;
    return qr_ceil_div(n_k, run->kernel->unit_k) * (parts == NULL ? 1 : parts->n_products);
}

static void pack_parts(const gemm_run *run, const gemm_block *block, gemm_scratch *scratch) {
    const qr_cpu_gemm_args *args = run->args;
    qr_cpu_gemm_pack pack = {
        .src = args->a.data,
        .dtype = args->a.dtype,
        .along_k = !args->a.transposed,
        .stride = args->a.stride,
        .first = block->row,
        .n = block->n_rows,
        .k = block->k,
        .n_k = block->n_k,
        .n_products = args->parts->n_products,
        .part = args->parts->a,
        .dst = scratch->a,
    };
    run->kernel->pack_parts(&pack);
    pack.src = args->b.data;
    pack.dtype = args->b.dtype;
    pack.along_k = args->b.transposed;
    pack.is_b = true;
    pack.stride = args->b.stride;
    pack.first = block->col;
    pack.n = block->n_cols;
    pack.part = args->parts->b;
    pack.dst = scratch->b;
    run->kernel->pack_parts(&pack);
}

/* --- Packing ----------------------------------------------------------------------------------------------------- */

/* What multiplies columns [k, k + n_k) of A: SCB / 127 of an INT8 weight's rows. */
static const float *a_factors(const gemm_run *run, const gemm_block *block, float *factors) {
    const qr_weight *weight = block->weight;
    if (weight == NULL || weight->desc.format != QR_WEIGHT_INT8) { return NULL; }
    const float *row_absmax = qr_cpu_scales(weight, &run->layout) + block->k;
    for (int64_t j = 0; j < block->n_k; j++) { factors[j] = row_absmax[j] / 127.0F; }
    return factors;
}

/* The first element of an operand's row k. */
static int64_t row_of_k(const qr_cpu_gemm_operand *x, int64_t k) {
    return (x->source_row != NULL ? x->source_row[k] : k) * x->stride;
}

static void pack_a_by_k(const gemm_run *run, const gemm_block *block, float *dst) {
    const qr_cpu_gemm_args *args = run->args;
    const qr_cpu_gemm_operand *a = &args->a;
    for (int64_t k = block->k; k < block->k + block->n_k; k++, dst += QR_CPU_GEMM_A_BY_K_STRIDE) {
        const int64_t next = k + block->n_k;
        run->kernel->pack(element(a, row_of_k(a, k) + block->row), a->dtype, NULL, block->n_rows, dst);
        for (int64_t i = 0; a->row_factor != NULL && i < block->n_rows; i++) { dst[i] *= a->row_factor[k]; }
        if (next < args->k) { prefetch(a, row_of_k(a, next) + block->row, block->n_rows); }
    }
}

/* A row of A by n_k of k. */
static void pack_a_row(const gemm_run *run, int64_t row, int64_t k, int64_t n_k, const float *factors, float *dst) {
    const qr_cpu_gemm_args *args = run->args;
    run->kernel->pack(element(&args->a, row * args->a.stride + k), args->a.dtype, factors, n_k, dst);
}

static void pack_a(const gemm_run *run, const gemm_block *block, gemm_scratch *scratch) {
    const float *factors = a_factors(run, block, scratch->factors);
    const int32_t *source_row = run->groups.source_row;
    for (int64_t r = 0; r < block->n_rows; r++) {
        const int64_t row = source_row != NULL ? source_row[block->row + r] : block->row + r;
        pack_a_row(run, row, block->k, block->n_k, factors, scratch->a + r * QR_CPU_GEMM_A_STRIDE);
    }
}

/* --- A packed once ----------------------------------------------------------------------------------------------- */

/* As scratch.a is, block by block of k of the rows of each task. */
static int64_t packed_a_blocks(const qr_cpu_matmul *matmul, int64_t k) {
    return qr_ceil_div(k, QR_CPU_GEMM_UNITS * matmul->gemm_backward->unit_k);
}

size_t qr_cpu_gemm_packed_a_bytes(const qr_cpu_matmul *matmul, int64_t m, int64_t k) {
    if (!matmul->gemm_backward->packs_once) { return 0; }
    return (size_t)(m * packed_a_blocks(matmul, k) * QR_CPU_GEMM_A_STRIDE) * sizeof(float);
}

/* Block number k_block of the rows of a task. */
static float *packed_block(const gemm_run *run, int64_t row, int64_t n_rows, int64_t k_block) {
    const qr_cpu_gemm_args *args = run->args;
    return args->packed_a + (row * packed_a_blocks(args->matmul, args->k) + n_rows * k_block) * QR_CPU_GEMM_A_STRIDE;
}

static void pack_whole_row(void *untyped, int64_t row, int worker) {
    const gemm_run *run = untyped;
    const qr_cpu_gemm_args *args = run->args;
    const int64_t first = row / run->task_rows * run->task_rows, n_rows = qr_min(args->m - first, run->task_rows);
    gemm_block block = {.weight = args->weight};
    for (int64_t i = 0; block.k < args->k; i++, block.k += block.n_k) {
        block.n_k = qr_min(args->k - block.k, block_k(run));
        const float *factors = a_factors(run, &block, run->scratch[worker].factors);
        float *dst = packed_block(run, first, n_rows, i) + (row - first) * QR_CPU_GEMM_A_STRIDE;
        pack_a_row(run, row, block.k, block.n_k, factors, dst);
    }
}

/* --- What the next block of k is packed from ---------------------------------------------------------------------- */

static qr_cpu_ahead a_ahead(const gemm_run *run, const gemm_block *next) {
    const qr_cpu_gemm_args *args = run->args;
    if (args->packed_a != NULL) {
        return (qr_cpu_ahead){
            .row = (const unsigned char *)packed_block(run, next->row, next->n_rows, next->k / block_k(run)),
            .stride = QR_CPU_GEMM_A_STRIDE * sizeof(float),
            .n_rows = next->n_rows,
            .n_lines = qr_ceil_div(units_of(run, next->n_k) * (int64_t)sizeof(float), 64),
        };
    }
    if (args->a.transposed || run->groups.source_row != NULL) { return (qr_cpu_ahead){0}; }
    return ahead_of(&args->a, next->row * args->a.stride + next->k, next->n_rows, next->n_k);
}

static qr_cpu_ahead b_ahead(const gemm_run *run, const gemm_block *next) {
    if (next->weight == NULL) { return (qr_cpu_ahead){0}; }
    return qr_cpu_weight_ahead(next->weight, &run->layout, next->k, next->n_k, next->col, next->n_cols);
}

/* ahead [2]. Operands in parts are small. */
static bool block_ahead(const gemm_run *run, const gemm_block *block, qr_cpu_ahead *ahead) {
    gemm_block next = *block;
    next.k += block->n_k;
    next.n_k = qr_min(run->args->k - next.k, block->n_k);
    if (next.n_k <= 0 || run->args->parts != NULL) { return false; }
    ahead[0] = a_ahead(run, &next);
    ahead[1] = b_ahead(run, &next);
    return true;
}

/* Rows of BF16 end with zeros up to 64 bytes. */
static void interleave_stored(const gemm_run *run, const gemm_block *block, float *dst) {
    const int64_t stride = (int64_t)(run->layout.row_bytes / sizeof(uint16_t));
    const uint16_t *rows = qr_cpu_row(block->weight, &run->layout, block->k);
    run->kernel->interleave(rows + block->col, stride, block->n_k, qr_round_up(block->n_cols, 32), dst);
}

/* Weights that become pairs are dequantised a few rows at a time, in L1. */
static void fetch_b(const gemm_run *run, const gemm_block *block, gemm_scratch *scratch) {
    const qr_cpu_matmul *matmul = run->args->matmul;
    const bool pairs = run->kernel->interleave != NULL;
    const int64_t step = pairs ? FETCH_ROWS : block->n_k;
    const int64_t vector = QR_CPU_VECTOR_BYTES / (int64_t)matmul->element_bytes;
    for (int64_t j = 0; j < block->n_k; j += step) {
        const qr_cpu_panel panel = {
            .weight = block->weight,
            .layout = &run->layout,
            .row = block->k + j,
            .n_rows = qr_min(block->n_k - j, step),
            .k = block->col,
            .n_k = block->n_cols,
            .n_k_padded = qr_round_up(block->n_cols, vector),
            .k_block = 0,
            .dst = pairs ? (void *)scratch->fetched : scratch->b,
            .dst_stride = pairs ? FETCH_STRIDE : QR_CPU_GEMM_B_STRIDE,
        };
        matmul->fetch(&panel);
        if (pairs) {
            run->kernel->interleave(scratch->fetched, FETCH_STRIDE, panel.n_rows, panel.n_k_padded,
                                    scratch->b + j / 2 * QR_CPU_GEMM_B_STRIDE);
        }
    }
}

static void pack_b_by_n(const gemm_run *run, const gemm_block *block, float *dst) {
    const qr_cpu_gemm_args *args = run->args;
    const int64_t n_padded = qr_round_up(block->n_cols, COL_STEP);
    for (int64_t c = 0; c < n_padded; c++) {
        const float *src = (const float *)args->b.data + (block->col + c) * args->b.stride + block->k;
        for (int64_t j = 0; j < block->n_k; j++) {
            dst[j * QR_CPU_GEMM_B_STRIDE + c] = c < block->n_cols ? src[j] : 0.0F;
        }
    }
}

static void pack_b(const gemm_run *run, const gemm_block *block, float *dst) {
    const qr_cpu_gemm_args *args = run->args;
    const int64_t n_padded = qr_round_up(block->n_cols, COL_STEP);
    for (int64_t k = block->k; k < block->k + block->n_k; k++, dst += QR_CPU_GEMM_B_STRIDE) {
        const int64_t next = k + block->n_k;
        run->kernel->pack(element(&args->b, row_of_k(&args->b, k) + block->col), args->b.dtype, NULL, block->n_cols,
                          dst);
        memset(dst + block->n_cols, 0, (size_t)(n_padded - block->n_cols) * sizeof *dst);
        if (next < args->k) { prefetch(&args->b, row_of_k(&args->b, next) + block->col, block->n_cols); }
    }
}

/* Rows of A as they are: whole units, in order, not multiplied, and not so far apart that they share sets of caches. */
static bool a_in_place(const gemm_run *run) {
    const qr_cpu_gemm_args *args = run->args;
    const bool is_scaled = args->weight != NULL && args->weight->desc.format == QR_WEIGHT_INT8;
    return run->kernel->takes_in_place && args->parts == NULL && args->packed_a == NULL && !args->a.transposed &&
           run->groups.source_row == NULL && !is_scaled && args->k % 2 == 0 && args->a.stride % 2 == 0 &&
           args->a.stride % 256 != 0 && (uintptr_t)args->a.data % sizeof(float) == 0;
}

static void pack(const gemm_run *run, const gemm_block *block, gemm_scratch *scratch) {
    if (run->args->parts != NULL) {
        pack_parts(run, block, scratch);
        return;
    }
    if (run->args->a.transposed) {
        pack_a_by_k(run, block, scratch->a);
    } else if (run->args->packed_a == NULL && !run->a_in_place) {
        pack_a(run, block, scratch);
    }
    if (block->weight != NULL && run->kernel->interleave != NULL && block->weight->desc.format == QR_WEIGHT_BF16) {
        interleave_stored(run, block, scratch->b);
    } else if (block->weight != NULL) {
        fetch_b(run, block, scratch);
    } else if (run->args->b.transposed) {
        pack_b_by_n(run, block, scratch->b);
    } else {
        pack_b(run, block, scratch->b);
    }
}

/* --- Tasks ------------------------------------------------------------------------------------------------------- */

/* Element [row, col] of C, and how far it is to the next of its row. */
static float *c_at(const qr_cpu_gemm_args *args, int64_t row, int64_t col) {
    return args->c + (args->c_transposed ? col * args->c_stride + row : row * args->c_stride + col);
}

static int64_t c_step(const qr_cpu_gemm_args *args) { return args->c_transposed ? args->c_stride : 1; }

static void load_c(const qr_cpu_gemm_args *args, const gemm_block *block, float *dst) {
    const int64_t n = args->accumulate ? block->n_cols : 0, n_padded = qr_round_up(block->n_cols, COL_STEP);
    const int64_t step = c_step(args);
    for (int64_t r = 0; r < block->n_rows; r++) {
        const float *src = c_at(args, block->row + r, block->col);
        float *row = dst + r * QR_CPU_GEMM_C_STRIDE;
        for (int64_t j = 0; step > 1 && j < n; j++) { row[j] = src[j * step]; }
        if (step == 1 && n > 0) { memcpy(row, src, (size_t)n * sizeof *row); }
        memset(row + n, 0, (size_t)(n_padded - n) * sizeof *row);
    }
}

static void store_c(const qr_cpu_gemm_args *args, const gemm_block *block, const float *src) {
    const float factor = args->accumulate ? 1.0F : args->factor;
    const int64_t step = c_step(args);
    for (int64_t r = 0; r < block->n_rows; r++) {
        const float *row = src + r * QR_CPU_GEMM_C_STRIDE;
        float *dst = c_at(args, block->row + r, block->col);
        for (int64_t j = 0; step > 1 && j < block->n_cols; j++) { dst[j * step] = factor * row[j]; }
        for (int64_t j = 0; step == 1 && j < block->n_cols; j++) { dst[j] = factor * row[j]; }
    }
}

/* C may be added to in place: no column is padded, and it is read and written once. */
static bool c_in_place(const gemm_run *run, const gemm_block *block) {
    const qr_cpu_gemm_args *args = run->args;
    return args->accumulate && !args->c_transposed && block->n_cols % COL_STEP == 0 && args->k <= block_k(run);
}

/* A few rows at a time, so that C is read in longer runs than the strips of `multiply`. */
static void multiply_in_place(const qr_cpu_gemm_kernel *kernel, qr_cpu_gemm_product part) {
    enum { ROWS = 24 };
    for (int64_t n_left = part.n_rows; n_left > 0; n_left -= ROWS) {
        part.n_rows = qr_min(n_left, ROWS);
        kernel->multiply(&part);
        part.a += ROWS * (part.a_by_k ? 1 : part.a_stride);
        part.c += ROWS * part.c_stride;
    }
}

/* Where the product of a block finds A. */
static const float *a_of_block(const gemm_run *run, const gemm_block *block, const gemm_scratch *scratch) {
    const qr_cpu_gemm_args *args = run->args;
    if (args->packed_a != NULL) { return packed_block(run, block->row, block->n_rows, block->k / block_k(run)); }
    return run->a_in_place ? element(&args->a, block->row * args->a.stride + block->k) : scratch->a;
}

/* The other product of a task, in the C that the first has left. */
static void add_also(const gemm_run *run, const gemm_block *block, gemm_scratch *scratch, qr_cpu_gemm_product product) {
    gemm_run other = *run;
    gemm_block all = *block;
    other.args = run->args->also;
    all.k = 0;
    all.n_k = other.args->k;
    pack_parts(&other, &all, scratch);
    product.a = scratch->a;
    product.a_stride = QR_CPU_GEMM_A_STRIDE;
    product.b = scratch->b;
    product.n_units = units_of(&other, all.n_k);
    product.ahead = NULL;
    run->kernel->multiply(&product);
}

static void run_task(void *untyped, int64_t index, int worker) {
    const gemm_run *run = untyped;
    const qr_cpu_gemm_args *args = run->args;
    gemm_scratch *scratch = run->scratch + worker;
    const qr_cpu_row_group *group = qr_cpu_row_group_of_task(&run->groups, index);
    const int64_t local = index - group->first_task, row = local / run->n_col_blocks * run->task_rows;
    gemm_block block = {
        .weight = group->weight,
        .row = group->first + row,
        .n_rows = qr_min(group->n_rows - row, run->task_rows),
        .col = local % run->n_col_blocks * QR_CPU_GEMM_COLS,
    };
    block.n_cols = qr_min(args->n - block.col, QR_CPU_GEMM_COLS);
    const bool in_place = c_in_place(run, &block);
    qr_cpu_gemm_product product = {
        .a = scratch->a,
        .b = scratch->b,
        .c = in_place ? args->c + block.row * args->c_stride + block.col : scratch->c,
        .n_rows = block.n_rows,
        .n_cols = qr_round_up(block.n_cols, COL_STEP),
        .c_stride = in_place ? args->c_stride : QR_CPU_GEMM_C_STRIDE,
        .a_stride = run->a_in_place ? args->a.stride / 2 : QR_CPU_GEMM_A_STRIDE,
        .a_by_k = args->a.transposed && args->parts == NULL,
    };
    qr_cpu_ahead ahead[2];
    if (!in_place) { load_c(args, &block, scratch->c); }
    for (block.k = 0; block.k < args->k; block.k += block.n_k) {
        block.n_k = qr_min(args->k - block.k, block_k(run));
        pack(run, &block, scratch);
        product.n_units = units_of(run, block.n_k);
        product.a = a_of_block(run, &block, scratch);
        product.ahead = block_ahead(run, &block, ahead) ? ahead : NULL;
        if (in_place) {
            multiply_in_place(run->kernel, product);
        } else {
            run->kernel->multiply(&product);
        }
    }
    if (args->also != NULL) { add_also(run, &block, scratch, product); }
    if (!in_place) { store_c(args, &block, scratch->c); }
}

/* Rows of a task: as many as fit, unless that leaves threads without work. */
static int64_t rows_of_task(int64_t m, int64_t n_col_blocks, int64_t n_threads, int64_t row_step) {
    enum { LEAST_ROWS = 48 };
    const int64_t wanted = qr_min(qr_ceil_div(2 * n_threads, n_col_blocks), qr_ceil_div(m, LEAST_ROWS));
    const int64_t n_tasks = qr_max(wanted, qr_ceil_div(m, QR_CPU_GEMM_ROWS / row_step * row_step));
    return qr_round_up(qr_ceil_div(m, n_tasks), row_step);
}

void qr_cpu_gemm_backward(qr_backend *backend, const qr_cpu_gemm_args *args, void *workspace) {
    qr_cpu_row_group all;
    gemm_run run = {
        .args = args,
        .kernel = args->matmul->gemm_backward,
        .groups = args->groups != NULL ? *args->groups : qr_cpu_all_rows(args->weight, args->m, &all),
        .n_col_blocks = qr_ceil_div(args->n, QR_CPU_GEMM_COLS),
        .scratch = workspace,
    };
    if (args->weight != NULL) { qr_cpu_layout_of(&args->weight->desc, &run.layout); }
    run.a_in_place = a_in_place(&run);
    run.task_rows = rows_of_task(args->m, run.n_col_blocks, qr_threads_count(backend->threads), run.kernel->row_step);
    const int64_t n_tasks = qr_cpu_row_groups_cut(&run.groups, run.task_rows, run.n_col_blocks);
    if (args->packed_a != NULL) { qr_threads_run(backend->threads, args->m, pack_whole_row, &run); }
    qr_threads_run(backend->threads, n_tasks, run_task, &run);
}

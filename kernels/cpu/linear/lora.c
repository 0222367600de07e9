/* The lora op: t = A x in F32, then y += scale · B t, for rows of several adapters.
 *
 * Rows are sorted by adapter first, so that each adapter's rows are one product. A x is a product of linear's F32
 * kernel, over blocks of columns; B t has a short inner dimension, so its lanes run along the outputs instead, over
 * transposed panels of B: every output adds its `rank` products in order. A task has as many panels as stay in the L1
 * cache, for y is read and written from main memory, where long pieces of a row are faster than short ones.
 *
 * Where it is part of a call of linear, that one may add B t to the sums before they are stored (lora.h), which saves
 * reading and writing y once more, with the same bits.
 *
 * On tiles, where the caller permits it, both are by pairs of BF16 values: the first by linear_tiles.h, the second by
 * gemm_backward.h, or by linear_tiles.h too where it is part of a call of linear. With AVX-512 BF16 the first one is,
 * by qr_cpu_lora_pairs. */
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/cpu/linear/lora.h"

enum {
    OUT_PANEL = QR_CPU_PANEL_ROWS, /* outputs of a panel of the second product */
    OUT_PANELS = 16,               /* panels of a task of it, at most */
    UP_ELEMENTS = 8192,            /* of B in a task of it, where one panel has no more */
    RANK_PANEL = 64,               /* rows of A of a task of the first */
    ROW_CHUNK = 64,                /* rows of x of a task of either */
    UP_ROWS = 6,                   /* rows of t that are combined at once */
};

/* A run of rows, in sorted order, that share an adapter and a chunk. */
typedef struct lora_segment {
    int32_t adapter;
    int64_t begin, end;
} lora_segment;

typedef struct lora_run {
    const qr_lora_args *args;
    const qr_cpu_matmul *matmul;
    int64_t n_sorted; /* rows that have an adapter */
    int64_t n_segments;
    int64_t *order;         /* [n_rows] row of x and y of each sorted row */
    lora_segment *segments; /* [n_rows at most] */
    float *t;               /* [n_rows, rank_stride] sorted */
    int64_t rank_stride;
    int64_t n_up_out; /* outputs of a task of the second product */
    float *panels;    /* panel_elements a worker: A's panel and behind it x's, or B's */
    size_t panel_elements;
    size_t kept_bytes; /* of the workspace, before the panels */
} lora_run;

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~(size_t)63; }

/* Lays the parts of the workspace out from `base` (NULL to measure) and returns their size. */
static size_t lay_out(const qr_backend *backend, const qr_lora_args *args, unsigned char *base, lora_run *run) {
    run->args = args;
    run->matmul = qr_cpu(backend)->kernels->matmul_f32;
    run->rank_stride = qr_round_up(args->max_rank, 16);
    const int64_t n_x = qr_min(args->n_rows, ROW_CHUNK), panel_elements = OUT_PANEL * args->max_rank;
    const int64_t n_panels = qr_min(qr_max(UP_ELEMENTS / qr_max(panel_elements, 1), 1), OUT_PANELS);
    const int64_t b_elements = n_panels * panel_elements;
    run->n_up_out = n_panels * OUT_PANEL;
    run->panel_elements = (size_t)qr_round_up(qr_max((RANK_PANEL + n_x) * run->matmul->k_block, b_elements), 16);
    const size_t n = (size_t)args->n_rows, n_workers = (size_t)qr_threads_count(backend->threads);
    size_t used = 0;
    run->order = (int64_t *)(void *)(base + used);
    used += align64(n * sizeof *run->order);
    run->segments = (lora_segment *)(void *)(base + used);
    used += align64(n * sizeof *run->segments);
    run->t = (float *)(void *)(base + used);
    used += n * (size_t)run->rank_stride * sizeof(float);
    run->kept_bytes = align64(used);
    run->panels = (float *)(void *)(base + run->kept_bytes);
    return run->kept_bytes + n_workers * run->panel_elements * sizeof(float);
}

/* The kernel of the products by pairs; NULL: they are not permitted, or there are none. */
static const qr_cpu_matmul *pairs_of(const qr_backend *backend, const qr_lora_args *args) {
    return args->in_pairs && args->x_dtype == QR_DTYPE_BF16 ? qr_cpu(backend)->kernels->backward_parts : NULL;
}

/* Of t [n_rows, max_rank], before the scratch of the products. */
static size_t pairs_bytes(const qr_lora_args *args) {
    return align64((size_t)(args->n_rows * args->max_rank) * sizeof(float));
}

qr_cpu_pairs_args qr_cpu_lora_down(const qr_lora_args *args, const qr_lora_factor *factor, float *t) {
    return (qr_cpu_pairs_args){
        .w = factor->a,
        .rank = factor->rank,
        .k = args->in,
        .x = args->x,
        .n_rows = args->n_rows,
        .x_stride = args->x_stride,
        .factor = factor->scale,
        .y = t,
        .y_stride = factor->rank,
    };
}

static size_t pairs_workspace(const qr_backend *backend, const qr_lora_args *args) {
    const qr_lora_factor widest = {.rank = args->max_rank};
    const qr_cpu_pairs_args down = qr_cpu_lora_down(args, &widest, NULL);
    const size_t of_down = qr_cpu_pairs_workspace(backend, pairs_of(backend, args), &down);
    const size_t of_up = qr_cpu_gemm_backward_workspace(backend);
    return pairs_bytes(args) + (of_down > of_up ? of_down : of_up);
}

/* Of the first product by pairs on vectors; NULL: it is not permitted, or there is none. */
static const qr_cpu_lora_pairs *vector_pairs_of(const qr_backend *backend, const qr_lora_args *args) {
    return args->in_pairs && args->x_dtype == QR_DTYPE_BF16 ? qr_cpu(backend)->kernels->lora_pairs : NULL;
}

static size_t lora_workspace(const qr_backend *backend, const void *untyped) {
    static unsigned char nowhere[1];
    const qr_lora_args *args = untyped;
    lora_run run;
    if (pairs_of(backend, args) != NULL) { return pairs_workspace(backend, args); }
    const size_t own = lay_out(backend, args, nowhere, &run);
    const qr_cpu_lora_pairs *pairs = vector_pairs_of(backend, args);
    const size_t by_pairs = pairs != NULL ? run.kept_bytes + pairs->workspace_bytes(args->max_rank, args->in) : 0;
    return own > by_pairs ? own : by_pairs;
}

/* --- Sorting rows by adapter ------------------------------------------------------------------------------------- */

static void append_segments(lora_run *run, int32_t adapter, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += ROW_CHUNK) {
        run->segments[run->n_segments++] = (lora_segment){adapter, i, qr_min(i + ROW_CHUNK, end)};
    }
}

/* A batch has few adapters: one pass over the rows for each. */
static void sort_rows(lora_run *run) {
    const qr_lora_args *args = run->args;
    run->n_sorted = run->n_segments = 0;
    for (int32_t a = 0; a < args->n_adapters; a++) {
        if (args->factors[a].rank == 0) { continue; }
        const int64_t begin = run->n_sorted;
        for (int64_t i = 0; i < args->n_rows; i++) {
            if (args->row_adapter[i] == a) { run->order[run->n_sorted++] = i; }
        }
        append_segments(run, a, begin, run->n_sorted);
    }
}

/* --- t = A x ----------------------------------------------------------------------------------------------------- */

static int64_t rank_panels(const lora_run *run) { return qr_ceil_div(run->args->max_rank, RANK_PANEL); }

void qr_cpu_lora_fetch(const float *a, int64_t in, int64_t row, int64_t n_rows, int64_t k, int64_t n_k,
                       int64_t n_k_padded, float *dst, int64_t dst_stride) {
    for (int64_t r = 0; r < n_rows; r++) {
        memcpy(dst + r * dst_stride, a + (row + r) * in + k, (size_t)n_k * sizeof *dst);
        memset(dst + r * dst_stride + n_k, 0, (size_t)(n_k_padded - n_k) * sizeof *dst);
    }
}

/* Columns k to k + n_k of the segment's rows of x in F32, with zeros up to n_k_padded. */
static void fetch_x(const lora_run *run, const lora_segment *segment, int64_t k, int64_t n_k, int64_t n_k_padded,
                    float *dst) {
    const qr_lora_args *args = run->args;
    for (int64_t i = segment->begin; i < segment->end; i++, dst += run->matmul->k_block) {
        const size_t offset = (size_t)(run->order[i] * args->x_stride + k) * qr_dtype_bytes(args->x_dtype);
        run->matmul->gemm_backward->pack((const unsigned char *)args->x + offset, args->x_dtype, NULL, n_k, dst);
        memset(dst + n_k, 0, (size_t)(n_k_padded - n_k) * sizeof *dst);
    }
}

static void run_down(void *untyped, int64_t index, int worker) {
    const lora_run *run = untyped;
    const qr_cpu_matmul *matmul = run->matmul;
    const lora_segment *segment = &run->segments[index / rank_panels(run)];
    const qr_lora_factor *factor = &run->args->factors[segment->adapter];
    const int64_t row = index % rank_panels(run) * RANK_PANEL;
    if (row >= factor->rank) { return; }
    float *panel = run->panels + (size_t)worker * run->panel_elements, *x = panel + RANK_PANEL * matmul->k_block;
    qr_cpu_product product = {
        .w = panel,
        .w_stride = matmul->k_block,
        .x = x,
        .x_stride = matmul->k_block,
        .n_w = qr_min(factor->rank - row, RANK_PANEL),
        .n_x = segment->end - segment->begin,
        .sums = run->t + segment->begin * run->rank_stride + row,
        .sum_stride = run->rank_stride,
    };
    for (int64_t k = 0; k < run->args->in; k += matmul->k_block) {
        const int64_t n_k = qr_min(run->args->in - k, matmul->k_block);
        product.n_k = qr_round_up(n_k, QR_CPU_VECTOR_BYTES / (int64_t)sizeof(float));
        product.first = k == 0;
        qr_cpu_lora_fetch(factor->a, run->args->in, row, product.n_w, k, n_k, product.n_k, panel, matmul->k_block);
        fetch_x(run, segment, k, n_k, product.n_k, x);
        matmul->multiply(&product);
    }
}

/* By pairs all rows have one adapter, and so lie in order. */
static void run_down_by_pairs(qr_backend *backend, const lora_run *run, const qr_cpu_lora_pairs *pairs) {
    qr_cpu_pairs_args down = qr_cpu_lora_down(run->args, &run->args->factors[run->segments[0].adapter], run->t);
    down.factor = 1.0F;
    down.y_stride = run->rank_stride;
    pairs->down(backend, &down, run->panels);
}

/* t of all rows that have an adapter. */
static void make_t(qr_backend *backend, lora_run *run) {
    const qr_cpu_lora_pairs *pairs = vector_pairs_of(backend, run->args);
    if (pairs != NULL && run->n_sorted == run->args->n_rows) {
        run_down_by_pairs(backend, run, pairs);
    } else {
        qr_threads_run(backend->threads, run->n_segments * rank_panels(run), run_down, run);
    }
}

/* --- y += scale · B t -------------------------------------------------------------------------------------------- */

/* Bᵀ of `n_out` outputs from `first` on, in panels [rank, OUT_PANEL]; outputs past the last are zero. */
static void transpose_b(const qr_lora_factor *factor, int64_t first, int64_t n_out, float *panels) {
    for (int64_t o = 0; o < qr_round_up(n_out, OUT_PANEL); o++) {
        const float *b = factor->b + (first + o) * factor->rank;
        float *column = panels + o / OUT_PANEL * OUT_PANEL * factor->rank + o % OUT_PANEL;
        for (int64_t r = 0; r < factor->rank; r++) { column[r * OUT_PANEL] = o < n_out ? b[r] : 0.0F; }
    }
}

static void add_products(const qr_lora_factor *factor, const float *products, int64_t n, float *y) {
    for (int64_t o = 0; o < n; o++) { y[o] += factor->scale * products[o]; }
}

static void run_up(void *untyped, int64_t index, int worker) {
    const lora_run *run = untyped;
    const qr_lora_args *args = run->args;
    const lora_segment *segment = &run->segments[index % run->n_segments];
    const qr_lora_factor *factor = &args->factors[segment->adapter];
    const int64_t first = index / run->n_segments * run->n_up_out, n_out = qr_min(args->out - first, run->n_up_out);
    float *panels = run->panels + (size_t)worker * run->panel_elements;
    transpose_b(factor, first, n_out, panels);
    for (int64_t i = segment->begin, n_rows; i < segment->end; i += n_rows) {
        n_rows = qr_min(segment->end - i, UP_ROWS);
        for (int64_t p = 0; p < n_out; p += OUT_PANEL) {
            float sums[UP_ROWS * OUT_PANEL];
            const qr_cpu_combined combined = {.rows = panels + p * factor->rank,
                                              .row_stride = OUT_PANEL,
                                              .n_rows = factor->rank,
                                              .factors = run->t + i * run->rank_stride,
                                              .factor_stride = run->rank_stride,
                                              .n_sums = n_rows,
                                              .sums = sums};
            run->matmul->combine(&combined);
            const int64_t n = qr_min(n_out - p, OUT_PANEL);
            for (int64_t r = 0; r < n_rows; r++) {
                float *y = args->y + run->order[i + r] * args->y_stride + first + p;
                add_products(factor, sums + r * OUT_PANEL, n, y);
            }
        }
    }
}

/* --- As a part of linear ----------------------------------------------------------------------------------------- */

size_t qr_cpu_lora_kept_bytes(const qr_backend *backend, const qr_lora_args *args) {
    static unsigned char nowhere[1];
    lora_run run;
    (void)lay_out(backend, args, nowhere, &run);
    return run.kept_bytes;
}

bool qr_cpu_lora_prepare(qr_backend *backend, const qr_lora_args *args, void *workspace, qr_cpu_lora_sums *sums) {
    const int32_t adapter = args->n_rows > 0 ? args->row_adapter[0] : -1;
    if (adapter < 0) { return false; }
    for (int64_t i = 1; i < args->n_rows; i++) {
        if (args->row_adapter[i] != adapter) { return false; }
    }
    lora_run run;
    (void)lay_out(backend, args, workspace, &run);
    sort_rows(&run);
    if (run.n_sorted == 0) { return false; }
    make_t(backend, &run);
    *sums = (qr_cpu_lora_sums){&args->factors[adapter], run.t, run.rank_stride, run.matmul};
    return true;
}

void qr_cpu_lora_panel(const qr_cpu_lora_sums *sums, int64_t row, int64_t n_rows, float *panel) {
    transpose_b(sums->factor, row, n_rows, panel);
}

void qr_cpu_lora_add(const qr_cpu_lora_sums *sums, const float *panel, int64_t i, int64_t n_rows, int64_t skip,
                     int64_t n, float *y, int64_t y_stride) {
    enum { AT_ONCE = 24 };
    const qr_lora_factor *factor = sums->factor;
    float products[AT_ONCE * OUT_PANEL];
    for (int64_t r = 0; r < n_rows; r++) {
        if (r % AT_ONCE == 0) {
            const qr_cpu_combined combined = {.rows = panel,
                                              .row_stride = OUT_PANEL,
                                              .n_rows = factor->rank,
                                              .factors = sums->t + (i + r) * sums->t_stride,
                                              .factor_stride = sums->t_stride,
                                              .n_sums = qr_min(n_rows - r, AT_ONCE),
                                              .sums = products};
            sums->matmul->combine(&combined);
        }
        add_products(factor, products + r % AT_ONCE * OUT_PANEL + skip, n, y + r * y_stride);
    }
}

/* All rows have one adapter. */
const qr_lora_factor *qr_cpu_lora_pairs_factor(const qr_backend *backend, const qr_lora_args *args) {
    const int32_t adapter = args->n_rows > 0 ? args->row_adapter[0] : -1;
    if (pairs_of(backend, args) == NULL || adapter < 0 || args->factors[adapter].rank == 0) { return NULL; }
    return &args->factors[adapter];
}

/* t = scale · A x, y += B t. */
static void run_pairs(qr_backend *backend, const qr_lora_args *args, void *workspace) {
    const qr_lora_factor *factor = qr_cpu_lora_pairs_factor(backend, args);
    if (factor == NULL) { return; }
    float *t = workspace;
    void *scratch = (unsigned char *)workspace + pairs_bytes(args);
    const qr_cpu_pairs_args down = qr_cpu_lora_down(args, factor, t);
    qr_cpu_pairs_run(backend, pairs_of(backend, args), &down, scratch);
    const qr_cpu_gemm_args up = {
        .matmul = pairs_of(backend, args),
        .m = args->n_rows,
        .n = args->out,
        .k = factor->rank,
        .a = {.data = t, .dtype = QR_DTYPE_F32, .stride = factor->rank},
        .b = {.data = factor->b, .dtype = QR_DTYPE_F32, .transposed = true, .stride = factor->rank},
        .c = args->y,
        .c_stride = args->y_stride,
        .accumulate = true,
        .parts = &qr_cpu_gemm_pair_by_pair,
    };
    qr_cpu_gemm_backward(backend, &up, scratch);
}

static void run_lora(qr_backend *backend, const qr_lora_args *args, void *workspace) {
    lora_run run;
    if (pairs_of(backend, args) != NULL) {
        run_pairs(backend, args, workspace);
        return;
    }
    lay_out(backend, args, workspace, &run);
    sort_rows(&run);
    if (run.n_sorted == 0) { return; }
    if (run.n_segments == 1) { run.n_up_out = OUT_PANEL; } /* few rows: something for every thread */
    make_t(backend, &run);
    qr_threads_run(backend->threads, run.n_segments * qr_ceil_div(args->out, run.n_up_out), run_up, &run);
}

QR_CPU_CHECKED_OP(lora, lora_workspace, run_lora)

/* Tasks and workspace of linear_tiles.h, and LoRA by pairs: its first product as a few more rows of BF16, its second in
 * the sums of the weight. */
#include "kernels/cpu/linear/linear_tiles.h"

#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/tile_sum.h"

enum { TILE_UNITS = 16, TILE_BYTES = 1024 };

/* The first product of LoRA, and where its operands are made. */
typedef struct pair_rows {
    const qr_cpu_pairs_args *args;
    qr_weight weight; /* BF16, 2 · rank rows */
    float *sums;      /* [n_rows, 2 · rank] */
} pair_rows;

/* The second, which goes on in the sums of the weight's product. */
typedef struct lora_tiles {
    const qr_lora_factor *factor;
    float *t;              /* [n_rows, rank] */
    uint16_t *of_b, *of_t; /* linear_tiles.h */
    int64_t n_b, n_t;      /* groups of weight rows, tiles of rows of x */
    int64_t n_tiles;       /* along k */
} lora_tiles;

typedef struct tiles_run {
    const qr_linear_args *args;
    const qr_cpu_matmul *matmul;
    qr_cpu_layout layout;
    uint16_t *x; /* packed */
    int64_t n_k_padded, tile_cols;
    int64_t task_rows, n_row_tasks; /* weight rows of a task; tasks of one chunk of x */
    bool stream_y;
    int64_t n_stretches;    /* decoding walks the matrix in so many stretches at once, one for each thread */
    unsigned char *scratch; /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
    lora_tiles lora;
    pair_rows pairs;
} tiles_run;

/* Two tiles of x meet a panel at once, so there are two of them, or one alone. */
static int64_t tile_count(int64_t n_rows) {
    return n_rows <= QR_TILES_COLS ? 1 : qr_round_up(qr_ceil_div(n_rows, QR_TILES_COLS), 2);
}

static size_t packed_bytes(const qr_linear_args *args) {
    const int64_t n_k_padded = qr_round_up(args->weight->desc.cols, QR_TILE_K);
    const int64_t tile_cols = qr_min(args->n_rows, QR_TILES_COLS);
    return (size_t)qr_round_up(tile_count(args->n_rows) * tile_cols * n_k_padded, 32) * sizeof(uint16_t);
}

/* Packing takes as much as a few rows of an operand in parts. */
static size_t worker_bytes(const qr_cpu_matmul *matmul, int64_t n_rows) {
    enum { PACK_BYTES = QR_TILES_COLS * QR_CPU_GEMM_A_STRIDE * (int)sizeof(float) };
    const size_t of_tasks = matmul->tiles->scratch_bytes(n_rows);
    return of_tasks > PACK_BYTES ? of_tasks : PACK_BYTES;
}

static size_t product_bytes(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const size_t n_workers = (size_t)qr_threads_count(backend->threads);
    return packed_bytes(args) + n_workers * worker_bytes(matmul, args->n_rows);
}

/* In workspace of product_bytes. */
static tiles_run run_of(const qr_cpu_matmul *matmul, const qr_linear_args *args, void *workspace) {
    tiles_run run = {
        .args = args,
        .matmul = matmul,
        .x = workspace,
        .n_k_padded = qr_round_up(args->weight->desc.cols, QR_TILE_K),
        .tile_cols = qr_min(args->n_rows, QR_TILES_COLS),
        .scratch = (unsigned char *)workspace + packed_bytes(args),
        .scratch_bytes = worker_bytes(matmul, args->n_rows),
    };
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    return run;
}

/* --- Tasks ------------------------------------------------------------------------------------------------------- */

static void pack_tile(void *untyped, int64_t tile, int worker) {
    (void)worker;
    const tiles_run *run = untyped;
    const qr_linear_args *args = run->args;
    const int64_t first = tile * QR_TILES_COLS, n_rows = qr_min(qr_max(args->n_rows - first, 0), QR_TILES_COLS);
    const qr_bf16 *src = n_rows > 0 ? (const qr_bf16 *)args->x + first * args->x_stride : NULL;
    run->matmul->tiles->pack(src, args->x_stride, n_rows, run->tile_cols, args->weight->desc.cols, run->n_k_padded,
                             run->x + first * run->n_k_padded);
}

static qr_cpu_tiles_task task_of(const tiles_run *run, int64_t row, int64_t chunk, int worker) {
    const int64_t i = chunk * QR_TILES_CHUNK, t_tile = i / QR_TILES_COLS * run->lora.n_tiles;
    return (qr_cpu_tiles_task){
        .args = run->args,
        .layout = &run->layout,
        .x = run->x + i * run->n_k_padded,
        .n_k_padded = run->n_k_padded,
        .tile_cols = run->tile_cols,
        .row = row,
        .n_rows = qr_min(run->args->weight->desc.rows - row, run->task_rows),
        .i = i,
        .n_x = qr_min(run->args->n_rows - i, QR_TILES_CHUNK),
        .stream_y = run->stream_y,
        .lora_b = run->lora.of_b,
        .lora_t = t_tile == 0 ? run->lora.of_t : run->lora.of_t + t_tile * (TILE_BYTES / 2),
        .n_lora = run->lora.n_tiles,
        .scratch = run->scratch + (size_t)worker * run->scratch_bytes,
    };
}

static void run_panels(void *untyped, int64_t index, int worker) {
    const tiles_run *run = untyped;
    const int64_t row = index % run->n_row_tasks * run->task_rows;
    const qr_cpu_tiles_task task = task_of(run, row, index / run->n_row_tasks, worker);
    run->matmul->tiles->panels(&task);
}

/* Indices go round the stretches, so that threads that keep step each read memory in order. */
static void run_decode(void *untyped, int64_t index, int worker) {
    const tiles_run *run = untyped;
    const int64_t in_stretch = qr_ceil_div(run->n_row_tasks, run->n_stretches);
    const int64_t number = index % run->n_stretches * in_stretch + index / run->n_stretches;
    if (number >= run->n_row_tasks) { return; }
    const qr_cpu_tiles_task task = task_of(run, number * run->task_rows, 0, worker);
    run->matmul->tiles->decode(&task);
}

/* Past the caches go whole lines, and only what is not read first. */
static bool can_stream_y(const qr_linear_args *args) {
    enum { LINE_BYTES = 64 };
    const size_t y_bytes = (size_t)(args->n_rows * args->weight->desc.rows) * sizeof(float);
    return y_bytes >= QR_TILES_STREAMED_BYTES && !args->accumulate && (uintptr_t)args->y % LINE_BYTES == 0 &&
           args->y_stride % (LINE_BYTES / (int64_t)sizeof(float)) == 0;
}

/* A panel is dequantised once for all rows of a chunk. */
static void run_chunks(qr_backend *backend, tiles_run *run) {
    enum { TASKS_PER_THREAD = 8 }; /* at least: so that no thread waits long for the last */
    const int64_t n_weight_rows = run->args->weight->desc.rows;
    const int64_t n_chunks = qr_ceil_div(run->args->n_rows, QR_TILES_CHUNK);
    const int64_t least = TASKS_PER_THREAD * qr_threads_count(backend->threads);
    run->stream_y = can_stream_y(run->args);
    run->task_rows = QR_TILES_PANEL_TASK_ROWS;
    while (run->task_rows > 64 && qr_ceil_div(n_weight_rows, run->task_rows) * n_chunks < least) {
        run->task_rows /= 2;
    }
    run->n_row_tasks = qr_ceil_div(n_weight_rows, run->task_rows);
    qr_threads_run(backend->threads, run->n_row_tasks * n_chunks, run_panels, run);
}

/* x is packed. */
static void run_tasks(qr_backend *backend, tiles_run *run) {
    const int64_t n_threads = qr_threads_count(backend->threads);
    if (run->args->n_rows > QR_TILES_DECODE_ROWS) {
        run_chunks(backend, run);
        return;
    }
    run->task_rows = QR_TILES_DECODE_TASK_ROWS;
    run->n_row_tasks = qr_ceil_div(run->args->weight->desc.rows, run->task_rows);
    run->n_stretches = n_threads;
    qr_threads_run(backend->threads, qr_round_up(run->n_row_tasks, n_threads), run_decode, run);
}

/* --- Rows in pairs ----------------------------------------------------------------------------------------------- */

static qr_weight_desc pairs_desc(const qr_cpu_pairs_args *args) {
    return (qr_weight_desc){.format = QR_WEIGHT_BF16, .rows = 2 * args->rank, .cols = args->k};
}

/* Lays rows and sums out from `base` (anywhere to measure) and returns their size. */
static size_t lay_out_pairs(const qr_cpu_pairs_args *args, unsigned char *base, pair_rows *pairs) {
    qr_cpu_layout layout;
    *pairs = (pair_rows){.args = args, .weight = {.desc = pairs_desc(args), .data = base}};
    qr_cpu_layout_of(&pairs->weight.desc, &layout);
    const size_t row_bytes = (size_t)qr_round_up((int64_t)layout.total_bytes, 64);
    pairs->sums = (float *)(void *)(base + row_bytes);
    return row_bytes + (size_t)qr_round_up(args->n_rows * 2 * args->rank * (int64_t)sizeof(float), 64);
}

/* A part of up to 16 rows of W, by as many columns as an operand in parts has. */
static void make_pair_rows(void *untyped, int64_t index, int worker) {
    enum { BLOCK_K = 2 * QR_CPU_GEMM_UNITS };
    const tiles_run *run = untyped;
    const qr_cpu_pairs_args *args = run->pairs.args;
    const int8_t part = (int8_t)(index % 2);
    const int64_t first = index / 2 * QR_TILES_COLS;
    float *packed = (float *)(void *)(run->scratch + (size_t)worker * run->scratch_bytes);
    qr_cpu_gemm_pack pack = {
        .src = args->w,
        .dtype = QR_DTYPE_F32,
        .along_k = !args->transposed,
        .stride = args->transposed ? args->rank : args->k,
        .first = first,
        .n = qr_min(args->rank - first, QR_TILES_COLS),
        .n_products = 1,
        .part = &part,
        .dst = packed,
    };
    for (pack.k = 0; pack.k < args->k; pack.k += pack.n_k) {
        pack.n_k = qr_min(args->k - pack.k, BLOCK_K);
        run->matmul->gemm_backward->pack_parts(&pack);
        for (int64_t r = 0; r < pack.n; r++) {
            unsigned char *row = (unsigned char *)run->pairs.weight.data +
                                 (size_t)(part * args->rank + first + r) * run->layout.row_bytes;
            memcpy(row + 2 * pack.k, packed + r * QR_CPU_GEMM_A_STRIDE, 2 * (size_t)pack.n_k);
            memset(row + 2 * (pack.k + pack.n_k), 0,
                   pack.k + pack.n_k < args->k ? 0 : run->layout.row_bytes - 2 * (size_t)args->k);
        }
    }
}

static void add_pair_sums(void *untyped, int64_t i, int worker) {
    (void)worker;
    const pair_rows *pairs = untyped;
    const qr_cpu_pairs_args *args = pairs->args;
    const float *first = pairs->sums + i * 2 * args->rank, *second = first + args->rank;
    for (int64_t r = 0; r < args->rank; r++) {
        args->y[i * args->y_stride + r] = args->factor * (first[r] + second[r]);
    }
}

/* With x packed in workspace of product_bytes, and room for rows and sums at `memory`. */
static void run_pairs(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_cpu_pairs_args *pairs_args,
                      void *workspace, unsigned char *memory) {
    pair_rows pairs;
    (void)lay_out_pairs(pairs_args, memory, &pairs);
    const qr_linear_args args = {
        .weight = &pairs.weight,
        .x = pairs_args->x,
        .x_dtype = QR_DTYPE_BF16,
        .y = pairs.sums,
        .n_rows = pairs_args->n_rows,
        .x_stride = pairs_args->x_stride,
        .y_stride = 2 * pairs_args->rank,
    };
    tiles_run run = run_of(matmul, &args, workspace);
    run.pairs = pairs;
    qr_threads_run(backend->threads, 2 * qr_ceil_div(pairs_args->rank, QR_TILES_COLS), make_pair_rows, &run);
    run_tasks(backend, &run);
    qr_threads_run(backend->threads, pairs_args->n_rows, add_pair_sums, &run.pairs);
}

/* x and scratch are those of this product. */
static qr_linear_args linear_of_pairs(const qr_cpu_pairs_args *args, const qr_weight *weight) {
    return (qr_linear_args){
        .weight = weight, .x = args->x, .x_dtype = QR_DTYPE_BF16, .n_rows = args->n_rows, .x_stride = args->x_stride};
}

size_t qr_cpu_pairs_workspace(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_cpu_pairs_args *args) {
    static unsigned char nowhere[1];
    pair_rows pairs;
    const size_t own = lay_out_pairs(args, nowhere, &pairs);
    const qr_linear_args product = linear_of_pairs(args, &pairs.weight);
    return product_bytes(backend, matmul, &product) + own;
}

void qr_cpu_pairs_run(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_cpu_pairs_args *args,
                      void *workspace) {
    const qr_weight weight = {.desc = pairs_desc(args)};
    const qr_linear_args product = linear_of_pairs(args, &weight);
    tiles_run run = run_of(matmul, &product, workspace);
    qr_threads_run(backend->threads, tile_count(args->n_rows), pack_tile, &run);
    run_pairs(backend, matmul, args, workspace, (unsigned char *)workspace + product_bytes(backend, matmul, &product));
}

/* --- LoRA in the weight's sums ----------------------------------------------------------------------------------- */

static int64_t lora_units(int64_t rank) { return qr_cpu_gemm_pair_by_pair.n_products * qr_ceil_div(rank, 2); }

/* Lays tiles and t out from `base` (anywhere to measure) and returns their size. */
static size_t lay_out_lora(const qr_linear_args *args, int64_t rank, unsigned char *base, lora_tiles *lora) {
    lora->n_tiles = qr_ceil_div(lora_units(rank), TILE_UNITS);
    lora->n_b = 2 * qr_ceil_div(args->weight->desc.rows, 2 * QR_TILES_COLS);
    lora->n_t = tile_count(args->n_rows);
    const size_t b_bytes = (size_t)(lora->n_b * lora->n_tiles) * TILE_BYTES;
    const size_t t_bytes = (size_t)(lora->n_t * lora->n_tiles) * TILE_BYTES;
    lora->of_b = (uint16_t *)(void *)base;
    lora->of_t = (uint16_t *)(void *)(base + b_bytes);
    lora->t = (float *)(void *)(base + b_bytes + t_bytes);
    return b_bytes + t_bytes + (size_t)qr_round_up(args->n_rows * rank * (int64_t)sizeof(float), 64);
}

/* What LoRA adds goes on in the sums where nothing is done to these before they are y, and where its operands take one
 * block of k and no more than the scratch of a worker. */
static const qr_lora_factor *lora_in_sums(const qr_backend *backend, const qr_linear_args *args, size_t scratch_bytes) {
    if (args->lora == NULL || args->n_rows <= QR_TILES_DECODE_ROWS || args->bias != NULL || args->accumulate ||
        args->weight->desc.format == QR_WEIGHT_INT8) {
        return NULL;
    }
    const qr_lora_factor *factor = qr_cpu_lora_pairs_factor(backend, args->lora);
    if (factor == NULL) { return NULL; }
    const int64_t n_units = qr_round_up(lora_units(factor->rank), TILE_UNITS);
    const bool fits =
        n_units <= QR_CPU_GEMM_UNITS && (size_t)(n_units * QR_CPU_GEMM_B_STRIDE) * sizeof(float) <= scratch_bytes;
    return fits ? factor : NULL;
}

static size_t lora_bytes(const qr_linear_args *args) {
    static unsigned char nowhere[1];
    if (args->lora == NULL || !args->lora->in_pairs) { return 0; }
    const qr_lora_factor widest = {.rank = args->lora->max_rank};
    const qr_cpu_pairs_args down = qr_cpu_lora_down(args->lora, &widest, NULL);
    lora_tiles lora;
    pair_rows pairs;
    return lay_out_lora(args, args->lora->max_rank, nowhere, &lora) + lay_out_pairs(&down, nowhere, &pairs);
}

/* 16 rows of B or of t. */
static void pack_lora(void *untyped, int64_t index, int worker) {
    const tiles_run *run = untyped;
    const lora_tiles *lora = &run->lora;
    const bool is_t = index >= lora->n_b;
    const int64_t tile = is_t ? index - lora->n_b : index, first = tile * QR_TILES_COLS, rank = lora->factor->rank;
    const int64_t n_rows = is_t ? run->args->n_rows : run->args->weight->desc.rows;
    float *packed = (float *)(void *)(run->scratch + (size_t)worker * run->scratch_bytes);
    unsigned char *dst = (unsigned char *)(is_t ? lora->of_t : lora->of_b) + tile * lora->n_tiles * TILE_BYTES;
    memset(dst, 0, (size_t)lora->n_tiles * TILE_BYTES);
    if (first >= n_rows) { return; }
    const qr_cpu_gemm_pack pack = {
        .src = is_t ? lora->t : lora->factor->b,
        .dtype = QR_DTYPE_F32,
        .along_k = true,
        .is_b = is_t,
        .stride = rank,
        .first = first,
        .n = qr_min(n_rows - first, QR_TILES_COLS),
        .n_k = rank,
        .n_products = qr_cpu_gemm_pair_by_pair.n_products,
        .part = is_t ? qr_cpu_gemm_pair_by_pair.a : qr_cpu_gemm_pair_by_pair.b,
        .dst = packed,
    };
    run->matmul->gemm_backward->pack_parts(&pack);
    const int64_t n_units = lora_units(rank);
    for (int64_t u = 0; is_t && u < n_units; u++) { memcpy(dst + u * 64, packed + u * QR_CPU_GEMM_B_STRIDE, 64); }
    for (int64_t u = 0; !is_t && u < n_units; u += TILE_UNITS) {
        const size_t n_bytes = (size_t)qr_min(n_units - u, TILE_UNITS) * sizeof(float);
        for (int64_t r = 0; r < pack.n; r++) {
            memcpy(dst + u / TILE_UNITS * TILE_BYTES + r * 64, packed + r * QR_CPU_GEMM_A_STRIDE + u, n_bytes);
        }
    }
}

/* --- The op ------------------------------------------------------------------------------------------------------ */

size_t qr_cpu_tiles_workspace(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    return product_bytes(backend, matmul, args) + lora_bytes(args);
}

static void pack_x(qr_backend *backend, const tiles_run *run, const void *x, int64_t x_stride) {
    qr_linear_args args = *run->args;
    tiles_run packs = *run;
    args.x = x;
    args.x_stride = x_stride;
    packs.args = &args;
    qr_threads_run(backend->threads, tile_count(args.n_rows), pack_tile, &packs);
}

/* LoRA may have an x of its own, after dropout. */
bool qr_cpu_tiles_run(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args, void *workspace) {
    tiles_run run = run_of(matmul, args, workspace);
    const qr_lora_args *lora = args->lora;
    run.lora.factor = lora_in_sums(backend, args, run.scratch_bytes);
    const bool has_lora = run.lora.factor != NULL;
    if (has_lora) {
        unsigned char *memory = (unsigned char *)workspace + product_bytes(backend, matmul, args);
        memory += lay_out_lora(args, run.lora.factor->rank, memory, &run.lora);
        const qr_cpu_pairs_args down = qr_cpu_lora_down(lora, run.lora.factor, run.lora.t);
        pack_x(backend, &run, lora->x, lora->x_stride);
        run_pairs(backend, matmul, &down, workspace, memory);
        qr_threads_run(backend->threads, run.lora.n_b + run.lora.n_t, pack_lora, &run);
    }
    if (!has_lora || lora->x != args->x || lora->x_stride != args->x_stride) {
        pack_x(backend, &run, args->x, args->x_stride);
    }
    run_tasks(backend, &run);
    return has_lora;
}

/* Tasks and workspace of linear_tiles.h. */
#include "kernels/cpu/linear/linear_tiles.h"

#include "base/sizes.h"
#include "kernels/tile_sum.h"

typedef struct tiles_run {
    const qr_linear_args *args;
    const qr_cpu_tiles_kernel *kernel;
    qr_cpu_layout layout;
    uint16_t *x; /* packed */
    int64_t n_k_padded, tile_cols;
    int64_t task_rows, n_row_tasks; /* weight rows of a task; tasks of one chunk of x */
    bool stream_y;
    int64_t n_stretches;    /* decoding walks the matrix in so many stretches at once, one for each thread */
    unsigned char *scratch; /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
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

size_t qr_cpu_tiles_workspace(const qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const size_t n_workers = (size_t)qr_threads_count(backend->threads);
    return packed_bytes(args) + n_workers * matmul->tiles->scratch_bytes(args->n_rows);
}

static void pack_tile(void *untyped, int64_t tile, int worker) {
    (void)worker;
    const tiles_run *run = untyped;
    const qr_linear_args *args = run->args;
    const int64_t first = tile * QR_TILES_COLS, n_rows = qr_min(qr_max(args->n_rows - first, 0), QR_TILES_COLS);
    const qr_bf16 *src = n_rows > 0 ? (const qr_bf16 *)args->x + first * args->x_stride : NULL;
    run->kernel->pack(src, args->x_stride, n_rows, run->tile_cols, args->weight->desc.cols, run->n_k_padded,
                      run->x + first * run->n_k_padded);
}

static qr_cpu_tiles_task task_of(const tiles_run *run, int64_t row, int64_t chunk, int worker) {
    const int64_t i = chunk * QR_TILES_CHUNK;
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
        .scratch = run->scratch + (size_t)worker * run->scratch_bytes,
    };
}

static void run_panels(void *untyped, int64_t index, int worker) {
    const tiles_run *run = untyped;
    const int64_t row = index % run->n_row_tasks * run->task_rows;
    const qr_cpu_tiles_task task = task_of(run, row, index / run->n_row_tasks, worker);
    run->kernel->panels(&task);
}

/* Indices go round the stretches, so that threads that keep step each read memory in order. */
static void run_decode(void *untyped, int64_t index, int worker) {
    const tiles_run *run = untyped;
    const int64_t in_stretch = qr_ceil_div(run->n_row_tasks, run->n_stretches);
    const int64_t number = index % run->n_stretches * in_stretch + index / run->n_stretches;
    if (number >= run->n_row_tasks) { return; }
    const qr_cpu_tiles_task task = task_of(run, number * run->task_rows, 0, worker);
    run->kernel->decode(&task);
}

/* Past the caches go whole lines, and only what is not read first. */
static bool can_stream_y(const qr_linear_args *args) {
    enum { LINE_BYTES = 64 };
    const size_t y_bytes = (size_t)(args->n_rows * args->weight->desc.rows) * sizeof(float);
    return y_bytes >= QR_TILES_STREAMED_BYTES && !args->accumulate && (uintptr_t)args->y % LINE_BYTES == 0 &&
           args->y_stride % (LINE_BYTES / (int64_t)sizeof(float)) == 0;
}

void qr_cpu_tiles_run(qr_backend *backend, const qr_cpu_matmul *matmul, const qr_linear_args *args, void *workspace) {
    const int64_t n_threads = qr_threads_count(backend->threads), n_weight_rows = args->weight->desc.rows;
    tiles_run run = {
        .args = args,
        .kernel = matmul->tiles,
        .x = workspace,
        .n_k_padded = qr_round_up(args->weight->desc.cols, QR_TILE_K),
        .tile_cols = qr_min(args->n_rows, QR_TILES_COLS),
        .scratch = (unsigned char *)workspace + packed_bytes(args),
        .scratch_bytes = matmul->tiles->scratch_bytes(args->n_rows),
    };
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    qr_threads_run(backend->threads, tile_count(args->n_rows), pack_tile, &run);
    if (args->n_rows <= QR_TILES_DECODE_ROWS) {
        run.task_rows = QR_TILES_DECODE_TASK_ROWS;
        run.n_row_tasks = qr_ceil_div(n_weight_rows, run.task_rows);
        run.n_stretches = n_threads;
        qr_threads_run(backend->threads, qr_round_up(run.n_row_tasks, n_threads), run_decode, &run);
        return;
    }
    enum { TASKS_PER_THREAD = 8 }; /* at least: so that no thread waits long for the last */
    run.stream_y = can_stream_y(args);
    const int64_t n_chunks = qr_ceil_div(args->n_rows, QR_TILES_CHUNK);
    run.task_rows = QR_TILES_PANEL_TASK_ROWS;
    while (run.task_rows > 64 && qr_ceil_div(n_weight_rows, run.task_rows) * n_chunks < TASKS_PER_THREAD * n_threads) {
        run.task_rows /= 2;
    }
    run.n_row_tasks = qr_ceil_div(n_weight_rows, run.task_rows);
    qr_threads_run(backend->threads, run.n_row_tasks * n_chunks, run_panels, &run);
}

/* The linear op: tasks, operands, and what happens to a sum before it is stored. The products are the instruction set's
 * (linear.h). */
#include "kernels/cpu/linear/gemm_backward.h"

#include <string.h>

#include "base/half.h"
#include "base/sizes.h"

/* Columns of a sum: a panel, and what a tile may write past it. */
enum { SUM_COLS = QR_CPU_PANEL_ROWS };

typedef struct linear_run {
    const qr_linear_args *args;
    const qr_cpu_matmul *matmul;
    qr_cpu_layout layout;
    int64_t n_k_padded;
    int64_t n_panels;
    const void *x; /* operands of the kernel's element type, rows x_stride apart; or tiles */
    int64_t x_stride;
    unsigned char *scratch; /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
    bool weight_in_place;
} linear_run;

const qr_cpu_matmul *qr_cpu_matmul_of(const qr_backend *backend, qr_dtype x_dtype) {
    const qr_cpu_isa *isa = qr_cpu(backend)->isa;
    if (x_dtype == QR_DTYPE_BF16) { return isa->matmul_bf16; }
    return x_dtype == QR_DTYPE_F16 ? isa->matmul_f16 : isa->matmul_f32;
}

static int64_t element_step(const qr_cpu_matmul *matmul) {
    return QR_CPU_VECTOR_BYTES / (int64_t)matmul->element_bytes;
}

static bool takes_tiles(const qr_cpu_matmul *matmul) { return matmul->tile_pack != NULL; }
static int64_t tile_cols(int64_t n_rows) { return qr_min(n_rows, QR_CPU_TILE_COLS); }

/* Rows a multiple of 512 bytes apart use the same few sets of L1 and evict each other, so such rows are stored one
 * vector further apart. */
static int64_t spread_stride(const qr_cpu_matmul *matmul, int64_t n) {
    return n * (int64_t)matmul->element_bytes % 512 == 0 ? n + element_step(matmul) : n;
}

/* Rows of x may be read in place: they have the right type, no vector reads past their end, and there are few, or their
 * stride suits L1. */
static bool x_in_place(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const bool suits_l1 = args->n_rows <= QR_CPU_DECODE_ROWS || spread_stride(matmul, args->x_stride) == args->x_stride;
    return !takes_tiles(matmul) && qr_dtype_bytes(args->x_dtype) == matmul->element_bytes &&
           args->weight->desc.cols % element_step(matmul) == 0 && suits_l1;
}

/* Elements from one row of x to the next in the workspace; tiles are dense. */
static int64_t prepared_x_stride(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const int64_t n_k_padded = qr_round_up(args->weight->desc.cols, element_step(matmul));
    return takes_tiles(matmul) ? n_k_padded : spread_stride(matmul, n_k_padded);
}

/* Room for x as the kernel takes it. */
static size_t prepared_x_bytes(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const int64_t n_rows = takes_tiles(matmul) ? qr_round_up(args->n_rows, QR_CPU_TILE_COLS) : args->n_rows;
    return (size_t)(n_rows * prepared_x_stride(matmul, args)) * matmul->element_bytes;
}

static size_t panel_bytes(const qr_cpu_matmul *matmul) {
    return (size_t)(QR_CPU_PANEL_ROWS * spread_stride(matmul, matmul->k_block)) * matmul->element_bytes;
}

/* A chunk's sums: by rows of x, or, with tiles, by weight rows, again spread over the sets of L1. */
static int64_t sum_stride(const qr_cpu_matmul *matmul, int64_t n_rows) {
    if (!takes_tiles(matmul)) { return SUM_COLS; }
    return qr_round_up(qr_min(n_rows, QR_CPU_CHUNK_ROWS), QR_CPU_TILE_COLS) + QR_CPU_TILE_COLS;
}

static size_t worker_bytes(const qr_cpu_matmul *matmul, int64_t n_rows) {
    const int64_t n_sums = takes_tiles(matmul) ? QR_CPU_PANEL_ROWS : qr_min(n_rows, QR_CPU_CHUNK_ROWS);
    return panel_bytes(matmul) + (size_t)(n_sums * sum_stride(matmul, n_rows)) * sizeof(float);
}

/* Counts x even when it is used in place: a plan may ask with another stride than the call has. */
static size_t linear_workspace(const qr_backend *backend, const void *untyped) {
    const qr_linear_args *args = untyped;
    const qr_cpu_matmul *matmul = qr_cpu_matmul_of(backend, args->x_dtype);
    const size_t n_workers = (size_t)qr_threads_count(backend->threads);
    return prepared_x_bytes(matmul, args) + n_workers * worker_bytes(matmul, args->n_rows);
}

static bool is_in_place(const qr_cpu_matmul *matmul, qr_weight_format format) {
    if (matmul->element_bytes == 2) { return format == QR_WEIGHT_BF16; }
    return format == QR_WEIGHT_F32 && matmul->x_dtype == QR_DTYPE_F32;
}

/* --- Preparing x ------------------------------------------------------------------------------------------------- */

static void copy_x_row(void *untyped, int64_t i, int worker) {
    (void)worker;
    const linear_run *run = untyped;
    const qr_linear_args *args = run->args;
    const int64_t n = args->weight->desc.cols;
    const size_t src_bytes = qr_dtype_bytes(args->x_dtype), dst_bytes = run->matmul->element_bytes;
    const unsigned char *src = (const unsigned char *)args->x + (size_t)(i * args->x_stride) * src_bytes;
    unsigned char *dst = (unsigned char *)(uintptr_t)run->x + (size_t)(i * run->x_stride) * dst_bytes;
    if (src_bytes == dst_bytes) {
        memcpy(dst, src, (size_t)n * dst_bytes);
    } else {
        run->matmul->gemm_backward->pack(src, args->x_dtype, NULL, n, dst);
    }
    memset(dst + (size_t)n * dst_bytes, 0, (size_t)(run->n_k_padded - n) * dst_bytes);
}

/* Writes x in tiles, 16 rows a task. */
static void pack_x_tile(void *untyped, int64_t tile, int worker) {
    (void)worker;
    const linear_run *run = untyped;
    const qr_linear_args *args = run->args;
    const int64_t first = tile * QR_CPU_TILE_COLS, n_rows = qr_min(args->n_rows - first, QR_CPU_TILE_COLS);
    const qr_bf16 *src = (const qr_bf16 *)args->x + first * args->x_stride;
    run->matmul->tile_pack(src, args->x_stride, n_rows, tile_cols(args->n_rows), args->weight->desc.cols,
                           run->n_k_padded, (uint16_t *)(uintptr_t)run->x + first * run->x_stride);
}

/* Returns the workspace left. */
static unsigned char *prepare_x(qr_backend *backend, linear_run *run, unsigned char *workspace) {
    const qr_linear_args *args = run->args;
    if (x_in_place(run->matmul, args)) {
        run->x = args->x;
        run->x_stride = args->x_stride;
        return workspace;
    }
    run->x = workspace;
    run->x_stride = prepared_x_stride(run->matmul, args);
    if (takes_tiles(run->matmul)) {
        qr_threads_run(backend->threads, qr_ceil_div(args->n_rows, QR_CPU_TILE_COLS), pack_x_tile, run);
    } else {
        qr_threads_run(backend->threads, args->n_rows, copy_x_row, run);
    }
    return workspace + prepared_x_bytes(run->matmul, args);
}

void qr_cpu_position_ahead(const qr_cpu_panel *panel, int64_t row, int64_t n_ahead, int64_t *ahead_row,
                           int64_t *ahead_k) {
    int64_t in_block = row - panel->row + n_ahead;
    *ahead_row = panel->row;
    *ahead_k = panel->k;
    if (panel->k_block == 0) {
        *ahead_row += in_block;
        return;
    }
    while (in_block >= panel->n_rows) {
        in_block -= panel->n_rows;
        *ahead_k += panel->k_block;
        if (*ahead_k >= panel->weight->desc.cols) {
            *ahead_k = 0;
            *ahead_row += panel->n_rows;
        }
    }
    *ahead_row += in_block;
}

/* --- Tasks ------------------------------------------------------------------------------------------------------- */

/* y = sums · factor (+ bias) (+ y), for rows [i, i + n_x) and outputs [row, row + n_w). */
static void store_rows(const linear_run *run, const float *sums, int64_t i, int64_t n_x, int64_t row, int64_t n_w) {
    const qr_linear_args *args = run->args;
    float factor[QR_CPU_PANEL_ROWS];
    const bool scaled = args->weight->desc.format == QR_WEIGHT_INT8;
    if (scaled) {
        const float *row_absmax = qr_cpu_scales(args->weight, &run->layout) + row;
        for (int64_t o = 0; o < n_w; o++) { factor[o] = row_absmax[o] / 127.0F; }
    }
    for (int64_t r = 0; r < n_x; r++) {
        const float *sum = sums + r * SUM_COLS;
        float *y = args->y + (i + r) * args->y_stride + row;
        float value[QR_CPU_PANEL_ROWS];
        for (int64_t o = 0; o < n_w; o++) { value[o] = scaled ? sum[o] * factor[o] : sum[o]; }
        if (args->bias != NULL) {
            for (int64_t o = 0; o < n_w; o++) { value[o] += args->bias[row + o]; }
        }
        if (args->accumulate) {
            for (int64_t o = 0; o < n_w; o++) { value[o] += y[o]; }
        }
        memcpy(y, value, (size_t)n_w * sizeof(float));
    }
}

/* Tiles write their sums by weight rows; these are transposed 16 rows of x at a time. */
static void store_turned(const linear_run *run, const qr_cpu_product *product, int64_t i, int64_t row) {
    float block[QR_CPU_TILE_COLS * SUM_COLS];
    for (int64_t r = 0; r < product->n_x; r += QR_CPU_TILE_COLS) {
        const int64_t n = qr_min(product->n_x - r, QR_CPU_TILE_COLS);
        run->matmul->tile_turn(product->sums + r, product->sum_stride, product->n_w, n, block, SUM_COLS);
        store_rows(run, block, i + r, n, row, product->n_w);
    }
}

/* Fetches and multiplies rows [panel->row, + panel->n_rows), K block by K block. */
static void multiply_piece(const linear_run *run, qr_cpu_panel *panel, qr_cpu_product *product) {
    const qr_cpu_matmul *matmul = run->matmul;
    const int64_t n_k = run->args->weight->desc.cols;
    const unsigned char *x = product->x;
    /* Tiles read whole groups of 16 rows. */
    const bool in_place = run->weight_in_place && (!takes_tiles(matmul) || panel->n_rows % QR_CPU_TILE_COLS == 0);
    product->n_w = panel->n_rows;
    for (int64_t k = 0; k < n_k; k += matmul->k_block) {
        panel->k = k;
        panel->n_k = qr_min(n_k - k, matmul->k_block);
        panel->n_k_padded = qr_min(run->n_k_padded - k, matmul->k_block);
        if (in_place) {
            product->w = (const unsigned char *)qr_cpu_row(panel->weight, panel->layout, panel->row) +
                         (size_t)k * matmul->element_bytes;
            product->w_stride = (int64_t)(run->layout.row_bytes / matmul->element_bytes);
        } else {
            matmul->fetch(panel);
            product->w = panel->dst;
            product->w_stride = panel->dst_stride;
        }
        product->x = x + (size_t)(takes_tiles(matmul) ? k * product->tile_cols : k) * matmul->element_bytes;
        product->n_k = panel->n_k_padded;
        product->first = k == 0;
        matmul->multiply(product);
    }
    product->x = x;
}

/* With many rows of x a panel is dequantised at once, so that a tile's rows of x are read once a panel; with few, tile
 * by tile, so that the dequantised weights never leave L1 (NF4, 2048 x 2048, 16 rows of x, one core: 567 us before, 404
 * after). */
static void multiply_panel(const linear_run *run, const qr_cpu_panel *panel, const qr_cpu_product *product) {
    const int64_t piece_rows = product->n_x <= QR_CPU_FEW_ROWS ? run->matmul->piece_rows : panel->n_rows;
    for (int64_t r = 0; r < panel->n_rows; r += piece_rows) {
        qr_cpu_panel piece = *panel;
        qr_cpu_product piece_product = *product;
        piece.row += r;
        piece.n_rows = qr_min(panel->n_rows - r, piece_rows);
        piece_product.sums += r * (takes_tiles(run->matmul) ? product->sum_stride : 1);
        multiply_piece(run, &piece, &piece_product);
    }
}

static void run_task(void *untyped, int64_t index, int worker) {
    const linear_run *run = untyped;
    const qr_linear_args *args = run->args;
    const qr_cpu_matmul *matmul = run->matmul;
    const int64_t row = index % run->n_panels * QR_CPU_PANEL_ROWS, i = index / run->n_panels * QR_CPU_CHUNK_ROWS;
    unsigned char *scratch = run->scratch + (size_t)worker * run->scratch_bytes;
    qr_cpu_panel panel = {
        .weight = args->weight,
        .layout = &run->layout,
        .row = row,
        .n_rows = qr_min(args->weight->desc.rows - row, QR_CPU_PANEL_ROWS),
        .k_block = matmul->k_block,
        .dst = scratch,
        .dst_stride = spread_stride(matmul, matmul->k_block),
    };
    qr_cpu_product product = {
        .x = (const unsigned char *)run->x + (size_t)(i * run->x_stride) * matmul->element_bytes,
        .x_stride = run->x_stride,
        .n_w = panel.n_rows,
        .n_x = qr_min(args->n_rows - i, QR_CPU_CHUNK_ROWS),
        .tile_cols = tile_cols(args->n_rows),
        .sums = (float *)(void *)(scratch + panel_bytes(matmul)),
        .sum_stride = sum_stride(matmul, args->n_rows),
    };
    product.n_k = run->n_k_padded;
    const bool decoded =
        matmul->decode != NULL && product.n_x <= QR_CPU_DECODE_ROWS && matmul->decode(&panel, &product);
    if (!decoded) { multiply_panel(run, &panel, &product); }
    if (takes_tiles(matmul)) {
        store_turned(run, &product, i, row);
    } else {
        store_rows(run, product.sums, i, product.n_x, row, product.n_w);
    }
}

static void run_linear(qr_backend *backend, const qr_linear_args *args, void *workspace) {
    const qr_cpu_matmul *matmul = qr_cpu_matmul_of(backend, args->x_dtype);
    linear_run run = {
        .args = args,
        .matmul = matmul,
        .n_k_padded = qr_round_up(args->weight->desc.cols, element_step(matmul)),
        .n_panels = qr_ceil_div(args->weight->desc.rows, QR_CPU_PANEL_ROWS),
        .scratch_bytes = worker_bytes(matmul, args->n_rows),
        .weight_in_place = is_in_place(matmul, args->weight->desc.format),
    };
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    run.scratch = prepare_x(backend, &run, workspace);
    qr_threads_run(backend->threads, run.n_panels * qr_ceil_div(args->n_rows, QR_CPU_CHUNK_ROWS), run_task, &run);
}

QR_CPU_CHECKED_OP(linear, linear_workspace, run_linear)

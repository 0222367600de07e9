/* linear and expert_linear: tasks, operands, and what happens to a sum before it is stored. The products are the
 * instruction set's (linear.h). */
#include "kernels/cpu/linear/gemm_backward.h"
#include "kernels/cpu/linear/linear_tiles.h"
#include "kernels/cpu/linear/lora.h"
#include "kernels/int16_sum.h"

#include <string.h>

#include "base/half.h"
#include "base/sizes.h"

/* Columns of a sum: a panel. */
enum { SUM_COLS = QR_CPU_PANEL_ROWS };

typedef struct linear_run {
    const qr_linear_args *args; /* of all groups; the weight stands for those of all */
    const qr_cpu_matmul *matmul;
    qr_cpu_row_groups groups;
    qr_cpu_layout layout;
    int64_t n_k_padded;
    int64_t n_panels;
    int64_t chunk_rows; /* of x of a task */
    const void *x;      /* operands of the kernel's element type, rows x_stride apart, their K blocks x_k_stride */
    int64_t x_stride, x_k_stride;
    unsigned char *scratch; /* of worker 0; scratch_bytes a worker */
    size_t scratch_bytes;
    bool weight_in_place;
    bool x_in_strips;
    const qr_cpu_lora_sums *lora; /* NULL: no adapter is added to the sums */
} linear_run;

static const qr_cpu_matmul *other_matmul_of(const qr_cpu_kernels *kernels, qr_dtype dtype) {
    return dtype == QR_DTYPE_F16 ? kernels->matmul_f16 : kernels->matmul_f32;
}

const qr_cpu_matmul *qr_cpu_matmul_of(const qr_backend *backend, const qr_weight_desc *desc, qr_dtype x_dtype) {
    const qr_cpu_kernels *kernels = qr_cpu(backend)->kernels;
    if (x_dtype != QR_DTYPE_BF16) { return other_matmul_of(kernels, x_dtype); }
    return kernels->matmul_int16 != NULL && qr_int16_takes(desc) ? kernels->matmul_int16 : kernels->matmul_bf16;
}

const qr_cpu_matmul *qr_cpu_backward_matmul_of(const qr_backend *backend, qr_dtype dy_dtype) {
    const qr_cpu_kernels *kernels = qr_cpu(backend)->kernels;
    return dy_dtype == QR_DTYPE_BF16 ? kernels->backward_bf16 : other_matmul_of(kernels, dy_dtype);
}

static const qr_cpu_matmul *matmul_of(const qr_backend *backend, const qr_linear_args *args) {
    return qr_cpu_matmul_of(backend, &args->weight->desc, args->x_dtype);
}

static int64_t vector_elements(const qr_cpu_matmul *matmul) {
    return QR_CPU_VECTOR_BYTES / (int64_t)matmul->element_bytes;
}

/* Rows a multiple of 512 bytes apart use the same few sets of L1 and evict each other, so such rows are stored one
 * vector further apart. */
static int64_t spread_stride(const qr_cpu_matmul *matmul, int64_t n) {
    return n * (int64_t)matmul->element_bytes % 512 == 0 ? n + vector_elements(matmul) : n;
}

/* Rows of x may be read in place: they have the right type, no vector reads past their end, and there are few, or their
 * stride suits L1. Gathered ones never are. */
static bool x_in_place(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    if (matmul->pack_row != NULL) { return false; }
    const bool suits_l1 = args->n_rows <= QR_CPU_DECODE_ROWS || spread_stride(matmul, args->x_stride) == args->x_stride;
    return qr_dtype_bytes(args->x_dtype) == matmul->element_bytes && args->weight->desc.cols % matmul->k_step == 0 &&
           suits_l1;
}

/* Elements from one row of x to the next in the workspace. */
static int64_t prepared_x_stride(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    if (matmul->x_block > 0) { return matmul->x_block; }
    return spread_stride(matmul, qr_round_up(args->weight->desc.cols, matmul->k_step));
}

/* Room for x as the kernel takes it, in whole strips. */
static size_t prepared_x_bytes(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    const int64_t n_rows = qr_round_up(args->n_rows, matmul->strips != NULL ? matmul->strips->rows : 1);
    const int64_t n_blocks = matmul->x_block > 0 ? qr_ceil_div(args->weight->desc.cols, matmul->k_block) : 1;
    const size_t n_elements = (size_t)(n_rows * n_blocks * prepared_x_stride(matmul, args));
    return (size_t)qr_round_up((int64_t)(n_elements * matmul->element_bytes), QR_CPU_VECTOR_BYTES);
}

static size_t panel_bytes(const qr_cpu_matmul *matmul) {
    return (size_t)(QR_CPU_PANEL_ROWS * spread_stride(matmul, matmul->k_block)) * matmul->element_bytes;
}

/* Rows of x of a task, at most: in strips or not. */
static int64_t most_chunk_rows(const qr_cpu_matmul *matmul) {
    return matmul->strips != NULL ? qr_max(matmul->strips->chunk_rows, QR_CPU_CHUNK_ROWS) : QR_CPU_CHUNK_ROWS;
}

static size_t sum_bytes(const qr_cpu_matmul *matmul, int64_t n_rows) {
    return (size_t)(qr_min(n_rows, most_chunk_rows(matmul)) * SUM_COLS) * sizeof(float);
}

/* Whether an adapter may be added to the sums: with few rows y is small, and threads need more tasks than there are. */
static bool may_add_lora(const qr_linear_args *args) {
    return args->lora != NULL && args->n_rows > QR_CPU_FEW_ROWS && args->lora->max_rank <= QR_CPU_LORA_MAX_RANK;
}

/* Of a panel of B. */
static size_t lora_panel_bytes(const qr_linear_args *args) {
    return may_add_lora(args) ? (size_t)(args->lora->max_rank * QR_CPU_PANEL_ROWS) * sizeof(float) : 0;
}

/* A panel, its sums, and a panel of B. Never less for more rows: a plan asks for the most. */
static size_t worker_bytes(const qr_cpu_matmul *matmul, const qr_linear_args *args) {
    return panel_bytes(matmul) + sum_bytes(matmul, args->n_rows) + lora_panel_bytes(args);
}

/* Counts x even when it is used in place: a plan may ask with another stride than the call has. */
static size_t product_workspace(const qr_backend *backend, const qr_linear_args *args) {
    const qr_cpu_matmul *matmul = matmul_of(backend, args);
    const size_t n_workers = (size_t)qr_threads_count(backend->threads);
    if (matmul->tiles != NULL) { return qr_cpu_tiles_workspace(backend, matmul, args); }
    return prepared_x_bytes(matmul, args) + n_workers * worker_bytes(matmul, args);
}

static size_t linear_workspace(const qr_backend *backend, const void *untyped) {
    const qr_linear_args *args = untyped;
    const size_t own = product_workspace(backend, args);
    const size_t lora = args->lora != NULL ? qr_cpu_op_lora.workspace_bytes(backend, args->lora) : 0;
    const bool tiles = matmul_of(backend, args)->tiles != NULL;
    const size_t kept = !tiles && may_add_lora(args) ? qr_cpu_lora_kept_bytes(backend, args->lora) : 0;
    return lora > kept + own ? lora : kept + own;
}

static bool is_in_place(const qr_cpu_matmul *matmul, qr_weight_format format) {
    if (matmul->element_bytes == 2) { return format == QR_WEIGHT_BF16; }
    return format == QR_WEIGHT_F32 && matmul->x_dtype == QR_DTYPE_F32;
}

/* --- Preparing x ------------------------------------------------------------------------------------------------- */

/* Row i of the product in the caller's x. */
static const void *x_row(const linear_run *run, int64_t i) {
    const int64_t source = run->groups.source_row != NULL ? run->groups.source_row[i] : i;
    return (const unsigned char *)run->args->x +
           (size_t)(source * run->args->x_stride) * qr_dtype_bytes(run->args->x_dtype);
}

static void copy_x_row(void *untyped, int64_t i, int worker) {
    (void)worker;
    const linear_run *run = untyped;
    const qr_linear_args *args = run->args;
    const int64_t n = args->weight->desc.cols;
    const size_t src_bytes = qr_dtype_bytes(args->x_dtype), dst_bytes = run->matmul->element_bytes;
    const void *src = x_row(run, i);
    unsigned char *dst = (unsigned char *)(uintptr_t)run->x + (size_t)(i * run->x_stride) * dst_bytes;
    if (src_bytes == dst_bytes) {
        memcpy(dst, src, (size_t)n * dst_bytes);
    } else {
        run->matmul->gemm_backward->pack(src, args->x_dtype, NULL, n, dst);
    }
    memset(dst + (size_t)n * dst_bytes, 0, (size_t)(run->n_k_padded - n) * dst_bytes);
}

static void pack_x_row(void *untyped, int64_t i, int worker) {
    (void)worker;
    const linear_run *run = untyped;
    unsigned char *dst = (unsigned char *)(uintptr_t)run->x + (size_t)(i * run->x_stride) * run->matmul->element_bytes;
    run->matmul->pack_row(x_row(run, i), run->args->weight->desc.cols, run->x_k_stride, dst);
}

static void pack_x_strip(void *untyped, int64_t index, int worker) {
    enum { MAX_STRIP_ROWS = 16 };
    (void)worker;
    const linear_run *run = untyped;
    const qr_cpu_strips *strips = run->matmul->strips;
    const uint16_t *rows[MAX_STRIP_ROWS];
    const int64_t first = index * strips->rows;
    for (int64_t r = 0; r < strips->rows; r++) {
        rows[r] = first + r < run->args->n_rows ? x_row(run, first + r) : NULL;
    }
    unsigned char *dst = (unsigned char *)(uintptr_t)run->x;
    strips->pack(rows, run->args->weight->desc.cols,
                 dst + (size_t)(first * run->x_stride) * run->matmul->element_bytes);
}

/* Returns the workspace left. */
static unsigned char *prepare_x(qr_backend *backend, linear_run *run, unsigned char *workspace) {
    const qr_linear_args *args = run->args;
    const qr_cpu_matmul *matmul = run->matmul;
    const int64_t rows_of_block = run->x_in_strips ? matmul->strips->rows : 1;
    run->x_k_stride = matmul->x_block > 0 ? args->n_rows * matmul->x_block : rows_of_block * matmul->k_block;
    if (!run->x_in_strips && run->groups.source_row == NULL && x_in_place(matmul, args)) {
        run->x = args->x;
        run->x_stride = args->x_stride;
        return workspace;
    }
    run->x = workspace;
    run->x_stride = prepared_x_stride(matmul, args);
    if (run->x_in_strips) {
        qr_threads_run(backend->threads, qr_ceil_div(args->n_rows, matmul->strips->rows), pack_x_strip, run);
    } else {
        qr_threads_run(backend->threads, args->n_rows, matmul->pack_row != NULL ? pack_x_row : copy_x_row, run);
    }
    return workspace + prepared_x_bytes(matmul, args);
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

qr_cpu_ahead qr_cpu_weight_ahead(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t n_rows,
                                 int64_t k, int64_t n_k) {
    n_rows = qr_min(n_rows, weight->desc.rows - row);
    if (n_rows <= 0 || n_k <= 0 || layout->kind == QR_CPU_NF4_FLAT) { return (qr_cpu_ahead){0}; }
    if (layout->kind == QR_CPU_NF4_GROUPS) {
        const int64_t in_group = row % QR_CPU_NF4_GROUP_ROWS;
        return (qr_cpu_ahead){
            .row = qr_cpu_nf4_run(weight, layout, row - in_group, k),
            .stride = layout->group_bytes,
            .n_rows = qr_ceil_div(in_group + n_rows, QR_CPU_NF4_GROUP_ROWS),
            .n_lines = QR_CPU_NF4_GROUP_ROWS * n_k / 2 / 64,
        };
    }
    const qr_weight_format format = weight->desc.format;
    const int64_t element_bytes = format == QR_WEIGHT_F32 ? 4 : format == QR_WEIGHT_INT8 ? 1 : 2;
    return (qr_cpu_ahead){
        .row = (const unsigned char *)qr_cpu_row(weight, layout, row) + k * element_bytes,
        .stride = layout->row_bytes,
        .n_rows = n_rows,
        .n_lines = qr_ceil_div(n_k * element_bytes, 64),
    };
}

/* --- Tasks ------------------------------------------------------------------------------------------------------- */

/* Rows of sums, in place: sums · factor (+ bias) (+ y). */
static void finish_sums(const linear_run *run, const float *factor, float *sums, int64_t i, int64_t n_x, int64_t row,
                        int64_t n_w) {
    const qr_linear_args *args = run->args;
    for (int64_t r = 0; r < n_x; r++) {
        float *sum = sums + r * SUM_COLS;
        const float *y = args->y + (i + r) * args->y_stride + row;
        if (factor != NULL) {
            for (int64_t o = 0; o < n_w; o++) { sum[o] *= factor[o]; }
        }
        if (args->bias != NULL) {
            for (int64_t o = 0; o < n_w; o++) { sum[o] += args->bias[row + o]; }
        }
        if (args->accumulate) {
            for (int64_t o = 0; o < n_w; o++) { sum[o] += y[o]; }
        }
    }
}

/* y = the finished sums (+ scale · B t), for rows [i, i + n_x) and outputs [row, row + n_w). lora_panel: of B. */
static void store_rows(const linear_run *run, const qr_weight *weight, float *sums, const float *lora_panel, int64_t i,
                       int64_t n_x, int64_t row, int64_t n_w) {
    const qr_linear_args *args = run->args;
    float factor[QR_CPU_PANEL_ROWS];
    const bool scaled = weight->desc.format == QR_WEIGHT_INT8;
    if (scaled) {
        const float *row_absmax = qr_cpu_scales(weight, &run->layout) + row;
        for (int64_t o = 0; o < n_w; o++) { factor[o] = row_absmax[o] / 127.0F; }
    }
    if (scaled || args->bias != NULL || args->accumulate) {
        finish_sums(run, scaled ? factor : NULL, sums, i, n_x, row, n_w);
    }
    if (run->lora != NULL) {
        qr_cpu_lora_add(run->lora, lora_panel, i, n_x, row % QR_CPU_PANEL_ROWS, n_w, sums, SUM_COLS);
    }
    for (int64_t r = 0; r < n_x; r++) {
        memcpy(args->y + (i + r) * args->y_stride + row, sums + r * SUM_COLS, (size_t)n_w * sizeof *sums);
    }
}

static void multiply_block(const linear_run *run, const qr_cpu_product *product) {
    if (run->x_in_strips) {
        run->matmul->strips->multiply(product);
    } else {
        run->matmul->multiply(product);
    }
}

/* The last K block by rows of x, some at a time: y waits for memory while the next ones are multiplied. first: row of
 * the call that product->x begins with. */
static void multiply_and_store(const linear_run *run, const qr_cpu_panel *panel, const qr_cpu_product *product,
                               const float *lora_panel, int64_t first) {
    enum { AT_ONCE = 24 }; /* whole tiles and strips of every kernel */
    const size_t row_bytes = run->matmul->element_bytes * (size_t)product->x_stride;
    qr_cpu_product part = *product;
    for (int64_t i = 0; i < product->n_x; i += part.n_x) {
        part.n_x = qr_min(product->n_x - i, AT_ONCE - (product->x_skip + i) % AT_ONCE);
        if (run->x_in_strips) {
            part.x_skip = product->x_skip + i;
        } else {
            part.x = (const unsigned char *)product->x + (size_t)i * row_bytes;
        }
        part.sums = product->sums + i * product->sum_stride;
        part.w_in_place = product->w_in_place && i == 0;
        multiply_block(run, &part);
        store_rows(run, panel->weight, part.sums, lora_panel, first + i, part.n_x, panel->row, panel->n_rows);
    }
}

/* The weights of the next K block, or of the next panel. */
static qr_cpu_ahead weights_ahead(const linear_run *run, const qr_cpu_panel *panel) {
    const int64_t n_cols = run->args->weight->desc.cols;
    int64_t row = panel->row, k = panel->k + panel->n_k;
    if (k >= n_cols) {
        row += panel->n_rows;
        k = 0;
    }
    const int64_t n_k = qr_min(n_cols - k, panel->k_block);
    return qr_cpu_weight_ahead(panel->weight, panel->layout, row, panel->n_rows, k, n_k);
}

/* Fetches and multiplies rows [panel->row, + panel->n_rows), K block by K block. */
static void multiply_piece(const linear_run *run, qr_cpu_panel *panel, qr_cpu_product *product, const float *lora_panel,
                           int64_t first) {
    const qr_cpu_matmul *matmul = run->matmul;
    const int64_t n_k = run->args->weight->desc.cols;
    const unsigned char *x = product->x;
    const size_t x_block_bytes = (size_t)run->x_k_stride * matmul->element_bytes;
    product->n_w = panel->n_rows;
    for (int64_t k = 0; k < n_k; k += matmul->k_block) {
        panel->k = k;
        panel->n_k = qr_min(n_k - k, matmul->k_block);
        panel->n_k_padded = qr_min(run->n_k_padded - k, matmul->k_block);
        if (run->weight_in_place) {
            product->w = (const unsigned char *)qr_cpu_row(panel->weight, panel->layout, panel->row) +
                         (size_t)k * matmul->element_bytes;
            product->w_stride = (int64_t)(run->layout.row_bytes / matmul->element_bytes);
        } else {
            (run->x_in_strips ? matmul->strips->fetch : matmul->fetch)(panel);
            product->w = panel->dst;
            product->w_stride = panel->dst_stride;
        }
        product->x = x + (size_t)(k / matmul->k_block) * x_block_bytes;
        product->n_k = panel->n_k_padded;
        product->first = k == 0;
        qr_cpu_ahead ahead = weights_ahead(run, panel);
        product->ahead = run->x_in_strips ? &ahead : NULL;
        if (k + matmul->k_block < n_k) {
            multiply_block(run, product);
        } else {
            multiply_and_store(run, panel, product, lora_panel, first);
        }
    }
    product->ahead = NULL;
}

/* With many rows of x, or strips, a panel is dequantised at once, so that a tile's rows of x are read once a panel;
 * with few, tile by tile, so that the dequantised weights never leave L1 (NF4, 2048 x 2048, 16 rows of x, one core: 567
 * us before, 404 after). */
static void multiply_panel(const linear_run *run, const qr_cpu_panel *panel, const qr_cpu_product *product,
                           const float *lora_panel, int64_t first) {
    const bool by_tiles = !run->x_in_strips && product->n_x <= QR_CPU_FEW_ROWS;
    const int64_t piece_rows = by_tiles ? run->matmul->piece_rows : panel->n_rows;
    for (int64_t r = 0; r < panel->n_rows; r += piece_rows) {
        qr_cpu_panel piece = *panel;
        qr_cpu_product piece_product = *product;
        piece.row += r;
        piece.n_rows = qr_min(panel->n_rows - r, piece_rows);
        piece_product.sums += r;
        multiply_piece(run, &piece, &piece_product, lora_panel, first);
    }
}

static void run_task(void *untyped, int64_t index, int worker) {
    const linear_run *run = untyped;
    const qr_cpu_matmul *matmul = run->matmul;
    const qr_cpu_row_group *group = qr_cpu_row_group_of_task(&run->groups, index);
    const qr_weight *weight = group->weight;
    const int64_t local = index - group->first_task;
    const int64_t row = local % run->n_panels * QR_CPU_PANEL_ROWS, i = local / run->n_panels * run->chunk_rows;
    unsigned char *scratch = run->scratch + (size_t)worker * run->scratch_bytes;
    const int64_t first = group->first + i, x_skip = run->x_in_strips ? first % matmul->strips->rows : 0;
    qr_cpu_panel panel = {
        .weight = weight,
        .layout = &run->layout,
        .row = row,
        .n_rows = qr_min(weight->desc.rows - row, QR_CPU_PANEL_ROWS),
        .k_block = matmul->k_block,
        .dst = scratch,
        .dst_stride = spread_stride(matmul, matmul->k_block),
    };
    qr_cpu_product product = {
        .x = (const unsigned char *)run->x + (size_t)((first - x_skip) * run->x_stride) * matmul->element_bytes,
        .x_stride = run->x_stride,
        .x_k_stride = run->x_k_stride,
        .x_skip = x_skip,
        .x_in_strips = run->x_in_strips,
        .n_w = panel.n_rows,
        .n_x = qr_min(group->n_rows - i, run->chunk_rows),
        .sums = (float *)(void *)(scratch + panel_bytes(matmul)),
        .sum_stride = SUM_COLS,
        .format = weight->desc.format,
        .w_in_place = run->weight_in_place,
    };
    product.n_k = run->n_k_padded;
    float *lora_panel = product.sums + sum_bytes(matmul, run->args->n_rows) / sizeof(float);
    if (run->lora != NULL) { qr_cpu_lora_panel(run->lora, row, panel.n_rows, lora_panel); }
    const bool may_decode = !run->x_in_strips && (matmul->multiply == NULL || product.n_x <= QR_CPU_FEW_ROWS);
    const bool decoded = matmul->decode != NULL && may_decode && matmul->decode(&panel, &product);
    if (decoded) {
        store_rows(run, weight, product.sums, lora_panel, first, product.n_x, row, product.n_w);
    } else {
        multiply_panel(run, &panel, &product, lora_panel, first);
    }
}

/* Whether most of n_groups groups of rows have more than `above_rows`. NF4_FLAT is never decoded. */
static bool wants_strips(const linear_run *run, int64_t n_groups) {
    const qr_cpu_matmul *matmul = run->matmul;
    if (matmul->strips == NULL) { return false; }
    return (matmul->multiply == NULL && run->layout.kind == QR_CPU_NF4_FLAT) ||
           run->args->n_rows > matmul->strips->above_rows * n_groups;
}

/* Rows of x of a task. In strips about as many in each, and few enough for every thread to have some tasks. */
static int64_t chunk_rows(const linear_run *run, int n_threads) {
    enum { TASKS_A_THREAD = 4 };
    const qr_cpu_strips *strips = run->matmul->strips;
    const int64_t n_rows = run->args->n_rows;
    if (!run->x_in_strips || n_rows == 0) { return QR_CPU_CHUNK_ROWS; }
    const int64_t wanted = qr_ceil_div((int64_t)TASKS_A_THREAD * n_threads, run->n_panels);
    const int64_t n_chunks =
        qr_max(qr_ceil_div(n_rows, strips->chunk_rows), qr_min(wanted, qr_ceil_div(n_rows, QR_CPU_FEW_ROWS)));
    return qr_round_up(qr_ceil_div(n_rows, n_chunks), strips->rows);
}

static void run_groups(qr_backend *backend, const qr_linear_args *args, const qr_cpu_row_groups *groups,
                       const qr_cpu_lora_sums *lora, void *workspace) {
    const qr_cpu_matmul *matmul = matmul_of(backend, args);
    linear_run run = {
        .args = args,
        .matmul = matmul,
        .groups = *groups,
        .n_k_padded = qr_round_up(args->weight->desc.cols, matmul->k_step),
        .n_panels = qr_ceil_div(args->weight->desc.rows, QR_CPU_PANEL_ROWS),
        .scratch_bytes = worker_bytes(matmul, args),
        .lora = lora,
    };
    qr_cpu_layout_of(&args->weight->desc, &run.layout);
    run.x_in_strips = wants_strips(&run, groups->n);
    run.weight_in_place = !run.x_in_strips && is_in_place(matmul, args->weight->desc.format);
    run.scratch = prepare_x(backend, &run, workspace);
    run.chunk_rows = chunk_rows(&run, qr_threads_count(backend->threads));
    const int64_t n_tasks = qr_cpu_row_groups_cut(&run.groups, run.chunk_rows, run.n_panels);
    qr_threads_run(backend->threads, n_tasks, run_task, &run);
}

/* Returns whether LoRA is in y. */
static bool run_product(qr_backend *backend, const qr_linear_args *args, void *workspace) {
    const qr_cpu_matmul *matmul = matmul_of(backend, args);
    if (matmul->tiles != NULL) { return qr_cpu_tiles_run(backend, matmul, args, workspace); }
    qr_cpu_row_group group;
    const qr_cpu_row_groups groups = qr_cpu_all_rows(args->weight, args->n_rows, &group);
    qr_cpu_lora_sums lora;
    unsigned char *rest = workspace;
    const bool adds_lora = may_add_lora(args) && qr_cpu_lora_prepare(backend, args->lora, workspace, &lora);
    if (adds_lora) { rest += qr_cpu_lora_kept_bytes(backend, args->lora); }
    run_groups(backend, args, &groups, adds_lora ? &lora : NULL, rest);
    return adds_lora;
}

/* The adapter's arguments have been checked with the others. */
static void run_linear(qr_backend *backend, const qr_linear_args *args, void *workspace) {
    const bool has_lora = run_product(backend, args, workspace);
    if (args->lora != NULL && !has_lora) { (void)qr_cpu_op_lora.run(backend, args->lora, workspace, NULL); }
}

QR_CPU_CHECKED_OP(linear, linear_workspace, run_linear)

/* --- expert_linear ----------------------------------------------------------------------------------------------- */

/* The call of linear that all experts together are. */
static qr_linear_args of_all_experts(const qr_expert_linear_args *args) {
    return (qr_linear_args){.weight = args->weights,
                            .x = args->x,
                            .x_dtype = args->x_dtype,
                            .y = args->y,
                            .n_rows = qr_routing_slots(&args->routing),
                            .x_stride = args->x_stride,
                            .y_stride = args->y_stride};
}

/* Of all slots' rows, as tiles take them. */
static size_t gathered_bytes(const qr_linear_args *all) {
    return (size_t)qr_round_up(all->n_rows * all->weight->desc.cols * (int64_t)qr_dtype_bytes(all->x_dtype), 64);
}

static size_t expert_linear_workspace(const qr_backend *backend, const void *untyped) {
    const qr_expert_linear_args *args = untyped;
    const qr_linear_args all = of_all_experts(args);
    const bool tiles = matmul_of(backend, &all)->tiles != NULL;
    return qr_cpu_row_groups_bytes(&args->routing) + (tiles ? gathered_bytes(&all) : 0) +
           product_workspace(backend, &all);
}

/* Matrix tiles take one matrix at a time, and rows that lie together. */
static void run_tiles(qr_backend *backend, const qr_linear_args *all, const qr_cpu_row_groups *groups,
                      unsigned char *workspace) {
    const qr_cpu_matmul *matmul = matmul_of(backend, all);
    const size_t element = qr_dtype_bytes(all->x_dtype), row_bytes = (size_t)all->weight->desc.cols * element;
    for (int64_t g = 0; g < groups->n; g++) {
        const qr_cpu_row_group *group = &groups->list[g];
        qr_linear_args args = *all;
        args.weight = group->weight;
        args.n_rows = group->n_rows;
        args.y += group->first * all->y_stride;
        args.x = (const unsigned char *)all->x + (size_t)(group->first * all->x_stride) * element;
        for (int64_t i = 0; groups->source_row != NULL && i < group->n_rows; i++) {
            const int64_t source = groups->source_row[group->first + i];
            memcpy(workspace + (size_t)i * row_bytes,
                   (const unsigned char *)all->x + (size_t)(source * all->x_stride) * element, row_bytes);
            args.x = workspace;
            args.x_stride = all->weight->desc.cols;
        }
        qr_cpu_tiles_run(backend, matmul, &args, workspace + gathered_bytes(all));
    }
}

static void run_expert_linear(qr_backend *backend, const qr_expert_linear_args *args, void *workspace) {
    const qr_linear_args all = of_all_experts(args);
    const qr_cpu_row_groups groups = qr_cpu_row_groups_of(args->weights, &args->routing, args->gathers, workspace);
    unsigned char *rest = (unsigned char *)workspace + qr_cpu_row_groups_bytes(&args->routing);
    if (matmul_of(backend, &all)->tiles != NULL) {
        run_tiles(backend, &all, &groups, rest);
    } else {
        run_groups(backend, &all, &groups, NULL, rest);
    }
}

QR_CPU_CHECKED_OP(expert_linear, expert_linear_workspace, run_expert_linear)

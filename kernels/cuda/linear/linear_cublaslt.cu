/* linear and linear_backward by cuBLASLt (device/cublaslt.h), where the caller leaves the order of sums open: rows of
 * the weights are dequantised into a panel of 16-bit elements, as many as fit, and multiplied from there. Weights of
 * the type of x are multiplied directly.
 *
 * Forward, a panel has some of the weights' rows. Backward it has some columns of all rows: a sum over the outputs is
 * then one product, and dx is written once. (INT8's panels have rows in both, since each needs the gradients of its own
 * outputs scaled; a product adds to what the panels before it left in dx.) The panel's size follows from the matrix and
 * the GPU: the same sizes give the same bits. The panel is half of the last cache, where it stays between the kernel
 * that writes it and the product that reads it. Dequantisation is bound by memory: 2.5 bytes a weight of NF4, in which
 * time an H100 at its memory's datasheet rate issues 22 instructions a weight; it takes about eight.
 *
 * Of INT8 the codes are the panel, exact in 16 bits. A row's factor multiplies the sums of the panel that has just been
 * multiplied, or, rounded as ops_train.h says, the gradients before they meet the panel.
 *
 * An adapter in BF16 (lora of both ops) joins the product as further terms of its sums: then y and dx are written once,
 * and not read and written once more. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"

#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/vec4.cuh"
#include "kernels/cuda/linear/weights16.cuh"

enum {
    THREADS = 256,
    PIECES = 4,       /* of 8 elements a thread, a block's width apart: four loads under way */
    PANEL_STEP = 128, /* rows or columns */

    TILE_ROWS = 128, /* of results, that a multiprocessor computes at a time */
    TILE_OUTPUTS = 256,
};

/* A part of a matrix, n elements in rows of `width`, fewer than 2^32: element i is element i of the flattened matrix,
 * from `first` on, and i of the panel, plus the gaps of the rows before it. */
struct panel_part {
    int64_t first, n, width;
    int64_t src_gap, gap; /* elements between rows: of the matrix, of the panel */
};

static QR_DEVICE uint32_t row_of(const panel_part &part, int64_t i) {
    if ((part.src_gap | part.gap) == 0) { return 0; }
    return static_cast<uint32_t>(i) / static_cast<uint32_t>(part.width);
}

/* A panel's elements, rounded. `first`, the width and the gaps are multiples of 8. */
template <typename type, weights_path path>
__global__ void panel_kernel(matrix w, nf4_book book, panel_part part, uint16_t *panel) {
    const int64_t begin = (static_cast<int64_t>(blockIdx.x) * PIECES * THREADS + threadIdx.x) * PIECE_COLS;
    uint32_t rows[PIECES], codes[PIECES];
    uint2 eight[PIECES]; /* of INT8 */
    absmax_parts absmax[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int64_t at = begin + int64_t{i} * THREADS * PIECE_COLS;
        if (at >= part.n) { continue; }
        rows[i] = row_of(part, at);
        const int64_t src = part.first + at + rows[i] * part.src_gap;
        if (path == PATH_INT8) {
            eight[i] = load_once_8(w.codes + src);
        } else if (path == PATH_NF4) {
            codes[i] = *reinterpret_cast<const uint32_t *>(w.codes + src / 2);
            absmax[i] = matrix_absmax_parts(w, src >> w.block_shift);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int64_t at = begin + int64_t{i} * THREADS * PIECE_COLS;
        if (at >= part.n) { continue; }
        uint32_t pairs[PIECE_COLS / 2];
        if (path == PATH_NF4) {
            const float scale = matrix_absmax_of(w, absmax[i], w.tables->dynamic_map[1]);
            const nf4_products products = nf4_products_of<type>(book, scale);
            nf4_lookup(products, codes[i], pairs);
        } else if (path == PATH_INT8) {
            int8_convert<type>(eight[i].x, pairs);
            int8_convert<type>(eight[i].y, pairs + 2);
        } else {
            const int64_t src = part.first + at + rows[i] * part.src_gap;
            with_matrix_code(w, [&](const auto &code) {
                for (int j = 0; j < PIECE_COLS / 2; j++) {
                    pairs[j] = type::pack(code(src + 2 * j), code(src + 2 * j + 1));
                }
            });
        }
        *reinterpret_cast<uint4 *>(panel + at + rows[i] * part.gap) = pack_words(pairs);
    }
}

template <typename type>
static qrun_status fill(qr_cuda_backend &cuda, const matrix &w, const panel_part &part, uint16_t *panel,
                        qr_error *err) {
    const dim3 grid = blocks_for(part.n, THREADS * PIECES * PIECE_COLS);
    const nf4_book book = nf4_book_of(w);
    if (qr_weight_has_blocks(w.format)) {
        return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_NF4>), grid, THREADS, 0, w, book, part, panel);
    }
    if (w.format == QR_WEIGHT_INT8) {
        return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_INT8>), grid, THREADS, 0, w, book, part, panel);
    }
    return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_ANY>), grid, THREADS, 0, w, book, part, panel);
}

/* --- The factors of INT8's rows --- */

/* y[i, o] = y[i, o] · the factor of row o (+ bias[o]), of outputs [first, first + n). */
__global__ void row_factors_kernel(qr_linear_args a, matrix w, int64_t first, int64_t n) {
    for_each_vec4(a.n_rows, n, [&](int64_t row, int64_t j) {
        float *y = a.y + row * a.y_stride + first, sums[VEC4];
        load_vec4(sums, y + j);
        for (int k = 0; k < VEC4; k++) {
            sums[k] *= matrix_row_factor(w, first + j + k);
            if (a.bias != NULL) { sums[k] += a.bias[first + j + k]; }
        }
        store_vec4(y, j, n, true, sums);
    });
}

/* dst[i, j] = dy[i, first + j] · the factor of row first + j, rounded to BF16; rows of dst `stride` elements apart. */
__global__ void scaled_dy_kernel(qr_linear_backward_args a, matrix w, int64_t first, int64_t n, uint16_t *dst,
                                 int64_t stride) {
    for_each_vec4(a.n_rows, n, [&](int64_t row, int64_t j) {
        const uint16_t *dy = static_cast<const uint16_t *>(a.dy) + row * a.dy_stride + first + j;
        const uint2 four = *reinterpret_cast<const uint2 *>(dy);
        float x[VEC4];
        for (unsigned k = 0; k < unsigned{VEC4}; k++) {
            const float value = bf16_to_f32(static_cast<uint16_t>((k < 2 ? four.x : four.y) >> k % 2 * 16));
            x[k] = value != 0.0F ? value * matrix_row_factor(w, first + j + k) : value;
        }
        store_vec4(dst, QR_DTYPE_BF16, row * stride, j, n, true, x);
    });
}

/* --- A product over panels --- */

static bool lies_there(qr_weight_format format, qr_dtype dtype) {
    return format == (dtype == QR_DTYPE_BF16 ? QR_WEIGHT_BF16 : QR_WEIGHT_F16);
}

/* A matrix in panels of rows or of columns, as equal as steps of PANEL_STEP allow: a small last one would leave most of
 * a GPU idle. */
struct panels {
    bool of_columns;
    int64_t length, across, n_steps, n; /* length: rows or columns, which are cut; across: the other ones */
    int64_t longest;                    /* what memory is planned for: no panel is longer for any number of rows */
};

/* The first row or column of panel p; of p == n the end. */
static int64_t panel_begin(const panels &of, int64_t p) {
    return qr_min(p * of.n_steps / of.n * PANEL_STEP, of.length);
}

/* What panels of outputs cost, in quarters of the time in which every multiprocessor computes a tile: each panel's last
 * tiles leave some idle, and filling and starting it takes about a quarter. */
static int64_t cost_of(const qr_cuda_backend &cuda, const panels &of, int64_t n_rows) {
    const int64_t row_tiles = qr_ceil_div(n_rows, TILE_ROWS);
    int64_t n_rounds = 0;
    for (int64_t p = 0; p < of.n; p++) {
        const int64_t tiles = row_tiles * qr_ceil_div(panel_begin(of, p + 1) - panel_begin(of, p), TILE_OUTPUTS);
        n_rounds += qr_ceil_div(tiles, qr_device_multiprocessors(cuda.device));
    }
    return 4 * n_rounds + of.n;
}

/* n_rows: of the results, whose columns the panels are of; 0: panels of terms, which are as long as memory allows. */
static panels panels_of(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype, bool of_columns,
                        int64_t n_rows) {
    panels of = {};
    of.of_columns = of_columns;
    of.length = of_columns ? desc.cols : desc.rows, of.across = of_columns ? desc.rows : desc.cols;
    of.n_steps = qr_ceil_div(of.length, PANEL_STEP);
    const int64_t most_steps = qr_max(qr_cublaslt_panel_bytes(cuda.device) / (2 * of.across) / PANEL_STEP, 1);
    of.n = lies_there(desc.format, dtype) ? 1 : qr_ceil_div(of.n_steps, most_steps);
    of.longest = qr_min(qr_ceil_div(of.n_steps, of.n) * PANEL_STEP, of.length);
    if (n_rows == 0 || of.n == 1) { return of; }
    panels other = of;
    const int64_t most_panels = qr_min(2 * of.n, of.n_steps);
    for (other.n = of.n + 1; other.n <= most_panels; other.n++) {
        if (cost_of(cuda, other, n_rows) < cost_of(cuda, of, n_rows)) { of.n = other.n; }
    }
    return of;
}

static bool takes(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype, int64_t n_rows) {
    return (dtype == QR_DTYPE_BF16 || dtype == QR_DTYPE_F16) && n_rows >= qr_cublaslt_min_rows(cuda.device) &&
           desc.rows % PIECE_COLS == 0 && desc.cols % PIECE_COLS == 0 && qr_cublaslt_is_there(cuda.device);
}

static bool is_aligned(const void *x, int64_t x_stride, const float *y, int64_t y_stride) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % PIECE_COLS == 0 &&
           reinterpret_cast<uintptr_t>(y) % 16 == 0 && y_stride % 4 == 0;
}

/* So many elements of 16 bits, and what aligns the next ones. */
static size_t aligned_bytes(int64_t n) { return static_cast<size_t>(qr_round_up(n * 2, QR_CUBLASLT_ALIGNMENT)); }

/* cuBLASLt's workspace, then the panel; backward of INT8, then the gradients of a panel's outputs, scaled. */
struct workspace_layout {
    size_t scaled_dy, n_bytes; /* scaled_dy: from the aligned beginning */
};

static workspace_layout workspace_of(const qr_weight_desc &desc, const panels &parts, qr_dtype dtype,
                                     int64_t n_scaled) {
    const int64_t length = parts.longest;
    workspace_layout layout = {};
    layout.scaled_dy =
        QR_CUBLASLT_WORKSPACE_BYTES + (lies_there(desc.format, dtype) ? 0 : aligned_bytes(length * parts.across));
    layout.n_bytes = layout.scaled_dy + static_cast<size_t>(n_scaled * length * 2) + QR_CUBLASLT_ALIGNMENT;
    return layout;
}

/* Where n rows or columns of the weights are multiplied from: a dequantised panel in `memory`, whose rows have `room`
 * elements between them, or the weights themselves, which are one panel. */
static qr_cublaslt_operand operand_of(const matrix &w, const panels &parts, qr_dtype dtype, int64_t n, void *memory,
                                      int64_t room) {
    if (lies_there(w.format, dtype)) { return {w.codes, w.cols, false}; }
    return {memory, (parts.of_columns ? n : w.cols) + room, false};
}

/* Rows or columns [o, o + n) of the weights into the product's panel. */
static qrun_status fill_panel(qr_cuda_backend &cuda, const matrix &w, const panels &parts,
                              const qr_cublaslt_product &product, int64_t o, int64_t n, qr_error *err) {
    if (lies_there(w.format, product.dtype)) { return QRUN_OK; }
    uint16_t *dst = static_cast<uint16_t *>(const_cast<void *>(product.b.data));
    panel_part part = {};
    part.first = parts.of_columns ? o : o * w.cols;
    part.n = n * parts.across;
    part.width = parts.of_columns ? n : w.cols;
    part.src_gap = w.cols - part.width, part.gap = product.b.stride - part.width;
    return product.dtype == QR_DTYPE_BF16 ? fill<of_bf16>(cuda, w, part, dst, err)
                                          : fill<of_f16>(cuda, w, part, dst, err);
}

/* Multiplies by one panel of the weights after the other, whose rows have `room` elements between them:
 * set_panel(product, o, n) says what changes with the panel of rows or columns [o, o + n), before(o, n, panel), which
 * the panel is filled for, and after(o, n) run beside the product. The library takes all of them. */
template <typename F, typename B, typename A>
static qrun_status multiply_panels(qr_cuda_backend &cuda, const qr_weight &weight, const panels &parts,
                                   qr_cublaslt_product product, int64_t room, void *workspace, const F &set_panel,
                                   const B &before, const A &after, qr_error *err) {
    const matrix w = matrix_of(cuda, weight);
    unsigned char *memory = qr_cublaslt_aligned(workspace), *panel = memory + QR_CUBLASLT_WORKSPACE_BYTES;
    for (int64_t p = 0; p < parts.n; p++) {
        const int64_t o = panel_begin(parts, p), n = panel_begin(parts, p + 1) - o;
        product.b = operand_of(w, parts, product.dtype, n, panel, room);
        set_panel(product, o, n);
        QR_RETURN_IF_ERROR(fill_panel(cuda, w, parts, product, o, n, err));
        QR_RETURN_IF_ERROR(before(o, n, reinterpret_cast<uint16_t *>(panel)));
        const qrun_status status = qr_cublaslt_multiply(cuda.device, &product, memory, err);
        if (status == QR_CUBLASLT_REFUSED && o > 0) {
            return qr_fail(err, QRUN_ERROR_DEVICE,
                           "cuda: cuBLASLt refused a product that it had taken; QRUN_CUDA_CUBLASLT=0 does without it");
        }
        QR_RETURN_IF_ERROR(status);
        QR_RETURN_IF_ERROR(after(o, n));
    }
    return QRUN_OK;
}

static qrun_status nothing_before(int64_t, int64_t, uint16_t *) { return QRUN_OK; }
static qrun_status nothing_after(int64_t, int64_t) { return QRUN_OK; }

/* Whether the library takes the products of all panels. */
template <typename F>
static bool takes_panels(qr_cuda_backend &cuda, const qr_weight &weight, const panels &parts,
                         qr_cublaslt_product product, int64_t room, void *workspace, const F &set_panel) {
    const matrix w = matrix_of(cuda, weight);
    unsigned char *panel = qr_cublaslt_aligned(workspace) + QR_CUBLASLT_WORKSPACE_BYTES;
    for (int64_t p = 0; p < parts.n; p++) {
        const int64_t o = panel_begin(parts, p), n = panel_begin(parts, p + 1) - o;
        product.b = operand_of(w, parts, product.dtype, n, panel, room);
        set_panel(product, o, n);
        if (!qr_cublaslt_takes(cuda.device, &product)) { return false; }
    }
    return true;
}

/* --- linear --- */

static panels panels_of(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    return panels_of(cuda, args.weight->desc, args.x_dtype, false, args.n_rows);
}

/* INT8's factors multiply the sums alone, which are gone where they have been added to y. */
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const bool taken = args.any_order && !(desc.format == QR_WEIGHT_INT8 && args.accumulate) &&
                       takes(cuda, desc, args.x_dtype, args.n_rows);
    return taken ? workspace_of(desc, panels_of(cuda, args), args.x_dtype, 0).n_bytes : 0;
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.x, args.x_stride, args.y, args.y_stride);
}

/* y of x's rows; its panels are set by set_forward. */
static qr_cublaslt_product forward_product(const qr_linear_args &args) {
    qr_cublaslt_product product = {};
    product.dtype = args.x_dtype;
    product.m = args.n_rows, product.k = args.weight->desc.cols;
    product.a = {.data = args.x, .stride = args.x_stride, .transposed = false};
    product.c_stride = args.y_stride;
    product.accumulate = args.accumulate;
    return product;
}

static void set_forward(const qr_linear_args &args, qr_cublaslt_product &panel, int64_t o, int64_t n) {
    panel.n = n;
    panel.b.transposed = true;
    panel.c = args.y + o;
    panel.bias = args.bias != NULL && args.weight->desc.format != QR_WEIGHT_INT8 ? args.bias + o : NULL;
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
    const bool is_int8 = args.weight->desc.format == QR_WEIGHT_INT8;
    const panels parts = panels_of(cuda, args);
    const qr_cublaslt_product product = forward_product(args);
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) { set_forward(args, panel, o, n); };
    const matrix w = matrix_of(cuda, *args.weight);
    const auto multiply_rows = [&](int64_t o, int64_t n) -> qrun_status {
        if (!is_int8) { return QRUN_OK; }
        return QR_LAUNCH_VEC4(cuda.device, err, row_factors_kernel, args.n_rows, n, args, w, o, n);
    };
    if (!takes_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel)) { return QR_CUBLASLT_REFUSED; }
    return multiply_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel, nothing_before, multiply_rows,
                           err);
}

/* --- linear with an adapter: y = [x | t] [W | scale · B]ᵀ --- */

/* Rows of 16-bit elements, n of 16 bytes each, into rows further apart. */
__global__ void copy_rows_kernel(const uint16_t *src, int64_t src_stride, int64_t n_rows, int64_t n, uint16_t *dst,
                                 int64_t dst_stride) {
    const int64_t at = global_thread(), row = at / n, j = at % n * PIECE_COLS;
    if (row >= n_rows) { return; }
    *reinterpret_cast<uint4 *>(dst + row * dst_stride + j) =
        *reinterpret_cast<const uint4 *>(src + row * src_stride + j);
}

/* Whether W is dequantised into panels that have room for an adapter. The factor of an INT8 row is for its sum over x
 * alone. */
static bool has_room(const qr_cuda_backend &cuda, const qr_weight_desc &desc, const panels &parts, qr_dtype dtype,
                     int64_t n_rows) {
    return dtype == QR_DTYPE_BF16 && desc.format != QR_WEIGHT_INT8 && !lies_there(desc.format, dtype) &&
           takes(cuda, desc, dtype, n_rows) && parts.longest * parts.across <= UINT32_MAX;
}

/* Copying x costs 4 bytes an input and row, adding to y as much as 8 an output. */
static bool terms_pay(const qr_weight_desc &desc) { return 2 * desc.rows > desc.cols; }

/* cuBLASLt's workspace, the panel, [x | t], and the adapter's scratch. */
struct terms_layout {
    size_t x, scratch, n_bytes; /* the first two from the aligned beginning */
};

static terms_layout layout_of_terms(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const int64_t stride = desc.cols + qr_lora_room(args.lora->max_rank);
    terms_layout layout = {};
    layout.x = QR_CUBLASLT_WORKSPACE_BYTES + aligned_bytes(panels_of(cuda, args).longest * stride);
    layout.scratch = layout.x + aligned_bytes(args.n_rows * stride);
    layout.n_bytes = layout.scratch + qr_cuda_lora_terms_bytes(cuda, *args.lora) + QR_CUBLASLT_ALIGNMENT;
    return layout;
}

size_t qr_cuda_lora_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const bool taken = args.lora != NULL && args.any_order && args.lora->in_pairs && terms_pay(args.weight->desc) &&
                       has_room(cuda, args.weight->desc, panels_of(cuda, args), args.x_dtype, args.n_rows);
    return taken ? layout_of_terms(cuda, args).n_bytes : 0;
}

bool qr_cuda_lora_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    return qr_cuda_lora_cublaslt_workspace(cuda, args) > 0 &&
           is_aligned(args.x, args.x_stride, args.y, args.y_stride) &&
           is_aligned(args.lora->x, args.lora->x_stride, args.y, args.y_stride);
}

qrun_status qr_cuda_lora_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
    const int64_t cols = args.weight->desc.cols, room = qr_lora_room(args.lora->max_rank), stride = cols + room;
    const terms_layout layout = layout_of_terms(cuda, args);
    const panels parts = panels_of(cuda, args);
    unsigned char *memory = qr_cublaslt_aligned(workspace);
    uint16_t *x = reinterpret_cast<uint16_t *>(memory + layout.x);
    qr_cublaslt_product product = forward_product(args);
    product.k = stride;
    product.a = {.data = x, .stride = stride, .transposed = false};
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) { set_forward(args, panel, o, n); };
    const auto put_b = [&](int64_t o, int64_t n, uint16_t *panel) {
        return qr_cuda_lora_put_b(cuda, *args.lora, o, n, panel + cols, stride, err);
    };
    if (!takes_panels(cuda, *args.weight, parts, product, room, workspace, set_panel)) { return QR_CUBLASLT_REFUSED; }
    const int64_t pieces = cols / PIECE_COLS;
    QR_RETURN_IF_ERROR(qr_cuda_lora_put_t(cuda, *args.lora, x + cols, stride, memory + layout.scratch, memory, err));
    QR_RETURN_IF_ERROR(QR_LAUNCH(cuda.device, err, copy_rows_kernel, blocks_for(args.n_rows * pieces, THREADS), THREADS,
                                 0, static_cast<const uint16_t *>(args.x), args.x_stride, args.n_rows, pieces, x,
                                 stride));
    return multiply_panels(cuda, *args.weight, parts, product, room, workspace, set_panel, put_b, nothing_after, err);
}

/* --- linear_backward --- */

static panels panels_of(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const bool of_columns = args.weight->desc.format != QR_WEIGHT_INT8;
    return panels_of(cuda, args.weight->desc, args.dy_dtype, of_columns, of_columns ? args.n_rows : 0);
}

/* Scaled gradients of F16 are F32 (ops_train.h), which no product here takes. */
static workspace_layout layout_of(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    return workspace_of(desc, panels_of(cuda, args), args.dy_dtype, desc.format == QR_WEIGHT_INT8 ? args.n_rows : 0);
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const bool taken = args.any_order && !(desc.format == QR_WEIGHT_INT8 && args.dy_dtype == QR_DTYPE_F16) &&
                       takes(cuda, desc, args.dy_dtype, args.n_rows);
    return taken ? layout_of(cuda, args).n_bytes : 0;
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.dy, args.dy_stride, args.dx, args.dx_stride);
}

/* dx; a panel of columns sets which of its columns. */
static qr_cublaslt_product backward_product(const qr_linear_backward_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    qr_cublaslt_product product = {};
    product.dtype = args.dy_dtype;
    product.m = args.n_rows, product.n = desc.cols, product.k = desc.rows;
    product.a = {args.dy, args.dy_stride, false};
    product.c = args.dx, product.c_stride = args.dx_stride;
    product.accumulate = args.accumulate;
    return product;
}

static void set_columns(const qr_linear_backward_args &args, qr_cublaslt_product &panel, int64_t first, int64_t n) {
    panel.n = n;
    panel.c = args.dx + first;
}

/* A panel of rows sets the terms of the sums: its outputs' gradients, scaled. */
static qrun_status int8_backward(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                 qr_error *err) {
    const panels parts = panels_of(cuda, args);
    uint16_t *scaled = reinterpret_cast<uint16_t *>(qr_cublaslt_aligned(workspace) + layout_of(cuda, args).scaled_dy);
    const int64_t stride = parts.longest;
    const qr_cublaslt_product product = backward_product(args);
    const matrix w = matrix_of(cuda, *args.weight);
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) {
        panel.k = n;
        panel.a = {scaled, stride, false};
        panel.accumulate = args.accumulate || o > 0;
    };
    const auto scale_dy = [&](int64_t o, int64_t n, uint16_t *) {
        return QR_LAUNCH_VEC4(cuda.device, err, scaled_dy_kernel, args.n_rows, n, args, w, o, n, scaled, stride);
    };
    if (!takes_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel)) { return QR_CUBLASLT_REFUSED; }
    return multiply_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel, scale_dy, nothing_after, err);
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                             qr_error *err) {
    if (args.weight->desc.format == QR_WEIGHT_INT8) { return int8_backward(cuda, args, workspace, err); }
    const panels parts = panels_of(cuda, args);
    const qr_cublaslt_product product = backward_product(args);
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) { set_columns(args, panel, o, n); };
    if (!takes_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel)) { return QR_CUBLASLT_REFUSED; }
    return multiply_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel, nothing_before, nothing_after,
                           err);
}

/* --- linear_backward with an adapter: dx = [dy | dh] [W; A], the factors' gradients beside it --- */

/* Every panel ends with rows of A; then the adapter's scratch. */
static terms_layout layout_of_terms(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const int64_t n_rows = args.weight->desc.rows + qr_lora_room(args.lora->rank);
    terms_layout layout = {};
    layout.scratch = QR_CUBLASLT_WORKSPACE_BYTES + aligned_bytes(n_rows * panels_of(cuda, args).longest);
    layout.n_bytes = layout.scratch + qr_cuda_lora_backward_terms_bytes(cuda, *args.lora) + QR_CUBLASLT_ALIGNMENT;
    return layout;
}

size_t qr_cuda_lora_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_lora_backward_args *lora = args.lora;
    const bool taken = lora != NULL && args.any_order && lora->in_pairs && lora->x_dtype == args.dy_dtype &&
                       args.dy_room >= qr_lora_room(lora->rank) &&
                       has_room(cuda, args.weight->desc, panels_of(cuda, args), args.dy_dtype, args.n_rows);
    return taken ? layout_of_terms(cuda, args).n_bytes : 0;
}

bool qr_cuda_lora_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_lora_backward_args *lora = args.lora;
    return qr_cuda_lora_cublaslt_workspace(cuda, args) > 0 && lora->dy_rounded == args.dy &&
           lora->dy_rounded_stride == args.dy_stride && is_aligned(args.dy, args.dy_stride, args.dx, args.dx_stride) &&
           is_aligned(lora->x, lora->x_stride, args.dx, args.dx_stride);
}

qrun_status qr_cuda_lora_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                  qr_error *err) {
    const int64_t out = args.weight->desc.rows;
    const terms_layout layout = layout_of_terms(cuda, args);
    const panels parts = panels_of(cuda, args);
    unsigned char *memory = qr_cublaslt_aligned(workspace), *scratch = memory + layout.scratch;
    uint16_t *dy = static_cast<uint16_t *>(const_cast<void *>(args.dy)); /* its room is ours */
    qr_cublaslt_product product = backward_product(args);
    product.k = out + qr_lora_room(args.lora->rank);
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) { set_columns(args, panel, o, n); };
    const auto put_a = [&](int64_t o, int64_t n, uint16_t *panel) {
        return qr_cuda_lora_put_a(cuda, *args.lora, o, n, panel + out * n, err);
    };
    if (!takes_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel)) { return QR_CUBLASLT_REFUSED; }
    QR_RETURN_IF_ERROR(qr_cuda_lora_put_dh(cuda, *args.lora, dy + out, args.dy_stride, scratch, memory, err));
    QR_RETURN_IF_ERROR(
        multiply_panels(cuda, *args.weight, parts, product, 0, workspace, set_panel, put_a, nothing_after, err));
    return qr_cuda_lora_add_gradients(cuda, *args.lora, scratch, err);
}

/* linear and linear_backward by cuBLASLt (device/cublaslt.h), where the caller leaves the order of sums open: rows of
 * the weights are dequantised into a panel of 16-bit elements, as many as fit, and multiplied from there. Weights of
 * the type of x are multiplied directly.
 *
 * The panel's size follows from the matrix and the GPU, and so does where the backward pass cuts the sum over outputs:
 * the same sizes give the same bits. The panel is half of the last cache, where it stays between the kernel that writes
 * it and the product that reads it. Dequantisation is bound by memory: 2.5 bytes a weight of NF4, in which time an H100
 * at its memory's datasheet rate issues 22 instructions a weight; it takes about eight.
 *
 * Of INT8 the codes are the panel, exact in 16 bits. A row's factor multiplies the sums of the panel that has just been
 * multiplied, or, rounded as ops_train.h says, the gradients before they meet the panel. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"

#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/vec4.cuh"
#include "kernels/cuda/linear/weights16.cuh"

enum {
    THREADS = 256,
    PIECES = 4, /* of 8 elements a thread, a block's width apart: four loads under way */
    ROWS_STEP = 128,
};

/* panel[i] = element first + i of the flattened matrix, rounded. `first` and a panel's end are multiples of 8. */
template <typename type, weights_path path>
__global__ void panel_kernel(matrix w, nf4_book book, int64_t first, int64_t n, uint16_t *panel) {
    const int64_t begin = (static_cast<int64_t>(blockIdx.x) * PIECES * THREADS + threadIdx.x) * PIECE_COLS;
    uint32_t codes[PIECES];
    uint2 eight[PIECES]; /* of INT8 */
    absmax_parts absmax[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int64_t at = begin + int64_t{i} * THREADS * PIECE_COLS;
        if (path == PATH_ANY || at >= n) { continue; }
        if (path == PATH_INT8) {
            eight[i] = load_once_8(w.codes + first + at);
        } else {
            codes[i] = *reinterpret_cast<const uint32_t *>(w.codes + (first + at) / 2);
            absmax[i] = matrix_absmax_parts(w, (first + at) >> w.block_shift);
        }
    }
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int64_t at = begin + int64_t{i} * THREADS * PIECE_COLS;
        if (at >= n) { continue; }
        uint32_t pairs[PIECE_COLS / 2];
        if (path == PATH_NF4) {
            const float scale = matrix_absmax_of(w, absmax[i], w.tables->dynamic_map[1]);
            const nf4_products products = nf4_products_of<type>(book, scale);
            nf4_lookup(products, codes[i], pairs);
        } else if (path == PATH_INT8) {
            int8_convert<type>(eight[i].x, pairs);
            int8_convert<type>(eight[i].y, pairs + 2);
        } else {
            for (int j = 0; j < PIECE_COLS / 2; j++) {
                pairs[j] = type::pack(matrix_code(w, first + at + 2 * j), matrix_code(w, first + at + 2 * j + 1));
            }
        }
        *reinterpret_cast<uint4 *>(panel + at) = pack_words(pairs);
    }
}

template <typename type>
static qrun_status fill(qr_cuda_backend &cuda, const matrix &w, int64_t first, int64_t n, uint16_t *panel,
                        qr_error *err) {
    const dim3 grid = blocks_for(n, THREADS * PIECES * PIECE_COLS);
    const nf4_book book = nf4_book_of(w);
    if (qr_weight_has_blocks(w.format)) {
        return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_NF4>), grid, THREADS, 0, w, book, first, n, panel);
    }
    if (w.format == QR_WEIGHT_INT8) {
        return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_INT8>), grid, THREADS, 0, w, book, first, n, panel);
    }
    return QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_ANY>), grid, THREADS, 0, w, book, first, n, panel);
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

/* A matrix in panels of rows as equal as steps of ROWS_STEP rows allow: a small last one would leave most of a GPU
 * idle. */
struct panels {
    int64_t rows, n_steps, n;
};

static panels panels_of(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype) {
    const int64_t n_steps = qr_ceil_div(desc.rows, ROWS_STEP);
    if (lies_there(desc.format, dtype)) { return {desc.rows, n_steps, 1}; }
    const int64_t most = qr_max(qr_cublaslt_panel_bytes(cuda.device) / (2 * desc.cols) / ROWS_STEP, 1);
    return {desc.rows, n_steps, qr_ceil_div(n_steps, most)};
}

/* The first row of panel p; of p == n the end. */
static int64_t panel_begin(const panels &of, int64_t p) { return qr_min(p * of.n_steps / of.n * ROWS_STEP, of.rows); }

/* Rows of the largest one. */
static int64_t panel_rows(const panels &of) { return qr_min(qr_ceil_div(of.n_steps, of.n) * ROWS_STEP, of.rows); }

static bool takes(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype, int64_t n_rows) {
    return (dtype == QR_DTYPE_BF16 || dtype == QR_DTYPE_F16) && n_rows >= qr_cublaslt_min_rows(cuda.device) &&
           desc.rows % PIECE_COLS == 0 && desc.cols % PIECE_COLS == 0 && qr_cublaslt_is_there(cuda.device);
}

static bool is_aligned(const void *x, int64_t x_stride, const float *y, int64_t y_stride) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % PIECE_COLS == 0 &&
           reinterpret_cast<uintptr_t>(y) % 16 == 0 && y_stride % 4 == 0;
}

/* cuBLASLt's workspace, then the panel; backward of INT8, then the gradients of a panel's outputs, scaled. */
struct workspace_layout {
    size_t scaled_dy, n_bytes; /* scaled_dy: from the aligned beginning */
};

static workspace_layout workspace_of(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype,
                                     int64_t n_scaled) {
    const int64_t n_rows = panel_rows(panels_of(cuda, desc, dtype));
    const size_t panel_bytes = lies_there(desc.format, dtype) ? 0 : static_cast<size_t>(n_rows * desc.cols * 2);
    workspace_layout layout = {};
    layout.scaled_dy = QR_CUBLASLT_WORKSPACE_BYTES +
                       (panel_bytes + QR_CUBLASLT_ALIGNMENT - 1) / QR_CUBLASLT_ALIGNMENT * QR_CUBLASLT_ALIGNMENT;
    layout.n_bytes = layout.scaled_dy + static_cast<size_t>(n_scaled * n_rows * 2) + QR_CUBLASLT_ALIGNMENT;
    return layout;
}

/* Where rows of the weights are multiplied from: a dequantised panel in `memory`, or the weights themselves. */
static qr_cublaslt_operand panel_at(const matrix &w, qr_dtype dtype, int64_t row, void *memory) {
    const void *data = lies_there(w.format, dtype) ? w.codes + row * w.cols * 2 : memory;
    return {data, w.cols, false};
}

/* Rows [row, row + n_rows) of the weights into the product's panel. */
static qrun_status fill_panel(qr_cuda_backend &cuda, const matrix &w, const qr_cublaslt_product &product, int64_t row,
                              int64_t n_rows, qr_error *err) {
    if (lies_there(w.format, product.dtype)) { return QRUN_OK; }
    uint16_t *dst = static_cast<uint16_t *>(const_cast<void *>(product.b.data));
    return product.dtype == QR_DTYPE_BF16 ? fill<of_bf16>(cuda, w, row * w.cols, n_rows * w.cols, dst, err)
                                          : fill<of_f16>(cuda, w, row * w.cols, n_rows * w.cols, dst, err);
}

/* Multiplies by one panel of the weights after the other: set_panel(product, o, n) says what changes with the panel of
 * rows [o, o + n), before(o, n) and after(o, n) run beside the product. Nothing is computed where the library refuses
 * one of them. */
template <typename F, typename B, typename A>
static qrun_status multiply_panels(qr_cuda_backend &cuda, const qr_weight &weight, qr_cublaslt_product product,
                                   void *workspace, const F &set_panel, const B &before, const A &after,
                                   qr_error *err) {
    const matrix w = matrix_of(cuda, weight);
    const panels parts = panels_of(cuda, weight.desc, product.dtype);
    unsigned char *memory = qr_cublaslt_aligned(workspace), *panel = memory + QR_CUBLASLT_WORKSPACE_BYTES;
    for (int64_t p = 0; p < parts.n; p++) {
        const int64_t o = panel_begin(parts, p);
        product.b = panel_at(w, product.dtype, o, panel);
        set_panel(product, o, panel_begin(parts, p + 1) - o);
        if (!qr_cublaslt_takes(cuda.device, &product)) { return QR_CUBLASLT_REFUSED; }
    }
    for (int64_t p = 0; p < parts.n; p++) {
        const int64_t o = panel_begin(parts, p), n = panel_begin(parts, p + 1) - o;
        product.b = panel_at(w, product.dtype, o, panel);
        set_panel(product, o, n);
        QR_RETURN_IF_ERROR(fill_panel(cuda, w, product, o, n, err));
        QR_RETURN_IF_ERROR(before(o, n));
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

static qrun_status nothing(int64_t, int64_t) { return QRUN_OK; }

/* --- linear --- */

/* INT8's factors multiply the sums alone, which are gone where they have been added to y. */
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const bool taken = args.any_order && !(desc.format == QR_WEIGHT_INT8 && args.accumulate) &&
                       takes(cuda, desc, args.x_dtype, args.n_rows);
    return taken ? workspace_of(cuda, desc, args.x_dtype, 0).n_bytes : 0;
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.x, args.x_stride, args.y, args.y_stride);
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
    const bool is_int8 = args.weight->desc.format == QR_WEIGHT_INT8;
    qr_cublaslt_product product = {};
    product.dtype = args.x_dtype;
    product.m = args.n_rows, product.k = args.weight->desc.cols;
    product.a = {.data = args.x, .stride = args.x_stride, .transposed = false};
    product.c_stride = args.y_stride;
    product.accumulate = args.accumulate;
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) {
        panel.n = n;
        panel.b.transposed = true;
        panel.c = args.y + o;
        panel.bias = args.bias != NULL && !is_int8 ? args.bias + o : NULL;
    };
    const matrix w = matrix_of(cuda, *args.weight);
    const auto multiply_rows = [&](int64_t o, int64_t n) -> qrun_status {
        if (!is_int8) { return QRUN_OK; }
        return QR_LAUNCH_VEC4(cuda.device, err, row_factors_kernel, args.n_rows, n, args, w, o, n);
    };
    return multiply_panels(cuda, *args.weight, product, workspace, set_panel, nothing, multiply_rows, err);
}

/* --- linear_backward --- */

/* Scaled gradients of F16 are F32 (ops_train.h), which no product here takes. */
static workspace_layout layout_of(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    return workspace_of(cuda, desc, args.dy_dtype, desc.format == QR_WEIGHT_INT8 ? args.n_rows : 0);
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

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                             qr_error *err) {
    const qr_weight_desc &desc = args.weight->desc;
    const bool is_int8 = desc.format == QR_WEIGHT_INT8;
    const workspace_layout layout = layout_of(cuda, args);
    uint16_t *scaled = reinterpret_cast<uint16_t *>(qr_cublaslt_aligned(workspace) + layout.scaled_dy);
    const int64_t scaled_stride = panel_rows(panels_of(cuda, desc, args.dy_dtype));
    qr_cublaslt_product product = {};
    product.dtype = args.dy_dtype;
    product.m = args.n_rows, product.n = desc.cols;
    product.c = args.dx, product.c_stride = args.dx_stride;
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) {
        const uint16_t *dy = static_cast<const uint16_t *>(args.dy) + o;
        panel.k = n;
        panel.a = {is_int8 ? scaled : dy, is_int8 ? scaled_stride : args.dy_stride, false};
        panel.accumulate = args.accumulate || o > 0;
    };
    const matrix w = matrix_of(cuda, *args.weight);
    const auto scale_dy = [&](int64_t o, int64_t n) -> qrun_status {
        if (!is_int8) { return QRUN_OK; }
        return QR_LAUNCH_VEC4(cuda.device, err, scaled_dy_kernel, args.n_rows, n, args, w, o, n, scaled, scaled_stride);
    };
    return multiply_panels(cuda, *args.weight, product, workspace, set_panel, scale_dy, nothing, err);
}

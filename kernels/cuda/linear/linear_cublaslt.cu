/* linear and linear_backward by cuBLASLt (device/cublaslt.h), where the caller leaves the order of sums open: rows of
 * the weights are dequantised into a panel of 16-bit elements, as many as fit, and multiplied from there. Weights of
 * the type of x are multiplied directly.
 *
 * The panel's size follows from the matrix and the GPU, and so does where the backward pass cuts the sum over outputs:
 * the same sizes give the same bits. The panel is half of the last cache, where it stays between the kernel that writes
 * it and the product that reads it. Dequantisation is bound by memory: 2.5 bytes a weight of NF4, in which time an H100
 * at its memory's datasheet rate issues 22 instructions a weight; it takes about eight. */
#include "kernels/cuda/linear/ops_cublaslt.cuh"

#include "kernels/cuda/device/cublaslt.h"
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
    absmax_parts absmax[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int64_t at = begin + int64_t{i} * THREADS * PIECE_COLS;
        if (path != PATH_NF4 || at >= n) { continue; }
        codes[i] = *reinterpret_cast<const uint32_t *>(w.codes + (first + at) / 2);
        absmax[i] = matrix_absmax_parts(w, (first + at) >> w.block_shift);
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
    return qr_weight_has_blocks(w.format) ? QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_NF4>), grid, THREADS,
                                                      0, w, nf4_book_of(w), first, n, panel)
                                          : QR_LAUNCH(cuda.device, err, (panel_kernel<type, PATH_ANY>), grid, THREADS,
                                                      0, w, nf4_book_of(w), first, n, panel);
}

/* --- A product over panels --- */

static bool lies_there(qr_weight_format format, qr_dtype dtype) {
    return format == (dtype == QR_DTYPE_BF16 ? QR_WEIGHT_BF16 : QR_WEIGHT_F16);
}

/* Rows of the weights in one panel. */
static int64_t panel_rows(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype) {
    if (lies_there(desc.format, dtype)) { return desc.rows; }
    const int64_t steps = qr_max(qr_cublaslt_panel_bytes(cuda.device) / (2 * desc.cols) / ROWS_STEP, 1);
    return qr_min(steps * ROWS_STEP, desc.rows);
}

/* INT8's scales multiply sums, or gradients first, which a product alone does not do. */
static bool takes(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype, int64_t n_rows) {
    return (dtype == QR_DTYPE_BF16 || dtype == QR_DTYPE_F16) && desc.format != QR_WEIGHT_INT8 &&
           n_rows >= qr_cublaslt_min_rows(cuda.device) && desc.rows % PIECE_COLS == 0 && desc.cols % PIECE_COLS == 0 &&
           qr_cublaslt_is_there(cuda.device);
}

static bool is_aligned(const void *x, int64_t x_stride, const float *y, int64_t y_stride) {
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && x_stride % PIECE_COLS == 0 &&
           reinterpret_cast<uintptr_t>(y) % 16 == 0 && y_stride % 4 == 0;
}

/* cuBLASLt's workspace, then the panel. */
static size_t workspace_of(const qr_cuda_backend &cuda, const qr_weight_desc &desc, qr_dtype dtype) {
    const int64_t panel_bytes = lies_there(desc.format, dtype) ? 0 : panel_rows(cuda, desc, dtype) * desc.cols * 2;
    return QR_CUBLASLT_WORKSPACE_BYTES + QR_CUBLASLT_ALIGNMENT + static_cast<size_t>(panel_bytes);
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
 * rows [o, o + n). Nothing is computed where the library refuses one of them. */
template <typename F>
static qrun_status multiply_panels(qr_cuda_backend &cuda, const qr_weight &weight, qr_cublaslt_product product,
                                   void *workspace, const F &set_panel, qr_error *err) {
    const matrix w = matrix_of(cuda, weight);
    const int64_t most = panel_rows(cuda, weight.desc, product.dtype);
    unsigned char *memory = qr_cublaslt_aligned(workspace), *panel = memory + QR_CUBLASLT_WORKSPACE_BYTES;
    for (int64_t o = 0; o < w.rows; o += most) {
        product.b = panel_at(w, product.dtype, o, panel);
        set_panel(product, o, qr_min(most, w.rows - o));
        if (!qr_cublaslt_takes(cuda.device, &product)) { return QR_CUBLASLT_REFUSED; }
    }
    for (int64_t o = 0; o < w.rows; o += most) {
        const int64_t n = qr_min(most, w.rows - o);
        product.b = panel_at(w, product.dtype, o, panel);
        set_panel(product, o, n);
        QR_RETURN_IF_ERROR(fill_panel(cuda, w, product, o, n, err));
        const qrun_status status = qr_cublaslt_multiply(cuda.device, &product, memory, err);
        if (status == QR_CUBLASLT_REFUSED && o > 0) {
            return qr_fail(err, QRUN_ERROR_DEVICE,
                           "cuda: cuBLASLt refused a product that it had taken; QRUN_CUDA_CUBLASLT=0 does without it");
        }
        QR_RETURN_IF_ERROR(status);
    }
    return QRUN_OK;
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    return args.any_order && takes(cuda, desc, args.x_dtype, args.n_rows) ? workspace_of(cuda, desc, args.x_dtype) : 0;
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.x, args.x_stride, args.y, args.y_stride);
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err) {
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
        panel.bias = args.bias != NULL ? args.bias + o : NULL;
    };
    return multiply_panels(cuda, *args.weight, product, workspace, set_panel, err);
}

size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    const qr_weight_desc &desc = args.weight->desc;
    const bool taken = args.any_order && takes(cuda, desc, args.dy_dtype, args.n_rows);
    return taken ? workspace_of(cuda, desc, args.dy_dtype) : 0;
}

bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args) {
    return qr_cuda_cublaslt_workspace(cuda, args) > 0 && is_aligned(args.dy, args.dy_stride, args.dx, args.dx_stride);
}

qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                             qr_error *err) {
    qr_cublaslt_product product = {};
    product.dtype = args.dy_dtype;
    product.m = args.n_rows, product.n = args.weight->desc.cols;
    product.c = args.dx, product.c_stride = args.dx_stride;
    const auto set_panel = [&](qr_cublaslt_product &panel, int64_t o, int64_t n) {
        panel.k = n;
        panel.a = {.data = static_cast<const uint16_t *>(args.dy) + o, .stride = args.dy_stride, .transposed = false};
        panel.accumulate = args.accumulate || o > 0;
    };
    return multiply_panels(cuda, *args.weight, product, workspace, set_panel, err);
}

/* What the variants of linear share: the order of a sum, and what is done with it. */
#ifndef QR_KERNELS_CUDA_LINEAR_CUH
#define QR_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/linear/weights16.cuh"

enum {
    LINEAR_LAUNCH_ROWS = 1 << 18, /* of x in one launch: the y dimension of a grid ends at 65535 */
    LINEAR_MMA_ROWS = 64,         /* what linear_mma.cu is for, at most; more are linear_tile.cu's */
    LINEAR_SEGMENTS = 8,
};

/* With x in 16 bits the columns are cut into LINEAR_SEGMENTS runs of whole chunks of 64, by the number of columns
 * alone. Each segment is summed by products of 16 columns, in order, from 0; the segments' sums, those of empty ones
 * included, are added in order. So the bits of a row are the same in every variant and at every number of rows.
 *
 * A product (mma m16n8k16) has the weights as its 16-row operand and 8 rows of x as columns. It sums over its 16
 * columns in whatever order, so a lane may bring any as long as it brings the same ones of both operands: lane t of a
 * group of four takes columns [16t, 16t + 16) of a chunk, four a product, and its codes are then 16 neighbours: 8 bytes
 * of NF4, 16 of INT8, 32 of BF16 and F16. */
QR_DEVICE int64_t linear_segment_chunks(int64_t n_chunks) { return (n_chunks + LINEAR_SEGMENTS - 1) / LINEAR_SEGMENTS; }

/* The rows of x that a block has: those of linear, one after the other. Row 0 is the first of y; tiles have n rows. */
struct linear_rows {
    QR_DEVICE int64_t first(int n, unsigned block) const { return int64_t{block} * n; }
    QR_DEVICE int64_t of_x(int64_t row) const { return row; }
};

/* What a sum becomes on its way to column o of y: times the row's factor (INT8), plus the bias. Without them a factor
 * of 1 and a bias of −0, which change no bit: so that nothing is asked for each of a lane's many sums. */
struct linear_output {
    float factor, bias;
};

QR_DEVICE linear_output linear_output_of(const qr_linear_args &a, const matrix &w, int64_t o) {
    return {w.format == QR_WEIGHT_INT8 ? matrix_row_factor(w, o) : 1.0F, a.bias != NULL ? a.bias[o] : -0.0F};
}

/* The factor and the bias, in this order. */
QR_DEVICE float linear_value(const linear_output &out, float sum) { return sum * out.factor + out.bias; }

/* An element of y: that, and what was there. Gives what it is then. */
QR_DEVICE float store_linear_at(float *y, bool accumulate, const linear_output &out, float sum) {
    const float was = accumulate ? *y : -0.0F;
    return *y = was + linear_value(out, sum);
}

QR_DEVICE float store_linear(const qr_linear_args &a, const linear_output &out, int64_t row, int64_t o, float sum) {
    return store_linear_at(&a.y[row * a.y_stride + o], a.accumulate, out, sum);
}

/* The same of a lane's sums as mma's d has them (device.cuh): of outputs [output, output + 16) and rows [row, row + 8 ·
 * n_tiles), inside y. */
template <int n_tiles>
QR_DEVICE void store_linear_tiles(const qr_linear_args &a, const matrix &w, int64_t output, int64_t row,
                                  const float (&sums)[n_tiles][4]) {
    const int64_t first = row + lane_index() % 4 * 2, n_left = a.n_rows - first;
    const int n_here = n_left < 8 * n_tiles ? static_cast<int>(n_left) : 8 * n_tiles;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const int64_t o = output + lane_index() / 4 + high * 8;
        if (o >= w.rows) { continue; }
        const linear_output out = linear_output_of(a, w, o);
        float *y = a.y + first * a.y_stride + o;
#pragma unroll
        for (int n = 0; n < n_tiles; n++, y += 8 * a.y_stride) {
            if (8 * n < n_here) { store_linear_at(y, a.accumulate, out, sums[n][high * 2]); }
            if (8 * n + 1 < n_here) { store_linear_at(y + a.y_stride, a.accumulate, out, sums[n][high * 2 + 1]); }
        }
    }
}

enum { LINEAR_F32_ROWS = 8 };

/* x in F32: output o of rows [row, row + 8), lanes over the columns in steps of 32, and one butterfly a row. The order
 * of a sum follows from cols alone. */
template <class rows_type>
QR_DEVICE void linear_f32_sums(const qr_linear_args &a, const matrix &w, const rows_type &rows, int64_t o,
                               int64_t row) {
    const float *x[LINEAR_F32_ROWS];
    const int64_t n_rows = a.n_rows - row;
    float sums[LINEAR_F32_ROWS] = {};
#pragma unroll
    for (int i = 0; i < LINEAR_F32_ROWS; i++) {
        x[i] = static_cast<const float *>(a.x) + (i < n_rows ? rows.of_x(row + i) * a.x_stride : 0);
    }
    for (int64_t c = lane_index(); c < w.cols; c += WARP_LANES) {
        const float value = matrix_code(w, o * w.cols + c);
#pragma unroll
        for (int i = 0; i < LINEAR_F32_ROWS; i++) {
            if (i < n_rows) { sums[i] = fmaf(value, x[i][c], sums[i]); }
        }
    }
#pragma unroll
    for (int i = 0; i < LINEAR_F32_ROWS; i++) {
        if (i >= n_rows) { break; }
        const float sum = warp_sum(sums[i]);
        if (lane_index() == 0) { store_linear(a, linear_output_of(a, w, o), row + i, o, sum); }
    }
}

/* Calls launch(part) for so many rows of x at a time as one launch can have. */
template <typename F> static qrun_status linear_by_launches(const qr_linear_args &args, const F &launch) {
    qr_linear_args part = args;
    const int64_t x_bytes = args.x_stride * static_cast<int64_t>(qr_dtype_bytes(args.x_dtype));
    for (int64_t row = 0; row < args.n_rows; row += LINEAR_LAUNCH_ROWS) {
        part.n_rows = qr_min(LINEAR_LAUNCH_ROWS, args.n_rows - row);
        part.x = static_cast<const unsigned char *>(args.x) + row * x_bytes;
        part.y = args.y + row * args.y_stride;
        QR_RETURN_IF_ERROR(launch(part));
    }
    return QRUN_OK;
}

/* Whether all of x lies in whole chunks at multiples of 16 bytes. */
static inline bool linear_x_is_whole(const qr_linear_args &args) {
    return reinterpret_cast<uintptr_t>(args.x) % 16 == 0 && args.x_stride % PIECE_COLS == 0 &&
           args.weight->desc.cols % CHUNK == 0;
}

/* x in BF16 or F16, any number of rows (linear_mma.cu). */
qrun_status qr_cuda_linear_mma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err);

/* Matrices that multiply the same x, of at most LINEAR_MMA_ROWS rows in BF16 or F16, in one launch, none of whose
 * outputs overlap; `with`: what else it does. Whether there is a kernel for them. Bits and outputs are those of the ops
 * alone. */
enum { LINEAR_GROUP_MOST = 3, LINEAR_NORM_ROWS = 2 };

struct linear_with {
    const qr_rms_norm_args *norm; /* that makes x, of at most LINEAR_NORM_ROWS rows; or NULL */
    const qr_gate_args *gate;     /* of the first output by the second, of two matrices of one size; or NULL */
    const heads_ops *heads; /* of the outputs of three, q, k and v, none of which adds to what is there; or NULL */
};

bool qr_cuda_linear_group_takes(const qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                const linear_with &with);
qrun_status qr_cuda_linear_group(qr_cuda_backend &cuda, const qr_linear_args *const *args, int n,
                                 const linear_with &with, qr_error *err);

/* The same for many rows (linear_tile.cu), where x and the weights allow it. */
bool qr_cuda_linear_tile_takes(const qr_linear_args &args, const matrix &w);
qrun_status qr_cuda_linear_tile(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err);

/* The same for many rows on Hopper (linear_wgmma.cu), where the backend has it and there are tiles enough. */
bool qr_cuda_linear_wgmma_takes(const qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w);
qrun_status qr_cuda_linear_wgmma(qr_cuda_backend &cuda, const qr_linear_args &args, qr_error *err);

/* The same in tiles of twice as many rows (linear_wgmma_wide.cu), from copies of both operands in a workspace. Its
 * bytes follow from the sizes alone and do not fall with the number of rows: of an op that may be computed so, else 0;
 * and of any product (_bytes). */
size_t qr_cuda_linear_wgmma_wide_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args);
size_t qr_cuda_linear_wgmma_wide_bytes(const qr_cuda_backend &cuda, const qr_linear_args &args);
bool qr_cuda_linear_wgmma_wide_takes(const qr_cuda_backend &cuda, const qr_linear_args &args, const matrix &w);
qrun_status qr_cuda_linear_wgmma_wide(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace,
                                      qr_error *err);

#endif

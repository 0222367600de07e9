/* Weights as operands of 16 bits: runs of 16 columns of a row, dequantised and rounded to the type of the
 * activations. */
#ifndef QR_KERNELS_CUDA_WEIGHTS16_CUH
#define QR_KERNELS_CUDA_WEIGHTS16_CUH

#include "kernels/cuda/matrix.cuh"

enum {
    CHUNK = 64,     /* columns of whole runs and of one scale a run */
    LANE_COLS = 16, /* of a run */
    BOOK_FLOATS = 16 * WARP_LANES,
};

/* How a run is read: codes as they lie, for the formats that decode uses, where rows begin at multiples of a chunk;
 * else element by element. */
enum weights_path { PATH_NF4, PATH_INT8, PATH_16, PATH_ANY };

/* The type of x, and what weights are rounded to. */
struct of_bf16 {
    static __device__ __forceinline__ uint16_t round(float value) { return f32_to_bf16(value); }
    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
        mma_bf16(d, a, b);
    }
};

struct of_f16 {
    static __device__ __forceinline__ uint16_t round(float value) { return f32_to_f16(value); }
    static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
        mma_f16(d, a, b);
    }
};

/* Columns [col, col + 16) of row o as eight packed pairs; zeros outside the matrix. */
template <typename type>
static __device__ __forceinline__ void load_any(const matrix &w, int64_t o, int64_t col,
                                                uint32_t pairs[LANE_COLS / 2]) {
    for (int i = 0; i < LANE_COLS / 2; i++) {
        uint16_t value[2] = {0, 0};
        for (int j = 0; j < 2; j++) {
            const int64_t c = col + 2 * i + j;
            if (o < w.rows && c < w.cols) { value[j] = type::round(matrix_code(w, o * w.cols + c)); }
        }
        pairs[i] = pack16(value[0], value[1]);
    }
}

/* 8 bytes of codes, the first of a byte in its high half. `book` is the code book in shared memory, [16, 32]: a copy a
 * lane, so that no two lanes want the same bank. The 16 columns lie in one block: blocks are 32 columns at least. */
template <typename type>
static __device__ __forceinline__ void load_nf4(const matrix &w, int64_t o, int64_t col, const float *book,
                                uint32_t pairs[LANE_COLS / 2]) {
    const int64_t index = o * w.cols + col;
    const uint2 codes = *reinterpret_cast<const uint2 *>(w.codes + index / 2);
    const float absmax = matrix_absmax(w, index >> w.block_shift);
#pragma unroll
    for (int i = 0; i < LANE_COLS / 2; i++) {
        const unsigned byte = (i < 4 ? codes.x : codes.y) >> (8 * (i % 4));
        const float first = book[(byte >> 4 & 15U) * WARP_LANES + lane_index()];
        const float second = book[(byte & 15U) * WARP_LANES + lane_index()];
        pairs[i] = pack16(type::round(first * absmax), type::round(second * absmax));
    }
}

template <typename type>
static __device__ __forceinline__ void load_int8(const matrix &w, int64_t o, int64_t col,
                                                uint32_t pairs[LANE_COLS / 2]) {
    const uint4 codes = *reinterpret_cast<const uint4 *>(w.codes + o * w.cols + col);
    const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < LANE_COLS / 2; i++) {
        const uint32_t two = words[i / 2] >> (16 * (i % 2));
        const int8_t first = static_cast<int8_t>(two & 0xFFU), second = static_cast<int8_t>(two >> 8 & 0xFFU);
        pairs[i] = pack16(type::round(static_cast<float>(first)), type::round(static_cast<float>(second)));
    }
}

/* Weights that have the type of x already. */
static __device__ __forceinline__ void load_16(const matrix &w, int64_t o, int64_t col, uint32_t pairs[LANE_COLS / 2]) {
    const uint4 *src = reinterpret_cast<const uint4 *>(w.codes + (o * w.cols + col) * 2);
    const uint4 first = src[0], second = src[1];
    pairs[0] = first.x, pairs[1] = first.y, pairs[2] = first.z, pairs[3] = first.w;
    pairs[4] = second.x, pairs[5] = second.y, pairs[6] = second.z, pairs[7] = second.w;
}

template <typename type, weights_path path>
static __device__ __forceinline__ void load_weights(const matrix &w, int64_t o, int64_t col, const float *book,
                                                    uint32_t pairs[LANE_COLS / 2]) {
    if (path == PATH_ANY) {
        load_any<type>(w, o, col, pairs);
    } else if (o >= w.rows) {
        for (int i = 0; i < LANE_COLS / 2; i++) { pairs[i] = 0; }
    } else if (path == PATH_NF4) {
        load_nf4<type>(w, o, col, book, pairs);
    } else if (path == PATH_INT8) {
        load_int8<type>(w, o, col, pairs);
    } else {
        load_16(w, o, col, pairs);
    }
}

/* Fills the code book (NF4); the block must meet before it is read. */
static __device__ __forceinline__ void fill_book(const matrix &w, float *book) {
    for (unsigned i = threadIdx.x; i < BOOK_FLOATS; i += blockDim.x) { book[i] = w.tables->nf4[i / WARP_LANES]; }
}

/* Rows of the codes begin at multiples of a chunk's bytes where there are whole chunks; scales of a lane's 16 columns
 * are one then too. */
static inline weights_path path_of(const matrix &w, qr_dtype x_dtype) {
    if (w.cols % CHUNK != 0) { return PATH_ANY; }
    switch (w.format) {
    case QR_WEIGHT_NF4:
    case QR_WEIGHT_NF4_DQ: return PATH_NF4;
    case QR_WEIGHT_INT8: return PATH_INT8;
    case QR_WEIGHT_BF16: return x_dtype == QR_DTYPE_BF16 ? PATH_16 : PATH_ANY;
    case QR_WEIGHT_F16: return x_dtype == QR_DTYPE_F16 ? PATH_16 : PATH_ANY;
    default: return PATH_ANY;
    }
}

#endif

/* Weights as operands of 16 bits: runs of 16 columns of a row, dequantised and rounded to the type of the
 * activations. */
#ifndef QR_KERNELS_CUDA_WEIGHTS16_CUH
#define QR_KERNELS_CUDA_WEIGHTS16_CUH

#include "kernels/cuda/matrix.cuh"

extern "C" {
#include "quant/nf4.h"
}

enum {
    CHUNK = 64,     /* columns of whole runs and of one scale a run */
    LANE_COLS = 16, /* of a run */
};

/* How a run is read: codes as they lie, for the formats that decode uses, where rows begin at multiples of a chunk;
 * else element by element. PATH_NF4 is MXFP4 too where a run of 32 columns has one scale; PATH_MXFP4 is for runs of 64,
 * which have two. */
enum weights_path { PATH_NF4, PATH_INT8, PATH_16, PATH_ANY, PATH_MXFP4 };

/* Codes of 4 bits, of 16 values. */
template <weights_path path> constexpr bool path_has_book = path == PATH_NF4 || path == PATH_MXFP4;

/* The type of x, and what weights are rounded to. */
struct of_bf16 {
    static QR_DEVICE uint16_t round(float value) { return f32_to_bf16(value); }
    static QR_DEVICE uint32_t pack(float low, float high) { return f32_to_bf16x2(low, high); }
    template <unsigned first, unsigned second> static QR_DEVICE uint32_t of_int8(uint32_t word) {
        return int8_to_bf16x2<first, second>(word);
    }
    static QR_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma_bf16(d, a, b); }
};

struct of_f16 {
    static QR_DEVICE uint16_t round(float value) { return f32_to_f16(value); }
    static QR_DEVICE uint32_t pack(float low, float high) { return f32_to_f16x2(low, high); }
    template <unsigned first, unsigned second> static QR_DEVICE uint32_t of_int8(uint32_t word) {
        return int8_to_f16x2<first, second>(word);
    }
    static QR_DEVICE void mma(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma_f16(d, a, b); }
};

/* Calls function<type>(...) for x of 16 bits, and function<type, path>(...) for any path but PATH_ANY. */
#define QR_BY_TYPE(dtype, function, ...) \
    ((dtype) == QR_DTYPE_F16 ? function<of_f16>(__VA_ARGS__) : function<of_bf16>(__VA_ARGS__))
#define QR_BY_PATH(path, function, type, ...)                       \
    ((path) == PATH_NF4    ? function<type, PATH_NF4>(__VA_ARGS__)  \
     : (path) == PATH_INT8 ? function<type, PATH_INT8>(__VA_ARGS__) \
                           : function<type, PATH_16>(__VA_ARGS__))

struct lane_pairs {
    uint32_t pair[LANE_COLS / 2];
};

/* Columns [col, col + 16) of row o as eight packed pairs; zeros outside the matrix. */
template <typename type> QR_DEVICE_CALLED lane_pairs load_any(const matrix w, int64_t o, int64_t col) {
    lane_pairs pairs;
    const int64_t first = o * w.cols + col, n_here = o < w.rows ? w.cols - col : 0;
    const int n = n_here < LANE_COLS ? static_cast<int>(n_here) : +LANE_COLS;
    with_matrix_code(w, [&](const auto &code) {
        for (int i = 0; i < LANE_COLS / 2; i++) {
            pairs.pair[i] = pack16(2 * i < n ? type::round(code(first + 2 * i)) : uint16_t{0},
                                   2 * i + 1 < n ? type::round(code(first + 2 * i + 1)) : uint16_t{0});
        }
    });
    return pairs;
}

/* Rows of the codes begin at multiples of a chunk's bytes where there are whole chunks; scales of a lane's 16 columns
 * are one then too. */
static inline weights_path path_of(const matrix &w, qr_dtype x_dtype) {
    if (w.cols % CHUNK != 0) { return PATH_ANY; }
    switch (w.format) {
        case QR_WEIGHT_NF4:
        case QR_WEIGHT_NF4_DQ:
        case QR_WEIGHT_MXFP4: return PATH_NF4;
        case QR_WEIGHT_INT8: return PATH_INT8;
        case QR_WEIGHT_BF16: return x_dtype == QR_DTYPE_BF16 ? PATH_16 : PATH_ANY;
        case QR_WEIGHT_F16: return x_dtype == QR_DTYPE_F16 ? PATH_16 : PATH_ANY;
        default: return PATH_ANY;
    }
}

/* --- Runs of 32 columns, for kernels that dequantise into shared or global memory: a thread a run --- */

enum { RUN_COLS = 32, PIECE_COLS = 8 };

/* The code book by value in a kernel's parameters: operands of instructions, which no load brings. */
struct nf4_book {
    float value[16];
};

static inline nf4_book nf4_book_of(const matrix &w) {
    nf4_book book;
    memcpy(book.value, qr_weight_code_values(w.format), sizeof book.value);
    return book;
}

/* The sixteen weights that a block of NF4 has, rounded to 16 bits: their low bytes and their high bytes. */
struct nf4_products {
    uint32_t low[4], high[4];
};

template <typename type> static QR_DEVICE nf4_products nf4_products_of(const nf4_book &book, float absmax) {
    nf4_products products;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *code = &book.value[4 * i];
        const uint32_t first = type::pack(code[0] * absmax, code[1] * absmax);
        const uint32_t second = type::pack(code[2] * absmax, code[3] * absmax);
        products.low[i] = permute_bytes(first, second, 0x6420U);
        products.high[i] = permute_bytes(first, second, 0x7531U);
    }
    return products;
}

/* The order of a table of products, for eight codes: the four words of low bytes, and of high ones, in their order or
 * with those of each half exchanged (index 0x44444444U), the halves exchanged (half 0x76547654U) or both. */
struct nf4_order {
    uint32_t index, half;
};

/* Eight weights of the codes in a word: a permutation looks four codes up in eight bytes by three bits of each, another
 * one chooses between both halves of the table by the fourth. 21 instructions, 16 of them permutations, and no shared
 * memory. The first of two codes is a byte's high half. */
static QR_DEVICE void nf4_lookup(const nf4_products &products, uint32_t codes, uint32_t pairs[4],
                                 const nf4_order &order = {0, 0x32103210U}) {
    const uint32_t indices = (codes & 0x77777777U) ^ order.index, halves = (codes >> 1 & 0x44444444U) ^ order.half;
#pragma unroll
    for (int i = 0; i < 2; i++) { /* a permutation reads the low 16 bits of a selector */
        const uint32_t index = indices >> 16 * i, half = halves >> 16 * i;
        const uint32_t low = permute_bytes(permute_bytes(products.low[0], products.low[1], index),
                                           permute_bytes(products.low[2], products.low[3], index), half);
        const uint32_t high = permute_bytes(permute_bytes(products.high[0], products.high[1], index),
                                            permute_bytes(products.high[2], products.high[3], index), half);
        pairs[2 * i] = permute_bytes(low, high, 0x4051U);
        pairs[2 * i + 1] = permute_bytes(low, high, 0x6273U);
    }
}

/* Four codes of INT8, converted. */
template <typename type> static QR_DEVICE void int8_convert(uint32_t codes, uint32_t pairs[2]) {
    pairs[0] = type::template of_int8<0, 1>(codes);
    pairs[1] = type::template of_int8<2, 3>(codes);
}

/* The codes of a run as they lie, loaded before they are used. */
template <weights_path path> struct run_codes {
    enum { VECTORS = path == PATH_NF4 ? 1 : path == PATH_INT8 ? 2 : 4 };
    uint4 vectors[VECTORS];
    absmax_parts absmax;
};

/* Columns [col, col + 32) of row o, of any path but PATH_ANY. Rows past the last one repeat it; their results are not
 * used. */
template <weights_path path>
static QR_DEVICE void load_run(const matrix &w, int64_t o, int64_t col, run_codes<path> &run) {
    const int64_t index = (o < w.rows ? o : w.rows - 1) * w.cols + col;
    const unsigned char *src = w.codes + (path == PATH_NF4 ? index / 2 : path == PATH_INT8 ? index : index * 2);
#pragma unroll
    for (int i = 0; i < run_codes<path>::VECTORS; i++) { run.vectors[i] = load_once_16(src + 16 * i); }
    if (path == PATH_NF4) { run.absmax = matrix_absmax_parts(w, index >> w.block_shift); }
}

/* Weights [8 · piece, 8 · piece + 8) of a run. */
template <typename type, weights_path path>
static QR_DEVICE uint4 run_piece(const run_codes<path> &run, const nf4_products &products, int piece) {
    uint32_t pairs[4];
    if (path == PATH_16) { return run.vectors[piece % run_codes<path>::VECTORS]; }
    if (path == PATH_NF4) {
        const uint4 &all = run.vectors[0];
        const uint32_t codes = piece == 0 ? all.x : piece == 1 ? all.y : piece == 2 ? all.z : all.w;
        nf4_lookup(products, codes, pairs);
    } else {
        const uint4 &four = run.vectors[piece / 2 % run_codes<path>::VECTORS];
        int8_convert<type>(piece % 2 == 0 ? four.x : four.z, pairs);
        int8_convert<type>(piece % 2 == 0 ? four.y : four.w, pairs + 2);
    }
    return pack_words(pairs);
}

/* --- A lane's 16 columns of a chunk, for kernels that dequantise into the registers of a product --- */

enum { CHUNK_STEPS = 4 }; /* products a chunk */

/* The codes of a row as they lie. */
template <weights_path path> struct lane_codes {
    enum { VECTORS = path == PATH_16 ? 2 : 1, CHUNK_BYTES = path_has_book<path> ? 32 : path == PATH_INT8 ? 64 : 128 };
    uint4 vectors[VECTORS];
};

template <weights_path path> static QR_DEVICE void load_codes(const unsigned char *src, lane_codes<path> &codes) {
    if (path_has_book<path>) {
        const uint2 bytes = load_once_8(src);
        codes.vectors[0].x = bytes.x, codes.vectors[0].y = bytes.y;
    } else if (path != PATH_ANY) {
#pragma unroll
        for (unsigned i = 0; i < unsigned{lane_codes<path>::VECTORS}; i++) {
            codes.vectors[i] = load_once_16(src + 16 * i);
        }
    }
}

/* The four weights of product number `step`, of INT8 and 16-bit weights. */
template <typename type, weights_path path>
static QR_DEVICE void lane_step(const lane_codes<path> &codes, unsigned step, uint32_t pairs[2]) {
    const uint4 &four = codes.vectors[path == PATH_16 ? step / 2 % lane_codes<path>::VECTORS : 0];
    if (path == PATH_16) {
        pairs[0] = step % 2 == 0 ? four.x : four.z, pairs[1] = step % 2 == 0 ? four.y : four.w;
    } else {
        int8_convert<type>(step == 0 ? four.x : step == 1 ? four.y : step == 2 ? four.z : four.w, pairs);
    }
}

#endif

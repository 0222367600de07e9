/* A weight matrix as kernels read it: by value in a kernel's parameters. */
#ifndef QR_KERNELS_CUDA_MATRIX_CUH
#define QR_KERNELS_CUDA_MATRIX_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/device.cuh"

struct matrix {
    qr_weight_format format;
    int block_shift; /* log2 of the block of NF4 or MXFP4 */
    int64_t rows, cols;
    const unsigned char *codes;
    const float *scales;         /* INT8: SCB [rows]; NF4: absmax [n_blocks] */
    const uint8_t *absmax_codes; /* NF4_DQ; MXFP4: the scales, E8M0 [n_blocks] */
    const float *nested_absmax;  /* NF4_DQ */
    float nested_offset;
    const qr_cuda_tables *tables;
};

static inline matrix matrix_of(const qr_cuda_backend &cuda, const qr_weight &weight) {
    const qr_cuda_layout layout = qr_cuda_layout_of(&weight.desc);
    const unsigned char *data = static_cast<const unsigned char *>(weight.data);
    matrix m = {};
    m.format = weight.desc.format;
    const int block = qr_weight_block(&weight.desc);
    m.block_shift = block > 0 ? __builtin_ctz(static_cast<unsigned>(block)) : 0;
    m.rows = weight.desc.rows;
    m.cols = weight.desc.cols;
    m.codes = data;
    m.scales = reinterpret_cast<const float *>(data + layout.scales_offset);
    m.absmax_codes = data + layout.scales_offset;
    m.nested_absmax = reinterpret_cast<const float *>(data + layout.nested_offset);
    m.nested_offset = weight.nested_offset;
    m.tables = cuda.tables;
    return m;
}

/* E8M0, as quant/small_floats.h has it. */
QR_DEVICE float e8m0_to_f32(uint32_t code) {
    return f32_from_bits(code == 0 ? 0x00400000U : code == 255 ? 0x7FC00000U : code << 23);
}

/* What the absmax of an NF4 block, or the scale of an MXFP4 block, is computed from: loaded long before it is used, so
 * that no load waits for another.
 */
struct absmax_parts {
    float scale;   /* NF4: the absmax; NF4_DQ: the nested one */
    unsigned code; /* NF4_DQ, MXFP4 */
};

QR_DEVICE absmax_parts matrix_absmax_parts(const matrix &m, int64_t block) {
    if (m.format == QR_WEIGHT_NF4) { return {m.scales[block], 0}; }
    if (m.format == QR_WEIGHT_MXFP4) { return {0.0F, m.absmax_codes[block]}; }
    return {m.nested_absmax[block / QR_NESTED_BLOCK], m.absmax_codes[block]};
}

/* Every operation rounded, as quant/nf4.h says. `map` is the signed dynamic map, in any memory. */
QR_DEVICE float matrix_absmax_of(const matrix &m, const absmax_parts &parts, const float *map) {
    if (m.format == QR_WEIGHT_MXFP4) { return e8m0_to_f32(parts.code); }
    return m.format == QR_WEIGHT_NF4 ? parts.scale : map[parts.code] * parts.scale + m.nested_offset;
}

QR_DEVICE float matrix_absmax(const matrix &m, int64_t block) {
    return matrix_absmax_of(m, matrix_absmax_parts(m, block), m.tables->dynamic_map[1]);
}

/* The values of the 16 codes of NF4 or MXFP4. */
QR_DEVICE const float *matrix_code_values(const matrix &m) {
    return m.format == QR_WEIGHT_MXFP4 ? m.tables->float4 : m.tables->nf4;
}

/* An element of a format with a book, which the compiler knows. */
QR_DEVICE auto matrix_book_code(const matrix &m, qr_weight_format format) {
    matrix known = m;
    known.format = format;
    return [known](int64_t index) {
        const unsigned byte = known.codes[index / 2];
        return matrix_code_values(known)[index % 2 == 0 ? byte >> 4 : byte & 15U] *
               matrix_absmax(known, index >> known.block_shift);
    };
}

/* Calls body(code) once; code(index) is element `index` of the flattened matrix, dequantised to F32; of INT8 the code
 * alone. So the format is asked for once, however many elements the body takes. */
template <typename F> QR_DEVICE void with_matrix_code(const matrix &m, const F &body) {
    switch (m.format) {
        case QR_WEIGHT_F32: body([&](int64_t i) { return reinterpret_cast<const float *>(m.codes)[i]; }); break;
        case QR_WEIGHT_F16:
            body([&](int64_t i) { return f16_to_f32(reinterpret_cast<const uint16_t *>(m.codes)[i]); });
            break;
        case QR_WEIGHT_BF16:
            body([&](int64_t i) { return bf16_to_f32(reinterpret_cast<const uint16_t *>(m.codes)[i]); });
            break;
        case QR_WEIGHT_INT8:
            body([&](int64_t i) { return static_cast<float>(reinterpret_cast<const int8_t *>(m.codes)[i]); });
            break;
        case QR_WEIGHT_NF4: body(matrix_book_code(m, QR_WEIGHT_NF4)); break;
        case QR_WEIGHT_MXFP4: body(matrix_book_code(m, QR_WEIGHT_MXFP4)); break;
        default: body(matrix_book_code(m, QR_WEIGHT_NF4_DQ));
    }
}

QR_DEVICE float matrix_code(const matrix &m, int64_t index) {
    float value = 0.0F;
    with_matrix_code(m, [&](const auto &code) { value = code(index); });
    return value;
}

/* Element (row, col) as quant/ dequantises it to F32. */
QR_DEVICE float matrix_element(const matrix &m, int64_t row, int64_t col) {
    const float code = matrix_code(m, row * m.cols + col);
    return m.format == QR_WEIGHT_INT8 ? code * m.scales[row] * (1.0F / 127.0F) : code;
}

/* The factor of the sum over a row: SCB / 127 of INT8. */
QR_DEVICE float matrix_row_factor(const matrix &m, int64_t row) {
    return m.format == QR_WEIGHT_INT8 ? m.scales[row] / 127.0F : 1.0F;
}

#endif

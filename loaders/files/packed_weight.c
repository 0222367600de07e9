#include "loaders/files/packed_weight.h"

#include "base/half.h"
#include "base/sizes.h"
#include "quant/small_floats.h"

const char *qr_packing_name(qr_packing_kind kind) {
    switch (kind) {
        case QR_PACKING_NONE: return "none";
        case QR_PACKING_FP8: return "fp8";
        case QR_PACKING_MXFP4: return "mxfp4";
    }
    return "?";
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

static const qr_dtype_set SCALES =
    QR_DTYPES_FLOAT | QR_DTYPE_BIT(QR_DTYPE_F8_E8M0) | QR_DTYPE_BIT(QR_DTYPE_U8) /* E8M0 by another name */;

bool qr_packing_has_codes(const qr_packing *packing, const qr_safetensors_tensor *tensor) {
    switch (packing->kind) {
        case QR_PACKING_NONE:
        case QR_PACKING_MXFP4: break;
        case QR_PACKING_FP8: return tensor->dtype == QR_DTYPE_F8_E4M3 || tensor->dtype == QR_DTYPE_F8_E5M2;
    }
    return false;
}

/* Bytes of a row of codes. */
static int64_t row_bytes(qr_packing_kind kind, int64_t cols) { return kind == QR_PACKING_MXFP4 ? cols / 2 : cols; }

/* The dimensions before those of a matrix are the codes': experts. A single scale may have any number of them. */
static qrun_status find_scales(const qr_safetensors *file, const qr_safetensors_tensor *codes, const char *name,
                               int64_t n_grid_rows, int64_t n_grid_cols, const qr_safetensors_tensor **scales,
                               qr_error *err) {
    int64_t dims[QR_MAX_DIMS];
    const int n_stacks = codes->n_dims > 2 ? 1 : 0;
    const qr_safetensors_tensor *found = qr_safetensors_find(file, name);
    if (n_grid_rows * n_grid_cols == 1 && n_stacks == 0 && found != NULL) {
        for (int d = 0; d < found->n_dims; d++) { dims[d] = 1; }
        return qr_safetensors_require(file, name, SCALES, found->n_dims, dims, scales, err);
    }
    for (int d = 0; d < n_stacks; d++) { dims[d] = codes->dims[d]; }
    dims[n_stacks] = n_grid_rows;
    dims[n_stacks + 1] = n_grid_cols;
    return qr_safetensors_require(file, name, SCALES, n_stacks + 2, dims, scales, err);
}

qrun_status qr_packed_weight_find(const qr_safetensors *file, const qr_packing *packing,
                                  const qr_safetensors_tensor *codes, const char *scales_name, int64_t rows,
                                  int64_t cols, int64_t index, qr_packed_weight *packed, qr_error *err) {
    const qr_safetensors_tensor *scales;
    const int64_t block_rows = packing->block_rows > 0 ? packing->block_rows : rows;
    const int64_t block_cols = packing->block_cols > 0 ? packing->block_cols : cols;
    const int64_t n_grid_rows = qr_ceil_div(rows, block_rows), n_grid_cols = qr_ceil_div(cols, block_cols);
    QR_RETURN_IF_ERROR(find_scales(file, codes, scales_name, n_grid_rows, n_grid_cols, &scales, err));
    *packed = (qr_packed_weight){.kind = packing->kind,
                                 .rows = rows,
                                 .cols = cols,
                                 .row_step = 1,
                                 .codes = codes->data + index * rows * row_bytes(packing->kind, cols),
                                 .code_dtype = codes->dtype,
                                 .scales = scales->data +
                                           (size_t)(index * n_grid_rows * n_grid_cols) * qr_dtype_bytes(scales->dtype),
                                 .scale_tensor = scales,
                                 .block_rows = block_rows,
                                 .block_cols = block_cols};
    return QRUN_OK;
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static float scale_at(const qr_packed_weight *packed, int64_t index) {
    float scale;
    const qr_dtype dtype = packed->scale_tensor->dtype;
    if (dtype == QR_DTYPE_F8_E8M0 || dtype == QR_DTYPE_U8) { return qr_e8m0_to_f32(packed->scales[index]); }
    qr_elements_to_f32(dtype, packed->scales, index, 1, &scale);
    return scale;
}

static void decode_fp8(const float values[256], const unsigned char *codes, int64_t n, float scale, float *dst) {
    for (int64_t i = 0; i < n; i++) { dst[i] = values[codes[i]] * scale; }
}

/* An even number of codes, the first one in the lower half of its byte. */
static void decode_fp4(const unsigned char *codes, int64_t n, float scale, float *dst) {
    for (int64_t i = 0; i < n; i += 2) {
        dst[i] = qr_float4_values[codes[i / 2] & 15] * scale;
        dst[i + 1] = qr_float4_values[codes[i / 2] >> 4] * scale;
    }
}

void qr_packed_weight_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, float *dst) {
    float values[256];
    const int64_t cols = packed->cols, n_blocks = qr_ceil_div(cols, packed->block_cols);
    if (packed->kind == QR_PACKING_FP8) { qr_float8_values(packed->code_dtype, values); }
    for (int64_t r = 0; r < n_rows; r++) {
        const int64_t row = packed->first_row + (first + r) * packed->row_step;
        const int64_t grid_row = row / packed->block_rows;
        const unsigned char *codes = packed->codes + row * row_bytes(packed->kind, cols);
        for (int64_t b = 0; b < n_blocks; b++) {
            const int64_t c = b * packed->block_cols, n = qr_min(packed->block_cols, cols - c);
            const float scale = scale_at(packed, grid_row * n_blocks + b);
            if (packed->kind == QR_PACKING_FP8) { decode_fp8(values, codes + c, n, scale, dst + r * cols + c); }
            if (packed->kind == QR_PACKING_MXFP4) { decode_fp4(codes + c / 2, n, scale, dst + r * cols + c); }
        }
    }
}

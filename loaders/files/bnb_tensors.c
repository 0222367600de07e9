#include "loaders/files/bnb_tensors.h"

#include <stdio.h>

#include "base/number.h"
#include "base/sizes.h"

bool qr_bnb_has_part(qr_weight_format format, qr_bnb_part part) {
    switch (part) {
        case QR_BNB_CODES: return true;
        case QR_BNB_ABSMAX:
        case QR_BNB_QUANT_MAP:
        case QR_BNB_QUANT_STATE: return qr_weight_is_nf4(format);
        case QR_BNB_NESTED_ABSMAX:
        case QR_BNB_NESTED_QUANT_MAP: return format == QR_WEIGHT_NF4_DQ;
        case QR_BNB_ROW_ABSMAX:
        case QR_BNB_WEIGHT_FORMAT: return format == QR_WEIGHT_INT8;
        case QR_BNB_PART_COUNT: break;
    }
    return false;
}

const char *qr_bnb_part_suffix(qr_bnb_part part) {
    static const char *const suffixes[QR_BNB_PART_COUNT] = {
        [QR_BNB_CODES] = QR_BNB_CODES_NAME,
        [QR_BNB_ABSMAX] = QR_BNB_ABSMAX_NAME,
        [QR_BNB_QUANT_MAP] = QR_BNB_QUANT_MAP_NAME,
        [QR_BNB_NESTED_ABSMAX] = QR_BNB_NESTED_ABSMAX_NAME,
        [QR_BNB_NESTED_QUANT_MAP] = QR_BNB_NESTED_QUANT_MAP_NAME,
        [QR_BNB_QUANT_STATE] = QR_BNB_QUANT_STATE_NAME,
        [QR_BNB_ROW_ABSMAX] = QR_BNB_ROW_ABSMAX_NAME,
        [QR_BNB_WEIGHT_FORMAT] = QR_BNB_WEIGHT_FORMAT_NAME,
    };
    return suffixes[part];
}

static qr_safetensors_spec vector(qr_dtype dtype, int64_t n) {
    return (qr_safetensors_spec){.dtype = dtype, .n_dims = 1, .dims = {n}};
}

static qr_dtype plain_dtype(qr_weight_format format) {
    return format == QR_WEIGHT_F32 ? QR_DTYPE_F32 : format == QR_WEIGHT_F16 ? QR_DTYPE_F16 : QR_DTYPE_BF16;
}

qr_safetensors_spec qr_bnb_part_spec(const qr_weight_desc *desc, qr_bnb_part part, size_t state_bytes) {
    const int64_t n_blocks = qr_weight_blocks(desc), n_bytes = (int64_t)qr_weight_code_bytes(desc);
    switch (part) {
        case QR_BNB_CODES:
            if (desc->format == QR_WEIGHT_INT8) {
                return (qr_safetensors_spec){.dtype = QR_DTYPE_I8, .n_dims = 2, .dims = {desc->rows, desc->cols}};
            }
            if (qr_weight_is_plain(desc->format)) {
                return (qr_safetensors_spec){
                    .dtype = plain_dtype(desc->format), .n_dims = 2, .dims = {desc->rows, desc->cols}};
            }
            return (qr_safetensors_spec){.dtype = QR_DTYPE_U8, .n_dims = 2, .dims = {n_bytes, 1}};
        case QR_BNB_ABSMAX: return vector(desc->format == QR_WEIGHT_NF4_DQ ? QR_DTYPE_U8 : QR_DTYPE_F32, n_blocks);
        case QR_BNB_QUANT_MAP: return vector(QR_DTYPE_F32, 16);
        case QR_BNB_NESTED_ABSMAX: return vector(QR_DTYPE_F32, qr_ceil_div(n_blocks, QR_NESTED_BLOCK));
        case QR_BNB_NESTED_QUANT_MAP: return vector(QR_DTYPE_F32, 256);
        case QR_BNB_QUANT_STATE: return vector(QR_DTYPE_U8, (int64_t)state_bytes);
        case QR_BNB_ROW_ABSMAX: return vector(QR_DTYPE_F32, desc->rows);
        case QR_BNB_WEIGHT_FORMAT:
        case QR_BNB_PART_COUNT: break;
    }
    return (qr_safetensors_spec){.dtype = QR_DTYPE_U8}; /* a scalar */
}

size_t qr_bnb_quant_state(const qr_weight_desc *desc, qr_dtype dtype, float nested_offset,
                          char text[QR_BNB_QUANT_STATE_BYTES]) {
    const char *dtype_name = dtype == QR_DTYPE_F32 ? "float32" : dtype == QR_DTYPE_F16 ? "float16" : "bfloat16";
    char offset[32], nested[128] = "";
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        qr_number_format((double)nested_offset, offset); /* Python's repr */
        (void)snprintf(nested, sizeof nested,
                       ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %s",
                       QR_NESTED_BLOCK, offset);
    }
    return (size_t)snprintf(
        text, QR_BNB_QUANT_STATE_BYTES,
        "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%lld, %lld]%s}", desc->block,
        dtype_name, (long long)desc->rows, (long long)desc->cols, nested);
}

#include "quant/format.h"

#include <string.h>

#include "base/sizes.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

static const struct {
    const char *name;
    int bits;
} formats[QR_WEIGHT_FORMAT_COUNT] = {
#define QR_X(suffix, name, bits) {name, bits},
    QR_WEIGHT_FORMATS(QR_X)
#undef QR_X
};

const char *qr_weight_format_name(qr_weight_format format) {
    return (unsigned)format < QR_WEIGHT_FORMAT_COUNT ? formats[format].name : "?";
}

static size_t packed_bytes(qr_weight_format format, int64_t n_elements) {
    return ((size_t)n_elements * (size_t)formats[format].bits + 7) / 8;
}

int64_t qr_weight_elements(const qr_weight_desc *desc) { return desc->rows * desc->cols; }

int64_t qr_weight_blocks(const qr_weight_desc *desc) {
    return qr_weight_has_blocks(desc->format) ? qr_ceil_div(qr_weight_elements(desc), qr_weight_block(desc)) : 0;
}

const float *qr_weight_code_values(qr_weight_format format) {
    return format == QR_WEIGHT_MXFP4 ? qr_float4_values : qr_nf4_code;
}

size_t qr_weight_code_bytes(const qr_weight_desc *desc) { return packed_bytes(desc->format, qr_weight_elements(desc)); }

size_t qr_weight_row_offset(const qr_weight_desc *desc, int64_t row) {
    return packed_bytes(desc->format, row * desc->cols);
}

static bool is_power_of_two(int value) { return value > 0 && (value & (value - 1)) == 0; }

qrun_status qr_weight_desc_check(const qr_weight_desc *desc, const char *name, qr_error *err) {
    if ((unsigned)desc->format >= QR_WEIGHT_FORMAT_COUNT) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: %d is not a weight format", name, (int)desc->format);
    }
    if (desc->rows <= 0 || desc->cols <= 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: a weight of shape [%lld, %lld]; both must be positive", name,
                       (long long)desc->rows, (long long)desc->cols);
    }
    /* Four bytes an element at most, and as much again for scales and padding, must still be countable. */
    int64_t n_elements;
    if (!qr_count_mul(desc->rows, desc->cols, &n_elements) || n_elements > INT64_MAX / 64) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: a weight of shape [%lld, %lld] has too many elements", name,
                       (long long)desc->rows, (long long)desc->cols);
    }
    if (qr_weight_is_nf4(desc->format) && (!is_power_of_two(desc->block) || desc->block < 32 || desc->block > 4096)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: NF4 block size %d; it must be a power of two from 32 to 4096",
                       name, desc->block);
    }
    return QRUN_OK;
}

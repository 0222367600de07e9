/* Weights between their canonical bytes and the layouts of kernels/cpu/cpu.h. */
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/cpu.h"
#include "kernels/op_check.h"

static size_t element_bytes(qr_weight_format format) {
    switch (format) {
        case QR_WEIGHT_F32: return 4;
        case QR_WEIGHT_INT8: return 1;
        default: return 2;
    }
}

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~(size_t)63; }

static void code_layout(const qr_weight_desc *desc, qr_cpu_layout *layout) {
    if (!qr_weight_is_nf4(desc->format)) {
        layout->kind = QR_CPU_ROWS;
        layout->row_bytes = align64((size_t)desc->cols * element_bytes(desc->format));
        layout->scales_offset = layout->row_bytes * (size_t)desc->rows;
    } else if (desc->cols % 64 == 0 && desc->block % 64 == 0) {
        layout->kind = QR_CPU_NF4_GROUPS;
        layout->group_bytes = (size_t)desc->cols / 2 * QR_CPU_NF4_GROUP_ROWS;
        layout->scales_offset = layout->group_bytes * (size_t)qr_ceil_div(desc->rows, QR_CPU_NF4_GROUP_ROWS);
    } else {
        layout->kind = QR_CPU_NF4_FLAT;
        layout->scales_offset = align64(qr_weight_code_bytes(desc));
    }
}

static size_t nested_count(const qr_weight_desc *desc) {
    return (size_t)qr_ceil_div(qr_weight_blocks(desc), QR_NESTED_BLOCK);
}

void qr_cpu_layout_of(const qr_weight_desc *desc, qr_cpu_layout *layout) {
    *layout = (qr_cpu_layout){0};
    code_layout(desc, layout);
    const size_t n_blocks = (size_t)qr_weight_blocks(desc);
    size_t scale_bytes = 0;
    if (desc->format == QR_WEIGHT_INT8) { scale_bytes = (size_t)desc->rows * sizeof(float); }
    if (desc->format == QR_WEIGHT_NF4) { scale_bytes = n_blocks * sizeof(float); }
    if (desc->format == QR_WEIGHT_NF4_DQ) { scale_bytes = n_blocks; }
    layout->nested_offset = layout->scales_offset + align64(scale_bytes);
    const size_t nested_bytes = desc->format == QR_WEIGHT_NF4_DQ ? nested_count(desc) * sizeof(float) : 0;
    layout->total_bytes = layout->nested_offset + align64(nested_bytes);
}

size_t qr_cpu_weight_bytes(const qr_backend *backend, const qr_weight_desc *desc) {
    (void)backend;
    qr_cpu_layout layout;
    qr_cpu_layout_of(desc, &layout);
    return layout.total_bytes;
}

/* Canonical bytes put even elements in the high nibble. With 16 canonical bytes b0…b3 for each of the four runs of 32
 * columns, words 2i and 2i + 1 are made of byte i of each. */
static void pack_128(const uint8_t *src, uint8_t *dst) {
    const uint8_t *b0 = src, *b1 = src + 16, *b2 = src + 32, *b3 = src + 48;
    for (int i = 0; i < 16; i++) {
        dst[4 * i] = (uint8_t)(b0[i] >> 4 | (b1[i] & 0xF0));
        dst[4 * i + 1] = (uint8_t)(b2[i] >> 4 | (b3[i] & 0xF0));
        dst[4 * i + 2] = (uint8_t)((b0[i] & 0x0F) | b1[i] << 4);
        dst[4 * i + 3] = (uint8_t)((b2[i] & 0x0F) | b3[i] << 4);
    }
}

static void unpack_128(const uint8_t *src, uint8_t *dst) {
    uint8_t *b0 = dst, *b1 = dst + 16, *b2 = dst + 32, *b3 = dst + 48;
    for (int i = 0; i < 16; i++) {
        b0[i] = (uint8_t)(src[4 * i] << 4 | (src[4 * i + 2] & 0x0F));
        b1[i] = (uint8_t)((src[4 * i] & 0xF0) | src[4 * i + 2] >> 4);
        b2[i] = (uint8_t)(src[4 * i + 1] << 4 | (src[4 * i + 3] & 0x0F));
        b3[i] = (uint8_t)((src[4 * i + 1] & 0xF0) | src[4 * i + 3] >> 4);
    }
}

static void pack_64(const uint8_t *src, uint8_t *dst) {
    for (int i = 0; i < 16; i++) {
        dst[2 * i] = (uint8_t)(src[i] >> 4 | (src[16 + i] & 0xF0));
        dst[2 * i + 1] = (uint8_t)((src[i] & 0x0F) | src[16 + i] << 4);
    }
}

static void unpack_64(const uint8_t *src, uint8_t *dst) {
    for (int i = 0; i < 16; i++) {
        dst[i] = (uint8_t)(src[2 * i] << 4 | (src[2 * i + 1] & 0x0F));
        dst[16 + i] = (uint8_t)((src[2 * i] & 0xF0) | src[2 * i + 1] >> 4);
    }
}

static void put_group_row(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, const uint8_t *codes) {
    for (int64_t k = 0; k < weight->desc.cols; k += 128) {
        uint8_t *run = qr_cpu_nf4_run(weight, layout, row, k);
        if (k + 128 <= weight->desc.cols) {
            pack_128(codes + k / 2, run);
        } else {
            pack_64(codes + k / 2, run);
        }
    }
}

static void get_group_row(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, uint8_t *codes) {
    for (int64_t k = 0; k < weight->desc.cols; k += 128) {
        const uint8_t *run = qr_cpu_nf4_run(weight, layout, row, k);
        if (k + 128 <= weight->desc.cols) {
            unpack_128(run, codes + k / 2);
        } else {
            unpack_64(run, codes + k / 2);
        }
    }
}

/* Bytes of flat canonical codes of these rows: rows begin at a byte boundary because a group of 64 is even. */
static size_t flat_code_bytes(const qr_weight_desc *desc, int64_t n_rows) {
    return (size_t)qr_ceil_div(n_rows * desc->cols, 2);
}

qrun_status qr_cpu_weight_put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                   const void *codes, qr_error *err) {
    (void)backend;
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    qr_cpu_layout layout;
    qr_cpu_layout_of(&weight->desc, &layout);
    const uint8_t *src = codes;
    uint8_t *data = weight->data;
    if (layout.kind == QR_CPU_NF4_FLAT) {
        memcpy(data + qr_weight_row_offset(&weight->desc, row), src, flat_code_bytes(&weight->desc, n_rows));
        return QRUN_OK;
    }
    const size_t src_bytes = layout.kind == QR_CPU_ROWS ? (size_t)weight->desc.cols * element_bytes(weight->desc.format)
                                                        : (size_t)weight->desc.cols / 2;
    for (int64_t i = 0; i < n_rows; i++, src += src_bytes) {
        if (layout.kind == QR_CPU_ROWS) {
            uint8_t *dst = data + (size_t)(row + i) * layout.row_bytes;
            memcpy(dst, src, src_bytes);
            memset(dst + src_bytes, 0, layout.row_bytes - src_bytes);
        } else {
            put_group_row(weight, &layout, row + i, src);
        }
    }
    return QRUN_OK;
}

qrun_status qr_cpu_weight_get_rows(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                   void *codes, qr_error *err) {
    (void)backend;
    QR_RETURN_IF_ERROR(qr_check_weight_rows(&weight->desc, row, n_rows, err));
    qr_cpu_layout layout;
    qr_cpu_layout_of(&weight->desc, &layout);
    const uint8_t *data = weight->data;
    uint8_t *dst = codes;
    if (layout.kind == QR_CPU_NF4_FLAT) {
        memcpy(dst, data + qr_weight_row_offset(&weight->desc, row), flat_code_bytes(&weight->desc, n_rows));
        return QRUN_OK;
    }
    const size_t dst_bytes = layout.kind == QR_CPU_ROWS ? (size_t)weight->desc.cols * element_bytes(weight->desc.format)
                                                        : (size_t)weight->desc.cols / 2;
    for (int64_t i = 0; i < n_rows; i++, dst += dst_bytes) {
        if (layout.kind == QR_CPU_ROWS) {
            memcpy(dst, data + (size_t)(row + i) * layout.row_bytes, dst_bytes);
        } else {
            get_group_row(weight, &layout, row + i, dst);
        }
    }
    return QRUN_OK;
}

qrun_status qr_cpu_weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                     qr_error *err) {
    (void)backend;
    const qr_weight_desc *desc = &weight->desc;
    QR_RETURN_IF_ERROR(qr_check_weight_scales(desc, scales, err));
    qr_cpu_layout layout;
    qr_cpu_layout_of(desc, &layout);
    uint8_t *data = weight->data;
    const size_t n_blocks = (size_t)qr_weight_blocks(desc);
    switch (desc->format) {
        case QR_WEIGHT_INT8:
            memcpy(data + layout.scales_offset, scales->row_absmax, (size_t)desc->rows * sizeof(float));
            break;
        case QR_WEIGHT_NF4: memcpy(data + layout.scales_offset, scales->absmax, n_blocks * sizeof(float)); break;
        case QR_WEIGHT_NF4_DQ:
            memcpy(data + layout.scales_offset, scales->absmax_codes, n_blocks);
            memcpy(data + layout.nested_offset, scales->nested_absmax, nested_count(desc) * sizeof(float));
            weight->nested_offset = scales->nested_offset;
            break;
        default: break;
    }
    return QRUN_OK;
}

static void copy_if_wanted(void *dst, const void *src, size_t n_bytes) {
    if (dst != NULL && n_bytes > 0) { memcpy(dst, src, n_bytes); }
}

qrun_status qr_cpu_weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                     uint8_t *absmax_codes, float *nested_absmax, qr_error *err) {
    (void)backend, (void)err;
    const qr_weight_desc *desc = &weight->desc;
    qr_cpu_layout layout;
    qr_cpu_layout_of(desc, &layout);
    const uint8_t *data = weight->data, *scales = data + layout.scales_offset;
    const size_t n_blocks = (size_t)qr_weight_blocks(desc);
    switch (desc->format) {
        case QR_WEIGHT_INT8: copy_if_wanted(row_absmax, scales, (size_t)desc->rows * sizeof(float)); break;
        case QR_WEIGHT_NF4: copy_if_wanted(absmax, scales, n_blocks * sizeof(float)); break;
        case QR_WEIGHT_NF4_DQ:
            copy_if_wanted(absmax_codes, scales, n_blocks);
            copy_if_wanted(nested_absmax, data + layout.nested_offset, nested_count(desc) * sizeof(float));
            break;
        default: break;
    }
    return QRUN_OK;
}

/* Weights between their canonical bytes and the layouts of kernels/cpu/cpu.h. */
#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/cpu.h"

static size_t element_bytes(qr_weight_format format) {
    switch (format) {
        case QR_WEIGHT_F32: return 4;
        case QR_WEIGHT_INT8: return 1;
        default: return 2;
    }
}

static size_t align64(size_t n_bytes) { return (n_bytes + 63) & ~(size_t)63; }

static void code_layout(const qr_weight_desc *desc, qr_cpu_layout *layout) {
    if (!qr_weight_has_blocks(desc->format)) {
        layout->kind = QR_CPU_ROWS;
        layout->row_bytes = align64((size_t)desc->cols * element_bytes(desc->format));
        layout->scales_offset = layout->row_bytes * (size_t)desc->rows;
    } else if (desc->cols % 64 == 0 && (desc->format == QR_WEIGHT_MXFP4 || desc->block % 64 == 0)) {
        layout->kind = QR_CPU_NF4_GROUPS;
        layout->group_bytes = (size_t)desc->cols / 2 * QR_CPU_NF4_GROUP_ROWS;
        layout->scales_offset = layout->group_bytes * (size_t)qr_ceil_div(desc->rows, QR_CPU_NF4_GROUP_ROWS);
    } else {
        layout->kind = QR_CPU_NF4_FLAT;
        layout->scales_offset = align64(qr_weight_code_bytes(desc));
    }
}

void qr_cpu_layout_of(const qr_weight_desc *desc, qr_cpu_layout *layout) {
    *layout = (qr_cpu_layout){0};
    code_layout(desc, layout);
    size_t nested_bytes;
    layout->nested_offset = layout->scales_offset + align64(qr_host_scale_bytes(desc, &nested_bytes));
    layout->total_bytes = layout->nested_offset + align64(nested_bytes);
}

static size_t layout_bytes(const qr_weight_desc *desc, size_t *first, size_t *nested) {
    qr_cpu_layout layout;
    qr_cpu_layout_of(desc, &layout);
    *first = layout.scales_offset;
    *nested = layout.nested_offset;
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

/* Which pair of a block's bytes has columns 2i and 2i + 1 of it: in words i, in blocks the eights in the middle are
 * swapped. */
static int pair_of(int i, bool in_blocks) { return in_blocks && i / 4 % 3 != 0 ? i ^ 12 : i; }

static void pack_64(const uint8_t *src, uint8_t *dst, bool in_blocks) {
    for (int i = 0; i < 16; i++) {
        uint8_t *pair = dst + 2 * pair_of(i, in_blocks);
        pair[0] = (uint8_t)(src[i] >> 4 | (src[16 + i] & 0xF0));
        pair[1] = (uint8_t)((src[i] & 0x0F) | src[16 + i] << 4);
    }
}

static void unpack_64(const uint8_t *src, uint8_t *dst, bool in_blocks) {
    for (int i = 0; i < 16; i++) {
        const uint8_t *pair = src + 2 * pair_of(i, in_blocks);
        dst[i] = (uint8_t)(pair[0] << 4 | (pair[1] & 0x0F));
        dst[16 + i] = (uint8_t)((pair[0] & 0xF0) | pair[1] >> 4);
    }
}

/* One row of NF4_GROUPS into or out of the weight, from or to canonical codes. */
static void move_group_row(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, uint8_t *codes,
                           bool is_put, bool in_blocks) {
    for (int64_t k = 0; k < weight->desc.cols; k += 128, codes += 64) {
        uint8_t *run = qr_cpu_nf4_run(weight, layout, row, k);
        const bool is_whole = k + 128 <= weight->desc.cols;
        if (is_whole && !in_blocks) {
            is_put ? pack_128(codes, run) : unpack_128(run, codes);
            continue;
        }
        for (int b = 0; b < (is_whole ? 64 : 32); b += 32) {
            is_put ? pack_64(codes + b, run + b, in_blocks) : unpack_64(run + b, codes + b, in_blocks);
        }
    }
}

/* Rows [row, row + n_rows) into or out of the weight. Flat canonical codes of a row begin at a byte boundary because a
 * group of 64 is even. */
static void move(const qr_weight *weight, int64_t row, int64_t n_rows, void *canonical, bool is_put, bool in_blocks) {
    const qr_weight_desc *desc = &weight->desc;
    uint8_t *codes = canonical;
    qr_cpu_layout layout;
    qr_cpu_layout_of(desc, &layout);
    uint8_t *data = weight->data;
    if (layout.kind == QR_CPU_NF4_FLAT) {
        data += qr_weight_row_offset(desc, row);
        const size_t n_bytes = (size_t)qr_ceil_div(n_rows * desc->cols, 2);
        memcpy(is_put ? data : codes, is_put ? codes : data, n_bytes);
        return;
    }
    const bool is_rows = layout.kind == QR_CPU_ROWS;
    const size_t row_bytes = is_rows ? (size_t)desc->cols * element_bytes(desc->format) : (size_t)desc->cols / 2;
    for (int64_t i = row; i < row + n_rows; i++, codes += row_bytes) {
        uint8_t *stored = data + (size_t)i * layout.row_bytes;
        if (!is_rows) {
            move_group_row(weight, &layout, i, codes, is_put, in_blocks);
        } else if (is_put) {
            memcpy(stored, codes, row_bytes);
            memset(stored + row_bytes, 0, layout.row_bytes - row_bytes);
        } else {
            memcpy(codes, stored, row_bytes);
        }
    }
}

static void move_words(const qr_weight *weight, int64_t row, int64_t n_rows, void *codes, bool is_put) {
    move(weight, row, n_rows, codes, is_put, false);
}
static void move_blocks(const qr_weight *weight, int64_t row, int64_t n_rows, void *codes, bool is_put) {
    move(weight, row, n_rows, codes, is_put, true);
}

const qr_host_weights qr_cpu_weights_words = {.move_rows = move_words, .layout = layout_bytes};
const qr_host_weights qr_cpu_weights_blocks = {.move_rows = move_blocks, .layout = layout_bytes};

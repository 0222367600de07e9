/* The values of packed matrices. A value is (code − zero point) · scale in F32, of the group that its column is in.
 * The files may change while they are read: whatever they hold, no read leaves the tensors. */
#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/packed_weight.h"
#include "quant/ggml.h"
#include "quant/small_floats.h"

typedef struct decoder {
    const qr_packed_weight *packed;
    float float8[256]; /* the values of codes, or of scales, in F8 */
} decoder;

static uint32_t word_at(const unsigned char *words, int64_t index) {
    uint32_t word;
    memcpy(&word, words + index * 4, sizeof word);
    return word;
}

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

static int64_t group_of(const qr_packed_weight *packed, int64_t column) {
    if (packed->groups == NULL) { return column / packed->block_cols; }
    int32_t group;
    memcpy(&group, packed->groups->data + column * 4, sizeof group);
    return qr_max(qr_min(group, packed->n_groups - 1), 0);
}

/* How many columns from `column` to `end` are of its group. */
static int64_t run_of(const qr_packed_weight *packed, int64_t column, int64_t end) {
    if (packed->groups == NULL) { return qr_min(packed->block_cols - column % packed->block_cols, end - column); }
    const int64_t group = group_of(packed, column);
    int64_t n = 1;
    while (column + n < end && group_of(packed, column + n) == group) { n++; }
    return n;
}

/* ---- Rows of codes ----------------------------------------------------------------------------------------------- */

static int64_t grid_index(const qr_packed_weight *packed, int64_t row, int64_t group) {
    return row / packed->block_rows * packed->n_groups + group;
}

static float scale_of(const decoder *d, int64_t row, int64_t group) {
    float scale;
    const qr_packed_weight *packed = d->packed;
    const int64_t index = grid_index(packed, row, group);
    switch (packed->scale_tensor->dtype) {
        case QR_DTYPE_F8_E8M0:
        case QR_DTYPE_U8: return qr_e8m0_to_f32(packed->scales[index]);
        case QR_DTYPE_F8_E4M3: return d->float8[packed->scales[index]] / packed->global_scale;
        default: qr_elements_to_f32(packed->scale_tensor->dtype, packed->scales, index, 1, &scale); return scale;
    }
}

/* Codes of INT are less than their values by half of their range, zero points alike. */
static int32_t zero_of(const qr_packed_weight *packed, int64_t row, int64_t group) {
    if (packed->kind == QR_PACKING_INT8) {
        return packed->zeros != NULL ? (int8_t)packed->zeros->data[grid_index(packed, row, group)] : 0;
    }
    if (packed->zeros == NULL) { return 1 << (packed->bits - 1); }
    const int64_t per_word = 32 / packed->bits;
    const uint32_t word = word_at(packed->zeros->data, row / per_word * packed->n_groups + group);
    return (int32_t)(word >> (row % per_word * packed->bits) & ((1U << packed->bits) - 1));
}

/* An even number of codes, the first one in the lower half of its byte. */
static void decode_float4(const unsigned char *codes, int64_t n, float scale, float *dst) {
    for (int64_t i = 0; i < n; i += 2) {
        dst[i] = qr_float4_values[codes[i / 2] & 15] * scale;
        dst[i + 1] = qr_float4_values[codes[i / 2] >> 4] * scale;
    }
}

/* Codes [first, first + n) of a row of 4 or 8 bits. */
static void decode_int(const unsigned char *row, int bits, int64_t first, int64_t n, int32_t zero, float scale,
                       float *dst) {
    for (int64_t i = first; i < first + n; i++) {
        const int32_t code = bits == 8 ? row[i] : row[i / 2] >> (i % 2 * 4) & 15;
        dst[i - first] = (float)(code - zero) * scale;
    }
}

static int64_t row_bytes(const qr_packed_weight *packed) {
    switch (packed->kind) {
        case QR_PACKING_MXFP4:
        case QR_PACKING_NVFP4: return packed->cols / 2;
        case QR_PACKING_INT: return qr_ceil_div(packed->cols, 32 / packed->bits) * 4;
        default: return packed->cols;
    }
}

static void decode_row(const decoder *d, int64_t row, float *dst) {
    const qr_packed_weight *packed = d->packed;
    const unsigned char *codes = packed->codes + row * row_bytes(packed);
    for (int64_t c = 0, n; c < packed->cols; c += n) {
        n = run_of(packed, c, packed->cols);
        const int64_t group = group_of(packed, c);
        const float scale = scale_of(d, row, group);
        if (packed->kind == QR_PACKING_MXFP4 || packed->kind == QR_PACKING_NVFP4) {
            decode_float4(codes + c / 2, n, scale, dst + c);
        } else if (packed->kind == QR_PACKING_INT) {
            decode_int(codes, packed->bits, c, n, zero_of(packed, row, group), scale, dst + c);
        } else if (packed->kind == QR_PACKING_INT8) {
            const int32_t zero = zero_of(packed, row, group);
            for (int64_t i = c; i < c + n; i++) { dst[i] = (float)((int8_t)codes[i] - zero) * scale; }
        } else {
            for (int64_t i = c; i < c + n; i++) { dst[i] = d->float8[codes[i]] * scale; }
        }
    }
}

/* ---- Columns of codes: GPTQ and AWQ ------------------------------------------------------------------------------ */

/* A tile of the matrix, so that neither reading nor writing walks over whole columns. */
enum { TILE_ROWS = 32, TILE_COLS = 64 };

/* Where the code of row r of 8 is in a word of AWQ, whose codes are of rows 0 2 4 6 1 3 5 7. */
static const int awq_shifts[8] = {0, 16, 4, 20, 8, 24, 12, 28};

static int shift_of(const qr_packed_weight *packed, int64_t row) {
    const int64_t per_word = 32 / packed->bits;
    return packed->kind == QR_PACKING_AWQ ? awq_shifts[row % 8] : (int)(row % per_word) * packed->bits;
}

/* Codes of rows [first, first + n) that lie along rows in words. `line` is the line of words. */
static void read_line(const qr_packed_weight *packed, const unsigned char *words, int64_t line, uint32_t step,
                      int64_t first, int64_t n, int32_t codes[TILE_ROWS]) {
    const int64_t per_word = 32 / packed->bits;
    const uint32_t mask = (1U << packed->bits) - 1;
    for (int64_t r = 0; r < n; r++) {
        const uint32_t word = word_at(words, line * (packed->rows / per_word) + (first + r) / per_word) + step;
        codes[r] = (int32_t)(word >> shift_of(packed, first + r) & mask);
    }
}

static void read_column(const qr_packed_weight *packed, int64_t column, int64_t first, int64_t n,
                        int32_t codes[TILE_ROWS]) {
    if (packed->kind == QR_PACKING_AWQ) {
        read_line(packed, packed->codes, column, 0, first, n, codes);
        return;
    }
    const int64_t per_word = 32 / packed->bits;
    const int shift = (int)(column % per_word) * packed->bits;
    const uint32_t mask = (1U << packed->bits) - 1;
    const unsigned char *words = packed->codes + (column / per_word * packed->rows + first) * 4;
    for (int64_t r = 0; r < n; r++) { codes[r] = (int32_t)(word_at(words, r) >> shift & mask); }
}

/* tile [n_rows, TILE_COLS] = rows from `row`, columns [column, column + n_cols). */
static void decode_tile(const qr_packed_weight *packed, int64_t row, int64_t n_rows, int64_t column, int64_t n_cols,
                        float *tile) {
    float scales[TILE_ROWS];
    int32_t zeros[TILE_ROWS], codes[TILE_ROWS];
    for (int64_t c = 0, n; c < n_cols; c += n) {
        n = run_of(packed, column + c, column + n_cols);
        const int64_t group = group_of(packed, column + c);
        qr_elements_to_f32(packed->scale_tensor->dtype, packed->scales, group * packed->rows + row, n_rows, scales);
        read_line(packed, packed->zeros->data, group, packed->zero_step, row, n_rows, zeros);
        for (int64_t i = c; i < c + n; i++) {
            read_column(packed, column + i, row, n_rows, codes);
            for (int64_t r = 0; r < n_rows; r++) { tile[r * TILE_COLS + i] = (float)(codes[r] - zeros[r]) * scales[r]; }
        }
    }
}

static void decode_tiles(const qr_packed_weight *packed, int64_t row, int64_t n_rows, float *dst) {
    float tile[TILE_ROWS * TILE_COLS];
    const int64_t cols = packed->cols;
    for (int64_t column = 0; column < cols; column += TILE_COLS) {
        const int64_t n_cols = qr_min(TILE_COLS, cols - column);
        decode_tile(packed, row, n_rows, column, n_cols, tile);
        for (int64_t r = 0; r < n_rows; r++) {
            memcpy(dst + r * cols + column, tile + r * TILE_COLS, (size_t)n_cols * sizeof *tile);
        }
    }
}

/* ---- MXFP4 as it is ---------------------------------------------------------------------------------------------- */

static int64_t stored_row(const qr_packed_weight *packed, int64_t row) {
    return packed->first_row + row * packed->row_step;
}

/* A block of GGUF: the scale, then codes i and i + 16 in the halves of byte i. */
enum { GGML_BLOCK_BYTES = 1 + QR_MXFP4_BLOCK / 2 };

static void read_ggml_blocks(const unsigned char *src, int64_t n_blocks, uint8_t *codes, uint8_t *scales) {
    enum { HALF = QR_MXFP4_BLOCK / 2 };
    for (int64_t b = 0; b < n_blocks; b++, src += GGML_BLOCK_BYTES, codes += HALF) {
        const unsigned char *packed = src + 1;
        scales[b] = src[0];
        for (int i = 0; i < HALF / 2; i++) {
            codes[i] = (uint8_t)(packed[2 * i] << 4 | (packed[2 * i + 1] & 15));
            codes[HALF / 2 + i] = (uint8_t)((packed[2 * i] & 0xF0) | packed[2 * i + 1] >> 4);
        }
    }
}

static const unsigned char *ggml_row(const qr_packed_weight *packed, int64_t row) {
    return packed->codes + row * packed->n_groups * GGML_BLOCK_BYTES;
}

/* Files have the first of two codes in the lower half of a byte. */
void qr_packed_weight_mxfp4_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, uint8_t *codes,
                                 uint8_t *scales) {
    const int64_t n_bytes = row_bytes(packed), n_scales = packed->n_groups;
    for (int64_t r = 0; r < n_rows && packed->is_ggml; r++) {
        read_ggml_blocks(ggml_row(packed, first + r), n_scales, codes + r * n_bytes, scales + r * n_scales);
    }
    for (int64_t r = 0; r < n_rows && !packed->is_ggml; r++) {
        const int64_t row = stored_row(packed, first + r);
        const unsigned char *src = packed->codes + row * n_bytes;
        uint8_t *dst = codes + r * n_bytes;
        for (int64_t i = 0; i < n_bytes; i++) { dst[i] = (uint8_t)(src[i] << 4 | src[i] >> 4); }
        memcpy(scales + r * n_scales, packed->scales + row * n_scales, (size_t)n_scales);
    }
}

static bool is_e8m0(qr_dtype dtype) { return dtype == QR_DTYPE_F8_E8M0 || dtype == QR_DTYPE_U8; }

enum { NOT_A_NUMBER = 255 };

static bool has_broken_scale(const qr_packed_weight *packed, int64_t row) {
    if (!packed->is_ggml) {
        const unsigned char *scales = packed->scales + grid_index(packed, stored_row(packed, row), 0);
        return memchr(scales, NOT_A_NUMBER, (size_t)packed->n_groups) != NULL;
    }
    const unsigned char *blocks = ggml_row(packed, row);
    bool is_broken = false;
    for (int64_t b = 0; b < packed->n_groups; b++) { is_broken |= blocks[b * GGML_BLOCK_BYTES] == NOT_A_NUMBER; }
    return is_broken;
}

qrun_status qr_packed_weight_check_scales(const qr_packed_weight *packed, int64_t first, int64_t n_rows,
                                          qr_error *err) {
    if (packed->kind == QR_PACKING_LATENT) { return QRUN_OK; }
    if (!packed->is_ggml && !is_e8m0(packed->scale_tensor->dtype)) { return QRUN_OK; }
    for (int64_t r = first; r < first + n_rows; r++) {
        if (!has_broken_scale(packed, r)) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: has a scale that is not a number (%d of E8M0); is the download damaged?",
                       packed->scale_tensor->name, NOT_A_NUMBER);
    }
    return QRUN_OK;
}

/* ---- Which one it is --------------------------------------------------------------------------------------------- */

static bool is_of_columns(const qr_packed_weight *packed) {
    return packed->kind == QR_PACKING_GPTQ || packed->kind == QR_PACKING_AWQ;
}

/* ---- Keys and values of latents ---------------------------------------------------------------------------------- */

static void read_elements(qr_dtype dtype, const unsigned char *data, int64_t first, int64_t n, float *dst) {
    if (qr_dtype_is_blocks(dtype)) {
        qr_ggml_dequantize_range(dtype, data, first, n, dst);
    } else {
        qr_elements_to_f32(dtype, data, first, n, dst);
    }
}

/* Keys [i, i + n) of a head, which are columns there: as many at once as a block of values may have. */
static void decode_keys(const qr_packed_weight *packed, int64_t head, int64_t i, int64_t n, float *dst) {
    enum { AT_ONCE = 256 };
    const qr_latent_keys *keys = packed->keys;
    float values[AT_ONCE];
    for (int64_t c = 0; c < packed->cols; c++) {
        const int64_t column = (head * packed->cols + c) * keys->plain_dim;
        for (int64_t k = 0; k < n; k += AT_ONCE) {
            const int64_t taken = qr_min(AT_ONCE, n - k);
            read_elements(keys->dtype, keys->data, column + i + k, taken, values);
            for (int64_t j = 0; j < taken; j++) { dst[(k + j) * packed->cols + c] = values[j]; }
        }
    }
}

static void decode_latent(const qr_packed_weight *packed, int64_t first, int64_t n_rows, float *dst) {
    const int64_t plain = packed->keys->plain_dim, of_head = plain + packed->keys->value_dim, cols = packed->cols;
    for (int64_t r = first, n; r < first + n_rows; r += n, dst += n * cols) {
        const int64_t head = r / of_head, i = r % of_head, left = first + n_rows - r;
        n = qr_min(left, i < plain ? plain - i : of_head - i);
        if (i < plain) {
            decode_keys(packed, head, i, n, dst);
        } else {
            const int64_t row = head * packed->keys->value_dim + i - plain;
            read_elements(packed->code_dtype, packed->codes, row * cols, n * cols, dst);
        }
    }
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

void qr_packed_weight_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, float *dst) {
    decoder d;
    if (packed->kind == QR_PACKING_LATENT) {
        decode_latent(packed, first, n_rows, dst);
        return;
    }
    d.packed = packed;
    for (int64_t r = 0; packed->is_ggml && r < n_rows; r++) {
        qr_ggml_dequantize(QR_DTYPE_MXFP4, ggml_row(packed, first + r), packed->n_groups, dst + r * packed->cols);
    }
    if (packed->is_ggml) { return; }
    for (int64_t r = 0; is_of_columns(packed) && r < n_rows; r += TILE_ROWS) {
        decode_tiles(packed, first + r, qr_min(TILE_ROWS, n_rows - r), dst + r * packed->cols);
    }
    if (is_of_columns(packed)) { return; }
    if (packed->kind == QR_PACKING_FP8 || packed->kind == QR_PACKING_FLOAT8) {
        qr_float8_values(packed->code_dtype, d.float8);
    }
    if (packed->kind == QR_PACKING_NVFP4) { qr_float8_values(QR_DTYPE_F8_E4M3, d.float8); }
    for (int64_t r = 0; r < n_rows; r++) { decode_row(&d, stored_row(packed, first + r), dst + r * packed->cols); }
}

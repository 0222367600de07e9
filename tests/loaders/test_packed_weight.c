/* Packed matrices: every value by the definition of its format, grids that end within a block, and what is refused.
 * That whole folders are what transformers reads is test_goldens. */
#include "check.h"

#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/stored_weight.h"
#include "quant/small_floats.h"
#include "temporary.h"
#include "tensors_file.h"

enum { ROWS = 5, COLS = 7 };

static temporary_folder folder;
static unsigned char codes[ROWS * COLS]; /* of F8: finite in both types */

static qr_safetensors *file_of(const qr_safetensors_spec *specs, const void *const *contents, size_t n) {
    qr_safetensors *file = NULL;
    qr_error err = {0};
    CHECK_MSG(tensors_write(folder.path, specs, contents, n, &err) == QRUN_OK &&
                  qr_safetensors_open(folder.path, &file, &err) == QRUN_OK,
              "%s", err.message);
    return file;
}

static void check_rows(const qr_packed_weight *packed, const float *expected) {
    float values[ROWS * COLS];
    qr_packed_weight_rows(packed, 0, ROWS, values);
    CHECK(memcmp(values, expected, sizeof values) == 0);
    for (int r = 0; r < ROWS; r++) { /* any range of rows is the same */
        memset(values, 0, sizeof values);
        qr_packed_weight_rows(packed, r, 1, values);
        CHECK(memcmp(values, expected + (ptrdiff_t)r * COLS, COLS * sizeof *values) == 0);
    }
}

/* The matrix m with these scales must be expected[r, c] = codes[r, c] · scale of its block. */
static void check_fp8(qr_dtype code_dtype, const qr_packing *packing, const qr_safetensors_spec *scale,
                      const void *scale_bytes, const float *scales) {
    const qr_safetensors_spec specs[] = {{"m.weight", code_dtype, 2, {ROWS, COLS}}, *scale};
    const void *const contents[] = {codes, scale_bytes};
    const int block_rows = packing->block_rows > 0 ? (int)packing->block_rows : ROWS;
    const int block_cols = packing->block_cols > 0 ? (int)packing->block_cols : COLS;
    float values[256], expected[ROWS * COLS];
    qr_stored_weight stored;
    qr_error err = {0};
    qr_safetensors *file = file_of(specs, contents, 2);
    CHECK_MSG(qr_stored_weight_find(file, "m", ROWS, COLS, false, packing, &stored, &err) == QRUN_OK, "%s",
              err.message);
    qr_float8_values(code_dtype, values);
    for (int i = 0; i < ROWS * COLS; i++) {
        const int block = i / COLS / block_rows * (int)qr_ceil_div(COLS, block_cols) + i % COLS / block_cols;
        expected[i] = values[codes[i]] * scales[block];
    }
    if (err.message[0] == '\0') { check_rows(&stored.packed, expected); }
    qr_safetensors_close(file);
}

static void test_fp8_of_a_grid_that_ends_within_a_block(void) {
    static const float scales[9] = {0.125F, 3.0F, 0.7F, 1.1F, 0.3F, 2.0F, 0.9F, 5.0F, 0.01F};
    const qr_packing packing = {.kind = QR_PACKING_FP8, .block_rows = 2, .block_cols = 3};
    const qr_safetensors_spec spec = {"m.weight_scale_inv", QR_DTYPE_F32, 2, {3, 3}};
    check_fp8(QR_DTYPE_F8_E4M3, &packing, &spec, scales, scales);
}

/* In any of its types and shapes. */
static void test_fp8_with_one_scale(void) {
    static const struct {
        qr_safetensors_spec spec;
        unsigned char bytes[4];
        float scale;
    } cases[] = {
        {{"m.weight_scale_inv", QR_DTYPE_F32, 0, {0}}, {0, 0, 0x40, 0x40}, 3.0F},
        {{"m.weight_scale_inv", QR_DTYPE_BF16, 1, {1}}, {0x40, 0x40}, 3.0F},
        {{"m.weight_scale_inv", QR_DTYPE_F16, 2, {1, 1}}, {0, 0x42}, 3.0F},
        {{"m.weight_scale_inv", QR_DTYPE_F8_E8M0, 2, {1, 1}}, {125}, 0.25F},
        {{"m.weight_scale_inv", QR_DTYPE_U8, 1, {1}}, {129}, 4.0F},
    };
    static const qr_packing whole = {.kind = QR_PACKING_FP8},
                            large = {.kind = QR_PACKING_FP8, .block_rows = 128, .block_cols = 128};
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        check_fp8(QR_DTYPE_F8_E5M2, &whole, &cases[i].spec, cases[i].bytes, &cases[i].scale);
        check_fp8(QR_DTYPE_F8_E4M3, &large, &cases[i].spec, cases[i].bytes, &cases[i].scale);
    }
}

/* Gate and up of two experts, with blocks that both have a part in. */
static void test_fp8_in_a_stack(void) {
    enum { EXPERTS = 2, HALF = ROWS, WHOLE = 2 * HALF };
    static unsigned char stack[EXPERTS * WHOLE * COLS];
    static const float scales[EXPERTS * 3] = {0.5F, 3.0F, 0.7F, 1.1F, 0.3F, 2.0F};
    const qr_packing packing = {.kind = QR_PACKING_FP8, .block_rows = 4, .block_cols = COLS};
    const qr_safetensors_spec specs[] = {{"s", QR_DTYPE_F8_E4M3, 3, {EXPERTS, WHOLE, COLS}},
                                         {"s_scale_inv", QR_DTYPE_F32, 3, {EXPERTS, 3, 1}}};
    const void *const contents[] = {stack, scales};
    const qr_stack of_layer = {.name = "s", .n_experts = EXPERTS, .n_parts = 2};
    float values[256], expected[ROWS * COLS];
    for (size_t i = 0; i < sizeof stack; i++) { stack[i] = (unsigned char)(i * 41 % 127); }
    qr_float8_values(QR_DTYPE_F8_E4M3, values);
    qr_safetensors *file = file_of(specs, contents, 2);
    for (int expert = 0; expert < EXPERTS; expert++) {
        for (int part = 0; part < 2; part++) {
            qr_stored_weight stored;
            qr_error err = {0};
            CHECK_MSG(qr_stored_slice_find(file, &of_layer, expert, part, HALF, COLS, &packing, &stored, &err) ==
                          QRUN_OK,
                      "%s", err.message);
            for (int i = 0; i < ROWS * COLS; i++) {
                const int row = part * HALF + i / COLS;
                expected[i] = values[stack[(expert * WHOLE + row) * COLS + i % COLS]] * scales[expert * 3 + row / 4];
            }
            check_rows(&stored.packed, expected);
            CHECK(stored.is_last == (expert == 1 && part == 1));
        }
    }
    qr_safetensors_close(file);
}

/* In canonical form the rows have the same values, to the bit. */
static void check_as_it_is(const qr_stored_weight *stored, const float *values) {
    enum { MOST = 1024 };
    const qr_weight_desc *desc = &stored->desc;
    uint8_t row_codes[MOST / 2], row_scales[MOST / QR_MXFP4_BLOCK];
    float back[MOST];
    CHECK_INT(desc->format, QR_WEIGHT_MXFP4);
    REQUIRE(qr_weight_elements(desc) <= MOST);
    qr_packed_weight_mxfp4_rows(&stored->packed, 0, desc->rows, row_codes, row_scales);
    qr_mxfp4_dequantize(row_codes, row_scales, 0, qr_weight_elements(desc), back);
    CHECK(memcmp(back, values, (size_t)qr_weight_elements(desc) * sizeof *values) == 0);
}

/* Gate and up in turn: rows of blocks of 32, whose codes of 4 bits are two in a byte. */
static void test_mxfp4(void) {
    enum { EXPERTS = 3, HALF = 5, WIDTH = 64, N_BLOCKS = EXPERTS * 2 * HALF * WIDTH / QR_MXFP4_BLOCK };
    static unsigned char blocks[N_BLOCKS * QR_MXFP4_BLOCK / 2], scales[N_BLOCKS];
    const qr_packing packing = {.kind = QR_PACKING_MXFP4, .block_rows = 1, .block_cols = QR_MXFP4_BLOCK};
    const qr_stack of_layer = {.name = "s", .n_experts = EXPERTS, .n_parts = 2, .in_turn = true};
    const qr_safetensors_spec specs[] = {{"s_blocks", QR_DTYPE_U8, 4, {EXPERTS, 2 * HALF, 2, 16}},
                                         {"s_scales", QR_DTYPE_U8, 3, {EXPERTS, 2 * HALF, 2}}};
    const void *const contents[] = {blocks, scales};
    for (size_t i = 0; i < sizeof blocks; i++) { blocks[i] = (unsigned char)(i * 41); }
    for (size_t i = 0; i < sizeof scales; i++) { scales[i] = (unsigned char)(120 + i % 11); }
    qr_safetensors *file = file_of(specs, contents, 2);
    CHECK(qr_stored_has_stack(file, "s") && !qr_stored_has_stack(file, "s_blocks2"));
    for (int i = 0; i < EXPERTS * 2; i++) {
        qr_stored_weight stored;
        qr_error err = {0};
        float values[HALF * WIDTH];
        CHECK_MSG(qr_stored_slice_find(file, &of_layer, i / 2, i % 2, HALF, WIDTH, &packing, &stored, &err) == QRUN_OK,
                  "%s", err.message);
        qr_packed_weight_rows(&stored.packed, 0, HALF, values);
        for (int k = 0; k < HALF * WIDTH; k++) {
            const int at = ((i / 2 * HALF + k / WIDTH) * 2 + i % 2) * WIDTH + k % WIDTH;
            const int code = at % 2 == 0 ? blocks[at / 2] & 15 : blocks[at / 2] >> 4;
            const float expected = ldexpf(qr_float4_values[code], scales[at / QR_MXFP4_BLOCK] - 127);
            CHECK_MSG(memcmp(&values[k], &expected, sizeof expected) == 0, "element %d of part %d", k, i);
        }
        check_as_it_is(&stored, values);
    }
    qr_safetensors_close(file);
}

/* Of the second expert's up rows the last has a scale of 255. */
static void test_mxfp4_scales_are_numbers(void) {
    enum { EXPERTS = 2, HALF = 3, WIDTH = 32, N_ROWS = EXPERTS * 2 * HALF };
    static unsigned char blocks[N_ROWS * 16], scales[N_ROWS];
    const qr_packing packing = {.kind = QR_PACKING_MXFP4, .block_rows = 1, .block_cols = QR_MXFP4_BLOCK};
    const qr_stack of_layer = {.name = "s", .n_experts = EXPERTS, .n_parts = 2, .in_turn = true};
    const qr_safetensors_spec specs[] = {{"s_blocks", QR_DTYPE_U8, 4, {EXPERTS, 2 * HALF, 1, 16}},
                                         {"s_scales", QR_DTYPE_U8, 3, {EXPERTS, 2 * HALF, 1}}};
    const void *const contents[] = {blocks, scales};
    memset(scales, 254, sizeof scales);
    scales[N_ROWS - 1] = 255;
    qr_safetensors *file = file_of(specs, contents, 2);
    for (int i = 0; i < EXPERTS * 2; i++) {
        qr_stored_weight stored;
        qr_error err = {0};
        REQUIRE(qr_stored_slice_find(file, &of_layer, i / 2, i % 2, HALF, WIDTH, &packing, &stored, &err) == QRUN_OK);
        const bool is_last = i == EXPERTS * 2 - 1;
        CHECK_INT(qr_packed_weight_check_scales(&stored.packed, 0, HALF - 1, &err), QRUN_OK);
        CHECK_INT(qr_packed_weight_check_scales(&stored.packed, 0, HALF, &err), is_last ? QRUN_ERROR_INPUT : QRUN_OK);
        CHECK_MSG(!is_last || strstr(err.message, "s_scales: has a scale that is not a number (255 of E8M0)") != NULL,
                  "%s", err.message);
    }
    qr_safetensors_close(file);
}

static void test_mxfp4_of_odd_sizes(void) {
    static const struct {
        qr_safetensors_spec blocks, scales;
        int64_t cols;
        const char *message;
    } cases[] = {
        {{"s_blocks", QR_DTYPE_U8, 4, {2, 10, 2, 16}},
         {"s_scales", QR_DTYPE_U8, 3, {2, 10, 2}},
         40,
         "s_blocks: is MXFP4, whose rows are blocks of 32, and 40 columns are not"},
        {{"s_blocks", QR_DTYPE_U8, 4, {2, 10, 3, 16}},
         {"s_scales", QR_DTYPE_U8, 3, {2, 10, 2}},
         64,
         "tensor \"s_blocks\" has shape [2, 10, 3, 16] and should have [2, 10, 2, 16]"},
        {{"s_blocks", QR_DTYPE_U8, 4, {2, 10, 2, 16}},
         {"s_scales", QR_DTYPE_U8, 3, {2, 10, 3}},
         64,
         "tensor \"s_scales\" has shape [2, 10, 3] and should have [2, 10, 2]"},
        {{"s_blocks", QR_DTYPE_U8, 4, {2, 10, 2, 16}},
         {"s_other", QR_DTYPE_U8, 3, {2, 10, 2}},
         64,
         "tensor \"s_scales\" is missing"},
        {{"s_blocks", QR_DTYPE_U8, 4, {2, 10, 2, 16}},
         {"s_scales", QR_DTYPE_F32, 3, {2, 10, 2}},
         64,
         "tensor \"s_scales\" is F32 and should be"},
        {{"s_blocks", QR_DTYPE_U8, 3, {2, 10, 32}},
         {"s_scales", QR_DTYPE_U8, 3, {2, 10, 2}},
         64,
         "tensor \"s_blocks\" has shape [2, 10, 32] and should have [2, 10, 2, 16]"},
    };
    const qr_packing packing = {.kind = QR_PACKING_MXFP4, .block_rows = 1, .block_cols = QR_MXFP4_BLOCK};
    const qr_stack of_layer = {.name = "s", .n_experts = 2, .n_parts = 2, .in_turn = true};
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        const qr_safetensors_spec specs[] = {cases[i].blocks, cases[i].scales};
        qr_safetensors *file = file_of(specs, (const void *const[]){NULL, NULL}, 2);
        qr_stored_weight stored;
        qr_error err = {0};
        CHECK(qr_stored_slice_find(file, &of_layer, 1, 0, 5, cases[i].cols, &packing, &stored, &err) != QRUN_OK);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        qr_safetensors_close(file);
    }
}

static void test_refusals(void) {
    static const struct {
        qr_safetensors_spec weight, scale;
        bool transposed;
        const char *message;
    } cases[] = {
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {5, 7}},
         {"m.scale", QR_DTYPE_F32, 2, {3, 3}},
         false,
         "tensor \"m.weight_scale_inv\" is missing"},
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {5, 7}},
         {"m.weight_scale_inv", QR_DTYPE_F32, 2, {3, 2}},
         false,
         "tensor \"m.weight_scale_inv\" has shape [3, 2] and should have [3, 3]"},
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {5, 7}},
         {"m.weight_scale_inv", QR_DTYPE_F32, 0, {0}},
         false,
         "tensor \"m.weight_scale_inv\" has shape [] and should have [3, 3]"},
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {5, 7}},
         {"m.weight_scale_inv", QR_DTYPE_I8, 2, {3, 3}},
         false,
         "tensor \"m.weight_scale_inv\" is I8 and should be"},
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {7, 5}},
         {"m.weight_scale_inv", QR_DTYPE_F32, 2, {3, 3}},
         false,
         "tensor \"m.weight\" has shape [7, 5] and should have [5, 7]"},
        {{"m.weight", QR_DTYPE_F8_E4M3, 2, {5, 7}},
         {"m.weight_scale_inv", QR_DTYPE_F32, 2, {3, 3}},
         true,
         "m.weight: is stored as fp8, which this family cannot be"},
    };
    const qr_packing packing = {.kind = QR_PACKING_FP8, .block_rows = 2, .block_cols = 3};
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        const qr_safetensors_spec specs[] = {cases[i].weight, cases[i].scale};
        qr_safetensors *file = file_of(specs, (const void *const[]){NULL, NULL}, 2);
        qr_stored_weight stored;
        qr_error err = {0};
        CHECK(qr_stored_weight_find(file, "m", ROWS, COLS, cases[i].transposed, &packing, &stored, &err) != QRUN_OK);
        CHECK_MSG(strstr(err.message, cases[i].message) != NULL, "%s", err.message);
        qr_safetensors_close(file);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    for (int i = 0; i < ROWS * COLS; i++) { codes[i] = (unsigned char)((i * 37 % 123) | (i % 3 == 0 ? 128 : 0)); }
    CHECK_RUN(test_fp8_of_a_grid_that_ends_within_a_block);
    CHECK_RUN(test_fp8_with_one_scale);
    CHECK_RUN(test_fp8_in_a_stack);
    CHECK_RUN(test_mxfp4);
    CHECK_RUN(test_mxfp4_scales_are_numbers);
    CHECK_RUN(test_mxfp4_of_odd_sizes);
    CHECK_RUN(test_refusals);
    temporary_remove(&folder);
    return check_end();
}

/* Matrices of integers with scales and zero points (GPTQ, AWQ, compressed-tensors) and NVFP4: every value by the
 * definition of its format, and what is refused. Matrices of GPTQModel are what it decodes. That whole folders are is
 * test_goldens. */
#include "check.h"

#include "base/half.h"
#include "base/sizes.h"
#include "loaders/config/packing_config.h"
#include "loaders/files/stored_weight.h"
#include "quant/small_floats.h"
#include "temporary.h"
#include "tensors_file.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

enum { ROWS = 40, COLS = 72, GROUP = 32, N_GROUPS = 3, MOST = ROWS * COLS }; /* the last group has 8 columns */

enum { MOST_OF_GPTQMODEL = 1 << 13 };

static temporary_folder folder;
static uint32_t code_words[MOST], zero_words[MOST];
static float scales[MOST];
static int32_t groups[COLS];

static qr_safetensors *file_of(const qr_safetensors_spec *specs, const void *const *contents, size_t n) {
    qr_safetensors *file = NULL;
    qr_error err = {0};
    CHECK_MSG(tensors_write(folder.path, specs, contents, n, &err) == QRUN_OK &&
                  qr_safetensors_open(folder.path, &file, &err) == QRUN_OK,
              "%s", err.message);
    return file;
}

/* The code at place `i` of a word. */
static int code_in(uint32_t word, int bits, int i) { return (int)(word >> (i * bits) & ((1U << bits) - 1)); }

typedef float value_of(const qr_packing *packing, int row, int col);

/* All rows at once, and every one alone. */
static void check_matrix(const qr_packing *packing, const qr_safetensors_spec *specs, const void *const *contents,
                         size_t n, int cols, value_of *expected) {
    static float values[MOST], row_alone[COLS];
    qr_stored_weight stored;
    qr_error err = {0};
    qr_safetensors *file = file_of(specs, contents, n);
    const qrun_status status = qr_stored_weight_find(file, "m", ROWS, cols, false, packing, &stored, &err);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    for (int r = 0; status == QRUN_OK && r < ROWS; r++) {
        if (r == 0) { qr_packed_weight_rows(&stored.packed, 0, ROWS, values); }
        qr_packed_weight_rows(&stored.packed, r, 1, row_alone);
        for (int c = 0; c < cols; c++) {
            const float value = expected(packing, r, c);
            CHECK_MSG(values[r * cols + c] == value && row_alone[c] == value,
                      "%s of %d bits: row %d column %d is %g, not %g", qr_packing_kind_name(packing->kind),
                      packing->bits, r, c, (double)values[r * cols + c], (double)value);
        }
    }
    qr_safetensors_close(file);
}

/* ---- GPTQ and AWQ ------------------------------------------------------------------------------------------------ */

static int group_of(const qr_packing *packing, int col) {
    if (packing->is_reordered) { return groups[col]; }
    return packing->block_cols > 0 ? col / (int)packing->block_cols : 0;
}

static float gptq_value(const qr_packing *packing, int row, int col) {
    const int bits = packing->bits, per = 32 / bits, group = group_of(packing, col);
    const uint32_t ones = bits == 4 ? 0x11111111U : 0x01010101U;
    const uint32_t zeros = zero_words[group * (ROWS / per) + row / per] + (packing->zeros_less_one ? ones : 0);
    const int code = code_in(code_words[col / per * ROWS + row], bits, col % per);
    return (float)(code - code_in(zeros, bits, row % per)) * scales[group * ROWS + row];
}

static void check_gptq(qr_packing packing) {
    const int per = 32 / packing.bits, n_groups = packing.block_cols > 0 ? N_GROUPS : 1;
    const qr_safetensors_spec specs[] = {{"m.qweight", QR_DTYPE_I32, 2, {COLS / per, ROWS}},
                                         {"m.qzeros", QR_DTYPE_I32, 2, {n_groups, ROWS / per}},
                                         {"m.scales", QR_DTYPE_F32, 2, {n_groups, ROWS}},
                                         {"m.g_idx", QR_DTYPE_I32, 1, {COLS}}};
    const void *const contents[] = {code_words, zero_words, scales, groups};
    packing.kind = QR_PACKING_GPTQ;
    packing.block_rows = 1;
    check_matrix(&packing, specs, contents, packing.is_reordered ? 4 : 3, COLS, gptq_value);
}

static void test_gptq(void) {
    check_gptq((qr_packing){.bits = 4, .block_cols = GROUP, .zeros_less_one = true});
    check_gptq((qr_packing){.bits = 4, .block_cols = GROUP});
    check_gptq((qr_packing){.bits = 4, .block_cols = GROUP, .is_reordered = true});
    check_gptq((qr_packing){.bits = 8, .block_cols = GROUP, .is_reordered = true, .zeros_less_one = true});
    check_gptq((qr_packing){.bits = 8});
}

/* FNV-1a, as tests/golden/README.md defines it. */
static uint64_t fnv1a64(const void *bytes, size_t n_bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n_bytes; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* What GPTQModel packed, read by its own quantization_config, is to the bit what it decodes with scales in F32. */
static void check_gptqmodel(const qr_safetensors *file, const qr_json *entry) {
    qr_packing packing = {0};
    qr_stored_weight stored;
    qr_error err = {0};
    const char *name = cJSON_GetStringValue(qr_json_get(entry, "name"));
    const qr_json *rows = qr_json_first(qr_json_get(entry, "shape"));
    const int64_t n_rows = (int64_t)rows->valuedouble, n_cols = (int64_t)rows->next->valuedouble;
    static float values[MOST_OF_GPTQMODEL];
    REQUIRE(n_rows * n_cols <= MOST_OF_GPTQMODEL);
    const qr_json *config = qr_json_get(entry, "quantization_config");
    CHECK_MSG(qr_packing_config_read(config, "gptq", name, &packing, &err) == QRUN_OK, "%s", err.message);
    const qrun_status status = qr_stored_weight_find(file, name, n_rows, n_cols, false, &packing, &stored, &err);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    if (status == QRUN_OK) {
        char text[24];
        qr_packed_weight_rows(&stored.packed, 0, n_rows, values);
        const uint64_t hash = fnv1a64(values, (size_t)(n_rows * n_cols) * sizeof *values);
        (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
        CHECK_MSG(strcmp(text, cJSON_GetStringValue(qr_json_get(entry, "fnv1a64_f32"))) == 0, "%s: other values", name);
    }
    qr_packing_free(&packing);
}

static void test_gptq_as_gptqmodel(void) {
    qr_json *index = NULL;
    qr_safetensors *file = NULL;
    qr_error err = {0};
    REQUIRE(qr_json_read(FIXTURES "goldens/gptqmodel.json", 1 << 20, &index, &err) == QRUN_OK);
    REQUIRE(qr_safetensors_open(FIXTURES "goldens/gptqmodel.safetensors", &file, &err) == QRUN_OK);
    int n_checked = 0;
    const qr_json *entry = qr_json_first(qr_json_get(index, "matrices"));
    for (; entry != NULL; entry = entry->next, n_checked++) { check_gptqmodel(file, entry); }
    CHECK(n_checked >= 30);
    qr_safetensors_close(file);
    qr_json_free(index);
}

static float awq_value(const qr_packing *packing, int row, int col) {
    static const int rows_in_word[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int group = group_of(packing, col);
    int place = 0;
    while (rows_in_word[place] != row % 8) { place++; }
    const int code = code_in(code_words[col * (ROWS / 8) + row / 8], 4, place);
    return (float)(code - code_in(zero_words[group * (ROWS / 8) + row / 8], 4, place)) * scales[group * ROWS + row];
}

static void test_awq(void) {
    static const int sizes[] = {24, 0};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        const int n_groups = sizes[i] > 0 ? COLS / sizes[i] : 1;
        const qr_packing packing = {.kind = QR_PACKING_AWQ, .bits = 4, .block_rows = 1, .block_cols = sizes[i]};
        const qr_safetensors_spec specs[] = {{"m.qweight", QR_DTYPE_I32, 2, {COLS, ROWS / 8}},
                                             {"m.qzeros", QR_DTYPE_I32, 2, {n_groups, ROWS / 8}},
                                             {"m.scales", QR_DTYPE_F32, 2, {n_groups, ROWS}}};
        const void *const contents[] = {code_words, zero_words, scales};
        check_matrix(&packing, specs, contents, 3, COLS, awq_value);
    }
}

/* ---- compressed-tensors ------------------------------------------------------------------------------------------ */

enum { ODD_COLS = 70, INT_GROUP = 14, N_INT_GROUPS = 5 }; /* the last word of a row is not full */

static float int_value(const qr_packing *packing, int row, int col) {
    const int bits = packing->bits, per = 32 / bits, group = packing->is_reordered ? groups[col] : col / INT_GROUP;
    const int code = code_in(code_words[row * (int)qr_ceil_div(ODD_COLS, per) + col / per], bits, col % per);
    const int zero =
        packing->has_zeros ? code_in(zero_words[row / per * N_INT_GROUPS + group], bits, row % per) : 1 << (bits - 1);
    return (float)(code - zero) * scales[row * N_INT_GROUPS + group];
}

static void check_int(qr_packing packing) {
    static const int64_t shape[2] = {ROWS, ODD_COLS};
    const int per = 32 / packing.bits;
    const qr_safetensors_spec specs[] = {
        {"m.weight_packed", QR_DTYPE_I32, 2, {ROWS, qr_ceil_div(ODD_COLS, per)}},
        {"m.weight_shape", QR_DTYPE_I64, 1, {2}},
        {"m.weight_scale", QR_DTYPE_F32, 2, {ROWS, N_INT_GROUPS}},
        {"m.weight_zero_point", QR_DTYPE_I32, 2, {qr_ceil_div(ROWS, per), N_INT_GROUPS}},
        {"m.weight_g_idx", QR_DTYPE_I32, 1, {ODD_COLS}}};
    const void *const contents[] = {code_words, shape, scales, zero_words, groups};
    packing.kind = QR_PACKING_INT;
    packing.block_rows = 1;
    packing.block_cols = INT_GROUP;
    check_matrix(&packing, specs, contents, packing.is_reordered ? 5 : 4, ODD_COLS, int_value);
}

static void test_int(void) {
    check_int((qr_packing){.bits = 4});
    check_int((qr_packing){.bits = 4, .has_zeros = true});
    check_int((qr_packing){.bits = 8, .has_zeros = true, .is_reordered = true});
}

/* A scale and a zero point for each block of 16 rows and 30 columns, the last of which are not whole. */
static float int8_value(const qr_packing *packing, int row, int col) {
    const int index = row / 16 * 3 + col / 30;
    const int zero = packing->has_zeros ? ((const int8_t *)zero_words)[index] : 0;
    return (float)(((const int8_t *)code_words)[row * COLS + col] - zero) * scales[index];
}

static void test_int8(void) {
    const qr_safetensors_spec specs[] = {{"m.weight", QR_DTYPE_I8, 2, {ROWS, COLS}},
                                         {"m.weight_scale", QR_DTYPE_F32, 2, {3, 3}},
                                         {"m.weight_zero_point", QR_DTYPE_I8, 2, {3, 3}}};
    const void *const contents[] = {code_words, scales, zero_words};
    for (int has_zeros = 0; has_zeros < 2; has_zeros++) {
        const qr_packing packing = {
            .kind = QR_PACKING_INT8, .block_rows = 16, .block_cols = 30, .bits = 8, .has_zeros = has_zeros};
        check_matrix(&packing, specs, contents, 3, COLS, int8_value);
    }
}

static const float global_scale = 3.0F;

static float nvfp4_value(const qr_packing *packing, int row, int col) {
    float values[256];
    (void)packing;
    qr_float8_values(QR_DTYPE_F8_E4M3, values);
    const int at = row * 64 + col, byte = ((const unsigned char *)code_words)[at / 2];
    const float scale = values[((const unsigned char *)zero_words)[at / 16] & 0x7E] / global_scale;
    return qr_float4_values[at % 2 == 0 ? byte & 15 : byte >> 4] * scale;
}

static void test_nvfp4(void) {
    unsigned char bytes[ROWS * 4];
    const qr_packing packing = {.kind = QR_PACKING_NVFP4, .block_rows = 1, .block_cols = QR_NVFP4_BLOCK, .bits = 4};
    const qr_safetensors_spec specs[] = {{"m.weight_packed", QR_DTYPE_U8, 2, {ROWS, 32}},
                                         {"m.weight_scale", QR_DTYPE_F8_E4M3, 2, {ROWS, 4}},
                                         {"m.weight_global_scale", QR_DTYPE_F32, 1, {1}}};
    const void *const contents[] = {code_words, bytes, &global_scale};
    for (size_t i = 0; i < sizeof bytes; i++) { bytes[i] = ((const unsigned char *)zero_words)[i] & 0x7E; }
    check_matrix(&packing, specs, contents, 3, 64, nvfp4_value);
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

enum { MOST_SPECS = 5 };

typedef struct refusal {
    qr_packing packing;
    int64_t rows, cols;
    qr_safetensors_spec specs[MOST_SPECS]; /* up to one without a name */
    const void *contents[MOST_SPECS];
    const char *message;
} refusal;

static void check_refused(const refusal *r) {
    size_t n = 0;
    qr_stored_weight stored;
    qr_error err = {0};
    while (n < MOST_SPECS && r->specs[n].name != NULL) { n++; }
    qr_safetensors *file = file_of(r->specs, r->contents, n);
    CHECK(qr_stored_weight_find(file, "m", r->rows, r->cols, false, &r->packing, &stored, &err) != QRUN_OK);
    CHECK_MSG(strstr(err.message, r->message) != NULL, "%s\n instead of: %s", err.message, r->message);
    qr_safetensors_close(file);
}

#define GPTQ \
    { .kind = QR_PACKING_GPTQ, .bits = 4, .block_rows = 1, .block_cols = 32 }
#define AWQ \
    { .kind = QR_PACKING_AWQ, .bits = 4, .block_rows = 1, .block_cols = 32 }
#define INT \
    { .kind = QR_PACKING_INT, .bits = 4, .block_rows = 1, .block_cols = 32, .has_zeros = true }
#define CODES(n_rows, n_cols)                            \
    {                                                    \
        "m.qweight", QR_DTYPE_I32, 2, { n_rows, n_cols } \
    }
#define ZEROS(n_rows, n_cols)                           \
    {                                                   \
        "m.qzeros", QR_DTYPE_I32, 2, { n_rows, n_cols } \
    }
#define SCALES(n_rows, n_cols)                          \
    {                                                   \
        "m.scales", QR_DTYPE_F16, 2, { n_rows, n_cols } \
    }
#define PACKED(n_rows, n_cols)                                 \
    {                                                          \
        "m.weight_packed", QR_DTYPE_I32, 2, { n_rows, n_cols } \
    }
#define SHAPE                                    \
    {                                            \
        "m.weight_shape", QR_DTYPE_I64, 1, { 2 } \
    }
#define SCALE(n_rows, n_cols)                                  \
    {                                                          \
        "m.weight_scale", QR_DTYPE_BF16, 2, { n_rows, n_cols } \
    }

static const int32_t beyond[64] = {[37] = 2}, before[64] = {[5] = -1};
static const int64_t shape[2] = {16, 64}, other_shape[2] = {64, 16};
static const float nothing = 0;

static const refusal refusals[] = {
    {GPTQ, 16, 64, {CODES(8, 16), ZEROS(2, 2)}, {NULL}, "tensor \"m.scales\" is missing"},
    {GPTQ, 16, 64, {CODES(8, 16), SCALES(2, 16)}, {NULL}, "tensor \"m.qzeros\" is missing"},
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(1, 2), SCALES(1, 16)},
     {NULL},
     "tensor \"m.scales\" has shape [1, 16] and should have [2, 16]"}, /* groups of 64, and config.json says 32 */
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 16), SCALES(2, 16)},
     {NULL},
     "tensor \"m.qzeros\" has shape [2, 16] and should have [2, 2]"},
    {GPTQ,
     16,
     64,
     {CODES(16, 8), ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "tensor \"m.qweight\" has shape [16, 8] and should have [8, 16]"},
    {GPTQ,
     16,
     64,
     {{"m.qweight", QR_DTYPE_F32, 2, {8, 16}}, ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "tensor \"m.qweight\" is F32 and should be I32"},
    {GPTQ,
     20,
     64,
     {CODES(8, 20), ZEROS(2, 2), SCALES(2, 20)},
     {NULL},
     "m.qweight: is gptq in blocks of 8 rows, and the matrix has 20"},
    {GPTQ,
     16,
     60,
     {CODES(7, 16), ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "m.qweight: is gptq in blocks of 8 columns, and the matrix has 60"},
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16), {"m.g_idx", QR_DTYPE_I32, 1, {64}}},
     {NULL, NULL, NULL, beyond},
     "m.g_idx: column 37 is in group 2, and there are 2 groups"},
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16), {"m.g_idx", QR_DTYPE_I32, 1, {64}}},
     {NULL, NULL, NULL, before},
     "m.g_idx: column 5 is in group -1, and there are 2 groups"},
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16), {"m.g_idx", QR_DTYPE_I32, 1, {63}}},
     {NULL},
     "tensor \"m.g_idx\" has shape [63] and should have [64]"},
    {{.kind = QR_PACKING_GPTQ, .bits = 4, .block_rows = 1, .block_cols = 32, .is_reordered = true},
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "tensor \"m.g_idx\" is missing"},
    {GPTQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16), {"m.weight", QR_DTYPE_F16, 2, {16, 64}}},
     {NULL},
     "m.qweight: is there beside m.weight, and only one of them can be the matrix"},
    {{0}, 16, 64, {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16)}, {NULL}, "m.qweight: belongs to a packed matrix, but not"},
    {GPTQ, 16, 64, {ZEROS(2, 2), SCALES(2, 16)}, {NULL}, "m.scales: belongs to a packed matrix, but not"},
    {AWQ,
     16,
     64,
     {CODES(64, 2), ZEROS(2, 2), SCALES(1, 16)},
     {NULL},
     "tensor \"m.scales\" has shape [1, 16] and should have [2, 16]"},
    {AWQ,
     16,
     64,
     {CODES(8, 16), ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "tensor \"m.qweight\" has shape [8, 16] and should have [64, 2]"},
    {AWQ,
     12,
     64,
     {CODES(64, 2), ZEROS(2, 2), SCALES(2, 12)},
     {NULL},
     "m.qweight: is awq in blocks of 8 rows, and the matrix has 12"},
    {AWQ,
     16,
     60,
     {CODES(60, 2), ZEROS(2, 2), SCALES(2, 16)},
     {NULL},
     "m.qweight: is awq in blocks of 32 columns, and the matrix has 60"},
    {INT, 16, 64, {PACKED(16, 8), SCALE(16, 2)}, {NULL}, "tensor \"m.weight_shape\" is missing"},
    {INT,
     16,
     64,
     {PACKED(16, 8), SCALE(16, 2), SHAPE},
     {NULL, NULL, other_shape},
     "m.weight_shape: says [64, 16] where config.json asks for [16, 64]"},
    {INT,
     16,
     64,
     {PACKED(16, 8), SCALE(16, 2), SHAPE},
     {NULL, NULL, shape},
     "tensor \"m.weight_zero_point\" is missing"},
    {INT, 16, 64, {PACKED(16, 8), SHAPE}, {NULL, shape}, "tensor \"m.weight_scale\" is missing"},
    {INT,
     16,
     64,
     {PACKED(16, 8), SHAPE, SCALE(16, 4)},
     {NULL, shape},
     "tensor \"m.weight_scale\" has shape [16, 4] and should have [16, 2]"},
    {INT,
     16,
     64,
     {PACKED(16, 7), SHAPE, SCALE(16, 2)},
     {NULL, shape},
     "tensor \"m.weight_packed\" has shape [16, 7] and should have [16, 8]"},
    {INT,
     16,
     60,
     {PACKED(16, 8), SHAPE, SCALE(16, 2)},
     {NULL, shape},
     "m.weight_packed: is pack-quantized in blocks of 32 columns, and the matrix has 60"},
    {{.kind = QR_PACKING_INT8, .bits = 8, .block_rows = 1},
     16,
     64,
     {{"m.weight", QR_DTYPE_I8, 2, {64, 16}}, SCALE(16, 1)},
     {NULL},
     "tensor \"m.weight\" has shape [64, 16] and should have [16, 64]"},
    {{.kind = QR_PACKING_INT8, .bits = 8, .block_rows = 1, .has_zeros = true},
     16,
     64,
     {{"m.weight", QR_DTYPE_I8, 2, {16, 64}}, SCALE(16, 1)},
     {NULL},
     "tensor \"m.weight_zero_point\" is missing"},
    {{.kind = QR_PACKING_FLOAT8, .bits = 8, .block_rows = 1},
     16,
     64,
     {{"m.weight", QR_DTYPE_F8_E4M3, 2, {16, 64}}, SCALE(16, 2)},
     {NULL},
     "tensor \"m.weight_scale\" has shape [16, 2] and should have [16, 1]"},
    {{.kind = QR_PACKING_NVFP4, .bits = 4, .block_rows = 1, .block_cols = 16},
     16,
     60,
     {{"m.weight_packed", QR_DTYPE_U8, 2, {16, 30}}},
     {NULL},
     "m.weight_packed: is nvfp4-pack-quantized in blocks of 16 columns, and the matrix has 60"},
    {{.kind = QR_PACKING_NVFP4, .bits = 4, .block_rows = 1, .block_cols = 16},
     16,
     64,
     {{"m.weight_packed", QR_DTYPE_U8, 2, {16, 32}},
      {"m.weight_scale", QR_DTYPE_F8_E4M3, 2, {16, 4}},
      {"m.weight_global_scale", QR_DTYPE_F32, 1, {1}}},
     {NULL, NULL, &nothing},
     "m.weight_global_scale: is 0, and scales cannot be divided by that"},
};

static void test_refusals(void) {
    for (size_t i = 0; i < QR_COUNT_OF(refusals); i++) { check_refused(&refusals[i]); }
}

/* ---- Several formats in a folder --------------------------------------------------------------------------------- */

/* The one of four packings that the tensors of [16, 64] fit; the message where none or two do. */
static void check_choice(const qr_safetensors_spec *specs, size_t n, int64_t block_cols, int bits, bool has_zeros,
                         const char *message) {
    static const int64_t dims[] = {16, 64};
    qr_packing asymmetric = INT, wide = {.kind = QR_PACKING_INT, .bits = 8, .block_rows = 1, .block_cols = 16};
    qr_packing whole = {.kind = QR_PACKING_FLOAT8, .bits = 8};
    qr_packing first = {.kind = QR_PACKING_INT, .bits = 4, .block_rows = 1, .block_cols = 32, .next = &asymmetric};
    asymmetric.next = &wide;
    wide.next = &whole;
    const void *contents[MOST_SPECS] = {NULL};
    qr_stored_weight stored;
    qr_error err = {0};
    for (size_t i = 0; i < n; i++) { contents[i] = specs[i].dtype == QR_DTYPE_I64 ? dims : NULL; }
    qr_safetensors *file = file_of(specs, contents, n);
    const qrun_status status = qr_stored_weight_find(file, "m", 16, 64, false, &first, &stored, &err);
    if (message != NULL) {
        CHECK(status != QRUN_OK);
        CHECK_MSG(strstr(err.message, message) != NULL, "%s\n instead of: %s", err.message, message);
    } else {
        CHECK_MSG(status == QRUN_OK, "%s", err.message);
        CHECK_INT(stored.packed.block_cols, block_cols);
        CHECK_INT(stored.packed.bits, bits);
        CHECK((stored.packed.zeros != NULL) == has_zeros);
    }
    qr_safetensors_close(file);
}
#define CHECK_CHOICE(block_cols, bits, has_zeros, message, ...)                                    \
    do {                                                                                           \
        const qr_safetensors_spec specs[] = {__VA_ARGS__};                                         \
        check_choice(specs, sizeof specs / sizeof specs[0], block_cols, bits, has_zeros, message); \
    } while (0)

static void test_several_formats(void) {
    CHECK_CHOICE(32, 4, false, NULL, PACKED(16, 8), SCALE(16, 2), SHAPE);
    CHECK_CHOICE(32, 4, true, NULL, PACKED(16, 8), SCALE(16, 2), SHAPE,
                 {"m.weight_zero_point", QR_DTYPE_I32, 2, {2, 2}});
    CHECK_CHOICE(16, 8, false, NULL, PACKED(16, 16), SCALE(16, 4), SHAPE);
    CHECK_CHOICE(64, 8, false, NULL, {"m.weight", QR_DTYPE_F8_E4M3, 2, {16, 64}}, SCALE(1, 1));
    CHECK_CHOICE(0, 0, false, "\"m.weight_packed\" has shape [16, 12] and should have [16, 16]", PACKED(16, 12),
                 SCALE(16, 2), SHAPE);
    CHECK_CHOICE(0, 0, false, "\"m.weight_scale\" has shape [16, 8] and should have [16, 2]", PACKED(16, 8),
                 SCALE(16, 8), SHAPE, {"m.weight_zero_point", QR_DTYPE_I32, 2, {2, 2}});
}

/* Groups that read one matrix alike are no question, and those that do not are. */
static void test_formats_that_both_fit(void) {
    qr_packing other = {.kind = QR_PACKING_FLOAT8, .bits = 8, .block_rows = 128, .block_cols = 128};
    qr_packing packing = {.kind = QR_PACKING_FLOAT8, .bits = 8, .next = &other};
    const qr_safetensors_spec small[] = {{"m.weight", QR_DTYPE_F8_E4M3, 2, {16, 64}}, SCALE(1, 1)};
    const qr_safetensors_spec large[] = {{"m.weight", QR_DTYPE_F8_E4M3, 2, {16, 300}}, SCALE(1, 3)};
    qr_stored_weight stored;
    qr_error err = {0};
    qr_safetensors *file = file_of(small, (const void *const[]){NULL, NULL}, 2);
    CHECK_MSG(qr_stored_weight_find(file, "m", 16, 64, false, &packing, &stored, &err) == QRUN_OK, "%s", err.message);
    qr_safetensors_close(file);
    packing.block_rows = 128, packing.block_cols = 110; /* three blocks as well */
    file = file_of(large, (const void *const[]){NULL, NULL}, 2);
    CHECK_INT(qr_stored_weight_find(file, "m", 16, 300, false, &packing, &stored, &err), QRUN_ERROR_UNSUPPORTED);
    CHECK_MSG(strstr(err.message, "m.weight: two of the \"config_groups\" in config.json fit it") != NULL, "%s",
              err.message);
    qr_safetensors_close(file);
}

/* A folder leaves some modules as they were. */
static void test_plain_beside_packed(void) {
    const qr_packing packing = GPTQ;
    const qr_safetensors_spec specs[] = {{"m.weight", QR_DTYPE_F16, 2, {16, 64}},
                                         {"n.qweight", QR_DTYPE_I32, 2, {8, 16}}};
    qr_safetensors *file = file_of(specs, (const void *const[]){NULL, NULL}, 2);
    qr_stored_weight stored;
    qr_error err = {0};
    CHECK_MSG(qr_stored_weight_find(file, "m", 16, 64, false, &packing, &stored, &err) == QRUN_OK, "%s", err.message);
    CHECK(stored.packed.kind == QR_PACKING_NONE && stored.desc.format == QR_WEIGHT_F16);
    qr_safetensors_close(file);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    uint32_t state = 1;
    for (int i = 0; i < MOST; i++) {
        code_words[i] = state = state * 1664525U + 1013904223U;
        zero_words[i] = state = state * 1664525U + 1013904223U;
        scales[i] = (float)(i % 97 + 1) / 64;
    }
    for (int i = 0; i < COLS; i++) { groups[i] = i * 7 % N_GROUPS; }
    CHECK_RUN(test_gptq);
    CHECK_RUN(test_gptq_as_gptqmodel);
    CHECK_RUN(test_awq);
    CHECK_RUN(test_int);
    CHECK_RUN(test_int8);
    CHECK_RUN(test_nvfp4);
    CHECK_RUN(test_refusals);
    CHECK_RUN(test_several_formats);
    CHECK_RUN(test_formats_that_both_fit);
    CHECK_RUN(test_plain_beside_packed);
    temporary_remove(&folder);
    return check_end();
}

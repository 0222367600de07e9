/* The number formats against matrices that bitsandbytes quantised (tests/golden/README.md). */
#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/json.h"
#include "loaders/files/safetensors.h"
#include "quant/dynamic8.h"
#include "quant/format.h"
#include "quant/int8.h"
#include "quant/nf4.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

static qr_safetensors *file;
static qr_json *index_json;

typedef struct matrix {
    const char *name;
    int64_t rows, cols, n, block, n_blocks;
    float *values; /* [rows, cols], from the file's type */
} matrix;

static const qr_safetensors_tensor *find(const char *name, const char *part) {
    char full[200];
    snprintf(full, sizeof full, "%s%s", name, part);
    const qr_safetensors_tensor *tensor = qr_safetensors_find(file, full);
    CHECK_MSG(tensor != NULL, "no golden %s", full);
    return tensor;
}

/* A copy with the alignment that the file does not promise; qr_free. */
static void *load(const char *name, const char *part, size_t n_bytes) {
    const qr_safetensors_tensor *tensor = find(name, part);
    void *bytes = qr_alloc_zeroed(n_bytes);
    CHECK_MSG(tensor != NULL && tensor->n_bytes == n_bytes, "%s%s has %zu bytes, expected %zu", name, part,
              tensor != NULL ? tensor->n_bytes : 0, n_bytes);
    if (tensor != NULL && tensor->n_bytes == n_bytes) { memcpy(bytes, tensor->data, n_bytes); }
    return bytes;
}

static float *load_values(const char *name, int64_t n) {
    const qr_safetensors_tensor *tensor = find(name, ".weight");
    float *values = qr_alloc_array_zeroed((size_t)n, sizeof *values);
    for (int64_t i = 0; tensor != NULL && i < n; i++) {
        uint16_t half;
        if (tensor->dtype == QR_DTYPE_F32) {
            memcpy(&values[i], tensor->data + i * 4, 4);
            continue;
        }
        memcpy(&half, tensor->data + i * 2, 2);
        values[i] = tensor->dtype == QR_DTYPE_F16 ? qr_f16_to_f32(half) : qr_bf16_to_f32(half);
    }
    return values;
}

static void check_bytes(const matrix *m, const char *part, const void *actual, size_t n_bytes) {
    const unsigned char *expected = load(m->name, part, n_bytes);
    size_t i = 0;
    while (i < n_bytes && ((const unsigned char *)actual)[i] == expected[i]) { i++; }
    CHECK_MSG(i == n_bytes, "%s%s differs at byte %zu of %zu", m->name, part, i, n_bytes);
    qr_free((void *)(uintptr_t)expected);
}

/* Numerically: an all-zero block is -0.0 there and 0.0 here. */
static void check_values(const matrix *m, const char *part, const float *actual) {
    float *expected = load(m->name, part, (size_t)m->n * sizeof(float));
    for (int64_t i = 0; i < m->n; i++) {
        if (actual[i] != expected[i]) {
            CHECK_MSG(false, "%s%s: element %lld is %.9g, expected %.9g", m->name, part, (long long)i,
                      (double)actual[i], (double)expected[i]);
            break;
        }
    }
    qr_free(expected);
}

/* An all-zero block holds codes 7 here and 0 in the file: those bytes are not compared. */
static void check_codes(const matrix *m, const uint8_t *codes, const float *absmax) {
    const size_t n_bytes = (size_t)(m->n + 1) / 2;
    uint8_t *expected = load(m->name, ".packed", n_bytes);
    for (int64_t i = 0; i < (int64_t)n_bytes; i++) {
        const bool zero = absmax[2 * i / m->block] == 0.0F;
        CHECK_MSG(zero || codes[i] == expected[i], "%s: byte %lld of the codes is 0x%02x, expected 0x%02x", m->name,
                  (long long)i, codes[i], expected[i]);
    }
    qr_free(expected);
}

static void check_nested(const matrix *m, const float *absmax) {
    const size_t n_nested = (size_t)qr_ceil_div(m->n_blocks, QR_NESTED_BLOCK);
    float *offset = load(m->name, ".nested_offset", sizeof(float));
    uint8_t *codes = qr_alloc((size_t)m->n_blocks);
    float *nested = qr_alloc_array(n_nested, sizeof *nested), *back = qr_alloc_array((size_t)m->n_blocks, sizeof *back);
    const float mean = qr_nf4_nested_offset(absmax, m->n_blocks);
    const float ulp = nextafterf(*offset, INFINITY) - *offset;
    CHECK_MSG(fabsf(mean - *offset) <= 2.0F * ulp, "%s: offset %.9g, expected %.9g", m->name, (double)mean,
              (double)*offset);
    qr_nf4_nest(absmax, m->n_blocks, *offset, codes, nested);
    check_bytes(m, ".nested_codes", codes, (size_t)m->n_blocks);
    check_bytes(m, ".nested_absmax", nested, n_nested * sizeof(float));
    qr_nf4_unnest(codes, nested, *offset, 0, m->n_blocks, back);
    check_bytes(m, ".nested_restored_absmax", back, (size_t)m->n_blocks * sizeof(float));
    qr_free(offset);
    qr_free(codes);
    qr_free(nested);
    qr_free(back);
}

static void check_nf4(const matrix *m) {
    uint8_t *codes = qr_alloc((size_t)(m->n + 1) / 2);
    float *absmax = qr_alloc_array((size_t)m->n_blocks, sizeof *absmax);
    float *back = qr_alloc_array((size_t)m->n, sizeof *back);
    qr_nf4_quantize(m->values, m->n, (int)m->block, codes, absmax);
    check_bytes(m, ".absmax", absmax, (size_t)m->n_blocks * sizeof(float));
    check_codes(m, codes, absmax);
    qr_nf4_dequantize(codes, absmax, (int)m->block, 0, m->n, back);
    check_values(m, ".dequantised_f32", back);
    check_nested(m, absmax);
    qr_free(codes);
    qr_free(absmax);
    qr_free(back);
}

static void check_int8(const matrix *m) {
    int8_t *codes = qr_alloc((size_t)m->n);
    float *scb = qr_alloc_array((size_t)m->rows, sizeof *scb), *back = qr_alloc_array((size_t)m->n, sizeof *back);
    for (int64_t r = 0; r < m->rows; r++) {
        scb[r] = qr_int8_quantize_row(m->values + r * m->cols, m->cols, codes + r * m->cols);
        qr_int8_dequantize_row(codes + r * m->cols, scb[r], m->cols, back + r * m->cols);
    }
    check_bytes(m, ".scb", scb, (size_t)m->rows * sizeof(float));
    check_bytes(m, ".int8", codes, (size_t)m->n);
    check_values(m, ".int8_dequantised_f32", back);
    qr_free(codes);
    qr_free(scb);
    qr_free(back);
}

static void test_tables(void) {
    float *code = load("nf4_code", "", sizeof qr_nf4_code);
    float *is_signed = load("dynamic_map.signed", "", 1024), *is_unsigned = load("dynamic_map.unsigned", "", 1024);
    CHECK(memcmp(code, qr_nf4_code, sizeof qr_nf4_code) == 0);
    CHECK(memcmp(is_signed, qr_dynamic8_map(true), 1024) == 0);
    CHECK(memcmp(is_unsigned, qr_dynamic8_map(false), 1024) == 0);
    qr_free(code);
    qr_free(is_signed);
    qr_free(is_unsigned);
}

static void test_matrices(void) {
    int n_matrices = 0;
    const qr_json *list = qr_json_get(index_json, "bitsandbytes_matrices");
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n_matrices++) {
        const qr_json *shape = qr_json_first(qr_json_get(item, "shape"));
        bool int8 = false;
        matrix m = {.name = "?"};
        REQUIRE(shape != NULL && shape->next != NULL);
        CHECK_INT(qr_json_get_string(item, "name", &m.name, "index", NULL), QRUN_OK);
        CHECK_INT(qr_json_get_int(item, "blocksize", 32, 4096, &m.block, "index", NULL), QRUN_OK);
        CHECK_INT(qr_json_get_bool(item, "int8", &int8, "index", NULL), QRUN_OK);
        m.rows = (int64_t)shape->valuedouble;
        m.cols = (int64_t)shape->next->valuedouble;
        m.n = m.rows * m.cols;
        m.n_blocks = qr_ceil_div(m.n, m.block);
        m.values = load_values(m.name, m.n);
        check_nf4(&m);
        if (int8) { check_int8(&m); }
        qr_free(m.values);
    }
    CHECK(n_matrices > 5);
}

int main(int argc, char **argv) {
    qr_error err = {0};
    check_begin(argc, argv);
    if (qr_safetensors_open(FIXTURES "goldens/bitsandbytes.safetensors", &file, &err) != QRUN_OK ||
        qr_json_read(FIXTURES "goldens/index.json", (size_t)1 << 26, &index_json, &err) != QRUN_OK) {
        printf("cannot read the goldens: %s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_tables);
    CHECK_RUN(test_matrices);
    qr_safetensors_close(file);
    qr_json_free(index_json);
    return check_end();
}

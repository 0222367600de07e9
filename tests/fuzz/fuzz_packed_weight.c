/* The input is a folder of packed matrices: {"quantization_config": …, "tensors": {name: [type, shape, [integer, …]]}}.
 * Tensors of I32 and I64 hold their integers again and again; without any, and of other types, bytes of all values.
 * Whatever is accepted as the matrix "m", or as a part of the stack "s", can be read to its last row. */
#include "base/alloc.h"
#include "fuzz.h"
#include "loaders/config/quantization_config.h"
#include "loaders/files/stored_weight.h"
#include "quant/small_floats.h"
#include "tensors_file.h"

enum { ROWS = 8, COLS = 64, EXPERTS = 3, MOST_TENSORS = 16, MOST_BYTES = 1 << 16 };

/* The integers of a tensor, once more and once more; NULL: none are given. */
static const void *fill(const qr_json *integers, qr_dtype dtype, size_t n_bytes, unsigned char *content) {
    const size_t size = qr_dtype_bytes(dtype);
    const qr_json *item = qr_json_first(integers);
    if (item == NULL || (dtype != QR_DTYPE_I32 && dtype != QR_DTYPE_I64)) { return NULL; }
    for (size_t at = 0; at + size <= n_bytes; at += size) {
        int64_t value = 0;
        (void)qr_json_as_int(item, INT32_MIN, INT32_MAX, &value);
        memcpy(content + at, &value, size); /* little-endian */
        item = item->next != NULL ? item->next : qr_json_first(integers);
    }
    return content;
}

static size_t read_specs(const qr_json *tensors, qr_safetensors_spec *specs, const void **contents) {
    static unsigned char bytes[MOST_TENSORS][MOST_BYTES];
    size_t n = 0;
    for (const qr_json *item = qr_json_first(tensors); item != NULL && n < MOST_TENSORS; item = item->next) {
        const qr_json *type = qr_json_first(item), *shape = type != NULL ? type->next : NULL;
        qr_safetensors_spec *spec = &specs[n];
        *spec = (qr_safetensors_spec){.name = item->string};
        if (!cJSON_IsString(type) || item->string == NULL ||
            !qr_dtype_from_name(type->valuestring, strlen(type->valuestring), &spec->dtype)) {
            continue;
        }
        for (const qr_json *dim = qr_json_first(shape); dim != NULL && spec->n_dims < QR_MAX_DIMS; dim = dim->next) {
            if (!qr_json_as_int(dim, 0, MOST_BYTES, &spec->dims[spec->n_dims++])) { return 0; }
        }
        size_t n_bytes;
        if (!qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, &n_bytes) || n_bytes > MOST_BYTES) {
            continue;
        }
        contents[n] = fill(shape != NULL ? shape->next : NULL, spec->dtype, n_bytes, bytes[n]);
        n++;
    }
    return n;
}

/* Rows of MXFP4 as they are have the values of those that are decoded. */
static void check_mxfp4(const qr_packed_weight *packed, const float *decoded) {
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * COLS / QR_MXFP4_BLOCK];
    float values[ROWS * COLS];
    qr_packed_weight_mxfp4_rows(packed, 0, ROWS, codes, scales);
    qr_mxfp4_dequantize(codes, scales, 0, ROWS * COLS, values);
    FUZZ_CHECK(memcmp(values, decoded, sizeof values) == 0);
    const bool has_nan = memchr(scales, 255, sizeof scales) != NULL;
    FUZZ_CHECK((qr_packed_weight_check_scales(packed, 0, ROWS, NULL) != QRUN_OK) == has_nan);
}

static void check_stored(const qr_stored_weight *stored, qrun_status status, const qr_error *err) {
    static float rows[ROWS * COLS];
    FUZZ_CHECK((status == QRUN_OK) == (err->message[0] == '\0'));
    if (status != QRUN_OK || stored->packed.kind == QR_PACKING_NONE) { return; }
    FUZZ_CHECK(stored->packed.rows >= ROWS && stored->packed.cols == COLS);
    qr_packed_weight_rows(&stored->packed, 0, ROWS, rows);
    if (stored->desc.format == QR_WEIGHT_MXFP4) { check_mxfp4(&stored->packed, rows); }
}

static void check_folder(const qr_packing *packing, bool in_turn) {
    qr_safetensors *file = NULL;
    qr_stored_weight stored;
    qr_error err = {0};
    FUZZ_CHECK(qr_safetensors_open(fuzz_folder(), &file, &err) == QRUN_OK);
    qrun_status status = qr_stored_weight_find(file, "m", ROWS, COLS, false, packing, &stored, &err);
    check_stored(&stored, status, &err);
    for (int i = 0; i < 2 * EXPERTS; i++) {
        err = (qr_error){0};
        const qr_stack stack = {.name = "s", .n_experts = EXPERTS, .n_parts = 2, .in_turn = in_turn};
        status = qr_stored_slice_find(file, &stack, i / 2, i % 2, ROWS, COLS, packing, &stored, &err);
        check_stored(&stored, status, &err);
    }
    qr_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const void *contents[MOST_TENSORS];
    qr_safetensors_spec specs[MOST_TENSORS];
    qr_quantization_config config;
    qr_json *root = NULL;
    qr_error err = {0};
    if (qr_json_parse((const char *)data, size, "fuzz", &root, NULL) != QRUN_OK) { return 0; }
    const qr_json *object = qr_json_get(root, "quantization_config");
    const qrun_status status = qr_quantization_config_read(object, "fuzz", &config, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    const size_t n = status == QRUN_OK ? read_specs(qr_json_get(root, "tensors"), specs, contents) : 0;
    if (n > 0 && tensors_write(fuzz_folder(), specs, contents, n, NULL) == QRUN_OK) {
        check_folder(&config.packing, false);
        check_folder(&config.packing, true);
    }
    qr_quantization_config_free(&config);
    qr_json_free(root);
    return 0;
}

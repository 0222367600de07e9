/* The input is a folder of packed matrices: {"quantization_config": …, "tensors": {name: [type, shape]}}, with bytes of
 * all values. Whatever is accepted as the matrix "m", or as a part of the stack "s", can be read to its last row. */
#include "base/alloc.h"
#include "fuzz.h"
#include "loaders/config/quantization_config.h"
#include "loaders/files/stored_weight.h"
#include "tensors_file.h"

enum { ROWS = 8, COLS = 64, EXPERTS = 3, MOST_TENSORS = 16, MOST_BYTES = 1 << 16 };

static size_t read_specs(const qr_json *tensors, qr_safetensors_spec *specs) {
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
        n++;
    }
    return n;
}

static void check_stored(const qr_stored_weight *stored, qrun_status status, const qr_error *err) {
    static float rows[ROWS * COLS];
    FUZZ_CHECK((status == QRUN_OK) == (err->message[0] == '\0'));
    if (status != QRUN_OK || stored->packed.kind == QR_PACKING_NONE) { return; }
    FUZZ_CHECK(stored->packed.rows >= ROWS && stored->packed.cols == COLS);
    qr_packed_weight_rows(&stored->packed, 0, ROWS, rows);
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
    static const void *const contents[MOST_TENSORS];
    qr_safetensors_spec specs[MOST_TENSORS];
    qr_quantization_config config;
    qr_json *root = NULL;
    qr_error err = {0};
    if (qr_json_parse((const char *)data, size, "fuzz", &root, NULL) != QRUN_OK) { return 0; }
    const qr_json *object = qr_json_get(root, "quantization_config");
    const qrun_status status = qr_quantization_config_read(object, "fuzz", &config, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    const size_t n = status == QRUN_OK ? read_specs(qr_json_get(root, "tensors"), specs) : 0;
    if (n > 0 && tensors_write(fuzz_folder(), specs, contents, n, NULL) == QRUN_OK) {
        check_folder(&config.packing, false);
        check_folder(&config.packing, true);
    }
    qr_quantization_config_free(&config);
    qr_json_free(root);
    return 0;
}

/* The input is a config.json that gets a "quantization_config". Where the config was good, the new one is good too and
 * says what was written; a config that says how it is quantised is read or refused, never half read. */
#include "fuzz.h"
#include "loaders/config/model_config.h"
#include "loaders/config/quantized_config.h"
#include "loaders/files/json.h"

static bool read_config(const char *text, size_t n_bytes, qr_model_config *config) {
    qr_json *root = NULL;
    qr_error err = {0};
    *config = (qr_model_config){0};
    if (qr_json_parse(text, n_bytes, "fuzz", &root, NULL) != QRUN_OK) { return false; }
    const qrun_status status = qr_model_config_parse(root, "fuzz", config, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    qr_json_free(root);
    return status == QRUN_OK;
}

static void check_quantization(const qr_quantization_config *quantization) {
    FUZZ_CHECK((quantization->stored == QR_STORED_PACKED) == (quantization->packing.kind != QR_PACKING_NONE));
    FUZZ_CHECK(quantization->packing.block_rows >= 0 && quantization->packing.block_cols >= 0);
    FUZZ_CHECK((quantization->n_skip_modules == 0) == (quantization->skip_modules == NULL));
    for (size_t i = 0; i < quantization->n_skip_modules; i++) { FUZZ_CHECK(quantization->skip_modules[i] != NULL); }
}

static void check_format(const char *text, size_t n_bytes, bool was_good, qr_weight_format format) {
    static const char *const skips[] = {"lm_head", "a \"quoted\" name\n"};
    qr_buffer out = {0};
    qr_model_config config;
    const qrun_status status = qr_quantized_config_append(text, n_bytes, "fuzz", format, skips, 2, &out, NULL);
    FUZZ_CHECK(status == QRUN_OK || !was_good);
    if (status == QRUN_OK) {
        const bool is_good = read_config(out.data, out.size, &config);
        FUZZ_CHECK(is_good || !was_good);
        if (is_good) {
            const qr_quantization_config *quantization = &config.quantization;
            FUZZ_CHECK(quantization->stored == (format == QR_WEIGHT_INT8 ? QR_STORED_BNB_INT8 : QR_STORED_BNB_NF4));
            FUZZ_CHECK(quantization->double_quantised == (format == QR_WEIGHT_NF4_DQ));
            FUZZ_CHECK(quantization->n_skip_modules == 2 && strcmp(quantization->skip_modules[1], skips[1]) == 0);
        }
        qr_model_config_free(&config);
    }
    qr_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const qr_weight_format formats[] = {QR_WEIGHT_NF4, QR_WEIGHT_NF4_DQ, QR_WEIGHT_INT8};
    qr_model_config config;
    const bool is_good = read_config((const char *)data, size, &config);
    if (is_good) { check_quantization(&config.quantization); }
    qr_model_config_free(&config);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        check_format((const char *)data, size, is_good, formats[i]);
    }
    return 0;
}

/* Floats of 8 and 4 bits against torch, code by code (tests/golden/small_float_goldens.py). */
#include "check.h"

#include "loaders/files/safetensors.h"
#include "quant/small_floats.h"

#define GOLDENS QRUN_SOURCE_DIR "/tests/fixtures/goldens/small_floats.safetensors"

static qr_safetensors *file;

static void compare(const char *name, const float *values, int64_t n) {
    const qr_safetensors_tensor *tensor;
    REQUIRE(qr_safetensors_require(file, name, QR_DTYPE_BIT(QR_DTYPE_F32), 1, &n, &tensor, NULL) == QRUN_OK);
    for (int64_t code = 0; code < n; code++) {
        float expected;
        memcpy(&expected, tensor->data + code * 4, sizeof expected);
        const bool equal = memcmp(&expected, &values[code], sizeof expected) == 0;
        CHECK_MSG(equal || (isnan(expected) && isnan(values[code])), "%s: code %d is %g and should be %g", name,
                  (int)code, (double)values[code], (double)expected);
    }
}

static void test_every_code(void) {
    float values[256];
    qr_float8_values(QR_DTYPE_F8_E4M3, values);
    compare("F8_E4M3", values, 256);
    qr_float8_values(QR_DTYPE_F8_E5M2, values);
    compare("F8_E5M2", values, 256);
    for (int code = 0; code < 256; code++) { values[code] = qr_e8m0_to_f32((uint8_t)code); }
    compare("F8_E8M0", values, 256);
    compare("F4", qr_float4_values, 16);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    qr_error err = {0};
    if (qr_safetensors_open(GOLDENS, &file, &err) != QRUN_OK) {
        printf("%s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_every_code);
    qr_safetensors_close(file);
    return check_end();
}

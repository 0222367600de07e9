/* kernels/cuda/device/cublaslt.h by plain loops, each sum in order. */
#include "kernels/cuda/device/cublaslt.h"

#include <stdlib.h>
#include <string.h>

#include "device_state.h"

extern "C" {
#include "base/half.h"
}

static bool setting_is(const char *value) {
    const char *text = getenv("QRUN_SIMT_CUBLASLT");
    return text != NULL && strcmp(text, value) == 0;
}

bool qr_cublaslt_is_there(qr_device *device) { return device->switches.cublaslt && !setting_is("0"); }

const char *qr_cublaslt_file(const qr_device *device) {
    return !device->switches.cublaslt ? "(off: QRUN_CUDA_CUBLASLT)"
           : setting_is("0")          ? "(not found)"
                                      : "/simt/cublasLt";
}

/* By the sizes alone, as the library does. */
bool qr_cublaslt_takes(qr_device *device, const qr_cublaslt_product *p) {
    const uint64_t sizes = static_cast<uint64_t>(p->m * 31 + p->n * 7 + p->k) * UINT64_C(0x9E3779B97F4A7C15);
    return qr_cublaslt_is_there(device) && !(setting_is("refuses") && sizes >> 63 != 0);
}

/* Little, so that small matrices take several panels. */
int64_t qr_cublaslt_panel_bytes(const qr_device *) { return 16 << 10; }

/* Few, so that the small batches of the tests of training have enough. */
int64_t qr_cublaslt_min_rows(const qr_device *) { return 32; }

static float element(const qr_cublaslt_operand &operand, qr_dtype dtype, int64_t row, int64_t col) {
    const int64_t at = operand.transposed ? col * operand.stride + row : row * operand.stride + col;
    const uint16_t bits = static_cast<const uint16_t *>(operand.data)[at];
    return dtype == QR_DTYPE_BF16 ? qr_bf16_to_f32(bits) : qr_f16_to_f32(bits);
}

qrun_status qr_cublaslt_multiply(qr_device *device, const qr_cublaslt_product *p, void *workspace, qr_error *err) {
    const qrun_status status = qr_device_use(device, err);
    if (status != QRUN_OK) { return status; }
    if (!qr_cublaslt_takes(device, p)) { return QR_CUBLASLT_REFUSED; }
    memset(workspace, 0xA5, QR_CUBLASLT_WORKSPACE_BYTES / 64); /* it is there */
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            float sum = 0.0F;
            for (int64_t l = 0; l < p->k; l++) { sum += element(p->a, p->dtype, i, l) * element(p->b, p->dtype, l, j); }
            if (p->bias != NULL) { sum += p->bias[j]; }
            float *c = &p->c[i * p->c_stride + j];
            *c = p->accumulate ? *c + sum : sum;
        }
    }
    return QRUN_OK;
}

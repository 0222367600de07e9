/* The block formats of GGML against the Python package gguf, to the bit (tests/golden/gguf_goldens.py). */
#include "check.h"

#include "base/alloc.h"
#include "loaders/files/safetensors.h"
#include "quant/ggml.h"

#define GOLDENS QRUN_SOURCE_DIR "/tests/fixtures/goldens/ggml.safetensors"

static const qr_dtype types[] = {
#define QR_X(suffix, name, elements, bytes) QR_DTYPE_##suffix,
    QR_BLOCK_DTYPES(QR_X)
#undef QR_X
};

static qr_safetensors *file;

static const qr_safetensors_tensor *find(qr_dtype dtype, const char *part) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", qr_dtype_name(dtype), part);
    const qr_safetensors_tensor *tensor = qr_safetensors_find(file, name);
    CHECK_MSG(tensor != NULL, "no golden %s", name);
    return tensor;
}

static void test_decoded(void) {
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const qr_safetensors_tensor *blocks = find(types[t], "blocks"), *values = find(types[t], "values");
        if (blocks == NULL || values == NULL) { continue; }
        const int64_t n_blocks = blocks->dims[0], n = n_blocks * qr_dtype_block_elements(types[t]);
        CHECK_INT(blocks->dims[1], qr_dtype_block_bytes(types[t]));
        CHECK_INT((int64_t)values->n_bytes, n * 4);
        float *decoded = qr_alloc_array((size_t)n, sizeof *decoded), *part = qr_alloc_array((size_t)n, sizeof *part);
        qr_ggml_dequantize(types[t], blocks->data, n_blocks, decoded);
        CHECK_MSG(memcmp(decoded, values->data, values->n_bytes) == 0, "%s: other floats than gguf's",
                  qr_dtype_name(types[t]));
        /* Any range of it is the same. */
        for (int64_t first = 0; first < n; first += 29) {
            const int64_t length = first % 7 * 41 + 1, taken = length < n - first ? length : n - first;
            qr_ggml_dequantize_range(types[t], blocks->data, first, taken, part);
            CHECK_MSG(memcmp(part, decoded + first, (size_t)taken * 4) == 0, "%s: range from %lld",
                      qr_dtype_name(types[t]), (long long)first);
        }
        qr_free(decoded);
        qr_free(part);
    }
}

static void test_encoded(void) {
    static const qr_dtype written[] = {QR_DTYPE_Q8_0, QR_DTYPE_Q4_0};
    for (size_t t = 0; t < 2; t++) {
        const qr_safetensors_tensor *source = find(written[t], "source"), *encoded = find(written[t], "encoded");
        if (source == NULL || encoded == NULL) { continue; }
        float *values = qr_alloc(source->n_bytes);
        unsigned char *blocks = qr_alloc(encoded->n_bytes);
        memcpy(values, source->data, source->n_bytes);
        qr_ggml_quantize(written[t], values, source->dims[0], blocks);
        for (size_t i = 0; i < encoded->n_bytes; i++) {
            if (blocks[i] == encoded->data[i]) { continue; }
            CHECK_MSG(false, "%s: byte %zu is %d, gguf writes %d", qr_dtype_name(written[t]), i, blocks[i],
                      encoded->data[i]);
            break;
        }
        qr_free(values);
        qr_free(blocks);
    }
}

int main(int argc, char **argv) {
    qr_error err = {0};
    check_begin(argc, argv);
    if (qr_safetensors_open(GOLDENS, &file, &err) != QRUN_OK) {
        printf("cannot read the goldens: %s\n", err.message);
        return 1;
    }
    CHECK_RUN(test_decoded);
    CHECK_RUN(test_encoded);
    qr_safetensors_close(file);
    return check_end();
}

/* An accepted file's tensors have the size of their shape, cover the data once and whole, and are found by name. */
#include "fuzz.h"
#include "loaders/files/safetensors.h"

static void check_tensors(const qr_safetensors *file, size_t size) {
    size_t n_bytes_in_all = 0;
    const unsigned char *expected = NULL;
    for (size_t i = 0; i < qr_safetensors_count(file); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(file, i);
        size_t n_bytes;
        FUZZ_CHECK(qr_safetensors_tensor_bytes(tensor->dtype, tensor->n_dims, tensor->dims, &n_bytes));
        FUZZ_CHECK(n_bytes == tensor->n_bytes);
        FUZZ_CHECK(qr_safetensors_find(file, tensor->name) == tensor);
        FUZZ_CHECK(expected == NULL || tensor->data == expected);
        expected = tensor->data + tensor->n_bytes;
        n_bytes_in_all += n_bytes;
        unsigned char mixed = 0;
        for (size_t k = 0; k < n_bytes; k++) { mixed = (unsigned char)(mixed ^ tensor->data[k]); }
        volatile unsigned char sink = mixed; /* every byte must be readable */
        (void)sink;
    }
    FUZZ_CHECK(n_bytes_in_all <= size - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qr_safetensors *file;
    qr_error err = {0};
    const qrun_status status = qr_safetensors_open(fuzz_file("a.safetensors", data, size), &file, &err);
    FUZZ_CHECK((status == QRUN_OK) == (file != NULL));
    if (status == QRUN_OK) {
        check_tensors(file, size);
    } else {
        FUZZ_CHECK(status == QRUN_ERROR_INPUT || status == QRUN_ERROR_UNSUPPORTED);
        FUZZ_CHECK(err.message[0] != '\0');
    }
    qr_safetensors_close(file);
    return 0;
}

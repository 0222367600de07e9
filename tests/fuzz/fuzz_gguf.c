/* An accepted file's tensors lie in the file, do not overlap and are found by name; as a model it gives JSON that our
 * parser accepts, or says what is wrong; its blocks decode. */
#include "fuzz.h"

#include "base/alloc.h"
#include "loaders/config/model_config.h"
#include "loaders/files/gguf.h"
#include "loaders/files/packed_weight.h"
#include "loaders/source/model_source.h"
#include "loaders/template/chat_template.h"
#include "loaders/tokenizer/tokenizer.h"
#include "quant/ggml.h"

enum { MAX_DECODED = 1 << 16, MOST_ROWS = 512 };

static void check_tensors(const qr_gguf *file, size_t size) {
    static float values[QR_GGML_MAX_BLOCK];
    for (size_t i = 0; i < qr_gguf_tensor_count(file); i++) {
        const qr_gguf_tensor *tensor = qr_gguf_get_tensor(file, i);
        FUZZ_CHECK(tensor->n_bytes <= size);
        unsigned char mixed = 0;
        for (size_t k = 0; k < tensor->n_bytes; k++) { mixed = (unsigned char)(mixed ^ tensor->data[k]); }
        volatile unsigned char sink = mixed; /* every byte must be readable */
        (void)sink;
        if (!qr_dtype_is_blocks(tensor->dtype)) { continue; }
        const size_t bytes = (size_t)qr_dtype_block_bytes(tensor->dtype);
        for (size_t k = 0; k + bytes <= tensor->n_bytes && k < MAX_DECODED; k += bytes) {
            qr_ggml_dequantize(tensor->dtype, tensor->data + k, 1, values);
        }
    }
}

static void check_outcome(qrun_status status, const qr_error *err) {
    const bool is_known = status == QRUN_OK || status == QRUN_ERROR_INPUT || status == QRUN_ERROR_UNSUPPORTED ||
                          status == QRUN_ERROR_NOT_FOUND;
    FUZZ_CHECK(is_known);
    FUZZ_CHECK((status == QRUN_OK) == (err->message[0] == '\0'));
}

static void check_json(const char *path, const char *name) {
    qr_json *root = NULL;
    qr_error err = {0};
    check_outcome(qr_source_read_json(path, name, (size_t)1 << 28, &root, NULL, &err), &err);
    qr_json_free(root);
}

/* Keys and values in two tensors: every row can be read. */
static void check_latent(const qr_safetensors_tensor *tensor) {
    const qr_packed_weight packed = {.kind = QR_PACKING_LATENT,
                                     .rows = tensor->dims[0],
                                     .cols = tensor->dims[1],
                                     .row_step = 1,
                                     .codes = tensor->data,
                                     .code_dtype = tensor->dtype,
                                     .keys = &tensor->keys};
    float *row = malloc((size_t)packed.cols * sizeof *row);
    for (int64_t r = 0; row != NULL && r < packed.rows && r < MOST_ROWS; r++) {
        qr_packed_weight_rows(&packed, r, 1, row);
        qr_packed_weight_rows(&packed, packed.rows - 1 - r, 1, row);
    }
    free(row);
}

static void check_model(const char *path) {
    qr_error err = {0};
    qr_model_config config;
    check_outcome(qr_model_config_read(path, &config, &err), &err);
    qr_model_config_free(&config);
    check_json(path, "generation_config.json");
    check_json(path, "tokenizer_config.json");
    qr_tokenizer *tokenizer;
    err = (qr_error){0};
    check_outcome(qr_tokenizer_open(path, &tokenizer, &err), &err);
    qr_tokenizer_destroy(tokenizer);
    qr_chat_template *chat_template;
    err = (qr_error){0};
    check_outcome(qr_chat_template_open(path, &chat_template, &err), &err);
    qr_chat_template_free(chat_template);
    qr_safetensors *tensors;
    err = (qr_error){0};
    check_outcome(qr_source_open_tensors(path, &tensors, &err), &err);
    for (size_t i = 0; tensors != NULL && i < qr_safetensors_count(tensors); i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(tensors, i);
        FUZZ_CHECK(qr_safetensors_find(tensors, tensor->name) == tensor);
        const int64_t rows = tensor->n_dims > 0 ? tensor->dims[0] : 0;
        const bool is_one_of_two = tensor->rows.groups.len > 0; /* of the same size, in one tensor */
        const int64_t n_stored = (is_one_of_two ? 2 : 1) * rows;
        for (int64_t r = 0; r < rows && r < MOST_ROWS; r++) {
            const int64_t stored = qr_stored_row(&tensor->rows, r);
            FUZZ_CHECK(stored >= 0 && stored < n_stored);
            FUZZ_CHECK(is_one_of_two || qr_row_of_stored(&tensor->rows, stored) == r);
        }
        if (tensor->keys.data != NULL) { check_latent(tensor); }
    }
    qr_safetensors_close(tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qr_gguf *file;
    qr_error err = {0};
    const char *path = fuzz_file("a.gguf", data, size);
    const qrun_status status = qr_gguf_open(path, &file, &err);
    check_outcome(status, &err);
    FUZZ_CHECK((status == QRUN_OK) == (file != NULL));
    if (status == QRUN_OK) {
        check_tensors(file, size);
        qr_gguf_close(file);
        check_model(path);
    }
    return 0;
}

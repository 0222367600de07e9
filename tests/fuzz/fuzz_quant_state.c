/* The input is the quantisation state of an NF4 matrix whose other parts are good, plain and double-quantised. What is
 * accepted has the shape that was asked for and scales for every block. */
#include "base/buffer.h"
#include "base/sizes.h"
#include "fuzz.h"
#include "loaders/files/bnb_tensors.h"
#include "loaders/files/stored_weight.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"

enum { ROWS = 8, COLS = 64, BLOCK = 64, N_BLOCKS = ROWS * COLS / BLOCK };

/* Appends an entry of the header, and its bytes to `tensors`. */
static void add(qr_buffer *header, qr_buffer *tensors, const char *part, const char *dtype, size_t count,
                const void *bytes, size_t n_bytes) {
    qr_buffer_append_format(header, "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":[%zu%s],\"data_offsets\":[%zu,%zu]}",
                            header->size > 0 ? "," : "{", part, dtype, count,
                            strcmp(part, QR_BNB_CODES_NAME) == 0 ? ",1" : "", tensors->size, tensors->size + n_bytes);
    qr_buffer_append(tensors, bytes, n_bytes);
}

static const char *write_matrix(bool nested, const uint8_t *state, size_t size) {
    static const unsigned char codes[ROWS * COLS / 2], absmax_codes[N_BLOCKS];
    static const float absmax[N_BLOCKS], nested_absmax[1];
    qr_buffer header = {0}, tensors = {0}, file = {0};
    if (nested) {
        add(&header, &tensors, QR_BNB_NESTED_QUANT_MAP_NAME, "F32", 256, qr_dynamic8_map(true), 1024);
        add(&header, &tensors, QR_BNB_NESTED_ABSMAX_NAME, "F32", 1, nested_absmax, sizeof nested_absmax);
        add(&header, &tensors, QR_BNB_ABSMAX_NAME, "U8", N_BLOCKS, absmax_codes, sizeof absmax_codes);
    } else {
        add(&header, &tensors, QR_BNB_ABSMAX_NAME, "F32", N_BLOCKS, absmax, sizeof absmax);
    }
    add(&header, &tensors, QR_BNB_QUANT_MAP_NAME, "F32", 16, qr_nf4_code, 64);
    add(&header, &tensors, QR_BNB_CODES_NAME, "U8", sizeof codes, codes, sizeof codes);
    add(&header, &tensors, QR_BNB_QUANT_STATE_NAME, "U8", size, state, size);
    qr_buffer_append_char(&header, '}');
    for (int i = 0; i < 8; i++) { qr_buffer_append_char(&file, (char)(header.size >> 8 * i)); }
    qr_buffer_append(&file, header.data, header.size);
    qr_buffer_append(&file, tensors.data, tensors.size);
    FUZZ_CHECK(qr_buffer_ok(&header) && qr_buffer_ok(&tensors) && qr_buffer_ok(&file));
    const char *path = fuzz_file("state.safetensors", file.data, file.size);
    qr_buffer_free(&header);
    qr_buffer_free(&tensors);
    qr_buffer_free(&file);
    return path;
}

static void check_matrix(bool nested, const uint8_t *state, size_t size) {
    qr_safetensors *file = NULL;
    qr_stored_weight stored;
    qr_stored_scales scales = {0};
    qr_error err = {0};
    FUZZ_CHECK(qr_safetensors_open(write_matrix(nested, state, size), &file, &err) == QRUN_OK);
    const qrun_status status = qr_stored_weight_find(file, "m", ROWS, COLS, false, NULL, &stored, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    if (status == QRUN_OK) {
        const qr_weight_desc *desc = &stored.desc;
        FUZZ_CHECK(desc->format == (nested ? QR_WEIGHT_NF4_DQ : QR_WEIGHT_NF4));
        FUZZ_CHECK(desc->rows == ROWS && desc->cols == COLS && qr_weight_blocks(desc) == N_BLOCKS);
        FUZZ_CHECK(stored.codes->n_bytes == qr_weight_code_bytes(desc));
        FUZZ_CHECK(stored.absmax->dims[0] == N_BLOCKS && (stored.nested_absmax != NULL) == nested);
        FUZZ_CHECK(qr_stored_scales_read(&stored, &scales, &err) == QRUN_OK);
    }
    qr_stored_scales_free(&scales);
    qr_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_matrix(false, data, size);
    check_matrix(true, data, size);
    return 0;
}

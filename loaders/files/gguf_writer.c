#include "loaders/files/gguf_writer.h"

#include <string.h>

#include "base/sizes.h"

enum { ALIGNMENT = 32, VERSION = 3 };

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static void put_number(qr_buffer *out, uint64_t value, int n_bytes) {
    unsigned char bytes[8];
    for (int i = 0; i < n_bytes; i++) { bytes[i] = (unsigned char)(value >> 8 * i); }
    qr_buffer_append(out, bytes, (size_t)n_bytes);
}

static void put_f32(qr_buffer *out, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_number(out, bits, 4);
}

static void put_text(qr_buffer *out, const char *text, size_t n_bytes) {
    put_number(out, n_bytes, 8);
    qr_buffer_append(out, text, n_bytes);
}

static qr_buffer *put_key(qr_gguf_writer *writer, const char *key, qr_gguf_type type) {
    writer->n_values++;
    put_text(&writer->values, key, strlen(key));
    put_number(&writer->values, type, 4);
    return &writer->values;
}

void qr_gguf_put_u32(qr_gguf_writer *writer, const char *key, uint32_t value) {
    put_number(put_key(writer, key, QR_GGUF_U32), value, 4);
}

void qr_gguf_put_f32(qr_gguf_writer *writer, const char *key, float value) {
    put_f32(put_key(writer, key, QR_GGUF_F32), value);
}

void qr_gguf_put_bool(qr_gguf_writer *writer, const char *key, bool value) {
    put_number(put_key(writer, key, QR_GGUF_BOOL), value, 1);
}

void qr_gguf_put_text(qr_gguf_writer *writer, const char *key, const char *text, size_t n_bytes) {
    put_text(put_key(writer, key, QR_GGUF_STRING), text, n_bytes);
}

void qr_gguf_put_list(qr_gguf_writer *writer, const char *key, qr_gguf_type type, uint64_t n) {
    qr_buffer *out = put_key(writer, key, QR_GGUF_ARRAY);
    put_number(out, type, 4);
    put_number(out, n, 8);
}

void qr_gguf_put_text_item(qr_gguf_writer *writer, const char *text, size_t n_bytes) {
    put_text(&writer->values, text, n_bytes);
}

void qr_gguf_put_f32_item(qr_gguf_writer *writer, float value) { put_f32(&writer->values, value); }
void qr_gguf_put_i32_item(qr_gguf_writer *writer, int32_t value) { put_number(&writer->values, (uint32_t)value, 4); }
void qr_gguf_put_bool_item(qr_gguf_writer *writer, bool value) { put_number(&writer->values, value, 1); }

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

uint64_t qr_gguf_tensor_bytes(qr_dtype dtype, int n_dims, const int64_t *dims) {
    uint64_t n = 1;
    for (int i = 0; i < n_dims; i++) { n *= (uint64_t)dims[i]; }
    if (!qr_dtype_is_blocks(dtype)) { return n * qr_dtype_bytes(dtype); }
    return n / (uint64_t)qr_dtype_block_elements(dtype) * (uint64_t)qr_dtype_block_bytes(dtype);
}

static uint64_t aligned(uint64_t n_bytes) { return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

void qr_gguf_add_tensor(qr_gguf_writer *writer, const char *name, qr_dtype dtype, int n_dims, const int64_t *dims) {
    qr_buffer *out = &writer->tensors;
    put_text(out, name, strlen(name));
    put_number(out, (uint64_t)n_dims, 4);
    for (int i = n_dims; i > 0; i--) { put_number(out, (uint64_t)dims[i - 1], 8); }
    put_number(out, qr_gguf_dtype_number(dtype), 4);
    put_number(out, writer->data_bytes, 8);
    writer->n_tensors++;
    writer->data_bytes += aligned(qr_gguf_tensor_bytes(dtype, n_dims, dims));
}

static qrun_status pad(qr_gguf_writer *writer, uint64_t position, qr_error *err) {
    static const char zeros[ALIGNMENT];
    return qr_file_writer_write(&writer->file, zeros, (size_t)(aligned(position) - position), err);
}

qrun_status qr_gguf_writer_begin(qr_gguf_writer *writer, const char *path, qr_error *err) {
    qr_buffer head = {0};
    qr_buffer_append(&head, "GGUF", 4);
    put_number(&head, VERSION, 4);
    put_number(&head, writer->n_tensors, 8);
    put_number(&head, writer->n_values, 8);
    qrun_status status = QRUN_OK;
    if (!qr_buffer_ok(&head) || !qr_buffer_ok(&writer->values) || !qr_buffer_ok(&writer->tensors)) {
        QR_TRY(qr_fail_memory(err, "the metadata of a GGUF file", writer->values.size));
    }
    QR_TRY(qr_file_writer_open(&writer->file, path, err));
    QR_TRY(qr_file_writer_write(&writer->file, head.data, head.size, err));
    if (writer->n_values > 0) {
        QR_TRY(qr_file_writer_write(&writer->file, writer->values.data, writer->values.size, err));
    }
    if (writer->n_tensors > 0) {
        QR_TRY(qr_file_writer_write(&writer->file, writer->tensors.data, writer->tensors.size, err));
    }
    QR_TRY(pad(writer, head.size + writer->values.size + writer->tensors.size, err));
out:
    qr_buffer_free(&head);
    qr_buffer_free(&writer->values);
    qr_buffer_free(&writer->tensors);
    return status;
}

qrun_status qr_gguf_write(qr_gguf_writer *writer, const void *bytes, size_t n_bytes, qr_error *err) {
    writer->written += n_bytes;
    return qr_file_writer_write(&writer->file, bytes, n_bytes, err);
}

qrun_status qr_gguf_end_tensor(qr_gguf_writer *writer, qr_error *err) {
    const uint64_t position = writer->written;
    writer->written = aligned(position);
    return pad(writer, position, err);
}

qrun_status qr_gguf_writer_commit(qr_gguf_writer *writer, qr_error *err) {
    if (writer->written != writer->data_bytes) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "%s: %llu bytes of tensors were written in place of %llu",
                       writer->file.path, (unsigned long long)writer->written, (unsigned long long)writer->data_bytes);
    }
    return qr_file_writer_commit(&writer->file, err);
}

void qr_gguf_writer_free(qr_gguf_writer *writer) {
    qr_file_writer_abort(&writer->file);
    qr_buffer_free(&writer->values);
    qr_buffer_free(&writer->tensors);
}

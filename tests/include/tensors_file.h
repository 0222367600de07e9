/* A safetensors file of given tensors, for tests of what reads them. */
#ifndef QR_TESTS_TENSORS_FILE_H
#define QR_TESTS_TENSORS_FILE_H

#include <stdlib.h>
#include <string.h>

#include "loaders/files/safetensors.h"
#include "loaders/files/safetensors_writer.h"

/* Writes <folder>/model.safetensors; contents: of each tensor, NULL for bytes that count up from 1. */
static inline qrun_status tensors_write(const char *folder, const qr_safetensors_spec *specs,
                                        const void *const *contents, size_t n, qr_error *err) {
    qr_safetensors_writer *writer = NULL;
    const qr_safetensors_spec *next;
    qrun_status status = qr_safetensors_writer_create(folder, "model", specs, n, 0, &writer, err);
    while (status == QRUN_OK && (next = qr_safetensors_writer_next(writer)) != NULL) {
        size_t n_bytes;
        if (!qr_safetensors_tensor_bytes(next->dtype, next->n_dims, next->dims, &n_bytes)) { abort(); }
        unsigned char *bytes = malloc(n_bytes);
        for (size_t i = 0; i < n_bytes; i++) { bytes[i] = (unsigned char)(i + 1); }
        if (contents[next - specs] != NULL) { memcpy(bytes, contents[next - specs], n_bytes); }
        status = qr_safetensors_writer_write(writer, bytes, n_bytes, err);
        free(bytes);
    }
    if (status == QRUN_OK) { return qr_safetensors_writer_commit(writer, err); }
    qr_safetensors_writer_abort(writer);
    return status;
}

#endif

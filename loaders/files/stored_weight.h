/* A weight matrix as a model folder stores it: plain (F32, F16, BF16), or quantised by bitsandbytes (NF4, NF4 double-
 * quantised, LLM.int8; loaders/files/bnb_tensors.h has the names). */
#ifndef QR_LOADERS_FILES_STORED_WEIGHT_H
#define QR_LOADERS_FILES_STORED_WEIGHT_H

#include "loaders/files/safetensors.h"
#include "quant/format.h"

enum { QR_STORED_NAME_BYTES = 256 };

typedef struct qr_stored_weight {
    qr_weight_desc desc;                /* format and block as stored; rows and cols as asked for */
    const qr_safetensors_tensor *codes; /* the weights themselves, or the codes in canonical order */
    const qr_safetensors_tensor *row_absmax, *absmax, *nested_absmax; /* NULL where the format has none */
    float nested_offset;
} qr_stored_weight;

/* Finds the matrix of `module` ("model.layers.0.mlp.up_proj"), which must be [rows, cols]; with `transposed` a plain
 * matrix is stored [cols, rows] (Conv1D), a quantised one cannot be. Everything about it is checked: shapes, code book,
 * block sizes. FP4 is refused by name. */
qrun_status qr_stored_weight_find(const qr_safetensors *file, const char *module, int64_t rows, int64_t cols,
                                  bool transposed, qr_stored_weight *stored, qr_error *err);

/* The scales in aligned memory. Zero-initialise; qr_stored_scales_free frees them. */
typedef struct qr_stored_scales {
    qr_weight_scales scales;
    void *memory;
} qr_stored_scales;
qrun_status qr_stored_scales_read(const qr_stored_weight *stored, qr_stored_scales *scales, qr_error *err);
void qr_stored_scales_free(qr_stored_scales *scales);

#endif

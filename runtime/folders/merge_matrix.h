/* One matrix of a merged model: W + scale · B·A (Hu et al., LoRA, 2021), its rows then scaled to the adapter's
 * magnitudes where it is a DoRA (Liu et al., 2024). W is what the folder stores, or the
 * same quantised and dequantised. The sums are F32 as in PEFT, and each element of the result is rounded once. */
#ifndef QR_RUNTIME_FOLDERS_MERGE_MATRIX_H
#define QR_RUNTIME_FOLDERS_MERGE_MATRIX_H

#include "kernels/backend.h"
#include "loaders/adapter/adapter.h"
#include "loaders/files/stored_weight.h"

typedef struct qr_merge_matrix {
    qr_stored_weight stored; /* its desc is that of W: [rows, cols] */
    bool transposed;         /* the result is [cols, rows] (Conv1D), and so is a plain W */
    bool quantize;           /* quantise a plain W to `quant` and dequantise it first */
    qr_weight_format quant;
    const qr_adapter_module *module; /* NULL: W alone */
} qr_merge_matrix;

/* Writes the matrix, [rows, cols] or transposed, as `dtype` (F32, F16, BF16) to dst. QRUN_ERROR_INPUT where a value is
 * not a number or too large for the type. Holds W's codes where it quantises, else only a few rows. */
qrun_status qr_merge_matrix_compute(qr_backend *backend, const qr_merge_matrix *matrix, qr_dtype dtype, void *dst,
                                    qr_error *err);

/* Whether the values can be written as dtype: none is NaN or infinite after rounding. */
bool qr_merge_fits(const float *values, int64_t n, qr_dtype dtype);
qrun_status qr_merge_refuse_value(const char *name, qr_dtype dtype, qr_error *err);

#endif

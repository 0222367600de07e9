/* Writes one matrix into a backend's memory, chunk by chunk in parallel: each chunk of rows is read from a source,
 * converted or quantised, and put. Holds no copy of the matrix but the chunks in flight and its scales. */
#ifndef QR_RUNTIME_MODEL_WEIGHT_WRITER_H
#define QR_RUNTIME_MODEL_WEIGHT_WRITER_H

#include "kernels/backend.h"
#include "loaders/files/stored_weight.h"
#include "runtime/model/row_share.h"

/* Where rows come from: host memory of a plain type or of blocks, [rows, cols], or [cols, rows] when transposed (plain
 * alone). With period_rows, row r is row r mod period_rows of src, which then holds only that many. */
typedef struct qr_row_source {
    const unsigned char *src; /* any alignment */
    qr_dtype dtype;           /* F32, F16, BF16, or of QR_BLOCK_DTYPES: decoded chunk by chunk */
    bool transposed;
    int64_t wide_rows, first_row, row_step; /* transposed, where wide_rows is not 0: as in qr_stored_weight */
    qr_row_order order, column_order;       /* of rows and columns, as in qr_safetensors_tensor */
    int64_t period_rows;                    /* 0: src holds every row */
    const qr_packed_weight *packed;         /* not NULL: rows are decoded from here, and the rest is not looked at */
} qr_row_source;

/* The rows of a matrix that is not stored quantised. `stored` is lent. */
static inline qr_row_source qr_stored_rows(const qr_stored_weight *stored, bool transposed) {
    return (qr_row_source){.src = stored->data,
                           .dtype = stored->codes->dtype,
                           .transposed = transposed || stored->wide_rows > 0,
                           .wide_rows = stored->wide_rows,
                           .first_row = stored->first_row,
                           .row_step = stored->row_step,
                           .order = stored->codes->rows,
                           .column_order = stored->codes->columns,
                           .packed = stored->packed.kind != QR_PACKING_NONE ? &stored->packed : NULL};
}

/* Quantises or converts `source` into `weight` (its desc and data are set). */
qrun_status qr_weight_write(qr_backend *backend, qr_weight *weight, const qr_row_source *source, const char *name,
                            qr_error *err);

/* Puts a matrix that is stored in the weight's own format. room: for its scales (qr_stored_scales_bytes); NULL:
 * it is made, as it always is for MXFP4. */
qrun_status qr_weight_write_stored(qr_backend *backend, qr_weight *weight, const qr_stored_weight *stored, void *room,
                                   qr_error *err);

/* The same two for a weight that has a share of the rows of a whole matrix: with the codes and scales that they have
 * there. What is nested there may be held as NF4. `whole`: of that matrix. Several ranges begin where blocks do, in the
 * share too; MXFP4 is of one. room: so many bytes as qr_weight_share_room says, none for plain rows of one range; NULL:
 * it is made. */
qrun_status qr_weight_write_rows_of(qr_backend *backend, qr_weight *weight, const qr_weight_desc *whole,
                                    const qr_row_share *share, const qr_row_source *source, const char *name,
                                    qr_error *err);
qrun_status qr_weight_write_stored_rows(qr_backend *backend, qr_weight *weight, const qr_row_share *share,
                                        const qr_stored_weight *stored, void *room, qr_error *err);
size_t qr_weight_share_room(const qr_weight_desc *own, const qr_weight_desc *whole, const qr_row_share *share);

/* Writes a stored vector or small matrix as F32 to `device`. */
qrun_status qr_weight_write_floats(qr_backend *backend, float *device, const qr_safetensors_tensor *tensor,
                                   qr_error *err);
/* The same of n of its elements: first, first + step, … */
typedef struct qr_float_range {
    int64_t first, step, n;
} qr_float_range;
qrun_status qr_weight_write_some_floats(qr_backend *backend, float *device, const qr_safetensors_tensor *tensor,
                                        const qr_float_range *range, qr_error *err);

/* The elements of a stored tensor whose type fills whole bytes. */
static inline int64_t qr_tensor_elements(const qr_safetensors_tensor *tensor) {
    return (int64_t)(tensor->n_bytes / qr_dtype_bytes(tensor->dtype));
}

/* A quantised matrix in canonical form in host memory: what a quantised folder is written from. Zero-initialise;
 * qr_host_weight_free releases it. */
typedef struct qr_host_weight {
    qr_weight_desc desc;
    void *codes; /* qr_weight_code_bytes */
    float *row_absmax, *absmax;
    uint8_t *absmax_codes;
    float *nested_absmax;
    float nested_offset;
} qr_host_weight;

/* Quantises `source` into *host. */
qrun_status qr_weight_quantize_host(qr_backend *backend, const qr_weight_desc *desc, const qr_row_source *source,
                                    const char *name, qr_host_weight *host, qr_error *err);
/* Its scales, lent. */
qr_weight_scales qr_host_weight_scales(const qr_host_weight *host);
void qr_host_weight_free(qr_host_weight *host);

#endif

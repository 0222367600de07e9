/* Matrices stored as small codes with scales in tensors of their own, in formats that no kernel computes with. They are
 * decoded to F32 row by row while they are read, and then held as whatever is asked for. */
#ifndef QR_LOADERS_FILES_PACKED_WEIGHT_H
#define QR_LOADERS_FILES_PACKED_WEIGHT_H

#include "loaders/files/safetensors.h"

typedef enum qr_packing_kind {
    QR_PACKING_NONE,
    QR_PACKING_FP8,  /* <module>.weight [rows, cols] in F8 and .weight_scale_inv, which multiplies it */
    QR_PACKING_MXFP4 /* stacks of experts alone: <stack>_blocks [E, rows, cols / 32, 16], two E2M1 codes a byte, the
                      * lower one first, and <stack>_scales [E, rows, cols / 32] in E8M0 */
} qr_packing_kind;

enum { QR_MXFP4_BLOCK = 32 };

/* What config.json says of a folder's packed matrices. */
typedef struct qr_packing {
    qr_packing_kind kind;
    int64_t block_rows, block_cols; /* a scale is for a block of this size; 0: for the whole matrix */
} qr_packing;

const char *qr_packing_name(qr_packing_kind kind); /* "fp8"; as quantization_config names it */

/* One matrix [rows, cols]. Its row r is row first_row + r · row_step of what is stored, which may be several matrices
 * in one. */
typedef struct qr_packed_weight {
    qr_packing_kind kind; /* NONE: the matrix is stored otherwise */
    int64_t rows, cols, first_row, row_step;
    const unsigned char *codes;
    qr_dtype code_dtype;
    const qr_safetensors_tensor *scale_tensor;
    const unsigned char *scales; /* in scale_tensor: [blocks of rows, blocks of cols] */
    int64_t block_rows, block_cols;
} qr_packed_weight;

/* Whether `tensor` has the codes of a packed matrix: a folder leaves some matrices as they were. */
bool qr_packing_has_codes(const qr_packing *packing, const qr_safetensors_tensor *tensor);

/* The matrices [rows, cols] that `codes` holds, one after the other, and the scales that belong to them in the tensor
 * `scales_name`: one grid for each. Gives matrix `index`. QRUN_ERROR_INPUT for scales that are missing, or of another
 * grid than `packing` says. */
qrun_status qr_packed_weight_find(const qr_safetensors *file, const qr_packing *packing,
                                  const qr_safetensors_tensor *codes, const char *scales_name, int64_t rows,
                                  int64_t cols, int64_t index, qr_packed_weight *packed, qr_error *err);

/* dst [n_rows, cols] = rows [first, first + n_rows). */
void qr_packed_weight_rows(const qr_packed_weight *packed, int64_t first, int64_t n_rows, float *dst);

#endif

/* How a weight matrix is stored: the formats, and the canonical bytes of each (those in bitsandbytes' files,
 * docs/formats.md). A backend may hold the same weights in another order; it reads and writes canonical bytes.
 *
 * MXFP4 (OCP Microscaling Formats, version 1.0) is never made here, only kept: a code is one of 16 values (E2M1), and
 * 32 of them share a power of two (E8M0). Its canonical codes are in NF4's order, the even element in the upper half
 * of a byte; files have it in the lower one.
 *
 * A matrix has `rows` output features and `cols` input features; element (r, c) is number r · cols + c of the
 * flattened matrix. Blocks run over the flattened matrix and may straddle rows. */
#ifndef QR_QUANT_FORMAT_H
#define QR_QUANT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

/* X(enumerator suffix, name on the command line, bits per code) */
#define QR_WEIGHT_FORMATS(X) \
    X(F32, "f32", 32)        \
    X(F16, "f16", 16)        \
    X(BF16, "bf16", 16)      \
    X(INT8, "int8", 8)       \
    X(NF4, "nf4", 4)         \
    X(NF4_DQ, "nf4-dq", 4)   \
    X(MXFP4, "mxfp4", 4)

typedef enum qr_weight_format {
#define QR_X(suffix, name, bits) QR_WEIGHT_##suffix,
    QR_WEIGHT_FORMATS(QR_X)
#undef QR_X
        QR_WEIGHT_FORMAT_COUNT
} qr_weight_format;

enum {
    QR_NF4_BLOCK = 64,        /* weights per absmax; files may say another power of two, 32 … 4096 */
    QR_NESTED_BLOCK = 256,    /* absmax codes per nested absmax */
    QR_MXFP4_BLOCK = 32,      /* weights per scale */
    QR_WEIGHT_ROW_GROUP = 64, /* rows are written in groups of this: a group begins at a whole byte in every format, and
                               * at a block boundary where the block is at most 64 (or divides 64 · cols) */
};

/* A matrix and its format. `block` is the NF4 block size (0 for other formats; that of MXFP4 is fixed). */
typedef struct qr_weight_desc {
    qr_weight_format format;
    int block;
    int64_t rows;
    int64_t cols;
} qr_weight_desc;

/* Everything but the codes, in canonical form; which fields are used depends on the format. Lent. */
typedef struct qr_weight_scales {
    const float *row_absmax;     /* INT8: SCB, [rows] */
    const float *absmax;         /* NF4: [n_blocks] */
    const uint8_t *absmax_codes; /* NF4_DQ: [n_blocks], indices into the signed dynamic map; MXFP4: [n_blocks], E8M0 */
    const float *nested_absmax;  /* NF4_DQ: [ceil(n_blocks / 256)] */
    float nested_offset;         /* NF4_DQ */
} qr_weight_scales;

const char *qr_weight_format_name(qr_weight_format format);

/* Whether the codes are the elements themselves. */
static inline bool qr_weight_is_plain(qr_weight_format format) { return format < QR_WEIGHT_INT8; }

/* The plain format with elements of `dtype` (F32, F16, BF16). */
static inline qr_weight_format qr_weight_plain_format(qr_dtype dtype) {
    return dtype == QR_DTYPE_F32 ? QR_WEIGHT_F32 : dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16 : QR_WEIGHT_BF16;
}

/* Whether the codes are NF4, with or without nested scales. */
static inline bool qr_weight_is_nf4(qr_weight_format format) {
    return format == QR_WEIGHT_NF4 || format == QR_WEIGHT_NF4_DQ;
}

/* Whether the codes have 4 bits, of 16 values, and blocks of them a scale: NF4 or MXFP4. */
static inline bool qr_weight_has_blocks(qr_weight_format format) { return format >= QR_WEIGHT_NF4; }

/* Weights per scale of a format with blocks. */
static inline int qr_weight_block(const qr_weight_desc *desc) {
    return desc->format == QR_WEIGHT_MXFP4 ? QR_MXFP4_BLOCK : desc->block;
}

/* The values of its 16 codes, which a scale multiplies. */
const float *qr_weight_code_values(qr_weight_format format);

/* rows · cols; INT64_MAX never overflows because descriptions are checked by qr_weight_desc_check first. */
int64_t qr_weight_elements(const qr_weight_desc *desc);
int64_t qr_weight_blocks(const qr_weight_desc *desc);    /* Formats with blocks: ceil(elements / block); else 0 */
size_t qr_weight_code_bytes(const qr_weight_desc *desc); /* canonical codes of the whole matrix */
/* Canonical codes of rows [row, row + n_rows): row must be a multiple of QR_WEIGHT_ROW_GROUP; offset in bytes. */
size_t qr_weight_row_offset(const qr_weight_desc *desc, int64_t row);

/* Positive sizes, a product that fits, a block size that is a power of two in 32 … 4096 where one is needed. */
qrun_status qr_weight_desc_check(const qr_weight_desc *desc, const char *name, qr_error *err);

#endif

/* The tensors that bitsandbytes 0.50 and transformers store a quantised matrix as: their names, types and shapes, for
 * reading and for writing. A matrix of `module` is "<module>.<suffix>" for each of its parts. */
#ifndef QR_LOADERS_FILES_BNB_TENSORS_H
#define QR_LOADERS_FILES_BNB_TENSORS_H

#include "loaders/files/safetensors_writer.h"
#include "quant/format.h"

#define QR_BNB_CODES_NAME "weight"
#define QR_BNB_ABSMAX_NAME "weight.absmax"
#define QR_BNB_QUANT_MAP_NAME "weight.quant_map"
#define QR_BNB_NESTED_ABSMAX_NAME "weight.nested_absmax"
#define QR_BNB_NESTED_QUANT_MAP_NAME "weight.nested_quant_map"
#define QR_BNB_QUANT_STATE_NAME "weight.quant_state.bitsandbytes__nf4"
#define QR_BNB_ROW_ABSMAX_NAME "SCB"
#define QR_BNB_WEIGHT_FORMAT_NAME "weight_format"

typedef enum qr_bnb_part {
    QR_BNB_CODES,            /* NF4: U8 [ceil(n / 2), 1]; INT8: I8 [rows, cols]; unquantised: [rows, cols] */
    QR_BNB_ABSMAX,           /* NF4: F32 [n_blocks]; double-quantised: U8 [n_blocks] */
    QR_BNB_QUANT_MAP,        /* NF4: F32 [16], the code book */
    QR_BNB_NESTED_ABSMAX,    /* double-quantised: F32 [ceil(n_blocks / 256)] */
    QR_BNB_NESTED_QUANT_MAP, /* double-quantised: F32 [256] */
    QR_BNB_QUANT_STATE,      /* NF4: U8, the text of qr_bnb_quant_state */
    QR_BNB_ROW_ABSMAX,       /* INT8: F32 [rows] */
    QR_BNB_WEIGHT_FORMAT,    /* INT8: U8 scalar, 0 = row-major */
    QR_BNB_PART_COUNT
} qr_bnb_part;

/* Whether a matrix of this format is stored with that part. */
bool qr_bnb_has_part(qr_weight_format format, qr_bnb_part part);
const char *qr_bnb_part_suffix(qr_bnb_part part);

/* Type and shape of a part; the name is left to the caller. state_bytes: the length of the quantisation state. */
qr_safetensors_spec qr_bnb_part_spec(const qr_weight_desc *desc, qr_bnb_part part, size_t state_bytes);

enum { QR_BNB_QUANT_STATE_BYTES = 320 };

/* The state of an NF4 matrix as Python's json.dumps writes it, NUL-terminated. dtype is that of the weights before they
 * were quantised; nested_offset is used where the format is double-quantised. Returns the length. */
size_t qr_bnb_quant_state(const qr_weight_desc *desc, qr_dtype dtype, float nested_offset,
                          char text[QR_BNB_QUANT_STATE_BYTES]);

#endif

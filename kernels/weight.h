/* A weight matrix in a backend's memory. */
#ifndef QR_KERNELS_WEIGHT_H
#define QR_KERNELS_WEIGHT_H

#include "quant/format.h"

/* `data` points at qr_backend.weight_bytes(desc) bytes of device memory, 64-byte aligned, inside the plan's weight
 * arena; what they hold is the backend's own affair: it is written by weight_put_rows and weight_put_scales and
 * given back in canonical form by weight_get_rows and weight_get_scales. */
typedef struct qr_weight {
    qr_weight_desc desc;
    void *data;
    float nested_offset; /* NF4_DQ; kept here because it is one number */
} qr_weight;

#endif

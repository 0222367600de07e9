/* A weight matrix in a backend's memory. */
#ifndef QR_KERNELS_WEIGHT_H
#define QR_KERNELS_WEIGHT_H

#include "quant/format.h"

/* `data` points at qr_backend.weight_bytes(desc) bytes of device memory, 64-byte aligned, inside the plan's weight
 * arena. Their layout is the backend's own: weight_put_rows and weight_put_scales write them, weight_get_rows and
 * weight_get_scales read them in canonical form. */
typedef struct qr_weight {
    qr_weight_desc desc;
    void *data;
    float nested_offset; /* NF4_DQ; kept here because it is one number */
} qr_weight;

#endif

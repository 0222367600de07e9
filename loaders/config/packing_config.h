/* The part of "quantization_config" about matrices that are decoded while they are read. */
#ifndef QR_LOADERS_CONFIG_PACKING_CONFIG_H
#define QR_LOADERS_CONFIG_PACKING_CONFIG_H

#include "base/status.h"
#include "loaders/files/json.h"
#include "loaders/files/packed_weight.h"

/* Reads the object of that "quant_method": fp8, mxfp4, gptq, awq or compressed-tensors. A packing of kind NONE: its
 * weights are plain. QRUN_ERROR_UNSUPPORTED names what is not read. The caller frees it, also after an error. */
qrun_status qr_packing_config_read(const qr_json *object, const char *method, const char *what, qr_packing *packing,
                                   qr_error *err);
void qr_packing_free(qr_packing *packing); /* leaves it zeroed */

#endif

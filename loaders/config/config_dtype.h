/* "bfloat16" or "torch.bfloat16": a type of weights, as config.json names it. */
#ifndef QR_LOADERS_CONFIG_CONFIG_DTYPE_H
#define QR_LOADERS_CONFIG_CONFIG_DTYPE_H

#include "base/dtype.h"
#include "base/status.h"
#include "loaders/files/json.h"

/* Absent leaves *dtype unchanged. QRUN_ERROR_UNSUPPORTED for other types than F32, F16 and BF16. */
qrun_status qr_config_dtype_read(const qr_json *object, const char *key, qr_dtype *dtype, const char *what,
                                 qr_error *err);

#endif

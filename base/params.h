/* Checks of the public parameter structs. */
#ifndef QR_BASE_PARAMS_H
#define QR_BASE_PARAMS_H

#include <stddef.h>

#include "base/status.h"

/* QRUN_ERROR_ARGUMENT unless a struct is there and was begun with this version's _INIT macro. type: as in qrun.h, such
 * as qrun_train_params. */
#define QR_CHECK_STRUCT(type, params, err) qr_check_struct(params, sizeof(type), #type, err)
/* given: NULL, or a struct that begins with its struct_size. */
qrun_status qr_check_struct(const void *given, size_t expected_bytes, const char *type, qr_error *err);

typedef struct qr_range {
    const char *name; /* for the message */
    double value, low, high;
} qr_range;

/* QRUN_ERROR_ARGUMENT for the first value that is not from low to high, or NaN. */
qrun_status qr_check_ranges(const qr_range *ranges, size_t n, qr_error *err);

#endif

#include "base/params.h"

#include <string.h>

qrun_status qr_check_struct(const void *given, size_t expected_bytes, const char *type, qr_error *err) {
    size_t given_bytes;
    if (given == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "NULL was given for a %s; pass one that begins with its _INIT macro",
                       type);
    }
    memcpy(&given_bytes, given, sizeof given_bytes);
    if (given_bytes == expected_bytes) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s has an unknown size; begin with its _INIT macro", type);
}

qrun_status qr_check_ranges(const qr_range *ranges, size_t n, qr_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].value >= ranges[i].low && ranges[i].value <= ranges[i].high) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s must be from %.10g to %.10g, not %.10g", ranges[i].name,
                       ranges[i].low, ranges[i].high, ranges[i].value);
    }
    return QRUN_OK;
}

/* Reading the indices of tests/fixtures: members of their objects, with "" and NaN where there is none. */
#ifndef QR_TESTS_GOLDEN_INDEX_H
#define QR_TESTS_GOLDEN_INDEX_H

#include "loaders/files/json.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

static inline const char *text_of(const qr_json *object, const char *key) {
    const qr_json *value = qr_json_get(object, key);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static inline double number_of(const qr_json *object, const char *key) {
    return cJSON_GetNumberValue(qr_json_get(object, key));
}

#endif

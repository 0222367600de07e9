/* Reading the indices of tests/fixtures: members of their objects, with "" and NaN where there is none. */
#ifndef QR_TESTS_GOLDEN_INDEX_H
#define QR_TESTS_GOLDEN_INDEX_H

#include <string.h>

#include "loaders/files/json.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/"

static inline const char *text_of(const qr_json *object, const char *key) {
    const qr_json *value = qr_json_get(object, key);
    return cJSON_IsString(value) ? value->valuestring : "";
}

static inline double number_of(const qr_json *object, const char *key) {
    return cJSON_GetNumberValue(qr_json_get(object, key));
}

/* The entry of that name in one of an index' lists; NULL: there is none. */
static inline const qr_json *entry_named(const qr_json *index, const char *list, const char *name) {
    const qr_json *entry = qr_json_first(qr_json_get(index, list));
    while (entry != NULL && strcmp(text_of(entry, "name"), name) != 0) { entry = entry->next; }
    return entry;
}

#endif
